"""Alarms for reward hacking and for training that goes nowhere, from what each generation batch looks like.

| alarm | what it sees | default |
|---|---|---|
| `monitor_flat` | the total rises by this share of its range over the window, a monitor with room does not | 0.1 |
| `rewards_diverge` | one weighted reward rises by this share of its range, another with room is flat or falls | 0.1 |
| `perfect_scores` | this share of attempts earns the highest total of the run, from its first batches on | 0.98 |
| `no_answer` | rewarded attempts without an answer to be found: their share has grown by this much | 0.3 |
| `length_drift` | mean length this many times that of the first batches, or that many times shorter | 3.0 |
| `length_reward` | correlation of length and total within live groups, truncated attempts aside | 0.7 |
| `near_duplicates` | share of pairs of attempts in a group that are nearly the same text | 0.5 |
| `repetition` | share of attempts that mostly repeat themselves | 0.2 |
| `reward_failures` | share of one reward's scores that are time-outs or errors | 0.05 |
| `dead_groups` | share of groups in which all attempts earn the same | 0.95 |
| `entropy_collapse` | entropy at this share of the first batches', and below `entropy_floor` (0.05 nats) | 0.2 |

A monitor is a reward of weight 0: scored, not trained on. It, like each reward, is read as "higher is better".
An alarm is a reason to read attempts, no proof. It looks at a window of batches, never at one, and is new once even
where it comes and goes.

To add one: a function below, its entry in `ALARMS`, its field in [`Thresholds`].
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from .loading import near
from .texts import as_text, find_answer, repeated, words


Key = tuple[int, int, int]  # (batch, round, group) within a step
Rows = list[dict[str, Any]]

_SURE = 4.0  # standard errors of a trend that is believed
_ROOM = 0.15  # of its range that a reward must have left to be called flat
_NEAR_TOP = 0.01  # of the highest total
_NAMED = 8  # groups that an alarm names
_LOOKED_AT = 6  # groups of a batch whose texts are read, and attempts in each: about 10 ms
_HEAD, _TAIL = 600, 2400  # characters of a text that are read; loops and answers are at the end
_WORDS = 20  # shorter texts are naturally alike
_ALIKE = 0.9  # shared word triples of near-duplicates
_LOOP = 0.5  # repeated 4-grams of a text that repeats itself
_ATTEMPTS = 100  # that a correlation needs
_REWARDED = 20  # attempts that a share of rewarded ones needs
_LIMITS = {"length_drift": (1.0, math.inf), "entropy_floor": (0.0, math.inf)}  # the others are in (0, 1]


@dataclass(frozen=True)
class Thresholds:
    """When each alarm goes off. `None` switches it off.

    Shares are of 1 and in (0, 1]; an alarm is on where what it sees is at or beyond its threshold.

    Args:
        window (`int`, *optional*, defaults to `50`):
            Batches that a trend or a mean is taken over, at least 4. `rewards_diverge` looks at two windows.
        min_batches (`int`, *optional*, defaults to `20`):
            Batches before the first alarm. Their mean is what later ones are compared with.
        monitor_flat (`float`, *optional*, defaults to `0.1`):
            Least rise of the total over the window, as a share of the range of totals seen in the run. The rise must
            be 4 standard errors, the monitor's must be less than one and surely less than half of the total's.
        rewards_diverge (`float`, *optional*, defaults to `0.1`):
            The same for one weighted reward. The other must fall as surely, or be flat over the last two windows: a
            format that is learned within the first window, before accuracy moves, is no alarm.
        perfect_scores (`float`, *optional*, defaults to `0.98`):
            Share of attempts within 1 % of the highest total of the run, in the first `min_batches` batches and in the
            window. A run that becomes perfect is no alarm, nor one in which a weighted reward was never earned.
        no_answer (`float`, *optional*, defaults to `0.3`):
            Growth of the share of rewarded attempts without an answer, from a start of at most 0.2. Rewarded is a
            total above the middle of the run's range.
        length_drift (`float`, *optional*, defaults to `3.0`):
            Factor, above 1, between the mean tokens of the window and of the first batches, either way.
        length_reward (`float`, *optional*, defaults to `0.7`):
            Absolute correlation of tokens and total, both less their group's mean. A run that pays for length, or
            against it, goes beyond: that is what it asked for.
        near_duplicates (`float`, *optional*, defaults to `0.5`):
            Share of pairs that share 0.9 of their word triples, among attempts of at least 20 words.
        repetition (`float`, *optional*, defaults to `0.2`):
            Share of attempts, of at least 20 words, over half of whose 4-grams have occurred before.
        reward_failures (`float`, *optional*, defaults to `0.05`):
            Share of time-outs and errors of any one reward.
        dead_groups (`float`, *optional*, defaults to `0.95`):
            Share of groups, as sampled, that are not alive.
        entropy_collapse (`float`, *optional*, defaults to `0.2`):
            Share of the first batches' mean token entropy.
        entropy_floor (`float`, *optional*, defaults to `0.05`):
            Nats above which entropy has not collapsed, whatever it was. Not `None`.

    Raises:
        ValueError: a value has another type or is out of range.

    Example:
        >>> Thresholds(window=30, length_drift=None).names[:2]
        ('monitor_flat', 'rewards_diverge')
    """

    window: int = 50
    min_batches: int = 20
    monitor_flat: float | None = 0.1
    rewards_diverge: float | None = 0.1
    perfect_scores: float | None = 0.98
    no_answer: float | None = 0.3
    length_drift: float | None = 3.0
    length_reward: float | None = 0.7
    near_duplicates: float | None = 0.5
    repetition: float | None = 0.2
    reward_failures: float | None = 0.05
    dead_groups: float | None = 0.95
    entropy_collapse: float | None = 0.2
    entropy_floor: float = 0.05

    def __post_init__(self) -> None:
        _check_count("window", self.window, 4)
        _check_count("min_batches", self.min_batches, 1)
        for one in fields(self)[2:]:
            value = getattr(self, one.name)
            if value is not None or one.name == "entropy_floor":
                _check_number(one.name, value, *_LIMITS.get(one.name, (0.0, 1.0)))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Thresholds":
        """From names and values, as a config has them; unknown names are refused with a `ValueError`."""
        known = [one.name for one in fields(cls)]
        for name in values:
            if name not in known:
                raise ValueError(f"{name!r} is no alarm threshold.{near(str(name), known)} Known: {', '.join(known)}.")
        return cls(**values)

    @property
    def names(self) -> tuple[str, ...]:
        """Alarms that are not switched off."""
        return tuple(name for name in ALARMS if getattr(self, name) is not None)

    @property
    def enough(self) -> int:
        """Batches that a window must hold to be judged."""
        return min(self.min_batches, self.window)


@dataclass(frozen=True)
class Batch:
    """One generation batch, all attempts sampled. `rows` may be some of its groups, or none, but whole ones."""

    step: int
    names: tuple[str, ...]  # K rewards
    weights: tuple[float, ...]  # (K,), 0 for a monitor
    rewards: Tensor  # (N, K), NaN where unscored
    totals: Tensor  # (N,), NaN where unscored
    size: int  # attempts in a group: row i is of group i // size
    tokens: tuple[int, ...]  # (N,)
    truncated: tuple[bool, ...]  # (N,)
    verdicts: tuple[str, ...]  # (N / size,)
    failing: dict[str, float]  # reward -> share of time-outs and errors
    entropy: float | None  # nats a token, as last logged
    rows: Rows  # as in a trace


@dataclass(frozen=True)
class Alarm:
    """An alarm that is on. `groups` are those of this batch that show it, the highest reward first."""

    name: str
    step: int
    value: float
    threshold: float
    message: str
    groups: tuple[Key, ...]
    new: bool  # it was off for the last window


class Watch:
    """Sees each batch of a run and says which alarms are on.

    Keeps some numbers of the first `min_batches` and of the last `2 * window` batches, never a text.

    Args:
        thresholds ([`Thresholds`], *optional*): when each alarm goes off.

    Example:
        >>> watch = Watch(Thresholds(window=30))
        >>> for alarm in watch.see(batch):
        ...     print(alarm.message)
    """

    def __init__(self, thresholds: Thresholds | None = None):
        self.thresholds = thresholds or Thresholds()
        self._history = History(self.thresholds)
        self._last_on: dict[str, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Alarms that are not switched off."""
        return self.thresholds.names

    def see(self, batch: Batch) -> list[Alarm]:
        """Alarms that are on at this batch, new or not."""
        self._history.add(batch)
        if self._history.count < self.thresholds.min_batches:
            return []
        findings = {name: ALARMS[name](self._history, batch, getattr(self.thresholds, name)) for name in self.names}
        return [self._alarm(name, batch.step, found) for name, found in findings.items() if found is not None]

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on as if never interrupted: lists, dicts, numbers and strings."""
        return {**self._history.state_dict(), "last_on": dict(self._last_on)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`. Thresholds are not part of it and may differ."""
        self._history.load_state_dict(state)
        self._last_on = dict(state["last_on"])

    def _alarm(self, name: str, step: int, found: "Finding") -> Alarm:
        now = self._history.count
        before = self._last_on.get(name)
        self._last_on[name] = now
        groups = ", ".join("/".join(map(str, key)) for key in found.groups)
        where = f" Groups of this step (batch/round/group), the highest reward first: {groups}." if groups else ""
        return Alarm(
            name=name,
            step=step,
            value=found.value,
            threshold=found.threshold,
            message=f"{name} at step {step}: {found.seen}. {found.advice}{where}",
            groups=found.groups,
            new=before is None or now - before > self.thresholds.window,
        )


@dataclass(frozen=True)
class Finding:
    """What an alarm's function found."""

    value: float
    threshold: float
    seen: str
    advice: str
    groups: tuple[Key, ...] = ()


@dataclass(frozen=True)
class Record:
    """What is kept of a batch. Pairs are (how many, of how many)."""

    total: float | None  # mean
    top: float | None  # highest total
    at_top: float  # share of totals within 1 % of it
    rewards: dict[str, float | None]  # means
    tokens: float | None  # mean
    lengths: tuple[float, ...]  # attempts; sums of: tokens, tokens', total', tokens' total' (centred ones squared)
    failing: dict[str, float]
    verdicts: dict[str, int]
    entropy: float | None
    copies: tuple[int, int]
    loops: tuple[int, int]
    unanswered: tuple[int, int]


@dataclass(frozen=True)
class Look:
    """What the texts of one group show. Pairs are (how many, of how many)."""

    key: Key
    copies: tuple[int, int]
    loops: tuple[int, int]
    unanswered: tuple[int, int]


@dataclass(frozen=True)
class Trend:
    """A straight line through a window of batch means, as shares of the range of what single attempts earned."""

    change: float  # from the first batch to the last
    error: float  # standard error of `change`
    room: float  # from the mean to the best seen

    def rises(self, least: float) -> bool:
        return self.change >= max(least, _SURE * self.error)

    def falls(self, least: float) -> bool:
        return -self.change >= max(least, _SURE * self.error)

    def stands_beside(self, rise: float) -> bool:
        """Whether this, which has room to rise, surely has not risen half as much."""
        return self.room >= _ROOM and self.change <= self.error and self.change + 2 * self.error < rise / 2


class History:
    """What the alarms know of a run: its first batches, its last ones, and the range of each reward."""

    def __init__(self, thresholds: Thresholds):
        self.thresholds = thresholds
        self.count = 0
        self.first: list[Record] = []
        self.last: list[Record] = []
        self.total_range: list[float] = []  # [lowest, highest], empty before the first score
        self.ranges: dict[str, list[float]] = {}
        self.looks: list[Look] = []  # of the batch at hand only

    def add(self, batch: Batch) -> None:
        totals = _finite(batch.totals)
        columns = dict(zip(batch.names, map(_finite, batch.rewards.T), strict=False))
        self.total_range = _widen(self.total_range, totals)
        for name, column in columns.items():
            self.ranges[name] = _widen(self.ranges.get(name, []), column)
        self.looks = [_look(rows, self.bar()) for rows in _spread(list(_by_group(batch.rows).values()))]
        record = _record(batch, totals, columns, self.looks)
        self.count += 1
        if len(self.first) < self.thresholds.min_batches:
            self.first.append(record)
        self.last = [*self.last, record][-2 * self.thresholds.window :]

    def bar(self, name: str | None = None) -> float:
        """The middle of what a reward, or the total, has been seen to be; 0 where it never varied."""
        low, high = (self.total_range if name is None else self.ranges.get(name, [])) or (0.0, 0.0)
        return (low + high) / 2 if high > low else 0.0

    def window(self, of: int = 1) -> list[Record]:
        return self.last[-of * self.thresholds.window :]

    def recent(self) -> list[Record]:
        """The window, without the first batches; empty while that is too short to judge."""
        later = min(self.count - len(self.first), self.thresholds.window)
        return self.last[-later:] if later >= self.thresholds.enough else []

    def trend(self, name: str | None = None, sign: float = 1.0, of: int = 1) -> Trend | None:
        """Of a reward or, without a name, the total, over `of` whole windows. `None` where it cannot be told."""
        records = self.window(of)
        low, high = (self.total_range if name is None else self.ranges.get(name, [])) or (0.0, 0.0)
        means = [record.total if name is None else record.rewards.get(name) for record in records]
        points = [(float(at), sign * mean) for at, mean in enumerate(means) if mean is not None]
        full = of * self.thresholds.window
        if high <= low or len(records) < full or len(points) < max(4, 0.75 * full):
            return None
        change, error, mean = _line(points, full - 1)
        best = high if sign > 0 else -low
        return Trend(change / (high - low), error / (high - low), (best - mean) / (high - low))

    def state_dict(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "first": [_plain(record) for record in self.first],
            "last": [_plain(record) for record in self.last],
            "total_range": list(self.total_range),
            "ranges": {name: list(values) for name, values in self.ranges.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]
        self.first = [_read(values) for values in state["first"]][: self.thresholds.min_batches]
        self.last = [_read(values) for values in state["last"]][-2 * self.thresholds.window :]
        self.total_range = list(state["total_range"])
        self.ranges = {name: list(values) for name, values in state["ranges"].items()}


def monitor_flat(history: History, batch: Batch, least: float) -> Finding | None:
    total = history.trend()
    if total is None or not total.rises(least):
        return None
    monitors = [name for name, weight in zip(batch.names, batch.weights, strict=False) if weight == 0]
    flat = {name: t for name in monitors if (t := history.trend(name)) and t.stands_beside(total.change)}
    if not flat:
        return None
    name = min(flat, key=lambda one: flat[one].change)
    return Finding(
        total.change,
        least,
        f"over {history.thresholds.window} batches the total rose by {total.change:.0%} of its range, the monitor "
        f"{name!r} changed by {flat[name].change:+.0%} of its own",
        f"Read attempts of high total and low {name!r}: what do they do that the trained rewards pay for?",
        _showing(batch, lambda rows: any(_paid(r, history) and _low(r, name, history) for r in rows)),
    )


def rewards_diverge(history: History, batch: Batch, least: float) -> Finding | None:
    signs = {n: math.copysign(1.0, w) for n, w in zip(batch.names, batch.weights, strict=False) if w}
    trends = {name: t for name, sign in signs.items() if (t := history.trend(name, sign))}
    rising = {name: t.change for name, t in trends.items() if t.rises(least)}
    if not rising:
        return None
    up = max(rising, key=lambda one: rising[one])
    rise = rising[up]
    stuck = {n: trends[n].change for n in trends if trends[n].falls(least)}
    flat = {n: t.change for n in trends if (t := history.trend(n, signs[n], of=2)) and t.stands_beside(rise)}
    others = {**flat, **stuck}
    others.pop(up, None)
    if not others:
        return None
    name = min(others, key=lambda one: others[one])
    window = history.thresholds.window
    span = window if name in stuck else 2 * window

    def stays_low(row: dict[str, Any]) -> bool:
        return _low(row, name, history, signs[name])

    return Finding(
        rise,
        least,
        f"over {window} batches the reward {up!r} rose by {rise:.0%} of its range, {name!r} changed by "
        f"{others[name]:+.0%} of its own over {span} (both as their weights count them)",
        f"Read attempts of high {up!r} and low {name!r}. Is {up!r} the easier one to please? Lower its weight, or "
        "stop paying for it once it is learned.",
        _showing(batch, lambda rows: any(not _low(r, up, history, signs[up]) and stays_low(r) for r in rows)),
    )


def perfect_scores(history: History, batch: Batch, least: float) -> Finding | None:
    top = history.total_range[-1] if history.total_range else 0.0
    weights = zip(batch.names, batch.weights, strict=False)
    if top <= 0 or not all(_earned(history.ranges.get(name, []), weight) for name, weight in weights):
        return None
    bar = top - _NEAR_TOP * top
    shares = [
        _mean([r.at_top if r.top >= bar else 0.0 for r in records if r.top is not None], history.thresholds.enough)
        for records in (history.first, history.window())
    ]
    share = min(0.0 if one is None else one for one in shares)
    if share < least:
        return None
    return Finding(
        share,
        least,
        f"{share:.1%} of attempts have earned the highest total of the run, {top:.4g}, since it began",
        "Suspiciously high from the start: is the answer in the prompt? Does the checker accept anything? Else the "
        "data is too easy to learn from.",
        _showing(batch, lambda rows: all(_reward(r) >= bar for r in rows)),
    )


def no_answer(history: History, batch: Batch, least: float) -> Finding | None:
    was = _share([r.unanswered for r in history.first], _REWARDED)
    now = _share([r.unanswered for r in history.recent()], _REWARDED)
    if was is None or now is None or was > 0.2 or now - was < least:
        return None
    return Finding(
        now,
        was + least,
        f"{now:.0%} of rewarded attempts hold no answer that can be found, {was:.0%} in the first batches",
        "Read them: what is rewarded, if not an answer? (\\boxed{}, <answer>, #### and 'the answer is' are known.)",
        _among(batch, [look.key for look in history.looks if look.unanswered[0]]),
    )


def length_drift(history: History, batch: Batch, least: float) -> Finding | None:
    was = _mean([r.tokens for r in history.first], history.thresholds.enough)
    now = _mean([r.tokens for r in history.recent()], history.thresholds.enough)
    if not was or now is None or 1 / least < now / was < least:
        return None
    longer = now > was
    advice = (
        "Longer reasoning that earns more is healthy; padding and loops are not. Do the longest attempts say more?"
        if longer
        else "Do the attempts still reason, or only answer? Is something in the rewards paying for brevity?"
    )
    return Finding(
        now / was,
        least if longer else 1 / least,
        f"attempts are {now:.0f} tokens long, {was:.0f} in the first batches ({now / was:.2g} times)",
        advice,
        _showing(batch, lambda rows: (sum(r["tokens"] for r in rows) / len(rows) > was) == longer),
    )


def length_reward(history: History, batch: Batch, least: float) -> Finding | None:
    records = history.window()
    count, tokens, squares, totals, both = (sum(r.lengths[i] for r in records) for i in range(5))
    if count < _ATTEMPTS or totals <= 0:
        return None
    if squares / count <= (0.05 * tokens / count) ** 2:  # lengths that hardly differ explain nothing
        return None
    r = both / math.sqrt(squares * totals)
    if abs(r) < least:
        return None
    longer = r > 0
    return Finding(
        r,
        math.copysign(least, r),
        f"within groups {'longer' if longer else 'shorter'} attempts earn more: correlation {r:+.2f} of tokens and "
        f"total, over {count:.0f} attempts that were not cut off",
        f"Is it the {'length' if longer else 'brevity'} that is paid for? Compare attempts of one group. Where a "
        "reward is about length on purpose, raise this threshold.",
        _showing(batch, lambda rows: _together(rows) * r > 0),
    )


def near_duplicates(history: History, batch: Batch, least: float) -> Finding | None:
    share = _window_share(history, lambda r: r.copies)
    if share is None or share < least:
        return None
    return Finding(
        share,
        least,
        f"{share:.0%} of pairs of attempts on the same prompt are nearly the same text",
        "Look at entropy, temperature and the sampling settings: attempts that are alike teach nothing. One text that "
        "serves every prompt is a hack; one solution of a problem that is mastered is not.",
        _among(batch, [g.key for g in history.looks if g.copies[0] and g.copies[0] / g.copies[1] >= least]),
    )


def repetition(history: History, batch: Batch, least: float) -> Finding | None:
    share = _window_share(history, lambda r: r.loops)
    if share is None or share < least:
        return None
    return Finding(
        share,
        least,
        f"{share:.0%} of attempts mostly repeat themselves (over {_LOOP:.0%} of their 4-grams occurred before)",
        "Is length or a keyword count rewarded? Are they cut off? A reward against repetition helps, or a lower "
        "learning rate.",
        _among(batch, [look.key for look in history.looks if look.loops[0]]),
    )


def reward_failures(history: History, batch: Batch, least: float) -> Finding | None:
    records = history.window()
    names = dict.fromkeys(name for record in records for name in record.failing)
    found = {name: _mean([r.failing.get(name) for r in records], history.thresholds.enough) or 0.0 for name in names}
    name = max(found, key=lambda one: found[one], default=None)
    if name is None or found[name] < least:
        return None
    others = [f"{other!r} {share:.1%}" for other, share in found.items() if share >= least and other != name]
    return Finding(
        found[name],
        least,
        f"{found[name]:.1%} of the scores of {name!r} are time-outs or errors" + "".join(f", of {o}" for o in others),
        f"They are no verdict on the attempts. Read the traces' outcomes of {name!r}: raise its timeout, mend it, or "
        "look at what the attempts do to it.",
        _showing(batch, lambda rows: any(r["outcomes"].get(name) in ("timeout", "error") for r in rows)),
    )


_REVIVAL = {
    "all_good": "They are all solved: harder data, or a check that is too easy to pass.",
    "all_bad": "They all fail: easier data, a warm-up by fine-tuning, more attempts in a group, or a broken reward.",
    "tied": "All attempts earn the same, neither solved nor failed: does the reward that should differ ever differ?",
    "unscored": "No reward applies to them: do the columns it reads exist, does it return None, does it fail?",
}


def dead_groups(history: History, batch: Batch, least: float) -> Finding | None:
    records = history.window()
    counts = {verdict: sum(r.verdicts.get(verdict, 0) for r in records) for verdict in ("alive", *_REVIVAL)}
    total = sum(counts.values())
    if not total or 1 - counts["alive"] / total < least:
        return None
    most = max(_REVIVAL, key=lambda verdict: counts[verdict])
    found = ", ".join(f"{counts[verdict] / total:.0%} {verdict}" for verdict in _REVIVAL if counts[verdict])
    return Finding(
        1 - counts["alive"] / total,
        least,
        f"{1 - counts['alive'] / total:.1%} of groups teach nothing ({found})",
        f"{_REVIVAL[most]} zero_variance_groups='resample' does not cure it: there is hardly a live group to find.",
        _showing(batch, lambda rows: rows[0]["verdict"] == most),
    )


def entropy_collapse(history: History, batch: Batch, least: float) -> Finding | None:
    was = _mean([r.entropy for r in history.first], 1)
    now = _mean([r.entropy for r in history.recent()], history.thresholds.enough)
    if was is None or now is None:
        return None
    floor = min(least * was, history.thresholds.entropy_floor)
    if now > floor:
        return None
    return Finding(
        now,
        floor,
        f"the policy's entropy is {now:.3g} nats a token, {was:.3g} in the first batches",
        "It hardly explores any more. A lower learning rate, a higher epsilon_high, a KL term or a higher temperature "
        "keep it alive.",
        _showing(batch, lambda rows: True),
    )


ALARMS: dict[str, Callable[[History, Batch, float], Finding | None]] = {
    "monitor_flat": monitor_flat,
    "rewards_diverge": rewards_diverge,
    "perfect_scores": perfect_scores,
    "no_answer": no_answer,
    "length_drift": length_drift,
    "length_reward": length_reward,
    "near_duplicates": near_duplicates,
    "repetition": repetition,
    "reward_failures": reward_failures,
    "dead_groups": dead_groups,
    "entropy_collapse": entropy_collapse,
}


def _check_count(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}={value!r} must be an integer >= {least}, a number of batches.")


def _check_number(name: str, value: Any, above: float, most: float) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and above < value <= most and math.isfinite(value):
        return
    bounds = f"> {above:g}" + (f" and <= {most:g}" if most < math.inf else "")
    off = "." if name == "entropy_floor" else "; None switches that alarm off."
    raise ValueError(f"{name}={value!r} must be a finite number {bounds}{off}")


def _record(batch: Batch, totals: Tensor, columns: dict[str, Tensor], looks: list[Look]) -> Record:
    top = totals.max().item() if len(totals) else None
    return Record(
        total=_average(totals),
        top=top,
        at_top=0.0 if top is None else (totals >= top - _NEAR_TOP * abs(top)).double().mean().item(),
        rewards={name: _average(column) for name, column in columns.items()},
        tokens=sum(batch.tokens) / len(batch.tokens) if batch.tokens else None,
        lengths=_lengths(batch),
        failing={name: float(share) for name, share in batch.failing.items() if math.isfinite(share)},
        verdicts={verdict: batch.verdicts.count(verdict) for verdict in dict.fromkeys(batch.verdicts)},
        entropy=float(batch.entropy) if batch.entropy is not None and math.isfinite(batch.entropy) else None,
        copies=_sum(look.copies for look in looks),
        loops=_sum(look.loops for look in looks),
        unanswered=_sum(look.unanswered for look in looks),
    )


def _plain(record: Record) -> dict[str, Any]:
    return {
        name: dict(value) if isinstance(value, dict) else list(value) if isinstance(value, tuple) else value
        for name, value in vars(record).items()
    }


def _read(values: dict[str, Any]) -> Record:
    fresh: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in values.items()}
    return Record(**fresh)


def _finite(values: Tensor) -> Tensor:
    values = values.detach().double().cpu()
    return values[values.isfinite()]


def _average(values: Tensor) -> float | None:
    return values.mean().item() if len(values) else None


def _widen(limits: list[float], values: Tensor) -> list[float]:
    every = [*limits, *((values.min().item(), values.max().item()) if len(values) else ())]
    return [min(every), max(every)] if every else []


def _lengths(batch: Batch) -> tuple[float, ...]:
    """(attempts, sum of tokens, of squared centred tokens, of squared centred totals, of their products)."""
    size = max(batch.size, 1)
    scored = zip(range(len(batch.totals) // size), batch.verdicts, strict=False)
    alive = [at for group, verdict in scored if verdict == "alive" for at in range(group * size, (group + 1) * size)]
    totals = batch.totals.detach().double().cpu()[alive].view(-1, size)
    tokens = torch.tensor([float(batch.tokens[i]) for i in alive], dtype=torch.float64).view(-1, size)
    counted = totals.isfinite() & ~torch.tensor([batch.truncated[i] for i in alive], dtype=torch.bool).view(-1, size)
    counted &= counted.sum(dim=1, keepdim=True) > 1
    x, y = (_centred(values, counted) for values in (tokens, totals))
    sums = counted.sum(), tokens[counted].sum(), (x * x).sum(), (y * y).sum(), (x * y).sum()
    return tuple(float(value) for value in sums)


def _centred(values: Tensor, counted: Tensor) -> Tensor:
    """(P, G) less each row's mean over `counted`; 0 elsewhere."""
    values = values.masked_fill(~counted, 0.0)
    means = values.sum(dim=1, keepdim=True) / counted.sum(dim=1, keepdim=True).clamp(min=1)
    return (values - means).masked_fill(~counted, 0.0)


def _line(points: list[tuple[float, float]], span: float) -> tuple[float, float, float]:
    """Least squares: (rise over `span`, its standard error, mean)."""
    n = len(points)
    at = sum(x for x, _ in points) / n
    mean = sum(y for _, y in points) / n
    spread = sum((x - at) ** 2 for x, _ in points)
    slope = sum((x - at) * (y - mean) for x, y in points) / spread
    rest = sum((y - mean - slope * (x - at)) ** 2 for x, y in points)
    return slope * span, math.sqrt(rest / (n - 2) / spread) * span, mean


def _mean(values: Iterable[float | None], least: int) -> float | None:
    """Of those that are known, if there are enough."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) >= max(least, 1) else None


def _sum(pairs: Iterable[tuple[int, int]]) -> tuple[int, int]:
    parts = list(pairs)
    return sum(some for some, _ in parts), sum(every for _, every in parts)


def _share(pairs: Iterable[tuple[int, int]], least: int = 1) -> float | None:
    some, every = _sum(pairs)
    return some / every if every >= least else None


def _window_share(history: History, pick: Callable[[Record], tuple[int, int]]) -> float | None:
    """Share over the batches of the window of which there were texts to look at, if there are enough."""
    pairs = [pair for pair in map(pick, history.window()) if pair[1]]
    return _share(pairs) if len(pairs) >= history.thresholds.enough else None


def _earned(limits: list[float], weight: float) -> bool:
    """Whether a weighted reward has been at what may be its best: above 0, or at 0 if it is a penalty."""
    if not limits or weight == 0:
        return True
    worst, best = limits if weight > 0 else (-limits[1], -limits[0])
    return best > 0 or worst < best == 0


def _key(row: dict[str, Any]) -> Key:
    return row["batch"], row["round"], row["group"]


def _by_group(rows: Rows) -> dict[Key, Rows]:
    groups: dict[Key, Rows] = {}
    for row in rows:
        groups.setdefault(_key(row), []).append(row)
    return groups


def _reward(row: dict[str, Any]) -> float:
    return row["reward"] if _known(row["reward"]) else -math.inf


def _known(score: float | None) -> bool:
    return score is not None and math.isfinite(score)


def _paid(row: dict[str, Any], history: History) -> bool:
    return _reward(row) > history.bar()


def _low(row: dict[str, Any], name: str, history: History, sign: float = 1.0) -> bool:
    score = row["rewards"].get(name)
    return not _known(score) or sign * score <= sign * history.bar(name)


def _together(rows: Rows) -> float:
    """How tokens and reward of a group vary together; 0 where they do not."""
    known = [(r["tokens"], r["reward"]) for r in rows if _known(r["reward"]) and not r["truncated"]]
    mean = sum(tokens for tokens, _ in known) / max(len(known), 1)
    return sum((tokens - mean) * reward for tokens, reward in known)


def _showing(batch: Batch, test: Callable[[Rows], bool]) -> tuple[Key, ...]:
    """Groups that pass the test, the highest reward first."""
    groups = {key: max(map(_reward, rows)) for key, rows in _by_group(batch.rows).items() if test(rows)}
    return tuple(sorted(groups, key=lambda key: -groups[key])[:_NAMED])


def _among(batch: Batch, keys: Sequence[Key]) -> tuple[Key, ...]:
    return _showing(batch, lambda rows: _key(rows[0]) in keys)


def _spread(items: list[Any]) -> list[Any]:
    """At most `_LOOKED_AT` of them, evenly spread."""
    return [items[at * len(items) // _LOOKED_AT] for at in range(_LOOKED_AT)] if len(items) > _LOOKED_AT else items


def _look(group: Rows, bar: float) -> Look:
    """What the texts of a group, or of some of its attempts, show. Attempts above `bar` are rewarded."""
    rows = _spread(group)
    texts = [_clipped(as_text(row["completion"])) for row in rows]
    paid = [find_answer(text) is None for row, text in zip(rows, texts, strict=True) if _reward(row) > bar]
    units = [unit for unit in map(_units, texts) if len(unit[0]) >= _WORDS * unit[1]]
    loops = [repeated(tokens, 4 * width) > _LOOP for tokens, width in units]
    shingles = [frozenset(map(hash, zip(*(tokens[i:] for i in range(3 * w)), strict=False))) for tokens, w in units]
    copies = [len(a & b) >= _ALIKE * len(a | b) for a, b in combinations(shingles, 2)]
    return Look(_key(group[0]), (sum(copies), len(copies)), (sum(loops), len(loops)), (sum(paid), len(paid)))


def _clipped(text: str) -> str:
    return text if len(text) <= _HEAD + _TAIL else f"{text[:_HEAD]}\n{text[-_TAIL:]}"


def _units(text: str) -> tuple[list[str], int]:
    """Words, or characters where the script has no spaces between words, and how many of them are about a word."""
    found = words(text)
    if sum(map(len, found)) <= 6 * len(found):
        return found, 1
    return [character for character in text if not character.isspace()], 3
