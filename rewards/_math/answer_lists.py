"""The joints between two boxes or tags: a list, an equation, a hedge, or none."""

import re

from .._denials import BETWEEN


_FAR, _FAR_BLANK = 200, 10_000  # most characters between joined answers: with runs of blanks as one, with all
_MARKS = re.compile(r"\$|\*\*|\\[()\[\]]|\\[,;:! ]|~(?=~)|\\q?quad(?![A-Za-z])")
_TEXT = re.compile(r"\\(?:text|mathrm|mbox|textbf)\s*\{([^{}]*)\}")
_LIST = re.compile(r"[,;&，；、]?\s*(?:(?:and|or|und|oder|et|y|和|或|与|または)\b|[,;&，；、])\s*", re.IGNORECASE)
_JOINTS = {
    "=": "=", "\\cup": r"\cup ", "∪": r"\cup ", "\\approx": r"\approx ", "≈": r"\approx ",
    "or equivalently": "=", ", or equivalently,": "=",
    ", or equivalently": "=", "equivalently": "=", ", i.e.": "=", ", i.e.,": "=", "i.e.": "=", ", that is,": "=",
}  # fmt: skip
_WORD = re.compile(r"\\?[^\W\d_]+")
_END_OF_SENTENCE = re.compile(r"[.!?:。！？：]")


def between(text: str) -> str | None:
    r"""Return how the text between two answers joins them; `None` if the text does not join them.

    The result is ", " for a list, "=", `\approx` or `\cup` for an equation, an approximation or a union, and "" for a
    hedge.

    The text joins no answers if it is empty, if a sentence ends in it, if it has a word that is no hedge, or if a line
    ends in it and it has no word.

    Example:
        >>> between(" or "), between("$ = $"), between(" / "), between(". No, "), between(" ")
        (', ', '=', '', None, None)
    """
    bare = " ".join(text[:_FAR_BLANK].split())
    if len(bare) > _FAR or len(text) > _FAR_BLANK:
        return None
    bare = " ".join(_MARKS.sub(" ", _TEXT.sub(r" \1 ", bare)).split())
    if not bare:
        return None
    if _LIST.fullmatch(bare):
        return ", "
    if bare.casefold() in _JOINTS:
        return _JOINTS[bare.casefold()]
    words = _WORD.findall(bare)
    if _END_OF_SENTENCE.search(bare.replace("vs.", "vs")) or not all(word.casefold() in BETWEEN for word in words):
        return None
    return None if "\n" in text and not words else ""
