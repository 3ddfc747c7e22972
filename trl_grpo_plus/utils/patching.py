"""Temporary changes of attributes, and methods that a subclass or a script has replaced."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def temporarily(target: Any, **values: Any) -> Iterator[None]:
    """Set attributes of `target` inside the block; restore them after it, also after an error."""
    before = {name: getattr(target, name) for name in values}
    inherited = values.keys() - vars(target).keys()  # a method of the class, for one
    for name, value in values.items():
        setattr(target, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if name in inherited and name in vars(target):  # not a property, which keeps its value elsewhere
                delattr(target, name)
            else:
                setattr(target, name, value)


def replaces(target: Any, of: type, *methods: str) -> bool:
    """Return whether the class of `target`, a subclass of `of`, or a script has replaced one of these methods."""
    return any(name in vars(target) or getattr(type(target), name) is not getattr(of, name) for name in methods)
