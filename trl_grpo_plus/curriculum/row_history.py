"""The rewards that each row earned, decayed by age, with several half-lives side by side."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .row_table import grown, packed, unpack


SURE = 0.05  # share of the reward range next to each end in which a prompt is solved or hopeless
SURE_ATTEMPTS = 3.0
SOLVED, HOPELESS = 1, -1
LARGEST = torch.finfo(torch.float32).max  # largest value that a moment is stored with


class RowHistory:
    """The decayed moments of each row's rewards: number of attempts, sum and sum of squares. A row takes 65 bytes.

    Args:
        num_rows (`int`): of the dataset; [`grow`] adds rows.
        half_lives (`Sequence[float]`): H half-lives, in steps.
    """

    def __init__(self, num_rows: int, half_lives: Sequence[float]):
        self._num_rows = num_rows
        self._half_lives = torch.tensor(half_lives, dtype=torch.float64).unsqueeze(1)
        self._last = torch.full((num_rows,), -1, dtype=torch.int32)  # step of the last visit
        self._moments = torch.zeros(3, len(half_lives), num_rows, dtype=torch.float32)
        self._state = torch.zeros(num_rows, dtype=torch.int8)  # at the last visit: SOLVED, HOPELESS or neither
        self._tried = self._solved = self._hopeless = 0  # rows

    def grow(self, num_rows: int) -> None:
        """Set a larger number of rows; the new rows were never visited."""
        self._num_rows = num_rows
        self._last = grown(self._last, num_rows, -1)
        self._moments, self._state = (grown(table, num_rows, 0) for table in (self._moments, self._state))

    def of(self, rows: Tensor, step: int) -> Tensor:
        """Return the moments of `(P,)` rows at a step, `(3, H, P)` in float64."""
        age = step - self._last[rows].double()
        return self._moments[:, :, rows].double() * 0.5 ** (age / self._half_lives)

    def has(self, rows: Tensor) -> Tensor:
        """Return whether each of `(P,)` rows was visited before."""
        return self._last[rows] >= 0

    def add(self, rows: Tensor, moments: Tensor, step: int, low: float, high: float) -> None:
        """Add a visit of `(P,)` rows, in which a row may occur twice.

        Args:
            rows (`Tensor`): `(P,)`.
            moments (`Tensor`): `(3, P)`, of this visit's rewards.
            step (`int`): of the visit.
            low, high (`float`): ends of the rewards' range; a row next to an end is hopeless or solved.
        """
        distinct, places = rows.unique(return_inverse=True)
        added = torch.zeros(3, len(distinct), dtype=torch.float64).index_add_(1, places, moments)
        # The square of a reward may exceed float32.
        sums = (self.of(distinct, step) + added.unsqueeze(1)).clamp(-LARGEST, LARGEST)
        self._moments[:, :, distinct] = sums.float()
        self._tried += int((self._last[distinct] < 0).sum())
        self._last[distinct] = step
        count, total, _ = sums[:, -1]
        own, margin = total / count, SURE * (high - low)
        before, now = self._state[distinct], torch.zeros_like(self._state[distinct])
        now[(count >= SURE_ATTEMPTS) & (own >= high - margin)] = SOLVED
        now[(count >= SURE_ATTEMPTS) & (own <= low + margin)] = HOPELESS
        self._state[distinct] = now
        # Only the batch's rows are counted: three passes over ten million rows take 20 ms of a step or more.
        self._solved += int((now == SOLVED).sum() - (before == SOLVED).sum())
        self._hopeless += int((now == HOPELESS).sum() - (before == HOPELESS).sum())

    def shares(self) -> dict[str, float]:
        """Return the shares of rows that were never tried, and that were solved or hopeless at the last visit."""
        counts = {"never_tried": self._num_rows - self._tried, "solved": self._solved, "hopeless": self._hopeless}
        return {name: count / self._num_rows if self._num_rows else math.nan for name, count in counts.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the visited rows, for a checkpoint."""
        return packed(self._table, self._table["last"] >= 0)

    def load_state_dict(self, state: Mapping[str, Any], rows: Tensor | None = None) -> None:
        """Restore the saved `state`; `rows` as for [`~trl_grpo_plus.curriculum.row_table.unpack`]."""
        unpack(state, self._table, rows, {"last": -1})
        self._tried = int((self._table["last"] >= 0).sum())
        self._solved, self._hopeless = (int((self._table["state"] == kind).sum()) for kind in (SOLVED, HOPELESS))

    @property
    def _table(self) -> dict[str, Tensor]:
        """The tables without the room for further rows, `(..., num_rows)`, as views."""
        return {name: getattr(self, f"_{name}")[..., : self._num_rows] for name in ("last", "moments", "state")}
