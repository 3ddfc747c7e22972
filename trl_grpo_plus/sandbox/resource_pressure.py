"""Detects that the machine is short of time, processes or memory, so that programs are not penalised for it."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator

from ..utils import resources, run_clock
from ..utils.fork_client import SCARCE, NoProcess
from .errors import Killed, Starved


SLOW_START_S = 0.1  # of which `on_wait` is told
FEW_TASKS = 8  # left to this process, with which bubblewrap need not start
COUNTED_FOR_S = 5.0  # that the number of this user's threads is taken to stay as it is
MANY_TASKS = 4096  # where they cannot be counted


class Wait:
    """Tells how much of the time that goes by from now on was spent waiting, all of it, once it matters."""

    def __init__(self, on_wait: Callable[[float], None] | None):
        self._on_wait, self._since = on_wait, time.monotonic()

    def tell(self, _: float = 0.0) -> None:
        """Tell what has gone by since it was last told."""
        now = time.monotonic()
        if self._on_wait and now - self._since >= SLOW_START_S:
            self._on_wait(now - self._since)
            self._since = now


@contextlib.contextmanager
def as_starved() -> Iterator[None]:
    """Raise [`Starved`] for what fails in here for lack of time, memory or descriptors."""
    try:
        yield
    except run_clock.Starved:
        raise Starved(f"the machine was too busy to run it within {run_clock.PATIENCE:g} times its limit") from None
    except OSError as error:
        if error.errno not in SCARCE:
            raise
        raise Starved(f"this process had no memory or descriptor left to run it: {error}") from error


def is_scarcity(error: Exception) -> bool:
    """Return whether what fails now may work later. What a tier runs under does not say why it failed."""
    return isinstance(error, NoProcess | Starved | Killed) or resources.spare_tasks() < FEW_TASKS


def tasks_of_user() -> int:
    """Threads that count for this user, as counted a moment ago."""
    return _counted(int(time.monotonic() / COUNTED_FOR_S))


@functools.lru_cache(maxsize=1)
def _counted(_: int) -> int:
    try:
        return resources.tasks_of_user()
    except (OSError, ValueError, IndexError):
        return MANY_TASKS
