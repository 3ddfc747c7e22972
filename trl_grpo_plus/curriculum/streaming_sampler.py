"""Streamed data: a window of rows is read ahead, and a sampler deals those with the highest expected learnability.

The rows of a stream have no number by which they could come back. Without `belief_id` no row is remembered by itself,
and the belief about a row is the prior that prompts share ([`trl_grpo_plus.curriculum.beliefs`],
[`trl_grpo_plus.curriculum.belief_head`]).
"""

import copy
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch

from ..utils.validation import ConfigError
from .samplers import FLOOR, Believe, PromptSampler, owed, ranked


Row = dict[str, Any]


class StreamingSampler(PromptSampler):
    """A window of a stream's rows, numbered from 0, from which it deals the rows of a generation batch.

    Every rank reads its own copy of the stream, in the same order, as TRL's dataloader does. A stream that ends starts
    again; a shuffled stream is shuffled anew. No window reaches over the end of a pass: the last rows of a pass are
    left out if they fill no batch. Rows that were read and not dealt come again with the next pass.

    A `take` scores the window's rows as [`~trl_grpo_plus.curriculum.samplers.LearnabilitySampler`] scores a pool, and
    deals the best. A tenth of the dealt rows are drawn at random from the other rows.

    Args:
        train_set ([`~datasets.IterableDataset`]): the stream.
        seed (`int`): of shuffling and of noise.
        shuffle (`bool`): whether the stream is shuffled in a buffer, as TRL does with `shuffle_dataset`.

    Attributes:
        rows (`list[dict]`): the window of the present batch. If prompts are not chosen, the trainer puts the rows that
            TRL dealt here.
    """

    def __init__(self, train_set: Any, seed: int, shuffle: bool):
        self._stream = train_set.shuffle(seed=seed) if shuffle else train_set
        self._noise = torch.Generator().manual_seed((seed * 1_000_003 + 32_452_843) % 2**63)
        self._owed = 0.0  # fraction of a row owed to the tenth
        self._ahead: Iterator[Row] | None = None
        self._pass, self._read = 0, 0
        self._columns: Row = dict.fromkeys(train_set.column_names or ())
        self.rows: list[Row] = []

    def read_window(self, most: int, least: int) -> None:
        """Read the next window: `most` rows, or the rest of the pass if it has at least `least` rows.

        Raises:
            ConfigError: a whole pass has fewer than `least` rows.
        """
        self.rows = self._next(most)
        if len(self.rows) < least:
            self._ahead, self._pass, self._read = None, self._pass + 1, 0
            self.rows = self._next(most)
        if len(self.rows) < least:
            raise ConfigError(
                f"the stream ends after {len(self.rows)} rows, and a generation batch takes {least} prompts. Use a "
                "longer stream or a smaller generation batch."
            )

    @property
    def digest(self) -> int:
        """Checksum of the window's prompts, or of whole rows without a prompt; equal windows have equal checksums.

        Rows have no prompt if an environment supplies the prompts.
        """
        prompts = [row.get("prompt", row) for row in self.rows]
        return zlib.crc32(json.dumps(prompts, default=lambda value: type(value).__name__).encode())

    def __getitems__(self, indices: Sequence[int]) -> list[Row]:
        """Return copies of rows of the window, which share no object."""
        return [copy.deepcopy(self.rows[index]) for index in indices]

    def take(
        self,
        count: int,
        accepts: Callable[[int], bool],
        multiple_of: int = 1,
        patience: int | None = None,
        believe: Believe | None = None,
    ) -> list[int]:
        """Return rows as [`~trl_grpo_plus.curriculum.samplers.PromptSampler`], in the order of reading."""
        pool = [index for index in range(len(self.rows)) if accepts(index)]
        number = min(count, len(pool)) // multiple_of * multiple_of
        spared, self._owed = owed(self._owed + FLOOR * number)
        order = ranked(pool, believe, self._noise)
        best, others = order[: number - spared], order[number - spared :]
        lots = torch.randperm(len(others), generator=self._noise)[:spared]
        return [pool[place] for place in torch.cat([best, others[lots]]).sort().values.tolist()]

    def metrics(self) -> dict[str, float]:
        """Return the metrics `selection/pool` (rows of the window) and `selection/pass` (restarts of the stream)."""
        return {"selection/pool": float(len(self.rows)), "selection/pass": float(self._pass)}

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the reading: the pass, its rows read so far, and the columns of all rows read."""
        read = {"pass": self._pass, "read": self._read, "columns": list(self._columns)}
        return {**read, "owed": self._owed, "noise": self._noise.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the saved `state` and continue reading from there."""
        self._ahead, self._pass, self._read = None, state["pass"], state["read"]
        self._owed = state["owed"]
        self._columns |= dict.fromkeys(state["columns"])
        self._noise.set_state(state["noise"])

    def _next(self, count: int) -> list[Row]:
        if self._ahead is None:
            one_pass = self._stream.skip(self._read)
            one_pass.set_epoch(self._pass)
            self._ahead = iter(one_pass)
        rows = list(islice(self._ahead, count))
        self._read += len(rows)
        # Rows may lack columns that other rows have; TRL's own loader gives None for these columns.
        self._columns |= dict.fromkeys(name for row in rows for name in row)
        return [{**self._columns, **row} for row in rows]
