"""`trl-grpo-plus rescore`: read, score, report."""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from ... import traces
from ...traces import about, find, groups, read_lines
from ...traces import files as files_of
from ...traces import lines as lines_of
from ...utils import files
from ...utils.terminal import outlive_reader, say
from ...utils.validation import ConfigError, Number, finite_or_none
from ...view import Rescored, write_page
from ..option_values import PAGE_MB, check_split
from .effect import Rescoring
from .page import rescored
from .report import report, to_lines
from .requested_rewards import RequestedReward, build, check, read
from .scored_groups import NoRoom, ScoredGroups
from .scoring_loop import scored


PAGE = "rescore.html"
# option of the trainer's configuration -> argument of `groups.judge`
LIMITS = {"zero_variance_tolerance": "tolerance", "solved_reward": "solved_reward", "failed_reward": "failed_reward"}


def rescore(options: argparse.Namespace) -> int:
    """Run the command.

    Args:
        options (`argparse.Namespace`): parsed options of [`~trl_grpo_plus.cli.rescore.options.add_options`].

    Returns:
        `int`: the exit status: 0, or 130 after Ctrl-C. After Ctrl-C the attempts scored so far are still reported and
        written.

    Raises:
        ConfigError: an option is wrong, or the attempts cannot be scored.
    """
    lines, page = _outputs(options.outputs, find(options.folder))
    PAGE_MB.check("--max-mb", options.max_mb)
    Number(at_least=1, integer=True, optional=True).check("--last", options.last)
    Number(above=0, optional=True).check("--timeout", options.timeout)
    entries = read(options.reward_options)
    since = _since(options.folder, options.split, options.last)
    first = next(groups(options.folder, options.split, since), None)
    if first is None:
        raise ConfigError(f"The traces of {options.folder} hold no complete group of the split {options.split!r}.")
    rewards = build(entries, options.against, _recorded(options.folder, options.split, since), options.timeout)
    check(rewards, first, f"the traces of {options.folder}")
    run_info = about(options.folder)
    start = time.monotonic()
    scored_groups, stopped, status = _scored(options, since, rewards)
    took = time.monotonic() - start
    if stopped:
        covered = "The report covers what" if scored_groups else "Nothing"
        say(f"{stopped} {covered} was scored until then.", file=sys.stderr)
    if scored_groups:
        outlive_reader()  # `rescore ... | head` writes its files too
        say(f"{_scope(options, scored_groups)}, {took:.1f} s\n")
        weights = {name: weight for name, weight in (run_info.get("rewards") or {}).items() if weight}
        _write(Rescoring(scored_groups, options.split, rewards, weights, limits(run_info)), options, lines, page)
    return status


def _scope(options: argparse.Namespace, groups: ScoredGroups) -> str:
    """Describe what was scored."""
    first, last = (group.place["step"] for group in (groups[0], groups[-1]))
    counts = f"{groups.attempts:,} attempts in {len(groups):,} groups"
    return f"{options.folder}: {options.split}, steps {first} to {last}, {counts}"


def _write(rescoring: Rescoring, options: argparse.Namespace, lines: Path | None, page: Path | None) -> None:
    """Print the report, and write the lines, if they have a path, and the page."""
    say(report(rescoring))
    if lines is not None:
        files.replace(lines, to_lines(rescoring))
        say(f"\n{lines}: one line per attempt")
    say(f"\n{_write_page(options, page, rescored(rescoring))}")


def limits(run_info: Mapping[str, Any]) -> dict[str, float]:
    """Return the arguments of `groups.judge` that `run.json` holds; the defaults apply to the others."""
    return {ours: value for name, ours in LIMITS.items() if (value := finite_or_none(run_info.get(name))) is not None}


def _outputs(names: Sequence[str], source: Path) -> tuple[Path | None, Path | None]:
    """Return the paths of the lines and of the page; `None` for each that no --output names.

    `source` is the folder of the traces, in which neither may lie.
    """
    paths: dict[bool, Path] = {}
    for path in map(Path, names):
        page = path.suffix == ".html"
        if page in paths:
            kind = "pages" if page else "files of lines"
            raise ConfigError(f"--output: {paths[page]} and {path} are both {kind}. Remove one of them.")
        if not page and path.exists():
            raise ConfigError(f"--output: {path} already exists. Choose another name, or remove it.")
        files.check_output(path, PAGE if page else "rescored.jsonl", [source])
        paths[page] = path
    return paths.get(False), paths.get(True)


def _write_page(options: argparse.Namespace, path: Path | None, page_data: Rescored) -> str:
    """Write the page, and return a line about the result."""
    try:
        page = write_page(options.folder, path or Path(options.folder, PAGE), options.max_mb, page_data)
    except OSError as error:
        if path is not None:
            raise
        return f"No page was written: {error}. Use -o FILE.html to write it elsewhere."
    left = page.groups_total - page.groups_written
    room = f"; {left:,} groups did not fit in it: raise --max-mb to include them" if left else ""
    return f"{page.path}: a page that opens on the disagreements, {page.bytes / 1e6:.1f} MB{room}"


def _since(folder: str, split: str, last: int | None) -> int:
    """Return the first step to read."""
    steps: dict[str, set[int]] = {}
    for step, of, _ in files_of(folder):
        steps.setdefault(of, set()).add(step)
    check_split(f"the traces of {folder} have no", split, sorted(steps))
    return 0 if last is None else sorted(steps[split])[-last:][0]


def _recorded(folder: str, split: str, since: int) -> list[str]:
    """Return the names of the recorded rewards.

    Only the first line of each step is read, because rewards change only at a resume, which begins a new step.
    """
    paths = [path for step, of, path in files_of(folder) if of == split and step >= since]
    return list(dict.fromkeys(name for path in paths for name in next(read_lines(path), {}).get("rewards") or ()))


def attempts_to_score(folder: str, split: str, since: int) -> int:
    """Return the number of attempts to score. Only files that the index does not describe are read."""
    index = traces.group_index.read(find(folder))
    paths = [path for step, of, path in files_of(folder) if of == split and step >= since]
    counts = [traces.group_index.count_attempts(path, index.get(path.name, [])) for path in paths]
    return sum(
        sum(1 for _ in lines_of(path)) if count is None else count for path, count in zip(paths, counts, strict=True)
    )


def _scored(options: argparse.Namespace, since: int, rewards: list[RequestedReward]) -> tuple[ScoredGroups, str, int]:
    """Return the scored groups, a message if something stopped the scoring early, and the exit status."""
    scored_groups = ScoredGroups()
    with tqdm(unit="attempt", leave=False, disable=None) as bar:
        try:
            if not bar.disable:
                bar.total = attempts_to_score(options.folder, options.split, since)
            for group in scored(groups(options.folder, options.split, since), rewards):
                scored_groups.append(group)
                bar.update(group.size)
        except KeyboardInterrupt:
            return scored_groups, "Interrupted.", 130
        except NoRoom as error:
            return scored_groups, f"error: {error}", 1
    return scored_groups, "", 0
