"""Reward against loops: a penalty on n-grams that occur more than once."""

from collections.abc import Sequence
from typing import Any

from trl_grpo_plus.registry import Example, register_reward
from trl_grpo_plus.utils.validation import Number

from ._text import written_ids


def _check_args(ngram: int, max_penalty: float) -> None:
    Number(at_least=1, note=", in tokens").check("repetition: ngram", ngram)
    Number(at_most=0, note=": it is added to the other rewards").check("repetition: max_penalty", max_penalty)


@register_reward(
    "repetition",
    examples=[
        Example("a", {"completion_ids": [1, 2, 3, 4]}, 0.0, {"ngram": 2}),
        Example("a", {"completion_ids": [5, 5, 5, 5, 5]}, -0.75, {"ngram": 2}),
        Example("a", {"completion_ids": []}, 0.0),
    ],
    check_args=_check_args,
    full_marks=0.0,
)
def repetition(
    completions: list[Any],
    completion_ids: list[list[int]],
    tool_mask: list[list[int]] | None = None,
    *,
    ngram: int = 20,
    max_penalty: float = -1.0,
) -> list[float | None]:
    """0.0 for a completion in which no n-gram of tokens occurs twice, nearing `max_penalty` for a loop.

    The reward is `max_penalty * (1 - distinct / total)` over the `total = n - ngram + 1` n-grams of a completion of
    `n` tokens, and 0 if there is no n-gram. The source is appendix C.2 of Demystifying Long CoT
    (https://huggingface.co/papers/2502.03373). On any input the reward equals that of
    `trl.rewards.get_repetition_penalty_reward(ngram, max_penalty)`, in time that hardly grows with `ngram`.

    The n-grams are of tokens and not of words, because a text in Chinese or Japanese would be one word. Ordinary
    reasoning repeats the same three tokens many times, and more often the longer it is. So with TRL's `ngram=3` the
    reward is also a penalty on length. Repeats of 20 tokens occur in loops and in copied passages. A completion of
    fewer than `ngram` tokens is never punished. A tool's answer is not the policy's loop: only tokens that the policy
    wrote count, read as one text.

    Args:
        completions (`list`): N completions; not read.
        completion_ids (`list[list[int]]`): N lists of tokens, as the trainer gives them; tensors and arrays too.
        tool_mask (`list[list[int]]`, *optional*):
            For each token 1 if the policy wrote it and 0 if a tool or an environment did, as `GRPOPlusTrainer` gives
            the mask. TRL's own trainer gives no mask, so tokens of tools count as the policy's.
        ngram (`int`, *optional*, defaults to `20`): number of tokens in an n-gram.
        max_penalty (`float`, *optional*, defaults to `-1.0`): reward that a loop comes near; 0 or below.

    Returns:
        `list[float]`: N rewards from `max_penalty` to 0.0.

    Example:
        >>> from trl_grpo_plus.registry import get_reward
        >>> get_reward("repetition", ngram=2)(["a", "b"], completion_ids=[[1, 2, 3, 4], [5, 5, 5, 5, 5]])
        [0.0, -0.75]
    """
    return [_penalty(ids, ngram, max_penalty) for ids in written_ids(completion_ids, tool_mask)]


def _penalty(ids: Sequence[int], ngram: int, max_penalty: float) -> float:
    total = len(ids) - ngram + 1
    if total < 1:
        return 0.0
    distinct = len(set(_windows(ids, ngram)))
    return (1 - distinct / total) * max_penalty if distinct < total else 0.0


def _windows(ids: Sequence[int], size: int) -> Sequence[int]:
    """Return a number for each window of `size` tokens, equal for equal tokens.

    The number of a window comes from those of two shorter windows that overlap, so the cost grows with the logarithm
    of `size`.
    """
    names, width = ids, 1
    while width < size:
        step = min(width, size - width)
        table: dict[tuple[int, int], int] = {}
        names = [table.setdefault(pair, len(table)) for pair in zip(names, names[step:], strict=False)]
        width += step
    return names
