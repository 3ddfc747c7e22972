"""Alarms for reward hacking and for training that goes nowhere.

watch       sees each batch of a run and says which alarms are on
rules       the alarms
thresholds  when each goes off
history     what is kept of the batches that were seen
"""

from .watch import ALARMS, Alarm, Batch, Thresholds, Watch


__all__ = ["ALARMS", "Alarm", "Batch", "Thresholds", "Watch"]
