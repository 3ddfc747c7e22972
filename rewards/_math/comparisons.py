"""Words after a number that compare it ("less", "short of"), so that the number alone says something else."""

import re


_LESS = frozenset({
    "less", "lesser", "fewer", "lower", "smaller", "short", "shorter", "shy", "below", "beneath", "under",
    "underneath", "down", "off", "lighter", "cheaper", "slower", "younger", "narrower", "weaker", "weniger",
    "minder",
})  # fmt: skip
_MORE = frozenset({"more", "higher", "greater", "larger", "bigger", "above", "up", "extra", "additional"})
_PER_CENT = frozenset({"percent", "percentage", "pct", "%"})
_TIMES = frozenset({"times", "time"})
# Words before a comparison that count nothing. A "bit" without its article is a unit.
_HOW_MUCH = frozenset({"much", "even", "far", "is", "are", "was", "were", "still", "too", "slightly", "considerably"})
_SOMEWHAT = re.compile(r"\ba (?:lot|bit|little)\b")
_CUT_OFF = frozenset({"of", "than", "per", "by"})
_CUT_OFF_FROM = frozenset({"away", "down", "up", "far", "apart"})
_WORD = re.compile(r"[a-z]+|%")


def compares(phrase: str) -> bool:
    """Return whether a phrase after a number compares it and counts nothing, compares by per cent, or breaks off.

    If the phrase names what is counted, the number stands on its own: "12 apples fewer", "12 fewer apples".

    Example:
        >>> [compares(phrase) for phrase in ("less", "much fewer", "short of", "percent more", "times smaller")]
        [True, True, True, True, True]
        >>> [compares(phrase) for phrase in ("dollars less", "fewer apples", "more", "times as many", "percent")]
        [False, False, False, False, False]
    """
    words = _WORD.findall(_SOMEWHAT.sub("", phrase.lower()))
    if not words:
        return False
    if words[-1] in _CUT_OFF or (words[-1] == "from" and not _CUT_OFF_FROM.isdisjoint(words)):
        return True
    said = [word for word in words if word not in _HOW_MUCH]
    if len(said) > 1 and said[0] in _PER_CENT | _TIMES:
        return said[1] in (_LESS | _MORE if said[0] in _PER_CENT else _LESS)
    return bool(said) and _LESS.issuperset(said)
