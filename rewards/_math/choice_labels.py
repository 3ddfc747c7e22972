r"""The labels of choices in a cleaned answer: `\text{(B)} 12`, `B. 12`, `\text{Option B}`."""

import re

from .._denials import AFTER_A_NUMBER
from .terms import literal
from .units import split_unit


_IN_TEXT = re.compile(r"\\text\{([^{}]*)\}\s*(.*)", re.DOTALL)
_PARENTHESES = re.compile(r"\(\s*([A-J])\s*\)\s*[.:]?\s*(.*)", re.DOTALL)
_NAMED = re.compile(
    r"(?:(?:[Oo]ption|[Cc]hoice|[Aa]nswer)\s*(?:is\b|:)?|选项?|答案是?:?)\s*"
    r"(?:\(([A-J])\)|([A-J])(?![A-Za-z0-9]))\s*[.):]?\s*(.*)",
    re.DOTALL,
)
_MARKED = re.compile(r"([A-J])(?:[.:](?:\s+|$)|\)\s*)(.*)", re.DOTALL)
_NO_VALUE = re.compile(r"[+*/^_=<>,;|!']|\\(?:cdot|times|cup|cap|div|pm|in|le|ge|ne|to|frac)(?![A-Za-z])|-")
_ANOTHER = re.compile(r"\(\s*[A-J]\s*\)|(?<![A-Za-z\\])[A-J](?:[.:)]|\s*$)")


def labelled(text: str, gold: bool = False) -> tuple[str, str] | None:
    r"""Return the label and the value of a choice in a cleaned answer; `None` if the answer has no label.

    The value is "" if the answer is a label alone. In a gold, only a letter in parentheses before a value is a label,
    because `C: y=2x` may be the name of a curve.

    Example:
        >>> labelled(r"\text{(B)} 12"), labelled(r"\text{Option B}"), labelled("(A)(B)"), labelled("(B)+1")
        (('B', '12'), ('B', ''), None, None)
    """
    inside = _IN_TEXT.match(text)
    head, tail = (inside[1].strip(), inside[2].strip()) if inside else (text, "")
    for pattern in (_PARENTHESES,) if gold else (_PARENTHESES, _NAMED, _MARKED):
        if match := pattern.fullmatch(head):
            label, rest = match[1] or match[2], match[match.lastindex or 0].strip()
            break
    else:
        return None
    if inside and rest and not literal(rest):
        rest = rf"\text{{{rest}}}"
    value = f"{rest} {tail}".strip()
    if not value:
        return None if gold else (label, "")
    if _ANOTHER.search(value) or (_NO_VALUE.match(value) and not (inside and value[0] in "-\\")):
        return None
    if not inside and literal(split_unit(value)[0]) is None:
        return None  # the letter is a factor, not a label
    return label, value


def denies(words: str) -> bool:
    """Return whether the words deny or hedge."""
    return not AFTER_A_NUMBER.isdisjoint(re.split(r"[\s.,'-]+", words.casefold()))
