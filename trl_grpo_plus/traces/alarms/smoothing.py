"""Smoothed means of what each batch shows, and the best that each has been."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


# Standard errors of a difference that is believed: the best of some thousand batches is compared with each later
# level, and the error is that of few batches. Runs of 2000 noisy batches at one level seldom go beyond.
_SURE = 6.0


@dataclass(frozen=True)
class Level:
    """A mean over batches."""

    mean: float
    error: float  # standard error of `mean`, from how the batches scatter

    def surely_above(self, other: "Level") -> bool:
        """Return whether it is higher by more than the scatter of batches explains."""
        gap = self.mean - other.mean
        return gap > 0 and gap >= _SURE * math.sqrt(2) * max(self.error, other.error)


@dataclass(frozen=True)
class Peak:
    """The best level of a quantity, the batch that ended it, and what all attempts earned then."""

    step: int
    level: Level
    total: Level

    @classmethod
    def of(cls, state: dict[str, Any]) -> "Peak":
        """From its fields, as a checkpoint has them."""
        return cls(state["step"], Level(**state["level"]), Level(**state["total"]))


def level_of(values: Iterable[float | None]) -> Level | None:
    """Of a value a batch; `None` where fewer than 4 or than half of them are known, or one is beyond reckoning."""
    every = list(values)
    known = [value for value in every if value is not None]
    if len(known) < max(4, len(every) / 2):
        return None
    mean = sum(known) / len(known)
    error = math.sqrt(sum((value - mean) * (value - mean) for value in known) / (len(known) - 1) / len(known))
    return Level(mean, error) if math.isfinite(mean) and math.isfinite(error) else None
