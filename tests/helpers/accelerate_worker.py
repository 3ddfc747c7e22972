"""The script that test_accelerate_configs.py runs on two processes: `accelerate_worker.py OUT ENVIRONMENTS`.

ENVIRONMENTS is a JSON file: configuration -> the environment that `accelerate launch` would give its processes. Each
configuration runs the same scenarios on a CPU, with gloo. The script patches only what does not work on a CPU:

- accelerate enables FSDP only if the processes have GPUs (`AcceleratorState.__init__`). The processes claim GPUs.
- torch's FSDP1 does not accept accelerate's device name "cpu:0" (`_get_compute_device`). When it "offloads" weights to
  the CPU for a state dict, it frees them before they are read (`FlatParamHandle.to_cpu`).
- DeepSpeed would compile an all-reduce in shared memory, which takes minutes. Without it DeepSpeed uses gloo's.
"""

import gc
import json
import os
import shutil
import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import adapters
import tiny_models
import tool_models
import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, patch_environment
from datasets import Dataset
from torch.distributed.fsdp._flat_param import FlatParamHandle
from trl import GRPOTrainer

from trl_grpo_plus import GRPOPlusConfig, GRPOPlusTrainer


EXACT = {"optim": "sgd", "learning_rate": 0.05, "shuffle_dataset": False, "beta": 0.1}
EXACT |= {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
SCRIPTED = {"extra": {"rollout_func": tiny_models.scripted}}
# Four groups of 3 attempts, one of them live. A dead group stays as filler, so that both ranks have equally many rows.
DROP = {**EXACT, **SCRIPTED, "zero_variance_groups": "drop", "num_generations": 3, "per_device_train_batch_size": 6}
DROP |= {"num_iterations": 2, "loss_type": "grpo"}
# The first rank samples only dead groups. KL in the reward needs a forward pass of this package.
RESAMPLE = {**EXACT, **SCRIPTED, "zero_variance_groups": "resample", "max_resample_rounds": 2, "max_steps": 2}
RESAMPLE |= {"kl_estimator": "k1", "kl_placement": "reward"}
# In each round the first rank's texts are shorter than the second's. A checkpoint is saved within a generation batch.
# RMSprop keeps one state tensor per parameter. With several, torch's FSDP1 would save the last one in place of each,
# because gathering on a CPU makes no copies.
SAMPLED = {**EXACT, "zero_variance_groups": "resample", "max_resample_rounds": 2, "num_iterations": 2}
SAMPLED |= {"optim": "rmsprop", "learning_rate": 1e-3, "save_strategy": "steps", "save_steps": 1}
SAMPLED |= {"eval_strategy": "steps", "eval_steps": 2, "num_generations_eval": 2}
SAMPLED |= {"extra": {"eval_dataset": tiny_models.prompts(6)}}
FOLLOWED = {**EXACT, **SCRIPTED, "optim": "rmsprop", "learning_rate": 1e-3, "save_strategy": "steps", "save_steps": 1}
FOLLOWED |= {"sync_ref_model": True, "ref_model_sync_steps": 1}
# The head reads the policy's hidden states in a forward pass of this package, which all ranks make together.
BELIEVED = {**EXACT, "advantage_baseline": "belief", "scale_rewards": "prior", "prompt_selection": "belief"}
BELIEVED |= {"belief_head": "prompt", "failed_reward": 0.3, "zero_variance_groups": "resample", "extra": {}}
BELIEVED |= {"max_resample_rounds": 2, "max_steps": 4}


def train(folder, reward, options, checkpoint=None):
    """Train with these options and return what this rank found: losses, groups, forward passes and states."""
    trainer = tiny_models.trainer(folder, reward, **options)
    if "rollout_func" not in options["extra"]:
        trainer.generation_config.max_new_tokens = 2 + 4 * trainer.accelerator.process_index
    passes, log_probs = [], trainer._get_per_token_logps_and_entropies

    def counted(model, input_ids, *args, **kwargs):
        passes.append(len(input_ids))
        return log_probs(model, input_ids, *args, **kwargs)

    trainer._get_per_token_logps_and_entropies = counted
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model(str(folder / "last"))
    memory = trainer._prompts.memory
    return {
        "kind": trainer.accelerator.distributed_type.value,
        "model": type(trainer.model_wrapped).__name__,
        "precision": trainer.accelerator.mixed_precision,
        "losses": tiny_models.losses(trainer),
        "trained": tiny_models.logged(trainer, "groups/trained"),
        "rounds": tiny_models.logged(trainer, "groups/rounds"),
        "evaluated": tiny_models.logged(trainer, "eval_reward"),
        "passes": passes,
        "stream": trainer._resume_state()["stream"],
        "heads": memory and memory.state_dict()["heads"],
    }


def drop(folder):
    return train(folder, tiny_models.one_live_in_four, DROP)


def resample(folder):
    return train(folder, tiny_models.half_dead, RESAMPLE)


def believed(folder):
    return train(folder, tiny_models.half_dead, BELIEVED)


def sampled(folder):
    return train(folder, tiny_models.half_dead, SAMPLED)


def resumed(folder):
    torch.manual_seed(99 + PartialState().process_index)
    return train(folder, tiny_models.half_dead, SAMPLED, str(folder.with_name("sampled") / "run" / "checkpoint-1"))


def followed(folder):
    """Train with a reference model that is synced to the policy at each step."""
    return train(folder, tiny_models.half_dead, FOLLOWED)


def followed_resumed(folder):
    """Resume `followed` when the second process's copy of the checkpoint lacks the reference model."""
    checkpoint = folder.with_name("followed") / "run" / "checkpoint-2"
    if PartialState().process_index == 1:
        there = folder / "checkpoint-2"
        shutil.copytree(checkpoint, there, ignore=shutil.ignore_patterns("grpo_plus_reference*"))
        checkpoint = there
    return train(folder, tiny_models.half_dead, FOLLOWED, str(checkpoint))


def resumed_apart(folder):
    """Resume `sampled` when the second process's copy of the checkpoint lacks the files of this package."""
    checkpoint = folder.with_name("sampled") / "run" / "checkpoint-1"
    if PartialState().process_index == 1:
        there = folder / "checkpoint-1"
        shutil.copytree(checkpoint, there, ignore=shutil.ignore_patterns("grpo_plus_*"))
        checkpoint = there
    return train(folder, tiny_models.half_dead, SAMPLED, str(checkpoint))


def not_finite(folder):
    """Train until TRL's loss is NaN: on the second process at step 2, after the checkpoint of step 1."""
    options = {
        **EXACT,
        **SCRIPTED,
        "zero_variance_groups": "drop",
        "save_strategy": "steps",
        "save_steps": 1,
        "bf16": True,
    }
    trainer, told, compute = (
        tiny_models.trainer(folder, tiny_models.half_dead, **options),
        "",
        GRPOTrainer._compute_loss,
    )

    def broken(self, model, inputs):
        of_the_second = PartialState().process_index == 1 and self.state.global_step == 1
        return compute(self, model, inputs) * (torch.nan if of_the_second else 1)

    with mock.patch.object(GRPOTrainer, "_compute_loss", broken):
        try:
            trainer.train()
        except FloatingPointError as error:
            told = str(error)
    trainer.save_model(str(folder / "last"))
    return {"told": told, "steps": trainer.state.global_step}


class CallsOnTheFirstRank(GRPOPlusTrainer):
    """A trainer in which attempts of the second rank call no tool."""

    def _tool_call_loop(self, prompts, prompt_ids, completion_ids, completions, *rest):
        for messages in completions if PartialState().process_index else ():
            messages[0].pop("tool_calls", None)
        return super()._tool_call_loop(prompts, prompt_ids, completion_ids, completions, *rest)


def tools(folder):
    """Train a policy that calls a tool in each attempt, on the first rank.

    It always writes the likeliest token. The attempts of a group are alike, so their advantages must not add up to 0.
    """
    policy, calls = folder.parents[1] / "policy", []
    if PartialState().process_index == 0 and not policy.exists():
        tool_models.taught(policy)
    PartialState().wait_for_everyone()
    options = {**tiny_models.BASE, **tool_models.OPTIONS, "top_p": 1.0, "top_k": 1, "max_steps": 2, "optim": "sgd"}
    options |= {"learning_rate": 0.05, "beta": 0.1, "shuffle_dataset": False, "per_device_train_batch_size": 4}
    options["gradient_accumulation_steps"] = 2  # the number that the configurations of DeepSpeed have
    rows = Dataset.from_dict({"prompt": [tool_models.question(number) for number in range(30)]})

    def by_place(completions, **kwargs):
        return [float(place % 4 == 3) for place in range(len(completions))]

    config = GRPOPlusConfig(**options, output_dir=str(folder / "run"), zero_variance_groups="drop", advantage_clip=0.5)
    extra = {"processing_class": tool_models.tokenizer(), "tools": [tool_models.adder(calls)]}
    trainer = CallsOnTheFirstRank(str(policy), by_place, config, rows, **extra)
    trainer.train()
    trainer.save_model(str(folder / "last"))
    return {"calls": len(calls), "losses": tiny_models.losses(trainer)}


def precise(folder):
    """Return the precision of a trainer with `bf16: true`, which must win over the configuration's precision."""
    return {"precision": tiny_models.trainer(folder, **{**EXACT, "bf16": True}).accelerator.mixed_precision}


def sent(folder):
    """Read the weights as TRL does for vLLM, after an evaluation, whose forward passes leave some weights whole."""
    trainer = tiny_models.trainer(folder, **{**EXACT, "extra": {"eval_dataset": tiny_models.prompts(6)}})
    trainer.train()
    trainer.evaluate()
    engine, received = adapters.reader(trainer.model), {}
    engine._dist = SimpleNamespace(is_fsdp=True, fsdp_version=2, gather_params=nullcontext)
    engine.accelerator = trainer.accelerator
    engine.sync_weights = lambda: received.update(adapters.sent(engine))
    told = ""
    try:
        engine.sync_weights()
    except AttributeError as error:
        told = str(error)
    trainer.vllm_generation = engine
    trainer._set_up_vllm()
    engine.sync_weights()
    trained = trainer.accelerator.get_state_dict(trainer.model_wrapped)  # on the first rank alone
    equal = [torch.equal(received[name], weight) for name, weight in trained.items()]
    return {"trl": told, "equal": equal}


def as_on_gpus(state, *args, **kwargs):
    if PartialState._shared_state.get("distributed_type") == DistributedType.MULTI_CPU:
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    initialise(state, *args, **kwargs)


initialise = AcceleratorState.__init__


def on_a_cpu(configuration):
    stack = ExitStack()
    if configuration.startswith("fsdp"):
        stack.enter_context(mock.patch.object(AcceleratorState, "__init__", as_on_gpus))
        stack.enter_context(mock.patch.object(FlatParamHandle, "to_cpu", return_value=nullcontext()))
        stack.enter_context(mock.patch.dict(os.environ, ACCELERATE_TORCH_DEVICE="cpu"))
    elif configuration.startswith("zero"):
        import deepspeed

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return stack


def main():
    gc.freeze()  # see `frozen` in conftest.py
    out, environments = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    state = PartialState(cpu=True)
    rank = state.process_index
    for configuration, environment in environments.items():
        scenarios = [drop, resample, believed, sampled, resumed, tools, precise, not_finite]
        scenarios += [resumed_apart] if configuration == "ddp" else []
        scenarios += [sent] if configuration == "fsdp2" and adapters.READS_FSDP2 else []
        # With FSDP1, TRL syncs only a part of the sharded reference model.
        scenarios += [followed, followed_resumed] if configuration != "fsdp1" else []
        with patch_environment(**environment), on_a_cpu(configuration):
            for scenario in scenarios:
                folder = out / configuration / scenario.__name__
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{rank}.json").write_text(json.dumps(scenario(folder), default=torch.Tensor.tolist))


if __name__ == "__main__":
    main()
