r"""The zygote: a process that forks children on request, and ends them with all processes that they started.

The trainer must not fork, because it holds a GPU, threads and secrets. So a `ForkServer` starts a zygote by exec,
once. The zygote imports the modules that its children need, and forks a child in a few milliseconds. It has one
thread, a session of its own (Ctrl-C does not reach it), and none of the parent's descriptors. It ends, with its
children, when the parent has ended in whatever way.

    parent --control socket--> zygote --fork--> child
       \------------------- its own socket -------/

The zygote (`fork_server.py`) never sees the messages between the parent and a child.
"""

import contextlib
import errno
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from . import fork_server


START_LIMIT_S = 120.0  # a preloaded module may import torch from a cold network disk
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.5  # between tries to fork
WAIT_STEP_S = 0.25  # time between calls of `on_wait`
SCARCE = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


class NoProcess(RuntimeError):
    """The machine has no process, memory or descriptor left for another process; a later try may succeed."""


class Child(NamedTuple):
    """A forked process: its pid in the zygote's namespace, the parent's end of a stream socket, and the zygote.

    `zygote` is the number of the zygote, because a zygote that replaces a dead one may give out the same pids.
    """

    pid: int
    socket: socket.socket
    zygote: int


class ForkServer:
    """A running zygote, safe to use from any thread. If the zygote died, the next `fork` starts another.

    Args:
        entry (`str`):
            The function that a child runs, `pkg.mod:function` or `/path/file.py:function`. It is called as
            `function(socket, options)`.
        isolated (`bool`, *optional*, defaults to `False`):
            Run `python -I -S`, with no environment but `env`, and throw the output away. Otherwise a child has this
            process's environment, module path and output.
        preload (`Sequence[str]`, *optional*): modules that the zygote imports before it forks.
        env (`Mapping[str, str]`, *optional*): environment variables; added to the present ones if not isolated.
        wrap (`Sequence[str]`, *optional*): a command under which the zygote runs.
        patience_s (`float`, *optional*, defaults to `0.0`):
            Seconds for which `fork` keeps trying, with longer and longer pauses, if the machine has no free process.
        on_wait (`Callable`, *optional*): called while the zygote starts, as in [`fork`].

    Raises:
        NoProcess: the machine has no free process.
        RuntimeError: the zygote does not start for another reason, which the message gives.
    """

    def __init__(
        self,
        entry: str,
        *,
        isolated: bool = False,
        preload: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        wrap: Sequence[str] = (),
        patience_s: float = 0.0,
        on_wait: Callable[[float], None] | None = None,
    ):
        self._setup = {"entry": entry, "preload": list(preload), "path": None if isolated else list(sys.path)}
        self._command = [*wrap, sys.executable, *(["-I", "-S"] if isolated else []), fork_server.__file__]
        output = subprocess.DEVNULL if isolated else None
        self._streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        self._env = dict(env or {}) if isolated else {**os.environ, **(env or {})}
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._started = 0
        self._start(on_wait)

    def fork(self, options: Mapping[str, Any] | None = None, on_wait: Callable[[float], None] | None = None) -> Child:
        """Fork a new child and return it; the caller must pass it to `end`.

        Args:
            options (`Mapping[str, Any]`, *optional*): passed to the child's `entry`, as JSON.
            on_wait (`Callable`, *optional*):
                Called with the further seconds that went by without a process: after each pause, and several times a
                second while a new zygote starts.

        Raises:
            NoProcess: the machine had no free process for `patience_s` seconds.
            RuntimeError: another failure.
        """
        give_up, pause = time.monotonic() + self._patience_s, FIRST_PAUSE_S
        while True:
            try:
                return self._ask_for_child({"fork": dict(options or {})}, on_wait)
            except NoProcess:
                if time.monotonic() >= give_up:
                    raise
            time.sleep(pause)
            if on_wait:
                on_wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def end(self, child: Child) -> int | None:
        """Kill a child, its process group and all orphans; return its wait status, or `None` if its zygote died."""
        child.socket.close()
        with self._lock:
            if child.zygote != self._started:
                return None
            try:
                return self._ask({"end": child.pid})[0]["status"]
            except (OSError, EOFError):
                return None

    def close(self) -> None:
        """End the zygote and its children."""
        with self._lock:
            self._stop()

    def _ask_for_child(self, request: dict[str, Any], on_wait: Callable[[float], None] | None = None) -> Child:
        with self._lock:
            try:
                reply, fds = self._ask(request)
            except (OSError, EOFError):
                self._start(on_wait)
                reply, fds = self._ask_anew(request)
            if "pid" in reply and not fds:
                self._ask_anew({"end": reply["pid"]})
                raise NoProcess("this process had no descriptor left for the socket of a forked one")
        if not fds:
            failure = NoProcess if reply.get("errno") in SCARCE else RuntimeError
            raise failure(f"no process could be forked: {reply.get('error')}")
        os.set_inheritable(fds[0], False)
        return Child(reply["pid"], socket.socket(fileno=fds[0]), self._started)

    def _ask_anew(self, request: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        """Send a request to a zygote that has just answered. If it dies now, the machine lacks a resource."""
        try:
            return self._ask(request)
        except (OSError, EOFError) as error:
            raise NoProcess(f"the process that forks workers died: {type(error).__name__} {error}") from error

    def _start(self, on_wait: Callable[[float], None] | None = None) -> None:
        with _as_no_process():
            here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            command = [*self._command, str(there.fileno())]
            options: dict[str, Any] = {**self._streams, "pass_fds": [there.fileno()], "start_new_session": True}
            try:
                with _as_no_process():
                    process = subprocess.Popen(command, env=self._env, **options)
            except BaseException:
                here.close()
                raise
        self._control = here
        self._started += 1
        self._stop = weakref.finalize(self, _stop, process, here, os.getpid())
        here.settimeout(START_LIMIT_S)
        try:
            reply, _ = self._ask(self._setup, on_wait)
        except (OSError, EOFError) as error:
            reply = {"error": f"{' '.join(command)}: {type(error).__name__} {error}"}
        if "error" in reply:
            self._stop()
            failure = NoProcess if self._started > 1 else RuntimeError  # a restart fails for lack of resources
            raise failure(f"the process that forks workers did not start. {reply['error']}")

    def _ask(
        self, request: dict[str, Any], on_wait: Callable[[float], None] | None = None
    ) -> tuple[dict[str, Any], list[int]]:
        try:
            self._control.send(json.dumps(request).encode())
            if on_wait:
                _await(self._control, on_wait)
            message, fds, _, _ = socket.recv_fds(self._control, fork_server.MESSAGE_BYTES, 1)
            if not message:
                raise EOFError
        except BaseException:  # Ctrl-C too: a late reply would be taken for the reply to the next request
            self._stop()
            raise
        return json.loads(message), fds


@contextlib.contextmanager
def _as_no_process() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in SCARCE:
            raise NoProcess(f"the process that forks workers could not be started: {error}") from error
        raise


def _await(control: socket.socket, on_wait: Callable[[float], None]) -> None:
    """Wait until there is something to read, or `START_LIMIT_S` seconds are over."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    for _ in range(int(START_LIMIT_S / WAIT_STEP_S)):
        if poll.poll(1000 * WAIT_STEP_S):
            return
        on_wait(WAIT_STEP_S)


def _stop(process: subprocess.Popen[bytes], control: socket.socket, owner: int) -> None:
    if os.getpid() != owner:  # a fork of this process holds the object too
        control.close()
        return
    with contextlib.suppress(OSError):
        control.shutdown(socket.SHUT_RDWR)  # closing is not enough while a fork of this process holds the socket
    control.close()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
