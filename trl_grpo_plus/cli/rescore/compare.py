"""Pure: where rewards agree, the verdicts and the advantages that there would have been."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...objective.advantages import compute
from ...rollouts.groups import judge, totals
from .requested_rewards import TOTAL
from .scoring_loop import Group


Score = float | None
Pair = tuple[Score, Score]

TOLERANCE = 1e-6  # absolute or relative: traces hold float32 rounded to 7 decimals
FAILED = {"error": "error", "timeout": "time-out", "starved": "starved"}
KINDS = ("0 -> 1", "1 -> 0", "lower", "higher", "was None", "now None", *FAILED.values())


class Difference(NamedTuple):
    """An attempt on which two rewards differ."""

    group: Group
    attempt: int
    old: Score
    new: Score


class Agreement(NamedTuple):
    """Of so many attempts; see [`agreement`]."""

    attempts: int  # that recorded what is compared with
    lacking: int  # attempts that did not
    equal: int
    old_mean: Score
    new_mean: Score
    statuses: Counter[str]  # of all attempts
    differences: dict[str, list[Difference]]  # by kind, in the order of KINDS


def same(old: Score, new: Score) -> bool:
    """Return whether two scores are equal but for rounding; `None` equals `None` alone."""
    if old is None or new is None:
        return old is new
    return math.isclose(old, new, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def kind(old: Score, new: Score, status: str = "ok") -> str | None:
    """Return how the new score differs from the old one: one of [`KINDS`], `None` where it does not.

    | old | new | kind |
    |---|---|---|
    | equal, or both `None` | | `None` |
    | other | of a sample that failed | "error", "time-out", "starved" |
    | `None` | a number | "was None" |
    | a number | `None` | "now None" |
    | 0, 1 | 1, 0 | "0 -> 1", "1 -> 0" |
    | other numbers | | "lower", "higher" |
    """
    if same(old, new):
        return None
    if status in FAILED:
        return FAILED[status]
    if old is None or new is None:
        return "was None" if old is None else "now None"
    if same(old, 0.0) and same(new, 1.0):
        return "0 -> 1"
    if same(old, 1.0) and same(new, 0.0):
        return "1 -> 0"
    return "lower" if new < old else "higher"


def agreement(groups: Iterable[Group], label: str, against: str) -> Agreement:
    """Compare the reward `label` with the recorded reward `against`, over the groups that recorded it."""
    found: dict[str, list[Difference]] = {name: [] for name in KINDS}
    statuses: Counter[str] = Counter()
    olds, news, lacking = [], [], 0
    for group in groups:
        statuses.update(outcome.status for outcome in group.outcomes[label])
        if against not in group.recorded:
            lacking += group.size
            continue
        for attempt, (old, outcome) in enumerate(zip(group.recorded[against], group.outcomes[label], strict=True)):
            new = outcome.score
            olds.append(old)
            news.append(new)
            if differs := kind(old, new, outcome.status):
                found[differs].append(Difference(group, attempt, old, new))
    equal = len(olds) - sum(map(len, found.values()))
    differences = {name: of_kind for name, of_kind in found.items() if of_kind}
    return Agreement(len(olds), lacking, equal, _mean(olds), _mean(news), statuses, differences)


def pearson(pairs: Iterable[Pair]) -> float | None:
    """Pearson's r over the pairs that both scored; `None` where there are none, or one side is constant."""
    both = [pair for pair in pairs if None not in pair]
    if len(both) < 2:
        return None
    x, y = torch.tensor(both, dtype=torch.float64).unbind(1)
    if min(x.max() - x.min(), y.max() - y.min()) <= TOLERANCE:
        return None
    x, y = x - x.mean(), y - y.mean()
    return ((x @ y) / (x.norm() * y.norm())).item()


def share_equal(pairs: Sequence[Pair]) -> float:
    """Return the share of pairs that are [`same`]."""
    return sum(same(*pair) for pair in pairs) / len(pairs)


def replaces(against: str, weights: Mapping[str, float]) -> bool:
    """Return whether the new reward takes the place of a recorded one in the total, which else is the new reward
    alone.
    """
    return against != TOTAL and bool(weights.get(against))


def totalled(groups: Iterable[Group], against: str, weights: Mapping[str, float]) -> list[Group]:
    """Return the groups whose new total is known.

    Where the new reward takes the place of `against`, these are the groups whose recorded total is the sum of the
    recorded rewards by the known weights. The others were sampled before a resume with other rewards or weights.
    """
    if not replaces(against, weights):
        return [*groups]
    return [group for group in groups if _is_weighted_by(group, _counted(weights))]


def _counted(weights: Mapping[str, float]) -> dict[str, float]:
    """Without monitors, which change no total."""
    return {name: weight for name, weight in weights.items() if weight}


def _is_weighted_by(group: Group, weights: Mapping[str, float]) -> bool:
    if not weights.keys() <= group.recorded.keys():
        return False
    rewards = torch.stack([_tensor(group.recorded[name]) for name in weights], dim=1)
    summed = totals(rewards, torch.tensor(list(weights.values())))
    return torch.allclose(summed.double(), _tensor(group.recorded[TOTAL]).double(), atol=1e-4, equal_nan=True)


def new_totals(groups: Sequence[Group], label: str, against: str, weights: Mapping[str, float]) -> Tensor:
    """`(P, G)` totals of groups of one size with the new reward, NaN where nobody scored.

    Args:
        groups (`Sequence[Group]`): P groups of G attempts, of those that [`totalled`] returns.
        label (`str`), against (`str`): of the new reward, and what it is compared with.
        weights (`Mapping[str, float]`): of the recorded rewards.
    """
    columns = {label: [outcome.score for group in groups for outcome in group.outcomes[label]]}
    share = {label: 1.0}
    if replaces(against, weights):
        share = _counted(weights)
        recorded = {name: [one for group in groups for one in group.recorded[name]] for name in share}
        columns = {**recorded, against: columns[label]}
    rewards = torch.stack([_tensor(columns[name]) for name in share], dim=1)
    return totals(rewards, torch.tensor(list(share.values()))).view(len(groups), -1)


def old_totals(groups: Sequence[Group]) -> Tensor:
    """`(P, G)` as recorded."""
    return torch.stack([_tensor(group.recorded[TOTAL]) for group in groups])


def verdicts(groups: Sequence[Group], rewards: Tensor, limits: Mapping[str, Any]) -> list[str]:
    """P verdicts by these totals `(P, G)`. A group that was truncated is so whatever its rewards."""
    judged = judge(rewards, **limits)
    return ["truncated" if one.verdict == "truncated" else new for one, new in zip(groups, judged, strict=True)]


class Effect(NamedTuple):
    """What the new reward would have made of the groups."""

    table: Counter[tuple[str, str]]  # (recorded verdict, new verdict) -> groups
    unexplained: int  # groups whose recorded verdict does not follow from the recorded totals
    advantages: float | None  # Pearson's r of the recorded ones with GRPO's of the new totals
    alive: int  # groups alive in both, whose advantages these are
    left_out: int  # groups whose new total is not known


def effect(
    groups: Sequence[Group], label: str, against: str, weights: Mapping[str, float], limits: Mapping[str, Any]
) -> Effect:
    """Verdicts and GRPO's advantages (mean of the group as baseline, its std as scale) of the new totals.

    Args:
        groups, label, against, weights: as [`new_totals`]; of any size.
        limits (`Mapping`): of [`~trl_grpo_plus.rollouts.groups.judge`].
    """
    table: Counter[tuple[str, str]] = Counter()
    pairs: list[Pair] = []
    unexplained = alive = 0
    known = totalled(groups, against, weights)
    for size in sorted({group.size for group in known}):
        alike = [group for group in known if group.size == size]
        news = new_totals(alike, label, against, weights)
        advantages = compute(news.double()).tolist()
        judged = zip(alike, verdicts(alike, old_totals(alike), limits), verdicts(alike, news, limits), strict=True)
        for (group, again, new), of_group in zip(judged, advantages, strict=True):
            table[group.verdict, new] += 1
            unexplained += group.verdict != again
            if group.verdict == new == "alive" and group.advantages[0] is not None:
                alive += 1
                pairs += zip(group.advantages, of_group, strict=True)
    return Effect(table, unexplained, pearson(pairs), alive, len(groups) - len(known))


def _tensor(scores: Sequence[Score]) -> Tensor:
    return torch.tensor([math.nan if score is None else score for score in scores], dtype=torch.float32)


def _mean(scores: Iterable[Score]) -> Score:
    known = [score for score in scores if score is not None]
    return math.fsum(known) / len(known) if known else None
