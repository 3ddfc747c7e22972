"""TRL's table of completions, adapted to batches that are smaller than a full batch, and printed safely.

TRL makes the table as long as a full batch, and prints it as it is.
"""

import json
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from accelerate.utils import gather_object

from ..rollouts.groups import Attempt
from ..utils.patching import temporarily
from ..utils.terminal import visible


_PRINTS = "print_prompt_completions_sample"  # TRL's function, which prints a model's text to a terminal unchanged


def columns_logged(attempts: Sequence[Attempt]) -> set[str]:
    """Return the columns that the rewards logged about rows of any rank. Collective."""
    return set(gather_object(sorted({name for attempt in attempts for name in attempt.logged})))


def put_back(logs: Any, pending: Any, attempts: Sequence[Attempt], logged: set[str]) -> None:
    """Give the table the columns that the rewards logged about these rows, its next rows.

    `logged` are the columns of all ranks' rows. Every rank needs every column: TRL before 1.14 gathers each rank's
    own, and hangs if another rank lacks one.
    """
    pending.clear()
    # Each column must be as long as the table, which is not full after a smaller batch.
    for name in sorted(logged | set(logs["extra"])):
        column = logs["extra"][name]
        column.extend([None] * (len(logs["prompt"]) - len(column)))
        pending[name] = [attempt.logged.get(name) for attempt in attempts]


def forget(logs: Any) -> None:
    """Empty the table, because a batch that is smaller than a full one would leave older rows in it."""
    logs["extra"].clear()
    for column in logs.values():
        for rows in column.values() if isinstance(column, dict) else [column]:
            rows.clear()


def replace(column: Any, values: Sequence[float]) -> None:
    """Replace the values of the table's last batch in a column."""
    for _ in range(min(len(values), len(column))):
        column.pop()
    column.extend(values)


@contextmanager
def printed_visibly(module: Any) -> Iterator[None]:
    """Make the table that TRL prints inside this context [`visible`], but not what TRL writes and sends to trackers.

    Args:
        module: the module of TRL's trainer, which prints.
    """
    prints = getattr(module, _PRINTS, None)
    if prints is None:
        yield
        return

    def print_visibly(*args: Any, **more: Any) -> None:
        prints(*map(_visible, args), **{name: _visible(value) for name, value in more.items()})

    with temporarily(module, **{_PRINTS: print_visibly}):
        yield


def _visible(value: Any) -> Any:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list | deque):
        return [_visible(one) for one in value]
    if isinstance(value, dict):
        return {_visible(name): _visible(_read(one) if name == "arguments" else one) for name, one in value.items()}
    return value


def _read(arguments: Any) -> Any:
    """Return a tool's arguments, which may be JSON that TRL reads before it prints them."""
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments
