"""The shape of a cleaned answer by its outermost signs: a tuple, an interval, a set, a union, a matrix, a relation."""

import re
from itertools import pairwise
from typing import NamedTuple

from .latex import closing, has_variable, split, split_with_signs, why_unbalanced
from .terms import literal
from .unit_names import disowns


RELATIONS = ("=", "<", "\\le", "\\ne")

_LIST = re.compile(r"[,;]")
_UNION = re.compile(r"\\cup(?![A-Za-z])")
_IN = re.compile(r"\\in(?![A-Za-z])")
_SIGNS = re.compile(r"\\le(?![A-Za-z])|\\ge(?![A-Za-z])|\\ne(?![A-Za-z])|[<>=]")
_WITHOUT = re.compile(r"\\setminus(?![A-Za-z])|-(?=\s*\\\{)")
_OR, _AND = re.compile(r"\\(?:lor|vee)(?![A-Za-z])"), re.compile(r"\\(?:land|wedge)(?![A-Za-z])")
# ]1,2[ means (1,2)
_OUTWARD = re.compile(r"(?<![0-9A-Za-z)}])\]([^\[\]]+)([\[\]])|\[([^\[\](){}]+)\[(?!\w)")
_ALL = "(-\\infty,\\infty)"
_SYSTEM = re.compile(r"(?:\\\{\s*)?\\begin\{(cases|aligned|align\*?|gathered)\}(.*)\\end\{\1\}", re.DOTALL)
_ROWS, _CELLS = re.compile(r"\\\\"), re.compile(r"&")
_MATRIX = re.compile(
    r"[(\[]?\s*\\begin\{([pb]?(?:small)?matrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}\s*[)\]]?", re.DOTALL
)
_VECTOR = re.compile(r"\\langle(?![A-Za-z])((?:(?!\\[lr]angle).)*)\\rangle", re.DOTALL)
_BUILDER = re.compile(
    r"\\\{\s*([A-Za-z])\s*(?:\\in\s*\(-\\infty,\\infty\)\s*)?(?:\\mid(?![A-Za-z])|[:|])(.*)\\\}", re.DOTALL
)
_GREEK = (
    "(?:var)?(?:epsilon|theta|phi|rho|sigma|kappa)|alpha|beta|gamma|delta|zeta|eta|iota|lambda|mu|nu|xi|tau|upsilon|chi"
    "|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Sigma|Upsilon|Phi|Psi|Omega|ell|hbar"
)
_COORDINATE = rf"\s*(?:[a-z]|\\(?:{_GREEK})(?![A-Za-z]))\s*"
_OF_POINTS = "angle|measuredangle|triangle|square|odot|overline|widehat|hat|vec|arc|det|deg|dim"
# Names: x, x_1, f_{\max}, f(3), |A|, n(A \cup B), |\vec{v}|, \sum, \sum x_i, AB, \theta, \angle ABC, (x, y), Area,
# [ABC], (r, \theta), f^{-1}(x), P(X=2), \frac{dy}{dx}, |AB|, \vec{v}, \cos 2\theta
_NAME = re.compile(
    rf"(?:\\text\{{[A-Za-z ]+\}}|(?:m(?=\\angle))?\\(?:{_OF_POINTS}|Delta)\s*[A-Z]{{1,4}}"
    rf"|\\(?:{_GREEK}|angle|triangle|max|min|sup|inf|gcd|lcm|det|deg|dim|Pr|Re|Im|arg)(?![A-Za-z])|[A-Z]{{2,4}}|[A-Za-z]|[A-Za-z]{{3,}})"
    r"(?:_(?:\{(?:(?:\\triangle)?[A-Za-z0-9 ]+|[0-9],\s*[0-9]|\\(?:max|min))\}|[A-Za-z0-9]))?(?:\^\{-1\})?'*"
    r"(?:\s*\([A-Za-z0-9, ]+\))?"
    rf"|\[[A-Z]{{3,6}}\]|\({_COORDINATE}(?:,{_COORDINATE})+\)"
    r"|(?:P|Pr|E|Var)\s*\([^()]*\)|\\frac\{d[A-Za-z]?\}\{d[A-Za-z]\}|\\#\s*[A-Z]"
    r"|\|\s*[A-Z]{2}\s*\||\|\s*[A-Z](?:\s*\\(?:cup|cap)\s*[A-Z])*\s*\||n\s*\([A-Z](?:\s*\\(?:cup|cap)\s*[A-Z])*\)"
    r"|(?:\\?\|)\s*(?:\\(?:vec|overrightarrow|overline)\s*\{?[A-Za-z]{1,2}\}?|\{[a-z]\})\s*(?:\\?\|)"
    r"|\\(?:sum|prod)(?![A-Za-z])(?:\s*[A-Za-z](?:_(?:\{[A-Za-z0-9]+\}|[A-Za-z0-9]))?)?"
    r"|\\(?:overline|vec)\s*\{[A-Za-z]{1,4}\}|\\(?:sin|cos|tan)\s*[0-9]?\s*(?:\\[a-z]+|\(?[A-Za-z]\)?)"
)
_TURNED = re.compile(rf"(?:[A-Za-z]|\\(?:{_GREEK}))(?:_(?:\{{[A-Za-z0-9]+\}}|[A-Za-z0-9]))?'*")  # the x of 5 = x
_SPACE = re.compile(r"(\\[A-Za-z]+)\s+(?![A-Za-z])|(?<![0-9A-Za-z])\s+|\s+(?![0-9A-Za-z])")
_INDEX = re.compile(r"(?<=[A-Za-z])_\{([A-Za-z0-9])\}(?![A-Za-z0-9])")
_GREATER = {">": "<", "\\ge": "\\le"}


class Shape(NamedTuple):
    """The outermost form of an answer, with its parts.

    `kind` is "one", "list", "or", "union", "vector", a pair of brackets like "(]", "matrix RxC", or a sign of
    relation. "or" is for relations that do not all concern the same name.
    """

    kind: str
    parts: tuple[str, ...]
    name: str = ""  # the x of `x = 5`


def shape(text: str) -> Shape | None:
    """Return a cleaned answer's shape by its outermost signs; `None` for no answer (a chain, unmatched brackets)."""
    text = _OUTWARD.sub(_inward, text)
    if system := _SYSTEM.fullmatch(text):
        rows = [row.replace("&", "").strip().rstrip(".,;") for row in split(system[2], _ROWS) if row.strip()]
        return Shape("list", tuple(rows)) if all(_is_equation(row) for row in rows) else None
    if not text or why_unbalanced(text):
        return None
    if built := _BUILDER.fullmatch(text):
        return shape(built[2].strip())
    if vector := _VECTOR.fullmatch(text):
        return Shape("vector", tuple(split(vector[1].strip(), _LIST)))
    joined = _joined_by_words(text)
    parts = [part for whole in joined or split(text, _LIST) for part in _both_signs(whole)]
    if joined and _OR.search(text) and len({_named(part) for part in parts}) > 1:
        return Shape("or", tuple(parts))
    if both := _both_ends(text):
        return both
    if len(parts) > 1 and not literal(text):
        return Shape("union" if all(map(_is_range, parts)) else "list", tuple(parts))
    for separator, build in ((_IN, _member), (_SIGNS, _relation), (_WITHOUT, _difference)):
        if len(parts := split(text, separator)) > 1:
            return build(text, parts)
    if len(parts := split(text, _UNION)) > 1:
        return Shape("union", tuple(parts))
    return _bracketed(text)


def is_name(text: str) -> bool:
    r"""Return whether a cleaned text names a quantity, as `x` does in `x = 5`.

    Words that deny or hedge name nothing.

    Example:
        >>> [is_name(text) for text in ("x_1", r"\theta", r"\text{Area}", r"\text{not}", "wrong", r"\pi")]
        [True, True, True, False, False, False]
    """
    return _NAME.fullmatch(text) is not None and not disowns(text)


def squeezed(text: str) -> str:
    """Return a text with white space only between two letters or digits, and none between a command and a digit.

    Braces around one letter or digit of an index are left out.
    """
    return _INDEX.sub(r"_\1", _SPACE.sub(r"\1", text))


def _both_signs(text: str) -> list[str]:
    if text.count("\\pm") != 1 or "\\mp" in text or text.startswith("\\{"):
        return [text]
    before, _, after = text.partition("\\pm")
    return [f"{before.rstrip()}{sign}{after.lstrip()}" for sign in "+-"]


def _named(text: str) -> str:
    shaped = shape(text)
    return squeezed(shaped.name) if shaped else ""


def _is_range(text: str) -> bool:
    parts = split(text, _SIGNS)
    return len(parts) > 1 and not re.search(r"=|\\ne(?![A-Za-z])", text)


def _member(text: str, parts: list[str]) -> Shape | None:
    shaped = shape(parts[1]) if len(parts) == 2 and is_name(parts[0]) else None
    return shaped._replace(name=parts[0]) if shaped and not shaped.name and shaped.kind not in RELATIONS else None


def _joined_by_words(text: str) -> list[str] | None:
    r"""Return the parts of `x=1 \lor x=2` or of `x=1 \land y=2`; `None` if the text is neither."""
    for separator, is_part in ((_OR, _is_relation), (_AND, _is_equation)):
        parts = split(text, separator)
        if len(parts) > 1 and all(map(is_part, parts)):
            return parts
    return None


def _both_ends(text: str) -> Shape | None:
    r"""Return the interval of `x \ge 1 \land x < 2`; `None` if the text is not two bounds of one name."""
    bounds = [shape(part) for part in parts] if len(parts := split(text, _AND)) == 2 else []
    low = next((bound for bound in bounds if bound and bound.parts[1:] == ("\\infty",)), None)
    high = next((bound for bound in bounds if bound and bound.parts[:1] == ("-\\infty",)), None)
    if not (low and high and low.name and squeezed(low.name) == squeezed(high.name)) or low is high:
        return None
    return Shape(low.kind[0] + high.kind[1], (low.parts[0], high.parts[1]), low.name)


def _is_relation(text: str) -> bool:
    return len(split(text, _SIGNS)) == 2 or len(split(text, _IN)) == 2


def _is_equation(text: str) -> bool:
    return split_with_signs(text, _SIGNS)[1] == ["="]


def _inward(match: re.Match[str]) -> str:
    if match[3] is not None:
        return f"[{match[3]})" if _LIST.search(match[3]) else match[0]
    return f"({match[1]}{')' if match[2] == '[' else ']'}" if _LIST.search(match[1]) else match[0]


def _difference(text: str, parts: list[str]) -> Shape | None:
    """Return the intervals of all numbers except a few."""
    if len(parts) != 2 or squeezed(parts[0]) != _ALL or not (parts[1].startswith("\\{") and parts[1].endswith("\\}")):
        return Shape("one", (text,))
    return _all_but(split(parts[1][2:-2].strip(), _LIST))


def _all_but(points: list[str]) -> Shape | None:
    by_value = {number.value: point for point in points if (number := literal(point))}
    if len(by_value) != len(points):
        return None
    ends = ["-\\infty", *(by_value[value] for value in sorted(by_value)), "\\infty"]
    return Shape("union", tuple(f"({low},{high})" for low, high in pairwise(ends)))


def _relation(text: str, parts: list[str]) -> Shape | None:
    _, signs = split_with_signs(text, _SIGNS)
    if not all(parts):
        return None
    if signs == ["="]:
        return _equation(*parts)
    if signs == ["\\ne"]:
        return _unequal(*parts) or Shape("\\ne", tuple(parts))
    if signs[0] in _GREATER:
        parts, signs = parts[::-1], [_GREATER.get(sign, ">") for sign in reversed(signs)]
    if not {*signs} <= {"<", "\\le"}:
        return None
    return _range(parts, signs) or Shape("".join(signs), tuple(parts))


def _unequal(left: str, right: str) -> Shape | None:
    r"""Return the intervals of `x \ne 2`."""
    union = _all_but([right]) if is_name(left) and has_variable(left) else None
    return union._replace(name=left) if union else None


def _equation(left: str, right: str) -> Shape | None:
    if literal(left) and _TURNED.fullmatch(right):
        left, right = right, left
    if not is_name(left):
        return Shape("=", (left, right))
    shaped = shape(right)
    return shaped._replace(name=left) if shaped and not shaped.name and shaped.kind not in RELATIONS else None


def _range(parts: list[str], signs: list[str]) -> Shape | None:
    r"""Return the interval of `1 < x \le 2` or `x < 3`."""
    free = [i for i, part in enumerate(parts) if has_variable(part)]
    if len(free) != 1 or not is_name(parts[free[0]]) or len(parts) > 3 or (len(parts) == 3 and free != [1]):
        return None
    at = free[0]
    low = (parts[at - 1], "(" if signs[at - 1] == "<" else "[") if at > 0 else ("-\\infty", "(")
    high = (parts[at + 1], ")" if signs[at] == "<" else "]") if at + 1 < len(parts) else ("\\infty", ")")
    return Shape(low[1] + high[1], (low[0], high[0]), parts[at])


def _bracketed(text: str) -> Shape | None:
    if grid := _MATRIX.fullmatch(text):
        rows = [split(row, _CELLS) for row in split(grid[2].strip().removesuffix("\\\\"), _ROWS)]
        if len({len(row) for row in rows}) > 1:
            return None
        return Shape(f"matrix {len(rows)}x{len(rows[0])}", tuple(cell for row in rows for cell in row))
    if text.startswith("\\{") and text.endswith("\\}") and closing(text, 0) == len(text) - 1:
        if _joined_by_words(text[2:-2].strip()):
            return shape(text[2:-2].strip())
        return Shape("list", tuple(p for part in split(text[2:-2].strip(), _LIST) for p in _both_signs(part)))
    if text[0] in "([" and text[-1] in ")]" and closing(text, 0) == len(text) - 1:
        parts = split(text[1:-1].strip(), _LIST)
        if len(parts) > 1:
            return Shape(text[0] + text[-1], tuple(parts))
    return Shape("one", (text,))
