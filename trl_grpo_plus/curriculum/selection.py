"""What may be trained on, and where prompts beyond the ones that TRL's own sampler deals come from."""

from collections.abc import Callable, Mapping
from typing import Any

from ..utils import dataset_rows
from ..utils.import_path import is_path, load
from ..utils.validation import ConfigError, did_you_mean, error_prefix, one_of
from .custom_sampler import CustomSampler
from .samplers import ORDERS, ColumnSampler, LearnabilitySampler, PromptSampler, ShuffleSampler


BY_COLUMN = ("name", "column", "order")
METHODS = ("take", "observe", "metrics", "state_dict", "load_state_dict")


def _by_column(train_set: Any, args: Any) -> PromptSampler:
    column = args.prompt_selection["column"]
    if column not in train_set.column_names:
        raise ConfigError(
            f"prompt_selection: column={column!r} is none of the training set, which has "
            f"{', '.join(map(repr, train_set.column_names))}.{did_you_mean(column, train_set.column_names)}"
        )
    with error_prefix(f"prompt_selection: column={column!r}"):
        return ColumnSampler(dataset_rows.column(train_set, column), args.prompt_selection["order"], args.seed)


# To add one: a class in streams.py and an entry.
SAMPLERS: dict[str, Callable[[Any, Any], PromptSampler]] = {
    "shuffle": lambda train_set, args: ShuffleSampler(len(train_set), args.seed),
    "belief": lambda train_set, args: LearnabilitySampler(len(train_set), args.seed, pool=args.selection_pool),
    "by_column": _by_column,
}


def stream_of(train_set: Any, args: Any) -> PromptSampler:
    """Where a training set's prompts come from, as `prompt_selection` says; refuses one that has none.

    Args:
        train_set ([`~datasets.Dataset`]): what is trained on.
        args ([`GRPOPlusConfig`]): the configuration.
    """
    check_stream(train_set, args)
    check_rows(len(train_set), args)
    name = _name(args.prompt_selection)
    return SAMPLERS[name](train_set, args) if name in SAMPLERS else _own(name, train_set, args.seed)


def _own(path: str, train_set: Any, seed: int) -> PromptSampler:
    stream = load(path)(train_set, seed)
    if missing := [name for name in METHODS if not callable(getattr(stream, name, None))]:
        raise ConfigError(
            f"prompt_selection={path!r} made a {type(stream).__name__} without {', '.join(missing)}: a stream has "
            f"{', '.join(METHODS)}, see trl_grpo_plus.curriculum.samplers.PromptSampler."
        )
    return CustomSampler(stream, path, len(train_set))


def _name(selection: Any) -> str:
    return selection["name"] if isinstance(selection, dict) else selection


def check_selection(selection: Any) -> None:
    """Refuse a `prompt_selection` that says nothing, or too little."""
    if isinstance(selection, dict):
        if set(selection) != set(BY_COLUMN) or selection["name"] != "by_column":
            raise ConfigError(
                f"prompt_selection={selection!r}: with arguments it is "
                '{"name": "by_column", "column": "level", "order": "easy_first"}.'
            )
        one_of("prompt_selection: order", selection["order"], ORDERS)
        return
    names = [name for name in SAMPLERS if name != "by_column"]
    if not isinstance(selection, str) or not (selection in names or is_path(selection)):
        allowed = ", ".join([*map(repr, names), "{'name': 'by_column', ...}"])
        raise ConfigError(
            f"prompt_selection={selection!r} is none of {allowed} and the path of a class."
            f"{did_you_mean(str(selection), SAMPLERS)}"
        )


def check_class(args: Any) -> None:
    """A class of one's own must be where `prompt_selection` says."""
    if is_path(name := _name(args.prompt_selection)):
        load(name)


def check_column(train_set: Any, args: Any) -> None:
    """The column that `prompt_selection` names must be there, and have levels."""
    if isinstance(args.prompt_selection, dict):
        _by_column(train_set, args)


def check_dataset(dataset: Any, what: str, args: Any) -> None:
    """What is trained on must be one data set, loaded. Where an environment supplies the prompts there is none, and so
    no rows to choose from nor to remember."""
    if dataset is None and (args.draws_prompts or args.what_believes):
        changed = args.changed("prompt_selection", "zero_variance_groups", "advantage_baseline")
        options = ", ".join(f"{name}={getattr(args, name)!r}" for name in changed)
        raise ConfigError(
            f"{what} is None: {options} needs its rows. Give one, or leave that out where an environment supplies the "
            "prompts."
        )
    if isinstance(dataset, Mapping):
        splits = ", ".join(map(str, dataset)) or "none"
        first = next((repr(name) for name in ("train", *dataset) if name in dataset), "...")
        raise ConfigError(
            f"{what} is a {type(dataset).__name__} of splits ({splits}). Give one of them: {what}=dataset[{first}]."
        )
    if isinstance(dataset, str):
        raise ConfigError(f"{what}={dataset!r} is a name. Load it first: datasets.load_dataset({dataset!r})['train'].")


def check_stream(train_set: Any, training_args: Any) -> None:
    """A stream has no other rows to resample from, and no length; of those ahead the promising ones can be chosen."""
    if hasattr(train_set, "__len__"):
        return
    if training_args.zero_variance_groups == "resample":
        raise ConfigError(
            "zero_variance_groups='resample' needs a map-style dataset to draw other prompts from, got "
            f"{type(train_set).__name__}. Load it without streaming, or set zero_variance_groups='drop'."
        )
    if training_args.chooses_prompts and training_args.prompt_selection != "belief":
        raise ConfigError(
            f"prompt_selection={training_args.prompt_selection!r} needs a map-style dataset to choose from, got "
            f"{type(train_set).__name__}. Load it without streaming, or set prompt_selection='belief', which reads a "
            "stream ahead, or 'shuffle'."
        )
    if training_args.max_steps <= 0:
        raise ConfigError("a stream has no length: set max_steps, or dataset_streaming: false.")


def check_rows(rows: int, args: Any) -> None:
    """The training set must fill a generation batch, and hold other prompts where some are to be resampled.

    Args:
        rows (`int`): of the training set.
        args ([`GRPOPlusConfig`]): the configuration.
    """
    prompts = args.generation_batch_size // args.num_generations
    if args.zero_variance_groups == "resample" and rows <= prompts:
        raise ConfigError(
            f"zero_variance_groups='resample' needs more prompts than the {prompts} of one generation batch, the "
            f"dataset has {rows}. Use a larger dataset, a smaller generation batch, or zero_variance_groups='drop'."
        )
    if rows < prompts:
        raise ConfigError(
            f"the training set has {rows} rows, and a generation batch takes {prompts} prompts (generation_batch_size "
            f"{args.generation_batch_size} / num_generations {args.num_generations}): not one step could be made. Use "
            "a larger dataset or a smaller generation batch."
        )
