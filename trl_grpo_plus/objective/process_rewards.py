"""Process rewards: the advantages of a group's tokens from the rewards of its steps.

The rewards of all steps of all attempts of a group are normalised together, `(r - mean R) / (std R + eps)`. Then

| step_reward_credit | a token earns |
|---|---|
| to_go | the normalised rewards of the steps that end at it or after it (DeepSeekMath, section 4.1.3) |
| own | the normalised reward of the step that it lies in |

A token after the last step earns 0. A token in which two steps end lies in both. A group whose step rewards differ by
no more than the tolerance has advantage exactly 0. So two attempts with equal sums teach if their steps differ. A
group of equal attempts teaches too, if the steps within an attempt differ: the baseline is the mean step, not the
mean attempt.
"""

from collections.abc import Callable, Sequence
from itertools import chain, pairwise

import torch
from torch import Tensor

from ..rollouts.steps import Steps, steps_differ
from ..utils.validation import ConfigError, one_of


def of_steps(
    steps: Sequence[Steps],
    lengths: Sequence[int],
    step_reward_credit: str = "to_go",
    ddof: int = 1,
    eps: float = 1e-4,
    *,
    scale: str = "group",
    floor: float = 0.0,
    tolerance: float = 1e-6,
) -> list[Tensor]:
    """Compute the advantages of one group's tokens from the rewards of its steps.

    The module has the formula.

    Args:
        steps (`Sequence`): for each of the G attempts `[(last token, reward), ...]`, last tokens ascending from 0; an
            empty list for an attempt without steps.
        lengths (`Sequence[int]`): lengths of the G attempts, in tokens.
        step_reward_credit (`str`, *optional*, defaults to `"to_go"`): one of [`STEP_REWARD_CREDITS`].
        ddof (`int`, *optional*, defaults to `1`): 1 for the sample std, 0 for the population std.
        eps (`float`, *optional*, defaults to `1e-4`): added to the std.
        scale (`str`, *optional*, defaults to `"group"`): one of [`STEP_SCALES`]; "none" divides by nothing.
        floor (`float`, *optional*, defaults to `0.0`): smallest std.
        tolerance (`float`, *optional*, defaults to `1e-6`): largest max - min of rewards that count as tied.

    Returns:
        `list[Tensor]`: G tensors `(length,)` in float64.

    Raises:
        ConfigError: the credit or the scale is unknown, or steps are not in order or pass the end.

    Example:
        >>> [values.tolist() for values in of_steps([[(1, 1.0), (3, 0.0)], [(1, 1.0)]], [4, 3], scale="none")]
        [[-0.3333333333333333, -0.3333333333333333, -0.6666666666666666, -0.6666666666666666], [0.33333333333333337, \
0.33333333333333337, 0.0]]
    """
    one_of("step_reward_credit", step_reward_credit, STEP_REWARD_CREDITS)
    one_of("scale", scale, STEP_SCALES)
    for of_one, length in zip(steps, lengths, strict=True):
        lasts = [-1, *(last for last, _ in of_one), length - 1]
        if any(after < before for before, after in pairwise(lasts)) or (of_one and of_one[0][0] < 0):
            raise ConfigError(f"steps={list(of_one)!r:.200} must end in order, at tokens from 0 to {length - 1}.")
    rewards = torch.tensor([reward for _, reward in chain(*steps)], dtype=torch.float64)
    tied = not steps_differ(steps, tolerance)
    mean, divisor = (0.0, 1.0) if tied else (rewards.mean().item(), 1.0)
    if scale == "group" and not tied:
        divisor = max(rewards.std(correction=ddof).item(), floor) + eps
    advantages = []
    for of_one, length in zip(steps, lengths, strict=True):
        values = torch.zeros(length, dtype=torch.float64)
        before = -1
        for last, reward in of_one if not tied else ():
            values[STEP_REWARD_CREDITS[step_reward_credit](before, last) : last + 1] += (reward - mean) / divisor
            before = last
        advantages.append(values)
    return advantages


# name -> function from the last token of the step before, and of the step, to the first token that earns its reward
STEP_REWARD_CREDITS: dict[str, Callable[[int, int], int]] = {
    "to_go": lambda before, last: 0,
    "own": lambda before, last: min(before + 1, last),
}


STEP_SCALES = ("group", "none")
