"""What stands in a training set's rows, as Python's own numbers and texts, whatever format the set is read in.

A format hands out numbers of torch, NumPy or pandas. Two tensors of one value are two keys of a dict, and a checkpoint
that holds them is not read again.
"""

import json
import zlib
from collections.abc import Iterable
from types import NoneType
from typing import Any


SAMPLE = 256  # rows that tell whether a dataset is the one that it was
PLAIN = (str, int, float, bool, NoneType)


def plain(value: Any) -> Any:
    """Return a single number or text of another library as Python's own; anything else as it is."""
    single = type(value) not in PLAIN and getattr(value, "ndim", 1) == 0
    return value.item() if single else value


def column(dataset: Any, name: str) -> list[Any]:
    """Return a value a row of a map-style dataset."""
    return [plain(value) for value in unformatted(dataset)[name][:]]


def unformatted(dataset: Any) -> Any:
    """Return the dataset as it is stored. One with a transform stays as it is: only the transform knows its rows."""
    form = getattr(dataset, "format", {}).get("type")
    return dataset if form in (None, "custom") else dataset.with_format(None)


def prints(dataset: Any, columns: Iterable[str | None]) -> dict[int, int]:
    """Checksums of rows of a map-style dataset in these columns, evenly spaced from the first row to the last one.

    They are equal where the rows and their order are, as far as these rows show it.

    The fingerprint of `datasets` is none of contents: it changes where the same rows were made in another way.
    """
    held = [name for name in dict.fromkeys(columns) if name in (getattr(dataset, "column_names", None) or ())]
    count = min(len(dataset), SAMPLE) if held else 0
    rows = [place * (len(dataset) - 1) // max(count - 1, 1) for place in range(count)]
    # As stored: no transform is asked, and no picture decoded.
    stored = dataset.select_columns(held).with_format("arrow")[rows].to_pylist() if rows else []
    return {row: _checksum(content) for row, content in zip(rows, stored, strict=True)}


def _checksum(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True, default=lambda value: type(value).__name__).encode())
