"""What rewards share in reading a completion."""

import re
from typing import Any


_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+.-]*)[^\n]*\n(.*?)(?:^[ \t]*```[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)


def text_of(completion: Any) -> str:
    """The text of a completion: itself, or that of the last of TRL's messages ("" where it has none).

    Content in parts, as processors take it, counts by its text parts.
    """
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if completion else None
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if part.get("type") == "text")
    return content if isinstance(content, str) else ""


def after_thinking(text: str, opened: bool = False) -> str:
    """What stands after the last `</think>`; "" where a `<think>` is never closed; all of it where there is none.

    With `opened` the prompt has opened the thinking, so that "" is right where there is no `</think>`.
    """
    head, closing, tail = text.rpartition("</think>")
    if "<think>" in tail or (opened and not closing):
        return ""
    return tail if closing else head + tail


def last_code_block(text: str) -> str:
    """The last fenced block's content, or the whole text where there is none."""
    blocks = _FENCE.findall(text + "\n")  # without a line's end the pattern looks for one again at every character
    return blocks[-1][1] if blocks else text


def answer_of(text: str, opened: bool = False) -> str | None:
    """The body of the last `<answer>...</answer>` after the thinking; `None` where there is none, or no end of it."""
    head, closing, tail = after_thinking(text, opened).rpartition("</answer>")
    _, opening, body = head.rpartition("<answer>")
    return body if closing and opening and "<answer>" not in tail else None
