"""A launcher's command, as `trl-grpo-plus run` starts it: `python -m trl_grpo_plus.launch.launcher_main NAME ...`.

Ctrl-C ends it when its processes have saved, and no traceback of the launcher's follows what they have said.
"""

import os
import signal
import subprocess
import sys
from importlib import import_module
from types import FrameType

import psutil

from ..utils.terminal import say
from .launchers import LAUNCHERS


SAVING_S = "1800"  # until processes that were asked to stop are killed: a step and a checkpoint, torch's default is 30


def main() -> int:
    """Run it on this process's command line.

    Returns:
        `int`: the exit status of the processes, 130 where Ctrl-C ended them.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", SAVING_S)
    name, *arguments = sys.argv[1:]
    module, _, function = LAUNCHERS[name].main.partition(":")
    entry = getattr(import_module(module), function)
    sys.argv = [name, *arguments]
    signal.signal(signal.SIGINT, _pass_on)
    try:
        entry()
    except subprocess.CalledProcessError as error:
        return _status(error.returncode)
    except ChildFailedError as error:
        return _status(error.get_first_failure()[1].exitcode)
    except SignalException as error:
        return 128 + error.sigval
    return 0


def _pass_on(number: int, frame: FrameType | None) -> None:
    """To the one process of a run that torch does not watch over. What a terminal sends reaches it anyway."""
    if not (sys.stdin and sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()):
        for child in psutil.Process().children():
            child.send_signal(number)


def _status(code: int) -> int:
    if code >= 0:
        return code
    say(f"error: the signal {signal.Signals(-code).name} ended a process.", file=sys.stderr)
    return 128 - code


if __name__ == "__main__":
    sys.exit(main())
