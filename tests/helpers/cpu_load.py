"""A machine that is busy, made on one processor: processes that burn it, and others kept to it.

Tests run in several processes at once: one that burns a processor waits for those that judge time, and they for it.
"""

import contextlib
import fcntl
import os
import subprocess
import sys
import tempfile


# Starts so many at once and ends them when its input does, also where who holds it was killed (they would burn on).
# Each is a session of its own: Linux may share by session.
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
MANY = 24  # leave less than a twentieth
LOCK = open(os.path.join(tempfile.gettempdir(), f"burners-{os.getuid()}"), "w")  # noqa: SIM115
wants = {"burn": 0, "quiet": 0}  # of this process, now


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
    """None of another process, meanwhile."""
    return _wanting("quiet")


@contextlib.contextmanager
def burners(count):
    """So many processes that want all of `PROCESSOR`."""
    command, streams = [sys.executable, "-ISc", BURN, str(count)], dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    keep = {"preexec_fn": lambda: os.sched_setaffinity(0, {PROCESSOR}), "start_new_session": True}
    with _wanting("burn"), subprocess.Popen(command, **streams, **keep) as starter:
        assert starter.stdout.readline() == b"burning\n"
        yield


def keep_there(zygote):
    """Keep what a zygote forks from now on to `PROCESSOR`."""
    group = zygote._stop.peek()[2][0].pid
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and os.getpgid(int(name)) == group:
                os.sched_setaffinity(int(name), {PROCESSOR})
