r"""Where the final answer stands: the last `\boxed{}` or `<answer></answer>`. Linear, so it is safe on any text."""

import re
from dataclasses import dataclass


_BRACES = re.compile(r"\\boxed\s*\{|\\(?:[{}]|\\(?!boxed))|[{}]", re.DOTALL)
_FAR = 30  # characters; blanks without end would make the pattern below quadratic
_BETWEEN_BOXES = re.compile(r"[\s$]*(?:,|;|,?\s*(?:and|or))[\s$]*")


# Not an answer but talk of the form: `\boxed{}`, `\boxed{...}`, "in `\boxed`".
_MENTION = re.compile(r"\\boxed(?:\s*\{(?:[\s.…]|\\[lc]?dots(?![A-Za-z])|\\[ ,;:!])*\}|(?=[`'\".,;:)]))")


@dataclass(slots=True)
class _Box:
    opened: int
    start: int
    outer: "_Box | None"  # the box that it opens in
    end: int | None = None


def final_answer(text: str) -> str | None:
    r"""What the last `\boxed{}` or `<answer></answer>` holds, whichever opens last; `None` where there is none.

    `None` also where it is cut off or nested. An empty box, or one of dots, is no box but a mention of it.
    Boxes with nothing but a comma, "and" or "or" between them are one list.

    Example:
        >>> final_answer(r"so \boxed{\frac{1}{2}}"), final_answer("<answer>72</answer>"), final_answer(r"\boxed{7")
        ('\\frac{1}{2}', '72', None)
        >>> final_answer(r"\boxed{71} or \boxed{72}")
        '71, 72'
    """
    text = _MENTION.sub(" ", text)
    box, tag = text.rfind("\\boxed"), text.rfind("<answer>")
    if box > tag:
        return last_box(text)
    closing = text.find("</answer>", tag)
    if tag < 0 or closing < 0 or text.rfind("<answer>", 0, tag) > text.rfind("</answer>", 0, tag):
        return None
    return text[tag + len("<answer>") : closing]


def last_box(text: str) -> str | None:
    r"""What the last `\boxed{}` holds (the last few, where they are one list); `None`: none, cut off or nested."""
    text = _MENTION.sub(" ", text)
    boxes = _boxes(text)
    if not boxes or boxes[-1].opened != text.rfind("\\boxed") or boxes[-1].end is None or _is_nested(boxes[-1]):
        return None
    found = [text[boxes[-1].start : boxes[-1].end]]
    for before, after in zip(boxes[-2:-12:-1], boxes[:-12:-1], strict=False):
        if before.end is None or not _BETWEEN_BOXES.fullmatch(text[before.end + 1 : after.opened][:_FAR]):
            break
        found.append(text[before.start : before.end])
    return ", ".join(dict.fromkeys(reversed(found)))


def _boxes(text: str) -> list[_Box]:
    """All boxes in the order in which they open."""
    boxes: list[_Box] = []
    stack: list[_Box | None] = []  # what the open braces belong to
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
    """Whether it stands in a box that closes: one that is cut off holds nothing."""
    outer = box.outer
    while outer is not None and outer.end is None:
        outer = outer.outer
    return outer is not None
