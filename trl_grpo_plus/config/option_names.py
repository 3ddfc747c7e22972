"""The names of a dataclass's options: unknown ones are refused, and the command line takes their help from here."""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from ..utils.validation import did_you_mean
from . import presets
from .gone_options import GONE_OPTIONS


def knowing_names(init: Callable[..., None]) -> Callable[..., None]:
    """Return the `__init__` of a dataclass that applies a preset, and names the closest option to an unknown one."""

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **options: Any) -> None:
        """Refuse options that the dataclass does not have, and add those of the preset."""
        fields = type(self).__dataclass_fields__
        if unknown := [name for name in options if name not in fields]:
            told = " It also got ".join(
                f"{name!r}. {GONE_OPTIONS[name]}" if name in GONE_OPTIONS else f"{name!r}.{did_you_mean(name, fields)}"
                for name in unknown
            )
            # Python's words: scripts for several releases of TRL read from them which option to leave out.
            raise TypeError(f"{type(self).__name__} got an unexpected keyword argument {told}")
        names = [of.name for of in dataclasses.fields(self) if of.init]
        init(self, *args, **presets.apply(options, names[: len(args)], names))

    return checked


def take_help_from_docstring(kind: type) -> None:
    """Set the command line's help of each option: the first sentence of its entry in the dataclass's docstring."""
    for name, sentence in re.findall(r"(?m)^    (\w+) \(`.*\):\n +([\s\S]+?\.)(?!\S)", inspect.getdoc(kind) or ""):
        option = kind.__dataclass_fields__[name]  # type: ignore[attr-defined]
        option.metadata = MappingProxyType({**option.metadata, "help": " ".join(sentence.split())})
