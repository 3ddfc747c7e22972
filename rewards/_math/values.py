"""The comparison of two expressions by value: math-verify's LaTeX reader, then exact or 60-digit values.

Only text that [`why_wild`] passes is read. It is a static check for text that is meant to burn time or memory.
Other text may still be slow, so run this module in a process that can be killed.
"""

import logging
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from .latex import has_variable, why_unbalanced
from .terms import literal
from .unevaluated import functions, functions_of_constants, leaves_undone, with_i


_MAX_CHARS = 400
_COMMANDS = frozenset({
    "frac", "sqrt", "pi", "cdot", "times", "div", "infty", "ln", "log", "sin", "cos", "tan", "cot", "sec", "csc",
    "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "exp", "lfloor", "rfloor", "lceil", "rceil", "binom",
    "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda",
    "mu", "nu", "xi", "rho", "sigma", "tau", "phi", "varphi", "chi", "psi", "omega", "Gamma", "Delta", "Theta",
    "Lambda", "Sigma", "Phi", "Psi", "Omega",
})  # fmt: skip
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_WILD_CHARACTER = re.compile(r"\\[^A-Za-z]|[^\\A-Za-z0-9 +\-*/^_!.,|()\[\]{}]")
_WILD = re.compile(
    r"[0-9]{41}|![ )}]*!|[0-9]{4,}[ )}]*!|\)\s*!|\^\s*\{?[^{}^]*![^{}]*\}?"  # long numbers, factorials
    r"|\^\s*\{?\s*[-+]?[0-9]{5}|\)\s*\^\s*\{?\s*[-+]?[0-9]{3}|\\binom\{[^{}]*[0-9]{5}"  # powers, binomials
    r"|\^\s*(?:[^\s{}\\]|\\[A-Za-z]+|\{[^{}]*\})\s*\^|(?<![A-Za-z\\])[A-Za-z]{5,}"  # double powers, prose
    r"|(?<![\^_0-9.])[0-9]+\.?\s+[0-9]|[0-9]\.[0-9]+\.|[0-9]e[0-9]"  # two numbers, programmers' notation
    r"|[0-9)\]}]\s*_|[0-9A-F][A-F]+\s*_\s*\{?1[1-6]"  # numbers with a base: the reader drops it
    r"|[+\-*/^_][ {(]*[*/^_]|[+-]\s*[+-]|[+\-*/^_]\s*$|^\s*[*/^_]|\.\s*\."  # no formula
)
_SYMBOLIC_FACTORIAL = re.compile(r"\([^()!^\\]*[a-z][^()!^\\]*\)\s*!(?!\s*!)")
_EXPONENT = re.compile(r"\^\s*(\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}|\\[A-Za-z]+|.)")
_DECIMAL = re.compile(r"(\^\s*)?([0-9]*\.[0-9]+|[0-9]+\.(?![0-9]))")
_THOUSANDS = re.compile(r"(?<![0-9.])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])")
# Values of variables at which expressions are compared: of both signs, whole or not, two of them in (-1, 1).
_POINTS = ("2.3", "-1.7", "3", "-2", "0.41", "-0.37", "5.2")
_DIGITS, _SAME, _ZERO = 60, "1e-45", "1e-60"


def why_wild(text: str) -> str:
    r"""Return why a cleaned expression cannot be a final answer; "" if it is tame.

    A tame expression has known commands and no towers, and is of moderate size.

    Example:
        >>> why_wild(r"\int_0^1 x dx"), why_wild("9^{9^{9}}"), why_wild(r"\sqrt{3}")
        ('has the command \\int', 'has a power in an exponent', '')
    """
    if len(text) > _MAX_CHARS:
        return f"has more than {_MAX_CHARS} characters"
    if why := why_unbalanced(text):
        return why
    text = _SYMBOLIC_FACTORIAL.sub("(n)", text)
    if command := next((name for name in _COMMAND.findall(text) if name not in _COMMANDS), None):
        return f"has the command \\{command}"
    if wild := _WILD_CHARACTER.search(text) or _WILD.search(text):
        return f"has {wild[0]!r:.50}, which a formula here may not have"
    powers = (power for power in _EXPONENT.findall(text) if "^" in power)
    towers = any(power.count("^") > 1 or not has_variable(power) for power in powers)
    return "has a power in an exponent" if towers else ""


def same_value(gold: str, answer: str, evaluated: bool) -> bool:
    r"""Return whether two cleaned expressions are equal.

    Rational constants are compared exactly, other constants to 45 of 60 digits. Expressions with variables are
    compared at points of both signs, and by math-verify if the points cannot decide.

    With `evaluated`, an answer that leaves arithmetic undone, such as `17\cdot 23\pi`, equals only a gold that leaves
    some undone too. An answer that takes a sine, a logarithm or a modulus of a constant equals only a gold with such a
    function.
    """
    left, right = read(gold), read(answer)
    if left is None or right is None:
        return False
    if evaluated and not functions_of_constants(right) <= functions(left):
        return False
    if evaluated and leaves_undone(answer, right) and not leaves_undone(gold, left):
        return False
    return _equal(with_i(left), with_i(right))


def why_no_value(text: str) -> str:
    r"""Return why a cleaned expression has no value that answers can be compared with; "" if it has one.

    `\frac{1}{0}` has none.
    """
    from sympy.core.function import AppliedUndef

    expression = read(text)
    if expression is None:
        return why_wild(text) or "cannot be read as an expression"
    expression = with_i(expression)
    if expression.has(AppliedUndef) or (expression.is_extended_real and expression.is_infinite):
        return ""
    has_value = any(_at(expression, point) is not None for point in _points(sorted(_names(expression))))
    return "" if has_value else "has no value"


def proportional(gold: tuple[str, str], answer: tuple[str, str], positive: bool) -> bool:
    """Return whether `left - right` of two relations differ by a constant factor other than 0.

    With `positive` the factor must be above 0.
    """
    sides = [read(text) for text in (*gold, *answer)]
    if any(side is None for side in sides):
        return False
    sides = [with_i(side) for side in sides]
    ratio = (sides[0] - sides[1]) / (sides[2] - sides[3])
    names = sorted(_names(ratio) | _names(sides[0] - sides[1]))
    if names != sorted(_names(sides[2] - sides[3])):
        return False
    ratios = [value for point in _points(names) if (value := _at(ratio, point)) is not None]
    if len(ratios) < 3 or not all(_close(value, ratios[0]) for value in ratios) or _close(ratios[0], 0):
        return False
    return not positive or bool(ratios[0].is_real and ratios[0] > 0)


def read(text: str) -> Any:
    """Return a tame text as a sympy expression that is not evaluated; `None` if the text is no expression."""
    if why_wild(text):
        return None
    # A decimal means exactly the number that it writes.
    text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
    return _read(_DECIMAL.sub(_exact, text))


def _exact(match: re.Match[str]) -> str:
    whole, _, rest = match[2].partition(".")
    fraction = rf"\frac{{{int(whole + rest or 0)}}}{{{10 ** len(rest)}}}"
    # The reader takes braces around a whole expression for a set.
    return f"^{{{fraction}}}" if match[1] else f"({fraction})"


@lru_cache(maxsize=256)
def _read(text: str) -> Any:
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
    from sympy import Derivative, Expr, Integral, Limit, Product, Sum

    # The parser may raise anything on a text that it cannot read. Its messages are of no use here.
    try:
        expression = latex2sympy(
            text, is_real=True, normalization_config=None, conversion_config=ConversionConfig(lowercase_symbols=False)
        )
    except Exception:
        return None
    # An answer must not leave these to be computed: sympy would compute them.
    undone = not isinstance(expression, Expr) or expression.has(Derivative, Integral, Limit, Product, Sum)
    return None if undone else expression


def _equal(left: Any, right: Any) -> bool:
    names = sorted(_names(left))
    if names != sorted(_names(right)):
        return False
    if not names:
        return _equal_constants(left, right)
    pairs = [(_at(left, point), _at(right, point)) for point in _points(names)]
    decided = [(a, b) for a, b in pairs if a is not None and b is not None]
    if not all(_close(a, b) for a, b in decided):
        return False
    return len(decided) > 2 or _verified(left, right)


def _equal_constants(left: Any, right: Any) -> bool:
    left, right = left.doit(), right.doit()
    if (left.is_Rational and right.is_Rational) or left.is_infinite or right.is_infinite:
        return bool(left == right)
    a, b = _at(left, {}), _at(right, {})
    return a is not None and b is not None and _close(a, b)


def _verified(left: Any, right: Any) -> bool:
    from math_verify import verify

    logging.getLogger("math_verify.grader").setLevel(logging.ERROR)  # math-verify warns that its alarm is off
    return bool(verify(left, right, timeout_seconds=None))


def _names(expression: Any) -> set[str]:
    return {symbol.name for symbol in expression.free_symbols}


def _points(names: list[str]) -> Iterator[dict[str, str]]:
    for shift in range(len(_POINTS)):
        # The step through the values depends on the name, so that no two names have equal values at every point.
        yield {name: _POINTS[(shift * (1 + i % 3) + i) % len(_POINTS)] for i, name in enumerate(names)}


def _at(expression: Any, point: dict[str, str]) -> Any:
    """Return the value of an expression at a point, to `_DIGITS` digits; `None` if it has no value there."""
    from sympy import Rational

    try:
        value = expression.subs({symbol: Rational(point[symbol.name]) for symbol in expression.free_symbols})
        value = value.evalf(_DIGITS)
        finite = value.is_number and all(part.is_Float or part.is_Rational for part in value.as_real_imag())
    except Exception:  # sympy may raise anything on a function that it cannot evaluate there
        return None
    return value if finite and value.is_finite else None


def _close(a: Any, b: Any) -> bool:
    from sympy import Float

    gap, size = abs(a - b), max(abs(a), abs(b))
    return bool(gap <= Float(_SAME) * size or gap <= Float(_ZERO))


def is_rounded(exact: str, rounded: str) -> bool:
    r"""Return whether a cleaned decimal is a constant expression, rounded or cut off to the decimal's places.

    Example:
        >>> is_rounded(r"\sqrt{2}", "1.41"), is_rounded(r"\sqrt{2}", "1.5"), is_rounded("x", "1")
        (True, False, False)
    """
    from sympy import Rational

    number, expression = literal(rounded), read(exact)
    if number is None or expression is None or not re.fullmatch(r"[-+0-9.,]+", rounded):
        return False
    value = _at(with_i(expression), {})
    if value is None or not value.is_real:
        return False
    step = Rational(1, 10 ** len(rounded.partition(".")[2]))
    decimal = Rational(number.value.numerator, number.value.denominator)
    gap = abs(value - decimal)
    return bool(gap <= step / 2 or (gap < step and abs(value) > abs(decimal)))
