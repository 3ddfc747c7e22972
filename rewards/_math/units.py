r"""Units in a cleaned answer: `18 dollars`, `5\text{ cm}^2`, `42\%`, `\$18\text{ per day}`.

`_math.latex.clean` cleans an answer.
"""

import re

from .terms import NUMBER, literal
from .unit_names import FACTORS, is_unsure, unit_of


_SHORT_UNITS = (
    "mm", "cm", "dm", "km", "kg", "mg", "ml", "mL", "ft", "in", "lb", "oz", "mi", "yd", "hr", "min", "sec", "mph",
    "rad",
)  # fmt: skip
_BARE_UNITS = (
    rf"(?:{'|'.join(_SHORT_UNITS)})(?:/(?:{'|'.join(_SHORT_UNITS)}|h|s|m|g|l|L))?|m/s|m/min|g/mL|g/ml|"
    r"kJ|kW|kWh|kPa|MPa|k?Hz|[MG]Hz|mol"
)
_SIGNS = {
    "\\$": "dollar", "€": "euro", "£": "pound sterling", "₹": "rupee", "¥": "¥", "￥": "¥", "₩": "₩", "₽": "rouble",
    "¢": "cent",
}  # fmt: skip
_CODES = {
    "USD": "dollar", "US\\$": "dollar", "EUR": "euro", "GBP": "pound sterling", "INR": "rupee", "Rs": "rupee",
    "Rs.": "rupee", "CNY": "yuan", "RMB": "yuan", "JPY": "yen",
}  # fmt: skip
_CODE = "|".join(map(re.escape, sorted(_CODES, key=len, reverse=True)))
_SIGN = rf"\\\$|[{''.join(_SIGNS)[2:]}]"
_SCALES = {
    "k": 3, "thousand": 3, "million": 6, "mln": 6, "billion": 9, "bn": 9, "bln": 9, "trillion": 12, "万": 4, "萬": 4,
    "亿": 8, "億": 8,
}  # fmt: skip
_SCALE = r"thousand|million|billion|trillion|mln|bn|bln|k"
# After a currency's sign a letter is always a factor.
_MONEY = re.compile(rf"([+-]?\s*{NUMBER})\s*(?:\\text\s*\{{\s*([kKMB])\s*\}}|([kKMB]))")
_SCALED = re.compile(
    rf"([+-]?\s*{NUMBER})\s*(?:\\text\s*\{{\s*"
    rf"(?:(?P<in>{_SCALE}|K(?=\s+[a-z]))(?![A-Za-z]|\s*\}}\s*\\Omega)\.?|(?P<cjk>[万萬亿億]))\s*(?P<rest>[^{{}}]*)\}}"
    rf"|(?P<bare>[万萬亿億]|\s(?:thousand|million|billion|trillion)(?![A-Za-z])))(?P<tail>.*)",
    re.DOTALL,
)
_TAIL = re.compile(
    r"(.+?)\s*((?:\\text\{[^{}]*\}|[kM]?\\Omega(?![A-Za-z])|\\mu(?=\s*\\text))(?:\s*(?:\\text\{[^{}]*\}|"
    r"\\Omega(?![A-Za-z])|\\mu(?![A-Za-z])|\^\s*(?:\{\s*-?[1-9]\s*\}|-?[1-9])|/|\\cdot(?![A-Za-z])))*)",
    re.DOTALL,
)
_POWER = r"(?:\s*\^\s*\{?\s*([23])\s*\}?)?"
_BARE_UNIT = re.compile(rf"(.*?[0-9)}}])\s*({_BARE_UNITS}){_POWER}", re.DOTALL)
_WORD_UNIT = re.compile(
    r"(.*?[0-9)}])\s+((?=[A-Za-z]*[AEIOUaeiou]|[A-Za-z]{4})[A-Za-z]{3,}(?: [A-Za-z]+){0,3})", re.DOTALL
)
_OTHER_LETTERS = re.compile(r"(.*?[0-9)}])\s*([^\W\d_A-Za-z]+(?:/[^\W\d_A-Za-z]+)?)", re.DOTALL)
_SIGN_UNIT = re.compile(
    rf"([+-]?)\s*(?:({_SIGN})|\\text\{{\s*({_CODE})\s*\}}|({_CODE})(?![A-Za-z]))\s*(.+)", re.DOTALL
)
_MARK_UNIT = re.compile(rf"(.+?)\s*(?:(\\degree)\s*(?:\\text\{{\s*([CF])\s*\}})?|(\\%)|({_SIGN}))", re.DOTALL)
_TEMPERATURES = {"C": "celsius degree", "F": "degree fahrenheit", None: "degree"}
_WHOLE_TEXT = re.compile(r"\\text\{\s*([^{}]*?)\s*\}")
_NUMBER_AND_WORDS = re.compile(r"^([^A-Za-z]*[0-9.])\s*([A-Za-z(][^\\]*)$")


def split_unit(text: str) -> tuple[str, str]:
    r"""Split a cleaned text into its value and its unit in one spelling ("" if the text has no unit).

    Words that deny, hedge or change the number ("not", "or", "dozen") are no unit, if a list knows them. A thousand, a
    million and so on become a power of ten.

    Example:
        >>> split_unit(r"5\text{ centimeters}^2"), split_unit(r"\$18"), split_unit("18 dollars"), split_unit(r"42\%")
        (('5', 'cm^2'), ('18', 'dollar'), ('18', 'dollar'), ('42', 'percent'))
        >>> split_unit(r"5\text{ million people}"), split_unit("5m"), split_unit(r"5\text{ dozen}")
        (('5\\times 10^{6}', 'people'), ('5m', ''), ('5\\text{ dozen}', ''))
        >>> split_unit(r"\text{5 cm}"), split_unit(r"\$18\text{ per day}")
        (('5', 'cm'), ('18', 'dollar day^-1'))
    """
    if whole := _WHOLE_TEXT.fullmatch(text):
        # In a text command a letter is a unit and no variable: 5 m.
        for inner in (_NUMBER_AND_WORDS.sub(r"\1\\text{\2}", whole[1]), whole[1]):
            if literal((value_and_unit := _split(inner))[0]):
                return value_and_unit
    return _split(text)


def same_unit(gold: str, unit: str) -> bool:
    """Return whether two units agree.

    Units agree if one is missing, if they are the same, or if one says more about the same currency. A unit that is
    unsure (see `is_unsure`) does not agree with a gold without a unit.
    """
    if is_unsure(unit) and not gold:
        return False
    short, long = sorted((gold, unit), key=len)
    return not short or short == long or (short in (*_SIGNS.values(), "yuan", "yen") and long.startswith(short + " "))


def scaled(value: str, unit: str) -> str | None:
    """Return the number for a value with a letter after it, if the letter is a factor: 72 K as 72 thousand."""
    return rf"{value}\times 10^{{{FACTORS[unit]}}}" if unit in FACTORS else None


def _split(text: str) -> tuple[str, str]:
    if match := _SIGN_UNIT.fullmatch(text):
        currency = _SIGNS.get(match[2] or "") or _CODES[match[3] or match[4]]
        return _money(match[1], currency, match[5])
    if match := _MARK_UNIT.fullmatch(text):
        unit = (match[2] and _TEMPERATURES[match[3]]) or (match[4] and "percent") or _SIGNS[match[5]]
        return match[1], unit
    return _split_words(text)


def _money(sign: str, currency: str, rest: str) -> tuple[str, str]:
    if factor := _MONEY.fullmatch(rest):
        power = {"k": 3, "K": 3, "M": 6, "B": 9}[factor[2] or factor[3]]
        return rf"{sign}{factor[1]}\times 10^{{{power}}}", currency
    value, unit = _split_words(rest)
    if not unit or unit.split(" ")[0] == currency:
        return sign + value, unit or currency
    unit = f"{currency} {unit}"
    return sign + value, unit_of(unit) or unit


def _split_words(text: str) -> tuple[str, str]:
    if factor := _SCALED.fullmatch(text):
        power = {**_SCALES, "K": 3}[(factor["in"] or factor["cjk"] or factor["bare"]).strip()]
        rest = (rf"\text{{{factor['rest']}}}" if factor["rest"] else "") + factor["tail"]
        return _split_units(rf"{factor[1]}\times 10^{{{power}}}{rest}")
    return _split_units(text)


def _split_units(text: str) -> tuple[str, str]:
    match = _TAIL.fullmatch(text)
    if match and (unit := unit_of(_flat(match[2]))) and (match[2].startswith("\\text") or literal(match[1])):
        return match[1], unit
    if (match := _BARE_UNIT.fullmatch(text)) and (unit := unit_of(match[2] + (f"^{match[3]}" if match[3] else ""))):
        return match[1], unit
    for pattern in (_WORD_UNIT, _OTHER_LETTERS):
        if (match := pattern.fullmatch(text)) and (unit := unit_of(match[2])):
            return match[1], unit
    return text, ""


def _flat(tail: str) -> str:
    r"""Write a tail of commands as words and signs: ` m·s^-2` for `\text{ m}\cdot\text{s}^{-2}`."""
    tail = re.sub(r"\\text\{([^{}]*)\}", r"\1", tail)
    tail = re.sub(r"\s*\^\s*\{?\s*(-?[1-9])\s*\}?", r"^\1", tail)
    return tail.replace("\\Omega", "Ω").replace("\\cdot", "·").replace("\\mu ", "μ").replace("\\mu", "μ")
