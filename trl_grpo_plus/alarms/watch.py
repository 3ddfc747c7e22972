"""Alarms for reward hacking and for training that goes nowhere, from what each generation batch looks like.

| alarm | what it sees | default |
|---|---|---|
| `monitor_flat` | the total rises by this share of its range over the window, a monitor with room does not | 0.1 |
| `rewards_diverge` | one weighted reward rises by this share of its range, another with room is flat or falls | 0.1 |
| `perfect_scores` | this share of attempts earns the highest total of the run, from its first batches on | 0.98 |
| `no_answer` | rewarded attempts without an answer to be found: their share has grown by this much | 0.3 |
| `length_drift` | mean length this many times that of the first batches, or that many times shorter | 3.0 |
| `length_reward` | correlation of length and total within live groups, truncated attempts aside | 0.7 |
| `near_duplicates` | share of pairs of attempts in a group that are nearly the same text | 0.5 |
| `repetition` | share of attempts that mostly repeat themselves | 0.2 |
| `reward_failures` | share of one reward's scores that are time-outs, errors or starved | 0.05 |
| `dead_groups` | share of groups in which all attempts earn the same | 0.95 |
| `entropy_collapse` | entropy at this share of the first batches', and below `entropy_floor` (0.05 nats) | 0.2 |

A monitor is a reward of weight 0: scored, not trained on. It, like each reward, is read as "higher is better".
An alarm is a reason to read attempts, no proof. It looks at a window of batches, never at one, and is new once even
where it comes and goes.

To add one: a function in alarm_rules.py, its entry in `ALARMS`, its field in [`Thresholds`].
"""

from dataclasses import dataclass
from typing import Any

from .history import Batch, History, Key
from .rules import ALARMS, Finding
from .thresholds import Thresholds


__all__ = ["ALARMS", "Alarm", "Batch", "Thresholds", "Watch"]


@dataclass(frozen=True)
class Alarm:
    """An alarm that is on. `groups` are those of this batch that show it, the highest reward first."""

    name: str
    step: int
    value: float
    threshold: float
    message: str
    groups: tuple[Key, ...]
    new: bool  # it was off for the last window


class Watch:
    """Sees each batch of a run and says which alarms are on.

    Keeps some numbers of the first `min_batches` and of the last `2 * window` batches, never a text.

    Args:
        thresholds ([`Thresholds`], *optional*): when each alarm goes off.

    Example:
        >>> watch = Watch(Thresholds(window=30))
        >>> for alarm in watch.see(batch):
        ...     print(alarm.message)
    """

    def __init__(self, thresholds: Thresholds | None = None):
        self.thresholds = thresholds or Thresholds()
        self._history = History(self.thresholds)
        self._last_on: dict[str, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Alarms that are not switched off."""
        return self.thresholds.names

    def see(self, batch: Batch) -> list[Alarm]:
        """Alarms that are on at this batch, new or not."""
        self._history.add(batch)
        if self._history.count < self.thresholds.min_batches:
            return []
        findings = {name: ALARMS[name](self._history, batch, getattr(self.thresholds, name)) for name in self.names}
        return [self._alarm(name, batch.step, found) for name, found in findings.items() if found is not None]

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on as if never interrupted: lists, dicts, numbers and strings."""
        return {**self._history.state_dict(), "last_on": dict(self._last_on)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`. Thresholds are not part of it and may differ."""
        self._history.load_state_dict(state)
        self._last_on = dict(state["last_on"])

    def _alarm(self, name: str, step: int, found: Finding) -> Alarm:
        now = self._history.count
        before = self._last_on.get(name)
        self._last_on[name] = now
        groups = ", ".join("/".join(map(str, key)) for key in found.groups)
        where = f" Groups of this step (batch/round/group), the highest reward first: {groups}." if groups else ""
        return Alarm(
            name=name,
            step=step,
            value=found.value,
            threshold=found.threshold,
            message=f"{name} at step {step}: {found.seen}. {found.advice}{where}",
            groups=found.groups,
            new=before is None or now - before > self.thresholds.window,
        )
