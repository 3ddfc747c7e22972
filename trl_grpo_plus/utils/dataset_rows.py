"""Values of a training set's rows as Python's own numbers and texts, whatever the format of the set.

With a format, the values are numbers of torch, NumPy or pandas. Two tensors of equal value are two keys of a dict, and
a checkpoint that holds NumPy or pandas numbers cannot be read again.
"""

import json
import operator
import zlib
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import torch
from torch import Tensor


SAMPLE = 256  # rows compared to tell whether a dataset is the same as before
PLAIN = (str, int, float, bool, NoneType)


def plain(value: Any) -> Any:
    """Return another library's single number or text as Python's own type; return other values unchanged."""
    single = type(value) not in PLAIN and getattr(value, "ndim", 1) == 0
    return value.item() if single else value


def plain_within(value: Any) -> Any:
    """Return a list, tuple or dict with [`plain`] values at all depths; the same object if they are plain already."""
    if type(value) not in (list, tuple, dict):
        return plain(value)
    given = list(value.values() if isinstance(value, dict) else value)
    made = [plain_within(item) for item in given]
    if all(map(operator.is_, made, given)):
        return value
    return dict(zip(value, made, strict=True)) if isinstance(value, dict) else type(value)(made)


def column(dataset: Any, name: str) -> list[Any]:
    """Return a column of a map-style dataset as a list of plain values, one a row."""
    return [plain(value) for value in unformatted(dataset)[name][:]]


class Codes(NamedTuple):
    """A column as numbers.

    Args:
        values (`list`): the distinct values, in the order in which the column first has them.
        codes (`Tensor`): `(N,)`, the index in `values` of each row's value, in the smallest dtype that holds them.
    """

    values: list[Any]
    codes: Tensor


def encoded(values: Sequence[Any]) -> Codes:
    """Return a sequence of plain values as [`Codes`]. All NaN are one value, `None`."""
    code_of: dict[Any, int] = {}
    codes = [code_of.setdefault(value if value == value else None, len(code_of)) for value in values]
    return Codes(list(code_of), torch.tensor(codes, dtype=_smallest(len(code_of))))


def encoded_column(dataset: Any, name: str) -> Codes | None:
    """Return a column of a map-style dataset as [`Codes`], in 0.02 s for each million rows of numbers or short texts.

    Returns `None` if the values are not single numbers or texts, or if a transform makes them. Use [`column`] then.
    """
    stored = stored_column(dataset, name)
    if stored is None:
        return None
    found = stored.dictionary_encode(null_encoding="encode").combine_chunks()
    chunk = found.chunk(0) if isinstance(found, pa.ChunkedArray) else found
    values = [value if value == value else None for value in chunk.dictionary.to_pylist()]
    codes = torch.from_numpy(chunk.indices.to_numpy(zero_copy_only=False).copy())
    distinct: dict[Any, int] = {}
    # Arrow distinguishes values that are one key here: 0.0 and -0.0, and None and NaN (NaN becomes None).
    places = [distinct.setdefault(value, len(distinct)) for value in values]
    if len(distinct) < len(values):
        codes = torch.tensor(places)[codes.long()]
    return Codes(list(distinct), codes.to(_smallest(len(distinct))))


def stored_column(dataset: Any, name: str, rows: Tensor | None = None) -> pa.ChunkedArray | None:
    """Return a map-style dataset's column of single values in Arrow's form; `None` for a column of another kind.

    With `rows`, `(V,)`, it has the values of these rows alone.
    """
    if getattr(dataset, "format", {}).get("type") == "custom" or name not in dataset.column_names:
        return None
    stored = dataset.data.column(name)
    single = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_string)
    if not any(is_kind(stored.type) for is_kind in (*single, pa.types.is_large_string)):
        return None
    # The indices of a shuffled or filtered set. Reading its rows through the set takes 18 s for each million.
    chosen = getattr(dataset, "_indices", None)
    places = None if rows is None else pa.array(rows.numpy())
    if chosen is not None:
        places = chosen.column(0) if places is None else chosen.column(0).take(places)
    return stored if places is None else stored.take(places)


def count_empty(dataset: Any, name: str) -> int | None:
    """Return how many rows have `None` or an empty list in a column; `None` for a stream, and if a transform makes it.

    No value is read, so the column may hold images.
    """
    if not hasattr(dataset, "data") or dataset.format["type"] == "custom":
        return None
    stored, chosen = dataset.data.column(name), dataset._indices
    is_list = pa.types.is_list(stored.type) or pa.types.is_large_list(stored.type)
    lengths = pc.list_value_length(stored).fill_null(0) if is_list else stored.is_valid().cast(pa.int32())
    if chosen is not None:
        lengths = lengths.take(chosen.column(0))
    return pc.sum(pc.equal(lengths, 0)).as_py() or 0


def values_of(dataset: Any, name: str, rows: Tensor) -> pa.ChunkedArray | list[Any]:
    """Return a column's values in `(V,)` rows of a map-style dataset: in Arrow's form, or a list of plain values.

    No other rows are read.
    """
    stored = stored_column(dataset, name, rows)
    return column(dataset.select(rows.tolist()), name) if stored is None else stored


def _smallest(count: int) -> torch.dtype:
    """Return the smallest dtype for numbers below `count`."""
    kinds = (torch.int8, torch.int16, torch.int32)
    return next((kind for kind in kinds if count <= torch.iinfo(kind).max), torch.int64)


def unformatted(dataset: Any) -> Any:
    """Return the dataset without its format; keep a transform, because only the transform knows the rows."""
    form = getattr(dataset, "format", {}).get("type")
    return dataset if form in (None, "custom") else dataset.with_format(None)


def fingerprint(dataset: Any, columns: Iterable[str | None]) -> dict[str, Any]:
    """Return checksums of a sample of a map-style dataset's rows, which [`difference`] compares with another sample.

    The fingerprint of `datasets` does not serve here, because it changes if the same rows were made in another way.

    Args:
        dataset ([`~datasets.Dataset`]): the dataset.
        columns (`Iterable[str]`): the columns that are read; `None` and columns that the dataset lacks are left out.

    Returns:
        `dict`: "num_rows", and "prints": row -> checksum, for rows that are evenly spaced from the first to the last.
    """
    present = [name for name in dict.fromkeys(columns) if name in (getattr(dataset, "column_names", None) or ())]
    count = min(len(dataset), SAMPLE) if present else 0
    rows = [place * (len(dataset) - 1) // max(count - 1, 1) for place in range(count)]
    # Read as stored, so that no transform runs and no picture is decoded.
    stored = dataset.select_columns(present).with_format("arrow")[rows].to_pylist() if rows else []
    prints = {row: _checksum(content) for row, content in zip(rows, stored, strict=True)}
    return {"num_rows": len(dataset), "prints": prints}


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return how a run's dataset differs from an earlier one, by their [`fingerprint`]s; "" if they look the same."""
    if before["num_rows"] != now["num_rows"]:
        return f"there were {before['num_rows']} rows, this run's training set has {now['num_rows']}"
    other = [row for row, of_row in now["prints"].items() if before["prints"].get(row, of_row) != of_row]
    compared = f"of {len(now['prints'])} rows that were compared {len(other)} differ"
    return f"{compared}, first row {other[0]}" if other else ""


def _checksum(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True, default=lambda value: type(value).__name__).encode())
