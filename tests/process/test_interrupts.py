"""Ctrl-C, pressed once or twice in each phase of a run: the run ends, leaves no process, and its traces are whole."""

import json
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
import tiny_models
import user_rewards
import warm_processes

from trl_grpo_plus.traces import reader as traces
from trl_grpo_plus.trainer.checkpoint_integrity import last_complete


PLACES = {  # phase -> (number of steps that are traced by then, step of the last complete checkpoint)
    "generating": (4, 4),
    "scoring": (4, 4),
    "tracing": (4, 4),
    "saving": (6, 4),
}
REWARD = {"name": f"{user_rewards.__file__}:dawdles", "timeout": 30}
OPTIONS = {"zero_variance_groups": "drop", "max_steps": 9, "save_strategy": "steps", "save_steps": 2}
OPTIONS |= {"reward_workers": 2, "reward_weights": [1.0, 0.0]}
SCRIPT = """
import json, os, signal, sys, threading, time
from pathlib import Path
import psutil, tiny_models, torch
from trl_grpo_plus.scoring import worker_pool
from trl_grpo_plus.traces import writer
from test_interrupts import OPTIONS, REWARD

folder, place, times = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def press():
    os.killpg(0, signal.SIGINT)  # as a terminal does

def interrupt():
    if (folder / "children.json").exists():
        return
    children = psutil.Process().children(recursive=True)
    (folder / "children.json").write_text(json.dumps([[child.pid, child.create_time()] for child in children]))
    press()
    if times > 1:
        threading.Timer(0.1, press).start()
    time.sleep(0.05)

def interrupt_in(owner, name, step, when=lambda *args: True):
    function = getattr(owner, name)
    def interrupted(*args, **kwargs):
        if when(*args) and step in (None, trained.state.global_step):
            interrupt()
        return function(*args, **kwargs)
    setattr(owner, name, interrupted)

def wait_for_workers(busy, timeout, wait=worker_pool.wait):
    if trained.state.global_step == 4:
        threading.Timer(0.05, interrupt).start()
        wait([], 60)  # until then, however late that is
    return wait(busy, timeout)

trained = tiny_models.trainer(folder, [tiny_models.half_dead, REWARD], **OPTIONS)
if place == "generating":
    interrupt_in(type(trained.model), "generate", 4)
elif place == "scoring":
    worker_pool.wait = wait_for_workers
elif place == "saving":
    interrupt_in(torch, "save", 6, lambda what, path: "optimizer" in str(path))
elif place == "tracing":  # beside the step, which may be over by then
    interrupt_in(writer, "_append", None, lambda path, data: path.name.startswith("train-00000005"))
trained.train()
"""


OFTEN = [("generating", 2), ("scoring", 1), ("tracing", 2), ("saving", 1)]
CASES = {
    "often": OFTEN,
    "rest": [(place, times) for place in PLACES for times in (1, 2) if (place, times) not in OFTEN],
}


@pytest.fixture(scope="module", params=["often", pytest.param("rest", marks=pytest.mark.full)])
def interrupted(request, tmp_path_factory):
    """Run all cases side by side. Return (place, number of Ctrl-C) -> (folder of the run, ended process)."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (Path(__file__).parent, Path(tiny_models.__file__).parent))),
    }
    runs = {}
    try:
        for place, times in CASES[request.param]:
            folder = tmp_path_factory.mktemp(f"{place}{times}")
            command = [sys.executable, "-c", SCRIPT, folder, place, times]
            streams = {"stdout": folder / "out", "stderr": folder / "err"}
            runs[place, times] = (folder, warm_processes.Popen(command, env=environment, **streams))
        for _, process in runs.values():
            process.wait(120)
    finally:
        for _, process in runs.values():
            process.kill()
    return runs


def test_ctrl_c_ends_it_and_all_that_was_sampled_is_there(interrupted):
    for (place, times), (folder, process) in interrupted.items():
        (traced, saved), printed = PLACES[place], (folder / "err").read_text()
        assert process.returncode == -signal.SIGINT, (place, times, printed[-3000:])
        assert "KeyboardInterrupt" in printed
        children = json.loads((folder / "children.json").read_text())
        assert len(children) >= 2, "the workers and what forks them"
        assert [pid for pid, since in children if is_running(pid, since)] == [], (place, times)
        groups = list(traces.groups(folder / "run"))
        assert {group[0]["step"] for group in groups} >= set(range(1, traced + 1)), (place, times)
        assert all(len(group) == 4 for group in groups)
        assert Path(last_complete(str(folder / "run"))).name == f"checkpoint-{saved}"


def is_running(pid, since):
    try:
        process = psutil.Process(pid)
        return process.create_time() == since and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_what_was_interrupted_goes_on(interrupted):
    ((folder, _),) = [run for (place, _), run in interrupted.items() if place == "saving"]
    resumed = tiny_models.trainer(folder, [tiny_models.half_dead, REWARD], **OPTIONS)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 9
    assert {group[0]["step"] for group in traces.groups(folder / "run")} == set(range(1, 10))
