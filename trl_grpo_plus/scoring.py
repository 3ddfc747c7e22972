"""One batch being scored on one rank: the outcome of every sample, and the failures that must stop the run.

A reward function that raises on one rank leaves the others waiting in a collective until it times out. So a failure is
kept, the batch goes on to where all ranks meet, and there all of them stop with the same message.
"""

import inspect
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from .reward import Reward
from .workers import Outcome, as_many


STATUSES = ("ok", "abstain", "too_long", "timeout", "error", "starved")
FAILURES = STATUSES[3:]  # no verdict on the sample


class Scoring:
    """Reward functions to call in place of a trainer's own, which record what became of each sample.

    Args:
        rewards (`Sequence`): K reward functions or models; models are passed on as they are.
        names (`Sequence[str]`): K names.

    Attributes:
        functions (`list`): K functions to call.
        outcomes (`list[list[Outcome] | None]`): one list a [`Reward`], in its place; `None` elsewhere.
        failures (`list[str]`): what must stop the run.
    """

    def __init__(self, rewards: Sequence[Any], names: Sequence[str]):
        self.outcomes: list[list[Outcome] | None] = [None] * len(rewards)
        self.failures: list[str] = []
        self.cause: Exception | None = None
        self.functions = [self._watched(i, reward, names[i]) for i, reward in enumerate(rewards)]

    def counts(self) -> list[list[int]]:
        """(K, S): how many samples of each reward had each of [`STATUSES`]."""
        return [[sum(o.status == status for o in found or ()) for status in STATUSES] for found in self.outcomes]

    def statuses(self, rows: int) -> list[tuple[str | None, ...]]:
        """One of [`STATUSES`] a reward for each of this rank's rows, `None` where the reward does not tell."""
        none = [None] * rows
        return list(zip(*([o.status for o in found] if found else none for found in self.outcomes), strict=True))

    def _watched(self, index: int, reward: Any, name: str) -> Any:
        if isinstance(reward, Reward):
            return _named(name, lambda **given: self._score(index, reward, given))
        if hasattr(reward, "parameters") or not callable(reward):  # a model
            return reward
        if inspect.iscoroutinefunction(reward) or inspect.iscoroutinefunction(getattr(reward, "__call__", None)):  # noqa: B004
            return _named(name, self._async_function(reward, name))
        return _named(name, lambda **given: self._call(reward, name, given))

    def _score(self, index: int, reward: Reward, given: dict[str, Any]) -> list[float | None]:
        count = len(given["completions"])
        try:
            outcomes = reward.score(**given)
        except Exception as error:
            return self._fail(f"reward {reward.__name__!r} cannot score.", error, count)
        self.outcomes[index] = outcomes
        failure = reward.failure(outcomes)
        if failure:
            return self._fail(failure, None, count)
        return [outcome.score for outcome in outcomes]

    def _call(self, reward: Callable[..., Any], name: str, given: dict[str, Any]) -> Any:
        try:
            return as_many(reward(**given), len(given["completions"]))
        except Exception as error:
            return self._fail(f"reward {name!r} failed.", error, len(given["completions"]))

    def _async_function(self, reward: Callable[..., Any], name: str) -> Callable[..., Any]:
        async def call(**given: Any) -> Any:
            try:
                return as_many(await reward(**given), len(given["completions"]))
            except Exception as error:
                return self._fail(f"reward {name!r} failed.", error, len(given["completions"]))

        return call

    def _fail(self, what: str, error: Exception | None, count: int) -> list[float | None]:
        self.cause = self.cause or error
        trace = "".join(traceback.format_exception(error)) if error else ""
        self.failures.append(f"{what}\n{trace}".strip())
        return [0.0] * count


def _named(name: str, function: Any) -> Any:
    function.__name__ = name
    return function
