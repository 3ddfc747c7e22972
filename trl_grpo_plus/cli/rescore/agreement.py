"""The agreement of a reward with a recorded one, and the kinds of their differences."""

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...scoring import same_score
from .scoring_loop import Group, Score


TOLERANCE = 1e-6  # standard deviation of scores that are all the same but for rounding
FAILED = {"error": "error", "timeout": "time-out", "starved": "starved"}
KINDS = ("0 -> 1", "1 -> 0", "lower", "higher", "was None", "now None", *FAILED.values())
PLACES = 1 << 32  # the place of an attempt is the number of its group times this, plus its number in the group


class Agreement(NamedTuple):
    """The result of [`agreement`]: counts, means and differences over the attempts."""

    attempts: int  # attempts that recorded the compared reward
    lacking: int  # attempts that did not record it
    equal: int
    old_mean: Score
    new_mean: Score
    r: float | None  # of the recorded and the new scores
    statuses: Counter[str]  # of all attempts
    undecided: Counter[str]  # without failures of an inner reward or scorer that has set the score
    differences: "dict[str, array[int]]"  # the places of the attempts that differ, by kind, in the order of KINDS


class Pearson:
    """Pearson's r of two columns of scores, which are added in parts and not kept (Welford's algorithm).

    Rows with a `None` do not count.
    """

    def __init__(self) -> None:
        self._count, self._x, self._y = 0, 0.0, 0.0  # the means
        self._xx = self._yy = self._xy = 0.0  # sums of products of the distances from the means

    def add(self, first: Iterable[Score], second: Iterable[Score]) -> None:
        """Add a part of both columns."""
        for x, y in zip(first, second, strict=True):
            if x is not None and y is not None:
                self._count += 1
                from_x, from_y = x - self._x, y - self._y
                self._x += from_x / self._count
                self._y += from_y / self._count
                self._xx += from_x * (x - self._x)
                self._yy += from_y * (y - self._y)
                self._xy += from_x * (y - self._y)

    @property
    def r(self) -> float | None:
        """Pearson's r; `None` for fewer than two rows, or if a column is constant."""
        if min(self._xx, self._yy) <= self._count * TOLERANCE**2:
            return None
        return self._xy / math.sqrt(self._xx * self._yy)


def kind(old: Score, new: Score, status: str) -> str | None:
    """Return the kind of difference between two scores: one of [`KINDS`], or `None` if they are the same.

    | old | new | kind |
    |---|---|---|
    | equal, or both `None` | | `None` |
    | different | the score of a sample that failed | "error", "time-out", "starved" |
    | `None` | a number | "was None" |
    | a number | `None` | "now None" |
    | 0, 1 | 1, 0 | "0 -> 1", "1 -> 0" |
    | other numbers | | "lower", "higher" |
    """
    if same_score(old, new):
        return None
    if status in FAILED:
        return FAILED[status]
    if old is None or new is None:
        return "was None" if old is None else "now None"
    if same_score(old, 0.0) and same_score(new, 1.0):
        return "0 -> 1"
    if same_score(old, 1.0) and same_score(new, 0.0):
        return "1 -> 0"
    return "lower" if new < old else "higher"


def agreement(groups: Sequence[Group], label: str, against: str) -> Agreement:
    """Compare the reward `label` with the recorded reward `against`, over the groups that recorded it.

    Memory holds 8 bytes for each attempt that differs.
    """
    found = {name: array("Q") for name in KINDS}
    statuses, undecided, r = Counter[str](), Counter[str](), Pearson()
    sums, counts, attempts, lacking = [0.0, 0.0], [0, 0], 0, 0
    for number, group in enumerate(groups):
        statuses.update(outcome.status for outcome in group.outcomes[label])
        undecided.update(outcome.status for outcome in group.outcomes[label] if not outcome.decided)
        if against not in group.recorded:
            lacking += group.size
            continue
        attempts += group.size
        both = group.recorded[against], group.scores(label)
        r.add(*both)
        for side, scores in enumerate(both):
            given = [score for score in scores if score is not None]
            sums[side] += sum(given)
            counts[side] += len(given)
        for attempt, (old, new) in enumerate(zip(*both, strict=True)):
            if differs := kind(old, new, group.outcomes[label][attempt].status):
                found[differs].append(number * PLACES + attempt)
    equal = attempts - sum(map(len, found.values()))
    old_mean, new_mean = (total / count if count else None for total, count in zip(sums, counts, strict=True))
    differences = {name: places for name, places in found.items() if places}
    return Agreement(attempts, lacking, equal, old_mean, new_mean, r.r, statuses, undecided, differences)
