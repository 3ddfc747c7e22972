"""Runs reward functions: from completions to outcomes.

outcome        what becomes of a sample, and which values of a reward function are scores
definition     what is registered: the function, what its signature reads, its examples and limits
reward         a definition with its arguments: called by TRL, in this process or in workers
columns        what a reward reads, against what a dataset has
batch_scoring  the scores of a batch, for TRL, traces and alarms
worker_pool    the processes that score under a time limit
worker_handle  a worker process, as the pool sees it
worker_main    what runs in a worker process
process_state  what a sample changes in its worker, and how it is put back
"""

from .batch_scoring import Scoring
from .columns import check_columns, check_prompts, check_splits, columns_of
from .definition import Definition, Example, Policy, define, definition_at
from .outcome import NO_VERDICT, STATUSES, AnnotatedScore, Outcome, Step, outcome_of, outcomes_of
from .process_state import kept
from .reward import Reward, RewardError
from .worker_main import excuse, sandbox_options
from .worker_pool import configure, default_size, shared
