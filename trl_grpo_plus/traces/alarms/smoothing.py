"""Smoothed means over batches, their best values in a run, and lines through them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


# Standard errors that a difference must exceed to be believed. It is high because the best of some thousand batches is
# compared with each later level, and the error comes from few batches. Runs of 2000 noisy batches at a constant level
# seldom exceed it.
_SURE = 6.0


@dataclass(frozen=True)
class Level:
    """A mean over batches."""

    mean: float
    error: float  # standard error of `mean`, from the scatter of the batches

    def surely_above(self, other: "Level") -> bool:
        """Return whether this level is higher than `other` by more than the scatter of the batches explains."""
        gap = self.mean - other.mean
        return gap > 0 and gap >= _SURE * math.sqrt(2) * max(self.error, other.error)


@dataclass(frozen=True)
class Peak:
    """The best level of a quantity, the step of its last batch, and the level of the mean total at that step."""

    step: int
    level: Level
    total: Level

    @classmethod
    def of(cls, state: dict[str, Any]) -> "Peak":
        """Make a peak from its fields in a checkpoint."""
        return cls(state["step"], Level(**state["level"]), Level(**state["total"]))


class Line(NamedTuple):
    """A line through points, by least squares."""

    change: float  # over the span
    error: float  # standard error of `change`
    mean: float
    scatter: float  # standard deviation of the points about the line


def line_of(points: Sequence[tuple[float, float]], span: float) -> Line:
    """Fit a line to three or more points (x, y); `change` is its change over a length of `span` on the x axis."""
    n = len(points)
    at, mean = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    spread = sum((x - at) ** 2 for x, _ in points)
    slope = sum((x - at) * (y - mean) for x, y in points) / spread
    scatter = math.hypot(*(y - mean - slope * (x - at) for x, y in points)) / math.sqrt(n - 2)
    return Line(slope * span, scatter * span / math.sqrt(spread), mean, scatter)


def level_of(values: Iterable[float | None]) -> Level | None:
    """Return the level of one value per batch.

    Values that are `None` are left out. Returns `None` if fewer than 4 values or fewer than half of them remain, or if
    the mean or its error is not finite.
    """
    every = list(values)
    present = [value for value in every if value is not None]
    if len(present) < max(4, len(every) / 2):
        return None
    mean = sum(present) / len(present)
    error = math.sqrt(sum((value - mean) * (value - mean) for value in present) / (len(present) - 1) / len(present))
    return Level(mean, error) if math.isfinite(mean) and math.isfinite(error) else None
