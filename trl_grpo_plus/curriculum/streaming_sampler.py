"""Streamed data, read ahead: a window of rows, of which those are dealt that promise most to learn.

A stream's rows have no number, and do not come back under one; so nothing is remembered of any by itself, and what is
believed of it is what prompts share ([`trl_grpo_plus.curriculum.shared_prior`],
[`trl_grpo_plus.curriculum.belief_head`]).
"""

import copy
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ..utils.validation import ConfigError
from .samplers import FLOOR, Believe, owed, ranked


Row = dict[str, Any]


class StreamingSampler:
    """The rows of a stream that a generation batch can be made of, numbered from 0; a
    [`~trl_grpo_plus.curriculum.samplers.PromptSampler`] of them.

    Every rank reads its own copy of the stream, in the same order, as TRL's dataloader does. A stream that ends begins
    again; one that is shuffled is shuffled anew. No window reaches over that end: what a pass ends with and fills no
    batch is let go. What was read and is not dealt comes again with the next pass.

    A `take` scores the window's rows as [`~trl_grpo_plus.curriculum.samplers.LearnabilitySampler`] does a pool, and
    deals the best; but for a tenth, which are any of the others.

    Args:
        train_set ([`~datasets.IterableDataset`]): the stream.
        seed (`int`): of shuffling and of noise.
        shuffle (`bool`): whether it is shuffled in a buffer, as TRL does with `shuffle_dataset`.

    Attributes:
        rows (`list[dict]`): of the batch in flight, or in a next one's stead.
    """

    def __init__(self, train_set: Any, seed: int, shuffle: bool):
        self._stream = train_set.shuffle(seed=seed) if shuffle else train_set
        self._noise = torch.Generator().manual_seed((seed * 1_000_003 + 32_452_843) % 2**63)
        self._owed = 0.0  # rows, to the tenth
        self._ahead: Iterator[Row] | None = None
        self._pass, self._read = 0, 0
        self._columns: Row = dict.fromkeys(train_set.column_names or ())
        self.rows: list[Row] = []

    def look(self, most: int, least: int) -> None:
        """Read the next rows: `most` of them, or as many as are left of the pass, if they are `least`.

        Raises:
            ValueError: a whole pass has fewer than `least`.
        """
        self.rows = self._next(most)
        if len(self.rows) < least:
            self._ahead, self._pass, self._read = None, self._pass + 1, 0
            self.rows = self._next(most)
        if len(self.rows) < least:
            raise ConfigError(
                f"the stream ends after {len(self.rows)} rows, and a generation batch takes {least} prompts. Use a "
                "longer one or a smaller generation batch."
            )

    @property
    def digest(self) -> int:
        """Of the window's prompts, or of rows that have none, where an environment asks: equal where they are."""
        prompts = [row.get("prompt", row) for row in self.rows]
        return zlib.crc32(json.dumps(prompts, default=lambda value: type(value).__name__).encode())

    def __getitems__(self, indices: Sequence[int]) -> list[Row]:
        """Return rows of the window, which share no object."""
        return [copy.deepcopy(self.rows[index]) for index in indices]

    def take(
        self,
        count: int,
        wanted: Callable[[int], bool],
        multiple_of: int = 1,
        patience: int | None = None,
        believe: Believe | None = None,
    ) -> list[int]:
        """As [`~trl_grpo_plus.curriculum.samplers.PromptSampler`]; in the order in which they were read."""
        pool = [index for index in range(len(self.rows)) if wanted(index)]
        number = min(count, len(pool)) // multiple_of * multiple_of
        spared, self._owed = owed(self._owed + FLOOR * number)
        order = ranked(pool, believe, self._noise)
        best, others = order[: number - spared], order[number - spared :]
        lots = torch.randperm(len(others), generator=self._noise)[:spared]
        return [pool[place] for place in torch.cat([best, others[lots]]).sort().values.tolist()]

    def observe(self, rows: Sequence[int], rewards: Tensor, verdicts: Sequence[str]) -> None:
        """Do nothing: the rows of a stream do not come back."""

    def metrics(self) -> dict[str, float]:
        """`selection/pool`, rows of the window; `selection/pass`, how often the stream began again."""
        return {"selection/pool": float(len(self.rows)), "selection/pass": float(self._pass)}

    def state_dict(self) -> dict[str, Any]:
        """Return where the reading stands: the pass, the rows that were read of it, and the columns that they had."""
        read = {"pass": self._pass, "read": self._read, "columns": list(self._columns)}
        return {**read, "owed": self._owed, "noise": self._noise.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Read on where `state` stood."""
        self._ahead, self._pass, self._read = None, state["pass"], state["read"]
        self._owed = state["owed"]
        self._columns |= dict.fromkeys(state.get("columns", ()))
        self._noise.set_state(state["noise"])

    def _next(self, count: int) -> list[Row]:
        if self._ahead is None:
            one_pass = self._stream.skip(self._read)
            one_pass.set_epoch(self._pass)
            self._ahead = iter(one_pass)
        rows = list(islice(self._ahead, count))
        self._read += len(rows)
        # Rows need not have all columns; TRL's own loader gives None for those that others have.
        self._columns |= dict.fromkeys(name for row in rows for name in row)
        return [{**self._columns, **row} for row in rows]
