"""A launcher's command, as `trl-grpo-plus run` starts it: `python -m trl_grpo_plus.launch.launcher_main NAME ...`.

Ctrl-C ends the command once its processes have saved. So do a closed terminal, SIGTERM, as Kubernetes sends it, and
SIGUSR1, which SLURM can send before a job's time limit. The launcher then prints no traceback of its own. If the
launcher is killed, its processes end too. An error that a process leaves to the launcher is printed last.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable
from importlib import import_module
from types import FrameType
from typing import Any

import psutil

from ..utils.terminal import outlive_reader, say
from .launchers import LAUNCHERS, LOST, STARTED_BY


STOPS = (signal.SIGTERM, signal.SIGUSR1)
HEARD_S = 1.0  # time in which a signal's handler runs, unless the launcher waits in C++
SAVING_S = "3600"  # seconds until torch kills stopped processes: time for a long step and a checkpoint; torch has 30
GO_ON = "To continue, start the run again with --resume_from_checkpoint auto."
_heard = threading.Event()  # set once a handler of this module has run


def main() -> int:
    """Run the launcher that this process's command line names.

    Returns:
        `int`: the exit status of the processes; 130 if Ctrl-C, one of [`STOPS`] or SIGHUP ended them.
    """
    outlive_reader()
    signal.signal(signal.SIGINT, _pass_on)
    for number in STOPS:
        signal.signal(number, _stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` ignores it
        signal.signal(signal.SIGHUP, _hang_up)
    _watch()
    # After the handlers, because the imports take seconds.
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError

    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", SAVING_S)
    # Leave out SIGTERM: torch's handler would pass it on unchanged, and SIGTERM ends the processes at once. Leave out
    # SIGHUP: torch would handle it under `nohup` too, and would end the processes at once when a shell repeats it.
    os.environ.setdefault("PET_SIGNALS_TO_HANDLE", "SIGINT,SIGQUIT")
    os.environ[STARTED_BY] = f"{os.getpid()}@{socket.gethostname()}"
    name, *arguments = sys.argv[1:]
    module, _, function = LAUNCHERS[name].main.partition(":")
    entry = getattr(import_module(module), function)
    sys.argv = [name, *arguments]
    try:
        entry()
    except subprocess.CalledProcessError as error:
        return _status(error.returncode)
    except ChildFailedError as error:
        if left := _left(error.failures.values()):
            say(left, file=sys.stderr)
        return _status(error.get_first_failure()[1].exitcode)
    except RendezvousConnectionError as error:  # the node that holds torchrun's rendezvous is gone, or never came
        say(f"error: {LOST.format(lost=error)}", file=sys.stderr)
        return 1
    except SignalException as error:
        if isinstance(error.__context__, SignalException):  # a second signal: torch has ended the processes by SIGTERM
            say(f"\nStopped at once. {GO_ON}", file=sys.stderr)
        return 128 + error.sigval
    return 0


def _pass_on(number: int, frame: FrameType | None) -> None:
    """Pass a signal on to the child processes, because torch does not do so for a run of one process.

    A signal from a terminal is not passed on: it reaches the child processes anyway. Before there are any, as while
    this node waits for others, the signal ends the launcher.
    """
    _heard.set()
    if not psutil.Process().children():
        _end(number)
    elif not (sys.stdin and sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()):
        _signal_children()


def _stop(number: int, frame: FrameType | None) -> None:
    """Stop the run as Ctrl-C does, through torch's handler if torch has installed one.

    If there are no child processes yet, for example while this node waits for others, the signal ends the launcher.
    """
    _heard.set()
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler) and handler is not _pass_on:
        handler(signal.SIGINT, frame)
    elif psutil.Process().children():
        _signal_children()
    else:
        _end(number)


def _hang_up(number: int, frame: FrameType | None) -> None:
    """Stop the run as Ctrl-C does when the terminal is closed, unless a signal is stopping it already.

    The kernel sends SIGHUP, and a shell repeats it: this is no second Ctrl-C.
    """
    error = sys.exc_info()[1]
    while error is not None and type(error).__name__ != "SignalException":  # which torch's handler of SIGINT raises
        error = error.__context__
    if error is not None:
        _heard.set()
    elif not _heard.is_set():
        _stop(number, frame)


def _end(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _watch() -> None:
    """Start a thread that ends the launcher by a signal for which no handler runs.

    While the launcher waits for other nodes, torch may be in C++ for ten minutes, and Python runs no handler.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    threading.Thread(target=_end_unheard, args=(reader,), daemon=True).start()


def _end_unheard(reader: int) -> None:
    while not _heard.is_set():
        number = os.read(reader, 1)[0]
        ours = signal.getsignal(number) in (_pass_on, _stop, _hang_up)
        if ours and not _heard.wait(HEARD_S) and not psutil.Process().children():
            os._exit(128 + number)


def _signal_children() -> None:
    for child in psutil.Process().children():
        child.send_signal(signal.SIGINT)


def _left(failures: Iterable[Any]) -> str | None:
    """Return the earliest error that a process has written for the launcher to print; `None` if there is none."""
    left = [failure for failure in failures if isinstance(failure.error_file_data.get("timestamp"), int)]
    return min(left, key=lambda failure: (failure.timestamp, failure.local_rank)).message if left else None


def _status(code: int) -> int:
    if code >= 0:
        return code
    why = " If nobody sent it, the kernel did, because memory ran out." if -code == signal.SIGKILL else ""
    told = f"the signal {signal.Signals(-code).name} ended a process of this run.{why}"
    say(f"error: {told} {GO_ON}", file=sys.stderr)
    return 128 - code


if __name__ == "__main__":
    sys.exit(main())
