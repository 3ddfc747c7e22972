"""Numbers and words in a cleaned answer (see `_math.latex.clean`)."""

import math
import re
from fractions import Fraction
from typing import NamedTuple


_DIGITS = 400  # longest number, in characters; this keeps int() far from Python's limit of 4300 digits
NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?|[0-9]+\.?[0-9]*|\.[0-9]+)"
_DECIMAL = re.compile(rf"([+-]?)\s*({NUMBER})")
_REPEATING = re.compile(r"([+-]?)\s*([0-9]*)\.([0-9]*)\\overline\{([0-9]+)\}")
_INTEGER = r"[+-]?\s*(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
_FRACTION = re.compile(
    rf"([+-]?)\s*([0-9]*)\s*\\frac\{{\s*({_INTEGER})\s*\}}\{{\s*({_INTEGER})\s*\}}|({_INTEGER})\s*/\s*({_INTEGER})"
)
_MIXED = re.compile(r"([+-]?)\s*([0-9]+)\s+([0-9]{1,2})\s*/\s*([0-9]{1,3})")  # 1 1/2
_SCIENTIFIC = re.compile(
    rf"([+-]?)\s*(?:({NUMBER})\s*(?:\\times|\\cdot|\*)\s*)?10\s*\^\s*(?:\{{\s*([+-]?[0-9]{{1,3}})\s*\}}|([0-9]))"
)


class Literal(NamedTuple):
    """A rational number that is written out, and whether it is in lowest terms (decimals are)."""

    value: Fraction
    lowest: bool


def literal(text: str) -> Literal | None:
    r"""Return the number that a cleaned text writes; `None` if the text is no number.

    The number is an integer, a decimal, a fraction, a mixed number, or in scientific notation.

    Example:
        >>> literal("1,234.5"), literal("6*7")
        (Literal(value=Fraction(2469, 2), lowest=True), None)
        >>> literal(r"0.\overline{3}"), literal(r"\frac{2}{4}")
        (Literal(value=Fraction(1, 3), lowest=True), Literal(value=Fraction(1, 2), lowest=False))
    """
    if len(text) > _DIGITS:
        return None
    if match := _DECIMAL.fullmatch(text):
        return Literal(_signed(match[1], _decimal(match[2])), True)
    if match := _FRACTION.fullmatch(text):
        return _fraction(match)
    if (match := _MIXED.fullmatch(text)) and 0 < (top := int(match[3])) < (bottom := int(match[4])):
        value = int(match[2]) + Fraction(top, bottom)
        return Literal(_signed(match[1], value), math.gcd(top, bottom) == 1)
    if match := _REPEATING.fullmatch(text):
        head, tail, period = match[2], match[3], match[4]
        scale = 10 ** len(tail) * (10 ** len(period) - 1)
        return Literal(_signed(match[1], Fraction(int(head + tail + period) - int(head + tail or 0), scale)), True)
    if match := _SCIENTIFIC.fullmatch(text):
        power = Fraction(10) ** int(match[3] or match[4])
        return Literal(_signed(match[1], _decimal(match[2] or "1") * power), True)
    return None


def _fraction(match: re.Match[str]) -> Literal | None:
    top, bottom = (int(re.sub(r"[,\s]", "", part)) for part in (match[3] or match[5], match[4] or match[6]))
    whole = int(match[2] or 0)
    if bottom == 0 or (match[2] and not 0 < top < bottom):
        return None
    lowest = math.gcd(top, bottom) == 1 and abs(bottom) != 1
    return Literal(_signed(match[1] or "", whole + Fraction(top, bottom)), lowest)


def _decimal(text: str) -> Fraction:
    text = text.replace(",", "")
    return Fraction(text + "0" if text.endswith(".") else text)


def _signed(sign: str, value: Fraction) -> Fraction:
    return -value if sign == "-" else value


_LETTERS = re.compile(r"[A-Za-z][A-Za-z' .-]*")
_NUMBERED = re.compile(r"[A-Za-z][A-Za-z0-9' .,:-]*")
_DATE = re.compile(r"[A-Za-z]{3,} [0-9]{1,4}(?:st|nd|rd|th)?(?:, [0-9]{4})?")
_ORDINAL = re.compile(r"(?<=[0-9])(?:st|nd|rd|th)(?![a-z0-9])")
_CLOCK = re.compile(r"([0-9]{1,2}:[0-9]{2}) ?([AaPp])\.? ?[Mm]\.?")
_ARTICLE = re.compile(r"^(?:an?|the) (?=[a-z]{3})")
_TEXT_COMMAND = re.compile(r"\\text\{([^{}]*)\}")


def words(text: str) -> str | None:
    r"""Return a text of words in one spelling; `None` if the text is mathematics, in whole or in part.

    A date or a time counts as words.

    Example:
        >>> words(r"\text{No solution}"), words("Monday"), words("B"), words("ab")
        ('no solution', 'monday', None, None)
        >>> words(r"\text{June 20}"), words("June 20"), words(r"11:30\text{ a.m.}"), words(r"\text{6 eggs}")
        ('june 20', 'june 20', '11:30 am', None)
    """
    bare = " ".join(_TEXT_COMMAND.sub(r" \1 ", text).split())
    if clock := _CLOCK.fullmatch(bare):
        return f"{clock[1]} {clock[2].lower()}m"
    worded = re.search(r"[A-Za-z]{3}", bare) is not None
    numbered = worded and _NUMBERED.fullmatch(bare) and (_TEXT_COMMAND.fullmatch(text) or _DATE.fullmatch(bare))
    if not numbered and not (_LETTERS.fullmatch(bare) and ("\\text" in text or worded or bare in ("No", "no"))):
        return None
    return _ARTICLE.sub("", _ORDINAL.sub("", bare.rstrip(".").casefold())).replace("solutions", "solution")
