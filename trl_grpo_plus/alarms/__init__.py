"""Alarms for reward hacking and for training that goes nowhere, from what each generation batch looks like.

watch     sees each batch of a run and says which alarms are on; when each goes off
rules     the alarms; those about what a run had and lost are in losses, those about logged metrics in runaways
rule      what an alarm is
showing   which groups of a batch show one
history   what is kept of the batches that were seen; looks: what a few of their texts show; levels: smoothed means and
          their best; logged: metrics

A monitor is a reward of weight 0: scored, not trained on. It, like each reward, is read as "higher is better".
An alarm is a reason to read attempts, no proof. It looks at a window of batches, never at one, and is new once even
where it comes and goes. Each, its threshold and what that is compared with:
"""

from .rule import Finding, Rule
from .rules import ALARMS
from .watch import Alarm, Thresholds, Watch


__doc__ += "".join(f"\n{name:17}{rule.default:<6g}{rule.sees}" for name, rule in ALARMS.items())
