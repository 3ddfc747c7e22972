"""Removes privileges from a freshly forked process, for good, before it reads a model-written program.

The steps are in this order, since each step needs rights that a later step removes:

1. As root, the view of the file system: chroot into the standard library, once, by the zygote.
2. New privileges, the user id and every capability.
3. Resources (rlimits).
4. Files, TCP ports, abstract sockets and signals to other processes (Landlock).
5. System calls (`seccomp.py`).

A step that fails raises, and the program is not run.

Landlock allows reading the standard library, without site-packages, and nothing else. This module uses the standard
library only.
"""

import _thread
import contextlib
import ctypes
import errno
import importlib.util
import os
import resource
import signal
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple


PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same numbers on all architectures
READ_FILE, READ_DIR = 1 << 2, 1 << 3
CAP_KILL, CAP_SETGID, CAP_SETUID, CAP_SYS_CHROOT = 1 << 5, 1 << 6, 1 << 7, 1 << 18
OPEN_FILES = 64
MIB = 1 << 20
NOBODY = 65534
# Each program gets a random user id, so that limits per user count only its own threads. (Not one made from its pid:
# processes in other namespaces may have the same pid.)
SPARE_UIDS, SPARE_COUNT = 2_000_000_000, 100_000_000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_HEADER = (ctypes.c_uint32 * 2)(0x20080522, 0)
_Capabilities = ctypes.c_uint32 * 6


class Limits(NamedTuple):
    """Resource limits of a program.

    Args:
        memory_mb (`int`): address space in MiB, including the interpreter's own.
        cpu_s (`int`): processor time in seconds; a second safeguard behind the judge's clock.
        threads (`int`): number of threads.
        tasks (`int`): number of other threads that count for the program's user, if it shares its user.
    """

    memory_mb: int
    cpu_s: int
    threads: int
    tasks: int


def standard_library() -> list[str]:
    """Return the folders of this interpreter's own modules, their common folder first. Needs `-I -S`."""
    folders = [path for path in sys.path if os.path.isdir(path)]
    return [os.path.commonpath(folders), *folders]


def landlock_rules() -> int:
    """Return a descriptor of Landlock rules that allow reading the standard library, and nothing else.

    Raises:
        OSError: the kernel has no Landlock, or it is turned off.
    """
    version = _libc.syscall(ctypes.c_long(CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    files = (1 << (13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16)) - 1
    attributes = struct.pack("QQQ", files, 3, 3)  # 3: bind and connect TCP; 3: abstract sockets and signals
    size = 8 if version < 4 else 16 if version < 6 else 24
    rules = _call("landlock_create_ruleset", CREATE_RULESET, attributes, ctypes.c_size_t(size), ctypes.c_uint32(0))
    for path, access in _readable():
        _allow(rules, path, access)
    return rules


def _readable() -> Iterator[tuple[str, int]]:
    # The folders themselves get no rule, which would allow listing site-packages, too. The zygote has listed them.
    for folder in standard_library()[1:]:
        for entry in os.scandir(folder):
            if entry.name not in ("site-packages", "dist-packages"):
                yield entry.path, READ_FILE | (READ_DIR if entry.is_dir() else 0)


def _allow(rules: int, path: str, access: int) -> None:
    try:
        beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # a dangling link
        return
    try:
        _call("landlock_add_rule", ADD_RULE, rules, 1, struct.pack("=Qi", access, beneath), ctypes.c_uint32(0))
    finally:
        os.close(beneath)


def be_first_to_go() -> None:
    """Make the kernel end this process and its children before the trainer if memory runs out.

    The zygote calls this once.
    """
    with contextlib.suppress(OSError):  # no /proc
        Path("/proc/self/oom_score_adj").write_text("1000")


def hide_files() -> None:
    """Hide all files but the standard library from the zygote and its children, if the zygote is root.

    The zygote calls this once. The call also makes the lists of files by which the children find modules.
    """
    os.chdir("/")
    if _capabilities() & CAP_SYS_CHROOT:
        _see_only(standard_library()[0])
    importlib.util.find_spec("no_such_module")


def _see_only(folder: str) -> None:
    os.chroot(folder)
    os.chdir("/")

    def moved(path: str) -> str:
        inside = path == folder or path.startswith(folder + "/")
        return path[len(folder) :] or "/" if inside else path

    sys.path[:] = [moved(path) for path in sys.path]
    sys.path_importer_cache.clear()
    for module in list(sys.modules.values()):
        places: Any = getattr(module, "__path__", None)
        if isinstance(places, list):
            places[:] = [moved(path) for path in places]


def can_become_others() -> bool:
    """Return whether this process may run programs as other users, and end them by a signal."""
    needed = CAP_SETUID | CAP_SETGID | CAP_KILL
    return _capabilities() & needed == needed


def drop_privileges() -> None:
    """Drop all capabilities for good. Root becomes a spare user, if possible."""
    zygote = os.getppid()
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    if can_become_others():
        _ = _become(SPARE_UIDS + int.from_bytes(os.urandom(4), "big") % SPARE_COUNT) or _become(NOBODY)
    if _libc.capset(_HEADER, _Capabilities()):
        raise OSError(ctypes.get_errno(), "capset")
    if _capabilities():
        raise OSError(errno.EPERM, "capabilities could not be dropped")
    prctl(PR_SET_DUMPABLE, 0)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # the change of user id has unset it
    if os.getppid() != zygote:
        os._exit(1)


def restrict_files(rules: int) -> None:
    """Apply the rules from [`landlock_rules`] to this process."""
    _call("landlock_restrict_self", RESTRICT_SELF, rules, ctypes.c_uint32(0))
    os.close(rules)


def limit(limits: Limits) -> None:
    """Set the resource limits of this process. A spare user has no other threads, so `limits.tasks` is left out."""
    alone = os.getuid() >= SPARE_UIDS
    values = {
        resource.RLIMIT_AS: limits.memory_mb * MIB,
        resource.RLIMIT_STACK: limits.memory_mb * MIB // 4,  # the usual 8 MiB are too few for recursion in C
        resource.RLIMIT_CPU: limits.cpu_s,
        resource.RLIMIT_NPROC: limits.threads + (0 if alone else limits.tasks),
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for what, value in values.items():
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # A program may raise the stack, as many for contests do: it is part of the address space, which has a limit.
        resource.setrlimit(what, (value, hard if what == resource.RLIMIT_STACK else value))
    # From Python 3.13 on, a thread that ended keeps its stack until it is joined. Stacks of the usual 8 MiB would fill
    # the address space after some 50 threads.
    _thread.stack_size(min(max(limits.memory_mb // 128, 1), 8) * MIB)


def _become(user: int) -> bool:
    try:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    except OSError:  # the user namespace lacks that id
        return False
    return True


def _capabilities() -> int:
    """Return the capabilities that this thread has or could take: effective, permitted, inheritable."""
    words = _Capabilities()
    if _libc.capget(_HEADER, words):
        raise OSError(ctypes.get_errno(), "capget")
    return words[0] | words[1] | words[2] | (words[3] | words[4] | words[5]) << 32


def prctl(option: int, value: int, address: int = 0) -> None:
    """Call `prctl`. Raises `OSError` if the kernel refuses."""
    if _libc.prctl(option, *map(ctypes.c_ulong, (value, address, 0, 0))):
        raise OSError(ctypes.get_errno(), f"prctl {option}: {os.strerror(ctypes.get_errno())}")


def _call(name: str, number: int, *arguments: Any) -> int:
    result = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
    return result
