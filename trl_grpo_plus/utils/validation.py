"""Checks of values that users give, and the messages for values that are not allowed.

Every refusal of a user's value is a [`ConfigError`], so that a launch script can tell a refusal from a bug.
"""

import collections.abc
import dataclasses
import difflib
import inspect
import math
import sys
import traceback
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal


_LIBRARIES = ("trl_grpo_plus", "trl", "transformers", "accelerate")  # they make trainers
_IN_WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "a text", dict: "a mapping"}


class ConfigError(ValueError):
    """A user's value cannot be used. The message names the value, the allowed values and the remedy.

    Several refusals are several arguments: `ConfigError(*reasons)`.
    """

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class RunError(RuntimeError):
    """A run cannot go on. The message quotes the error of a library, of a user's code or of another process."""


def error_lines(error: Exception) -> str:
    """Return an error as the commands print it. Each refusal begins with `error: `."""
    reasons = error.args if isinstance(error, ConfigError) else [error]
    return "\n".join(f"error: {reason}" for reason in reasons)


@contextmanager
def error_prefix(what: str, errors: type[ValueError] = ConfigError) -> Iterator[None]:
    """Begin the message of a refusal inside the block with `what`; errors of the type `errors` are refusals."""
    try:
        yield
    except errors as error:
        text = str(error)
        raise ConfigError(text if text.startswith(what) else f"{what}: {text}") from error


def user_level() -> int:
    """Return the `stacklevel` with which a warning of the caller names the user's line instead of a library's."""
    names = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_stack(sys._getframe(1)))
    return next((level for level, name in enumerate(names, 1) if name.partition(".")[0] not in _LIBRARIES), 1)


def did_you_mean(name: str, names: Iterable[str], prefix: str = "") -> str:
    """Suggest the `names` that are similar to `name`: " Did you mean ...?", or ""."""
    names = [each for each in names if not each.startswith("_")]
    matches = difflib.get_close_matches(name, names, n=3)
    matches = matches or [each for each in names if each.startswith(f"{name}_")][:3]  # "dead" for "dead_groups"
    return f" Did you mean {' or '.join(prefix + match for match in matches)}?" if matches else ""


def one_of(name: str, value: Any, allowed: Iterable[Any]) -> None:
    """Refuse a value that is not one of the allowed values."""
    allowed = tuple(allowed)
    if isinstance(value, bool) or value not in allowed:
        options = ", ".join(repr(option) for option in allowed)
        raise ConfigError(f"{name}={value!r} is not one of {options}.{did_you_mean(str(value), map(str, allowed))}")


@dataclass(frozen=True)
class Number:
    """The allowed values of a number. An infinite bound does not apply.

    Args:
        at_least, above, at_most, below (`float`, *optional*): the bounds.
        integer (`bool`, *optional*, defaults to `False`): whether the number must be an integer.
        optional (`bool`, *optional*, defaults to `False`): whether the value may be `None`.
        note (`str`, *optional*, defaults to `""`): text at the end of the message.
    """

    at_least: float = -math.inf
    above: float = -math.inf
    at_most: float = math.inf
    below: float = math.inf
    integer: bool = False
    optional: bool = False
    note: str = ""

    def check(self, name: str, value: Any) -> None:
        """Refuse a value that is not such a number."""
        if value is None and self.optional:
            return
        finite = finite_or_none(value)
        if finite is not None and self._holds(finite) and (isinstance(value, int) or not self.integer):
            return
        hint = ""
        if isinstance(value, str):
            hint = ", not a text: leave the quotes out. PyYAML takes 1e-4 for a text and 1.0e-4 for a number"
        raise ConfigError(f"{name}={value!r} must be {self}{hint}{self.note}.")

    def _holds(self, value: float) -> bool:
        return self.at_least <= value <= self.at_most and self.above < value < self.below

    def __str__(self) -> str:
        signs = {">=": self.at_least, ">": self.above, "<=": self.at_most, "<": self.below}
        bounds = [f"{sign} {bound}" for sign, bound in signs.items() if math.isfinite(bound)]
        return " and ".join(["an integer" if self.integer else "a finite number", *bounds])


def of_libraries(cls: type) -> bool:
    """Return whether a class is of transformers, TRL or this package, not of a user."""
    return cls.__module__.split(".")[0] in ("transformers", "trl", "trl_grpo_plus")


def library_options(config: Any) -> list[str]:
    """Return the options of transformers, TRL and this package. A user's configuration may have more."""
    theirs = [cls for cls in type(config).__mro__ if dataclasses.is_dataclass(cls) and of_libraries(cls)]
    return list(dict.fromkeys(field.name for cls in theirs for field in dataclasses.fields(cls)))


def finite_or_none(value: Any) -> float | None:
    """Return a finite number as a float, else `None`; a bool is not a number."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and abs(value) <= sys.float_info.max else None


def finite_values(rows: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    """Return the finite numbers that the rows have under a name."""
    return [value for row in rows if (value := finite_or_none(row.get(name))) is not None]


def fits(value: Any, annotation: Any) -> bool:
    """Return whether `value` fits `annotation`; every value fits an annotation that is not understood.

    The rules are those of a type checker, with three that YAML files need: a bool is not a number, a text is not a
    list, and a list may stand for a tuple.
    """
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in (Any, inspect.Parameter.empty) or isinstance(annotation, str | typing.TypeVar):
        return True
    if origin is typing.Annotated:
        return fits(value, inner[0])
    if annotation is None:
        return value is None
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, option) for option in inner)
    if origin is Literal:
        return any(type(value) is type(option) and value == option for option in inner)
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if annotation is tuple:
        return isinstance(value, list | tuple)
    if origin is not None:
        return _fits_container(value, origin, inner)
    try:
        return _is_instance(value, annotation)
    except TypeError:  # a Protocol, a TypedDict, a NewType
        return True


def spelled(annotation: Any) -> str:
    """Return an annotation in words for an error's text."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, inner))
    if origin is typing.Annotated:
        return spelled(inner[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(spelled, inner))
    if annotation in (None, type(None)):
        return "None"
    if origin is list and inner:
        return f"a list in which each item is {spelled(inner[0])}"
    if origin is dict and inner[1:] not in ((), (Any,)):
        return f"a mapping in which each value is {spelled(inner[1])}"
    name = annotation.__name__ if isinstance(annotation, type) and not inner else str(annotation)
    return _IN_WORDS.get(origin or annotation, name)


def _fits_container(value: Any, origin: Any, inner: tuple[Any, ...]) -> bool:
    if not isinstance(origin, type):
        return True
    if issubclass(origin, collections.abc.Mapping):
        key, item = inner if len(inner) == 2 else (Any, Any)
        return isinstance(value, origin) and all(fits(k, key) and fits(v, item) for k, v in value.items())
    if issubclass(origin, collections.abc.Iterable) and inner:
        # YAML has no tuples.
        right = isinstance(value, list | tuple) if origin is tuple else isinstance(value, origin)
        if origin is tuple and inner[-1] is not Ellipsis:
            return right and len(value) == len(inner) and all(map(fits, value, inner))
        return right and not isinstance(value, str) and all(fits(item, inner[0]) for item in value)
    return _is_instance(value, origin)


def _is_instance(value: Any, kind: Any) -> bool:
    """Return [`isinstance`], but `False` for a text as a `Sequence`, an `Iterable` or a `Container`."""
    abc = collections.abc
    of_items = kind.__module__ == abc.__name__ and issubclass(kind, abc.Iterable | abc.Container)
    return isinstance(value, kind) and not (of_items and isinstance(value, str))
