"""The samplers that `prompt_selection` names, and the checks of the training set for them.

`prompt_selection` is the name of a sampler, the path of a class, or either with arguments, `{"name": ..., "args":
{...}}`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..utils import dataset_rows
from ..utils.dataset_rows import Codes
from ..utils.import_path import is_path, load, target_of
from ..utils.signatures import check_arguments, name_and_args
from ..utils.validation import ConfigError, did_you_mean, error_prefix
from .custom_sampler import CustomSampler
from .samplers import ColumnSampler, LearnabilitySampler, MixtureSampler, Order, PromptSampler, ShuffleSampler


METHODS = ("take", "observe", "metrics", "state_dict", "load_state_dict")


@dataclass(frozen=True)
class Selection:
    """A way of choosing prompts.

    Args:
        make (`Callable`): `make(train_set, args, **arguments) -> PromptSampler`. Its parameters after the first two
            are the arguments that `prompt_selection` takes.
        believes (`bool`): whether the sampler chooses by beliefs about prompts, so that the run keeps beliefs.
        streams (`bool`): whether the sampler can choose among rows of a streamed dataset that are read ahead.
    """

    make: Callable[..., PromptSampler]
    believes: bool = False
    streams: bool = False


def _shuffle(train_set: Any, args: Any) -> PromptSampler:
    return ShuffleSampler(len(train_set), args.seed)


def _belief(train_set: Any, args: Any) -> PromptSampler:
    return LearnabilitySampler(len(train_set), args.seed, pool=args.selection_pool)


def _by_column(train_set: Any, args: Any, column: str, order: Order) -> PromptSampler:
    values = _column(train_set, column)
    with error_prefix(f"prompt_selection: column={column!r}"):
        return ColumnSampler(values, order, args.seed)


def _mixture(train_set: Any, args: Any, column: str, weights: dict[Any, float]) -> PromptSampler:
    values = _column(train_set, column)
    with error_prefix(f"prompt_selection: column={column!r}"):
        return MixtureSampler(values, weights, args.seed)


# To add a sampler: a class in samplers.py, a function here that makes the sampler, and an entry.
SAMPLERS: dict[str, Selection] = {
    "shuffle": Selection(_shuffle),
    "belief": Selection(_belief, believes=True, streams=True),
    "by_column": Selection(_by_column),
    "mixture": Selection(_mixture),
}


def _column(train_set: Any, column: str) -> Codes | list[Any]:
    if column not in train_set.column_names:
        raise ConfigError(
            f"prompt_selection: the training set has no column {column!r}. It has "
            f"{', '.join(map(repr, train_set.column_names))}.{did_you_mean(column, train_set.column_names)}"
        )
    return dataset_rows.encoded_column(train_set, column) or dataset_rows.column(train_set, column)


def believes(selection: Any) -> bool:
    """Return whether a `prompt_selection` chooses by beliefs about prompts."""
    shipped = _shipped(selection)
    return shipped is not None and shipped.believes


def _shipped(selection: Any) -> Selection | None:
    name = name_of(selection)
    return SAMPLERS.get(name) if isinstance(name, str) else None


def name_of(selection: Any) -> Any:
    """Return the name or path of a `prompt_selection`."""
    return _read(selection)[0]


def make_sampler(train_set: Any, args: Any) -> PromptSampler:
    """Make the sampler of a training set that `prompt_selection` names.

    Args:
        train_set ([`~datasets.Dataset`]): the training set.
        args ([`GRPOPlusConfig`]): the configuration.

    Raises:
        ConfigError: the training set cannot be sampled in this way.
    """
    check_stream(train_set, args)
    check_class(args)
    name, arguments = _read(args.prompt_selection)
    if name in SAMPLERS:
        return SAMPLERS[name].make(train_set, args, **arguments)
    return _own(name, train_set, args.seed, arguments)


def _own(path: str, train_set: Any, seed: int, arguments: Mapping[str, Any]) -> PromptSampler:
    sampler = load(path)(train_set, seed, **arguments)
    if missing := [name for name in METHODS if not callable(getattr(sampler, name, None))]:
        raise ConfigError(
            f"prompt_selection={path!r} made a {type(sampler).__name__} without {', '.join(missing)}. A sampler needs "
            f"the methods {', '.join(METHODS)}; see trl_grpo_plus.curriculum.samplers.PromptSampler."
        )
    return CustomSampler(sampler, path, len(train_set))


def _read(selection: Any) -> tuple[Any, dict[str, Any]]:
    """Split a `prompt_selection` into the name or path and the arguments."""
    example = '{"name": "by_column", "args": {"column": "level", "order": "easy_first"}}'
    return name_and_args("prompt_selection", selection, example)


def check_selection(selection: Any) -> None:
    """Refuse a `prompt_selection` that names no sampler, or has wrong arguments for a sampler of [`SAMPLERS`]."""
    name, arguments = _read(selection)
    if isinstance(name, type):
        raise ConfigError(
            f"prompt_selection={selection!r} is a class, and a checkpoint records its path. Give the path: "
            f"{target_of(name)!r}."
        )
    if not isinstance(name, str) or not (name in SAMPLERS or is_path(name)):
        raise ConfigError(
            f"prompt_selection={selection!r} is not one of {', '.join(map(repr, SAMPLERS))}, and not the path of a "
            f'class. With arguments it is {{"name": ..., "args": {{...}}}}.{did_you_mean(str(name), SAMPLERS)}'
        )
    if name in SAMPLERS:
        _check_arguments(name, SAMPLERS[name].make, arguments)


def _check_arguments(name: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    with error_prefix(f"prompt_selection={name!r}"):
        check_arguments(function, arguments, 2, "(train_set, seed, **args)")


def check_class(args: Any) -> None:
    """Check that a user's own class exists at the path in `prompt_selection` and takes the arguments."""
    name, arguments = _read(args.prompt_selection)
    if is_path(name):
        with error_prefix(f"prompt_selection={name!r}"):
            sampler = load(name)
        _check_arguments(name, sampler, arguments)


def check_column(train_set: Any, args: Any) -> None:
    """Check the column that `prompt_selection` names, before the run."""
    name, arguments = _read(args.prompt_selection)
    if "column" in arguments and name in SAMPLERS:
        SAMPLERS[name].make(train_set, args, **arguments)


def check_dataset(dataset: Any, what: str, args: Any) -> None:
    """Check that the training set is one loaded dataset.

    If an environment supplies the prompts, there is no dataset, and no rows to choose from or to remember.
    """
    if dataset is None and (args.draws_prompts or args.what_believes):
        need_rows = {"prompt_selection": args.chooses_prompts}
        need_rows["zero_variance_groups"] = args.zero_variance_groups == "resample"
        need_rows["advantage_baseline"] = args.advantage_baseline == "belief"
        names = [name for name, needs in need_rows.items() if needs]
        options = ", ".join(f"{name}={getattr(args, name)!r}" for name in names)
        raise ConfigError(
            f"{what} is None, but {options} needs rows. Give a dataset. If an environment supplies the prompts, leave "
            f"out {', '.join(names)}."
        )
    if isinstance(dataset, list) or (
        isinstance(dataset, dict) and any(isinstance(of, list) for of in dataset.values())
    ):
        kind = type(dataset).__name__
        raise ConfigError(f"{what} is a {kind}, no Dataset. Make one: datasets.Dataset.from_{kind}(...).")
    if isinstance(dataset, Mapping):
        splits = ", ".join(map(str, dataset)) or "none"
        first = next((repr(name) for name in ("train", *dataset) if name in dataset), "...")
        raise ConfigError(
            f"{what} is a {type(dataset).__name__} of splits ({splits}). Give one of them: {what}=dataset[{first}]."
        )
    if isinstance(dataset, str):
        raise ConfigError(f"{what}={dataset!r} is a name. Load it first: datasets.load_dataset({dataset!r})['train'].")


def check_stream(train_set: Any, training_args: Any) -> None:
    """Check the options for a streamed dataset.

    A stream has no other rows to resample from and no length. A sampler can choose among rows that are read ahead.
    """
    if hasattr(train_set, "__len__"):
        return
    if training_args.zero_variance_groups == "resample":
        raise ConfigError(
            "zero_variance_groups='resample' needs a map-style dataset to draw other prompts from, got "
            f"{type(train_set).__name__}. Load it without streaming, or set zero_variance_groups='skip' or "
            "'drop'."
        )
    shipped = _shipped(training_args.prompt_selection)
    if training_args.chooses_prompts and not (shipped and shipped.streams):
        raise ConfigError(
            f"prompt_selection={training_args.prompt_selection!r} needs a map-style dataset to choose from, got "
            f"{type(train_set).__name__}. Load it without streaming, or set prompt_selection='belief', which reads a "
            "stream ahead, or 'shuffle'."
        )
    if training_args.max_steps <= 0:
        raise ConfigError("a stream has no length: set max_steps, or dataset_streaming: false.")


def check_enough_rows(rows: int, args: Any) -> None:
    """Check that the training set fills a generation batch, and holds more prompts if groups are resampled.

    Args:
        rows (`int`): of the training set.
        args ([`GRPOPlusConfig`]): the configuration.
    """
    prompts = args.generation_batch_size // args.num_generations
    if args.zero_variance_groups == "resample" and rows <= prompts:
        raise ConfigError(
            f"zero_variance_groups='resample' needs more prompts than the {prompts} of one generation batch, but the "
            f"dataset has {rows}. Use a larger dataset, a smaller generation batch, or zero_variance_groups='skip'."
        )
    if rows < prompts:
        raise ConfigError(
            f"the training set has {rows} row{'s' * (rows != 1)}, and a generation batch takes {prompts} prompts "
            f"(generation_batch_size {args.generation_batch_size} / num_generations {args.num_generations}): there "
            "would be no step. Use a larger dataset or a smaller generation batch."
        )
