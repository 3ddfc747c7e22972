"""Files that are written whole or not at all, unused names, and checks of files that others left in a folder."""

import itertools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO


def replace(path: Path, pieces: Iterable[bytes]) -> int:
    """Write a file beside `path` and rename it, so that nobody finds half a file; return the size in bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(unfinished, "wb") as file:
            file.writelines(pieces)
        size = unfinished.stat().st_size
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return size


def unused(folder: Path, name: str) -> Path:
    """Return the path `folder/name-N` with the first N that is unused."""
    return next(path for n in itertools.count(1) if not (path := folder / f"{name}-{n}").exists())


class Unreadable(OSError):
    """A path in a run is unusable: a link that leads out of the run, or something other than a file."""


class TracesError(ValueError):
    """A file of a run is damaged, or was changed while it was read. The message names the file and the remedy."""


def within(path: Path, folder: Path) -> Path:
    """Return `path` after a check that it lies in `folder` once all links are followed.

    A run may come from one person and its page may go to another. A link in the run must not add a file of the reader
    to the page.

    Raises:
        Unreadable: a link leads out of the folder.
    """
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise Unreadable(
            f"{path} is a link that leads out of {folder}, and is not followed: what it leads to would stand in what "
            "is made of this run. Put a copy in its place, or remove it."
        )
    return path


def open_within(path: Path, folder: Path) -> IO[bytes]:
    """Open a file for reading after a check that it lies in `folder` once all links are followed.

    Raises:
        Unreadable: a link leads out of the folder, or the path is something other than a file.
    """
    within(path, folder)
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "no plain file"
        raise Unreadable(f"{path} is {kind}, and should be a file. Move it away.")
    return open(path, "rb")
