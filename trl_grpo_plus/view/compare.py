"""One page for several runs: their curves in one plot, their different options, and each shared prompt's attempts.

The groups of all runs are first written to a temporary file. The shared prompts are known only once all groups have
been read.
"""

import json
import math
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from .. import traces
from ..traces import Row, entry
from ..utils.files import replace
from ..utils.validation import finite_or_none
from .group_data import Tally, columns, detail
from .run_summary import AXES, Points, Run, differing, open_runs, sampled, shared_folder
from .template import TAGS, array, block, chunks, deflate, dumped, pack, packed_block, template


SCRIPTS = ("base", "text", "search", "plot", "compare_runs", "compare")
# Training metrics that are drawn first, after the rewards of the evaluations.
_FIRST = ("groups/alive", "completions/mean_length", "kl", "entropy")
_PAGE = "compare.html"


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
    The page says how many prompts did not fit.

    Args:
        runs (`Sequence`): the runs' `output_dir`s. Runs of stock TRL are accepted, and hold fewer columns.
        output (`str` or `Path`, *optional*): the HTML file. Default: `compare.html` in the innermost folder that
            holds all runs.
        max_mb (`float`, *optional*, defaults to `100`): maximum size of the file, in 10^6 bytes.

    Returns:
        `Compared`: the path, the size, the runs' names, and the counts of prompts.

    Raises:
        ValueError: a folder is no run, two are the same, `max_mb` leaves no room, or `output` is a folder.
    """
    opened = open_runs(runs)
    path = Path(output) if output else shared_folder([run.folder for run in opened]) / _PAGE
    if path.is_dir():
        raise ValueError(f"{path} is a folder. Give the name of the file to write, such as {path / _PAGE}.")
    with tempfile.TemporaryFile() as spool:
        tallies = [Tally() for _ in opened]
        prompts = [shared for shared in _prompts(_store(opened, tallies, spool)) if len(shared.by_run) > 1]
        head, metrics = _head(opened, tallies, len(prompts))
        blocks = [packed_block(f"metric-{number}", pack(points)) for number, points in enumerate(metrics)]
        room = int(max_mb * 1e6) - sum(map(len, (*_template(), block("head", head), *blocks))) - 2000
        if room < 0:
            least = math.ceil((int(max_mb * 1e6) - room) / 1e4) / 100
            raise ValueError(f"max_mb={max_mb} leaves no room for the curves. These runs need {least} or more.")
        chosen = choose(prompts, room)
        size = replace(path, (piece.encode() for piece in _pieces(head, blocks, chosen, spool)))
    return Compared(path, size, tuple(run.name for run in opened), len(prompts), len(chosen))


# -- the groups of all runs


class Kept(NamedTuple):
    """A group's position in the temporary file, its run and prompt, and its mean reward."""

    run: int
    prompt: int
    when: tuple[int, ...]  # step, batch, round, group
    mean: float | None
    at: int
    line: int  # bytes of its line in the list
    packed: int  # bytes of its texts, packed
    raw: int  # bytes of its texts as JSON

    @property
    def cost(self) -> int:
        """Maximum number of bytes that the group takes in the page."""
        return self.packed * 4 // 3 + self.line + TAGS


def _store(runs: Sequence[Run], tallies: Sequence[Tally], spool: IO[bytes]) -> Iterator[Kept]:
    prompts: dict[tuple[str, str], int] = {}
    # TRL's own files have no references, so only the prompts can match.
    bare = any(run.of_stock_trl for run in runs)
    at = 0
    for number, run in enumerate(runs):
        for rows in run.groups():
            tallies[number].see(rows)
            told = entry([{**row, "reference": None} for row in rows] if bare else rows)
            line = dumped(told).encode()
            raw = dumped(detail(rows, run.rollouts)).encode() + b","
            packed = deflate(raw)
            spool.write(line + packed)
            prompt = prompts.setdefault((told["split"], told["prompt"]), len(prompts))
            when = tuple(told[key] for key in ("step", "batch", "round", "group"))
            yield Kept(number, prompt, when, _mean(rows), at, len(line), len(packed), len(raw))
            at += len(line) + len(packed)


def _mean(rows: Sequence[Row]) -> float | None:
    known = [reward for row in rows if (reward := finite_or_none(row.get("reward"))) is not None]
    return sum(known) / len(known) if known else None


@dataclass(frozen=True)
class Shared:
    """A prompt, with the groups of each run that sampled the prompt, in order."""

    by_run: dict[int, list[Kept]]

    @property
    def gap(self) -> float:
        """Difference between the highest and the lowest last mean of the runs; -1 if fewer than two are known."""
        means = [groups[-1].mean for groups in self.by_run.values() if groups[-1].mean is not None]
        return max(means) - min(means) if len(means) > 1 else -1.0

    @property
    def ends(self) -> list[Kept]:
        """The first and the last group of each run."""
        return [group for groups in self.by_run.values() for group in dict.fromkeys((groups[0], groups[-1]))]

    @property
    def between(self) -> list[Kept]:
        """All other groups of each run."""
        return [group for groups in self.by_run.values() for group in groups[1:-1]]


def _prompts(groups: Iterable[Kept]) -> list[Shared]:
    """Collect the groups by prompt, sorted by descending gap and then by descending number of runs."""
    found: dict[int, dict[int, list[Kept]]] = defaultdict(lambda: defaultdict(list))
    for group in groups:
        found[group.prompt][group.run].append(group)
    shared = [Shared({run: sorted(of, key=lambda g: g.when) for run, of in by.items()}) for by in found.values()]
    return sorted(shared, key=lambda prompt: (-prompt.gap, -len(prompt.by_run)))


def choose(prompts: Sequence[Shared], room: int) -> list[tuple[Shared, list[Kept]]]:
    """Return the prompts and groups that fit into `room` bytes.

    First and last groups are chosen first, prompt by prompt in order. The groups between take the room that remains.
    """
    chosen = []
    for prompt in prompts:
        cost = sum(group.cost for group in prompt.ends)
        if cost <= room:
            room -= cost
            chosen.append((prompt, prompt.ends))
    for number, (prompt, ends) in enumerate(chosen):
        cost = sum(group.cost for group in prompt.between)
        if prompt.between and cost <= room:
            room -= cost
            chosen[number] = (prompt, sorted([*ends, *prompt.between]))  # by run, then by step
    return chosen


# -- the page


def _head(runs: Sequence[Run], tallies: Sequence[Tally], shared: int) -> tuple[dict[str, Any], list[Any]]:
    """Return the page's head, and the points of each metric for each run; `None` if a run lacks the metric."""
    logged = [run.series or _traced(tally, run.step_shift) for run, tally in zip(runs, tallies, strict=True)]
    names = list(dict.fromkeys(name for series in logged for name in sorted(series)))
    settings: dict[str, list[int]] = defaultdict(list)
    for number, run in enumerate(runs):
        settings[run.setting].append(number)
    together = list(settings.values())
    head = {
        "title": " · ".join(run.name for run in runs),
        "runs": [{"name": run.name, "step_shift": run.step_shift, **run.outcome} for run in runs],
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
    return sampled(points) if points else None


def _traced(tally: Tally, step_shift: int) -> dict[str, Points]:
    """Return curves of means over the traced attempts over the logged steps, for a run without a log."""
    keys = {"reward": "reward", "kl": "kl", "completions/mean_length": "tokens"}
    train = {
        name: [[step + step_shift, mean] for step, mean in tally.means("train", key)] for name, key in keys.items()
    }
    rewards = {f"{split}/reward": tally.means(split, "reward") for split in tally.evaluations}
    return {name: points for name, points in {**train, **rewards}.items() if points}


def _first(names: Sequence[str], logged: Sequence[dict[str, Points]]) -> list[str]:
    evaluations = [name for name in names if name.startswith("eval") and name.endswith("/reward")]
    alive = [] if all("groups/alive" in series for series in logged) else ["frac_reward_zero_std"]
    wanted = ["reward", *(e for e in evaluations if e.count("/") == 1), *_FIRST[:1], *alive, *_FIRST[1:]]
    return [name for name in wanted if name in names]


def _notes(runs: Sequence[Run]) -> list[str]:
    notes = []
    for run in runs:
        if not run.series:
            notes.append(f"{run.name} has no log: its curves are means over the attempts that it kept.")
        if not (run.traced or run.of_stock_trl):
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
    head: dict[str, Any], blocks: Sequence[str], chosen: Sequence[tuple[Shared, list[Kept]]], spool: IO[bytes]
) -> Iterator[str]:
    def read(group: Kept, texts: bool) -> bytes:
        spool.seek(group.at + (group.line if texts else 0))
        return spool.read(group.packed if texts else group.line)

    groups = [group for _, kept in chosen for group in kept]
    parts = list(chunks(groups))
    index = columns(json.loads(read(group, texts=False)) for group in groups)
    index["groups"]["run"] = [group.run for group in groups]
    index["chunks"] = [len(part) for part in parts]
    # For each prompt, `prompts` counts the groups in this page and `times` counts all groups of each run.
    index["prompts"] = [len(kept) for _, kept in chosen]
    index["times"] = [[len(prompt.by_run.get(n, ())) for n in range(len(head["runs"]))] for prompt, _ in chosen]
    before, after = _template()
    yield before
    yield block("head", head)
    yield packed_block("index", pack(index))
    yield from blocks
    for number, part in enumerate(parts):
        yield packed_block(f"chunk-{number}", array(read(group, texts=True) for group in part))
    yield after


def _template() -> tuple[str, str]:
    return template("compare", ["style", "reading", "narrow", "compare"], SCRIPTS)
