"""What is kept of the metrics that the trainer logs: some alarms look at no batch but at these."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, NamedTuple

from ...utils.validation import finite_or_none


START = 5  # first entries, of which the median is what a metric was at first
RECENT = 7  # entries of which the median is what a metric is now
ENOUGH = 10  # entries before them of which the median is what it was
RUNAWAYS = ("kl", "grad_norm")
# TRL's own, logged with vLLM at each step, and this package's, logged where the sampler is checked.
SAMPLER = ("sampling/sampling_logp_difference/mean", "sampler/logp_difference/mean")

Entry = tuple[int, float]  # step, value


class Growth(NamedTuple):
    """What a metric is now, beside what it was."""

    now: float
    was: float
    since: int  # the first step at which it was as high as asked, and then did not come back


@dataclass
class Logged:
    """The first entries of a metric and its last ones. Those that are missing, not finite or not above 0 (the gradient
    of a batch with nothing to learn) are left out.
    """

    first: list[Entry] = field(default_factory=list)
    last: list[Entry] = field(default_factory=list)

    def add(self, step: int, value: Any, most: int) -> None:
        """Keep a value; of the last ones, `most` (but enough) and those that are recent."""
        number = finite_or_none(value)
        if number is None or number <= 0:
            return
        if len(self.first) < START:
            self.first.append((step, number))
        self.last = [*self.last, (step, number)][-(max(most, ENOUGH) + RECENT) :]

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "Logged":
        """From its fields, as a checkpoint has them."""
        return cls(*([(step, value) for step, value in state[name]] for name in ("first", "last")))

    def over_its_median(self, factor: float, floor: float = 0.0) -> Growth | None:
        """Return the growth to `factor` times the running median or more, at `floor` or above; `None` if there is
        none.
        """
        before, recent = self.last[:-RECENT], self.last[-RECENT:]
        return self._growth(before, recent, factor, floor) if len(before) >= ENOUGH else None

    def over_its_start(self, factor: float, floor: float = 0.0) -> Growth | None:
        """Return the growth to `factor` times the first logged values, at `floor` or above; `None` if there is none.

        A metric that is logged seldom is judged as soon as it has as many recent entries as first ones.
        """
        recent = [entry for entry in self.last if entry not in self.first][-START:]
        return self._growth(self.first, recent, factor, floor) if len(recent) >= START else None

    def _growth(self, before: Iterable[Entry], recent: Iterable[Entry], factor: float, floor: float) -> Growth | None:
        was, now = (statistics.median(value for _, value in entries) for entries in (before, recent))
        bar = max(factor * was, floor)
        if now < bar:
            return None
        left = takewhile(lambda entry: entry[1] > was, reversed(self.last))
        return Growth(now, was, min((step for step, value in left if value >= bar), default=self.last[-1][0]))


def note(kept: dict[str, Logged], entry: Mapping[str, Any], most: int) -> None:
    """Keep of an entry of the log, whose "step" it needs, what alarms look at."""
    for name in (*RUNAWAYS, *SAMPLER):
        if finite_or_none(entry.get(name)) is not None:
            kept.setdefault(name, Logged()).add(entry["step"], entry[name], most)
