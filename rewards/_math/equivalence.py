r"""The comparison of two cleaned answers: tuples, intervals, sets, unions, matrices, relations, part by part.

Brackets are compared as written, so `(1,2)` is neither `[1,2]` nor `\{1,2\}`. Parts are numbers, words or expressions.
"""

import re
from itertools import combinations, pairwise

from .assignments import assigned, in_order
from .choice_labels import denies, labelled
from .latex import has_variable, split_with_signs, why_unbalanced
from .parse import RELATIONS, Shape, is_name, shape, squeezed
from .terms import literal, words
from .units import same_unit, scaled, split_unit
from .values import is_rounded, proportional, same_value, why_no_value


# Answers that are compared as text.
_BY_TEXT = re.compile(
    r"\\infty|-\\infty|\\emptyset|[0-9]+(?:\s*:\s*[0-9]+)+|-?[0-9A-F]+_(?:[0-9]+|\{[0-9]+\})|[A-Za-z]'+(?:\([A-Za-z0-9]\))?"
    r"|\\(?:overline|angle|triangle|vec|overrightarrow|overleftrightarrow)\s*\{?[A-Za-z]{1,4}\}?|[^=<>]+\\equiv[^=<>]+\\pmod\{\w+\}"
)
_INDEX = re.compile(r"_(?:\{[0-9]+\}|[0-9])$")
_EQUALS = re.compile(r"=|\\approx(?![A-Za-z])")
_LETTER = re.compile(r"[A-J]")
_CHOICE = re.compile(
    r"(\\text\{)?\s*((?:option|choice)\s*\}?\s*)?(?:\(([A-J])\)|(?<![a-z])([A-J])\)?)\s*[.:]?\s*\}?",
    re.IGNORECASE | re.ASCII,
)
_CAPITALS = re.compile(r"[A-Z]\s*[A-Z]")
_SUM = re.compile(r"([a-df-hj-z](?:\s*\+\s*[a-df-hj-z])+)\s*=\s*(.+)", re.DOTALL)  # m+n = 72, where m+n is asked for
_MOST_LINKS = 4


def same(gold: str, answer: str, evaluated: bool) -> bool:
    r"""Return whether a cleaned answer equals a cleaned gold.

    Example:
        >>> same(r"\frac{1}{2}", "0.5", True), same("(1,2)", "[1,2]", True), same("5", "x = 5", True)
        (True, False, True)
    """
    if (total := _SUM.fullmatch(answer)) and literal(split_unit(gold)[0]):
        letters = re.findall("[a-z]", total[1])
        answer = total[2] if len(set(letters)) == len(letters) else answer
    return (
        _same(gold, answer, evaluated)
        or _same_chain(gold, answer, evaluated)
        or _same_labelled(gold, answer, evaluated)
    )


def _same(gold: str, answer: str, evaluated: bool) -> bool:
    if squeezed(gold) == squeezed(answer):
        return True
    if (decided := _same_number(gold, answer, evaluated)) is not None:
        return decided
    if words(gold) is not None or words(answer) is not None:
        return _as_words(gold) is not None and _as_words(gold) == _as_words(answer)
    left, right = shape(gold), shape(answer)
    if left is None or right is None:
        return False
    return _same_shape(left, right, evaluated)


def _as_words(text: str) -> str | None:
    """Return a text of words, two capitals or the empty set in one spelling; `None` if the text is none of these."""
    if _CAPITALS.fullmatch(text):
        return "".join(text.split()).casefold()
    return "no solution" if text == "\\emptyset" or words(text) == "empty set" else words(text)


def why_unreadable(text: str) -> str:
    """Return why a cleaned gold cannot be compared with answers.

    The result is "" if every part of it is a number, words, or an expression that can be compared.
    """
    if literal(split_unit(text)[0]) or words(text) or _BY_TEXT.fullmatch(text) or _bare_choice(text, gold=True):
        return ""
    if choice := labelled(text, gold=True):
        return "" if _is_sound(choice[1]) else f"has the label {choice[0]} before something that cannot be compared"
    shaped = shape(text)
    if shaped is None:
        return why_unbalanced(text) or "is a chain, or of a form that is not known"
    if shaped.kind == "one":
        return why_no_value(split_unit(shaped.parts[0])[0])
    check = why_no_value if shaped.kind in RELATIONS else why_unreadable
    return next(filter(None, map(check, shaped.parts)), "") if shaped.parts else "is empty"


def _same_number(gold: str, answer: str, evaluated: bool) -> bool | None:
    """Compare an answer with a gold that is a number, with or without a unit; `None` if either is no number."""
    (gold_value, gold_unit), (value, unit) = split_unit(gold), split_unit(answer)
    gold_number, number = literal(gold_value), literal(value)
    if gold_number is None or number is None:
        return None
    if not gold_unit and unit and (other := literal(scaled(value, unit) or "")):
        number, unit = other, ""
    return (
        gold_number.value == number.value
        and same_unit(gold_unit, unit)
        and (not evaluated or number.lowest or not gold_number.lowest)
    )


def _same_chain(gold: str, answer: str, evaluated: bool) -> bool:
    r"""Return whether the answer is a true chain, such as `x = 6\cdot 12 = 72`, that contains the gold.

    The last link may be a rounding.
    """
    parts, signs = split_with_signs(answer, _EQUALS)
    name = parts[0] if len(parts) > 2 and signs[0] == "=" and is_name(parts[0]) else ""
    if name:
        parts, signs = parts[1:], signs[1:]
    if not 2 <= len(parts) <= _MOST_LINKS or not all(parts) or len({*map(squeezed, parts)}) < len(parts):
        return False
    gold_shape = shape(gold)
    if gold_shape is None or gold_shape.kind == "=":
        return False
    if name and gold_shape.name and squeezed(name) != squeezed(gold_shape.name):
        return False
    rounded = signs[-1] != "="
    exact = parts[:-1] if rounded else parts
    return (
        set(signs[: len(exact) - 1]) <= {"="}
        and any(_same(gold, part, evaluated) for part in exact)
        and all(_same(a, b, False) for a, b in pairwise(exact))
        and _in_one_unit(exact)
        and (not rounded or _is_rounded(exact[-1], parts[-1]))
    )


def _in_one_unit(links: list[str]) -> bool:
    """Return whether all links that have a unit have the same unit.

    Per cent changes the value, so either all links have it or none has it.
    """
    units = {split_unit(link)[1] for link in links}
    if "percent" in units:
        return len(units) == 1
    return all(same_unit(a, b) for a, b in combinations(units - {""}, 2))


def _is_rounded(exact: str, rounded: str) -> bool:
    (exact, unit), (rounded, other) = split_unit(exact), split_unit(rounded)
    return same_unit(unit, other) and is_rounded(exact, rounded)


def _same_labelled(gold: str, answer: str, evaluated: bool) -> bool:
    """Compare a gold and an answer, at least one of which must have a choice's label, as in `(B) 12`.

    If both have labels, these must be the same, and so must values. An answer may write a label as a small letter.
    """
    label, value = labelled(answer) or _bare_choice(answer) or ("", answer)
    gold_label, gold_value = labelled(gold, gold=True) or _bare_choice(gold, gold=True) or ("", gold)
    if not (label or gold_label) or not all(_is_sound(part) for part in (value, gold_value) if part):
        return False
    if label and gold_label and label != gold_label:
        return False
    if value and gold_value:
        return _same(gold_value, value, evaluated)
    return label == gold_label and (not value or _adds_nothing(value, answer))


def _bare_choice(text: str, gold: bool = False) -> tuple[str, str] | None:
    """Return the letter of a choice that is the whole text, and no value; `None` if the text is something else.

    A small letter in a gold may be a variable: it needs "option", or a text with parentheses.
    """
    match = _CHOICE.fullmatch(text)
    if not match or (gold and not (match[2] or (match[1] and match[3]) or _LETTER.fullmatch(text))):
        return None
    return (match[3] or match[4]).upper(), ""


def _adds_nothing(value: str, answer: str) -> bool:
    """Return whether the text after a label is one value, a name, or words that are set apart.

    Other words may take the label back.
    """
    if words(value) is not None:
        return value in answer or value.removeprefix("\\text{")[:1].isupper()
    shaped = shape(value)
    return shaped is not None and shaped.kind not in ("list", "or")


def _is_sound(value: str) -> bool:
    phrase = words(value)
    return not denies(phrase) if phrase is not None else not why_unreadable(value)


def _same_shape(gold: Shape, answer: Shape, evaluated: bool) -> bool:
    gold, answer = _only_member(gold), _only_member(answer)
    if (decided := _same_assigned(gold, answer, evaluated)) is not None:
        return decided
    if gold.name and answer.name and squeezed(gold.name) != squeezed(answer.name):
        return False
    if not (_is_placed(gold, answer) and _is_placed(answer, gold)):
        return False
    if "=" in (gold.kind, answer.kind):
        left, right = _as_equation(gold), _as_equation(answer)
        return left is not None and right is not None and proportional(left, right, positive=False)
    if gold.kind == "union" and answer.kind == "list" and all(map(_is_interval, answer.parts)):
        return _matched(gold.parts, answer.parts, evaluated)
    if gold.kind != answer.kind or len(gold.parts) != len(answer.parts):
        return False
    if gold.kind in RELATIONS:
        return proportional(_pair(gold), _pair(answer), positive=gold.kind != "\\ne")
    if gold.kind in ("list", "union", "or"):
        return _matched(gold.parts, answer.parts, evaluated)
    if gold.kind == "one":
        if not gold.name and all(_CAPITALS.fullmatch(shaped.parts[0]) for shaped in (gold, answer)):
            return _as_words(gold.parts[0]) == _as_words(answer.parts[0])  # IV is not VI
        return _same_one(gold.parts[0], answer.parts[0], evaluated)
    return all(_same(a, b, evaluated) for a, b in zip(gold.parts, answer.parts, strict=True))


def _only_member(shaped: Shape) -> Shape:
    """Return the one solution that a set of solutions has; the shape itself if it is no such set."""
    member = shape(shaped.parts[0]) if shaped.kind == "list" and len(shaped.parts) == 1 else None
    if member is None or member.kind not in ("one", "()") or (member.name and shaped.name):
        return shaped
    return member._replace(name=member.name or shaped.name)


def _same_assigned(gold: Shape, answer: Shape, evaluated: bool) -> bool | None:
    """Compare assignments by name, or with a tuple if their order is sure; `None` if neither is possible."""
    gold_values, answer_values = assigned(gold), assigned(answer)
    if gold_values and answer_values:
        return gold_values.keys() == answer_values.keys() and all(
            _same(gold_values[name], answer_values[name], evaluated) for name in gold_values
        )
    for values, other in ((gold_values, answer), (answer_values, gold)):
        if values and other.kind == "()" and not other.name:
            ordered = in_order(values)
            if ordered is None or len(ordered) != len(other.parts):
                return False
            pairs = zip(ordered, other.parts, strict=True)
            return all(_same(*(pair if values is gold_values else pair[::-1]), evaluated) for pair in pairs)
    return None


def _is_placed(shaped: Shape, other: Shape) -> bool:
    """Return whether it is sure which part of `other` belongs to which name, if `shaped` is `(x, y) = ...`.

    The result is `True` if `other` gives names too, or if `shaped` gives no names.
    """
    if not shaped.name.startswith("(") or other.name:
        return True
    names = shaped.name[1:-1].replace(" ", "").split(",")
    return shaped.kind == "list" and in_order({name: name for name in names}) == names


def _is_interval(text: str) -> bool:
    shaped = shape(text)
    return shaped is not None and len(shaped.parts) == 2 and (shaped.kind in ("[]", "[)", "(]") or "\\infty" in text)


def _same_one(gold: str, answer: str, evaluated: bool) -> bool:
    (gold_value, gold_unit), (value, unit) = split_unit(gold), split_unit(answer)
    decided = _same_number(gold, answer, evaluated)
    if decided is not None:
        return decided
    if not same_unit(gold_unit, unit) or (unit and not gold_unit and has_variable(gold_value)):
        return False
    if evaluated and literal(gold_value):
        return False  # the answer is not written out as a number
    return same_value(gold_value, value, evaluated)


def _matched(gold: tuple[str, ...], answer: tuple[str, ...], evaluated: bool) -> bool:
    """Return whether the parts are the same in some order.

    The parts of `x = 1, y = 2` must have the same names. Names such as x_1 and x_2 need not be the same.
    """
    names = [{squeezed(shaped.name) for part in parts if (shaped := shape(part))} for parts in (gold, answer)]
    if names[0] <= {""} or names[1] <= {""}:
        names = [{_INDEX.sub("", name) for name in some} for some in names]
    if any(len(some - {""}) > 1 for some in names) and names[0] != names[1]:
        return False
    left = list(answer)
    for gold_part in gold:
        at = next((i for i, candidate in enumerate(left) if _same(gold_part, candidate, evaluated)), None)
        if at is None:
            return False
        del left[at]
    return not left


def _pair(relation: Shape) -> tuple[str, str]:
    return relation.parts[0], relation.parts[1]


def _as_equation(shaped: Shape) -> tuple[str, str] | None:
    if shaped.kind == "=":
        return _pair(shaped)
    # `x = 5` asks for the value, so `2x = 10` is not the answer.
    implicit = has_variable(shaped.parts[0]) or shaped.name.startswith(("\\sin", "\\cos", "\\tan"))
    named = shaped.kind == "one" and shaped.name and implicit
    return (shaped.name, shaped.parts[0]) if named else None
