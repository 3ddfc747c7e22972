"""Calibration of the beliefs about prompts: the believed mean reward against the mean that the group then earned."""

from collections.abc import Sequence
from typing import Any

from ..traces import Row
from ..utils.validation import finite_or_none


Pair = tuple[int, float, float]  # step, mean believed, mean earned

BINS = 10
_LAST = 4  # the last span is one fourth of the steps


def believed(rows: Sequence[Row]) -> list[Any] | None:
    """Return the belief about a group's prompt and the mean reward that the group earned.

    Returns:
        `list`: the believed mean, std and attempts, then the earned mean of the same reward, then that reward's name
        if it is not the total. `None` if there was no belief.

    Example:
        >>> belief = {"mean": 0.4, "std": 0.49, "attempts": 3.5}
        >>> believed([{"reward": 1.0, "belief": belief}, {"reward": 0.0, "belief": belief}])
        [0.4, 0.49, 3.5, 0.5]
    """
    belief = rows[0].get("belief")
    if not isinstance(belief, dict) or finite_or_none(belief.get("mean")) is None:
        return None
    of = belief.get("of")
    rewards = [
        finite_or_none(row.get("reward") if of is None else (row.get("rewards") or {}).get(str(of))) for row in rows
    ]
    scored = [reward for reward in rewards if reward is not None]
    earned = sum(scored) / len(scored) if scored else None
    values = [*(finite_or_none(belief.get(key)) for key in ("mean", "std", "attempts")), earned]
    return values if of is None else [*values, str(of)]


def calibration(pairs: Sequence[Pair]) -> dict[str, Any] | None:
    """Return the pairs binned by tenths of the believed mean, over all steps and over the last quarter of them.

    Returns:
        `dict`: `range`, [0, 1] widened to hold all values; `spans`, each with `steps`, its first and last step, and
        `tenths`, `[groups, mean believed, mean earned]` of each bin that is not empty. The span of the last quarter is
        left out if there are fewer than four steps. `None` without pairs.
    """
    if not pairs:
        return None
    values = [0.0, 1.0, *(value for _, *both in pairs for value in both)]
    low, high = min(values), max(values)
    steps = sorted({step for step, *_ in pairs})
    firsts = [steps[0], *([steps[len(steps) - len(steps) // _LAST]] if len(steps) >= _LAST else [])]
    spans = [{"steps": [first, steps[-1]], "tenths": _tenths(pairs, first, low, high)} for first in firsts]
    return {"range": [low, high], "spans": spans}


def _tenths(pairs: Sequence[Pair], first: int, low: float, high: float) -> list[list[float]]:
    sums = [[0, 0.0, 0.0] for _ in range(BINS)]
    for step, mean, earned in pairs:
        if step >= first:
            place = int((mean - low) / (high - low) * BINS)
            tenth = sums[min(place, BINS - 1)]
            tenth[0] += 1
            tenth[1] += mean
            tenth[2] += earned
    return [[count, mean / count, earned / count] for count, mean, earned in sums if count]
