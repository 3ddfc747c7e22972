"""The advantages of a group from its rewards: subtract a baseline, divide by a scale.

    A_i = (r_i - baseline) / (max(scale, floor) + eps)

| baseline | subtracted from r_i |
|---|---|
| mean | mean of the group (DeepSeekMath) |
| leave_one_out | mean of the other attempts (RLOO) |
| median | median of the group |
| length_weighted | sum(len_j r_j) / sum(len_j) (OPO) |
| belief | (sum of the other attempts + k m) / (their number + k) |

Under belief, m is the reward that the prompt was believed to earn before it was sampled. k is the number of attempts
that this belief rests on, at most 8. The baseline is unbiased for any m, and defined for a group of one.

[`trl_grpo_plus.objective.scales`] has the table of scales.

A group whose rewards differ by no more than the tolerance has advantage exactly 0. (Under the baseline belief the
caller says which groups teach.) An unscored attempt (NaN) has advantage exactly 0. Neither changes the advantages of
others. With a KL in the reward ([`compute_with_kl`]) both have the advantage of the KL. All attempts of a group are
divided by the same number. Under group, mad and mean, |A| <= G for rewards in [0, 1], a named baseline and any eps,
without a KL in the reward. All values are computed in float64 and cast to the rewards' dtype.

Rewards (1, 1, 1, 0) with the population std (ddof 0) and eps 0 give +0.577 three times and -1.732.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..rollouts.groups import extremes
from ..utils.validation import one_of
from .baselines import BASELINES, Baseline
from .group_batch import GroupBatch
from .scales import SCALES, TRL_SCALES, Scale, Scored, batch_std


@dataclass(frozen=True)
class Normalization:
    """A baseline, a scale and their limits. The defaults are TRL's (`grpo_trainer.py`, `sum_then_normalize`).

    Args:
        baseline (`str` or `Callable`, *optional*, defaults to `"mean"`): one of [`BASELINES`], or such a function.
        scale (`str`, *optional*, defaults to `"group"`): one of [`SCALES`].
        ddof (`int`, *optional*, defaults to `1`): 1 for the sample std, 0 for the population std.
        eps (`float`, *optional*, defaults to `1e-4`): added to the scale.
        floor (`float`, *optional*, defaults to `0.0`): smallest scale.
        tolerance (`float`, *optional*, defaults to `1e-6`): largest max - min of a group that counts as tied.

    Raises:
        ConfigError: unknown baseline or scale.
    """

    baseline: str | Baseline = "mean"
    scale: str = "group"
    ddof: int = 1
    eps: float = 1e-4
    floor: float = 0.0
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        if isinstance(self.baseline, str):
            one_of("baseline", self.baseline, BASELINES)
        one_of("scale", self.scale, SCALES)

    @property
    def centre(self) -> Baseline:
        """The function that subtracts the baseline."""
        return BASELINES[self.baseline] if isinstance(self.baseline, str) else self.baseline

    @property
    def kind(self) -> Scale:
        """The scale's record."""
        return SCALES[self.scale]

    def divisor(self, values: Tensor, scored: Tensor, centred: Tensor, batch: GroupBatch) -> Tensor:
        """Return the scale with floor and eps, `(P, 1)` or `(1, 1)`; 0 where a group has no advantage."""
        spread = self.kind.spread(Scored(values, scored, centred, batch, self.ddof, self.tolerance))
        return spread if self.kind.as_it_is else spread.clamp(min=self.floor) + self.eps


TRL_DEFAULT = Normalization()
ROUNDING = 1e-6  # relative; sums of float32 rewards that cancel differ by less
TOKENS_AT_ONCE = 128  # so that the intermediate values of a batch stay in the processor's cache
REWARDS_ALONE = GroupBatch()
OF_REWARDS = ("mean", "leave_one_out", "median")  # the baselines that need nothing but a group's rewards


def compute(rewards: Tensor, normalization: Normalization = TRL_DEFAULT, batch: GroupBatch = REWARDS_ALONE) -> Tensor:
    """Compute the advantages of P groups of G attempts.

    Args:
        rewards (`Tensor`): `(P, G)`, NaN for an attempt that nobody scored.
        normalization ([`Normalization`], *optional*): baseline and scale. By default TRL's.
        batch ([`~trl_grpo_plus.objective.group_batch.GroupBatch`], *optional*): what baseline and scale need:
            length_weighted the lengths, running the running_std, belief and prior the beliefs. Its `teaching` says
            which groups have an advantage.

    Returns:
        `Tensor`: `(P, G)`.

    Raises:
        ConfigError: the batch lacks what the baseline or the scale needs.
    """
    teaches = varies(rewards, normalization.tolerance) if batch.teaching is None else batch.teaching.unsqueeze(1)
    values = rewards.double()
    scored = ~values.isnan()
    centred = normalization.centre(values, scored, batch)
    divisor = normalization.divisor(values, scored, centred, batch)
    # A divisor of 0 means no advantage (MaxRL with a mean <= 0, a std of 0 without eps).
    live = scored & teaches & (divisor > 0)
    return torch.where(live, centred / torch.where(divisor > 0, divisor, 1.0), 0.0).to(rewards.dtype)


def normalize_then_sum(
    components: Tensor,
    weights: Tensor,
    normalization: Normalization = TRL_DEFAULT,
    batch: GroupBatch = REWARDS_ALONE,
    floor: float = 0.0,
) -> Tensor:
    """Compute advantages of each reward function separately, add them by weight, and normalise over the batch.

    This is TRL's `multi_objective_aggregation="normalize_then_sum"` (GDPO).

    Args:
        components (`Tensor`): `(P, G, K)`, NaN where a reward function does not apply.
        weights (`Tensor`): `(K,)`. A component of weight 0 is left out: an attempt that nothing else scored is
            unscored.
        normalization ([`Normalization`], *optional*): its scale must be that of a group. TRL divides by the group's
            std whatever `scale_rewards` is, so here batch and none mean group too.
        batch ([`~trl_grpo_plus.objective.group_batch.GroupBatch`], *optional*): as [`compute`], with one belief
            for each component with a weight.
        floor (`float`, *optional*, defaults to `0.0`): smallest std of the sums, which have no unit. The floor of
            the `normalization` is in the unit of rewards, and bounds the scales of the components alone.

    Returns:
        `Tensor`: `(P, G)`. 0 for an attempt that nobody scored and for a group whose components are all tied.
    """
    nothing = components.new_zeros(components.shape[:2])
    if not weights.any():
        return nothing
    each = replace(normalization, scale="group") if normalization.scale in TRL_SCALES else normalization
    weighted, scored = _weighted(components, weights, each, batch)
    summed = weighted.sum(dim=-1)
    teaches = (weighted != 0).any(dim=-1).any(dim=-1, keepdim=True)
    over_batch, ddof = summed[scored], normalization.ddof
    if batch.skipped_rewards is not None:  # their rewards are alike, but for truncated groups and a `filter_metric`
        baseline = each.baseline if each.baseline in OF_REWARDS else "mean"
        plain = replace(each, baseline=baseline, scale=each.scale if each.kind.over == "group" else "group")
        of_skipped, counted = _weighted(batch.skipped_rewards, weights, plain, REWARDS_ALONE)
        over_batch = torch.cat([over_batch, of_skipped.sum(dim=-1)[counted]])
    if not len(components) or len(over_batch) <= ddof:
        return nothing
    if over_batch.max() - over_batch.min() <= ROUNDING * weighted.abs().max():
        return nothing  # components that cancel leave only the rounding of their rewards
    divisor = max(batch_std(over_batch, ddof), floor) + normalization.eps
    normalised = (summed - over_batch.mean()) / divisor if divisor > 0 else torch.zeros_like(summed)
    return torch.where(scored & teaches, normalised, 0.0).to(components.dtype)


def _weighted(
    components: Tensor, weights: Tensor, normalization: Normalization, batch: GroupBatch
) -> tuple[Tensor, Tensor]:
    """Return the components' advantages times their weights, without those of weight 0, and who was scored."""
    components, weights = components[..., weights != 0], weights[weights != 0]
    parts = [
        compute(part.double(), normalization, replace(batch, beliefs=batch.beliefs[k : k + 1]))
        for k, part in enumerate(components.unbind(-1))
    ]
    return torch.stack(parts, dim=-1) * weights.double(), ~components.isnan().all(dim=-1)


def compute_with_kl(
    rewards: Tensor,
    kl_to_go: Tensor,
    beta: float,
    per_token: bool,
    normalization: Normalization = TRL_DEFAULT,
    batch: GroupBatch = REWARDS_ALONE,
) -> Tensor:
    """Compute the advantages of reward - beta * KL: the KL in the reward, subtracted before the baseline.

    The KL counts even if the rewards teach nothing. Where [`compute`] gives 0 (a tied group, an attempt that nobody
    scored, a group mean <= 0 under the scale mean) the advantage is that of -beta * KL alone, centred over all
    attempts of the group. Under the scales group, mad and mean, a group whose rewards teach nothing is divided by 1.
    Under batch, all groups are divided by 1 if all rewards of the batch are equal.

    Args:
        rewards (`Tensor`): `(P, G)`, NaN for an attempt that nobody scored.
        kl_to_go (`Tensor`): `(P, G, T)`, [`trl_grpo_plus.objective.kl.kl_to_go`] of each completion, in nats.
        beta (`float`): coefficient of the KL.
        per_token (`bool`): at each token the KL from there on; otherwise the whole completion's.
        normalization ([`Normalization`], *optional*): baseline and scale. The scale is computed from reward - beta *
            KL, mean from the rewards alone; the tolerance is for the rewards.
        batch ([`~trl_grpo_plus.objective.group_batch.GroupBatch`], *optional*): as [`compute`]. Beliefs are about the
            rewards: under the baseline belief an attempt is expected to pay the mean KL of the group's others.

    Returns:
        `Tensor`: `(P, G, T)` per token, otherwise `(P, G)`.
    """
    if not rewards.numel():
        return torch.zeros_like(kl_to_go if per_token else rewards, dtype=rewards.dtype)
    cost = beta * kl_to_go[..., :1].double()
    values = rewards.double()
    centre, over, tolerance = normalization.centre, normalization.kind.over, normalization.tolerance
    scored = ~values.isnan()
    penalised = values - cost[..., 0]
    centred = centre(penalised, scored, batch.less_cost(cost[..., 0], scored))
    scaled = values if normalization.kind.without_kl else penalised
    divisor = normalization.divisor(scaled, scored, centred, batch)
    teaches = (varies(values, tolerance) if batch.teaching is None else batch.teaching.unsqueeze(1)) & (divisor > 0)
    if over == "group":
        divisor = torch.where(teaches, divisor, 1.0)
    elif over == "batch":
        divisor = torch.where(varies(values.view(1, -1), tolerance), divisor, 1.0)
    divisor = torch.where(divisor > 0, divisor, 1.0).unsqueeze(-1)
    shaped = (scored & teaches).unsqueeze(-1)
    values, scored, batch = values.unsqueeze(-1), scored.unsqueeze(-1), batch.per_token()
    # Leave out a baseline (a dataset column) that is not 0 for rewards of 0: it is no part of the KL's advantage.
    everyone, zero = torch.ones_like(shaped), batch.of_zero_rewards()

    def at(cost: Tensor) -> Tensor:
        """Return the advantages at tokens from which on the KL costs this, (P, G, tokens)."""
        with_reward = centre(values - cost, scored, batch.less_cost(cost, scored))
        alone = centre(-cost, everyone, zero.less_cost(cost, everyone)) - centre(
            torch.zeros_like(cost), everyone, zero
        )
        return (torch.where(shaped, with_reward, alone) / divisor).to(rewards.dtype)

    if not per_token:
        return at(cost).squeeze(-1)
    # A baseline of the user's may look at all tokens.
    at_once = TOKENS_AT_ONCE if centre in BASELINES.values() else kl_to_go.shape[-1]
    advantages = torch.empty_like(kl_to_go, dtype=rewards.dtype)
    for some, kl in zip(advantages.split(at_once, dim=-1), kl_to_go.split(at_once, dim=-1), strict=True):
        some.copy_(at(beta * kl.double()))
    return advantages


def varies(rewards: Tensor, tolerance: float) -> Tensor:
    """Return whether each group's rewards differ, (P, G) -> (P, 1)."""
    lowest, highest = extremes(rewards)
    return (highest - lowest > tolerance).unsqueeze(1)
