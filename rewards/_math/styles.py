r"""Removal of what changes an answer's looks and not its meaning: fonts, colours, spaces, ticks; `a \over b`."""

import re
from collections.abc import Callable


_END = r"(?![A-Za-z])"
_COLOURS = (
    "black|red|blue|green|cyan|magenta|brown|orange|purple|violet|teal|olive|maroon|navy|pink|gray|grey|darkgray|"
    "[Rr]oyal[Bb]lue|[Ff]orest[Gg]reen|[Dd]ark(?:red|blue|green)"
)  # visible on white; text in white or in an unknown colour may be hidden
_LETTERS = r"(?:mathbf|mathit|mathsf|mathtt|mathnormal|boldsymbol|bm|pmb|underline|uline|underbar)"
_MARK = rf"(?:\\(?:checkmark|blacksquare|square|Box|qed|QED|qedsymbol){_END}\s*)"
_LOOKS: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
    (rf"\\(?:thinspace|medspace|thickspace|nobreakspace){_END}\s*", r"\\,"),
    (rf"\\negthinspace{_END}", r"\\!"),
    (r"\\(?:[hv]space\*?|mspace)\s*\{[^{}-]*\}", " "),
    (rf"\\(?:hskip|kern|mkern|mskip)\s*[0-9.]+\s*(?:em|ex|pt|mm|cm|mu){_END}", " "),
    (rf"\\(?:enspace|enskip|space|hfill|hfil|strut|mathstrut|noindent|relax){_END}", " "),
    # A colour or a font between digits stays: the reader would take `\mathbf{7}\mathbf{1}` for a product.
    (rf"(?<![0-9}}])\\textcolor\s*\{{(?:{_COLOURS})\}}", ""),
    (rf"(?<![0-9}}])\\color\s*\{{(?:{_COLOURS})\}}", " "),
    (r"\{\s*\\rm\s+([A-Za-z/^0-9 ]+)\}|\\rm\s+([A-Za-z/]+)\s*$", r"\\text{\1\2}"),
    (rf"\\mathrm(?:\s+([A-Za-z])|\s*(\\Omega)){_END}", r"\\text{\1\2}"),
    (
        rf"\\(?:bf|it|sl|sf|tt|rm(?!\s*\{{)|bfseries|itshape|rmfamily|sffamily|ttfamily|normalfont|boldmath|tiny|"
        rf"scriptsize|footnotesize|small|normalsize|large|Large|LARGE|huge|Huge|scriptstyle|scriptscriptstyle|"
        rf"limits|nolimits){_END}",
        " ",
    ),
    (rf"\\{_LETTERS}\s*\{{\s*(\([A-Z]\))\s*\}}", r"\\text{\1}"),
    (rf"(?<![0-9}}])\\{_LETTERS}\s*(?=\{{)|\\{_LETTERS}\s*(?=\{{\s*[^0-9\s])", ""),
    (rf"(?<![0-9}}])\\{_LETTERS}\s+(?=[0-9A-Za-z])", ""),
    (r"\\emph\s*(?=\{)", r"\\text"),
    (rf"^\s*{_MARK}+|{_MARK}+\s*([.$\s]*)$", r"\1"),
    (r"\\(?:nicefrac|sfrac|xfrac|flatfrac)(?![A-Za-z])", r"\\frac"),
    (r"\\(?:SI|qty)\s*\{([^{}]*)\}\s*\{([^{}\\]*)\}", r"\1\\text{\2}"),
    (r"\\num\s*\{([^{}]*)\}", r"\1"),
    (r"\\ang\s*\{([^{};]*)\}", r"\1^\\circ "),
    (rf"\\bigcup{_END}|(?<=[)\]])\s*(?:U|\\text\s*\{{\s*U\s*\}})\s*(?=[(\[])", r"\\cup "),
    (rf"\\bigcap{_END}", r"\\cap "),
    (rf"\\backslash{_END}|\\smallsetminus{_END}", r"\\setminus "),
]
_STYLES = [(re.compile(pattern), plain) for pattern, plain in _LOOKS]
_INFIX = re.compile(r"\\(over|choose)(?![A-Za-z])")
_MOST_INFIXES = 10
_GROUPING = re.compile(r"\\.|[{}]", re.DOTALL)
_PARTED = re.compile(r"[,;=<>]|\\(?:over|choose|in|[lg]e|ne|quad|text|begin|end)(?![A-Za-z])|\\\\|&")


def unstyled(text: str) -> str:
    r"""Return the text without commands that change only its looks.

    Commands that could hide a part of the text stay, and no reader accepts them.

    Example:
        >>> unstyled(r"\color{red}{5}\checkmark"), unstyled(r"{1\over 2}"), unstyled(r"\color{white}{7}2")
        (' {5}', '\\frac{1}{2}', '\\color{white}{7}2')
    """
    for pattern, plain in _STYLES:
        text = pattern.sub(plain, text)
    return _prefixed(text)


def _prefixed(text: str) -> str:
    r"""Rewrite `a \over b` as a fraction.

    The fraction takes all of its group, unless the group holds more than a formula.
    """
    start = 0
    while (infix := _INFIX.search(text, start)) and len(_INFIX.findall(text)) <= _MOST_INFIXES:
        left, right = _group(text, infix.start())
        above, below = text[left : infix.start()].strip(), text[infix.end() : right].strip()
        if not above or not below or _PARTED.search(above) or _PARTED.search(below):
            start = infix.end()
            continue
        command = {"over": "frac", "choose": "binom"}[infix[1]]
        braces = text[left - 1 : left] == "{" and text[right : right + 1] == "}"
        head, tail = (text[: left - 1], text[right + 1 :]) if braces else (text[:left], text[right:])
        text = f"{head}\\{command}{{{above}}}{{{below}}}{tail}"
        start = 0
    return text


def _group(text: str, place: int) -> tuple[int, int]:
    """Return the start and the end of the text inside the braces around a place."""
    opened = [0]
    for token in _GROUPING.finditer(text, 0, place):
        if token[0] == "{":
            opened.append(token.end())
        elif token[0] == "}" and len(opened) > 1:
            opened.pop()
    depth = 0
    for token in _GROUPING.finditer(text, place):
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if depth < 0:
            return opened[-1], token.start()
    return opened[-1], len(text)
