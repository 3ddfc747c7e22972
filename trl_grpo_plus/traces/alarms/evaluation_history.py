"""The history of a run's evaluations: held-out rewards, each with the training reward of about the same steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from .smoothing import Level, line_of


START = 2  # the gap at the start is the mean over this number of first evaluations, the gap now over as many last ones
LEAST = 5  # minimum evaluations for a correlation
_SURE = 4.0  # standard errors that a rise of the training reward must exceed to be believed, as in `Trend`
_BELOW = 3.0  # standard errors by which the held-out reward's change must be below a bar


@dataclass(frozen=True)
class Pair:
    """The held-out reward of an evaluation, and the level of the training reward around its step."""

    step: int
    held_out: float
    train: Level

    @property
    def gap(self) -> float:
        """Training reward minus held-out reward."""
        return self.train.mean - self.held_out


@dataclass(frozen=True)
class Parting:
    """A training reward that rises over a window of evaluations, while the held-out reward does not."""

    pairs: Sequence[Pair]  # the window
    correlation: float
    gap: float  # growth since the run's first evaluations
    error: float  # standard error of `gap`
    fall: float  # fall of the line through the held-out rewards over the window; 0 if it does not surely fall

    @property
    def size(self) -> float:
        """The growth of the gap in standard errors, at most 1000, so that it is finite even if nothing scatters."""
        return min(self.gap / self.error, 1000.0) if self.error > 0 else 1000.0


@dataclass
class Evaluations:
    """The first and the last evaluations of one split.

    An evaluation is paired with the mean of the batches before and after it, so that neither reward is ahead of the
    other. Therefore the evaluation waits for the batches that follow it.
    """

    first: list[Pair] = field(default_factory=list)
    last: list[Pair] = field(default_factory=list)
    best: tuple[int, float] | None = None  # step and value of the highest held-out reward
    waiting: list[tuple[int, float, int]] = field(default_factory=list)  # step, held-out reward, batches before it

    def add(self, step: int, held_out: float, count: int) -> None:
        """Add an evaluation made after `count` batches, unless its step is not later than those of all others."""
        if any(step <= before for before in [*(at for at, _, _ in self.waiting), *(pair.step for pair in self.last)]):
            return
        self.waiting.append((step, held_out, count))
        if self.best is None or held_out > self.best[1]:
            self.best = (step, held_out)

    def pair(self, train: Level | None, count: int, most: int) -> None:
        """Pair the evaluations made after at most `count` batches with a level. Keep the last `most` pairs."""
        ready = [one for one in self.waiting if one[2] <= count]
        self.waiting = self.waiting[len(ready) :]
        pairs = [Pair(step, held_out, train) for step, held_out, _ in ready] if train is not None else []
        self.first = [*self.first, *pairs][:START]
        self.last = [*self.last, *pairs][-most:]

    @classmethod
    def of(cls, state: dict[str, Any]) -> "Evaluations":
        """Make the object from its fields in a checkpoint."""
        first, last = (
            [Pair(one["step"], one["held_out"], Level(**one["train"])) for one in state[name]]
            for name in ("first", "last")
        )
        best = state["best"] and (state["best"][0], state["best"][1])
        return cls(first, last, best, [(step, value, count) for step, value, count in state["waiting"]])

    def parting(self, window: int, correlation: float) -> Parting | None:
        """Return how far the rewards have parted if only the training reward rises over the window, else `None`.

        Three conditions must hold for the last `window` evaluations, which must be 5 or more. The training reward
        rises by 4 standard errors or more. Kendall's rank correlation of the two rewards is at most `correlation`.
        The line through the held-out rewards surely rises less than half as much as the training reward.
        """
        pairs = self.last[-window:]
        if len(pairs) < LEAST:
            return None
        train, held_out = [pair.train.mean for pair in pairs], [pair.held_out for pair in pairs]
        rise = train[-1] - train[0]
        if rise <= 0 or rise < _SURE * math.hypot(pairs[0].train.error, pairs[-1].train.error):
            return None
        ranked = kendall(train, held_out)
        change, error, _, scatter = line_of(list(enumerate(held_out)), len(held_out) - 1)
        if ranked > correlation or change + _BELOW * error >= rise / 2:
            return None
        gap = sum(pair.gap for pair in pairs[-START:]) / START - sum(pair.gap for pair in self.first) / len(self.first)
        noise = math.hypot(scatter, math.hypot(*(pair.train.error for pair in pairs)) / math.sqrt(len(pairs)))
        if not (math.isfinite(gap) and math.isfinite(noise)):
            return None
        fall = -change if change + _BELOW * error < 0 else 0.0
        return Parting(pairs, ranked, gap, math.sqrt(2 / START) * noise, fall)


def kendall(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Kendall's rank correlation (tau-b) of two sequences; 0 if one is constant."""
    signs = [(_sign(a[0] - b[0]), _sign(a[1] - b[1])) for a, b in combinations(zip(first, second, strict=True), 2)]
    untied = sum(abs(x) for x, _ in signs) * sum(abs(y) for _, y in signs)
    return sum(x * y for x, y in signs) / math.sqrt(untied) if untied else 0.0


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
