"""The choice of the groups that fit into a page."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from .overview import Place, Telling
from .template import TAGS


class Stored(NamedTuple):
    """A group's position in the spool file, its sizes, and its rank."""

    when: tuple[str, int]  # split, step
    rank: int  # 0 named by an alarm, 1 alive or without a verdict, 2 dead
    size: int
    at: int
    line: int  # bytes of its line in the list
    packed: int  # bytes of its texts, packed
    raw: int  # bytes of its texts as JSON
    place: Place = ("", 0, ())
    told: Telling | None = None

    @property
    def cost(self) -> int:
        """Maximum number of bytes that the group takes in the page.

        The texts grow by a third in base64, and the line shrinks.
        """
        return self.packed * 4 // 3 + self.line + TAGS


def choose(stored: Sequence[Stored], room: int) -> list[Stored]:
    """Return the groups that fit into `room` bytes, in their given order.

    Groups of the lowest rank are chosen first. Within a rank, the first group of each step is chosen, then the second,
    and so on.
    """
    whens = list(dict.fromkeys(group.when for group in stored))
    turn = {when: _scattered(i) for i, when in enumerate(whens)}
    seen: dict[Any, int] = defaultdict(int)
    order = []
    for number, group in enumerate(stored):
        order.append((group.rank, seen[group.when, group.rank], turn[group.when], number))
        seen[group.when, group.rank] += 1
    chosen = []
    for *_, number in sorted(order):
        if stored[number].cost <= room:
            room -= stored[number].cost
            chosen.append(number)
    return [stored[number] for number in sorted(chosen)]


def _scattered(i: int) -> float:
    """Return term `i` of 0, 1/2, 1/4, 3/4, 1/8, ...: the first terms are spread evenly, however many are taken."""
    return int(f"{i:032b}"[::-1], 2) / 2**32
