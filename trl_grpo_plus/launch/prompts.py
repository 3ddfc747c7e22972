"""What can be told of data and model before the model is loaded: each check raises `ValueError`, with what to do about
it."""

import os
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from ..common.signatures import name_of
from ..common.values import Refusal, near
from ..groups import check_filter_metric, check_weights
from ..selection import check_rows, check_stream
from .data import beside, looks_local


def check_model(name: str | None) -> None:
    """There must be a model, and the folder where its name is a path."""
    if not name:
        raise Refusal("model_name_or_path is missing.")
    if not looks_local(name) or os.path.isdir(os.path.expanduser(name)):
        return
    raise Refusal(
        f"model_name_or_path: there is no folder {name}.{beside(name)} Give a folder that `save_pretrained` "
        "wrote, or an id on the Hub."
    )


def pick_splits(dataset: Any, train_split: str, evaluated: bool) -> tuple[Any, dict[str, Any] | None]:
    """The training set, and the sets to evaluate on by name: every other split, where evaluation is on."""
    if train_split not in dataset:
        raise Refusal(
            f"dataset_train_split: the data has no split {train_split!r}, only {', '.join(dataset)}."
            f"{near(train_split, dataset)}"
        )
    if not evaluated:
        return dataset[train_split], None
    others = {name: split for name, split in dataset.items() if name != train_split}
    if not others:
        raise Refusal(
            "Evaluation is on, but the data has no split besides the one that is trained on. Give data with another "
            "split, or set eval_strategy: 'no', do_eval: false and eval_on_start: false."
        )
    return dataset[train_split], others


def check_data(
    train_set: Any, eval_sets: Mapping[str, Any] | None, rewards: Sequence[Any], training_args: Any
) -> None:
    """All sets need prompts, the training set rows for a step. What the rewards read is the trainer's to check."""
    check_prompts(train_set, "train_dataset")
    for name, rows in (eval_sets or {}).items():
        check_prompts(rows, f"eval_dataset {name}")
    check_filter_metric(training_args.filter_metric, [reward_name(reward) for reward in rewards])
    check_weights(training_args.reward_weights, training_args)
    check_stream(train_set, training_args)
    if hasattr(train_set, "__len__"):
        check_rows(len(train_set), training_args)


def check_prompts(dataset: Any, what: str) -> None:
    """There must be a column `prompt`, of texts or of messages, none of them empty."""
    columns = getattr(dataset, "column_names", None)
    if columns is None:  # a stream that does not know them
        return
    if "prompt" not in columns:
        raise Refusal(
            f"{what} has no column 'prompt', only {', '.join(columns)}.{near('prompt', columns)} Rename one, or make "
            "it in a function of your own: prepare: file.py:function."
        )
    first = next((row["prompt"] for row in islice(dataset, 1)), "")
    if first is not None and not isinstance(first, str) and not is_conversation(first):
        raise Refusal(
            f"{what}: a prompt must be a text or a list of messages such as {{role: user, content: ...}}, the first "
            f"one is {first!r:.80}."
        )
    if hasattr(dataset, "__len__") and (empty := _empty_prompts(dataset)):
        rows = ", ".join(map(str, empty[:3])) + (", ..." if len(empty) > 3 else "")
        raise Refusal(
            f"{what}: {len(empty)} of {len(dataset)} prompts {'is' if len(empty) == 1 else 'are'} empty, row {rows} "
            "(counted from 0). Leave such rows out: dataset.filter(lambda row: row['prompt']), or in the file."
        )


def _empty_prompts(dataset: Any) -> list[int]:
    """Rows whose prompt is null, a text of blanks or a list without messages. A million rows take about a second."""
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.compute as compute  # type: ignore[import-untyped]

    column = dataset.select_columns("prompt").with_format("arrow")[:]["prompt"]
    if pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type):
        size = compute.utf8_length(compute.utf8_trim_whitespace(column))
    elif pyarrow.types.is_list(column.type) or pyarrow.types.is_large_list(column.type):
        size = compute.list_value_length(column)
    else:
        size = column
    empty = size.is_null() if size is column else compute.equal(compute.fill_null(size, 0), 0)
    return compute.indices_nonzero(empty).to_pylist()


def is_conversation(prompt: Any) -> bool:
    """Whether a prompt is a list of messages."""
    return isinstance(prompt, list) and all(isinstance(turn, dict) and "role" in turn for turn in prompt)


def has_messages(dataset: Any) -> bool:
    """Whether its prompts are lists of messages."""
    return any(is_conversation(row.get("prompt")) for row in islice(dataset, 1))


def check_template(dataset: Any, tokenizer: Any, model: str) -> None:
    """Prompts that are messages need a tokenizer with a chat template."""
    if has_messages(dataset) and not tokenizer.chat_template:
        raise Refusal(
            f"the prompts are messages, and the tokenizer of {model} has no chat template to write them with. Use an "
            "instruction-tuned model, save a tokenizer with a chat_template, or make the prompts plain texts."
        )


def reward_name(reward: Any) -> str:
    """What TRL logs a reward under: a function's name, the last part of a model's."""
    return reward.split("/")[-1] if isinstance(reward, str) else name_of(reward)
