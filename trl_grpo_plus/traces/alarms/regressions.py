"""Alarms for abilities that a run had and lost: each compares the last batches with the best smoothed value.

A smoothed value is a mean over as many batches as a window must hold to be judged, at least 4. A loss is believed only
if it exceeds the scatter of the batches: see [`Level`].
"""

from typing import NamedTuple

from ...utils.text import percent
from .. import SampledBatch
from .examples import among, paid, showing
from .history import History, share_of
from .smoothing import Peak
from .text_stats import reward_of
from .types import Finding


_USED = 0.1  # calls per attempt from which a run counts as using its tools
_DIFFERED = 0.2  # share of pairs from which wrong answers count as different


def reward_collapse(history: History, batch: SampledBatch, least: float) -> Finding | None:
    """Detect that the mean total has fallen far below its best smoothed value.

    The fall is a share of the best value's height above the run's lowest total. If right answers have become half as
    many, the fall is one half.
    """
    peak, now = history.peaks.get("total"), history.level("total")
    height = history.height("total")
    if peak is None or now is None or height <= 0 or not peak.level.surely_above(now):
        return None
    lost = (peak.level.mean - now.mean) / height
    if lost < least:
        return None
    since = peak.step
    return Finding(
        lost,
        least,
        f"since step {since} the mean total fell from {peak.level.mean:.3g}, its best over {history.smooth} "
        f"batches, to {now.mean:.3g}: {percent(lost)} of its height above the lowest total of the run",
        f"Compare attempts of step {since} with these, and resume from a checkpoint near step {since}. Look at KL, "
        "grad_norm and entropy: a lower learning rate or a KL term helps. If prompts are chosen or become harder, "
        "the prompts may be the cause: check the evaluations.",
        showing(batch, lambda rows: all(reward_of(r) < peak.level.mean for r in rows)),
    )


def tool_avoidance(history: History, batch: SampledBatch, least: float) -> Finding | None:
    """Detect that attempts no longer call tools, although they did before.

    The calls of an attempt are its stretches of tokens that a tool or an environment wrote (`tool_mask`, `env_mask`).
    The best smoothed mean must have been 0.1 calls per attempt or more. The finding says how much more attempts with
    calls earned than siblings without calls, if there were groups with both.
    """
    peak, now = history.peaks.get("calls"), history.level("calls")
    if peak is None or now is None or peak.level.mean < _USED or not peak.level.surely_above(now):
        return None
    left = now.mean / peak.level.mean
    if left > least:
        return None
    last = next((record.step for record in reversed(history.last) if record.calls[0]), None)
    none_since = "" if last is None or last == batch.step else f", none since step {last}"
    gain = share_of(record.calling for record in history.last)
    siblings = "no group had attempts both with and without calls"
    if gain is not None:
        siblings = f"attempts with calls earned {gain:+.3g} compared with siblings without calls"
    return Finding(
        left,
        least,
        f"since step {peak.step} tool calls an attempt fell from {peak.level.mean:.2g}, their best over "
        f"{history.smooth} batches, to {now.mean:.2g}{none_since}; in the last batches {siblings}",
        "Read failed attempts without a call, and look at tools/failure_frequency: do calls fail, run into the length "
        "limit, or cost reward (length, format, time)? If attempts with calls earn more, reward calls, or resume from "
        "a checkpoint at which the policy used them.",
        showing(batch, lambda rows: not all(paid(r, history) for r in rows)),
    )


def diversity_loss(history: History, batch: SampledBatch, least: float) -> Finding | None:
    """Detect that the mean total rises while groups' best attempts earn less, or failed attempts give one answer.

    In the first case, the reward of a group's best attempt, which is pass@G, has fallen by a share of its height above
    the lowest total. In the second case, the share of pairs of failed attempts with different answers is at most
    `distinct_floor` of its best value, which was 0.2 or more. Right answers are alike by nature, but wrong answers
    become alike when a policy ceases to explore. The share needs 100 pairs.
    """
    total = history.level("total")
    if total is None:
        return None
    losses = [one for one in (_fewer_solved(history, least), _alike(history)) if one is not None]
    losses = [one for one in losses if total.surely_above(one.peak.total)]
    if not losses:
        return None
    first = losses[0]
    since = first.peak.step
    if first.peak is history.peaks["best"]:
        groups = showing(batch, lambda rows: all(reward_of(r) < first.peak.level.mean for r in rows))
    else:
        groups = among(
            batch, [stats.key for stats in history.text_stats if stats.distinct[1] and not stats.distinct[0]]
        )
    return Finding(
        first.value,
        first.threshold,
        f"since step {since} {' and '.join(one.observation for one in losses)}, while the mean total rose from "
        f"{first.peak.total.mean:.3g} to {total.mean:.3g}",
        "The policy solves its easy prompts more surely, but no longer finds other answers to hard ones. A higher "
        "temperature or epsilon_high, a KL term, resampling, or an advantage estimator for pass@k (passk, pkpo) keeps "
        "it exploring.",
        groups,
    )


class _Loss(NamedTuple):
    peak: Peak
    value: float
    threshold: float
    observation: str


def _fewer_solved(history: History, least: float) -> _Loss | None:
    """Return the loss in the reward of the groups' best attempts; `None` if it is too small."""
    peak, now, height = history.peaks.get("best"), history.level("best"), history.height("best")
    if peak is None or now is None or height <= 0 or not peak.level.surely_above(now):
        return None
    lost = (peak.level.mean - now.mean) / height
    observation = f"the reward of a group's best attempt fell from {peak.level.mean:.3g} to {now.mean:.3g}"
    return _Loss(peak, lost, least, observation) if lost >= least else None


def _alike(history: History) -> _Loss | None:
    """Return the loss in the variety of failed attempts' answers; `None` if it is too small."""
    peak, now = history.peaks.get("distinct"), history.level("distinct")
    if peak is None or now is None or peak.level.mean < _DIFFERED or not peak.level.surely_above(now):
        return None
    left, floor = now.mean / peak.level.mean, history.thresholds.distinct_floor
    observation = (
        f"pairs of failed attempts with different answers fell from {percent(peak.level.mean)} to {percent(now.mean)}"
    )
    return _Loss(peak, left, floor, observation) if left <= floor else None
