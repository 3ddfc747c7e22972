"""Worker processes that score samples, each killable: a hang or a crash costs its own sample and nothing else.

The time limit counts execution only. A sample goes to an idle worker, the clock starts when the worker has loaded the
reward, and time spent waiting for a processor does not count (`run_clock.py`). A worker that runs out of time or dies
is killed with all processes that it started, and another is forked in its place.

A sample that the machine could not score has the outcome "starved", which is no verdict. There are three causes:

- No process can be had for `SCARCE_S`.
- A worker has not used up its time within 10 times the limit on the wall clock.
- A worker is killed by a SIGKILL that is not the pool's, or together with the process that forks workers. The kernel
  does this when memory runs out. Such a sample is tried once more, alone, and given up if that happens again.

A worker that dies in any other way, such as by a segmentation fault, is a failure of the reward: "error". If it dies
before the reward is loaded, the sample is tried once more. A second death, or a worker that reports that it cannot
start or load, is an error of the run.

A sample that leaves changes which cannot be restored (`process_state.py`) ends its worker, and another is forked.

Other ranks wait in a collective meanwhile. So if no sample came to an end for `GIVE_UP_S` plus the limit, the
remaining samples are starved. A run ends only when every sample has been starved for `GIVE_UP_S`.

    pool = Pool(size=2)
    pool.map("my_rewards:judge", {"strict": True}, [{"completions": "4", "answer": "4"}, ...], timeout=2.0)
"""

import atexit
import functools
import logging
import math
import os
import pickle
import resource
import signal
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any

from ..utils.fork_client import FIRST_PAUSE_S, LONGEST_PAUSE_S, Child, ForkServer, NoProcess
from ..utils.resources import processors, threads_for
from ..utils.run_clock import PATIENCE, Clock, TooBusy, TooLong
from ..utils.terminal import visible
from .outcome import Outcome
from .worker_connection import OF_SAMPLES, SPOILED, WorkerConnection, runs_on
from .worker_main import UNANSWERED


logger = logging.getLogger(__name__)

SCARCE_S = 60.0  # time without a single worker, because no process can be started
GIVE_UP_S = 600.0  # scoring time during which every sample was starved
LOAD_LIMIT_S = 120.0  # for a worker to import a reward's module; not counted as scoring
MEMORY_MB = 4096
# What Python and the dynamic loader say of a limit on memory.
OUT_OF_MEMORY = ("MemoryError", "Cannot allocate memory", "failed to map segment", "cannot map zero-fill pages")
MOST_WORKERS = 16

_WARNED_OF: set[str] = set()  # rewards that left something in a worker


class _Handle:
    """A worker process: the connection to it, its loaded rewards, its current sample and its clock."""

    def __init__(self, child: Child):
        self.child = child
        self.connection = WorkerConnection(child.socket)
        self.loaded: set[str] = set()
        self.sample = -1
        self.start_clock(math.inf)

    def start_clock(self, limit_s: float) -> None:
        """Give the worker `limit_s` seconds from now on."""
        self.clock = Clock(limit_s, [self.child.pid], fresh=False)


class Pool:
    """A pool of reward workers. Any thread may use it; one `map` runs at a time.

    Args:
        size (`int`, *optional*): maximum number of workers; by default the processors that this process may use (a
            container's quota counts), divided by the number of ranks on this machine, and at most 16.
        memory_mb (`int`, *optional*, defaults to `4096`): private writable memory of each worker, in MiB.
    """

    def __init__(self, size: int | None = None, memory_mb: int = MEMORY_MB):
        self.size = size or default_size()
        _warn_if_many(self.size * _ranks(), processors())
        self.memory_mb = memory_mb
        self._preload: tuple[str, ...] = ()
        self._zygote: ForkServer | None = None
        self._idle: list[_Handle] = []
        self._lock = threading.Lock()
        self._threads = 0
        self._starved_s = 0.0  # scoring time since a sample was last scored

    def map(
        self,
        target: str,
        args: Mapping[str, Any],
        samples: Sequence[Mapping[str, Any]],
        timeout: float,
        *,
        preload: Sequence[str] = (),
    ) -> list[Outcome]:
        """Call a reward function once per sample.

        Args:
            target (`str`): path of the function, `pkg.mod:function` or `/path/file.py:function`.
            args (`Mapping[str, Any]`): keyword arguments for every call.
            samples (`Sequence[Mapping[str, Any]]`):
                N samples, `{"completions": ..., column: ...}`; the function is called with lists of one value.
            timeout (`float`): time limit of a call, in seconds.
            preload (`Sequence[str]`, *optional*): modules that workers import at their start.

        Returns:
            `list[Outcome]`: N outcomes, in order.

        Raises:
            RuntimeError: no worker can be started, the function cannot be loaded, or every sample was starved for 10
                minutes of scoring.
        """
        with self._lock:
            if set(preload) - set(self._preload):
                self._preload = tuple(dict.fromkeys([*self._preload, *preload]))
                self._retire()
            start = time.monotonic()
            outcomes = _Run(self, target, args, samples, timeout).outcomes()
            self._watch(outcomes, time.monotonic() - start)
            return outcomes

    def close(self) -> None:
        """End all workers. The next `map` starts new ones."""
        with self._lock:
            self._retire()

    def _watch(self, outcomes: Sequence[Outcome], took_s: float) -> None:
        starved = [outcome for outcome in outcomes if outcome.status == "starved"]
        if starved:
            why = visible(starved[0].message)
            logger.warning("%d of %d samples were starved. %s", len(starved), len(outcomes), why)
        self._starved_s = 0.0 if len(starved) < len(outcomes) else self._starved_s + took_s
        if starved and self._starved_s >= GIVE_UP_S:
            raise RuntimeError(
                f"for {self._starved_s:.0f} s of scoring no sample could be scored. {starved[-1].message} Free "
                "processors, memory or processes on this machine, or set reward_workers to fewer."
            )

    def _take(self) -> _Handle:
        if self._idle:
            return self._idle.pop()
        if self._zygote is None:
            # Workers share the machine with each other: one thread each.
            self._zygote = ForkServer(
                f"{__package__}.worker_main:work", preload=self._preload, env={"OMP_NUM_THREADS": "1"}
            )
        peers = self.size * _ranks()
        # Counted before any program runs: threads of running programs would make the machine look smaller.
        self._threads = self._threads or threads_for(peers)
        options = {"memory_mb": granted_mb(self.memory_mb), "threads": self._threads, "peers": peers}
        return _Handle(self._zygote.fork(options))

    def _retire(self) -> None:
        for worker in self._idle:
            worker.connection.close()
        self._idle.clear()
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None

    def _drop_children_of(self, zygote: int) -> None:
        """Remove the idle workers of a dead zygote: they are dead, or about to be."""
        for worker in [worker for worker in self._idle if worker.child.zygote == zygote]:
            self._idle.remove(worker)
            worker.connection.close()

    def _end(self, worker: _Handle) -> int | None:
        worker.connection.close()
        return self._zygote.end(worker.child) if self._zygote is not None else None


class _Run:
    """One call of [`Pool.map`]."""

    def __init__(
        self, pool: Pool, target: str, args: Mapping[str, Any], samples: Sequence[Mapping[str, Any]], timeout: float
    ):
        self._pool, self._target, self._args, self._samples = pool, target, dict(args), samples
        self._timeout = timeout
        self._waiting = deque(range(len(samples)))
        self._alone: deque[int] = deque()  # samples whose worker was killed; each is retried alone
        self._busy: dict[WorkerConnection, _Handle] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._lost: set[int] = set()  # samples that have been in `_alone`
        self._pause, self._fork_at = FIRST_PAUSE_S, 0.0
        self._scarce_since = math.inf  # time since which no worker runs and none can be started
        self._give_up_s = GIVE_UP_S + timeout  # longest time without an outcome other than "starved"
        self._deadline = time.monotonic() + self._give_up_s

    def outcomes(self) -> list[Outcome]:
        """Score the samples in the pool's workers, and return their outcomes in order."""
        try:
            while self._waiting or self._alone or self._busy:
                self._fill()
                times = [self._deadline, *(worker.clock.due for worker in self._busy.values())]
                if not self._busy or (self._waiting and len(self._busy) < self._pool.size):
                    times.append(self._fork_at)
                for connection in wait(list(self._busy), max(0.0, min(times) - time.monotonic())):
                    self._hear(self._busy[connection])  # type: ignore[index]
                for worker in [w for w in self._busy.values() if w.clock.due <= time.monotonic()]:
                    self._poll(worker)
                if time.monotonic() >= self._deadline:
                    self._give_up(f"Nothing could be scored for {self._give_up_s:g} s.")
        finally:  # on Ctrl-C, too: nobody would read a busy worker's answer
            self._end_all()
        return [self._outcomes[i] for i in range(len(self._samples))]

    def _give_up(self, message: str) -> None:
        """Stop this `map`: end its workers, and set the outcome of all unscored samples to "starved"."""
        self._end_all()
        left = [sample for sample in range(len(self._samples)) if sample not in self._outcomes]
        self._outcomes.update(dict.fromkeys(left, Outcome(None, "starved", message)))
        self._waiting.clear()
        self._alone.clear()

    def _note(self, sample: int, outcome: Outcome) -> None:
        self._outcomes[sample] = outcome
        if outcome.status != "starved":
            self._deadline = time.monotonic() + self._give_up_s

    def _fill(self) -> None:
        """Give samples to idle and new workers, up to the size of the pool."""
        if not self._waiting and not self._busy and self._alone:
            self._waiting.append(self._alone.popleft())
        while self._waiting and len(self._busy) < self._pool.size and time.monotonic() >= self._fork_at:
            sample = self._waiting[0]
            job = pickle.dumps((self._target, self._args, dict(self._samples[sample])))
            try:
                worker = self._pool._take()
            except NoProcess as error:
                self._wait_for_processes(str(error))
                return
            self._pause, self._scarce_since = FIRST_PAUSE_S, math.inf
            self._waiting.popleft()
            self._give(worker, sample, job)

    def _wait_for_processes(self, why: str) -> None:
        """Delay the next fork; give up after `SCARCE_S` without a single worker.

        A busy worker that ends frees a process. Without busy workers, another program must free one.
        """
        now = time.monotonic()
        self._fork_at = now + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE_S)
        self._scarce_since = math.inf if self._busy else min(self._scarce_since, now)
        if now - self._scarce_since >= SCARCE_S:
            self._give_up(f"The machine could start no worker for {SCARCE_S:g} s: {why}.")

    def _give(self, worker: _Handle, sample: int, job: bytes) -> None:
        worker.sample = sample
        worker.start_clock(self._timeout if self._target in worker.loaded else LOAD_LIMIT_S)
        self._busy[worker.connection] = worker
        try:
            worker.connection.send_bytes(job)
        except BlockingIOError:  # it takes nothing in, and may have got a part of the sample
            self._end(worker)
            self._waiting.appendleft(sample)
            self._fork_at = time.monotonic() + self._pause
        except OSError:
            if not worker.loaded:  # it died at its start, and may have sent the reason
                self._hear(worker)
                return
            self._end(worker)  # it died while idle: the sample never ran
            self._waiting.appendleft(sample)

    def _end(self, worker: _Handle) -> int | None:
        del self._busy[worker.connection]
        return self._pool._end(worker)

    def _end_all(self) -> None:
        for worker in list(self._busy.values()):
            self._end(worker)

    def _hear(self, worker: _Handle) -> bool:
        """Read what a worker has sent. Return whether that was all of a reply, or the worker's end."""
        try:
            reply = worker.connection.reply()
        except (EOFError, OSError, ValueError) as error:
            self._lose(worker, isinstance(error, ValueError))
            return True
        if reply is not None:
            self._heed(worker, reply)
        return reply is not None

    def _heed(self, worker: _Handle, reply: dict[str, Any]) -> None:
        if self._target in worker.loaded and not reply.keys() & OF_SAMPLES:  # the reward wrote it
            self._lose(worker, True)
            return
        if "cannot start" in reply:
            raise RuntimeError(f"a reward worker cannot start.\n{reply['cannot start']}")
        if "cannot load" in reply:
            why = f"{self._target} cannot be loaded in a worker process.\n{reply['cannot load']}"
            if any(words in reply["cannot load"] for words in OUT_OF_MEMORY):
                why += f"\nA worker may use {self._pool.memory_mb} MiB: raise reward_worker_memory_mb."
            raise RuntimeError(why)
        if "loaded" in reply:
            worker.loaded.add(self._target)
            worker.start_clock(self._timeout)
        elif "waited" in reply:
            worker.clock.excuse(reply["waited"])
        else:
            self._note(worker.sample, reply["outcome"])
            if reply.get("left"):
                _warn_of_left(self._target, reply["left"])
                self._end(worker)
            else:
                self._pool._idle.append(self._busy.pop(worker.connection))

    def _lose(self, worker: _Handle, spoiled: bool) -> None:
        """Handle the death of a worker. The module's docstring says which outcome its sample has."""
        spoiled = spoiled or runs_on(worker.child.pid)
        status = self._end(worker)
        if status is None:  # its zygote was killed, and the worker with it
            self._pool._drop_children_of(worker.child.zygote)
        is_killed = not spoiled and (status is None or status == signal.SIGKILL)
        how = SPOILED if spoiled else _how_it_died(status, granted_mb(self._pool.memory_mb))
        is_again = worker.sample in self._lost
        if not is_killed and self._target in worker.loaded:
            self._note(worker.sample, Outcome(None, "error", how))
        elif not is_killed and is_again:
            raise RuntimeError(f"{self._target} cannot be loaded in a worker process. {how} Twice.")
        elif is_again:
            self._note(worker.sample, Outcome(None, "starved", f"{how} Twice, the second time alone."))
        else:
            self._lost.add(worker.sample)
            self._alone.append(worker.sample)

    def _poll(self, worker: _Handle) -> None:
        while worker.connection.poll():
            if self._hear(worker):
                return
        is_loaded = self._target in worker.loaded
        try:
            worker.clock.left()
            return
        except TooLong:
            if not is_loaded:
                late = f"{self._target} was not loaded in a worker process within {LOAD_LIMIT_S:g} s."
                raise RuntimeError(late) from None
            outcome = Outcome(None, "timeout", f"It was stopped after {self._timeout:g} s.")
            if worker.connection.arrived:  # the beginning of a reply, which a worker sends at once
                outcome = Outcome(None, "error", SPOILED)
        except TooBusy:
            limit, what = (self._timeout, "the sample") if is_loaded else (LOAD_LIMIT_S, "the loading of the reward")
            late = f"The machine was too busy: in {PATIENCE * limit:g} s {what} did not get its {limit:g} s."
            outcome = Outcome(None, "starved", late)
        self._end(worker)
        self._note(worker.sample, outcome)


def granted_mb(memory_mb: int) -> int:
    """Return the memory, in MiB, that a worker can have.

    This is `memory_mb`, or this process's hard limit on addresses if that is smaller.
    """
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    granted = memory_mb if hard == resource.RLIM_INFINITY else min(memory_mb, hard >> 20)
    if granted < memory_mb:
        _warn_of_less(memory_mb, granted)
    return granted


def _how_it_died(status: int | None, memory_mb: int) -> str:
    """Describe how a worker died, from its wait status; `None`: its zygote was killed, and the worker with it."""
    if status is None:
        return "The process that forks workers died while it ran."
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        why = f" (it may use {memory_mb} MiB)" if number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT) else ""
        name = next((known.name for known in signal.Signals if known == number), f"signal {number}")
        return f"Its worker process died of {name}{why}."
    code = os.waitstatus_to_exitcode(status)
    return SPOILED if code == UNANSWERED else f"Its worker process ended itself with exit status {code}."


def _warn_of_left(target: str, left: str) -> None:
    """Warn, once per reward, that a worker was ended because of what a sample left in it."""
    if target in _WARNED_OF:
        return
    _WARNED_OF.add(target)
    logger.warning(
        f"{target} left {left} after a sample. Its worker is ended, and the next sample runs in a new worker, which "
        "loads the reward again. If samples share a thread or a process, start it when the reward's module is "
        "loaded, or in a block `with trl_grpo_plus.scoring.kept():`."
    )


@functools.cache
def _warn_of_less(memory_mb: int, granted: int) -> None:
    logger.warning(
        f"reward_worker_memory_mb={memory_mb} is more than the hard limit of this process (`ulimit -H -v`), "
        f"{granted} MiB. Reward workers get {granted} MiB, and a reward that needs more fails. Raise the limit, or "
        f"set reward_worker_memory_mb to {granted}."
    )


def default_size() -> int:
    """Return the processors that this process may use, divided by the ranks on this machine; 1 to 16."""
    return max(1, min(MOST_WORKERS, processors() // _ranks()))


@functools.cache  # warns once
def _warn_if_many(workers: int, processors: int) -> None:
    if workers >= PATIENCE * processors:
        logger.warning(
            f"{workers} reward workers on this machine share {processors} processors. If many programs hang, they "
            "take each other's time, and samples are not scored. Lower reward_workers: there must be fewer than "
            f"{PATIENCE:g} workers for each processor."
        )


def _ranks() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def shared() -> Pool:
    """Return the pool that all rewards of this process share."""
    if _SHARED.get("owner") != os.getpid():  # a fork of the owner must not use the owner's workers
        _SHARED.update(owner=os.getpid(), pool=Pool())
    return _SHARED["pool"]


def configure(size: int | None = None, memory_mb: int = MEMORY_MB) -> None:
    """Set the size and memory of the shared pool; the workers of a pool with other settings are ended."""
    pool = shared()
    if (pool.size, pool.memory_mb) != (size or default_size(), memory_mb):
        pool.close()
        _SHARED["pool"] = Pool(size, memory_mb)


_SHARED: dict[str, Any] = {}
atexit.register(lambda: shared().close() if _SHARED.get("owner") == os.getpid() else None)
