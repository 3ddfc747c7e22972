"""The range in which rewards lie, as far as it is known. One bad reward does not move it.

A range begins as it is set. An end moves out to what rewards have reached, and back in when they reach it no more:

    usual            = the lowest (highest) reward of a batch's groups, without the one group in a hundred, at least
                       one, that lies furthest out
    end of a batch   = its furthest reward that is beyond the usual one by half the range's width at most
    end of the range = the one that was set, or the second furthest of the last 20 batches where that is further out

So a checker that fails once with -100, in one group or in a whole batch, moves no end for longer than to the next
batch (of a run's first batch, all that is known is that batch). What lies outside counts as the end that it lies
beyond.
"""

import math
from collections import deque
from typing import Any

import torch
from torch import Tensor


BATCHES = 20
LARGEST = 1e60  # whose fourth power is a number
ODD = 0.01  # of a batch's groups
FENCE = 0.5  # of the width


class RewardRange:
    """The range of one quantity's rewards.

    Args:
        low, high (`float`): the ends that are set; the range is never narrower.

    Attributes:
        low, high (`float`): the ends now.
        outside (`float`): share of the last batch's rewards that lay outside.
    """

    def __init__(self, low: float, high: float):
        self._set = self.low, self.high = float(low), float(high)
        self.outside = 0.0
        self._ends: deque[list[float]] = deque(maxlen=BATCHES)  # of each batch

    def observe(self, rewards: Tensor) -> Tensor:
        """Learn from a batch's `(P, G)` rewards; gives them with what lies outside the range at its ends.

        NaN stands for an attempt that nobody scored, and for one whose reward is infinite.
        """
        scored = rewards.isfinite()
        rewards = rewards.clamp(-LARGEST, LARGEST)
        some = scored.any(dim=1)
        if not some.any():
            return rewards
        lows = torch.where(scored, rewards, math.inf)[some].amin(dim=1).sort().values
        highs = torch.where(scored, rewards, -math.inf)[some].amax(dim=1).sort(descending=True).values
        usual = min(max(1, math.ceil(ODD * len(lows))), len(lows) - 1)
        low, high = self._set
        fence = FENCE * (max(high, float(highs[usual])) - min(low, float(lows[usual])))
        self._ends.append(
            [float(lows[lows >= lows[usual] - fence][0]), float(highs[highs <= highs[usual] + fence][0])]
        )
        self._settle()
        inside = rewards.clamp(self.low, self.high)
        self.outside = float(((inside != rewards) & scored).sum() / scored.sum())
        return inside

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return {"set": list(self._set), "ends": [list(ends) for ends in self._ends], "outside": self.outside}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` stood."""
        low, high = state["set"]
        self._set, self.outside = (low, high), state["outside"]
        self._ends = deque((list(ends) for ends in state["ends"]), maxlen=BATCHES)
        self._settle()

    def _settle(self) -> None:
        low, high = self._set
        if self._ends:
            second = min(1, len(self._ends) - 1)
            lows, highs = zip(*self._ends, strict=True)
            low, high = min(low, sorted(lows)[second]), max(high, sorted(highs, reverse=True)[second])
        self.low, self.high = low, high
