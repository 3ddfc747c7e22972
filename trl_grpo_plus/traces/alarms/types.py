"""The classes of an alarm's rule and its finding."""

from collections.abc import Callable
from dataclasses import dataclass

from ...utils.validation import Number
from .. import GroupKey, SampledBatch
from .history import History


SHARE = Number(above=0, at_most=1, optional=True, note="; None switches that alarm off")  # the limits of a share


@dataclass(frozen=True)
class Finding:
    """The finding of an alarm that is on."""

    value: float
    threshold: float
    observation: str
    advice: str
    groups: tuple[GroupKey, ...] = ()


@dataclass(frozen=True)
class Rule:
    """The rule of an alarm.

    Args:
        function (`Callable`): (history, batch, threshold) -> finding, or `None` while the alarm is off.
        default (`float`): the default threshold, which a [`Thresholds`] may replace.
        sees (`str`): the quantity that is compared with the threshold, for the table of alarms.
        limits (`Number`, *optional*): the values that the threshold may have. By default those of a share.
    """

    function: Callable[[History, SampledBatch, float], Finding | None]
    default: float
    sees: str
    limits: Number = SHARE
