"""Processes that score samples, each killable: a hang or a crash costs its own sample and nothing else.

The limit counts execution only: a worker is given a sample when it is idle, and its clock starts when it has what it
must load. One that runs out of time or dies is killed with all that it started, and another is forked in its place.

    pool = Pool(size=2)
    pool.map("my_rewards:judge", {"strict": True}, [{"completions": "4", "answer": "4"}, ...], timeout=2.0)
"""

import atexit
import functools
import json
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

from .forking import Child, Zygote
from .signatures import call


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
        status (`str`): "ok", "abstain" (the reward does not apply), "timeout" or "error".
        message (`str`): for "timeout" and "error", what happened.
    """

    score: float | None
    status: str
    message: str = ""


def outcome_of(value: Any) -> Outcome:
    """The outcome that a reward function's value stands for: a finite number is a score, also one of NumPy or PyTorch.

    NaN abstains like `None`, which TRL turns into NaN: a reward function may use either.
    """
    if value is None:
        return Outcome(None, "abstain")
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
        size (`int`, *optional*): most workers; by default the cores this process may use, shared between the ranks of
            this machine, and at most 16.
        memory_mb (`int`, *optional*, defaults to `4096`): address space of each, in MiB.
    """

    def __init__(self, size: int | None = None, memory_mb: int = MEMORY_MB):
        self.size = size or default_size()
        self.memory_mb = memory_mb
        self._preload: tuple[str, ...] = ()
        self._zygote: Zygote | None = None
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()

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
            RuntimeError: no worker can be started, or the function cannot be loaded.
        """
        with self._lock:
            return _Run(self, target, args, samples, timeout, preload).outcomes()

    def close(self) -> None:
        """End all workers. The next `map` starts anew."""
        with self._lock:
            self._retire()

    def _take(self, preload: Sequence[str]) -> "_Worker":
        if set(preload) - set(self._preload):
            self._preload = tuple(dict.fromkeys([*self._preload, *preload]))
            self._retire()
        if self._idle:
            return self._idle.pop()
        if self._zygote is None:
            # Workers share the machine with each other: one thread each.
            self._zygote = Zygote(f"{__name__}:work", preload=self._preload, env={"OMP_NUM_THREADS": "1"})
        return _Worker(self._zygote.fork({"memory_mb": self.memory_mb}))

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
        self.deadline = math.inf


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
        self._busy: dict[Connection, _Worker] = {}
        self._found: dict[int, Outcome] = {}
        self._lost: set[int] = set()  # samples whose worker's zygote died under them

    def outcomes(self) -> list[Outcome]:
        try:
            while self._waiting or self._busy:
                while self._waiting and len(self._busy) < self._pool.size:
                    self._give(self._pool._take(self._preload), self._waiting.popleft())
                nearest = min((worker.deadline for worker in self._busy.values()), default=0.0)
                for connection in wait(list(self._busy), max(0.0, nearest - time.monotonic())):
                    self._hear(self._busy[connection])  # type: ignore[index]
                for worker in [w for w in self._busy.values() if w.deadline <= time.monotonic()]:
                    self._expire(worker)
        finally:  # Ctrl-C, too: what a busy worker would answer is nobody's any more
            for worker in self._busy.values():
                self._pool._end(worker)
        return [self._found[i] for i in range(len(self._samples))]

    def _give(self, worker: _Worker, sample: int) -> None:
        job = pickle.dumps((self._target, self._args, dict(self._samples[sample])))
        worker.sample = sample
        is_loaded = self._target in worker.loaded
        worker.deadline = time.monotonic() + (self._timeout if is_loaded else LOAD_LIMIT_S)
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
            worker.deadline = time.monotonic() + self._timeout
            return
        self._found[worker.sample] = Outcome(reply["score"], reply["status"], reply["message"])
        del self._busy[worker.connection]
        self._pool._idle.append(worker)

    def _lose(self, worker: _Worker) -> None:
        del self._busy[worker.connection]
        status = self._pool._end(worker)
        if status is None and worker.sample not in self._lost:  # its zygote was killed, and it with it
            self._lost.add(worker.sample)
            self._waiting.appendleft(worker.sample)
            self._pool._drop_children_of(worker.child.zygote)
            return
        self._found[worker.sample] = Outcome(None, "error", _how_it_died(status, self._pool.memory_mb))

    def _expire(self, worker: _Worker) -> None:
        if worker.connection.poll():
            self._hear(worker)
            return
        del self._busy[worker.connection]
        self._pool._end(worker)
        if self._target not in worker.loaded:
            raise RuntimeError(f"{self._target} was not loaded in a worker process within {LOAD_LIMIT_S:g} s.")
        self._found[worker.sample] = Outcome(None, "timeout", f"It was stopped after {self._timeout:g} s.")


def default_size() -> int:
    """Cores that this process may use, over the ranks of this machine; 1 to 16."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, min(MOST_WORKERS, len(os.sched_getaffinity(0)) // ranks))


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
        return "Twice the process that forks workers died while it ran."
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        why = f" (it may use {memory_mb} MiB)" if number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT) else ""
        return f"Its worker process died of {signal.Signals(number).name}{why}."
    return f"Its worker process ended itself with exit status {os.waitstatus_to_exitcode(status)}."


# -- the worker's side


def work(own_socket: socket.socket, options: dict[str, Any]) -> None:
    """Score samples until the pool hangs up."""
    limit = options["memory_mb"] << 20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    connection = Connection(own_socket.detach())
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
    from .loading import load

    found = load(target)
    return found.__wrapped__ if hasattr(found, "definition") else found


def _score(function: Any, args: dict[str, Any], sample: dict[str, Any]) -> Outcome:
    try:
        given = {name: [value] for name, value in sample.items()}
        return outcomes_of(call(functools.partial(function, **args), given), 1)[0]
    except BaseException:  # SystemExit too
        return _failed()


def _failed() -> Outcome:
    return Outcome(None, "error", traceback.format_exc(limit=-8)[-MESSAGE_CHARS:])


def _reply(connection: Connection, message: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())
