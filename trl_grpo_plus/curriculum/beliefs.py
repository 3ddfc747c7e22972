"""What is known of each prompt's reward before it is sampled again: a memory of its attempts, forgotten by age.

    own_H  = sum over past attempts of 0.5 ** (age / H) x (1, r, r^2)          age in generation batches
    n      = strength + own count
    mean   = (strength x m0 + own sum) / n
    E[r^2] = (strength x (m0^2 + v0) + own sum of squares) / n                 variance = E[r^2] - mean^2

m0 and v0 are what prompts share ([`trl_grpo_plus.curriculum.shared_prior`]): the running mean of all or of the row's
    key, or a
head's prediction, and the variance that goes with it. For rewards of `low` and `high` alone this is a Beta posterior
with a + b = n. A group weighs (strength / n)^2 in what is shared, so that a choice of prompts does not pull it to
those that are chosen often.

The half-life H is the one of several, kept side by side, whose beliefs were nearest to the group means that came next.

Forgotten counts for a policy that moves: MoPPS (arXiv 2507.04632), which decays towards its prior once a step; a
baseline made of them, that no attempt of its own step is in: SPO (arXiv 2509.13232), which decays by the policy's
drift. Half-lives side by side and `skill` are this project's.
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..utils.validation import ConfigError, Number
from .reward_range import RewardRange


KEEP_WINDOW = 0.95  # of skill and calibration, a batch: about the last 20
KEEP_ERRORS = 0.98  # of the half-lives' errors, a batch
FEW_GROUPS = 16.0  # skill is pulled to 0 by as many groups
ENOUGH_GROUPS = 32.0  # seen again, before a half-life is chosen
BINS = 10  # of the calibration
SURE = 0.05  # of the range of rewards: within it of an end, a prompt is solved or hopeless
SURE_ATTEMPTS = 3.0
SOLVED, HOPELESS = 1, -1
LARGEST = torch.finfo(torch.float32).max  # that is kept of a moment


@dataclass(frozen=True)
class Belief:
    """What is expected of P prompts, fixed before their attempts are scored; float64.

    Args:
        mean (`Tensor`): `(P,)`, expected reward.
        variance (`Tensor`): `(P,)`, of one reward, >= 0; m(1-m) for rewards of 0 and 1.
        count (`Tensor`): `(P,)`, effective attempts behind it, the prior's strength among them.
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

    65 bytes a row, 6.5 MB at 100,000 rows; with keys 4 more, which the state does not hold. All is vectorised, and
    what a step costs depends on its batch alone.

    Args:
        num_rows (`int`, *optional*): of the dataset. `None`: rows do not come back, as those of a stream. Nothing is
            remembered of any by itself then, but what they share.
        low, high (`float`, *optional*, defaults to `0.0`, `1.0`): the range of rewards. It is wider where
            rewards usually are ([`trl_grpo_plus.curriculum.reward_range`]); an odd one counts as the end that it is
            beyond.
        keys (`Sequence[Hashable]`, *optional*): one a row, such as its level or source. Rows with the same key share
            their prior, pulled to that of all where the key was seen little. `None`: all rows share one. Of rows that
            do not come back none yet: [`show`] tells them.
        strength (`float`, *optional*, defaults to `2.0`): attempts that the prior counts for.
        half_lives (`Sequence[float]`, *optional*, defaults to `(8, 16, 32, 64, 128)`): in steps. The middle one is
            used until some 32 groups of rows seen before tell which is best.

    Attributes:
        step (`int`): batches observed.

    Raises:
        ValueError: `low` is not below `high`, `keys` are not as many as the rows, or a number is out of its bounds.
    """

    def __init__(
        self,
        num_rows: int | None,
        low: float = 0.0,
        high: float = 1.0,
        keys: Sequence[Hashable] | None = None,
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
        if keys is not None and len(keys) != (num_rows or 0):
            raise ConfigError(f"there are {len(keys)} keys for {num_rows or 0} rows: give one a row.")
        self.step = 0
        self._strength = float(strength)
        self._half_lives = sorted(map(float, half_lives))
        self._range = RewardRange(low, high)
        self._origin = (low + high) / 2  # moments are about it: squares of what is far from 0 lose digits
        self._num_rows = num_rows
        self._last = torch.full((num_rows or 0,), -1, dtype=torch.int32)
        self._moments = torch.zeros(3, len(half_lives), num_rows or 0, dtype=torch.float32)
        self._state = torch.zeros(num_rows or 0, dtype=torch.int8)  # at the last visit: SOLVED, HOPELESS or neither
        self._tried = self._solved = self._hopeless = 0  # rows
        self._errors = _zeros(len(half_lives))
        self._compared = 0.0  # groups, decayed as the errors are
        self._shared = SharedPrior(self._origin, keys)
        self._groups, self._bins = _zeros(5), _zeros(3, BINS)
        self._batch: list[float] = []  # predicted and realised mean of the last one

    def show(self, keys: Sequence[Hashable]) -> None:
        """Set the keys of the rows that indices refer to from now on, where rows do not come back."""
        self._shared.show(keys)

    def of(
        self,
        rows: Sequence[int] | Tensor,
        mean: Tensor | None = None,
        variance: Tensor | None = None,
        strength: float | None = None,
    ) -> Belief:
        """Return what is believed of rows now, before they are sampled.

        Args:
            rows (`Sequence[int]`): P indices.
            mean (`Tensor`, *optional*): `(P,)`, the prior's, in place of what prompts share.
            variance (`Tensor`, *optional*): `(P,)`, likewise; by default the one that prompts share at this mean. Left
                aside while all rewards are at the ends of their range, where the mean says it.
            strength (`float`, *optional*): of this prior, in place of that of what prompts share.
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
        # What is remembered may be of a range that was wider.
        believed = (posterior + self._origin).clamp(low, high)
        variance = (second - posterior.square()).clamp(min=0.0)
        return Belief(believed, torch.minimum(variance, (believed - low) * (high - believed)), n)

    def observe(self, rows: Sequence[int] | Tensor, rewards: Tensor, believed: Belief) -> None:
        """Learn from a generation batch; ends the step.

        Args:
            rows (`Sequence[int]`): P indices; a row may be there twice.
            rewards (`Tensor`): `(P, G)`, NaN for an attempt that nobody scored. A row without any learns nothing.
            believed ([`Belief`]): what [`of`] gave about these rows in this step, for skill and calibration.
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
                self._remember(rows, torch.stack([count, values.sum(dim=1), values.square().sum(dim=1)]))
            self._share(rows, rewards, scored, mean, within, strength / believed.count)
        self.step += 1

    @property
    def skill(self) -> float:
        """How much of what differs between prompts the beliefs foretold, in the last 20 batches or so; in [0, 1].

        1 - (mean squared error of the group means - noise) / (their variance - noise), where the noise is that of G
        attempts: the sample variance / G. Pulled to 0 while groups are few.
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
        """The one in use, in steps."""
        return self._half_lives[self._best]

    @property
    def calibration(self) -> Tensor:
        """`(BINS, 3)`: over the last 20 batches or so, the mean predicted and realised in each tenth of the range, by
        what was predicted (NaN where nothing was), and the groups there, decayed.
        """
        groups, predicted, realised = self._bins
        return torch.stack([predicted / groups + self._origin, realised / groups + self._origin, groups], dim=1)

    def metrics(self) -> dict[str, float]:
        """Return the metrics `beliefs/*`: skill; the means predicted and realised in the last batch, and
        calibration_error (|predicted - realised| of each tenth of the range, its mean over groups; in the unit of
        rewards; chance leaves some), and the share of its rewards that was outside the range, once there was a batch;
        half_life; the shares of rows that were never_tried, that are solved and that are hopeless: at least 3
        attempts remembered at the
        last visit (longest half-life), whose mean was within 5 % of the range of its upper, its lower end. From
        half_life on not of rows that do not come back.
        """
        measured = {}
        if self._batch:
            gaps = (self._bins[1] - self._bins[2]).abs().sum() / self._bins[0].sum()
            measured = dict(zip(("predicted", "realised"), self._batch, strict=True), calibration_error=float(gaps))
            measured["outside"] = self._range.outside
        values = {"skill": self.skill, **measured}
        if self._num_rows is not None:
            counts = {"never_tried": self._num_rows - self._tried, "solved": self._solved, "hopeless": self._hopeless}
            shares = {name: count / self._num_rows if self._num_rows else math.nan for name, count in counts.items()}
            values |= {"half_life": self.half_life, **shares}
        return {f"beliefs/{name}": value for name, value in values.items()}

    def state_dict(self) -> dict[str, Any]:
        """All that was learned; tensors, numbers and lists of them."""
        tensors = {name: getattr(self, f"_{name}").clone() for name in _TENSORS}
        return {
            **{"num_rows": self._num_rows, "step": self.step, "compared": self._compared},
            **{"range": self._range.state_dict(), "batch": list(self._batch), "half_lives": list(self._half_lives)},
            **{"keys": self._shared.keys, "shared": self._shared.state_dict(), **tensors},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` stood. Raises ValueError when it was saved with other rows, keys or half-lives."""
        now = {"num_rows": self._num_rows, "half_lives": self._half_lives, "keys": self._shared.keys}
        for name, value in now.items():
            if state[name] != value:
                raise ConfigError(
                    f"The checkpoint's beliefs have {name}={state[name]}, this run's {value}. Resume with the same "
                    "dataset and options, or start a new run from the checkpoint's weights."
                )
        for name in _TENSORS:
            setattr(self, f"_{name}", state[name].clone())
        self._shared.load_state_dict(state["shared"])
        self._range.load_state_dict(state["range"])
        self.step, self._compared, self._batch = state["step"], state["compared"], list(state["batch"])
        self._tried = int((self._last >= 0).sum())
        self._solved, self._hopeless = (int((self._state == kind).sum()) for kind in (SOLVED, HOPELESS))

    @property
    def _best(self) -> int:
        if self._compared < ENOUGH_GROUPS:
            return len(self._half_lives) // 2
        return int(self._errors.argmin())

    def _remembered(self, rows: Tensor) -> Tensor:
        """Own moments as they count now, (3, half-lives, P): attempts, their sum and sum of squares."""
        if self._num_rows is None:
            return _zeros(3, len(self._half_lives), len(rows))
        age = self.step - self._last[rows].double()
        return self._moments[:, :, rows].double() * 0.5 ** (age / _column(self._half_lives))

    def _compare(self, rows: Tensor, count: Tensor, mean: Tensor, believed: Belief) -> None:
        """Add the half-lives' squared errors, on rows with a history."""
        again = self._last[rows] >= 0
        own_count, total, _ = self._remembered(rows)[..., again]
        # The prior as it was, which may have been a head's: what is left of the belief without the own attempts.
        prior = (believed.mean - self._origin)[again] * believed.count[again] - total[self._best]
        means = (total + prior) / (own_count + believed.count[again] - own_count[self._best])
        errors = ((means - mean[again]).square() * count[again]).sum(dim=1)
        self._errors = KEEP_ERRORS * self._errors + errors
        self._compared = KEEP_ERRORS * self._compared + int(again.sum())

    def _measure(self, count: Tensor, mean: Tensor, within: Tensor, believed: Belief) -> None:
        """Add what skill and calibration are computed from."""
        predicted = believed.mean - self._origin
        noise = torch.where(count > 1, within, believed.learnability) / count
        sums = [torch.ones_like(mean), mean, mean.square(), (mean - predicted).square(), noise]
        self._groups = KEEP_WINDOW * self._groups + torch.stack(sums).sum(dim=1)
        low, high = self._range.low, self._range.high
        bins = ((believed.mean - low) / (high - low) * BINS).long().clamp(0, BINS - 1)
        added = torch.zeros_like(self._bins).index_add_(1, bins, torch.stack([torch.ones_like(mean), predicted, mean]))
        self._bins = KEEP_WINDOW * self._bins + added
        self._batch = [float(believed.mean.mean()), float(mean.mean()) + self._origin]

    def _remember(self, rows: Tensor, moments: Tensor) -> None:
        """Add (3, P) moments to what is left of the rows' own."""
        distinct, places = rows.unique(return_inverse=True)
        added = _zeros(3, len(distinct)).index_add_(1, places, moments)
        # The square of a reward may be beyond it.
        sums = (self._remembered(distinct) + added.unsqueeze(1)).clamp(-LARGEST, LARGEST)
        self._moments[:, :, distinct] = sums.float()
        self._tried += int((self._last[distinct] < 0).sum())
        self._last[distinct] = self.step
        count, total, _ = sums[:, -1]
        own, margin = total / count + self._origin, SURE * (self._range.high - self._range.low)
        before, now = self._state[distinct], torch.zeros_like(self._state[distinct])
        now[(count >= SURE_ATTEMPTS) & (own >= self._range.high - margin)] = SOLVED
        now[(count >= SURE_ATTEMPTS) & (own <= self._range.low + margin)] = HOPELESS
        self._state[distinct] = now
        # Kept as rows come: a look at all rows takes half a second of a step where there are ten million.
        self._solved += int((now == SOLVED).sum() - (before == SOLVED).sum())
        self._hopeless += int((now == HOPELESS).sum() - (before == HOPELESS).sum())

    def _share(
        self, rows: Tensor, rewards: Tensor, scored: Tensor, mean: Tensor, within: Tensor, of_prior: Tensor
    ) -> None:
        """Update what prompts share; `of_prior` is its share in what was believed."""
        # Rows that are chosen again and again are no fair sample, and need no prior: the least-squares weight.
        weight = of_prior.square()
        low, high = self._range.low, self._range.high
        count = scored.sum(dim=1)
        interior = torch.where(scored, (rewards - low) * (high - rewards), 0.0).sum(dim=1) / count
        several = count > 1
        self._shared.observe(rows, weight, mean + self._origin, within * several, interior * several)


_TENSORS = ("last", "moments", "state", "errors", "groups", "bins")


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)


def _column(values: Iterable[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64).unsqueeze(1)


def _indices(rows: Sequence[int] | Tensor) -> Tensor:
    return torch.as_tensor(rows, dtype=torch.long, device="cpu")


KEEP_ALL = 0.9  # of the sums of all, a batch


KEEP_KEY = 0.97  # of a key's, a group


STRENGTH = 4.0  # groups that the mean of all begins with, and that it counts for in a key's


class SharedPrior:
    """Prior mean and variance of prompts that were never sampled, of all prompts or of those with a key.

    Args:
        middle (`float`): the mean that the mean of all begins with, as if of so many groups.
        keys (`Sequence[Hashable]`, *optional*): one a row; none, where rows and keys come with [`show`]. `None`: all
            rows share one.

    Attributes:
        keys (`int`, *optional*): how many different ones there are; `None` where there may be more to come.
    """

    def __init__(self, middle: float, keys: Sequence[Hashable] | None = None):
        self._known: dict[Hashable, int] = {}
        self._codes = torch.empty(0, dtype=torch.int32)
        # Groups, their means, within, interior: weighted sums.
        self._all = torch.tensor([[STRENGTH], [STRENGTH * middle], [0.0], [0.0]], dtype=torch.float64)
        self._by_key = torch.zeros(4, 0, dtype=torch.float64)
        self.show(keys or ())
        self.keys = None if keys is not None and not len(keys) else len(self._known)

    @property
    def between(self) -> bool:
        """Whether any reward was between the ends of their range."""
        return float(self._all[3]) > 0

    def show(self, keys: Sequence[Hashable]) -> None:
        """Set the keys of the rows, new keys too."""
        known, keys = self._known, [key if key == key else None for key in keys]  # NaN is one key
        self._codes = torch.tensor([known.setdefault(key, len(known)) for key in keys], dtype=torch.int32)
        new = torch.zeros(4, len(known) - self._by_key.shape[1], dtype=torch.float64)
        self._by_key = torch.cat([self._by_key, new], dim=1)

    def of(self, rows: Tensor, low: float, high: float, mean: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean, and the variance that goes with it, of `(P,)` rows; `mean` (`(P,)`) stands in for the first."""
        groups, total, within, interior = self._all
        own = total / groups
        ratio = _ratio(within, interior, torch.ones_like(own))
        if self._known:
            groups, total, within, interior = self._by_key[:, self._codes[rows].long()]
            own = (total + STRENGTH * own) / (groups + STRENGTH)
            most = STRENGTH * (own - low) * (high - own)
            ratio = _ratio(within + ratio * most, interior + (1 - ratio) * most, ratio.expand_as(own))
        mean = (own if mean is None else mean.double().cpu()).expand(len(rows)).clamp(low, high)
        return mean, ratio * (mean - low) * (high - mean)

    def observe(self, rows: Tensor, weight: Tensor, mean: Tensor, within: Tensor, interior: Tensor) -> None:
        """P groups were scored; all `(P,)`, `within` and `interior` 0 for a group of one attempt."""
        sums = torch.stack([weight, weight * mean, weight * within, weight * interior])
        # A batch of well-known rows says as much of what is now as one of new rows.
        self._all = KEEP_ALL * self._all + sums.sum(dim=1, keepdim=True) * (len(rows) / weight.sum())
        if self._known:
            codes = self._codes[rows].long()
            seen = torch.zeros(len(self._known), dtype=torch.float64).index_add_(0, codes, weight)
            self._by_key = (KEEP_KEY**seen * self._by_key).index_add_(1, codes, sums)

    def state_dict(self) -> dict[str, Any]:
        """Return what was learned; with the keys, where they came with the rows."""
        came = {"known": list(self._known)} if self.keys is None else {}
        return {"all": self._all.clone(), "by_key": self._by_key.clone(), **came}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` stood."""
        self._all, self._by_key = state["all"].clone(), state["by_key"].clone()
        if self.keys is None:
            self._known = {key: code for code, key in enumerate(state["known"])}


def _ratio(within: Tensor, interior: Tensor, otherwise: Tensor) -> Tensor:
    most = within + interior
    return torch.where(most > 0, within / most.clamp(min=1e-300), otherwise)
