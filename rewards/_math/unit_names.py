"""The words that are units, in one spelling (`cm^2`, `m s^-2`, `dollar d^-1`), and which words are none."""

import re

from .._denials import AFTER_A_NUMBER
from .comparisons import compares


# Most words in -ly or -mente hedge: "presumably", "aproximadamente".
_ADVERB = re.compile(r"[a-z]{2,}(?:ly|mente)")
_FOLD = re.compile(r"(?:two|three|four|five|six|seven|eight|nine|ten|twelve|twenty|hundred|thousand|million|many)fold")
_HARMLESS = frozenset({
    "only", "exactly", "precisely", "daily", "weekly", "monthly", "yearly", "hourly", "quarterly", "family", "fly",
    "butterfly", "dragonfly", "firefly", "jelly", "lily", "belly", "bully", "ally", "assembly", "supply", "trolly",
    "annually", "altogether",
})  # fmt: skip
# These words may also be the name of a quantity.
_NAMES_TOO = frozenset({
    "answer", "power", "base", "root", "score", "error", "inverse", "reciprocal", "gross", "quarter", "third", "half",
    "factorial", "least",
})  # fmt: skip
_JUDGEMENTS = frozenset(
    {"true", "at", "any", "anything", "nothing", "everything", "something", "other", "different", "neg"}
)
_PARTICLES = frozenset({"a", "an", "of", "to", "in", "on", "at", "by", "he", "we", "us", "my", "up", "as", "per"})
_SHORT = frozenset({"ad", "ox", "tv", "pc", "id", "go", "be", "it", "do"})  # countable, of two letters

_PREFIXES = {
    "kilo": "k", "centi": "c", "milli": "m", "mega": "M", "micro": "μ", "nano": "n", "giga": "G", "deci": "d",
    "hecto": "h", "tera": "T", "pico": "p",
}  # fmt: skip
_BASES = {
    "meter": "m", "metre": "m", "gram": "g", "gramme": "g", "liter": "l", "litre": "l", "second": "s", "joule": "J",
    "watt": "W", "newton": "N", "pascal": "Pa", "volt": "V", "ampere": "A", "amp": "A", "ohm": "Ω", "hertz": "Hz",
    "mole": "mol", "byte": "byte", "bit": "bit", "calorie": "cal", "electronvolt": "eV", "coulomb": "C",
    "farad": "F", "bel": "B",
}  # fmt: skip
_SYMBOLS = ("m", "g", "s", "L", "l", "J", "W", "N", "Pa", "V", "A", "Ω", "Hz", "mol", "cal", "eV", "Wh", "F", "C")
# A letter after a number may be a unit, a factor (`FACTORS` has the power of ten) or a variable. The letters of
# `_SURE` are units; the others are units where the gold has them.
_SURE = frozenset("mgslLhdtJWNVAFC")
FACTORS = {"K": 3, "M": 6, "B": 9, "G": 9, "T": 12}
_SPELLINGS = {
    "in": "inch inche", "ft": "feet foot", "h": "hour hr hrs 小时 小時 时 時間 ч", "min": "minute mins 分钟 分鐘 мин",
    "s": "sec secs 秒 с", "degree": "deg degree 度", "lb": "pound lbs", "oz": "ounce", "mi": "mile", "yd": "yard yds",
    "year": "yr yrs year лет года год", "week": "wk wks week", "month": "mo month", "day": "day d", "point": "pts pt",
    "cm": "cms 厘米 см", "km": "kms 千米 公里 км", "mm": "mms 毫米 мм", "kg": "kgs 千克 公斤 кг",
    "percent": "percent percentage pct", "rad": "radian", "unit": "unit", "K": "kelvin", "M": "molar", "cent": "cent",
    "dollar": "dollar usd", "euro": "euro eur", "pound sterling": "gbp", "rupee": "rupee inr", "yen": "yen jpy 円",
    "yuan": "yuan cny rmb 元 块", "celsius": "celsius", "fahrenheit": "fahrenheit", "piece": "pcs", "t": "tonne 吨",
    "acre": "acre", "dm": "分米 дм", "m": "米 м", "g": "克 г", "mg": "毫克", "l": "升 л", "ml": "毫升",
    "rouble": "руб рублей рубля",
}  # fmt: skip
_NAMES = {name: unit for unit, names in _SPELLINGS.items() for name in names.split()}
_PLAIN = (
    "in", "ft", "lb", "oz", "mi", "yd", "h", "min", "mph", "kmh", "kph", "rad", "sr", "dB", "rpm", "fps", "bpm", "ppm",
    "psi", "atm", "bar", "torr", "qt", "gal", "ha", "cd", "lm", "lx", "Bq", "Gy", "Sv", "kB", "KB", "MB", "GB", "TB",
    "px", "AU", "K", "M", "cc", "t", "kWh",
)  # fmt: skip
_COUNTERS = (
    "个 個 只 隻 本 枚 人 名 位 岁 歲 歳 才 圆 圓 分 天 日 周 月 个月 年 次 "
    "回 条 條 张 張 支 棵 辆 輛 台 间 間 件 把 颗 粒 页 頁 题 題 步 "
    "行 列 组 組 套 盒 包 瓶 杯 斤 亩 种 種 朵 头 頭 匹 袋 箱 根 块钱 "
    "개 명 원 살 세 마리 권 번 분 시간 초 일 штук шт человек"
)


def _table() -> dict[str, str]:
    symbols = {
        prefix + base: prefix + base
        for base in _SYMBOLS
        for prefix in ("", "k", "c", "d", "m", "M", "G", "μ", "n", "p", "h")
    }
    words = {
        long + name: short + base for name, base in _BASES.items() for long, short in {"": "", **_PREFIXES}.items()
    }
    plain = {name: name for name in (*_PLAIN, *_COUNTERS.split())}
    return symbols | words | plain | _NAMES


_KNOWN = {name: re.sub(r"^([kcdmMGμnph]?)L$", r"\1l", unit) for name, unit in _table().items()}
_SPEEDS = {"mph": {"mi": 1, "h": -1}, "kmh": {"km": 1, "h": -1}, "kph": {"km": 1, "h": -1}, "fps": {"ft": 1, "s": -1}}
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3, "平方": 2, "立方": 3}
_WORD = r"[A-Za-zμΩ\u0400-\u04ff\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]+"
_TOKEN = re.compile(rf"({_WORD})\s*(?:\^\s*(-?[1-9]))?|([/·*.]|\s+)|-")
_GROUP = re.compile(r"/\s*\(([^()/]*)\)")
# "(distinct) ways", "way(s)"
_ASIDE = re.compile(r"(?<!/)\(\s*([A-Za-z][ A-Za-z'-]*[A-Za-z])\s*\)")
_PLURAL = re.compile(r"(?<=[a-z])\((e?s)\)(?![A-Za-z])")
_ADDS_NOTHING = frozenset({"total", "in total", "altogether", "overall", "exactly", "exact", "precisely", "whole"})
_CURRENCIES = ("dollar", "euro", "pound sterling", "cent", "rupee", "yen", "yuan")
_FREE = re.compile(r"[A-Za-z][A-Za-z./' -]*")


def unit_of(phrase: str) -> str | None:
    """Return a phrase after a number as a unit in one spelling; `None` if the phrase is no unit.

    Known units are read with their symbols and powers. Other words name what is counted, unless a list has them as a
    denial, a hedge or a factor. That is safe because the number before the phrase must be right in any case.

    Example:
        >>> unit_of("square centimeters"), unit_of("m/s^2"), unit_of("eggs"), unit_of("not"), unit_of("kk")
        ('cm^2', 'm s^-2', 'egg', None, None)
    """
    phrase = phrase.strip().replace("per cent", "percent")
    if phrase.startswith("(") and phrase.find(")") == len(phrase) - 1:
        phrase = phrase[1:-1].strip()
        if len(phrase) == 1 and phrase.isupper():
            return None  # the label of a choice
    if _is_letter(phrase):
        return phrase
    if _PLURAL.search(phrase):
        return unit_of(_PLURAL.sub(r"\1", phrase)) if unit_of(_PLURAL.sub("", phrase)) else None
    if not _ASIDE.search(phrase):
        return _plain(phrase)
    joined = _plain(" ".join(_ASIDE.sub(r" \1 ", phrase).split()))
    asides = {aside.lower() for aside in _ASIDE.findall(phrase)}
    # Words that add nothing may follow a unit that the gold has.
    return _plain(" ".join(_ASIDE.sub(" ", phrase).split())) if joined and asides <= _ADDS_NOTHING else joined


def disowns(name: str) -> bool:
    """Return whether the words before an equals sign deny, hedge or judge what follows it: "not", "wrong", "true"."""
    words = re.findall(r"(?<![A-Za-z\\])[A-Za-z]+", name)
    return any(
        (word in AFTER_A_NUMBER and word not in _NAMES_TOO)
        or word in _JUDGEMENTS
        or (_ADVERB.fullmatch(word) is not None)
        for word in map(str.lower, words)
    )


def is_unsure(unit: str) -> bool:
    """Return whether a unit may be something other than a unit: a letter, or words that compare."""
    return _is_letter(unit) or compares(unit)


def _is_letter(unit: str) -> bool:
    return len(unit) == 1 and unit.isascii() and unit.isalpha() and unit not in _SURE


def _plain(phrase: str) -> str | None:
    """Return a phrase that has no words in parentheses as a unit; `None` if the phrase is no unit."""
    return _product_of_units(_GROUP.sub(_each_divided, phrase)) or _counted(phrase)


def _each_divided(group: re.Match[str]) -> str:
    return "".join("/" + part for part in re.split(r"[\s·*]+", group[1].strip()))


def _product_of_units(phrase: str) -> str | None:
    """Return a phrase as a product of powers of known units; `None` if the phrase is no such product."""
    powers: dict[str, int] = {}
    sign, coming, last, at = 1, 1, "", 0
    for token in _TOKEN.finditer(phrase):
        if token.start() != at or token[0] == "-":
            return None
        at = token.end()
        word, power = token[1], int(token[2] or 1)
        if word is None:
            sign = -1 if token[0] == "/" else sign
        elif word == "per":
            sign = -1
        elif word.lower() in _POWERS and not token[2]:
            if word.lower() in ("squared", "cubed"):
                powers[last] = powers.get(last, 0) * _POWERS[word.lower()]
            else:
                coming = _POWERS[word.lower()]
        else:
            parts = _units_of_word(word)
            if parts is None:
                return None
            for name, own in parts.items():
                powers[name] = powers.get(name, 0) + own * power * coming * sign
                last = name
            sign = coming = 1
    if at != len(phrase) or not powers or sign != 1 or coming != 1 or "" in powers:
        return None
    return " ".join(
        name if power == 1 else f"{name}^{power}"
        for name, power in sorted(powers.items(), key=lambda item: (item[0] not in _CURRENCIES, item[0]))
    )


def _units_of_word(word: str) -> dict[str, int] | None:
    if word in _SPEEDS:
        return _SPEEDS[word]
    for prefix in ("平方", "立方"):
        if word.startswith(prefix) and word[2:] in _KNOWN:
            return {_KNOWN[word[2:]]: _POWERS[prefix]}
    name = _KNOWN.get(word)
    if name is None and word.isascii() and len(word) > 1:
        lower = word.lower()
        # Accept capitals where they cannot mean another prefix, and plurals.
        name = _KNOWN.get(lower) if len(lower) > 2 or lower in _CAPITALS else None
        name = name or (_KNOWN.get(lower[:-1]) if lower.endswith("s") and len(lower) > 3 else None)
    return None if name is None else {name: 1}


_CAPITALS = frozenset({"cm", "km", "kg", "ml", "ft", "in", "lb", "oz", "yd", "hr", "mi"})


def _counted(phrase: str) -> str | None:
    """Return what a phrase counts, in words; `None` if the phrase counts nothing."""
    parts = [part for part in re.split(r"[ ./'-]+", phrase.lower()) if part]
    if len(phrase) > 60 or not _FREE.fullmatch(phrase) or len(parts) > 4 or AFTER_A_NUMBER.intersection(parts):
        return None
    if any((_ADVERB.fullmatch(part) and part not in _HARMLESS) or _FOLD.fullmatch(part) for part in parts):
        return None
    names = phrase.replace(".", " ").split()
    return " ".join(_singular(name.lower()) for name in names) if all(map(_is_word, names)) else None


def _is_word(text: str) -> bool:
    """Return whether a text can be read aloud or is a unit, unlike "k", "bn" and "Tsd"."""
    pieces = [piece for piece in re.split(r"[/'-]", text) if piece]
    return bool(pieces) and all(
        _units_of_word(piece) is not None
        or piece.lower() in _PARTICLES | _SHORT
        or (len(piece) > 2 and re.search(r"[aeiouy]", piece.lower()) is not None)
        for piece in pieces
    )


def _singular(name: str) -> str:
    return name[:-1] if len(name) > 3 and name.endswith("s") and not name.endswith("ss") else name
