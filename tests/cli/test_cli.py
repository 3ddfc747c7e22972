"""The commands that list, copy and launch recipes; `check` and `view` have tests of their own.

tests/repo/test_wheel.py launches a recipe to its end.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from accelerate.commands import launch as accelerate_launch
from accelerate.utils.launch import prepare_simple_launcher_cmd_env

from trl_grpo_plus import registry
from trl_grpo_plus.cli.main import main
from trl_grpo_plus.launch import accelerate as launch
from trl_grpo_plus.launch import launchers
from trl_grpo_plus.launch.accelerate import RUN_AS, accelerate_configs
from trl_grpo_plus.launch.launchers import MAIN, Start, in_this_python, launch_command
from trl_grpo_plus.launch.nodes import Nodes
from trl_grpo_plus.registry import list_advantages, list_rewards
from trl_grpo_plus.utils.files import TracesError
from trl_grpo_plus.utils.validation import ConfigError


pytestmark = pytest.mark.long


def test_every_recipe_and_reward_has_a_line(capsys, monkeypatch):
    for name in list_rewards():
        registry.find(name)  # a reward first imported below would be forgotten after this test
    monkeypatch.setattr(registry, "_REGISTERED", {})  # hide rewards that other tests registered
    assert main(["ls"]) == 0
    lines = capsys.readouterr().out.splitlines()
    blocks = ["advantages", "rewards", "presets"]
    at, then, last = map(lines.index, blocks)
    recipes, advantages, rewards = lines[1 : at - 1], lines[at + 1 : then - 1], lines[then + 1 : last - 1]
    assert [line.split()[0] for line in recipes] == list(launch.recipes())
    assert [line.split()[0] for line in rewards] == list_rewards()
    assert [line.split()[0] for line in advantages] == list(list_advantages())
    assert all(len(line.split()) > 4 for line in (*recipes, *advantages, *rewards))
    assert main(["ls", "advantages"]) == 0
    assert capsys.readouterr().out.splitlines() == advantages


def test_a_recipe_is_copied_but_never_over_a_file(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["cp", "arithmetic_cpu"]) == 0
    assert "trl-grpo-plus run arithmetic_cpu.yaml" in capsys.readouterr().out
    copied = Path("arithmetic_cpu.yaml").read_text()
    assert copied == launch.recipes()["arithmetic_cpu"].read_text()
    assert yaml.safe_load(copied)["reward_funcs"] == ["exact_answer"]
    Path("arithmetic_cpu.yaml").write_text("mine")
    assert main(["cp", "arithmetic_cpu", "."]) == 2
    assert "already exists" in capsys.readouterr().err
    assert Path("arithmetic_cpu.yaml").read_text() == "mine"
    assert main(["cp", "arithmetic_cpu", "other.yaml"]) == 0
    assert main(["cp", "aritmetic_cpu"]) == 2
    assert "Did you mean arithmetic_cpu" in capsys.readouterr().err
    Path("outputs").mkdir()
    assert main(["cp", "arithmetic_cpu", "output/mine.yaml"]) == 2
    fix = "Did you mean outputs? Make it first: mkdir -p output"
    assert capsys.readouterr().err == f"error: there is no folder output. {fix}\n"
    assert main(["cp", "arithmetic_cpu", "my runs/mine.yaml"]) == 2
    assert "Make it first: mkdir -p 'my runs'" in capsys.readouterr().err
    assert main(["cp", "arithmetic_cpu", "my runs/"]) == 2
    assert "there is no folder my runs. Make it first: mkdir -p 'my runs'" in capsys.readouterr().err
    assert main(["view", "arithmetic_cpu.yaml"]) == 2
    assert "arithmetic_cpu.yaml is not a folder. Give the output_dir of a run" in capsys.readouterr().err
    assert main(["view", "run", "-o", "outputs"]) == 2  # before the run is looked at
    assert capsys.readouterr().err.startswith("error: outputs is a folder. Give the name of the file to write")
    assert main(["cp", "arithmetic_cpu", "arithmetic_cpu.yaml/mine.yaml"]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_what_cannot_be_launched_is_refused(capsys):
    assert main(["run", "arithmetic_cpu", "--accelerate_config", "zero4"]) == 2
    assert "Did you mean zero" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["ls", "--all"])
    assert "--all" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["check", "rewards", "math_answer", "--atack"])
    assert "unrecognized arguments: --atack. Did you mean --attack" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["view"])
    assert capsys.readouterr().err.endswith("arguments are required: RUN\n")


def test_torchrun_is_a_launcher():
    command = launch_command(Start("arithmetic_cpu", ("--seed", "1"), num_processes=2, launcher="torchrun"))
    assert Path(command[0]).name == "torchrun"
    script = ["-m", "trl_grpo_plus.recipes.grpo", "--config", "arithmetic_cpu", "--seed", "1"]
    assert command[1:] == ["--standalone", "--nproc_per_node", "2", *script]
    assert in_this_python(command)[1:] == ["-m", MAIN, "torchrun", *command[1:]]
    with pytest.raises(ConfigError, match="zero2 is for accelerate, not for --launcher torchrun"):
        Start("arithmetic_cpu", accelerate_config="zero2", launcher="torchrun")
    with pytest.raises(ConfigError, match="Did you mean torchrun"):
        Start("arithmetic_cpu", launcher="torch_run")


@pytest.mark.parametrize("verb", ["run", "check", "race"])
def test_an_unsuitable_launcher_is_refused_by_each_command(capsys, verb):
    for options, words in (
        (["--launcher", "torch_run"], "Did you mean torchrun"),
        (["--launcher", "torchrun", "--accelerate_config", "zero2"], "not for --launcher torchrun"),
    ):
        assert main([verb, "arithmetic_cpu", *options]) == 2
        assert words in capsys.readouterr().err


def test_the_command_says_how_many_processes(tmp_path, monkeypatch):
    mine = tmp_path / "mine.yaml"
    mine.write_text("gradient_accumulation_steps: 4")

    def launched(*options, recipe=str(mine), **how):
        return " ".join(launch_command(Start(recipe, options, **how))[1:])

    script = f"-m trl_grpo_plus.recipes.grpo --config {mine}"
    one, several = (f"launch --config_file {accelerate_configs()[name]}" for name in ("single_gpu", "multi_gpu"))
    plain = "--mixed_precision no"
    assert launched() == f"{one} --num_processes 1 {plain} {script}"
    assert launched("--seed", "2", num_gpus=1) == f"{one} --num_processes 1 {plain} {script} --seed 2"
    assert launched(num_gpus=4) == f"{several} --num_processes 4 {plain} {script}"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert launched(num_gpus=4, num_processes=1) == f"{one} --num_processes 1 {plain} --gpu_ids 0 {script}"
    assert launched(num_processes=2) == f"{several} --num_processes 2 {plain} {script}"
    assert "--num_processes 1 " in launched(num_gpus=4, recipe="arithmetic_cpu")  # the recipe sets use_cpu
    assert "--num_processes 4 " in launched("--use_cpu=false", num_gpus=4, recipe="arithmetic_cpu")
    assert "--num_processes 1 " in launched("--use_cpu", "--seed", "2", num_gpus=4)


@pytest.mark.parametrize("processes", [1, 2])
def test_the_machines_own_accelerate_configuration_changes_nothing(tmp_path, monkeypatch, processes):
    """`accelerate config` writes it, and accelerate takes it where no other file is named."""
    file = tmp_path / "default_config.yaml"
    own = {"distributed_type": "FSDP", "gpu_ids": "2,3", "main_process_port": 1234, "fsdp_config": {"fsdp_version": 2}}
    file.write_text(json.dumps({"compute_environment": "LOCAL_MACHINE", "num_processes": 8, **own}))
    monkeypatch.setattr(accelerate_launch, "default_config_file", str(file))
    words = launch_command(Start("arithmetic_gpu", num_processes=processes))
    args = accelerate_launch.launch_command_parser().parse_args(words[2:])
    args, defaults, _ = accelerate_launch._validate_launch_command(args)
    assert defaults.fsdp_config == {}
    assert (args.use_fsdp, args.multi_gpu, args.num_processes) == (False, processes == 2, processes)
    assert (args.gpu_ids, args.main_process_port) == ("all", None)


def test_one_process_sees_one_gpu(tmp_path, monkeypatch):
    """With more, transformers would use DataParallel, which TRL refuses once it has loaded the model."""
    mine, own = tmp_path / "mine.yaml", tmp_path / "own.yaml"
    mine.write_text("seed: 1")

    def option(*options, **how):
        words = launch_command(Start(str(mine), options, **how))
        return words[words.index("--gpu_ids") + 1] if "--gpu_ids" in words else None

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    assert option(num_gpus=2, num_processes=1) == "6"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert option(num_gpus=2, num_processes=1) == option(num_gpus=2, accelerate_config="single_gpu") == "0"
    assert option(num_gpus=1, num_processes=1) is None
    assert option(num_gpus=2, num_processes=2) is None
    assert option("--use_cpu", num_gpus=2, num_processes=1) is None
    assert option(num_gpus=2, num_processes=1, accelerate_config="zero2") is None  # a process group: no DataParallel
    assert option(num_gpus=2, num_processes=1, launcher="torchrun") is None
    own.write_text("{num_processes: 1, distributed_type: 'NO', gpu_ids: '1'}")
    assert option(num_gpus=2, accelerate_config=str(own)) is None
    words = launch_command(Start(str(mine), num_gpus=2, num_processes=1))
    arguments = words[2 : words.index("-m")]
    args = accelerate_launch.launch_command_parser().parse_args([*arguments, "script.py"])
    args, _, _ = accelerate_launch._validate_launch_command(args)
    _, environment = prepare_simple_launcher_cmd_env(args)
    assert environment["CUDA_VISIBLE_DEVICES"] == "0"


def test_the_processes_of_a_cpu_run_share_the_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(launchers, "cores", lambda: 8)
    for processes, threads in ((None, 8), (2, 4), (3, 2)):
        start = Start("arithmetic_cpu", num_processes=processes)
        shared = launchers.cpu_threads(start)
        assert shared == {"OMP_NUM_THREADS": str(threads)}
        with monkeypatch.context() as set_by_user:
            set_by_user.setenv("OMP_NUM_THREADS", shared["OMP_NUM_THREADS"])
            assert launchers.cpu_threads(start) == {}
            args = accelerate_launch.launch_command_parser().parse_args(launch_command(start)[2:])
            args, _, _ = accelerate_launch._validate_launch_command(args)
            assert args.num_cpu_threads_per_process == threads
    two_nodes = Start("arithmetic_cpu", num_processes=4, nodes=Nodes(2, ("--num_machines", "2")))
    assert launchers.cpu_threads(two_nodes) == {"OMP_NUM_THREADS": "4"}
    assert launchers.cpu_threads(Start("arithmetic_cpu", num_processes=8)) == {}
    assert launchers.cpu_threads(Start("arithmetic_gpu", num_gpus=1)) == {}
    assert launchers.cpu_threads(Start("arithmetic_gpu", ("--use_cpu", "true"))) == {"OMP_NUM_THREADS": "8"}


def test_the_command_that_run_prints_has_the_threads_that_it_sets(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setenv(RUN_AS, "")  # the command sets both; pytest restores them
    monkeypatch.setattr(launchers, "cores", lambda: 8)
    monkeypatch.setattr(os, "execv", lambda path, command: None)
    main(["run", "arithmetic_cpu", "--output_dir", str(tmp_path / "out")])
    assert capsys.readouterr().out.startswith("OMP_NUM_THREADS=8 accelerate launch ")
    assert os.environ["OMP_NUM_THREADS"] == "8"


def test_the_command_with_a_configuration_of_trls_or_a_file_of_accelerates(tmp_path, monkeypatch):
    mine, own = tmp_path / "mine.yaml", tmp_path / "own.yaml"
    mine.write_text("gradient_accumulation_steps: 4")
    own.write_text("{num_processes: 3}")
    files = {**launch.accelerate_configs(), "own": str(own)}

    def launched(configuration, *options, **how):
        config = configuration if configuration in launch.accelerate_configs() else str(own)
        command = " ".join(launch_command(Start(str(mine), options, config, **how)))
        return command.split(f"--config_file {files[configuration]}")[1].split("-m trl_")[0].strip()

    assert launched("zero2", num_gpus=4) == "--num_processes 4 --mixed_precision no"
    assert launched("zero2", num_gpus=4, num_processes=2) == "--num_processes 2 --mixed_precision no"
    assert launched("zero2") == "--num_processes 8 --mixed_precision no"  # as the configuration says
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert launched("single_gpu", num_gpus=4) == "--num_processes 1 --mixed_precision no --gpu_ids 0"
    assert launched("zero1", num_gpus=4).endswith(" --gradient_accumulation_steps 4")
    assert launched("zero1", "--gradient_accumulation_steps", "2").endswith(" --gradient_accumulation_steps 2")
    assert launched("own", num_gpus=4) == ""
    assert launched("own", num_processes=2) == "--num_processes 2"
    deepspeed = "distributed_type: DEEPSPEED, deepspeed_config: {gradient_accumulation_steps: 1}"
    own.write_text(f"{{{deepspeed}, num_processes: 3}}")
    assert launched("own") == "--gradient_accumulation_steps 4"
    with pytest.raises(ValueError, match="single_gpu runs one process, not 2"):
        launched("single_gpu", num_processes=2)
    with pytest.raises(ValueError, match="0 must be 1 or more"):
        launched("zero2", num_processes=0)


@pytest.mark.parametrize("configuration", [None, *launch.accelerate_configs()])
@pytest.mark.parametrize("processes", [None, 1, 3])
@pytest.mark.parametrize(("recipe", "num_gpus"), [("arithmetic_gpu", 0), ("arithmetic_gpu", 4), ("arithmetic_cpu", 4)])
def test_what_check_expects_is_what_is_launched(recipe, configuration, processes, num_gpus):
    if configuration == "single_gpu" and processes == 3:
        return
    start = Start(recipe, (), configuration, processes, num_gpus)
    command = launch_command(start)
    assert launch.on_cpu(recipe) == (recipe == "arithmetic_cpu")
    spread = launch.distribution(configuration, processes, 0 if launch.on_cpu(recipe) else num_gpus)
    assert start.spread == spread
    assert command[command.index("--num_processes") + 1] == str(spread.processes)


@pytest.mark.parametrize(
    ("kind", "config", "sharding", "offloads"),
    [
        ("FSDP", {"fsdp_offload_params": True}, "fsdp", "weights"),
        ("DEEPSPEED", {"zero_stage": 1}, "zero1", ""),
        ("DEEPSPEED", {"offload_optimizer_device": "cpu", "zero_stage": 3}, "zero3", "optimizer"),
        ("DEEPSPEED", {"deepspeed_config_file": "ds.json"}, "zero3", "weights"),
        ("MULTI_GPU", {}, "ddp", ""),
    ],
)
def test_an_accelerate_file_says_what_is_sharded(tmp_path, monkeypatch, kind, config, sharding, offloads):
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text('{"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}')
    content = {"distributed_type": kind, f"{kind.lower()}_config": config, "num_processes": 4}
    Path("own.yaml").write_text(yaml.safe_dump(content))
    spread = launch.distribution("own.yaml", None, 0)
    assert (spread.processes, spread.sharding, spread.offloads) == (4, sharding, offloads)


@pytest.mark.parametrize(
    ("line", "options", "cpu"),
    [
        ("use_cpu: true", (), True),
        ('use_cpu: "false"', (), False),
        ("use_cpu: yes", (), True),
        ("seed: 1", ("--use_cpu",), True),
        ("use_cpu: true", ("--use_cpu=false",), False),
        ("use_cpu: true", ("--use-cpu", "no"), False),
    ],
)
def test_whether_a_run_is_on_the_cpu(tmp_path, line, options, cpu):
    (tmp_path / "mine.yaml").write_text(line)
    assert launch.on_cpu(str(tmp_path / "mine.yaml"), options) == cpu


def test_trls_configurations_are_there():
    assert list(launch.accelerate_configs()) == [
        "fsdp1",
        "fsdp2",
        "multi_gpu",
        "single_gpu",
        "zero1",
        "zero2",
        "zero3",
    ]
    for path in launch.accelerate_configs().values():
        assert "distributed_type" in yaml.safe_load(Path(path).read_text())


@pytest.mark.parametrize(("verb", "status"), [("run", 2), ("check", 1), ("race", 2)])
def test_a_mistyped_option_is_refused_before_anything_starts(capsys, monkeypatch, verb, status):
    monkeypatch.setattr(os, "execv", lambda *args: pytest.fail("a launch was started"))
    assert main([verb, "arithmetic_cpu", "--lerning_rate", "1"]) == status
    captured = capsys.readouterr()
    assert "unknown option --lerning_rate. Did you mean --learning_rate" in captured.out + captured.err


@pytest.mark.parametrize(
    ("verb", "given", "offered"),
    [
        ("check", "--smok", " Did you mean --smoke?"),
        ("check", "--gpu_memry", " Did you mean --gpu_memory"),
        ("run", "--smok", ""),  # `run` has no --smoke
        ("run", "--num_proceses", " Did you mean --num_processes"),
        ("run", "--machine_rnk", " Did you mean --machine_rank"),
        ("race", "--resum", " Did you mean --resume?"),
    ],
)
def test_a_mistyped_option_of_the_command_itself_is_told_the_closest(capsys, verb, given, offered):
    main([verb, "arithmetic_cpu", given, "1"])
    captured = capsys.readouterr()
    told = captured.out if verb == "check" else captured.err
    assert f"unknown option {given}.{offered}" in told
    assert offered or "Did you mean" not in told


@pytest.mark.parametrize("memory", ["0", "-80", "nan"])
def test_a_memory_of_a_gpu_that_is_no_amount_is_refused(capsys, memory):
    assert main(["check", "arithmetic_gpu", "--gpu_memory", memory]) == 2
    assert "must be a finite number and > 0" in capsys.readouterr().err


def test_the_environment_is_described(capsys):
    assert main(["env"]) == 0
    names = re.findall(r"^([\w-]+) ", capsys.readouterr().out, re.M)
    assert {"python", "trl-grpo-plus", "trl", "torch", "gpu", "bubblewrap"} <= set(names)


def test_a_reader_that_closes_the_pipe_early_is_no_error():
    command = f"{sys.executable} -m trl_grpo_plus.cli.main ls | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "recipes\n", "")


def test_ctrl_c_ends_a_command_without_a_traceback(capsys, monkeypatch):
    def interrupted(options):
        raise KeyboardInterrupt

    monkeypatch.setattr("trl_grpo_plus.cli.view.run", interrupted)
    assert main(["view", "run"]) == 130
    assert capsys.readouterr().err == "\nStopped.\n"


@pytest.mark.parametrize("words", [["reward"], ["reward", "math_answer"], ["reawrds"]])
def test_check_rewards_is_offered_for_a_typo(capsys, words):
    assert main(["check", *words]) == 2
    assert capsys.readouterr().err.endswith(" Did you mean check rewards?\n")
    assert main(["check", "gsm9k"]) == 2
    assert "check rewards" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConfigError("point=2 is too much."), True),
        (TracesError("a.jsonl is damaged."), True),
        (FileNotFoundError(2, "No such file", "a.jsonl"), True),
        (ModuleNotFoundError("No module named 'vllm'", name="vllm"), True),
        (ImportError("trl_grpo_plus builds on other releases of TRL."), True),
        (ValueError("3 is not in list"), False),
        (KeyError("answer"), False),
        (ImportError("cannot import name 'x'", name="trl_grpo_plus.registry"), False),
    ],
)
def test_a_bug_keeps_its_traceback(monkeypatch, capsys, error, told):
    def fail():
        raise error

    monkeypatch.setattr("trl_grpo_plus.cli.main.described", fail)
    if told:
        assert main(["env"]) == 2
        assert capsys.readouterr().err == f"error: {error}\n"
    else:
        with pytest.raises(type(error)):
            main(["env"])


@pytest.mark.parametrize(("words", "meant"), [(["vew"], "view"), (["ls", "recipies"], "recipes")])
def test_a_mistyped_command_is_guessed(words, meant, capsys):
    with pytest.raises(SystemExit):
        main(words)
    assert capsys.readouterr().err.endswith(f"). Did you mean {meant}?\n")
