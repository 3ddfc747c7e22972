"""The course of each prompt over a run, and the curve of its mean reward.

A prompt is newly solved, lost, never solved, always solved, or unsettled: tried often and not learnt.

The input is the lines of the list, read one by one, including groups that do not fit into a page. The memory holds a
few numbers for each group, 8 bytes for each attempt, and texts only of prompts that were sampled at least twice.
"""

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from typing import Any, NamedTuple

from .group_data import thin


LISTS = ("newly", "lost", "never", "always", "unsettled")
MOST = 5000  # prompts with a line of their own
POINTS = 200  # maximum points of a prompt's curve
_ALL_POINTS, _FEWEST = 200_000, 40  # points of all curves together, but no fewer than 40 for each
_MOSTLY, _HALF, _FEW = 0.75, 0.5, 0.25
_OFTEN = 8  # groups
_ATTEMPTS = 8  # attempts that are enough to judge a prompt by
_EPSILON = 1e-6  # rewards are sums of floats

Group = tuple[int, Sequence[float]]  # step; the rewards of its attempts, NaN for an unscored attempt


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
    prompt: int  # number
    list: str | None
    change: float  # from early to late, in the share of attempts that solved the prompt
    groups: int


class Prompts:
    """The history of a run's prompts. A prompt is followed separately in each split.

    Example:
        >>> prompts = Prompts()
        >>> line = {"split": "train", "prompt": "5d41402abc4b2a76", "title": "6 * 7", "verdict": None}
        >>> for step, rewards in enumerate([[0.0, 0.0], [1.0, 1.0]]):
        ...     prompts.see({**line, "step": step, "rewards": rewards})
        >>> told, identities = prompts.told(solved_reward=1.0)
        >>> told["title"], told["list"], told["means"], identities
        (['6 * 7'], ['newly'], [[0.0, 1.0]], ['5d41402abc4b2a76'])
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}  # split and identity
        self._titles: dict[int, str] = {}
        # For each group: the number of its prompt, its step, and the end of its rewards in `_rewards`.
        self._whose, self._steps, self._ends = array("L"), array("q"), array("Q")
        self._rewards = array("d")
        self._good = math.inf  # the lowest reward in any group with the verdict all_good
        self._judged = False

    def see(self, line: dict[str, Any]) -> None:
        """Add a group by its line of the list, from [`~trl_grpo_plus.view.group_data.entry`]. Steps must ascend."""
        before = len(self._numbers)
        number = self._numbers.setdefault((line["split"], line["prompt"]), before)
        if number < before:
            self._titles.setdefault(number, line["title"])
        self._whose.append(number)
        self._steps.append(line["step"])
        self._rewards.extend(math.nan if reward is None else reward for reward in line["rewards"])
        self._ends.append(len(self._rewards))
        self._judged |= line["verdict"] is not None
        if line["verdict"] == "all_good":
            self._good = min([self._good, *(reward for reward in line["rewards"] if reward is not None)])

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

    def told(self, solved_reward: float | None = None, most: int = MOST) -> tuple[dict[str, Any], list[str]]:
        """Return the page's data about the prompts.

        Args:
            solved_reward (`float`, *optional*): `solved_reward` from the run's run.json.
            most (`int`, *optional*, defaults to `5000`): maximum number of prompts with a line. A prompt that was
                sampled once has no line. Of the other prompts, each list in turn keeps its most telling ones.

        Returns:
            `tuple[dict, list[str]]`: the columns of the lines, and the identity of each line's prompt. Lines are
            sorted by the size of the change, then by the number of groups. `solved` is the first step at which all
            attempts solved the prompt, and `failed` the last step at which none did. `early` and `late` are mean
            rewards. `steps` and `means` are the prompt's curve. `counts` counts all prompts, by split.
        """
        bar, by = self.bar(solved_reward)
        keys = list(self._numbers)
        went, places = list[_Went](), self._places()
        for number, its in places.items():
            went.append(_went(number, [self._group(place) for place in its], bar))
        chosen = _most_telling(went, most, [split for split, _ in keys])
        points = max(_FEWEST, min(POINTS, _ALL_POINTS // max(len(chosen), 1)))
        lines = [
            {
                "split": keys[one.prompt][0],
                "title": self._titles[one.prompt],
                "list": one.list,
                **_course([self._group(place) for place in places[one.prompt]], bar, points),
            }
            for one in chosen
        ]
        names = [*("split", "title", "list", "groups", "attempts", "solved", "failed")]
        names += ["early", "late", "steps", "means"]
        table = {name: [line[name] for line in lines] for name in names}
        told = {"bar": None if math.isnan(bar) else bar, "by": by, "counts": self._counts(went), **table}
        return told, [keys[one.prompt][1] for one in chosen]

    def _places(self) -> dict[int, list[int]]:
        """Map each prompt seen at least twice to its groups."""
        times = Counter(self._whose)
        places: dict[int, list[int]] = defaultdict(list)
        for place, number in enumerate(self._whose):
            if times[number] > 1:
                places[number].append(place)
        return places

    def _group(self, place: int) -> Group:
        start = self._ends[place - 1] if place else 0
        return self._steps[place], self._rewards[start : self._ends[place]]

    def _counts(self, went: Sequence[_Went]) -> dict[str, dict[str, int]]:
        keys = list(self._numbers)
        every, lists = Counter(split for split, _ in keys), Counter((keys[one.prompt][0], one.list) for one in went)
        return {
            split: {"all": count, **{name: lists[split, name] for name in LISTS}} for split, count in every.items()
        }


def _went(prompt: int, groups: Sequence[Group], bar: float) -> _Went:
    shares = [one for _, rewards in groups if (one := share(rewards, bar)) is not None]
    if not shares or math.isnan(bar):
        return _Went(prompt, None, 0.0, len(groups))
    some = window(len(shares), sum(len(rewards) for _, rewards in groups) / len(groups))
    change = (sum(shares[-some:]) - sum(shares[:some])) / some
    return _Went(prompt, judged(shares, some), change, len(groups))


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


def _course(groups: Sequence[Group], bar: float, points: int) -> dict[str, Any]:
    """Return a line's data about its prompt's groups."""
    shares = [(step, one) for step, rewards in groups if (one := share(rewards, bar)) is not None]
    means = list(_means(groups))
    curve, some = thin(means, points), window(len(means), sum(len(rewards) for _, rewards in groups) / len(groups))
    return {
        "groups": len(groups),
        "attempts": sum(len(rewards) for _, rewards in groups),
        "solved": next((step for step, one in shares if one >= 1), None),
        "failed": next((step for step, one in reversed(shares) if one <= 0), None) if not math.isnan(bar) else None,
        "early": _mean([mean for _, mean in means[:some]]),
        "late": _mean([mean for _, mean in means[-some:]]),
        "steps": [step for step, _ in curve],
        "means": [mean for _, mean in curve],
    }


def _means(groups: Sequence[Group]) -> Iterator[tuple[int, float]]:
    for step, rewards in groups:
        scored = [reward for reward in rewards if not math.isnan(reward)]
        if scored:
            yield step, float(f"{sum(scored) / len(scored):.4g}")


def _mean(means: Sequence[float]) -> float | None:
    return float(f"{sum(means) / len(means):.4g}") if means else None
