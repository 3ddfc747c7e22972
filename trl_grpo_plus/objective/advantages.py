"""Rewards of a group -> advantages: subtract a baseline, divide by a scale.

    A_i = (r_i - baseline) / (max(scale, floor) + eps)

| baseline | what is subtracted from r_i |
|---|---|
| mean | mean of the group (DeepSeekMath) |
| leave_one_out | mean of the other attempts (RLOO) |
| median | median of the group |
| length_weighted | sum(len_j r_j) / sum(len_j) (OPO: the variance-optimal baseline of a token-summed loss) |
| belief | (sum of the other attempts + k m) / (their number + k): the prompt was believed to earn m, on k effective
  attempts (8 at most), before it was sampled; unbiased whatever m is, and defined for a group of one |

| scale | what is divided by |
|---|---|
| group | std of the group |
| batch | std of all rewards of the batch |
| none | 1 (Dr. GRPO) |
| mad | 1.4826 x median |r - median|; where that is 0, 1.2533 x mean |r - median|: both estimate a normal's std |
| mean | mean of the group; the advantage is 0 where it is <= 0 (MaxRL; takes no floor and no eps) |
| running | a std that the caller keeps |
| prior | std of one reward as it was believed before the group was sampled |

A group whose rewards differ by no more than the tolerance has advantage exactly 0 (with the baseline belief the caller
says which teach), so has an unscored attempt (NaN), and neither moves the others; with a KL in the reward
([`compute_with_kl`]) they have that of the KL. Every group has one scale. Under group, mad and mean |A| <= G for
rewards in [0, 1], whatever eps is. All in float64; the result is cast to the rewards' dtype.

The worked example of DeepSeekMath: rewards (1, 1, 1, 0) with the population std (ddof 0) and eps 0 give +0.577 three
times and -1.732.
"""

from collections.abc import Sequence
from itertools import repeat

import torch
from torch import Tensor

from ..curriculum.beliefs import Belief
from ..rollouts.groups import extremes
from ..utils.validation import one_of
from .baselines import BASELINES, Baseline, BaselineInputs
from .scales import SCALES, TRL_SCALES, Scale, Scored, batch_std


def compute(
    rewards: Tensor,
    baseline: str | Baseline = "mean",
    scale: str = "group",
    ddof: int = 1,
    eps: float = 1e-4,
    floor: float = 0.0,
    tolerance: float = 1e-6,
    lengths: Tensor | None = None,
    *,
    running_std: float | None = None,
    belief: Belief | None = None,
    teaching: Tensor | None = None,
) -> Tensor:
    """Advantages of P groups of G attempts. The defaults are TRL's (`grpo_trainer.py`, `sum_then_normalize`).

    Args:
        rewards (`Tensor`): `(P, G)`, NaN for an attempt that nobody scored.
        baseline (`str` or `Callable`, *optional*, defaults to `"mean"`): one of [`BASELINES`], or a function as they
            are.
        scale (`str`, *optional*, defaults to `"group"`): one of [`SCALES`].
        ddof (`int`, *optional*, defaults to `1`): 1 for the sample std, 0 for the population std.
        eps (`float`, *optional*, defaults to `1e-4`): added to the scale.
        floor (`float`, *optional*, defaults to `0.0`): smallest scale.
        tolerance (`float`, *optional*, defaults to `1e-6`): largest max - min of a group that counts as tied.
        lengths (`Tensor`, *optional*): `(P, G)` completion lengths in tokens, for length_weighted.
        running_std (`float`, *optional*): the std to divide by, for running.
        belief ([`~trl_grpo_plus.curriculum.beliefs.Belief`], *optional*): of the P prompts, for belief and prior;
            must have been made before their attempts were scored.
        teaching (`Tensor`, *optional*): `(P,)`, which groups have an advantage. `None`: those whose rewards differ.

    Returns:
        `Tensor`: `(P, G)`.

    Raises:
        ValueError: unknown baseline or scale, or what it needs is missing.
    """
    teaches = varies(rewards, tolerance) if teaching is None else teaching.unsqueeze(1)
    values = rewards.double()
    centre, kind = _chosen(baseline, scale)
    scored = ~values.isnan()
    about = BaselineInputs(lengths, running_std, belief)
    centred = centre(values, scored, about)
    divisor = kind.divisor(Scored(values, scored, centred, ddof, tolerance, about), floor, eps)
    # A divisor of 0 says that there is no advantage (MaxRL with a mean <= 0, a std of 0 without eps).
    live = scored & teaches & (divisor > 0)
    return torch.where(live, centred / torch.where(divisor > 0, divisor, 1.0), 0.0).to(rewards.dtype)


def normalize_then_sum(
    components: Tensor,
    weights: Tensor,
    baseline: str | Baseline = "mean",
    scale: str = "group",
    ddof: int = 1,
    eps: float = 1e-4,
    floor: float = 0.0,
    tolerance: float = 1e-6,
    lengths: Tensor | None = None,
    *,
    beliefs: Sequence[Belief] | None = None,
    teaching: Tensor | None = None,
) -> Tensor:
    """TRL's `multi_objective_aggregation="normalize_then_sum"` (GDPO): advantages of each reward function by itself,
    summed with their weights, then normalised over the batch.

    Args:
        components (`Tensor`): `(P, G, K)`, NaN where a reward function does not apply.
        weights (`Tensor`): `(K,)`. What has weight 0 is left out: an attempt that nothing else scored is unscored.
        scale (`str`, *optional*, defaults to `"group"`): one that each group has of its own. TRL divides by the
            group's std whatever `scale_rewards` is, so here batch and none mean group too.
        beliefs (`Sequence[Belief]`, *optional*): one a component with a weight.
        baseline, ddof, eps, floor, tolerance, lengths, teaching: as [`compute`].

    Returns:
        `Tensor`: `(P, G)`. 0 for an attempt that nobody scored and for a group of which every component is tied.
    """
    components, weights = components[..., weights != 0], weights[weights != 0]
    nothing = components.new_zeros(components.shape[:2])
    if not len(weights):
        return nothing
    scale = "group" if scale in TRL_SCALES else scale
    shaping = (baseline, scale, ddof, eps, floor, tolerance, lengths)
    parts = [
        compute(part.double(), *shaping, belief=belief, teaching=teaching)
        for part, belief in zip(components.unbind(-1), beliefs or repeat(None), strict=False)
    ]
    weighted = torch.stack(parts, dim=-1) * weights.double()
    summed = weighted.sum(dim=-1)
    scored = ~components.isnan().all(dim=-1)
    teaches = (weighted != 0).any(dim=-1).any(dim=-1, keepdim=True)
    over_batch = summed[scored]
    if len(over_batch) <= ddof or over_batch.max() - over_batch.min() <= tolerance:
        return nothing
    divisor = max(batch_std(over_batch, ddof), floor) + eps
    normalised = (summed - over_batch.mean()) / divisor if divisor > 0 else torch.zeros_like(summed)
    return torch.where(scored & teaches, normalised, 0.0).to(components.dtype)


def compute_with_kl(
    rewards: Tensor,
    kl_to_go: Tensor,
    beta: float,
    per_token: bool,
    baseline: str | Baseline = "mean",
    scale: str = "group",
    ddof: int = 1,
    eps: float = 1e-4,
    floor: float = 0.0,
    tolerance: float = 1e-6,
    lengths: Tensor | None = None,
    *,
    running_std: float | None = None,
    belief: Belief | None = None,
    teaching: Tensor | None = None,
) -> Tensor:
    """Advantages of reward - beta * KL: the KL in the reward, subtracted before the baseline.

    The KL needs no reward. Where [`compute`] gives 0 (a tied group, an attempt that nobody scored, a group mean <= 0
    under the scale mean) the advantage is that of -beta * KL alone, centred over all attempts of the group. A group
    whose rewards have no scale of their own (group, mad, mean) is divided by 1, and so is, under batch, a batch whose
    rewards are all alike.

    Args:
        rewards (`Tensor`): `(P, G)`, NaN for an attempt that nobody scored.
        kl_to_go (`Tensor`): `(P, G, T)`, [`trl_grpo_plus.objective.kl.kl_to_go`] of each completion, in nats.
        beta (`float`): coefficient of the KL.
        per_token (`bool`): at each token the KL from there on; otherwise the whole completion's.
        baseline, scale, ddof, eps, floor, tolerance, lengths, running_std, belief, teaching: as [`compute`]; scales
            are those of reward - beta * KL, `tolerance` and `belief` are about the rewards. What an attempt's KL is
            expected to be is, under the baseline belief, the mean of the others'.

    Returns:
        `Tensor`: `(P, G, T)` per token, otherwise `(P, G)`.
    """
    if not rewards.numel():
        return torch.zeros_like(kl_to_go if per_token else rewards, dtype=rewards.dtype)
    cost = beta * kl_to_go.double()
    values = rewards.double()
    centre, kind = _chosen(baseline, scale)
    scored = ~values.isnan()
    about = BaselineInputs(lengths, running_std, belief)
    penalised = values - cost[..., 0]
    centred = centre(penalised, scored, about.less(cost[..., 0], scored))
    divisor = kind.divisor(Scored(penalised, scored, centred, ddof, tolerance, about), floor, eps)
    teaches = (varies(values, tolerance) if teaching is None else teaching.unsqueeze(1)) & (divisor > 0)
    if kind.over == "group":
        divisor = torch.where(teaches, divisor, 1.0)
    elif kind.over == "batch":
        divisor = torch.where(varies(values.view(1, -1), tolerance), divisor, 1.0)
    divisor = torch.where(divisor > 0, divisor, 1.0)
    cost, shaped = cost if per_token else cost[..., :1], (scored & teaches).unsqueeze(-1)
    scored, everyone, about = scored.unsqueeze(-1), torch.ones_like(shaped), about.per_token()
    with_reward = centre(values.unsqueeze(-1) - cost, scored, about.less(cost, scored))
    # What a baseline of rewards that are all 0 is not 0 for (a column of the dataset) is none of the KL's.
    nothing = about.of_nothing()
    alone = centre(-cost, everyone, nothing.less(cost, everyone)) - centre(torch.zeros_like(cost), everyone, nothing)
    shared = (torch.where(shaped, with_reward, alone) / divisor.unsqueeze(-1)).to(rewards.dtype)
    return shared if per_token else shared.squeeze(-1)


def varies(rewards: Tensor, tolerance: float) -> Tensor:
    """(P, G) -> (P, 1), whether a group's rewards differ."""
    lowest, highest = extremes(rewards)
    return (highest - lowest > tolerance).unsqueeze(1)


def _chosen(baseline: str | Baseline, scale: str) -> tuple[Baseline, Scale]:
    if isinstance(baseline, str):
        one_of("baseline", baseline, BASELINES)
        baseline = BASELINES[baseline]
    one_of("scale", scale, SCALES)
    return baseline, SCALES[scale]
