"""A run that is read while it is written: each look takes in what its files have more than at the last one.

In memory are each group's line of the list and where its attempts lie on disk, from where texts are read when they are
asked for. A file that is gone, shorter or another one (a resumed run makes its steps again) starts all anew.
"""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .. import traces
from ..traces import Row, group_key
from . import file_index
from .file_index import Moved, Place
from .group_data import Tally, columns, detail, entry, names_by_group
from .overview import metrics_table
from .prompt_history import Prompts
from .run_source import Source, head_of
from .template import in_chunks


AT_MOST_EVERY = 0.5  # s between two looks, however many ask


class Held(NamedTuple):
    """A group: where it lies, its number of attempts, and its line of the list."""

    place: Place
    size: int
    line: bytes  # JSON


class _Seen(NamedTuple):
    inode: int
    bytes: int  # that the file had
    read: int  # up to where whole groups were taken in


@dataclass
class _Read:
    """All that was read since the run began to be read."""

    files: dict[Path, _Seen] = field(default_factory=dict)
    groups: list[Held] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    about: Row = field(default_factory=dict)
    journals: dict[str, list[Row]] = field(default_factory=lambda: {name: [] for name in traces.JOURNALS})
    newest: dict[str, int] = field(default_factory=dict)  # split -> its last step
    problems: dict[Path, str] = field(default_factory=dict)
    words: dict[str, int] = field(default_factory=dict)
    prompts: dict[str, int] = field(default_factory=dict)
    lists: Prompts = field(default_factory=Prompts)


class Feed:
    """What is known of a run so far. For any number of threads.

    Args:
        run (`str` or `Path`): its `output_dir` or `rollouts`, which need not be there yet.
    """

    def __init__(self, run: str | Path):
        self._run = Path(run)
        self._lock = threading.Lock()
        self._looked = 0.0
        self._epoch = self._version = 0
        self._all = _Read()

    def news(self, epoch: int = -1, groups: int = 0, version: int = -1) -> dict[str, Any]:
        """Return what is new to someone who knows so many groups of an epoch.

        Args:
            epoch (`int`, *optional*): how often all was read anew; of another than now's everything is new.
            groups (`int`, *optional*): that are known.
            version (`int`, *optional*): of what was told last.

        Returns:
            `dict`: `live`, what to ask with next, and how the run is; where anything is new also the page's `head`,
            and as `index` the lines of the new groups, whose words and prompts are numbered on.
        """
        with self._lock:
            self._look()
            live = self._live()
            if (epoch, version) == (self._epoch, self._version):
                return {"live": live}
            known = min(max(groups, 0), len(self._all.groups)) if epoch == self._epoch else 0
            return {"live": live, "head": self._head(), "index": self._index(known)}

    def metrics(self) -> dict[str, Any]:
        """Every metric that was logged, as [`~trl_grpo_plus.view.overview.metrics_table`]."""
        with self._lock:
            journal = list(self._all.journals["metrics"])
        return metrics_table(journal)

    def lists(self) -> dict[str, Any]:
        """Return how each prompt went so far: what [`~trl_grpo_plus.view.prompt_history.Prompts`] tells, and as
        `listed` the number of each line's prompt, -1 where its groups were not told yet.
        """
        with self._lock:
            told, identities = self._all.lists.told(self._all.about.get("solved_reward"))
            return {**told, "listed": [self._all.prompts.get(identity, -1) for identity in identities]}

    def texts(self, epoch: int, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """Prompt, reference and attempts of some groups, read from disk one after another.

        Raises:
            Moved: they are no longer where they were.
        """
        with self._lock:
            wanted = self._all.groups[max(start, 0) : stop]
            if epoch != self._epoch or not wanted:
                raise Moved
        for group in wanted:
            yield detail(file_index.read(group.place), group.place.path.parent)

    # -- what is told

    def _live(self) -> dict[str, Any]:
        read = self._all
        metrics = reversed(read.journals["metrics"])
        last = next((line for line in metrics if traces.evaluated(line) is None), {})
        return {
            "epoch": self._epoch,
            "version": self._version,
            "groups": len(read.groups),
            "ended": "train_runtime" in last,
            "problem": _told(list(read.problems.values())),
            "there": self._run.is_dir(),
        }

    def _head(self) -> dict[str, Any]:
        path = self._run.resolve()
        title = path.parent.name if path.name == traces.FOLDER else path.name
        about = self._all.about
        sizes = [group.size for group in self._all.groups]
        journals = self._all.journals
        first_prompt = next(iter(journals[traces.FIRST_PROMPT]), None)
        source = Source(title, (), journals["metrics"], journals["alarms"], about, first_prompt=first_prompt)
        head = head_of(source, sizes, self._all.tally)
        return head | {"live": self._live(), "max_steps": about.get("max_steps"), "opening": self._opening()}

    def _opening(self) -> dict[str, Any] | None:
        """Return where the page opens: the last step."""
        step = self._all.newest.get("train")
        return None if step is None else {"split": "train", "step": step}

    def _index(self, known: int) -> dict[str, Any]:
        new = self._all.groups[known:]
        index = columns((json.loads(group.line) for group in new), self._all.words, self._all.prompts)
        return {**index, "chunks": in_chunks(group.place.bytes for group in new)}

    # -- what is read

    def _look(self) -> None:
        if time.monotonic() - self._looked < AT_MOST_EVERY:
            return
        if not self._take():
            self._epoch += 1
            self._version += 1
            self._all = _Read()
            self._take()
        self._looked = time.monotonic()

    def _take(self) -> bool:
        """Take in what is new; `False` where what was read before is no longer so."""
        self._all.problems.pop(self._run, None)
        try:
            folder, attempts = traces.find(self._run), traces.files(self._run)
        except (ValueError, OSError) as error:  # no traces yet, or no longer
            if isinstance(error, OSError):
                self._all.problems[self._run] = str(error)
            return not self._all.files
        there = [*(folder / f"{name}.jsonl" for name in self._all.journals), *(path for *_, path in attempts)]
        found = {path: known for path in there if (known := _stat(path)) is not None}
        for path, seen in self._all.files.items():
            inode, size = found.get(path, (None, 0))
            if inode != seen.inode or size < seen.bytes:
                return False
        with self._telling_of(folder / "run.json"):
            self._all.about = traces.about(folder)
        # Alarms first: they name groups.
        for name, lines in self._all.journals.items():
            self._follow(folder / f"{name}.jsonl", found, lines)
        named = names_by_group(self._all.journals["alarms"])
        for step, split, path in attempts:
            if path not in found or not self._grown(path, found):
                continue
            if step < self._all.newest.get(split, 0):  # the list is by steps
                return False
            self._all.newest[split] = step
            self._read(path, found[path], step, split, named)
        return True

    def _grown(self, path: Path, found: dict[Path, tuple[int, int]]) -> bool:
        return path not in self._all.files or self._all.files[path].bytes < found[path][1]

    def _follow(self, path: Path, found: dict[Path, tuple[int, int]], lines: list[Row]) -> None:
        """Take in a journal's new lines."""
        if path in found and self._grown(path, found):
            end = self._start(path)
            with self._telling_of(path):
                for line in file_index.lines(path, end):
                    lines.append(traces.parse(line, path))
                    end += len(line)
            self._done(path, found[path], end)

    def _read(
        self, path: Path, found: tuple[int, int], step: int, split: str, named: dict[tuple[int, ...], set[str]]
    ) -> None:
        """Take in the groups that are whole. A plain file is read on from the first one that is not."""
        start = end = self._start(path)
        with self._telling_of(path):
            for attempts, place, after in file_index.groups(path, found[0], start):
                end = after
                rows = [{**row, "step": step, "split": split} for row in attempts]
                self._all.tally.see(rows)
                alarms = named.get((step, *group_key(rows[0])), ()) if split == "train" else ()
                line = entry(rows, alarms)
                self._all.lists.see(line)
                told = json.dumps(line, separators=(",", ":")).encode()
                self._all.groups.append(Held(place, len(rows), told))
        self._done(path, found, end)

    def _start(self, path: Path) -> int:
        return self._all.files[path].read if path in self._all.files else 0

    def _done(self, path: Path, found: tuple[int, int], end: int) -> None:
        self._all.files[path] = _Seen(*found, end)
        self._version += 1

    @contextmanager
    def _telling_of(self, path: Path) -> Iterator[None]:
        """Keep what is wrong with a file: the others are read all the same."""
        self._all.problems.pop(path, None)
        try:
            yield
        except (ValueError, OSError) as error:
            self._all.problems[path] = str(error)
        except Exception as error:  # of what is in the file: the others are read all the same
            self._all.problems[path] = f"{path} has an attempt that is none ({type(error).__name__}: {error})."


def _told(problems: list[str]) -> str:
    if len(problems) < 2:
        return "".join(problems)
    others = "Another file" if len(problems) == 2 else f"{len(problems) - 1} more files"
    return f"{problems[0]} {others} cannot be read as a whole."


def _stat(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size
