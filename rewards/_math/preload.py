"""The warm-up of the LaTeX parser: processes that are forked after this import are fast from their first answer on.

Only workers import this module. The parser builds its tables as it meets new constructions, so that each of the first
few answers takes a tenth of a second without a warm-up.
"""

from .equivalence import same, why_unreadable


_COMMON = (
    (r"\frac{\sqrt{3}}{2}\pi", r"\frac{\pi \sqrt{3}}{2}"),
    (r"1+2\sqrt[3]{5}", r"2\sqrt[3]{5}+1"),
    (r"x^{2}-3xy+\frac{1}{2}", r"\frac{1}{2}-3xy+x^2"),
    (r"2\sin(x)\cos{x}", r"\sin 2x"),
    (r"e^{-2}+\ln 3", r"\ln(3)+e^{-2}"),
    (r"(3+4i)(x-1)", r"(x-1)(4i+3)"),
    (r"y=2x+1", r"2x-y=-1"),
    (r"\frac{n!}{2^{n}}", r"n!/2^n"),
    (r"|x_{1}|", r"|x_1|"),
)

for _gold, _answer in _COMMON:
    why_unreadable(_gold)
    same(_gold, _answer, evaluated=True)
