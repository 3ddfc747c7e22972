"""Alarms for reward hacking and for training that makes no progress, computed from the generation batches.

monitor             checks each batch of a run and returns the alarms that are on
rules               the alarms: `ALARMS`
regressions         rules about abilities that a run had and lost
divergence          rules about logged metrics
types               the classes of a rule and its finding
examples            finds the groups of a batch that show an alarm
history             statistics kept of the earlier batches
text_stats          copies, loops and missing answers in texts
smoothing           smoothed means and their best values; lines through values
metric_history      logged metrics
evaluation_history  held-out rewards beside training rewards

A monitor is a reward of weight 0: it is scored, but not trained on. For monitors and all other rewards, higher counts
as better. An alarm is a reason to read attempts, and no proof. It is computed over a window of batches, never over a
single batch. It is reported as new only once, even if it comes and goes. Each alarm, its threshold and the quantity
compared with the threshold:
"""

from .monitor import Alarm, Thresholds, Watch
from .rules import ALARMS
from .types import Finding, Rule


__doc__ += "".join(f"\n{name:17}{rule.default:<6g}{rule.sees}" for name, rule in ALARMS.items())
