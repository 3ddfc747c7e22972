"""The course of each prompt over a run, and the curve of its mean reward.

A prompt is newly solved, lost, never solved, always solved, or unsettled: tried often and not learnt.

The input is the blocks of the index, including groups that do not fit into a page.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, islice
from typing import Any, NamedTuple

import numpy as np

from .. import traces
from ..traces import Block
from .group_data import thin


LISTS = ("newly", "lost", "never", "always", "unsettled")
MOST = 5000  # prompts with a line of their own
POINTS = 200  # maximum points of a prompt's curve
_ALL_POINTS, _FEWEST = 200_000, 40  # points of all curves together, but no fewer than 40 for each
_MOSTLY, _HALF, _FEW = 0.75, 0.5, 0.25
_OFTEN = 8  # groups
_ATTEMPTS = 8  # attempts that are enough to judge a prompt by
_EPSILON = 1e-6  # rewards are sums of floats
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # the first multiples of this odd number look like hashes


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


# -- over a run


class _Prompt(NamedTuple):
    number: int
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


def bar(blocks: Sequence[Block], solved_reward: float | None) -> tuple[float, str]:
    """Return the reward from which on an attempt solves its prompt, and the name of the reward's source.

    The source is "solved_reward" if the run has one. Otherwise it is "all_good", the lowest reward in any group with
    the verdict all_good. Without verdicts it is "best", the highest reward of the run. The reward is NaN if no group
    is all_good, or if nothing was scored.
    """
    if solved_reward is not None:
        return solved_reward, "solved_reward"
    if any((block.records["verdict"] >= 0).any() for block in blocks):
        good = [_rewards_of(block, "all_good") for block in blocks if "all_good" in block.words]
        return float(np.fmin.reduce(np.concatenate([[math.nan], *good]))), "all_good"
    return float(np.fmax.reduce(np.concatenate([[math.nan], *(block.rewards for block in blocks)]))), "best"


def _rewards_of(block: Block, verdict: str) -> Any:
    of_verdict = block.records["verdict"] == block.words.index(verdict)
    return block.rewards[np.repeat(of_verdict, block.records["size"])]


def lists(
    blocks: Sequence[Block], solved_reward: float | None = None, most: int = MOST
) -> tuple[dict[str, Any], list[str]]:
    """Return the page's data about the prompts of a run. A prompt is followed separately in each split.

    Args:
        blocks (`Sequence[Block]`): all groups of the run. Steps must ascend.
        solved_reward (`float`, *optional*): `solved_reward` from the run's run.json.
        most (`int`, *optional*, defaults to `5000`): maximum number of prompts with a line. A prompt that was
            sampled once has no line. The lists take turns to choose their most telling prompts among the others.

    Returns:
        `tuple[dict, list[str]]`: the columns of the lines, and the identity of each line's prompt. Lines are
        sorted by the size of the change, then by the number of groups. `solved` is the first step at which all
        attempts solved the prompt, and `failed` the last step at which none did. `early` and `late` are mean
        rewards. `steps` and `means` are the prompt's curve. `counts` counts all prompts, by split.

    Example:
        >>> row = {"split": "train", "batch": 0, "round": 0, "group": 0, "prompt": "6 * 7", "completion": "42"}
        >>> groups = [[{**row, "step": 0, "reward": 0.0}], [{**row, "step": 1, "reward": 1.0}]]
        >>> found, identities = lists([*traces.group_index.blocks_of(groups)], solved_reward=1.0)
        >>> found["title"], found["list"], found["means"], len(identities)
        (['6 * 7'], ['newly'], [[0.0, 1.0]], 1)
    """
    solves, by = bar(blocks, solved_reward)
    firsts, prompt_of = _firsts(blocks)
    # By prompt: the groups of one are then a slice, which is faster to take than groups all over the run.
    order, places = _places(prompt_of, len(firsts))
    scored = _scored(blocks, solves).of(order)
    splits = [block.place[1] for block, _ in firsts]
    shares, sizes = scored.shares.tolist(), scored.sizes.tolist()  # slices of lists, because most prompts are short
    prompts = [_prompt(number, shares[its], sizes[its], solves) for number, its in places.items()]
    chosen = _most_telling(prompts, most, splits)
    points = max(_FEWEST, min(POINTS, _ALL_POINTS // max(len(chosen), 1)))
    lines = []
    for prompt in chosen:
        block, at = firsts[prompt.number]
        named = {"split": block.place[1], "title": block.title(at), "list": prompt.list}
        lines.append({**named, **_course(scored.of(places[prompt.number]), solves, points)})
    names = ("split", "title", "list", "groups", "attempts", "solved", "failed", "early", "late", "steps", "means")
    table = {name: [line[name] for line in lines] for name in names}
    found = {"bar": None if math.isnan(solves) else solves, "by": by, "counts": _counts(prompts, splits), **table}
    return found, [block.prompt(at) for block, at in (firsts[prompt.number] for prompt in chosen)]


def _firsts(blocks: Sequence[Block]) -> tuple[list[tuple[Block, int]], Any]:
    """Return the first group of each prompt, in order, and the number of each group's prompt.

    A group is given as its block and its number there.
    """
    sizes = [len(block) for block in blocks]
    splits = list(dict.fromkeys(block.place[1] for block in blocks))
    split = np.repeat(np.array([splits.index(block.place[1]) for block in blocks], np.uint64), sizes)
    # A prompt of two splits counts as two. Identities are hashes of 64 bits, so the split's number can be mixed in.
    identity = _column(blocks, "prompt") ^ split * _SPREAD
    _, found, prompt_of = np.unique(identity, return_index=True, return_inverse=True)
    order = np.argsort(found)
    rank = np.empty(len(order), int)
    rank[order] = np.arange(len(order))
    starts = [0, *accumulate(sizes)]
    in_blocks = [(bisect_right(starts, first) - 1, first) for first in found[order].tolist()]
    return [(blocks[n], first - starts[n]) for n, first in in_blocks], rank[prompt_of]


def _scored(blocks: Sequence[Block], bar: float) -> _Scored:
    steps = np.repeat(np.array([block.place[0] for block in blocks], int), [len(block) for block in blocks])
    sizes, rewards = _column(blocks, "size").astype(int), np.concatenate([[], *(block.rewards for block in blocks)])
    if not len(sizes):
        return _Scored(steps, sizes, rewards, rewards)
    starts, has_reward = np.cumsum(sizes) - sizes, ~np.isnan(rewards)
    counts = np.add.reduceat(has_reward, starts, dtype=int)
    sums = np.add.reduceat(np.where(has_reward, rewards, 0.0), starts)
    solved = np.add.reduceat(rewards >= bar - _EPSILON, starts, dtype=int)
    with np.errstate(invalid="ignore"):
        means, shares = (np.where(counts, of_group, np.nan) / counts for of_group in (sums, solved))
    return _Scored(steps, sizes, means, shares)


def _column(blocks: Sequence[Block], name: str) -> Any:
    return np.concatenate([np.zeros(0, traces.group_index.RECORD[name]), *(block.records[name] for block in blocks)])


def _places(prompt_of: Any, prompts: int) -> tuple[Any, dict[int, slice]]:
    """Return the order of the groups by prompt, and in it the slice of each prompt that was seen at least twice."""
    times = np.bincount(prompt_of, minlength=prompts)
    ends = np.cumsum(times).tolist()
    places = {n: slice(ends[n] - time, ends[n]) for n, time in enumerate(times.tolist()) if time > 1}
    return np.argsort(prompt_of, kind="stable"), places


def _counts(prompts: Sequence[_Prompt], splits: Sequence[str]) -> dict[str, dict[str, int]]:
    of_lists = Counter((splits[prompt.number], prompt.list) for prompt in prompts)
    every = Counter(splits)
    return {split: {"all": count, **{name: of_lists[split, name] for name in LISTS}} for split, count in every.items()}


def _prompt(number: int, shares: Sequence[float], sizes: Sequence[int], bar: float) -> _Prompt:
    groups = len(sizes)
    shares = [share for share in shares if not math.isnan(share)]
    if not shares or math.isnan(bar):
        return _Prompt(number, None, 0.0, groups)
    some = window(len(shares), sum(sizes) / groups)
    change = (sum(shares[-some:]) - sum(shares[:some])) / some
    return _Prompt(number, judged(shares, some), change, groups)


def _most_telling(prompts: Sequence[_Prompt], most: int, splits: Sequence[str]) -> list[_Prompt]:
    def telling(prompt: _Prompt) -> tuple[float, int, int]:
        return -round(abs(prompt.change), 6), -prompt.groups, prompt.number

    turns: Counter[tuple[str, str | None]] = Counter()
    ranked = []
    for prompt in sorted(prompts, key=telling):
        key = splits[prompt.number], prompt.list
        ranked.append((turns[key], prompt.list is None, prompt))
        turns[key] += 1
    ranked.sort(key=lambda item: item[:2])
    return sorted((prompt for *_, prompt in islice(ranked, most)), key=telling)


def _course(scored: _Scored, bar: float, points: int) -> dict[str, Any]:
    """Return a line's data about its prompt's groups."""
    steps, sizes, means, shares = (column.tolist() for column in scored)
    course = [(step, _short(mean)) for step, mean in zip(steps, means, strict=True) if not math.isnan(mean)]
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
    return _short(sum(means) / len(means)) if means else None


@lru_cache(maxsize=4096)  # groups of one size have few different means
def _short(mean: float) -> float:
    """Round to four digits."""
    return float(f"{mean:.4g}")
