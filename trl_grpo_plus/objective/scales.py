"""Scales, which divide a reward minus its baseline. One scale is one entry of [`SCALES`].

| scale | divisor | over |
|---|---|---|
| group | std | the group |
| batch | std | the batch |
| none | 1 (Dr. GRPO) | |
| mad | 1.4826 x median abs(r - median); where that is 0, 1.2533 x mean abs(r - median) | the group |
| mean | mean; the advantage is 0 where it is <= 0 (MaxRL; takes no floor and no eps) | the group |
| running | a moving average of the std, kept by the caller | the run |
| prior | the predicted std of one reward, from the belief before sampling | the prompt |

Under mad, 1.4826 and 1.2533 make both values estimate the std of a normal distribution. The divisor is at least
max abs(r - baseline) / the number of scored attempts.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..utils.validation import ConfigError
from .baselines import count_of, less_mean, less_median, median_of
from .group_batch import GroupBatch


MAD_TO_STD = 1.4826
MEAN_DEVIATION_TO_STD = 1.2533


def batch_std(rewards: Tensor, ddof: int = 1) -> float:
    """Return the std of all scored rewards, in float64; 0 if there are too few."""
    scored = rewards.double()[~rewards.isnan()]
    return scored.std(correction=ddof).item() if len(scored) > ddof else 0.0


@dataclass(frozen=True)
class Scored:
    """A scale's arguments: P groups of G attempts, in float64.

    ddof and tolerance are those of [`~trl_grpo_plus.objective.advantages.Normalization`].
    """

    values: Tensor  # (P, G), NaN for an unscored attempt
    scored: Tensor  # (P, G) bool
    centred: Tensor  # (P, G), values minus the baseline
    batch: GroupBatch
    ddof: int
    tolerance: float


@dataclass(frozen=True)
class Scale:
    """The divisor of centred rewards.

    Args:
        spread (`Callable`): rewards -> `(P, 1)` or `(1, 1)`.
        over (`str`): the unit that shares one scale: a "group" (then |A| <= G must hold), the "batch", the "run" (the
            caller keeps the scale, and [`normalize_then_sum`] cannot use it), the "prompt" (from its belief) or
            "nothing".
        as_it_is (`bool`, *optional*, defaults to `False`): apply no floor and no eps.
        without_kl (`bool`, *optional*, defaults to `False`): leave a KL in the reward out of it.
    """

    spread: Callable[[Scored], Tensor]
    over: str
    as_it_is: bool = False
    without_kl: bool = False


def _std(rewards: Scored) -> Tensor:
    deviation = less_mean(rewards.values, rewards.scored).masked_fill(~rewards.scored, 0.0)
    freedom = (rewards.scored.sum(dim=1, keepdim=True) - rewards.ddof).clamp(min=1)
    return (deviation.square().sum(dim=1, keepdim=True) / freedom).sqrt()


def _robust_std(rewards: Scored) -> Tensor:
    deviation = less_median(rewards.values, rewards.scored).abs()
    median, mean = median_of(deviation, count_of(rewards.scored)), deviation.nanmean(dim=1, keepdim=True)
    spread = torch.where(median > rewards.tolerance, MAD_TO_STD * median, MEAN_DEVIATION_TO_STD * mean)
    # An outlier among close rewards has a deviation of almost 0: keep |A| within the number of scored attempts.
    furthest = rewards.centred.masked_fill(~rewards.scored, 0.0).abs().amax(dim=1, keepdim=True)
    return torch.maximum(spread, furthest / count_of(rewards.scored))


def _positive_mean(rewards: Scored) -> Tensor:
    mean = rewards.values.nanmean(dim=1, keepdim=True)
    largest = rewards.values.masked_fill(~rewards.scored, 0.0).abs().amax(dim=1, keepdim=True)
    return torch.where(mean > 1e-6 * largest, mean, 0.0)  # rewards of both signs may cancel up to rounding


def _batch_std(rewards: Scored) -> Tensor:
    return rewards.values.new_full((1, 1), batch_std(rewards.batch.with_skipped(rewards.values), rewards.ddof))


def _running_std(rewards: Scored) -> Tensor:
    if rewards.batch.running_std is None:
        raise ConfigError("scale='running' needs the batch's running_std, the std that the caller keeps.")
    return rewards.values.new_full((1, 1), rewards.batch.running_std)


def _believed_std(rewards: Scored) -> Tensor:
    if rewards.batch.belief is None:
        raise ConfigError("scale='prior' needs the batch's beliefs, the estimates of the prompts' rewards.")
    return rewards.batch.belief.variance.sqrt().unsqueeze(1)


# To add a scale, write a function and an entry. The configuration's choices and refusals follow.
SCALES: dict[str, Scale] = {
    "group": Scale(_std, over="group"),
    "batch": Scale(_batch_std, over="batch"),
    "none": Scale(lambda rewards: rewards.values.new_ones(1, 1), over="nothing", as_it_is=True),
    "mad": Scale(_robust_std, over="group"),
    # MaxRL divides by the success rate. A KL would bring the divisor near 0, or below.
    "mean": Scale(_positive_mean, over="group", as_it_is=True, without_kl=True),
    "running": Scale(_running_std, over="run"),
    "prior": Scale(_believed_std, over="prompt"),
}


TRL_SCALES = ("group", "batch", "none")
