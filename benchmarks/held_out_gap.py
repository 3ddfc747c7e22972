"""Measure how late the alarm `held_out_gap` comes, and how often it is false, in simulated runs (docs/alarms.md).

    python benchmarks/held_out_gap.py > benchmarks/results/held_out_gap.md     # half a minute on one core

It prints a table in Markdown. A run has 400 batches, an evaluation every 20 batches, and a training reward that
rises linearly from 0.3 to 0.7. `NOISE` has the standard deviations of a batch and of an evaluation. They are about
those of 0/1 rewards on prompts of mixed difficulty, with 8 prompts x 8 attempts in a batch and 100 prompts in an
evaluation, and half of these, for four times as many prompts. The rule is the package's own, with its defaults.
"""

import argparse
import random
from collections.abc import Callable
from statistics import median

from trl_grpo_plus.traces.alarms import Thresholds
from trl_grpo_plus.traces.alarms.evaluation_history import Evaluations
from trl_grpo_plus.traces.alarms.smoothing import level_of


STEPS, EVERY, SMOOTHED = 400, 20, 20
NOISE = {"64 attempts a batch, 100 an evaluation": (0.12, 0.035), "4 times as many": (0.06, 0.015)}
Curve = Callable[[float], float]


def rises(share: float = 1.0) -> Curve:
    """Return a reward that rises by `share` of the rise of the training reward."""
    return lambda step: 0.3 + share * 0.4 * step / STEPS


def turns(at: int, slope: float = 0.0) -> Curve:
    """Return a reward that rises like the training reward up to evaluation `at`, then by `slope` per evaluation."""
    last, rising = at * EVERY, rises()
    return lambda step: rising(min(step, last)) + slope * max(0, step - last) / EVERY


# The held-out reward, and the evaluation after which it no longer follows the training reward.
LATE: dict[str, tuple[Curve, int]] = {
    "never rises": (rises(0), 0),
    "is flat after the 6th evaluation": (turns(6), 6),
    "falls by 0.01 an evaluation after the 6th": (turns(6, -0.01), 6),
    "falls by 0.02 an evaluation after the 10th": (turns(10, -0.02), 10),
}
# Training reward and held-out reward of runs in which an alarm would be false, or nearly so.
FALSE: dict[str, tuple[Curve, Curve]] = {
    "both flat": (lambda step: 0.4, lambda step: 0.4),
    "both rise alike": (rises(), rises()),
    "held-out rises by three quarters": (rises(), rises(0.75)),
    "held-out rises by half": (rises(), rises(0.5)),
}


def parted(rng: random.Random, train: Curve, held_out: Curve, noise: float, scatter: float) -> int | None:
    """Return the number of the evaluation at which the alarm comes, `None` if it never comes."""
    limits, evaluations = Thresholds(), Evaluations()
    totals = [train(step) + rng.gauss(0, noise) for step in range(STEPS + SMOOTHED)]
    for number, step in enumerate(range(EVERY, STEPS + 1, EVERY), 1):
        evaluations.add(step, held_out(step) + rng.gauss(0, scatter), step)
        end = max(SMOOTHED, step + SMOOTHED // 2)
        evaluations.pair(level_of(totals[end - SMOOTHED : end]), step, limits.held_out_window)
        found = evaluations.parting(limits.held_out_window, limits.held_out_correlation)
        if found is not None and found.size >= limits.held_out_gap and found.gap >= limits.held_out_floor:
            return number
    return None


def simulated(runs: int, train: Curve, held_out: Curve, noise: tuple[float, float]) -> list[int]:
    """Return, for the runs with an alarm, the evaluation at which it came."""
    rng = random.Random(0)
    return [number for _ in range(runs) if (number := parted(rng, train, held_out, *noise)) is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500, help="runs for each cell of table 1 (default: %(default)s)")
    parser.add_argument(
        "--false_runs", type=int, default=2000, help="runs for each cell of table 2 (default: %(default)s)"
    )
    args = parser.parse_args()
    print(f"| held-out reward | {' | '.join(NOISE)} |\n|---|{'---|' * len(NOISE)}")
    for name, (held_out, turn) in LATE.items():
        cells = []
        for noise in NOISE.values():
            came = simulated(args.runs, rises(), held_out, noise)
            cells.append(f"{median(came) - turn:g} ({100 * len(came) / args.runs:.0f} %)" if came else "(0 %)")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print(f"\n| rewards | {' | '.join(NOISE)} |\n|---|{'---|' * len(NOISE)}")
    for name, (train, held_out) in FALSE.items():
        found = [simulated(args.false_runs, train, held_out, noise) for noise in NOISE.values()]
        print(f"| {name} | {' | '.join(f'{100 * len(runs) / args.false_runs:.1f} %' for runs in found)} |", flush=True)


if __name__ == "__main__":
    main()
