r"""The search for the final answer: the last `\boxed{}` or `<answer></answer>`.

The search takes time linear in the text, so it is safe on any text.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import NamedTuple

from .._denials import BESIDE_A_BOX
from .answer_lists import between


_BRACES = re.compile(r"\\boxed\s*\{|\\(?:[{}]|\\(?!boxed))|[{}]", re.DOTALL)
_MOST = 10  # at most this many boxes form one answer

# Text about the form, no answer: `\boxed{}`, `\boxed{...}`, "in `\boxed`".
_MENTION = re.compile(r"\\boxed(?:\s*\{(?:[\s.…]|\\[lc]?dots(?![A-Za-z])|\\[ ,;:!])*\}|(?=[`'\".,;:)]))")
_WORDS = r"(?:(?:so|thus|therefore|hence),?\s+)?(?:the\s+|my\s+)?(?:(?:final|correct)\s+)?(?:answer|solution|result)"
_LEAD = re.compile(
    rf"(?:\*\*\s*{_WORDS}\s*(?:\*\*\s*(?:is\s*:?|:|=)|(?:is\s*:?|:|=)\s*\*\*)|{_WORDS}\s*(?:is\s*:|is(?=[\s$\\])|:|=)"
    r"|there\s+(?:are|is)(?=\s))",
    re.IGNORECASE,
)
_LONGEST_LEAD = 100
_LONGEST_SENTENCE = 300
_SENTENCE_END = re.compile(r"\n|[.!?。]\s")
_WORD = re.compile(r"[^\W\d_]+(?:['’]t)?")
_NUMBER_BEFORE = re.compile(r"[0-9][})\s,;/&|$*\\]*$")
_NUMBER_BEHIND = re.compile(r"[\s,;/&|$*\\]*-?[0-9]")


@dataclass(slots=True)
class _Box:
    opened: int
    start: int
    outer: "_Box | None"  # the box around this box
    end: int | None = None


class _Place(NamedTuple):
    """The positions of a box or a tag in a text, and of its content."""

    opened: int
    start: int
    end: int
    closed: int


def final_answer(text: str) -> str | None:
    r"""Return the content of the last `\boxed{}` or `<answer></answer>`, whichever opens last, or `None`.

    The result is `None` if there is none, or if the last one is cut off or nested. An empty box, or a box of dots,
    only mentions the form and does not count.

    Boxes with nothing but a comma, "and" or "or" between them are one list. Boxes with an equals sign between them are
    one chain. Boxes with a slash, an arrow or "or maybe" between them are a hedge, which is no answer unless all boxes
    hold the same. The same holds for tags.

    "The answer is" or `####` at the beginning of a tag's text is left out, and bold or code around the text. A box in
    a tag is no answer if its sentence in the tag takes the answer back or has another number next to the box.

    Example:
        >>> final_answer(r"so \boxed{\frac{1}{2}}"), final_answer("<answer>72</answer>"), final_answer(r"\boxed{7")
        ('\\frac{1}{2}', '72', None)
        >>> final_answer(r"\boxed{71} or \boxed{72}"), final_answer(r"\boxed{71} / \boxed{72}")
        ('71, 72', None)
    """
    text = _MENTION.sub(" ", text)
    box, tag = text.rfind("\\boxed"), text.rfind("<answer>")
    if box > tag:
        return None if _is_taken_back(text, tag, box) else last_box(text)
    closing = text.find("</answer>", tag)
    if tag < 0 or closing < 0 or text.rfind("<answer>", 0, tag) > text.rfind("</answer>", 0, tag):
        return None
    content = _joined(text, _tags(text, closing + len("</answer>")))
    return None if content is None else _without_lead(content)


def _is_taken_back(text: str, tag: int, box: int) -> bool:
    """Return whether the sentence of a box in a tag hedges, denies it, or gives another number beside the box."""
    closing = text.find("</answer>", max(tag, 0))
    if tag < 0 or closing < box:
        return False
    inside = text[tag + len("<answer>") : closing]
    boxes = [one for one in _boxes(inside) if one.end is not None]
    if not boxes:
        return False
    head = _SENTENCE_END.split(inside[: boxes[0].opened][-_LONGEST_SENTENCE:])[-1]
    tail = _SENTENCE_END.split(inside[(boxes[-1].end or 0) + 1 :][:_LONGEST_SENTENCE])[0]
    words = {word.casefold() for word in _WORD.findall(f"{head} {tail}")}
    return bool(words & BESIDE_A_BOX or _NUMBER_BEFORE.search(head) or _NUMBER_BEHIND.match(tail))


def _without_lead(text: str) -> str:
    text = _undressed(text.strip().removeprefix("####"))
    lead = _LEAD.match(text[:_LONGEST_LEAD])
    return _undressed(text[lead.end() :]) if lead else text


def _undressed(text: str) -> str:
    """Return a text without Markdown's bold or code around all of it."""
    text = text.strip()
    bare = text[:-1] if text.endswith((".", "。")) else text
    for mark in ("**", "`"):
        if len(bare) > 2 * len(mark) and bare.startswith(mark) and bare.endswith(mark) and bare.count(mark) == 2:
            return bare[len(mark) : -len(mark)]
    return text


def last_box(text: str) -> str | None:
    r"""Return the content of the last `\boxed{}`; `None` if there is none, or if it is cut off, nested or a hedge.

    If the last few boxes form one list, the result holds the contents of all of them.
    """
    text = _MENTION.sub(" ", text)
    boxes = _boxes(text)
    if not boxes or boxes[-1].opened != text.rfind("\\boxed") or boxes[-1].end is None or _is_nested(boxes[-1]):
        return None
    closed = takewhile(lambda box: box.end is not None, reversed(boxes))
    return _joined(text, (_Place(box.opened, box.start, box.end or 0, (box.end or 0) + 1) for box in closed))


def has_rival_boxes(text: str) -> bool:
    """Return whether the boxes hold different things and form no list, so that only the last box would count."""
    boxes = _boxes(_MENTION.sub(" ", text))
    contents = {_MENTION.sub(" ", text)[box.start : box.end] for box in boxes if box.end is not None}
    return len(contents) > 1 and last_box(text) in contents


def _tags(text: str, end: int) -> Iterator[_Place]:
    """Yield the places of the `<answer></answer>` pairs before a position, the last pair first."""
    while (closing := text.rfind("</answer>", 0, end)) >= 0 and (end := text.rfind("<answer>", 0, closing)) >= 0:
        yield _Place(end, end + len("<answer>"), closing, closing + len("</answer>"))


def _joined(text: str, places: Iterable[_Place]) -> str | None:
    """Return the content of the last place, joined with the places before it that form one answer.

    The result is `None` if the places are a hedge. `places` begins with the last place.
    """
    contents: list[str] = []
    signs: set[str] = set()
    after: _Place | None = None
    for place in islice(places, _MOST):
        if after is not None:
            sign = between(text[place.closed : after.opened])
            if sign is None:
                break
            signs.add(sign)
        contents.append(text[place.start : place.end])
        after = place
    parts = list(dict.fromkeys(reversed(contents)))
    if len(parts) == 1:
        return parts[0]
    return signs.pop().join(parts) if len(signs) == 1 and signs != {""} else None


def _boxes(text: str) -> list[_Box]:
    """Return all boxes in the order in which they open."""
    boxes: list[_Box] = []
    stack: list[_Box | None] = []  # for each open brace, its box, or `None`
    outer: _Box | None = None
    for match in _BRACES.finditer(text, max(text.find("\\boxed"), 0)):
        token = match[0]
        if token.startswith("\\boxed"):
            outer = _Box(match.start(), match.end(), outer)
            boxes.append(outer)
            stack.append(outer)
        elif token == "{":
            stack.append(None)
        elif token == "}" and stack and (closed := stack.pop()) is not None:
            closed.end, outer = match.start(), closed.outer
    return boxes


def _is_nested(box: _Box) -> bool:
    """Return whether the box is inside a box that closes.

    An outer box that is cut off holds nothing.
    """
    outer = box.outer
    while outer is not None and outer.end is None:
        outer = outer.outer
    return outer is not None
