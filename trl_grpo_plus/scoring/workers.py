"""Processes that score samples, each killable: a hang or a crash costs its own sample and nothing else.

The limit counts execution only: a worker is given a sample when it is idle, its clock starts when it has what it must
load, and what it waits for a processor does not count (`_clock.py`). One that runs out of time or dies is killed with
all that it started, and another is forked in its place.

What the machine does to a sample is no verdict on it: its outcome is "starved". That is where no process can be had
for `SCARCE_S`; where a worker has not come to use its time within 10 times the limit on the wall clock; and where one
is killed by a SIGKILL that is not the pool's, or with the process that forks them, as the kernel does when memory runs
out. Such a sample is tried once more, alone, and given up if that happens again. All other ends, as by a segmentation
fault, are the reward's own: "error".

Other ranks wait in a collective meanwhile: where no sample has come to an end for `GIVE_UP_S` and the limit, those
that are left are starved. A run ends only when every sample has been starved for `GIVE_UP_S`.

    pool = Pool(size=2)
    pool.map("my_rewards:judge", {"strict": True}, [{"completions": "4", "answer": "4"}, ...], timeout=2.0)
"""

import atexit
import functools
import json
import logging
import math
import os
import pickle
import reprlib
import resource
import signal
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set, Sized
from itertools import islice
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from ..common.clock import PATIENCE, Clock, Starved, TooLong
from ..common.forking import FIRST_PAUSE_S, LONGEST_PAUSE_S, Child, NoProcess, Zygote
from ..common.machine import processors, threads_for
from ..common.signatures import call


logger = logging.getLogger(__name__)

SCARCE_S = 60.0  # without a single worker, because no process is to be had
GIVE_UP_S = 600.0  # of scoring in which every sample was starved
LOAD_LIMIT_S = 120.0  # for a worker to import a reward's module; not counted as scoring
MEMORY_MB = 4096
MOST_WORKERS = 16
MESSAGE_CHARS = 4000
LARGEST = 3.4028234663852886e38  # number in float32, in which TRL keeps rewards

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200


class Outcome(NamedTuple):
    """What became of one sample.

    Args:
        score (`float`, *optional*): `None`: not scored.
        status (`str`): "ok", "abstain" (the reward does not apply), "timeout", "error", "starved" (the machine was too
            busy, or had no process or memory for it) or "too_long" (scored; what was judged ran out of its own time).
        message (`str`): for "timeout", "error" and "starved", what happened.
    """

    score: float | None
    status: str
    message: str = ""


class Noted(float):
    """What a reward function may return for a number, to say more about the sample. A plain float to all others.

    Args:
        score (`float`): the number; NaN: not scored.
        status (`str`): "starved" or "too_long".
        message (`str`, *optional*): what happened.
    """

    status: str
    message: str

    def __new__(cls, score: float, status: str, message: str = "") -> "Noted":
        made = super().__new__(cls, score)
        made.status, made.message = status, message
        return made


def outcome_of(value: Any) -> Outcome:
    """The outcome that a reward function's value stands for: a finite number is a score, also one of NumPy or PyTorch.

    NaN abstains like `None`, which TRL turns into NaN: a reward function may use either.
    """
    if value is None:
        return Outcome(None, "abstain")
    if isinstance(value, Noted):
        plain = outcome_of(float(value))
        return plain if plain.status == "error" else Outcome(plain.score, value.status, value.message)
    try:
        number = value.item() if hasattr(value, "item") else value
        score = math.inf if isinstance(number, str | bytes | bytearray) else float(number)
    except Exception:  # whatever an object's own __float__ may raise
        score = math.inf
    if abs(score) > LARGEST:
        range_of = f", between {-LARGEST:.2g} and {LARGEST:.2g}" if math.isfinite(score) else ""
        what = f"The reward must be a finite number or None{range_of}, got {_SHORT.repr(value)}."
        return Outcome(None, "error", what)
    return Outcome(None, "abstain") if math.isnan(score) else Outcome(score, "ok")


def outcomes_of(scores: Any, completions: int) -> list[Outcome]:
    """The outcome of each completion, from what a reward function returned.

    Args:
        scores: a list, tensor, array, generator, ... of one value a completion; see [`outcome_of`].
        completions (`int`): N.

    Raises:
        ValueError: it is not one value a completion.
    """
    return [outcome_of(score) for score in as_many(scores, completions)]


def as_many(scores: Any, completions: int) -> list[Any]:
    """What a reward function returned, if it is one reward a completion. A tensor or an array may be (N,) or (N, 1).

    Raises:
        ValueError: it is not.
    """
    rows = scores.tolist() if hasattr(scores, "tolist") else scores
    # A dict, a set, a text or bytes can be gone through as well, and gives what are no rewards, or in any order.
    if not isinstance(rows, Iterable) or isinstance(rows, str | bytes | bytearray | memoryview | Mapping | Set):
        got = f"{type(scores).__name__}: {_SHORT.repr(scores)}"
        raise ValueError(f"it must return one reward a completion in a list, a tensor or an array, got {got}")
    found = list(rows) if isinstance(rows, Sized) else list(islice(rows, completions + 1))
    if len(found) != completions:
        more = "" if isinstance(rows, Sized) or len(found) < completions else " or more"
        raise ValueError(f"it returned {len(found)}{more} rewards for {completions} completions")
    if rows is scores:
        return found
    return [row[0] if isinstance(row, list) and len(row) == 1 else row for row in found]


class Pool:
    """A pool of reward workers. Any thread may use it; one `map` runs at a time.

    Args:
        size (`int`, *optional*): most workers; by default the processors this process may use (a container's quota
            counts), shared between the ranks of this machine, and at most 16.
        memory_mb (`int`, *optional*, defaults to `4096`): address space of each, in MiB.
    """

    def __init__(self, size: int | None = None, memory_mb: int = MEMORY_MB):
        self.size = size or default_size()
        _warn_if_many(self.size * _ranks(), processors())
        self.memory_mb = memory_mb
        self._preload: tuple[str, ...] = ()
        self._zygote: Zygote | None = None
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()
        self._threads = 0
        self._starved_s = 0.0  # of scoring since a sample was last scored

    def map(
        self,
        target: str,
        args: Mapping[str, Any],
        samples: Sequence[Mapping[str, Any]],
        timeout: float,
        *,
        preload: Sequence[str] = (),
    ) -> list[Outcome]:
        """Call a reward function once a sample.

        Args:
            target (`str`): path of the function, `pkg.mod:function` or `/path/file.py:function`.
            args (`Mapping[str, Any]`): keyword arguments for every call.
            samples (`Sequence[Mapping[str, Any]]`):
                N samples, `{"completions": ..., column: ...}`; the function is called with lists of one value.
            timeout (`float`): seconds that a call may take.
            preload (`Sequence[str]`, *optional*): modules that workers start with.

        Returns:
            `list[Outcome]`: N outcomes, in order.

        Raises:
            RuntimeError: no worker can be started, or the function cannot be loaded, or for 10 minutes of scoring
                every sample was starved.
        """
        with self._lock:
            start = time.monotonic()
            found = _Run(self, target, args, samples, timeout, preload).outcomes()
            self._watch(found, time.monotonic() - start)
            return found

    def close(self) -> None:
        """End all workers. The next `map` starts anew."""
        with self._lock:
            self._retire()

    def _watch(self, found: Sequence[Outcome], took_s: float) -> None:
        starved = [outcome for outcome in found if outcome.status == "starved"]
        if starved:
            logger.warning("%d of %d samples were starved. %s", len(starved), len(found), starved[0].message)
        self._starved_s = 0.0 if len(starved) < len(found) else self._starved_s + took_s
        if starved and self._starved_s >= GIVE_UP_S:
            raise RuntimeError(
                f"for {self._starved_s:.0f} s of scoring no sample could be scored. {starved[-1].message} Free "
                "processors, memory or processes on this machine, or set reward_workers to fewer."
            )

    def _take(self, preload: Sequence[str]) -> "_Worker":
        if set(preload) - set(self._preload):
            self._preload = tuple(dict.fromkeys([*self._preload, *preload]))
            self._retire()
        if self._idle:
            return self._idle.pop()
        if self._zygote is None:
            # Workers share the machine with each other: one thread each.
            self._zygote = Zygote(f"{__name__}:work", preload=self._preload, env={"OMP_NUM_THREADS": "1"})
        peers = self.size * _ranks()
        # Counted before any program runs: what programs hold would be taken for what the machine lacks.
        self._threads = self._threads or threads_for(peers)
        options = {"memory_mb": self.memory_mb, "threads": self._threads, "peers": peers}
        return _Worker(self._zygote.fork(options))

    def _retire(self) -> None:
        for worker in self._idle:
            worker.connection.close()
        self._idle.clear()
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None

    def _drop_children_of(self, zygote: int) -> None:
        """Idle workers whose zygote has died are dead, or about to be."""
        for worker in [worker for worker in self._idle if worker.child.zygote == zygote]:
            self._idle.remove(worker)
            worker.connection.close()

    def _end(self, worker: "_Worker") -> int | None:
        worker.connection.close()
        return self._zygote.end(worker.child) if self._zygote is not None else None


class _Worker:
    def __init__(self, child: Child):
        self.child = child
        self.connection = Connection(child.socket.detach())
        self.loaded: set[str] = set()
        self.sample = -1
        self.clock = Clock(math.inf)


class _Run:
    """One `map`."""

    def __init__(
        self,
        pool: Pool,
        target: str,
        args: Mapping[str, Any],
        samples: Sequence[Mapping[str, Any]],
        timeout: float,
        preload: Sequence[str],
    ):
        self._pool, self._target, self._args, self._samples = pool, target, dict(args), samples
        self._timeout, self._preload = timeout, preload
        self._waiting = deque(range(len(samples)))
        self._alone: deque[int] = deque()  # samples whose worker was killed: once more, with no other beside them
        self._busy: dict[Connection, _Worker] = {}
        self._found: dict[int, Outcome] = {}
        self._lost: set[int] = set()  # samples that have been in `_alone`
        self._pause, self._fork_at = FIRST_PAUSE_S, 0.0
        self._scarce_since = math.inf  # no worker is there, and none can be had
        self._give_up_s = GIVE_UP_S + timeout  # which what is not starved may take
        self._deadline = time.monotonic() + self._give_up_s

    def outcomes(self) -> list[Outcome]:
        try:
            while self._waiting or self._alone or self._busy:
                self._fill()
                nearest = min((worker.clock.due for worker in self._busy.values()), default=self._fork_at)
                if self._waiting and len(self._busy) < self._pool.size:
                    nearest = min(nearest, self._fork_at)
                nearest = min(nearest, self._deadline)
                for connection in wait(list(self._busy), max(0.0, nearest - time.monotonic())):
                    self._hear(self._busy[connection])  # type: ignore[index]
                for worker in [w for w in self._busy.values() if w.clock.due <= time.monotonic()]:
                    self._look(worker)
                if time.monotonic() >= self._deadline:
                    self._abandon()
        finally:  # Ctrl-C, too: what a busy worker would answer is nobody's any more
            for worker in self._busy.values():
                self._pool._end(worker)
        return [self._found[i] for i in range(len(self._samples))]

    def _abandon(self) -> None:
        """No more of this `map`: its workers are ended, its samples starved."""
        for worker in self._busy.values():
            self._pool._end(worker)
        self._busy.clear()
        self._starve_all(f"Nothing could be scored for {self._give_up_s:g} s.")

    def _starve_all(self, message: str) -> None:
        """Give up all samples that have no outcome."""
        left = [sample for sample in range(len(self._samples)) if sample not in self._found]
        self._found.update(dict.fromkeys(left, Outcome(None, "starved", message)))
        self._waiting.clear()
        self._alone.clear()

    def _note(self, sample: int, outcome: Outcome) -> None:
        self._found[sample] = outcome
        if outcome.status != "starved":
            self._deadline = time.monotonic() + self._give_up_s

    def _fill(self) -> None:
        """Give samples to as many workers as there are and can be had."""
        if not self._waiting and not self._busy and self._alone:
            self._waiting.append(self._alone.popleft())
        while self._waiting and len(self._busy) < self._pool.size and time.monotonic() >= self._fork_at:
            try:
                worker = self._pool._take(self._preload)
            except NoProcess as error:
                self._wait_for_processes(str(error))
                return
            self._pause, self._scarce_since = FIRST_PAUSE_S, math.inf
            self._give(worker, self._waiting.popleft())

    def _wait_for_processes(self, why: str) -> None:
        """Others may end, which frees processes; where there are none, that is somebody else's turn, for a while."""
        now = time.monotonic()
        self._fork_at = now + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE_S)
        self._scarce_since = math.inf if self._busy else min(self._scarce_since, now)
        if now - self._scarce_since >= SCARCE_S:
            self._starve_all(f"No worker could be had for {SCARCE_S:g} s: {why}.")

    def _give(self, worker: _Worker, sample: int) -> None:
        job = pickle.dumps((self._target, self._args, dict(self._samples[sample])))
        worker.sample = sample
        is_loaded = self._target in worker.loaded
        worker.clock = self._clock(worker, self._timeout if is_loaded else LOAD_LIMIT_S)
        self._busy[worker.connection] = worker
        try:
            worker.connection.send_bytes(job)
        except OSError:  # it died while it was idle: the sample never ran
            del self._busy[worker.connection]
            self._pool._end(worker)
            self._waiting.appendleft(sample)

    def _hear(self, worker: _Worker) -> None:
        try:
            reply = json.loads(worker.connection.recv_bytes())
        except (EOFError, OSError):
            self._lose(worker)
            return
        if "cannot load" in reply:
            raise RuntimeError(f"{self._target} cannot be loaded in a worker process.\n{reply['cannot load']}")
        if "loaded" in reply:
            worker.loaded.add(self._target)
            worker.clock = self._clock(worker, self._timeout)
            return
        if "waited" in reply:
            worker.clock.excuse(reply["waited"])
            return
        self._note(worker.sample, Outcome(reply["score"], reply["status"], reply["message"]))
        del self._busy[worker.connection]
        self._pool._idle.append(worker)

    def _clock(self, worker: _Worker, limit_s: float) -> Clock:
        return Clock(limit_s, [worker.child.pid], fresh=False)

    def _lose(self, worker: _Worker) -> None:
        """Its worker died. See the module's docstring for whose fault that is."""
        del self._busy[worker.connection]
        status = self._pool._end(worker)
        if status is None:  # its zygote was killed, and it with it
            self._pool._drop_children_of(worker.child.zygote)
        is_killed = status is None or status == signal.SIGKILL
        if is_killed and worker.sample not in self._lost:
            self._lost.add(worker.sample)
            self._alone.append(worker.sample)
            return
        how = _how_it_died(status, self._pool.memory_mb)
        if is_killed:
            self._note(worker.sample, Outcome(None, "starved", f"{how} Twice, the second time alone."))
        else:
            self._note(worker.sample, Outcome(None, "error", how))

    def _look(self, worker: _Worker) -> None:
        if worker.connection.poll():
            self._hear(worker)
            return
        try:
            worker.clock.left()
        except TooLong:
            self._give_up(worker, Outcome(None, "timeout", f"It was stopped after {self._timeout:g} s."))
        except Starved:
            what = f"{self._timeout:g} s" if self._target in worker.loaded else f"{LOAD_LIMIT_S:g} s to be loaded"
            waited = f"It had not come to use its {what} within {PATIENCE:g} times as much."
            self._give_up(worker, Outcome(None, "starved", waited))

    def _give_up(self, worker: _Worker, outcome: Outcome) -> None:
        del self._busy[worker.connection]
        self._pool._end(worker)
        if self._target not in worker.loaded and outcome.status == "timeout":
            raise RuntimeError(f"{self._target} was not loaded in a worker process within {LOAD_LIMIT_S:g} s.")
        self._note(worker.sample, outcome)


def default_size() -> int:
    """Processors that this process may use ([`machine.processors`]), over the ranks of this machine; 1 to 16."""
    return max(1, min(MOST_WORKERS, processors() // _ranks()))


@functools.cache  # once
def _warn_if_many(workers: int, processors: int) -> None:
    if workers >= PATIENCE * processors:
        logger.warning(
            "%d reward workers on this machine share %d processors: programs that hang can starve each other, and are "
            "not scored then. Set reward_workers so that there are fewer than %g for each processor.",
            workers,
            processors,
            PATIENCE,
        )


def _ranks() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def shared() -> Pool:
    """The pool that this process's rewards use."""
    if _SHARED.get("owner") != os.getpid():  # a fork of its owner must not speak to the owner's workers
        _SHARED.update(owner=os.getpid(), pool=Pool())
    return _SHARED["pool"]


def configure(size: int | None = None, memory_mb: int = MEMORY_MB) -> None:
    """Set what `shared` gives; what runs in another pool is ended."""
    pool = shared()
    if (pool.size, pool.memory_mb) != (size or default_size(), memory_mb):
        pool.close()
        _SHARED["pool"] = Pool(size, memory_mb)


_SHARED: dict[str, Any] = {}
atexit.register(lambda: shared().close() if _SHARED.get("owner") == os.getpid() else None)


def _how_it_died(status: int | None, memory_mb: int) -> str:
    if status is None:
        return "The process that forks workers died while it ran."
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        why = f" (it may use {memory_mb} MiB)" if number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT) else ""
        return f"Its worker process died of {signal.Signals(number).name}{why}."
    return f"Its worker process ended itself with exit status {os.waitstatus_to_exitcode(status)}."


# -- the worker's side


def excuse(seconds: float) -> None:
    """For a reward function: so much of its time went by while what it waits for waited for a processor.

    Does nothing outside of a worker.
    """
    if "connection" in _WORKER and seconds > 0:
        _reply(_WORKER["connection"], {"waited": seconds})


def sandbox_options() -> dict[str, int]:
    """`threads` and `peers` of a [`~sandbox.Sandbox`] in this process: what is there, shared between all workers."""
    return dict(_WORKER.get("sandbox", {}))


_WORKER: dict[str, Any] = {}


def work(own_socket: socket.socket, options: dict[str, Any]) -> None:
    """Score samples until the pool hangs up."""
    limit = options["memory_mb"] << 20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    connection = Connection(own_socket.detach())
    _WORKER.update(connection=connection, sandbox={name: options[name] for name in ("threads", "peers")})
    functions: dict[str, Any] = {}
    while True:
        try:
            job = connection.recv_bytes()
        except EOFError:
            return
        try:
            target, args, sample = pickle.loads(job)
        except BaseException:  # a column of a type that cannot be imported here
            _reply(connection, _failed()._asdict())
            continue
        if target not in functions:
            try:
                functions[target] = _function(target)
            except BaseException:
                _reply(connection, {"cannot load": traceback.format_exc()[-MESSAGE_CHARS:]})
                continue
            _reply(connection, {"loaded": True})
        _reply(connection, _score(functions[target], args, sample)._asdict())


def _function(target: str) -> Any:
    from ..common.loading import load

    found = load(target)
    return found.__wrapped__ if hasattr(found, "definition") else found


def _score(function: Any, args: dict[str, Any], sample: dict[str, Any]) -> Outcome:
    try:
        given = {name: [value] for name, value in sample.items()}
        return outcomes_of(call(function, {**given, **args}), 1)[0]
    except BaseException:  # SystemExit too
        return _failed()


def _failed() -> Outcome:
    return Outcome(None, "error", traceback.format_exc(limit=-8)[-MESSAGE_CHARS:])


def _reply(connection: Connection, message: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())
