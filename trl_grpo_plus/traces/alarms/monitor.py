"""Checks each batch of a run and returns the alarms that are on."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from ...utils.validation import ConfigError, Number, did_you_mean
from .. import GroupKey, SampledBatch
from .history import History
from .rules import ALARMS
from .types import Finding


# setting -> its default and the values that it may have
_SETTINGS: dict[str, tuple[float, Number]] = {
    "window": (50, Number(at_least=4, integer=True, note=", a number of batches")),
    "min_batches": (20, Number(at_least=1, integer=True, note=", a number of batches")),
    "entropy_floor": (0.05, Number(above=0)),
    "kl_floor": (0.2, Number(above=0)),
    "grad_norm_floor": (1.0, Number(above=0)),
    "sampler_floor": (0.05, Number(above=0)),
    "distinct_floor": (0.2, Number(above=0, at_most=1)),
    "held_out_window": (8, Number(at_least=5, integer=True, note=", a number of evaluations")),
    "held_out_correlation": (0.3, Number(at_least=-1, at_most=1)),
    "held_out_floor": (0.05, Number(above=0, at_most=1)),
}


class Thresholds(SimpleNamespace):
    """The thresholds of the alarms, and the numbers of batches that they are computed over. Shares are in (0, 1].

    Args:
        window (`int`, *optional*, defaults to `50`):
            Number of batches for a trend or a mean, at least 4. `rewards_diverge` uses two windows.
        min_batches (`int`, *optional*, defaults to `20`):
            Number of batches before the first alarm. Later batches are compared with the mean of these first batches.
        entropy_floor (`float`, *optional*, defaults to `0.05`):
            Entropy, in nats per token, above which there is no `entropy_collapse`, whatever the entropy was.
        kl_floor (`float`, *optional*, defaults to `0.2`):
            KL, in nats per token, below which there is no `runaway`, however fast it grows.
        grad_norm_floor (`float`, *optional*, defaults to `1.0`):
            Gradient norm before clipping below which there is no `runaway`. The default is that of `max_grad_norm`.
        sampler_floor (`float`, *optional*, defaults to `0.05`):
            Difference of log-probabilities, in nats per token, below which there is no `sampler_drift`, whatever the
            difference was.
        distinct_floor (`float`, *optional*, defaults to `0.2`):
            Fraction of its best value at which the share of failed attempts with different answers is a
            `diversity_loss`.
        held_out_window (`int`, *optional*, defaults to `8`):
            Number of evaluations of a split that `held_out_gap` looks at, at least 5. It judges once there are 5.
        held_out_correlation (`float`, *optional*, defaults to `0.3`):
            Rank correlation (Kendall's) of training and held-out reward above which there is no `held_out_gap`.
        held_out_floor (`float`, *optional*, defaults to `0.05`):
            Growth of the gap, as a share of the range of totals, below which there is no `held_out_gap`.
        **thresholds (`float`, *optional*, default to those in [`ALARMS`]):
            Threshold by alarm name. An alarm is on if its quantity is at or beyond its threshold; `None` switches the
            alarm off.

    Raises:
        ConfigError: a name is unknown, or a value has another type or is out of range.

    Example:
        >>> Thresholds(window=30, length_drift=None).names[:2]
        ('monitor_flat', 'rewards_diverge')
    """

    def __init__(self, /, **thresholds: float | None):
        known = _SETTINGS | {name: (rule.default, rule.limits) for name, rule in ALARMS.items()}
        for name in thresholds:
            if name not in known:
                raise ConfigError(
                    f"alarm_thresholds: {name!r} is no alarm threshold.{did_you_mean(name, known)} "
                    f"Known: {', '.join(known)}."
                )
        super().__init__(**{name: default for name, (default, _) in known.items()} | thresholds)
        for name, value in vars(self).items():
            known[name][1].check(f"alarm_thresholds: {name}", value)

    @property
    def names(self) -> tuple[str, ...]:
        """Alarms that are not switched off."""
        return tuple(name for name in ALARMS if vars(self).get(name) is not None)

    @property
    def enough(self) -> int:
        """Number of batches that a window must hold to be judged."""
        return min(self.min_batches, self.window)


@dataclass(frozen=True)
class Alarm:
    """An alarm that is on. `groups` are the groups of the batch that show the alarm, the highest reward first."""

    name: str
    step: int
    value: float
    threshold: float
    message: str
    groups: tuple[GroupKey, ...]
    new: bool  # whether the alarm was off for the whole last window


class Watch:
    """A watch that checks each batch of a run and returns the alarms that are on.

    It keeps numbers of the first `min_batches` batches, of the last `2 * window` batches, of the best levels, and of
    a window of log entries and of evaluations. It never keeps a text.

    Args:
        thresholds ([`Thresholds`], *optional*): the thresholds of the alarms.
        chosen (`bool`, *optional*, defaults to `False`):
            Whether the order of the prompts is chosen and not random. The mean total of training is then a mean over
            chosen prompts, so `held_out_gap` does not compare it with the held-out reward.

    Attributes:
        failed (`dict[str, Exception]`): the alarms that could not be computed for the last batch.

    Example:
        >>> watch = Watch(Thresholds(window=30))
        >>> for alarm in watch.see(batch):
        ...     print(alarm.message)
    """

    def __init__(self, thresholds: Thresholds | None = None, chosen: bool = False):
        self.thresholds = thresholds or Thresholds()
        self._history = History(self.thresholds, chosen)
        self._last_on: dict[str, int] = {}
        self.failed: dict[str, Exception] = {}

    def note(self, entry: Mapping[str, Any]) -> None:
        """Add an entry of the trainer's log, with its "step". Alarms about the entry are on at the next batch.

        A level is a mean over some batches. An evaluation counts once half as many batches have followed it.
        """
        self._history.note(entry)

    def see(self, batch: SampledBatch) -> list[Alarm]:
        """Add a batch. Return the alarms that are on, new or not."""
        self._history.add(batch)
        self.failed, alarms = {}, []
        for name in self.thresholds.names if self._history.count >= self.thresholds.min_batches else ():
            try:
                finding = ALARMS[name].function(self._history, batch, getattr(self.thresholds, name))
                if finding is not None:
                    alarms.append(self._alarm(name, batch.step, finding))
            except Exception as error:  # a user may add an alarm; the others go on
                self.failed[name] = error
        return alarms

    def state_dict(self) -> dict[str, Any]:
        """Return the state for `load_state_dict`, as lists, dicts, numbers and strings."""
        return {**self._history.state_dict(), "last_on": dict(self._last_on)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the watch from `state`. Thresholds are not part of `state` and may differ."""
        self._history.load_state_dict(state)
        self._last_on = dict(state["last_on"])

    def _alarm(self, name: str, step: int, finding: Finding) -> Alarm:
        now = self._history.count
        before = self._last_on.get(name)
        self._last_on[name] = now
        groups = ", ".join("/".join(map(str, key)) for key in finding.groups)
        where = f" Groups of this step (batch/round/group), the highest reward first: {groups}." if groups else ""
        return Alarm(
            name=name,
            step=step,
            value=finding.value,
            threshold=finding.threshold,
            message=f"{name} at step {step}: {finding.observation}. {finding.advice}{where}",
            groups=finding.groups,
            new=before is None or now - before > self.thresholds.window,
        )
