"""Alarms for reward hacking and for training that goes nowhere, from what each generation batch looks like.

monitor         sees each batch of a run and says which alarms are on
rules           the alarms: `ALARMS`
regressions     rules about what a run had and lost
divergence      rules about logged metrics
types           what an alarm is
examples        which groups of a batch show an alarm
history         what is kept of the batches that were seen
text_stats      copies, loops and missing answers in texts
smoothing       smoothed means and their best
metric_history  logged metrics

A monitor is a reward of weight 0: scored, not trained on. It, like each reward, is read as "higher is better".
An alarm is a reason to read attempts, no proof. It looks at a window of batches, never at one, and is new once even
where it comes and goes. Each, its threshold and what that is compared with:
"""

from .monitor import Alarm, Thresholds, Watch
from .rules import ALARMS
from .types import Finding, Rule


__doc__ += "".join(f"\n{name:17}{rule.default:<6g}{rule.sees}" for name, rule in ALARMS.items())
