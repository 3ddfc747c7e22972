"""The program of the zygote: it forks children on request, and ends them with all processes that they started.

This file imports only the standard library and nothing of this package: an isolated zygote runs the file by its path,
without site-packages. `fork_client.py` sends the requests.
"""

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


MESSAGE_BYTES = 1 << 17
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None)


def serve(control: socket.socket) -> None:
    """Serve requests until the parent is gone; never return, in the zygote or in a child."""
    adopt_orphans()
    parent = os.getppid()
    children: set[int] = set()
    try:
        entry = _prepare(json.loads(control.recv(MESSAGE_BYTES)))
        control.send(b"{}")
        while True:
            readable, _, _ = select.select([control], [], [], 1.0)
            if os.getppid() != parent:  # no end of file comes if another process holds the parent's end of the socket
                break
            if not readable:
                continue
            message = control.recv(MESSAGE_BYTES)
            if not message:
                break
            request = json.loads(message)
            if "end" in request:
                control.send(json.dumps({"status": _end(request["end"], children)}).encode())
            else:
                _fork(control, entry, request["fork"], children)
    except BaseException:
        _answer(control, {"error": traceback.format_exc()[-MESSAGE_BYTES // 4 :]})
    finally:
        for pid in list(children):
            _end(pid, children)
        os._exit(0)


def _prepare(setup: dict[str, Any]) -> Callable[[socket.socket, dict[str, Any]], None]:
    if setup["path"] is not None:
        sys.path[:] = setup["path"]
    for name in setup["preload"]:
        importlib.import_module(name)
    where, _, name = setup["entry"].rpartition(":")
    if where.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(where).stem, where)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(where)
    gc.collect()
    gc.freeze()  # a garbage collection in a child would copy every page that it touches
    return getattr(module, name)


def _fork(control: socket.socket, entry: Callable[..., None], options: dict[str, Any], children: set[int]) -> None:
    zygote = os.getpid()
    try:
        theirs, ours = socket.socketpair()
        # SO_PASSCRED gives the parent the child's pid in the parent's namespace.
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        pid = os.fork()
    except OSError as error:
        _answer(control, {"error": str(error), "errno": error.errno})
        return
    if pid == 0:
        try:
            os.setpgid(0, 0)
            end_with_parent(signal.SIGKILL)
            control.close()
            theirs.close()
            if os.getppid() == zygote:
                entry(ours, options)
                os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    children.add(pid)
    ours.close()
    with theirs:
        socket.send_fds(control, [json.dumps({"pid": pid}).encode()], [theirs.fileno()])


def _end(pid: int, children: set[int]) -> int | None:
    """Kill and reap a child and its orphans, which become children of the zygote, their subreaper."""
    if pid not in children:
        return None
    children.discard(pid)
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    while orphans := own_children() - children:
        for orphan in orphans:
            os.kill(orphan, signal.SIGKILL)
            os.waitpid(orphan, 0)
    return status


def adopt_orphans() -> None:
    """Make this process adopt its descendants whose parents have ended."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(number: int) -> None:
    """Let the kernel send this process a signal when its parent has ended, in whatever way."""
    _prctl(PR_SET_PDEATHSIG, number)


def own_children() -> set[int]:
    """Return the children of all threads of this process, with those that have ended and were not waited for."""
    try:  # works without /proc, which a sandbox may lack: with no child there is nothing to list
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return set()
    try:
        lists = [Path(f"/proc/self/task/{task}/children").read_text() for task in os.listdir("/proc/self/task")]
        return {int(pid) for pids in lists for pid in pids.split()}
    except OSError:  # no /proc, or a kernel without the file
        pass
    pids = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                pids.add(int(stat.parent.name))
        except OSError:
            continue
    return pids


def _answer(control: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        control.send(json.dumps(message).encode())


def _prctl(option: int, value: int) -> None:
    _LIBC.prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
