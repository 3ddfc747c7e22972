"""The history of metrics that the trainer logs, for alarms that use no batch."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, NamedTuple

from ...utils.validation import finite_or_none


START = 5  # number of first entries; their median is a metric's value at first
LAST = 5  # number of last entries that are compared with the first ones, or with a threshold
RECENT = 7  # number of last entries; their median is a metric's value now
ENOUGH = 10  # minimum number of entries before the last ones; their median is the earlier value
RUNAWAYS = ("kl", "grad_norm")
# TRL's metric, logged with vLLM at each step, and this package's, logged when the sampler is checked.
SAMPLER = ("sampling/sampling_logp_difference/mean", "sampler/logp_difference/mean")
# TRL's metrics with tools: calls an attempt, and the share of calls that failed.
CALLS, FAILURES = "tools/call_frequency", "tools/failure_frequency"

Entry = tuple[int, float]  # step, value


class Growth(NamedTuple):
    """The growth of a metric: its value now and its earlier value."""

    now: float
    was: float
    since: int  # first step with a value at or above the bar after which all values stayed above `was`


@dataclass
class Logged:
    """The first and the last entries of a metric."""

    first: list[Entry] = field(default_factory=list)
    last: list[Entry] = field(default_factory=list)

    def add(self, step: int, value: float, most: int) -> None:
        """Add a value. Keep the recent entries and, before them, `most` entries, but at least `ENOUGH`."""
        if len(self.first) < START:
            self.first.append((step, value))
        self.last = [*self.last, (step, value)][-(max(most, ENOUGH) + RECENT) :]

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "Logged":
        """Make the object from its fields in a checkpoint."""
        return cls(*([(step, value) for step, value in state[name]] for name in ("first", "last")))

    def over_its_median(self, factor: float, floor: float = 0.0) -> Growth | None:
        """Return the growth if the metric is at least `factor` times its running median and `floor`, else `None`."""
        before, recent = self.last[:-RECENT], self.last[-RECENT:]
        return self._growth(before, recent, factor, floor) if len(before) >= ENOUGH else None

    def over_its_start(self, factor: float, floor: float = 0.0) -> Growth | None:
        """Return the growth if the metric is at least `factor` times its first median and `floor`, else `None`.

        A metric that is seldom logged is judged as soon as it has as many recent entries as first ones.
        """
        recent = [entry for entry in self.last if entry not in self.first][-LAST:]
        return self._growth(self.first, recent, factor, floor) if len(recent) >= LAST else None

    def _growth(self, before: Iterable[Entry], recent: Iterable[Entry], factor: float, floor: float) -> Growth | None:
        was, now = (statistics.median(value for _, value in entries) for entries in (before, recent))
        bar = max(factor * was, floor)
        if now < bar:
            return None
        left = takewhile(lambda entry: entry[1] > was, reversed(self.last))
        return Growth(now, was, min((step for step, value in left if value >= bar), default=self.last[-1][0]))


def note(kept: dict[str, Logged], entry: Mapping[str, Any], most: int) -> None:
    """Add the metrics of a log entry that alarms use. The entry must have a "step".

    Values that are missing, not finite or not above 0 (the gradient of a batch with nothing to learn) are left out.
    So is the share of failed calls where there was no call.
    """
    values = {name: finite_or_none(entry.get(name)) or 0.0 for name in (*RUNAWAYS, *SAMPLER, CALLS, FAILURES)}
    called = values.pop(CALLS) > 0
    for name, value in values.items():
        if called if name == FAILURES else value > 0:
            kept.setdefault(name, Logged()).add(entry["step"], value, most)
