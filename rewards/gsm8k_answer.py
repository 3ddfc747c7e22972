r"""Reward for the number that answers a word problem, as GRPO tutorials on GSM8K give it.

Source: GSM8K (https://arxiv.org/abs/2110.14168), whose answers end in `#### 1,234`. The rule, 0.5 for the `\boxed{}`
and 1.0 for a number within 0.01, is the rule of GRPO tutorials on GSM8K.
"""

import math
import re
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

from trl_grpo_plus.registry import Example, register_reward
from trl_grpo_plus.utils.validation import Number

from ._denials import AFTER_A_NUMBER, BESIDE_A_BOX
from ._math.boxes import last_box
from ._math.latex import MAX_CHARS, clean
from ._math.terms import literal
from ._math.unit_names import is_unsure
from ._math.units import split_unit
from ._rows import refuse_rows
from ._text import after_opened, after_thinking, shown, text_of


BOX_POINTS, ANSWER_POINTS = 0.5, 1.0
# Full-width digits and signs, and blanks of other kinds.
_WIDTHS = {
    **{wide: wide - 0xFEE0 for wide in (*range(0xFF10, 0xFF1A), *map(ord, "＄，．％＋－：（）＝"))},
    **dict.fromkeys(map(ord, "\u00a0\u2007\u2009\u202f"), " "),
    ord("￡"): "£",
    ord("￥"): "¥",
}
_HEAD = re.compile(
    r"[*\s]*(?:(?:(?:the|my) )?(?:(?:final|correct) )?answer|(?:最[终終])?答案)"
    r"[*\s]*(?:is\b[*\s]*:?|是|[:=]|$)[*\s]*|:\s*",
    re.IGNORECASE,
)
_CODES = "USD|EUR|GBP|JPY|CNY|RMB|INR|KRW|AUD|CAD|CHF|BRL|MXN|RUB|VND|PHP|NGN"
_CURRENCIES = "[€£¥₹₩₽₺₪₱₫₦฿]"
_SIGN = rf"\\?\$|{_CURRENCIES}"
_MONEY = re.compile(
    rf"([+−–-]?)\s*(?:(?:US|CA|AU|NZ|HK|NT|[ACRS])\s?\\?\$|{_SIGN}|Rs\.?|(?:{_CODES})\b)\s*([+−–-]?\s*[0-9.].*)"
)
# `x =`, `x_1 =`, `\text{Total cost} =`, `Total =`
_NAME = re.compile(
    r"\s*(?:[A-Za-z](?:_(?:[A-Za-z0-9]|\{[A-Za-z0-9]{1,3}\}))?|\\text\s*\{[A-Za-z ]{1,60}\}|[A-Za-z][A-Za-z ]{1,60})"
    r"\s*=(?!\s*=)"
)
_WORD = re.compile(r"[A-Za-z]+")
_NO_NAME = AFTER_A_NUMBER | BESIDE_A_BOX
_TWO_SIGNS = re.compile(rf"{_CURRENCIES}\s*\\?\$|\$\s*{_CURRENCIES}")  # unless the dollar opens a formula
_COUNTED = re.compile(rf"(.*[0-9.])\s*(?:{_SIGN}|元|美元|块|塊|円|원|个|個|人|天|岁|歲|只|本|页|頁)")
_APOSTROPHES = re.compile(r"([^0-9]*[0-9]{1,3})((?:['’][0-9]{3})+)((?![0-9'’]).*)?")
GOLD = "In the morning she sells 9 eggs, then 9 * 2 = <<9*2=18>>18 dollars.\n#### 18"


def _check_args(tolerance: float, **_: Any) -> None:
    Number(at_least=0, note="; 0 asks for equality").check("gsm8k_answer: tolerance", tolerance)


def _check_columns(answer: list[Any], **_: Any) -> None:
    refuse_rows("gsm8k_answer", _problem, answer)


def _problem(gold: Any) -> str | None:
    return f"the answer {gold!r:.200} is no number and has no '#### NUMBER'" if _gold_number(gold) is None else None


def _gold(answer: str | int | float, think_opened: bool = False, **_: Any) -> str | None:
    number = _gold_number(answer)
    return None if number is None else after_opened(f"\\boxed{{{_written(number)}}}", think_opened)


@register_reward(
    "gsm8k_answer",
    examples=[
        Example(r"<think>9 * 2</think>She makes $\boxed{\$18}$ a day.", {"answer": GOLD}, 1.5),
        Example("She makes 18 dollars a day.\n#### 18", {"answer": GOLD}, 1.0),
        Example(r"\boxed{18.01}", {"answer": GOLD}, 0.5),
        Example(r"\boxed{18 or 19}", {"answer": GOLD}, 0.0),
        Example("18", {"answer": GOLD}, 0.0),
    ],
    check_args=_check_args,
    check_columns=_check_columns,
    gold=_gold,
    full_marks=BOX_POINTS + ANSWER_POINTS,
)
def gsm8k_answer(
    completions: list[Any], answer: list[str | int | float], *, tolerance: float = 0.01, think_opened: bool = False
) -> list[float | None]:
    r"""1.0 for the right number, and 0.5 for a number in a `\boxed{}`, right or wrong.

    The model's number is the content of the last `\boxed{}` after the thinking. Without a box, it is the text after
    the last `####` on its line, as in the dataset (or on the next line, if that line is a heading, `#### Answer`). No
    other number of the text counts, so a model is not paid for the last number that it happens to write.

    There must be exactly one number in that place, with its unit if any: `1,234`, `-5`, `\$18.00`, `18 dollars`,
    `42\%` (which is 42), `\frac12`, `Answer: 18`, `Total = 18`, `US$18`, `¥18`, `18元`, `１８`, `1'234`. Factors
    count: `2.5 million` and `1234万`. These are no number: two numbers, arithmetic left undone (`6*3`,
    `\frac{36}{2}`), words, NaN, infinity, `~18`, a number with a letter that may be a factor or a unit (`72\text{
    K}`), and a number with a comparison (`72\text{ less}`).

    A box that is empty, nested or cut off holds no number and earns nothing. An empty box after a full one is passed
    over, as in "I put it in `\boxed{}`", and so are the asterisks of `**#### 18**`.

    The reward runs in the trainer's process: it parses by linear scans alone, and reads no answer above 1,000
    characters.

    Args:
        completions (`list`): N completions, each a text or a list of messages, of which the policy's last one counts.
        answer (`list[str | int | float]`): N golds: a solution ending in `#### 1,234`, as in GSM8K, or a number.
        tolerance (`float`, *optional*, defaults to `0.01`):
            The number is right if it is nearer to the gold than this. 0 asks for equality.
        think_opened (`bool`, *optional*, defaults to `False`):
            Whether the prompt ends with `<think>`. A completion without `</think>` is then all thinking, and scores 0.

    Returns:
        `list[float | None]`: N rewards: 0.0, 0.5 (boxed, wrong), 1.0 (right, not boxed) or 1.5.

    Raises:
        ValueError: a gold is no number.

    Example:
        >>> texts = [r"\boxed{\$1,234.00}", "#### 1234", r"\boxed{1235}", "It is 1234."]
        >>> gsm8k_answer(texts, answer=["So 1000 + 234 = 1,234.\n#### 1,234"] * 4)
        [1.5, 1.0, 0.5, 0.0]
        >>> from trl_grpo_plus.registry import get_reward
        >>> get_reward("gsm8k_answer", tolerance=0.001)([r"\boxed{3.14}"], answer=[3.14159])
        [0.5]
    """
    _check_args(tolerance)
    near = Fraction(repr(float(tolerance)))
    return [_score(text_of(text), gold, near, think_opened) for text, gold in zip(completions, answer, strict=True)]


def _score(text: str, gold: Any, near: Fraction, think_opened: bool = False) -> float:
    gold_number = _gold_number(gold)
    if gold_number is None:
        raise ValueError(f"gsm8k_answer: {_problem(gold)}. Correct or filter this row.")
    final = shown(after_thinking(text, opened=think_opened))
    boxed = "\\boxed" in final
    number = _number(last_box(final) if boxed else _after_hashes(final))
    if number is None:
        return 0.0
    gap = abs(number - gold_number)
    return BOX_POINTS * boxed + ANSWER_POINTS * (gap < near or gap == 0)


def _after_hashes(text: str) -> str | None:
    _, hashes, rest = text.rpartition("####")
    lines = rest.strip().split("\n", 10)
    if hashes and _HEAD.fullmatch(lines[0][:MAX_CHARS].translate(_WIDTHS)):  # a heading over the answer
        lines = [line for line in lines[1:] if line.strip(" *")] or [""]
    # Asterisks are Markdown's: `**#### 18**`, `#### **18**`.
    return lines[0].strip(" *") if hashes else None


def _number(text: str | None) -> Fraction | None:
    cleaned = None if text is None or len(text) > MAX_CHARS else clean(_bare(text))
    if cleaned is None:
        return None
    value, unit = split_unit(cleaned)
    number = literal(value)
    # 72 K is 72,000 or 72 kelvins, and 72 less may be -72.
    return number.value if number is not None and number.lowest and not is_unsure(unit) else None


def _bare(text: str) -> str:
    """Remove or convert what the number reader does not know: "Answer:", most currencies, digits of another width."""
    text = text.translate(_WIDTHS)
    if _TWO_SIGNS.search(text) and text.count("$") == 1:
        return ""
    if (name := _NAME.match(text)) and not {word.casefold() for word in _WORD.findall(name[0])} & _NO_NAME:
        text = text[name.end() :]
    if head := _HEAD.match(text):
        text = text[head.end() :]
    text = text.strip(" *`").removesuffix("。")
    if match := _MONEY.fullmatch(text):
        text = f"{match[1]}{match[2]}"
    if match := _COUNTED.fullmatch(text):
        text = match[1]
    if match := _APOSTROPHES.fullmatch(text):
        text = f"{match[1]}{re.sub('[^0-9]', '', match[2])}{match[3] or ''}"
    return text


def _gold_number(gold: Any) -> Fraction | None:
    if isinstance(gold, bool) or not isinstance(gold, (str, int, float)):
        return None
    if isinstance(gold, str):
        return _number(_after_hashes(gold) if "####" in gold else gold)
    if isinstance(gold, int):
        return Fraction(gold)
    return Fraction(Decimal(repr(float(gold)))) if math.isfinite(gold) else None


def _written(number: Fraction) -> str:
    """Write a number as an integer or a finite decimal if it is one, else as a fraction."""
    if number.denominator == 1:
        return str(number.numerator)
    places = next((k for k in range(1, 30) if (number * 10**k).denominator == 1), None)
    if places is None:
        return f"\\frac{{{number.numerator}}}{{{number.denominator}}}"
    return format(Decimal(int(number * 10**places)).scaleb(-places, Context(prec=2 * MAX_CHARS)), "f")
