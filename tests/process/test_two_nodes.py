"""A run on two nodes: two launchers with a process each that find each other over addresses of the loopback range."""

import json
import os
import signal
import socket
import time
from pathlib import Path

import psutil
import pytest
import tiny_models
import warm_processes

from trl_grpo_plus.launch.launchers import Start, in_this_python, launch_command
from trl_grpo_plus.launch.nodes import nodes


pytestmark = pytest.mark.full  # each start of both nodes takes 10 s of two cores

RECIPE = """
use_cpu: true
bf16: false
report_to: none
dataset_name: rows.jsonl
reward_funcs: reward.py:digits
max_completion_length: 6
per_device_train_batch_size: 4
num_generations: 4
save_steps: 1
logging_steps: 1
zero_variance_groups: drop
"""
REWARD = """
import time

def digits(completions, trainer_state, **kwargs):
    time.sleep(0.3 if trainer_state.max_steps > 100 else 0)
    return [sum(letter.isdigit() for letter in text) for text in completions]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    model = tiny_models.model_path(tmp_path)
    tiny_models.tokenizer().save_pretrained(model)
    (tmp_path / "run.yaml").write_text(f"{RECIPE}model_name_or_path: {model}\n")
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"prompt": "{n}+{n}="}}\n' for n in range(10, 30)))
    (tmp_path / "reward.py").write_text(REWARD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def where(launcher, rank, port):
    """Return the options of a node. Node 0 has the address 127.0.0.2."""
    if launcher == "accelerate":
        of_all = {"num_machines": "2", "main_process_ip": "127.0.0.2", "main_process_port": port}
        return nodes(launcher, {**of_all, "machine_rank": str(rank)})
    if launcher == "torchrun":
        return nodes(
            launcher, {"nnodes": "2", "node_rank": str(rank), "master_addr": "127.0.0.2", "master_port": port}
        )
    meets = {"nnodes": "2", "rdzv_backend": "c10d", "rdzv_endpoint": f"127.0.0.2:{port}", "rdzv_id": "job"}
    return nodes("torchrun", {**meets, "local_addr": f"127.0.0.{2 + rank}"})


def start(launcher, port, *options):
    """Start the launchers of both nodes. Return pairs of process and file of its output."""
    of, started = launcher.removesuffix(" c10d"), []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    for rank in range(2):
        over = where(launcher, rank, port)
        command = launch_command(Start("run.yaml", options, num_processes=2, launcher=of, nodes=over))
        printed = Path(f"node{rank}.txt")
        printed.unlink(missing_ok=True)
        started.append((warm_processes.cold(in_this_python(command), stderr=printed, env=environment), printed))
    return started


def end(process):
    """Kill a launcher and its processes at once, as when a node fails."""
    tree = psutil.Process(process.pid)
    for each in [tree, *tree.children(recursive=True)]:
        each.send_signal(signal.SIGKILL)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.2", 0))
        return str(found.getsockname()[1])


@pytest.mark.parametrize(("launcher", "killed"), [("accelerate", 1), ("torchrun", 0), ("torchrun c10d", 1)])
def test_a_run_on_two_nodes_is_killed_on_one_and_resumed_on_both(folder, launcher, killed):
    both = start(launcher, free_port(), "--max_steps", "1000", "--output_dir", "run")
    try:
        until = time.monotonic() + 240
        while not Path("run/checkpoint-2/trainer_state.json").exists():
            assert time.monotonic() < until
            for process, printed in both:
                assert process.poll() is None, printed.read_text()
            time.sleep(0.1)
        end(both[killed][0])
        other, printed = both[1 - killed]
        assert other.wait(60) == 1
        assert "error: another process of this run has ended, or does not answer" in printed.read_text()
        assert "--resume_from_checkpoint true" in printed.read_text()
        done = max(int(path.name.partition("-")[2]) for path in Path("run").glob("checkpoint-*"))
        both = start(
            launcher,
            free_port(),
            "--max_steps",
            str(done + 2),
            "--output_dir",
            "run",
            "--resume_from_checkpoint",
            "true",
        )
        assert [process.wait(240) for process, _ in both] == [0, 0], both[0][1].read_text()[-3000:]
    finally:
        for process, _ in both:
            if process.poll() is None:
                end(process)
    state = json.loads(Path("run/trainer_state.json").read_text())
    steps = [entry["step"] for entry in state["log_history"] if "groups/generated" in entry]
    assert (state["global_step"], steps) == (done + 2, list(range(1, done + 3)))
    assert {entry["groups/generated"] for entry in state["log_history"] if "groups/generated" in entry} == {2}
