"""Scores one batch on one rank: records the outcome of every sample and the failures that must stop the run.

If a reward function raised on one rank only, the other ranks would wait in a collective until it times out. So a
failure is recorded, the batch continues to the point where all ranks meet, and there all ranks stop with the same
message. The return value of every reward function passes through [`outcomes_of`]: only finite numbers and `None` reach
the trainer.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..utils.signatures import call, has_parameter, is_async
from .columns import is_model
from .definition import FAILURES, Policy
from .failures import OF_ENVIRONMENTS, OF_GET_REWARD, RewardError, hint, in_one_line, own_frames, warn_of_first, where
from .outcome import STATUSES, Outcome, Step, first_failure, outcomes_of
from .reward import Reward, reports_outcomes


if TYPE_CHECKING:
    from torch import Tensor


class Scoring:
    """Wrapped reward functions for the trainer to call, which record the outcome of each sample.

    Args:
        rewards (`Sequence`): K reward functions or models; models are not wrapped.
        names (`Sequence[str]`): K names.
        warned (`set`, *optional*):
            Names and statuses of failures that did not stop the run and that a warning has named. `None`: no warnings.
        tool_masks (`list[list[int]]`, *optional*):
            N lists of 0 and 1, one number per token, for rewards that name `tool_mask`. TRL passes it to none, so
            other functions do not get it.

    Attributes:
        functions (`list`): K functions to call.
        outcomes (`list[list[Outcome] | None]`): K entries: the outcomes of a [`Reward`], or of a combination with one
            in it; `None` for other rewards.
        steps (`list[list | None]`): K entries: for a reward that gave steps, one tuple of [`Step`] or `None` per
            sample; `None` for other rewards.
        failures (`list[str]`): descriptions of the failures that must stop the run.
        cause (`BaseException`, *optional*): the first exception of a user's function, with that function's frames.
    """

    def __init__(
        self,
        rewards: Sequence[Any],
        names: Sequence[str],
        warned: set[tuple[str, str]] | None = None,
        tool_masks: Sequence[Sequence[int]] | None = None,
    ):
        self.outcomes: list[list[Outcome] | None] = [None] * len(rewards)
        self.steps: list[list[tuple[Step, ...] | None] | None] = [None] * len(rewards)
        self.failures: list[str] = []
        self._names, self._warned, self._tool_masks = names, warned, tool_masks
        self.cause: BaseException | None = None
        self.functions = [self._watched(i, reward, names[i]) for i, reward in enumerate(rewards)]

    def counts(self) -> list[list[int]]:
        """Return the number of samples of each reward with each of [`STATUSES`], shape (K, S)."""
        return [[sum(o.status == status for o in of_one or ()) for status in STATUSES] for of_one in self.outcomes]

    def statuses(self, rows: int) -> list[tuple[str | None, ...]]:
        """Return, for each of this rank's rows, one of [`STATUSES`] per reward; `None` without outcomes."""
        none = [None] * rows
        return list(zip(*([o.status for o in of_one] if of_one else none for of_one in self.outcomes), strict=True))

    def steps_of(self, rows: int) -> list[tuple[tuple[Step, ...] | None, ...]]:
        """Return, for each of this rank's rows, the steps that each reward gave; `None` if it gave none."""
        none = [None] * rows
        return list(zip(*(of_one or none for of_one in self.steps), strict=True))

    def failure_of_models(self, rewards: "Tensor") -> str | None:
        """Describe the first reward of a model that is not finite, which must stop the run; `None` if there is none.

        A model cannot abstain, so NaN and infinity are failures.

        Args:
            rewards (`Tensor`): (N, K), gathered from all ranks, so that all ranks return the same text.
        """
        for index, reward in enumerate(self.functions):
            if is_model(reward) and not (finite := rewards[:, index].isfinite()).all():
                row = int(finite.logical_not().nonzero()[0])
                return (
                    f"reward model {self._names[index]!r} gave {rewards[row, index].item()} for sample {row} of "
                    f"{len(rewards)}, over all processes. A reward must be a finite number. If float16 overflows, "
                    "load the model in bfloat16 or float32. Or call the model in your own reward function, which may "
                    "return None."
                )
        return None

    def _watched(self, index: int, reward: Any, name: str) -> Any:
        if isinstance(reward, Reward):
            return _named(name, lambda **columns: self._score(index, reward, columns))
        if is_model(reward):
            return reward
        if is_async(reward):
            return _named(name, self._async_function(index, reward, name))
        return _named(name, lambda **columns: self._call(index, reward, name, columns))

    def _score(self, index: int, reward: Reward, columns: dict[str, Any]) -> list[float | None]:
        completions = columns["completions"]
        try:
            outcomes = reward.score(**self._with_tool_mask(reward, columns))
        except FAILURES as error:
            return self._raised(f"reward {reward.__name__!r} cannot score", error, completions)
        failure = reward.failure(outcomes, completions)
        self._count(index, outcomes, failure, reward.policies)
        return self._passed(index, outcomes, failure)

    def _call(self, index: int, reward: Callable[..., Any], name: str, columns: dict[str, Any]) -> list[float | None]:
        completions = columns["completions"]
        try:
            outcomes = outcomes_of(call(reward, self._with_tool_mask(reward, columns)), completions)
        except FAILURES as error:
            return self._raised(f"reward {name!r} failed", error, completions)
        failure = _failure(reward, name, outcomes, completions)
        if reports_outcomes(reward):
            self._count(index, outcomes, failure, {})
        return self._passed(index, outcomes, failure)

    def _async_function(self, index: int, reward: Callable[..., Any], name: str) -> Callable[..., Any]:
        async def score(**columns: Any) -> list[float | None]:
            completions = columns["completions"]
            try:
                outcomes = outcomes_of(await call(reward, self._with_tool_mask(reward, columns)), completions)
            except (*FAILURES, asyncio.CancelledError) as error:  # a task of the reward function was cancelled
                return self._raised(f"reward {name!r} failed", error, completions)
            return self._passed(index, outcomes, _failure(reward, name, outcomes, completions))

        return score

    def _with_tool_mask(self, reward: Any, columns: dict[str, Any]) -> dict[str, Any]:
        if self._tool_masks is None or not (reports_outcomes(reward) or has_parameter(reward, "tool_mask")):
            return columns
        return {**columns, "tool_mask": self._tool_masks}

    def _count(self, index: int, outcomes: list[Outcome], failure: str | None, policies: Mapping[str, Policy]) -> None:
        """Keep a reward's outcomes for the metrics, and warn of its first failure that does not stop the run."""
        self.outcomes[index] = outcomes
        if failure is None and self._warned is not None:
            warn_of_first(self._names[index], outcomes, policies, self._warned)

    def _passed(self, index: int, outcomes: Sequence[Outcome], failure: str | None) -> list[float | None]:
        if failure:
            self.failures.append(failure)
            return [0.0] * len(outcomes)
        if any(outcome.steps is not None for outcome in outcomes):
            self.steps[index] = [outcome.steps for outcome in outcomes]
        return [outcome.score for outcome in outcomes]

    def _raised(self, what: str, error: BaseException, completions: Sequence[Any]) -> list[float | None]:
        """Note a failure in one line. The frames of the user's function are kept in the cause alone."""
        if isinstance(error, RewardError):  # raised by a part of a combination; its text is complete
            self.failures.append(f"{what}: {error}")
            return [0.0] * len(completions)
        if frames := own_frames(error):
            self.cause = self.cause or error.with_traceback(frames)
        self.failures.append(f"{what}{where(error)}: {in_one_line(error)}{hint(error, completions)}")
        return [0.0] * len(completions)


def _failure(reward: Any, name: str, outcomes: Sequence[Outcome], completions: Sequence[Any]) -> str | None:
    """Describe the first sample that a plain function failed on; an environment's `get_reward` takes no options."""
    fix = OF_GET_REWARD if getattr(reward, "__module__", None) == OF_ENVIRONMENTS else None
    return first_failure(f"reward {name!r}", outcomes, completions, fix=fix)


def _named(name: str, function: Any) -> Any:
    function.__name__ = name
    return function
