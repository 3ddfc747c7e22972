"""The statistics that the alarms keep of a run: numbers of its first and last batches, never a text."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ...utils.validation import finite_or_none
from .. import SampledBatch, by_group, evaluated, json_value
from .evaluation_history import Evaluations
from .metric_history import Logged, note
from .smoothing import Level, Peak, level_of, line_of
from .text_stats import TextStats, text_stats_of


_SURE = 4.0  # standard errors that a trend must exceed to be believed
ROOM = 0.15  # share of its range that a flat reward must have left to rise
_PAIRS = 100  # pairs of failed attempts needed for the share with different answers
NEAR_TOP = 0.01  # distance to the highest total, as a share of it


@dataclass(frozen=True)
class Record:
    """The statistics kept of a batch. Pairs are (count, out of how many)."""

    total: float | None  # mean
    top: float | None  # highest total
    at_top: float  # share of totals within 1 % of it
    rewards: dict[str, float | None]  # means
    tokens: float | None  # mean
    lengths: tuple[float, ...]  # see `_lengths`
    failing: dict[str, float]
    verdicts: dict[str, int]
    entropy: float | None
    copies: tuple[int, int]
    loops: tuple[int, int]
    unanswered: tuple[int, int]
    step: int
    best: float | None  # mean of the highest total of each group
    distinct: tuple[int, int]  # pairs of failed attempts with different answers
    calls: tuple[int, int]  # (tool calls, attempts that could call tools)
    calling: tuple[float, int]  # see `_calling`


# Values of the fields that depend on totals, for a batch whose totals are forgotten.
_NO_TOTALS: dict[str, Any] = {
    "total": None,
    "top": None,
    "at_top": 0.0,
    "best": None,
    "lengths": (0.0,) * 5,
    "unanswered": (0, 0),
    "distinct": (0, 0),
    "calling": (0.0, 0),
}

# The quantities whose best level is kept: record -> number or `None`.
_SERIES: dict[str, Callable[[Record], float | None]] = {
    "total": lambda record: record.total,
    "best": lambda record: record.best,
    "distinct": lambda record: share_of([record.distinct]),
    "calls": lambda record: share_of([record.calls]),
}


@dataclass(frozen=True)
class Trend:
    """A straight line fitted to a window of batch means, as shares of the range of single attempts' rewards."""

    change: float  # from the first batch to the last
    error: float  # standard error of `change`
    room: float  # from the mean to the best value seen

    def rises(self, least: float) -> bool:
        """Return whether the trend surely rises, by `least` of the range or more."""
        return self.change >= max(least, _SURE * self.error)

    def falls(self, least: float) -> bool:
        """Return whether the trend surely falls, by `least` of the range or more."""
        return -self.change >= max(least, _SURE * self.error)

    def stands_beside(self, rise: float) -> bool:
        """Return whether the reward had room to rise, did not, and surely rose less than half of `rise`."""
        return self.room >= ROOM and self.change <= self.error and self.change + 2 * self.error < rise / 2


class History:
    """The statistics of a run: of its first batches, of its last batches, and the range of each reward.

    `thresholds` is a [`Thresholds`]. The annotation is its base class, since importing `Thresholds` would be circular.
    With `chosen` the evaluations are left out: see [`Watch`].
    """

    def __init__(self, thresholds: SimpleNamespace, chosen: bool = False):
        self.thresholds = thresholds
        self.chosen = chosen
        self.count = 0
        self.first: list[Record] = []
        self.last: list[Record] = []
        self.weights: dict[str, float] | None = None  # weights of the rewards in the totals; `None`: not known yet
        self.total_range: list[float] = []  # [lowest, highest], empty before the first score
        self.ranges: dict[str, list[float]] = {}
        self.text_stats: list[TextStats] = []  # of the current batch only
        self.peaks: dict[str, Peak] = {}
        self.logged: dict[str, Logged] = {}
        self.evaluations: dict[str, Evaluations] = {}  # by split

    def add(self, batch: SampledBatch) -> None:
        """Add the statistics of a batch.

        If the rewards' weights have changed, as in a run that was resumed with other weights, the statistics of
        earlier totals are forgotten, since the totals no longer have the same scale.
        """
        if self.weights not in (None, batch.weights):
            self._forget_totals()
        self.weights = dict(batch.weights)
        totals = _finite(batch.totals)
        columns = dict(zip(batch.weights, map(_finite, batch.rewards.T), strict=False))
        self.total_range = _widen(self.total_range, totals)
        for name, column in columns.items():
            self.ranges[name] = _widen(self.ranges.get(name, []), column)
        self.text_stats = text_stats_of(list(by_group(batch.lines).values()), self.bar())
        record = _record(batch, totals, columns, self.text_stats)
        self.count += 1
        if len(self.first) < self.thresholds.min_batches:
            self.first.append(record)
        self.last = [*self.last, record][-2 * self.thresholds.window :]
        total = self.level("total")
        for name in _SERIES:
            level, peak = self.level(name), self.peaks.get(name)
            if total and level and (peak is None or level.mean > peak.level.mean):
                self.peaks[name] = Peak(batch.step, level, total)
        if len(self.last) >= self.smooth:  # half of the level's batches are then before the evaluation, half after it
            for evaluations in self.evaluations.values():
                evaluations.pair(total, self.count - self.smooth // 2, self.thresholds.held_out_window)

    def _forget_totals(self) -> None:
        self.total_range = []
        self.peaks = {name: peak for name, peak in self.peaks.items() if name == "calls"}
        self.evaluations = {}
        self.first = [replace(record, **_NO_TOTALS) for record in self.first]
        self.last = [replace(record, **_NO_TOTALS) for record in self.last]

    def note(self, entry: Mapping[str, Any]) -> None:
        """Add the metrics of a log entry that alarms use, or the held-out reward of an evaluation."""
        note(self.logged, entry, self.thresholds.window)
        if not self.chosen and (found := evaluated(dict(entry))) is not None:
            split, reward = found
            self.evaluations.setdefault(split, Evaluations()).add(entry["step"], reward, self.count)

    @property
    def smooth(self) -> int:
        """Number of batches that a level is averaged over."""
        return max(4, self.thresholds.enough)

    def level(self, name: str) -> Level | None:
        """Return the mean of "total", of the groups' "best", of "distinct" or of "calls" over the last batches.

        `None` before there are enough batches.
        """
        records = self.last[-self.smooth :]
        if len(records) < self.smooth or (name == "distinct" and sum(r.distinct[1] for r in records) < _PAIRS):
            return None
        return level_of(map(_SERIES[name], records))

    def height(self, name: str) -> float:
        """Return the height of the best level of "total" or "best" above the run's lowest total; 0 without a level."""
        return self.peaks[name].level.mean - self._range(None)[0] if name in self.peaks else 0.0

    def bar(self, name: str | None = None) -> float:
        """Return the middle of the range of a reward or, without a name, of the total; 0 if it never varied."""
        low, high = self._range(name)
        return (low + high) / 2 if high > low else 0.0

    def window(self, of: int = 1) -> list[Record]:
        """Return the records of the last `of` windows, or fewer if there are not enough batches."""
        return self.last[-of * self.thresholds.window :]

    def recent(self) -> list[Record]:
        """Return the records of the window without the first batches; empty while they are too few to judge."""
        later = min(self.count - len(self.first), self.thresholds.window)
        return self.last[-later:] if later >= self.thresholds.enough else []

    def trend(self, name: str | None = None, sign: float = 1.0, of: int = 1) -> Trend | None:
        """Return the trend of a reward or, without a name, of the total, over `of` windows; `None` if unknown."""
        records = self.window(of)
        low, high = self._range(name)
        means = [record.total if name is None else record.rewards.get(name) for record in records]
        points = [(float(at), sign * mean) for at, mean in enumerate(means) if mean is not None]
        full = of * self.thresholds.window
        if high <= low or len(records) < full or len(points) < max(4, 0.75 * full):
            return None
        line, best = line_of(points, full - 1), high if sign > 0 else -low
        return Trend(*(value / (high - low) for value in (line.change, line.error, best - line.mean)))

    def _range(self, name: str | None) -> tuple[float, ...]:
        """Return (lowest, highest) of a reward or, without a name, of the total."""
        limits = self.total_range if name is None else self.ranges.get(name)
        return tuple(limits or (0.0, 0.0))

    def share(self, pick: Callable[[Record], tuple[int, int]]) -> float | None:
        """Return a share over the batches of the window whose texts were read; `None` if they are too few."""
        pairs = [pair for pair in map(pick, self.window()) if pair[1]]
        return share_of(pairs) if len(pairs) >= self.thresholds.enough else None

    def state_dict(self) -> dict[str, Any]:
        """Return the state as lists, dicts, numbers and strings."""
        first, last = ([vars(record) for record in records] for records in (self.first, self.last))
        ranges = {"weights": self.weights, "total_range": self.total_range, "ranges": self.ranges}
        peaks = {name: asdict(peak) for name, peak in self.peaks.items()}
        logged = {name: asdict(entries) for name, entries in self.logged.items()}
        evaluations = {split: asdict(kept) for split, kept in self.evaluations.items()}
        series = {"peaks": peaks, "logged": logged, "evaluations": evaluations}
        return json_value({"count": self.count, "first": first, "last": last, **ranges, **series})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the history from `state`. The thresholds may differ."""
        self.count = state["count"]
        self.first = [_read(values) for values in state["first"]][: self.thresholds.min_batches]
        self.last = [_read(values) for values in state["last"]][-2 * self.thresholds.window :]
        self.weights = state["weights"]
        self.total_range = list(state["total_range"])
        self.ranges = {name: list(values) for name, values in state["ranges"].items()}
        self.peaks = {name: Peak.of(values) for name, values in state["peaks"].items()}
        self.logged = {name: Logged.of(values) for name, values in state["logged"].items()}
        kept = {} if self.chosen else state["evaluations"]
        self.evaluations = {split: Evaluations.of(values) for split, values in kept.items()}


def _record(batch: SampledBatch, totals: Tensor, columns: dict[str, Tensor], text_stats: list[TextStats]) -> Record:
    calls = [count for count in batch.calls if count is not None]
    top = totals.max().item() if len(totals) else None
    return Record(
        total=_average(totals),
        top=top,
        at_top=0.0 if top is None else (totals >= top - NEAR_TOP * abs(top)).double().mean().item(),
        rewards={name: _average(column) for name, column in columns.items()},
        tokens=sum(batch.tokens) / len(batch.tokens) if batch.tokens else None,
        lengths=_lengths(batch),
        failing={name: share for name, share in batch.failing.items() if finite_or_none(share) is not None},
        verdicts=dict(Counter(batch.verdicts)),
        entropy=finite_or_none(batch.entropy),
        copies=_added(stats.copies for stats in text_stats),
        loops=_added(stats.loops for stats in text_stats),
        unanswered=_added(stats.unanswered for stats in text_stats),
        step=batch.step,
        best=_best(batch),
        distinct=_added(stats.distinct for stats in text_stats),
        calls=(sum(calls), len(calls)),
        calling=_calling(batch),
    )


def _best(batch: SampledBatch) -> float | None:
    """Return the mean of the groups' highest totals, without groups that have no total."""
    totals = batch.totals.detach().double().cpu()
    finite = totals.masked_fill(~totals.isfinite(), -math.inf)
    whole = finite[: len(finite) // batch.size * batch.size].view(-1, batch.size)
    return _average(_finite(whole.amax(dim=1))) if len(whole) else None


def _calling(batch: SampledBatch) -> tuple[float, int]:
    """Return the gain from calling tools, as (sum over groups, number of groups).

    A group's gain is the mean total of attempts that called a tool, less the mean total of those that did not. Only
    groups with both count.
    """
    if not any(calls is not None for calls in batch.calls):
        return 0, 0
    gains = []
    pairs = list(zip(batch.calls, batch.totals.detach().double().cpu().tolist(), strict=False))
    for start in range(0, len(pairs), batch.size):
        group = pairs[start : start + batch.size]
        scored = [(calls, total) for calls, total in group if calls is not None and math.isfinite(total)]
        called, others = ([total for calls, total in scored if bool(calls) == whether] for whether in (True, False))
        if called and others:
            gains.append(sum(called) / len(called) - sum(others) / len(others))
    return sum(gains), len(gains)


def _read(values: dict[str, Any]) -> Record:
    fresh: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return Record(**fresh)


def _finite(values: Tensor) -> Tensor:
    values = values.detach().double().cpu()
    return values[values.isfinite()]


def _average(values: Tensor) -> float | None:
    return values.mean().item() if len(values) else None


def _widen(limits: list[float], values: Tensor) -> list[float]:
    every = [*limits, *((values.min().item(), values.max().item()) if len(values) else ())]
    return [min(every), max(every)] if every else []


def _lengths(batch: SampledBatch) -> tuple[float, ...]:
    """Return sums over the attempts of live groups that were scored and not cut off.

    Returns:
        `tuple[float, ...]`: the number of attempts, and the sums of tokens, of squared centred tokens, of squared
        centred totals, and of products of centred tokens and totals. Centred values are less their group's mean.
    """
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
    """Subtract each row's mean over `counted` from `values`, (P, G); 0 where not counted."""
    values = values.masked_fill(~counted, 0.0)
    means = values.sum(dim=1, keepdim=True) / counted.sum(dim=1, keepdim=True).clamp(min=1)
    return (values - means).masked_fill(~counted, 0.0)


def mean(values: Iterable[float | None], least: int) -> float | None:
    """Return the mean of the values that are not `None`; `None` if there are fewer than `least`."""
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if len(present) >= max(least, 1) else None


def share_of(pairs: Iterable[tuple[float, int]], least: int = 1) -> float | None:
    """Return the share from pairs (count, out of how many); `None` if out of fewer than `least`."""
    some, every = _added(pairs)
    return some / every if every >= least else None


def _added(pairs: Iterable[tuple[Any, int]]) -> tuple[Any, int]:
    parts = list(pairs)
    return sum(some for some, _ in parts), sum(every for _, every in parts)
