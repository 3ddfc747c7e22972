"""The printed standings of a race: read from the runs' journals, and shown in place or line by line."""

import shutil
import sys
from dataclasses import asdict

from ...traces import FOLDER, RACE_SETTINGS, read_lines, read_object
from ...utils.files import write_json
from ...utils.terminal import say, visible
from . import evaluations
from .evaluations import Standing
from .plan import NAMES, PICTURE, RESULT, Lane, Race


class Live:
    """A display of a race: on a terminal one table in place, elsewhere a line for each evaluation.

    Args:
        race ([`~trl_grpo_plus.cli.race.plan.Race`]): the race.
    """

    def __init__(self, race: Race):
        self._race = race
        self._in_place = sys.stdout.isatty()
        self._height = 0  # number of lines of the table on the terminal
        self._shown = {lane.name: len(standing_of(lane).evaluations) for lane in race.lanes}

    def show(self) -> None:
        """Read the journals, and print the new standings."""
        standings = [standing_of(lane) for lane in self._race.lanes]
        if self._in_place:
            width = shutil.get_terminal_size().columns
            table = [visible(line)[: width - 1] for line in evaluations.lines(standings)]
            if self._height:
                sys.stdout.write(f"\x1b[{self._height}F\x1b[J")  # move up, and clear the old table
            say("\n".join(table), flush=True)
            self._height = len(table)
            return
        for lane, run in zip(self._race.lanes, standings, strict=True):
            for evaluation in run.evaluations[self._shown[lane.name] :]:
                say(evaluations.line(run.name, evaluation), flush=True)
            self._shown[lane.name] = len(run.evaluations)

    def below(self) -> None:
        """Make the next table appear below other output, not over it."""
        self._height = 0

    def ended(self) -> str:
        """Write the picture and the figures; return the closing table and their paths."""
        standings = [standing_of(lane) for lane in self._race.lanes]
        split = evaluations.moved_most(standings)
        if split is None:
            return "\nNo evaluation has finished yet."
        folder = self._race.folder
        write_json(folder / RESULT, [asdict(run) for run in standings])
        picture = evaluations.plot(standings, split, folder / PICTURE)
        return f"\n{evaluations.table(standings, split)}\n\npicture  {picture}\nfigures  {folder / RESULT}"


def standing_of(lane: Lane) -> Standing:
    """Return a run's standing, from the files that the run has written."""
    settings, journal = read_object(lane.folder / RACE_SETTINGS), lane.folder / FOLDER / "metrics.jsonl"
    if not settings:
        return Standing(NAMES[lane.name])
    entries = read_lines(journal) if journal.exists() else ()
    return evaluations.standing(NAMES[lane.name], settings, entries)
