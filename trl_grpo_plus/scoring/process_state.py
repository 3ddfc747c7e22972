"""Restores a worker process after a sample, so that the sample's changes do not affect the next one.

Restored: builtins, the working directory, the umask, environment variables, signal handlers, the signal mask, timers,
resource limits, priority, CPU affinity, the locale, `sys.path` and the other import tables, modules removed from
`sys.modules` (newly imported modules stay), standard streams, warning filters, interpreter settings.

A change that cannot be restored ends the worker: a limit that only root may raise, or a thread or a process that is
still running.

Not restored: the contents of modules, such as caches, random seeds and patches, and descriptors that were left open.
"""

import _signal  # type: ignore[import-not-found]  # 20 times as fast as the wrappers in `signal`
import builtins
import contextlib
import gc
import locale
import os
import posix
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ..utils.fork_server import own_children


# A thread or a process that is about to end gets 20 pauses of a millisecond. On a busy machine the pauses take longer,
# and so does the end of a thread or process.
GRACE = 20
LIMITS = tuple(
    getattr(resource, f"RLIMIT_{name}") for name in ("AS", "DATA", "STACK", "CPU", "FSIZE", "NOFILE", "NPROC")
)
SIGNALS = range(1, signal.NSIG)
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)

_BUILTINS = vars(builtins)
_kept: set[tuple[str, int]] = set()  # threads and processes that may keep running


class Setting(NamedTuple):
    """A part of the process state: functions to read it, to restore it, and to copy its value."""

    get: Callable[[], Any]
    put: Callable[[Any], object]
    copy: Callable[[Any], Any] = lambda value: value


def _list(owner: Any, name: str) -> Setting:
    own = getattr(owner, name)

    def put(then: list[Any]) -> None:
        """Restore the content of the list, and the list itself."""
        own[:] = then
        setattr(owner, name, own)

    return Setting(lambda: getattr(owner, name), put, list)


def _attribute(owner: Any, name: str) -> Setting:
    # Tuples compare by identity first, so an object's own __eq__ cannot interfere.
    return Setting(lambda: (getattr(owner, name),), lambda then: setattr(owner, name, then[0]))


def _put_environ(then: dict[bytes, bytes]) -> None:
    for name in posix.environ.keys() - then.keys():
        del os.environb[name]
    for name, value in then.items():
        os.environb[name] = value
    time.tzset()


def _put_handlers(then: list[Any]) -> None:
    for number, handler in zip(SIGNALS, then, strict=True):
        if handler is not None and _signal.getsignal(number) != handler:  # None: not installed from Python
            signal.signal(number, handler)


def _put_mask(blocked: set[int]) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _stop_timers(ran: list[bool]) -> None:
    for timer, goes_on in zip(TIMERS, ran, strict=True):
        if not goes_on:
            signal.setitimer(timer, 0)


def _put_limits(then: list[tuple[int, int]]) -> None:
    for limit, values in zip(LIMITS, then, strict=True):
        resource.setrlimit(limit, values)


_FILTERS = _list(warnings, "filters")


def _put_filters(then: list[Any]) -> None:
    warnings.resetwarnings()  # invalidates caches of the filters' verdicts
    _FILTERS.put(then)


SETTINGS = (
    Setting(lambda: [any(signal.getitimer(timer)) for timer in TIMERS], _stop_timers),  # before their signal handlers
    Setting(lambda: [_signal.getsignal(number) for number in SIGNALS], _put_handlers),
    Setting(lambda: _signal.pthread_sigmask(signal.SIG_BLOCK, ()), _put_mask),
    Setting(lambda: posix.environ, _put_environ, dict),
    Setting(lambda: [resource.getrlimit(limit) for limit in LIMITS], _put_limits),
    Setting(lambda: os.getpriority(os.PRIO_PROCESS, 0), lambda then: os.setpriority(os.PRIO_PROCESS, 0, then)),
    Setting(lambda: os.sched_getaffinity(0), lambda then: os.sched_setaffinity(0, then)),
    Setting(lambda: locale.setlocale(locale.LC_ALL), lambda then: locale.setlocale(locale.LC_ALL, then)),
    *(_list(sys, name) for name in ("path", "meta_path", "path_hooks", "argv")),
    *(_attribute(sys, name) for name in ("stdin", "stdout", "stderr", "excepthook")),
    _attribute(os, "environ"),
    _FILTERS._replace(put=_put_filters),
    Setting(sys.getrecursionlimit, sys.setrecursionlimit),
    Setting(sys.gettrace, sys.settrace),
    Setting(sys.getprofile, sys.setprofile),
    Setting(gc.isenabled, lambda then: gc.enable() if then else gc.disable()),
)  # fmt: skip
if hasattr(sys, "get_int_max_str_digits"):  # not in the first releases of 3.10
    SETTINGS += (Setting(sys.get_int_max_str_digits, sys.set_int_max_str_digits),)


class State:
    """A snapshot of this process, taken when the object is made."""

    def __init__(self) -> None:
        self._builtins = dict(_BUILTINS)
        self._folder = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._umask = os.umask(0)
        os.umask(self._umask)
        self._modules = dict(sys.modules)
        self._loaded = [*sys.modules.values()]  # compared faster than the dict
        self._then = [setting.copy(setting.get()) for setting in SETTINGS]

    def put_back(self) -> str:
        """Restore this process to the snapshot.

        Returns:
            `str`: the state that could not be restored, in words that follow "left"; empty if all was restored.
        """
        if self._builtins != _BUILTINS:  # first, and without calling any builtin
            for name in [*_BUILTINS]:
                if name not in self._builtins:
                    del _BUILTINS[name]
            _BUILTINS.update(self._builtins)
        os.umask(self._umask)
        failure = ""
        try:
            os.fchdir(self._folder)
        except OSError as error:
            failure = f"another working directory ({error})"
        if [*sys.modules.values()] != self._loaded:  # newly imported modules stay
            sys.modules.update(self._modules)
            self._modules, self._loaded = dict(sys.modules), [*sys.modules.values()]
        for place, setting in enumerate(SETTINGS):
            try:
                if setting.get() != self._then[place]:
                    setting.put(self._then[place])
            except Exception as error:
                failure = f"a state that cannot be put back ({type(error).__name__}: {error})"
        return failure


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Keep the threads and processes started in this block for later samples. For use in reward functions.

    Other threads or processes that a sample leaves running end its worker. The next sample then runs in a new worker,
    which loads the reward again. Threads and processes started while the reward's module is loaded are kept as well.
    """
    before = _running() if _kept else set()
    try:
        yield
    finally:
        if _kept:  # empty outside of a worker, where nothing is ended
            _kept.update(_running() - before)


def keep_all() -> None:
    """Allow all threads and processes that run now to keep running."""
    _kept.update(_running())


def left_running() -> str:
    """Return a thread or process that a sample left running, in words that follow "left"; empty: none."""
    pauses = 0
    while left := (running := _running()) - _kept:
        if pauses == GRACE:
            kind, number = min(left)
            names = {("thread", thread.ident): f" ({thread.name})" for thread in threading.enumerate()}
            return f"a {kind}{names.get((kind, number), '')} running"
        time.sleep(0.001)
        pauses += 1
    for pid in own_children():
        if ("process", pid) not in _kept:  # it has ended, and nobody else will reap it
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
    _kept.intersection_update(running)  # identifiers and pids may be reused
    return ""


def _running() -> set[tuple[str, int]]:
    """Return the running Python threads, by identifier, and the running child processes, by pid."""
    threads = {("thread", ident) for ident in sys._current_frames()}
    return threads | {("process", pid) for pid in own_children() if not _has_ended(pid)}


def _has_ended(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
