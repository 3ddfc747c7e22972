"""Alarms for logged metrics. A log entry is a mean over `logging_steps`, or an evaluation."""

import statistics

from ...utils.text import percent
from .. import Row, SampledBatch
from .evaluation_history import Parting
from .examples import paid, showing
from .history import ROOM, History
from .metric_history import FAILURES, LAST, RUNAWAYS, SAMPLER
from .types import Finding


_ADVICE = {
    "kl": "The policy moves away from the reference faster and faster, or a few tokens do (k3 is exponential in them, "
    "k2 is not). Do attempts still read as language? Lower the learning rate, or raise beta, or set kl_target.",
    "grad_norm": "Updates may soon break the policy, or have broken it. Look at the attempts and advantages of these "
    "steps. A lower learning rate, more rows in each step, or clipping (max_grad_norm) helps.",
}


def runaway(history: History, batch: SampledBatch, least: float) -> Finding | None:
    """Detect a KL or gradient norm that is many times its own running median.

    The median of the last 7 logged values is compared with the median of up to `window` values before them, at least
    10. The level does not matter, but a KL below `kl_floor` and a norm below `grad_norm_floor` raise no alarm. Values
    that are 0 or not finite are left out.
    """
    floors = {"kl": history.thresholds.kl_floor, "grad_norm": history.thresholds.grad_norm_floor}
    found = {
        name: growth
        for name in RUNAWAYS
        if name in history.logged and (growth := history.logged[name].over_its_median(least, floors[name])) is not None
    }
    if not found:
        return None
    name = max(found, key=lambda one: found[one].now / found[one].was)
    observation = "; ".join(
        f"{one} is {g.now:.3g}, its running median {g.was:.3g}, since step {g.since}" for one, g in found.items()
    )
    return Finding(found[name].now / found[name].was, least, observation, _ADVICE[name])


def sampler_drift(history: History, batch: SampledBatch, least: float) -> Finding | None:
    """Detect a growing difference between the sampler's and the trainer's log-probabilities of the same tokens.

    The quantity is the mean difference in nats per token, as TRL logs it with vLLM, or else as this package's check of
    the sampler logs it. The median of the last 5 logged values is compared with the median of the first 5. A
    difference below `sampler_floor` raises no alarm.
    """
    floor = history.thresholds.sampler_floor
    for name in SAMPLER:
        growth = history.logged[name].over_its_start(least, floor) if name in history.logged else None
        if growth is not None:
            return Finding(
                growth.now / growth.was,
                least,
                f"since step {growth.since} log-probabilities of sampler and trainer differ by {growth.now:.3g} nats "
                f"a token ({name}); at first they differed by {growth.was:.3g}",
                "Check that the engine gets the weights of each step, with the adapter. If it does, its numerics "
                "drift. Then set an importance correction (vllm_importance_sampling_correction), a higher precision "
                "of the engine, or fewer steps for each batch. Until then the gradient is off-policy.",
            )
    return None


def tool_failures(history: History, batch: SampledBatch, least: float) -> Finding | None:
    """Detect that many calls of tools fail: there is no such tool, it gets other arguments, or it raises an error.

    The quantity is the median of the last 5 logged values of TRL's `tools/failure_frequency`. An entry without a call
    is left out. An entry over several steps is TRL's mean of their shares. There a step without a call counts as 0.
    """
    shares = [share for _, share in history.logged[FAILURES].last[-LAST:]] if FAILURES in history.logged else []
    if len(shares) < LAST or (now := statistics.median(shares)) < least:
        return None
    return Finding(
        now,
        least,
        f"{percent(now)} of the calls of tools fail ({FAILURES})",
        "Read the answers of the tools: TRL gives the model the error. A tool that is down, or a key that is missing, "
        "fails in each call. Then the policy learns to do without the tool. If the calls are wrong, tell the model in "
        "the prompt how to call, or train it on examples first.",
        showing(batch, lambda rows: any(map(_has_failed_call, rows))),
    )


def _has_failed_call(row: Row) -> bool:
    """Return whether a tool's answer in an attempt is an error as TRL writes it."""
    messages = row["completion"] if isinstance(row["completion"], list) else []
    answers = [str(message.get("content")) for message in messages if message.get("role") == "tool"]
    return any(answer.startswith("{'error': ") for answer in answers)


def held_out_gap(history: History, batch: SampledBatch, least: float) -> Finding | None:
    """Detect that the training reward rises while the held-out reward of an evaluation split does not, or falls.

    Each evaluation is paired with the mean total of the batches around it. This mean is smoothed as in
    [`reward_collapse`] and covers all sampled attempts, before groups are dropped. [`Evaluations.parting`] decides
    whether the two rewards have parted over the last `held_out_window` evaluations.

    The quantity is how much the gap (training less held-out) has grown since the run's first two evaluations, in
    standard errors: the scatter of the batches and of the evaluations about their line, pooled. Growth below
    `held_out_floor`, as a share of the range of totals, raises no alarm. Nor does a held-out reward near the highest
    total, unless it surely falls by at least this share. If the order of the prompts is chosen, there is no alarm,
    because the training reward is then about the chosen prompts.
    """
    low, high = history.total_range or (0.0, 0.0)
    span, found = high - low, dict[str, Parting]()
    for split, evaluations in history.evaluations.items():
        parting = evaluations.parting(history.thresholds.held_out_window, history.thresholds.held_out_correlation)
        floor = history.thresholds.held_out_floor * span
        if parting is None or parting.size < least or parting.gap < floor:
            continue
        if high - parting.pairs[-1].held_out >= ROOM * span or parting.fall >= floor:
            found[split] = parting
    if not found:
        return None
    split = max(found, key=lambda one: found[one].size)
    one, best = found[split], history.evaluations[split].best
    old, new = one.pairs[0], one.pairs[-1]
    top = f", its best was {best[1]:.3g} at step {best[0]}" if best is not None else ""
    return Finding(
        one.size,
        least,
        f"over the last {len(one.pairs)} evaluations of {split!r} (steps {old.step} to {new.step}) the training "
        f"reward rose from {old.train.mean:.3g} to {new.train.mean:.3g}, the held-out reward went from "
        f"{old.held_out:.3g} to {new.held_out:.3g} (rank correlation {one.correlation:+.2f}){top}; since the first "
        f"evaluations the gap grew by {one.gap:.3g}, {one.size:.3g} standard errors",
        "The policy now learns only what helps on the training prompts. On the page, compare attempts of these groups "
        "with held-out attempts. To be sure, evaluate more often or on more prompts. A larger beta, fewer epochs or "
        "more prompts can help. Otherwise stop, and take the checkpoint of the best evaluation.",
        showing(batch, lambda rows: all(paid(row, history) for row in rows)),
    )
