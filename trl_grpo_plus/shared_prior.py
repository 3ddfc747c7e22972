"""What prompts share: the mean and the variance that a prompt has which was never sampled, of all or of its key.

    m0 = (sum of w x mean + s x mean of all) / (sum of w + s)
    v0 = ratio x (m0 - low) x (high - m0),        ratio = within / (within + interior)

over the groups seen, w a weight for each, forgotten batch by batch, of a key by its groups. `within` is the variance
of a group's rewards (with Bessel's correction) and `interior` the mean of (r - low)(high - r) over them: of these two,
(m - low)(high - m) is made up in the mean. So where all rewards are `low` or `high` the ratio is 1, and where a
prompt's attempts all earn the same, whatever that is, it is 0. A key that was seen little is pulled to all.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor


KEEP_ALL = 0.9  # of the sums of all, a batch
KEEP_KEY = 0.97  # of a key's, a group
STRENGTH = 4.0  # groups that the mean of all begins with, and that it counts for in a key's


class SharedPrior:
    """Of the rows of a dataset.

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
        """Rows are those that have these keys from now on, new ones too."""
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
        """What was learned; with the keys, where they came with the rows."""
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
