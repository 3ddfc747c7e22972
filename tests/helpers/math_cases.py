"""Final answers to mathematics problems with their verdicts, and answers that take long to check.

`ANSWERS` are contents of a box: the answer, the gold, whether the answer deserves the reward, and why. `PLACES` are
the same with whole completions in place of answers. `POISON` are answers that would take much time or memory to check.
None of them equals its gold.
"""

from typing import Any, NamedTuple

from case_tables import table


class Case(NamedTuple):
    answer: str
    gold: Any
    correct: bool
    why: str


def boxed(answer: str) -> str:
    """Return a completion with the answer in a box."""
    return rf"The answer is $\boxed{{{answer}}}$."


def _cases(name: str) -> list[Case]:
    rows = table(name)
    return [Case(answer, gold, verdict == "+", why) for verdict, gold, why, *answers in rows for answer in answers]


ANSWERS, PLACES = _cases("math_answers"), _cases("math_places")


def _nested(opening: str, closing: str, times: int, core: str = "1") -> str:
    return opening * times + core + closing * times


# name -> (content of the box, gold).
POISON = {
    "power tower of four": (r"9^{9^{9^{9}}}", "72"),
    "power tower of three": (r"9^{9^{9}}", "72"),
    "power tower of ten": (_nested("9^{", "}", 10, "9"), "72"),
    "power tower, gold a root": (r"9^{9^{9^{9}}}", r"\sqrt{2}"),
    "power tower, gold a power": (r"9^{9^{9}}", r"9^{9}"),
    "power tower by parentheses": (r"((9^9)^9)^{9999999999}", r"2^{10}"),
    "power tower without braces": (r"9^9^9^9", r"2^{10}"),
    "power tower under a fraction": (r"\frac{1}{9^{9^{9^{9}}}}", r"\frac{\pi}{2}"),
    "power with a huge exponent": (r"2^{99999999999}", r"2^{10}"),
    "power of a huge number": (r"99999999999999999999^{999999}", r"2^{10}"),
    "symbolic tower": (r"9^{9^{9^{9^{x}}}}", r"x^2"),
    "sine of a tower": (r"\sin(9^{9^{9^{9}}})", r"\sqrt{2}"),
    "factorial of a big number": (r"9999999999!", r"10!"),
    "factorial tower": (r"((((10!)!)!)!)!", r"10!"),
    "factorials in a row": (r"9!!!!!!!!!!!!!!!!!!!!", r"10!"),
    "factorial in a power": (r"2^{99999!}", r"2^{10}"),
    "huge binomial": (r"\binom{99999999999}{49999999999}", r"\binom{10}{3}"),
    "huge sum": (r"\sum_{n=1}^{10^{12}} \frac{1}{n^2}", r"\frac{\pi^2}{6}"),
    "huge sum, gold a sum": (r"\sum_{n=1}^{10^{12}} \frac{1}{n^2}", r"\sum_{n=1}^{10} \frac{1}{n^2}"),
    "huge product": (r"\prod_{n=1}^{10^{12}} n", r"10!"),
    "hard integral": (r"\int_0^{\infty} \frac{\sin(x^x)\ln(x+e^x)}{x^5+\sqrt{x}+1}\,dx", r"\frac{\pi}{2}"),
    "hard integral, gold one": (r"\int_0^{1} \frac{\sin(x^x)}{x^5+1}\,dx", r"\int_0^{1} \frac{\sin(x^x)}{x^5+2}\,dx"),
    "hard limit": (r"\lim_{x\to 0} \frac{\sin(\tan(x))-\tan(\sin(x))}{x^7}", r"\sqrt{2}"),
    "huge decimal": ("0." + "3" * 100_000, r"\frac13"),
    "huge decimal under the limit": ("0." + "3" * 900, r"\sqrt{2}"),
    "huge integer": ("7" * 100_000, "72"),
    "huge fraction": (r"\frac{" + "7" * 400 + "}{" + "9" * 400 + "}", r"\frac12"),
    "huge power of ten": (r"10^{99999999999}", "72"),
    "huge scientific": (r"3\times 10^{-99999999}", "0.5"),
    "nested braces, 100 kB": (_nested("{", "}", 50_000), "72"),
    "nested parentheses, 100 kB": (_nested("(", ")", 50_000), "72"),
    "nested parentheses under the limit": (_nested("(", ")", 400), r"\sqrt{2}"),
    "nested fractions": (_nested(r"\frac{1}{1+", "}", 60), r"\frac{1+\sqrt5}{2}"),
    "nested radicals": (_nested(r"\sqrt{2+", "}", 80, "2"), r"2\cos(\pi/512)"),
    "nested radicals to unnest": (_nested(r"\sqrt{3+\sqrt{2}+", "}", 18, "x"), r"\sqrt{x}"),
    "nested absolute values": ("|" * 300 + "x" + "|" * 300, "|x|"),
    "nested logarithms": (_nested(r"\ln(", ")", 40, "x"), r"\ln x"),
    "unbalanced braces": ("{}" + "\\{" * 500, "72"),
    "unclosed parentheses": ("(" * 900, r"(1,2)"),
    "giant matrix": (
        r"\begin{pmatrix}" + r"\\".join("&".join(["x"] * 60) for _ in range(60)) + r"\end{pmatrix}",
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
    ),
    "matrix inverse": (
        r"\begin{pmatrix}" + r"\\".join("&".join("abcdefgh") for _ in range(8)) + r"\end{pmatrix}^{-1}",
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
    ),
    "long list": (",".join(str(i) for i in range(300)), r"\{1,2\}"),
    "long list of roots": (
        ",".join(rf"\sqrt{{{i}}}" for i in range(80)),
        ",".join(rf"\sqrt{{{i}}}" for i in range(1, 81)),
    ),
    "big expansion": (r"(x+y+z+w)^{999}", r"x^{999}+y^{999}"),
    "big expansion by factors": ("(x+1)" * 150, r"x^{150}+1"),
    "product of constant sums": ("".join(rf"(1+\sqrt{{{i}}})" for i in range(2, 30)) + "+1", r"\sqrt{2}"),
    "powers of complex numbers": ("+".join(rf"(2+{i}i)^{{99}}" for i in range(1, 20)), "3+i"),
    "trigonometry to simplify": (
        "+".join(rf"\sin({i}x)\cos({i + 1}x)\tan({i + 2}x)" for i in range(1, 25)),
        r"\sin x",
    ),
    "many variables": ("+".join(f"a_{{{i}}}^{{{i}}}" for i in range(1, 60)), "a_1"),
    "hard equation": (r"x^{17}y^{13} + \sin(xy) + e^{x+y} = \ln(x^2+y^2)", r"x^{16}y^{13} + \sin(xy) = 0"),
    "hard inequality": (r"\sin(x^5) + x^7 e^x > \tan(x)", r"\sin(x^5) > 0"),
    "antlr: operators": ("+-" * 450 + "1", r"\sqrt{2}"),
    "antlr: carets": ("x^" * 300 + "x", "x^2"),
    "antlr: underscores": ("x_" * 300 + "x", "x^2"),
    "antlr: brackets of all kinds": (r"\left(\left[\left\{" * 60, "x^2"),
    "antlr: sums of brackets": ("(x+" * 200 + "1" + ")" * 200, "x^2"),
    "antlr: commas": ("," * 900, r"\{1,2\}"),
    "antlr: juxtaposition": ("x " * 450, "x^2"),
    "antlr: functions": (r"\sin\cos\tan" * 80 + "x", r"\sin x"),
    "NUL": ("\x00" * 1000, "72"),
    "lone surrogate": ("\ud800" * 100, r"\sqrt{2}"),
    "new lines": ("\n" * 300_000, "72"),
    "spaces between digits": ("7 " * 50_000, "72"),
    "commas between digits": ("1,000," * 20_000, "72"),
    "backslashes": ("\\" * 100_000, "72"),
    "dollars": ("$" * 100_000, "72"),
    "units": ("5" + r"\text{ cm}" * 20_000, "5"),
    "wide digits": ("７" * 1000, "72"),
}  # fmt: skip
