r"""Numbers as they are written, words and units in a cleaned answer (see `_math.clean`)."""

import math
import re
from fractions import Fraction
from typing import NamedTuple


_DIGITS = 400  # of a number; also keeps int() far from Python's limit of 4300
_NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?|[0-9]+\.?[0-9]*|\.[0-9]+)"
_DECIMAL = re.compile(rf"([+-]?)\s*({_NUMBER})")
_REPEATING = re.compile(r"([+-]?)\s*([0-9]*)\.([0-9]*)\\overline\{([0-9]+)\}")
_INTEGER = r"[+-]?\s*(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
_FRACTION = re.compile(
    rf"([+-]?)\s*([0-9]*)\s*\\frac\{{\s*({_INTEGER})\s*\}}\{{\s*({_INTEGER})\s*\}}|({_INTEGER})\s*/\s*({_INTEGER})"
)
_SCIENTIFIC = re.compile(
    rf"([+-]?)\s*(?:({_NUMBER})\s*(?:\\times|\\cdot|\*)\s*)?10\s*\^\s*(?:\{{\s*([+-]?[0-9]{{1,3}})\s*\}}|([0-9]))"
)


class Literal(NamedTuple):
    """A rational number that is written out, and whether it is in lowest terms (decimals are)."""

    value: Fraction
    lowest: bool


def literal(text: str) -> Literal | None:
    r"""The number that a cleaned text writes: an integer, decimal, fraction, mixed number or scientific notation.

    Example:
        >>> literal("1,234.5"), literal("6*7")
        (Literal(value=Fraction(2469, 2), lowest=True), None)
        >>> literal(r"0.\overline{3}"), literal(r"\frac{2}{4}")
        (Literal(value=Fraction(1, 3), lowest=True), Literal(value=Fraction(1, 2), lowest=False))
    """
    if len(text) > _DIGITS:
        return None
    if found := _DECIMAL.fullmatch(text):
        return Literal(_signed(found[1], _decimal(found[2])), True)
    if found := _FRACTION.fullmatch(text):
        return _fraction(found)
    if found := _REPEATING.fullmatch(text):
        head, tail, period = found[2], found[3], found[4]
        scale = 10 ** len(tail) * (10 ** len(period) - 1)
        return Literal(_signed(found[1], Fraction(int(head + tail + period) - int(head + tail or 0), scale)), True)
    if found := _SCIENTIFIC.fullmatch(text):
        power = Fraction(10) ** int(found[3] or found[4])
        return Literal(_signed(found[1], _decimal(found[2] or "1") * power), True)
    return None


def _fraction(found: re.Match[str]) -> Literal | None:
    top, bottom = (int(re.sub(r"[,\s]", "", part)) for part in (found[3] or found[5], found[4] or found[6]))
    whole = int(found[2] or 0)
    if bottom == 0 or (found[2] and not 0 < top < bottom):
        return None
    lowest = math.gcd(top, bottom) == 1 and abs(bottom) != 1
    return Literal(_signed(found[1] or "", whole + Fraction(top, bottom)), lowest)


def _decimal(text: str) -> Fraction:
    text = text.replace(",", "")
    return Fraction(text + "0" if text.endswith(".") else text)


def _signed(sign: str, value: Fraction) -> Fraction:
    return -value if sign == "-" else value


_LETTERS = re.compile(r"[A-Za-z][A-Za-z' .-]*")
_TEXT_COMMAND = re.compile(r"\\text\{([^{}]*)\}")


def words(text: str) -> str | None:
    r"""A text that is words, in one spelling; `None` where it is (also) mathematics.

    Example:
        >>> words(r"\text{No solution}"), words("Monday"), words("B"), words("ab")
        ('no solution', 'monday', None, None)
    """
    bare = " ".join(_TEXT_COMMAND.sub(r" \1 ", text).split())
    if not _LETTERS.fullmatch(bare) or ("\\text" not in text and not re.search(r"[A-Za-z]{3}|^[Nn]o$", bare)):
        return None
    return bare.rstrip(".").casefold()


_NO_UNIT = frozenset({
    "or", "and", "not", "no", "nor", "maybe", "perhaps", "possibly", "about", "approximately", "approx", "around",
    "roughly", "nearly", "almost", "if", "when", "unless", "least", "most", "than", "more", "less", "minus", "plus",
    "times", "half", "double", "hundred", "thousand", "million", "billion", "trillion", "dozen", "is", "to", "are",
    "was", "negative", "infinity", "pi", "mod", "wrong", "false", "either", "neither", "but", "except", "so",
    "with", "without", "also", "otherwise", "instead", "hundreds", "thousands", "millions", "billions", "dozens",
    "quarter", "third", "score", "pair", "point", "tenth", "tenths", "hundredth", "hundredths", "thousandth",
    "thousandths", "quarters", "thirds", "halves", "factorial", "root", "over", "divided", "multiplied", "modulo",
    "base", "power", "reciprocal", "inverse", "one", "two", "three", "four", "five", "six", "seven", "eight",
    "nine", "ten", "eleven", "twelve", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
    "zero", "then", "unknown", "guess", "answer", "correct", "incorrect", "option", "options",
})  # fmt: skip
_BARE_UNITS = (
    "mm",
    "cm",
    "dm",
    "km",
    "kg",
    "mg",
    "ml",
    "mL",
    "ft",
    "in",
    "lb",
    "oz",
    "mi",
    "yd",
    "hr",
    "min",
    "sec",
    "mph",
    "rad",
)
_ALIASES = {
    "$": "dollar", "usd": "dollar", "€": "euro", "£": "pound sterling", "centimetre": "cm", "centimeter": "cm",
    "millimeter": "mm", "millimetre": "mm", "kilometer": "km", "kilometre": "km", "meter": "m", "metre": "m",
    "inch": "in", "inche": "in", "feet": "ft", "foot": "ft", "hour": "h", "hr": "h", "minute": "min", "second": "s",
    "sec": "s", "gram": "g", "kilogram": "kg", "liter": "l", "litre": "l", "deg": "degree", "pound": "lb",
    "percentage": "percent", "pct": "percent", "mile per hour": "mph", "radian": "rad",
}  # fmt: skip
_WORD_POWERS = {"square": "^2", "sq": "^2", "squared": "^2", "cubic": "^3", "cu": "^3", "cubed": "^3"}
_PHRASE = r"[A-Za-z][A-Za-z./ -]{0,40}"
_POWER = r"(?:\s*\^\s*\{?\s*([23])\s*\}?)?"
_TEXT_UNIT = re.compile(rf"(.+?)\s*\\text\{{\s*({_PHRASE}?)\s*\}}{_POWER}", re.DOTALL)
_BARE_UNIT = re.compile(rf"(.*?[0-9)}}])\s*({'|'.join(_BARE_UNITS)}){_POWER}", re.DOTALL)
_WORD_UNIT = re.compile(r"(.*?[0-9)}])\s+([A-Za-z]{4,}(?: [A-Za-z]+){0,3})", re.DOTALL)
_SIGN_UNIT = re.compile(r"([+-]?)\s*(?:\\\$|(€|£))\s*(.+)", re.DOTALL)
_MARK_UNIT = re.compile(r"(.+?)\s*(?:(\\degree)\s*(?:\\text\{\s*([CF])\s*\})?|(\\%)|(\\\$))", re.DOTALL)


def split_unit(text: str) -> tuple[str, str]:
    r"""A cleaned text as its value and its unit in one spelling ("" where it has none).

    Words that change the number, hedge or deny ("million", "or", "not") are no unit.

    Example:
        >>> split_unit(r"5\text{ centimeters}^2"), split_unit(r"\$18"), split_unit("18 dollars"), split_unit(r"42\%")
        (('5', 'cm^2'), ('18', 'dollar'), ('18', 'dollar'), ('42', 'percent'))
        >>> split_unit(r"5\text{ million}"), split_unit("5m")
        (('5\\text{ million}', ''), ('5m', ''))
    """
    if found := _SIGN_UNIT.fullmatch(text):
        return found[1] + found[3], _ALIASES[found[2] or "$"]
    if found := _MARK_UNIT.fullmatch(text):
        return found[1], (found[2] and "degree" + (found[3] or "")) or (found[4] and "percent") or "dollar"
    for pattern in (_TEXT_UNIT, _BARE_UNIT, _WORD_UNIT):
        if (found := pattern.fullmatch(text)) and (unit := _unit(found[2])):
            power = found[3] if pattern is not _WORD_UNIT else None
            return found[1], f"{unit}^{power}" if power else unit
    return text, ""


def _unit(phrase: str) -> str | None:
    parts = [part.lower() if len(part) > 2 else part for part in phrase.replace(".", " ").split()]
    if not parts or len(parts) > 4 or _NO_UNIT.intersection(part.lower() for part in parts):
        return None
    power = _WORD_POWERS.get(parts[0]) or _WORD_POWERS.get(parts[-1])
    name = " ".join(_singular(part) for part in parts if not (power and part in _WORD_POWERS))
    return _ALIASES.get(name, name) + (power or "") if name else None


def _singular(name: str) -> str:
    return name[:-1] if len(name) > 3 and name.endswith("s") and name not in _ALIASES else name
