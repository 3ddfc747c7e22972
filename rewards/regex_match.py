"""Reward for an answer of a given form: the row's regular expression matches all of it."""

import functools
from typing import Any

import regex

from trl_grpo_plus.registry import Example, register_reward
from trl_grpo_plus.utils.validation import Number

from ._rows import refuse_rows
from ._text import after_thinking, is_seen, text_of


DATE = {"pattern": r"\d{4}-\d\d-\d\d"}


def _check_args(match_timeout: float, **_: Any) -> None:
    Number(above=0, at_most=10, note=" (seconds)").check("regex_match: match_timeout", match_timeout)


def _check_columns(pattern: list[Any], **_: Any) -> None:
    refuse_rows("regex_match", _compiled, pattern)


@register_reward(
    "regex_match",
    examples=[
        Example("<think>The moon landing...</think>\n1969-07-20\n", DATE, 1.0),
        Example("It was on 1969-07-20.", DATE, 0.0),
        Example("1969-07-20\n1969-07-21", DATE, 0.0),
        Example("", {"pattern": "(?!.*never).*"}, 0.0),
        Example("I do not know.", DATE, 0.0),
    ],
    check_args=_check_args,
    check_columns=_check_columns,
)
def regex_match(
    completions: list[Any], pattern: list[str], *, match_timeout: float = 0.1, think_opened: bool = False
) -> list[float | None]:
    r"""1.0 for a completion whose whole final answer matches the row's pattern, else 0.0.

    The final answer is the text after the last `</think>` (the whole text if there is no thinking), without white
    space around it. The pattern must match from its first character to its last, whether or not the pattern has `^`
    and `$`, so `\d+` matches neither `42!` nor `42\n43`. To allow words around the match, write them into the pattern:
    `(?s).*\b42\b.*`.

    An answer that shows nothing (blanks, zero-width characters) scores 0 even if the pattern allows it. Otherwise an
    empty answer would satisfy `(?!.*never).*`.

    Patterns are those of the package `regex`, a superset of those of `re`. Flags go into the pattern: `(?i)`, `(?s)`,
    `(?m)`, `(?x)`. A match that takes longer than `match_timeout` (nested quantifiers such as `(?:x+x+)+y` can take
    for ever) is stopped, and scores 0.

    Args:
        completions (`list`): N completions, each a text or a list of messages, of which the policy's last one counts.
        pattern (`list[str]`): for each completion a regular expression.
        match_timeout (`float`, *optional*, defaults to `0.1`):
            Processor seconds that one match may take, at most 10. The time of other threads of the process counts
            too, because `regex` measures that.
        think_opened (`bool`, *optional*, defaults to `False`):
            Whether the prompt ends with `<think>`. A completion without `</think>` is then all thinking, and scores 0.

    Returns:
        `list[float | None]`: N rewards, 0.0 or 1.0.

    Raises:
        ValueError: a pattern is blank or cannot be compiled.

    Example:
        >>> texts = ["<think>Easy.</think> 1969-07-20", "On 1969-07-20", "1969-07-20, I think"]
        >>> regex_match(texts, pattern=["[0-9]{4}-[0-9]{2}-[0-9]{2}"] * 3)
        [1.0, 0.0, 0.0]
    """
    return [
        _score(text_of(completion), _compiled(text), match_timeout, think_opened)
        for completion, text in zip(completions, pattern, strict=True)
    ]


def _score(text: str, pattern: "regex.Pattern[str]", match_timeout: float, think_opened: bool = False) -> float:
    final = after_thinking(text, think_opened).strip()
    if not any(map(is_seen, set(final))):
        return 0.0
    try:
        return float(pattern.fullmatch(final, timeout=match_timeout) is not None)
    except (TimeoutError, MemoryError):
        return 0.0


def _compiled(pattern: Any) -> "regex.Pattern[str]":
    if not isinstance(pattern, str) or not pattern.strip():
        raise ValueError(f"pattern={pattern!r} must be a regular expression, not blank")
    try:
        return _compile(pattern)
    except (regex.error, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"pattern={pattern!r} cannot be compiled: {error}") from None


@functools.lru_cache(maxsize=10_000)
def _compile(pattern: str) -> "regex.Pattern[str]":
    return regex.compile(pattern)
