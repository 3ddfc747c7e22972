"""Reward against answers that run into the length limit: DAPO's soft overlong punishment."""

from typing import Any

from trl_grpo_plus.registry import Example, register_reward
from trl_grpo_plus.utils.validation import Number


def _check_args(max_length: int, cache: int) -> None:
    Number(at_least=1, note=", in tokens: `max_completion_length`").check("overlong: max_length", max_length)
    if not 0 <= cache <= max_length:
        raise ValueError(
            f"overlong: cache={cache} must lie between 0 and max_length={max_length}: it is the last part of "
            "max_length, over which the punishment grows. DAPO has max_length=20480, cache=4096."
        )


@register_reward(
    "overlong",
    examples=[
        Example("a", {"completion_ids": list(range(80))}, 0.0, {"max_length": 100, "cache": 20}),
        Example("a", {"completion_ids": list(range(90))}, -0.5, {"max_length": 100, "cache": 20}),
        Example("a", {"completion_ids": list(range(101))}, -1.0, {"max_length": 100, "cache": 20}),
    ],
    check_args=_check_args,
    full_marks=0.0,
)
def overlong(
    completions: list[Any], completion_ids: list[list[int]], *, max_length: int, cache: int
) -> list[float | None]:
    """0.0 for a completion that is short enough, falling to -1.0 for a completion that reaches the length limit.

    With `n` tokens the reward is 0 up to `max_length - cache`, `(max_length - cache - n) / cache` up to `max_length`,
    and -1 beyond. This is equation 13 of DAPO (https://huggingface.co/papers/2503.14476). On any input it equals
    `trl.rewards.get_soft_overlong_punishment(max_length, cache)`.

    The reward punishes length and rewards nothing: add it to a reward for the answer. In DAPO answers earn 1 or -1.
    Beside a reward of 1 or 0, as this package's are, the weight 0.5 gives the same advantages, if these are divided by
    the std. A completion that the engine cut off at `max_completion_length` never gets longer than that, so set
    `max_length` to it or lower. All tokens of a completion count, also those of tools, as they count towards
    `max_completion_length`.

    Args:
        completions (`list`): N completions; not read.
        completion_ids (`list[list[int]]`): N lists of tokens, as the trainer gives them.
        max_length (`int`): number of tokens from which on the reward is -1.
        cache (`int`): number of tokens before `max_length` over which the reward falls from 0 to -1; 0: at once.

    Returns:
        `list[float]`: N rewards from -1.0 to 0.0.

    Example:
        >>> from trl_grpo_plus.registry import get_reward
        >>> reward = get_reward("overlong", max_length=100, cache=20)
        >>> reward(["a"] * 4, completion_ids=[[1] * 80, [1] * 90, [1] * 100, [1] * 200])
        [0.0, -0.5, -1.0, -1.0]
    """
    return [_punishment(len(ids), max_length, cache) for ids in completion_ids]


def _punishment(length: int, max_length: int, cache: int) -> float:
    free = max_length - cache
    if length <= free:
        return 0.0
    return (free - length) / cache if length <= max_length else -1.0
