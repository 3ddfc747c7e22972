"""Whether a value from YAML fits a parameter's type annotation."""

import collections.abc
import inspect
import types
import typing
from typing import Any, Literal


def fits(value: Any, annotation: Any) -> bool:
    """Whether `value` may be passed where `annotation` is asked for; what is not understood fits.

    As a type checker has it, with two strictnesses that a YAML file needs: a bool is no number, a text no list.
    """
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in (Any, inspect.Parameter.empty) or isinstance(annotation, str | typing.TypeVar):
        return True
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
    if origin is not None:
        return _fits_container(value, origin, inner)
    try:
        return isinstance(value, annotation)
    except TypeError:  # a Protocol, a TypedDict, a NewType
        return True


def spelled(annotation: Any) -> str:
    """An annotation in words for an error's text."""
    if typing.get_origin(annotation) is Literal:
        return "one of " + ", ".join(map(repr, typing.get_args(annotation)))
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " or ".join(spelled(option) for option in typing.get_args(annotation))
    if annotation in (None, type(None)):
        return "None"
    return annotation.__name__ if isinstance(annotation, type) and not typing.get_args(annotation) else str(annotation)


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
    return isinstance(value, origin)
