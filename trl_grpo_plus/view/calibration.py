"""Calibration of the beliefs about prompts: the believed mean reward against the mean that the group then earned."""

from typing import Any

import numpy as np


BINS = 10
_LAST = 4  # the last span is one fourth of the steps


def calibration(steps: Any, means: Any, earned: Any) -> dict[str, Any] | None:
    """Return groups binned by tenths of the believed mean, over all steps and over the last quarter of them.

    Args:
        steps (`np.ndarray`), means (`np.ndarray`), earned (`np.ndarray`): for each group that had a belief, its step,
            the mean reward that was believed, and the mean reward that it earned.

    Returns:
        `dict`: `range`, [0, 1] widened to hold all values; `spans`, each with `steps`, its first and last step, and
        `tenths`, `[groups, mean believed, mean earned]` of each bin that is not empty. The span of the last quarter is
        left out if there are fewer than four steps. `None` without groups.
    """
    if not len(steps):
        return None
    low, high = float(min(0.0, means.min(), earned.min())), float(max(1.0, means.max(), earned.max()))
    distinct = np.unique(steps).tolist()
    firsts = [distinct[0], *([distinct[len(distinct) - len(distinct) // _LAST]] if len(distinct) >= _LAST else [])]
    tenth = np.minimum(((means - low) / (high - low) * BINS).astype(int), BINS - 1)
    spans = []
    for first in firsts:
        late = steps >= first
        sums = [np.bincount(tenth[late], weights, BINS).tolist() for weights in (None, means[late], earned[late])]
        tenths = [[int(count), mean / count, got / count] for count, mean, got in zip(*sums, strict=True) if count]
        spans.append({"steps": [first, distinct[-1]], "tenths": tenths})
    return {"range": [low, high], "spans": spans}
