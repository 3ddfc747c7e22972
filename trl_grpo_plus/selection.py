"""What may be trained on, and where prompts beyond the ones that TRL's own sampler deals come from."""

from collections.abc import Mapping
from typing import Any

from .common.values import Refusal
from .streams import PromptStream


def stream_of(train_set: Any, args: Any) -> PromptStream:
    """Where a training set's other prompts come from; refuses one that has none."""
    check_stream(train_set, args)
    check_rows(len(train_set), args)
    return PromptStream(len(train_set), args.seed)


def check_dataset(dataset: Any, what: str) -> None:
    """What is trained on must be one data set, loaded."""
    if isinstance(dataset, Mapping):
        splits = ", ".join(map(str, dataset)) or "none"
        first = next((repr(name) for name in ("train", *dataset) if name in dataset), "...")
        raise Refusal(
            f"{what} is a {type(dataset).__name__} of splits ({splits}). Give one of them: {what}=dataset[{first}]."
        )
    if isinstance(dataset, str):
        raise Refusal(f"{what}={dataset!r} is a name. Load it first: datasets.load_dataset({dataset!r})['train'].")


def check_stream(train_set: Any, training_args: Any) -> None:
    """A stream has no other rows to resample from, and no length."""
    if hasattr(train_set, "__len__"):
        return
    if training_args.zero_variance_groups == "resample":
        raise Refusal(
            "zero_variance_groups='resample' needs a map-style dataset to draw other prompts from, got "
            f"{type(train_set).__name__}. Load it without streaming, or set zero_variance_groups='drop'."
        )
    if training_args.max_steps <= 0:
        raise Refusal("a stream has no length: set max_steps, or dataset_streaming: false.")


def check_rows(rows: int, args: Any) -> None:
    """The training set must fill a generation batch, and hold other prompts where some are to be resampled.

    Args:
        rows (`int`): of the training set.
        args ([`GRPOPlusConfig`]): the configuration.
    """
    prompts = args.generation_batch_size // args.num_generations
    if args.zero_variance_groups == "resample" and rows <= prompts:
        raise Refusal(
            f"zero_variance_groups='resample' needs more prompts than the {prompts} of one generation batch, the "
            f"dataset has {rows}. Use a larger dataset, a smaller generation batch, or zero_variance_groups='drop'."
        )
    if rows < prompts:
        raise Refusal(
            f"the training set has {rows} rows, and a generation batch takes {prompts} prompts (generation_batch_size "
            f"{args.generation_batch_size} / num_generations {args.num_generations}): not one step could be made. Use "
            "a larger dataset or a smaller generation batch."
        )
