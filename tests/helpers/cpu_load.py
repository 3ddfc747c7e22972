"""A busy machine, simulated on one processor: some processes burn that processor, and others are pinned to it.

Tests run in several processes at once. A test that burns a processor waits until no test that measures time runs, and
a test that measures time waits until no test burns a processor.
"""

import contextlib
import fcntl
import os
import subprocess
import sys
import tempfile


# Start so many burning processes, and end them when stdin closes. It also closes when the test's process is killed.
# Each burning process has its own session, because Linux may divide processor time by session.
BURN = """
import os, signal, sys
parent, pids = os.getpid(), []
for _ in range(int(sys.argv[1])):
    pids.append(os.fork())
    if not pids[-1]:
        os.setsid()
        while os.getppid() == parent:
            for _ in range(10**6):
                pass
        os._exit(0)
print("burning", flush=True)
sys.stdin.read()
for pid in pids:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
"""
PROCESSOR = max(os.sched_getaffinity(0))
MANY = 24  # so many burning processes leave less than a twentieth of the processor to another process
LOCK = open(os.path.join(tempfile.gettempdir(), f"burners-{os.getuid()}"), "w")  # noqa: SIM115
wants = {"burn": 0, "quiet": 0}  # how many tests or fixtures of this process now want each


def _lock():
    fcntl.flock(LOCK, fcntl.LOCK_EX if wants["burn"] else fcntl.LOCK_SH if wants["quiet"] else fcntl.LOCK_UN)


@contextlib.contextmanager
def _wanting(what):
    wants[what] += 1
    _lock()
    try:
        yield
    finally:
        wants[what] -= 1
        _lock()


def no_burners():
    """Keep other processes from starting burners inside this context."""
    return _wanting("quiet")


@contextlib.contextmanager
def burners(count):
    """Run `count` processes that want all of `PROCESSOR`."""
    command, streams = [sys.executable, "-ISc", BURN, str(count)], dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    keep = {"preexec_fn": lambda: os.sched_setaffinity(0, {PROCESSOR}), "start_new_session": True}
    with _wanting("burn"), subprocess.Popen(command, **streams, **keep) as starter:
        assert starter.stdout.readline() == b"burning\n"
        yield


def keep_there(zygote):
    """Pin the processes of a zygote to `PROCESSOR`. Processes that it forks later inherit that."""
    group = zygote._stop.peek()[2][0].pid
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and os.getpgid(int(name)) == group:
                os.sched_setaffinity(int(name), {PROCESSOR})
