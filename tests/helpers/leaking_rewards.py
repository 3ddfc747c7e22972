"""Rewards that change the state of their worker process and leave it changed."""

import builtins
import gc
import itertools
import locale
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings

from trl_grpo_plus.scoring import kept


def spin():
    while True:
        pass


def soft(name, most):
    limit = getattr(resource, name)
    resource.setrlimit(limit, (most, resource.getrlimit(limit)[1]))


# completion -> the change that the reward makes to the state of its process.
LEAVE = {
    "nothing": lambda: None,
    "the working directory": lambda: os.chdir("/"),
    "a working directory that is gone": lambda: (os.mkdir("gone"), os.chdir("gone"), os.rmdir("../gone")),
    "the umask": lambda: os.umask(0o777),
    "a variable": lambda: os.environ.update(LEFT="1"),
    "no variables": lambda: os.environ.clear(),
    "another environment": lambda: setattr(os, "environ", {}),
    "a time zone": lambda: (os.environ.update(TZ="Asia/Tokyo"), time.tzset()),
    "a handler": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "a blocked signal": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]),
    "an alarm": lambda: signal.setitimer(signal.ITIMER_REAL, 0.3),
    "a limit on files": lambda: soft("RLIMIT_NOFILE", 8),
    "a limit on the stack": lambda: soft("RLIMIT_STACK", 1 << 16),
    "its processors": lambda: os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]),
    "sys.path": lambda: sys.path.clear(),
    "another sys.path": lambda: setattr(sys, "path", []),
    "no finders": lambda: sys.meta_path.clear(),
    "a blocking finder": lambda: sys.meta_path.insert(0, None),
    "no modules": lambda: sys.modules.pop("json"),
    "another module in its place": lambda: (sys.modules.pop("json"), sys.modules.update(other=sys)),
    "a module that is none": lambda: sys.modules.update(json=None),
    "stdout": lambda: setattr(sys, "stdout", None),
    "builtins": lambda: (setattr(builtins, "len", None), delattr(builtins, "enumerate"), setattr(builtins, "x", 1)),
    "the recursion limit": lambda: sys.setrecursionlimit(200),
    "a tracer": lambda: sys.settrace(lambda *_: None),
    "no collector": gc.disable,
    "warnings as errors": lambda: warnings.simplefilter("error"),
    "a locale": lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8"),
}


def now():
    """Return the state of this process: folder, environment, signal handlers, limits, modules and so on."""
    return {
        "folder": os.getcwd(),
        "umask": [os.umask(os.umask(0)) for _ in "x"],
        "environ": dict(os.environ),
        "zone": time.strftime("%z"),
        "handlers": [str(signal.getsignal(number)) for number in signal.valid_signals()],
        "blocked": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "timer": signal.getitimer(signal.ITIMER_REAL)[1],
        "limits": [resource.getrlimit(number) for number in range(resource.RLIMIT_CPU, resource.RLIMIT_AS + 1)],
        "processors": os.sched_getaffinity(0),
        "path": (id(sys.path), *sys.path),
        "finders": list(sys.meta_path),
        "json": "json" in sys.modules,
        "stdout": sys.stdout,
        "builtins": dict(vars(builtins)),
        "recursion": sys.getrecursionlimit(),
        "tracer": sys.gettrace(),
        "collector": gc.isenabled(),
        "warnings": list(warnings.filters),
        "locale": locale.setlocale(locale.LC_ALL),
    }


AT_FIRST = now()


def state(completions):
    """Fail if the state of this process differs from the first one. Then make the change that the completion names."""
    found = now()
    changed = [name for name in found if found[name] != AT_FIRST[name]]
    if changed:
        raise AssertionError(f"changed: {changed}")
    LEAVE[completions[0]]()
    return [1.0]


def running(completions):
    """Return the worker's pid, and leave a busy thread or process behind if the completion says so."""
    if completions[0] == "a thread":
        threading.Thread(target=spin, name="spinner", daemon=True).start()
    elif completions[0] == "a process":
        subprocess.Popen([sys.executable, "-S", "-c", "while True: pass", "busy"])
    elif completions[0] == "an orphan":
        subprocess.run(["sh", "-c", f"{sys.executable} -S -c 'while True: pass' busy &"], check=True)
    elif completions[0] == "what ends":
        threading.Thread(target=time.sleep, args=(0.001,)).start()
        subprocess.Popen(["true"])
    return [float(os.getpid())]


_shared = {}
_loaded = threading.Thread(target=threading.Event().wait, daemon=True)
_loaded.start()


def shares(completions):
    """Return the number of earlier calls in this worker.

    The first call starts a process and a thread inside `kept()`. All calls use them, and a thread that was started at
    import.
    """
    if not _shared:
        with kept():
            _shared["process"] = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            _shared["thread"] = threading.Thread(target=threading.Event().wait, daemon=True)
            _shared["thread"].start()
        _shared["calls"] = itertools.count()
    _shared["process"].stdin.write(b"x\n")
    _shared["process"].stdin.flush()
    assert _shared["process"].stdout.readline() == b"x\n"
    assert _shared["thread"].is_alive()
    assert _loaded.is_alive()
    return [float(next(_shared["calls"]))]


def lowers(completions):
    """Return the hard limit on open files, and lower it by 1. Only root may raise it again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard - 1), hard - 1))
    return [float(hard)]
