"""The part of a check that reads the recipe: keys and values, what this machine lacks, the arithmetic of batches."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..common.values import Refusal
from . import options as preflight_options
from .accelerate import Distribution, find_recipe, sharded
from .table import FAILED, OK, UNSEEN, Row


NO_GPU = "no GPU here"
OF_PROCESSES = ("deepspeed", "fsdp", "ddp_backend")  # as soon as they are read, TRL looks for other processes


@dataclass
class Recipe:
    """A recipe as read, and what the checks learn of it on their way.

    Args:
        name (`str`): the recipe, as it was given.
        options (`tuple[str, ...]`): of the command line.
        spread ([`Distribution`]): over processes.
        script, training, model, data (*optional*): the dataclasses of the launch script, `None` where one was refused.
        stands (`bool`): whether `training` is the recipe's own, and not defaults in place of a refused one.
        on_cpu (`bool`): whether the recipe itself asks for the CPU.
        on_a_cpu (`tuple[str, ...]`): options in place of what processes on a CPU cannot do.
        rewards (`list`): of `reward_funcs`, as the trainer takes them.
        reward_seconds (`float`): that they take for a generation batch of a process.
        splits (`DatasetDict`, *optional*): what was loaded.
        seen (`bool`): whether `splits` are the recipe's data, and not sample rows in their place.
        whole (`bool`): whether they are all of it, and not what `prepare` makes for a check.
        prompted (`bool`): whether the training set has prompts.
        train_set, eval_sets: of `splits`.
        kind (`str`, *optional*): the model's type, where it is known.
    """

    name: str
    options: tuple[str, ...]
    spread: Distribution
    script: Any = None
    training: Any = None
    model: Any = None
    data: Any = None
    stands: bool = True
    on_cpu: bool = False
    on_a_cpu: tuple[str, ...] = ()
    rewards: list[Any] = field(default_factory=list)
    reward_seconds: float = 0.0
    splits: Any = None
    seen: bool = False
    whole: bool = False
    prompted: bool = False
    train_set: Any = None
    eval_sets: dict[str, Any] = field(default_factory=dict)
    kind: str | None = None


def read(name: str, options: Sequence[str], spread: Distribution, forgiving: bool = True) -> tuple[Recipe, list[Row]]:
    """Read a recipe as each of its processes would. What is refused is left out, so that the rest can be looked at.

    Args:
        name (`str`), options (`Sequence[str]`), spread ([`Distribution`]): of the run.
        forgiving (`bool`, *optional*, defaults to `True`): whether what only this machine lacks is no mistake.

    Raises:
        ValueError: there is no such recipe.
    """
    find_recipe(name)
    recipe = Recipe(name, tuple(options), spread)
    from . import command_line as lines
    from .arguments import make_parser

    config = _config_of(spread.processes)
    parser = make_parser(prog="check", config=config)

    def refuse(message: str) -> None:
        raise Refusal(message)

    parser.error = refuse
    try:
        given = lines.read(parser, ["--config", name, *options])
        if any(name.startswith("-") for name in given.refused):  # its value cannot be told from it
            return recipe, [Row("keys", FAILED, why) for why in given.refused.values()]
        lacking = _without_machine(given) if forgiving else []
        _note_processes(recipe, parser, given)
        made, refused = lines.build(parser, given, dict.fromkeys(OF_PROCESSES))
    except ValueError as error:
        return recipe, [Row("keys", FAILED, str(error))]
    recipe.script, recipe.model = made.get("GRPOPlusScriptArguments"), made.get("ModelConfig")
    recipe.data, recipe.training = made.get("DatasetMixtureConfig"), made.get(config.__name__)
    if recipe.training is None:
        recipe.stands, recipe.training = False, config(output_dir="unused", use_cpu=True, bf16=False)
    recipe.on_cpu = recipe.training.use_cpu and NO_GPU not in lacking
    wrong = [*given.refused.values(), *refused]
    if wrong:
        return recipe, [Row("keys", FAILED, why) for why in wrong]
    counts = f"{len(given.values)} keys" + (f", {len(options)} words on the command line" if options else "")
    return recipe, [Row("keys", OK, counts), _machine(recipe, lacking, forgiving)]


def _config_of(processes: int) -> type:
    """The config as it is in a run of so many processes: batch sizes depend on it."""
    from ..config import GRPOPlusConfig

    of_so_many = {"processes": processes, "world_size": property(lambda self: processes)}
    return type("GRPOPlusConfig", (GRPOPlusConfig,), of_so_many)


def _without_machine(given: Any) -> list[str]:
    """Take out of the values given what only this machine does not have, and say what it was."""
    import torch

    lacking = []
    values = given.values
    if not torch.cuda.is_available() and not values.get("use_cpu") and "--use_cpu" not in " ".join(given.argv):
        values["use_cpu"] = True
        lacking.append(NO_GPU)
        if values.pop("tf32", None):
            lacking.append("tf32 not tried")
    return lacking


def _note_processes(recipe: Recipe, parser: Any, given: Any) -> None:
    """What the keys that only launched processes can act on ask for.

    Raises:
        ValueError: it cannot be had.
    """
    options, _ = parser.parse_known_args(list(given.argv))
    asked = {key: getattr(options, key) or given.values.get(key) for key in OF_PROCESSES}
    recipe.spread = sharded(recipe.spread, asked["deepspeed"], asked["fsdp"])
    if asked["ddp_backend"] and recipe.spread.processes == 1:
        raise ValueError(
            f"ddp_backend={asked['ddp_backend']!r} needs several processes, and this run has one "
            f"({recipe.spread.said_by}). Remove it, or start more: --num_processes."
        )
    instead = {"deepspeed": "", "fsdp": "", "ddp_backend": "gloo"}
    recipe.on_a_cpu = tuple(word for key in OF_PROCESSES if asked[key] for word in (f"--{key}", instead[key]))


def _machine(recipe: Recipe, lacking: list[str], forgiving: bool) -> Row:
    try:
        preflight_options.check_options(recipe.training, recipe.model)
    except ValueError as error:
        recipe.stands = False
        return Row("options", FAILED, str(error))
    missing = preflight_options.missing_packages(recipe.training, recipe.model)
    if recipe.spread.sharding.startswith("zero") and find_spec("deepspeed") is None:
        missing[recipe.spread.sharding] = "pip install deepspeed"
    if missing and not forgiving:
        return Row("keys", FAILED, preflight_options.not_installed(missing))
    lacking += [f"{what}: not installed here ({how})" for what, how in missing.items()]
    if lacking:
        return Row("machine", UNSEEN, "; ".join(dict.fromkeys(lacking)))
    return Row("machine", OK, "the CPU is enough" if recipe.on_cpu else "a GPU, and what the options need")


def precision(recipe: Recipe) -> list[Row]:
    """Whether the weights are trained in a precision that their updates need."""
    sharded = recipe.spread.sharding not in ("none", "ddp")
    lost = preflight_options.lost_in_rounding(recipe.training, recipe.model, sharded)
    return [Row("dtype", UNSEEN if recipe.spread.guessed else FAILED, lost)] if lost else []


def output(recipe: Recipe) -> list[Row]:
    """Whether a checkpoint to resume from is there, and what the run would find in its folder."""
    from . import earlier, report

    folder = recipe.training.output_dir
    try:
        wanted = report.wanted_checkpoint(recipe.training)
        earlier.check_start(recipe.training, recipe.model, resumes=wanted is not None)
    except Refusal as error:
        return [Row("output", FAILED, str(error))]
    if not recipe.stands:
        return []
    if wanted:
        return [Row("output", OK, f"goes on from {wanted}")]
    moves = ": an earlier run there would be moved to earlier-N" if earlier.of_a_run(Path(folder)) else ""
    return [Row("output", OK, f"{folder}{moves}")]


def batches(recipe: Recipe) -> str:
    """What a generation batch and an optimizer step hold, and how many steps the data makes, in words."""
    args, spread = recipe.training, recipe.spread
    prompts = args.generation_batch_size // args.num_generations
    step = args.per_device_train_batch_size * spread.processes * args.gradient_accumulation_steps
    said = [
        f"{spread.processes} process{'es' if spread.processes > 1 else ''} ({spread.said_by})",
        f"a generation batch: {prompts:,} prompts x {args.num_generations} = {args.generation_batch_size:,} attempts",
        f"an optimizer step: {step:,} attempts",
    ]
    if args.num_iterations > 1:
        said.append(f"each trained on {args.num_iterations} times")
    total = total_steps(recipe)
    if recipe.whole:
        epoch, _ = steps(len(recipe.train_set), args)
        said.append(f"{_steps(epoch)} an epoch")
    return "; ".join([*said, f"{_steps(total)} in all" if total else "how many steps depends on the data"])


def _steps(count: int) -> str:
    return f"{count:,} step{'' if count == 1 else 's'}"


def total_steps(recipe: Recipe) -> int | None:
    """Optimizer steps of the run, where they can be known."""
    if recipe.training.max_steps > 0:
        return recipe.training.max_steps
    return steps(len(recipe.train_set), recipe.training)[1] if recipe.whole else None


def steps(rows: int, args: Any) -> tuple[int, int]:
    """Optimizer steps of an epoch and of the run: TRL leaves out the rows that do not fill a generation batch."""
    full = rows // (args.generation_batch_size // args.num_generations)
    epoch = max(
        math.ceil(full * args.steps_per_generation * args.num_iterations / args.gradient_accumulation_steps), 1
    )
    return epoch, args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * epoch)
