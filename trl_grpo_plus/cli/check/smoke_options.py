"""Options that make a recipe's run so short and small that a check can make it."""

import math
from typing import TYPE_CHECKING, Any

from ...launch.option_checks import evaluates


if TYPE_CHECKING:
    from ...config import GRPOPlusConfig


STEPS, GROUPS = 2, 6
MOST_GENERATIONS, COMPLETION = 8, 24
NEED_EVALUATION = ("reduce_lr_on_plateau", "greedy")  # schedules that need evaluations, which are turned off here
NOT_OF_A_STEP = ("eval_on_start", "load_best_model_at_end", "push_to_hub", "resume_from_checkpoint")
OFF = ("bf16", "fp16", "use_vllm", "use_transformers_continuous_batching", "use_liger_kernel", "torch_compile")
STEPS_ALONE: dict[str, Any] = {
    **dict.fromkeys(NOT_OF_A_STEP, False),
    "eval_strategy": "no",
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
}
ALWAYS: dict[str, Any] = {
    **dict.fromkeys(OFF, False),
    "max_steps": STEPS,
    "warmup_steps": 0,
    "logging_strategy": "steps",
    "logging_steps": 1,
    "trace_every": 1,
    "trace_max_groups": None,
    "vllm_check_every": 0,
    "use_cpu": True,
    "dtype": "float32",
    "model_init_kwargs": "{}",
    "dataloader_num_workers": 0,
}
# Options that would be refused without a GPU or together with those above. They are set only if the recipe sets them.
WHERE_SET: dict[str, Any] = {
    "load_in_4bit": False,
    "load_in_8bit": False,
    "tf32": False,
    "attn_implementation": "sdpa",
    "dataloader_prefetch_factor": None,
}


def smaller(args: "GRPOPlusConfig", model: Any, processes: int) -> list[str]:
    """Return options that make a recipe's run short, small and fit for a CPU, and change nothing else.

    Args:
        args ([`GRPOPlusConfig`]), model (`ModelConfig`): the recipe's own options.
        processes (`int`): number of processes of the run.
    """
    overrides = {
        **steps_alone(args),
        **ALWAYS,
        **_batches(args, processes),
        "num_iterations": min(args.num_iterations, 2),
        "max_completion_length": min(args.max_completion_length or COMPLETION, COMPLETION),
        "do_eval": evaluates(args),
        **{name: value for name, value in WHERE_SET.items() if getattr(args, name, getattr(model, name, None))},
    }
    if not args.optim.value.startswith(("adamw_torch", "sgd", "adafactor")) or "bit" in args.optim.value:
        overrides |= {"optim": "adamw_torch", **({"optim_args": ""} if args.optim_args else {})}
    return words(overrides)


def steps_alone(args: "GRPOPlusConfig") -> dict[str, Any]:
    """Return options that turn off everything but the steps."""
    schedule = {"lr_scheduler_type": "constant"} if args.lr_scheduler_type.value in NEED_EVALUATION else {}
    return STEPS_ALONE | schedule


def upload_no_completions(args: "GRPOPlusConfig") -> None:
    """Turn off TRL's log of completions, and with it the upload, in the process that takes the steps.

    A command line cannot unset `log_completions_hub_repo`, and TRL refuses this option without `log_completions`.
    """
    args.log_completions, args.log_completions_hub_repo = False, None


def words(options: dict[str, Any]) -> list[str]:
    """Return options as the words of a command line."""
    texts = (str(value).lower() if isinstance(value, bool | None) else str(value) for value in options.values())
    return [word for name, text in zip(options, texts, strict=True) for word in (f"--{name}", text)]


def _batches(args: "GRPOPlusConfig", processes: int) -> dict[str, Any]:
    """Return options for small batches of whole groups, with equally many rows in each micro-batch of each process.

    A generation batch remains equal to, longer or shorter than an optimizer step, as in the recipe.
    """
    generations = args.num_generations if args.num_generations <= MOST_GENERATIONS else 4
    accumulation = min(args.gradient_accumulation_steps, 2)
    ratio = args.steps_per_generation / args.gradient_accumulation_steps
    every = accumulation if ratio == 1 else 2 * accumulation if ratio > 1 else max(accumulation // 2, 1)
    unit = processes * every
    groups = min(GROUPS, args.generation_batch_size // args.num_generations)
    rows = math.lcm(generations, unit) * max(1, groups * generations // math.lcm(generations, unit))
    eval_generations = min(args.num_generations_eval or generations, generations)
    return {
        "per_device_train_batch_size": rows // unit,
        "num_generations": generations,
        "gradient_accumulation_steps": accumulation,
        "generation_batch_size": None,
        "steps_per_generation": every,
        "num_generations_eval": eval_generations,
        "per_device_eval_batch_size": eval_generations,
    }
