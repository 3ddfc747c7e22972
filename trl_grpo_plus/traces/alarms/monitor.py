"""Sees each batch of a run and says which alarms are on."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from ...utils.validation import ConfigError, Number, did_you_mean
from .. import GroupKey, Sampled
from .history import History
from .rules import ALARMS
from .types import Finding


_SETTINGS = {
    "window": Number(at_least=4, integer=True, note=", a number of batches"),
    "min_batches": Number(at_least=1, integer=True, note=", a number of batches"),
    "entropy_floor": Number(above=0),
    "kl_floor": Number(above=0),
    "grad_norm_floor": Number(above=0),
    "sampler_floor": Number(above=0),
    "distinct_floor": Number(above=0, at_most=1),
}


class Thresholds(SimpleNamespace):
    """When each alarm goes off, and what it is reckoned over. Shares are of 1 and in (0, 1].

    Args:
        window (`int`, *optional*, defaults to `50`):
            Batches that a trend or a mean is taken over, at least 4. `rewards_diverge` looks at two windows.
        min_batches (`int`, *optional*, defaults to `20`):
            Batches before the first alarm. Their mean is what later ones are compared with.
        entropy_floor (`float`, *optional*, defaults to `0.05`):
            Nats above which entropy has not collapsed, whatever it was.
        kl_floor (`float`, *optional*, defaults to `0.2`):
            Nats a token below which KL does not run away, however it grows.
        grad_norm_floor (`float`, *optional*, defaults to `1.0`):
            Gradient norm, before clipping, below which it does not run away: `max_grad_norm`'s default.
        sampler_floor (`float`, *optional*, defaults to `0.05`):
            Nats a token below which sampler and trainer do not drift apart, whatever their difference was.
        distinct_floor (`float`, *optional*, defaults to `0.2`):
            Share of its best at which the share of failed attempts with different answers is a `diversity_loss`.
        **thresholds (`float`, *optional*, default to those in [`ALARMS`]):
            By the alarm's name, which is on where what it sees is at or beyond its threshold; `None` switches it off.

    Raises:
        ValueError: a name is unknown, or a value has another type or is out of range.

    Example:
        >>> Thresholds(window=30, length_drift=None).names[:2]
        ('monitor_flat', 'rewards_diverge')
    """

    window: int
    min_batches: int
    entropy_floor: float
    kl_floor: float
    grad_norm_floor: float
    sampler_floor: float
    distinct_floor: float

    def __init__(
        self,
        window: int = 50,
        min_batches: int = 20,
        entropy_floor: float = 0.05,
        kl_floor: float = 0.2,
        grad_norm_floor: float = 1.0,
        sampler_floor: float = 0.05,
        distinct_floor: float = 0.2,
        **thresholds: float | None,
    ):
        known = _SETTINGS | {name: rule.limits for name, rule in ALARMS.items()}
        for name in thresholds:
            if name not in known:
                raise ConfigError(
                    f"{name!r} is no alarm threshold.{did_you_mean(name, known)} Known: {', '.join(known)}."
                )
        limits = {name: rule.default for name, rule in ALARMS.items()} | thresholds
        floors = {"entropy_floor": entropy_floor, "kl_floor": kl_floor, "sampler_floor": sampler_floor}
        floors |= {"distinct_floor": distinct_floor, "grad_norm_floor": grad_norm_floor}
        super().__init__(window=window, min_batches=min_batches, **floors, **limits)
        for name, value in vars(self).items():
            known[name].check(name, value)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Thresholds":
        """From names and values, as a config has them."""
        return cls(**{str(name): value for name, value in values.items()})

    @property
    def names(self) -> tuple[str, ...]:
        """Alarms that are not switched off."""
        return tuple(name for name in ALARMS if vars(self).get(name) is not None)

    @property
    def enough(self) -> int:
        """Batches that a window must hold to be judged."""
        return min(self.min_batches, self.window)


@dataclass(frozen=True)
class Alarm:
    """An alarm that is on. `groups` are those of this batch that show it, the highest reward first."""

    name: str
    step: int
    value: float
    threshold: float
    message: str
    groups: tuple[GroupKey, ...]
    new: bool  # it was off for the last window


class Watch:
    """Sees each batch of a run and says which alarms are on.

    Keeps some numbers of the first `min_batches` and of the last `2 * window` batches, of the best that was, and of as
    many entries of the log, never a text.

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

    def note(self, entry: Mapping[str, Any]) -> None:
        """Hear what the trainer logs: an entry with its "step", names and values as they are in the log. Alarms about
        it are on at the next batch.
        """
        self._history.note(entry)

    def see(self, batch: Sampled) -> list[Alarm]:
        """Alarms that are on at this batch, new or not."""
        self._history.add(batch)
        if self._history.count < self.thresholds.min_batches:
            return []
        limits = {name: getattr(self.thresholds, name) for name in self.names}
        findings = {name: ALARMS[name].function(self._history, batch, limit) for name, limit in limits.items()}
        return [self._alarm(name, batch.step, finding) for name, finding in findings.items() if finding is not None]

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs to go on as if never interrupted: lists, dicts, numbers and strings."""
        return {**self._history.state_dict(), "last_on": dict(self._last_on)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`. Thresholds are not part of it and may differ."""
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
            message=f"{name} at step {step}: {finding.seen}. {finding.advice}{where}",
            groups=finding.groups,
            new=before is None or now - before > self.thresholds.window,
        )
