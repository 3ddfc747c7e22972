"""Attacks that a sandbox must stop before it is used. They run on the current machine, each in a millisecond.

Kernels, containers and their profiles differ, and a missing protection is not visible otherwise. Each attack is a
function that returns a true value if it came through, and raises if it was stopped.
"""

import contextlib
import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from ..utils.fork_client import NoProcess
from .child.lockdown import can_become_others
from .errors import Killed, SandboxError, Starved
from .protocol import KILLED, Ran


HANG_S = 0.1

# Run as a script. Its input names the judge's resources that it attacks. Signal 0 only tests whether a process can be
# signalled.
PROGRAM = """
import ctypes, json, os, socket, sys, threading

bait = json.loads(input())
libc = ctypes.CDLL(None, use_errno=True)
attacks = []

def attack(function):
    attacks.append(function)

def call(name, *arguments):
    return getattr(libc, name)(*(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)) >= 0

def system(number, *arguments):
    return call("syscall", number, *arguments)

def any_of(*tries):
    for attempt in tries:
        try:
            if attempt():
                return True
        except OSError:
            pass

@attack
def read_the_environment():
    return set(os.environ) - {"LC_CTYPE"}

@attack
def read_a_file_of_the_trainer():
    return any_of(*(lambda path=path: open(path, "rb").read(1) for path in (bait["file"], "/etc/passwd")))

@attack
def read_proc():
    processes = ("self", bait["pid"], os.getppid(), 1)
    return any_of(*(lambda p=p: open(f"/proc/{p}/environ", "rb") for p in processes), lambda: os.listdir("/proc"))

@attack
def list_files():
    return any_of(lambda: os.listdir(bait["folder"]), lambda: os.listdir("/etc"), lambda: os.listdir("/home"))

@attack
def write_a_file():
    places = (bait["folder"], "/tmp", "/dev/shm", "/var/tmp", "/", ".", "/lib-dynload")
    return any_of(*(lambda p=p: open(p + "/canary-of-the-sandbox", "wb") for p in places),
                  lambda: open(bait["file"], "r+"))

@attack
def change_a_file():
    return any_of(lambda: os.chmod(bait["file"], 0o777) is None, lambda: os.unlink(bait["file"]) is None,
                  lambda: os.truncate(bait["file"], 0) is None, lambda: os.mkdir("/tmp/canary-of-the-sandbox") is None)

@attack
def connect_by_tcp():
    return socket.create_connection(("127.0.0.1", bait["port"]), timeout=1)

@attack
def open_other_sockets():
    return any_of(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM), lambda: socket.socket(socket.AF_UNIX),
                  lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM), lambda: socket.socket(16, 3))

@attack
def send_out_of_band():
    ends = socket.socketpair()
    return any_of(lambda: ends[0].send(b"x", socket.MSG_OOB), lambda: ends[1].recv(1, socket.MSG_OOB))

@attack
def fork():
    def forked():
        if os.fork() == 0:
            os._exit(0)
        return True
    return any_of(forked, lambda: system(435, bytes(88), 88))

@attack
def run_a_command():
    return any_of(lambda: os.posix_spawn("/bin/true", ["true"], {}), lambda: os.execv("/bin/true", ["true"]),
                  lambda: os.execv(sys.executable, ["python"]))

@attack
def signal_others():
    own = os.getpid()
    return any_of(*(lambda p=p: os.kill(p, 0) is None for p in (bait["pid"], os.getppid(), 1, 0, -1) if p != own),
                  lambda: os.killpg(os.getpgid(0), 0) is None, lambda: call("pidfd_open", bait["pid"], 0))

@attack
def have_the_kernel_signal_others():
    import fcntl
    ends = os.pipe()
    return any_of(lambda: fcntl.fcntl(ends[0], fcntl.F_SETOWN, bait["pid"]) is not None,
                  lambda: fcntl.ioctl(0, 0x8902, bytes(4)))

@attack
def look_into_other_processes():
    return any_of(*(lambda p=p: call("ptrace", 0x4206, p, 0, 0) for p in (bait["pid"], os.getppid())),
                  lambda: system(438, 3, 0, 0))

@attack
def become_root():
    return any_of(lambda: os.setuid(0) is None and os.geteuid() == 0, lambda: os.chroot(".") is None,
                  lambda: call("unshare", 0x10000000))

@attack
def use_odd_parts_of_the_kernel():
    return any_of(lambda: system(425, 8, bytes(120)), lambda: os.memfd_create("canary"),
                  lambda: call("shmget", 0, 4096, 0o1600), lambda: system(428, -100, b"/", 0),
                  lambda: call("inotify_init"), lambda: call("personality", 0))

@attack
def take_more_memory():
    try:
        return bytearray(bait["memory"])
    except MemoryError:
        return False

@attack
def take_more_threads():
    import resource
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    if not bait["threads_count"]:
        return False
    resource.setrlimit(resource.RLIMIT_NPROC, (0, hard))  # does the kernel count this user's at all?
    try:
        threading.Thread(target=int).start()
        return True
    except RuntimeError:
        return soft == resource.RLIM_INFINITY
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))

@attack
def lift_its_limits():
    import resource
    return any_of(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1)) is None,
                  lambda: resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2) is None)

@attack
def rename_itself():
    return call("prctl", 15, b"trainer", 0, 0, 0)

came_through = []
for function in attacks:
    try:
        if function():
            came_through.append(function.__name__)
    except (OSError, ValueError):
        pass
print(json.dumps([len(attacks), came_through]))
"""
ATTACKS = PROGRAM.count("\n@attack\n")


def escapes(run: Callable[..., Ran], memory_mb: int) -> list[str]:
    """Return the names of the attacks that came through; empty on a machine that is fit for use.

    Args:
        run (`Callable`): [`Sandbox.run`].
        memory_mb (`int`): memory limit of the sandbox's programs, in MiB.

    Raises:
        SandboxError: the attacks could not be tried.
    """
    with _bait() as bait:
        ran = run(PROGRAM, json.dumps({**bait, "memory": memory_mb << 20}), time_s=30)
        try:
            count, came_through = json.loads(ran.stdout)
        except ValueError:
            failure = Killed if ran.reason == KILLED else SandboxError
            raise failure(f"the self-test did not end: {ran.reason}") from None
    if count != ATTACKS:
        raise SandboxError(f"the self-test made {count} attacks of {ATTACKS}")
    return [*came_through, *_hangs(run)]


@contextlib.contextmanager
def _bait() -> Iterator[dict[str, Any]]:
    """Yield resources of this process for the attacks to target."""
    with (
        tempfile.TemporaryDirectory(prefix="trl-grpo-plus-") as folder,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        os.chmod(folder, 0o777)
        file = os.path.join(folder, "secret")
        with open(file, "w") as secret:
            secret.write("secret")
        os.chmod(file, 0o666)
        bait = {"pid": os.getpid(), "file": file, "folder": folder, "port": server.getsockname()[1]}
        # No limit counts the threads of root, and root without these capabilities stays root: see docs/programs.md.
        yield {**bait, "threads_count": os.geteuid() != 0 or can_become_others()}


def _hangs(run: Callable[..., Ran]) -> list[str]:
    try:
        ran = run("import signal\nsignal.pthread_sigmask(0, range(1, 65))\nwhile True: pass", time_s=HANG_S)
        stopped = bool(ran.reason)
    except Starved as error:
        if isinstance(error.__cause__, NoProcess):  # the program has not run at all
            raise
        stopped = True
    return [] if stopped else ["run_for_ever"]
