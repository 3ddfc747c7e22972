"""One HTML page from a run's traces: each prompt's attempts side by side, in a file that loads nothing.

The page is `viewer/page.html` with the style sheet and the scripts of that folder written into it, and the data in
script elements that are not run: the head and the list as JSON, the texts of some groups at a time as raw deflate in
base64, which the page unpacks as they are looked at.

What models write is not to be trusted. Here it only ever becomes JSON without "<"; there it only ever becomes text.
"""

import base64
import hashlib
import json
import math
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import IO, Any, NamedTuple

from .. import traces
from ..common.files import replace
from ..traces import Row, group_key
from .beliefs import calibration
from .groups import Tally, by_name, columns, curves, detail, entry, names_by_group


SCRIPTS = ("base", "text", "search", "curves", "beliefs", "list", "credit", "group", "main", "keys", "start")
CHUNK = 256 * 1024  # bytes of JSON, before they are packed
_TAGS = 120  # bytes of markup about a chunk, at most


@dataclass(frozen=True)
class Page:
    """What [`write_page`] wrote, and how much of the run found room in it."""

    path: Path
    bytes: int
    groups_total: int
    groups_written: int
    attempts_total: int
    attempts_written: int


def write_page(run: str | Path, output: str | Path, max_mb: float = 100) -> Page:
    """Write the page of a run.

    Where not everything fits, whole groups are left out: first those that taught nothing, then live ones, and at last
    those that an alarm names; each time evenly over the steps. The page says how many.

    Args:
        run (`str` or `Path`): a run's `output_dir`, or its `rollouts` folder. Where there are no traces, TRL's own
            `completions/*.parquet` are read as far as they go.
        output (`str` or `Path`): the HTML file; replaced once the new one is complete.
        max_mb (`float`, *optional*, defaults to `100`): most that the file may take, in 10^6 bytes.

    Returns:
        `Page`: what was written and left out.

    Raises:
        ValueError: there are no traces, `max_mb` leaves no room for any, or `output` is a folder.

    Example:
        >>> write_page("output/my-run", "report.html").groups_written  # doctest: +SKIP
        384
    """
    output = Path(output)
    if output.is_dir():
        raise ValueError(
            f"{output} is a folder. Give the name of the file to write, such as {output / 'report.html'}."
        )
    source = _source(run)
    with tempfile.TemporaryFile() as spool:
        tally = Tally()
        stored = list(_store(source.groups, names_by_group(source.alarms), tally, spool))
        if not stored:
            raise ValueError(f"{run} has traces, but no group in them is whole yet. Wait for the first step to end.")
        head = _head(source, [group.size for group in stored], tally)
        room = int(max_mb * 1e6) - sum(map(len, (*_template(), _block("head", head)))) - 1000
        chosen = choose(stored, room)
        if not chosen:
            least = math.ceil((min(group.cost for group in stored) + int(max_mb * 1e6) - room) / 1e4) / 100
            raise ValueError(f"max_mb={max_mb} leaves no room for a single group. This run needs {least} or more.")
        head |= {"groups": len(chosen), "attempts": sum(group.size for group in chosen)}
        size = replace(output, (piece.encode() for piece in _pieces(head, chosen, spool)))
    return Page(output, size, len(stored), len(chosen), head["attempts_total"], head["attempts"])


def panel(
    groups: Sequence[Sequence[Row]],
    title: str = "Attempts side by side",
    weights: dict[str, float] | None = None,
) -> str:
    """The same page for a few groups, without curves, as one text.

    For wandb: `wandb.Html(panel(groups), inject=False, data_is_not_path=True)`; what it would inject is blocked.

    Args:
        groups (`Sequence[Sequence[dict]]`): whole groups of trace rows.
        title (`str`, *optional*): heading of the page.
        weights (`dict[str, float]`, *optional*): of the rewards; 0 is shown as a monitor.
    """
    source = _Source(title, groups, [], [], {"rewards": weights})
    head = _head(source, [len(rows) for rows in groups], Tally(), panel=True)
    index = {**columns(entry(rows) for rows in groups), "chunks": [len(groups)]}
    blocks = [_block("head", head), _block("index", index), _block("chunk-0", [detail(rows) for rows in groups])]
    return "".join(blocks).join(_template())


# -- what there is to show


@dataclass(frozen=True)
class _Source:
    title: str
    groups: Iterable[Sequence[Row]]
    metrics: list[Row]
    alarms: list[Row]
    about: Row
    note: str = ""


def _source(run: str | Path) -> _Source:
    path = Path(run).resolve()
    try:
        folder = traces.find(run)
    except ValueError:
        if not traces.stock_trl.files(run):
            raise
        title = path.parent.name if path.name == "completions" else path.name
        return _Source(title, traces.stock_trl.groups(run), [], [], {}, traces.stock_trl.NOTE)
    title = path.parent.name if path.name == traces.FOLDER else path.name
    read = (traces.journal(folder, "metrics"), traces.journal(folder, "alarms"), traces.about(folder))
    return _Source(title, traces.groups(folder), *read)


def _head(source: _Source, sizes: Sequence[int], tally: Tally, panel: bool = False) -> dict[str, Any]:
    return {
        "title": source.title,
        "weights": source.about.get("rewards") or {},
        "curves": curves(source.metrics, tally),
        "calibration": calibration(tally.beliefs),
        "alarms": by_name(source.alarms),
        "note": source.note,
        "panel": panel,
        **dict.fromkeys(("groups", "groups_total"), len(sizes)),
        **dict.fromkeys(("attempts", "attempts_total"), sum(sizes)),
    }


# -- what finds room


class Stored(NamedTuple):
    """Where a group lies in the spool file, and how much it matters."""

    when: tuple[str, int]  # split, step
    rank: int  # 0 named by an alarm, 1 alive or without a verdict, 2 dead
    size: int
    at: int
    line: int  # bytes of its line in the list
    packed: int  # bytes of its texts, packed
    raw: int  # and as JSON

    @property
    def cost(self) -> int:
        """Bytes in the page, at most: the texts grow by a third in base64, the line shrinks."""
        return self.packed * 4 // 3 + self.line + _TAGS


def _store(
    groups: Iterable[Sequence[Row]], named: dict[tuple[int, ...], set[str]], tally: Tally, spool: IO[bytes]
) -> Iterator[Stored]:
    """Put each group into the spool file: a run's texts need not fit into memory."""
    at = 0
    for rows in groups:
        tally.see(rows)
        first = rows[0]
        alarms = named.get((first["step"], *group_key(first)), ()) if first["split"] == "train" else ()
        line = entry(rows, alarms)
        written, raw = _json(line).encode(), _json(detail(rows)).encode() + b","
        packed = _deflate(raw)
        spool.write(written + packed)
        rank = 0 if line["alarms"] else 1 if line["verdict"] in ("alive", None) else 2
        yield Stored((first["split"], first["step"]), rank, len(rows), at, len(written), len(packed), len(raw))
        at += len(written) + len(packed)


def choose(stored: Sequence[Stored], room: int) -> list[Stored]:
    """The groups that fit into `room` bytes, in order: the first of each step by rank, then the second, and so on."""
    whens = list(dict.fromkeys(group.when for group in stored))
    turn = {when: _scattered(i) for i, when in enumerate(whens)}
    seen: dict[Any, int] = defaultdict(int)
    order = []
    for number, group in enumerate(stored):
        order.append((group.rank, seen[group.when, group.rank], turn[group.when], number))
        seen[group.when, group.rank] += 1
    chosen = []
    for *_, number in sorted(order):
        if stored[number].cost <= room:
            room -= stored[number].cost
            chosen.append(number)
    return [stored[number] for number in sorted(chosen)]


def _scattered(i: int) -> float:
    """0, 1/2, 1/4, 3/4, 1/8...: wherever one stops, the numbers so far are spread evenly."""
    return int(f"{i:032b}"[::-1], 2) / 2**32


# -- the page


def _pieces(head: dict[str, Any], chosen: Sequence[Stored], spool: IO[bytes]) -> Iterator[str]:
    def read(group: Stored, texts: bool) -> bytes:
        spool.seek(group.at + (group.line if texts else 0))
        return spool.read(group.packed if texts else group.line)

    chunks = list(_chunks(chosen))
    index = columns(json.loads(read(group, texts=False)) for group in chosen)
    index["chunks"] = [len(chunk) for chunk in chunks]
    before, after = _template()
    yield before
    yield _block("head", head)
    yield _packed_block("index", _deflate(_json(index).encode(), zlib.Z_FINISH))
    for number, chunk in enumerate(chunks):
        parts = [_deflate(b"["), *(read(group, texts=True) for group in chunk), _deflate(b"null]", zlib.Z_FINISH)]
        yield _packed_block(f"chunk-{number}", b"".join(parts))
    yield after


def _chunks(chosen: Sequence[Stored]) -> Iterator[list[Stored]]:
    chunk: list[Stored] = []
    size = 0
    for group in chosen:
        chunk.append(group)
        size += group.raw
        if size >= CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _deflate(data: bytes, end: int = zlib.Z_SYNC_FLUSH) -> bytes:
    """A piece of a raw deflate stream that ends on a byte and refers to nothing before it: pieces can be joined."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush(end)


def _json(value: Any) -> str:
    """JSON in ASCII: lone surrogates, NUL and line separators are escapes in it."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _block(name: str, value: Any) -> str:
    # Without "<" nothing in it can end the element or open a comment.
    return f'<script type="application/json" id="{name}">{_json(value).replace("<", chr(92) + "u003c")}</script>\n'


def _packed_block(name: str, data: bytes) -> str:
    return f'<script type="application/deflate" id="{name}">{base64.b64encode(data).decode()}</script>\n'


def _template() -> tuple[str, str]:
    """The page before the data and after it."""
    folder = files(__package__) / "viewer"
    style = (folder / "style.css").read_text(encoding="utf-8")
    parts = "\n".join((folder / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{parts}}})();\n'
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; worker-src blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    page = (folder / "page.html").read_text(encoding="utf-8")
    before, after = page.replace("%POLICY%", policy).replace("%STYLE%", style).split("%DATA%")
    return before, after.replace("%SCRIPT%", script)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
