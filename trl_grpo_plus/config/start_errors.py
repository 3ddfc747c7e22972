"""Errors of TRL's constructors with the cause and the fix: of batch sizes, a folder, a model's name, its template."""

import inspect
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..utils.files import beside, looks_local, no_folder, not_writable
from ..utils.validation import ConfigError, did_you_mean
from .evaluation_checks import parts_of_groups
from .gone_options import GONE_ARGUMENTS
from .tool_checks import explained


if TYPE_CHECKING:
    from .grpo_plus_config import GRPOPlusConfig

_AS_JSON = """Write it as in '{"key": 0.5, "other": null}', in single quotes in a shell."""

# Options of TRL and transformers that take a mapping, or JSON, and no name.
_MAPPINGS = (
    "activation_checkpointing_kwargs",
    "chat_template_kwargs",
    "generation_kwargs",
    "gradient_checkpointing_kwargs",
    "lr_scheduler_kwargs",
    "model_init_kwargs",
    "transformers_continuous_batching_config",
)


def check_mappings(config: "GRPOPlusConfig") -> None:
    """Refuse a text that is neither JSON nor, where TRL takes it for no mapping, empty.

    Raises:
        ConfigError: an option that takes a mapping is such a text.
    """
    for name in _MAPPINGS:
        value = getattr(config, name, None)  # older releases lack some
        left_out = value == "" and name != "lr_scheduler_kwargs"
        if isinstance(value, str) and not value.startswith("{") and not left_out:
            raise ConfigError(f"{name}={value!r} must be a mapping, not a text, or else JSON. {_AS_JSON}")


@contextmanager
def making_config(config: "GRPOPlusConfig") -> Iterator[None]:
    """Make TRL's part of a config inside this context.

    TRL says that the generation batch does not divide, but not how its size is computed. transformers says that the
    setup does not support bf16, but not that TRL turned bf16 on, and that a text is not JSON, but not of which option.

    Raises:
        ConfigError: in the place of such an error.
    """
    given = {name: getattr(config, name) for name in ("generation_batch_size", "steps_per_generation")}
    try:
        yield
    except json.JSONDecodeError as error:
        for name in config._VALID_DICT_FIELDS:
            if getattr(config, name) == error.doc:
                raise ConfigError(f"{name}={error.doc!r} is not JSON: {error}. {_AS_JSON}") from None
        raise
    except ValueError as error:
        if (text := _explained(str(error), config, given)) is None:
            raise
        raise ConfigError(text) from None


def _explained(why: str, config: "GRPOPlusConfig", given: dict[str, int | None]) -> str | None:
    if why.startswith("Your setup doesn't support bf16/gpu"):
        return (
            "this run needs a GPU, because it trains in bf16, TRL's default. This machine has no GPU. To train on the "
            "CPU, set use_cpu=True and bf16=False (in YAML use_cpu: true and bf16: false)."
        )
    if "steps_per_generation' can not be both" in why:
        both = " and ".join(f"{name}={value}" for name, value in given.items())
        return (
            f"{both} are both set, and each follows from the other. Leave one of the two out. A config that is made "
            "has both: give dataclasses.replace(config, ...) generation_batch_size=None."
        )
    if not why.startswith(("generation_batch_size (", "The global eval batch size (")):
        return None
    if why.startswith("The"):
        return parts_of_groups(config)
    processes = "1 process" if config.world_size == 1 else f"{config.world_size} processes"
    device = f"per_device_train_batch_size ({config.per_device_train_batch_size})"
    if "global batch size" in why:
        return f"{why} The latter is {device} x {processes}. Set a multiple of it, or leave generation_batch_size out."
    multiple = f"Set num_generations to a divisor of {config.generation_batch_size}, or"
    if given["generation_batch_size"] is not None:
        return f"{why} {multiple} generation_batch_size to a multiple of {config.num_generations}."
    steps = "steps_per_generation" if given["steps_per_generation"] else "gradient_accumulation_steps"
    return (
        f"{why} The former is {device} x {steps} ({config.steps_per_generation}) x {processes}. {multiple} one of "
        f"these factors so that {config.num_generations} divides their product."
    )


def check_accelerator_config(config: "GRPOPlusConfig") -> None:
    """Refuse ways of accelerate to deal rows to processes by which TRL's trainer gets no batches, or other ones.

    Raises:
        ConfigError: `accelerator_config` has such a way.
    """
    given, processes = config.accelerator_config, config.world_size
    if getattr(given, "dispatch_batches", None):
        raise ConfigError(
            "accelerator_config has dispatch_batches=True. accelerate can only send tensors from the first process to "
            "the others, and the rows of TRL's GRPO are texts. Leave dispatch_batches out."
        )
    if getattr(given, "split_batches", None) and processes > 1:
        raise ConfigError(
            f"accelerator_config has split_batches=True with {processes} processes. Each process would get only "
            f"1/{processes} of its rows, so a batch would have {config.generation_batch_size // processes} attempts "
            f"instead of {config.generation_batch_size}. Leave split_batches out. For smaller batches, lower "
            f"per_device_train_batch_size (now {config.per_device_train_batch_size})."
        )


def check_arguments(given: Iterable[str], trainer: type, known: Iterable[str], config: "GRPOPlusConfig") -> None:
    """Refuse arguments of a trainer that neither this package's trainer nor TRL's has.

    Args:
        given (`Iterable[str]`): names of the arguments that this package's trainer does not have.
        trainer (`type`): TRL's trainer.
        known (`Iterable[str]`): names of the arguments that this package's trainer has.
        config ([`GRPOPlusConfig`]): the configuration.

    Raises:
        TypeError: there is such an argument.
    """
    of_trl = inspect.signature(trainer).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in of_trl.values()):  # a script has replaced it
        return
    for name in given:
        if name in of_trl:
            continue
        advice = did_you_mean(name, known)
        if name in config.__dataclass_fields__:
            advice = f" It is an option: {type(config).__name__}({name}=...)."
        elif name in GONE_ARGUMENTS:
            advice = f" {GONE_ARGUMENTS[name]}"
        raise TypeError(f"GRPOPlusTrainer got an unexpected keyword argument {name!r}.{advice}")


@contextmanager
def making_trainer(model: Any, output_dir: str, makes_it: bool) -> Iterator[None]:
    """Construct TRL's trainer inside this context. Mistakes that can be seen before a model is loaded raise at once.

    Args:
        model: the model or its name.
        output_dir (`str`): the run's folder.
        makes_it (`bool`): whether this process makes the folder, as the first rank does.

    Raises:
        ConfigError: `output_dir` cannot be made or written, the model is `None` or a `Path`, or its folder does not
            exist: its name looks like a path or nearly is that of a folder. Or TRL cannot call tools with the model's
            chat template, or an environment has no `reset`.
    """
    if model is None or isinstance(model, os.PathLike):
        raise ConfigError(f"model={model!r} is neither a text nor a model. Give a folder as a text: model=str(path).")
    # A run may use an existing folder that cannot be written. It then keeps no traces.
    if makes_it and not os.path.isdir(output_dir) and (why := no_folder(output_dir) or not_writable(output_dir)):
        raise ConfigError(why)
    missing = isinstance(model, str) and not os.path.exists(os.path.expanduser(model))
    if missing and looks_local(model):
        raise ConfigError(_no_model(model))
    try:
        yield
    except ValueError as error:
        if (text := explained(str(error))) is None:
            raise
        raise ConfigError(text) from None
    except OSError as error:
        if missing and beside(model):  # the Hub has no such name either
            first_line = str(error).strip().partition("\n")[0]
            raise ConfigError(f"{_no_model(model)} As an id it fails: {first_line}") from None
        if error.filename and Path(output_dir).absolute().is_relative_to(Path(str(error.filename)).absolute()):
            raise ConfigError(
                f"output_dir: {output_dir} cannot be made ({error.strerror}). Name another folder; it need not exist."
            ) from None
        raise


def _no_model(name: str) -> str:
    right = "Give a folder that `save_pretrained` wrote, or an id on the Hub."
    return f"model={name!r}: there is no such folder.{beside(name)} {right}"
