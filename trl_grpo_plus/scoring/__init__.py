"""Runs reward functions: turns completions into outcomes.

outcome            the outcome of a sample, and the values of a reward function that count as scores
definition         a registered reward: its function, the names its signature reads, its examples and its limits
reward             a definition with its arguments, which TRL calls; it runs in this process or in workers
columns            checks that a dataset has the columns that a reward reads
prompts            checks of a dataset's prompts
failures           the words for a failed reward
batch_scoring      the scores of a batch, for TRL, traces and alarms
worker_pool        the processes that score under a time limit
worker_connection  the pool's end of the connection to a worker
worker_main        the code that runs in a worker process
process_state      restores a worker process to its state before a sample
"""

from .batch_scoring import Scoring
from .columns import NOT_GIVEN, check_columns, check_splits, columns_of, is_model, of_a_class, refuse_class
from .definition import ONLY_IN_A_RUN, TRL_GIVES, Definition, Example, Policy, define, definition_at
from .failures import TRL_UNSCORED, RewardError, held_back
from .outcome import (
    NO_VERDICT,
    STATUSES,
    AnnotatedScore,
    Outcome,
    Step,
    WrongScoresError,
    all_failed,
    outcome_of,
    outcomes_of,
    same_score,
    with_worst_status,
)
from .process_state import kept
from .prompts import (
    check_prompts,
    check_tokens,
    columns_given,
    datasets_named,
    first_prompt,
    has_messages,
    is_conversation,
    lacks_template,
    wrong_prompts,
)
from .reward import Reward, outcomes_without_run, reports_outcomes, scores_of_part
from .worker_main import excuse, sandbox_options
from .worker_pool import configure, default_size, shared
