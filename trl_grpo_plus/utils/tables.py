"""Tables of checks: one row for each check with its result, and the layout of rows as text."""

import os
import sysconfig
import textwrap
import traceback
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .terminal import visible
from .validation import ConfigError


OK, FAILED, UNSEEN, WARNED = "ok", "FAILED", "not seen", "warning"
WIDTH = 119


@dataclass(frozen=True)
class CheckRow:
    """The result of one check."""

    name: str  # the subject of the check
    status: str  # FAILED: the run would not work; UNSEEN: cannot be checked here; WARNED: the run is launched anyway
    text: str


def refused(name: str, check: Callable[..., Any], *args: Any) -> list[CheckRow]:
    """Return a failed row with the message if `check` refuses; no row otherwise."""
    try:
        check(*args)
    except ConfigError as error:
        return [CheckRow(name, FAILED, str(error))]
    return []


def failures(rows: Iterable[CheckRow]) -> list[CheckRow]:
    """Return the rows that failed."""
    return [row for row in rows if row.status == FAILED]


def raise_failures(rows: Iterable[CheckRow]) -> None:
    """Raise the texts of the rows that failed, in one [`ConfigError`]; return if none did."""
    if failed := failures(rows):
        raise ConfigError(*(row.text for row in failed))


def in_a_line(error: BaseException) -> str:
    """Return an error of a user's function in one line: its type, text and place in the user's own code."""
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [place for place in places if not _is_library(place[0])]
    file, line = (own or places)[-1]
    return f"{type(error).__name__}: {error} ({file}:{line})"


def _is_library(file: str) -> bool:
    """Return whether a file is Python's or an installed package's. Both may lie beside the user's own code."""
    of_python = (os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib"))
    installed = not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)
    return installed or file.startswith(("<", *of_python))


def in_short(error: BaseException) -> str:
    """Return an error of a library in one line: its type, and the first line of its text that is not blank."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def table(rows: Sequence[CheckRow]) -> str:
    """Return the rows as text, and a closing line with the overall result."""
    cells = [(row.name, f"{row.status:<8}", row.text) for row in rows]
    return "\n".join([*aligned(cells, WIDTH), "", closing(rows)])


def closing(rows: Sequence[CheckRow]) -> str:
    """Return the overall result of the checks, in a few sentences."""
    kinds = (FAILED, UNSEEN, WARNED)
    failed, unseen, warned = (", ".join(dict.fromkeys(row.name for row in rows if row.status == s)) for s in kinds)
    sentences = [f"FAILED: {failed}."] if failed else []
    if unseen:
        sentences.append(f"Not seen here: {unseen}. Check again where that is possible.")
    if warned:
        sentences.append(f"Warnings, which do not stop a run: {warned}.")
    return " ".join(sentences) or "All checks passed."


NARROWEST = 40  # of a last cell: long names before it make its lines longer than the width


def aligned(rows: Iterable[Sequence[str]], width: int | None = None, right: Container[int] = ()) -> list[str]:
    """Lay rows of cells out in aligned columns, with two blanks between columns; return the lines.

    Args:
        rows (`Iterable[Sequence[str]]`): rows with the same number of cells each.
        width (`int`, *optional*): of a line, to which the last cell is wrapped. `None`: the last cell is not wrapped.
        right (`Container[int]`, *optional*, defaults to `()`): columns whose cells are aligned to the right.
    """
    rows = [[*map(visible, row)] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    indent = sum(widths[:-1]) + 2 * len(widths[:-1])
    lines = []
    for row in rows:
        cells = [f"{cell:{'>' if at in right else '<'}{widths[at]}}" for at, cell in enumerate(row)]
        first, *more = _wrapped(row[-1], max(width - indent, NARROWEST)) if width else cells[-1:]
        lines.append("  ".join([*cells[:-1], first]).rstrip())
        lines += [(" " * indent + line).rstrip() for line in more]
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    lines = [textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) for line in text.splitlines()]
    return [line for part in lines or [[""]] for line in part or [""]]
