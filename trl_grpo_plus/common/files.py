"""Files that are written whole or not at all, and names that are free."""

import itertools
import os
from collections.abc import Iterable
from pathlib import Path


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
