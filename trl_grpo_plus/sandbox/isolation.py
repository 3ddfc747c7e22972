"""The ways to lock a program in, best first, and which of them this machine has.

    bubblewrap+landlock+seccomp   the next one, in namespaces: no other process, no network, few files in sight
    landlock+seccomp              files and sockets by Landlock, system calls by seccomp, user and capabilities dropped
    bubblewrap+seccomp-strict     the next one, in namespaces
    seccomp-strict                without Landlock (before Linux 5.13): no file can be opened at all
    none                          only for who allows it

Each sets the same limits on time, memory, threads and output. "none" has nothing else.

A program that is there may still not work (user namespaces are often forbidden), so a tier counts only once a program
has run in it.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..utils import fork_server
from .child.lockdown import can_become_others


CHILD = Path(__file__).parent / "child"
NAMESPACES = ("pid", "net", "ipc", "uts")


class Tier(NamedTuple):
    """A way to lock a program in.

    Args:
        name (`str`): for logs.
        mode (`str`): what the child does, "landlock", "strict" or "none".
        wrap (`tuple[str, ...]`): the command that its zygote runs under.
    """

    name: str
    mode: str
    wrap: tuple[str, ...] = ()

    @property
    def counts_alone(self) -> bool:
        """Whether threads inside are counted apart from the user's others: in a user namespace, since Linux 5.14."""
        if "--unshare-user" not in self.wrap:
            return False
        major, minor, *_ = re.findall(r"\d+", os.uname().release)
        return (int(major), int(minor)) >= (5, 14)


def tiers() -> list[Tier]:
    """All of them, best first; whether one works is for a probe to say."""
    wrap = bubblewrap()
    safe = (("landlock+seccomp", "landlock"), ("seccomp-strict", "strict"))
    wrapped = [Tier(f"bubblewrap+{name}", mode, wrap) for name, mode in safe if wrap]
    plain = [Tier(name, mode) for name, mode in safe]
    return [tier for pair in zip(wrapped, plain, strict=True) for tier in pair] if wrapped else plain


NO_TIER = Tier("none", "none")


def bubblewrap() -> tuple[str, ...]:
    """Return the command; empty where there is no bubblewrap.

    In sight are the interpreter, the system's libraries and this package's files for the child, to be read only.
    No /proc: it is not needed, and many containers forbid it.

    Root makes namespaces by its own right, and each program becomes a user of its own inside. In a user namespace of
    root's a program would still be root to the kernel, which counts no threads of root.
    """
    program = shutil.which("bwrap")
    if program is None:
        return ()
    command = [program, *(f"--unshare-{name}" for name in NAMESPACES), "--unshare-cgroup-try", "--die-with-parent"]
    command += ["--cap-drop", "ALL", "--dev", "/dev"]
    if os.geteuid() == 0 and can_become_others():
        for name in ("SETUID", "SETGID", "KILL", "SYS_CHROOT"):
            command += ["--cap-add", f"CAP_{name}"]
    else:
        command += ["--unshare-user", "--uid", "65534", "--gid", "65534"]
    for path in _in_sight():
        command += ["--ro-bind-try", path, path]
    for name in ("/lib", "/lib64", "/bin"):
        if os.path.islink(name):
            command += ["--symlink", os.readlink(name), name]
    return (*command, "--chdir", "/", "--")


def _in_sight() -> Iterator[str]:
    yield from ("/usr", "/nix/store", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d")
    yield from (name for name in ("/lib", "/lib64", "/bin") if not os.path.islink(name))
    yield from (sys.base_prefix, sys.base_exec_prefix)
    yield os.path.dirname(sys.executable)  # of a virtual environment, too: a link to the interpreter
    yield os.path.join(sys.prefix, "pyvenv.cfg")
    yield from (str(CHILD), fork_server.__file__)
