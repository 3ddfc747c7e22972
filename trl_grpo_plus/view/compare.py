"""One page for several runs: their curves in one plot, their different options, and each shared prompt's attempts.

The runs' indexes tell which prompts they share. Texts are read only for groups that may fit into the page.
"""

import json
import math
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from .. import traces
from ..traces import Points, Row, entry, is_reward
from ..utils.files import check_output, remove_abandoned, replace
from ..utils.validation import ConfigError
from . import file_index
from .group_data import Tally, columns, detail, thin
from .run_source import folder_of
from .run_summary import AXES, Run, differing, open_runs, shared_folder
from .size_budget import Spool, Stored
from .template import block, chunk_blocks, in_chunks, pack, packed_block, template


SCRIPTS = ("base", "text", "search", "plot", "compare_runs", "compare")
# Training metrics that are drawn first, after the rewards of the evaluations.
_FIRST = ("groups/alive", "completions/mean_length", "kl", "entropy")
_PAGE = "compare.html"
MOST_POINTS = 1000  # maximum number of points of a curve
MISFITS = 100  # number of prompts in a row that do not fit, after which no more are tried


@dataclass(frozen=True)
class Compared:
    """The result of [`write_comparison`]: the file, and counts of the prompts that two or more runs sampled."""

    path: Path
    bytes: int
    names: tuple[str, ...]
    prompts_shared: int
    prompts_written: int


def write_comparison(runs: Sequence[str | Path], output: str | Path | None = None, max_mb: float = 100) -> Compared:
    """Write the page that compares two or more runs.

    The page shows the prompts that at least two runs sampled. For each prompt it holds the first and the last group of
    each run, and the groups between if there is room. Prompts whose last mean rewards lie furthest apart come first.
    The page says how many prompts did not fit. After 100 prompts in a row that do not fit, no more are tried.

    Args:
        runs (`Sequence`): the runs' `output_dir`s. Runs of stock TRL are accepted, and hold fewer columns.
        output (`str` or `Path`, *optional*): the HTML file. Default: `compare.html` in the innermost folder that
            holds all runs.
        max_mb (`float`, *optional*, defaults to `100`): maximum size of the file, in 10^6 bytes.

    Returns:
        `Compared`: the path, the size, the runs' names, and the counts of prompts.

    Raises:
        ConfigError: a folder is not a run, two are the same, `max_mb` leaves no room, or `output` is a folder
            or one of a run's own files.
    """
    opened = open_runs(runs)
    path = Path(output) if output else shared_folder([run.folder for run in opened]) / _PAGE
    check_output(path, _PAGE, [folder_of(run.folder) for run in opened if run.keeps_attempts])
    remove_abandoned(path)
    with tempfile.TemporaryFile() as file:
        texts = _Texts(opened, Spool(file))
        prompts = _prompts(texts.groups())
        head, metrics = _head(opened, texts.tallies, len(prompts))
        blocks = [packed_block(f"metric-{number}", pack(points)) for number, points in enumerate(metrics)]
        room = int(max_mb * 1e6) - sum(map(len, (*_template(), block("head", head), *blocks))) - 2000
        if room < 0:
            least = math.ceil((int(max_mb * 1e6) - room) / 1e4) / 100
            raise ConfigError(f"max_mb={max_mb} leaves no room for the curves. These runs need {least} or more.")
        chosen = choose(prompts, room, texts)
        size = replace(path, (piece.encode() for piece in _pieces(head, blocks, chosen, texts)))
    return Compared(path, size, tuple(run.name for run in opened), len(prompts), len(chosen))


# -- the groups of all runs


class RunGroup(NamedTuple):
    """A group: its run and its number in the run, its prompt, and its mean reward."""

    run: int
    number: int
    prompt: int
    when: tuple[int, ...]  # step, batch, round, group
    mean: float | None


class _Texts:
    """The groups of all runs, and the temporary file for the lines and texts of those that were asked for.

    Groups are listed from the runs' indexes. If a run of stock TRL is among the runs, the texts of all runs are read
    at once instead. Its files hold no references, so prompts must be identified by their texts alone, while an index
    identifies a prompt by its text and reference.

    Attributes:
        spool ([`Spool`]): the temporary file.
        tallies (`list[Tally]`): the sums of each run.
    """

    def __init__(self, runs: Sequence[Run], spool: Spool):
        self._runs, self.spool = runs, spool
        self._bare = any(run.of_stock_trl for run in runs)
        self._stored: dict[tuple[int, int], Stored] = {}
        self._indexes = [
            file_index.without_files(self._stored_one_by_one(number))
            if self._bare or run.rollouts is None
            else file_index.read_run(run.rollouts)
            for number, run in enumerate(runs)
        ]
        self._bytes = [index.bytes() for index in self._indexes]
        self._packed, self._read = 3, 10  # sums of bytes in the page and of bytes read; the first values are a guess
        self.tallies = [index.tally for index in self._indexes]

    def groups(self) -> Iterator[RunGroup]:
        """Yield the groups of each run."""
        prompts: dict[tuple[str, int], int] = {}
        for run, index in enumerate(self._indexes):
            for number, (split, identity, when, mean) in enumerate(index.samples()):
                prompt = prompts.setdefault((split, identity), len(prompts))
                yield RunGroup(run, number, prompt, when, mean)

    def pack_ahead(self, lists: Iterable[Sequence[RunGroup]], room: int) -> int:
        """Pack the groups of the first lists, about as many as fit into the room, and return the number of lists.

        The groups are read in the order of the runs: groups of one step are often in one member of a gzip file.
        """
        count, groups = 0, list[RunGroup]()
        for count, of_list in enumerate(lists, 1):  # noqa: B007 - it is returned
            groups += of_list
            room -= sum(map(self._estimate, of_list))
            if room < 0:
                break
        for group in sorted(groups, key=lambda group: (group.run, group.number)):
            self.stored(group)
        return count

    def stored(self, group: RunGroup) -> Stored:
        """Return the position of a group's line and texts; read and store them first if necessary."""
        key = group.run, group.number
        if key not in self._stored:
            self._store(key, self._indexes[group.run].rows(group.number))
            self._packed += self._stored[key].cost
            self._read += int(self._bytes[group.run][group.number])
        return self._stored[key]

    def _estimate(self, group: RunGroup) -> int:
        if place := self._stored.get((group.run, group.number)):
            return place.cost
        return int(self._bytes[group.run][group.number]) * self._packed // self._read

    def _stored_one_by_one(self, run: int) -> Iterator[Sequence[Row]]:
        for number, rows in enumerate(self._runs[run].groups()):
            yield self._store((run, number), rows)

    def _store(self, key: tuple[int, int], rows: Sequence[Row]) -> Sequence[Row]:
        """Write a group to the temporary file, and return the attempts that its line of the list is made from."""
        texts = detail(rows, self._runs[key[0]].rollouts)
        rows = [{**row, "reference": None} for row in rows] if self._bare else rows
        self._stored[key] = self.spool.add(entry(rows), texts)
        return rows


@dataclass(frozen=True)
class Shared:
    """A prompt, with the groups of each run that sampled the prompt, in order."""

    by_run: dict[int, list[RunGroup]]

    @property
    def gap(self) -> float:
        """Difference between the highest and the lowest last mean of the runs; -1 if fewer than two are known."""
        means = [groups[-1].mean for groups in self.by_run.values() if groups[-1].mean is not None]
        return max(means) - min(means) if len(means) > 1 else -1.0

    @property
    def ends(self) -> list[RunGroup]:
        """The first and the last group of each run."""
        return [group for groups in self.by_run.values() for group in dict.fromkeys((groups[0], groups[-1]))]

    @property
    def between(self) -> list[RunGroup]:
        """All other groups of each run."""
        return [group for groups in self.by_run.values() for group in groups[1:-1]]


def _prompts(groups: Iterable[RunGroup]) -> list[Shared]:
    """Return the prompts that two or more runs sampled, by descending gap and then descending number of runs."""
    found: dict[int, dict[int, list[RunGroup]]] = defaultdict(lambda: defaultdict(list))
    for group in groups:
        found[group.prompt][group.run].append(group)
    of_several = [by for by in found.values() if len(by) > 1]
    shared = [Shared({run: sorted(of, key=lambda g: g.when) for run, of in by.items()}) for by in of_several]
    return sorted(shared, key=lambda prompt: (-prompt.gap, -len(prompt.by_run)))


def choose(prompts: Sequence[Shared], room: int, texts: _Texts) -> list[tuple[Shared, list[RunGroup]]]:
    """Return the prompts and groups that fit into `room` bytes.

    First and last groups are chosen first, prompt by prompt in order. The groups between take the room that remains.
    """
    fitting, room = _fitting([prompt.ends for prompt in prompts], room, texts)
    chosen = [(prompts[number], prompts[number].ends) for number in fitting]
    longer = [number for number, (prompt, _) in enumerate(chosen) if prompt.between]
    fitting, _ = _fitting([chosen[number][0].between for number in longer], room, texts)
    for number in (longer[n] for n in fitting):
        prompt, ends = chosen[number]
        chosen[number] = (prompt, sorted([*ends, *prompt.between], key=lambda group: (group.run, group.when)))
    return chosen


def _fitting(lists: Sequence[Sequence[RunGroup]], room: int, texts: _Texts) -> tuple[list[int], int]:
    """Return the numbers of the lists of groups that fit one after the other, and the room that remains.

    After [`MISFITS`] lists in a row that do not fit, no more are read.
    """
    fitting: list[int] = []
    packed = misfits = 0
    for number, groups in enumerate(lists):
        if number == packed:
            packed += texts.pack_ahead(islice(lists, number, None), room)
        cost = sum(texts.stored(group).cost for group in groups)
        if cost <= room:
            room, misfits = room - cost, 0
            fitting.append(number)
        elif (misfits := misfits + 1) == MISFITS:
            break
    return fitting, room


# -- the page


def _head(runs: Sequence[Run], tallies: Sequence[Tally], shared: int) -> tuple[dict[str, Any], list[Any]]:
    """Return the page's head, and the points of each metric for each run; `None` if a run lacks the metric."""
    logged = [run.series or tally.series() for run, tally in zip(runs, tallies, strict=True)]
    names = list(dict.fromkeys(name for series in logged for name in sorted(series)))
    settings: dict[str, list[int]] = defaultdict(list)
    for number, run in enumerate(runs):
        settings[run.setting].append(number)
    together = list(settings.values())
    head = {
        "title": " · ".join(run.name for run in runs),
        "runs": [{"name": run.name, "attempts": run.keeps_attempts, **run.outcome} for run in runs],
        "settings": together,
        "options": differing([[runs[number] for number in numbers] for numbers in together]),
        "axes": {axis: [_points(run.axes.get(axis)) for run in runs] for axis in AXES},
        "metrics": names,
        "first": _first(names, logged),
        "weights": next((run.about["rewards"] for run in runs if run.about.get("rewards")), {}),
        "note": "",  # used by a single run's page only
        "notes": _notes(runs),
        "shared": shared,
    }
    return head, [[_points(series.get(name)) for series in logged] for name in names]


def _points(points: Points | None) -> Points | None:
    return thin(points, MOST_POINTS) if points else None


def _first(names: Sequence[str], logged: Sequence[dict[str, Points]]) -> list[str]:
    alive = [] if all("groups/alive" in series for series in logged) else ["frac_reward_zero_std"]
    preferred = ["reward", *filter(is_reward, names), *_FIRST[:1], *alive, *_FIRST[1:]]
    return [name for name in preferred if name in names]


def _notes(runs: Sequence[Run]) -> list[str]:
    notes = []
    for run in runs:
        if not run.series:
            notes.append(f"{run.name} has no log: its curves are computed from the attempts that it kept.")
        if not run.keeps_attempts:
            notes.append(f"{run.name} has no attempts: its folder holds neither rollouts nor TRL's completions.")
    if any(run.of_stock_trl for run in runs):
        names = ", ".join(run.name for run in runs if run.of_stock_trl)
        same = "Prompts are the same where their texts are, whatever the reference."
        notes.append(f"{names}: {traces.trl_completions.NOTE} {same}")
    rewards = {json.dumps(run.about["rewards"], sort_keys=True) for run in runs if run.about.get("rewards")}
    if len(rewards) > 1:
        notes.append("The runs are scored by other rewards or weights: their totals are not on one scale.")
    untold = [run.name for run in runs if not run.tells_all]
    if untold:
        whose = ", ".join(untold)
        notes.append(f"Options of {whose} are not known in full, so that no seeds are averaged there.")
    return notes


def _pieces(
    head: dict[str, Any], blocks: Sequence[str], chosen: Sequence[tuple[Shared, list[RunGroup]]], texts: _Texts
) -> Iterator[str]:
    groups = [group for _, kept in chosen for group in kept]
    places = [texts.stored(group) for group in groups]
    index = columns(texts.spool.line(place) for place in places)
    index["groups"]["run"] = [group.run for group in groups]
    index["chunks"] = in_chunks(place.raw for place in places)
    # For each prompt, `prompts` counts the groups in this page and `times` counts all groups of each run.
    index["prompts"] = [len(kept) for _, kept in chosen]
    index["times"] = [[len(prompt.by_run.get(n, ())) for n in range(len(head["runs"]))] for prompt, _ in chosen]
    before, after = _template()
    yield before
    yield block("head", head)
    yield packed_block("index", pack(index))
    yield from blocks
    yield from chunk_blocks((texts.spool.packed(place) for place in places), index["chunks"])
    yield after


def _template() -> tuple[str, str]:
    return template("compare", ["style", "reading", "narrow", "compare"], SCRIPTS)
