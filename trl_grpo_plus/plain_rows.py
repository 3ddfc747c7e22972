"""What stands in a training set's rows, as Python's own numbers and texts, whatever format the set is read in.

A format hands out numbers of torch, NumPy or pandas. Two tensors of one value are two keys of a dict, and a checkpoint
that holds them is not read again.
"""

from types import NoneType
from typing import Any


PLAIN = (str, int, float, bool, NoneType)


def plain(value: Any) -> Any:
    """A single number or text of another library as Python's own; anything else as it is."""
    single = type(value) not in PLAIN and getattr(value, "ndim", 1) == 0
    return value.item() if single else value


def column(dataset: Any, name: str) -> list[Any]:
    """A value a row of a map-style dataset."""
    return [plain(value) for value in unformatted(dataset)[name][:]]


def unformatted(dataset: Any) -> Any:
    """The dataset as it is stored. One with a transform stays as it is: only the transform knows its rows."""
    form = getattr(dataset, "format", {}).get("type")
    return dataset if form in (None, "custom") else dataset.with_format(None)
