"""The cleaning of an answer in LaTeX: one spelling for each notation; brackets.

Everything here takes linear time, or works on at most `MAX_CHARS` characters, so it is safe on any text.
"""

import re
from collections.abc import Callable
from functools import lru_cache

from .degrees import in_radians
from .styles import unstyled
from .terms import literal
from .unicode import typed


MAX_CHARS = 1000  # longest answer, in characters; the longest golds of MATH have about 200

_AND = "and|or|und|oder|et|ou|и|или|和|与|或者?"  # between the parts of a list
_BRACED_POWER = re.compile(r"\^\s*\{\s*(-?[1-9])\s*\}")
_AND_IN_TEXT = re.compile(rf",?\s*(?:\\quad\s*)*\\text\s*\{{(?:\s*(?:,?\s*(?:{_AND}),?|,)\s*|\s+[yoe]\s+)\}}")
_QUAD = r"[,;]?\s*(?:\\quad\s*)*"
_OR_WORD, _AND_WORD = (
    re.compile(
        rf"{_QUAD}(?:\\text\s*\{{\s*,?\s*(?:{word}|\s{letter}\s),?\s*\}}|(?<![A-Za-z\\{{])(?:{word})(?![A-Za-z}}]))(?:\s*\\quad)*"
    )
    for word, letter in (("or|oder|ou|или|或者?|または", "o"), ("and|und|et|и|和|与|與|及", "[ye]"))
)
_COMMA_OR = re.compile(rf"{_OR_WORD.pattern}|[,;]")
_BASES = {
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "six": 6,
    "seven": 7,
    "eight": 8,
    "nine": 9,
    "ten": 10,
    "twelve": 12,
}
_BASE = rf"[0-9]{{1,2}}|{'|'.join(_BASES)}"
_RELATION = re.compile(r"\\(?:[lg]e|ne|in)(?![A-Za-z])|[<>=]")
_ORDER = re.compile(r"\\(?:[lg]e)(?![A-Za-z])|[<>]")
# Each pattern and its replacement, so that each notation has one spelling. The order counts.
_SPELLINGS: list[tuple[str | re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (r"\\!|\\(?:left|right|middle|[bB]igg?[lr]?)(?![A-Za-z])\.?|\\(?:display|text)style(?![A-Za-z])", ""),
    (r"(?<!\\)\$|^\s*\\[(\[]|(?<!\\)\\[)\]]\s*$", ""),
    (r"\{,\}", ","),
    # Braces around a sign remove the spaces around it: 12{:}30.
    (r"\\colon(?![A-Za-z])|\\text\s*\{\s*:\s*\}", ":"),
    (r"\\math(?:bin|rel|ord|punct)\s*(\{\s*[:=+\-/.<>]\s*\})", r"\1"),
    (r"(^\s*|[0-9)]\s*|(?<![A-Za-z\\])[A-Za-z]\s*)\{\s*([:=+\-/.<>])\s*\}", r"\1\2"),
    (r"(?<![0-9.,])([0-9]{1,3})((?:(?:\\[,;: ]|~| )[0-9]{3})+)(?![0-9])", lambda m: re.sub(r"[^0-9]", "", m[0])),
    (r"(?<!\\)\\[,;: ]|~|\s+", " "),
    (r"\\q?quad(?![A-Za-z])", r" \\quad "),
    (r"\^\s*(?:\{\s*\\prime\s*\}|\\prime(?![A-Za-z]))", "'"),
    (r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])", r"\\degree "),
    (r"\\leq?(?:slant)?(?![A-Za-z])", r"\\le "),
    (r"\\geq?(?:slant)?(?![A-Za-z])", r"\\ge "),
    (r"\\neq?(?![A-Za-z])", r"\\ne "),
    (r"<=", r"\\le "),
    (r">=", r"\\ge "),
    (r"\s!=", r" \\ne "),
    (r"\\mathbb\s*(?:\{R\}|R(?![A-Za-z]))", r"(-\\infty,\\infty)"),
    (r"\\mathrm\s*\{([eid])\}", r"\1 "),
    (r"\\(?:mathrm|text)\s*\{\s*\\pi\s*\}", r"\\pi "),
    (r"^\s*(?:\\therefore(?![A-Za-z])|=(?!=))\s*", ""),
    (r"\\lt(?![A-Za-z])", "<"),
    (r"\\gt(?![A-Za-z])", ">"),
    (r"\\varnothing(?![A-Za-z])", r"\\emptyset "),
    (r"\\lbrace(?![A-Za-z])", r"\\{"),
    (r"\\rbrace(?![A-Za-z])", r"\\}"),
    (r"^\s*\\\{\s*\\\}\s*$", r"\\emptyset "),
    (r"\\[lr]?vert(?![A-Za-z])", "|"),
    (r"\\\\\s*\[\s*[0-9.]+\s*(?:pt|em|ex|mm|cm)\s*\]", r"\\\\ "),
    (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
    (r"\\operatorname\s*\{\s*(ln|log|sin|cos|tan|cot|sec|csc)\s*\}", r"\\\1 "),
    (r"\\(?:text(?:bf|it|rm|normal|sf|tt)|mathrm|mbox|operatorname\*?|rm)\s*(?=\{)", r"\\text"),
    # Move a unit's sign out of the text command that it begins. Write powers of units without braces.
    (r"\\text\s*\{\s*(\\degree|\\%|%|\\\$|US\\\$|[€£₹¥])\s*\}", r"\1 "),
    (r"\\text\s*\{\s*(\\\$|US\\\$|[€£₹¥])\s*([0-9][^{}]*)\}", r"\1\2"),
    (r"\\text\s*\{\s*(\\degree|\\\$|US\\\$|[€£₹¥])\s*([^{}]+)\}", r"\1\\text{\2}"),
    (r"\\text\s*\{[^{}]*\^\s*\{[^{}]*\}[^{}]*(?:\^\s*\{[^{}]*\}[^{}]*)*\}", lambda m: _BRACED_POWER.sub(r"^\1", m[0])),
    (r"\^\s*\\text\s*\{\s*(-?[1-9])\s*\}", r"^\1"),
    (
        r"(?<=[0-9])\s*(?:\^\s*\{\s*(?:\\text\s*\{)?(?:st|nd|rd|th)\}?\s*\}|\^?\s*\\text\s*\{\s*(?:st|nd|rd|th)\s*\})",
        "",
    ),
    (_AND_IN_TEXT, ","),
    (r"(?:,\s*(?:\\quad\s*)*)?(?<![A-Za-z\\{])(?:and|or|und|oder)(?![A-Za-z}])", ","),
    (r"(?<=[\s0-9)}\]A-Za-z])(?:和|与|與|或者?|及|または|и|или)(?=[\s0-9({\[A-Za-z\\.-])", ", "),
    (r"(?:\\quad\s*)+,\s*(?:\\quad\s*)*|,\s*(?:\\quad\s*)+", ", "),
    (r"^\s*(?:\\quad\s*)+|(?:\\quad\s*)+$", ""),
    (r"\\pmod\s*([0-9]|[a-z](?![a-z]))", r"\\pmod{\1}"),
    # Write the modulus of a congruence in one form: \mod 6, (mod 6), (\text{mod } 6).
    (
        r"(\\equiv(?![A-Za-z])[^=<>]*?)\s*\(?\s*(?:\\b?mod(?![A-Za-z])|\\text\s*\{\s*mod\b\s*\}?|(?<=\()mod\b)"
        r"\s*\{?\s*(\w+)\s*\}?\s*\)?\s*(?=\.?\s*$)",
        r"\1 \\pmod{\2}",
    ),
    # Write a number's base in one form: 52_{\text{eight}}, 52_{(8)}, 52 \text{ (base 8)}, 52_{8}, (52)_8.
    (
        rf"(?<=[0-9A-F)])\s*_\s*(?:\{{\s*)?(?:\\text\s*\{{\s*\(?\s*({_BASE})\s*\)?\s*\}}|\(\s*({_BASE})\s*\))(?:\s*\}})?",
        lambda m: f"_{{{_base(m[1] or m[2])}}}",
    ),
    (
        rf"^\s*([0-9A-F]*[0-9])\s*\\text\s*\{{\s*\(?\s*(?:in )?base(?:\s*|-)"
        rf"(?:({_BASE})\s*\)?\s*\}}|\}}\s*([0-9]{{1,2}}))\s*(?=\.?\s*$)",
        lambda m: f"{m[1]}_{{{_base(m[2] or m[3])}}}",
    ),
    (
        r"\(([0-9A-F]*[0-9])\)\s*_\s*\{?\s*([0-9]+)\s*\}?|(?<![A-Za-z0-9])([0-9A-F]*[0-9])\s*_\s*\{\s*([0-9]+)\s*\}",
        lambda m: f"{m[1] or m[3]}_{m[2] or m[4]}",
    ),
    (r"(?<![A-Za-z\\])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
    (r"(?<![A-Za-z\\])(pi|ln|log|sin|cos|tan)(?![A-Za-z])", r"\\\1 "),
    (r"\\(?:bar|dot)\s*(?=\{?[0-9])", r"\\overline"),
    (r"\\overline\s*([0-9])", r"\\overline{\1}"),
    (r"\\log\s*_\s*(?:\{\s*(?:e|\\text\s*\{\s*e\s*\})\s*\}|\\text\s*\{\s*e\s*\}|e)", r"\\ln "),
    (r"(?<!\\)%", r"\\%"),
    (r"\\infin(?![A-Za-z])", r"\\infty"),
    # Write an upright letter that is part of a formula, or in parentheses, as a plain letter.
    (r"(?:^|(?<=[+\-=(]))\s*\\text\{([A-Za-z])\}(?=\s*[+\-=^_)(])", r"\1"),
    # Remove braces that are not around an argument.
    (r"(?:^|(?<=[=,(\[]))\s*\{([^{},;]*)\}\s*(?=$|[,)\]=]|\\text|\\%|\\degree)", r"\1"),
    (r"\\in\s*\{([^{}]*[,;][^{}]*)\}", r"\\in \\{\1\\}"),
    (r"^\s*(?:\\text\{\s*)?[Aa]ll real(?:s| numbers| values)\.?\s*\}?\s*$", r"(-\\infty,\\infty)"),
]
_PLAIN = [(re.compile(pattern), plain) for pattern, plain in _SPELLINGS]
# Answers that are not clear: a tilde that means "about" (not one between two words), or a dollar sign between digits.
_UNCLEAR = re.compile(
    r"^(?:[\s$({]|\\(?:text(?:bf|it|rm)?|mathrm|mbox|left|[$(\[]))*~|~[\s$.]*$|=[\s$]*~|[0-9]\s*(?<!\\)\$[\s$]*[0-9]"
)
_TEXT_LEAD = re.compile(
    r"^(\s*\$?\s*)(\\(?:text(?:bf|it|rm)?|mathrm|mbox)\s*\{)\s*(?:(?:the|my)\s+)?(?:(?:final|correct)\s+)?answer\s*[:=]\s*(\}?)",
    re.IGNORECASE,
)
# "for all real x" after the equation of a function. A part of the numbers, such as the positive ones, is not all.
_FOR_ALL = re.compile(
    r"([A-Za-z](?:_[A-Za-z0-9])?\s*\([a-z](?:,\s*[a-z])*\)\s*=.*?)[\s,]*(?:\\quad\s*)*"
    r"(?:\\text\{\s*,?\s*for (?:all|any|every|each)(?: (?:real|integer|rational|natural))?"
    r"(?: numbers?| integers?| reals?)?\s*(?:(?<=\s)[a-z]\s*)?\}|\\forall(?![A-Za-z]))"
    r"\s*(?:[a-z](?:,\s*[a-z])*)?\s*(?:\\in\s*(?:\\mathbb\s*\{?[ZNQ]\}?|\(-\\infty,\\infty\)))?",
    re.DOTALL,
)
_PARENTHESES = re.compile(r"(-?)\s*\(([^()+-]*)\)\s*(?=\\(?:degree|text|%))")  # around a number before a unit
_NEGATED = re.compile(r"-\s*\(([^()+-]*)\)")
_ARGUMENTS = {"\\frac": 2, "\\binom": 2, "\\sqrt": 1}
_BOLD = re.compile(r"\*\*([^*]+)\*\*")  # bold in Markdown
_UNIT_FRACTION = re.compile(
    r"\\frac\{\s*\\text\s*\{\s*([^{}]*?)\s*\}\s*\}\{\s*\\text\s*\{\s*([^{}]*?)\s*\}\s*(\^\s*(?:[23]|\{[23]\}))?\s*\}"
)
_WHOLE_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_SHORT = re.compile(r"[^A-Za-z]*(?:\b[A-Z]\b[^A-Za-z]*)*")
_LONGEST_END = 50
_END = re.compile(r"(?:\s*(?:(?<!\\)\\(?:[ ,;:!]|\Z)|(?<!\\)\\(?:text|mbox|mathrm)\s*\{\s*\}|(?<![\\^_])\{\s*\}))+\Z")
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\S", re.DOTALL)


def _base(text: str) -> str:
    return str(_BASES.get(text, text))


def clean(text: str) -> str | None:
    r"""Return an answer in one spelling; `None` if the answer is empty, unclear or too long.

    The spelling has no styles, spaces or sizes, and it has the arguments of commands in braces.

    Example:
        >>> clean(r"$\dfrac12\, \left(x\right).$"), clean(r"1\,000"), clean(r"30^{\circ}")
        ('\\frac{1}{2} (x)', '1000', '30\\degree')
    """
    text = _without_end(text.strip())
    if not text or len(text) > MAX_CHARS:
        return None
    if bold := _BOLD.fullmatch(text):
        text = bold[1]
    text = _TEXT_LEAD.sub(lambda m: m[1] if m[3] else m[1] + m[2], unstyled(typed(text)))
    if len(text) > MAX_CHARS or _UNCLEAR.search(text):
        return None
    for pattern, plain in _PLAIN:
        text = pattern.sub(plain, _with_connectives(text) if pattern is _AND_IN_TEXT else text)
    text = text.strip()
    if text.endswith(".") and not text.endswith(".."):
        text = text[:-1].rstrip()
    text = _UNIT_FRACTION.sub(r"\\text{\1/\2}\3", _with_braces(" ".join(text.split())))
    if whole := _WHOLE_TEXT.fullmatch(text):
        text = whole[1].strip() if _SHORT.fullmatch(whole[1]) else text
    text = in_radians(of_all[1] if (of_all := _FOR_ALL.fullmatch(text)) else text)
    while (depth_of(text) or 99) < 20 and (inner := _unwrapped(text)) is not None:
        text = inner
    if (counted := _PARENTHESES.match(text)) and literal(counted[2].strip()):
        text = f"{counted[1]}{counted[2].strip()}{text[counted.end() :]}"
    if (negated := _NEGATED.fullmatch(text)) and literal(negated[1].strip()):
        text = f"-{negated[1].strip()}"
    return text or None


def _without_end(text: str) -> str:
    r"""Return a text without the blanks of LaTeX, empty braces and empty text at its end.

    The caller has removed plain blanks, so of a last `\ ` only the backslash is left. A tilde stays: it may say
    "about". A comma stays: the list may be cut off.
    """
    end = _END.search(text, max(0, len(text) - _LONGEST_END))
    return text[: end.start()] if end else text


def _with_connectives(text: str) -> str:
    r"""Replace "or" between relations by `\lor`, and "and" between inequalities by `\land`.

    As commas, the two words would mean the same.
    """
    if _OR_WORD.search(text):
        separator, sign, needed = _COMMA_OR, r" \lor ", _RELATION
    elif _AND_WORD.search(text):
        separator, sign, needed = _AND_WORD, r" \land ", _ORDER
    else:
        return text
    text = text.strip()
    start = 2 if text.startswith("\\{") else 1
    if text[:start] in ("(", "{", "\\{") and closing(text, 0) == len(text) - 1 and depth_of(text) in range(20):
        return text[:start] + _with_connectives(text[start:-start]) + text[-start:]
    parts = split(text, separator)
    return sign.join(parts) if all(map(needed.search, parts)) else text


def _with_braces(text: str) -> str:
    """Put the arguments of fractions and roots in braces. Without braces, TeX takes one token."""
    for command, count in _ARGUMENTS.items():
        at = text.rfind(command)
        while at >= 0:
            start = at + len(command)
            if not text[start : start + 1].isalpha():
                text = text[:start] + _braced_arguments(text[start:], count)
            at = text.rfind(command, 0, at)
    return text


def _braced_arguments(rest: str, count: int) -> str:
    done = ""
    if count == 1 and (index := re.match(r"\s*\[[^\[\]]*\]", rest)):
        done, rest = index[0].strip(), rest[index.end() :]
    for _ in range(count):
        rest = rest.lstrip()
        end = closing(rest, 0) if rest.startswith("{") else None
        if end is not None:
            argument, rest = rest[: end + 1], rest[end + 1 :]
        elif token := _TOKEN.match(rest):
            argument, rest = "{" + token[0] + "}", rest[token.end() :]
        else:
            return done + rest
        done += argument
    return done + rest


MAX_DEPTH = 12  # of brackets in an answer
_BRACKETS = r"\\[{}]|\\begin\{[a-z]*\}|\\end\{[a-z]*\}|[()\[\]{}]"
_PAIRS = re.compile(rf"{_BRACKETS}|\\.", re.DOTALL)


def _step(token: str) -> int:
    if token in ("(", "[", "{", "\\{") or token.startswith("\\begin"):
        return 1
    return -1 if token in (")", "]", "}", "\\}") or token.startswith("\\end{") else 0


def closing(text: str, start: int) -> int | None:
    """Return the index of the last character of the bracket that closes the one at `start`; `None` if none does.

    Any closing bracket closes any opening one: the kinds are not compared.
    """
    depth = 0
    for match in _PAIRS.finditer(text, start):
        depth += _step(match[0])
        if depth <= 0:
            return match.end() - 1
    return None


def depth_of(text: str) -> int | None:
    """Return how deep the brackets of a text nest; `None` if they do not match in number."""
    depth = deepest = 0
    for match in _PAIRS.finditer(text):
        depth += _step(match[0])
        deepest = max(deepest, depth)
        if depth < 0:
            return None
    return deepest if depth == 0 else None


def why_unbalanced(text: str) -> str:
    """Return what is wrong with the brackets of a text; "" if they match and are not too deep."""
    depth = depth_of(text)
    if depth is None:
        return "its brackets do not match"
    return f"has brackets more than {MAX_DEPTH} deep" if depth > MAX_DEPTH else ""


def has_variable(text: str) -> bool:
    """Return whether a text has a letter other than e and i outside of commands."""
    return re.search(r"[A-Za-df-hj-z]", re.sub(r"\\[A-Za-z]+", " ", text)) is not None


@lru_cache(maxsize=16)
def _cuts(separator: str) -> re.Pattern[str]:
    """Compile a pattern for brackets, the separator and other escapes, in this order: a row's end is an escape."""
    return re.compile(rf"{_BRACKETS}|(?P<cut>{separator})|\\[^A-Za-z]", re.DOTALL)


def split(text: str, separator: re.Pattern[str]) -> list[str]:
    """Split a text at the separators that are outside of brackets."""
    return split_with_signs(text, separator)[0]


def split_with_signs(text: str, separator: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """Split a text at the separators that are outside of brackets. Return the parts and these separators."""
    parts: list[str] = []
    signs: list[str] = []
    depth = start = 0
    for match in _cuts(separator.pattern).finditer(text):
        if match["cut"] is None:
            depth += _step(match[0])
        elif depth == 0:
            parts.append(text[start : match.start()].strip())
            signs.append(match[0])
            start = match.end()
    return [*parts, text[start:].strip()], signs


def _unwrapped(text: str) -> str | None:
    """Return the content of an outer pair of braces or parentheses; `None` if it has several parts or is no pair."""
    if text[:1] not in ("{", "(") or closing(text, 0) != len(text) - 1 or text[-1] != {"{": "}", "(": ")"}[text[0]]:
        return None
    inner = text[1:-1].strip()
    return inner if inner and len(split(inner, _COMMA)) == 1 else None


_COMMA = re.compile(r"[,;]|\\quad")
