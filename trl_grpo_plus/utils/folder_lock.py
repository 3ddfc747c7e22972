"""One run at a time writes into a folder.

A run holds the lock of a file in it, `flock`, which the kernel lets go when the process ends, however that ended. What
the file says is for the message: who, where, since when. A run that ends takes the file away, a killed one leaves it.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from accelerate import PartialState

from .distributed import raise_on_all_ranks
from .terminal import say
from .validation import ConfigError


logger = logging.getLogger(__name__)  # accelerate's wants processes that know of each other

FILE = "run.lock"
BUSY = (errno.EAGAIN, errno.EACCES)
TRIES, PAUSE_S = 20, 0.05  # for a run that is just ending, or has not said yet who it is


@dataclass(frozen=True)
class Holder:
    """The process that writes into a folder. `started` tells it from another that was given its `pid` later."""

    host: str
    pid: int
    started: float
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"

    @property
    def is_here(self) -> bool:
        """Whether it ran on this host, so that one can know whether it still does."""
        return self.host == socket.gethostname()

    @property
    def lives(self) -> bool:
        """Whether it is known to run still."""
        if not self.is_here:
            return False
        try:
            process = psutil.Process(self.pid)
            return abs(process.create_time() - self.started) < 1 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


@dataclass
class _Held:
    """A lock of this process, the folders that were made for it, and how many times it was asked for."""

    descriptor: int
    made: list[Path]
    times: int = 1


_held: dict[Path, _Held] = {}


@contextlib.contextmanager
def held(folder: str) -> Iterator[None]:
    """Be the one run that writes into `folder`, which need not be there yet. Collective; the first rank decides.

    A process may hold it several times over: a launch script does, and its trainer.

    Raises:
        ConfigError: another run holds it; on all ranks alike.
    """
    path = Path(folder).resolve() / FILE
    taken = False
    with raise_on_all_ranks():
        if PartialState().is_main_process:
            taken = _take(path)
    try:
        yield
    finally:
        if taken:
            _give_back(path)


def check(folder: str) -> None:
    """Refuse a folder that a run holds, and leave it as it is."""
    path = Path(folder).resolve() / FILE
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:  # no run is here, or none that another may end
        return
    try:
        # Shared: others may look at the same time.
        if not _lock(descriptor, path, fcntl.LOCK_SH) and (holder := _holder(path)):
            raise _refusal(path.parent, holder)
    finally:
        os.close(descriptor)


def _take(path: Path) -> bool:
    """Take the lock, or one more of this process. `False`: there can be none here, which is said."""
    if path in _held:
        _held[path].times += 1
        return True
    made = [folder for folder in path.parents if not folder.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _locked(path)
        before = _holder(path)
        _say_who(descriptor)
    except OSError as error:  # a folder that is read only
        logger.warning(f"{path} cannot be locked ({error}): another run in this folder would not be noticed.")
        return False
    if before is not None and not before.lives:  # a copy of a run's folder has a copy of its file
        what = "ended without giving it back" if before.is_here else "may have ended; end it if it still runs there"
        say(f"{path.parent} was held by {before}, which {what}: taken over.", flush=True)
    _held[path] = _Held(descriptor, made)
    return True


def _locked(path: Path) -> int:
    """Return a descriptor of the file, which has its lock.

    Raises:
        ConfigError: another process has it.
    """
    tries = TRIES
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        if _lock(descriptor, path, fcntl.LOCK_EX) and _is_still(descriptor, path):
            return descriptor
        os.close(descriptor)
        holder, tries = _holder(path), tries - 1
        if not tries or (holder is not None and holder.lives):
            raise _refusal(path.parent, holder)
        time.sleep(PAUSE_S)


def _lock(descriptor: int, path: Path, kind: int) -> bool:
    """Return whether the lock could be had. Where the file system has none, whether no process here is known to
    write.
    """
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        holder = None if error.errno in BUSY else _holder(path)
        return error.errno not in BUSY and not (holder is not None and holder.lives)
    return True


def _is_still(descriptor: int, path: Path) -> bool:
    """Return whether the file is the one at `path`: who had it before may have taken it away since it was opened."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _say_who(descriptor: int) -> None:
    own = psutil.Process()
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    holder = Holder(socket.gethostname(), own.pid, own.create_time(), since)
    with contextlib.suppress(OSError):  # a full disk: the lock holds without a word
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(asdict(holder)).encode(), 0)


def _holder(path: Path) -> Holder | None:
    """Who the file says it is; `None` where there is no file, or it says nothing yet."""
    try:
        holder = Holder(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    fits = isinstance(holder.pid, int) and isinstance(holder.started, int | float)
    return holder if fits and isinstance(holder.host, str) and isinstance(holder.since, str) else None


def _refusal(folder: Path, holder: Holder | None) -> ConfigError:
    who = holder or f"a process that has not said who it is (the one that holds {FILE})"
    fix = f"end that run first (kill {holder.pid})" if holder else "end that run first"
    return ConfigError(
        f"output_dir: another run writes into {folder}: {who}. The checkpoints and traces of two would be mixed. Give "
        f"this one another output_dir, or {fix}."
    )


def _give_back(path: Path) -> None:
    held = _held.get(path)
    if held is None:  # in a process that was forked since
        return
    held.times -= 1
    if held.times:
        return
    del _held[path]
    with contextlib.suppress(OSError):  # first: who waits for the lock then sees that this file is no more
        path.unlink()
        for folder in held.made:  # a run that was refused leaves nothing
            folder.rmdir()
    os.close(held.descriptor)


def _forget() -> None:
    """Forget the parent's lock in a forked process: that is another run, or none."""
    for held in _held.values():
        os.close(held.descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_forget)
