"""Detects that the machine is short of time, processes or memory, so that programs are not penalised for it."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator

from ..utils import resources, run_clock
from ..utils.fork_client import SCARCE, NoProcess
from .errors import Killed, Starved


SLOW_START_S = 0.1  # shorter waits are not reported to `on_wait`
FEW_TASKS = 8  # with fewer tasks left, bubblewrap may fail to start
COUNTED_FOR_S = 5.0  # how long a count of this user's threads is reused
MANY_TASKS = 4096  # assumed if the threads cannot be counted


class Wait:
    """Reports all elapsed time as waiting time, in parts of at least `SLOW_START_S`."""

    def __init__(self, on_wait: Callable[[float], None] | None):
        self._on_wait, self._since = on_wait, time.monotonic()

    def tell(self, _: float = 0.0) -> None:
        """Report the time since the last report, if it is long enough."""
        now = time.monotonic()
        if self._on_wait and now - self._since >= SLOW_START_S:
            self._on_wait(now - self._since)
            self._since = now


@contextlib.contextmanager
def as_starved() -> Iterator[None]:
    """Raise [`Starved`] if the block fails for lack of processor time, memory or descriptors."""
    try:
        yield
    except run_clock.TooBusy:
        raise Starved(f"the machine was too busy to run it within {run_clock.PATIENCE:g} times its limit") from None
    except OSError as error:
        if error.errno not in SCARCE:
            raise
        raise Starved(f"this process had no memory or descriptor left to run it: {error}") from error


def is_scarcity(error: Exception) -> bool:
    """Return whether the cause of `error` is a shortage that may pass.

    The command that a tier runs under does not report why it failed, so few tasks left count as a shortage, too.
    """
    return isinstance(error, NoProcess | Starved | Killed) or resources.spare_tasks() < FEW_TASKS


def tasks_of_user() -> int:
    """Return the number of threads that count for this user; a count is reused for `COUNTED_FOR_S`."""
    return _counted(int(time.monotonic() / COUNTED_FOR_S))


@functools.lru_cache(maxsize=1)
def _counted(_: int) -> int:
    try:
        return resources.tasks_of_user()
    except (OSError, ValueError, IndexError):
        return MANY_TASKS
