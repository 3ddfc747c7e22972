"""The code of a worker process, which loads a reward's function once and scores one sample after another."""

import json
import os
import pickle
import resource
import socket
import traceback
from multiprocessing.connection import Connection
from typing import Any

from ..utils.fork_server import adopt_orphans
from ..utils.signatures import call
from ..utils.terminal import outlive_reader
from .failures import RowError, hint, with_frames
from .outcome import Outcome, outcomes_of
from .process_state import State, keep_all, left_running


MESSAGE_CHARS = 4000
# Addresses beside a worker's own memory. The libraries of PyTorch's CUDA builds are mapped to 3 to 5 GiB of them.
LIBRARIES_MB = 8192
UNANSWERED = 113  # exit status of a worker that cannot send its answer

_THIS: dict[str, Any] = {}  # the worker's connection and sandbox options; empty outside of a worker


def excuse(seconds: float) -> None:
    """Exclude `seconds` from the running reward function's time limit.

    A reward function calls this when the work it waits for had to wait for a processor. Does nothing outside of a
    worker.
    """
    if "connection" in _THIS and seconds > 0:
        _send(_THIS["connection"], {"waited": seconds})


def sandbox_options() -> dict[str, int]:
    """Return the `threads` and `peers` for a [`~sandbox.Sandbox`] in this process.

    The values divide the machine's threads between all workers.
    """
    return dict(_THIS.get("sandbox", {}))


def work(own_socket: socket.socket, options: dict[str, Any]) -> None:
    """Score samples until the pool closes the connection."""
    connection = Connection(own_socket.detach())
    try:
        _limit(resource.RLIMIT_DATA, options["memory_mb"] << 20)
        _limit(resource.RLIMIT_AS, (options["memory_mb"] + LIBRARIES_MB) << 20)
        _limit(resource.RLIMIT_CORE, 0)
        outlive_reader()  # a reward that prints is scored although nobody reads it
        adopt_orphans()
        keep_all()
        fresh = State()
    except BaseException:
        _send(connection, {"cannot start": traceback.format_exc()[-MESSAGE_CHARS:]})
        return
    _THIS.update(connection=connection, sandbox={name: options[name] for name in ("threads", "peers")})
    _serve(connection, fresh)


def _limit(what: int, most: int) -> None:
    hard = resource.getrlimit(what)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, most))


def _serve(connection: Connection, fresh: State) -> None:
    """Score one sample after another, each in the process state right after its reward was loaded."""
    loaded: dict[str, tuple[Any, State]] = {}
    before, worker = fresh, os.getpid()
    while True:
        try:
            job = connection.recv_bytes()
        except EOFError:
            return
        try:
            target, args, sample = pickle.loads(job)
        except BaseException as error:  # a column's type cannot be imported here
            _send(connection, {"outcome": _failed(error).as_json()})
            continue
        if target not in loaded:
            fresh.put_back()
            before = fresh
            try:
                loaded[target] = _function(target), State()
                _end_fork_of(worker)
            except BaseException:
                _end_fork_of(worker)
                _send(connection, {"cannot load": traceback.format_exc()[-MESSAGE_CHARS:]})
                continue
            keep_all()
            _send(connection, {"loaded": True})
        function, state = loaded[target]
        if state is not before:
            state.put_back()
            before = state
        outcome = _score(function, args, sample, state)
        _end_fork_of(worker)
        try:
            left = state.put_back() or left_running()
        except BaseException as error:  # a signal handler that the sample installed, or no memory
            left = f"a process that cannot be put back ({type(error).__name__}: {error})"
        try:
            _send(connection, {"outcome": outcome.as_json(), "left": left})
        except OSError:  # the reward has closed the connection, or the pool is gone
            os._exit(UNANSWERED)


def _end_fork_of(worker: int) -> None:
    """End this process if a reward forked it from the worker: a second answer would be taken for the next sample's."""
    if os.getpid() != worker:
        os._exit(1)


def _function(target: str) -> Any:
    from ..utils.import_path import load

    loaded = load(target)
    return loaded.__wrapped__ if hasattr(loaded, "definition") else loaded


def _score(function: Any, args: dict[str, Any], sample: dict[str, Any], state: State) -> Outcome:
    try:
        columns = {name: [value] for name, value in sample.items()}
        return outcomes_of(call(function, {**columns, **args}), columns["completions"])[0]
    except BaseException as error:  # SystemExit too
        state.put_back()  # the sample may have removed something that `traceback` needs
        return _failed(error, sample["completions"])


def _failed(error: BaseException, completion: Any = None) -> Outcome:
    if isinstance(error, RowError):
        return Outcome(None, "error", str(error), of_row=True)
    return Outcome(None, "error", f"{with_frames(error)[-MESSAGE_CHARS:]}{hint(error, [completion])}")


def _send(connection: Connection, message: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())
