"""Alarms for logged metrics that diverge. A log entry is a mean over `logging_steps`."""

from .. import Sampled
from .history import History
from .metric_history import RUNAWAYS, SAMPLER
from .types import Finding


_ADVICE = {
    "kl": "The policy leaves the reference ever faster, or a few tokens do (k3 is exponential in them, k2 is not). Do "
    "attempts still read as language? A lower learning rate, a larger beta or kl_target hold it.",
    "grad_norm": "Updates are about to break the policy, or do. Look at the attempts and advantages of these steps; a "
    "lower learning rate, more rows a step, or clipping (max_grad_norm) help.",
}


def runaway(history: History, batch: Sampled, least: float) -> Finding | None:
    """Detect a KL or gradient norm that is many times its own running median.

    The median of the last 7 logged values is compared with the median of up to `window` values before them, at least
    10. The level does not matter, but a KL below `kl_floor` and a norm below `grad_norm_floor` are no alarm. Values
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
    seen = [f"{one} is {g.now:.3g}, its running median {g.was:.3g}, since step {g.since}" for one, g in found.items()]
    return Finding(found[name].now / found[name].was, least, "; ".join(seen), _ADVICE[name])


def sampler_drift(history: History, batch: Sampled, least: float) -> Finding | None:
    """Detect a growing difference between the sampler's and the trainer's log-probabilities of the same tokens.

    The quantity is the mean difference in nats per token, as TRL logs it with vLLM, or else as this package's check of
    the sampler logs it. The median of the last 5 logged values is compared with the median of the first 5. A
    difference below `sampler_floor` is no alarm.
    """
    floor = history.thresholds.sampler_floor
    for name in SAMPLER:
        growth = history.logged[name].over_its_start(least, floor) if name in history.logged else None
        if growth is not None:
            return Finding(
                growth.now / growth.was,
                least,
                f"log-probabilities of sampler and trainer differ by {growth.now:.3g} nats a token ({name}), "
                f"{growth.was:.3g} at first; so since step {growth.since}",
                "Does the engine get each step's weights, the adapter too? If so its numerics drift: an importance "
                "correction (vllm_importance_sampling_correction), a higher precision of the engine, or fewer steps a "
                "batch. Until then the gradient is off-policy.",
            )
    return None
