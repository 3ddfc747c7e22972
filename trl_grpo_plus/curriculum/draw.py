"""The draw of the prompts of all ranks: rank 0 asks its sampler and broadcasts the rows."""

from collections.abc import Callable, Sequence

from accelerate.utils import broadcast_object_list
from torch import Tensor

from ..utils.distributed import raise_on_all_ranks
from ..utils.validation import ConfigError, RunError
from .beliefs import Belief
from .samplers import Believe, PromptSampler


class Draw:
    """Draws rows of the training set for all ranks: rank 0's sampler deals, and all ranks answer its questions.

    Args:
        stream ([`~trl_grpo_plus.curriculum.samplers.PromptSampler`]): the sampler; it advances on rank 0 alone.
        believe (`Callable`, *optional*): answers the sampler's questions about rows.
        collective (`bool`): whether every rank must call `believe` for an answer.
        rank (`int`): of this process.
    """

    def __init__(self, stream: PromptSampler, believe: Believe | None, collective: bool, rank: int):
        self._stream, self._believe, self._collective, self._rank = stream, believe, collective, rank
        self._failure: Exception | None = None  # of an answer; the other ranks are in it and get no further word

    def __call__(
        self, count: int, accepts: Callable[[int], bool], multiple_of: int, patience: int | None
    ) -> list[int]:
        """Return the rows that rank 0's sampler takes, on every rank. Collective.

        A failure of the sampler is raised on all ranks. A failure within a collective answer is raised where it
        happened.
        """
        if self._rank == 0:
            believe = self._ask if self._believe and self._collective else self._believe
            self._failure = None
            try:
                answer = ("dealt", self._stream.take(count, accepts, multiple_of, patience, believe))
            except Exception as error:
                if self._failure is None:  # the other ranks wait for rank 0's word
                    refused = isinstance(error, ConfigError)
                    said = ("refused", str(error)) if refused else ("failed", f"{type(error).__name__}: {error}")
                    broadcast_object_list([said])
                raise
            if self._failure is not None:  # the sampler has caught it
                raise self._failure
            return broadcast_object_list([answer])[0][1]
        while True:
            kind, content = broadcast_object_list([None])[0]
            if kind == "refused":
                raise ConfigError(content)
            if kind == "failed":
                raise RunError(f"The first process could not choose prompts: {content}")
            if kind == "dealt":
                return content
            assert self._believe is not None
            self._believe(content)

    def observe(self, rows: Sequence[int], rewards: Tensor, verdicts: Sequence[str]) -> dict[str, float]:
        """Pass the batch to rank 0's sampler and return its metrics; other ranks return none.

        A failure stops all ranks. Collective.
        """
        metrics: dict[str, float] = {}
        with raise_on_all_ranks():
            if self._rank == 0:
                self._stream.observe(rows, rewards, verdicts)
                metrics = self._stream.metrics()
        return metrics

    def _ask(self, rows: list[int]) -> tuple[Belief, float]:
        assert self._believe is not None
        broadcast_object_list([("asked", rows)])
        try:
            return self._believe(rows)
        except Exception as error:
            self._failure = error
            raise
