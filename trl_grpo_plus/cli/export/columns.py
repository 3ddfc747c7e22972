"""A line of a trace as a row of a table.

The types depend only on the names of the rewards, and on whether prompts and completions are text or messages. Tables
of two runs with the same rewards can therefore be joined.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import orjson

from ...traces import Row, attempt_label
from ...utils.files import TracesError
from ...utils.text import written


_LONE = re.compile("[\ud800-\udfff]")
_SPEAKER = {"prompt": "user", "completion": "assistant"}


class Column(NamedTuple):
    """A column of the table.

    Attributes:
        kind (`str`): a key of [`_CELLS`]; "scores" or "statuses", for a value of each reward; or "written", whose type
            depends on the run.
        about (`str`): description in the dataset card.
    """

    kind: str
    about: str


COLUMNS = {
    "step": Column("int", "the step at which it was logged"),
    "split": Column("text", "`train`, or the evaluation's"),
    "batch": Column("int", "which batch of that step"),
    "round": Column("int", "0, or the resampling round"),
    "group": Column("int", "place in the round; step, split, batch, round and group name a group"),
    "attempt": Column("int", "place in the group"),
    "size": Column("int", "attempts in the group"),
    "prompt": Column("written", "what was asked"),
    "completion": Column("written", "what the policy wrote"),
    "reference": Column("json", "the other columns of the dataset's row; JSON"),
    "rewards": Column("scores", "the score of each reward; null if the reward gave no score"),
    "outcomes": Column("statuses", "for each reward `ok`, `abstain`, `too_long`, `timeout`, `error` or `starved`"),
    "steps": Column("json", "for each reward that scored steps `[[end, reward], ...]`, offsets in the text; JSON"),
    "reward": Column("float", "the weighted total; null if no reward scored the attempt"),
    "advantage": Column("float", "the advantage in training; null for a live group that was not needed"),
    "advantages": Column(
        "pairs", "the advantages of tokens, if tokens have their own: `[[end, advantage], ...]`, offsets in the text"
    ),
    "verdict": Column(
        "text", "of the group: `alive`, `low_variance`, `all_good`, `all_bad`, `tied`, `unscored` or `truncated`"
    ),
    "kept": Column("flag", "whether the group was trained on"),
    "reason": Column("text", "why the group was not trained on"),
    "tokens": Column("int", "number of tokens that the policy wrote"),
    "truncated": Column("flag", "whether the attempt was cut off at the length limit"),
    "kl": Column("float", "KL to the reference model when the attempt was sampled, mean over tokens"),
    "belief": Column("json", "belief about the prompt before the attempt was sampled: mean and std of a reward; JSON"),
    "returned": Column("json", "what a rollout_func returned for the attempt; JSON"),
    "extra": Column("json", "what reward functions logged about the attempt; JSON"),
    "alarms": Column("texts", "those that name its group"),
}


def clean(text: str) -> str:
    """Replace each lone surrogate, which UTF-8 cannot encode, by U+FFFD. The length, and so every offset, is kept."""
    return _LONE.sub("\ufffd", text)


def as_json(value: Any) -> str:
    """Return a value as JSON that is valid UTF-8. Lone surrogates become escapes; integers may be of any size."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(value, separators=(",", ":"))


def listed(names: Iterable[str]) -> str:
    """Join names with commas. A name that is empty or not printable is written as a Python literal."""
    return ", ".join(name if name.isprintable() and name else ascii(name) for name in names)


def flat(row: Row, written_as: dict[str, str], rewards: Iterable[str], dropped: Collection[str]) -> Row:
    """Convert a line of a trace into a row of plain data.

    Args:
        row (`dict`): a line of a trace.
        written_as (`dict[str, str]`): "prompt" and "completion" -> "text", "messages" or "JSON".
        rewards (`Iterable[str]`): names of all rewards of the run.
        dropped (`Collection[str]`): columns, and `reference.KEY`, to leave out.

    Raises:
        TracesError: a value does not fit its column.
    """
    cells: Row = {}
    for name, column in COLUMNS.items():
        if name in dropped:
            continue
        value = row.get(name)
        try:
            if column.kind in ("scores", "statuses"):
                cells[name] = _of_each(value or {}, rewards, _CELLS["float" if column.kind == "scores" else "text"])
            elif value is None:
                cells[name] = None
            elif column.kind == "written":
                cells[name] = _written(value, written_as[name], _SPEAKER[name])
            elif name == "reference":
                cells[name] = as_json({key: item for key, item in value.items() if f"{name}.{key}" not in dropped})
            else:
                cells[name] = _CELLS[column.kind](value)
        except (TypeError, ValueError, AttributeError) as error:
            where = f"{name} of {attempt_label(row)} in the traces"
            raise TracesError(f"{where}: {error}. Correct or remove that line.") from None
    return cells


def _of_each(values: dict[str, Any], rewards: Iterable[str], cell: Callable[[Any], Any]) -> Row:
    return {clean(name): None if (value := values.get(name)) is None else cell(value) for name in rewards}


def _written(value: Any, kind: str, speaker: str) -> Any:
    if kind == "text":
        return clean(value)
    if kind == "JSON":
        return as_json(value)
    messages = [{"role": speaker, "content": value}] if isinstance(value, str) else value
    return [_message(message) for message in messages]


def _message(message: dict[str, Any]) -> dict[str, str | None]:
    """Convert a message into its role, its content, and `other`, the JSON of everything else.

    `other` holds tool calls, names, and content in parts. The text of such parts is also in `content`.
    """
    content = message.get("content")
    plain = content is None or isinstance(content, str)
    other = {key: value for key, value in message.items() if key != "role" and not (plain and key == "content")}
    text = content if plain else written(content)
    return {
        "role": clean(message["role"]),
        "content": None if text is None else clean(text),
        "other": as_json(other) if other else None,
    }


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


# kind -> function from a value to a cell
_CELLS: dict[str, Callable[[Any], Any]] = {
    "int": int,
    "float": float,
    "flag": _flag,
    "text": clean,
    "texts": lambda values: [clean(value) for value in values],
    "pairs": lambda values: [[None if number is None else float(number) for number in pair] for pair in values],
    "json": as_json,
}
