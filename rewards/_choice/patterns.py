"""The search for the choice that a text names, by its letter or its text, with or without formatting.

All functions take time linear in the text.
"""

import re
from collections.abc import Sequence

from .._math.boxes import last_box
from .._text import after_thinking, answer_of, shown
from .sentences import (
    answer_in,
    first_sentence,
    is_announced,
    is_denied,
    last_line,
    names_a_choice,
    names_another,
    takes_nothing_back,
)


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
DRESS = 1000  # most characters of formatting around a choice's letter or text

_COMMANDS = r"\\(?:boxed|text|textbf|textrm|textit|mathrm|mathbf|mathit)\s{0,9}"
_OPTION = r"(?:(?:[Tt]he )?(?:[Oo]ption|[Cc]hoice|[Ll]etter) )?"
_PREFIX = re.compile(_OPTION)
# In a sentence a small letter needs its parenthesis: "a" is an article, "b" a variable.
_LETTER = re.compile(_OPTION + r"(?:\(([A-Za-z])\)|([A-Z])\)?|([a-z])\))[.。]?", re.ASCII)
_SMALL = re.compile(r"(\*\*)?(\[)?([a-z])(?(2)\])[.。]?(?(1)\*\*)", re.ASCII)
_SMALL_IN_TEXT = re.compile(_COMMANDS + r"\{([a-z])\}", re.ASCII)
# LaTeX's text around the word before a letter, and within its parentheses.
_PARTLY_TEXT = re.compile(
    rf"^{_COMMANDS}\{{\s?((?:[Tt]he )?(?:[Oo]ption|[Cc]hoice|[Ll]etter))\s?\}}[\s~]{{0,9}}"
    rf"|(?<=\(){_COMMANDS}\{{([A-Za-z])\}}(?=\))",
    re.ASCII,
)
_LETTER_AND_TEXT = [
    re.compile(pattern, re.ASCII | re.DOTALL)
    for pattern in (
        _OPTION + r"\(?([A-Za-z])(?:(?<=\(.)\):?|(?<!\(.)[.):])\s*(\S.*)",
        _OPTION + r"\(?([A-Za-z])\)?[.:]?(?:\\[ ,;:]|\\q?quad|~)(?:\\[ ,;:]|~|\s)*(\\text\{.*)",
        _OPTION + r"([A-Z])(?:,| [-\u2013\u2014]) (\S.*)",
        _OPTION + r"\[([A-Za-z])\] (\S.*)",
        _OPTION + r"([A-Z]) ?\((.+)\)[.。]?",
        r"\*\*\(?([A-Z])\)?[.):]?\*\*[.):]?\s+(\S.*)",
        _COMMANDS + r"\{\(?([A-Z])\)?[.:]?\s?\}(?:\\[ ,;:]|\\q?quad|~|\s)*(\S.*)",
    )
]
_TEXT_AND_LETTER = re.compile(rf"(\S.*) \({_OPTION}([A-Z])\)[.。]?", re.ASCII | re.DOTALL)
_QUOTED = re.compile(
    r"\[\[([^\[\]]+)\]\]|\[([^\[\]]+)\]|`([^`]+)`|\"([^\"]+)\"|'([^']+)'|\u201c([^\u201c\u201d]+)\u201d|__((?:[^_]|_(?!_))+)__"
)
_BECAUSE = re.compile(r"(.{1,200}?)(?:,? (?:because|since)|, as) (.+)", re.DOTALL)
_LETTER_AND_SENTENCE = re.compile(
    r"(\*{0,2}\(?[A-Za-z]\)\*{0,2}|\*{0,2}[A-Z][.:]\*{0,2})\s+(\S.*)", re.ASCII | re.DOTALL
)
# Full-width letters and punctuation, as Chinese and Japanese keyboards type them.
_WIDTHS = {wide: wide - 0xFEE0 for wide in (*range(0xFF21, 0xFF3B), *map(ord, "（）：．，！？；"))}
_WRAPPED = re.compile(
    _COMMANDS + r"\{(.*)\}|\*\*(.+)\*\*|\*(.+)\*|\$(.+)\$|\\\((.+)\\\)|\\\[(.+)\\\]", re.ASCII | re.DOTALL
)
_SIZE = re.compile(r"^\\(?:large|Large|LARGE|huge|Huge)(?![A-Za-z])\s{0,9}")
_QUOTED_END = re.compile(r"(?:^|(?<=\n))[ \t]{0,3}> ?(?=[^\n]*\Z)")
_JSON = re.compile(
    r"(?:\A|\n)(?:```(?:json)?\n)?\s*\{\s*\"(?:(?:final|correct)[_ ])?(?:answer|choice|option)\"\s*:"
    r"\s*\"([^\"\n]+)\"\s*\}\s*(?:```)?\Z",
    re.IGNORECASE,
)
# Signs that models put before or after their answer, on its line: "✅ **B) Paris**".
_SIGNS = re.compile(r"^([#>* \t]*)[✅✔☑🎯👉]\ufe0f?[ \t]*|(?<![ \t])[ \t]*[✅✔☑]\ufe0f?(?=[ \t*]*$)", re.MULTILINE)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BOX_IN_BOX = re.compile(r"(\\boxed\s{0,9}\{\s{0,9}\$?\s{0,9})\\boxed(?=\s{0,9}\{)")
_BLANKS = re.compile(r"\\boxed\s{10}")  # too many blanks before the brace


def chosen(text: str, choices: list[str] | None, think_opened: bool = False) -> int | None:
    """Return the index of the one choice that a completion names; `None` if it names none or leaves it open."""
    final = shown(after_thinking(text, think_opened)).translate(_WIDTHS)
    final = _SIGNS.sub(r"\1", final).strip()
    final = _QUOTED_END.sub("", final)
    is_tagged, is_boxed = "<answer>" in final or "</answer>" in final, "\\boxed" in final
    whole = (answer_of(final) or "").strip() if is_tagged else _boxed(final).strip() if is_boxed else final
    small = _SMALL.fullmatch(whole) or ((is_tagged or is_boxed) and _SMALL_IN_TEXT.fullmatch(whole))
    if small and not any(len(plain(choice)) == 1 for choice in choices or ()):
        return letter(small[small.lastindex or 0].upper(), len(choices or LETTERS))
    is_text = _is_text(whole, choices)
    if is_tagged:
        return _place(whole if "\n" in whole or is_text else answer_in(whole) or whole, choices)
    if is_boxed:
        return _place(whole, choices)
    head, _, last = final.rpartition("\n")
    stated = None if is_text else answer_in(last, head) or _in_json(final)
    marked = _after_hashes(last)
    if stated is None and marked and _place(marked, choices) is not None:
        stated = marked
    if stated is None and head.endswith("\n") and unwrapped(last) != last.strip() and not is_denied(head):
        stated = last.strip()  # a formatted letter is the whole last paragraph
    place = _place(final if stated is None else stated, choices)
    if stated == last.strip() and place is not None and _is_contradicted(head, place, choices):
        return None
    if place is not None:
        return place
    explained = [_explained(final, choices), _explained_in_line(final, "", choices)] if stated is None else []
    explained.append(_explained_in_line(last, head, choices))
    return next((place for place in explained if place is not None), None)


def _is_text(text: str, choices: list[str] | None) -> bool:
    """Return whether a text is a choice's text, which may be a sentence like "Only A is correct"."""
    longest = max(map(len, choices or [""]))
    return len(text) <= DRESS + longest and plain(text) in map(plain, choices or ())


def _in_json(text: str) -> str | None:
    """Return the answer of a JSON object that ends the text and holds the answer alone."""
    found = _JSON.search(text[-DRESS:])
    return found[1] if found else None


def _after_hashes(line: str) -> str:
    """Return what follows the mark of GSM8K's answers; "" for a line without it."""
    bare = line.strip(" *")
    return bare.removeprefix("####").strip(" *") if bare.startswith("####") else ""


def _is_contradicted(head: str, place: int, choices: list[str] | None) -> bool:
    """Return whether the text before a lone letter names another choice as the answer."""
    before = last_line(head)
    named = _place(answer_in(before) or before, choices)
    return names_another(head, LETTERS[place]) or named not in (None, place)


def _explained(final: str, choices: list[str] | None) -> int | None:
    """Return the choice that the first line names, if the other lines explain it and mention no other choice.

    An explanation says so, or begins with a sentence about the choice's text: "B", and then "Paris is the capital of
    France."
    """
    first, _, rest = final.partition("\n")
    stated = answer_in(first, may_be_one_of_many=False)
    return _with_reason(first if stated is None else stated, rest, choices)


def _explained_in_line(text: str, before: str, choices: list[str] | None) -> int | None:
    """Return the choice that the first sentence states, if the rest of its line and the text after it explain it."""
    line, _, after = text.partition("\n")
    first, rest = first_sentence(line)
    stated = answer_in(first, before, may_be_one_of_many=False) if rest else None
    if stated is None or stated == first.strip():  # a lone letter under a heading
        return None
    return _with_reason(stated, f"{rest}\n{after}", choices)


def _with_reason(stated: str, reason: str, choices: list[str] | None) -> int | None:
    place = _place(stated, choices) if reason.strip() else None
    if place is None or not (is_announced(reason) or _begins_with(reason, place, choices)):
        return None
    return place if not names_a_choice(reason) and _explains(reason, place, choices) else None


def _begins_with(text: str, place: int, choices: list[str] | None) -> bool:
    """Return whether a sentence begins with the text of a choice, and no "or" joins something to that text."""
    if choices is None:
        return False
    begin = plain(choices[place])
    words = _normal(text.lstrip()[: 2 * len(begin) + 100])
    return words.startswith(f"{begin} ") and not words.startswith((f"{begin} or ", f"{begin} and "))


def _explains(text: str, place: int, choices: list[str] | None) -> bool:
    others = [_normal(choice) for number, choice in enumerate(choices or ()) if number != place]
    folded = _normal(text)
    return takes_nothing_back(text, LETTERS[place]) and not any(other in folded for other in others)


def _boxed(text: str) -> str:
    r"""Return the content of the last `\boxed{}`; "" if the box is cut off or part of a hedge.

    The content may be a box itself.
    """
    return "" if _BLANKS.search(text) else last_box(_BOX_IN_BOX.sub(r"\1\\text", text)) or ""


def _place(stated: str, choices: list[str] | None) -> int | None:
    """Return the index of the choice, if the text states only that choice and perhaps a reason for it."""
    place = _named(stated, choices)
    if place is None and (sentence := _LETTER_AND_SENTENCE.fullmatch(stated)):
        named = _named(sentence[1].replace(":", ""), choices)
        if named is not None and _begins_with(sentence[2], named, choices) and _explains(sentence[2], named, choices):
            return named
    if place is None and (because := _BECAUSE.fullmatch(stated)):
        place = _named(because[1], choices)
        return place if place is not None and _explains(because[2], place, choices) else None
    return place


def _named(stated: str, choices: list[str] | None) -> int | None:
    if len(stated) > DRESS + max(map(len, choices or [""])):
        return None
    stated = unwrapped(stated)
    texts = [plain(choice) for choice in choices or ()]
    bare = unwrapped(_unquoted(stated))
    for form in dict.fromkeys((stated, bare, unwrapped(_unquoted(_PREFIX.sub("", _all_text(bare), count=1))))):
        place = letter(_all_text(form), len(choices or LETTERS))
        if place is None and choices:
            place = _letter_and_text(form, texts)
        if place is None and plain(form) in texts:
            place = texts.index(plain(form))
        if place is not None:
            return place
    return None


def _all_text(form: str) -> str:
    """Return a form without LaTeX's text around the word before a letter, and within its parentheses."""
    return _PARTLY_TEXT.sub(lambda part: f"{part[1]} " if part[1] else part[2], form)


def _letter_and_text(stated: str, texts: Sequence[str]) -> int | None:
    pairs = [(match[1], match[2]) for pattern in _LETTER_AND_TEXT if (match := pattern.fullmatch(stated))]
    if match := _TEXT_AND_LETTER.fullmatch(stated):
        pairs.append((match[2], match[1]))
    for name, text in pairs:
        place = LETTERS.index(name.upper())
        if place < len(texts) and texts[place] in (plain(text), plain(_unquoted(text))):
            return place
    return None


def letter(text: str, count: int) -> int | None:
    """Return the index of the choice, of `count` choices, whose letter is the whole text; `None` if there is none."""
    match = _LETTER.fullmatch(text)
    place = LETTERS.index(match[match.lastindex or 0].upper()) if match else count
    return place if place < count else None


def _unquoted(text: str) -> str:
    """Return a text without the quotes, backticks, brackets or underscores around it.

    A full stop after them is removed too.
    """
    text = text.strip()
    inside = _QUOTED.fullmatch(text) or _QUOTED.fullmatch(text.removesuffix(".").removesuffix("。"))
    return inside[inside.lastindex or 0].strip() if inside else text


def unwrapped(text: str) -> str:
    r"""Return a text without the formatting around it, and without a full stop after that.

    Formatting is `\boxed{}`, `\text{}` and similar commands, `$...$`, `\(...\)` and `**...**`.
    """
    text = _SIZE.sub("", text.strip(), count=1)
    for _ in range(4):  # $\boxed{\textbf{(B)}}$ and the like
        inside = _WRAPPED.fullmatch(text) or _WRAPPED.fullmatch(text.removesuffix(".").removesuffix("。"))
        if inside and (inside[1] is None or _is_closed(inside[1])):
            text = _SIZE.sub("", inside[inside.lastindex or 0].strip(), count=1)
    return text


def _is_closed(text: str) -> bool:
    """Return whether the text closes no brace that it has not opened."""
    depth = 0
    for sign in _BRACE.finditer(text):
        depth += {"{": 1, "}": -1}.get(sign[0], 0)
        if depth < 0:
            return False
    return True


def plain(text: str) -> str:
    """Return a text in the form that is compared.

    The form is unwrapped, in lower case, with single spaces and without a full stop at its end.
    """
    text = _normal(unwrapped(text))
    return text.removesuffix(".").removesuffix("。") or text


def _normal(text: str) -> str:
    return " ".join(text.translate(_WIDTHS).casefold().split())
