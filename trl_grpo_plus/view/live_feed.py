"""A reader for a run that is still being written: each look reads the bytes added to its files since the last look.

Memory holds numbers about each group, and the place of its attempts on disk: see `file_index`. Texts are read from
disk when a page asks for them. If a file is gone, shorter, or replaced by another file, everything is read anew. A
resumed run replaces files, because it repeats steps.

The list of a long run has room for some of the groups only. They are chosen when everything is read, in the same order
as for a page from disk. All later groups join the list, until it is twice as long.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import traces
from ..traces import Block, Row
from ..utils.files import TracesError
from . import file_index, prompt_history
from .file_index import Groups, Keeper, Moved, Named, Stretch, read_file
from .group_data import columns, detail, names_by_group, searched
from .overview import metrics_table
from .run_source import Source, head_of
from .size_budget import in_turn
from .template import in_chunks


AT_MOST_EVERY = 0.5  # seconds between two looks, however many readers ask
MOST_LISTED = 300_000  # maximum attempts of the groups in the list, all of which a browser holds
_LAST = 1000  # entries of the log among which the last one of a training is looked for
_NEWEST = 4  # one fourth of the list is kept for the groups of the newest steps
_ALL_EVERY = 60.0  # seconds after which all files are looked at, although no other sign says that one has changed
_SETTLED = 2.0  # seconds after which another change of a folder surely has another time of modification
_ABANDONED = 30.0  # seconds without a change after which an incomplete gzip member is taken for cut off by a kill
_SLOW, _REST = 0.1, 20  # if counting the lists of prompts takes over _SLOW seconds, wait _REST times as long


class _FileState(NamedTuple):
    inode: int
    bytes: int  # size of the file at the last look
    end: int  # offset up to which whole lines of a journal, or whole groups, were read
    cut: bool  # whether groups beyond `end` were read, from a gzip member that a kill cut off


class _Look(NamedTuple):
    """The time of a look at all files, and what the next look compares to tell whether anything was written since.

    A file that comes or goes changes the time of its folder. Of the files that stay, a run appends to a few only.
    """

    at: float
    folder: Path
    changed: int | None  # time of the folder's last change, ns; `None` if it was too short a time before the look
    growing: dict[Path, tuple[int, int] | None]  # journals, index, last file of each split -> inode and size


class _CountedLists(NamedTuple):
    table: dict[str, Any]
    identities: list[str]
    version: int
    at: float  # when they were counted
    rest: float  # seconds until they may be counted again


@dataclass
class _RunData:
    """All data of the run that has been read since everything was read anew."""

    files: dict[Path, _FileState] = field(default_factory=dict)
    groups: Groups = field(default_factory=Groups)
    about: Row = field(default_factory=dict)
    journals: dict[str, list[Row]] = field(default_factory=lambda: {name: [] for name in traces.JOURNALS})
    newest: dict[str, int] = field(default_factory=dict)  # split -> its last step
    problems: dict[Path, str] = field(default_factory=dict)
    index: dict[str, list[Block]] = field(default_factory=dict)  # file not read yet -> its blocks
    keeper: Keeper | None = None  # only during the first look
    look: _Look | None = None
    lists: _CountedLists | None = None


@dataclass
class _List:
    """The list of an epoch."""

    numbers: list[int] = field(default_factory=list)  # numbers of its groups
    attempts: int = 0
    considered: int = 0  # number of groups that are in it or had no room
    words: dict[str, int] = field(default_factory=dict)
    prompts: dict[str, int] = field(default_factory=dict)
    note: str = ""
    numbered: int = 0  # number of its groups whose prompts have a number


class Feed:
    """The data read from a run so far. Safe for any number of threads.

    Args:
        run (`str` or `Path`): the run's `output_dir` or `rollouts` folder, which need not exist yet.
    """

    def __init__(self, run: str | Path):
        self._run = Path(run)
        self._lock, self._counting = threading.Lock(), threading.Lock()
        self._refreshed = 0.0
        self._epoch = self._version = 0
        self._data, self._list = _RunData(), _List()

    def news(self, epoch: int = -1, groups: int = 0, version: int = -1) -> dict[str, Any]:
        """Return the data that is new to a reader who knows `groups` groups of an epoch.

        Args:
            epoch (`int`, *optional*): the reader's epoch. An epoch ends when everything is read anew, or when the list
                is chosen anew. If it is not the current epoch, all groups are new.
            groups (`int`, *optional*): number of groups that the reader knows.
            version (`int`, *optional*): version of the data that the reader got last.

        Returns:
            `dict`: `live`, the arguments of the next call and the state of the run. If anything is new, also `head`,
            the page's head, and `index`, the lines of the new groups. Their words and prompts continue the numbering
            of the earlier lines.
        """
        with self._lock:
            self._refresh()
            live = self._live()
            if (epoch, version) == (self._epoch, self._version):
                return {"live": live}
            reader_has = min(max(groups, 0), len(self._list.numbers)) if epoch == self._epoch else 0
            return {"live": live, "head": self._head(), "index": self._index(reader_has)}

    def refresh(self) -> dict[str, Any]:
        """Read what is new, and return the state of the run: `live` of [`news`]."""
        with self._lock:
            self._refresh()
            return self._live()

    def metrics(self) -> dict[str, Any]:
        """Return every logged metric, as [`~trl_grpo_plus.view.overview.metrics_table`]."""
        with self._lock:
            journal = list(self._data.journals["metrics"])
        return metrics_table(journal)

    def lists(self) -> dict[str, Any]:
        """Return the course of each prompt so far. If that takes long to count, it is as [`count_ahead`] counted it.

        Returns:
            `dict`: the columns of [`~trl_grpo_plus.view.prompt_history.lists`], and `listed`, the number of each
            line's prompt, or -1 if none of its groups is in the list.
        """
        lists = self._data.lists
        if lists is None or not lists.rest:
            lists = self._counted_lists()
        with self._lock:
            self._number_prompts()
            return {**lists.table, "listed": [self._list.prompts.get(identity, -1) for identity in lists.identities]}

    def count_ahead(self) -> None:
        """Count the course of each prompt before anybody asks for it, if that takes long."""
        lists = self._data.lists
        if lists.rest if lists else len(self._list.numbers) < len(self._data.groups):
            self._counted_lists()
            with self._lock:
                self._number_prompts()

    def _counted_lists(self) -> _CountedLists:
        with self._counting:  # a lock of its own, so that texts can be read meanwhile
            with self._lock:
                now, data, version = time.monotonic(), self._data, self._version
                lists = data.lists
                stale = lists is None or (lists.version != version and now - lists.at >= lists.rest)
                blocks, solved_reward = data.groups.blocks() if stale else None, data.about.get("solved_reward")
            if blocks is not None:
                counted, took = prompt_history.lists(blocks, solved_reward), time.monotonic() - now
                data.lists = lists = _CountedLists(*counted, version, now, _REST * took if took > _SLOW else 0.0)
        assert lists is not None
        return lists

    def texts(self, epoch: int, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """Yield prompt, reference and attempts of the groups from `start` to `stop`, read from disk one by one.

        A group with a damaged line, which the index hides from the list, has a `problem` and no attempts.

        Raises:
            Moved: the groups are no longer at their places.
        """
        nothing: dict[str, Any] = {"prompt": [], "reference": [], "attempts": []}
        return self._each(
            epoch,
            start,
            stop,
            lambda stretch: detail(file_index.read(stretch), stretch.path.parent),
            lambda problem: {**nothing, "problem": problem},
        )

    def searched(self, epoch: int, start: int, stop: int) -> Iterator[list[str]]:
        """Yield the texts that a search of these groups reads. A damaged group has none, and the page names its file.

        A search reads every group of the list, and needs neither checks nor marks: a third of the time of [`texts`].

        Raises:
            Moved: the groups are no longer at their places.
        """
        return self._each(
            epoch, start, stop, lambda stretch: searched(file_index.read(stretch, checks=False)), lambda problem: []
        )

    def _each(
        self, epoch: int, start: int, stop: int, of_group: Callable[[Stretch], Any], of_damaged: Callable[[str], Any]
    ) -> Iterator[Any]:
        """Yield what is read of each group. The problem of a damaged group is stored for the page."""
        with self._lock:
            data = self._data
            stretches = [data.groups.stretch(number) for number in self._list.numbers[max(start, 0) : stop]]
            if epoch != self._epoch or not stretches:
                raise Moved
        for stretch in stretches:
            try:
                texts = of_group(stretch)
            except Moved:
                with self._lock:
                    data.look = None  # the next look is at all files
                raise
            except Exception as error:
                problem = _problem(stretch.path, error)
                with self._lock:
                    if data.problems.get(stretch.path) != problem:
                        data.problems[stretch.path] = problem
                        self._version += 1
                texts = of_damaged(problem)
            yield texts

    # -- answers

    def _live(self) -> dict[str, Any]:
        data = self._data
        metrics = data.journals["metrics"]
        step = max((line["step"] for line in metrics[-_LAST:]), default=0)
        return {
            "epoch": self._epoch,
            "version": self._version,
            "groups": len(self._list.numbers),
            # A script may log, and evaluate, after the training.
            "ended": any("train_runtime" in line and line["step"] == step for line in metrics[-_LAST:]),
            "problem": _summary(list(data.problems.values())),
            "there": self._run.is_dir(),
        }

    def _head(self) -> dict[str, Any]:
        about = self._data.about
        journals = self._data.journals
        first_prompt = next(iter(journals[traces.FIRST_PROMPT]), None)
        title = traces.output_dir(self._run).name
        source = Source(title, journals["metrics"], journals["alarms"], about, first_prompt=first_prompt)
        head = head_of(source, self._data.groups)
        head |= {"groups": len(self._list.numbers), "attempts": self._list.attempts, "note": self._list.note}
        step = self._data.newest.get("train")  # the page opens on the last training step
        opening = None if step is None else {"split": "train", "step": step}
        return head | {"live": self._live(), "max_steps": about.get("max_steps"), "opening": opening}

    def _index(self, reader_has: int) -> dict[str, Any]:
        groups, named = self._data.groups, names_by_group(self._data.journals["alarms"])
        new = self._list.numbers[reader_has:]
        index = columns((groups.line(number, named) for number in new), self._list.words, self._list.prompts)
        return {**index, "chunks": in_chunks(groups.stretch(number).bytes for number in new)}

    def _number_prompts(self) -> None:
        """Give the prompts of all groups in the list the numbers that `_index` gives them in the lines."""
        for number in self._list.numbers[self._list.numbered :]:
            self._list.prompts.setdefault(self._data.groups.prompt(number), len(self._list.prompts))
        self._list.numbered = len(self._list.numbers)

    # -- the list

    def _extend(self) -> None:
        """Add the new groups to the list. If it becomes too long, choose its groups anew, in a new epoch."""
        groups, chosen = self._data.groups, self._list
        new = range(chosen.considered, len(groups))
        if not new:
            return
        chosen.numbers.extend(new)
        chosen.attempts += int(groups.sizes()[new.start :].sum())
        chosen.considered = len(groups)
        if chosen.attempts > MOST_LISTED * (2 if new.start else 1):
            self._epoch += bool(new.start)
            self._version += 1
            self._list = _choose(groups, names_by_group(self._data.journals["alarms"]))

    # -- reading

    def _refresh(self) -> None:
        if time.monotonic() - self._refreshed < AT_MOST_EVERY:
            return
        if self._written():
            if not self._read_new():
                self._epoch += 1
                self._version += 1
                self._data, self._list = _RunData(), _List()
                self._read_new()
            self._extend()
        self._refreshed = time.monotonic()

    def _written(self) -> bool:
        """Return whether anything may have been written since the last look at all files."""
        look = self._data.look
        if look is None or look.changed is None or self._data.problems or time.monotonic() - look.at > _ALL_EVERY:
            return True
        now = (_changed(look.folder), {path: _stat(path) for path in look.growing})
        return now != (look.changed, look.growing)

    def _read_new(self) -> bool:
        """Read the new data; return `False` if data that was read before has changed."""
        self._data.problems.pop(self._run, None)
        try:
            folder = traces.find(self._run)
            at, changed = time.monotonic(), _changed(folder)
            attempts = traces.files(self._run)
        except (ValueError, OSError) as error:  # no traces yet, or no longer
            if isinstance(error, OSError | TracesError):
                self._data.problems[self._run] = str(error)
            return not self._data.files or isinstance(error, TracesError)
        if not self._data.files:
            self._data.index, self._data.keeper = traces.group_index.read(folder), Keeper(folder)
        there = [*(folder / f"{name}.jsonl" for name in self._data.journals), *(path for *_, path in attempts)]
        newest = {split: path for _, split, path in attempts}
        growing = [*there[: len(self._data.journals)], folder / traces.group_index.NAME, *newest.values()]
        self._data.look = _Look(at, folder, changed, {path: _stat(path) for path in growing})
        found = {path: state for path in there if (state := _stat(path)) is not None}
        for path, last in self._data.files.items():
            inode, size = found.get(path, (None, 0))
            if inode != last.inode or size < last.bytes:
                return False
        with self._telling_of(folder / "run.json"):
            about = traces.about(folder)
            if self._data.files and about.get("run") != self._data.about.get("run", about.get("run")):
                return False  # another run, whose files may have the inodes of those that were deleted
            self._data.about = about
        for name, lines in self._data.journals.items():
            self._read_journal(folder / f"{name}.jsonl", found, lines)
        for step, split, path in attempts:
            if path not in found or not self._grown(path, found):
                continue
            read_cut = path in self._data.files and self._data.files[path].cut  # from the middle of a member
            if read_cut or step < self._data.newest.get(split, 0):  # the list is sorted by step
                return False
            self._data.newest[split] = step
            self._read_attempts(path, found[path])
        if self._data.keeper is not None:
            self._data.keeper.end()
        self._data.index, self._data.keeper = {}, None  # later looks read new data from the lines
        return True

    def _grown(self, path: Path, found: dict[Path, tuple[int, int]]) -> bool:
        last = self._data.files.get(path)
        return last is None or last.bytes < found[path][1] or (not last.cut and _is_cut(path, last.end, last.bytes))

    def _read_journal(self, path: Path, found: dict[Path, tuple[int, int]], lines: list[Row]) -> None:
        """Read a journal's new lines."""
        if path in found and self._grown(path, found):
            end = self._start(path)
            with self._telling_of(path):
                for line in traces.lines(path, end):
                    lines.append(traces.parse(line, path))
                    end += len(line)
            self._done(path, found[path], end)

    def _read_attempts(self, path: Path, found: tuple[int, int]) -> None:
        """Read the whole groups of a file; the next look at a plain file starts at its first incomplete group."""
        start = end = self._start(path)
        indexed = self._data.index.pop(path.name, [])
        cut = _is_cut(path, start, found[1])
        with self._telling_of(path):
            for block in read_file(path, found[0], start, indexed, self._data.keeper, cut):
                self._data.groups.add(block, path, found[0])
                end = block.end
        self._done(path, found, end, cut and end < found[1])

    def _start(self, path: Path) -> int:
        return self._data.files[path].end if path in self._data.files else 0

    def _done(self, path: Path, found: tuple[int, int], end: int, cut: bool = False) -> None:
        self._data.files[path] = _FileState(*found, end, cut)
        self._version += 1

    @contextmanager
    def _telling_of(self, path: Path) -> Iterator[None]:
        """Store an error about a file as a problem, so that the other files are still read."""
        self._data.problems.pop(path, None)
        try:
            yield
        except Exception as error:  # a malformed attempt must not stop the reading of other files
            self._data.problems[path] = _problem(path, error)


def _choose(groups: Groups, named: Named) -> _List:
    """Return the list of a long run: all groups of the newest steps, and those of the others that a page chooses."""
    sizes, whens = groups.sizes(), groups.whens()
    since_each = np.cumsum(sizes[::-1])[::-1]
    newest = int(np.count_nonzero(since_each > MOST_LISTED // _NEWEST))
    while 0 < newest < len(sizes) and whens[newest] == whens[newest - 1]:
        newest += 1
    order = in_turn(whens, groups.ranks(named))
    order = order[order < newest]
    fits = np.cumsum(sizes[order]) <= MOST_LISTED - sizes[newest:].sum()
    numbers = [*np.sort(order[fits]).tolist(), *range(newest, len(sizes))]
    steps = len(set(whens[newest:].tolist()))
    note = f"The list holds all groups of the last {steps:,} steps and evaluations." if steps else ""
    return _List(numbers, int(sizes[numbers].sum()), len(sizes), note=note)


def _problem(path: Path, error: Exception) -> str:
    if isinstance(error, (ValueError, OSError)):
        return str(error)
    return f"{path} has an invalid attempt ({type(error).__name__}: {error})."


def _summary(problems: list[str]) -> str:
    if len(problems) < 2:
        return "".join(problems)
    others = "Another file" if len(problems) == 2 else f"{len(problems) - 1} more files"
    return f"{problems[0]} {others} cannot be read as a whole."


def _is_cut(path: Path, end: int, size: int) -> bool:
    """Return whether a gzip file of `size` bytes has some beyond `end` that nobody goes on writing."""
    try:
        return path.suffix == ".gz" and end < size and time.time() - os.stat(path).st_mtime > _ABANDONED
    except OSError:  # it was moved
        return False


def _changed(folder: Path) -> int | None:
    """Return the time of a folder's last change, ns; `None` if a change after it may have the same time."""
    try:
        changed = os.stat(folder).st_mtime_ns
    except OSError:
        return None
    return changed if time.time_ns() - changed > _SETTLED * 1e9 else None


def _stat(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size
