"""The constraints that `instruction_checks` knows: one small function per kind.

Each function takes the text and the kind's parameters. Its time grows with the text's length, whatever the text.
"""

import itertools
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import regex

from ._json import read_json
from ._text import code_blocks


Script = Literal["Arabic", "Cyrillic", "Devanagari", "Greek", "Han", "Hangul", "Hebrew", "Japanese", "Latin", "Thai"]

BOUNDS = {"min": int, "max": int, "exactly": int}
SCRIPT_SHARE = 0.9
SEPARATORS = '"“”„«»「」*_ '
QUOTES = (('"', '"'), ("“", "”"), ("„", "“"), ("«", "»"), ("「", "」"))

_CJK = r"[\p{Han}\p{Hiragana}\p{Katakana}]"
_LETTER = rf"[[\p{{L}}\p{{M}}\p{{N}}]--{_CJK}]"
_WORD = regex.compile(
    rf"{_CJK}\p{{M}}*+|(?!\p{{M}}){_LETTER}++(?:(?:['’\-]|(?<=\p{{N}})[.,](?=\p{{N}})){_LETTER}++)*+", regex.VERSION1
)
_END = regex.compile(r"(?<![.!?…])[.!?…]++[\"'”’»)\]]*+(?=\s|$)|[。！？｡]++[」』”’）]*+")
# Words that begin a sentence and are hardly a surname. `A.` is an initial.
_BEGINS = (
    r"(?:I|You|He|She|It|We|They|My|Your|His|Her|Its|Our|Their|This|That|These|Those|There|Here|The|An?|And|But|Or|So"
    r"|Then|However|Also|Yet|If|When|While|As|In|On|At|For|From|With|What|Who|Why|How|Is|Are|Was|Do|Does|No|Yes|Not)"
    r"\b(?!\.)"
)
_NO_END = regex.compile(
    r"\b(?:Mr|Mrs|Ms|Dr|Prof|vs|e\.g|i\.e)\.(?=\s)|\bNo\.(?=\s\d)|\bFig\.(?=\s(?:\d|\p{Lu}(?:\d|\b)))"
    rf"|\b(?:St|(?!I\.)\p{{Lu}}|(?<=\b\p{{Lu}}\.[^\S\n]?)I)\.(?=[^\S\n]++(?!{_BEGINS})\p{{L}})"
    r"|^[ \t]*(?:\d+|\p{Lu})\.(?=\s)",
    regex.M,
)
_NUMBER = regex.compile(r"[ \t]*+(\d{1,6})[.)][ \t]++\S")
_LONG_MARKS = regex.compile(r"(\p{M}{30})\p{M}++")
_FORMAT = regex.compile(r"\p{Cf}++")


# -- reading a text


def _words(text: str) -> list[str]:
    return _WORD.findall(text)


def has_word(text: str) -> bool:
    """Return whether a text has a word. One letter or digit is enough."""
    return _WORD.search(text) is not None


def _paragraphs(text: str) -> list[str]:
    blocks = itertools.groupby(text.splitlines(), key=lambda line: bool(line.strip()))
    return [block for _, lines in blocks if has_word(block := "\n".join(lines))]


def folded(text: str) -> str:
    """Return a text without differences of case, width, invisible characters and kinds of white space."""
    if not text.isascii():
        # Normalising takes time quadratic in the length of a run of marks.
        text = _FORMAT.sub("", unicodedata.normalize("NFKC", _LONG_MARKS.sub(r"\1", text)))
    return " ".join(text.casefold().split())


@lru_cache(maxsize=4096)
def _phrase(phrase: str) -> Any:
    """Compile a pattern that finds a phrase in a folded text.

    The phrase must be whole words, unless its words are written without spaces.
    """
    words = folded(phrase)
    before, after = (regex.match(_LETTER, edge, regex.V1) is not None for edge in (words[0], words[-1]))
    pattern = regex.escape(words, special_only=True)
    return regex.compile(f"(?<!{_LETTER})" * before + f"(?:{pattern})" + f"(?!{_LETTER})" * after, regex.VERSION1)


def _lines(pattern: str) -> Callable[[str], int]:
    """Return a function that counts the lines that start as the pattern says."""
    match = regex.compile(pattern).match
    return lambda text: sum(match(line) is not None for line in text.splitlines())


def _marked(pattern: str, text: str) -> int:
    """Return how many matches of the pattern hold a word, with no white space just inside the marks."""
    inners = (match[match.lastindex or 0] for match in regex.finditer(pattern, text))
    return sum(inner == inner.strip() and has_word(inner) for inner in inners)


# -- the kinds that count


def _sentences(text: str) -> int:
    """Count the sentences of a text; a title, an initial and the mark of a list end none.

    "J. Doe" and "Take vitamin C. Sleep well" look alike. So after an initial or "St." a sentence begins only with a
    word that often begins one ("vitamin C. It helps"). "No. 5" is a number. "B." at the beginning of a line is a mark.
    """
    cleaned = (_NO_END.sub("x", block) for block in _paragraphs(text))
    return sum(has_word(piece) for block in cleaned for piece in _END.split(block))


def _numbered_items(text: str) -> int:
    following = 1
    for line in text.splitlines():
        number = _NUMBER.match(line)
        following += number is not None and int(number[1]) == following
    return following - 1


def _keyword(text: str, keyword: str) -> int:
    return sum(1 for _ in _phrase(keyword).finditer(folded(text)))


def _letter(text: str, letter: str) -> int:
    return folded(text).count(folded(letter))


def _parts(text: str, separator: str) -> int:
    return len({part.strip() for part in text.split(separator) if has_word(part)})


# -- the kinds that hold or do not


def _required_words(text: str, words: list[str]) -> bool:
    read = folded(text)
    return all(_phrase(word).search(read) for word in words)


def _forbidden_words(text: str, words: list[str]) -> bool:
    read = folded(text)
    return not any(_phrase(word).search(read) for word in words)


def _in_case(text: str, case: Literal["upper", "lower", "title"]) -> bool:
    if case == "title":
        return all(regex.match(r"\P{L}*+(?:[\p{Lu}\p{Lt}]|$)", word) for word in _words(text))
    return text.isupper() if case == "upper" else text.islower()


def _without_separators(text: str, phrase: str) -> tuple[str, str]:
    """Return both, folded, without separators at their ends; with them if the phrase is nothing else."""
    read, wanted = folded(text), folded(phrase)
    bare = wanted.strip(SEPARATORS)
    return (read.strip(SEPARATORS), bare) if bare else (read, wanted)


def _starts_with(text: str, phrase: str) -> bool:
    read, beginning = _without_separators(text, phrase)
    return _phrase(beginning).match(read) is not None


def _ends_with(text: str, phrase: str) -> bool:
    read, ending = _without_separators(text, phrase)
    return _phrase(ending).fullmatch(read, max(0, len(read) - len(ending))) is not None


def _paragraph_starts_with(text: str, paragraph: int, phrase: str) -> bool:
    blocks = _paragraphs(text)
    return paragraph <= len(blocks) and _starts_with(blocks[paragraph - 1], phrase)


def _quoted(text: str) -> bool:
    inner = text[1:-1]
    return any(
        (text[0], text[-1]) == (left, right) and has_word(inner) and left not in inner and right not in inner
        for left, right in QUOTES
    )


def _postscript(text: str, marker: str = "P.S.") -> bool:
    begun, bare_marker = False, marker.strip(SEPARATORS) or marker
    for line in text.splitlines():
        bare = line.strip().strip(SEPARATORS)
        if begun and bare.casefold().startswith(bare_marker.casefold()) and has_word(bare[len(bare_marker) :]):
            return True
        begun = begun or has_word(line)
    return False


def _one_of(text: str, options: list[str]) -> bool:
    said, *allowed = (folded(one).strip(SEPARATORS + ".!") or folded(one) for one in (text, *options))
    return said in allowed


def _json(text: str) -> bool:
    blocks = code_blocks(text) if text[:3] in ("```", "~~~") and text.endswith(text[:3]) else []
    # The text is one block, with no line outside of its fences.
    is_fenced = len(blocks) == 1 and blocks[0].body.count("\n") >= text.count("\n") - 1
    if is_fenced and blocks[0].language not in ("", "json"):
        return False
    try:
        return isinstance(read_json(blocks[0].body if is_fenced else text), dict | list)
    except (ValueError, RecursionError):
        return False


def _in_script(text: str, script: Script) -> bool:
    inside = _CJK if script == "Japanese" else rf"\p{{{script}}}"
    letters = regex.findall(r"\p{L}", text)
    of_script = regex.findall(inside, "".join(letters))
    if script == "Japanese" and not regex.search(r"[\p{Hiragana}\p{Katakana}]", text):
        return False
    return bool(letters) and len(of_script) >= SCRIPT_SHARE * len(letters)


def _ends_in_script(text: str, script: Script) -> bool:
    return _in_script(next((line for line in reversed(text.splitlines()) if has_word(line)), ""), script)


COUNTS: dict[str, Callable[..., int]] = {
    "words": lambda text: len(_words(text)),
    "unique_words": lambda text: len({word.casefold() for word in _words(text)}),
    "capital_words": lambda text: sum(len(word) > 1 and word.isupper() for word in _words(text)),
    "characters": lambda text: sum(not char.isspace() for char in text),
    "sentences": _sentences,
    "paragraphs": lambda text: len(_paragraphs(text)),
    "lines": _lines(r"\s*+\S"),
    "headings": _lines(r" {0,3}#{1,6}[ \t]++\S"),
    "bullets": _lines(r"[ \t]*+[-*+•‣·・][ \t]++\S"),
    "numbered_items": _numbered_items,
    "placeholders": lambda text: _marked(r"\[([^\[\]\n]++)\](?!\()", text),
    "highlights": lambda text: _marked(r"\*\*([^*\n]++)\*\*|\*([^*\n]++)\*", text),
    "titles": lambda text: _marked(r"<<([^<>\n]++)>>", text),
    "keyword": _keyword,
    "letter": _letter,
    "parts": _parts,
}
CHECKS: dict[str, Callable[..., bool]] = {
    "required_words": _required_words,
    "forbidden_words": _forbidden_words,
    "case": _in_case,
    "starts_with": _starts_with,
    "ends_with": _ends_with,
    "paragraph_starts_with": _paragraph_starts_with,
    "quoted": _quoted,
    "no_commas": lambda text: regex.search("[,，、،､﹐﹑]", text) is None,
    "postscript": _postscript,
    "one_of": _one_of,
    "json": _json,
    "script": _in_script,
    "ending_script": _ends_in_script,
}
KINDS = COUNTS | CHECKS
