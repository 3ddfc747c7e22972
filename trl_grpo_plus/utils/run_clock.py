"""A clock for a process's own time on a busy machine, and for the limit on this time.

    own time = wall clock - the longest time that any of the process's threads has waited for a processor

The kernel counts the waiting time in the run queue in /proc/PID/task/TID/schedstat. A process alone on an idle machine
waits for nothing. A process that sleeps, blocks or stops itself does not wait for a processor. So a process cannot
look starved by its own doing: while one of its threads waits, another thread runs; if this is a thread of the same
process, the process pays in processor time, which has the same limit.

A process that has used up neither limit when `PATIENCE` times the limit has gone by was starved, and its result is
unknown. So `PATIENCE` or more processes for each processor starve each other if each computes without end. Fewer must
run at once (`scoring.worker_pool.default_size`). If the kernel does not report waiting times (no /proc, no schedstat),
the wall clock alone decides.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple


PATIENCE = 10.0  # multiple of the limit, in wall clock, after which a process counts as starved
UNSEEN = 0.05  # share of the limit before which /proc is not read
LEAST_STEP_S = 0.02  # longer than a scheduler tick, the resolution of the kernel's counts


class TooLong(Exception):
    """A process took longer than its limit."""


class TooBusy(Exception):
    """The machine was too busy to give a process its time."""


class Clock:
    """A clock for the time that processes take of a limit from now on. Of several processes, one works at a time.

    Args:
        limit_s (`float`): seconds of own time, and of processor time.
        pids (`Sequence[int]`): the processes, in this process's namespace. If empty, the wall clock decides.
        fresh (`bool`, *optional*, defaults to `True`):
            Whether the processes have just been started. The earlier waiting times of other processes are unknown, so
            the first twentieth of the limit counts as their own time.
        on_wait (`Callable`, *optional*): called now and then with the further seconds that the processes waited for a
            processor.

    Attributes:
        due (`float`): time of the monotonic clock at which [`Clock.left`] must be called again.
    """

    def __init__(
        self,
        limit_s: float,
        pids: Sequence[int] = (),
        fresh: bool = True,
        on_wait: Callable[[float], None] | None = None,
    ):
        self._limit_s, self._pids, self._on_wait = limit_s, pids, on_wait
        self._start = time.monotonic()
        self._before: _Usage | None = _Usage({}, 0.0) if fresh else None
        self._last: tuple[_Usage, float] | None = None
        self._excused = self._reported = 0.0
        self.due = self._start + (1.0 if fresh else UNSEEN) * limit_s

    def left(self) -> float:
        """Return the seconds, above 0, until this method must be called again.

        Raises:
            TooLong: the processes' own time or processor time is used up.
            TooBusy: neither time is used up, and `PATIENCE` times the limit has gone by.
        """
        while (seconds := self.due - time.monotonic()) <= 0:
            self._decide(_usage_of(self._pids))
        return seconds

    def excuse(self, seconds: float) -> None:
        """Excuse seconds that have gone by: they do not count as the processes' own time."""
        self._excused += seconds

    def stop(self) -> None:
        """Stop the clock: report the remaining waiting time to `on_wait` if enough time has gone by to matter."""
        wall = time.monotonic() - self._start
        if self._on_wait and wall >= UNSEEN * self._limit_s:
            self._waited(_usage_of(self._pids), wall)

    def _decide(self, usage: "_Usage") -> None:
        wall = time.monotonic() - self._start
        if self._before is None:
            self._before, self.due = usage, self._start + self._limit_s
            return
        away = self._excused + self._waited(usage, wall)
        if usage.used - self._before.used >= self._limit_s or self._surely(usage, wall) - away >= self._limit_s:
            raise TooLong
        if wall >= PATIENCE * self._limit_s:
            raise TooBusy
        self._last = usage, wall
        step = max(self._limit_s - (wall - away), LEAST_STEP_S)
        self.due = self._start + min(wall + step, PATIENCE * self._limit_s)

    def _surely(self, usage: "_Usage", wall: float) -> float:
        """Return the time up to which all waits are known: the kernel counts a wait once the thread runs again."""
        if not any(thread.runnable for thread in usage.threads.values()):
            return wall
        if self._last is None or usage.is_queued_since(self._last[0]):
            return 0.0
        return self._last[1]

    def _waited(self, usage: "_Usage", wall: float) -> float:
        before = self._before.threads if self._before else {}
        longest = dict.fromkeys(self._pids, 0.0)
        for tid, thread in usage.threads.items():
            waited = thread.waited - (before[tid].waited if tid in before else 0.0)
            longest[thread.pid] = max(longest[thread.pid], waited)
        waited = min(sum(longest.values()), wall)
        if self._on_wait and waited > self._reported:
            self._on_wait(waited - self._reported)
            self._reported = waited
        return waited


class _Thread(NamedTuple):
    pid: int
    ran: int  # ns
    waited: float  # s
    runnable: bool


class _Usage(NamedTuple):
    threads: dict[int, _Thread]
    used: float  # processor seconds, with those of ended threads

    def is_queued_since(self, last: "_Usage") -> bool:
        """Return whether a thread has waited all the time since `last` was taken.

        The record of a thread that ran or slept since then would differ.
        """
        return any(one.runnable and last.threads.get(tid) == one for tid, one in self.threads.items())


def _usage_of(pids: Sequence[int]) -> _Usage:
    threads = {tid: thread for pid in pids for tid, thread in _threads(pid)}
    return _Usage(threads, sum(map(_used, pids)))


def _threads(pid: int) -> Iterator[tuple[int, _Thread]]:
    try:
        names = os.listdir(f"/proc/{pid}/task")
    except OSError:  # the process has ended, or there is no /proc
        return
    for name in names:
        try:
            ran, waited, *_ = _read(f"/proc/{pid}/task/{name}/schedstat").split()
            state = _read(f"/proc/{pid}/task/{name}/stat").rpartition(b") ")[2][:1]
        except (OSError, ValueError):
            continue
        yield int(name), _Thread(pid, int(ran), int(waited) / 1e9, state == b"R")


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read(4096)


def _used(pid: int) -> float:
    """Return the processor seconds of a process, by its clock, whose id is that of clock_getcpuclockid(3)."""
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return 0.0
