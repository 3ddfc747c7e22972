"""The zygote, the process that forks others: what its children inherit, how they end, and that nothing is left."""

import contextlib
import json
import os
import resource
import signal
import sys
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pytest
from programs_hostile import all_gone, descendants

from trl_grpo_plus.utils.fork_client import ForkServer, NoProcess


ENTRY = """
import json, os, subprocess, sys, time

def tell(socket, options):
    about = {"environment": dict(os.environ), "path": sys.path, "options": options, "modules": sorted(sys.modules)}
    links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    about["descriptors"] = [os.readlink(link) for link in links if os.path.islink(link)]
    about["group"], about["session"], about["pid"] = os.getpgid(0), os.getsid(0), os.getpid()
    socket.sendall(json.dumps(about).encode())

def start_others(socket, options):
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    subprocess.Popen(["sh", "-c", "setsid sleep 600 & exec sleep 600"], start_new_session=True)
    time.sleep(0.3)
    socket.sendall(b"ready")
    time.sleep(600)

def linger(socket, options):
    socket.sendall(b"ready")
    time.sleep(600)

def crash(socket, options):
    os.kill(os.getpid(), options["signal"])
"""


@pytest.fixture(scope="module")
def entry(tmp_path_factory):
    path = tmp_path_factory.mktemp("forking") / "entries.py"
    path.write_text(ENTRY)
    return str(path)


@pytest.fixture
def start(entry):
    """Give a function that starts a zygote whose children run a function of `ENTRY`. Close all zygotes at the end."""
    with contextlib.ExitStack() as closing:

        def made(function, **options):
            zygote = ForkServer(f"{entry}:{function}", **options)
            closing.callback(zygote.close)
            return zygote

        yield made


def message_of(zygote, **options):
    """Fork a child that runs `tell`, and return what it reports about itself."""
    child = zygote.fork(options)
    assert not child.socket.get_inheritable()
    chunks = b""
    while chunk := child.socket.recv(1 << 16):
        chunks += chunk
    zygote.end(child)
    return json.loads(chunks)


def kill(zygote):
    os.kill(pid_of(zygote), signal.SIGKILL)


def pid_of(zygote):
    return zygote._stop.peek()[2][0].pid


def test_an_isolated_child_has_nothing_of_the_trainers(start, monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_API_KEY", "a secret")
    with open(tmp_path / "open_file", "w") as file:
        os.set_inheritable(file.fileno(), True)
        child = message_of(start("tell", isolated=True, env={"LANG": "C.UTF-8"}), number=3)
    assert child["environment"] in ({"LANG": "C.UTF-8"}, {"LANG": "C.UTF-8", "LC_CTYPE": "C.UTF-8"})
    assert child["options"] == {"number": 3}
    assert not any("site-packages" in folder for folder in child["path"])
    assert not any(name.partition(".")[0] in ("torch", "trl_grpo_plus", "numpy") for name in child["modules"])
    assert not any("open_file" in name for name in child["descriptors"])
    assert child["group"] == child["pid"]
    assert child["session"] != os.getsid(0)


def test_a_child_that_is_not_isolated_imports_what_its_parent_does(start, monkeypatch):
    monkeypatch.setenv("OF_THE_PARENT", "yes")
    monkeypatch.syspath_prepend("/nowhere/in/particular")
    child = message_of(start("tell", preload=["fractions"], env={"MORE": "1"}))
    assert (child["environment"]["OF_THE_PARENT"], child["environment"]["MORE"]) == ("yes", "1")
    assert child["path"] == sys.path
    assert "fractions" in child["modules"]


def test_the_end_of_a_child_is_the_end_of_all_that_it_started(start):
    zygote = start("start_others")
    child = zygote.fork()
    assert child.socket.recv(5) == b"ready"
    family = descendants(child.pid)
    assert len(family) >= 2
    assert os.WTERMSIG(zygote.end(child)) == signal.SIGKILL
    assert not [pid for pid in (child.pid, *family) if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGTERM])
def test_how_a_child_ended_is_told(start, number):
    zygote = start("crash", isolated=True)
    child = zygote.fork({"signal": int(number)})
    assert child.socket.recv(1) == b""
    assert os.WTERMSIG(zygote.end(child)) == number


def test_children_of_many_threads(start):
    zygote = start("tell", isolated=True)

    def use(name):
        return message_of(zygote, name=name)["options"]["name"]

    with ThreadPool(12) as threads:
        assert threads.map(use, range(12)) == list(range(12))


@pytest.mark.parametrize(
    ("setup", "words"),
    [
        ({"entry": "no_such_module_at_all:main"}, "no_such_module_at_all"),
        ({"entry": "{entry}:main"}, "has no attribute 'main'"),
        ({"entry": "{entry}:tell", "preload": ["no_such_module_at_all"]}, "no_such_module_at_all"),
        ({"entry": "{entry}:tell", "wrap": ["false"]}, "did not start"),
    ],
)
def test_what_does_not_start_is_said(entry, setup, words):
    setup = {**setup, "entry": setup["entry"].format(entry=entry)}
    with pytest.raises(RuntimeError, match="did not start") as caught:
        ForkServer(**setup)
    assert words in str(caught.value)


def test_a_child_of_a_dead_zygote_is_not_taken_for_one_of_the_next(start):
    zygote = start("linger")
    old = zygote.fork()
    assert old.socket.recv(5) == b"ready"
    kill(zygote)
    old.socket.settimeout(10.0)
    assert old.socket.recv(5) == b""  # the child died with its zygote
    new = zygote.fork()
    assert new.zygote != old.zygote
    # In its own pid namespace the next zygote would count from the same number, so both children could have one pid.
    assert zygote.end(old._replace(pid=new.pid)) is None
    assert new.socket.recv(5) == b"ready"
    zygote.end(new)


@contextlib.contextmanager
def no_descriptor():
    """Leave no free file descriptor in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_child_whose_socket_finds_no_descriptor_is_ended(start):
    zygote = start("start_others")
    pid = pid_of(zygote)
    with no_descriptor(), pytest.raises(NoProcess, match="no descriptor"):
        zygote.fork()
    assert Path(f"/proc/{pid}/task/{pid}/children").read_text() == ""
    child = zygote.fork()
    assert child.socket.recv(10) == b"ready"
    zygote.end(child)


def test_a_zygote_that_finds_no_descriptor_is_no_failure(start):
    with no_descriptor(), pytest.raises(NoProcess, match="Too many open files"):
        start("tell")
    zygote = start("tell")
    kill(zygote)
    with no_descriptor(), pytest.raises(NoProcess, match="Too many open files"):
        zygote.fork()
    zygote.end(zygote.fork())


def test_a_zygote_that_is_killed_again_at_once_is_no_failure(start, monkeypatch):
    zygote = start("tell")
    begin = zygote._start

    def start_and_kill(*args):
        begin(*args)
        kill(zygote)

    monkeypatch.setattr(zygote, "_start", start_and_kill)
    kill(zygote)
    with pytest.raises(NoProcess, match="died"):
        zygote.fork()
    monkeypatch.undo()
    zygote.end(zygote.fork())


def test_no_descriptor_is_left_or_inherited(start):
    zygote = start("tell", isolated=True)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        message_of(zygote)
    assert len(os.listdir("/proc/self/fd")) == before


def test_closing_ends_the_children(start):
    zygote = start("start_others")
    child = zygote.fork()
    assert child.socket.recv(5) == b"ready"
    family = descendants(child.pid)
    zygote.close()
    assert all_gone([child.pid, *family])
