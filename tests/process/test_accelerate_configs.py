"""TRL's configurations of accelerate: what `run --accelerate_config NAME` makes of each, and training with each.

Each configuration must train on two CPU processes what plain DDP trains there, sharded as on GPUs.
accelerate_worker.py lists the patches that this needs. DeepSpeed's configurations need DeepSpeed: `make
test-deepspeed`.
"""

import itertools
import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import adapters
import pytest
import torch
import warm_processes
from accelerate.commands import launch as accelerate_launch
from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin, patch_environment
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env
from safetensors.torch import load_file

from trl_grpo_plus.launch import accelerate as launch
from trl_grpo_plus.launch import train
from trl_grpo_plus.launch.launchers import Start, launch_command
from trl_grpo_plus.launch.preflight import processes
from trl_grpo_plus.traces import reader as traces
from trl_grpo_plus.trainer import progress
from trl_grpo_plus.utils.tables import FAILED


WORKER = Path(__file__).parents[1] / "helpers" / "accelerate_worker.py"
FSDP = ["fsdp1", "fsdp2"]
ZERO = ["zero1", "zero2", "zero3"]
needs_deepspeed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="no DeepSpeed here: make test-deepspeed")
SHARDED = [*FSDP, *(pytest.param(name, marks=needs_deepspeed) for name in ZERO)]
KINDS = {"fsdp1": ("FSDP", "FullyShardedDataParallel"), "fsdp2": ("FSDP", "FSDPQwen2ForCausalLM")}
KINDS |= dict.fromkeys(ZERO, ("DEEPSPEED", "DeepSpeedEngine"))
# These parts of FSDP need GPUs, so the tests turn them off.
NO_GPU = {"FSDP_SYNC_MODULE_STATES": "false", "FSDP_CPU_RAM_EFFICIENT_LOADING": "false"}


def launched(configuration, num_processes=2, accumulation=2):
    """Return accelerate's arguments, and the variables that it adds to the environment of the processes."""
    options = ("--gradient_accumulation_steps", str(accumulation))
    command = launch_command(Start("arithmetic_gpu", options, configuration, num_processes))
    parser = accelerate_launch.launch_command_parser()
    args = parser.parse_args(["--main_process_port", "0", *command[2:]])
    args, defaults, of_the_file = accelerate_launch._validate_launch_command(args)
    if configuration == "single_gpu":
        return args, {}
    if args.use_deepspeed:
        fields = [*defaults.deepspeed_config, *(["mixed_precision"] if of_the_file else [])]
        args.deepspeed_fields_from_accelerate_config = ",".join(fields)
        _, environment = prepare_deepspeed_cmd_env(args)
    else:
        environment = prepare_multi_gpu_env(args)
    return args, {name: value for name, value in environment.items() if name.startswith(("ACCELERATE_", "FSDP_"))}


# -- what a configuration means


@pytest.mark.parametrize("configuration", [name for name in launch.accelerate_configs() if name != "single_gpu"])
@pytest.mark.parametrize("num_processes", [2, 3])
def test_the_script_and_the_number_of_processes_reach_accelerate(configuration, num_processes):
    args, environment = launched(configuration, num_processes)
    assert args.nproc_per_node == str(num_processes)  # the configuration says 8
    assert (args.module, args.training_script) == (True, "trl_grpo_plus.recipes.grpo")
    assert args.training_script_args[:2] == ["--config", "arithmetic_gpu"]
    assert environment["ACCELERATE_MIXED_PRECISION"] == "no"  # the recipe's bf16 decides
    kind = (args.multi_gpu, args.use_fsdp, args.use_deepspeed)
    assert kind == (configuration == "multi_gpu", configuration in FSDP, configuration in ZERO)


def test_single_gpu_starts_one():
    args, _ = launched("single_gpu", None)
    assert (args.num_processes, args.multi_gpu, args.use_fsdp, args.use_deepspeed) == (1, False, False, False)


@pytest.mark.parametrize("configuration", FSDP)
def test_fsdp_configurations(configuration):
    _, environment = launched(configuration)
    assert environment["FSDP_CPU_RAM_EFFICIENT_LOADING"] == environment["FSDP_SYNC_MODULE_STATES"] == "true"
    with patch_environment(**{**environment, **NO_GPU}):
        plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == int(configuration[-1])
    assert plugin.state_dict_type.name == "FULL_STATE_DICT"
    assert plugin.auto_wrap_policy.__name__ == "transformer_auto_wrap_policy"
    assert not plugin.activation_checkpointing
    if configuration == "fsdp1":
        assert (plugin.sharding_strategy.name, plugin.use_orig_params) == ("FULL_SHARD", True)
        assert not plugin.cpu_offload.offload_params
    else:
        assert plugin.reshard_after_forward is True
        assert type(plugin.cpu_offload).__name__ == "OffloadPolicy"  # as opposed to CPUOffloadPolicy


@pytest.mark.parametrize("configuration", ZERO)
def test_zero_configurations(configuration):
    _, environment = launched(configuration, accumulation=4)
    with patch_environment(**environment):
        plugin = DeepSpeedPlugin()
    assert plugin.zero_stage == int(configuration[-1])
    assert plugin.deepspeed_config["zero_optimization"]["stage"] == int(configuration[-1])
    assert plugin.zero3_init_flag is plugin.zero3_save_16bit_model is (configuration == "zero3")
    assert {plugin.offload_optimizer_device, plugin.offload_param_device} == {"none"}
    assert plugin.gradient_accumulation_steps == (4 if configuration == "zero1" else "auto")
    assert "bf16" not in plugin.deepspeed_config


# -- training under it


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("configurations")
    sharded = [*FSDP, *(ZERO if find_spec("deepspeed") else [])]
    environments = {"ddp": {}, **{name: launched(name)[1] for name in sharded}}
    environments["fsdp1"] |= NO_GPU
    (folder / "environments.json").write_text(json.dumps(environments))
    # A rank that makes more forward passes than the other one waits for ever: hence the timeout.
    done = warm_processes.run_ranks([sys.executable, WORKER, folder, folder / "environments.json"], timeout=600)
    assert done.returncode == 0, done.stderr[-5000:]
    return folder


def results(out, configuration, scenario):
    return [json.loads((out / configuration / scenario / f"{rank}.json").read_text()) for rank in range(2)]


def distance(first, second):
    first, second = (load_file(folder / "last" / "model.safetensors") for folder in (first, second))
    assert first.keys() == second.keys()
    return max((first[name].float() - second[name].float()).abs().max().item() for name in first)


@pytest.mark.full
@pytest.mark.parametrize("configuration", SHARDED)
@pytest.mark.parametrize("scenario", ["drop", "resample", "believed", "sampled"])
def test_a_configuration_trains_what_ddp_trains(out, configuration, scenario):
    for found, expected in zip(results(out, configuration, scenario), results(out, "ddp", scenario), strict=True):
        assert expected["kind"] == "MULTI_CPU"
        assert (found["kind"], found["model"], found["precision"]) == (*KINDS[configuration], "no")
        assert found["losses"] == pytest.approx(expected["losses"], abs=1e-5)
        for key in ("trained", "rounds", "passes", "stream"):
            assert found[key] == expected[key], key
        assert found["evaluated"] == pytest.approx(expected["evaluated"])
    assert distance(out / configuration / scenario, out / "ddp" / scenario) < 1e-5


@pytest.mark.full
@pytest.mark.parametrize("configuration", SHARDED)
def test_ranks_with_and_without_turns_of_tools_generate_together(out, configuration):
    found, expected = (results(out, name, "tools") for name in (configuration, "ddp"))
    assert [rank["calls"] for rank in found] == [rank["calls"] for rank in expected] == [16, 0]
    assert found[0]["losses"] == pytest.approx(expected[0]["losses"], abs=1e-5)
    assert found[0]["losses"][1] > 1e-4  # the KL of weights that were trained
    assert distance(out / configuration / "tools", out / "ddp" / "tools") < 1e-5


@pytest.mark.full
@pytest.mark.parametrize("configuration", SHARDED)
def test_the_head_reads_a_sharded_models_states(out, configuration):
    """The head runs a forward pass before the batch is sampled, because its output decides which prompts to sample."""
    found, expected = (results(out, name, "believed")[0] for name in (configuration, "ddp"))
    ours, theirs = (rank["heads"]["total"] for rank in (found, expected))
    assert ours["count"] == theirs["count"] > 16
    for name in ("mean", "scatter"):
        found, expected = torch.tensor(ours[name]), torch.tensor(theirs[name])
        assert expected.abs().max() > 0.1
        # Compared as a whole: single numbers are sums that nearly cancel, in which rounding is large.
        assert (found - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.full
@pytest.mark.parametrize("scenario", ["drop", "resample", "believed", "sampled"])
def test_all_ranks_make_the_same_passes(out, scenario):
    """With a sharded model, a rank that makes fewer forward passes would leave the other ranks waiting."""
    first, second = results(out, "ddp", scenario)
    assert first["passes"] == second["passes"]
    assert len(first["passes"]) > 2
    if scenario != "drop":
        assert max(first["rounds"]) == 2


@pytest.mark.full
@pytest.mark.parametrize("configuration", ["ddp", *SHARDED])
def test_resumed_in_the_midst_of_a_batch_is_uninterrupted(out, configuration):
    for found, expected in zip(
        results(out, configuration, "resumed"), results(out, configuration, "sampled"), strict=True
    ):
        assert found["losses"] == expected["losses"]
        assert found["stream"] == expected["stream"]
        assert len(expected["losses"]) == 3
    assert distance(out / configuration / "resumed", out / configuration / "sampled") == 0


@pytest.mark.full
@pytest.mark.parametrize("configuration", ["ddp", *SHARDED[1:]])
def test_a_reference_that_follows_is_resumed_exactly(out, configuration):
    for found, expected in zip(
        results(out, configuration, "followed_resumed"), results(out, configuration, "followed"), strict=True
    ):
        assert found["losses"] == expected["losses"]
        assert expected["losses"] == pytest.approx(results(out, "ddp", "followed")[0]["losses"], abs=1e-5)
    folder = out / configuration
    assert distance(folder / "followed_resumed", folder / "followed") == 0
    reference = torch.load(folder / "followed" / "run" / "checkpoint-2" / "grpo_plus_reference.pt", weights_only=True)
    assert len(reference) > 20


@pytest.mark.full
@pytest.mark.parametrize("configuration", SHARDED)
@pytest.mark.parametrize("scenario", ["drop", "resample", "believed", "sampled"])
def test_traces_are_those_of_ddp(out, configuration, scenario):
    ours, theirs = (list(traces.groups(out / name / scenario / "run")) for name in (configuration, "ddp"))
    assert len(ours) > 6
    for mine, other in zip(itertools.chain(*ours), itertools.chain(*theirs), strict=True):
        for key in ("kl", "advantage"):
            assert mine.pop(key) == pytest.approx(other.pop(key), abs=1e-4), key
    assert ours == theirs


@pytest.mark.full
@pytest.mark.parametrize("configuration", ["ddp", *SHARDED])
def test_the_recipe_decides_the_precision(out, configuration):
    assert [rank["precision"] for rank in results(out, configuration, "precise")] == ["bf16", "bf16"]


@pytest.mark.full
@pytest.mark.parametrize("configuration", ["ddp", *SHARDED])
def test_a_loss_that_is_not_finite_on_one_rank_stops_all_and_spoils_no_weights(out, configuration):
    first, second = results(out, configuration, "not_finite")
    assert first == second
    norm = "inf" if configuration in ZERO else "nan"  # DeepSpeed reports every overflow as inf
    assert re.match(
        rf"Step 2: the norm of the gradient is {norm} \(loss [-\d.e]+, nan on ranks 0 to 1\)\.", first["told"]
    )
    assert first["steps"] == 1
    folder = out / configuration / "not_finite"
    saved, last = (
        load_file(path / "model.safetensors") for path in (folder / "run" / "checkpoint-1", folder / "last")
    )
    assert all(value.isfinite().all() for value in saved.values())
    assert all(torch.equal(last[name], saved[name]) for name in saved)
    why = "DeepSpeed skipped the step" if configuration in ZERO else "The optimizer did not step"
    assert f"{why}: the weights are those after 1 step." in first["told"]
    assert {group[0]["step"] for group in traces.groups(folder / "run")} == {1, 2}


@pytest.mark.full
@pytest.mark.skipif(not adapters.READS_FSDP2, reason="this TRL sends weights in another way")
def test_fsdp2_sends_whole_weights_to_vllm_after_an_evaluation(out):
    first, second = results(out, "fsdp2", "sent")
    assert first["trl"] == second["trl"] == "'Parameter' object has no attribute 'full_tensor'"
    assert len(first["equal"]) > 20
    assert all(first["equal"])


@pytest.mark.full
def test_resumed_where_one_machine_has_none_of_our_state_the_ranks_agree(out):
    first, second = results(out, "ddp", "resumed_apart")
    assert first["losses"] == second["losses"]
    assert first["trained"] == second["trained"]
    assert (first["stream"]["position"] > 0, second["stream"]) == (True, None)  # the first rank deals for both


def test_processes_that_do_not_see_each_other_are_refused(monkeypatch):
    """If accelerate finds no GPUs and `use_cpu` is not set, each process would train alone, all into one folder."""
    together, alone = (SimpleNamespace(training=SimpleNamespace(world_size=size)) for size in (2, 1))
    assert processes(alone) == []
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert processes(alone) == []  # a scheduler may set WORLD_SIZE; only a launcher sets LOCAL_RANK too
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert processes(together) == []
    (row,) = processes(alone)
    assert row.status == FAILED
    assert re.search(r"2 processes were started, .* Set use_cpu: true", row.text)


def test_a_mistake_is_said_once_a_node(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["grpo", "--config", "nowhere"])
    monkeypatch.setattr(train, "launched_as", lambda: ())  # the real one caches its result
    monkeypatch.setattr(progress, "silence_libraries", lambda: None)  # the real one cannot be undone
    monkeypatch.setenv("RANK", "8")
    for local_rank, times in (("0", 1), ("1", 0)):
        monkeypatch.setenv("LOCAL_RANK", local_rank)
        assert train.run() == 2
        assert capsys.readouterr().err.count("error: ") == times
