"""The head: a prior that prompts share, predicted from the policy's state at the end of a prompt.

The head predicts the mean reward of a prompt's attempts, and the variance of their rewards.

The module only computes: states come in, predictions go out. [`trl_grpo_plus.curriculum.prompt_states`] reads the
states off the model.

Source: a linear value head on the prompt, arXiv 2510.01135. The paper trains the head by gradient; this module solves
the regression in closed form.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..utils.validation import ConfigError, Number
from .reward_range import RewardRange


WINDOW = 20  # batches over which `Ridge.skill` is measured
# The skill is halved when this many prompts were predicted in the window: a batch may hold a single known prompt.
FEW_PROMPTS = 16.0
# A prediction keeps this share of the reward's range from its ends: no prompt looks solved or hopeless by itself.
MARGIN = 0.02


class Ridge:
    """Online ridge regression from states to rewards, in which old batches decay.

    The regression runs in float64 on the CPU, and is the same on every rank.

    A state has K features. Each feature is centred and scaled, so that the feature vectors have a mean squared length
    of 1. Centre and scale come from the remembered prompts, in closed form at each batch. Therefore a penalty means
    the same whatever the model's width and the norm of its states. In a language model a few dimensions are hundreds
    of times larger than the others; with the scaling they do not drown the others. Along a direction with the share s
    of the variance, the penalty shrinks the slope by the factor n s / (n s + penalty), where n prompts are remembered.
    The mean reward is not penalised, so a ridge that finds nothing predicts the mean reward. A second regression
    predicts the variance of a prompt's rewards, because the mean does not determine the variance of rewards that lie
    between the ends of their range.

    The best penalty depends on how well the states tell prompts apart: 0.3 where most of a reward is chance, 0.003 to
    0.00003 in real training on sums, with states of 64, 128 and 256 dimensions. So several penalties are kept side by
    side. The penalty in use is the one with the least error in predictions a batch ahead.

    Args:
        low, high (`float`, *optional*, defaults to 0.0 and 1.0):
            The reward's range. Rewards widen this range as they widen the range of beliefs
            ([`trl_grpo_plus.curriculum.reward_range`]).
        penalties (`Sequence[float]`, *optional*, defaults to 0.3, 0.03, 3e-3, 3e-4 and 3e-5):
            The penalties kept side by side, in prompts. The first penalty is in use until there are predictions to
            compare.
        decay (`float`, *optional*, defaults to 0.97):
            The factor by which the weight of a batch shrinks with each later batch: half is left after 23 batches.

    Raises:
        ConfigError: an option is out of its bounds.
    """

    def __init__(
        self,
        low: float = 0.0,
        high: float = 1.0,
        penalties: Sequence[float] = (0.3, 0.03, 3e-3, 3e-4, 3e-5),
        decay: float = 0.97,
    ):
        for penalty in penalties:
            Number(above=0).check("penalty", penalty)
        Number(above=0, at_most=1).check("decay", decay)
        if not low < high:
            raise ConfigError(f"low={low!r} must be below high={high!r}: they are the ends of the reward's range.")
        self._range, self._decay = RewardRange(low, high), decay
        self._penalties = torch.tensor([*penalties], dtype=torch.float64)
        self._count = 0.0  # prompts remembered, with their weights
        self._mean = torch.empty(0)  # (K + 2,), of the features, the reward and its variance
        self._scatter = torch.empty(0)  # (K + 2, K + 2), about the mean
        self._slopes = torch.empty(0)  # (2, K, penalties), of the reward and its variance
        # Squared errors of predictions made a batch ahead, with the same decay.
        self._errors = torch.zeros(2, len(penalties), dtype=torch.float64)
        self._window: deque[list[float]] = deque(maxlen=WINDOW)

    @property
    def skill(self) -> float:
        """Share of the variance between prompts that predictions made a batch ahead explain, in [0, 1].

        Over the prompts of the last [`WINDOW`] batches,

            gain  = squared error of predicting the mean of all prompts - squared error of the ridge
            skill = (gain - its standard error) / (squared error of the mean - sampling noise of the mean rewards)

        The skill is pulled to 0 while few prompts were predicted. With a skill of 0 the ridge predicts nothing, and
        callers must ignore its predictions.
        """
        if not self._window:
            return 0.0
        count, gain, squared_gain, variance = (sum(column) for column in zip(*self._window, strict=True))
        mean_gain = gain / count
        error = math.sqrt(max(squared_gain / count - mean_gain**2, 0.0) / count)
        # If prompts do not differ, there is nothing to explain and the quotient is noise over noise.
        least = 1e-3 * (self._range.high - self._range.low) ** 2
        return min(max((mean_gain - error) / max(variance / count, least), 0.0), 1.0) * count / (count + FEW_PROMPTS)

    def predict(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the expected mean and the expected variance of the rewards of each prompt's attempts, both `(P,)`.

        `features` is `(P, K)`. The mean keeps a distance of [`MARGIN`] from the ends of the range. Before
        the first batch it is the middle of the range. For a row with a feature that is not finite it is the mean of
        all prompts. The variance is at most the largest that this mean allows.
        """
        low, high = self._range.low, self._range.high
        if not self._count:
            means = torch.full((len(features),), (low + high) / 2, dtype=torch.float64)
            return means, (means - low) * (high - means)
        rows = _plain(features)
        means, variances = (self._predict(rows, of)[:, self._errors[of].argmin()] for of in (0, 1))
        return means, torch.minimum(variances, (means - low) * (high - means))

    def learn(self, features: Tensor, rewards: Tensor) -> None:
        """Learn from a batch, after the predictions for this batch have counted for the skill.

        Rows with a feature that is not finite are left out. Without features nothing is learned.

        Args:
            features (`Tensor`): `(P, K)`.
            rewards (`Tensor`): `(P, G)`, of the attempts at each prompt, NaN where nobody scored. A prompt with one
                score says nothing about the variance within a prompt, so it counts with the mean variance.
        """
        rewards, rows = _plain(rewards), _plain(features)
        scored = rewards.isfinite()
        rewards = self._range.observe(rewards.masked_fill(~scored, torch.nan))
        kept = scored.any(dim=1) & rows.isfinite().all(dim=1)
        rows, rewards, scored = rows[kept], rewards[kept], scored[kept]
        if not rows.numel():
            return
        count, means = scored.sum(dim=1), rewards.nanmean(dim=1)
        within = (rewards - means[:, None]).square().nansum(dim=1) / (count - 1).clamp(min=1)
        several = count > 1
        usual = within[several].mean() if several.any() else self._mean[-1] if self._count else torch.tensor(0.0)
        targets = torch.stack([means, torch.where(several, within, usual)], dim=1)
        if self._count:
            self._judge(rows, targets, within / count)
        self._remember(torch.cat([rows, targets], dim=1))
        self._solve()

    def state_dict(self) -> dict[str, Any]:
        """Return the learned state as tensors and plain numbers."""
        return {
            "range": self._range.state_dict(),
            "count": self._count,
            "mean": self._mean.clone(),
            "scatter": self._scatter.clone(),
            "errors": self._errors.clone(),
            "window": [list(batch) for batch in self._window],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the saved `state`."""
        self._range.load_state_dict(state["range"])
        self._errors = state["errors"].clone()
        self._count, self._mean, self._scatter = state["count"], state["mean"].clone(), state["scatter"].clone()
        self._window = deque((list(batch) for batch in state["window"]), maxlen=WINDOW)
        if self._count:
            self._solve()

    def _predict(self, rows: Tensor, of: int) -> Tensor:
        """Predict the mean (`of` 0) or the variance (`of` 1) with each penalty: `(P, K) -> (P, penalties)`."""
        low, high = self._range.low, self._range.high
        margin = MARGIN * (high - low)
        least, most = (0.0, math.inf) if of else (low + margin, high - margin)
        above = ((rows - self._mean[:-2]) @ self._slopes[of]).nan_to_num(0.0, 0.0, 0.0)
        return (self._mean[of - 2] + above).clamp(least, most)

    def _judge(self, rows: Tensor, targets: Tensor, noise: Tensor) -> None:
        """Measure the ridge's gain over the mean alone, for the skill, and update the errors of the penalties."""
        errors = torch.stack([(targets[:, of, None] - self._predict(rows, of)).square() for of in (0, 1)])
        alone = (targets[:, 0] - self._mean[-2]).square()
        gain = alone - errors[0, :, self._errors[0].argmin()]  # of the penalty that was in use
        self._errors = self._decay * self._errors + errors.sum(dim=1)
        sums = [torch.ones_like(gain), gain, gain.square(), alone - noise]
        self._window.append([values.sum().item() for values in sums])

    def _remember(self, rows: Tensor) -> None:
        """Fold rows `(P, K + 2)` into the moments, which are about the means so that large means cost no digits."""
        count = float(len(rows))
        mean = rows.mean(dim=0)
        centred = rows - mean
        scatter = centred.T @ centred
        if self._count:
            before = self._decay * self._count
            apart = mean - self._mean
            scatter += self._decay * self._scatter + torch.outer(apart, apart) * (before * count / (before + count))
            mean = self._mean + apart * (count / (before + count))
            count += before
        self._count, self._mean, self._scatter = count, mean, (scatter + scatter.T) / 2

    def _solve(self) -> None:
        size = len(self._mean) - 2
        scatter, with_targets = self._scatter[:size, :size], self._scatter[:size, size:]
        variance = scatter.diagonal() / self._count
        scale = variance.clamp(min=max(1e-9 * variance.mean().item(), torch.finfo(torch.float64).tiny)).sqrt()
        scale *= (variance / scale.square()).sum().clamp(min=1).sqrt()
        penalties = self._penalties[:, None, None] * torch.eye(size, dtype=torch.float64)
        matrices = scatter / torch.outer(scale, scale) + penalties
        targets = with_targets / scale[:, None]
        factors, failed = torch.linalg.cholesky_ex(matrices)
        if failed.any():  # penalties below rounding
            slopes = torch.linalg.pinv(matrices, hermitian=True) @ targets
        else:
            slopes = torch.cholesky_solve(targets.expand(len(factors), -1, -1), factors)
        self._slopes = slopes.permute(2, 1, 0) / scale[:, None]


def _plain(values: Tensor) -> Tensor:
    return values.detach().to("cpu", torch.float64)
