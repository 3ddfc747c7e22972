"""What there is to show of a run, and what its page says of it as a whole."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import traces
from ..traces import Row
from .calibration import calibration
from .group_data import Tally, by_name, curves
from .overview import before_after


@dataclass(frozen=True)
class Source:
    """What there is to show: of a run, or of some groups alone."""

    title: str
    groups: Iterable[Sequence[Row]]
    metrics: list[Row]
    alarms: list[Row]
    about: Row
    note: str = ""
    folder: Path | None = None  # where thumbnails are beside the attempts
    first_prompt: Row | None = None  # as the model was given it


def source_of(run: str | Path) -> Source:
    """Return a run's traces, or what TRL itself wrote about it.

    Raises:
        ValueError: there is neither.
    """
    path = Path(run).resolve()
    try:
        folder = traces.find(run)
    except ValueError:
        if not traces.trl_completions.files(run):
            raise
        title = path.parent.name if path.name == "completions" else path.name
        return Source(title, traces.trl_completions.groups(run), [], [], {}, traces.trl_completions.NOTE)
    title = path.parent.name if path.name == traces.FOLDER else path.name
    read = (traces.journal(folder, "metrics"), traces.journal(folder, "alarms"), traces.about(folder))
    first_prompt = next(iter(traces.journal(folder, traces.FIRST_PROMPT)), None)
    return Source(title, traces.groups(folder), *read, folder=folder, first_prompt=first_prompt)


def head_of(source: Source, sizes: Sequence[int], tally: Tally, panel: bool = False) -> dict[str, Any]:
    """Return what the page says of a run as a whole.

    Args:
        source ([`Source`]): the run.
        sizes (`Sequence[int]`): attempts of each of its groups.
        tally ([`Tally`]): that has seen them.
        panel (`bool`, *optional*, defaults to `False`): of a page of some groups alone.
    """
    return {
        "title": source.title,
        "weights": source.about.get("rewards") or {},
        "about": {} if panel else source.about,
        "first_prompt": source.first_prompt,
        "results": before_after(source.metrics, tally),
        "opening": None,  # the first group
        "curves": curves(source.metrics, tally),
        "calibration": calibration(tally.beliefs),
        "alarms": by_name(source.alarms),
        "note": source.note,
        "panel": panel,
        **dict.fromkeys(("groups", "groups_total"), len(sizes)),
        **dict.fromkeys(("attempts", "attempts_total"), sum(sizes)),
    }
