r"""Compare rewards on word problems: for the answer alone, or also for each line of the working.

    python benchmarks/steps.py --quick                      # minutes: one seed, a tenth of the rollouts
    python benchmarks/steps.py --jobs 2                     # five seeds: hours
    python benchmarks/steps.py --report                     # the table of the runs done so far, no training

It prints a table of held-out accuracy at the end. Model, problems and measure are those of benchmarks/to_target.py,
family `word_problems`, with the same number of rollouts for all arms and a learning rate that falls to 0. All arms
sample groups of eight and drop dead groups; `ARMS` says what is rewarded. Each run appends one line of JSON to the
results file. Runs with a line are not repeated.
"""

import argparse
import os
import sys
from pathlib import Path


os.environ.setdefault("OMP_NUM_THREADS", "1")

import to_target
from families import CONDITIONS


RESULTS = Path("benchmarks/results/steps-cpu.jsonl")
WEIGHT = 0.5  # of the reward of lines; the reward of the answer has weight 1
LINES = ({"name": "steps_check", "weight": WEIGHT},)


def _arm(process: str | None = None, lines: bool = True) -> to_target.Arm:
    config = {"num_generations": 8, "zero_variance_groups": "drop", "step_reward_credit": process}
    return to_target.Arm(config, rewards=LINES if lines else ())


ARMS = {"answer": _arm(lines=False), "sum": _arm(), "to_go": _arm("to_go"), "own": _arm("own")}


def main() -> int:
    """Run what has no line yet, then report; with `--report` only report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--condition", choices=CONDITIONS, default="hard")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--rate", type=float, default=1.0, help="learning rate, as a multiple of the family's")
    to_target.run_options(parser, RESULTS, "one seed, a tenth of the rollouts")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.share, options.results = [1], 0.1, Path("outputs/steps-quick.jsonl")
    to_target.ARMS.update(ARMS)
    to_target.settle()
    specs = [
        to_target.Spec("word_problems", options.condition, arm, seed, options.rate, "1", options.share)
        for seed in options.seeds
        for arm in options.arms
    ]
    failed = 0 if options.report else to_target.run_all(specs, options.results, options.jobs)
    if lines := to_target.read(options.results):
        table = to_target.report(lines, None)
        options.results.with_suffix(".md").write_text(f"{table}\n")
        print(table)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
