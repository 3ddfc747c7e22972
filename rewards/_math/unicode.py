r"""Typed signs as LaTeX: `½`, `x²`, `７２`, `θ`, `≤`, `√12`, `5 ㎡`."""

import re
import unicodedata
from collections.abc import Iterable
from itertools import groupby


_SIGNS = {
    "−–‐‑﹣": "-", "×": r"\times ", "·⋅∙": r"\cdot ", "÷": r"\div ", "∕⁄": "/", "∗": "*", "±": r"\pm ", "∓": r"\mp ",
    "≤⩽≦": r"\le ", "≥⩾≧": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "≡": r"\equiv ", "∞": r"\infty ", "∈": r"\in ",
    "∪⋃": r"\cup ", "∩⋂": r"\cap ", "∖": r"\setminus ", "∨": r"\lor ", "∧": r"\land ", "∅": r"\emptyset ",
    "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}",
    "∠": r"\angle ", "△": r"\triangle ", "→⟶": r"\to ", "⇒": r"\Rightarrow ", "∣": r"\mid ", "…": r"\ldots ",
    "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "⟨": r"\langle ", "⟩": r"\rangle ",
    "‖": r"\|", "′’": "'", "″": "''", "°º˚": r"^\circ ", "℃": r"^\circ\text{C}", "℉": r"^\circ\text{F}",
    "\u2126": r"\Omega ", "µ": r"\mu ", "ϕ": r"\phi ", "ϵ": r"\epsilon ", "∛": r"\sqrt[3]", "，": ",", "、､": ", ",
    "。｡": ".", "✓✔☑✅": r"\checkmark ", "∎■": r"\blacksquare ", "£": "£", "∑": r"\sum ", "∏": r"\prod ",
    "∴": r"\therefore ",
}  # fmt: skip
_PLAIN = {char: plain for chars, plain in _SIGNS.items() for char in chars}
_RUN = re.compile(r"[^\x00-\x7f]+")
_GREEK = re.compile(r"GREEK (SMALL|CAPITAL) LETTER ([A-Z]+)")
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|([0-9]+(?:\.[0-9]+)?))")


def typed(text: str) -> str:
    r"""Return the text with LaTeX commands for typed signs.

    A sign that has no command stays.

    Example:
        >>> typed("3½"), typed("x²+x⁻¹"), typed("７２"), typed("√12")
        ('3\\frac{1}{2}', 'x^2 +x^{-1}', '72', '\\sqrt{12}')
    """
    if text.isascii():
        return text
    text = _RUN.sub(lambda run: "".join(_as_latex(kind, group) for kind, group in groupby(run[0], _kind)), text)
    return _ROOT.sub(lambda root: rf"\sqrt{{{root[1] or root[2]}}}", text).replace("√", r"\sqrt ")


def _kind(char: str) -> str:
    """Return how Unicode derives a character, such as `<super>`; "" if the character is to be looked up."""
    return "" if char in _PLAIN else unicodedata.decomposition(char).partition(" ")[0]


def _as_latex(kind: str, group: Iterable[str]) -> str:
    chars = list(group)
    if kind in ("<super>", "<sub>"):
        inner = "".join(map(_derived, chars))
        return ("^" if kind == "<super>" else "_") + (f"{inner} " if len(inner) == 1 else f"{{{inner}}}")
    return "".join(map(_sign, chars))


def _sign(char: str) -> str:
    if char in _PLAIN:
        return _PLAIN[char]
    if char.isspace():
        return " "
    if unicodedata.category(char) == "Nd":
        return str(unicodedata.digit(char))
    if greek := _GREEK.fullmatch(unicodedata.name(char, "")):
        name = greek[2].replace("LAMDA", "LAMBDA")
        return f"\\{name.lower() if greek[1] == 'SMALL' else name.capitalize()} "
    kind = _kind(char)
    if kind == "<fraction>" and "/" in (inner := _derived(char)):
        return r"\frac{{{}}}{{{}}}".format(*inner.split("/")) if not inner.endswith("/") else char
    if kind == "<square>":
        return rf"\text{{{typed(_derived(char))}}}"
    return _derived(char) if kind in ("<wide>", "<narrow>", "<font>") else char


def _derived(char: str) -> str:
    """Return the signs that a character is derived from."""
    codes = unicodedata.decomposition(char).split()[1:]
    return "".join(_sign(chr(int(code, 16))) for code in codes) or char
