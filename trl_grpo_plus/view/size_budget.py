"""The choice of the groups that fit into a page."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from .overview import Place, Telling
from .template import TAGS


class Candidate(NamedTuple):
    """A group that may go into the page: its position in the spool file, its sizes, and its rank."""

    when: tuple[str, int]  # split, step
    rank: int  # 0 named by an alarm, 1 alive or without a verdict, 2 dead
    size: int
    at: int
    line: int  # bytes of its line in the list
    packed: int  # bytes of its texts, packed
    raw: int  # bytes of its texts as JSON
    place: Place = ("", 0, ())
    sort_key: Telling | None = None

    @property
    def cost(self) -> int:
        """Maximum number of bytes that the group takes in the page.

        The texts grow by a third in base64, and the line shrinks.
        """
        return self.packed * 4 // 3 + self.line + TAGS


def in_turn(whens: Any, ranks: Any) -> Any:
    """Return the numbers of groups in the order in which a page chooses them.

    Groups of the lowest rank come first. Within a rank, the first group of each step comes first, then the second, and
    so on. The steps take turns in an order whose first steps are spread evenly over the run.

    Args:
        whens (`np.ndarray`): for each group, the number of its split and step, in order of their first groups.
        ranks (`np.ndarray`): for each group, its rank: see [`Candidate`].
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
