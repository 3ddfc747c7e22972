"""One HTML page from a run's traces: each prompt's attempts side by side, in a file that loads nothing.

The file holds the head as JSON. The list of groups is compressed. The texts are compressed in chunks of some groups.
The page unpacks a chunk when a reader looks at one of its groups.
"""

import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..traces import Block, Row, entry, group_key
from ..utils.files import check_output, remove_abandoned, replace
from ..utils.validation import ConfigError
from . import file_index, prompt_history
from .file_index import without_files
from .group_data import columns, detail, names_by_group
from .overview import MOST, metrics_table, opening, telling
from .rescored import Rescored, marked, words
from .run_source import Source, folder_of, head_of, source_of
from .size_budget import Candidate, Spool, fitting, in_turn
from .template import TAGS, block, chunk_blocks, in_chunks, pack, packed_block, template


SCRIPTS = ("base", "text", "search", "plot", "markdown", "overview", "list", "group", "prompts", "page")
LIVE = (*SCRIPTS[:-1], "live", SCRIPTS[-1])  # for a served page: a page from disk sends no requests
_FIRST = 512  # number of groups that are read before it is known how many fit
_SPARE = 0.02  # share of the room that may stay empty before all groups are read
STYLES = ("style", "reading", "follow", "narrow")


@dataclass(frozen=True)
class Page:
    """The result of [`write_page`]: the file, and how much of the run fitted into it."""

    path: Path
    bytes: int
    groups_total: int
    groups_written: int
    attempts_total: int
    attempts_written: int


def write_page(run: str | Path, output: str | Path, max_mb: float = 100, rescored: Rescored | None = None) -> Page:
    """Write the page of a run.

    If not everything fits, whole groups are left out, evenly over the steps. Dead groups are left out first, then live
    groups, and last the groups that an alarm names. The page says how many groups are left out.

    Args:
        run (`str` or `Path`): a run's `output_dir`, or its `rollouts` folder. If there are no traces, TRL's own
            `completions/*.parquet` are read, which hold fewer columns.
        output (`str` or `Path`): the HTML file. An existing file is replaced once the new file is complete.
        max_mb (`float`, *optional*, defaults to `100`): maximum size of the file, in 10^6 bytes.
        rescored ([`Rescored`], *optional*): results of rewards that were tried. The page then shows only the groups
            that were scored, opens on the disagreements, and leaves the disagreements out last.

    Returns:
        `Page`: the path, the size, and the counts of groups and attempts, in total and written.

    Raises:
        ConfigError: there are no traces, `max_mb` leaves no room for any group, or `output` is a folder or one of
            the run's own files.

    Example:
        >>> write_page("output/my-run", "report.html").groups_written  # doctest: +SKIP
        384
    """
    output = Path(output)
    source = source_of(run)
    check_output(output, "report.html", [folder_of(run)])
    remove_abandoned(output)
    with tempfile.TemporaryFile() as file:
        spool = Spool(file)
        supply = _Supply(source, spool, rescored)
        if not supply.groups:
            raise ConfigError(f"{run} has traces, but no group in them is whole yet. Wait for the first step to end.")
        head = head_of(source, supply.groups)
        if rescored is not None:
            head["rescored"] = {"told": rescored.summary, "words": words(rescored)}
        room = int(max_mb * 1e6) - sum(map(len, (*_template(), block("head", head)))) - 1000
        metrics = _metrics_block(source.metrics, min(room // 4, room - supply.least))
        room -= len(metrics)
        lists, room = _lists(supply.groups.blocks(), source.about, room, supply.least)
        chosen = supply.fill(room)
        if not chosen:
            least = math.ceil((supply.least + int(max_mb * 1e6) - room) / 1e4) / 100
            raise ConfigError(f"max_mb={max_mb} leaves no room for a single group. This run needs {least} or more.")
        head |= {"groups": len(chosen), "attempts": sum(group.size for group in chosen)}
        if rescored is None:
            head["opening"] = opening((group.place, group.sort_key) for group in chosen)
        size = replace(output, (piece.encode() for piece in _pieces(head, metrics, lists, chosen, spool)))
    return Page(output, size, len(supply.groups), len(chosen), head["attempts_total"], head["attempts"])


def panel(groups: Sequence[Sequence[Row]], title: str = "Attempts side by side") -> str:
    """Return the page of a few groups, without curves, as one string.

    For wandb: `wandb.Html(panel(groups), inject=False, data_is_not_path=True)`. The page's policy blocks everything
    that wandb would inject.

    Args:
        groups (`Sequence[Sequence[dict]]`): whole groups of trace rows.
        title (`str`, *optional*): heading of the page.
    """
    indexed, numbers = without_files(groups), dict[str, int]()
    head = head_of(Source(title, [], [], {}), indexed, panel=True)
    lines = (indexed.line(number, {}) for number in range(len(indexed)))
    lists, listed = prompt_history.lists(indexed.blocks())
    index = {**columns(lines, prompts=numbers), "chunks": [len(groups)], "listed": [numbers[it] for it in listed]}
    blocks = [block("head", head), block("index", index), block("lists", lists)]
    blocks.append(block("chunk-0", [detail(rows) for rows in groups]))
    return "".join(blocks).join(template("page", STYLES, SCRIPTS))


def served(news: dict[str, Any]) -> tuple[bytes, str]:
    """Return the page that a server gives out, and the page's content security policy.

    The page asks the server for texts and for new data.

    Args:
        news (`dict`): current result of [`~trl_grpo_plus.view.live_feed.Feed.news`].
    """
    before, after = _template(LIVE, "connect-src 'self'; ")
    policy = before.partition('Policy" content="')[2].partition('"')[0]
    return f"{before}{block('head', news['head'])}{block('index', news['index'])}{after}".encode(), policy


# -- contents of the page


class _Supply:
    """The groups of a run, and the choice of those that fit into a page.

    The texts of a long run are not all read. Groups are read in the order in which a page chooses them, a batch at a
    time, and wait packed in the spool file. Those of stock TRL, whose files have no index, are all read.

    Attributes:
        groups ([`~trl_grpo_plus.view.file_index.Groups`]): all groups of the run.
    """

    def __init__(self, source: Source, spool: Spool, rescored: Rescored | None):
        self._source, self._spool, self._rescored = source, spool, rescored
        self._named = names_by_group(source.alarms)
        self._stored: dict[int, Candidate] = {}
        if source.folder is None:
            self.groups = without_files(self._stored_one_by_one(source.groups))
        else:
            was_rescored = None if rescored is None else lambda *key: rescored.differs(*key) is not None
            self.groups = file_index.read_run(source.folder, was_rescored)
        self._sizes = self.groups.bytes()
        self._order = in_turn(self.groups.whens(), self._ranks())
        self._read(_FIRST)

    @property
    def least(self) -> int:
        """Number of bytes that the smallest group read so far takes in the page."""
        return min(group.stored.cost for group in self._stored.values())

    def fill(self, room: int) -> list[Candidate]:
        """Return the groups that fit into `room` bytes, in the order of the run."""
        while True:
            costs = [(n, self._stored[n].stored.cost) for n in self._order[: len(self._stored)].tolist()]
            chosen = fitting(costs, room)
            left = room - sum(self._stored[n].stored.cost for n in chosen)
            if len(costs) == len(self.groups) or (chosen and left < max(self.least, _SPARE * room)):
                return [self._stored[n] for n in sorted(chosen)]
            # Read as many as fill the room if they compress like those read so far, plus a tenth of the latter.
            packed = sum(cost for _, cost in costs) / sum(self._sizes[n] for n, _ in costs)
            enough = int(np.count_nonzero(np.cumsum(self._sizes[self._order]) * packed < room))
            self._read(max(enough, len(costs)) + len(costs) // 10 + 1)

    def _ranks(self) -> Any:
        ranks = self.groups.ranks(self._named)
        if self._rescored is not None:
            differs = [self._rescored.differs(*key) for key in self.groups.group_keys()]
            ranks[np.array(differs, bool)] = 0
        return ranks

    def _read(self, count: int) -> None:
        """Store the first `count` groups of the order. Read them in the order of the run."""
        for number in np.sort(self._order[len(self._stored) : count]).tolist():
            self._store(number, self.groups.rows(number))

    def _stored_one_by_one(self, groups: Iterable[Sequence[Row]]) -> Iterator[Sequence[Row]]:
        for number, rows in enumerate(groups):
            self._store(number, rows)
            yield rows

    def _store(self, number: int, rows: Sequence[Row]) -> None:
        """Write a group to the spool file, and remember its place there."""
        rescored = self._rescored
        split, step, key = place = rows[0]["split"], rows[0]["step"], group_key(rows[0])
        alarms = self._named.get((step, *key), ()) if split == "train" else ()
        line, texts = entry(rows, alarms), detail(rows, self._source.folder)
        if rescored is not None and (tried := rescored.of(rows)) is not None:
            marked(line, texts, tried, rescored)
        self._stored[number] = Candidate(self._spool.add(line, texts), place, len(rows), telling(rows))


class _PackedLists(NamedTuple):
    packed: bytes
    prompts: list[str]  # identity of the prompt of each line


def _lists(blocks: Sequence[Block], about: Row, room: int, least: int) -> tuple[_PackedLists, int]:
    """Return the lists of prompts, and the bytes of room that remain.

    The lists are shortened until they take at most a tenth of the room and leave at least `least` bytes.
    """
    most = prompt_history.MOST
    while True:
        lists, identities = prompt_history.lists(blocks, about.get("solved_reward"), most)
        packed = pack(lists)
        # The index links each line to its prompt by a number of up to 7 digits.
        cost = len(packed) * 4 // 3 + 10 * len(identities) + TAGS
        if not identities or cost <= min(room // 10, room - least):
            return _PackedLists(packed, identities), room - cost
        most = min(most, len(identities)) // 2


def _metrics_block(metrics: Sequence[Row], room: int) -> str:
    """Return the block of all metrics, thinned until it fits into `room` bytes; "" if there are none or none fit."""
    for most in (MOST, MOST // 5, MOST // 25):
        text = packed_block("metrics", pack(metrics_table(metrics, most)))
        if metrics and len(text) <= room:
            return text
    return ""


def _pieces(
    head: dict[str, Any], metrics: str, lists: _PackedLists, chosen: Sequence[Candidate], spool: Spool
) -> Iterator[str]:
    numbers: dict[str, int] = {}
    index = columns((spool.line(group.stored) for group in chosen), prompts=numbers)
    index["listed"] = [numbers.get(identity, -1) for identity in lists.prompts]
    index["chunks"] = in_chunks(group.stored.raw for group in chosen)
    before, after = _template()
    yield before
    yield block("head", head)
    yield metrics
    yield packed_block("index", pack(index))
    yield packed_block("lists", lists.packed)
    yield from chunk_blocks((spool.packed(group.stored) for group in chosen), index["chunks"])
    yield after


def _template(scripts: Sequence[str] = SCRIPTS, more: str = "") -> tuple[str, str]:
    """Return the parts of the page before and after the data.

    `more` holds policy directives that a page from disk does not have.
    """
    return template("page", STYLES, scripts, more, rendering=True)
