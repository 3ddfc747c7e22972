"""Several nodes: the options that each launcher gets, and options that are refused."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from accelerate.commands import launch as accelerate_launch
from accelerate.utils.launch import prepare_multi_gpu_env
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError
from torch.distributed.run import config_from_args, get_args_parser

from trl_grpo_plus.cli.main import _nodes, _parser, main
from trl_grpo_plus.launch import launcher_main, launchers
from trl_grpo_plus.launch.accelerate import accelerate_configs, distribution
from trl_grpo_plus.launch.launchers import Start, launch_command
from trl_grpo_plus.launch.nodes import OPTIONS, TWINS, Nodes, nodes
from trl_grpo_plus.utils.validation import ConfigError


ACCELERATE = {"num_machines": "2", "machine_rank": "1", "main_process_ip": "node1", "main_process_port": "29501"}
TORCHRUN = {TWINS[name]: value for name, value in ACCELERATE.items()}
C10D = {"nnodes": "2", "rdzv_backend": "c10d", "rdzv_endpoint": "node1:29501", "rdzv_id": "job"}


def command(launcher, given, num_processes=None, num_gpus=0, config=None, content=None):
    """Return the words of the launch command between the launcher and the script."""
    over = nodes(launcher, given, content)
    words = launch_command(Start("arithmetic_gpu", (), config, num_processes, num_gpus, launcher, over))
    return words[1 : words.index("-m")]


def test_accelerate_gets_the_options_of_nodes():
    told = ["--num_machines", "2", "--machine_rank", "1", "--main_process_ip", "node1", "--main_process_port", "29501"]
    multi = ["launch", "--config_file", accelerate_configs()["multi_gpu"]]
    assert command("accelerate", ACCELERATE, 4) == [*multi, "--num_processes", "4", "--mixed_precision", "no", *told]
    assert command("accelerate", ACCELERATE, num_gpus=8)[:5] == [*multi, "--num_processes", "16"]
    config = ["launch", "--config_file", accelerate_configs()["zero3"], "--num_processes", "16"]
    assert command("accelerate", ACCELERATE, None, 8, "zero3") == [*config, "--mixed_precision", "no", *told]
    assert command("accelerate", ACCELERATE, None, 0, "zero3")[4] == "16"  # the file has 8, for one node


def test_accelerate_parses_the_options_of_nodes():
    words = command("accelerate", ACCELERATE, 4)
    args = accelerate_launch.launch_command_parser().parse_args([*words[1:], "script.py"])
    args, _, _ = accelerate_launch._validate_launch_command(args)
    prepare_multi_gpu_env(args)
    assert (args.nnodes, args.nproc_per_node, args.node_rank) == ("2", "2", 1)
    assert args.rdzv_endpoint == "node1:29501"


def test_torchrun_gets_and_parses_the_options_of_nodes():
    words = command("torchrun", TORCHRUN, 4)
    where = ["--nnodes", "2", "--node_rank", "1", "--master_addr", "node1", "--master_port", "29501"]
    assert words == [*where, "--nproc_per_node", "2"]
    config, *_ = config_from_args(get_args_parser().parse_args([*words, "script.py"]))
    assert (config.min_nodes, config.max_nodes, config.nproc_per_node) == (2, 2, 2)
    assert (config.rdzv_backend, config.rdzv_endpoint, config.rdzv_configs["rank"]) == ("static", "node1:29501", 1)
    assert command("torchrun", {**TORCHRUN, "nproc_per_node": "3"}) == [*where, "--nproc_per_node", "3"]
    assert command("torchrun", {"nproc_per_node": "3"}) == ["--standalone", "--nproc_per_node", "3"]


def test_torchrun_finds_nodes_by_a_rendezvous():
    words = command("torchrun", {**C10D, "rdzv_conf": "join_timeout=60", "local_addr": "node2"}, num_gpus=8)
    config, *_ = config_from_args(get_args_parser().parse_args([*words, "script.py"]))
    assert (config.rdzv_backend, config.rdzv_endpoint, config.run_id) == ("c10d", "node1:29501", "job")
    assert (config.nproc_per_node, config.local_addr, config.rdzv_configs["join_timeout"]) == (8, "node2", "60")


def test_a_port_alone_means_one_machine():
    for launcher, (count, _, _, port) in (("accelerate", ACCELERATE), ("torchrun", TORCHRUN)):
        assert nodes(launcher, {port: "29501"}) == nodes(launcher, {count: "1", port: "29501"})
        words = command(launcher, {port: "29501"}, 2)
        assert [words[words.index(f"--{name}") + 1] for name in (count, port)] == ["1", "29501"]
    args = get_args_parser().parse_args([*command("torchrun", {"master_port": "29501"}, 2), "script.py"])
    config, *_ = config_from_args(args)
    assert (config.min_nodes, config.rdzv_endpoint.partition(":")[2]) == (1, "29501")


def own_file(tmp_path, **content):
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path), content


def test_the_processes_of_a_file_for_one_machine_count_for_each_node(tmp_path):
    config, content = own_file(tmp_path, num_machines=1, machine_rank=0, num_processes=8)
    over = nodes("accelerate", ACCELERATE, content)
    spread = distribution(config, None, 8, over)
    assert (spread.processes, spread.decided_by) == (16, f"--accelerate_config {config} x 2 nodes")
    words = command("accelerate", ACCELERATE, None, 8, config, content)
    assert words[words.index("--num_processes") + 1] == "16"
    for_two, content = own_file(tmp_path, num_machines=2, num_processes=8)
    spread = distribution(for_two, None, 8, nodes("accelerate", ACCELERATE, content))
    assert (spread.processes, spread.decided_by) == (8, f"--accelerate_config {for_two}")


@pytest.mark.parametrize(
    ("text", "why"), [("a: [", "while parsing a flow node"), ("- 1\n", "must hold `key: value` lines")]
)
def test_a_file_that_is_no_configuration_is_named(tmp_path, capsys, text, why):
    path = tmp_path / "own.yaml"
    path.write_text(text)
    assert main(["check", "arithmetic_cpu", "--accelerate_config", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: --accelerate_config: {path} ")
    assert why in said


def test_deepspeed_starts_each_node_by_its_own_command(tmp_path):
    name = "deepspeed_multinode_launcher"
    config, content = own_file(tmp_path, distributed_type="DEEPSPEED", num_processes=8, deepspeed_config={})
    words = command("accelerate", ACCELERATE, None, 8, config, content)
    assert words[words.index(f"--{name}") + 1] == "standard"
    assert f"--{name}" not in command("accelerate", {}, None, 8, config, content)
    assert f"--{name}" not in command("accelerate", ACCELERATE, None, 8, "zero3"), "TRL's file says so itself"
    content["deepspeed_config"] = {name: "pdsh"}
    config, content = own_file(tmp_path, **content)
    with pytest.raises(ConfigError, match=f"has {name}: pdsh, which starts all nodes from one"):
        command("accelerate", ACCELERATE, None, 8, config, content)


def test_a_race_runs_on_one_machine(tmp_path, capsys):
    config, _ = own_file(tmp_path, num_machines=2, num_processes=8)
    assert main(["race", "arithmetic_cpu", "--accelerate_config", config]) == 2
    assert "has several machines (num_machines). A race runs on one." in capsys.readouterr().err


def test_a_port_has_a_default_and_one_node_needs_nothing():
    for launcher, given in (("accelerate", ACCELERATE), ("torchrun", TORCHRUN)):
        count, rank, *_ = given
        without = dict(list(given.items())[:3])
        assert nodes(launcher, without).words[-1] == "29500"
        assert nodes(launcher, {count: "1"}) == nodes(launcher, dict.fromkeys(given)) == Nodes()
        of_one = {**without, count: "1", rank: "0"}  # as a script passes them on for any number of nodes
        assert nodes(launcher, of_one).count == 1
        assert command(launcher, of_one, 2)


def test_what_a_configuration_file_says_need_not_be_said_again(tmp_path):
    content = {"num_machines": 2, "main_process_ip": "node1", "main_process_port": 29501, "num_processes": 6}
    config = str(tmp_path / "own.yaml")
    Path(config).write_text(yaml.safe_dump({**content, "machine_rank": 0}))
    over = nodes("accelerate", {"machine_rank": "1"}, content)
    assert (over.count, over.words) == (2, ("--machine_rank", "1", "--main_process_port", "29501"))
    assert distribution(config, None, 8, over).processes == 6
    assert nodes("accelerate", {}, {**content, "machine_rank": 0}).count == 2
    alone = nodes("accelerate", {"num_machines": "1"}, content)  # otherwise accelerate reads 2 in the file
    assert (alone.count, alone.words[:2]) == (1, ("--num_machines", "1"))
    with pytest.raises(ConfigError, match=r"4 nodes: .*own\.yaml has num_machines: 2, .* Add --num_processes"):
        distribution(config, None, 8, nodes("accelerate", {"num_machines": "4", "machine_rank": "3"}, content))


OF_TRL = yaml.safe_load(Path(accelerate_configs()["zero3"]).read_text())  # num_machines: 1, machine_rank: 0
STAND_INS = {
    "scontrol": "printf 'node1\\nnode2\\n'",
    "srun": 'while [[ $1 == --* ]]; do shift; done; "$@"',  # as if on the node of SLURM_NODEID
    "trl": 'trap -p USR1 > "$OUT/trl.trap"; printf "%s\\n" trl "$@" > "$OUT/part"; mv "$OUT/part" "$OUT/trl.words"',
    # The script kills the server when the trainer ends, so this trainer waits until the server has written.
    "trl-grpo-plus": 'printf "%s\\n" trl-grpo-plus "$@" > "$OUT/trl-grpo-plus.words"\n'
    'while [[ "$*" == *vllm_server_host* && ! -e "$OUT/trl.words" ]]; do sleep 0.05; done',
}


@pytest.mark.parametrize("how", ["serve", "accelerate", "torchrun"])
def test_the_slurm_script_gives_commands_that_are_understood(tmp_path, how):
    for name, text in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NNODES": "2", "SLURM_NODEID": "1"}
    environment = {**os.environ, **slurm, "PATH": f"{tmp_path}:{os.environ['PATH']}", "OUT": str(tmp_path)}
    script = Path(__file__).parents[2] / "recipes" / "two_nodes.slurm"
    subprocess.run(["bash", script, how, "--learning_rate", "1e-6"], env=environment, check=True, timeout=60)
    words = (tmp_path / "trl-grpo-plus.words").read_text().splitlines()[1:]
    options, rest = _parser().parse_known_args(words)
    assert rest[-4:] == ["--resume_from_checkpoint", "auto", "--learning_rate", "1e-6"]
    over = _nodes(options)
    assert over.count == (1 if how == "serve" else 2)
    if how == "serve":
        assert rest[rest.index("--vllm_server_host") + 1] == "node1"
        served = (tmp_path / "trl.words").read_text().splitlines()
        assert served[1:4] == ["vllm-serve", "--model", "Qwen/Qwen2.5-7B"]
        ignored = (tmp_path / "trl.trap").read_text()
        assert ignored == "trap -- '' SIGUSR1\n", "the signal before the time limit is for the trainer alone"
    else:
        given = ACCELERATE if how == "accelerate" else TORCHRUN
        assert over == nodes(how, {**given, list(given)[3]: "29500"})


WRONG = [
    ("accelerate", TORCHRUN, "--nnodes 2 is an option of torchrun.*Give --num_machines 2 instead"),
    ("torchrun", ACCELERATE, "--num_machines 2 is an option of accelerate.*--nnodes.*Give --nnodes 2 instead"),
    ("accelerate", {"rdzv_backend": "c10d"}, "--rdzv_backend c10d is an option of torchrun.*set --launcher torchrun"),
    ("accelerate", {"num_machines": "2"}, "--num_machines 2 needs --machine_rank and --main_process_ip too"),
    ("torchrun", {"nnodes": "2", "node_rank": "0"}, "--nnodes 2 needs --master_addr too"),
    ("torchrun", {"nnodes": "2", "rdzv_backend": "c10d"}, "--nnodes 2 needs --rdzv_endpoint too"),
    ("accelerate", {"machine_rank": "1"}, "--machine_rank 1 needs the number of nodes. Add --num_machines N"),
    ("torchrun", {**C10D, "nnodes": None}, "needs the number of nodes. Add --nnodes N"),
    ("torchrun", {**TORCHRUN, "nnodes": "1:2"}, "--nnodes 1:2 must be a whole number.*cannot gain or lose nodes"),
    ("accelerate", {**ACCELERATE, "num_machines": "0"}, "--num_machines 0 must be a whole number, 1 or more"),
    ("accelerate", {**ACCELERATE, "machine_rank": "2"}, "--machine_rank 2 must be 0 to 1"),
    ("torchrun", {**TORCHRUN, "node_rank": "one"}, "--node_rank one must be 0 to 1"),
    ("torchrun", {**TORCHRUN, "nnodes": "1"}, "--node_rank 1 must be 0: there is one node"),
    ("torchrun", {**TORCHRUN, "master_addr": ""}, "--nnodes 2 needs --master_addr too"),  # an empty shell variable
    ("accelerate", {"machine_rank": "1", "main_process_port": "29501"}, "--machine_rank 1 needs the number of nodes"),
    ("accelerate", {**ACCELERATE, "main_process_port": "0"}, "--main_process_port 0 must be a port, 1 to 65535"),
    ("torchrun", {**TORCHRUN, "rdzv_backend": "c10"}, "'c10' is not one of.*Did you mean c10d"),
    ("torchrun", {**TORCHRUN, "rdzv_id": "job"}, "--rdzv_id job has no effect with --rdzv_backend static"),
    ("torchrun", {**C10D, "node_rank": "1"}, "--node_rank 1 has no effect with --rdzv_backend c10d"),
    ("torchrun", {"nproc_per_node": "auto"}, "--nproc_per_node auto must be a whole number"),
]


@pytest.mark.parametrize(("launcher", "given", "why"), WRONG, ids=[why[:40] for _, _, why in WRONG])
def test_wrong_options_of_nodes_are_refused_with_the_fix(launcher, given, why):
    for content in (None, OF_TRL) if launcher == "accelerate" else (None,):
        with pytest.raises(ConfigError, match=why):
            nodes(launcher, given, content)


def test_processes_must_divide_evenly_among_nodes():
    with pytest.raises(ConfigError, match=r"--num_processes: 3 processes cannot be divided among 2 nodes"):
        command("accelerate", ACCELERATE, 3)
    with pytest.raises(ConfigError, match=r"--num_processes 4 and --nproc_per_node 2: give one of the two"):
        command("torchrun", {**TORCHRUN, "nproc_per_node": "2"}, 4)
    with pytest.raises(ConfigError, match="single_gpu: 1 processes cannot be divided"):
        command("accelerate", ACCELERATE, config="single_gpu")


@pytest.mark.parametrize("verb", ["run", "check"])
def test_options_of_nodes_may_be_written_with_hyphens(capsys, verb):
    names = [name for options in OPTIONS.values() for name in options]
    words = [word for name in names for word in (f"--{name.replace('_', '-')}", "value")]
    read = vars(_parser().parse_known_args([verb, "arithmetic_cpu", *words])[0])
    assert {name: read[name] for name in names} == dict.fromkeys(names, "value")
    assert main([verb, "arithmetic_cpu", "--nnodes", "2"]) == 2
    assert "error: --nnodes 2 is an option of torchrun" in capsys.readouterr().err


def test_a_launcher_that_loses_the_rendezvous_says_that_a_node_is_gone(monkeypatch, capsys):
    """torchrun's own error names neither the other node nor how to continue."""

    def entry():
        raise RendezvousConnectionError("The connection to the C10d store has failed.")

    for name in ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "PET_SIGNALS_TO_HANDLE", launchers.STARTED_BY):
        monkeypatch.setenv(name, "")  # the launcher sets these; monkeypatch restores them afterwards
    monkeypatch.setitem(launchers.LAUNCHERS, "alone", launchers.Launcher("", list, "launcher_alone:entry"))
    monkeypatch.setitem(sys.modules, "launcher_alone", SimpleNamespace(entry=entry))
    monkeypatch.setattr(sys, "argv", ["launcher_main", "alone"])
    monkeypatch.setattr(launcher_main.signal, "signal", lambda *_: None)
    monkeypatch.setattr(launcher_main, "_watch", lambda: None)
    assert launcher_main.main() == 1
    printed = capsys.readouterr().err
    assert "error: another process of this run has ended, or does not answer: The connection to the C10d" in printed
    assert "--resume_from_checkpoint true" in printed
