"""`trl-grpo-plus rescore`: read, score, report."""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from ...traces import about, find, group_index, groups, logged_step, read_lines
from ...traces import files as files_of
from ...traces import lines as lines_of
from ...utils import files
from ...utils.terminal import say
from ...utils.validation import ConfigError, Number, did_you_mean, finite_or_none
from ...view import Rescored, write_page
from .found import Found
from .page import rescored
from .report import report, to_lines
from .requested_rewards import Asked, build, check, read
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
    lines, page = _outputs(options.outputs)
    Number(above=0).check("--max-mb", options.max_mb)
    Number(at_least=1, integer=True, optional=True).check("--last", options.last)
    Number(above=0, optional=True).check("--timeout", options.timeout)
    entries = read(options.asked)
    since = _since(options.folder, options.split, options.last)
    first = next(groups(options.folder, options.split, since), None)
    if first is None:
        raise ConfigError(f"The traces of {options.folder} hold no complete group of the split {options.split!r}.")
    asked = build(entries, options.against, _recorded(options.folder, options.split, since), options.timeout)
    check(asked, first, f"the traces of {options.folder}")
    known = about(options.folder)
    start = time.monotonic()
    found, interrupted = _scored(options, since, asked)
    took = time.monotonic() - start
    if interrupted:
        say(f"Interrupted. {'The report covers what' if found else 'Nothing'} was scored until then.", file=sys.stderr)
    if found:
        weights = known.get("rewards") or {}
        first_step, last_step = (logged_step(group.place["step"], options.split) for group in (found[0], found[-1]))
        steps = f"steps {first_step} to {last_step}"
        which = f"{options.folder}: {options.split}, {steps}, {found.attempts:,} attempts in {len(found):,} groups"
        say(f"{which}, {took:.1f} s\n\n{report(found, options.split, asked, weights, limits(known))}")
        if lines is not None:
            files.replace(lines, to_lines(found, asked, options.split))
            say(f"\n{lines}: one line per attempt")
        tried = rescored(found, options.split, asked, weights, limits(known))
        say(f"\n{_write_page(options, page, tried)}")
    return 130 if interrupted else 0


def limits(known: Mapping[str, Any]) -> dict[str, float]:
    """Return the arguments of `groups.judge` that `run.json` holds; the defaults apply to the others."""
    return {ours: value for name, ours in LIMITS.items() if (value := finite_or_none(known.get(name))) is not None}


def _outputs(names: Sequence[str]) -> tuple[Path | None, Path | None]:
    """Return the paths of the lines and of the page; `None` for each that no --output names."""
    paths: dict[bool, Path] = {}
    for path in map(Path, names):
        page = path.suffix == ".html"
        if page in paths:
            kind = "pages" if page else "files of lines"
            raise ConfigError(f"--output: {paths[page]} and {path} are both {kind}. Remove one of them.")
        if not page and path.exists():
            raise ConfigError(f"--output: {path} already exists. Choose another name, or remove it.")
        if not path.parent.is_dir():
            raise ConfigError(f"--output: there is no folder {path.parent}. Make it first: mkdir -p {path.parent}")
        paths[page] = path
    return paths.get(False), paths.get(True)


def _write_page(options: argparse.Namespace, path: Path | None, tried: Rescored) -> str:
    """Write the page, and return a line about the result."""
    try:
        page = write_page(options.folder, path or Path(options.folder, PAGE), options.max_mb, tried)
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
    if split not in steps:
        known = ", ".join(sorted(steps))
        raise ConfigError(
            f"--split: the traces of {folder} have no {split!r}, only {known}.{did_you_mean(split, steps)}"
        )
    return 0 if last is None else sorted(steps[split])[-last:][0]


def _recorded(folder: str, split: str, since: int) -> list[str]:
    """Return the names of the recorded rewards.

    Only the first line of each step is read, because rewards change only at a resume, which begins a new step.
    """
    paths = [path for step, of, path in files_of(folder) if of == split and step >= since]
    return list(dict.fromkeys(name for path in paths for name in next(read_lines(path), {}).get("rewards") or ()))


def count_attempts(folder: str, split: str, since: int) -> int:
    """Return the number of attempts to score. Lines are read only of files that the index does not describe."""
    index = group_index.read(find(folder))
    paths = [path for step, of, path in files_of(folder) if of == split and step >= since]
    counts = [group_index.count_attempts(path, index.get(path.name, [])) for path in paths]
    return sum(
        sum(1 for _ in lines_of(path)) if count is None else count for path, count in zip(paths, counts, strict=True)
    )


def _scored(options: argparse.Namespace, since: int, asked: list[Asked]) -> tuple[Found, bool]:
    """Return the scored groups, and `True` if Ctrl-C came before all were scored."""
    found = Found()
    with tqdm(unit="attempt", leave=False, disable=None) as bar:
        if not bar.disable:
            bar.total = count_attempts(options.folder, options.split, since)
        try:
            for group in scored(groups(options.folder, options.split, since), asked):
                found.append(group)
                bar.update(group.size)
        except KeyboardInterrupt:
            return found, True
    return found, False
