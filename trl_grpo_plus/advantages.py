"""Rewards of a group -> advantages: subtract a baseline, divide by a scale.

    A_i = (r_i - baseline) / (max(scale, floor) + eps)

| baseline | what is subtracted from r_i |
|---|---|
| mean | mean of the group (DeepSeekMath) |
| leave_one_out | mean of the other attempts (RLOO) |
| median | median of the group |
| length_weighted | sum(len_j r_j) / sum(len_j) (OPO: the variance-optimal baseline of a token-summed loss) |

| scale | what is divided by |
|---|---|
| group | std of the group |
| batch | std of all rewards of the batch |
| none | 1 (Dr. GRPO) |
| mad | 1.4826 x median |r - median|; where that is 0, 1.2533 x mean |r - median|: both estimate a normal's std |
| mean | mean of the group; the advantage is 0 where it is <= 0 (MaxRL; takes no floor and no eps) |
| running | a std that the caller keeps |

A group whose rewards differ by no more than the tolerance has advantage exactly 0, so has an unscored attempt (NaN),
and neither moves the others; with a KL in the reward ([`compute_with_kl`]) they have that of the KL. Every group has
one scale. Under group, mad and mean |A| <= G for rewards in [0, 1], whatever eps is. All in float64; the result is
cast to the rewards' dtype.

The worked example of DeepSeekMath: rewards (1, 1, 1, 0) with the population std (ddof 0) and eps 0 give +0.577 three
times and -1.732.
"""

import torch
from torch import Tensor

from .groups import extremes


PER_GROUP = ("group", "mad", "mean")  # scales that each group has of its own
MAD_TO_STD = 1.4826
MEAN_DEVIATION_TO_STD = 1.2533


def compute(
    rewards: Tensor,
    baseline: str = "mean",
    scale: str = "group",
    ddof: int = 1,
    eps: float = 1e-4,
    floor: float = 0.0,
    tolerance: float = 1e-6,
    lengths: Tensor | None = None,
    *,
    running_std: float | None = None,
    returns: Tensor | None = None,
) -> Tensor:
    """Advantages of P groups of G attempts. The defaults are TRL's (`grpo_trainer.py`, `sum_then_normalize`).

    Args:
        rewards (`Tensor`): `(P, G)`, NaN for an attempt that nobody scored.
        baseline (`str`, *optional*, defaults to `"mean"`): mean, leave_one_out, median or length_weighted.
        scale (`str`, *optional*, defaults to `"group"`): group, batch, none, mad, mean or running.
        ddof (`int`, *optional*, defaults to `1`): 1 for the sample std, 0 for the population std.
        eps (`float`, *optional*, defaults to `1e-4`): added to the scale.
        floor (`float`, *optional*, defaults to `0.0`): smallest scale.
        tolerance (`float`, *optional*, defaults to `1e-6`): largest max - min of a group that counts as tied.
        lengths (`Tensor`, *optional*): `(P, G)` completion lengths in tokens, for length_weighted.
        running_std (`float`, *optional*): the std to divide by, for running.
        returns (`Tensor`, *optional*): `(P, G, T)` per-token returns. The baseline is then taken at each token
            position over the group, the scale still from `rewards`, and the result is `(P, G, T)`.

    Returns:
        `Tensor`: `(P, G)`, or `(P, G, T)` with `returns`.

    Raises:
        ValueError: unknown baseline or scale, or what it needs is missing.
    """
    differ = varies(rewards, tolerance)
    values = rewards.double()
    scored = ~values.isnan()
    centred = _centre(values, scored, baseline, lengths)
    divisor = _divisor(values, scored, centred, scale, ddof, eps, floor, tolerance, running_std)
    # A divisor of 0 says that there is no advantage (MaxRL with a mean <= 0, a std of 0 without eps).
    live = scored & differ & (divisor > 0)
    divisor = torch.where(divisor > 0, divisor, 1.0)
    if returns is not None:
        per_token = returns.double().masked_fill(~scored.unsqueeze(-1), torch.nan)
        centred = _centre(
            per_token, scored.unsqueeze(-1), baseline, None if lengths is None else lengths.unsqueeze(-1)
        )
        divisor, live = divisor.unsqueeze(-1), live.unsqueeze(-1)
    return torch.where(live, centred / divisor, 0.0).to(rewards.dtype)


def normalize_then_sum(
    components: Tensor,
    weights: Tensor,
    baseline: str = "mean",
    scale: str = "group",
    ddof: int = 1,
    eps: float = 1e-4,
    floor: float = 0.0,
    tolerance: float = 1e-6,
    lengths: Tensor | None = None,
) -> Tensor:
    """TRL's `multi_objective_aggregation="normalize_then_sum"` (GDPO): advantages of each reward function by itself,
    summed with their weights, then normalised over the batch.

    Args:
        components (`Tensor`): `(P, G, K)`, NaN where a reward function does not apply.
        weights (`Tensor`): `(K,)`. What has weight 0 is left out: an attempt that nothing else scored is unscored.
        scale (`str`, *optional*, defaults to `"group"`): group, mad or mean. TRL divides by the group's std whatever
            `scale_rewards` is, so here batch and none mean group too.

    Returns:
        `Tensor`: `(P, G)`. 0 for an attempt that nobody scored and for a group of which every component is tied.
    """
    components, weights = components[..., weights != 0], weights[weights != 0]
    if not len(weights):
        return torch.zeros(components.shape[:2], dtype=components.dtype)
    scale = "group" if scale in ("batch", "none") else scale
    parts = [
        compute(part.double(), baseline, scale, ddof, eps, floor, tolerance, lengths) for part in components.unbind(-1)
    ]
    weighted = torch.stack(parts, dim=-1) * weights.double()
    summed = weighted.sum(dim=-1)
    scored = ~components.isnan().all(dim=-1)
    varies = (weighted != 0).any(dim=-1).any(dim=-1, keepdim=True)
    over_batch = summed[scored]
    if len(over_batch) <= ddof or over_batch.max() - over_batch.min() <= tolerance:
        return torch.zeros_like(summed, dtype=components.dtype)
    divisor = max(over_batch.std(correction=ddof).item(), floor) + eps
    normalised = (summed - over_batch.mean()) / divisor if divisor > 0 else torch.zeros_like(summed)
    return torch.where(scored & varies, normalised, 0.0).to(components.dtype)


def compute_with_kl(
    rewards: Tensor,
    kl_to_go: Tensor,
    beta: float,
    per_token: bool,
    baseline: str = "mean",
    scale: str = "group",
    ddof: int = 1,
    eps: float = 1e-4,
    floor: float = 0.0,
    tolerance: float = 1e-6,
    lengths: Tensor | None = None,
    *,
    running_std: float | None = None,
) -> Tensor:
    """Advantages of reward - beta * KL: the KL in the reward, subtracted before the baseline.

    The KL needs no reward. Where [`compute`] gives 0 (a tied group, an attempt that nobody scored, a group mean <= 0
    under the scale mean) the advantage is that of -beta * KL alone, centred over all attempts of the group. A group
    whose rewards have no scale of their own (group, mad, mean) is divided by 1, and so is, under batch, a batch whose
    rewards are all alike.

    Args:
        rewards (`Tensor`): `(P, G)`, NaN for an attempt that nobody scored.
        kl_to_go (`Tensor`): `(P, G, T)`, [`trl_grpo_plus.kl.kl_to_go`] of each completion, in nats.
        beta (`float`): coefficient of the KL.
        per_token (`bool`): at each token the KL from there on; otherwise the whole completion's.
        baseline, scale, ddof, eps, floor, tolerance, lengths, running_std: as [`compute`]; scales are those of
            reward - beta * KL, `tolerance` is about the rewards.

    Returns:
        `Tensor`: `(P, G, T)` per token, otherwise `(P, G)`.
    """
    if not rewards.numel():
        return torch.zeros_like(kl_to_go if per_token else rewards, dtype=rewards.dtype)
    cost = beta * kl_to_go.double()
    values = rewards.double()
    scored = ~values.isnan()
    penalised = values - cost[..., 0]
    centred = _centre(penalised, scored, baseline, lengths)
    divisor = _divisor(penalised, scored, centred, scale, ddof, eps, floor, tolerance, running_std)
    teaches = varies(values, tolerance) & (divisor > 0)
    if scale in PER_GROUP:
        divisor = torch.where(teaches, divisor, 1.0)
    elif scale == "batch":
        divisor = torch.where(varies(values.view(1, -1), tolerance) & (divisor > 0), divisor, 1.0)
    cost, shaped = cost if per_token else cost[..., :1], (scored & teaches).unsqueeze(-1)
    scored, lengths = scored.unsqueeze(-1), None if lengths is None else lengths.unsqueeze(-1)
    with_reward = _centre(values.unsqueeze(-1) - cost, scored, baseline, lengths)
    alone = _centre(-cost, torch.ones_like(scored), baseline, lengths)
    found = (torch.where(shaped, with_reward, alone) / divisor.unsqueeze(-1)).to(rewards.dtype)
    return found if per_token else found.squeeze(-1)


def batch_std(rewards: Tensor, ddof: int = 1) -> float:
    """Std of all scored rewards, in float64; 0 where there are too few."""
    scored = rewards.double()[~rewards.isnan()]
    return scored.std(correction=ddof).item() if len(scored) > ddof else 0.0


def varies(rewards: Tensor, tolerance: float) -> Tensor:
    """(P, G) -> (P, 1), whether a group's rewards differ."""
    lowest, highest = extremes(rewards)
    return (highest - lowest > tolerance).unsqueeze(1)


def _centre(values: Tensor, scored: Tensor, baseline: str, lengths: Tensor | None) -> Tensor:
    """`values` minus the baseline over dim 1; the baseline ignores NaN."""
    filled = values.masked_fill(~scored, 0.0)
    count = scored.sum(dim=1, keepdim=True).clamp(min=1)
    mean = filled.sum(dim=1, keepdim=True) / count
    if baseline == "mean":
        return values - mean
    if baseline == "leave_one_out":
        # r_i - mean of the others, written so that it is exact and defined for one attempt.
        return (values - mean) * count / (count - 1).clamp(min=1)
    if baseline == "median":
        return values - _median(values, count)
    if baseline == "length_weighted":
        if lengths is None:
            raise ValueError("baseline='length_weighted' needs lengths, the completions' lengths in tokens.")
        weight = lengths.double().masked_fill(~scored, 0.0)
        # A group of which every token is masked has no lengths to weigh by.
        weight = torch.where(weight.sum(dim=1, keepdim=True) > 0, weight, scored.double())
        return values - (filled * weight).sum(dim=1, keepdim=True) / weight.sum(dim=1, keepdim=True).clamp(min=1)
    raise ValueError(f"baseline={baseline!r} is not one of 'mean', 'leave_one_out', 'median', 'length_weighted'.")


def _median(values: Tensor, count: Tensor) -> Tensor:
    """Median over dim 1 of the `count` entries that are not NaN (`nanquantile` stops at 16 million entries)."""
    ordered = values.sort(dim=1).values  # NaN last
    shape = (-1, 1, *values.shape[2:])
    low, high = ((count - 1) // 2).expand(shape), (count // 2).expand(shape)
    return (ordered.gather(1, low) + ordered.gather(1, high)) / 2


def _divisor(
    values: Tensor,
    scored: Tensor,
    centred: Tensor,
    scale: str,
    ddof: int,
    eps: float,
    floor: float,
    tolerance: float,
    running_std: float | None,
) -> Tensor:
    """What to divide by, `(P, 1)` or `(1, 1)`."""
    if scale == "none":
        return values.new_ones(1, 1)
    if scale == "mean":
        mean = values.nanmean(dim=1, keepdim=True)
        largest = values.masked_fill(~scored, 0.0).abs().amax(dim=1, keepdim=True)
        return torch.where(mean > 1e-6 * largest, mean, 0.0)  # rewards of both signs can cancel but for rounding
    if scale == "group":
        spread = _group_std(values, scored, ddof)
    elif scale == "batch":
        spread = values.new_full((1, 1), batch_std(values, ddof))
    elif scale == "mad":
        spread = _robust_std(values, scored, tolerance)
        # A group with an outlier among close rewards has a deviation of almost 0: keep |A| within G.
        furthest = centred.masked_fill(~scored, 0.0).abs().amax(dim=1, keepdim=True)
        spread = torch.maximum(spread, furthest / values.shape[1])
    elif scale == "running":
        if running_std is None:
            raise ValueError("scale='running' needs running_std, the std that the caller keeps.")
        spread = values.new_full((1, 1), running_std)
    else:
        raise ValueError(f"scale={scale!r} is not one of 'group', 'batch', 'none', 'mad', 'mean', 'running'.")
    return spread.clamp(min=floor) + eps


def _group_std(values: Tensor, scored: Tensor, ddof: int) -> Tensor:
    deviation = _centre(values, scored, "mean", None).masked_fill(~scored, 0.0)
    freedom = (scored.sum(dim=1, keepdim=True) - ddof).clamp(min=1)
    return (deviation.square().sum(dim=1, keepdim=True) / freedom).sqrt()


def _robust_std(values: Tensor, scored: Tensor, tolerance: float) -> Tensor:
    deviation = _centre(values, scored, "median", None).abs()
    median = _median(deviation, scored.sum(dim=1, keepdim=True).clamp(min=1))
    mean = deviation.nanmean(dim=1, keepdim=True)
    return torch.where(median > tolerance, MAD_TO_STD * median, MEAN_DEVIATION_TO_STD * mean)
