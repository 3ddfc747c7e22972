"""A machine that is busy, made on one processor: processes that burn it, and others kept to it.

Tests run in several processes at once: one that burns a processor waits for those that judge time, and they for it.
"""

import contextlib
import fcntl
import os
import subprocess
import sys
import tempfile
import time


# Until its parent is gone, also where that was killed: it would burn on for ever.
BURN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(10**6):\n        pass"
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
    """So many processes that want all of `PROCESSOR`, each a session of its own: Linux may share by session."""
    options = {"preexec_fn": lambda: os.sched_setaffinity(0, {PROCESSOR}), "start_new_session": True}
    with _wanting("burn"):
        running = [subprocess.Popen([sys.executable, "-c", BURN], **options) for _ in range(count)]
        try:
            time.sleep(0.2)
            yield
        finally:
            for process in running:
                process.kill()
                process.wait()


def keep_there(zygote):
    """Keep what a zygote forks from now on to `PROCESSOR`."""
    group = zygote._stop.peek()[2][0].pid
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and os.getpgid(int(name)) == group:
                os.sched_setaffinity(int(name), {PROCESSOR})
