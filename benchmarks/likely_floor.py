"""A prompt sampler that was tried to hold length down: its floor deals prompts that are believed to be mostly solved.

[`LearnabilitySampler`] deals a share of its rows, the floor, without regard to learnability: the rows that were dealt
longest ago. This sampler's floor deals rows with a believed reward of 0.7 to 0.9: where harder prompts have longer
answers, these could have shorter ones. The arms `key-2-floor-*` of benchmarks/to_target.py use it.
"""

from collections.abc import Callable
from typing import Any

import torch

from trl_grpo_plus.curriculum.beliefs import Belief
from trl_grpo_plus.curriculum.samplers import Believe, LearnabilitySampler


LOW, HIGH = 0.7, 0.9
FIRST = -2  # before the rows that were never dealt


class LikelyFloor(LearnabilitySampler):
    """Deals the floor from rows believed between `LOW` and `HIGH`. If they are too few, older rows take their place.

    Args:
        train_set (`Any`): the dataset.
        seed (`int`): as [`LearnabilitySampler`].
        floor (`float`): share of rows that the floor deals.
        oldest (`bool`, *optional*, defaults to `False`): deal the rows dealt longest ago, as [`LearnabilitySampler`].
    """

    def __init__(self, train_set: Any, seed: int, floor: float, oldest: bool = False):
        super().__init__(len(train_set), seed, floor=floor)
        self._oldest = oldest

    def take(
        self,
        count: int,
        accepts: Callable[[int], bool],
        multiple_of: int = 1,
        patience: int | None = None,
        believe: Believe | None = None,
    ) -> list[int]:
        """Deal rows as [`LearnabilitySampler`], with the likely rows of the pool as the oldest."""
        if self._oldest or believe is None:
            return super().take(count, accepts, multiple_of, patience, believe)
        before = self._dealt.clone()

        def with_likely_first(rows: list[int]) -> tuple[Belief, float]:
            belief, skill = believe(rows)
            likely = (belief.mean >= LOW) & (belief.mean <= HIGH)
            self._dealt[torch.tensor(rows)[likely]] = FIRST
            return belief, skill

        rows = super().take(count, accepts, multiple_of, patience, with_likely_first)
        self._dealt = torch.where(self._dealt == FIRST, before, self._dealt)
        return rows
