"""Reward for multiple choice."""

from typing import Any

from trl_grpo_plus.registry import Example, register_reward

from ._choice.patterns import LETTERS, chosen, letter, plain, unwrapped
from ._rows import refuse_rows
from ._text import after_opened, text_of


PARIS = {"answer": "B", "choices": ["Rome", "Paris", "Berlin"]}


def _check_columns(answer: list[Any], choices: list[Any] | None = None, **_: Any) -> None:
    refuse_rows("choice_answer", _gold_index, answer, choices or [None] * len(answer))


def _gold(answer: str | int, choices: list[str] | None = None, think_opened: bool = False) -> str:
    return after_opened(f"<answer>{LETTERS[_gold_index(answer, choices)]}</answer>", think_opened)


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
    completions: list[Any],
    answer: list[str | int | None],
    choices: list[list[str] | None] | None = None,
    *,
    think_opened: bool = False,
) -> list[float | None]:
    r"""1.0 where the completion names the right choice and no other, else 0.0.

    The model's answer is read after the thinking, at the first of these places that exists:

    - the last `<answer>...</answer>`;
    - the last `\boxed{...}` (`\boxed{}` and `\boxed{...}` after it only mention the form);
    - the last line, if its last sentence says "Answer: ...", "The answer is ...", "I think the answer is ...", "So,
      ...", "Correct: ...", "Ans: ...", "Result: ...", "It is B", "I would choose B", "Only B is correct", "... is the
      correct answer" or the like. Such sentences are
      also known in Chinese, Japanese, Korean and the larger European languages ("答案：B", "故选：B"). A clause such
      as "In conclusion," or "Since it lies there," may come first, if it has no doubt and no letter of another choice.
      A line that states two answers names none ("The answer is A. Wait, the answer is B."), but of two lines the last
      one counts;
    - the JSON object at the end that holds the answer alone, `{"answer": "B"}`;
    - the last line, if it begins with GSM8K's mark (`#### B`);
    - the last line, if the line before it is a heading such as "Final answer:", or if the last line is a paragraph of
      its own in `**...**` or `$...$`. It does not count if the text before says that another choice is the answer, or
      if the sentence before has a "not" or the like;
    - the whole text.

    The answer must be one of

    - a capital letter: `B`, `(B)`, `B)`, `B.`, `Option B`, or a small one with its parenthesis, `(b)`; also within
      `\text{}`, `\boxed{}`, `$...$`, `**...**`, quotes, backticks or brackets, or full-width (`Ｂ`);
    - with `choices`, a letter and its choice's text: `B) Paris`, `(B) Paris`, `B. Paris`, `B: Paris`, `B, Paris`,
      `B (Paris)`, `Paris (B)`, `**B.** Paris` or `\textbf{(B)}\ \text{Paris}`;
    - with `choices`, the text of one choice alone.

    A reason may follow, as in "B because ...". With `choices` it may be a sentence that begins with the choice's text:
    "(B) Paris is the capital." A reason may also follow "The answer is B.", or stand on the lines after the first one,
    if it begins with "Explanation:", "Because" or the choice's text. The reward is 0 if the reason has a word of doubt
    or denial ("wrong", "excluded", "not"), the letter of another choice, capital or small, or another choice's text.
    The words of denial are a list, so a denial in other words is not noticed.

    The answer may hold nothing else. So a hedge ("B or C", "A, B", "probably B", "B (not C)"), a negation ("not B")
    and a letter beside another choice's text score 0. Two boxes, or two `<answer>`, that differ score 0 if only "or",
    "and", a comma, a slash or the like is between them. If the end of a sentence, other words or nothing is between
    them, the last one counts. A bare small letter (`b`, `b.`, `[b]`, `**b**`) counts only if it is all of the text,
    tag or box, in the last two also within `\text{}`, and no choice's text is a single sign: in a sentence "a" is an
    article, in a formula `b` is a variable. An HTML comment, and the text after an end-of-turn mark, do not count.
    Texts are compared without case, repeated white space and a full stop at the end.

    Args:
        completions (`list`): N completions, each a text or a list of messages, of which the policy's last one counts.
        answer (`list[str | int | None]`):
            For each completion the right choice: its capital letter, its index from 0 (an `int`, as in MMLU) or, with
            `choices`, its text. ARC's rows labelled "1" to "4" must be given as letters or places from 0.
        choices (`list[list[str] | None]`, *optional*): for each completion the choices' texts; the first is A.
        think_opened (`bool`, *optional*, defaults to `False`):
            Whether the prompt ends with `<think>`. A completion without `</think>` is then all thinking, and scores 0.

    Returns:
        `list[float | None]`: N rewards, 0.0 or 1.0.

    Raises:
        ValueError: an answer is none of the choices, or could be two of them.

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
            raise ValueError(f"choice_answer: {error}. Correct or filter this row.") from None
        rewards.append(_score(text_of(completion), right, texts, think_opened))
    return rewards


def _score(text: str, right: int, choices: list[str] | None = None, think_opened: bool = False) -> float:
    return float(chosen(text, choices, think_opened) == right)


# -- what the dataset says


def _gold_index(answer: Any, choices: list[str] | None) -> int:
    """Return the index of the right choice, from 0. Raise ValueError if the row does not determine it."""
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
    texts = [plain(choice) for choice in choices or ()]
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
    if not all(isinstance(choice, str) and plain(choice) for choice in choices):
        raise ValueError(f"choices={choices!r} must be texts, none blank")
    for place, choice in enumerate(choices):
        named = letter(unwrapped(choice), len(choices))
        if named not in (None, place):
            raise ValueError(f"choices={choices!r}: the text {choice!r} reads as the letter of another choice")
