"""TRL's table of completions, which is as long as a full batch, where a batch may be smaller."""

from collections.abc import Sequence
from typing import Any

from accelerate.utils import gather_object

from .groups import Attempt


def put_back(logs: Any, pending: Any, attempts: Sequence[Attempt]) -> None:
    """Give the table what the rewards logged about these rows, which are its next. Collective."""
    # Every rank needs every column: TRL before 1.14 gathers each of its own, and one that is elsewhere only hangs.
    logged = set(gather_object(sorted({name for attempt in attempts for name in attempt.logged})))
    pending.clear()
    # Each column must be as long as the table, which is not full where a batch was smaller.
    for name in sorted(logged | set(logs["extra"])):
        column = logs["extra"][name]
        column.extend([None] * (len(logs["prompt"]) - len(column)))
        pending[name] = [attempt.logged.get(name) for attempt in attempts]


def forget(logs: Any) -> None:
    """Empty the table: a batch that is smaller than a full one would leave older rows in it."""
    logs["extra"].clear()
    for column in logs.values():
        for rows in column.values() if isinstance(column, dict) else [column]:
            rows.clear()


def replace(column: Any, values: Sequence[float]) -> None:
    """Put `values` in place of what the table's last batch has in a column."""
    for _ in range(min(len(values), len(column))):
        column.pop()
    column.extend(values)
