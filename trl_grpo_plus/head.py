"""A prior that prompts share: the mean reward that the policy's state at the end of a prompt lets one expect.

Pure: states come in, predictions go out. [`trl_grpo_plus.states`] reads them off the model.

Source: a linear value head on the prompt, arXiv 2510.01135, trained there by gradient and solved here in closed form.
"""

import math
from collections import deque
from typing import Any

import torch
from torch import Tensor

from .common.values import Number, Refusal


WINDOW = 20
"""Batches of which [`Ridge.skill`] is measured."""
MARGIN = 0.02
"""Of the reward's range, that a prediction keeps from its ends: no prompt is solved or hopeless by its looks alone."""


class Ridge:
    """Online ridge regression from states to mean rewards, which forgets: float64 on the CPU, equal on every rank.

    Features are centred and scaled to a mean squared length of 1 over what is remembered, in closed form at each
    batch. So the penalty counts prompts, whatever the model's width and the norm of its states: a direction that holds
    a share s of the features' variance is trusted by n s / (n s + penalty) once n prompts are remembered. The mean
    reward itself is not penalised, so a ridge that finds nothing predicts it.

    Args:
        seed (`int`): of the random projection above `max_features`.
        low, high (`float`, *optional*, defaults to 0.0 and 1.0): the reward's range.
        penalty (`float`, *optional*, defaults to 10.0): in prompts, see above.
        decay (`float`, *optional*, defaults to 0.97): what a batch is worth a batch later, half after 23.
        max_features (`int`, *optional*, defaults to 256): wider states are projected to so many dimensions.

    Raises:
        Refusal: an option out of its bounds.
    """

    def __init__(
        self,
        seed: int,
        low: float = 0.0,
        high: float = 1.0,
        penalty: float = 10.0,
        decay: float = 0.97,
        max_features: int = 256,
    ):
        Number(above=0).check("penalty", penalty)
        Number(above=0, at_most=1).check("decay", decay)
        Number(at_least=1, integer=True).check("max_features", max_features)
        if not low < high:
            raise Refusal(f"low={low!r} must be below high={high!r}: they are the ends of the reward's range.")
        self._seed, self._low, self._high = seed, float(low), float(high)
        self._penalty, self._decay, self._max_features = penalty, decay, max_features
        self._width = 0  # of the features, known when there are some
        self._projection: Tensor | None = None
        self._count = 0.0  # prompts remembered, with their weights
        self._mean = torch.empty(0)  # (K + 1,), of the features and the reward
        self._scatter = torch.empty(0)  # (K + 1, K + 1), about the mean
        self._slope = torch.empty(0)  # (K,)
        self._window: deque[list[float]] = deque(maxlen=WINDOW)

    @property
    def skill(self) -> float:
        """Share of the variance between prompts that predictions made a batch ahead explain, in [0, 1], over the last
        [`WINDOW`] batches: of the squared error of the mean alone, less the noise of the mean rewards, what the ridge
        takes away, less its own standard error. 0 where it predicts nothing; its predictions are then to be ignored.
        """
        if not self._window:
            return 0.0
        count, gain, squared_gain, variance = (sum(column) for column in zip(*self._window, strict=True))
        mean_gain = gain / count
        error = math.sqrt(max(squared_gain / count - mean_gain**2, 0.0) / count)
        # Where prompts do not differ there is nothing to explain, and the quotient is of two noises.
        least = 1e-3 * (self._high - self._low) ** 2
        return min(max((mean_gain - error) / max(variance / count, least), 0.0), 1.0)

    def predict(self, features: Tensor) -> Tensor:
        """The mean reward of attempts at each prompt, `(P, width) -> (P,)`, [`MARGIN`] within its range; the middle of
        the range before anything was learned, the mean reward for a row that is not finite."""
        return self._predict(self._projected(features))

    def learn(
        self, features: Tensor, rewards: Tensor, weights: Tensor | None = None, noise: Tensor | None = None
    ) -> None:
        """Learn a batch, after what it would have been predicted as has counted for the skill. Rows in which anything
        is not finite are left out.

        Args:
            features (`Tensor`): `(P, width)`.
            rewards (`Tensor`): `(P,)`, the mean of the attempts at each prompt.
            weights (`Tensor`, *optional*): `(P,)`, what each prompt counts, above 0. Defaults to 1.
            noise (`Tensor`, *optional*): `(P,)`, how far each mean is from the truth by chance, squared: the unbiased
                variance of its attempts over their number. Defaults to 0, which understates the skill.
        """
        rewards = _plain(rewards)
        weights = torch.ones_like(rewards) if weights is None else _plain(weights)
        noise = torch.zeros_like(rewards) if noise is None else _plain(noise)
        rows = self._projected(features)
        kept = rewards.isfinite() & weights.isfinite() & (weights > 0) & noise.isfinite() & rows.isfinite().all(dim=1)
        rows, rewards, weights, noise = rows[kept], rewards[kept], weights[kept], noise[kept]
        if not len(rows):
            return
        if self._count:
            self._judge(rows, rewards, weights, noise)
        self._remember(torch.cat([rows, rewards[:, None]], dim=1), weights)
        self._solve()

    def state_dict(self) -> dict[str, Any]:
        """What was learned; tensors and plain numbers. The projection is made again from the seed."""
        return {
            "seed": self._seed,
            "width": self._width,
            "count": self._count,
            "mean": self._mean.clone(),
            "scatter": self._scatter.clone(),
            "window": [list(batch) for batch in self._window],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` stood."""
        self._seed, self._width, self._projection = state["seed"], state["width"], None
        self._count, self._mean, self._scatter = state["count"], state["mean"].clone(), state["scatter"].clone()
        self._window = deque((list(batch) for batch in state["window"]), maxlen=WINDOW)
        if self._count:
            self._solve()

    def _predict(self, rows: Tensor) -> Tensor:
        margin = MARGIN * (self._high - self._low)
        if not self._count:
            return torch.full((len(rows),), (self._low + self._high) / 2, dtype=torch.float64)
        above = ((rows - self._mean[:-1]) @ self._slope).nan_to_num(0.0, 0.0, 0.0)
        return (self._mean[-1] + above).clamp(self._low + margin, self._high - margin)

    def _projected(self, features: Tensor) -> Tensor:
        """`(P, width) -> (P, K)`."""
        width = features.shape[1]
        if self._width and width != self._width:
            raise Refusal(
                f"The states have {width} dimensions, those learned from had {self._width}. Resume with the same "
                "model, or start a new run from the checkpoint's weights."
            )
        self._width = width
        features = _plain(features)
        if width <= self._max_features:
            return features
        if self._projection is None:
            generator = torch.Generator().manual_seed(self._seed)
            shape = (width, self._max_features)
            self._projection = torch.randn(shape, generator=generator, dtype=torch.float64) / math.sqrt(shape[1])
        return features @ self._projection

    def _judge(self, rows: Tensor, rewards: Tensor, weights: Tensor, noise: Tensor) -> None:
        """What the ridge would have gained on the mean, for the skill."""
        alone = (rewards - self._mean[-1]).square()
        gain = alone - (rewards - self._predict(rows)).square()
        sums = [torch.ones_like(gain), gain, gain.square(), alone - noise]
        self._window.append([(weights * values).sum().item() for values in sums])

    def _remember(self, rows: Tensor, weights: Tensor) -> None:
        """Fold `(P, K + 1)` into the moments: about the means, so that large means cost no digits."""
        count = weights.sum().item()
        mean = weights @ rows / count
        centred = rows - mean
        scatter = (centred * weights[:, None]).T @ centred
        if self._count:
            before = self._decay * self._count
            apart = mean - self._mean
            scatter += self._decay * self._scatter + torch.outer(apart, apart) * (before * count / (before + count))
            mean = self._mean + apart * (count / (before + count))
            count += before
        self._count, self._mean, self._scatter = count, mean, (scatter + scatter.T) / 2

    def _solve(self) -> None:
        size = len(self._mean) - 1
        scatter, with_reward = self._scatter[:size, :size], self._scatter[:size, size]
        # The mean squared length of the features; where they do not differ, 0, and the slope is 0 by `with_reward`.
        squared = (scatter.trace() / self._count).clamp(min=torch.finfo(torch.float64).tiny)
        matrix = scatter / squared + self._penalty * torch.eye(size, dtype=torch.float64)
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if failed:  # a penalty so small that rounding is not below it
            self._slope = torch.linalg.pinv(matrix, hermitian=True) @ with_reward / squared
        else:
            self._slope = torch.cholesky_solve(with_reward[:, None], factor)[:, 0] / squared


def _plain(values: Tensor) -> Tensor:
    return values.detach().to("cpu", torch.float64)
