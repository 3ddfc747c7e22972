"""What can be told of data before the model is loaded."""

from itertools import islice
from typing import Any

from ..common.signatures import name_of
from ..common.values import near


def wrong_prompts(dataset: Any, what: str) -> str | None:
    """Why a set cannot be trained on: no column `prompt`, one of neither texts nor messages, or empty prompts."""
    columns = getattr(dataset, "column_names", None)
    if columns is None:  # a stream that does not know them
        return None
    if "prompt" not in columns:
        return (
            f"{what} has no column 'prompt', only {', '.join(columns)}.{near('prompt', columns)} Rename one, or make "
            "it in a function of your own: prepare: file.py:function."
        )
    first = next((row["prompt"] for row in islice(dataset, 1)), "")
    if first is not None and not isinstance(first, str) and not is_conversation(first):
        return (
            f"{what}: a prompt must be a text or a list of messages such as {{role: user, content: ...}}, the first "
            f"one is {first!r:.80}."
        )
    if not hasattr(dataset, "__len__") or not (empty := _empty_prompts(dataset)):
        return None
    rows = ", ".join(map(str, empty[:3])) + (", ..." if len(empty) > 3 else "")
    return (
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


def reward_name(reward: Any) -> str:
    """What TRL logs a reward under: a function's name, the last part of a model's."""
    return reward.split("/")[-1] if isinstance(reward, str) else name_of(reward)
