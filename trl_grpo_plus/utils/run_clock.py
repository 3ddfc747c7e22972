"""The time that a process itself took, whatever else the machine had to do, and when it is up.

    own time = wall clock - the longest that any of its threads has waited for a processor

The kernel counts that waiting, in the run queue, in /proc/PID/task/TID/schedstat. A process alone on an idle machine
waits for nothing; one that sleeps, blocks or stops itself does not wait for a processor. So no process can look
starved by what it does itself alone: while a thread of it waits another one runs, and if that is its own, it pays in
processor time, which has the same limit. A process that has used up neither when `PATIENCE` times the limit has gone
by was starved, and nothing can be said of it. So `PATIENCE` or more for each processor, each of which computes without
end, do starve each other: there must be fewer at once (`workers.default_size`). Where the kernel does not tell (no
/proc, no schedstat), the wall clock decides alone.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple


PATIENCE = 10.0  # wall clock, in limits, after which a process counts as starved
UNSEEN = 0.05  # of the limit, before which nothing is looked at
LEAST_STEP_S = 0.02  # above a tick of the scheduler, with which the kernel keeps its counts


class TooLong(Exception):
    """It took longer than it may."""


class Starved(Exception):
    """The machine was too busy for it to take its time."""


class Clock:
    """What processes take of a limit from now on. Where there are several, one at a time is at work.

    Args:
        limit_s (`float`): seconds of own time, and of processor time.
        pids (`Sequence[int]`): the processes, as this one sees them; none: the wall clock decides.
        fresh (`bool`, *optional*, defaults to `True`):
            They have just been started. Of others it is not known what they waited for before, so the first twentieth
            of the limit counts as their own time.
        on_wait (`Callable`, *optional*): is told, now and then, how many seconds more they waited for a processor.

    Attributes:
        due (`float`): of the monotonic clock, when [`Clock.left`] must be asked again.
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
        self._before: _Look | None = _Look({}, 0.0) if fresh else None
        self._last: tuple[_Look, float] | None = None
        self._excused = self._reported = 0.0
        self.due = self._start + (1.0 if fresh else UNSEEN) * limit_s

    def left(self) -> float:
        """Seconds, above 0, until this must be asked again.

        Raises:
            TooLong: the processes' own time or processor time is up.
            Starved: it is not, and they have had wall clock enough.
        """
        while (seconds := self.due - time.monotonic()) <= 0:
            self._decide(_look(self._pids))
        return seconds

    def excuse(self, seconds: float) -> None:
        """Excuse some of the time that has gone by: it is not the processes' own."""
        self._excused += seconds

    def stop(self) -> None:
        """No more is to be timed: tell `on_wait` the rest, if so much time has gone by that it matters."""
        wall = time.monotonic() - self._start
        if self._on_wait and wall >= UNSEEN * self._limit_s:
            self._waited(_look(self._pids), wall)

    def _decide(self, look: "_Look") -> None:
        wall = time.monotonic() - self._start
        if self._before is None:
            self._before, self.due = look, self._start + self._limit_s
            return
        away = self._excused + self._waited(look, wall)
        if look.used - self._before.used >= self._limit_s or self._surely(look, wall) - away >= self._limit_s:
            raise TooLong
        if wall >= PATIENCE * self._limit_s:
            raise Starved
        self._last = look, wall
        step = max(self._limit_s - (wall - away), LEAST_STEP_S)
        self.due = self._start + min(wall + step, PATIENCE * self._limit_s)

    def _surely(self, look: "_Look", wall: float) -> float:
        """Return the wall clock up to which no wait is left to be counted: that of a thread is when it gets to run."""
        if not any(thread.runnable for thread in look.threads.values()):
            return wall
        if self._last is None or look.is_queued_since(self._last[0]):
            return 0.0
        return self._last[1]

    def _waited(self, look: "_Look", wall: float) -> float:
        before = self._before.threads if self._before else {}
        longest = dict.fromkeys(self._pids, 0.0)
        for tid, thread in look.threads.items():
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


class _Look(NamedTuple):
    threads: dict[int, _Thread]
    used: float  # processor seconds, of threads that have ended too

    def is_queued_since(self, last: "_Look") -> bool:
        """Return whether a thread has waited all the time since the last look: had it run, or slept, it would
        differ.
        """
        return any(one.runnable and last.threads.get(tid) == one for tid, one in self.threads.items())


def _look(pids: Sequence[int]) -> _Look:
    threads = {tid: thread for pid in pids for tid, thread in _threads(pid)}
    return _Look(threads, sum(map(_used, pids)))


def _threads(pid: int) -> Iterator[tuple[int, _Thread]]:
    try:
        names = os.listdir(f"/proc/{pid}/task")
    except OSError:  # it has ended, or there is no /proc
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
    """Processor seconds of a process, by its clock, as clock_getcpuclockid(3) would name it."""
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return 0.0
