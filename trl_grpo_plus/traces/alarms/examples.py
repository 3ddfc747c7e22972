"""Finds the groups of a batch that show an alarm."""

from collections.abc import Callable, Sequence

from ...utils.validation import finite_or_none
from .. import GroupKey, Row, SampledBatch, by_group, group_key
from .history import History
from .text_stats import reward_of


_NAMED = 8  # maximum number of groups that an alarm names


def showing(batch: SampledBatch, test: Callable[[Sequence[Row]], bool]) -> tuple[GroupKey, ...]:
    """Return the keys of the groups that pass the test, the highest reward first."""
    groups = {key: max(map(reward_of, rows)) for key, rows in by_group(batch.lines).items() if test(rows)}
    return tuple(sorted(groups, key=lambda key: -groups[key])[:_NAMED])


def among(batch: SampledBatch, keys: Sequence[GroupKey]) -> tuple[GroupKey, ...]:
    """Return the given keys that are in the batch, ordered by the group's highest reward."""
    return showing(batch, lambda rows: group_key(rows[0]) in keys)


def paid(row: Row, history: History) -> bool:
    """Return whether an attempt earned more than the middle of the run's range."""
    return reward_of(row) > history.bar()


def low(row: Row, name: str, history: History, sign: float = 1.0) -> bool:
    """Return whether an attempt's score of a reward is missing or, times `sign`, not above the middle of its range."""
    score = finite_or_none(row["rewards"].get(name))
    return score is None or sign * score <= sign * history.bar(name)


def together(rows: Sequence[Row]) -> float:
    """Return the unscaled covariance of tokens and reward in a group, without attempts that were cut off."""
    scored = [
        (r["tokens"], r["reward"]) for r in rows if not r["truncated"] and finite_or_none(r["reward"]) is not None
    ]
    mean = sum(tokens for tokens, _ in scored) / max(len(scored), 1)
    return sum((tokens - mean) * reward for tokens, reward in scored)
