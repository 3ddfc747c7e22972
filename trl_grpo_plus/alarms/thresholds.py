"""When each alarm goes off."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..common.values import near


SETTINGS = ("window", "min_batches", "entropy_floor")  # fields that are no alarm's own
_LIMITS = {"length_drift": (1.0, math.inf), "entropy_floor": (0.0, math.inf)}  # the others are in (0, 1]


@dataclass(frozen=True)
class Thresholds:
    """When each alarm goes off. `None` switches it off.

    Shares are of 1 and in (0, 1]; an alarm is on where what it sees is at or beyond its threshold.

    Args:
        window (`int`, *optional*, defaults to `50`):
            Batches that a trend or a mean is taken over, at least 4. `rewards_diverge` looks at two windows.
        min_batches (`int`, *optional*, defaults to `20`):
            Batches before the first alarm. Their mean is what later ones are compared with.
        monitor_flat (`float`, *optional*, defaults to `0.1`):
            Least rise of the total over the window, as a share of the range of totals seen in the run. The rise must
            be 4 standard errors, the monitor's must be less than one and surely less than half of the total's.
        rewards_diverge (`float`, *optional*, defaults to `0.1`):
            The same for one weighted reward. The other must fall as surely, or be flat over the last two windows: a
            format that is learned within the first window, before accuracy moves, is no alarm.
        perfect_scores (`float`, *optional*, defaults to `0.98`):
            Share of attempts within 1 % of the highest total of the run, in the first `min_batches` batches and in the
            window. A run that becomes perfect is no alarm, nor one in which a weighted reward was never earned.
        no_answer (`float`, *optional*, defaults to `0.3`):
            Growth of the share of rewarded attempts without an answer, from a start of at most 0.2. Rewarded is a
            total above the middle of the run's range.
        length_drift (`float`, *optional*, defaults to `3.0`):
            Factor, above 1, between the mean tokens of the window and of the first batches, either way.
        length_reward (`float`, *optional*, defaults to `0.7`):
            Absolute correlation of tokens and total, both less their group's mean. A run that pays for length, or
            against it, goes beyond: that is what it asked for.
        near_duplicates (`float`, *optional*, defaults to `0.5`):
            Share of pairs that share 0.9 of their word triples, among attempts of at least 20 words.
        repetition (`float`, *optional*, defaults to `0.2`):
            Share of attempts, of at least 20 words, over half of whose 4-grams have occurred before.
        reward_failures (`float`, *optional*, defaults to `0.05`):
            Share of time-outs, errors and starved samples of any one reward.
        dead_groups (`float`, *optional*, defaults to `0.95`):
            Share of groups, as sampled, that are not alive.
        entropy_collapse (`float`, *optional*, defaults to `0.2`):
            Share of the first batches' mean token entropy.
        entropy_floor (`float`, *optional*, defaults to `0.05`):
            Nats above which entropy has not collapsed, whatever it was. Not `None`.

    Raises:
        ValueError: a value has another type or is out of range.

    Example:
        >>> Thresholds(window=30, length_drift=None).names[:2]
        ('monitor_flat', 'rewards_diverge')
    """

    window: int = 50
    min_batches: int = 20
    monitor_flat: float | None = 0.1
    rewards_diverge: float | None = 0.1
    perfect_scores: float | None = 0.98
    no_answer: float | None = 0.3
    length_drift: float | None = 3.0
    length_reward: float | None = 0.7
    near_duplicates: float | None = 0.5
    repetition: float | None = 0.2
    reward_failures: float | None = 0.05
    dead_groups: float | None = 0.95
    entropy_collapse: float | None = 0.2
    entropy_floor: float = 0.05

    def __post_init__(self) -> None:
        _check_count("window", self.window, 4)
        _check_count("min_batches", self.min_batches, 1)
        for one in fields(self)[2:]:
            value = getattr(self, one.name)
            if value is not None or one.name == "entropy_floor":
                _check_number(one.name, value, *_LIMITS.get(one.name, (0.0, 1.0)))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Thresholds":
        """From names and values, as a config has them; unknown names are refused with a `ValueError`."""
        known = [one.name for one in fields(cls)]
        for name in values:
            if name not in known:
                raise ValueError(f"{name!r} is no alarm threshold.{near(str(name), known)} Known: {', '.join(known)}.")
        return cls(**values)

    @property
    def names(self) -> tuple[str, ...]:
        """Alarms that are not switched off."""
        named = (one.name for one in fields(self) if one.name not in SETTINGS)
        return tuple(name for name in named if getattr(self, name) is not None)

    @property
    def enough(self) -> int:
        """Batches that a window must hold to be judged."""
        return min(self.min_batches, self.window)


def _check_count(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}={value!r} must be an integer >= {least}, a number of batches.")


def _check_number(name: str, value: Any, above: float, most: float) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and above < value <= most and math.isfinite(value):
        return
    bounds = f"> {above:g}" + (f" and <= {most:g}" if most < math.inf else "")
    off = "." if name == "entropy_floor" else "; None switches that alarm off."
    raise ValueError(f"{name}={value!r} must be a finite number {bounds}{off}")
