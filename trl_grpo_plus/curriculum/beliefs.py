"""Beliefs: the estimated reward of each prompt before it is sampled again, from its past attempts decayed by age.

    own_H  = sum over past attempts of 0.5 ** (age / H) x (1, r, r^2)          age in generation batches
    n      = strength + own count
    mean   = (strength x m0 + own sum) / n
    E[r^2] = (strength x (m0^2 + v0) + own sum of squares) / n                 variance = E[r^2] - mean^2

m0 and v0 are the mean and variance of the prior that prompts share ([`SharedPrior`]). m0 is the running mean of all
rows or of the row's key, or a head's prediction. v0 is the variance that goes with m0. If rewards are only `low` or
`high`, this is a Beta posterior with a + b = n.

A prompt with many attempts of its own adds little to the shared mean: its group has the weight (strength / n)^2.
Otherwise the prompts that are chosen often would decide the mean.

Several half-lives are kept side by side. The one in use, H, is the one whose beliefs best predicted the group means
that came next.

Sources: MoPPS (arXiv 2507.04632) decays counts towards its prior once a step, because the policy moves. SPO (arXiv
2509.13232) makes a baseline of decayed counts, without the attempts of the present step. It decays them by the
policy's drift. Half-lives side by side and `skill` are this project's own.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..utils.dataset_rows import Codes, encoded
from ..utils.validation import ConfigError, Number
from .reward_range import RewardRange
from .row_history import RowHistory
from .row_table import grown


KEEP_WINDOW = 0.95  # decay of skill and calibration a batch: about the last 20 batches count
KEEP_ERRORS = 0.98  # decay of the half-lives' errors a batch
FEW_GROUPS = 16.0  # skill is pulled to 0 with the weight of this number of groups
ENOUGH_GROUPS = 32.0  # groups of rows seen before, until a half-life is chosen
BINS = 10  # of the calibration


@dataclass(frozen=True)
class Belief:
    """The expected rewards of P prompts, fixed before their attempts are scored; float64.

    Args:
        mean (`Tensor`): `(P,)`, expected reward.
        variance (`Tensor`): `(P,)`, of one reward, >= 0; m(1-m) for rewards of 0 and 1.
        count (`Tensor`): `(P,)`, effective attempts that the belief rests on, with the prior's strength.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    @property
    def learnability(self) -> Tensor:
        """`(P,)`, expected variance within a prompt: variance x n / (n + 1), which is E[p(1-p)] under a Beta."""
        return self.variance * self.count / (self.count + 1)


class Beliefs:
    """Beliefs about the rows of a dataset. One generation batch is one step.

    A row takes 65 bytes (6.5 MB at 100,000 rows), and 1 to 4 bytes more with keys. The state holds only the visited
    rows. The cost of a step depends only on the size of its batch.

    Args:
        num_rows (`int`, *optional*): of the dataset; [`grow`] adds rows. `None`: rows do not come back, as on a
            stream. Then the shared prior is remembered, and no single row.
        low, high (`float`, *optional*, defaults to `0.0`, `1.0`): the range of rewards. It widens if rewards usually
            lie outside ([`trl_grpo_plus.curriculum.reward_range`]). A rare reward outside is clamped to the range.
        keys (`Sequence[Hashable]` or [`~trl_grpo_plus.utils.dataset_rows.Codes`], *optional*): one a row, such as its
            level or source. Rows with the same key share a prior. The fewer groups a key has, the nearer its prior is
            to that of all rows. `None`: all rows share one prior. An empty sequence: the keys come with [`show`] or
            [`grow`].
        strength (`float`, *optional*, defaults to `2.0`): the prior counts as this number of attempts.
        half_lives (`Sequence[float]`, *optional*, defaults to `(8, 16, 32, 64, 128)`): in steps. The middle half-life
            is used until about 32 groups of rows seen before show which is best.

    Attributes:
        step (`int`): batches observed.

    Raises:
        ConfigError: `low` is not below `high`, there is not one key for each row, or a number is out of its bounds.
    """

    def __init__(
        self,
        num_rows: int | None,
        low: float = 0.0,
        high: float = 1.0,
        keys: Sequence[Hashable] | Codes | None = None,
        strength: float = 2.0,
        half_lives: Sequence[float] = (8, 16, 32, 64, 128),
    ):
        Number().check("low", low)
        Number(above=low).check("high", high)
        Number(above=0).check("strength", strength)
        for half_life in half_lives:
            Number(above=0).check("half_lives", half_life)
        if not half_lives:
            raise ConfigError("half_lives is empty: give one or more numbers of steps.")
        coded = keys if keys is None or isinstance(keys, Codes) else encoded(keys)
        if coded is not None and len(coded.codes) != (num_rows or 0):
            raise ConfigError(f"there are {len(coded.codes)} keys for {num_rows or 0} rows: give one a row.")
        self.step = 0
        self._strength = float(strength)
        self._half_lives = sorted(map(float, half_lives))
        self._range = RewardRange(low, high)
        self._origin = (low + high) / 2  # moments are about this point: squares of values far from 0 lose digits
        self._num_rows, self._grows = num_rows, num_rows == 0
        self._history = RowHistory(num_rows or 0, self._half_lives)
        self._errors = _zeros(len(half_lives))
        self._compared = 0.0  # number of compared groups, with the decay of the errors
        self._shared = SharedPrior(self._origin, coded)
        self._groups, self._bins = _zeros(5), _zeros(3, BINS)
        self._batch: list[float] = []  # predicted and realised mean of the last batch

    def show(self, keys: Sequence[Hashable]) -> None:
        """Set the keys of the rows that indices refer to from now on, if rows do not come back."""
        self._shared.show(keys)

    def grow(self, num_rows: int, keys: Sequence[Hashable] | None = None) -> None:
        """Add rows, with their keys if rows have keys. Only for beliefs that were made with `num_rows=0`."""
        assert self._num_rows is not None
        self._num_rows += num_rows
        self._history.grow(self._num_rows)
        if keys is not None:
            self._shared.extend(keys)

    def of(
        self,
        rows: Sequence[int] | Tensor,
        mean: Tensor | None = None,
        variance: Tensor | None = None,
        strength: float | None = None,
    ) -> Belief:
        """Return the belief about rows before they are sampled.

        Args:
            rows (`Sequence[int]`): P indices.
            mean (`Tensor`, *optional*): `(P,)`, replaces the shared prior's mean.
            variance (`Tensor`, *optional*): `(P,)`, replaces the shared prior's variance at this mean. It is ignored
                while all rewards are at the ends of their range, because the mean then determines the variance.
            strength (`float`, *optional*): replaces the shared prior's strength.
        """
        rows = _indices(rows)
        count, total, squares = self._remembered(rows)[:, self._best]
        low, high = self._range.low, self._range.high
        prior, spread = self._shared.of(rows, low, high, mean)
        if variance is not None and self._shared.between:
            spread = variance.double().cpu()
        prior = prior - self._origin
        strength = self._strength if strength is None else strength
        n = count + strength
        posterior = (total + strength * prior) / n
        second = (squares + strength * (prior.square() + spread)) / n
        # The remembered moments may stem from a time when the range was wider.
        believed = (posterior + self._origin).clamp(low, high)
        variance = (second - posterior.square()).clamp(min=0.0)
        return Belief(believed, torch.minimum(variance, (believed - low) * (high - believed)), n)

    def observe(self, rows: Sequence[int] | Tensor, rewards: Tensor, believed: Belief) -> None:
        """Learn from a generation batch and end the step.

        Args:
            rows (`Sequence[int]`): P indices; a row may occur twice.
            rewards (`Tensor`): `(P, G)`, NaN for an attempt that nobody scored. A row without any reward learns
                nothing.
            believed ([`Belief`]): the result of [`of`] for these rows in this step, for skill and calibration.
        """
        rows, rewards = _indices(rows), rewards.double().cpu()
        if rewards.dim() != 2 or len(rewards) != len(rows) or len(believed.mean) != len(rows):
            raise ValueError(
                f"rewards must be (P, G) and believed of as many prompts as rows: got {len(rows)} rows, rewards "
                f"{tuple(rewards.shape)} and {len(believed.mean)} beliefs."
            )
        rewards, scored = self._range.observe(rewards), rewards.isfinite()
        some = scored.any(dim=1)
        rows, rewards, scored = rows[some], rewards[some], scored[some]
        believed = Belief(believed.mean[some].cpu(), believed.variance[some].cpu(), believed.count[some].cpu())
        if len(rows):
            count = scored.sum(dim=1).double()
            values = torch.where(scored, rewards - self._origin, 0.0)
            mean = values.sum(dim=1) / count
            deviations = torch.where(scored, values - mean.unsqueeze(1), 0.0).square().sum(dim=1)
            within = deviations / (count - 1).clamp(min=1.0)
            strength = believed.count - self._remembered(rows)[0, self._best]
            self._measure(count, mean, within, believed)
            if self._num_rows is not None:
                self._compare(rows, count, mean, believed)
                moments = torch.stack([count, values.sum(dim=1), values.square().sum(dim=1)])
                self._history.add(
                    rows, moments, self.step, self._range.low - self._origin, self._range.high - self._origin
                )
            self._share(rows, rewards, scored, mean, within, strength / believed.count)
        self.step += 1

    @property
    def skill(self) -> float:
        """Share of the differences between prompts that the beliefs predicted in about the last 20 batches, in [0, 1].

        The skill is 1 - (mean squared error of the group means - noise) / (their variance - noise). The noise is the
        sampling noise of a mean of G attempts: the sample variance / G. The skill is pulled to 0 while groups are few.
        """
        groups, total, squares, errors, noise = self._groups.tolist()
        if not groups:
            return 0.0
        width = self._range.high - self._range.low
        spread = squares - total**2 / groups - noise
        explained = (spread - (errors - noise)) / max(spread, 1e-3 * width**2 * groups)
        return min(max(explained, 0.0), 1.0) * groups / (groups + FEW_GROUPS)

    @property
    def half_life(self) -> float:
        """The half-life in use, in steps."""
        return self._half_lives[self._best]

    def metrics(self) -> dict[str, float]:
        """Return the metrics `beliefs/*`.

        - `skill`: [`skill`].
        - `predicted`, `realised`: the means that were predicted and realised in the last batch. These two,
          `calibration_error` and `outside` are there once a batch was observed.
        - `calibration_error`: |predicted - realised| of each tenth of the range, averaged over groups, in the unit of
          rewards. Chance alone makes it greater than 0.
        - `outside`: the share of the last batch's rewards that lay outside the range.
        - `half_life`: [`half_life`]. This metric and the shares below are left out for rows that do not come back.
        - `never_tried`: the share of rows that were never tried.
        - `solved`, `hopeless`: the shares of rows whose mean reward, at the last visit, was next to the upper (lower)
          end of the range: at most 5 % of its width away. Rows with fewer than 3 remembered attempts (at the longest
          half-life) do not count.
        """
        measured = {}
        if self._batch:
            gaps = (self._bins[1] - self._bins[2]).abs().sum() / self._bins[0].sum()
            measured = dict(zip(("predicted", "realised"), self._batch, strict=True), calibration_error=float(gaps))
            measured["outside"] = self._range.outside
        values = {"skill": self.skill, **measured}
        if self._num_rows is not None:
            values |= {"half_life": self.half_life, **self._history.shares()}
        return {f"beliefs/{name}": value for name, value in values.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the learned state as tensors, numbers and lists of them."""
        return {
            "num_rows": self._num_rows,
            "step": self.step,
            "compared": self._compared,
            "range": self._range.state_dict(),
            "batch": list(self._batch),
            "half_lives": list(self._half_lives),
            "keys": self._shared.keys,
            "shared": self._shared.state_dict(),
            **{name: getattr(self, f"_{name}").clone() for name in _SUMS},
            "table": self._history.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any], rows: Tensor | None = None) -> None:
        """Restore a saved `state`.

        Args:
            state (`dict`): from [`state_dict`].
            rows (`Tensor`, *optional*): the rows that the saved rows are now, -1 for a row that is gone. `None`: the
                rows have not changed.

        Raises:
            ConfigError: the state was saved with other half-lives or, without `rows`, with other rows or keys.
        """
        now: dict[str, Any] = {"half_lives": self._half_lives}
        now |= {} if rows is not None or self._grows else {"num_rows": self._num_rows, "keys": self._shared.keys}
        for name, value in now.items():
            if state[name] != value:
                raise ConfigError(
                    f"The checkpoint's beliefs have {name}={state[name]}, this run's {value}. Resume with the same "
                    "dataset and options, or start a new run from the checkpoint's weights."
                )
        if self._grows:
            self._num_rows = state["num_rows"]
            self._history = RowHistory(self._num_rows, self._half_lives)
        self._history.load_state_dict(state["table"], rows)
        for name in _SUMS:
            setattr(self, f"_{name}", state[name].clone())
        self._shared.load_state_dict(state["shared"])
        self._range.load_state_dict(state["range"])
        self.step, self._compared, self._batch = state["step"], state["compared"], list(state["batch"])

    @property
    def _best(self) -> int:
        if self._compared < ENOUGH_GROUPS:
            return len(self._half_lives) // 2
        return int(self._errors.argmin())

    def _remembered(self, rows: Tensor) -> Tensor:
        """Return the rows' own decayed moments, (3, half-lives, P): attempts, sum and sum of squares of rewards."""
        if self._num_rows is None:
            return _zeros(3, len(self._half_lives), len(rows))
        return self._history.of(rows, self.step)

    def _compare(self, rows: Tensor, count: Tensor, mean: Tensor, believed: Belief) -> None:
        """Add the half-lives' squared errors, on rows with a history."""
        again = self._history.has(rows)
        own_count, total, _ = self._remembered(rows)[..., again]
        # The prior that the belief used, perhaps a head's: the belief without the row's own attempts.
        prior = (believed.mean - self._origin)[again] * believed.count[again] - total[self._best]
        means = (total + prior) / (own_count + believed.count[again] - own_count[self._best])
        errors = ((means - mean[again]).square() * count[again]).sum(dim=1)
        self._errors = KEEP_ERRORS * self._errors + errors
        self._compared = KEEP_ERRORS * self._compared + int(again.sum())

    def _measure(self, count: Tensor, mean: Tensor, within: Tensor, believed: Belief) -> None:
        """Add the sums that skill and calibration are computed from."""
        predicted = believed.mean - self._origin
        noise = torch.where(count > 1, within, believed.learnability) / count
        sums = [torch.ones_like(mean), mean, mean.square(), (mean - predicted).square(), noise]
        self._groups = KEEP_WINDOW * self._groups + torch.stack(sums).sum(dim=1)
        low, high = self._range.low, self._range.high
        bins = ((believed.mean - low) / (high - low) * BINS).long().clamp(0, BINS - 1)
        added = torch.zeros_like(self._bins).index_add_(1, bins, torch.stack([torch.ones_like(mean), predicted, mean]))
        self._bins = KEEP_WINDOW * self._bins + added
        self._batch = [float(believed.mean.mean()), float(mean.mean()) + self._origin]

    def _share(
        self, rows: Tensor, rewards: Tensor, scored: Tensor, mean: Tensor, within: Tensor, of_prior: Tensor
    ) -> None:
        """Update the shared prior; `of_prior` is the share of the prior in the belief."""
        # The least-squares weight. Rows that are chosen often are a biased sample, and do not need a prior.
        weight = of_prior.square()
        low, high = self._range.low, self._range.high
        count = scored.sum(dim=1)
        interior = torch.where(scored, (rewards - low) * (high - rewards), 0.0).sum(dim=1) / count
        several = count > 1
        self._shared.observe(rows, weight, mean + self._origin, within * several, interior * several)


_SUMS = ("errors", "groups", "bins")


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)


def _indices(rows: Sequence[int] | Tensor) -> Tensor:
    return torch.as_tensor(rows, dtype=torch.long, device="cpu")


KEEP_ALL = 0.9  # decay of the sums of all rows, a batch
KEEP_KEY = 0.97  # decay of a key's sums, a group
STRENGTH = 4.0  # in groups: the weight of the first mean of all rows, and of this mean in a key's mean


class SharedPrior:
    """Prior mean and variance of a prompt that was never sampled, shared by all prompts or by those with its key.

    Args:
        middle (`float`): the value that the mean of all rows starts with, with the weight of [`STRENGTH`] groups.
        keys ([`~trl_grpo_plus.utils.dataset_rows.Codes`], *optional*): one a row; empty if rows and keys come with
            [`show`] or [`extend`]. `None`: all rows share one prior.

    Attributes:
        keys (`int`, *optional*): the number of different keys; `None` if more keys may come.
    """

    def __init__(self, middle: float, keys: Codes | None = None):
        self._key_codes: dict[Hashable, int] = {key: code for code, key in enumerate(keys.values if keys else ())}
        self._codes = keys.codes if keys else torch.empty(0, dtype=torch.int32)
        self._shown = len(self._codes)  # rows with a key; the table of codes may have room for more
        # Weighted sums: groups, their means, within, interior.
        self._all = torch.tensor([[STRENGTH], [STRENGTH * middle], [0.0], [0.0]], dtype=torch.float64)
        self._by_key = torch.zeros(4, len(self._key_codes), dtype=torch.float64)
        self.keys = None if keys is not None and not len(keys.codes) else len(self._key_codes)

    @property
    def between(self) -> bool:
        """Whether any reward was between the ends of the range."""
        return float(self._all[3]) > 0

    def show(self, keys: Sequence[Hashable]) -> None:
        """Set the keys of the rows; keys that are new are added."""
        self._shown = 0
        self.extend(keys)

    def extend(self, keys: Sequence[Hashable]) -> None:
        """Set the keys of rows that come after the others; keys that are new are added."""
        key_codes, keys = self._key_codes, [key if key == key else None for key in keys]  # all NaN are one key
        codes = torch.tensor([key_codes.setdefault(key, len(key_codes)) for key in keys], dtype=torch.int32)
        self._codes = grown(self._codes, self._shown + len(codes), 0)
        self._codes[self._shown : self._shown + len(codes)] = codes
        self._shown += len(codes)
        new = torch.zeros(4, len(self._key_codes) - self._by_key.shape[1], dtype=torch.float64)
        self._by_key = torch.cat([self._by_key, new], dim=1)

    def of(self, rows: Tensor, low: float, high: float, mean: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the prior mean and variance of `(P,)` rows; `mean` (`(P,)`), if given, replaces the prior mean."""
        groups, total, within, interior = self._all
        own = total / groups
        ratio = _ratio(within, interior, torch.ones_like(own))
        if self._key_codes:
            groups, total, within, interior = self._by_key[:, self._codes[rows].long()]
            own = (total + STRENGTH * own) / (groups + STRENGTH)
            most = STRENGTH * (own - low) * (high - own)
            ratio = _ratio(within + ratio * most, interior + (1 - ratio) * most, ratio.expand_as(own))
        mean = (own if mean is None else mean.double().cpu()).expand(len(rows)).clamp(low, high)
        return mean, ratio * (mean - low) * (high - mean)

    def observe(self, rows: Tensor, weight: Tensor, mean: Tensor, within: Tensor, interior: Tensor) -> None:
        """Learn from P scored groups; all are `(P,)`, `within` and `interior` are 0 for a group of one attempt."""
        sums = torch.stack([weight, weight * mean, weight * within, weight * interior])
        # A batch of well-known rows says as much about the present policy as a batch of new rows.
        self._all = KEEP_ALL * self._all + sums.sum(dim=1, keepdim=True) * (len(rows) / weight.sum())
        if self._key_codes:
            # Only the batch's keys change: there may be millions.
            codes, places = self._codes[rows].long().unique(return_inverse=True)
            weight_by_key = torch.zeros(len(codes), dtype=torch.float64).index_add_(0, places, weight)
            decayed = KEEP_KEY**weight_by_key * self._by_key[:, codes]
            self._by_key[:, codes] = decayed.index_add_(1, places, sums)

    def state_dict(self) -> dict[str, Any]:
        """Return the learned state with the keys, and the rows' keys if they came with [`show`] or [`extend`]."""
        came = {"codes": self._codes[: self._shown].clone()} if self.keys is None else {}
        return {"all": self._all.clone(), "by_key": self._by_key.clone(), "known": list(self._key_codes), **came}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the saved `state`. The keys of a dataset may be others than before, or in another order."""
        self._all = state["all"].clone()
        if self.keys is None:
            self._key_codes = {key: code for code, key in enumerate(state["known"])}
            self._codes, self._by_key = state["codes"].clone(), state["by_key"].clone()
            self._shown = len(self._codes)
            return
        there = [code for code, key in enumerate(state["known"]) if key in self._key_codes]
        now = [self._key_codes[state["known"][code]] for code in there]
        self._by_key = torch.zeros(4, len(self._key_codes), dtype=torch.float64)
        self._by_key[:, now] = state["by_key"][:, there]


def _ratio(within: Tensor, interior: Tensor, otherwise: Tensor) -> Tensor:
    most = within + interior
    return torch.where(most > 0, within / most.clamp(min=1e-300), otherwise)
