"""The alarms themselves, each a function of what is known of the run and of the batch at hand."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..scoring import NO_VERDICT
from .history import LOOP, NEAR_TOP, Batch, History, Key, Record, Rows, added, by_group, is_score, key_of, reward_of


_NAMED = 8  # groups that an alarm names
_ATTEMPTS = 100  # that a correlation needs
_REWARDED = 20  # attempts that a share of rewarded ones needs


@dataclass(frozen=True)
class Finding:
    """What an alarm's function found."""

    value: float
    threshold: float
    seen: str
    advice: str
    groups: tuple[Key, ...] = ()


def monitor_flat(history: History, batch: Batch, least: float) -> Finding | None:
    """The total rises, a monitor with room to rise does not."""
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
    """One weighted reward rises, another with room to rise falls, or has been flat for two windows."""
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
    """Nearly all attempts earn the highest total of the run, in its first batches and now."""
    top = history.total_range[-1] if history.total_range else 0.0
    weights = zip(batch.names, batch.weights, strict=False)
    if top <= 0 or not all(_earned(history.ranges.get(name, []), weight) for name, weight in weights):
        return None
    bar = top - NEAR_TOP * top
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
        _showing(batch, lambda rows: all(reward_of(r) >= bar for r in rows)),
    )


def no_answer(history: History, batch: Batch, least: float) -> Finding | None:
    """Rewarded attempts hold no answer that can be found, and used to."""
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
    """Attempts are far longer or shorter than in the first batches."""
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
    """Within live groups, length goes with reward."""
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
    """Attempts on the same prompt are nearly the same text."""
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
    """Attempts mostly repeat themselves."""
    share = _window_share(history, lambda r: r.loops)
    if share is None or share < least:
        return None
    return Finding(
        share,
        least,
        f"{share:.0%} of attempts mostly repeat themselves (over {LOOP:.0%} of their 4-grams occurred before)",
        "Is length or a keyword count rewarded? Are they cut off? A reward against repetition helps, or a lower "
        "learning rate.",
        _among(batch, [look.key for look in history.looks if look.loops[0]]),
    )


def reward_failures(history: History, batch: Batch, least: float) -> Finding | None:
    """A reward times out, fails or is starved too often."""
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
        f"{found[name]:.1%} of the scores of {name!r} are time-outs, errors or starved"
        + "".join(f", of {o}" for o in others),
        f"They are no verdict on the attempts. Read the traces' outcomes of {name!r}: raise its timeout, mend it, or "
        "look at what the attempts do to it. 'starved' is the machine's doing: give it fewer reward_workers, or more "
        "processors, processes and memory.",
        _showing(batch, lambda rows: any(r["outcomes"].get(name) in NO_VERDICT for r in rows)),
    )


_REVIVAL = {
    "all_good": "They are all solved: harder data, or a check that is too easy to pass.",
    "all_bad": "They all fail: easier data, a warm-up by fine-tuning, more attempts in a group, or a broken reward.",
    "tied": "All attempts earn the same, neither solved nor failed: does the reward that should differ ever differ?",
    "unscored": "No reward applies to them: do the columns it reads exist, does it return None, does it fail?",
    "truncated": "All are cut off and masked: a larger max_completion_length, or no mask_truncated_completions.",
}


def dead_groups(history: History, batch: Batch, least: float) -> Finding | None:
    """Next to no group is alive."""
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
    """Entropy is at a fraction of the first batches', and low."""
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


def _mean(values: Iterable[float | None], least: int) -> float | None:
    """Of those that are known, if there are enough."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) >= max(least, 1) else None


def _share(pairs: Iterable[tuple[int, int]], least: int = 1) -> float | None:
    some, every = added(pairs)
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


def _paid(row: dict[str, Any], history: History) -> bool:
    return reward_of(row) > history.bar()


def _low(row: dict[str, Any], name: str, history: History, sign: float = 1.0) -> bool:
    score = row["rewards"].get(name)
    return not is_score(score) or sign * score <= sign * history.bar(name)


def _together(rows: Rows) -> float:
    """How tokens and reward of a group vary together; 0 where they do not."""
    known = [(r["tokens"], r["reward"]) for r in rows if is_score(r["reward"]) and not r["truncated"]]
    mean = sum(tokens for tokens, _ in known) / max(len(known), 1)
    return sum((tokens - mean) * reward for tokens, reward in known)


def _showing(batch: Batch, test: Callable[[Rows], bool]) -> tuple[Key, ...]:
    """Groups that pass the test, the highest reward first."""
    groups = {key: max(map(reward_of, rows)) for key, rows in by_group(batch.rows).items() if test(rows)}
    return tuple(sorted(groups, key=lambda key: -groups[key])[:_NAMED])


def _among(batch: Batch, keys: Sequence[Key]) -> tuple[Key, ...]:
    return _showing(batch, lambda rows: key_of(rows[0]) in keys)
