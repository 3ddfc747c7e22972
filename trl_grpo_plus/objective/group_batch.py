"""`GroupBatch`: the data that a baseline, a scale or an advantage function reads beside the rewards."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..curriculum.beliefs import Belief
from ..rollouts.steps import StepMarks


@dataclass(frozen=True)
class GroupBatch:
    """P groups of G attempts that are trained on, on the CPU and the same on every process.

    Args:
        mask (`Tensor`, *optional*): `(P, G, T)` bool, the tokens in the loss; T is the longest completion's length.
            A run gathers it for advantage functions and for a baseline at a path.
        verdicts (`tuple[str, ...]`): one per group, from [`trl_grpo_plus.rollouts.groups.judge`].
        step (`int`, *optional*, defaults to `0`): optimizer steps done.
        seed (`str`, *optional*, defaults to `""`): the seed of [`generator`], different for each batch.
        row_indices (`tuple[int, ...]`, *optional*): the index of each group's row in the training set, in runs whose
            prompts are selected or remembered.
        beliefs (`tuple[Belief, ...]`): the estimates of the P prompts' rewards, made before the prompts were sampled:
            one, or under normalize_then_sum one per reward with a weight.
        entropies (`Tensor`, *optional*): `(P, G, T)` nats, the policy's entropy before each token at the sampling
            temperature, for an advantage function registered with `entropies=True`. 0 outside the mask.
        columns (`Mapping[str, Sequence]`): P values of each dataset column that the function names with
            [`~trl_grpo_plus.objective.baselines.reads_columns`].
        lengths (`Tensor`, *optional*): `(P, G)` tokens in the loss. By default the mask's sums. A baseline that gets
            values `(P, G, T)` gets lengths `(P, G, 1)`.
        running_std (`float`, *optional*): the moving average of the rewards' std, for the scale running.
        teaching (`Tensor`, *optional*): `(P,)` bool, the groups that have an advantage. `None`: the groups whose
            rewards differ.
        skipped (`Tensor`, *optional*): `(M,)`, total rewards of attempts that are not trained on, but count in
            statistics over the batch; NaN for an unscored one.
        skipped_rewards (`Tensor`, *optional*): `(M / G, G, K)`, each reward of these attempts.
        marks (`Sequence[StepMarks]`): the scored steps of the P * G attempts, under `step_reward_credit`.
    """

    mask: Tensor | None = None
    verdicts: tuple[str, ...] = ()
    step: int = 0
    seed: str = ""
    row_indices: tuple[int, ...] | None = None
    beliefs: tuple[Belief, ...] = ()
    entropies: Tensor | None = None
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    lengths: Tensor | None = None
    running_std: float | None = None
    teaching: Tensor | None = None
    skipped: Tensor | None = None
    skipped_rewards: Tensor | None = None
    marks: Sequence[StepMarks] = ()

    def __post_init__(self) -> None:
        if self.lengths is None and self.mask is not None:
            object.__setattr__(self, "lengths", self.mask.sum(dim=-1))

    @property
    def belief(self) -> Belief | None:
        """The estimate of the P prompts' total reward; `None` in a run without beliefs."""
        return self.beliefs[0] if self.beliefs else None

    def with_skipped(self, values: Tensor) -> Tensor:
        """Return the rewards of all attempts that count in statistics over the batch, `(N + M,)`."""
        flat = values.flatten()
        return flat if self.skipped is None else torch.cat([flat, self.skipped.to(flat.dtype)])

    def generator(self) -> torch.Generator:
        """Make a generator for this batch, with the same draws on every process and after a resume."""
        seed = hashlib.blake2b(self.seed.encode(), digest_size=4).digest()  # torch uses 32 bits of a seed
        return torch.Generator().manual_seed(int.from_bytes(seed, "big"))

    def with_belief_mean(self, mean: Tensor) -> "GroupBatch":
        """Return the record with another mean in its first belief."""
        assert self.belief is not None
        return replace(self, beliefs=(replace(self.belief, mean=mean), *self.beliefs[1:]))

    def per_token(self) -> "GroupBatch":
        """Return the record for values (P, G, T)."""
        batch = replace(self, lengths=None if self.lengths is None else self.lengths.unsqueeze(-1))
        return batch if self.belief is None else batch.with_belief_mean(self.belief.mean.view(-1, 1, 1))

    def of_zero_rewards(self) -> "GroupBatch":
        """Return the record for rewards that are all 0."""
        return self if self.belief is None else self.with_belief_mean(torch.zeros_like(self.belief.mean))

    def less_cost(self, cost: Tensor, scored: Tensor) -> "GroupBatch":
        """Shift the prior mean by the mean cost of the group's other attempts."""
        if self.belief is None:
            return self
        paid = cost.masked_fill(~scored, 0.0)
        others = scored.sum(dim=1, keepdim=True) - scored.long()
        mean = self.belief.mean.view(-1, *[1] * (cost.dim() - 1))
        return self.with_belief_mean(mean - (paid.sum(dim=1, keepdim=True) - paid) / others.clamp(min=1))
