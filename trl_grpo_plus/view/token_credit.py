"""Credit within an attempt: advantages of tokens and rewards of steps, at places in the text that a page shows.

Traces count characters of what the policy wrote last; a page shows all messages as one text, in UTF-16 units.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ..traces import Row
from ..utils.text import as_text, content_of
from ..utils.validation import finite_or_none


def utf16(text: str) -> int:
    """Length of a text in JavaScript."""
    return len(text) + sum(char > "\uffff" for char in text) if not text.isascii() else len(text)


def credit(row: Row) -> dict[str, Any]:
    """Return what an attempt's detail says of its tokens and steps; nothing where it has neither.

    Returns:
        `dict`: `heat`, `[[from, to, advantage], ...]`; `steps`, `[[end, reward, name], ...]`, by end.

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
    """Return where in the text of all messages the policy's last one begins, in UTF-16 units; and what it says."""
    if isinstance(completion, str):
        return 0, completion
    at = max((i for i, message in enumerate(completion) if message.get("role") == "assistant"), default=0)
    return sum(utf16(as_text([message])) + 1 for message in completion[:at]), content_of(completion)


def places(text: str, ends: Sequence[int], start: int = 0) -> list[int]:
    """`start` and so many UTF-16 units, for each of some ascending offsets in characters."""
    if text.isascii():
        return [start + end for end in ends]
    found, before = [], 0
    for end in ends:
        start += utf16(text[before:end])
        found.append(start)
        before = end
    return found
