"""Reward for each line of arithmetic `a op b = c`: it must be right, and use only numbers that are known."""

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from trl_grpo_plus.registry import Example, Step, register_reward
from trl_grpo_plus.utils.text import as_text, content_of
from trl_grpo_plus.utils.validation import Number

from ._text import SIGNS


MAX_LINE = 300  # longest line, and longest number of a prompt, that is read, in characters

_NUMBER = r"[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?"
_A, _B, _C = (rf"\$?(?P<{name}>-?{_NUMBER})" for name in "abc")
_LATEX = {r"\times": "*", r"\cdot": "*", r"\div": "/"} | dict.fromkeys((r"\(", r"\)", r"\[", r"\]", r"\$"), "$")
_BOLD = re.compile(r"(?<!\S)\*\*(?=\S)|(?<=\S)\*\*(?![^\s.;:!])")  # `12 ** 2` and `12**2` are powers
# The mark of a list: "- ", "1. ", "(1) ", "a) ". `-4` without a blank is a number.
_MARK = re.compile(r"\A(?:[-*•]|\(?(?:(?:[Ss]tep )?[0-9]{1,3}|[A-Za-z])[.)]) +")
# The equation must end the line. No number, sign or bracket may be before it: it would be part of a longer equation.
_EQUATION = re.compile(
    r"(?:\A|(?<=[^0-9+\-*/=.,()\s$])|(?<=[^\W0-9_][.,])) *(?P<dollars>\$\$?)? *"
    rf"{_A} *(?P<sign>[-+*/]) *{_B} *= *{_C} *[.!;]?(?(dollars) *(?P=dollars)[.!;]?)\Z"
)
_SMALL = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_WORDS = {word: n for n, word in enumerate(_SMALL)}
_WORDS |= {"half": 2, "twice": 2, "double": 2, "thrice": 3, "triple": 3, "dozen": 12, "percent": 100, "%": 100}
_GIVEN = re.compile(rf"(?:{_NUMBER})|%|[a-z]+")


def _check_args(right: float, wrong: float, unsupported: float) -> None:
    for name, value in {"wrong": wrong, "unsupported": unsupported}.items():
        Number(below=right, note=f", less than right={right}").check(f"steps_check: {name}", value)


PROBLEM = {"prompts": "Mia has 4 apples. She buys 5 more, and gives 3 to Tom. How many has she now?\n"}


@register_reward(
    "steps_check",
    examples=[
        Example("buys: 4 + 5 = 9\ngives: 9 - 3 = 6\n#### 6", PROBLEM, 2.0),
        Example("buys: 4 + 5 = 8\ngives: 8 - 3 = 5\n#### 5", PROBLEM, 1.0),  # uses a wrong result correctly
        Example("buys: 4 + 7 = 11\ngives: 11 - 3 = 8\n#### 8", PROBLEM, 1.0),  # nobody said 7
        Example("4 + 5 = 8", PROBLEM, -1.0, {"wrong": -1.0}),
        Example("She has 6.", PROBLEM, 0.0),
    ],
    check_args=_check_args,
    full_marks=2.0,
)
def steps_check(
    completions: list[Any],
    prompts: list[Any],
    *,
    right: float = 1.0,
    wrong: float = 0.0,
    unsupported: float = 0.0,
) -> list[Any]:
    r"""`right`, `wrong` or `unsupported` for each line that ends in `a op b = c`.

    A line is unsupported if it is right but uses numbers that nobody gave.

    A step is a line, with all lines before it since the last step. The text before the equation of a step ("gives: 9 -
    3 = 6") is not read. The mark of a list (`- `, `1. `, `(1) `), bold type, `$...$` around the equation and LaTeX's
    `\times`, `\cdot` and `\div` do not matter. Numbers are whole or decimals, `1,234.5`, may have a dollar sign, and
    are compared exactly: `10 / 3 = 3.33` is wrong. `a` and `b` must be numbers of the prompt, in digits or small ones
    in words (twice is 2), or results of earlier lines, right or wrong: a slip is not charged again to later lines that
    use its result.

    A line that repeats the calculation of an earlier line is unsupported, so that saying it twice earns nothing. But a
    chain may go on for ever, so reward the answer too. A line with more than two numbers on a side (`2 + 3 + 4 = 9`)
    is no step.

    A completion without such a line scores 0.0 as a whole, which is no better than a wrong line: silence does not pay.
    With `wrong` below 0 it does pay: a line that is no step ("4 + 5 = 8 eggs") escapes the penalty.

    The rewards are [`~trl_grpo_plus.registry.Step`]s. With `step_reward_credit` each token earns the rewards of the
    steps that it is part of. Without that option, and in stock TRL (`get_reward("steps_check")`), the sum counts.

    Args:
        completions (`list`): N completions, each a text or a list of messages, of which the policy's last one counts.
        prompts (`list`): N prompts, as the trainer gives them.
        right (`float`, *optional*, defaults to `1.0`): reward of a line that is right and supported.
        wrong (`float`, *optional*, defaults to `0.0`): reward of a line that is wrong; less than `right`.
        unsupported (`float`, *optional*, defaults to `0.0`): reward of an unsupported line; less than `right`.

    Returns:
        `list[list[Step] | float]`: N rewards.

    Example:
        >>> texts = ["buys: 4 + 5 = 9\ngives: 9 - 3 = 5\n#### 5", "5"]
        >>> steps_check.__wrapped__(texts, prompts=["Mia has 4 apples. She buys 5 more, and gives 3 to Tom."] * 2)
        [[Step(end=16, reward=1.0), Step(end=33, reward=0.0)], 0.0]
    """
    values = {True: right, False: wrong, None: unsupported}
    rewards: list[Any] = []
    for completion, prompt in zip(completions, prompts, strict=True):
        steps = [Step(end, values[verdict]) for end, verdict in _verdicts(content_of(completion), as_text(prompt))]
        rewards.append(steps or 0.0)
    return rewards


def _verdicts(text: str, problem: str) -> Iterator[tuple[int, bool | None]]:
    """Yield for each step the position where it ends and whether it is right (`None` if it is unsupported).

    The position is after the line end.
    """
    given = {
        Fraction(_WORDS[word]) if word in _WORDS else _value(word)
        for word in _GIVEN.findall(problem.lower())
        if word in _WORDS or (word[0].isdigit() and len(word) <= MAX_LINE)
    }
    done: set[tuple[str, tuple[Fraction, ...]]] = set()
    end = 0
    for line in text.splitlines(keepends=True):
        end += len(line)
        found = _EQUATION.search(_bare(line)) if len(line) <= MAX_LINE else None
        if found is None:
            continue
        sign = found["sign"]
        a, b, c = (_value(found[name]) for name in "abc")
        terms = tuple(sorted((a, b))) if sign in "+*" else (a, b)
        supported = a in given and b in given and (sign, terms) not in done
        done.add((sign, terms))
        given.add(c)
        yield end, (supported or None) if _apply(a, sign, b) == c else False


def _bare(line: str) -> str:
    """Return a line without the mark of a list, bold type and LaTeX's signs."""
    line = line.strip().translate(SIGNS)
    for command, sign in _LATEX.items():
        line = line.replace(command, sign)
    return _MARK.sub("", _BOLD.sub("", line))


def _apply(a: Fraction, sign: str, b: Fraction) -> Fraction | None:
    if sign == "/":
        return a / b if b else None
    return {"+": a + b, "-": a - b, "*": a * b}[sign]


def _value(text: str) -> Fraction:
    return Fraction(text.replace(",", ""))
