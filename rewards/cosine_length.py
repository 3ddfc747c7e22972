"""Reward for correctness, scaled by length.

The reward favours right answers that are short, and punishes wrong answers most if they are short.
"""

import math
from typing import Any, TypeGuard

from trl_grpo_plus.registry import Example, Reward, get_reward, register_reward
from trl_grpo_plus.scoring import NO_VERDICT, AnnotatedScore, with_worst_status
from trl_grpo_plus.utils.validation import Number

from ._text import written_ids


def _judge(correct: str, correct_args: dict[str, Any] | None) -> Reward:
    return get_reward(correct, **(correct_args or {}))


def _check_args(max_length: int, correct: str, correct_args: dict[str, Any] | None, **bounds: float) -> None:
    Number(at_least=1, note=", in tokens").check("cosine_length: max_length", max_length)
    order = ("min_value_wrong", "max_value_wrong", "min_value_correct", "max_value_correct")
    values = [bounds[name] for name in order]
    if not all(map(math.isfinite, bounds.values())) or values != sorted(values):
        shown = ", ".join(f"{name}={bounds[name]}" for name in order)
        raise ValueError(
            f"cosine_length: {' <= '.join(order)} must hold, so that no wrong answer earns more than a right one; got "
            f"{shown}."
        )
    _judge(correct, correct_args)


UP_TO_100 = {"max_length": 100, "correct": "exact_answer"}


@register_reward(
    "cosine_length",
    examples=[
        Example("46", {"completion_ids": [1] * 50, "answer": "46"}, 0.75, UP_TO_100),
        Example("47", {"completion_ids": [1] * 50, "answer": "46"}, -0.75, UP_TO_100),
        Example("", {"completion_ids": [], "answer": "46"}, -1.0, UP_TO_100),
    ],
    check_args=_check_args,
    parts=lambda correct, correct_args, **_: [_judge(correct, correct_args)],
)
def cosine_length(
    completions: list[Any],
    completion_ids: list[list[int]],
    tool_mask: list[list[int]] | None = None,
    *,
    max_length: int,
    correct: str = "math_answer",
    correct_args: dict[str, Any] | None = None,
    at_least: float = 1.0,
    min_value_wrong: float = -1.0,
    max_value_wrong: float = -0.5,
    min_value_correct: float = 0.5,
    max_value_correct: float = 1.0,
    **columns: Any,
) -> list[float | None]:
    """A right answer scores more the shorter it is, and a wrong answer scores more the longer it is.

    With `n` tokens and `c = cos(pi * min(n / max_length, 1))`, which falls from 1 to -1:

        right:  min_value_correct + (max_value_correct - min_value_correct) * (1 + c) / 2
        wrong:  max_value_wrong   - (max_value_wrong   - min_value_wrong)   * (1 + c) / 2

    The source is appendix C.1 of Demystifying Long CoT (https://huggingface.co/papers/2502.03373). For the same
    verdicts the values equal those of `trl.rewards.get_cosine_scaled_reward`. The paper's -10 for a completion that is
    cut off is left to `overlong`.

    Another reward, `correct`, says which answers are right. It gets all columns. This reward replaces it, so do not
    list `correct` a second time. If `correct` times out, fails or is starved, the answer is not scored, also where
    `correct` itself would score 0; the outcome counts as this reward's.

    Args:
        completions (`list`): N completions, for `correct` to judge.
        completion_ids (`list[list[int]]`): N lists of tokens, as the trainer gives them.
        tool_mask (`list[list[int]]`, *optional*):
            For each token 1 if the policy wrote it, as `GRPOPlusTrainer` gives the mask if there are tools. Tokens of
            tools and environments are no part of the length. TRL's own trainer gives no mask, so all tokens count.
        max_length (`int`): tokens at which the schedule ends; longer answers score as at `max_length`.
        correct (`str`, *optional*, defaults to `"math_answer"`): name or path of the reward that says what is right.
        correct_args (`dict`, *optional*): arguments of `correct`, such as `{"column": "solution"}`.
        at_least (`float`, *optional*, defaults to `1.0`): the lowest score of `correct` that counts as right.
        min_value_wrong (`float`, *optional*, defaults to `-1.0`): reward of a wrong answer without a token.
        max_value_wrong (`float`, *optional*, defaults to `-0.5`): reward of a wrong answer at `max_length`.
        min_value_correct (`float`, *optional*, defaults to `0.5`): reward of a right answer at `max_length`.
        max_value_correct (`float`, *optional*, defaults to `1.0`): reward of a right answer without a token.
        columns: the columns that `correct` reads.

    Returns:
        `list[float | None]`: N rewards; `None` or NaN where `correct` gives `None` or no verdict.

    Example:
        >>> from trl_grpo_plus.registry import get_reward
        >>> reward = get_reward("cosine_length", max_length=100, correct="exact_answer")
        >>> reward(["46", "46", "47"], completion_ids=[[1] * 50, [1] * 100, [1] * 50], answer=["46"] * 3)
        [0.75, 0.5, -0.75]
    """
    if tool_mask is not None:
        columns["tool_mask"] = tool_mask
    judge = _judge(correct, correct_args)
    verdicts = judge.annotated(completions=completions, completion_ids=completion_ids, **columns)
    right, wrong = (min_value_correct, max_value_correct), (max_value_wrong, min_value_wrong)
    scores = [
        _scaled(len(ids), max_length, *(right if verdict >= at_least else wrong)) if _is_verdict(verdict) else None
        for verdict, ids in zip(verdicts, written_ids(completion_ids, tool_mask), strict=True)
    ]
    return [with_worst_status(score, [verdict]) for score, verdict in zip(scores, verdicts, strict=True)]


def _is_verdict(score: float | None) -> TypeGuard[float]:
    """Return whether the judge scored the answer. A score that it gave for a failure is no verdict."""
    return score is not None and not (isinstance(score, AnnotatedScore) and score.status in NO_VERDICT)


def _scaled(length: int, max_length: int, at_end: float, at_start: float) -> float:
    cosine = math.cos(math.pi * min(length / max_length, 1.0))
    return at_end + 0.5 * (at_start - at_end) * (1.0 + cosine)
