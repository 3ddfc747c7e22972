"""The estimated range of the rewards, which a single bad reward does not move.

A range starts with the ends that are set. An end moves outwards to the rewards of recent batches, and back inwards
when rewards no longer reach that far:

    usual            = the lowest (highest) reward of a batch, after the 1 % of its groups (at least one) that lie
                       furthest out are left out
    end of a batch   = the batch's furthest reward that is at most half the range's width beyond the usual reward
    end of the range = the end that was set, or the second furthest end of the last 20 batches if that is further out

So if a checker fails once with -100, in one group or in a whole batch, no end stays moved after the next batch. (The
failure can move an end in a run's first batch, because no other batch is known then.) A reward outside the range is
clamped to it.
"""

import math
from collections import deque
from typing import Any

import torch
from torch import Tensor


BATCHES = 20
LARGEST = 1e60  # its fourth power is finite in float64
ODD = 0.01  # share of a batch's groups that is left out
FENCE = 0.5  # share of the range's width


class RewardRange:
    """The range of one quantity's rewards.

    Args:
        low, high (`float`): the ends that are set; the range is never narrower.

    Attributes:
        low, high (`float`): the present ends.
        outside (`float`): share of the last batch's rewards that lay outside.
    """

    def __init__(self, low: float, high: float):
        self._set = self.low, self.high = float(low), float(high)
        self.outside = 0.0
        self._ends: deque[list[float]] = deque(maxlen=BATCHES)  # of each batch

    def observe(self, rewards: Tensor) -> Tensor:
        """Learn from a batch's `(P, G)` rewards, and return them clamped to the range.

        NaN marks an attempt that nobody scored. The range ignores NaN and infinite rewards.
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
        """Return the state as plain numbers."""
        return {"set": list(self._set), "ends": [list(ends) for ends in self._ends], "outside": self.outside}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the saved `state`."""
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
