"""What an alarm is."""

from collections.abc import Callable
from dataclasses import dataclass

from ...utils.validation import Number
from .. import GroupKey, Sampled
from .history import History


@dataclass(frozen=True)
class Finding:
    """What an alarm's function found."""

    value: float
    threshold: float
    seen: str
    advice: str
    groups: tuple[GroupKey, ...] = ()


@dataclass(frozen=True)
class Rule:
    """An alarm.

    Args:
        function (`Callable`): from the history, the batch and the threshold to what it found, `None` while it is off.
        default (`float`): the threshold; a [`Thresholds`] may have another.
        limits (`Number`): what a threshold may be.
        sees (`str`): what is compared with the threshold, for the table of alarms.
    """

    function: Callable[[History, Sampled, float], Finding | None]
    default: float
    limits: Number
    sees: str
