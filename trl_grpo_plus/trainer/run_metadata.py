"""What a run is, for whoever looks at its traces later: model, data, options other than the defaults, versions.

It is read from what the trainer has at hand; nothing is loaded. Whoever shares a page shares this, so that only what
is known to be harmless is in it: see `traces/shown.py`.
"""

import re
from collections.abc import Mapping, Sized
from dataclasses import MISSING, fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ..traces import plain, shown_name, shown_options


PACKAGES = ("trl_grpo_plus", "trl", "transformers", "accelerate", "torch", "datasets", "vllm", "peft")
# What says nothing of the training, or what others say: how it is logged, what is derived.
_LEFT_OUT = {"accelerator_config", "dataloader_pin_memory", "disable_tqdm", "do_eval", "do_predict", "do_train"} | {
    *("generation_batch_size", "log_level", "logging_first_step", "log_completions", "pad_to_multiple_of"),
    *("push_to_hub", "report_to", "run_name", "save_total_limit", "trackio_space_id"),
}
_THEIRS = ("transformers", "trl", "trl_grpo_plus")
_FILES = {"json", "csv", "parquet", "text", "arrow", "generator", "pandas"}  # builders that lend a data set their name


def describe(args: Any, model: Any, data: Any, evaluated: Any = None) -> dict[str, Any]:
    """Return what to keep of a run in run.json.

    Args:
        args ([`GRPOPlusConfig`]): of the trainer.
        model: that is trained.
        data: the training set.
        evaluated (*optional*): the evaluation set, or a dict of them by name.

    Returns:
        `dict`: `model`, its name or path; `dataset`, {"name", "rows"}, `None` where it is not known, as of a stream;
        `evaluations`, rows of each split; `options`, those that are not at their defaults; `versions`, of packages.
    """
    splits = evaluated if isinstance(evaluated, Mapping) else {"": evaluated}
    rows = {f"eval_{name}" if name else "eval": _rows(of) for name, of in splits.items() if of is not None}
    return plain(
        {
            "model": shown_name(_model_name(model)),
            "dataset": {"name": shown_name(dataset_name(data)), "rows": _rows(data)},
            "evaluations": rows,
            "options": changed_options(args),
            "versions": _versions(bool(getattr(args, "use_vllm", False))),
        }
    )


def changed_options(args: Any) -> dict[str, Any]:
    """Options that are not at the defaults of their class, by name.

    Compared field by field: to make another configuration would reset accelerate's state under the trainer.
    """
    # What is chosen by other options where it is not given.
    derived = {
        "activation_checkpointing": getattr(args, "gradient_checkpointing", None),
        "bf16": not getattr(args, "fp16", False),
        "steps_per_generation": getattr(args, "gradient_accumulation_steps", None),
    }
    values = args.to_dict()  # as plain data
    changed = {
        field.name: values.get(field.name)
        for field in fields(args)
        if field.name not in _LEFT_OUT
        and not _same(values.get(field.name), _default(field))
        and not (field.name in derived and values.get(field.name) == derived[field.name])
    }
    return shown_options(changed, _known(args))


def dataset_name(data: Any) -> str | None:
    """Return a dataset's id on the Hub, or its name in `datasets`; `None` where it came from files or from code."""
    info = getattr(data, "info", None)
    for source in getattr(info, "download_checksums", None) or ():
        if found := re.match(r"hf://datasets/([^@]+)@", str(source)):
            return found[1]
    name = getattr(info, "dataset_name", None)
    return None if name in _FILES else name


def _default(field: Any) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _same(value: Any, default: Any) -> bool:
    empty: tuple[Any, ...] = ("", [], {}, None)
    return value == default or (value in empty and default in (*empty, "none"))


def _known(args: Any) -> set[str]:
    """Return names of the options that transformers, TRL and this package have; a class derived from theirs may have
    more."""
    theirs = [of for of in type(args).__mro__ if is_dataclass(of) and of.__module__.split(".")[0] in _THEIRS]
    return {field.name for of in theirs for field in fields(of)}


def _model_name(model: Any) -> str:
    return getattr(getattr(model, "config", None), "_name_or_path", None) or type(model).__name__


def _rows(data: Any) -> int | None:
    return len(data) if isinstance(data, Sized) else None


def _versions(vllm: bool) -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        if package == "vllm" and not vllm:
            continue
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
