"""What can be told of a run from its options alone: each check raises `ValueError`, with what to do about it.

transformers is imported where it is used: [`~trl_grpo_plus.check.hub.settle`] must come first.
"""

import math
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from ..common.values import Refusal, near


LEAST_16_BIT_RATE = 1e-5  # of learning: below it, see `lost_in_rounding`
# What TRL would find out in the midst of things, or never: at least, at most.
BOUNDS = {
    "per_device_train_batch_size": (1, math.inf),
    "per_device_eval_batch_size": (1, math.inf),
    "gradient_accumulation_steps": (1, math.inf),
    "steps_per_generation": (1, math.inf),
    "num_iterations": (1, math.inf),
    "num_generations_eval": (1, math.inf),
    "max_completion_length": (1, math.inf),
    "learning_rate": (0, math.inf),
    "weight_decay": (0, math.inf),
    "max_grad_norm": (0, math.inf),
    "beta": (0, math.inf),
    "epsilon": (0, math.inf),
    "epsilon_high": (0, math.inf),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "seed": (0, 2**32 - 1),
}


def check_options(training_args: Any, model_args: Any) -> None:
    """Options of the trainer's and the model's must be in their bounds, go together, and name what there is. Says all
    that is wrong."""
    args, wrong = training_args, _out_of_bounds(training_args)
    if wrong:
        raise Refusal("\n".join(wrong))
    if (model_args.load_in_4bit or model_args.load_in_8bit) and not model_args.use_peft:
        name = "load_in_4bit" if model_args.load_in_4bit else "load_in_8bit"
        wrong.append(f"{name}: quantised weights cannot be trained, only an adapter on them. Set use_peft: true.")
    # TRL asks this only where `eval_strategy` is set.
    generations = args.num_generations_eval or args.num_generations
    if evaluates(args) and args.per_device_eval_batch_size * args.world_size % generations:
        wrong.append(
            f"per_device_eval_batch_size ({args.per_device_eval_batch_size}) x processes ({args.world_size}) must be "
            f"divisible by num_generations_eval, or num_generations where that is not set ({generations})."
        )
    engines = args.vllm_tensor_parallel_size
    if args.use_vllm and args.vllm_mode == "colocate" and args.world_size % engines:
        wrong.append(
            f"vllm_tensor_parallel_size={engines} must divide the number of processes, {args.world_size}: each engine "
            f"is spread over {engines} of them. Set another, or start more: --num_processes."
        )
    wrong += _unknown_trackers(args.report_to)
    if os.path.isfile(args.output_dir):
        wrong.append(f"output_dir: {args.output_dir} is a file. Name a folder, which need not be there.")
    if wrong:
        raise Refusal("\n".join(wrong))


def _out_of_bounds(args: Any) -> list[str]:
    wrong = []
    for name, (least, most) in BOUNDS.items():
        value = getattr(args, name)
        if value is not None and not least <= value <= most:
            upper = "" if math.isinf(most) else f" and at most {most}"
            wrong.append(f"{name}={value!r} must be at least {least}{upper}.")
    if args.max_steps <= 0 and args.num_train_epochs <= 0:
        wrong.append(f"num_train_epochs={args.num_train_epochs!r} must be above 0, or max_steps set.")
    return wrong


def _unknown_trackers(names: Sequence[str | None]) -> list[str]:
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    known = sorted(INTEGRATION_TO_CALLBACK)
    return [
        f"report_to: {name!r} is none of {', '.join(known)}, all, none.{near(str(name), [*known, 'none'])}"
        for name in names
        if name not in known
    ]


def lost_in_rounding(training_args: Any, model_args: Any, sharded: bool) -> str | None:
    """That most updates of 16-bit weights are smaller than what they are rounded to, where it is so.

    A bfloat16 has 8 bits: 0.02, a weight's common size, has neighbours 1e-4 away, and AdamW's step is about the
    learning rate. DeepSpeed keeps float32 copies, and under FSDP accelerate makes the weights float32.
    """
    dtype = (training_args.model_init_kwargs or {}).get("dtype", model_args.dtype)
    kept = sharded or model_args.use_peft or "adam" not in str(training_args.optim.value)
    if kept or dtype not in ("bfloat16", "float16") or not 0 < training_args.learning_rate < LEAST_16_BIT_RATE:
        return None
    return (
        f"dtype={dtype!r} with learning_rate={training_args.learning_rate:g}: nearly all updates of 16-bit weights "
        "are lost in rounding. Launch with DeepSpeed or FSDP, which keep float32 weights (--accelerate_config zero2, "
        "zero3 or fsdp2), or set dtype: float32 (with bf16: true), or use_peft: true."
    )


def evaluates(args: Any) -> bool:
    """Whether the run evaluates at all. Ask before `eval_on_start` is turned off for a run that resumes."""
    return args.eval_strategy != "no" or args.do_eval or args.eval_on_start


def check_packages(training_args: Any, model_args: Any) -> None:
    """What the options import must be installed."""
    if missing := missing_packages(training_args, model_args):
        raise Refusal(not_installed(missing))


def not_installed(missing: Mapping[str, str]) -> str:
    """What to say of [`missing_packages`]."""
    return "\n".join(f"{what} needs a package that is not installed: {how}." for what, how in missing.items())


def missing_packages(training_args: Any, model_args: Any) -> dict[str, str]:
    """Options whose packages are not installed here, and how to get them."""
    wanted = {
        "use_vllm: true": (training_args.use_vllm, "vllm", "pip install 'trl-grpo-plus[vllm]'"),
        "use_peft: true": (model_args.use_peft, "peft", "pip install 'trl-grpo-plus[peft]'"),
        "load_in_4bit or load_in_8bit": (
            model_args.load_in_4bit or model_args.load_in_8bit,
            "bitsandbytes",
            "pip install bitsandbytes",
        ),
    }
    missing = {what: how for what, (on, module, how) in wanted.items() if on and find_spec(module) is None}
    trackers = [name for name in training_args.report_to if not any(map(find_spec, _modules_of(name)))]
    return missing | {f"report_to: {name}": f"pip install {_modules_of(name)[0]}" for name in trackers}


def _modules_of(tracker: str) -> tuple[str, ...]:
    """Any of which it needs. transformers knows too, but imports wandb to find out."""
    others = {"tensorboard": ("tensorboard", "tensorboardX"), "azure_ml": ("azureml",), "flyte": ("flytekit",)}
    return others.get(tracker, (tracker,))


def check_processes(training_args: Any) -> None:
    """The processes that a launcher started must know of each other: accelerate lets each train alone where it finds
    no GPU for them."""
    started = int(os.environ.get("WORLD_SIZE", "1")) if "LOCAL_RANK" in os.environ else 1
    if started > training_args.world_size:
        raise Refusal(
            f"{started} processes were started, but there is no GPU for them here, and each would train alone. Set "
            "use_cpu: true to train on the CPU."
        )
