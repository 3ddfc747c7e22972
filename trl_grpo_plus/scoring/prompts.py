"""Checks of a dataset's prompts before a run: texts or lists of messages, none of them empty."""

import ast
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from ..utils.tables import in_a_line
from ..utils.validation import ConfigError, did_you_mean


PREPARED = "Rename a column of the data, or make the column in a function of yours (prepare: file.py:function)."
# Functions that parse a text with a list of messages.
READERS: dict[str, Callable[[str], Any]] = {"json.loads": json.loads, "ast.literal_eval": ast.literal_eval}
_MESSAGES = re.compile(r"\[\s*\{.*['\"]role['\"]\s*:.*\}\s*\]", re.DOTALL)
_SOME = 20  # stored prompts, all of which must be such texts: a task may be about JSON
# Names under which datasets have their prompts.
USUAL = ("prompt", "prompts", "messages", "question", "questions", "instruction", "problem", "input", "query", "text")


def datasets_named(train_dataset: Any, eval_dataset: Any) -> dict[str, Any]:
    """Return a trainer's datasets by the names that error messages use; `eval_dataset` may map names to datasets."""
    evaluated = eval_dataset if isinstance(eval_dataset, Mapping) else {"": eval_dataset}
    names = {f"eval_dataset {name}".strip(): dataset for name, dataset in evaluated.items()}
    return {"train_dataset": train_dataset, **names}


def check_prompts(train_dataset: Any, eval_dataset: Any, read: bool = True) -> None:
    """Refuse a dataset whose prompts would stop TRL in one of its steps.

    Args:
        train_dataset: a `datasets` dataset, or `None`.
        eval_dataset: another dataset, or a mapping of names to datasets.
        read (`bool`, *optional*, defaults to `True`):
            Whether to read the prompts. Prompts of a stream, and prompts that a transform makes, are never read.

    A dataset that does not know its columns is not checked.

    Raises:
        ConfigError: there is no column `prompt`, its values are neither texts nor messages, or some are `None`.
    """
    for what, dataset in datasets_named(train_dataset, eval_dataset).items():
        why = _wrong_column(dataset, what)
        if why is None and read and _is_stored(dataset):
            first = _first(dataset)
            why = _wrong_values(dataset, what, None if _is_pair(first) else first, _null)
        if why:
            raise ConfigError(why)


def check_tokens(train_dataset: Any, eval_dataset: Any, tokenizer: Any) -> None:
    """Refuse prompts from which a tokenizer makes no tokens, and messages if it has no chat template.

    Args:
        train_dataset, eval_dataset: as for [`check_prompts`].
        tokenizer: the run's, or a processor.

    Raises:
        ConfigError: some prompts are empty, or the tokenizer has no chat template.
    """
    for what, dataset in datasets_named(train_dataset, eval_dataset).items():
        if not _is_stored(dataset) or _wrong_column(dataset, what) is not None:
            continue
        messages = is_conversation(_first(dataset))
        if messages and (why := lacks_template(tokenizer)):
            raise ConfigError(f"{what}: {why}")
        # A tokenizer may begin each text with a token of its own.
        begins = not messages and getattr(tokenizer, "tokenizer", tokenizer)(text="")["input_ids"]
        if not begins and (empty := _rows(dataset, _empty)):
            raise ConfigError(_said_empty(dataset, what, empty))


def lacks_template(tokenizer: Any, model: str = "") -> str | None:
    """Return why the tokenizer of a model cannot be given messages; `None` if it can."""
    if getattr(tokenizer, "chat_template", "its own") or "apply_chat_template" in vars(type(tokenizer)):
        return None
    of = model or getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
    return (
        f"the prompts are messages, but the tokenizer of {of} has no chat template for them. Use an "
        "instruction-tuned model, save a tokenizer with a chat_template, or make the prompts plain texts."
    )


def wrong_prompts(dataset: Any, what: str) -> str | None:
    """Return why a recipe's dataset cannot be trained on; `None` if it can.

    The reasons are: there is no column `prompt`, its values are neither texts nor messages, or some prompts are empty
    or blank. Of a stream, and of rows that a transform makes, only the first row is read.
    """
    if why := _wrong_column(dataset, what, PREPARED):
        return why
    row = next(iter(dataset), {"prompt": ""})
    if "prompt" not in row:
        return _without_prompts([*row], f"{what}, as its transform or its stream makes it,", PREPARED)
    return _wrong_values(dataset, what, row["prompt"], _blank)


def is_conversation(prompt: Any) -> bool:
    """Return `True` if a prompt is a list of messages."""
    return isinstance(prompt, list) and all(isinstance(turn, dict) and "role" in turn for turn in prompt)


def has_messages(dataset: Any) -> bool:
    """Return `True` if the first prompt of a dataset is a list of messages."""
    return any(is_conversation(row.get("prompt")) for row in islice(dataset, 1))


def first_prompt(dataset: Any) -> Any:
    """Return the first prompt of a dataset if it is stored there, else `None`."""
    if not _is_stored(dataset) or "prompt" not in dataset.column_names or not len(dataset):
        return None
    return _first(dataset)


def columns_given(dataset: Any, needed: Iterable[str]) -> list[str]:
    """Return the names of the columns that a dataset's rows have when they are read; [] if it does not know them.

    A transform (`with_transform`) may make other columns than the stored ones. It is called for the first row if a
    `needed` column is not stored. Otherwise it is not called, because it may draw random numbers.

    Raises:
        ConfigError: the transform fails.
    """
    stored = list(getattr(dataset, "column_names", None) or ())
    if {*needed} <= {*stored} or not (_is_transformed(dataset) and hasattr(dataset, "__len__") and len(dataset)):
        return stored
    try:
        return [*dataset[0]]
    except Exception as error:
        raise ConfigError(f"the transform of the dataset failed at its first row: {in_a_line(error)}.") from error


def _wrong_column(dataset: Any, what: str, advice: str = "") -> str | None:
    columns = getattr(dataset, "column_names", None)
    if columns is None or "prompt" in columns or _is_transformed(dataset):
        return None
    return _without_prompts(columns, what, advice)


def _without_prompts(columns: Sequence[str], what: str, advice: str) -> str:
    if not columns:
        return f"{what} has no columns, as a dataset without rows has. Give it rows with a column 'prompt'."
    near = did_you_mean("prompt", columns)
    return (
        f"{what} has no column 'prompt', the text or the messages to complete. It has "
        f"{', '.join(map(repr, columns))}.{near} {advice or _renaming(columns, bool(near))}"
    )


def _renaming(columns: Sequence[str], named: bool) -> str:
    """Return the advice to rename the likeliest column, if any. `named`: the message names the column already."""
    by_name = {column.lower(): column for column in reversed(columns)}
    likely = next((by_name[name] for name in USUAL if name in by_name), None)
    how = f"dataset.rename_column({likely or 'question'!r}, 'prompt')"
    if likely is None:
        return f"Rename the column that holds the prompts, as in {how}."
    advice = f"Rename it: {how}." if named else f"If it is {likely!r}, rename it: {how}."
    answered = " Remove the assistant's last message, if the messages end with it: it is the answer."
    return advice + (answered if likely.lower() == "messages" else "")


def _wrong_values(dataset: Any, what: str, first: Any, mask: Any) -> str | None:
    """Return a message about a first prompt of another kind, or about stored prompts in the mask."""
    if first is not None and (why := _wrong_kind(first, what)):
        return why
    if isinstance(first, str) and (why := _unparsed(first, what)):
        some = dataset[:_SOME]["prompt"] if _is_stored(dataset) else [first]
        if all(isinstance(prompt, str) and _MESSAGES.fullmatch(prompt.strip()) for prompt in some):
            return why
    return _said_empty(dataset, what, empty) if _is_stored(dataset) and (empty := _rows(dataset, mask)) else None


def _is_pair(prompt: Any) -> bool:
    """Return whether a prompt is two texts. A tokenizer makes one sequence of them, and TRL trains on it."""
    return isinstance(prompt, list) and len(prompt) == 2 and all(isinstance(text, str) for text in prompt)


def _wrong_kind(prompt: Any, what: str) -> str | None:
    if isinstance(prompt, str):
        return None
    form = f"{what}: a prompt must be a text or a list of messages such as {{role: user, content: ...}}."
    if not is_conversation(prompt):
        return f"{form} The first one is {prompt!r:.80}."
    lacking = next((turn for turn in prompt if "content" not in turn), None)
    return None if lacking is None else f"{form} The first one has a message without content: {lacking!r:.80}."


def _unparsed(prompt: str, what: str) -> str | None:
    """Return the advice to parse a text that holds a list of messages, as a CSV file does; `None` for another text."""
    text = prompt.strip()
    if not _MESSAGES.fullmatch(text):
        return None
    reads = next((name for name, read in READERS.items() if _can(read, text)), None)
    parse = f"Parse them: dataset.map(lambda row: {{'prompt': {reads}(row['prompt'])}}), in a recipe in a function of "
    parse += "yours (prepare: file.py:function)."
    return (
        f"{what}: the prompts are texts that hold lists of messages, so the model would see brackets and quotes. The "
        f"first one is {prompt!r:.80}. {parse if reads else 'Save the messages as JSON lines, not as texts.'}"
    )


def _can(read: Callable[[str], Any], text: str) -> bool:
    try:
        return is_conversation(read(text))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False


def _said_empty(dataset: Any, what: str, empty: Sequence[int]) -> str:
    rows = ", ".join(map(str, empty[:3])) + (", ..." if len(empty) > 3 else "")
    return (
        f"{what}: {len(empty)} of {len(dataset)} prompts {'is' if len(empty) == 1 else 'are'} empty, row {rows} "
        "(counted from 0). Remove these rows from the file, or use dataset.filter(lambda row: row['prompt'])."
    )


def _is_stored(dataset: Any) -> bool:
    """Return whether an Arrow table holds the rows as TRL gets them: no stream, and no transform."""
    return hasattr(dataset, "data") and hasattr(dataset, "__len__") and not _is_transformed(dataset)


def _is_transformed(dataset: Any) -> bool:
    """Return whether a function of the user makes the rows when they are read (`datasets`' `with_transform`)."""
    return (getattr(dataset, "format", None) or {}).get("type") == "custom"


def _first(dataset: Any) -> Any:
    """Return the first prompt as TRL reads it, but without decoded images; "" if there is none."""
    if "Image(" not in str(dataset.features["prompt"]):
        return dataset.select_columns("prompt").with_format(None)[0]["prompt"] if len(dataset) else ""
    values = dataset.select_columns("prompt").with_format("arrow")[:1]["prompt"].to_pylist()
    return values[0] if values else ""


# Each of these functions maps an Arrow column to a mask of its rows. A million rows take 1 ms, except with `_blank`,
# which reads the texts and takes a second.


def _null(column: Any) -> Any:
    return column.is_null()


def _empty(column: Any) -> Any:
    import pyarrow.compute as compute  # type: ignore[import-untyped]

    size = compute.binary_length if _is_text(column) else compute.list_value_length if _is_list(column) else None
    return _null(column) if size is None else compute.equal(compute.fill_null(size(column), 0), 0)


def _blank(column: Any) -> Any:
    import pyarrow.compute as compute

    return _empty(compute.utf8_trim_whitespace(column) if _is_text(column) else column)


def _is_text(column: Any) -> bool:
    from pyarrow import types

    return types.is_string(column.type) or types.is_large_string(column.type)


def _is_list(column: Any) -> bool:
    from pyarrow import types

    return types.is_list(column.type) or types.is_large_list(column.type)


def _rows(dataset: Any, mask: Any) -> list[int]:
    """Return the rows whose prompt is in the mask. A selection's rows are looked up only if there are such prompts."""
    import pyarrow.compute as compute

    column, chosen = dataset.data.column("prompt"), getattr(dataset, "_indices", None)
    # Before pyarrow 26 indices_nonzero ends the process on a column without rows.
    if not len(dataset) or (mask is _null and not column.null_count):
        return []
    found = compute.indices_nonzero(mask(column))
    if chosen is not None and len(found):
        found = compute.indices_nonzero(compute.is_in(chosen.column(0), value_set=found))
    return found.to_pylist()
