"""Values of a training set's rows as Python's own numbers and texts, whatever the format of the set.

With a format, the values are numbers of torch, NumPy or pandas. Two tensors of equal value are two keys of a dict, and
a checkpoint that holds NumPy or pandas numbers cannot be read again.
"""

import json
import zlib
from collections.abc import Iterable
from types import NoneType
from typing import Any


SAMPLE = 256  # rows compared to tell whether a dataset is the same as before
PLAIN = (str, int, float, bool, NoneType)


def plain(value: Any) -> Any:
    """Return a single number or text of another library as Python's own; return other values unchanged."""
    single = type(value) not in PLAIN and getattr(value, "ndim", 1) == 0
    return value.item() if single else value


def column(dataset: Any, name: str) -> list[Any]:
    """Return a column of a map-style dataset as a list of plain values, one a row."""
    return [plain(value) for value in unformatted(dataset)[name][:]]


def unformatted(dataset: Any) -> Any:
    """Return the dataset without its format; keep a transform, because only the transform knows the rows."""
    form = getattr(dataset, "format", {}).get("type")
    return dataset if form in (None, "custom") else dataset.with_format(None)


def prints(dataset: Any, columns: Iterable[str | None]) -> dict[int, int]:
    """Return checksums of these columns in rows of a map-style dataset, evenly spaced from the first to the last row.

    Equal checksums mean equal rows in an equal order, as far as the sampled rows show.

    The fingerprint of `datasets` does not depend on contents: it changes if the same rows were made in another way.
    """
    held = [name for name in dict.fromkeys(columns) if name in (getattr(dataset, "column_names", None) or ())]
    count = min(len(dataset), SAMPLE) if held else 0
    rows = [place * (len(dataset) - 1) // max(count - 1, 1) for place in range(count)]
    # Read as stored, so that no transform runs and no picture is decoded.
    stored = dataset.select_columns(held).with_format("arrow")[rows].to_pylist() if rows else []
    return {row: _checksum(content) for row, content in zip(rows, stored, strict=True)}


def _checksum(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True, default=lambda value: type(value).__name__).encode())
