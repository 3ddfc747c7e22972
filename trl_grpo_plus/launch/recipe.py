"""A recipe as each of its processes would read it, and the arithmetic of its batches."""

import math
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from ..scoring import datasets_named
from ..utils.validation import ConfigError, did_you_mean
from . import command_line
from .accelerate import Distribution, find_recipe, sharded
from .option_checks import FSDP_ALONE, evaluates


if TYPE_CHECKING:
    from ..config import GRPOPlusConfig


NO_GPU = "no GPU here"
FSDP_ON = "Set fsdp: true in the recipe, or --fsdp without a value on the command line."
OF_PROCESSES = ("deepspeed", "fsdp", "ddp_backend")  # TRL looks for other processes as soon as these are set


@dataclass
class Recipe:
    """A recipe as read, and the facts that the checks add to it."""

    name: str  # file or name of the recipe, as the user gave it
    options: tuple[str, ...]  # options of the command line
    spread: Distribution
    launching: bool = False  # whether the recipe is to run on this machine; if not, missing packages are no mistake
    # The dataclasses of the launch script; `None` if one was refused.
    script: Any = None
    training: Any = None
    model: Any = None
    data: Any = None
    keys: int = 0  # number of keys in its YAML
    refused: tuple[str, ...] = ()  # reasons why keys and options were refused; all others are read
    unread: tuple[str, ...] = ()  # keys and options that were refused when they were read
    lacking: tuple[str, ...] = ()  # settings that were left out because this machine does not support them
    stands: bool = True  # whether `training` is the recipe's own, not the defaults for a refused one, and is valid
    on_cpu: bool = False  # whether the recipe itself asks for the CPU
    on_a_cpu: tuple[str, ...] = ()  # options that replace settings which processes on a CPU do not support
    evaluates: bool = False  # whether the run ever evaluates; kept, because a resumed run turns `eval_on_start` off
    rewards: list[Any] = field(default_factory=list)  # of `reward_funcs`, as the trainer takes them
    environment: Any = None  # `environment_factory`
    tools: list[Any] = field(default_factory=list)  # of the model; not those that a function makes
    reward_seconds: float = 0.0  # time of the rewards for one generation batch of one process
    splits: Any = None  # by name, once they are loaded
    rowless: bool = False  # whether there is no data, because the environment makes the prompts
    has_real_data: bool = True  # whether `splits` are the recipe's data, not sample rows in their place
    complete: bool = True  # whether `splits` are all the data, not the part that `prepare` makes for a check
    train_set: Any = None  # the training split
    eval_sets: dict[str, Any] = field(default_factory=dict)
    prompted: bool = False  # whether the training set has prompts, and a length
    first_prompt: Any = None  # first prompt of the training set, if there is one
    tokenizer: Callable[[], Any] = lambda: None  # returns the model's tokenizer, or `None` if it cannot be loaded

    @property
    def readable(self) -> bool:
        """True if every dataclass could be made, even if single keys and options were refused."""
        return None not in (self.script, self.training, self.model, self.data)

    @property
    def data_unread(self) -> bool:
        """True if a key that names the data was refused, so that it is not known what the data are."""
        return not {"dataset_name", "datasets", "prepare"}.isdisjoint(self.unread)

    @property
    def prepared(self) -> bool:
        """True if `prepare` makes the model, which exists once `splits` are loaded."""
        made_in = os.path.join(self.training.output_dir, "")
        return bool(self.script.prepare) and self.model.model_name_or_path.startswith(made_in)

    @property
    def sets(self) -> dict[str, Any]:
        """The datasets of the run by the trainer's names; empty before the check of `splits`."""
        return {} if self.train_set is None else datasets_named(self.train_set, self.eval_sets)

    @property
    def whole(self) -> bool:
        """True if `train_set` is all the training data and has a length."""
        return self.complete and hasattr(self.train_set, "__len__")


def launched(script_args: Any, training_args: Any, model_args: Any, dataset_args: Any) -> Recipe:
    """Return the recipe of this launched process, from the dataclasses that the launch script's parser returned."""
    kind = training_args.distributed_state.distributed_type.value
    sharding = {"DEEPSPEED": "zero", "FSDP": "fsdp"}.get(kind, "ddp" if training_args.world_size > 1 else "none")
    spread = Distribution(training_args.world_size, "the launcher", sharding)
    parts = {"script": script_args, "training": training_args, "model": model_args, "data": dataset_args}
    how = {"launching": True, "on_cpu": training_args.use_cpu, "evaluates": evaluates(training_args)}
    return Recipe("", (), spread, **how, **parts)


def read(
    name: str,
    options: Sequence[str],
    spread: Distribution,
    launching: bool = False,
    of_command: Collection[str] = (),
) -> Recipe:
    """Read a recipe as each of its processes would.

    Refused keys and options are left out, so that the rest can be checked.

    Args:
        name (`str`), options (`Sequence[str]`), spread ([`Distribution`]): recipe, options and processes of the run.
        launching (`bool`, *optional*, defaults to `False`): whether the recipe is to run on this machine.
        of_command (`Collection[str]`, *optional*): see [`~trl_grpo_plus.launch.command_line.read`].

    Raises:
        ConfigError: there is no such recipe.
    """
    from .arguments import make_parser

    find_recipe(name)
    recipe = Recipe(name, tuple(options), spread, launching)
    config = _config_of(spread.processes)
    parser = make_parser(prog="check", config=config)
    parser.error = _refuse
    try:
        settings = command_line.read(parser, ["--config", name, *options], of_command)
        recipe.refused = tuple(settings.refused.values())
        recipe.unread = tuple(settings.refused)
        if any(word.startswith("-") for word in settings.refused):  # an unknown option's value looks like another word
            return recipe
        recipe.lacking = () if launching else _without_machine(settings)
        _note_processes(recipe, parser, settings)
        made, refused = command_line.build(parser, settings, dict.fromkeys(OF_PROCESSES))
    except ValueError as error:
        recipe.refused = (*recipe.refused, str(error))
        return recipe
    recipe.refused, recipe.keys = (*recipe.refused, *refused), len(settings.values)
    recipe.script, recipe.model = made.get("GRPOPlusScriptArguments"), made.get("ModelConfig")
    recipe.data, recipe.training = made.get("DatasetMixtureConfig"), made.get(config.__name__)
    if recipe.training is None:
        recipe.stands, recipe.training = False, config(output_dir="unused", use_cpu=True, bf16=False)
    recipe.on_cpu = recipe.training.use_cpu and NO_GPU not in recipe.lacking
    recipe.evaluates = evaluates(recipe.training)
    return recipe


def _refuse(message: str) -> NoReturn:
    raise ConfigError(message)


def _config_of(processes: int) -> type:
    """Return the config class of a run with this number of processes, which determines the batch sizes."""
    from ..config.grpo_plus_config import GRPOPlusConfig

    return type("GRPOPlusConfig", (GRPOPlusConfig,), {"world_size": property(lambda self: processes)})


def _without_machine(settings: command_line.Settings) -> tuple[str, ...]:
    """Adapt the settings to a machine without a GPU, and return a description of the changes."""
    import torch

    values = settings.values
    if torch.cuda.is_available() or values.get("use_cpu") or "--use_cpu" in " ".join(settings.argv):
        return ()
    values["use_cpu"] = True
    return (NO_GPU, "tf32 not tried") if values.pop("tf32", None) else (NO_GPU,)


def _note_processes(recipe: Recipe, parser: Any, settings: command_line.Settings) -> None:
    """Check the keys `deepspeed`, `fsdp` and `ddp_backend`, and note them in the recipe.

    They have an effect only in processes that a launcher has started.

    Raises:
        ConfigError: `ddp_backend` is set and there is one process, or a DeepSpeed configuration cannot be read.
    """
    options, _ = parser.parse_known_args(list(settings.argv))
    distributed = {key: getattr(options, key) or settings.values.get(key) for key in OF_PROCESSES}
    recipe.spread = sharded(recipe.spread, distributed["deepspeed"], distributed["fsdp"])
    if distributed["ddp_backend"] and recipe.spread.processes == 1:
        raise ConfigError(
            f"ddp_backend={distributed['ddp_backend']!r} needs several processes, and this run has one "
            f"({recipe.spread.decided_by}). Remove it, or start more processes: --num_processes."
        )
    _check_fsdp(distributed["fsdp"])
    on_cpu = (options.use_cpu or settings.values.get("use_cpu")) and NO_GPU not in recipe.lacking
    # A launcher may give a GPU to one process that shards: the process itself checks this.
    if distributed["fsdp"] and recipe.spread.processes == 1 and on_cpu:
        raise ConfigError(FSDP_ALONE)
    instead = {"deepspeed": "", "fsdp": "", "ddp_backend": "gloo"}
    recipe.on_a_cpu = tuple(word for key in OF_PROCESSES if distributed[key] for word in (f"--{key}", instead[key]))


def _check_fsdp(given: Any) -> None:
    """Refuse words of `fsdp` that transformers does not know."""
    from transformers.trainer_utils import FSDPOption

    known = [option.value for option in FSDPOption]
    for word in given.split() if isinstance(given, str) else given if isinstance(given, list) else ():
        if str(word).lower() not in known:
            guess = did_you_mean(str(word), known)
            raise ConfigError(f"fsdp: {word!r} is not one of {', '.join(known)}.{guess} {FSDP_ON}")


def batches(recipe: Recipe) -> str:
    """Describe in words the sizes of a generation batch and an optimizer step, and the number of steps."""
    args, spread = recipe.training, recipe.spread
    prompts = args.generation_batch_size // args.num_generations
    step = args.per_device_train_batch_size * spread.processes * args.gradient_accumulation_steps
    parts = [
        f"{spread.processes} process{'es' if spread.processes > 1 else ''} ({spread.decided_by})",
        f"a generation batch: {prompts:,} prompts x {args.num_generations} = {args.generation_batch_size:,} attempts",
        f"an optimizer step: {step:,} attempts",
    ]
    if args.num_iterations > 1:
        parts.append(f"each attempt trained on {args.num_iterations} times")
    total = total_steps(recipe)
    if recipe.whole:
        epoch, _ = steps(len(recipe.train_set), args)
        parts.append(f"{_steps(epoch)} per epoch")
    return "; ".join([*parts, f"{_steps(total)} in total" if total else "the number of steps depends on the data"])


def _steps(count: int) -> str:
    return f"{count:,} step{'' if count == 1 else 's'}"


def total_steps(recipe: Recipe) -> int | None:
    """Return the number of optimizer steps of the run; `None` if it is not known."""
    if recipe.training.max_steps > 0:
        return recipe.training.max_steps
    return steps(len(recipe.train_set), recipe.training)[1] if recipe.whole else None


def steps(rows: int, args: "GRPOPlusConfig") -> tuple[int, int]:
    """Return the optimizer steps of an epoch and of the run. TRL drops rows that do not fill a generation batch."""
    full = rows // (args.generation_batch_size // args.num_generations)
    epoch = max(
        math.ceil(full * args.steps_per_generation * args.num_iterations / args.gradient_accumulation_steps), 1
    )
    return epoch, args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * epoch)
