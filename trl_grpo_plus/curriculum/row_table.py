"""Tables with one entry for each row of a training set: how they grow, and how a checkpoint holds them.

A run visits few rows of a large training set, so a checkpoint holds the visited rows alone. The other rows have the
values that a new table has.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def packed(tables: Mapping[str, Tensor], visited: Tensor) -> dict[str, Any]:
    """Return the visited rows of some tables, for a checkpoint.

    Args:
        tables (`Mapping[str, Tensor]`): name -> table, `(..., N)`.
        visited (`Tensor`): `(N,)`, bool.

    Returns:
        `dict`: "num_rows" (N), "rows" (the V visited rows, or `None` for all rows), and each table, `(..., V)`.
    """
    rows = None if visited.all() else visited.nonzero().squeeze(1)
    taken = {name: table.clone() if rows is None else table[..., rows] for name, table in tables.items()}
    return {"num_rows": len(visited), "rows": rows, **taken}


def unpack(
    state: Mapping[str, Any],
    tables: Mapping[str, Tensor],
    rows: Tensor | None = None,
    new: Mapping[str, float] | None = None,
) -> None:
    """Fill tables with the saved rows, and with the values of a new table elsewhere.

    Args:
        state (`Mapping`): from [`packed`].
        tables (`Mapping[str, Tensor]`): name -> table; changed in place.
        rows (`Tensor`, *optional*): `(V,)`, the rows that the saved rows are now; -1 for a row that is gone. `None`:
            the rows have not changed.
        new (`Mapping[str, float]`, *optional*): name -> the value of a new table, if it is not 0.
    """
    now = state["rows"] if rows is None else rows
    for name, table in tables.items():
        if now is None:
            table.copy_(state[name])
        else:
            table.fill_((new or {}).get(name, 0))
            table[..., now[now >= 0]] = state[name][..., now >= 0]


def saved_rows(state: Mapping[str, Any]) -> Tensor:
    """Return the rows that a state of [`packed`] holds, `(V,)`."""
    return torch.arange(state["num_rows"]) if state["rows"] is None else state["rows"]


def grown(table: Tensor, num_rows: int, value: float) -> Tensor:
    """Return a table with room for `num_rows` rows or more; the new rows have the value."""
    room = table.shape[-1]
    if num_rows <= room:
        return table
    # Doubling: the cost of a row stays the same however large the table gets.
    new = table.new_full((*table.shape[:-1], max(num_rows, 2 * room)), value)
    new[..., :room] = table
    return new
