"""Row ids: the values of a column that identify a prompt, so that it is known again in another order or another set.

Without ids a row is known by its place in the training set, and the rows of a stream are not known again.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import torch
from torch import Tensor

from ..utils import dataset_rows
from ..utils.validation import ConfigError


class RowIds:
    """The ids of a map-style training set's rows.

    No id is kept in memory: the column is read when a checkpoint is written or read.

    Args:
        train_set ([`~datasets.Dataset`]): the training set.
        name (`str`): its column of ids.
    """

    def __init__(self, train_set: Any, name: str):
        self._train_set, self._name = train_set, name

    def of(self, rows: Tensor) -> list[Any]:
        """Return the ids of `(V,)` rows."""
        return self._column().take(pa.array(rows.numpy())).to_pylist()

    def rows_of(self, ids: Sequence[Any]) -> Tensor:
        """Return the row of each id, `(V,)`; -1 for an id that no row has."""
        column = self._column()
        found = torch.full((len(ids),), -1, dtype=torch.long)
        try:
            places = pc.index_in(column, value_set=pa.array(ids, type=column.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError):  # ids of another kind: texts before, numbers now
            return found
        rows = np.flatnonzero(places.is_valid().to_numpy())
        found[torch.from_numpy(places.drop_null().to_numpy().astype(np.int64))] = torch.from_numpy(rows)
        return found

    def check(self) -> None:
        """Check the ids, in half a second for each million rows.

        Raises:
            ConfigError: a row has no id, two rows have the same id, or an id is no text and no number.
        """
        column = self._column()
        hashes = np.empty(len(column), dtype=np.int64)
        start = 0
        for batch in column.chunks:  # in parts: ten million texts at once take a gigabyte
            for part in range(0, len(batch), 1 << 16):
                values = batch[part : part + (1 << 16)].to_pylist()
                for value in values:
                    if value is None or value != value:
                        as_id(self._name, value, f"row {start + values.index(value)}")
                hashes[start : start + len(values)] = [hash(value) for value in values]
                start += len(values)
        order = hashes.argsort(kind="stable")
        again = hashes[order][1:] == hashes[order][:-1]
        first: dict[Any, int] = {}
        for row in order[np.append(again, False) | np.insert(again, 0, False)].tolist():  # ids of equal hashes
            value = column[row].as_py()
            if (other := first.setdefault(value, row)) != row:
                raise ConfigError(
                    f"belief_id={self._name!r}: the rows {other} and {row} both have {value!r:.80}. An id identifies "
                    "one prompt. Remove the repeated rows, or name a column whose values differ. A column whose "
                    "values group prompts is a belief_key."
                )

    def _column(self) -> pa.ChunkedArray:
        stored = dataset_rows.stored_column(self._train_set, self._name)
        if stored is not None:
            return stored
        values = dataset_rows.column(self._train_set, self._name)
        return pa.chunked_array([[as_id(self._name, value, f"row {row}") for row, value in enumerate(values)]])


class StreamIds:
    """The ids that a stream's rows had so far, each with a place in the tables of beliefs.

    Args:
        name (`str`): the column of ids.
    """

    def __init__(self, name: str):
        self._name = name
        self._places: dict[Hashable, int] = {}
        self._window: list[int] = []

    def __len__(self) -> int:
        return len(self._places)

    def show(self, rows: Sequence[Mapping[str, Any]]) -> list[int]:
        """Set the stream rows that indices refer to from now on; return the indices of rows with a new id."""
        ids = [as_id(self._name, row.get(self._name), "a row of the stream") for row in rows]
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

    def state_dict(self) -> list[Any]:
        """Return the ids in the order of their places."""
        return list(self._places)

    def load_state_dict(self, state: Sequence[Any]) -> None:
        """Restore the saved ids."""
        self._places = {value: place for place, value in enumerate(state)}


def as_id(name: str, value: Any, where: str) -> Hashable:
    """Return a value as an id. Raises ConfigError if it is none."""
    value = dataset_rows.plain(value)
    if type(value) not in (str, int, float, bool) or value != value:
        raise ConfigError(
            f"belief_id={name!r}: {where} has {value!r:.80}. An id is a text or a number, and each row has one. Name "
            "another column, or fill this one."
        )
    return value
