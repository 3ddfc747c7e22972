"""Checks of a user's own prompt sampler: a wrong answer is refused early, before a run of days fails on it.

Rows must be in the training set, because Python takes row -1 for the last row. Metrics go into a JSON journal. The
state goes into a checkpoint, from which only plain values and tensors can be read again.
"""

import functools
import io
import operator
from collections.abc import Callable, Iterator, Sequence
from types import NoneType
from typing import Any

import torch
from accelerate.logging import get_logger
from torch import Tensor

from ..utils.dataset_rows import plain
from ..utils.tables import in_a_line
from ..utils.validation import ConfigError, RunError


logger = get_logger(__name__)

SINGLE = (bool, int, float, str, bytes, NoneType, Tensor)  # types that a checkpoint can hold
SEVERAL = (dict, list, tuple)


class CustomSampler:
    """A wrapper of a user's [`~trl_grpo_plus.curriculum.samplers.PromptSampler`] that refuses unusable answers.

    In rows and metrics, numbers of NumPy and torch are converted to Python's own. In a state they are not, because
    the sampler's `load_state_dict` must get exactly what the sampler saved.

    Args:
        stream (`Any`): an instance of the user's class.
        path (`str`): of the class, as `prompt_selection` names it.
        num_rows (`int`): of the training set.
    """

    def __init__(self, stream: Any, path: str, num_rows: int):
        self._stream, self._num_rows, self._state_checked = stream, num_rows, False
        self._name = f"prompt_selection={path!r}: {type(stream).__name__}"

    def take(
        self,
        count: int,
        accepts: Callable[[int], bool],
        multiple_of: int = 1,
        patience: int | None = None,
        believe: Callable[[list[int]], Any] | None = None,
    ) -> list[int]:
        """Return the sampler's rows, after a check that they are distinct rows that may be sampled, not too many."""
        ask = believe and (lambda rows: believe(self._rows("take asked `believe` about", rows)))
        asked = functools.cache(accepts)  # it may be called only once for a row

        def noting(row: Any) -> bool:
            return asked(self._row("take asked `accepts` about", row))

        rows = self._rows("take dealt", self._stream.take(count, noting, multiple_of, patience, ask))
        if len(set(rows)) < len(rows):
            twice = next(row for row in rows if rows.count(row) > 1)
            raise ConfigError(
                f"{self._name}.take dealt the rows {rows}, with row {twice} more than once. A batch needs "
                "distinct rows. Let each call of take deal a row only once."
            )
        if len(rows) > count or len(rows) % multiple_of:
            raise ConfigError(
                f"{self._name}.take dealt {len(rows)} rows, with count={count} and multiple_of={multiple_of}. Deal at "
                "most `count` rows, and a multiple of `multiple_of` of them."
            )
        if (refused := next((row for row in rows if not noting(row)), None)) is not None:
            raise ConfigError(
                f"{self._name}.take dealt the row {refused}, for which accepts(row) is false: this step has "
                "sampled it already. Deal only rows for which accepts(row) is true, or fewer rows."
            )
        return rows

    def observe(self, rows: Sequence[int], rewards: Tensor, verdicts: Sequence[str]) -> None:
        """Pass the batch to the sampler, and check its state after the first batch: it may be saved hours later."""
        self._stream.observe(rows, rewards, verdicts)
        if not self._state_checked:
            self._state_checked = True
            try:
                state = self._stream.state_dict()
            except Exception as error:  # a run that saves no checkpoint may go on
                logger.warning(
                    f"{self._name}.state_dict raised {error!r}. Repair it, or saving a checkpoint will fail."
                )
                return
            self._check_state(state)

    def metrics(self) -> dict[str, float]:
        """Return the sampler's metrics as plain numbers."""
        metrics = self._stream.metrics()
        if not isinstance(metrics, dict):
            raise ConfigError(f"{self._name}.metrics returned {metrics!r:.80}. Return a dict from names to numbers.")
        numbers = {name: plain(value) for name, value in metrics.items()}
        for name, value in numbers.items():
            if not isinstance(name, str) or not isinstance(value, int | float):
                raise ConfigError(
                    f"{self._name}.metrics returned {value!r:.80} for {name!r}. A metric has a text for its name and "
                    "one number for its value. Return float(value), or leave this metric out."
                )
        return numbers

    def state_dict(self) -> dict[str, Any]:
        """Return the sampler's state, after a check that a checkpoint can hold it."""
        state = self._stream.state_dict()
        self._check_state(state)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the sampler's state."""
        try:
            self._stream.load_state_dict(state)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            # Unwrapped, the error would be taken for an error of the checkpoint's format.
            raise RunError(f"{self._name}.load_state_dict: {in_a_line(error)}") from error

    def _rows(self, what: str, rows: Any) -> list[int]:
        try:
            given = list(rows)
        except TypeError as error:
            raise ConfigError(f"{self._name}.{what} {rows!r:.80}, which is no list of rows. Use a list.") from error
        return [self._row(what, row) for row in given]

    def _row(self, what: str, row: Any) -> int:
        try:
            index = -1 if isinstance(row, bool) else operator.index(row)
        except TypeError:
            index = -1
        if not 0 <= index < self._num_rows:
            raise ConfigError(
                f"{self._name}.{what} row {row!r:.80}. A row is a whole number from 0 to {self._num_rows - 1}: its "
                "index in the training set. Use indices."
            )
        return index

    def _check_state(self, state: Any) -> None:
        try:
            unsaved = [*_unsaved(state, "state_dict()")]
        except RecursionError:
            raise ConfigError(
                f"{self._name}.state_dict() contains itself, so it cannot be saved. Return a state without the cycle."
            ) from None
        for where, value in unsaved:
            raise ConfigError(
                f"{self._name}.{where} holds a {type(value).__module__}.{type(value).__name__} ({value!r:.80}), which "
                "cannot be read back from a checkpoint. A state may hold numbers, texts, lists, dicts and tensors. "
                "Save a NumPy array as array.tolist() or torch.from_numpy(array), and a NumPy number as number.item()."
            )


def _unsaved(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Yield the place and value of each part that [`torch.load`] would not read again."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _unsaved(key, f"{where}'s key")
            yield from _unsaved(item, f"{where}[{key!r:.80}]")
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            if type(item) not in SINGLE:
                yield from _unsaved(item, f"{where}[{place}]")
    if type(value) not in (*SINGLE, *SEVERAL) and not _is_read_again(value):
        yield where, value


def _is_read_again(value: Any) -> bool:
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception:  # pickling may raise anything
        return False
    return True
