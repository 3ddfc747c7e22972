"""What rewards share in reading a completion."""

import itertools
import os
import re
import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple


_FENCE = re.compile(r"[ \t]*(?:<answer>[ \t]*|(?:[-*+]|[0-9]{1,9}[.)])[ \t]+)?(`{3,}|~{3,})[ \t]*(.*)", re.DOTALL)
_LANGUAGE = re.compile(r"[\w+.#-]*")
_UNSEEN = {"Cf", "Cc", "Cs", "Mn", "Me"}  # zero-width and control characters, lone surrogates, marks on nothing
_BLANK = set("\u115f\u1160\u2800\u3164\uffa0")  # letters and symbols that show nothing


def text_of(completion: Any, opened: bool = False) -> str:
    """The text of a completion: itself, or that of the last message of the policy's own ("" where there is none).

    TRL's messages hold those of tools, environments and users, too: they say what the policy did not. Of content in
    parts, as processors take it, those of text count. Thinking that TRL has parsed out of the text is put back; with
    `opened` the prompt has opened it.
    """
    if isinstance(completion, str):
        return completion
    said: dict[str, Any] = next((one for one in reversed(completion) if one.get("role") == "assistant"), {})
    thinking = _written(said.get("reasoning_content")) or _written(said.get("thinking"))
    text = _written(said.get("content"))
    return f"{'' if opened else '<think>'}{thinking}</think>{text}" if thinking else text


def _written(content: Any) -> str:
    if isinstance(content, list):
        parts = (part for part in content if isinstance(part, dict) and part.get("type") == "text")
        return "".join(_written(part.get("text")) for part in parts)
    return content if isinstance(content, str) else ""


def written_ids(completion_ids: Sequence[Any], tool_mask: Sequence[Any] | None) -> list[list[int]]:
    """For each completion the tokens that the policy wrote: those that the mask, if there is one, has no 0 for.

    Each may be a list, a tensor or an array.
    """
    tokens = [_integers(ids) for ids in completion_ids]
    if tool_mask is None:
        return tokens
    return [list(itertools.compress(ids, _integers(mask))) for ids, mask in zip(tokens, tool_mask, strict=True)]


def _integers(values: Any) -> list[int]:
    return [int(value) for value in (values.tolist() if hasattr(values, "tolist") else values)]


def after_thinking(text: str, opened: bool = False) -> str:
    """What stands after the last `</think>`; "" where a `<think>` is never closed; all of it where there is none.

    With `opened` the prompt has opened the thinking, so that "" is right where there is no `</think>`.
    """
    head, closing, tail = text.rpartition("</think>")
    if "<think>" in tail or (opened and not closing):
        return ""
    return tail if closing else head + tail


def answer_of(text: str, opened: bool = False) -> str | None:
    """The body of the last `<answer>...</answer>` after the thinking; `None` where there is none, or no end of it."""
    head, closing, tail = after_thinking(text, opened).rpartition("</answer>")
    _, opening, body = head.rpartition("<answer>")
    return body if closing and opening and "<answer>" not in tail else None


def is_seen(char: str) -> bool:
    """Whether a character shows: no white space, nothing of no width, no control character."""
    return not char.isspace() and unicodedata.category(char) not in _UNSEEN and char not in _BLANK


class Block(NamedTuple):
    """A fenced block: its language in small letters ("" where none is said), and what it holds."""

    language: str
    body: str


def code_blocks(text: str) -> list[Block]:
    """The fenced blocks of a text, in order; the last one may lack its end.

    Read as Markdown has them, three or more backticks or tildes and as many at the end, and as models write them: in a
    list, right after `<answer>`, with the end right after the last line's text, or with a tag right after the end.
    """
    lines, blocks, place = text.split("\n"), [], 0
    while place < len(lines):
        opening = _FENCE.match(lines[place])
        place += 1
        if opening and opening[1][0] not in opening[2]:  # else it is code within a line
            body, place = _body(lines, place, opening[1])
            language = _LANGUAGE.match(opening[2]) if opening[2] else None
            blocks.append(Block(language[0].lower() if language else "", _dedented(body)))
    return blocks


def _body(lines: list[str], start: int, fence: str) -> tuple[list[str], int]:
    """A block's lines, and the place of the first line after it."""
    glued = None  # a line that ends with a fence is the last one, unless a proper end is the next fence
    place = start
    for place in range(start, len(lines)):
        bare = lines[place].strip()
        if bare.startswith(fence):
            after = bare.lstrip(fence[0]).lstrip()
            if not after or after.startswith("<"):
                return lines[start:place], place + 1
            if glued is not None:
                break
        elif glued is None and bare.endswith(fence):
            glued = place
    else:
        place = len(lines)
    if glued is None:
        return lines[start:], place
    return [*lines[start:glued], lines[glued].rstrip().rstrip(fence[0])], place


def _dedented(lines: list[str]) -> str:
    """Without the white space that all lines but blank ones begin with."""
    if not lines:
        return ""
    margins = [line[: len(line) - len(line.lstrip(" \t"))] for line in lines if line.strip()]
    margin = os.path.commonprefix(margins)  # noqa: RUF071
    return "".join(f"{line.removeprefix(margin)}\n" for line in lines)
