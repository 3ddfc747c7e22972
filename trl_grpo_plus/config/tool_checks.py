"""Checks of tools and environments, which TRL would make once the model is loaded, or not before a step fails."""

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MethodType
from typing import Any

from accelerate.logging import get_logger

from ..scoring import datasets_named, first_prompt
from ..utils.signatures import name_of, signature_of
from ..utils.tables import in_short
from ..utils.text import as_text
from ..utils.validation import ConfigError


logger = get_logger(__name__)

# How TRL's errors about chat templates begin, what they mean, and the fix.
_TEMPLATES = {
    "The provided chat template does not support tool calling": (
        "does not write tool calls and the answers of tools. Use a model that was trained to call tools, such as "
        "Qwen/Qwen3-0.6B, or save a tokenizer with such a chat_template"
    ),
    "Unrecognized chat template": (
        "is none of those whose tool calls TRL can read. Use a model with one of these, such as Qwen/Qwen3-0.6B, or "
        "save a tokenizer with a response_template, which says how its tool calls are read"
    ),
    "The chat template is not training-compatible": (
        "writes earlier messages in another way once a tool has answered, so the tokens of an attempt would change. "
        "Use a model whose template TRL can repair, such as Qwen/Qwen3-0.6B, or save a tokenizer with a chat_template "
        "that keeps what it has written"
    ),
    "Response parsing for this chat template is only provided as a new-style": (
        "is one whose tool calls TRL reads with transformers 5.13 or newer. Upgrade transformers"
    ),
}


ROWLESS = "the rows that TRL makes where there is no dataset"


def explained(error: str) -> str | None:
    """Return the words for TRL's error about a chat template or an environment; `None` for another error."""
    if error.startswith("Each environment instance returned by"):
        return (
            "environment_factory returns an object without a method reset, which begins an attempt. Return the "
            "environment, and add `def reset(self, **row)` to its class."
        )
    why = next((why for begins, why in _TEMPLATES.items() if error.startswith(begins)), None)
    return why and f"tools and environment_factory: the model's chat template {why}."


def check_template(tokenizer: Any, called: bool) -> None:
    """Refuse a tokenizer with whose chat template TRL cannot call tools.

    Args:
        tokenizer: the model's.
        called (`bool`): whether there are tools. For an environment without any, TRL asks less of the template.

    Raises:
        ConfigError: TRL would refuse the chat template.
    """
    from trl import chat_template_utils as templates  # it is slow to import

    tried = copy.copy(tokenizer)  # TRL sets how replies are parsed
    try:
        if not templates.supports_tool_calling(tried):
            raise ValueError(next(iter(_TEMPLATES)))
        if not called:
            return
        if not any(getattr(tried, name, None) for name in ("response_template", "response_schema")):
            templates.add_response_schema(tried)
        if not templates.is_chat_template_prefix_preserving(tried):
            templates.get_training_chat_template(tried)
    except Exception as error:  # a template's own, too
        failed = f"tools and environment_factory: the model's chat template fails: {in_short(error)}"
        raise ConfigError(explained(str(error)) or failed) from None


def tools_of(environment: Any) -> list[Callable[..., Any]]:
    """Return the methods of an environment that the model may call.

    Static and class methods are left out: some releases of TRL take them as tools, others do not.

    Args:
        environment: class of the environment. A function that makes environments has to be called to tell, so it
            counts as without tools here.
    """
    if not isinstance(environment, type):
        return []
    # Bound, so that a method's signature is the one that the model is told.
    return [
        MethodType(method, environment)
        for name, method in inspect.getmembers(environment, inspect.isfunction)
        if not name.startswith("_") and name not in ("reset", "get_reward") and _has_self(environment, name)
    ]


def _has_self(environment: type, name: str) -> bool:
    return inspect.isfunction(inspect.getattr_static(environment, name, None))


def check_described(tools: Iterable[Callable[..., Any]]) -> None:
    """Refuse tools that chat templates cannot describe to the model: they need a docstring and type hints."""
    from transformers.utils import get_json_schema

    for tool in tools:
        try:
            get_json_schema(tool)
        except Exception as error:
            raise ConfigError(
                f"the tool {name_of(tool)} cannot be described to the model: {error} Give it type hints "
                "and a docstring: a text, and below `Args:` a line `NAME: ...` for each argument. "
                "A method that is no tool has a name that begins with _."
            ) from None


def warn_of_unread_answers(completions: Iterable[Any], write: Callable[[list[dict[str, Any]]], Any]) -> None:
    """Warn of tools that return lists which the chat template leaves out, so that the model does not read them.

    TRL makes a list that a tool returns the content of a message, as blocks of text and images. Many templates leave
    out what is neither, and some leave out all blocks.

    Args:
        completions (`Iterable`): completions, of which only those with messages are looked at.
        write (`Callable`): turns messages into a text with the model's chat template.
    """
    messages = [
        message for one in completions if isinstance(one, list) for message in one if message["role"] == "tool"
    ]
    listed = {one["name"]: one for one in messages if isinstance(one["content"], list) and as_text([one])}
    for name, answer in listed.items():
        try:
            unread = _written(write, answer) == _written(write, {**answer, "content": ""})
        except Exception:  # the template's own: TRL has written the answer in another way
            continue
        if unread:
            kind = type(answer["content"][0]).__name__
            logger.warning_once(
                f"The tool {name} returned a list of {kind} values. TRL gives the list to the chat template, which "
                "writes nothing of it, so the model does not see this answer. Let the tool return a text, such as "
                "json.dumps(answer)."
            )


def _written(write: Callable[[list[dict[str, Any]]], Any], answer: dict[str, Any]) -> Any:
    call = {"type": "function", "function": {"name": answer["name"], "arguments": {}}}
    calling = {"role": "assistant", "content": "", "tool_calls": [call]}
    return write([{"role": "user", "content": ""}, calling, answer])


def check_made(environment: Callable[..., Any]) -> None:
    """Refuse an environment that cannot be made without arguments, or whose class has no `reset`."""
    if not callable(environment):
        raise ConfigError(
            f"environment_factory={environment!r} cannot be called to make an environment. Give a class, or a "
            "function without arguments that makes the environment."
        )
    name = name_of(environment)
    if (why := _refuses(environment)) is not None:
        raise ConfigError(
            f"environment_factory: {name} is called without arguments, and this fails: {why}. Give its arguments "
            "default values, or name a function without arguments that makes the environment."
        )
    if isinstance(environment, type) and not callable(getattr(environment, "reset", None)):
        raise ConfigError(
            f"environment_factory: {name} has no method reset, which begins an attempt. Add "
            "`def reset(self, **row)`. It may return a text, which is added to the prompt."
        )


def check_length(train_dataset: Any, max_steps: int) -> None:
    """Refuse an environment without a dataset if `max_steps` does not say how long the run is."""
    if train_dataset is None and max_steps <= 0:
        raise ConfigError(
            f"train_dataset is None, and max_steps={max_steps}: nothing says how long the run is. Set max_steps to a "
            "positive number, or give a dataset."
        )


def check_conversations(train_dataset: Any, eval_dataset: Any) -> None:
    """Refuse plain texts as prompts: a conversation is what tool calls and the answers of tools are added to."""
    for what, dataset in datasets_named(train_dataset, eval_dataset).items():
        if isinstance(text := first_prompt(dataset), str):
            raise ConfigError(
                f"{what}: with tools a prompt must be a list of messages such as "
                f"{{role: user, content: ...}}. The first one is the text {text!r:.80}."
            )


def check_resets(environments: Any, datasets: Mapping[str, Any]) -> None:
    """Refuse an environment whose `reset` does not take the columns of its rows, as far as these are known.

    Args:
        environments: one environment, alone or under the key `None`, or several by name. The column `environment`
            then has each row's, and TRL does not pass that column on.
        datasets (`Mapping[str, Any]`): the datasets by the names that errors use. Without a `train_dataset` TRL makes
            rows of empty prompts.
    """
    by_name = environments if isinstance(environments, Mapping) else {None: environments}
    for what, rows in datasets.items():
        columns, used = _columns_dealt(rows), {None}
        if what == "train_dataset" and rows is None:
            columns, what = ["prompt"], ROWLESS
        if None not in by_name:
            used = {*rows.unique("environment")} if "environment" in columns and hasattr(rows, "unique") else set()
            columns = [name for name in columns if name != "environment"]
        for name in [name for name in by_name if name in used]:
            check_reset(by_name[name], columns, what)


def _columns_dealt(dataset: Any) -> list[str]:
    """Return the names of a row's columns; [] if a transform makes the rows, or a stream does not know them."""
    given = getattr(dataset, "format", None) or {}
    if given.get("type") == "custom":
        return []
    only = None if given.get("output_all_columns") else given.get("columns")
    return list(only or getattr(dataset, "column_names", None) or ())


def check_reset(environment: Any, columns: Sequence[str], what: str) -> None:
    """Refuse an environment whose `reset` does not take the columns of the rows that the error calls `what`."""
    if not isinstance(environment, type) or not columns or not _has_self(environment, "reset"):
        return
    if (why := _refuses(environment.reset, None, **dict.fromkeys(columns))) is not None:  # type: ignore[attr-defined]
        raise ConfigError(
            f"environment_factory: reset of {name_of(environment)} gets each column of {what} as an argument, and "
            f"this fails: {why}. The columns are {', '.join(map(repr, columns))}. Name them as arguments of reset, or "
            "add **row, which takes all others."
        )


def _refuses(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> str | None:
    """Return why a call does not fit a function's parameters; `None` if it does, or if they are not known."""
    try:
        signature_of(function, follow_wrapped=False).bind(*args, **kwargs)  # a decorator may drop arguments
    except TypeError as error:
        return str(error)
    except ValueError:
        return None
    return None
