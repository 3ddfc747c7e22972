"""How a text names one of several choices: where it says so, and in what dress. All in time linear in the text."""

import re
from collections.abc import Iterator

from ._text import after_thinking, answer_of


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

_COMMANDS = r"\\(?:boxed|text|textbf|textrm|mathrm|mathbf)\s{0,9}"
_OPTION = r"(?:[Oo]ption |[Cc]hoice )?"
_LETTER = re.compile(_OPTION + r"(?:\(([A-Z])\)|([A-Z])\)?)\.?", re.ASCII)
_LETTER_AND_TEXT = [
    re.compile(pattern, re.ASCII | re.DOTALL)
    for pattern in (
        _OPTION + r"\(?([A-Z])(?:(?<=\(.)\)|(?<!\(.)[.):])\s*(\S.*)",
        _OPTION + r"([A-Z]) ?\((.+)\)\.?",
        r"\*\*\(?([A-Z])\)?[.):]?\*\*[.):]?\s+(\S.*)",
        _COMMANDS + r"\{\(?([A-Z])\)?[.:]?\s?\}(?:\\[ ,;:]|\\q?quad|~|\s)*(\S.*)",
    )
]
_WRAPPED = re.compile(
    _COMMANDS + r"\{(.*)\}|\*\*(.+)\*\*|\*(.+)\*|\$(.+)\$|\\\((.+)\\\)|\\\[(.+)\\\]", re.ASCII | re.DOTALL
)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BOX_OR_BRACE = re.compile(r"\\boxed\s{0,9}\{|\\[{}]|[{}]")
_JOINING = re.compile(
    r"(?=.{0,40}$)(?=.*(?:[,;/&]|or|and))(?:[\s,;/&$(){}\\]|\b(?:or|and|maybe|possibly|perhaps|also|text)\b)*",
    re.IGNORECASE | re.DOTALL,
)
_HEAD = r"(?:(?:final|correct|right|best) )?(?:answer|option|choice)"
_ANSWER_LINE = re.compile(
    rf"(\*{{1,3}})?(?:(?:so|thus|therefore|hence),? )?(?:(?:the|my) )?{_HEAD}"
    r"(?(1)(\1)?)(?: is ?:?| ?:)(?(1)(\1)?)\s*(.+)",
    re.IGNORECASE,
)
_LEAD = re.compile(r"\b(?:the|my|final|correct|right|best) (?:answer|option|choice)(?: is)? ?:[*\s]*$", re.IGNORECASE)
_HEADING = re.compile(rf"(?:the )?{_HEAD}", re.IGNORECASE)


def stated(text: str, think_opened: bool = False) -> str:
    """The part of a completion that states its answer."""
    final = after_thinking(text, think_opened).strip()
    if "<answer>" in final or "</answer>" in final:
        body = (answer_of(final) or "").strip()
        return _after_head(body) or body
    if "\\boxed" in final:
        return _boxed(final)
    head, _, last = final.rpartition("\n")
    said = _after_head(last.strip())
    return said or (last if _leads_to(head.rstrip(" \t"), last.strip()) else final)


def _after_head(line: str) -> str | None:
    """What stands after `Answer:` or `The answer is`; `None` where a text has another beginning, or lines."""
    found = _ANSWER_LINE.fullmatch(line.lstrip("# \t"))
    if not found or (found[1] and not found[2] and not found[3]):  # **Answer: B**
        return found[4].removesuffix(".").removesuffix(found[1]) if found else None
    return found[4]


def _leads_to(head: str, last: str) -> bool:
    """Whether the text before the last line says that this is the answer, or leaves a line in dress to itself."""
    said = head.rstrip()
    line = said[said.rfind("\n") + 1 :]
    if _LEAD.search(line[-100:]) or _HEADING.fullmatch(line[-100:].strip("#*: \t")):
        return True
    return head.endswith("\n") and unwrapped(last) != last


def _boxed(text: str) -> str:
    r"""What stands in the last outermost `\boxed{}`; "" where that is not closed, or is one of several joined."""
    said: set[str] = set()
    last = 0
    for start, inside, end in _boxes(text):
        if end is None:
            return ""
        if not _JOINING.fullmatch(text[last : min(start, last + 50)]):
            said.clear()
        said.add(text[inside:end])
        last = end + 1
    return said.pop() if len(said) == 1 else ""


def _boxes(text: str) -> Iterator[tuple[int, int, int | None]]:
    r"""The outermost `\boxed{}`: where it and its inside begin, and where that ends; `None`: it does not."""
    begin, inside, depth = 0, 0, 0
    for token in _BOX_OR_BRACE.finditer(text):
        sign = token[0]
        if depth == 0 and sign.startswith("\\boxed"):
            begin, inside, depth = token.start(), token.end(), 1
        elif depth and sign.endswith("{") and sign != "\\{":
            depth += 1
        elif depth and sign == "}":
            depth -= 1
            if not depth:
                yield begin, inside, token.start()
    if depth:
        yield begin, inside, None


def chosen(said: str, choices: list[str] | None) -> int | None:
    """The number of the choice that a statement names; `None` where it names none, or more than one."""
    said = unwrapped(said)
    place = letter(said, len(choices or LETTERS))
    if place is not None or not choices:
        return place
    texts = [plain(choice) for choice in choices]
    for pattern in _LETTER_AND_TEXT:
        found = pattern.fullmatch(said)
        place = LETTERS.index(found[1]) if found else len(texts)
        if found and place < len(texts) and texts[place] == plain(found[2]):
            return place
    return texts.index(plain(said)) if plain(said) in texts else None


def letter(text: str, count: int) -> int | None:
    """The number of the choice, of so many, whose letter alone a text is."""
    found = _LETTER.fullmatch(text)
    place = LETTERS.index(found[1] or found[2]) if found else count
    return place if place < count else None


def unwrapped(text: str) -> str:
    r"""A text without `\boxed{}`, `\text{}`, `$...$`, `\(...\)`, `**...**` around it, nor a full stop after these."""
    text = text.strip()
    for _ in range(4):  # $\boxed{\textbf{(B)}}$ and the like
        inside = _WRAPPED.fullmatch(text) or _WRAPPED.fullmatch(text.removesuffix("."))
        if inside and (inside[1] is None or _is_closed(inside[1])):
            text = inside[inside.lastindex or 0].strip()
    return text


def _is_closed(text: str) -> bool:
    """Whether no brace closes that the text has not opened."""
    depth = 0
    for sign in _BRACE.finditer(text):
        depth += {"{": 1, "}": -1}.get(sign[0], 0)
        if depth < 0:
            return False
    return True


def plain(text: str) -> str:
    """A text as it is compared: unwrapped, in small letters, without white space and a full stop at its end."""
    text = " ".join(unwrapped(text).casefold().split())
    return text.removesuffix(".") or text
