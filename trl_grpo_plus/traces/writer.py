"""Writes a run's traces to disk.

A run that is killed loses at most the batch in flight, and a resumed run has each step only once.

There is one file per split and step, and each batch is appended at once. A compressed file has gzip members of whole
groups, each of which can be unpacked by itself. The index of the groups is appended after the lines.

A run that is resumed at step S makes the steps from S on again. Their existing files, from a process that got further
than its last checkpoint, move to `superseded-N`.
"""

import gzip
import logging
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from ..utils.files import replace, unused, write_json
from ..utils.terminal import visible
from . import group_index, images
from .reader import FOLDER, JOURNALS, group_key, parse_name, read_lines
from .records import to_lines
from .schema import Row


logger = logging.getLogger(__name__)

MEMBER = 1 << 20  # a gzip member ends once its lines have this number of bytes
Lines = tuple[list[Row], bytes]  # a group's attempts, and their lines


class Writer:
    """A writer of one run's traces, for use by one process.

    Args:
        output_dir (`str`): the run's output folder.
        compress (`bool`, *optional*, defaults to `False`): gzip the files of attempts, with members of whole groups,
            about 1 MB of lines each.
        about (`dict`, *optional*): the content of run.json.

    Attributes:
        about (`dict`): the content of run.json when it is written next.

    Evaluations without training, in the folder of another run, go to `rollouts/evaluation-N`.
    """

    def __init__(self, output_dir: str, compress: bool = False, about: dict[str, Any] | None = None):
        self._root = Path(output_dir) / FOLDER
        self._suffix = ".jsonl.gz" if compress else ".jsonl"
        self.about = about or {}
        self._own: dict[Path, int] = {}  # files that this run has created -> CRC-32 of a file of attempts
        self._batches: dict[tuple[str, int], int] = {}
        self._folder: Path | None = None  # chosen when the first file is written
        self._trained = False  # whether a training has begun
        self._warned = False  # whether a warning said that the index cannot be written

    def begin(self, step: int, max_steps: int, logged: int | None = None, run: str | None = None) -> None:
        """Start or resume training at `step` of `max_steps`. Files that the training will write again move aside.

        Args:
            step (`int`), max_steps (`int`): steps done, and steps to do in all.
            logged (`int`, *optional*): number of log entries of `step` in the checkpoint; by default all of them were
                logged before it.
            run (`str`, *optional*): id of the run.
        """
        self._folder = self._root
        # A training that is begun again in this process moves aside what the one before wrote, as in another process.
        earlier = {} if self._trained else self._own
        before_training = {
            path: check for path, check in earlier.items() if path.parent == self._root and not _trains(path)
        }
        self._trained = True
        again = [path for path in self._root.glob("*") if path not in before_training and _made_again(path, step)]
        journals = {self._root / f"{name}.jsonl": self._entries_before(name, step, logged) for name in JOURNALS}
        cut = [
            path
            for path, data in journals.items()
            if path not in before_training and _content(path) not in (None, data)
        ]
        self._move_aside(again, copied=cut)
        for path in cut:
            replace(path, [journals[path]])
        self._describe({"max_steps": max_steps, **({"run": run} if run else {})})
        self._own = before_training
        self._batches = {place: n for place, n in self._batches.items() if self._path(*place) in before_training}

    def fresh(self, split: str, step: int) -> None:
        """Start an evaluation. An earlier one of the same split and step moves aside."""
        self._own.pop(self._path(split, step), None)
        self._batches.pop((split, step), None)

    def number(self, split: str, step: int) -> int:
        """Return the number of the next batch within its split and step, from 0."""
        if split == "train":  # training only moves on: entries of earlier steps are not needed again
            self._batches = {place: n for place, n in self._batches.items() if place[0] != split or place[1] == step}
            self._own = {
                path: check
                for path, check in self._own.items()
                if not _trains(path) or parse_name(path) == (step, split)
            }
        self._batches[split, step] = self._batches.get((split, step), -1) + 1
        return self._batches[split, step]

    def write(self, split: str, step: int, rows: Iterable[dict[str, Any]]) -> None:
        """Append a batch."""
        path = self._path(split, step)
        if path not in self._own:
            self._move_aside([path.with_name(f"{split}-{step:08d}{suffix}") for suffix in (".jsonl", ".jsonl.gz")])
            self._own[path] = 0
        groups = [(of_group, to_lines(of_group)) for _, same in groupby(rows, group_key) for of_group in [list(same)]]
        packed = path.suffix == ".gz"
        members = list(_members(groups)) if packed else [groups]
        pieces = [b"".join(lines for _, lines in member) for member in members]
        if packed:  # the fastest level, because the next batch waits for this one
            pieces = [gzip.compress(piece, compresslevel=1) for piece in pieces]
        data = b"".join(pieces)
        start, written = _append(path, data)
        before, self._own[path] = self._own[path], zlib.crc32(data, self._own[path])
        stretch = (start, start + len(data), before, self._own[path], written)
        try:
            self._index(path, stretch, [*zip(members, pieces, strict=True)])
        except Exception as error:  # the lines are written, and readers do not need the index
            if not self._warned:
                self._warned = True
                logger.warning(
                    visible(f"{path.parent / group_index.NAME} could not be kept: {error}. Pages open later.")
                )

    def note(self, name: str, entries: list[dict[str, Any]]) -> None:
        """Append entries to the journal `name`."""
        path = self._where() / f"{name}.jsonl"
        if not path.exists():
            self._own[path] = 0
        _append(path, to_lines(entries))

    def holds(self, name: str) -> bool:
        """Return whether the journal `name` has an entry."""
        return bool(_content(self._where() / f"{name}.jsonl"))

    def keep(self, thumbnails: dict[str, bytes]) -> None:
        """Write thumbnails of images, by the images' names in the lines."""
        images.keep(self._where(), thumbnails)

    def _index(
        self, path: Path, stretch: tuple[int, int, int, int, int], members: Sequence[tuple[list[Lines], bytes]]
    ) -> None:
        """Add the written groups to the index, unless a group of the batch is not whole."""
        builder, at = group_index.Builder(), stretch[0]
        for groups, piece in members:
            skip = 0
            for rows, lines in groups:
                if len(rows) != rows[0].get("size"):
                    return
                builder.add(rows, (at, skip, len(lines)) if path.suffix == ".gz" else (at + skip, 0, len(lines)))
                skip += len(lines)
            at += len(piece)
        if len(builder):
            group_index.append(path.parent, [builder.block(path.name, *stretch)])

    def _path(self, split: str, step: int) -> Path:
        return self._where() / f"{split}-{step:08d}{self._suffix}"

    def _where(self) -> Path:
        if self._folder is None:
            strangers = self._root.is_dir() and any(parse_name(path) for path in self._root.iterdir())
            self._folder = unused(self._root, "evaluation") if strangers else self._root
            self._describe({})
        return self._folder

    def _describe(self, more: dict[str, Any]) -> None:
        write_json(self._where() / "run.json", {**self.about, **more})

    def _entries_before(self, name: str, step: int, logged: int | None) -> bytes:
        """Return a journal's entries of steps that are not repeated; none if the journal cannot be read."""
        path = self._root / f"{name}.jsonl"
        try:
            entries = [*read_lines(path)] if path.exists() and step else []
        except ValueError as error:
            logger.warning(f"{visible(str(error))} It moves aside, and a new one begins.")
            entries = []
        # Metrics of a step are logged before its checkpoint, except those of the run's end and of evaluations after
        # the checkpoint. Alarms of a step come with its batch.
        at_step = [entry for entry in entries if entry["step"] == step][: logged if name == "metrics" else None]
        return to_lines([*(entry for entry in entries if entry["step"] < step), *at_step])

    def _move_aside(self, paths: list[Path], copied: Sequence[Path] = ()) -> None:
        """Move files to a new folder. Copy those that keep some entries, so that a kill cannot lose the entries."""
        there = [path for path in paths if path.exists()]
        if there or copied:
            aside = unused(self._where(), "superseded")
            aside.mkdir()
            for path in copied:
                shutil.copy2(path, aside / path.name)
            for path in there:
                path.rename(aside / path.name)


def _trains(path: Path) -> bool:
    """Return whether the file holds attempts of the training."""
    return path.name.startswith("train-")


def _made_again(path: Path, step: int) -> bool:
    """Return whether the file holds attempts of steps that a run will repeat if it starts at `step`."""
    named = parse_name(path)
    return named is not None and (named[0] > step or step == 0)


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _members(groups: Iterable[Lines]) -> Iterator[list[Lines]]:
    """Yield the groups of each gzip member. Members are small, because reading one group unpacks a whole member."""
    member: list[Lines] = []
    size = 0
    for of_group, lines in groups:
        member.append((of_group, lines))
        size += len(lines)
        if size >= MEMBER:
            yield member
            member, size = [], 0
    if member:
        yield member


def _append(path: Path, data: bytes) -> tuple[int, int]:
    """Append all data or none; return the size of the file before, and its time of modification after (ns)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab", buffering=0) as file:
        start = file.tell()
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            os.ftruncate(file.fileno(), start)  # the next append must not continue a partial line
            raise
        return start, os.fstat(file.fileno()).st_mtime_ns
