"""The runtime of rewards: from completions to outcomes.

reward   a function with its definition: columns, time limit, policies
workers  outcomes, and the processes that score under a time limit
batch    the scores of a batch, for TRL, traces and alarms
"""

from .batch import NO_VERDICT, STATUSES, Scoring
from .reward import (
    FAILURES,
    TRL_GIVES,
    Definition,
    Example,
    Policy,
    Reward,
    RewardError,
    RewardFunction,
    check_column,
    columns_of,
    define,
    definition_at,
    first_failure,
)
from .workers import Noted, Outcome, configure, excuse, outcome_of, outcomes_of, sandbox_options, shared


__all__ = [
    "FAILURES",
    "NO_VERDICT",
    "STATUSES",
    "TRL_GIVES",
    "Definition",
    "Example",
    "Noted",
    "Outcome",
    "Policy",
    "Reward",
    "RewardError",
    "RewardFunction",
    "Scoring",
    "check_column",
    "columns_of",
    "configure",
    "define",
    "definition_at",
    "excuse",
    "first_failure",
    "outcome_of",
    "outcomes_of",
    "sandbox_options",
    "shared",
]
