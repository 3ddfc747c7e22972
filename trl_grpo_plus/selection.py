"""Which prompts are sampled next, beyond the ones that TRL's own sampler deals."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .common.values import Refusal


class PromptStream:
    """An endless stream of dataset indices: one seeded permutation after another, each prompt once in each.

    It never looks at a rank's own random state, and it is resumable. An index that a caller cannot use now is not
    lost: it is dealt first next time. Where there are several ranks, the first one's deals for all.

    Args:
        num_prompts (`int`): rows of the dataset.
        seed (`int`): of the permutations.
    """

    def __init__(self, num_prompts: int, seed: int):
        self._num_prompts = num_prompts
        self._seed = seed
        self._deferred: deque[int] = deque()
        self._begin_pass(0, position=0)

    def take(
        self, count: int, wanted: Callable[[int], bool], multiple_of: int = 1, patience: int | None = None
    ) -> list[int]:
        """The next indices that `wanted` accepts.

        Args:
            count (`int`): how many to deal at most.
            wanted (`Callable[[int], bool]`): asked once about each index in turn; may remember what it accepted.
            multiple_of (`int`, *optional*, defaults to `1`): what is dealt is a multiple of this.
            patience (`int`, *optional*): refusals after which to look no further. `None`: the whole dataset.

        Returns:
            `list[int]`: distinct indices; fewer than `count` where no more that are wanted were found.
        """
        taken: list[int] = []
        passed: list[int] = []
        seen: set[int] = set()
        while len(taken) < count and len(seen) < self._num_prompts and (patience is None or len(passed) <= patience):
            index = self._next()
            # An index can come twice in a call, at the end of one pass and the start of the next.
            accepted = index not in seen and wanted(index)
            seen.add(index)
            (taken if accepted else passed).append(index)
        kept = len(taken) - len(taken) % multiple_of
        self._deferred.extendleft(reversed(passed + taken[kept:]))
        return taken[:kept]

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands; plain numbers and lists."""
        return {
            "num_prompts": self._num_prompts,
            "seed": self._seed,
            "pass": self._pass,
            "position": self._position,
            "deferred": list(self._deferred),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` stood. Raises ValueError when it was saved with another dataset size."""
        if state["num_prompts"] != self._num_prompts:
            raise Refusal(
                f"The checkpoint was saved with {state['num_prompts']} training prompts, the dataset now has "
                f"{self._num_prompts}. Resume with the same dataset, or start a new run from the checkpoint's weights."
            )
        self._seed, self._deferred = state["seed"], deque(state["deferred"])
        self._begin_pass(state["pass"], state["position"])

    def _next(self) -> int:
        if self._deferred:
            return self._deferred.popleft()
        if self._position == self._num_prompts:
            self._begin_pass(self._pass + 1, position=0)
        self._position += 1
        return int(self._order[self._position - 1])

    def _begin_pass(self, number: int, position: int) -> None:
        # Away from TRL's RepeatSampler, which shuffles with `seed` itself: that would resample what comes next anyway.
        generator = torch.Generator().manual_seed((self._seed * 1_000_003 + number * 7919 + 104_729) % 2**63)
        self._order = torch.randperm(self._num_prompts, generator=generator)
        self._pass, self._position = number, position


def stream_of(train_set: Any, args: Any) -> PromptStream:
    """Where a training set's other prompts come from; refuses one that has none."""
    check_stream(train_set, args)
    check_rows(len(train_set), args)
    return PromptStream(len(train_set), args.seed)


def check_dataset(dataset: Any, what: str) -> None:
    """What is trained on must be one data set, loaded."""
    if isinstance(dataset, Mapping):
        splits = ", ".join(map(str, dataset)) or "none"
        first = next((repr(name) for name in ("train", *dataset) if name in dataset), "...")
        raise Refusal(
            f"{what} is a {type(dataset).__name__} of splits ({splits}). Give one of them: {what}=dataset[{first}]."
        )
    if isinstance(dataset, str):
        raise Refusal(f"{what}={dataset!r} is a name. Load it first: datasets.load_dataset({dataset!r})['train'].")


def check_stream(train_set: Any, training_args: Any) -> None:
    """A stream has no other rows to resample from, and no length."""
    if hasattr(train_set, "__len__"):
        return
    if training_args.zero_variance_groups == "resample":
        raise Refusal(
            "zero_variance_groups='resample' needs a map-style dataset to draw other prompts from, got "
            f"{type(train_set).__name__}. Load it without streaming, or set zero_variance_groups='drop'."
        )
    if training_args.max_steps <= 0:
        raise Refusal("a stream has no length: set max_steps, or dataset_streaming: false.")


def check_rows(rows: int, args: Any) -> None:
    """The training set must fill a generation batch, and hold other prompts where some are to be resampled.

    Args:
        rows (`int`): of the training set.
        args ([`GRPOPlusConfig`]): the configuration.
    """
    prompts = args.generation_batch_size // args.num_generations
    if args.zero_variance_groups == "resample" and rows <= prompts:
        raise Refusal(
            f"zero_variance_groups='resample' needs more prompts than the {prompts} of one generation batch, the "
            f"dataset has {rows}. Use a larger dataset, a smaller generation batch, or zero_variance_groups='drop'."
        )
    if rows < prompts:
        raise Refusal(
            f"the training set has {rows} rows, and a generation batch takes {prompts} prompts (generation_batch_size "
            f"{args.generation_batch_size} / num_generations {args.num_generations}): not one step could be made. Use "
            "a larger dataset or a smaller generation batch."
        )
