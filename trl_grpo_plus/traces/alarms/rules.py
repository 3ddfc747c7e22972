"""The alarms: functions of the run's history, the current batch and a threshold.

To add an alarm, write a function and add its [`Rule`] to `ALARMS`.
"""

import math
from collections.abc import Sequence

from ...rollouts.verdicts import ADVICE, VERDICTS
from ...scoring import NO_VERDICT
from ...utils.text import percent
from ...utils.validation import Number
from .. import Row, SampledBatch
from .divergence import held_out_gap, runaway, sampler_drift, tool_failures
from .examples import among, low, paid, showing, together
from .history import NEAR_TOP, History, mean, share_of
from .regressions import diversity_loss, reward_collapse, tool_avoidance
from .text_stats import LOOP, reward_of
from .types import SHARE, Finding, Rule


_ATTEMPTS = 100  # minimum attempts for a correlation
_REWARDED = 20  # minimum rewarded attempts for a share of them


def monitor_flat(history: History, batch: SampledBatch, least: float) -> Finding | None:
    """Detect that the total rises while a monitor with room to rise does not.

    The total's rise is a share of the range of totals seen in the run. The rise must be at least 4 standard errors.
    The monitor's rise must be at most one standard error, and surely less than half of the total's.
    """
    total = history.trend()
    if total is None or not total.rises(least):
        return None
    monitors = [name for name, weight in batch.weights.items() if weight == 0]
    flat = {name: t for name in monitors if (t := history.trend(name)) and t.stands_beside(total.change)}
    if not flat:
        return None
    name = min(flat, key=lambda one: flat[one].change)
    return Finding(
        total.change,
        least,
        f"over {history.thresholds.window} batches the total rose by {percent(total.change)} of its range, but the "
        f"monitor {name!r} changed by {percent(flat[name].change, '+.0f')} of its own",
        f"Read attempts with a high total and a low {name!r}: what do they do that the trained rewards pay for?",
        showing(batch, lambda rows: any(paid(r, history) and low(r, name, history) for r in rows)),
    )


def rewards_diverge(history: History, batch: SampledBatch, least: float) -> Finding | None:
    """Detect that one weighted reward rises while another falls, or has room to rise and is flat for two windows.

    A rise is measured as in [`monitor_flat`]. The other reward must fall as surely, or be flat over the last two
    windows. So a format that is learned within the first window, before accuracy moves, raises no alarm.
    """
    signs = {n: math.copysign(1.0, w) for n, w in batch.weights.items() if w}
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

    def shows(rows: Sequence[Row]) -> bool:
        return any(low(r, name, history, signs[name]) and not low(r, up, history, signs[up]) for r in rows)

    return Finding(
        rise,
        least,
        f"over {window} batches the reward {up!r} rose by {percent(rise)} of its range, but {name!r} changed by "
        f"{percent(others[name], '+.0f')} of its own over {span} (each change has the sign of the reward's weight)",
        f"Read attempts with a high {up!r} and a low {name!r}. Is {up!r} easier to earn? Lower the weight of {up!r}, "
        "or remove it once it is learned.",
        showing(batch, shows),
    )


def perfect_scores(history: History, batch: SampledBatch, least: float) -> Finding | None:
    """Detect that nearly all attempts earn the highest total of the run, in its first batches and now.

    The quantity is the share of attempts within 1 % of the highest total, in the first `min_batches` batches and in
    the window. A run that becomes perfect raises no alarm. Nor does a run in which a weighted reward was never earned.
    """
    top = history.total_range[-1] if history.total_range else 0.0
    weights = batch.weights.items()
    if top <= 0 or not all(_earned(history.ranges.get(name, []), weight) for name, weight in weights):
        return None
    bar = top - NEAR_TOP * top
    shares = [
        mean([r.at_top if r.top >= bar else 0.0 for r in records if r.top is not None], history.thresholds.enough)
        for records in (history.first, history.window())
    ]
    share = min(0.0 if one is None else one for one in shares)
    if share < least:
        return None
    return Finding(
        share,
        least,
        f"{percent(share, '.1f')} of attempts have earned the highest total of the run, {top:.4g}, since it began",
        "This is suspiciously high from the start. Is the answer in the prompt? Does the checker accept anything? If "
        "not, the data is too easy to learn from.",
        showing(batch, lambda rows: all(reward_of(r) >= bar for r in rows)),
    )


def no_answer(history: History, batch: SampledBatch, least: float) -> Finding | None:
    """Detect that rewarded attempts no longer hold an answer that can be found.

    The quantity is the growth of the share of rewarded attempts without an answer, which is at most 0.2 at first. An
    attempt is rewarded if its total is above the middle of the run's range.
    """
    was = share_of([r.unanswered for r in history.first], _REWARDED)
    now = share_of([r.unanswered for r in history.recent()], _REWARDED)
    if was is None or now is None or was > 0.2 or now - was < least:
        return None
    return Finding(
        now,
        was + least,
        f"{percent(now)} of rewarded attempts hold no answer that can be found, {percent(was)} in the first batches",
        "Read these attempts: what is rewarded, if not an answer? (This alarm finds an answer in \\boxed{}, in "
        "<answer>, after ####, and after 'the answer is'.)",
        among(batch, [stats.key for stats in history.text_stats if stats.unanswered[0]]),
    )


def length_drift(history: History, batch: SampledBatch, least: float) -> Finding | None:
    """Detect attempts that are far longer or shorter than in the first batches."""
    was = mean([r.tokens for r in history.first], history.thresholds.enough)
    now = mean([r.tokens for r in history.recent()], history.thresholds.enough)
    if not was or now is None or 1 / least < now / was < least:
        return None
    longer = now > was
    advice = (
        "Longer reasoning that earns more is healthy. Padding and loops are not. Do the longest attempts say more?"
        if longer
        else "Do the attempts still reason, or only answer? Does a reward pay for short attempts?"
    )
    return Finding(
        now / was,
        least if longer else 1 / least,
        f"attempts are {now:.0f} tokens long, {was:.0f} in the first batches ({now / was:.2g} times)",
        advice,
        showing(batch, lambda rows: (sum(r["tokens"] for r in rows) / len(rows) > was) == longer),
    )


def length_reward(history: History, batch: SampledBatch, least: float) -> Finding | None:
    """Detect that length correlates with reward within live groups.

    The quantity is the correlation of tokens and total, both less their group's mean. A run that rewards or penalises
    length on purpose exceeds the threshold as intended.
    """
    records = history.window()
    count, tokens, squares, totals, both = (sum(r.lengths[i] for r in records) for i in range(5))
    if count < _ATTEMPTS or totals <= 0:
        return None
    if squares / count <= (0.05 * tokens / count) ** 2:  # lengths that hardly differ cannot explain rewards
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
        f"Does a reward pay for {'long' if longer else 'short'} attempts? Compare attempts of one group. If a reward "
        "depends on length on purpose, raise this threshold.",
        showing(batch, lambda rows: together(rows) * r > 0),
    )


def near_duplicates(history: History, batch: SampledBatch, least: float) -> Finding | None:
    """Detect attempts on one prompt that are nearly the same text.

    The quantity is the share of pairs with 0.9 of their word triples in common, among attempts of at least 20 words.
    """
    share = history.share(lambda r: r.copies)
    if share is None or share < least:
        return None
    return Finding(
        share,
        least,
        f"{percent(share)} of pairs of attempts on the same prompt are nearly the same text",
        "Look at entropy, temperature and the sampling settings: equal attempts teach nothing. The same text for "
        "every prompt is a hack. The same solution for a problem that the policy has mastered is not.",
        among(batch, [g.key for g in history.text_stats if g.copies[0] and g.copies[0] / g.copies[1] >= least]),
    )


def repetition(history: History, batch: SampledBatch, least: float) -> Finding | None:
    """Detect attempts that mostly repeat themselves.

    The quantity is the share of attempts in which over half of the 4-grams have occurred before, among attempts of at
    least 20 words.
    """
    share = history.share(lambda r: r.loops)
    if share is None or share < least:
        return None
    return Finding(
        share,
        least,
        f"{percent(share)} of attempts mostly repeat themselves (over {percent(LOOP)} of their 4-grams occurred "
        "before)",
        "Does a reward pay for length or for a count of keywords? Are the attempts truncated? A reward against "
        "repetition helps, or a lower learning rate.",
        among(batch, [stats.key for stats in history.text_stats if stats.loops[0]]),
    )


def reward_failures(history: History, batch: SampledBatch, least: float) -> Finding | None:
    """Detect that a reward times out, fails or is starved too often."""
    records = history.window()
    names = dict.fromkeys(name for record in records for name in record.failing)
    shares = {name: mean([r.failing.get(name) for r in records], history.thresholds.enough) or 0.0 for name in names}
    name = max(shares, key=lambda one: shares[one], default=None)
    if name is None or shares[name] < least:
        return None
    others = [
        f"{other!r} {percent(share, '.1f')}" for other, share in shares.items() if share >= least and other != name
    ]
    return Finding(
        shares[name],
        least,
        f"{percent(shares[name], '.1f')} of the scores of {name!r} are time-outs, errors or starved"
        + "".join(f", of {o}" for o in others),
        f"Such outcomes say nothing about the attempts. Read the outcomes of {name!r} in the traces. Raise its "
        "timeout, repair it, or look at what the attempts do to it. 'starved' means that the machine was too busy: "
        "set fewer reward_workers, or use a machine with more processors, processes and memory.",
        showing(batch, lambda rows: any(r["outcomes"].get(name) in NO_VERDICT for r in rows)),
    )


def dead_groups(history: History, batch: SampledBatch, least: float) -> Finding | None:
    """Detect that almost all groups are dead: they give no learning signal."""
    records, kinds = history.window(), [verdict for verdict in VERDICTS if verdict in batch.rounds[0].dead]
    total = sum(sum(r.verdicts.values()) for r in records)
    counts = {verdict: sum(r.verdicts.get(verdict, 0) for r in records) for verdict in kinds}
    dead = sum(counts.values()) / max(total, 1)
    if not total or not kinds or dead < least:
        return None
    most = max(kinds, key=lambda verdict: counts[verdict])
    mixture = ", ".join(f"{percent(counts[verdict] / total)} {verdict}" for verdict in kinds if counts[verdict])
    return Finding(
        dead,
        least,
        f"{percent(dead, '.1f')} of groups teach nothing ({mixture})",
        f"{ADVICE[most]} zero_variance_groups='resample' does not help here: it would hardly find a live group.",
        showing(batch, lambda rows: rows[0]["verdict"] == most),
    )


def entropy_collapse(history: History, batch: SampledBatch, least: float) -> Finding | None:
    """Detect that the entropy is low, and a fraction of that of the first batches."""
    was = mean([r.entropy for r in history.first], 1)
    now = mean([r.entropy for r in history.recent()], history.thresholds.enough)
    if was is None or now is None:
        return None
    floor = min(least * was, history.thresholds.entropy_floor)
    if now > floor:
        return None
    return Finding(
        now,
        floor,
        f"the policy's entropy is {now:.3g} nats a token, {was:.3g} in the first batches",
        "The policy hardly explores any more. A lower learning rate, a higher epsilon_high, a KL term or a higher "
        "temperature keeps the entropy up.",
        showing(batch, lambda rows: True),
    )


_FACTOR = Number(above=1, optional=True, note=SHARE.note)
_ERRORS = Number(above=0, optional=True, note=SHARE.note)

ALARMS: dict[str, Rule] = {
    rule.function.__name__: rule
    for rule in (
        Rule(monitor_flat, 0.1, "the total rises by this share of its range, a monitor with room does not"),
        Rule(rewards_diverge, 0.1, "one weighted reward rises by this share, another with room is flat or falls"),
        Rule(perfect_scores, 0.98, "share of attempts with the run's highest total, from its first batches on"),
        Rule(no_answer, 0.3, "growth of the share of rewarded attempts without an answer"),
        Rule(length_drift, 3.0, "factor by which attempts are longer or shorter than in the first batches", _FACTOR),
        Rule(length_reward, 0.7, "correlation of length and total in live groups, without truncated attempts"),
        Rule(near_duplicates, 0.5, "share of pairs in a group that are nearly the same text"),
        Rule(repetition, 0.2, "share of attempts that mostly repeat themselves"),
        Rule(reward_failures, 0.05, "share of one reward's scores that are time-outs, errors or starved"),
        Rule(dead_groups, 0.95, "share of groups, as sampled, that are dead"),
        Rule(entropy_collapse, 0.2, "entropy is this share of the first batches', and below `entropy_floor`"),
        Rule(reward_collapse, 0.4, "share lost of the best smoothed mean total, both above the run's lowest total"),
        Rule(tool_avoidance, 0.2, "tool calls per attempt, as a share of their best smoothed mean"),
        Rule(tool_failures, 0.5, "share of the calls of tools that fail"),
        Rule(diversity_loss, 0.1, "the same share, lost by the reward of a group's best attempt, as the mean rises"),
        Rule(
            runaway, 10.0, "factor by which KL or gradient norm, above its floor, exceeds its running median", _FACTOR
        ),
        Rule(
            sampler_drift,
            3.0,
            "factor by which the log-probs of sampler and trainer differ more than at first",
            _FACTOR,
        ),
        Rule(
            held_out_gap,
            4.0,
            "standard errors by which training reward, which rises, has left held-out reward",
            _ERRORS,
        ),
    )
}


def _earned(limits: list[float], weight: float) -> bool:
    """Return whether a weighted reward has reached its likely best: above 0, or 0 if it is a penalty."""
    if not limits or weight == 0:
        return True
    worst, best = limits if weight > 0 else (-limits[1], -limits[0])
    return best > 0 or worst < best == 0
