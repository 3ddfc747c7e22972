"""Rewards made of other rewards: gated by another reward, clipped or scaled.

from trl_grpo_plus.rewards.combine import gate, scale

GRPOPlusTrainer(reward_funcs=["math_answer", scale(gate("think_format", by="math_answer"), 0.2)], ...)
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from trl_grpo_plus.registry import get_reward
from trl_grpo_plus.scoring import scores_of_part, with_worst_status
from trl_grpo_plus.utils.signatures import is_async
from trl_grpo_plus.utils.validation import ConfigError, Number


RewardFunction = Callable[..., Any]


@dataclass(frozen=True)
class Combined:
    """A reward function made of other reward functions. It can be pickled if they can.

    Args:
        name (`str`): the name in the logs, and the `__name__`.
        parts (`tuple`): the reward functions to call, each with all arguments of the call.
        rule (`Callable`): maps a sample's scores, one per part in their order, to its reward.
    """

    name: str
    parts: tuple[RewardFunction, ...]
    rule: Callable[..., float]

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, completions: list[Any], **columns: Any) -> list[float | None]:
        """Return N rewards; `None` if a part gives `None`.

        If a part timed out, failed, was starved or judged a program that took too long, the reward is an
        [`~scoring.AnnotatedScore`] with the worst of these statuses; its value is NaN instead of `None`.
        """
        scores = [scores_of_part(part, {"completions": completions, **columns}) for part in self.parts]
        return [with_worst_status(self._of(sample), sample) for sample in zip(*scores, strict=True)]

    def _of(self, scores: tuple[float | None, ...]) -> float | None:
        # A NaN counts as `None`: an AnnotatedScore cannot hold `None`.
        numbers = [float(score) for score in scores if score is not None and not math.isnan(score)]
        return self.rule(*numbers) if len(numbers) == len(scores) else None


def gate(
    reward: RewardFunction | str, by: RewardFunction | str, at_least: float = 1.0, name: str | None = None
) -> Combined:
    """Return a reward function: `reward` where `by` scores at least `at_least`, else 0.0.

    The reward is `None` where either gives `None`.

    Use a gate for a reward of format or length that pays without the right answer. A gated penalty is waived too:
    where `by` fails, nothing below 0 is charged.

    Args:
        reward (`Callable` or `str`): a reward function, or a registered name.
        by (`Callable` or `str`): the reward that must be earned.
        at_least (`float`, *optional*, defaults to `1.0`): the lowest score of `by` that counts as earned.
        name (`str`, *optional*): the name in the logs, by default as in `think_format_if_math_answer`.

    Returns:
        [`Combined`]: a reward function.

    Raises:
        ConfigError: there is no such reward, `at_least` is not a number, or a function is async.

    Example:
        >>> from trl_grpo_plus.rewards.exact_answer import exact_answer
        >>> def brief(completions, **columns):
        ...     return [1.0 if len(text) < 4 else 0.5 for text in completions]
        >>> reward = gate(brief, by=exact_answer)
        >>> reward(completions=["46", "  46", "47"], answer=["46", "46", "46"])
        [1.0, 0.5, 0.0]
        >>> reward.__name__
        'brief_if_exact_answer'
    """
    inner, judge = _function(reward), _function(by)
    return _combined(name or f"{inner.__name__}_if_{judge.__name__}", (inner, judge), _gated, at_least=at_least)


def clip(reward: RewardFunction | str, low: float, high: float, name: str | None = None) -> Combined:
    """Return a reward function: `reward`, but at least `low` and at most `high`; `None` where it gives `None`.

    Raises:
        ConfigError: there is no such reward, `low` is above `high`, or the function is async.

    Example:
        >>> clip(lambda completions: [-3.0, 0.5, None], -1, 1, name="bounded")(completions=["a", "b", "c"])
        [-1.0, 0.5, None]
    """
    inner = _function(reward)
    combined = _combined(name or f"{inner.__name__}_clipped", (inner,), _clipped, low=low, high=high)
    if low > high:
        raise ConfigError(f"clip: low={low} must not be above high={high}.")
    return combined


def scale(reward: RewardFunction | str, factor: float, offset: float = 0.0, name: str | None = None) -> Combined:
    """Return a reward function: `factor * reward + offset`; `None` where `reward` gives `None`.

    If you only need one factor per reward, use `reward_weights`.

    Raises:
        ConfigError: there is no such reward, a number is not finite, or the function is async.

    Example:
        >>> scale(lambda completions: [0.0, 1.0, None], 2, offset=-1, name="signed")(completions=["a", "b", "c"])
        [-1.0, 1.0, None]
    """
    inner = _function(reward)
    return _combined(name or f"{inner.__name__}_scaled", (inner,), _scaled, factor=factor, offset=offset)


def _combined(name: str, parts: tuple[RewardFunction, ...], rule: Callable[..., float], **numbers: float) -> Combined:
    for argument, value in numbers.items():
        Number().check(argument, value)
    return Combined(name, parts, partial(rule, **numbers))


def _gated(score: float, verdict: float, *, at_least: float) -> float:
    return score if verdict >= at_least else 0.0


def _clipped(score: float, *, low: float, high: float) -> float:
    return float(min(max(score, low), high))


def _scaled(score: float, *, factor: float, offset: float) -> float:
    return factor * score + offset


def _function(reward: RewardFunction | str) -> RewardFunction:
    scorer = get_reward(reward) if isinstance(reward, str) else reward
    if not callable(scorer) or not hasattr(scorer, "__name__"):
        raise ConfigError(f"{scorer!r} must be a reward function with a __name__, or the name of a registered reward.")
    if is_async(scorer):
        raise ConfigError(f"{scorer.__name__} is an async function, which cannot be combined. Make it a plain one.")
    return scorer
