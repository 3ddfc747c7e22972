r"""Units in a cleaned answer (see `_math.clean`): `18 dollars`, `5\text{ cm}^2`, `42\%`, `\$18\text{ per day}`."""

import re

from ._math_terms import literal


# Words that deny, hedge or change the number. The number in front must be right in any case, so a word that a unit may
# have too ("times", "more", "options") is not among them.
_NO_UNIT = frozenset({
    "or", "and", "not", "no", "nor", "never", "maybe", "perhaps", "possibly", "probably", "likely", "unlikely",
    "doubtful", "dubious", "about", "approximately", "approx", "around", "roughly", "nearly", "almost", "hardly", "if",
    "when", "unless", "least", "most", "than", "minus", "plus", "half", "double", "hundred", "thousand", "million",
    "billion", "trillion", "googol", "bn", "mn", "tn", "mln", "bln", "dozen", "is", "was", "negative", "infinity",
    "pi", "mod", "wrong", "false", "either", "neither", "but", "except", "so", "otherwise", "instead", "hundreds",
    "thousands", "millions", "billions", "trillions", "dozens", "quarter", "third", "score", "tenth", "tenths",
    "hundredth", "hundredths", "thousandth", "thousandths", "thirds", "halves", "fifths", "sixths", "sevenths",
    "eighths", "ninths", "factorial", "root", "over", "divided", "multiplied", "modulo", "base", "power",
    "reciprocal", "inverse", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty", "thirty",
    "forty", "fifty", "sixty", "seventy", "eighty", "ninety", "zero", "then", "unknown", "unsure", "uncertain",
    "impossible", "guess", "answer", "incorrect", "lakh", "crore",
})  # fmt: skip
_SHORT_UNITS = (
    "mm", "cm", "dm", "km", "kg", "mg", "ml", "mL", "ft", "in", "lb", "oz", "mi", "yd", "hr", "min", "sec", "mph",
    "rad",
)  # fmt: skip
_BARE_UNITS = rf"(?:{'|'.join(_SHORT_UNITS)})(?:/(?:{'|'.join(_SHORT_UNITS)}|h|s|m|g|l|L))?|m/s|m/min|g/mL|g/ml"
_CURRENCIES = {"\\$": "dollar", "€": "euro", "£": "pound sterling"}
_ALIASES = {
    "usd": "dollar", "centimetre": "cm", "centimeter": "cm",
    "millimeter": "mm", "millimetre": "mm", "kilometer": "km", "kilometre": "km", "meter": "m", "metre": "m",
    "inch": "in", "inche": "in", "feet": "ft", "foot": "ft", "hour": "h", "hr": "h", "minute": "min", "second": "s",
    "sec": "s", "gram": "g", "kilogram": "kg", "liter": "l", "litre": "l", "deg": "degree", "pound": "lb",
    "percentage": "percent", "pct": "percent", "mile per hour": "mph", "radian": "rad",
}  # fmt: skip
_WORD_POWERS = {"square": "^2", "sq": "^2", "squared": "^2", "cubic": "^3", "cu": "^3", "cubed": "^3"}
_PHRASE = r"[A-Za-z][A-Za-z./ -]{0,40}"
_POWER = r"(?:\s*\^\s*\{?\s*([23])\s*\}?)?"
_TEXT_UNIT = re.compile(rf"(.+?)\s*\\text\{{\s*(\(?{_PHRASE}?\)?)\s*\}}{_POWER}", re.DOTALL)
_BARE_UNIT = re.compile(rf"(.*?[0-9)}}])\s*({_BARE_UNITS}){_POWER}", re.DOTALL)
_WORD_UNIT = re.compile(
    r"(.*?[0-9)}])\s+((?=[A-Za-z]*[AEIOUaeiou]|[A-Za-z]{4})[A-Za-z]{3,}(?: [A-Za-z]+){0,3})", re.DOTALL
)
_SIGN_UNIT = re.compile(r"([+-]?)\s*(\\\$|€|£)\s*(.+)", re.DOTALL)
_MARK_UNIT = re.compile(r"(.+?)\s*(?:(\\degree)\s*(?:\\text\{\s*([CF])\s*\})?|(\\%)|(\\\$|€|£))", re.DOTALL)
_WHOLE_TEXT = re.compile(r"\\text\{\s*([^{}]*?)\s*\}")

_NUMBER_AND_WORDS = re.compile(r"^([^A-Za-z]*[0-9.])\s*([A-Za-z(][^\\]*)$")


def split_unit(text: str) -> tuple[str, str]:
    r"""A cleaned text as its value and its unit in one spelling ("" where it has none).

    Words that deny, hedge or change the number ("not", "or", "million") are no unit, as far as a list knows them.

    Example:
        >>> split_unit(r"5\text{ centimeters}^2"), split_unit(r"\$18"), split_unit("18 dollars"), split_unit(r"42\%")
        (('5', 'cm^2'), ('18', 'dollar'), ('18', 'dollar'), ('42', 'percent'))
        >>> split_unit(r"5\text{ million}"), split_unit("5m")
        (('5\\text{ million}', ''), ('5m', ''))
        >>> split_unit(r"\text{5 cm}"), split_unit(r"\$18\text{ per day}")
        (('5', 'cm'), ('18', 'dollar per day'))
    """
    if whole := _WHOLE_TEXT.fullmatch(text):
        # In a text command a letter is a unit, no variable: 5 m.
        for inner in (_NUMBER_AND_WORDS.sub(r"\1\\text{\2}", whole[1]), whole[1]):
            if literal((found := _split(inner))[0]):
                return found
    return _split(text)


def same_unit(gold: str, unit: str) -> bool:
    """Whether two units agree: one is missing, they are the same, or one says more about the same currency."""
    short, long = sorted((gold, unit), key=len)
    return not short or short == long or (short in _CURRENCIES.values() and long.startswith(short + " "))


def _split(text: str) -> tuple[str, str]:
    if found := _SIGN_UNIT.fullmatch(text):
        currency = _CURRENCIES[found[2]]
        value, unit = _split_words(found[3])
        return found[1] + value, unit if unit.startswith(currency) else f"{currency} {unit}".rstrip()
    if found := _MARK_UNIT.fullmatch(text):
        unit = (found[2] and "degree" + (found[3] or "")) or (found[4] and "percent") or _CURRENCIES[found[5]]
        return found[1], unit
    return _split_words(text)


def _split_words(text: str) -> tuple[str, str]:
    for pattern in (_TEXT_UNIT, _BARE_UNIT, _WORD_UNIT):
        if (found := pattern.fullmatch(text)) and (unit := _unit(found[2])):
            power = found[3] if pattern is not _WORD_UNIT else None
            return found[1], f"{unit}^{power}" if power else unit
    return text, ""


def _unit(phrase: str) -> str | None:
    if (phrase[0] == "(") != (phrase[-1] == ")"):
        return None
    parts = [part.lower() if len(part) > 2 else part for part in phrase.strip("()").replace(".", " ").split()]
    if not parts or len(parts) > 4 or _NO_UNIT.intersection(re.split("[ /-]", " ".join(parts).lower())):
        return None
    power = _WORD_POWERS.get(parts[0]) or _WORD_POWERS.get(parts[-1])
    name = " ".join(_singular(part) for part in parts if not (power and part in _WORD_POWERS))
    return _ALIASES.get(name, name) + (power or "") if name else None


def _singular(name: str) -> str:
    return name[:-1] if len(name) > 3 and name.endswith("s") and name not in _ALIASES else name
