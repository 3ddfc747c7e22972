"""The process that forks others: clean, single, and gone when its parent is."""

import contextlib
import json
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from trl_grpo_plus.common.forking import NoProcess, Zygote


ENTRY = """
import json, os, subprocess, sys, time

def tell(socket, options):
    told = {"environment": dict(os.environ), "path": sys.path, "options": options, "modules": sorted(sys.modules)}
    links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    told["descriptors"] = [os.readlink(link) for link in links if os.path.islink(link)]
    told["group"], told["session"], told["pid"] = os.getpgid(0), os.getsid(0), os.getpid()
    socket.sendall(json.dumps(told).encode())

def start_others(socket, options):
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    subprocess.Popen(["sh", "-c", "setsid sleep 600 & exec sleep 600"], start_new_session=True)
    time.sleep(0.3)
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


def told(child):
    chunks = b""
    while chunk := child.socket.recv(1 << 16):
        chunks += chunk
    return json.loads(chunks)


def test_an_isolated_child_has_nothing_of_the_trainers(entry, monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_API_KEY", "a secret")
    with open(tmp_path / "open_file", "w") as file:
        os.set_inheritable(file.fileno(), True)
        zygote = Zygote(f"{entry}:tell", isolated=True, env={"LANG": "C.UTF-8"})
        child = zygote.fork({"number": 3})
        found = told(child)
        zygote.end(child)
        zygote.close()
    assert found["environment"] in ({"LANG": "C.UTF-8"}, {"LANG": "C.UTF-8", "LC_CTYPE": "C.UTF-8"})
    assert found["options"] == {"number": 3}
    assert not any("site-packages" in folder for folder in found["path"])
    assert not any(name.partition(".")[0] in ("torch", "trl_grpo_plus", "numpy") for name in found["modules"])
    assert not any("open_file" in name for name in found["descriptors"])
    assert found["group"] == found["pid"]
    assert found["session"] != os.getsid(0)


def test_a_child_that_is_not_isolated_imports_what_its_parent_does(entry, monkeypatch):
    monkeypatch.setenv("OF_THE_PARENT", "yes")
    monkeypatch.syspath_prepend("/nowhere/in/particular")
    zygote = Zygote(f"{entry}:tell", preload=["fractions"], env={"MORE": "1"})
    child = zygote.fork()
    found = told(child)
    zygote.end(child)
    zygote.close()
    assert (found["environment"]["OF_THE_PARENT"], found["environment"]["MORE"]) == ("yes", "1")
    assert found["path"] == sys.path
    assert "fractions" in found["modules"]


def test_the_end_of_a_child_is_the_end_of_all_that_it_started(entry):
    zygote = Zygote(f"{entry}:start_others")
    child = zygote.fork()
    assert child.socket.recv(5) == b"ready"
    family = descendants(child.pid)
    assert len(family) >= 2
    assert os.WTERMSIG(zygote.end(child)) == signal.SIGKILL
    assert not [pid for pid in (child.pid, *family) if Path(f"/proc/{pid}").exists()]
    zygote.close()


def descendants(pid):
    children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*children, *(further for child in children for further in descendants(child))]


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGTERM])
def test_how_a_child_ended_is_told(entry, number):
    zygote = Zygote(f"{entry}:crash", isolated=True)
    child = zygote.fork({"signal": int(number)})
    assert child.socket.recv(1) == b""
    assert os.WTERMSIG(zygote.end(child)) == number
    zygote.close()


def test_children_of_many_threads(entry):
    zygote = Zygote(f"{entry}:tell", isolated=True)
    found = {}

    def use(name):
        child = zygote.fork({"name": name})
        found[name] = told(child)["options"]["name"]
        zygote.end(child)

    threads = [threading.Thread(target=use, args=(name,)) for name in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    zygote.close()
    assert found == {name: name for name in range(12)}


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
        Zygote(**setup)
    assert words in str(caught.value)


def test_a_child_of_a_zygote_that_died_is_nobody_elses(entry):
    zygote = Zygote(f"{entry}:start_others")
    old = zygote.fork()
    os.kill(zygote._stop.peek()[2][0].pid, signal.SIGKILL)
    time.sleep(0.2)
    new = zygote.fork()
    assert new.zygote != old.zygote
    # In a namespace of its own the next zygote counts from the same number on.
    assert zygote.end(old._replace(pid=new.pid)) is None
    assert new.socket.recv(5) == b"ready"
    zygote.end(new)
    zygote.close()


@contextlib.contextmanager
def no_descriptor():
    """No room for one more in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_child_whose_socket_finds_no_descriptor_is_ended(entry):
    zygote = Zygote(f"{entry}:start_others")
    pid = zygote._stop.peek()[2][0].pid
    with no_descriptor(), pytest.raises(NoProcess, match="no descriptor"):
        zygote.fork()
    assert Path(f"/proc/{pid}/task/{pid}/children").read_text() == ""
    child = zygote.fork()
    assert child.socket.recv(10) == b"ready"
    zygote.end(child)
    zygote.close()


def test_a_zygote_that_finds_no_descriptor_is_no_failure(entry):
    with no_descriptor(), pytest.raises(NoProcess, match="Too many open files"):
        Zygote(f"{entry}:tell")
    zygote = Zygote(f"{entry}:tell")
    os.kill(zygote._stop.peek()[2][0].pid, signal.SIGKILL)
    with no_descriptor(), pytest.raises(NoProcess, match="Too many open files"):
        zygote.fork()
    zygote.end(zygote.fork())
    zygote.close()


def test_a_zygote_that_is_killed_again_at_once_is_no_failure(entry, monkeypatch):
    zygote = Zygote(f"{entry}:tell")
    start = zygote._start

    def start_and_kill(*args):
        start(*args)
        os.kill(zygote._stop.peek()[2][0].pid, signal.SIGKILL)

    monkeypatch.setattr(zygote, "_start", start_and_kill)
    os.kill(zygote._stop.peek()[2][0].pid, signal.SIGKILL)
    with pytest.raises(NoProcess, match="died"):
        zygote.fork()
    monkeypatch.undo()
    zygote.end(zygote.fork())
    zygote.close()


def test_no_descriptor_is_left_or_inherited(entry):
    zygote = Zygote(f"{entry}:tell", isolated=True)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        child = zygote.fork()
        assert not child.socket.get_inheritable()
        told(child)
        zygote.end(child)
    assert len(os.listdir("/proc/self/fd")) == before
    zygote.close()


def test_closing_ends_the_children(entry):
    zygote = Zygote(f"{entry}:start_others")
    child = zygote.fork()
    assert child.socket.recv(5) == b"ready"
    family = descendants(child.pid)
    zygote.close()
    end = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in (child.pid, *family)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not [pid for pid in (child.pid, *family) if Path(f"/proc/{pid}").exists()]
