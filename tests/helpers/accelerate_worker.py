"""Run by tests/process/test_accelerate_configs.py on two processes: `accelerate_worker.py OUT ENVIRONMENTS`.

ENVIRONMENTS is a JSON file: configuration -> the environment that `accelerate launch` would give its processes. Each
trains the same on a CPU, with gloo. What is in a CPU's way there is taken out of it, and nothing else:

- accelerate takes FSDP up only where the processes have GPUs (`AcceleratorState.__init__`): they say that they have.
- FSDP1 of torch: its device must not be "cpu:0", as accelerate calls it (`_get_compute_device`); weights that are
  "offloaded" to the CPU for a state dict are freed before they are read (`FlatParamHandle.to_cpu`).
- DeepSpeed compiles an all-reduce in shared memory for CPUs, for minutes: without it gloo's is used.
"""

import gc
import json
import os
import shutil
import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path
from unittest import mock

import tiny_models
import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, patch_environment
from torch.distributed.fsdp._flat_param import FlatParamHandle
from trl import GRPOTrainer


EXACT = {"optim": "sgd", "learning_rate": 0.05, "shuffle_dataset": False, "beta": 0.1}
EXACT |= {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
SCRIPTED = {"extra": {"rollout_func": tiny_models.scripted}}
# One live group of three in four: a dead one stays on as filler, so that each rank has as many rows.
DROP = {**EXACT, **SCRIPTED, "zero_variance_groups": "drop", "num_generations": 3, "per_device_train_batch_size": 6}
DROP |= {"num_iterations": 2, "loss_type": "grpo"}
# The first rank samples dead groups only. KL in the reward takes a forward pass of our own.
RESAMPLE = {**EXACT, **SCRIPTED, "zero_variance_groups": "resample", "max_resample_rounds": 2, "max_steps": 2}
RESAMPLE |= {"kl_estimator": "k1", "kl_placement": "reward"}
# The first rank's texts end before the second's, round after round; a checkpoint in the midst of a generation batch.
# One moment an optimizer: FSDP1 of torch saves the last of several in place of each, where gathering copies nothing.
SAMPLED = {**EXACT, "zero_variance_groups": "resample", "max_resample_rounds": 2, "num_iterations": 2}
SAMPLED |= {"optim": "rmsprop", "learning_rate": 1e-3, "save_strategy": "steps", "save_steps": 1}
SAMPLED |= {"eval_strategy": "steps", "eval_steps": 2, "num_generations_eval": 2}
SAMPLED |= {"extra": {"eval_dataset": tiny_models.prompts(6)}}
FOLLOWED = {**EXACT, **SCRIPTED, "optim": "rmsprop", "learning_rate": 1e-3, "save_strategy": "steps", "save_steps": 1}
FOLLOWED |= {"sync_ref_model": True, "ref_model_sync_steps": 1}
# The head reads the policy's states, with a forward of our own that all ranks make together.
BELIEVED = {**EXACT, "advantage_baseline": "belief", "scale_rewards": "prior", "prompt_selection": "belief"}
BELIEVED |= {"belief_head": "prompt", "failed_reward": 0.3, "zero_variance_groups": "resample", "extra": {}}
BELIEVED |= {"max_resample_rounds": 2, "max_steps": 4}


def train(folder, reward, options, checkpoint=None):
    """What came of it on this rank."""
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
    """By the reference model."""
    return train(folder, tiny_models.half_dead, FOLLOWED)


def followed_resumed(folder):
    """The second process's machine has not the checkpoint's reference model."""
    checkpoint = folder.with_name("followed") / "run" / "checkpoint-2"
    if PartialState().process_index == 1:
        there = folder / "checkpoint-2"
        shutil.copytree(checkpoint, there, ignore=shutil.ignore_patterns("grpo_plus_reference*"))
        checkpoint = there
    return train(folder, tiny_models.half_dead, FOLLOWED, str(checkpoint))


def resumed_apart(folder):
    """The second process's machine has the weights, but no state of ours."""
    checkpoint = folder.with_name("sampled") / "run" / "checkpoint-1"
    if PartialState().process_index == 1:
        there = folder / "checkpoint-1"
        shutil.copytree(checkpoint, there, ignore=shutil.ignore_patterns("grpo_plus_*"))
        checkpoint = there
    return train(folder, tiny_models.half_dead, SAMPLED, str(checkpoint))


def not_finite(folder):
    """TRL's loss is not, on the second process at the second step; the first step's checkpoint is there."""
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


def precise(folder):
    """The recipe's bf16, whatever the configuration says."""
    return {"precision": tiny_models.trainer(folder, **{**EXACT, "bf16": True}).accelerator.mixed_precision}


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
    gc.freeze()  # as in conftest.py
    out, environments = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    state = PartialState(cpu=True)
    rank = state.process_index
    for configuration, environment in environments.items():
        scenarios = [drop, resample, believed, sampled, resumed, precise, not_finite]
        scenarios += [resumed_apart] if configuration == "ddp" else []
        # TRL does not move all of a reference that FSDP1 shards.
        scenarios += [followed, followed_resumed] if configuration != "fsdp1" else []
        with patch_environment(**environment), on_a_cpu(configuration):
            for scenario in scenarios:
                folder = out / configuration / scenario.__name__
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{rank}.json").write_text(json.dumps(scenario(folder), default=torch.Tensor.tolist))


if __name__ == "__main__":
    main()
