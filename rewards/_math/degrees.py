r"""Angles in degrees within sines and other functions, turned into radians.

`\sin 45\degree` becomes `\sin(\frac{\pi}{4})`, so that it is not read as a number of degrees.
"""

import re

from .terms import NUMBER, literal


_ANGLE = rf"(?:{NUMBER}|\\frac\{{[0-9]+\}}\{{[0-9]+\}})"
_OF_DEGREES = re.compile(
    r"(?P<function>\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])\s*(?:\^\s*(?:\{[^{}]*\}|[0-9])\s*)?)"
    rf"(?:\(\s*(?P<round>-?\s*{_ANGLE})\s*\\degree\s*\)|\{{\s*(?P<braced>-?\s*{_ANGLE})\s*\\degree\s*\}}"
    rf"|(?P<bare>{_ANGLE})\s*\\degree(?![A-Za-z]))"
)


def in_radians(text: str) -> str:
    r"""Return a cleaned text with the angles of its sines, cosines and so on in radians.

    Example:
        >>> in_radians(r"2\sin 45\degree"), in_radians(r"\cos^2(-60\degree )"), in_radians(r"45\degree")
        ('2\\sin (\\frac{1\\pi}{4})', '\\cos^2(-\\frac{1\\pi}{3})', '45\\degree')
    """
    return _OF_DEGREES.sub(_radians, text)


def _radians(match: re.Match[str]) -> str:
    degrees = literal(match["round"] or match["braced"] or match["bare"])
    if degrees is None:
        return match[0]
    turned = degrees.value / 180
    sign, top = "-" if turned < 0 else "", abs(turned.numerator)
    angle = rf"\frac{{{top}\pi}}{{{turned.denominator}}}" if turned.denominator > 1 else rf"{top}\pi"
    return rf"{match['function']}({sign}{angle})"
