"""Reward for multiple choice."""

import re
from typing import Any

from trl_grpo_plus.registry import Example, register_reward

from ._text import after_thinking, answer_of, text_of


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
SHOWN_ROWS = 3

_LETTER = re.compile(r"(?:[Oo]ption |[Cc]hoice )?(?:\(([A-Z])\)|([A-Z])\)?)\.?", re.ASCII)
_LETTER_AND_TEXT = re.compile(r"(?:\(([A-Z])\)|([A-Z])[.):])\s*(\S.*)", re.ASCII | re.DOTALL)
_WRAPPED = re.compile(
    r"\\(?:boxed|text|textbf|textrm|mathrm|mathbf)\s{0,9}\{(.*)\}|\*\*(.+)\*\*|\*(.+)\*|\$(.+)\$", re.DOTALL
)
_BOX_OR_BRACE = re.compile(r"\\boxed\s{0,9}\{|\\[{}]|[{}]")
_ANSWER_LINE = re.compile(
    r"(?:(?:so|thus|therefore|hence),? )?(?:(?:the|my) )?(?:(?:final|correct|right|best) )?(?:answer|option|choice)"
    r"(?: is ?:?| ?:)\s*\**(.+)",
    re.IGNORECASE,
)

PARIS = {"answer": "B", "choices": ["Rome", "Paris", "Berlin"]}


def _check_columns(answer: list[Any], choices: list[Any] | None = None) -> None:
    problems = []
    for row, gold in enumerate(answer):
        try:
            _gold_index(gold, choices[row] if choices else None)
        except ValueError as error:
            problems.append(f"row {row}: {error}")
    if problems:
        raise ValueError(
            f"choice_answer: {len(problems)} of {len(answer)} rows cannot be scored; "
            f"{'; '.join(problems[:SHOWN_ROWS])}. Mend or filter these rows."
        )


def _gold(answer: str | int, choices: list[str] | None = None) -> str:
    return f"<answer>{LETTERS[_gold_index(answer, choices)]}</answer>"


@register_reward(
    "choice_answer",
    examples=[
        Example("<think>Rome? No.</think>The answer is \\boxed{B}", PARIS, 1.0),
        Example("<answer>B) Paris</answer>", PARIS, 1.0),
        Example("<answer>A or B</answer>", PARIS, 0.0),
        Example("<answer>B) Rome</answer>", PARIS, 0.0),
        Example("A fine question.", {**PARIS, "answer": "A"}, 0.0),
    ],
    check_columns=_check_columns,
    gold=_gold,
)
def choice_answer(
    completions: list[Any], answer: list[str | int | None], choices: list[list[str] | None] | None = None
) -> list[float | None]:
    r"""1.0 where the completion names the right choice and no other, else 0.0.

    The model's answer is read after the thinking, at the first of these places that there is: the last
    `<answer>...</answer>`; the last `\boxed{...}`; the last line, where it says "Answer: ..." or "The answer is ...";
    the whole text. There it must be one of

    - a capital letter: `B`, `(B)`, `B)`, `B.`, `Option B`, also within `\text{}`, `\boxed{}`, `$...$` or `**...**`;
    - a letter and its choice's text, `B) Paris`, `(B) Paris`, `B. Paris` or `B: Paris` (where `choices` are given);
    - the text of one choice alone (where `choices` are given).

    Nothing else may stand there, so a hedge ("B or C", "A, B", "probably B", "B (not C)"), a negation ("not B") and a
    letter beside another choice's text score 0. So does a small letter: "a" is an article, and `b` in a formula is a
    variable. Texts are compared without case, repeated white space and a full stop at the end.

    Args:
        completions (`list`): N completions, each a text or a list of messages, of which the last one's text counts.
        answer (`list[str | int | None]`):
            For each of them the right choice: its capital letter, its place counted from 0 (an `int`, as MMLU has it)
            or, with `choices`, its text. ARC's rows labelled "1" to "4" must be given as letters or places from 0.
        choices (`list[list[str] | None]`, *optional*): for each of them the choices' texts, the first one being A.

    Returns:
        `list[float | None]`: N rewards, 0.0 or 1.0.

    Raises:
        ValueError: an answer that is none of the choices, or could be two.

    Example:
        >>> texts = ["<think>A?</think>So it is \\boxed{B}.", "Answer: B) Paris", "<answer>A, B</answer>", "Not B"]
        >>> choice_answer(texts, answer=["B"] * 4, choices=[["Rome", "Paris"]] * 4)
        [1.0, 1.0, 0.0, 0.0]
        >>> choice_answer(["(C)", "Paris"], answer=[2, "Paris"], choices=[None, ["Rome", "Paris"]])
        [1.0, 1.0]
    """
    rewards: list[float | None] = []
    for completion, gold, texts in zip(completions, answer, choices or [None] * len(answer), strict=True):
        try:
            right = _gold_index(gold, texts)
        except ValueError as error:
            raise ValueError(f"choice_answer: {error}. Mend or filter this row.") from None
        rewards.append(_score(text_of(completion), right, texts))
    return rewards


def _score(text: str, right: int, choices: list[str] | None = None) -> float:
    return float(_chosen(_stated(text), choices) == right)


# -- what the model says


def _stated(text: str) -> str:
    """The part of a completion that states its answer."""
    final = after_thinking(text).strip()
    if "<answer>" in final or "</answer>" in final:
        return answer_of(final) or ""
    if "\\boxed" in final:
        return _last_box(final) or ""
    line = _ANSWER_LINE.fullmatch(final[final.rfind("\n") + 1 :].strip().strip("*"))
    return line[1] if line else final


def _last_box(text: str) -> str | None:
    r"""What stands in the last outermost `\boxed{}`; `None` where that is not closed."""
    box, start, depth = None, 0, 0
    for token in _BOX_OR_BRACE.finditer(text):
        sign = token[0]
        if depth == 0 and sign.startswith("\\boxed"):
            box, start, depth = None, token.end(), 1
        elif depth and sign.endswith("{") and sign != "\\{":
            depth += 1
        elif depth and sign == "}":
            depth -= 1
            box = box if depth else text[start : token.start()]
    return box


def _chosen(stated: str, choices: list[str] | None) -> int | None:
    """The number of the choice that a statement names; `None` where it names none, or more than one."""
    stated = _unwrapped(stated)
    letter = _letter(stated, len(choices or LETTERS))
    if letter is not None or not choices:
        return letter
    texts = [_plain(choice) for choice in choices]
    found = _LETTER_AND_TEXT.fullmatch(stated)
    if found:
        place = LETTERS.index(found[1] or found[2])
        if place < len(texts) and texts[place] == _plain(found[3]):
            return place
    return texts.index(_plain(stated)) if _plain(stated) in texts else None


def _letter(text: str, count: int) -> int | None:
    found = _LETTER.fullmatch(text)
    place = LETTERS.index(found[1] or found[2]) if found else count
    return place if place < count else None


def _unwrapped(text: str) -> str:
    text = text.strip()
    for _ in range(4):  # $\boxed{\textbf{(B)}}$ and the like
        inside = _WRAPPED.fullmatch(text)
        text = inside[inside.lastindex or 0].strip() if inside else text
    return text


def _plain(text: str) -> str:
    text = " ".join(_unwrapped(text).casefold().split())
    return text.removesuffix(".") or text


# -- what the dataset says


def _gold_index(answer: Any, choices: list[str] | None) -> int:
    """The right choice's number, from 0. Raises ValueError where the row leaves it open."""
    _check_choices(choices)
    count = len(choices) if choices else len(LETTERS)
    if type(answer) is int and 0 <= answer < count:
        place = answer
    elif isinstance(answer, str) and answer in list(LETTERS[:count]):
        place = LETTERS.index(answer)
    elif isinstance(answer, str) and choices and answer in choices:
        place = choices.index(answer)
    else:
        allowed = (
            f"a letter from A to {LETTERS[count - 1]}, a place from 0 to {count - 1} or one of the choices' texts"
        )
        raise ValueError(f"answer={answer!r} with choices={choices!r} must be {allowed}")
    texts = [_plain(choice) for choice in choices or ()]
    if choices and texts.count(texts[place]) > 1:
        raise ValueError(f"answer={answer!r}: choices={choices!r} has its text twice")
    if type(answer) is int and str(answer) in texts and texts.index(str(answer)) != place:
        raise ValueError(
            f"answer={answer!r} may be a place in choices={choices!r}, from 0, or a text: give the letter"
        )
    return place


def _check_choices(choices: Any) -> None:
    if choices is None:
        return
    if not isinstance(choices, list | tuple) or not 2 <= len(choices) <= len(LETTERS):
        raise ValueError(
            f"choices={choices!r} must be a list of 2 to {len(LETTERS)} texts (of ARC's choices, their 'text')"
        )
    if not all(isinstance(choice, str) and _plain(choice) for choice in choices):
        raise ValueError(f"choices={choices!r} must be texts, none blank")
    for place, choice in enumerate(choices):
        letter = _letter(_unwrapped(choice), len(choices))
        if letter not in (None, place):
            raise ValueError(f"choices={choices!r}: the text {choice!r} reads as the letter of another choice")
