r"""Whether two cleaned answers are the same: tuples, intervals, sets, unions, matrices, relations, part by part.

The brackets are compared as written, so that `(1,2)` is neither `[1,2]` nor `\{1,2\}`; the parts are numbers, words or
expressions.
"""

import re
from typing import NamedTuple

from ._math import closing, depth_of, has_variable, split, split_with_signs
from ._math_terms import literal, words
from ._math_units import same_unit, split_unit
from ._math_values import has_value, proportional, same_value


MAX_DEPTH = 12

_LIST = re.compile(r"[,;]")
_UNION = re.compile(r"\\cup(?![A-Za-z])")
_IN = re.compile(r"\\in(?![A-Za-z])")
_SIGNS = re.compile(r"\\le(?![A-Za-z])|\\ge(?![A-Za-z])|\\ne(?![A-Za-z])|[<>=]")
_ROWS, _CELLS = re.compile(r"\\\\"), re.compile(r"&")
_MATRIX = re.compile(r"[(\[]?\s*\\begin\{([pb]?matrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}\s*[)\]]?", re.DOTALL)
_VECTOR = re.compile(r"\\langle(?![A-Za-z])((?:(?!\\[lr]angle).)*)\\rangle", re.DOTALL)
# Compared as they are written.
_BY_TEXT = re.compile(
    r"\\infty|-\\infty|\\emptyset|[0-9]+(?:\s*:\s*[0-9]+)+|-?[0-9A-F]+_(?:[0-9]+|\{[0-9]+\})|[A-Za-z]'+(?:\([A-Za-z0-9]\))?"
    r"|\\(?:overline|angle|triangle|vec|overrightarrow|overleftrightarrow)\s*\{?[A-Za-z]{1,4}\}?|[^=<>]+\\equiv[^=<>]+\\pmod\{\w+\}"
)
_BUILDER = re.compile(r"\\\{\s*([A-Za-z])\s*(?:\\mid(?![A-Za-z])|[:|])(.*)\\\}", re.DOTALL)
# x, x_1, f(3), AB, \theta, \angle ABC, (x, y), Area, f^{-1}(x), P(X=2), \frac{dy}{dx}, |AB|, \vec{v}, \cos 2\theta
_NAME = re.compile(
    r"(?:\\text\{[A-Za-z ]+\}|(?:m(?=\\angle))?\\[a-z]+\s*[A-Z]{1,4}|\\[A-Za-z]+|[A-Z]{2,4}|[A-Za-z]|[A-Za-z]{3,})"
    r"(?:_(?:\{(?:\\triangle)?[A-Za-z0-9 ]+\}|[A-Za-z0-9]))?(?:\^\{-1\})?'*(?:\s*\([A-Za-z0-9, ]+\))?"
    r"|\([a-z](?:,\s*[a-z])+\)|(?:P|Pr|E|Var)\s*\([^()]*\)|\\frac\{d[A-Za-z]?\}\{d[A-Za-z]\}|\|[A-Z]{2}\|"
    r"|\\(?:overline|vec)\s*\{[A-Za-z]{1,4}\}|\\(?:sin|cos|tan)\s*[0-9]?\s*(?:\\[a-z]+|\(?[A-Za-z]\)?)"
)
_INDEX = re.compile(r"_(?:\{[0-9]+\}|[0-9])$")
_GREATER = {">": "<", "\\ge": "\\le"}


class Shape(NamedTuple):
    """What an answer is: "one", "list", "union", brackets like "(]", "matrix RxC", or a sign of relation."""

    kind: str
    parts: tuple[str, ...]
    name: str = ""  # x of `x = 5`


def same(gold: str, answer: str, evaluated: bool) -> bool:
    r"""Whether a cleaned answer is a cleaned gold.

    Example:
        >>> same(r"\frac{1}{2}", "0.5", True), same("(1,2)", "[1,2]", True), same("5", "x = 5", True)
        (True, False, True)
    """
    if _squeezed(gold) == _squeezed(answer):
        return True
    if (decided := _same_number(gold, answer, evaluated)) is not None:
        return decided
    if (wanted := words(gold)) is not None or words(answer) is not None:
        return wanted is not None and wanted == words(answer)
    left, right = shape(gold), shape(answer)
    if left is None or right is None:
        return False
    return _same_shape(left, right, evaluated)


def readable(text: str) -> bool:
    """Whether every part of a cleaned gold is a number, words, or an expression that can be compared."""
    if literal(split_unit(text)[0]) or words(text) or _BY_TEXT.fullmatch(text):
        return True
    found = shape(text)
    if found is None:
        return False
    if found.kind == "one":
        return has_value(split_unit(found.parts[0])[0])
    return bool(found.parts) and all(map(has_value if found.kind in _RELATIONS else readable, found.parts))


def shape(text: str) -> Shape | None:
    """What a cleaned answer is, by its outermost signs; `None`: it is no answer (a chain, unmatched brackets)."""
    depth = depth_of(text)
    if depth is None or depth > MAX_DEPTH or not text:
        return None
    if built := _BUILDER.fullmatch(text):
        return shape(built[2].strip())
    if vector := _VECTOR.fullmatch(text):
        return Shape("vector", tuple(split(vector[1].strip(), _LIST)))
    parts = [part for whole in split(text, _LIST) for part in _both_signs(whole)]
    if len(parts) > 1 and not literal(text):
        return Shape("union" if all(map(_is_range, parts)) else "list", tuple(parts))
    for separator, build in ((_IN, _member), (_SIGNS, _relation), (_UNION, _union)):
        parts = split(text, separator)
        if len(parts) > 1:
            return build(text, parts)
    return _bracketed(text)


def _squeezed(text: str) -> str:
    return re.sub(r"(?<![0-9A-Za-z])\s+|\s+(?![0-9A-Za-z])", "", text)


def _same_number(gold: str, answer: str, evaluated: bool) -> bool | None:
    """Of a gold that is a number, with or without a unit; `None`: it takes more to tell."""
    (gold_value, gold_unit), (value, unit) = split_unit(gold), split_unit(answer)
    wanted, given = literal(gold_value), literal(value)
    if wanted is None or given is None:
        return None
    return (
        wanted.value == given.value
        and same_unit(gold_unit, unit)
        and (not evaluated or given.lowest or not wanted.lowest)
    )


def _same_shape(gold: Shape, answer: Shape, evaluated: bool) -> bool:
    if gold.name and answer.name and _squeezed(gold.name) != _squeezed(answer.name):
        return False
    if "=" in (gold.kind, answer.kind):
        left, right = _as_equation(gold), _as_equation(answer)
        return left is not None and right is not None and proportional(left, right, positive=False)
    if gold.kind != answer.kind or len(gold.parts) != len(answer.parts):
        return False
    if gold.kind in _RELATIONS:
        return proportional(_pair(gold), _pair(answer), positive=gold.kind != "\\ne")
    if gold.kind in ("list", "union"):
        return _matched(gold.parts, answer.parts, evaluated)
    if gold.kind == "one":
        return _same_one(gold.parts[0], answer.parts[0], evaluated)
    return all(same(a, b, evaluated) for a, b in zip(gold.parts, answer.parts, strict=True))


def _same_one(gold: str, answer: str, evaluated: bool) -> bool:
    (gold_value, gold_unit), (value, unit) = split_unit(gold), split_unit(answer)
    decided = _same_number(gold, answer, evaluated)
    if decided is not None:
        return decided
    if not same_unit(gold_unit, unit) or (unit and not gold_unit and has_variable(gold_value)):
        return False
    if evaluated and literal(gold_value):
        return False  # the answer is not a number that is written out
    return same_value(gold_value, value, evaluated)


def _matched(gold: tuple[str, ...], answer: tuple[str, ...], evaluated: bool) -> bool:
    """Whether the parts are the same in some order. Those of `x = 1, y = 2` must have their names, x_1 and x_2 not."""
    names = [{_squeezed(found.name) for part in parts if (found := shape(part))} for parts in (gold, answer)]
    if names[0] <= {""} or names[1] <= {""}:
        names = [{_INDEX.sub("", name) for name in some} for some in names]
    if any(len(some - {""}) > 1 for some in names) and names[0] != names[1]:
        return False
    left = list(answer)
    for wanted in gold:
        at = next((i for i, given in enumerate(left) if same(wanted, given, evaluated)), None)
        if at is None:
            return False
        del left[at]
    return not left


_RELATIONS = ("=", "<", "\\le", "\\ne")


def _pair(found: Shape) -> tuple[str, str]:
    return found.parts[0], found.parts[1]


def _as_equation(found: Shape) -> tuple[str, str] | None:
    if found.kind == "=":
        return _pair(found)
    # `x = 5` asks for the value: `2x = 10` is not it.
    implicit = has_variable(found.parts[0]) or found.name.startswith(("\\sin", "\\cos", "\\tan"))
    named = found.kind == "one" and found.name and implicit
    return (found.name, found.parts[0]) if named else None


def _both_signs(text: str) -> list[str]:
    if text.count("\\pm") != 1 or "\\mp" in text or text.startswith("\\{"):
        return [text]
    before, _, after = text.partition("\\pm")
    return [f"{before.rstrip()}{sign}{after.lstrip()}" for sign in "+-"]


def _is_range(text: str) -> bool:
    found = split(text, _SIGNS)
    return len(found) > 1 and not re.search(r"=|\\ne(?![A-Za-z])", text)


def _member(text: str, parts: list[str]) -> Shape | None:
    found = shape(parts[1]) if len(parts) == 2 and _NAME.fullmatch(parts[0]) else None
    return found._replace(name=parts[0]) if found and not found.name and found.kind not in _RELATIONS else None


def _union(text: str, parts: list[str]) -> Shape:
    return Shape("union", tuple(parts))


def _relation(text: str, parts: list[str]) -> Shape | None:
    _, signs = split_with_signs(text, _SIGNS)
    if not all(parts):
        return None
    if signs == ["="]:
        return _equation(parts[0], parts[1])
    if signs[0] in _GREATER:
        parts, signs = parts[::-1], [_GREATER.get(sign, ">") for sign in reversed(signs)]
    if not {*signs} <= {"<", "\\le"} and signs != ["\\ne"]:
        return None
    return (_range(parts, signs) if signs != ["\\ne"] else None) or Shape("".join(signs), tuple(parts))


def _equation(left: str, right: str) -> Shape | None:
    if not _NAME.fullmatch(left):
        return Shape("=", (left, right))
    found = shape(right)
    return found._replace(name=left) if found and not found.name and found.kind not in _RELATIONS else None


def _range(parts: list[str], signs: list[str]) -> Shape | None:
    r"""The interval of `1 < x \le 2` or `x < 3`."""
    free = [i for i, part in enumerate(parts) if has_variable(part)]
    if len(free) != 1 or not _NAME.fullmatch(parts[free[0]]) or len(parts) > 3 or (len(parts) == 3 and free != [1]):
        return None
    at = free[0]
    low = (parts[at - 1], "(" if signs[at - 1] == "<" else "[") if at > 0 else ("-\\infty", "(")
    high = (parts[at + 1], ")" if signs[at] == "<" else "]") if at + 1 < len(parts) else ("\\infty", ")")
    return Shape(low[1] + high[1], (low[0], high[0]), parts[at])


def _bracketed(text: str) -> Shape | None:
    if found := _MATRIX.fullmatch(text):
        rows = [split(row, _CELLS) for row in split(found[2].strip().removesuffix("\\\\"), _ROWS)]
        square = len({len(row) for row in rows}) == 1
        return (
            Shape(f"matrix {len(rows)}x{len(rows[0])}", tuple(cell for row in rows for cell in row))
            if square
            else None
        )
    if text.startswith("\\{") and text.endswith("\\}") and closing(text, 0) == len(text) - 1:
        return Shape("list", tuple(p for part in split(text[2:-2].strip(), _LIST) for p in _both_signs(part)))
    if text[0] in "([" and text[-1] in ")]" and closing(text, 0) == len(text) - 1:
        parts = split(text[1:-1].strip(), _LIST)
        if len(parts) > 1:
            return Shape(text[0] + text[-1], tuple(parts))
    return Shape("one", (text,))
