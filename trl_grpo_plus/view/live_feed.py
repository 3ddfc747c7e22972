"""A reader for a run that is still being written: each look reads the bytes added to its files since the last look.

Memory holds each group's line of the list and the place of its attempts on disk. Texts are read from disk when a page
asks for them. If a file is gone, shorter, or replaced by another file, everything is read anew. A resumed run
replaces files, because it repeats steps.
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
    """A group: its place on disk, its number of attempts, and its line of the list."""

    place: Place
    size: int
    line: bytes  # JSON


class _Seen(NamedTuple):
    inode: int
    bytes: int  # size of the file at the last look
    read: int  # offset up to which whole groups were read


@dataclass
class _Read:
    """All data that was read since the start of the epoch."""

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
    """The data read from a run so far. Safe for any number of threads.

    Args:
        run (`str` or `Path`): the run's `output_dir` or `rollouts` folder, which need not exist yet.
    """

    def __init__(self, run: str | Path):
        self._run = Path(run)
        self._lock = threading.Lock()
        self._looked = 0.0
        self._epoch = self._version = 0
        self._all = _Read()

    def news(self, epoch: int = -1, groups: int = 0, version: int = -1) -> dict[str, Any]:
        """Return the data that is new to a reader who knows `groups` groups of an epoch.

        Args:
            epoch (`int`, *optional*): the reader's epoch. An epoch ends when everything is read anew. If it is not the
                current epoch, all groups are new.
            groups (`int`, *optional*): number of groups that the reader knows.
            version (`int`, *optional*): version of the data that the reader got last.

        Returns:
            `dict`: `live`, the arguments of the next call and the state of the run. If anything is new, also `head`,
            the page's head, and `index`, the lines of the new groups. Their words and prompts continue the numbering
            of the earlier lines.
        """
        with self._lock:
            self._look()
            live = self._live()
            if (epoch, version) == (self._epoch, self._version):
                return {"live": live}
            known = min(max(groups, 0), len(self._all.groups)) if epoch == self._epoch else 0
            return {"live": live, "head": self._head(), "index": self._index(known)}

    def metrics(self) -> dict[str, Any]:
        """Return every logged metric, as [`~trl_grpo_plus.view.overview.metrics_table`]."""
        with self._lock:
            journal = list(self._all.journals["metrics"])
        return metrics_table(journal)

    def lists(self) -> dict[str, Any]:
        """Return the course of each prompt so far.

        Returns:
            `dict`: the columns of [`~trl_grpo_plus.view.prompt_history.Prompts.told`], and `listed`, the number of
            each line's prompt, or -1 if no reader has got its groups yet.
        """
        with self._lock:
            told, identities = self._all.lists.told(self._all.about.get("solved_reward"))
            return {**told, "listed": [self._all.prompts.get(identity, -1) for identity in identities]}

    def texts(self, epoch: int, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """Yield prompt, reference and attempts of the groups from `start` to `stop`, read from disk one by one.

        Raises:
            Moved: the groups are no longer at their places.
        """
        with self._lock:
            wanted = self._all.groups[max(start, 0) : stop]
            if epoch != self._epoch or not wanted:
                raise Moved
        for group in wanted:
            yield detail(file_index.read(group.place), group.place.path.parent)

    # -- answers

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
        """Return the place where the page opens: the last training step; `None` if there is none."""
        step = self._all.newest.get("train")
        return None if step is None else {"split": "train", "step": step}

    def _index(self, known: int) -> dict[str, Any]:
        new = self._all.groups[known:]
        index = columns((json.loads(group.line) for group in new), self._all.words, self._all.prompts)
        return {**index, "chunks": in_chunks(group.place.bytes for group in new)}

    # -- reading

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
        """Read the new data; return `False` if data that was read before has changed."""
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
            if step < self._all.newest.get(split, 0):  # the list is sorted by step
                return False
            self._all.newest[split] = step
            self._read(path, found[path], step, split, named)
        return True

    def _grown(self, path: Path, found: dict[Path, tuple[int, int]]) -> bool:
        return path not in self._all.files or self._all.files[path].bytes < found[path][1]

    def _follow(self, path: Path, found: dict[Path, tuple[int, int]], lines: list[Row]) -> None:
        """Read a journal's new lines."""
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
        """Read the whole groups of a file; the next look at a plain file starts at its first incomplete group."""
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
        """Store an error about a file as a problem, so that the other files are still read."""
        self._all.problems.pop(path, None)
        try:
            yield
        except (ValueError, OSError) as error:
            self._all.problems[path] = str(error)
        except Exception as error:  # a malformed attempt must not stop the reading of other files
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
