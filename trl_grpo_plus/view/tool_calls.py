"""Turns within an attempt: the role of each message, and the position, name and arguments of each tool call."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from ..traces import shown
from ..utils.text import as_text
from .token_credit import places, utf16


# The tags around a call that nobody has parsed out of the model's text.
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"

Call = list[Any]


def roles(completion: Sequence[dict[str, Any]], messages: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Return each message's role, its length in UTF-16 units, and its name (a tool's) if it has one."""
    found = []
    for message, (role, text) in zip(completion, messages, strict=True):
        name = message.get("name")
        found.append([role, utf16(text), *([str(name)] if name else [])])
    return found


def calls(completion: Any) -> list[Call]:
    """Return each tool call of a completion, in order, as `[from, to, name, [[argument, value], ...]]`.

    `from` and `to` are offsets in the completion's text, in UTF-16 units.

    Example:
        >>> add = {"function": {"name": "add", "arguments": {"a": 1}}}
        >>> calls([{"role": "assistant", "content": "So:", "tool_calls": [add]}])
        [[4, 42, 'add', [['a', '1']]]]
    """
    if isinstance(completion, str):
        return list(_in_text(completion, 0))
    found: list[Call] = []
    start = 0
    try:
        for message in completion:
            found += _of_message(message, start)
            start += utf16(as_text([message])) + 1
    except (AttributeError, TypeError):  # neither a text nor messages
        return []
    return found


def _of_message(message: dict[str, Any], start: int) -> Iterator[Call]:
    content = as_text([{**message, "tool_calls": None}])
    if message.get("role") == "assistant":
        yield from _in_text(content, start)
    start += utf16(content) + 1 if content else 0
    for call in message.get("tool_calls") or ():
        called = call.get("function", call)  # the same text as utils.text writes
        end = start + utf16(str(called))
        yield [start, end, *_name_and_arguments(called if isinstance(called, dict) else {"name": called})]
        start = end + 1


def _in_text(text: str, start: int) -> Iterator[Call]:
    ends: list[int] = []
    called = []
    end = 0
    while (close := text.find(_CLOSE, end)) >= 0:
        opening, end = text.rfind(_OPEN, end, close), close + len(_CLOSE)
        if opening < 0:
            continue
        try:
            value = json.loads(text[opening + len(_OPEN) : close])
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            ends += (opening, end)
            called.append(_name_and_arguments(value))
    units = places(text, ends, start)
    for first, last, name_and_arguments in zip(units[::2], units[1::2], called, strict=True):
        yield [first, last, *name_and_arguments]


def _name_and_arguments(called: dict[str, Any]) -> tuple[str, list[list[str]]]:
    """Return a call's name and arguments. The arguments may be given as a JSON string."""
    given = called.get("arguments")
    if isinstance(given, str):
        with contextlib.suppress(ValueError, RecursionError):
            given = json.loads(given)
    if not isinstance(given, dict):
        given = {} if given is None else {"": given}
    return str(called.get("name")), [[str(key), shown(value)] for key, value in given.items()]
