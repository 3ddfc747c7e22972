"""What memory and choice cost a step, whatever the model: 48 prompts x 2 attempts, a pool of 8 x 48, one core.

    python benchmarks/many_rows.py [--rows 100000 1000000 10000000] [--steps 60]

Prints the median of each part in milliseconds.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import torch

from trl_grpo_plus.curriculum.beliefs import Beliefs
from trl_grpo_plus.curriculum.samplers import LearnabilitySampler
from trl_grpo_plus.rollouts.groups import judge


PROMPTS = 48
PARTS = ("choose", "remember", "metrics of beliefs", "metrics of the selection")


def measured(num_rows: int, steps: int) -> dict[str, float]:
    """Median milliseconds of each part."""
    beliefs, stream, chance = Beliefs(num_rows), LearnabilitySampler(num_rows, 0), torch.Generator().manual_seed(0)
    spent: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def timed(part: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        spent[part].append(1000 * (time.perf_counter() - start))

    for _ in range(steps):
        with timed("choose"):
            rows = stream.take(PROMPTS, lambda row: True, believe=lambda pool: (beliefs.of(pool), beliefs.skill))
        rewards = torch.rand(PROMPTS, 2, generator=chance).round()
        with timed("remember"):
            beliefs.observe(rows, rewards, beliefs.of(rows))
            stream.observe(rows, rewards, judge(rewards))
        with timed("metrics of beliefs"):
            beliefs.metrics()
        with timed("metrics of the selection"):
            stream.metrics()
    return {part: median(times) for part, times in spent.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| rows | {' | '.join(PARTS)} |\n|---|---|---|---|---|")
    for num_rows in options.rows:
        figures = measured(num_rows, options.steps)
        print(f"| {num_rows:,} | {' | '.join(f'{figures[part]:.2f} ms' for part in PARTS)} |", flush=True)


if __name__ == "__main__":
    main()
