"""A lock on a folder, so that only one run at a time writes into it.

A run holds an `flock` on a file in the folder. The kernel releases the lock when the process ends, in whatever way.
The content of the file is for the message: which process holds the lock, on which host, since when. A run that ends
removes the file; a killed run leaves it.
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


logger = logging.getLogger(__name__)  # accelerate's logger needs an initialised distributed state

FILE = "run.lock"
BUSY = (errno.EAGAIN, errno.EACCES)
TRIES, PAUSE_S = 20, 0.05  # wait for a run that is just ending, or has not written its name yet


@dataclass(frozen=True)
class Holder:
    """The process that writes into a folder; `started` tells it from a later process with the same `pid`."""

    host: str
    pid: int
    started: float
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"

    @property
    def is_here(self) -> bool:
        """Whether the process ran on this host; only then can this host tell whether the process still runs."""
        return self.host == socket.gethostname()

    @property
    def lives(self) -> bool:
        """Whether the process is known to be still running."""
        if not self.is_here:
            return False
        try:
            process = psutil.Process(self.pid)
            return abs(process.create_time() - self.started) < 1 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


@dataclass
class _OwnLock:
    """A lock of this process, the folders that were made for it, and the number of times that it was taken."""

    descriptor: int
    made: list[Path]
    times: int = 1


_own_locks: dict[Path, _OwnLock] = {}


@contextlib.contextmanager
def hold(folder: str) -> Iterator[None]:
    """Hold the lock of `folder`, which need not exist yet, during the block. Collective; the first rank decides.

    A process may take the lock several times: a launch script takes it, and so does the script's trainer.

    Raises:
        ConfigError: another run holds the lock; raised on all ranks.
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
    """Refuse a folder that a run holds; change nothing in the folder."""
    path = Path(folder).resolve() / FILE
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:  # no run holds the folder, or the lock file cannot be opened
        return
    try:
        # A shared lock, because other processes may check at the same time.
        if not _lock(descriptor, path, fcntl.LOCK_SH) and (holder := _holder(path)):
            raise _refusal(path.parent, holder)
    finally:
        os.close(descriptor)


def _take(path: Path) -> bool:
    """Take the lock, or count one more use of it; return `False`, with a warning, if the folder cannot be locked."""
    if path in _own_locks:
        _own_locks[path].times += 1
        return True
    made = [folder for folder in path.parents if not folder.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _locked(path)
        before = _holder(path)
        _say_who(descriptor)
    except OSError as error:  # such as for a folder that is read-only
        logger.warning(f"{path} cannot be locked ({error}). Make sure that no other run writes into this folder.")
        return False
    if before is not None and not before.lives:  # it lives if the folder was copied with its lock file
        what = "has ended" if before.is_here else "may have ended. If it still runs there, end it"
        say(f"This run takes over {path.parent} from {before}, which {what}.", flush=True)
    _own_locks[path] = _OwnLock(descriptor, made)
    return True


def _locked(path: Path) -> int:
    """Return a descriptor of the lock file that holds the lock.

    Raises:
        ConfigError: another process holds the lock.
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
    """Try to lock the file, and return whether this process may write.

    On a file system without locks, the result is whether no process on this host is known to write.
    """
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        holder = None if error.errno in BUSY else _holder(path)
        return error.errno not in BUSY and not (holder is not None and holder.lives)
    return True


def _is_still(descriptor: int, path: Path) -> bool:
    """Return whether the open file is still at `path`: the previous holder may have removed it since the opening."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _say_who(descriptor: int) -> None:
    own = psutil.Process()
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    holder = Holder(socket.gethostname(), own.pid, own.create_time(), since)
    with contextlib.suppress(OSError):  # a full disk: the lock holds without a name
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(asdict(holder)).encode(), 0)


def _holder(path: Path) -> Holder | None:
    """Read the holder from the file; `None` if there is no file, or no holder in it yet."""
    try:
        holder = Holder(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    fits = isinstance(holder.pid, int) and isinstance(holder.started, int | float)
    return holder if fits and isinstance(holder.host, str) and isinstance(holder.since, str) else None


def _refusal(folder: Path, holder: Holder | None) -> ConfigError:
    who = holder or f"an unknown process (the process that holds {FILE})"
    fix = f"end that run first (kill {holder.pid})" if holder else "end that run first"
    return ConfigError(
        f"output_dir: another run writes into {folder}: {who}. The checkpoints and traces of two runs would be mixed. "
        f"Give this run another output_dir, or {fix}."
    )


def _give_back(path: Path) -> None:
    lock = _own_locks.get(path)
    if lock is None:  # this process was forked after the lock was taken
        return
    lock.times -= 1
    if lock.times:
        return
    del _own_locks[path]
    with contextlib.suppress(OSError):  # before the release, so that a waiting process sees that the file is gone
        path.unlink()
        for folder in lock.made:  # a refused run leaves nothing behind
            folder.rmdir()
    os.close(lock.descriptor)


def _forget() -> None:
    """Forget the parent's lock in a forked process, which is another run or no run."""
    for lock in _own_locks.values():
        os.close(lock.descriptor)
    _own_locks.clear()


os.register_at_fork(after_in_child=_forget)
