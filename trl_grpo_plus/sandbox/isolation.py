"""The isolation tiers that confine a program, best first, and a list of those that this machine may support.

    bubblewrap+landlock+seccomp   landlock+seccomp in namespaces: no other process, no network, few files visible
    landlock+seccomp              files and sockets by Landlock, system calls by seccomp, user and capabilities dropped
    bubblewrap+seccomp-strict     seccomp-strict in namespaces
    seccomp-strict                without Landlock (before Linux 5.13): no file can be opened at all
    none                          used only if the caller allows it

Every tier sets the same limits on time, memory, threads and output. "none" has no other protection.

An installed bubblewrap may still not work (user namespaces are often forbidden). So a tier is accepted only after a
program has run in it.
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
    """An isolation tier: a way to confine a program.

    Args:
        name (`str`): the tier's name, for logs.
        mode (`str`): how the child confines itself: "landlock", "strict" or "none".
        wrap (`tuple[str, ...]`): the command that the tier's zygote runs under.
    """

    name: str
    mode: str
    wrap: tuple[str, ...] = ()

    @property
    def counts_alone(self) -> bool:
        """`True` if the kernel counts a program's threads apart from the user's other threads.

        It does so in a user namespace, since Linux 5.14.
        """
        if "--unshare-user" not in self.wrap:
            return False
        major, minor, *_ = re.findall(r"\d+", os.uname().release)
        return (int(major), int(minor)) >= (5, 14)


def tiers() -> list[Tier]:
    """Return all tiers but "none", best first. A probe must check that a tier works."""
    wrap = bubblewrap()
    safe = (("landlock+seccomp", "landlock"), ("seccomp-strict", "strict"))
    wrapped = [Tier(f"bubblewrap+{name}", mode, wrap) for name, mode in safe if wrap]
    plain = [Tier(name, mode) for name, mode in safe]
    return [tier for pair in zip(wrapped, plain, strict=True) for tier in pair] if wrapped else plain


NO_TIER = Tier("none", "none")


def bubblewrap() -> tuple[str, ...]:
    """Return the bubblewrap command; empty if bubblewrap is not installed.

    Visible, and read-only, are the interpreter, the system's libraries and this package's files for the child. /proc
    is not mounted: it is not needed, and many containers forbid it.

    Root creates namespaces without a user namespace, and each program becomes a separate user inside. In a user
    namespace created by root, a program would still be root to the kernel, which counts no threads of root.
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
    yield os.path.dirname(sys.executable)  # in a virtual environment, a link to the interpreter
    yield os.path.join(sys.prefix, "pyvenv.cfg")
    yield from (str(CHILD), fork_server.__file__)
