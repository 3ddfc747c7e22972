r"""Reward for the final answer to a mathematical problem.

Sources: math-verify 0.9, which reads the LaTeX (https://github.com/huggingface/Math-Verify); TRL's `accuracy_reward`,
whose wrong verdicts this one avoids; the grader of PRM800K, where a fraction counts in lowest terms only
(https://github.com/openai/prm800k); `is_equiv` of MATH, where units and percent signs do not count
(https://github.com/hendrycks/math).
"""

import math
import re
from collections.abc import Hashable, Iterable
from decimal import Decimal
from functools import lru_cache
from typing import Any

from trl_grpo_plus.registry import Example, register_reward
from trl_grpo_plus.scoring import AnnotatedScore, shared

from ._denials import BEFORE_A_NUMBER
from ._math.boxes import final_answer, has_rival_boxes
from ._math.equivalence import same, why_unreadable
from ._math.latex import clean
from ._math.terms import literal, words
from ._math.units import split_unit
from ._rows import refuse_rows
from ._text import after_opened, after_thinking, shown, text_of


GOLD_LIMIT_S = 10.0  # to read one gold, before training
PRELOAD = ("math_verify", "trl_grpo_plus.rewards._math.preload")
_FLOAT = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))[eE]([+-]?[0-9]+)")
_PROGRAMMED = re.compile(r"[+-]?0[xXbBoO][0-9A-Fa-f]+")
_MOST_PLACES = 300  # the largest power of ten of a float; doubles end there
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_NO_ANSWER = re.compile(
    r"(?i:n/a|nan|null|see\b.*|.*\b(?:may|might|will|can) vary\W*"
    rf"|(?:{BEFORE_A_NUMBER})\s[^A-Za-z]*[0-9].*)"
)
_INTEGER = re.compile(r"\s*([+-]?[0-9]{1,18})\s*")


def _check_columns(answer: list[Any], **_: Any) -> None:
    """Refuse golds that no answer can be compared with. Workers parse golds, with a time limit."""
    problems = {row: problem for row, gold in enumerate(answer) if (problem := _problem(gold))}
    unsure = [row for row, gold in enumerate(answer) if row not in problems and not _is_plain(gold)]
    unreadable = _unreadable({answer[row] for row in unsure})
    problems |= {row: unreadable[answer[row]] for row in unsure if answer[row] in unreadable}
    shown = [f"{gold!r:.100} {problems[row]}" if row in problems else None for row, gold in enumerate(answer)]
    hint = "An answer is a number, a word, LaTeX or a text that has it in \\boxed{}. Correct or filter these rows."
    refuse_rows("math_answer", lambda problem: problem, shown, hint=hint)


def _check_row(answer: Any, **_: Any) -> None:
    """Refuse a gold that has no form. It is the row's fault, and not that of a completion, so it must not score 0."""
    if problem := _problem(answer):
        raise ValueError(f"math_answer: the answer {answer!r:.200} {problem}. Correct or filter this row.")


def _unreadable(golds: Iterable[Hashable]) -> dict[Hashable, str]:
    """Return for each gold that no answer can be compared with what is wrong with it."""
    samples = [{"completions": "", "answer": gold} for gold in golds]
    target = f"{__name__}:score_golds"
    outcomes = shared().map(target, {}, samples, GOLD_LIMIT_S, preload=PRELOAD) if samples else []
    what = {"error": "is no LaTeX that can be compared"}
    return {
        sample["answer"]: f"{what.get(outcome.status, 'could not be read')}: {outcome.reason:.200}"
        for sample, outcome in zip(samples, outcomes, strict=True)
        if not outcome.score
    }


def score_golds(completions: list[Any], answer: list[Any]) -> list[float]:
    """Return 1.0 for each gold that answers can be compared with, else 0.0 with the reason.

    Workers call it before training.
    """
    whys = [why_unreadable(_gold(gold)[0]) for gold in answer]
    return [AnnotatedScore(0.0, "error", why) if why else 1.0 for why in whys]


def _is_plain(gold: Any) -> bool:
    text = _gold(gold)[0]
    return literal(split_unit(text)[0]) is not None or words(text) is not None


def _problem(gold: Any) -> str:
    """Return what is wrong with the form of a gold; "" if nothing is."""
    if isinstance(gold, bool) or not isinstance(gold, (str, int, float)):
        return f"is of type {type(gold).__name__}, not text or a number"
    return _gold(gold)[1]


@lru_cache(maxsize=4096, typed=True)
def _gold(gold: str | int | float) -> tuple[str, str]:
    """Return a gold in one spelling, and what is wrong with it. One of the two is empty."""
    if isinstance(gold, float) and not math.isfinite(gold):
        return "", "is not a finite number"
    if isinstance(gold, float):
        return format(Decimal(repr(float(gold))), "f"), ""
    text = str(gold)
    if _INTEGER.fullmatch(text):
        return text.strip(), ""
    if "####" in text:
        return "", "is a worked solution in GSM8K's form, which the reward gsm8k_answer takes"
    if has_rival_boxes(text):
        return "", "has several boxes that differ"
    answer = final_answer(text) if "\\boxed" in text else text
    number, problem = _typed_number((answer or "").strip(" $"))
    cleaned = number or (clean(answer) if answer is not None else None)
    if problem or (cleaned and _is_no_answer(answer or "")):
        return "", problem or "is no definite answer"
    return (cleaned, "") if cleaned else ("", "is empty, too long, unclear, or has no last box that is closed")


def _is_no_answer(text: str) -> bool:
    return text.strip() == "None" or _NO_ANSWER.fullmatch(" ".join(_TEXT.sub(r" \1 ", text).split())) is not None


def _typed_number(text: str) -> tuple[str, str]:
    """Return a number in the notation of floats, `1e-5`, written out, and what is wrong with it.

    Both are empty if the text is no such number.
    """
    if len(text) > _MOST_PLACES:
        return "", ""
    if _PROGRAMMED.fullmatch(text):
        return "", "is a programmer's number; write it in decimals"
    if not (match := _FLOAT.fullmatch(text)):
        return "", ""
    if abs(int(match[2][:9])) > _MOST_PLACES:
        return "", "is a number too long to write out"
    written = format(Decimal(text), "f")
    if re.fullmatch(r"[+-]?(?!1e)[0-9]+e[+-][0-9]", text):
        sign = match[2][0]
        return "", f"may be {written} or {match[1]} e {sign} {match[2][1:]}; write the one that is meant"
    return written, ""


@register_reward(
    "math_answer",
    examples=[
        Example(r"<think>\boxed{7}?</think>So it is $\boxed{\frac12}$.", {"answer": r"\frac{1}{2}"}, 1.0),
        Example(r"<answer>2\sqrt{3} \text{ cm}</answer>", {"answer": r"$\sqrt{12}$"}, 1.0),
        Example(r"\boxed{x = 71 = 72}", {"answer": "72"}, 0.0),
        Example(r"\boxed{6 \cdot 12}", {"answer": 72}, 0.0),
        Example(r"\boxed{[1,2]}", {"answer": "(1,2)"}, 0.0),
        Example(r"\boxed{9^{9^{9^{9}}}}", {"answer": "72"}, 0.0),
        Example("The answer is 72.", {"answer": "72"}, 0.0),
    ],
    timeout=2.0,
    # The completion causes these failures: it is untrusted text, which can stall or crash the parser and the algebra.
    on_timeout="zero",
    on_error="zero",
    check_columns=_check_columns,
    check_row=_check_row,
    gold=lambda answer, think_opened=False, **_: after_opened(f"\\boxed{{{_gold(answer)[0]}}}", think_opened),
    preload=PRELOAD,
)
def math_answer(
    completions: list[Any], answer: list[str | int | float], *, evaluated: bool = True, think_opened: bool = False
) -> list[float | None]:
    r"""1.0 where the final answer is mathematically the gold, else 0.0.

    The final answer is the content of the last `\boxed{...}` or the last `<answer>...</answer>` after the thinking,
    whichever opens last. The reward is 0 if there is neither, or if the last one is cut off, nested or empty. Boxes
    with nothing but a comma, "and" or "or" between them are one list. Boxes with a slash, an arrow or "or maybe"
    between them are a hedge, and score 0. A box within a tag scores 0 if its sentence in the tag denies or hedges it,
    or has another number next to it.

    `\boxed{}` and `\boxed{...}` after an answer only mention the form and are ignored. Fonts, colours, spaces, a tick,
    and "The answer is" in a tag are ignored too. Typed signs (`½`, `x²`, `≤`, wide digits) count as their LaTeX. An
    HTML comment does not count. A box in a LaTeX comment (`% \boxed{72}`) counts as any other.

    These count as the gold:

    - numbers with the same exact value: `0.5`, `.5`, `\frac12`, `1/2`, `0.\overline{3}`, `1\frac12`, `1 1/2`, `1,000`
      and `1\,000`, `3\times10^5`, `3e5`, `1E-3` (but not `2e-3`, which may be `2e - 3`). A decimal is the number that
      it writes, so `0.333` is not a third;
    - expressions with the same value: `\sqrt{12}` and `2\sqrt3`, `(x+1)^2` and `x^2+2x+1`. A letter and its capital
      are different;
    - tuples and intervals with the same brackets and order: `(1,2)` is not `[1,2]`. Sets, lists of solutions and
      unions count in any order, `\{5\}` as `5`, `\pm` as two solutions, an interval as its inequality. Matrices are
      compared entry by entry, equations up to a factor;
    - `x = 5`, `x \in [1,2]` and `\sum = 5` as the value alone, unless the gold has another name;
    - `x = 1, y = 2` and `(x,y) = (1,2)` as `(1,2)`. Coordinates are sorted by their names. Other letters must be in
      alphabetical order. `x = 1 \text{ or } y = 2` is no tuple;
    - `m+n = 72` as `72`, if the gold is a number;
    - a true chain that contains the gold (`x = 6\cdot 12 = 72`, `\sin 45^\circ = \frac{\sqrt2}{2}`), also with a
      rounding at its end (`\sqrt2 \approx 1.41`);
    - words and choices as written: `\text{Monday}` and "monday", `(B)`, "B", "b)" and "option b". A gold "b" may
      be a variable; the golds "option b" and `\text{(b)}` are choices. Dates, times, numbers with a base (`52_8`),
      segments, angles and congruences are compared as written too. So are two capitals alone: `VI` is not `IV`, `BA`
      is not `AB`. `\text{(B)}\ 12` counts as "B" and `12`;
    - a value with a unit, if the gold has the same unit or none; a value without a unit, if the gold has one. Per cent
      is a unit like others: `42\%` counts as `42` and as `42\%`, never as `0.42`. `72\text{k}` and "72 thousand" are
      72,000. A letter that may be a factor or a unit (`72\text{ K}`) is read as the unit only if the gold has this
      unit. A comparison that counts nothing (`72\text{ less}`, `72\text{ percent more}`) is right only if the gold has
      it too. Words in parentheses are read as if they had no parentheses (`72\text{ (distinct) ways}`).

    These do not count: two answers (`71, 72`, `72 \text{ (or 71)}`), a false chain (`x=71=72`), text that is hidden
    within the box (in white, say), a box in the box, and `~72`. Hedges, denials and factors in words ("or", "not",
    "dozen") do not count either, also before an equals sign. A list in a few languages holds these words. Any other
    words in plain letters after a number are a unit; the number before them must be right. Derivatives, sums,
    integrals and limits are never answers.

    With `evaluated`, arithmetic left undone does not count (`17\cdot 23`, `\frac{84}{2}`, `\sqrt{16}`, `5!`, `2^3\pi`,
    `3\pi+4\pi`, `(2+i)^3`, a fraction that is not in lowest terms), unless the gold leaves some undone too. Nor does a
    function of a constant, if the gold has no function of its kind (`\arctan 1` for `\frac{\pi}{4}`). Work that takes
    a rule of powers or of logarithms is not noticed: `e\cdot e` counts as `e^2`, and `\ln 4-\ln 2` as `\ln 2`.

    Algebra is not arithmetic: `(x+1)^2` counts as `x^2+2x+1`. So if a problem says "expand", "factor" or "simplify",
    the problem's own expression counts as its answer. Filter such rows. Golds in the notation of floats, `1e-5`, are
    read as the numbers.

    Most integers are decided in microseconds, without math-verify. An answer scores 0 without being parsed if it has
    more than 1,000 characters (400 if it must be parsed), brackets 12 deep, towers of powers, or factorials of large
    numbers. For any other answer a sample has 2 seconds, in a process that is then killed, whichever thread calls. A
    completion without a mark of thinking (`<think>`, `[THINK]`, ...) is read as a whole: if the prompt opens the
    thinking, set `think_opened`.

    Args:
        completions (`list`): N completions, each a text or a list of messages, of which the policy's last one counts.
        answer (`list[str | int | float]`):
            N golds: a number, a word, LaTeX with or without `$`, or a text with the answer in its last `\boxed{}`.
        evaluated (`bool`, *optional*, defaults to `True`): whether arithmetic left undone scores 0.
        think_opened (`bool`, *optional*, defaults to `False`):
            Whether the prompt ends with `<think>`: a completion without `</think>` is all thinking then, and scores 0.

    Returns:
        `list[float | None]`: N rewards, 0.0 or 1.0.

    Raises:
        ValueError: a gold is of another type, empty, not finite, too long, a worked solution, or otherwise no definite
            answer. It is the row's fault, so `on_error` does not apply. Whether a gold's LaTeX can be read is found
            before training alone, not in a streamed dataset.

    Example:
        >>> texts = [r"\boxed{72}", r"\boxed{\$72.00}", r"<answer>x = 72</answer>", r"\boxed{71} or \boxed{72}", "72"]
        >>> math_answer(texts, answer=["72"] * 5)
        [1.0, 1.0, 1.0, 0.0, 0.0]
        >>> math_answer([r"\boxed{6 \cdot 12}", r"\boxed{10!}"], answer=[72, "10!"])
        [0.0, 1.0]
        >>> math_answer([r"\boxed{(0.5, 3)}", r"\boxed{[0.5, 3]}"], answer=[r"(\frac12,3)"] * 2)
        [1.0, 0.0]
    """
    return [
        _score(text_of(completion), gold, evaluated, think_opened)
        for completion, gold in zip(completions, answer, strict=True)
    ]


def _score(text: str, gold: Any, evaluated: bool = True, think_opened: bool = False) -> float:
    _check_row(gold)
    answer = final_answer(shown(after_thinking(text, opened=think_opened)))
    return 0.0 if answer is None else float(_is_gold(_gold(gold)[0], answer, evaluated))


def _is_gold(gold: str, answer: str, evaluated: bool) -> bool:
    gold_integer, answer_integer = _INTEGER.fullmatch(gold), _INTEGER.fullmatch(answer)
    if gold_integer and answer_integer:
        return int(gold_integer[1]) == int(answer_integer[1])
    # If the algebra raises, the answer is not right, but the failure must be counted: `on_error` scores it.
    cleaned = _typed_number(answer.strip(" $"))[0] or clean(answer)
    return cleaned is not None and same(gold, cleaned, evaluated)
