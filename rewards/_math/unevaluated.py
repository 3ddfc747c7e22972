"""A check for arithmetic that an expression leaves undone, on the tree that the reader gives (not evaluated).

The reader has `i` as a symbol; here `i` counts as a constant. Work that takes algebra, such as `(x+1)^2` or `ln 2 + ln
4`, does not count as arithmetic.
"""

import math
import re
from itertools import combinations
from typing import Any


_WHOLE_BINOMIAL = re.compile(r"\\binom\{\s*[0-9]+\s*\}\{\s*[0-9]+\s*\}")
_WHOLE_FRACTION = re.compile(
    r"\\frac\{\s*-?([0-9]+)\s*\}\{\s*-?([0-9]+)\s*\}|(?<![0-9.}])([0-9]+)\s*/\s*([0-9]+)(?![0-9.])"
)
_FUNCTION = re.compile(r"\\(?:a(?:rc)?)?(?:ln|log|sin|cos|tan|cot|sec|csc|lfloor|lceil)(?![A-Za-z])")
# sympy's names of functions. Functions of one kind turn into each other without being worked out.
_KINDS = {
    "sin": "circular", "cos": "circular", "tan": "circular", "cot": "circular", "sec": "circular", "csc": "circular",
    "asin": "inverse", "acos": "inverse", "atan": "inverse", "acot": "inverse", "asec": "inverse", "acsc": "inverse",
    "log": "logarithm", "Abs": "modulus", "floor": "rounding", "ceiling": "rounding",
}  # fmt: skip
_MOST_TERMS, _MOST_OPERATIONS = 20, 30


def with_i(expression: Any) -> Any:
    """Replace the symbol `i` in an expression by the imaginary unit."""
    from sympy import I

    return expression.xreplace({symbol: I for symbol in expression.free_symbols if symbol.name == "i"})


def leaves_undone(text: str, tree: Any) -> bool:
    """Return whether a cleaned text, read as `tree`, has arithmetic on constants that is still to be done."""
    return _undone_text(text, tree) or _undone(tree)


def functions_of_constants(tree: Any) -> set[str]:
    """Return the kinds of functions of constants in a tree.

    Logarithms count only if the whole tree is constant: `e^{x ln 2}` is done.
    """
    kinds = {_kind(part) for part in _parts(tree) if _is_constant(part)}
    return kinds - ({""} if _is_constant(tree) else {"", "logarithm"})


def functions(tree: Any) -> set[str]:
    """Return the kinds of functions in a tree.

    A complex power of e counts as sines and cosines too.
    """
    kinds = {_kind(part) for part in _parts(tree)}
    polar = any(type(part).__name__ == "exp" and _is_complex(part) for part in _parts(tree))
    return (kinds | {"circular"} if polar else kinds) - {""}


def _parts(tree: Any) -> Any:
    from sympy import preorder_traversal

    return preorder_traversal(tree)


def _kind(tree: Any) -> str:
    return _KINDS.get(type(tree).__name__, "")


def _undone_text(text: str, tree: Any) -> bool:
    """Return whether the text has undone arithmetic that the reader works out, so that the tree does not show it."""
    fractions = [(match[1] or match[3], match[2] or match[4]) for match in _WHOLE_FRACTION.finditer(text)]
    return (
        _WHOLE_BINOMIAL.search(text) is not None
        or any(math.gcd(int(a), int(b)) != 1 or int(b) == 1 for a, b in fractions)
        or (_FUNCTION.search(text) is not None and not functions(tree))
    )


def _undone(tree: Any) -> bool:
    return _undone_here(tree) or any(_undone(part) for part in tree.args)


def _undone_here(tree: Any) -> bool:
    if tree.is_Add:
        return _has_like_terms(tree)
    if tree.is_Mul:
        tops, bottoms = _factors(tree)
        whole = len(tops) > 1 or len(bottoms) > 1 or any(math.gcd(a, b) != 1 for a in tops for b in bottoms)
        return whole or sum(map(_is_complex, tree.args)) > 1
    if tree.is_Pow and tree.exp.is_Integer:
        return _is_complex(tree.base) or (abs(tree.exp) > 1 and tree.base != 10 and _is_rational(tree.base))
    return bool(tree.args) and _is_rational(tree)


def _has_like_terms(tree: Any) -> bool:
    """Return whether two terms of a sum are, or contain once multiplied out, rational multiples of one number."""
    from sympy import Add, expand_mul

    values = [with_i(part).doit() for part in tree.args if _is_constant(part)]
    if len(values) > 1 and any(value.is_zero for value in values):
        return True
    # Products of many sums would have too many terms.
    expanded = [expand_mul(value) if value.count_ops() <= _MOST_OPERATIONS else value for value in values]
    terms = [(at, term) for at, value in enumerate(expanded) for term in Add.make_args(value)]
    pairs = combinations(terms[:_MOST_TERMS], 2)
    return any(at != other and bool((a / b).is_Rational) for (at, a), (other, b) in pairs)


def _is_constant(tree: Any) -> bool:
    return all(symbol.name == "i" for symbol in tree.free_symbols)


def _is_complex(tree: Any) -> bool:
    """Return whether a tree is a constant that is written with `i`."""
    return bool(tree.free_symbols) and _is_constant(tree)


def _is_rational(tree: Any) -> bool:
    """Return whether the value of a tree is rational, or i times a rational number."""
    from sympy import I

    if not _is_constant(tree):
        return False
    value = with_i(tree).doit()
    return bool(value.is_Rational or (value / I).is_Rational)


def _factors(tree: Any) -> tuple[list[int], list[int]]:
    """Return the integers other than 1 that a product multiplies and divides by, without powers of ten."""
    tops: list[int] = []
    bottoms: list[int] = []
    for part in tree.args:
        if part.is_Mul:
            more = _factors(part)
            tops, bottoms = tops + more[0], bottoms + more[1]
        elif part.is_Rational:
            tops, bottoms = [*tops, abs(int(part.p))], [*bottoms, int(part.q)]
        elif part.is_Pow and part.exp == -1 and part.base.is_Integer:
            bottoms = [*bottoms, abs(int(part.base))]
    return [n for n in tops if n != 1], [n for n in bottoms if n != 1]
