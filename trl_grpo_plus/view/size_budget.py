"""The choice of the groups that fit into a page, and the temporary file in which groups wait for it."""

import json
from collections.abc import Iterable
from typing import IO, Any, NamedTuple

import numpy as np

from .overview import Place, Telling
from .template import TAGS, deflate, dumped


class Stored(NamedTuple):
    """A group's position in the spool file, and its sizes."""

    at: int
    line: int  # bytes of its line in the list
    packed: int  # bytes of its texts, packed
    raw: int  # bytes of its texts as JSON

    @property
    def cost(self) -> int:
        """Maximum number of bytes that the group takes in the page.

        The texts grow by a third in base64, and the line shrinks.
        """
        return self.packed * 4 // 3 + self.line + TAGS


class Spool:
    """The lines and the packed texts of groups, in a temporary file."""

    def __init__(self, file: IO[bytes]):
        self._file, self._end = file, 0

    def add(self, line: dict[str, Any], texts: dict[str, Any]) -> Stored:
        """Write a group's line of the list and its texts to the end of the file."""
        written, raw = dumped(line).encode(), dumped(texts).encode() + b","
        packed = deflate(raw)
        stored = Stored(self._end, len(written), len(packed), len(raw))
        self._file.seek(self._end)
        self._file.write(written + packed)
        self._end += len(written) + len(packed)
        return stored

    def line(self, stored: Stored) -> dict[str, Any]:
        """Return a group's line of the list."""
        self._file.seek(stored.at)
        line: dict[str, Any] = json.loads(self._file.read(stored.line))
        return line

    def packed(self, stored: Stored) -> bytes:
        """Return a group's packed texts."""
        self._file.seek(stored.at + stored.line)
        return self._file.read(stored.packed)


class Candidate(NamedTuple):
    """A group that may go into the page: its position in the spool file, its place in the run, and its attempts."""

    stored: Stored
    place: Place
    size: int
    sort_key: Telling | None


def in_turn(whens: Any, ranks: Any) -> Any:
    """Return the numbers of groups in the order in which a page chooses them.

    Groups of the lowest rank come first. Within a rank, the first group of each step comes first, then the second, and
    so on. The steps take turns in an order whose first steps are spread evenly over the run.

    Args:
        whens (`np.ndarray`): for each group, the number of its split and step, in order of their first groups.
        ranks (`np.ndarray`): for each group, its rank, such as [`~trl_grpo_plus.view.file_index.Groups.ranks`].
    """
    if not len(whens):
        return np.zeros(0, int)
    together = np.lexsort((ranks, whens))  # stable: groups of one step and rank stay in order
    begins = np.flatnonzero(np.diff(whens[together], prepend=-1) | np.diff(ranks[together], prepend=-1))
    turn = np.empty(len(whens), int)
    turn[together] = np.arange(len(whens)) - np.repeat(begins, np.diff(begins, append=len(whens)))
    scattered = np.array([_scattered(i) for i in range(int(whens.max()) + 1)])
    return np.lexsort((scattered[whens], turn, ranks))


def fitting(costs: Iterable[tuple[int, int]], room: int) -> list[int]:
    """Return the numbers of the groups that fit: each (number, cost) in turn is taken if there is room left."""
    chosen = []
    for number, cost in costs:
        if cost <= room:
            room -= cost
            chosen.append(number)
    return chosen


def _scattered(i: int) -> float:
    """Return term `i` of 0, 1/2, 1/4, 3/4, 1/8, ...: any number of first terms is spread evenly."""
    return int(f"{i:032b}"[::-1], 2) / 2**32
