"""The verdicts and advantages that a new reward would have given, and the whole result of a rescoring."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...objective.advantages import compute
from ...rollouts.groups import judge, totals
from ...rollouts.verdicts import VERDICTS
from .agreement import Agreement, Pearson, agreement
from .requested_rewards import TOTAL, RequestedReward
from .scoring_loop import Group, Score


BATCH = 4096  # groups that are judged at once


def replaces(against: str, weights: Mapping[str, float]) -> bool:
    """Return `True` if the new reward replaces a recorded reward in the total.

    Otherwise the new reward alone is the new total.
    """
    return against != TOTAL and against in weights


def _is_weighted_by(group: Group, weights: Mapping[str, float]) -> bool:
    if not weights.keys() <= group.recorded.keys():
        return False
    rewards = torch.stack([_tensor(group.recorded[name]) for name in weights], dim=1)
    summed = totals(rewards, torch.tensor(list(weights.values())))
    return torch.allclose(summed.double(), _tensor(group.recorded[TOTAL]).double(), atol=1e-4, equal_nan=True)


def new_totals(groups: Sequence[Group], label: str, against: str, weights: Mapping[str, float]) -> Tensor:
    """Return the totals `(P, G)` of groups of one size with the new reward; NaN if an attempt is unscored.

    Args:
        groups (`Sequence[Group]`): P groups of G attempts.
        label (`str`), against (`str`): label of the new reward, and name of the recorded reward to compare with.
        weights (`Mapping[str, float]`): weights of the recorded rewards, but for monitors.
    """
    share = weights if replaces(against, weights) else {against: 1.0}
    columns = [
        [one for group in groups for one in (group.scores(label) if name == against else group.recorded[name])]
        for name in share
    ]
    rewards = torch.stack([*map(_tensor, columns)], dim=1)
    return totals(rewards, torch.tensor(list(share.values()))).view(len(groups), -1)


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
    turned: bytearray  # of each group 0, or 1 + the index in VERDICTS of its new verdict, if that is another one


def effect(
    groups: Sequence[Group], label: str, against: str, weights: Mapping[str, float], limits: Mapping[str, Any]
) -> Effect:
    """Compute verdicts and GRPO's advantages (the group's mean as baseline, its std as scale) of the new totals.

    Args:
        groups, label, against, weights: as in [`new_totals`], but groups may have any size.
        limits (`Mapping`): arguments of [`~trl_grpo_plus.rollouts.groups.judge`].
    """
    table: Counter[tuple[str, str]] = Counter()
    correlation = Pearson()
    unexplained = alive = 0
    turned = bytearray(len(groups))
    for numbered in _alike_batches(groups, against, weights):
        alike = list(numbered.values())
        news = new_totals(alike, label, against, weights)
        advantages = compute(news.double()).tolist()
        olds = torch.stack([_tensor(group.recorded[TOTAL]) for group in alike])
        judged = zip(verdicts(alike, olds, limits), verdicts(alike, news, limits), strict=True)
        for (number, group), (again, new), of_group in zip(numbered.items(), judged, advantages, strict=True):
            table[group.verdict, new] += 1
            if new != group.verdict:
                turned[number] = 1 + VERDICTS.index(new)
            unexplained += group.verdict != again
            if group.verdict == new == "alive" and group.advantages[0] is not None:
                alive += 1
                correlation.add(group.advantages, of_group)
    return Effect(table, unexplained, correlation.r, alive, len(groups) - table.total(), turned)


def _alike_batches(groups: Iterable[Group], against: str, weights: Mapping[str, float]) -> Iterator[dict[int, Group]]:
    """Yield the groups whose new total is known, by their numbers, in batches of groups of one size.

    If the new reward replaces `against`, these are the groups whose recorded total is the weighted sum of the recorded
    rewards with the known weights. The other groups were sampled before a resume with other rewards or weights.
    """
    weights = weights if replaces(against, weights) else {}
    remaining = enumerate(groups)
    while batch := dict(islice(remaining, BATCH)):
        known = {n: group for n, group in batch.items() if not weights or _is_weighted_by(group, weights)}
        for size in sorted({group.size for group in known.values()}):
            yield {n: group for n, group in known.items() if group.size == size}


@dataclass(frozen=True)
class Rescoring:
    """What was scored, and what the run recorded about its rewards.

    Args:
        groups (`Sequence[Group]`): the scored groups.
        split (`str`): split of the groups.
        rewards (`Sequence[RequestedReward]`): the rewards that scored the groups.
        weights (`Mapping[str, float]`): weights of the recorded rewards, but for monitors, whose weight is 0.
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

    @cached_property
    def effects(self) -> dict[str, Effect]:
        """The [`effect`] of each reward, by its label. It takes a pass over all groups for each."""
        return {
            reward.label: effect(self.groups, reward.label, reward.against, self.weights, self.limits)
            for reward in self.rewards
        }


def _tensor(scores: Sequence[Score]) -> Tensor:
    return torch.tensor([math.nan if score is None else score for score in scores], dtype=torch.float32)
