"""The data that a page shows first: the opening group, each split's first and last evaluation, and every metric."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from ..traces import Points, Row, evaluated, is_reward, series
from ..utils.validation import finite_values
from .group_data import Tally, thin


MOST = 1500  # maximum number of points of a metric
_DIGITS = 5  # significant digits of a metric: a plot shows four
_LAST = 0.1  # share of the training steps, from the end, in which the opening group is searched

Telling = tuple[float, float, int]  # sort key for how informative a group is: see `telling`
Place = tuple[str, int, tuple[int, ...]]  # split, step, (batch, round, group)


def telling(rows: Sequence[Row]) -> Telling | None:
    """Return a sort key for how informative a group is about learning; the highest key is the most informative.

    Returns:
        `tuple`, *optional*: the spread of the group's rewards; minus the distance of the mean from the middle of the
        range, as a share of the spread (0 at best); the number of different completions. `None` if nothing is learned
        from the group: it belongs to an evaluation, was not trained on, is dead, or all its rewards are equal.

    Example:
        >>> row = {"split": "train", "kept": True, "verdict": "alive", "completion": "a"}
        >>> telling([{**row, "reward": 1.0}, {**row, "reward": 0.0}])
        (1.0, -0.0, 1)
    """
    first = rows[0]
    rewards = finite_values(rows, "reward")
    spread = max(rewards) - min(rewards) if rewards else 0.0
    live = first["split"] == "train" and first.get("verdict") in ("alive", None) and first.get("kept") is not False
    if not live or spread <= 0:
        return None
    middle = (sum(rewards) / len(rewards) - min(rewards)) / spread
    return spread, -abs(middle - 0.5), len({str(row["completion"]) for row in rows})


def opening(groups: Iterable[tuple[Place, Telling | None]]) -> dict[str, Any] | None:
    """Return the group that a page opens on.

    This is the most informative group of the last tenth of the training steps, and the latest of equals. If no group
    there is informative, it is the latest informative group. If there is none, it is the last training group, or else
    the last group.

    Args:
        groups: place and [`telling`] of each group, in order.

    Returns:
        `dict`: `split`, `step` and `group`, "batch.round.group", as in the page's address. `None` without groups.
    """
    listed = list(groups)
    if not listed:
        return None
    trained = [group for group in listed if group[0][0] == "train"]
    live = [(place, sort_key) for place, sort_key in trained if sort_key is not None]
    steps = sorted({step for (_, step, _), _ in trained})
    since = steps[-max(1, round(_LAST * len(steps)))] if steps else 0
    late = [group for group in live if group[0][1] >= since]
    if late:
        (split, step, key), _ = max(late, key=lambda group: (group[1], group[0][1]))
    else:
        (split, step, key), _ = (live or trained or listed)[-1]
    return {"split": split, "step": step, "group": ".".join(map(str, key))}


# -- evaluations


def before_after(metrics: Sequence[Row], tally: Tally) -> list[dict[str, Any]]:
    """Return the first and the last evaluation of each split, from the log, or else from the traces.

    Returns:
        `list[dict]`: `split`; `steps`, [first, last], or one step if there was one evaluation; `rewards`, [name,
        first, last] of the total, named "reward", and then of each reward that was logged at either evaluation. A
        value is `None` if it was not logged.
    """
    known = {**tally.rewards(), **series(line for line in metrics if evaluated(line) is not None)}
    return [_ends(split, known) for split in sorted(name.removesuffix("/reward") for name in known if is_reward(name))]


def _ends(split: str, known: dict[str, Points]) -> dict[str, Any]:
    total = _by_step(known[f"{split}/reward"])
    steps = sorted({min(total), max(total)})
    rewards: list[list[Any]] = [["reward", *map(total.get, steps)]]
    for metric, points in known.items():
        if name := re.fullmatch(rf"{re.escape(split)}/rewards/(.+)/mean", metric):
            means = list(map(_by_step(points).get, steps))
            if any(mean is not None for mean in means):
                rewards.append([name[1], *means])
    return {"split": split, "steps": steps, "rewards": rewards}


def _by_step(points: Points) -> dict[int, float]:
    return {int(step): value for step, value in points}


# -- every metric


def metrics_table(metrics: Sequence[Row], most: int = MOST) -> dict[str, Any]:
    """Return all logged metrics as columns: at most `most` points of each metric, to 5 significant digits.

    A metric that an evaluation logs as eval_NAME is called SPLIT/NAME.

    Returns:
        `dict`: `steps`, lists of steps; `metrics`, metric name -> [index of its list of steps, values].
    """
    lists: dict[tuple[int, ...], int] = {}
    columns = {}
    for name, points in sorted(series(metrics).items()):
        if name != "epoch":
            steps, values = zip(*thin(points, most), strict=True)
            rounded = [float(f"{value:.{_DIGITS}g}") for value in values]
            columns[name] = [lists.setdefault(steps, len(lists)), rounded]
    return {"steps": [list(steps) for steps in lists], "metrics": columns}
