"""Only one run at a time writes into a folder. If that run is killed, another one takes the folder over."""

import errno
import fcntl
import json
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path

import psutil
import pytest
import tiny_models
import warm_processes

from trl_grpo_plus.scoring import RewardError
from trl_grpo_plus.utils import folder_lock
from trl_grpo_plus.utils.validation import ConfigError


# Train one step, then wait in the next one while the file "hold" exists. A forked child outlives the process.
SCRIPT = """
import os, sys, time
from pathlib import Path
import tiny_models

folder = Path(sys.argv[1])
trained = tiny_models.trainer(folder, tiny_models.digits)
training = type(trained).training_step

def held_up(self, *args, **kwargs):
    if self.state.global_step == 1 and (folder / "hold").exists():
        child = os.fork()
        if not child:
            time.sleep(600)
            os._exit(0)
        (folder / "child").write_text(str(child))
        while (folder / "hold").exists():
            time.sleep(0.02)
    return training(self, *args, **kwargs)

type(trained).training_step = held_up
trained.train()
"""


def start(folder, name):
    environment = {**os.environ, "PYTHONPATH": str(Path(tiny_models.__file__).parent)}
    streams = {"stdout": folder / f"{name}.out", "stderr": folder / f"{name}.err"}
    return warm_processes.Popen([sys.executable, "-c", SCRIPT, folder], env=environment, **streams)


def wait_for(path):
    end = time.monotonic() + 120
    while not path.exists() or not path.read_text():
        assert time.monotonic() < end, path
        time.sleep(0.02)
    return path.read_text()


def test_a_second_run_is_refused_and_takes_over_when_the_first_is_killed(tmp_path):
    (tmp_path / "hold").touch()
    first = start(tmp_path, "first")
    child = psutil.Process(int(wait_for(tmp_path / "child")))
    try:
        second = tiny_models.trainer(tmp_path, tiny_models.digits)  # making a trainer takes no lock
        before = sorted(path.name for path in tmp_path.rglob("*"))
        told = rf"output_dir: another run writes into {tmp_path}/run: process {first.pid} on {socket.gethostname()}, "
        told += rf"since \d{{4}}-\d\d-\d\d [\d:]+\. .* another output_dir, or end that run first \(kill {first.pid}\)"
        with pytest.raises(ConfigError, match=told):
            second.train()
        with pytest.raises(ConfigError, match=told):
            folder_lock.check(str(tmp_path / "run"))
        assert sorted(path.name for path in tmp_path.rglob("*")) == before
        os.kill(first.pid, signal.SIGKILL)
        (tmp_path / "hold").unlink()
        third = start(tmp_path, "third")
        wait_for(tmp_path / "third.out")
        assert child.is_running(), "what it forked holds nothing"
        assert third.wait(120) == 0
    finally:
        first.kill()  # its child too
    taken_over = rf"This run takes over {tmp_path}/run from process {first.pid} on .*, which has ended\."
    assert re.search(taken_over, (tmp_path / "third.out").read_text())
    assert not (tmp_path / "run" / "run.lock").exists()


def left_by(folder, **changes):
    """Write the lock file that a killed run leaves. It names this process, except for `changes`."""
    own = psutil.Process()
    holder = {"host": socket.gethostname(), "pid": own.pid, "started": own.create_time(), "since": "yesterday"}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / folder_lock.FILE).write_text(json.dumps({**holder, **changes}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"host": "elsewhere", "pid": 7}, "from process 7 on elsewhere, since yesterday, which may have ended"),
        ({"started": 1.0}, "takes over .* from process PID on .* which has ended"),  # the pid is reused
        ({"pid": 1 << 30}, "which has ended"),
        ({}, "^$"),  # the folder is a copy of a run's folder
    ],
)
def test_what_a_run_left_is_taken_over_with_a_word(tmp_path, capsys, changes, said):
    left_by(tmp_path, **changes)
    folder_lock.check(str(tmp_path))
    with folder_lock.hold(str(tmp_path)):
        assert re.search(said.replace("PID", str(os.getpid())), capsys.readouterr().out)
        assert json.loads((tmp_path / folder_lock.FILE).read_text())["pid"] == os.getpid()
    assert not list(tmp_path.iterdir())


def test_one_process_may_hold_it_again_and_another_time(tmp_path):
    for _ in range(2):
        with folder_lock.hold(str(tmp_path)):
            with folder_lock.hold(f"{tmp_path}/../{tmp_path.name}"):  # as a trainer does within a script
                assert (tmp_path / folder_lock.FILE).exists()
            assert (tmp_path / folder_lock.FILE).exists()
            with folder_lock.hold(str(tmp_path / "new" / "run")):
                assert (tmp_path / "new" / "run" / folder_lock.FILE).exists()
        assert not list(tmp_path.iterdir()), "of folders in which nothing was written nothing is left"


def test_a_run_that_fails_gives_it_back(tmp_path):
    with pytest.raises(RewardError):
        tiny_models.trained(tmp_path, lambda completions, **kwargs: 1 // 0)
    tiny_models.trained(tmp_path, tiny_models.digits).train()
    assert not (tmp_path / "run" / folder_lock.FILE).exists()


def test_a_file_system_without_locks_goes_by_what_the_file_says(tmp_path, monkeypatch):
    def no_locks(*args):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with folder_lock.hold(str(tmp_path)):
        pass
    left_by(tmp_path)
    with pytest.raises(ConfigError, match=f"process {os.getpid()} on"), folder_lock.hold(str(tmp_path)):
        pass
    with pytest.raises(ConfigError, match=f"process {os.getpid()} on"):
        folder_lock.check(str(tmp_path))


def test_a_full_disk_costs_the_word_and_not_the_lock(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    for _ in range(2):
        with folder_lock.hold(str(tmp_path)), open(tmp_path / folder_lock.FILE) as file:
            assert file.read() == ""
            with pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


def test_a_folder_that_cannot_be_locked_is_no_reason_to_stop(tmp_path, caplog):
    (tmp_path / "a file").touch()
    with folder_lock.hold(str(tmp_path / "a file" / "run")):
        pass
    assert "run.lock cannot be locked (" in caplog.text


def test_a_link_is_not_written_through(tmp_path):
    """Somebody else's folder may hold a link to a file of the reader's own."""
    (tmp_path / "own").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / folder_lock.FILE).symlink_to(tmp_path / "own")
    with folder_lock.hold(str(tmp_path / "run")):
        pass
    folder_lock.check(str(tmp_path / "run"))
    assert (tmp_path / "own").read_text() == "mine"


@pytest.mark.parametrize("changes", [{"pid": "5"}, {"started": "1"}, {"host": 3}, {"since": None}])
def test_a_file_that_says_nothing_of_use_is_taken_over(tmp_path, changes):
    left_by(tmp_path, **changes)
    folder_lock.check(str(tmp_path))
    with folder_lock.hold(str(tmp_path)):
        assert json.loads((tmp_path / folder_lock.FILE).read_text())["pid"] == os.getpid()
