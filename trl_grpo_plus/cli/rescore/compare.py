"""Pure functions: the agreement of rewards, and the verdicts and advantages that a new reward would have given."""

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor

from ...objective.advantages import compute
from ...rollouts.groups import judge, totals
from .requested_rewards import TOTAL, RequestedReward
from .scored_groups import batches
from .scoring_loop import Group


Score = float | None
Pair = tuple[Score, Score]

TOLERANCE = 1e-6  # absolute or relative: traces hold float32 rounded to 7 decimals
BATCH = 4096  # groups that are compared at once
PAIRS = 1 << 18  # pairs that are multiplied at once
FAILED = {"error": "error", "timeout": "time-out", "starved": "starved"}
KINDS = ("0 -> 1", "1 -> 0", "lower", "higher", "was None", "now None", *FAILED.values())


class Difference(NamedTuple):
    """An attempt on which the recorded and the new reward differ."""

    group: Group
    attempt: int
    old: Score
    new: Score


class Differences(Sequence[Difference]):
    """Differences by their places. Memory holds 16 bytes for each; their groups are fetched when asked for."""

    def __init__(self, groups: Sequence[Group], label: str, against: str):
        self._groups, self._label, self._against = groups, label, against
        self._numbers, self._attempts = array("Q"), array("Q")

    def append(self, number: int, attempt: int) -> None:
        """Add an attempt of the group with this number."""
        self._numbers.append(number)
        self._attempts.append(attempt)

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, at: int) -> Difference: ...

    @overload
    def __getitem__(self, at: slice) -> list[Difference]: ...

    def __getitem__(self, at: int | slice) -> Difference | list[Difference]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        group, attempt = self._groups[self._numbers[at]], self._attempts[at]
        old, new = group.recorded[self._against][attempt], group.outcomes[self._label][attempt].score
        return Difference(group, attempt, old, new)


class Agreement(NamedTuple):
    """The result of [`agreement`]: counts, means and differences over the attempts."""

    attempts: int  # attempts that recorded the compared reward
    lacking: int  # attempts that did not record it
    equal: int
    old_mean: Score
    new_mean: Score
    statuses: Counter[str]  # of all attempts
    undecided: Counter[str]  # without failures of an inner reward or scorer that has set the score
    differences: dict[str, Differences]  # by kind, in the order of KINDS


def same(old: Score, new: Score) -> bool:
    """Return `True` if two scores are equal up to rounding; `None` equals only `None`."""
    if old is None or new is None:
        return old is new
    return math.isclose(old, new, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def kind(old: Score, new: Score, status: str = "ok") -> str | None:
    """Return the kind of difference between two scores: one of [`KINDS`], or `None` if they are the same.

    | old | new | kind |
    |---|---|---|
    | equal, or both `None` | | `None` |
    | different | the score of a sample that failed | "error", "time-out", "starved" |
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


def agreement(groups: Sequence[Group], label: str, against: str) -> Agreement:
    """Compare the reward `label` with the recorded reward `against`, over the groups that recorded it."""
    found = {name: Differences(groups, label, against) for name in KINDS}
    statuses, undecided = Counter[str](), Counter[str]()
    old_mean, new_mean, attempts, lacking = _Mean(), _Mean(), 0, 0
    for number, group in enumerate(groups):
        statuses.update(outcome.status for outcome in group.outcomes[label])
        undecided.update(outcome.status for outcome in group.outcomes[label] if not outcome.decided)
        if against not in group.recorded:
            lacking += group.size
            continue
        attempts += group.size
        for attempt, (old, outcome) in enumerate(zip(group.recorded[against], group.outcomes[label], strict=True)):
            old_mean.add(old)
            new_mean.add(outcome.score)
            if differs := kind(old, outcome.score, outcome.status):
                found[differs].append(number, attempt)
    equal = attempts - sum(map(len, found.values()))
    differences = {name: of_kind for name, of_kind in found.items() if of_kind}
    return Agreement(attempts, lacking, equal, old_mean.value, new_mean.value, statuses, undecided, differences)


@dataclass(frozen=True)
class Rescoring:
    """What was scored, and what the run recorded about its rewards.

    Args:
        groups (`Sequence[Group]`): the scored groups.
        split (`str`): split of the groups.
        rewards (`Sequence[RequestedReward]`): the rewards that scored the groups.
        weights (`Mapping[str, float]`): weights of the recorded rewards.
        limits (`Mapping[str, float]`): arguments of [`~trl_grpo_plus.rollouts.groups.judge`].
    """

    groups: Sequence[Group]
    split: str
    rewards: Sequence[RequestedReward]
    weights: Mapping[str, float]
    limits: Mapping[str, float]

    @cached_property
    def agreements(self) -> dict[str, Agreement]:
        """The [`agreement`] of each reward, by its label. It takes a pass over all groups for each."""
        return {reward.label: agreement(self.groups, reward.label, reward.against) for reward in self.rewards}


def pearson(pairs: Iterable[Pair]) -> float | None:
    """Return Pearson's r over the pairs without a `None`; `None` for fewer than two, or if a side is constant."""
    both = array("d")
    for old, new in pairs:
        if old is not None and new is not None:
            both.extend((old, new))
    return _correlation(both)


def _correlation(both: "array[float]") -> float | None:
    """Return Pearson's r of pairs that lie one after another in an array, without a copy of the array."""
    if len(both) < 4:
        return None
    pairs = torch.frombuffer(both, dtype=torch.float64).view(-1, 2)
    if (pairs.amax(dim=0) - pairs.amin(dim=0)).min() <= TOLERANCE:
        return None
    mean, products = pairs.mean(dim=0), torch.zeros(2, 2, dtype=torch.float64)
    for some in pairs.split(PAIRS):
        products += (some - mean).T @ (some - mean)
    return (products[0, 1] / (products[0, 0] * products[1, 1]).sqrt()).item()


def share_equal(pairs: Sequence[Pair]) -> float:
    """Return the share of pairs that are [`same`]."""
    return sum(same(*pair) for pair in pairs) / len(pairs)


def replaces(against: str, weights: Mapping[str, float]) -> bool:
    """Return `True` if the new reward replaces a recorded reward in the total.

    Otherwise the new reward alone is the new total.
    """
    return against != TOTAL and bool(weights.get(against))


def totalled(groups: Iterable[Group], against: str, weights: Mapping[str, float]) -> list[Group]:
    """Return the groups whose new total is known.

    If the new reward replaces `against`, these are the groups whose recorded total is the weighted sum of the recorded
    rewards with the known weights. The other groups were sampled before a resume with other rewards or weights.
    """
    if not replaces(against, weights):
        return [*groups]
    return [group for group in groups if _is_weighted_by(group, _counted(weights))]


def _counted(weights: Mapping[str, float]) -> dict[str, float]:
    """Remove the monitors, whose weight is 0, so that they do not change the total."""
    return {name: weight for name, weight in weights.items() if weight}


def _is_weighted_by(group: Group, weights: Mapping[str, float]) -> bool:
    if not weights.keys() <= group.recorded.keys():
        return False
    rewards = torch.stack([_tensor(group.recorded[name]) for name in weights], dim=1)
    summed = totals(rewards, torch.tensor(list(weights.values())))
    return torch.allclose(summed.double(), _tensor(group.recorded[TOTAL]).double(), atol=1e-4, equal_nan=True)


def new_totals(groups: Sequence[Group], label: str, against: str, weights: Mapping[str, float]) -> Tensor:
    """Return the totals `(P, G)` of groups of one size with the new reward; NaN if an attempt is unscored.

    Args:
        groups (`Sequence[Group]`): P groups of G attempts, from the result of [`totalled`].
        label (`str`), against (`str`): label of the new reward, and name of the recorded reward to compare with.
        weights (`Mapping[str, float]`): weights of the recorded rewards.
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
    """Return the recorded totals `(P, G)` of groups of one size."""
    return torch.stack([_tensor(group.recorded[TOTAL]) for group in groups])


def verdicts(groups: Sequence[Group], rewards: Tensor, limits: Mapping[str, Any]) -> list[str]:
    """Return P verdicts for the totals `(P, G)`. A group recorded as truncated stays so, whatever its rewards."""
    judged = judge(rewards, **limits)
    return ["truncated" if one.verdict == "truncated" else new for one, new in zip(groups, judged, strict=True)]


class Effect(NamedTuple):
    """The effect of the new reward on the verdicts and advantages of the groups."""

    table: Counter[tuple[str, str]]  # (recorded verdict, new verdict) -> groups
    unexplained: int  # groups whose recorded verdict does not follow from the recorded totals
    advantages: float | None  # Pearson's r of the recorded advantages with GRPO's advantages of the new totals
    alive: int  # groups with recorded advantages that are alive by both verdicts: `advantages` is over these
    left_out: int  # groups whose new total is not known


def effect(
    groups: Sequence[Group], label: str, against: str, weights: Mapping[str, float], limits: Mapping[str, Any]
) -> Effect:
    """Compute verdicts and GRPO's advantages (the group's mean as baseline, its std as scale) of the new totals.

    Args:
        groups, label, against, weights: as in [`new_totals`], but groups may have any size.
        limits (`Mapping`): arguments of [`~trl_grpo_plus.rollouts.groups.judge`].
    """
    table: Counter[tuple[str, str]] = Counter()
    both = array("d")
    unexplained = alive = judged_groups = 0
    for alike in alike_batches(groups, against, weights):
        judged_groups += len(alike)
        news = new_totals(alike, label, against, weights)
        advantages = compute(news.double()).tolist()
        judged = zip(alike, verdicts(alike, old_totals(alike), limits), verdicts(alike, news, limits), strict=True)
        for (group, again, new), of_group in zip(judged, advantages, strict=True):
            table[group.verdict, new] += 1
            unexplained += group.verdict != again
            if group.verdict == new == "alive" and group.advantages[0] is not None:
                alive += 1
                for old, other in zip(group.advantages, of_group, strict=True):
                    if old is not None:
                        both.extend((old, other))
    return Effect(table, unexplained, _correlation(both), alive, len(groups) - judged_groups)


def alike_batches(groups: Iterable[Group], against: str, weights: Mapping[str, float]) -> Iterator[list[Group]]:
    """Yield the groups whose new total is known, in batches of groups of one size: see [`totalled`]."""
    for batch in batches(groups, BATCH):
        with_totals = totalled(batch, against, weights)
        for size in sorted({group.size for group in with_totals}):
            yield [group for group in with_totals if group.size == size]


def _tensor(scores: Sequence[Score]) -> Tensor:
    return torch.tensor([math.nan if score is None else score for score in scores], dtype=torch.float32)


class _Mean:
    """The mean of scores, which are added one by one and not kept. `None` does not count."""

    def __init__(self) -> None:
        self._sum, self._count = 0.0, 0

    def add(self, score: Score) -> None:
        if score is not None:
            self._sum += score
            self._count += 1

    @property
    def value(self) -> Score:
        return self._sum / self._count if self._count else None
