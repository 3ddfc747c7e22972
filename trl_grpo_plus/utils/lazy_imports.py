"""Imports that wait until a name is read. TRL and torch take seconds to import, and many commands need neither."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_imports(module: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module's `__getattr__`, which imports a name when it is first read (PEP 562).

    Args:
        module (`str`): name of the module that has this `__getattr__`.
        places (`dict[str, str]`): for each name, the module that defines it, relative to `module`: `.x` is a module in
            the package `module`, `..x` is one beside the module `module`. A name that is its module's stands for it.
    """

    def get(name: str) -> Any:
        """Return the value of a name that has not been imported yet."""
        if name not in places:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        defined_in = import_module(places[name], module)
        return defined_in if places[name] == f".{name}" else getattr(defined_in, name)

    return get
