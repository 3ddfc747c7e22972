"""Row ids: the values of a column that identify a prompt, so that it is known again in another order or another set.

Without ids a row is known by its place in the training set, and the rows of a stream are not known again.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import torch
from accelerate.logging import get_logger
from torch import Tensor

from ..utils import dataset_rows
from ..utils.validation import ConfigError


logger = get_logger(__name__)

KINDS = (str, int, float, bool)


class RowIds:
    """The ids of a map-style training set's rows.

    No id is kept in memory. A checkpoint that is written reads the ids of its rows, a resume reads the column.

    Args:
        train_set ([`~datasets.Dataset`]): the training set.
        name (`str`): its column of ids.
    """

    def __init__(self, train_set: Any, name: str):
        self.name = name
        self._train_set = train_set

    def of(self, rows: Tensor) -> pa.ChunkedArray | list[Any]:
        """Return the ids of `(V,)` rows."""
        return dataset_rows.values_of(self._train_set, self.name, rows)

    def rows_of(self, ids: pa.ChunkedArray | Sequence[Any]) -> Tensor:
        """Return the row of each id, `(V,)`; -1 for an id that no row has."""
        column = dataset_rows.stored_column(self._train_set, self.name)
        if column is not None and (typed := _of_type(ids, column.type)) is not None:
            with suppress(pa.ArrowNotImplementedError):  # of float16
                rows = pc.index_in(typed, value_set=column)
                return torch.from_numpy(rows.fill_null(-1).to_numpy().astype(np.int64))
        found = torch.full((len(ids),), -1, dtype=torch.long)
        place_of = {value: place for place, value in enumerate(_as_list(ids))}
        for row, value in enumerate(chain.from_iterable(self._parts())):
            if (place := place_of.get(value)) is not None:
                found[place] = row
        return found

    def check(self) -> None:
        """Check the ids, in a third of a second for each million rows.

        Raises:
            ConfigError: a row has no id, two rows have the same id, or an id is no text and no number.
        """
        hashes = np.empty(len(self._train_set), dtype=np.int64)
        start = 0
        for values in self._parts():
            for place, value in enumerate(values):
                if type(value) not in KINDS or value != value:
                    as_id(self.name, value, f"row {start + place}")
            hashes[start : start + len(values)] = [hash(value) for value in values]
            start += len(values)
        in_order = np.sort(hashes)  # much faster than a stable argsort
        repeated = np.unique(in_order[1:][in_order[1:] == in_order[:-1]])
        equal = np.flatnonzero(np.isin(hashes, repeated))  # rows whose ids have equal hashes
        first: dict[Any, int] = {}
        for row, value in zip(equal.tolist(), _as_list(self.of(torch.from_numpy(equal))), strict=True):
            if (other := first.setdefault(value, row)) != row:
                raise ConfigError(
                    f"belief_id={self.name!r}: the rows {other} and {row} both have {value!r:.80}. An id identifies "
                    "one prompt. Remove the repeated rows, or name a column whose values differ. A column whose "
                    "values group prompts is a belief_key."
                )

    def _parts(self) -> Iterator[list[Any]]:
        """Yield the ids in the order of the rows, in parts: ten million texts at once take a gigabyte."""
        stored = dataset_rows.stored_column(self._train_set, self.name)
        if stored is None:
            yield dataset_rows.column(self._train_set, self.name)
            return
        for chunk in stored.chunks:
            for start in range(0, len(chunk), 1 << 16):
                yield chunk[start : start + (1 << 16)].to_pylist()


class StreamIds:
    """The ids that a stream's rows had so far, each with a place in the tables of beliefs.

    Args:
        name (`str`): the column of ids.
    """

    def __init__(self, name: str):
        self._name = name
        self._places: dict[Hashable, int] = {}
        self._window: list[int] = []

    def show(self, rows: Sequence[Mapping[str, Any]]) -> list[int]:
        """Set the stream rows that indices refer to from now on; return the indices of rows with a new id.

        All rows without an id (`None`, NaN) count as one: an error in the midst of a stream would end the run.
        """
        ids = [as_id(self._name, row.get(self._name), "a row of the stream", or_none=True) for row in rows]
        if None in ids:
            logger.warning_once(
                f"belief_id={self._name!r}: a row of the stream has none. All rows without an id share one belief. "
                "Write an id into each row, or filter the stream."
            )
        first = {value: index for index, value in reversed([*enumerate(ids)])}
        new = sorted(index for value, index in first.items() if value not in self._places)
        for index in new:
            self._places[ids[index]] = len(self._places)
        self._window = [self._places[value] for value in ids]
        return new

    def places(self, indices: Sequence[int]) -> list[int]:
        """Return the places of rows of the window."""
        return [self._window[index] for index in indices]

    def indices(self, places: Sequence[int]) -> list[int]:
        """Return the rows of the window that have these places."""
        index_of = {place: index for index, place in enumerate(self._window)}
        return [index_of[place] for place in places]

    def state_dict(self) -> Tensor | list[Any]:
        """Return the ids in the order of their places, for a checkpoint."""
        return packed_ids(list(self._places))

    def load_state_dict(self, state: Tensor | Sequence[Any]) -> None:
        """Restore the saved ids."""
        self._places = {value: place for place, value in enumerate(_as_list(unpacked_ids(state)))}


def packed_ids(ids: pa.ChunkedArray | Sequence[Any]) -> Tensor | list[Any]:
    """Return ids for a checkpoint: the bytes of an Arrow stream, or a list if no Arrow type holds all of them.

    Millions of ids are written and read much faster as bytes than as a list (benchmarks/many_rows.py times the bytes).
    """
    column = ids if isinstance(ids, pa.ChunkedArray) else _of_type(ids, None)
    if column is None:
        return list(ids)
    file = pa.BufferOutputStream()
    with pa.ipc.new_stream(file, pa.schema([("ids", column.type)])) as stream:
        stream.write_table(pa.table({"ids": column}))
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def unpacked_ids(saved: Tensor | Sequence[Any]) -> pa.ChunkedArray | Sequence[Any]:
    """Return the ids that [`packed_ids`] saved."""
    if not isinstance(saved, Tensor):
        return saved
    return pa.ipc.open_stream(pa.py_buffer(saved.numpy())).read_all().column("ids")


def _of_type(ids: pa.ChunkedArray | Sequence[Any], kind: pa.DataType | None) -> pa.ChunkedArray | None:
    """Return ids in Arrow's form, of a type that holds them all if `kind` is `None`; `None` if no type does."""
    if isinstance(ids, pa.ChunkedArray) and ids.type == kind:
        return ids
    values = _as_list(ids)
    try:
        made = pa.array(values, type=kind)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        return None
    if made.to_pylist() != list(values):  # 1.5 was cast to 1
        return None
    return made if isinstance(made, pa.ChunkedArray) else pa.chunked_array([made])  # chunked beyond 2 GB


def _as_list(ids: pa.ChunkedArray | Sequence[Any]) -> Sequence[Any]:
    return ids.to_pylist() if isinstance(ids, pa.ChunkedArray) else ids


def as_id(name: str, value: Any, where: str, or_none: bool = False) -> Hashable:
    """Return a value as an id; `None` for a missing one, with `or_none`. Raise ConfigError if it cannot be an id."""
    value = dataset_rows.plain(value)
    if or_none and (value is None or value != value):
        return None
    if type(value) not in KINDS or value != value:
        raise ConfigError(
            f"belief_id={name!r}: {where} has {value!r:.80}. Each row needs an id, and an id is a text or a number. "
            "Name another column, or write an id into each row of this one."
        )
    return value
