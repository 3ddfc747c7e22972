"""Writes a run's traces to disk: a kill loses at most the batch in flight, and a resumed run tells each step once.

A file a split and step, to which each batch is appended at once. A run that goes on from step S makes the steps from
S on again: what is there of them, from a process that got further than its last checkpoint, moves to `superseded-N`.
"""

import gzip
import itertools
import json
import os
from pathlib import Path
from typing import Any

from .traces import FOLDER, JOURNALS, parse_name, read_lines, to_lines


class Writer:
    """The traces of one run. For one process.

    Args:
        output_dir (`str`): of the run.
        compress (`bool`, *optional*, defaults to `False`): gzip files of attempts, a member a batch.
    """

    def __init__(self, output_dir: str, compress: bool = False):
        self.folder = Path(output_dir) / FOLDER
        self._suffix = ".jsonl.gz" if compress else ".jsonl"
        self._own: set[Path] = set()  # files that this run has made
        self._batches: dict[tuple[str, int], int] = {}
        self._began = False

    def begin(self, step: int, about: dict[str, Any]) -> None:
        """Training starts or goes on at `step`: nothing that it will write may be there already.

        Args:
            step (`int`): optimizer steps done.
            about (`dict`): what to keep in run.json.
        """
        before_training = set() if self._began else self._own
        stale = [path for path in self.folder.glob("*") if path not in before_training and _made_again(path, step)]
        journals = {f"{name}.jsonl": self._kept(name, step) for name in JOURNALS}
        cut = [name for name, data in journals.items() if _content(self.folder / name) not in (None, data)]
        self._move_aside([*stale, *(self.folder / name for name in cut)])
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in cut:
            self._replace(name, journals[name])
        self._replace("run.json", (json.dumps(about, indent=2) + "\n").encode())
        self._own, self._batches, self._began = before_training, {}, True

    def number(self, split: str, step: int) -> int:
        """Which batch of its split and step the next one is, from 0."""
        self._batches[split, step] = self._batches.get((split, step), -1) + 1
        return self._batches[split, step]

    def write(self, split: str, step: int, rows: list[dict[str, Any]]) -> None:
        """Append a batch."""
        path = self.folder / f"{split}-{step:08d}{self._suffix}"
        if path not in self._own:
            self._move_aside(list(self.folder.glob(f"{split}-{step:08d}.jsonl*")))
            self._own.add(path)
        data = to_lines(rows)
        _append(path, gzip.compress(data, compresslevel=6) if path.suffix == ".gz" else data)

    def note(self, name: str, entries: list[dict[str, Any]]) -> None:
        """Append to the journal `name`."""
        _append(self.folder / f"{name}.jsonl", to_lines(entries))

    def _kept(self, name: str, step: int) -> bytes:
        """What a journal holds of the steps that are not made again."""
        path = self.folder / f"{name}.jsonl"
        entries = read_lines(path) if path.exists() and step else ()
        # What is logged at a step comes before its checkpoint, alarms come with the batch after it.
        return to_lines(entry for entry in entries if entry["step"] < step + (name == "metrics"))

    def _move_aside(self, paths: list[Path]) -> None:
        if not paths:
            return
        names = (self.folder / f"superseded-{n}" for n in itertools.count(1))
        aside = next(folder for folder in names if not folder.exists())
        aside.mkdir()
        for path in paths:
            path.rename(aside / path.name)

    def _replace(self, name: str, data: bytes) -> None:
        unfinished = self.folder / f".{name}.tmp"
        unfinished.write_bytes(data)
        unfinished.rename(self.folder / name)


def _made_again(path: Path, step: int) -> bool:
    """Whether this holds attempts that a run which starts at `step` will sample again."""
    named = parse_name(path)
    if named is None:
        return False
    at, split = named
    # A step is evaluated before its checkpoint is written.
    return at >= step if split == "train" or step == 0 else at > step


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _append(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab", buffering=0) as file:
        start = file.tell()
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            os.ftruncate(file.fileno(), start)  # whoever appends next must not go on in the midst of a line
            raise
