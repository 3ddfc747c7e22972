"""The advantages of a batch, computed from its rewards, lengths and KL by a configuration."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..rollouts.groups import totals
from ..rollouts.steps import by_group
from ..utils.distributed import agreed
from . import scales
from .advantage_functions import by_path, estimator_of
from .advantages import Normalization, compute, compute_with_kl, normalize_then_sum, varies
from .baselines import BASELINES, READ_LENGTHS, baseline_of, columns_of
from .group_batch import GroupBatch
from .options import AdvantageOptions
from .process_rewards import of_steps


# Minimum scale under the baseline belief, as a fraction of the reward range. It bounds the advantage where the
# predicted variance is near 0.
BELIEF_FLOOR = 0.02**0.5


class Credit:
    """Computes the advantages of one run's batches, and keeps the running std between them.

    Args:
        config ([`GRPOPlusConfig`]): configuration of the run.

    Attributes:
        estimator ([`~trl_grpo_plus.objective.advantage_functions.AdvantageEstimator`], *optional*): replaces baseline
            and scale.
        columns (`tuple[str, ...]`): the dataset columns that its baseline or advantage function reads.
        running_variance (`float`, *optional*): moving average of the batch's variance, `None` before the first batch.

    Raises:
        ConfigError: a baseline or an advantage function does not exist, or takes other arguments.
    """

    def __init__(self, config: AdvantageOptions):
        floor = config.std_floor
        if config.advantage_baseline == "belief":
            floor = max(floor, BELIEF_FLOOR * (config.solved_reward - config.failed_reward))
        self._config = config
        self._normalization = Normalization(
            baseline=baseline_of(config.advantage_baseline),
            scale=config.scale_rewards,
            ddof=config.std_ddof,
            eps=config.std_eps,
            floor=floor,
            tolerance=config.zero_variance_tolerance,
        )
        self.estimator = estimator_of(config)
        self.columns = columns_of(self.estimator.variant.function if self.estimator else self._normalization.centre)
        self.running_variance: float | None = None

    def advantages(
        self,
        groups: tuple[int, int],
        rewards: Tensor,
        weights: Tensor,
        batch: GroupBatch,
        kl_to_go: Tensor | None = None,
        beta: float = 0.0,
    ) -> Tensor:
        """Compute the advantages of a batch, and update the running std.

        Tensors are gathered; filler may follow the N rows. Collective with an estimator or a user's baseline.

        Args:
            groups (`tuple[int, int]`): P live groups of G attempts, the first P * G = N rows.
            rewards (`Tensor`): `(N + filler, K)`, NaN where a reward does not apply.
            weights (`Tensor`): `(K,)`, 0 for a monitor.
            batch ([`~trl_grpo_plus.objective.group_batch.GroupBatch`]): the rest of the P groups. Its running std is
                filled in here.
            kl_to_go (`Tensor`, *optional*): `(N + filler, T)` nats from each token on, with the KL in the reward. The
                first column is enough under `kl_reward_form="sequence"`.
            beta (`float`, *optional*, defaults to `0.0`): coefficient of the KL.

        Returns:
            `Tensor`: on the CPU, `(N + filler,)`, 0 for filler. `(N + filler, T)` under
            `kl_reward_form="reward_to_go"`, under `step_reward_credit`, and for an estimator of tokens.
        """

        def live(rows: Tensor) -> Tensor:
            """Return the rows of the live groups, by group."""
            return rows[: math.prod(groups)].unflatten(0, groups).cpu()

        if self.estimator is None:
            to_go = None if kl_to_go is None else live(kl_to_go)
            make = partial(self._normalized, live(rewards), weights.cpu(), batch, to_go, beta)
            name = by_path(self._config.advantage_baseline)
            rule = f" advantage_baseline={name!r} must give the same result on every process."
            values = (make() if name in BASELINES else agreed(make, advice=rule)).flatten(0, 1)
        elif not math.prod(groups):
            values = rewards.new_zeros(0).cpu()
        else:
            values = self.estimator.advantages(live(rewards), weights.cpu(), batch).flatten(0, 1)
        if self._config.advantage_clip is not None:
            values = values.clamp(-self._config.advantage_clip, self._config.advantage_clip)
        return torch.cat([values, values.new_zeros(len(rewards) - len(values), *values.shape[1:])])

    @property
    def reads_mask(self) -> bool:
        """Whether the advantages may depend on the tokens' mask, which is not gathered otherwise."""
        return self.estimator is not None or self._config.advantage_baseline not in BASELINES

    @property
    def reads_lengths(self) -> bool:
        """Whether a named baseline depends on the completions' lengths. With the mask the lengths are known."""
        return self._config.advantage_baseline in READ_LENGTHS

    def _normalized(
        self, rewards: Tensor, weights: Tensor, batch: GroupBatch, kl_to_go: Tensor | None, beta: float
    ) -> Tensor:
        """Return advantages by a baseline and a scale, (P, G) or (P, G, T)."""
        config, normalization = self._config, self._normalization
        if batch.marks:
            return self._of_steps(rewards, weights, batch)
        if config.multi_objective_aggregation == "normalize_then_sum":
            floor = BELIEF_FLOOR if config.advantage_baseline == "belief" else 0.0
            return normalize_then_sum(rewards, weights, normalization, batch, floor)
        summed = totals(rewards, weights)
        everyones = batch.with_skipped(summed)
        if kl_to_go is None:
            return compute(summed, normalization, replace(batch, running_std=self.running_std(everyones)))
        alike = not everyones.numel() or not varies(everyones.view(1, -1), config.zero_variance_tolerance)
        penalised = batch.with_skipped(summed - beta * kl_to_go[..., 0])  # the KL of skipped attempts is not known
        batch = replace(batch, running_std=self.running_std(penalised, alike))
        per_token = config.kl_reward_form == "reward_to_go"
        return compute_with_kl(summed, kl_to_go, beta, per_token, normalization, batch)

    def _of_steps(self, rewards: Tensor, weights: Tensor, batch: GroupBatch) -> Tensor:
        """Return advantages (P, G, T): step rewards by their steps, the group's other rewards by their total."""
        size, flat, marks, normalization = rewards.shape[1], rewards.flatten(0, 1), batch.marks, self._normalization
        stepwise, rest = by_group(flat, marks[: len(flat)], size)
        whole = compute(totals(rest.view(rewards.shape), weights).double(), normalization, batch)
        values = whole.unsqueeze(-1).repeat(1, 1, max(mark.length for mark in marks))
        names = ("ddof", "eps", "scale", "floor", "tolerance")
        chosen = {name: getattr(normalization, name) for name in names}
        chosen["step_reward_credit"] = self._config.step_reward_credit
        for group, scored in enumerate(stepwise):
            lengths = [mark.length for mark in marks[group * size : (group + 1) * size]]
            for k, steps in scored.items():
                for attempt, of_tokens in enumerate(of_steps(steps, lengths, **chosen) if weights[k] else ()):
                    values[group, attempt, : len(of_tokens)] += weights[k] * of_tokens
        return values.to(rewards.dtype)

    def running_std(self, summed: Tensor, alike: bool = False) -> float | None:
        """Update and return the running std; `None` under another scale.

        A batch whose rewards are all `alike` does not update it: only its KL differs. A batch with fewer than two
        scored attempts does not either.
        """
        config = self._config
        if scales.SCALES[config.scale_rewards].over != "run":
            return None
        if alike or (~summed.isnan()).sum() < 2:
            return math.sqrt(self.running_variance or 1.0)
        variance = scales.batch_std(summed, config.std_ddof) ** 2
        if self.running_variance is not None:
            decay = config.running_std_decay
            variance = decay * self.running_variance + (1 - decay) * variance
        self.running_variance = variance
        return math.sqrt(variance)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"running_variance": self.running_variance}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of a checkpoint."""
        self.running_variance = state["running_variance"]
