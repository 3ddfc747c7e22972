"""States that were read, kept and read again as they age: reading all of a pool at each step costs more than a step.

A state that is some steps old still tells prompts apart, so it is used until there is a newer one. What a batch has
sampled pays for what the next one may read (`belief_head_share`); a row that was not read has no state.

The default is a tenth of the tokens that a batch samples. One run of a real model took 1.12 times the processor time
with it, beside other work. Several processes read whole shares, so a budget below one prompt each costs more.
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
FIRST = 8  # prompts that may be read before anything was sampled: enough to know how far states lie apart
LARGEST = 60_000.0  # that float16 holds, about
MOST_ROWS, MOST_NUMBERS = 32_768, 512  # kept: 32 MiB in all, beside Python's own


class StateCache:
    """Hidden states of the prompts of one run, kept for some steps; the same on every rank.

    Numbers are kept in float16, less their mean and divided by their standard deviation in the first reading; those of
    a model that is wider than [`MOST_NUMBERS`] are projected to as many, at random. Of more rows than [`MOST_ROWS`]
    those that were read last are kept.

    Args:
        read (`Callable`): reads the states of rows. Collective.
        seed (`int`): of the random projection.
        everything (`bool`, *optional*, defaults to `False`): read all rows at each step, whatever it costs.

    Attributes:
        affordable (`float`): prompts that may be read now; a part of one is kept.
    """

    def __init__(self, read: States, seed: int, everything: bool = False):
        self._read, self._seed = read, seed
        self._fresh = 1 if everything else FRESH
        self._step = 0
        self._kept: dict[int, tuple[int, Tensor]] = {}  # row -> when it was read and what; what was read last, last
        self._mean = self._spread = torch.empty(0)  # (width,), known when there was a reading
        self._projection = torch.empty(0)  # (width, MOST_NUMBERS), of a model that is wider
        self.affordable = math.inf if everything else float(FIRST)
        self._num_read, self._last = 0, (0, 0.0)  # in this step; in the last one, and what was known of its rows

    def __contains__(self, row: int) -> bool:
        return row in self._kept

    def look(self, rows: Sequence[int], share: float = 1.0) -> None:
        """Read these rows for a share of what is affordable: those that were never read first, in their order, then
        the oldest ones. Collective where anything is due, and that is known on all ranks alike.
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
        """`(P, numbers)` in float64, NaN for a row without a state."""
        numbers = min(len(self._mean), MOST_NUMBERS)
        unknown = torch.full((numbers,), math.nan, dtype=torch.float16)
        states = [self._kept[row][1] if row in self._kept else unknown for row in rows]
        return torch.stack(states).double() if states else torch.empty(0, numbers, dtype=torch.float64)

    def forget(self) -> None:
        """Forget all states: indices refer to other rows from now on."""
        self._kept = {}

    def end_step(self, rows: Sequence[int], affordable: float) -> None:
        """Add the budget that the scored rows pay for, in prompts; what was left counts too, up to as much again."""
        self._last = (self._num_read, sum(row in self._kept for row in rows) / max(len(rows), 1))
        if self._fresh == 1:
            self._kept = {}  # all is read anew, so a checkpoint need not hold it
        self._step, self._num_read = self._step + 1, 0
        self.affordable = min(self.affordable, affordable) + affordable

    def metrics(self) -> dict[str, float]:
        """Return the last step's `beliefs/head_read` (prompts read) and `beliefs/head_known` (share of sampled
        prompts with a state).
        """
        read, known = self._last
        return {"beliefs/head_read": float(read), "beliefs/head_known": known}

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain numbers; about 1 KiB a row that is kept."""
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

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` stood."""
        columns = (state["rows"].tolist(), state["steps"].tolist(), state["states"])
        self._kept = {row: (step, kept.clone()) for row, step, kept in zip(*columns, strict=True)}
        self._mean, self._spread = state["mean"].clone(), state["spread"].clone()
        self._seed, self._step = state["seed"], state["step"]
        # A run whose head read everything may go on with one that does not, and the other way round.
        if math.isfinite(state["affordable"]) and math.isfinite(self.affordable):
            self.affordable = state["affordable"]

    def _compressed(self, states: Tensor) -> Tensor | None:
        """`(P, width) -> (P, numbers)`; `None` while no state was finite, so that there is no mean."""
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
    """`(width,)`, the standard deviation of each number; one for all, their size, where rows do not differ."""
    spread = states.std(dim=0, correction=0)
    # Of dimensions that hardly differ in so few rows too little is known to make much of them.
    least = 1e-3 * (spread.median().item() or spread.mean().item())
    size = states.square().mean().sqrt()
    return spread.clamp(min=least) if least > 1e-9 * size else torch.full_like(spread, max(size.item(), 1.0))
