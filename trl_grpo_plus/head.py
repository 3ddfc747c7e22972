"""A prior that prompts share: the mean reward that the policy's state at the end of a prompt lets one expect.

Pure: states come in, predictions go out. [`trl_grpo_plus.states`] reads them off the model.

Source: a linear value head on the prompt, arXiv 2510.01135, trained there by gradient and solved here in closed form.
"""

import math
from collections import deque
from collections.abc import Sequence
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

    Features are centred and each one is scaled, to a mean squared length of 1 in all, over what is remembered and in
    closed form at each batch. So a penalty means the same whatever the model's width and the norm of its states, and
    the few dimensions that are hundreds of times larger than others in a language model do not drown them: a direction
    that holds a share s of the variance is trusted by n s / (n s + penalty) once n prompts are remembered. The mean
    reward is not penalised, so a ridge that finds nothing predicts it.

    How much penalty is best depends on how well the states tell prompts apart: 0.3 where most of a reward is chance,
    0.003 to 0.00003 in real training on sums, with states of 64, 128 and 256 dimensions. So there are several side by
    side, and the one with the least error in predictions a batch ahead is in use.

    Args:
        seed (`int`): of the random projection above `max_features`.
        low, high (`float`, *optional*, defaults to 0.0 and 1.0):
            The reward's range, widened by mean rewards that are outside, as for beliefs.
        penalties (`Sequence[float]`, *optional*, defaults to 0.3, 0.03, 3e-3, 3e-4 and 3e-5):
            Side by side, in prompts, see above. The first one is in use until there are predictions to compare.
        decay (`float`, *optional*, defaults to 0.97): what a batch is worth a batch later, half after 23.
        max_features (`int`, *optional*, defaults to 256):
            Wider states are projected to so many dimensions, at random, each first divided by its standard deviation
            in the first batch.

    Raises:
        Refusal: an option out of its bounds.
    """

    def __init__(
        self,
        seed: int,
        low: float = 0.0,
        high: float = 1.0,
        penalties: Sequence[float] = (0.3, 0.03, 3e-3, 3e-4, 3e-5),
        decay: float = 0.97,
        max_features: int = 256,
    ):
        for penalty in penalties:
            Number(above=0).check("penalty", penalty)
        Number(above=0, at_most=1).check("decay", decay)
        Number(at_least=1, integer=True).check("max_features", max_features)
        if not low < high:
            raise Refusal(f"low={low!r} must be below high={high!r}: they are the ends of the reward's range.")
        self._seed, self._low, self._high = seed, float(low), float(high)
        self._decay, self._max_features = decay, max_features
        self._penalties = torch.tensor([*penalties], dtype=torch.float64)
        self._width = 0  # of the features, known when there are some
        self._scale = torch.empty(0)  # (width,), where they are projected
        self._projection = torch.empty(0)  # (width, K)
        self._count = 0.0  # prompts remembered, with their weights
        self._mean = torch.empty(0)  # (K + 1,), of the features and the reward
        self._scatter = torch.empty(0)  # (K + 1, K + 1), about the mean
        self._slopes = torch.empty(0)  # (K, penalties)
        self._errors = torch.zeros_like(self._penalties)  # squared, of predictions a batch ahead; forgotten likewise
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
        self._check_width(features)
        if not self._count:
            return torch.full((len(features),), (self._low + self._high) / 2, dtype=torch.float64)
        return self._predict(self._projected(features))[:, self._errors.argmin()]

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
        self._check_width(features)
        rewards = _plain(rewards)
        weights = torch.ones_like(rewards) if weights is None else _plain(weights)
        noise = torch.zeros_like(rewards) if noise is None else _plain(noise)
        rows = _plain(features)
        kept = rewards.isfinite() & weights.isfinite() & (weights > 0) & noise.isfinite() & rows.isfinite().all(dim=1)
        rows, rewards, weights, noise = rows[kept], rewards[kept], weights[kept], noise[kept]
        if not len(rows):
            return
        if not self._count:
            self._begin(rows)
        rows = self._projected(rows)
        if self._count:
            self._judge(rows, rewards, weights, noise)
        self._low, self._high = min(self._low, float(rewards.min())), max(self._high, float(rewards.max()))
        self._remember(torch.cat([rows, rewards[:, None]], dim=1), weights)
        self._solve()

    def state_dict(self) -> dict[str, Any]:
        """What was learned; tensors and plain numbers. The projection is made again from the seed."""
        return {
            "seed": self._seed,
            "width": self._width,
            "range": [self._low, self._high],
            "scale": self._scale.clone(),
            "count": self._count,
            "mean": self._mean.clone(),
            "scatter": self._scatter.clone(),
            "errors": self._errors.clone(),
            "window": [list(batch) for batch in self._window],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` stood."""
        self._seed, self._width = state["seed"], state["width"]
        self._low, self._high = state["range"]
        self._scale, self._errors = state["scale"].clone(), state["errors"].clone()
        self._count, self._mean, self._scatter = state["count"], state["mean"].clone(), state["scatter"].clone()
        self._window = deque((list(batch) for batch in state["window"]), maxlen=WINDOW)
        if self._count:
            self._project()
            self._solve()

    def _predict(self, rows: Tensor) -> Tensor:
        """`(P, K) -> (P, penalties)`."""
        margin = MARGIN * (self._high - self._low)
        above = ((rows - self._mean[:-1]) @ self._slopes).nan_to_num(0.0, 0.0, 0.0)
        return (self._mean[-1] + above).clamp(self._low + margin, self._high - margin)

    def _check_width(self, features: Tensor) -> None:
        if self._width and features.shape[1] != self._width:
            raise Refusal(
                f"The states have {features.shape[1]} dimensions, those learned from had {self._width}. Resume with "
                "the same model, or start a new run from the checkpoint's weights."
            )

    def _begin(self, rows: Tensor) -> None:
        self._width = rows.shape[1]
        if self._width > self._max_features:
            spread = rows.std(dim=0, correction=0)
            # Of dimensions that hardly differ in so few rows too little is known to make much of them.
            self._scale = spread.clamp(min=max(1e-3 * spread.median().item(), 1e-9))
        self._project()

    def _project(self) -> None:
        if len(self._scale):
            generator = torch.Generator().manual_seed(self._seed)
            shape = (self._width, self._max_features)
            normal = torch.randn(shape, generator=generator, dtype=torch.float64)
            self._projection = normal / self._scale[:, None] / math.sqrt(self._width)

    def _projected(self, features: Tensor) -> Tensor:
        """`(P, width) -> (P, K)`."""
        return _plain(features) @ self._projection if len(self._scale) else _plain(features)

    def _judge(self, rows: Tensor, rewards: Tensor, weights: Tensor, noise: Tensor) -> None:
        """What the ridge gains on the mean alone, for the skill; and which penalty does best."""
        alone = (rewards - self._mean[-1]).square()
        errors = (rewards[:, None] - self._predict(rows)).square()
        gain = alone - errors[:, self._errors.argmin()]  # the one that was in use
        self._errors = self._decay * self._errors + weights @ errors
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
        variance = scatter.diagonal() / self._count
        scale = variance.clamp(min=max(1e-9 * variance.mean().item(), torch.finfo(torch.float64).tiny)).sqrt()
        scale *= (variance / scale.square()).sum().clamp(min=1).sqrt()
        penalties = self._penalties[:, None, None] * torch.eye(size, dtype=torch.float64)
        matrices = scatter / torch.outer(scale, scale) + penalties
        target = (with_reward / scale)[:, None]
        factors, failed = torch.linalg.cholesky_ex(matrices)
        if failed.any():  # penalties below rounding
            slopes = torch.linalg.pinv(matrices, hermitian=True) @ target
        else:
            slopes = torch.cholesky_solve(target.expand(len(factors), -1, -1), factors)
        self._slopes = slopes[:, :, 0].T / scale[:, None]


def _plain(values: Tensor) -> Tensor:
    return values.detach().to("cpu", torch.float64)
