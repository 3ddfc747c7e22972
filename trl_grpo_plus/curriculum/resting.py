"""Rests: steps in which a row is not sampled, because it is solved, stuck, or tried often and never learnt.

A row that a visit finds solved or stuck rests 8 steps, then 16 steps when its next visit finds the same, then 32, ...,
at most an epoch. A visit that finds the row alive ends this series. A visit that finds a stuck row solved, or the
reverse, starts the series anew.

A row whose rewards are noise (a flaky checker, a question that can be guessed, a wrong gold) stays alive for ever, and
always has the highest expected learnability. So a row is retired if it was alive more often than rows usually are
before they are learnt:

    needed = the alive visits, if any, that a row had when it was first found settled (solved or tied)
    limit  = 1 + the 80 % quantile of `needed` over about the last 256 rows that were settled; 3 until there are 32
    excess = alive visits of the row - limit
    rest   = 8 x 2 ** (excess - 1) steps, at most two epochs, whatever the visit found; none if excess <= 0

If no row is ever settled, every row reaches the limit and rows come in turn: the choice becomes shuffling again.
`benchmarks/noise.py` measures the share of the sampling that noisy rows take.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .row_table import packed, unpack


FIRST_REST = 8  # steps
EPOCHS = 2  # longest rest of a row that is alive too often
QUANTILE = 0.8
FEW_VISITS, FEW_ROWS = 3, 32  # the limit FEW_VISITS is used until FEW_ROWS rows were settled
REMEMBERED = 256.0  # settled rows that the limit is computed from; each new row decays the others
MOST_VISITS = 64  # higher numbers of alive visits count as this number
LARGEST_EXCESS = 20
# Marks of a row: it was settled before; it rests because it was alive too often.
WAS_SETTLED, RETIRED = 1, 2
# A row that nobody scores must rest: nothing is ever known about it, so it would be chosen again and again.
STUCK = ("all_bad", "tied", "unscored", "truncated")
SETTLED = ("all_good", "tied")


class RestSchedule:
    """The rests of a dataset's rows. One generation batch is one step. A row takes 7 bytes.

    Args:
        num_rows (`int`): of the dataset.

    Attributes:
        step (`int`): batches observed.
    """

    def __init__(self, num_rows: int):
        self.step = 0
        self._free = torch.zeros(num_rows, dtype=torch.int32)  # first step at which a row may be sampled
        self._visits = torch.zeros(num_rows, dtype=torch.int8)  # last visits in sequence: solved (> 0) or stuck (< 0)
        self._alive = torch.zeros(num_rows, dtype=torch.int8)  # visits that found the row alive
        self._marks = torch.zeros(num_rows, dtype=torch.int8)  # WAS_SETTLED and RETIRED
        self._needed = torch.zeros(MOST_VISITS + 1, dtype=torch.float64)  # settled rows, by alive visits
        self._count_all()

    @property
    def resting(self) -> float:
        """Share of the rows that rest or wait."""
        return self._resting.total / max(len(self._free), 1)

    @property
    def retired(self) -> float:
        """Share of the rows that rest because they were alive too often, and were not solved at their last visit."""
        return self._resting_retired.total / max(len(self._free), 1)

    @property
    def limit(self) -> int:
        """Alive visits beyond which a row is retired."""
        settled = self._needed.sum()
        if settled < FEW_ROWS:
            return FEW_VISITS
        return 1 + int((self._needed.cumsum(0) < QUANTILE * settled).sum())

    def free_at(self, rows: Sequence[int] | Tensor) -> Tensor:
        """Return the first step at which each row may be sampled, `(P,)`."""
        return self._free[torch.as_tensor(rows, dtype=torch.long)]

    def wait(self, rows: Tensor, until: int) -> None:
        """Keep these distinct rows from being sampled before the step `until`."""
        self._count(rows, -1)
        self._mark(rows, RETIRED, torch.zeros(len(rows), dtype=torch.bool))
        self._free[rows] = self._free[rows].clamp(min=until)
        self._count(rows, 1)

    def observe(self, rows: Sequence[int], verdicts: Sequence[str]) -> None:
        """Learn from the verdicts of a generation batch and end the step.

        There are P rows, in which a row may occur twice, and P verdicts of [`trl_grpo_plus.rollouts.groups.judge`].
        """
        indices = torch.as_tensor(rows, dtype=torch.long)
        solved, stuck, settled, alive = (
            indices[torch.tensor([verdict in kinds for verdict in verdicts], dtype=torch.bool)].unique()
            for kinds in (("all_good",), STUCK, SETTLED, ("alive",))
        )
        indices = indices.unique()
        epoch = -(-len(self._free) // max(len(verdicts), 1))
        self._learn_limit(settled)
        self._alive[alive] = (self._alive[alive] + 1).clamp(max=MOST_VISITS + LARGEST_EXCESS)
        self._count(indices, -1)
        # A row may occur twice in the batch: an alive visit then overrides the others.
        self._visits[stuck] = (self._visits[stuck].clamp(max=0) - 1).clamp(min=-24)
        self._visits[solved] = (self._visits[solved].clamp(min=0) + 1).clamp(max=24)
        self._visits[alive] = 0
        rest = _doubled(self._visits[indices].int().abs(), epoch)
        excess = self._alive[indices].int() - self.limit
        retired = _doubled(excess.clamp(max=LARGEST_EXCESS), EPOCHS * epoch)
        self._mark(indices, RETIRED, (excess > 0) & (self._visits[indices] <= 0))
        self._free[indices] = torch.maximum(self._free[indices], self.step + torch.maximum(rest, retired))
        self._count(indices, 1)
        self.step += 1
        for counted in (self._resting, self._resting_retired):
            counted.drop(self.step)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint: tensors and numbers."""
        return {"step": self.step, "needed": self._needed.clone(), "table": packed(self._table, self.visited)}

    def load_state_dict(self, state: dict[str, Any], rows: Tensor | None = None) -> None:
        """Restore the saved `state`; `rows` as for [`~trl_grpo_plus.curriculum.row_table.unpack`].

        A rest keeps its last step.
        """
        self.step, self._needed = state["step"], state["needed"].clone()
        unpack(state["table"], self._table, rows)
        self._count_all()

    @property
    def visited(self) -> Tensor:
        """The rows about which something is known, `(num_rows,)`, bool."""
        return (self._free > 0) | (self._alive > 0) | (self._marks > 0)

    @property
    def _table(self) -> dict[str, Tensor]:
        return {"free": self._free, "visits": self._visits, "alive": self._alive, "marks": self._marks}

    def _learn_limit(self, settled: Tensor) -> None:
        """Count the alive visits of rows that are settled for the first time, except rows that never were alive."""
        visits = self._alive[settled[~self._has(settled, WAS_SETTLED)]].long()
        visits = visits[visits > 0].clamp(max=MOST_VISITS)
        self._needed *= (1 - 1 / REMEMBERED) ** len(visits)
        self._needed.index_add_(0, visits, torch.ones(len(visits), dtype=torch.float64))
        self._mark(settled, WAS_SETTLED, torch.ones(len(settled), dtype=torch.bool))

    def _has(self, rows: Tensor, mark: int) -> Tensor:
        return self._marks[rows] & mark > 0

    def _mark(self, rows: Tensor, mark: int, is_marked: Tensor) -> None:
        self._marks[rows] = torch.where(is_marked, self._marks[rows] | mark, self._marks[rows] & ~mark)

    def _count(self, rows: Tensor, sign: int) -> None:
        """Add distinct rows that rest to the counts (1), or remove them (-1) before their rest changes."""
        ends = self._free[rows]
        self._resting.add(ends[ends > self.step], sign)
        self._resting_retired.add(ends[(ends > self.step) & self._has(rows, RETIRED)], sign)

    def _count_all(self) -> None:
        self._resting, self._resting_retired = _Ends(), _Ends()
        self._count((self._free > self.step).nonzero().squeeze(1), 1)


class _Ends:
    """A count of the rests that have not ended, kept without a pass over all rows."""

    def __init__(self) -> None:
        self.total = 0
        self._at: Counter[int] = Counter()  # step -> rests that end with it

    def add(self, ends: Tensor, sign: int) -> None:
        """Count rests by the steps that they end with, or with `sign` -1 take them out of the count."""
        self.total += sign * len(ends)
        for end, count in zip(*(column.tolist() for column in ends.unique(return_counts=True)), strict=True):
            self._at[end] += sign * count

    def drop(self, step: int) -> None:
        """Remove the rests that end at this step."""
        self.total -= self._at.pop(step, 0)


def _doubled(times: Tensor, most: int) -> Tensor:
    """Return rests in steps: 8 for 1, 16 for 2, 32 for 3, ..., at most `most`; none for 0 and less."""
    return torch.where(times > 0, FIRST_REST * 2 ** (times - 1).clamp(min=0), 0).clamp(max=most)
