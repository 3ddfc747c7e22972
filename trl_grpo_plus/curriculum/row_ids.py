"""Row ids: the values of a column that identify a prompt, so that it is known again in another order or another set.

Without ids a row is known by its place in the training set, and the rows of a stream are not known again.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import torch
from torch import Tensor

from ..utils import dataset_rows
from ..utils.validation import ConfigError


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

    def of(self, rows: Tensor) -> list[Any]:
        """Return the ids of `(V,)` rows."""
        return dataset_rows.values_of(self._train_set, self.name, rows.tolist())

    def rows_of(self, ids: Sequence[Any]) -> Tensor:
        """Return the row of each id, `(V,)`; -1 for an id that no row has."""
        found = torch.full((len(ids),), -1, dtype=torch.long)
        column = dataset_rows.stored_column(self._train_set, self.name)
        try:
            places = None if column is None else pc.index_in(column, value_set=pa.array(ids, type=column.type))
        except (pa.ArrowException, OverflowError):  # some ids are of another kind, or beyond the column's range
            places = None
        if places is not None:
            rows = np.flatnonzero(places.is_valid().to_numpy())
            found[torch.from_numpy(places.drop_null().to_numpy().astype(np.int64))] = torch.from_numpy(rows)
            return found
        place_of = {value: place for place, value in enumerate(ids)}
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
        for row, value in zip(equal.tolist(), self.of(torch.from_numpy(equal)), strict=True):
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
    """Return a value as an id. Raise ConfigError if the value cannot be an id."""
    value = dataset_rows.plain(value)
    if type(value) not in KINDS or value != value:
        raise ConfigError(
            f"belief_id={name!r}: {where} has {value!r:.80}. Each row needs an id, and an id is a text or a number. "
            "Name another column, or write an id into each row of this one."
        )
    return value
