"""A cache of prompt states: states are kept for some steps, because reading a whole pool costs more than a step.

A state that is some steps old still tells prompts apart, so it is used until a newer state is read. The tokens that a
batch sampled set the budget of prompts that the next batch may read (`belief_head_share`). A row that was not read has
no state.

The default budget is a tenth of the tokens that a batch samples. With it the head took 3 to 6 % of a step of a real
model (benchmarks/belief_head.py). Each process reads at least one prompt if any is due, so a budget of fewer prompts
than processes is exceeded.
"""

import math
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ..utils.validation import ConfigError


States = Callable[[list[int]], Tensor]  # rows of the training set -> (P, width), the policy's states; collective

FRESH = 8  # steps; older states are read again
FIRST = 8  # prompts that may be read before the first sampling: enough to know the spread of the states
LARGEST = 60_000.0  # about the largest number that float16 holds
MOST_ROWS, MOST_NUMBERS = 32_768, 256  # kept: 16 MiB in all, besides Python's own overhead


class StateCache:
    """Hidden states of the prompts of one run, kept for some steps; the same on every rank.

    States are kept in float16. Each number is first standardised by its mean and standard deviation in the first
    reading. The states of a model that is wider than [`MOST_NUMBERS`] are projected at random to this number of
    dimensions. If there are more rows than [`MOST_ROWS`], the rows that were read last are kept.

    Args:
        read (`Callable`): reads the states of rows. Collective.
        seed (`int`): of the random projection.
        everything (`bool`, *optional*, defaults to `False`): read all rows at each step, whatever the cost.

    Attributes:
        affordable (`float`): prompts that may be read now; a fraction of a prompt is carried over.
    """

    def __init__(self, read: States, seed: int, everything: bool = False):
        self._read, self._seed = read, seed
        self._fresh = 1 if everything else FRESH
        self._step = 0
        self._kept: dict[int, tuple[int, Tensor]] = {}  # row -> (step, state), in the order of reading
        self._mean = self._spread = torch.empty(0)  # (width,), known after the first reading
        self._projection = torch.empty(0)  # (width, MOST_NUMBERS), for a wider model
        self.affordable = math.inf if everything else float(FIRST)
        self._num_read, self._last = 0, (0, 0.0)  # read in this step; in the last, and its share of rows with a state

    def __contains__(self, row: int) -> bool:
        return row in self._kept

    def read_due(self, rows: Sequence[int], share: float = 1.0) -> None:
        """Read the states of rows, for a share of the budget.

        Rows that were never read come first, in their order, then the rows with the oldest states. Collective if any
        row is due; all ranks find the same rows due.
        """
        distinct = [*dict.fromkeys(rows)]
        missing = [row for row in distinct if row not in self._kept]
        old = [row for row in distinct if row in self._kept and self._step - self._kept[row][0] >= self._fresh]
        due = missing + sorted(old, key=lambda row: self._kept[row][0])
        due = due[: int(min(max(share * self.affordable, 0.0), len(due)))]
        if not due:
            return
        states = self._compressed(self._read(due))
        self.affordable -= len(due)
        self._num_read += len(due)
        if states is None:
            return
        for row, state in zip(due, states, strict=True):
            self._kept.pop(row, None)
            self._kept[row] = (self._step, state.clone())
        for row in [*islice(self._kept, max(len(self._kept) - MOST_ROWS, 0))]:
            del self._kept[row]

    def of(self, rows: Sequence[int]) -> Tensor:
        """Return the states of rows, `(P, numbers)` in float64; NaN for a row without a state."""
        numbers = min(len(self._mean), MOST_NUMBERS)
        unknown = torch.full((numbers,), math.nan, dtype=torch.float16)
        states = [self._kept[row][1] if row in self._kept else unknown for row in rows]
        return torch.stack(states).double() if states else torch.empty(0, numbers, dtype=torch.float64)

    def forget(self) -> None:
        """Forget all states, because indices refer to other rows from now on."""
        self._kept = {}

    def end_step(self, rows: Sequence[int], affordable: float) -> None:
        """End the step and add the budget `affordable`, in prompts.

        The unused rest of the old budget is carried over, up to another `affordable`.
        """
        self._last = (self._num_read, sum(row in self._kept for row in rows) / max(len(rows), 1))
        if self._fresh == 1:
            self._kept = {}  # all states are read again, so a checkpoint need not hold them
        self._step, self._num_read = self._step + 1, 0
        self.affordable = min(self.affordable, affordable) + affordable

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the last step.

        `beliefs/head_read` is the number of prompts read. `beliefs/head_known` is the share of sampled prompts with a
        state.
        """
        read, share = self._last
        return {"beliefs/head_read": float(read), "beliefs/head_known": share}

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors and plain numbers, about half a KiB for each row that is kept."""
        steps, states = zip(*self._kept.values(), strict=True) if self._kept else ((), ())
        return {
            "seed": self._seed,
            "rows": torch.tensor([*self._kept], dtype=torch.long),
            "steps": torch.tensor(steps, dtype=torch.long),
            "states": torch.stack(states) if states else torch.empty(0),
            "mean": self._mean.clone(),
            "spread": self._spread.clone(),
            "step": self._step,
            "affordable": self.affordable,
        }

    def load_state_dict(self, state: dict[str, Any], rows: Tensor | None = None) -> None:
        """Restore the saved `state`; `rows`, if given, are the rows that the saved rows are now, -1 for none."""
        rows = state["rows"] if rows is None else rows
        columns = (rows.tolist(), state["steps"].tolist(), state["states"])
        self._kept = {row: (step, kept.clone()) for row, step, kept in zip(*columns, strict=True) if row >= 0}
        self._mean, self._spread = state["mean"].clone(), state["spread"].clone()
        self._seed, self._step = state["seed"], state["step"]
        self._projection = torch.empty(0)  # the seed determines it
        # A run whose head read everything may resume with a budget, and the reverse.
        if math.isfinite(state["affordable"]) and math.isfinite(self.affordable):
            self.affordable = state["affordable"]

    def _compressed(self, states: Tensor) -> Tensor | None:
        """Compress states, `(P, width) -> (P, numbers)`; `None` while there is no mean, as no state was finite."""
        states = states.detach().to("cpu", torch.float64)
        width = states.shape[1]
        finite = states[states.isfinite().all(dim=1)]
        if not len(self._mean) and len(finite):
            self._mean, self._spread = finite.mean(dim=0), _spread(finite)
        if not len(self._mean):
            return None
        if width != len(self._mean):
            raise ConfigError(
                f"The states have {width} dimensions, those read before had {len(self._mean)}. Resume with the same "
                "model, or start a new run from the checkpoint's weights."
            )
        states = (states - self._mean) / self._spread
        if width > MOST_NUMBERS:
            if not len(self._projection):
                generator = torch.Generator().manual_seed(self._seed)
                self._projection = torch.randn(width, MOST_NUMBERS, generator=generator, dtype=torch.float64)
            states = states @ self._projection / math.sqrt(width)
        return states.clamp(-LARGEST, LARGEST).half()


def _spread(states: Tensor) -> Tensor:
    """Return the standard deviation of each number, `(width,)`.

    If the rows do not differ, all entries are the root mean square of the states, at least 1.
    """
    spread = states.std(dim=0, correction=0)
    # A dimension that hardly differs in these few rows is too little known to be scaled up much.
    least = 1e-3 * (spread.median().item() or spread.mean().item())
    size = states.square().mean().sqrt()
    return spread.clamp(min=least) if least > 1e-9 * size else torch.full_like(spread, max(size.item(), 1.0))
