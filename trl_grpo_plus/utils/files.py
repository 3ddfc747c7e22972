"""Files that are written whole or not at all, names that are free, and files that others left in a folder."""

import itertools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO


def replace(path: Path, pieces: Iterable[bytes]) -> int:
    """Write beside `path` and rename, so that nobody finds half a file. Returns the size in bytes."""
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
    """`folder/name-N`, the first N that is free."""
    return next(path for n in itertools.count(1) if not (path := folder / f"{name}-{n}").exists())


class Unreadable(OSError):
    """A file or folder of a run that is not what it should be: a link that leads out of the run, or no file."""


def within(path: Path, folder: Path) -> Path:
    """`path`, which is in `folder` once all links are followed.

    A run may come from someone, and its page go to others: a link in it must not add a file of the reader's own.

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
    """Open a file that is in `folder` once all links are followed.

    Raises:
        Unreadable: a link leads out of the folder, or there is something else than a file.
    """
    within(path, folder)
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "no plain file"
        raise Unreadable(f"{path} is {kind}, and should be a file. Move it away.")
    return open(path, "rb")
