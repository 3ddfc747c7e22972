"""The description of a run for its traces: model, data, options other than the defaults, versions.

Nothing is loaded to make it. Shared pages show the description, so it holds only values that are known to be harmless;
see `traces/redaction.py`.
"""

import re
from collections.abc import Mapping, Sized
from dataclasses import MISSING, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from ..scoring import Reward
from ..traces import json_value, shown_name, shown_options
from ..utils.optional_packages import release
from ..utils.validation import library_options, of_libraries


if TYPE_CHECKING:
    from trl import GRPOTrainer


PACKAGES = ("trl_grpo_plus", "trl", "transformers", "accelerate", "torch", "datasets", "vllm", "peft")
# Options that say nothing about the training: how it is logged, and derived values.
_LEFT_OUT = {
    "accelerator_config",
    "dataloader_pin_memory",
    "disable_tqdm",
    "do_eval",
    "do_predict",
    "do_train",
    "generation_batch_size",
    "log_level",
    "logging_first_step",
    "log_completions",
    "pad_to_multiple_of",
    "push_to_hub",
    "report_to",
    "run_name",
    "save_total_limit",
    "trackio_space_id",
}
# Fields of an adapter's configuration that PEFT fills in.
_OF_THE_MODEL = {
    "auto_mapping",
    "base_model_name_or_path",
    "inference_mode",
    "peft_version",
    "runtime_config",
    "task_type",
}
# Builders that give a data set their own name.
_FILES = {"json", "csv", "parquet", "text", "arrow", "generator", "pandas"}


def run_json(options: Any, weights: Mapping[str, float], described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of run.json.

    Args:
        options: the options by which groups are judged, with `num_generations`.
        weights (`dict[str, float]`): weight of each reward.
        described (`dict`): what [`describe`] returns.
    """
    names = ("num_generations", "zero_variance_tolerance", "solved_reward", "failed_reward")
    return {"rewards": weights, **{name: getattr(options, name) for name in names}, **described}


def describe(trainer: "GRPOTrainer") -> dict[str, Any]:
    """Return the content of run.json about a trainer's model, datasets and options, as they are now.

    Returns:
        `dict`: `model`, its name or path; `dataset`, {"name", "rows"}, `None` if unknown, as for the rows of a
        stream; `evaluations`, rows of each split; `options` that are not at their defaults, and the trainer's class,
        the arguments of rewards and the options of an adapter; `versions` of packages.
    """
    args, data, evaluated = trainer.args, trainer.train_dataset, trainer.eval_dataset
    splits = evaluated if isinstance(evaluated, Mapping) else {"": evaluated}
    rows = {f"eval_{name}" if name else "eval": _rows(of) for name, of in splits.items() if of is not None}
    return json_value(
        {
            "model": shown_name(_model_name(trainer.model)),
            "dataset": {"name": shown_name(dataset_name(data)), "rows": _rows(data)},
            "evaluations": rows,
            "options": {**changed_options(args), **_beside_options(trainer)},
            "versions": _versions(getattr(args, "use_vllm", True)),
        }
    )


def changed_options(args: Any) -> dict[str, Any]:
    """Return the options that are not at the defaults of their class, by name.

    The options are compared field by field, because a second configuration would reset accelerate's state under the
    trainer.
    """
    # Defaults that depend on other options.
    derived = {
        "activation_checkpointing": args.gradient_checkpointing,
        "bf16": not args.fp16,
        "steps_per_generation": args.gradient_accumulation_steps,
    }
    # transformers reads it with `fsdp` alone. Release 5.8 fills it in all the same.
    unread = () if args.fsdp else ("fsdp_config",)
    values = args.to_dict()  # plain data
    changed = {
        field.name: values.get(field.name)
        for field in fields(args)
        if field.name not in (*_LEFT_OUT, *unread)
        and not _same(values.get(field.name), _default(field))
        and not (field.name in derived and values.get(field.name) == derived[field.name])
    }
    return shown_options(changed, library_options(args))


def _beside_options(trainer: "GRPOTrainer") -> dict[str, Any]:
    """Return what else tells settings apart: a user's trainer class, arguments of rewards, options of an adapter."""
    found: dict[str, Any] = {}
    if not of_libraries(type(trainer)):
        found["trainer_class"] = type(trainer).__qualname__
    names, functions = getattr(trainer, "reward_func_names", ()), getattr(trainer, "reward_funcs", ())
    rewards = zip(names, functions)  # noqa: B905 - a callback may have swapped them
    if given := [{"name": name, "args": args} for name, reward in rewards if (args := _arguments(reward))]:
        found["reward_args"] = given
    for config in getattr(trainer.model, "peft_config", {}).values():
        found["adapter"] = {
            field.name: sorted(value) if isinstance(value, set) else value
            for field in fields(config)
            if field.name not in _OF_THE_MODEL and not _same(value := getattr(config, field.name), _default(field))
        }
        break  # the others are frozen, such as a reference
    return shown_options(found)


def _arguments(reward: Any) -> dict[str, Any]:
    if isinstance(reward, partial):
        return reward.keywords
    return reward.args if isinstance(reward, Reward) else {}


def dataset_name(data: Any) -> str | None:
    """Return a dataset's id on the Hub, or its name in `datasets`; `None` for files and code."""
    info = getattr(data, "info", None)
    for source in getattr(info, "download_checksums", None) or ():
        if match := re.match(r"hf://datasets/([^@]+)@", str(source)):
            return match[1]
    name = getattr(info, "dataset_name", None)
    return None if name in _FILES else name


def _default(field: Any) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _same(value: Any, default: Any) -> bool:
    empty: tuple[Any, ...] = ("", [], {}, None)
    return value == default or (value in empty and default in (*empty, "none"))


def _model_name(model: Any) -> str:
    return getattr(getattr(model, "config", None), "_name_or_path", None) or type(model).__name__


def _rows(data: Any) -> int | None:
    return len(data) if isinstance(data, Sized) else None


def _versions(vllm: bool) -> dict[str, str]:
    used = [package for package in PACKAGES if package != "vllm" or vllm]
    return {package: found for package in used if (found := release(package))}
