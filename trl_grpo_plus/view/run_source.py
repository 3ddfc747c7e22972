"""A run's traces and logs, and the page's data about the run as a whole."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import traces
from ..traces import Row
from .calibration import calibration
from .file_index import Groups
from .group_data import Tally, by_name, curves
from .overview import before_after


WITHIN_RUN = "output_dir/"  # the beginning of a path in the run's own folder, as a page shows it
# A name on the Hub has one "/" at most. `looks_local` also takes other texts for paths, which must not be cut.
_LOCAL = re.compile(rf"[/~]|\.\.?/|(?!{WITHIN_RUN})[\w.-]+(/[\w.-]+){{2,}}/?$")


@dataclass(frozen=True)
class Source:
    """The data that a page is made from: a whole run, or only some groups."""

    title: str
    metrics: list[Row]
    alarms: list[Row]
    about: Row
    note: str = ""
    folder: Path | None = None  # folder of the traces, which also holds the thumbnails
    first_prompt: Row | None = None  # the first prompt as the model was given it
    groups: Iterable[Sequence[Row]] = ()  # if there is no folder of traces: the attempts of each group


def by_stock_trl(run: str | Path) -> bool:
    """Return whether a run's attempts are only in the files that TRL itself wrote.

    Raises:
        ValueError: the run has no attempts of either kind.
    """
    try:
        traces.find(run)
    except ValueError:
        if not traces.trl_completions.files(run):
            raise
        return True
    return False


def folder_of(run: str | Path) -> Path:
    """Return the folder of a run's attempts: of its traces, or of the files that TRL itself wrote.

    Raises:
        ValueError: the run has neither.
    """
    return traces.trl_completions.files(run)[0].parent if by_stock_trl(run) else traces.find(run)


def source_of(run: str | Path) -> Source:
    """Return a run's traces, or else the completions that TRL itself wrote.

    Raises:
        ValueError: the run has neither.
    """
    title = traces.output_dir(run).name
    if by_stock_trl(run):
        stock = traces.trl_completions
        return Source(title, [], [], {}, stock.NOTE, groups=stock.groups(run))
    folder = traces.find(run)
    read = (traces.journal(folder, "metrics"), traces.journal(folder, "alarms"), traces.about(folder))
    first_prompt = next(iter(traces.journal(folder, traces.FIRST_PROMPT)), None)
    return Source(title, *read, folder=folder, first_prompt=first_prompt)


def head_of(source: Source, groups: Groups, panel: bool = False) -> dict[str, Any]:
    """Return the page's data about a run as a whole.

    Args:
        source ([`Source`]): the run.
        groups ([`~trl_grpo_plus.view.file_index.Groups`]): all groups of the run.
        panel (`bool`, *optional*, defaults to `False`): the page shows only these groups, without curves.
    """
    tally = Tally() if panel else groups.tally
    return {
        "title": source.title,
        "weights": source.about.get("rewards") or {},
        "about": {} if panel else _with_short_model(source.about),
        "first_prompt": source.first_prompt,
        "results": before_after(source.metrics, tally),
        "opening": None,  # the page then opens on the first group
        "curves": curves(source.metrics, tally),
        "calibration": calibration(*tally.beliefs),
        "alarms": by_name(source.alarms),
        "note": source.note,
        "panel": panel,
        **dict.fromkeys(("groups", "groups_total"), len(groups)),
        **dict.fromkeys(("attempts", "attempts_total"), groups.attempts),
    }


def _with_short_model(about: Row) -> Row:
    model = about.get("model")
    return {**about, "model": short_paths([model])[model]} if isinstance(model, str) else about


def short_paths(names: Iterable[str]) -> dict[str, str]:
    """Map each name of a model or data set to the name that a page shows.

    A local path is cut to its last parts, as few as distinguish the paths. A path within the run's own folder is
    shown whole.

    Example:
        >>> list(short_paths(["/data/one/checkpoint-60", "/data/two/checkpoint-60", "me/model"]).values())
        ['one/checkpoint-60', 'two/checkpoint-60', 'me/model']
    """
    shown = {name: name for name in names}
    local = {name: name.rstrip("/").split("/") for name in shown if _LOCAL.match(name)}
    for length in range(1, 1 + max(map(len, local.values()), default=0)):
        short = {name: "/".join(parts[-length:]) for name, parts in local.items()}
        if len(set(short.values())) == len({tuple(parts) for parts in local.values()}):
            return shown | short
    return shown
