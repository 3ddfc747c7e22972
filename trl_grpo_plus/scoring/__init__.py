"""The runtime of rewards: from completions to outcomes.

outcome     what becomes of a sample, and which values of a reward function are scores
definition  what is registered: the function, what its signature reads, its examples and limits
reward      a definition with its arguments: called by TRL, in this process or in workers
columns     what a reward reads, against what a dataset has
workers     the processes that score under a time limit
handle      a worker process, as the pool sees it
worker      what runs in one of them
state       what a sample does to its worker and must not stay for the next one
batch       the scores of a batch, for TRL, traces and alarms
"""

from .batch import Scoring
from .columns import check_columns, check_prompts, check_splits, columns_of
from .definition import Definition, Example, Policy, define, definition_at
from .outcome import NO_VERDICT, STATUSES, Noted, Outcome, Step, outcome_of, outcomes_of
from .reward import Reward, RewardError
from .state import kept
from .worker import excuse, sandbox_options
from .workers import configure, default_size, shared
