"""Credit within an attempt: token advantages and step rewards, with positions in the text that a page shows.

Traces count characters of the policy's last message. A page shows all messages as one text, and counts UTF-16 units.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ..traces import Row
from ..utils.text import as_text, content_of
from ..utils.validation import finite_or_none


def utf16(text: str) -> int:
    """Return the length of a text in UTF-16 units, as JavaScript counts."""
    return len(text) + sum(char > "\uffff" for char in text) if not text.isascii() else len(text)


def credit(row: Row) -> dict[str, Any]:
    """Return an attempt's token advantages and step rewards for the page; an empty dict if there are neither.

    Returns:
        `dict`: `heat`, `[[from, to, advantage], ...]`; `steps`, `[[end, reward, name], ...]`, sorted by end.

    Example:
        >>> credit({"completion": "a b", "advantages": [[1, 0.5], [3, -0.5]], "steps": {"r": [[3, 1.0]]}})
        {'heat': [[0, 1, 0.5], [1, 3, -0.5]], 'steps': [[3, 1.0, 'r']]}
    """
    advantages = row.get("advantages") or ()
    scored = [(end, reward, name) for name, steps in (row.get("steps") or {}).items() for end, reward in steps]
    if not (advantages or scored):
        return {}
    start, text = _written_last(row["completion"])
    shown: dict[str, Any] = {}
    if advantages:
        ends = places(text, [0, *(end for end, _ in advantages)], start)
        values = [finite_or_none(value) for _, value in advantages]
        shown["heat"] = [[*stretch, value] for stretch, value in zip(pairwise(ends), values, strict=True)]
    if scored:
        scored.sort(key=lambda step: step[0])
        ends = places(text, [end for end, *_ in scored], start)
        shown["steps"] = [
            [place, finite_or_none(reward), name] for place, (_, reward, name) in zip(ends, scored, strict=True)
        ]
    return shown


def _written_last(completion: Any) -> tuple[int, str]:
    """Return the offset of the policy's last message in the text of all messages, in UTF-16 units, and its content."""
    if isinstance(completion, str):
        return 0, completion
    at = max((i for i, message in enumerate(completion) if message.get("role") == "assistant"), default=0)
    return sum(utf16(as_text([message])) + 1 for message in completion[:at]), content_of(completion)


def places(text: str, ends: Sequence[int], start: int = 0) -> list[int]:
    """Convert ascending offsets in characters into offsets in UTF-16 units, counted from `start`."""
    if text.isascii():
        return [start + end for end in ends]
    found, before = [], 0
    for end in ends:
        start += utf16(text[before:end])
        found.append(start)
        before = end
    return found
