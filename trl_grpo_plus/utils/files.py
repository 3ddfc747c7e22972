"""Files that are written whole or not at all, unused names, and checks of paths that others gave or left."""

import contextlib
import glob
import itertools
import json
import os
import re
import shlex
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from .validation import ConfigError, did_you_mean


# Usual names of folders with checkpoints. A name such as outputs/x is then a path, not an id on the Hub.
OUTPUTS = ("checkpoint", "checkpoints", "output", "outputs", "runs")
ABANDONED_S = 3600.0  # seconds without a change after which nobody is writing an unfinished file any more
NOT_OF_DISKS = ("/proc", "/sys")  # nobody can make a folder here, though the root user seems to have the permission


def replace(path: Path, pieces: Iterable[bytes]) -> int:
    """Write a file beside `path` and rename it, so that nobody finds half a file; return the size in bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(unfinished, "wb") as file:
            file.writelines(pieces)
        size = unfinished.stat().st_size
        os.replace(unfinished, path)
    except OSError as error:
        # A failed write, such as to a full disk, names no file.
        if error.errno is None or error.filename not in (None, str(unfinished)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None  # name the path that the caller knows
    finally:
        unfinished.unlink(missing_ok=True)
    return size


def remove_abandoned(path: Path) -> None:
    """Remove the unfinished files that [`replace`] left beside `path` when its process was killed.

    Their age decides, because the process may be one of another host. Not for each of many files in one folder, which
    is read as a whole.
    """
    for left in path.parent.glob(f".{glob.escape(path.name)}.*"):
        with contextlib.suppress(OSError):
            if left.suffix[1:].isdigit() and time.time() - left.stat().st_mtime > ABANDONED_S:
                left.unlink()


def write_json(path: Path, value: Any) -> int:
    """Write a value as indented JSON, whole or not at all; return the size in bytes."""
    return replace(path, [json.dumps(value, indent=2).encode(), b"\n"])


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
    _inner_path(path, folder)
    return path


def _inner_path(path: Path, folder: Path) -> Path:
    """Return `path` relative to `folder`, once all links are followed."""
    real, root = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    if not real.is_relative_to(root):
        raise Unreadable(
            f"{path} is a link to a file outside of {folder}, and such a link is not followed: the other file would "
            "be copied into pages and exports of this run. Replace the link by a copy of the file, or remove it."
        )
    return real.relative_to(root)


def open_within(path: Path, folder: Path) -> IO[bytes]:
    """Open a file for reading after a check that it lies in `folder` once all links are followed.

    Raises:
        Unreadable: a link leads out of the folder, or the path is something other than a file.
        OSError: the file cannot be opened, for instance because a link took its place after the check.
    """
    *folders, name = _inner_path(path, folder).parts or (".",)
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "no plain file"
        raise Unreadable(f"{path} is {kind}, and should be a file. Move it away.")
    # Step by step and without links, because the path may have been changed since the check.
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for inner in folders:
            outer, at = at, os.open(inner, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            os.close(outer)
        return open(
            path, "rb", opener=lambda _, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
        )
    finally:
        os.close(at)


def looks_local(name: str) -> bool:
    """Return `True` if a name has the form of a path, not of an id on the Hub or a URL.

    Such names are `./x`, `/x`, `~/x`, `x/`, `a/b/c` and `outputs/x`.
    """
    if "://" in name:
        return False
    first, _, rest = name.partition("/")
    return name.startswith((".", "/", "~")) or name.endswith("/") or "/" in rest or bool(rest and first in OUTPUTS)


def unexpanded(name: str) -> str | None:
    """Return why a path that holds a variable of the shell, such as $HOME, is wrong; `None` if it holds none."""
    found = re.search(r"\$(?:[A-Za-z_]\w*|\{\w+\})", name)
    return found and f"{name} holds {found[0]}, which is not expanded. Write the path."


def beside(name: str) -> str:
    """Suggest similar paths for a missing path, from its folder: " Did you mean ...?", or ""."""
    given, last = os.path.split(name.rstrip("/"))
    folder = os.path.expanduser(given) or "."
    return did_you_mean(last, os.listdir(folder) if os.path.isdir(folder) else [], given and os.path.join(given, ""))


def no_folder(output_dir: str) -> str | None:
    """Return why a run cannot make its folder on any machine; `None` if it can."""
    whole, there = Path(output_dir).absolute(), _lowest_there(output_dir)
    if there.is_dir():
        return None
    if not there.exists():
        target = os.path.realpath(there)
        make = f"Make that folder: mkdir -p {shlex.quote(target)}"
        return f"output_dir: {output_dir} cannot be made: {there} is a link to {target}, which does not exist. {make}"
    if there == whole:
        return f"output_dir: {output_dir} is a file. Name a folder; it need not exist."
    return f"output_dir: {output_dir} cannot be made: {there} is a file. Name another folder; it need not exist."


def not_writable(output_dir: str) -> str | None:
    """Return why a run on this machine cannot write its folder; `None` if it can."""
    there = _lowest_there(output_dir)
    why = _denied(there) if there.is_dir() else None
    return why and f"output_dir: {output_dir} cannot be used: {why}. Name another folder; it need not exist."


def check_output(path: Path, usual: str, sources: Iterable[Path] = ()) -> None:
    """Refuse a file to write that is a folder, is one of a run's own files, or cannot be made on this machine.

    Args:
        path (`Path`): the file.
        usual (`str`): the usual name of such a file, for the message.
        sources (`Iterable[Path]`, *optional*): the folders of attempts that are read.

    Raises:
        ConfigError: the path is a folder, or lies in one of `sources`, below a file, or in a folder that cannot be
            written.
    """
    for source in sources:
        check_outside(path, source)
    if path.is_dir():
        raise ConfigError(f"{path} is a folder. Give the name of the file to write, such as {path / usual}.")
    there = _lowest_there(path.parent)
    if why := _denied(there) if there.is_dir() else f"{there} is a file":
        raise ConfigError(f"{path} cannot be written: {why}. Name another file.")


def check_outside(path: Path, source: Path) -> None:
    """Refuse a path to write that lies in a folder of attempts.

    Raises:
        ConfigError: it lies there. A page written over a file of attempts would lose them.
    """
    if source.resolve() in (path.resolve(), *path.resolve().parents):
        raise ConfigError(f"{path} lies in {source}, among the run's own files. Give a path outside of it.")


def _denied(folder: Path) -> str | None:
    """Return why this process cannot write into an existing folder; `None` if it can."""
    of_a_disk = not any(folder.resolve().is_relative_to(other) for other in NOT_OF_DISKS)
    if of_a_disk and os.access(folder, os.W_OK | os.X_OK):
        return None
    return f"the user {os.geteuid()} may not write into {folder}, or its disk is read-only"


def _lowest_there(path: str | Path) -> Path:
    """Return the path, or the nearest of its parents that exists."""
    whole = Path(path).absolute()
    return next(path for path in (whole, *whole.parents) if os.path.lexists(path))
