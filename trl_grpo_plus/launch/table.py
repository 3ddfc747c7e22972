"""What `trl-grpo-plus check` found: a row a check, and what it comes to."""

import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


OK, FAILED, UNSEEN = "ok", "FAILED", "not seen"
WIDTH = 119


@dataclass(frozen=True)
class Row:
    """One check.

    Args:
        name (`str`): what was looked at.
        status (`str`): "ok"; "FAILED": the run would not work; "not seen": it could not be looked at here.
        text (`str`): what was found.
    """

    name: str
    status: str
    text: str


def tried(name: str, check: Callable[[], str | None]) -> list[Row]:
    """A row of what `check` says it found, none where it says nothing, a failed one of its `ValueError`."""
    try:
        text = check()
    except ValueError as error:
        return [Row(name, FAILED, str(error))]
    return [] if text is None else [Row(name, OK, text)]


def told(error: BaseException) -> str:
    """An error of somebody else's function in a line: what, and where, the libraries that it calls passed over."""
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [place for place in places if not place[0].startswith((sys.prefix, sys.base_prefix, "<"))]
    file, line = (own or places)[-1]
    return f"{type(error).__name__}: {error} ({file}:{line})"


def table(rows: Sequence[Row]) -> str:
    """The rows as text, and a line of what they come to."""
    width = max(len(row.name) for row in rows) + 2
    lines = [line for row in rows for line in _lines(row, width)]
    return "\n".join([*lines, "", closing(rows)])


def closing(rows: Iterable[Row]) -> str:
    """How it stands with the run, in a sentence or two."""
    rows = list(rows)
    failed = [row.name for row in rows if row.status == FAILED]
    unseen = [row.name for row in rows if row.status == UNSEEN]
    said = []
    if failed:
        said.append(f"FAILED: {', '.join(dict.fromkeys(failed))}.")
    if unseen:
        said.append(f"Not seen here: {', '.join(dict.fromkeys(unseen))}; check again where it can be.")
    return " ".join(said) or "All that was looked at is in order."


def _lines(row: Row, width: int) -> list[str]:
    indent = width + 10
    found: list[str] = []
    for line in row.text.splitlines() or [""]:
        found += textwrap.wrap(line, WIDTH - indent, break_long_words=False, break_on_hyphens=False) or [""]
    first, *more = found
    return [f"{row.name:<{width}}{row.status:<10}{first}", *(" " * indent + line for line in more)]
