"""A machine that is busy, made on one processor: processes that burn it, and others kept to it."""

import contextlib
import os
import subprocess
import sys
import time


BURN = "while True:\n    pass"
PROCESSOR = max(os.sched_getaffinity(0))
MANY = 24  # leave less than a twentieth


@contextlib.contextmanager
def burners(count):
    """So many processes that want all of `PROCESSOR`, each a session of its own: Linux may share by session."""
    options = {"preexec_fn": lambda: os.sched_setaffinity(0, {PROCESSOR}), "start_new_session": True}
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
