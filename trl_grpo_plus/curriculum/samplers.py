"""Prompt samplers: a `PromptSampler` deals rows of a dataset, and gets the rewards and verdicts of these rows.

ShuffleSampler        deals one shuffled pass after another, as TRL's own sampler
LearnabilitySampler   deals the rows of a shuffled pool with the highest expected learnability
ColumnSampler         deals by a column's level: easy first, hard first, or each level in turn
MixtureSampler        deals the sources that a column names in proportion to weights
"""

import math
import numbers
import warnings
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from ..utils.dataset_rows import Codes, encoded
from ..utils.validation import ConfigError, Number, did_you_mean, one_of
from .beliefs import Belief
from .resting import RestSchedule
from .row_table import packed, saved_rows, unpack


Believe = Callable[[list[int]], tuple[Belief, float]]  # row indices -> the belief about these rows, and its skill
Order = Literal["easy_first", "hard_first", "interleaved"]
ORDERS = get_args(Order)
FLOOR = 0.1  # share of rows that is dealt without regard to beliefs


class PromptSampler(Protocol):
    """Deals indices of a dataset. With several ranks, the first rank's sampler deals for all ranks.

    A sampler's state holds tensors, numbers, texts, lists and dicts. A sampler refuses the state of a dataset of
    another size.
    """

    def take(
        self,
        count: int,
        accepts: Callable[[int], bool],
        multiple_of: int = 1,
        patience: int | None = None,
        believe: Believe | None = None,
    ) -> list[int]:
        """Return distinct indices for which `accepts` is true.

        These are `count` indices. They are fewer, a multiple of `multiple_of`, if too few indices are accepted or more
        than `patience` are refused. `accepts` is called at most once for an index. An index that is accepted may still
        not be dealt. `believe` is called once or never.
        """

    def observe(self, rows: Sequence[int], rewards: Tensor, verdicts: Sequence[str]) -> None:
        """Learn from a scored generation batch and end the step.

        There are P rows, `(P, G)` rewards (NaN: unscored) and P verdicts of [`trl_grpo_plus.rollouts.groups.judge`].
        By default a sampler learns nothing.
        """
        return None

    def metrics(self) -> dict[str, float]:
        """Return the metrics to log; by default none."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the sampler needs to resume."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the saved `state`."""


class ShuffleSampler(PromptSampler):
    """An endless stream of dataset indices: one seeded permutation after another, each prompt once in each.

    The sampler never uses a rank's own random state. An index that a caller cannot use now is dealt first next time.

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
        self,
        count: int,
        accepts: Callable[[int], bool],
        multiple_of: int = 1,
        patience: int | None = None,
        believe: Believe | None = None,
    ) -> list[int]:
        """Return the next indices, as [`PromptSampler`]; `accepts` is called once for each, `believe` never."""
        taken: list[int] = []
        passed: list[int] = []
        seen: set[int] = set()
        while len(taken) < count and len(seen) < self._num_prompts and (patience is None or len(passed) <= patience):
            index = self._next()
            # An index can come twice in a call, at the end of one pass and the start of the next.
            accepted = index not in seen and accepts(index)
            seen.add(index)
            (taken if accepted else passed).append(index)
        kept = len(taken) - len(taken) % multiple_of
        self._deferred.extendleft(reversed(passed + taken[kept:]))
        return taken[:kept]

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the stream as plain numbers and lists."""
        return {
            "num_prompts": self._num_prompts,
            "seed": self._seed,
            "pass": self._pass,
            "position": self._position,
            "deferred": list(self._deferred),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the saved `state`. Raises ConfigError if it was saved with another dataset size."""
        if state["num_prompts"] != self._num_prompts:
            raise ConfigError(
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
        return self._order[self._position - 1]

    def _begin_pass(self, number: int, position: int) -> None:
        # Not `seed` itself, with which TRL's RepeatSampler shuffles: resampling would draw the rows that come next.
        generator = torch.Generator().manual_seed((self._seed * 1_000_003 + number * 7919 + 104_729) % 2**63)
        order = self._ordered(torch.randperm(self._num_prompts, generator=generator))
        # An array takes 4 bytes for each row, a list 36. Unlike a tensor's items, its items are Python's numbers.
        self._order = array("i", order.int().numpy().tobytes())
        self._pass, self._position = number, position

    def _ordered(self, shuffled: Tensor) -> Tensor:
        """Return the order of a pass, given a permutation for it."""
        return shuffled


class LearnabilitySampler(PromptSampler):
    """Deals the rows of a pool with the highest expected learnability.

    A `take` of `count` rows draws a pool of `pool` x `count` rows from shuffled passes. It asks `believe` once about
    the pool (an empty pool too, because other ranks may wait for the question), and scores each row by

        skill x z(learnability) + (1 - skill) x standard normal noise

    where z standardises over the pool. The rows with the highest scores are dealt. The share `floor` goes instead to
    the rows of the pool that were dealt longest ago (rows never dealt come first), so that no row starves. With skill
    0, or without `believe`, the choice is shuffling, drawn anew each step. A row of the pool that is not dealt comes
    again with the next pass.

    The pool leaves out rows dealt in the last `cooldown` steps (fewer steps if that would hold back more than half of
    the dataset). It also leaves out rows that rest ([`trl_grpo_plus.curriculum.resting`]): rows found solved, rows
    found stuck (all_bad, tied, unscored, truncated), and rows that are alive more often than rows usually are before
    they are learnt. An epoch is ceil(num_prompts / rows of the batch) steps. If fewer than `count` rows would be
    dealt, the rows that are free soonest enter the pool in spite of cooldown and rest.

    Every row that is accepted and that neither rests nor cools down is in at least one of any ceil(2 x
    num_prompts / (pool x count)) + 1 successive pools. So the row is offered within this number of steps after its
    rest ends. If int(floor x count) is f >= 1, the row is dealt at the latest from the ceil(num_prompts / f)-th pool
    that holds it.

    Source: a pool of candidates with a prediction for each is from PCL (arXiv 2510.01135), which takes the candidates
    nearest to a pass rate of one half. Weighing by measured skill, floor and rests are this project's.

    Args:
        num_prompts (`int`): rows of the dataset.
        seed (`int`): of the passes and the noise.
        pool (`int`, *optional*, defaults to `8`): candidates for each row dealt. 1 is shuffling, with rests.
        cooldown (`int`, *optional*, defaults to `8`): steps before a row is dealt again.
        floor (`float`, *optional*, defaults to `0.1`): share of rows dealt without regard to beliefs, in [0, 1]. A
            fraction of a row is carried over to the next step.

    Raises:
        ConfigError: a number is out of its bounds.
    """

    def __init__(self, num_prompts: int, seed: int, pool: int = 8, cooldown: int = 8, floor: float = FLOOR):
        Number(at_least=1, integer=True).check("pool", pool)
        Number(at_least=0, integer=True).check("cooldown", cooldown)
        Number(at_least=0, at_most=1).check("floor", floor)
        self._num_prompts, self._pool, self._cooldown, self._floor = num_prompts, pool, cooldown, floor
        self._passes = ShuffleSampler(num_prompts, seed)
        self._noise = torch.Generator().manual_seed((seed * 1_000_003 + 15_485_863) % 2**63)
        self._rests = RestSchedule(num_prompts)
        self._size, self._owed = 0, 0.0  # size of the last pool; fraction of a row owed to the floor
        self._dealt = torch.full((num_prompts,), -1, dtype=torch.int32)  # step at which the row was last dealt

    def take(
        self,
        count: int,
        accepts: Callable[[int], bool],
        multiple_of: int = 1,
        patience: int | None = None,
        believe: Believe | None = None,
    ) -> list[int]:
        """Return rows as [`PromptSampler`], in the pool's order, which does not depend on the beliefs."""
        pool = self._draw(count, accepts, patience)
        self._size = len(pool)
        number = min(count, len(pool)) // multiple_of * multiple_of
        spared, self._owed = owed(self._owed + self._floor * number)
        order = ranked(pool, believe, self._noise)
        best, others = order[: number - spared], order[number - spared :].sort().values
        indices = torch.tensor(pool, dtype=torch.long)
        waited = self._dealt[indices[others]].argsort(stable=True)
        dealt = indices[torch.cat([best, others[waited[:spared]]]).sort().values]
        self._dealt[dealt] = self._rests.step
        cooldown = min(self._cooldown, self._num_prompts // (2 * max(count, 1)))
        self._rests.wait(dealt, self._rests.step + cooldown + 1)
        return dealt.tolist()

    def observe(self, rows: Sequence[int], rewards: Tensor, verdicts: Sequence[str]) -> None:
        """Learn from a batch: rows that were solved or stuck, or are alive too often, begin to rest."""
        self._rests.observe(rows, verdicts)

    def metrics(self) -> dict[str, float]:
        """Return the metrics `selection/*`.

        - `selection/pool`: rows in the last pool.
        - `selection/resting`: the share of rows that rest or cool down.
        - `selection/retired`: the share of rows that rest because they are alive too often, as rows with noisy
          rewards are.
        """
        return {
            "selection/pool": float(self._size),
            "selection/resting": self._rests.resting,
            "selection/retired": self._rests.retired,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the state: 27 bytes for each row that was dealt or rests, and the state of the passes."""
        return {
            "passes": self._passes.state_dict(),
            "noise": self._noise.get_state(),
            "rests": self._rests.state_dict(),
            "owed": self._owed,
            "size": self._size,
            "dealt": packed({"dealt": self._dealt}, self._dealt >= 0),
        }

    def load_state_dict(self, state: dict[str, Any], moved: Callable[[Tensor], Tensor] | None = None) -> None:
        """Restore the saved `state`.

        Args:
            state (`dict`): from [`state_dict`].
            moved (`Callable`, *optional*): rows of the dataset that the state is about -> the same rows of this
                dataset, -1 for a row that is gone. The passes start afresh then. `None`: the dataset is the same.

        Raises:
            ConfigError: the state was saved with another dataset size, and `moved` is `None`.
        """
        if moved is None:
            self._passes.load_state_dict(state["passes"])
        rests, dealt = state["rests"]["table"], state["dealt"]
        self._rests.load_state_dict(state["rests"], moved and moved(saved_rows(rests)))
        unpack(dealt, {"dealt": self._dealt}, moved and moved(saved_rows(dealt)), {"dealt": -1})
        self._noise.set_state(state["noise"])
        self._owed, self._size = state["owed"], state["size"]

    @property
    def visited_rows(self) -> Tensor:
        """The rows about which the state holds something."""
        return (self._rests.visited | (self._dealt >= 0)).nonzero().squeeze(1)

    def _draw(self, count: int, accepts: Callable[[int], bool], patience: int | None) -> list[int]:
        """Return the pool: distinct rows that are accepted and free, and others only to reach `count` rows."""
        size = min(self._pool * count, self._num_prompts)
        pool: list[int] = []
        resting: list[int] = []
        seen: set[int] = set()
        drawn, refused = 0, 0

        def add_accepted(rows: Iterable[int], most: int) -> None:
            """Add accepted rows to the pool, until it has `most` rows or patience ends."""
            nonlocal refused
            for row in rows:
                if len(pool) >= most or (patience is not None and refused > patience):
                    return
                if accepts(row):
                    pool.append(row)
                else:
                    refused += 1

        while len(pool) < size and len(seen) < self._num_prompts and (patience is None or refused <= patience):
            # If almost all rows rest, look through four pools at most, so that a step's cost is bounded by its pool.
            if drawn >= 4 * size and len(pool) + len(resting) >= count:
                break
            rows = self._passes.take(size - len(pool), lambda row: True)
            drawn += len(rows)
            fresh = [row for row in rows if row not in seen]
            seen.update(fresh)
            free = (self._rests.free_at(fresh) <= self._rests.step).tolist()
            resting += [row for row, is_free in zip(fresh, free, strict=True) if not is_free]
            add_accepted((row for row, is_free in zip(fresh, free, strict=True) if is_free), size)
        if len(pool) < count:
            soonest = self._rests.free_at(resting).argsort(stable=True).tolist()
            add_accepted((resting[place] for place in soonest), count)
        return pool


class ColumnSampler(ShuffleSampler):
    """Deals rows by the level that a column gives them, shuffled within a level, each row once a pass.

    Args:
        values (`Sequence` or [`~trl_grpo_plus.utils.dataset_rows.Codes`]): one level a row: numbers, or texts
            (compared as texts: "10" is below "9"). A low level is easy.
        order (`str`): In each pass, "easy_first" goes through the levels upwards, "hard_first" downwards.
            "interleaved" deals a row of each level in turn, from the easiest, while the level has rows left.
        seed (`int`): of the passes.

    Raises:
        ConfigError: an unknown order, or values that cannot be ordered.
    """

    def __init__(self, values: Sequence[Any] | Codes, order: str, seed: int):
        one_of("order", order, ORDERS)
        coded = _levels(values)
        level_of = {value: level for level, value in enumerate(sorted(coded.values))}
        of_values = torch.tensor([level_of[value] for value in coded.values], dtype=coded.codes.dtype)
        self._levels = of_values[coded.codes.long()]
        self._kind = order
        super().__init__(len(coded.codes), seed)

    def _ordered(self, shuffled: Tensor) -> Tensor:
        levels = self._levels[shuffled]
        by_level = levels.argsort(stable=True, descending=self._kind == "hard_first")
        if self._kind == "interleaved":
            by_level = by_level[_places(levels[by_level]).argsort(stable=True)]
        return shuffled[by_level]


class MixtureSampler(ShuffleSampler):
    """Deals the sources of a mixture in proportion to weights, shuffled within a source, each row once a pass.

    A source that has no rows left in a pass is left out until the next one.

    Args:
        values (`Sequence` or [`~trl_grpo_plus.utils.dataset_rows.Codes`]): the source of each row, compared as text.
        weights (`Mapping`): the weight of each source; sources are compared as text here too. Rows are dealt in
            proportion to the weights.
        seed (`int`): of the passes.

    Raises:
        ConfigError: a source has no weight, or a weight is not above 0.
    """

    def __init__(self, values: Sequence[Any] | Codes, weights: Mapping[Any, float], seed: int):
        weights = {str(source): weight for source, weight in weights.items()}
        coded = values if isinstance(values, Codes) else encoded([str(value) for value in values])
        sources = list(dict.fromkeys(map(str, coded.values)))
        if missing := [source for source in sources if source not in weights]:
            raise ConfigError(
                f"its value {missing[0]!r} has no weight. These values have one: {', '.join(map(repr, weights))}."
            )
        for source in weights.keys() - set(sources) if sources else ():  # no error: the rows may be a subset
            warnings.warn(
                f"prompt_selection: weights has {source!r}, which none of these {len(coded.codes)} rows has. The "
                f"values are {', '.join(map(repr, sources))}.{did_you_mean(source, sources)}",
                stacklevel=2,
            )
        if wrong := {source: weight for source, weight in weights.items() if not 0 < weight < math.inf}:
            raise ConfigError(f"weights={wrong!r} must be above 0. To train without some rows, filter them out.")
        numbers_of = {source: number for number, source in enumerate(sources)}
        of_values = torch.tensor([numbers_of[str(value)] for value in coded.values], dtype=torch.long)
        self._sources = of_values[coded.codes.long()]
        self._weights = torch.tensor([weights[source] for source in sources], dtype=torch.float64)
        super().__init__(len(coded.codes), seed)

    def _ordered(self, shuffled: Tensor) -> Tensor:
        sources = self._sources[shuffled]
        by_source = sources.argsort(stable=True)
        due = (_places(sources[by_source]) + 0.5) / self._weights[sources[by_source]]
        return shuffled[by_source[due.argsort(stable=True)]]


def _places(kinds: Tensor) -> Tensor:
    """Return the place of each row among the rows of its kind, from 0; `kinds` are sorted."""
    return torch.arange(len(kinds)) - torch.searchsorted(kinds, kinds)


def _levels(values: Sequence[Any] | Codes) -> Codes:
    """Return the levels of rows as codes, after a check that they can be ordered."""
    if isinstance(values, Codes):
        _check_levels(values.values, lambda place: int((values.codes == place).nonzero()[0]))
        return values
    _check_levels(values, lambda place: place)
    return encoded(values)


def _check_levels(levels: Sequence[Any], row_of: Callable[[int], int]) -> None:
    """Check levels, the first row's first; `row_of` maps the place of a level to a row that has it."""
    for place, value in enumerate(levels):
        number = isinstance(value, numbers.Real)
        if not (number or isinstance(value, str)) or value != value:
            raise ConfigError(
                f"the level of row {row_of(place)} is {value!r}, and must be a number or a text. Give each row a "
                "level, or name another column."
            )
        if number != isinstance(levels[0], numbers.Real):
            raise ConfigError(
                f"the levels are of two kinds: {levels[0]!r} in row 0, {value!r} in row {row_of(place)}. Make all "
                "levels numbers, or make all levels texts."
            )


def owed(rows: float) -> tuple[int, float]:
    """Split a number of rows into whole rows and the fraction that is carried over to the next step."""
    return (whole := int(rows + 1e-9)), rows - whole


def ranked(pool: list[int], believe: Believe | None, generator: torch.Generator) -> Tensor:
    """Sort the positions in a pool by score, best first: skill x z(learnability) + (1 - skill) x noise."""
    belief, skill = (None, 0.0) if believe is None else believe(pool)
    score = torch.randn(len(pool), generator=generator, dtype=torch.float64)
    if belief is not None and pool:
        values = belief.learnability
        score = skill * (values - values.mean()) / (values.std(correction=0) + 1e-9) + (1 - skill) * score
    return score.argsort(descending=True, stable=True)
