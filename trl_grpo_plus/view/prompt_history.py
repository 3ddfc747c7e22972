"""The course of each prompt over a run, and the curve of its mean reward.

A prompt is newly solved, lost, never solved, always solved, or unsettled: tried often and not learnt.

The input is the lines of the list, read one by one, including groups that do not fit into a page. The memory holds a
few numbers for each group, and 8 bytes for each attempt. Titles stay in the blocks of the index, if there is one.
"""

import copy
import math
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, islice
from typing import Any, NamedTuple

import numpy as np

from .group_data import thin


LISTS = ("newly", "lost", "never", "always", "unsettled")
MOST = 5000  # prompts with a line of their own
POINTS = 200  # maximum points of a prompt's curve
_ALL_POINTS, _FEWEST = 200_000, 40  # points of all curves together, but no fewer than 40 for each
_MOSTLY, _HALF, _FEW = 0.75, 0.5, 0.25
_OFTEN = 8  # groups
_ATTEMPTS = 8  # attempts that are enough to judge a prompt by
_EPSILON = 1e-6  # rewards are sums of floats


def window(groups: int, size: float) -> int:
    """Return the number of a prompt's first groups that count as early, and of its last groups that count as late.

    The window holds at least eight attempts, but at most a third of the groups, and at least one group.

    Args:
        groups (`int`): number of the prompt's groups.
        size (`float`): number of attempts in each group.
    """
    return max(1, min(groups // 3, math.ceil(_ATTEMPTS / size)))


def judged(shares: Sequence[float], some: int) -> str | None:
    """Return the list that a prompt belongs to.

    | list | |
    |---|---|
    | always | every attempt of every group solved it |
    | never | no attempt did |
    | newly | at most 1/2 of the early attempts solved it, at least 3/4 of the late ones, and all of the last group |
    | lost | at most 1/4 of the late attempts solved it; in an earlier window at least 3/4 did, and all of one group |
    | unsettled | eight groups or more; between 1/4 and 3/4 of the early attempts solved it, and of the late ones too |

    Args:
        shares (`Sequence[float]`): share of the attempts that solved the prompt, for each of its groups, by step.
        some (`int`): number of early groups, and of late groups: [`window`].

    Returns:
        `str`, *optional*: the name of the list. `None` if no list fits, or if there are fewer than two groups.

    Example:
        >>> [judged(shares, 1) for shares in ([0, 0.5, 1], [0, 1, 0], [0, 0.5, 0], [1, 1], [0, 0], [1])]
        ['newly', 'lost', None, 'always', 'never', None]
    """
    if len(shares) < 2:
        return None
    if min(shares) >= 1:
        return "always"
    if max(shares) <= 0:
        return "never"
    early, late = sum(shares[:some]) / some, sum(shares[-some:]) / some
    if early <= _HALF and late >= _MOSTLY and shares[-1] >= 1:
        return "newly"
    if late <= _FEW and _had_it(shares, some):
        return "lost"
    between = min(early, late) > _FEW and max(early, late) < _MOSTLY
    return "unsettled" if between and len(shares) >= _OFTEN else None


def _had_it(shares: Sequence[float], some: int) -> bool:
    sums = list(accumulate(shares, initial=0.0))
    return any(
        sums[at + some] - sums[at] >= _MOSTLY * some and max(shares[at : at + some]) >= 1
        for at in range(len(shares) - 2 * some + 1)
    )


def share(rewards: Sequence[float], bar: float) -> float | None:
    """Return the share of a group's scored attempts with a reward of `bar` or more; `None` if none is scored."""
    scored = [reward for reward in rewards if not math.isnan(reward)]
    return sum(reward >= bar - _EPSILON for reward in scored) / len(scored) if scored else None


# -- over a run


class _Went(NamedTuple):
    prompt: int  # the prompt's number
    list: str | None
    change: float  # late share of attempts that solved the prompt, minus the early share
    groups: int


class _Scored(NamedTuple):
    """For each group: its step, number of attempts, mean reward, share that solved it; NaN if none is scored."""

    steps: Any
    sizes: Any
    means: Any
    shares: Any

    def of(self, places: Any) -> "_Scored":
        """Return these groups only."""
        return _Scored(*(column[places] for column in self))


class PromptHistory:
    """The history of a run's prompts. A prompt is followed separately in each split.

    Example:
        >>> prompts = PromptHistory()
        >>> line = {"split": "train", "prompt": "5d41402abc4b2a76", "title": "6 * 7", "verdict": None}
        >>> for step, rewards in enumerate([[0.0, 0.0], [1.0, 1.0]]):
        ...     prompts.see({**line, "step": step, "rewards": rewards})
        >>> lists, identities = prompts.lists(solved_reward=1.0)
        >>> lists["title"], lists["list"], lists["means"], identities
        (['6 * 7'], ['newly'], [[0.0, 1.0]], ['5d41402abc4b2a76'])
    """

    def __init__(self) -> None:
        self._splits: list[str] = []
        # For each group: the number of its split, its prompt's identity, its step, and its number of attempts.
        self._split, self._identity, self._steps, self._sizes = array("q"), array("Q"), array("q"), array("q")
        self._rewards = array("d")  # of all groups
        self._titles: dict[int, str] = {}
        self._blocks: list[tuple[int, Any]] = []  # the number of a block's first group, and the block
        self._good = math.inf  # the lowest reward in any group with the verdict all_good
        self._judged = False

    def see(self, line: dict[str, Any]) -> None:
        """Add a group by its line of the list, from [`~trl_grpo_plus.traces.entry`]. Steps must ascend."""
        self._titles[len(self._steps)] = line["title"]
        self._split.append(self._number(line["split"]))
        self._identity.append(int(line["prompt"], 16))
        self._steps.append(line["step"])
        self._sizes.append(len(line["rewards"]))
        self._rewards.extend(math.nan if reward is None else reward for reward in line["rewards"])
        self._judged |= line["verdict"] is not None
        if line["verdict"] == "all_good":
            self._good = min([self._good, *(reward for reward in line["rewards"] if reward is not None)])

    def see_block(self, block: Any) -> None:
        """Add all groups of a block of the index. Steps must ascend."""
        (step, split), records = block.place, block.records
        self._blocks.append((len(self._steps), block))
        self._split.frombytes(np.full(len(records), self._number(split), "i8").tobytes())
        self._identity.frombytes(records["prompt"].tobytes())
        self._steps.frombytes(np.full(len(records), step, "i8").tobytes())
        self._sizes.frombytes(records["size"].astype("i8").tobytes())
        self._rewards.frombytes(block.rewards.tobytes())
        self._judged |= bool((records["verdict"] >= 0).any())
        if "all_good" in block.words:
            good = np.repeat(records["verdict"] == block.words.index("all_good"), records["size"])
            rewards = block.rewards[good & ~np.isnan(block.rewards)]
            self._good = min(self._good, float(rewards.min(initial=math.inf)))

    def snapshot(self) -> "PromptHistory":
        """Return a copy that stays as it is while groups are added."""
        return copy.deepcopy(self, {id(block): block for _, block in self._blocks})

    def _number(self, split: str) -> int:
        if split not in self._splits:
            self._splits.append(split)
        return self._splits.index(split)

    def _title(self, group: int) -> str:
        if group in self._titles:
            return self._titles[group]
        first, block = self._blocks[bisect_right(self._blocks, group, key=lambda entry: entry[0]) - 1]
        return str(block.title(group - first))

    def bar(self, solved_reward: float | None) -> tuple[float, str]:
        """Return the reward from which on an attempt solves its prompt, and the name of the reward's source.

        The source is "solved_reward" if the run has one. Otherwise it is "all_good", the lowest reward in any group
        with the verdict all_good. Without verdicts it is "best", the highest reward of the run. The reward is NaN if
        no group is all_good, or if nothing was scored.
        """
        if solved_reward is not None:
            return solved_reward, "solved_reward"
        if self._judged:
            return (self._good if self._good < math.inf else math.nan), "all_good"
        return max((reward for reward in self._rewards if not math.isnan(reward)), default=math.nan), "best"

    def lists(self, solved_reward: float | None = None, most: int = MOST) -> tuple[dict[str, Any], list[str]]:
        """Return the page's data about the prompts.

        Args:
            solved_reward (`float`, *optional*): `solved_reward` from the run's run.json.
            most (`int`, *optional*, defaults to `5000`): maximum number of prompts with a line. A prompt that was
                sampled once has no line. The lists take turns to choose their most telling prompts among the others.

        Returns:
            `tuple[dict, list[str]]`: the columns of the lines, and the identity of each line's prompt. Lines are
            sorted by the size of the change, then by the number of groups. `solved` is the first step at which all
            attempts solved the prompt, and `failed` the last step at which none did. `early` and `late` are mean
            rewards. `steps` and `means` are the prompt's curve. `counts` counts all prompts, by split.
        """
        bar, by = self.bar(solved_reward)
        firsts, whose = self._prompts()
        # By prompt: the groups of one are then a slice, which is faster to take than groups all over the run.
        order, places = _places(whose, len(firsts))
        scored = self._scored(bar).of(order)
        splits = [self._splits[self._split[first]] for first in firsts]
        went = [_went(number, scored.of(its), bar) for number, its in places.items()]
        chosen = _most_telling(went, most, splits)
        points = max(_FEWEST, min(POINTS, _ALL_POINTS // max(len(chosen), 1)))
        lines = [
            {
                "split": splits[one.prompt],
                "title": self._title(firsts[one.prompt]),
                "list": one.list,
                **_course(scored.of(places[one.prompt]), bar, points),
            }
            for one in chosen
        ]
        names = [*("split", "title", "list", "groups", "attempts", "solved", "failed")]
        names += ["early", "late", "steps", "means"]
        table = {name: [line[name] for line in lines] for name in names}
        lists = {"bar": None if math.isnan(bar) else bar, "by": by, "counts": _counts(went, splits), **table}
        return lists, [f"{self._identity[firsts[one.prompt]]:016x}" for one in chosen]

    def _prompts(self) -> tuple[list[int], Any]:
        """Return the first group of each prompt, in order, and the number of each group's prompt."""
        split, identity = np.array(self._split, "i8"), np.array(self._identity, "u8")
        firsts, whose, count = [np.zeros(0, int)], np.zeros(len(split), int), 0
        for number in range(len(self._splits)):
            own = np.flatnonzero(split == number)
            _, first, inverse = np.unique(identity[own], return_index=True, return_inverse=True)
            firsts.append(own[first])
            whose[own] = inverse + count
            count += len(first)
        found = np.concatenate(firsts)
        order = np.argsort(found)
        rank = np.empty(count, int)
        rank[order] = np.arange(count)
        return found[order].tolist(), rank[whose]

    def _scored(self, bar: float) -> _Scored:
        steps, sizes, rewards = np.array(self._steps, "i8"), np.array(self._sizes, "i8"), np.array(self._rewards, "f8")
        if not len(sizes):
            return _Scored(steps, sizes, rewards, rewards)
        starts, has_reward = np.cumsum(sizes) - sizes, ~np.isnan(rewards)
        counts = np.add.reduceat(has_reward, starts, dtype=int)
        sums = np.add.reduceat(np.where(has_reward, rewards, 0.0), starts)
        solved = np.add.reduceat(rewards >= bar - _EPSILON, starts, dtype=int)
        with np.errstate(invalid="ignore"):
            means, shares = (np.where(counts, of_group, np.nan) / counts for of_group in (sums, solved))
        return _Scored(steps, sizes, means, shares)


def _places(whose: Any, prompts: int) -> tuple[Any, dict[int, slice]]:
    """Return the order of the groups by prompt, and in it the slice of each prompt that was seen at least twice."""
    times = np.bincount(whose, minlength=prompts)
    ends = np.cumsum(times).tolist()
    places = {n: slice(ends[n] - time, ends[n]) for n, time in enumerate(times.tolist()) if time > 1}
    return np.argsort(whose, kind="stable"), places


def _counts(went: Sequence[_Went], splits: Sequence[str]) -> dict[str, dict[str, int]]:
    lists = Counter((splits[one.prompt], one.list) for one in went)
    every = Counter(splits)
    return {split: {"all": count, **{name: lists[split, name] for name in LISTS}} for split, count in every.items()}


def _went(prompt: int, scored: _Scored, bar: float) -> _Went:
    groups = len(scored.steps)
    shares = scored.shares[~np.isnan(scored.shares)].tolist()
    if not shares or math.isnan(bar):
        return _Went(prompt, None, 0.0, groups)
    some = window(len(shares), sum(scored.sizes.tolist()) / groups)
    change = (sum(shares[-some:]) - sum(shares[:some])) / some
    return _Went(prompt, judged(shares, some), change, groups)


def _most_telling(went: Sequence[_Went], most: int, splits: Sequence[str]) -> list[_Went]:
    def telling(one: _Went) -> tuple[float, int, int]:
        return -round(abs(one.change), 6), -one.groups, one.prompt

    turns: Counter[tuple[str, str | None]] = Counter()
    ranked = []
    for one in sorted(went, key=telling):
        key = splits[one.prompt], one.list
        ranked.append((turns[key], one.list is None, one))
        turns[key] += 1
    ranked.sort(key=lambda item: item[:2])
    return sorted((one for *_, one in islice(ranked, most)), key=telling)


def _course(scored: _Scored, bar: float, points: int) -> dict[str, Any]:
    """Return a line's data about its prompt's groups."""
    steps, sizes, means, shares = (column.tolist() for column in scored)
    course = [(step, float(f"{mean:.4g}")) for step, mean in zip(steps, means, strict=True) if not math.isnan(mean)]
    attempts = sum(sizes)
    curve, some = thin(course, points), window(len(course), attempts / len(steps))
    failed = (step for step, one in zip(reversed(steps), reversed(shares), strict=True) if one <= 0)
    return {
        "groups": len(steps),
        "attempts": attempts,
        "solved": next((step for step, one in zip(steps, shares, strict=True) if one >= 1), None),
        "failed": next(failed, None) if not math.isnan(bar) else None,
        "early": _mean([mean for _, mean in course[:some]]),
        "late": _mean([mean for _, mean in course[-some:]]),
        "steps": [step for step, _ in curve],
        "means": [mean for _, mean in curve],
    }


def _mean(means: Sequence[float]) -> float | None:
    return float(f"{sum(means) / len(means):.4g}") if means else None
