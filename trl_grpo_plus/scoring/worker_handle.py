"""The pool's handle on a worker process."""

import functools
import logging
import math
import os
import resource
import signal
from multiprocessing.connection import Connection

from ..utils.fork_client import Child
from ..utils.run_clock import Clock


logger = logging.getLogger(__name__)

_WARNED_OF: set[str] = set()


class Handle:
    """A worker process: the pool's connection to it, its loaded rewards, its current sample and its clock."""

    def __init__(self, child: Child):
        self.child = child
        self.connection = Connection(child.socket.detach())
        self.loaded: set[str] = set()
        self.sample = -1
        self.start_clock(math.inf)

    def start_clock(self, limit_s: float) -> None:
        """Give the worker `limit_s` seconds from now on."""
        self.clock = Clock(limit_s, [self.child.pid], fresh=False)


def granted_mb(memory_mb: int) -> int:
    """Return the address space, in MiB, that a worker can have.

    This is `memory_mb`, or the hard limit of this process if that is smaller.
    """
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    granted = memory_mb if hard == resource.RLIM_INFINITY else min(memory_mb, hard >> 20)
    if granted < memory_mb:
        _warn_of_less(memory_mb, granted)
    return granted


def how_it_died(status: int | None, memory_mb: int) -> str:
    """Describe how a worker died, from its wait status; `None`: its zygote was killed, and the worker with it."""
    if status is None:
        return "The process that forks workers died while it ran."
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        why = f" (it may use {memory_mb} MiB)" if number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT) else ""
        return f"Its worker process died of {signal.Signals(number).name}{why}."
    return f"Its worker process ended itself with exit status {os.waitstatus_to_exitcode(status)}."


def warn_of_left(target: str, left: str) -> None:
    """Warn, once per reward, that a worker was ended because of what a sample left in it."""
    if target in _WARNED_OF:
        return
    _WARNED_OF.add(target)
    logger.warning(
        f"{target} left {left} after a sample: its worker is ended, and the next sample has another one, which loads "
        "the reward anew. A thread or a process that samples share must be started when the reward's module is "
        "loaded, or in a block `with trl_grpo_plus.scoring.kept():`."
    )


@functools.cache
def _warn_of_less(memory_mb: int, granted: int) -> None:
    logger.warning(
        f"reward_worker_memory_mb={memory_mb} is more than the hard limit of this process (`ulimit -H -v`), "
        f"{granted} MiB: reward workers have that, and a reward that needs more fails. Raise the limit, or set "
        f"reward_worker_memory_mb to {granted}."
    )
