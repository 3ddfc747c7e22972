"""How a race stands, while it runs and at its end: read from the runs' journals, printed in place or line by line."""

import json
import shutil
import sys
from dataclasses import asdict

from ...traces import FOLDER, read_lines
from ...utils.files import replace
from ...utils.terminal import say, visible
from . import evaluations
from .evaluations import Standing
from .plan import NAMES, PICTURE, RESULT, SETTINGS, Lane, Race


class Live:
    """What is shown of a race: on a terminal one table in place, elsewhere a line a look.

    Args:
        race ([`~trl_grpo_plus.cli.race.plan.Race`]): it.
    """

    def __init__(self, race: Race):
        self._race = race
        self._in_place = sys.stdout.isatty()
        self._height = 0  # of the table on the terminal
        self._shown = {lane.name: len(standing_of(lane).looks) for lane in race.lanes}

    def show(self) -> None:
        """Look at the journals, and print what is new."""
        standings = [standing_of(lane) for lane in self._race.lanes]
        if self._in_place:
            width = shutil.get_terminal_size().columns
            table = [visible(line)[: width - 1] for line in evaluations.lines(standings)]
            if self._height:
                sys.stdout.write(f"\x1b[{self._height}F\x1b[J")  # up, and clear what is below
            say("\n".join(table), flush=True)
            self._height = len(table)
            return
        for lane, run in zip(self._race.lanes, standings, strict=True):
            for look in run.looks[self._shown[lane.name] :]:
                say(evaluations.line(run.name, look), flush=True)
            self._shown[lane.name] = len(run.looks)

    def below(self) -> None:
        """Somebody else printed: the next table comes below that."""
        self._height = 0

    def ended(self) -> str:
        """Return the closing table, and where the picture and the figures are, which this writes."""
        standings = [standing_of(lane) for lane in self._race.lanes]
        split = evaluations.moved_most(standings)
        if split is None:
            return "\nNo evaluation has finished yet."
        folder = self._race.folder
        figures = json.dumps([asdict(run) for run in standings], indent=2)
        replace(folder / RESULT, [figures.encode(), b"\n"])
        picture = evaluations.plot(standings, split, folder / PICTURE)
        return f"\n{evaluations.table(standings, split)}\n\npicture  {picture}\nfigures  {folder / RESULT}"


def standing_of(lane: Lane) -> Standing:
    """Return how far a run is, by what it has written."""
    settings, journal = lane.folder / SETTINGS, lane.folder / FOLDER / "metrics.jsonl"
    if not settings.exists():
        return Standing(NAMES[lane.name])
    entries = read_lines(journal) if journal.exists() else ()
    return evaluations.standing(NAMES[lane.name], json.loads(settings.read_text()), entries)
