r"""Measure how much rows with random rewards are sampled, and what they cost.

    python benchmarks/noise.py --jobs 2                     # some twenty minutes on two cores
    python benchmarks/noise.py --steps 400 --noisy 0 0.1    # a part of it

A toy policy (logistic, 16 features) learns 4,000 rows, 48 prompts x 2 attempts per step. Half of the rows are solved,
a quarter is hopeless, and a quarter can be learnt. The reward of some rows is random, whatever the answer is. The
streams, the beliefs and the advantages are the package's own; no language model is trained. Arms:

- `shuffled`: the belief baseline, rows in shuffled order.
- `never retired`: rows chosen by belief, but rows are never retired.
- `chosen`: rows chosen by belief, as `prompt_selection: belief` chooses them (trl_grpo_plus/curriculum/resting.py).

It prints for each arm, as means over seeds: the share of noisy rows among the sampled rows in the first and in the
last third of the steps; the probability of a right answer on the rows without noise that can be learnt (with its
standard deviation); and the skill of the beliefs in the last third. For real training with such noise, run
benchmarks/to_target.py --conditions noisy.
"""

import argparse
import itertools
import os
from concurrent.futures import ProcessPoolExecutor
from statistics import fmean, stdev
from types import SimpleNamespace


os.environ["OMP_NUM_THREADS"] = "1"

import torch

from trl_grpo_plus.curriculum.belief_store import BeliefStore
from trl_grpo_plus.curriculum.resting import RestSchedule
from trl_grpo_plus.curriculum.samplers import LearnabilitySampler, ShuffleSampler
from trl_grpo_plus.objective.advantages import Normalization, compute
from trl_grpo_plus.objective.credit import BELIEF_FLOOR
from trl_grpo_plus.objective.group_batch import GroupBatch
from trl_grpo_plus.rollouts.groups import judge
from trl_grpo_plus.rollouts.verdicts import DEAD_BESIDE_A_BELIEF


ARMS = ("shuffled", "never retired", "chosen")
ROWS, PROMPTS, GROUP, FEATURES, RATE = 4000, 48, 2, 16, 0.01
SURPRISE = Normalization("belief", "prior", floor=BELIEF_FLOOR)
CONFIG = SimpleNamespace(
    multi_objective_aggregation="sum_then_normalize",
    filter_metric="total",
    chooses_prompts=True,
    belief_key=None,
    failed_reward=0.0,
    solved_reward=1.0,
    seed=0,
    remove_unused_columns=False,
)


class Rows(list[dict[str, str]]):
    """A dataset without columns, so that only the index identifies a row."""

    column_names = ()


class NeverRetired(RestSchedule):
    """Rests for solved and stuck rows only: no row is retired."""

    limit = 1_000_000


def stream_of(arm: str, seed: int) -> ShuffleSampler | LearnabilitySampler:
    """Return the stream from which an arm draws its rows."""
    if arm == "shuffled":
        return ShuffleSampler(ROWS, seed)
    stream = LearnabilitySampler(ROWS, seed)
    if arm == "never retired":
        stream._rests = NeverRetired(ROWS)
    return stream


def run(arm: str, noisy: float, steps: int, seed: int) -> tuple[float, float, float, float]:
    """Train the toy policy, and return the figures of the table."""
    torch.set_num_threads(1)
    chance = torch.Generator().manual_seed(seed)
    kind = torch.rand(ROWS, generator=chance)
    features = torch.randn(ROWS, FEATURES, generator=chance) / 4
    features[:, 0] = 1.0  # the feature that all learnable rows share
    base = torch.randn(ROWS, generator=chance) - 3.0
    base[kind < 0.5], base[kind > 0.75] = 5.0, -9.0
    features[(kind < 0.5) | (kind > 0.75)] = 0.0
    coin = torch.rand(ROWS, generator=chance) < noisy
    clean = (kind >= 0.5) & (kind <= 0.75) & ~coin

    weights = torch.zeros(FEATURES, requires_grad=True)
    optimizer = torch.optim.Adam([weights], lr=RATE)
    memory, stream = BeliefStore(CONFIG, Rows([{"prompt": ""}] * ROWS), ["right"], [1.0]), stream_of(arm, seed)
    chance = torch.Generator().manual_seed(seed + 99)
    shares, skills = [], []
    for _ in range(steps):
        rows = torch.tensor(stream.take(PROMPTS, lambda row: True, 1, None, memory.candidate_beliefs))
        believed = memory.credited(rows.tolist())[0]
        logits = base[rows] + features[rows] @ weights
        right = torch.rand(PROMPTS, GROUP, generator=chance) < logits.sigmoid().detach()[:, None]
        tossed = torch.rand(PROMPTS, GROUP, generator=chance) < 0.5
        reward = torch.where(coin[rows][:, None], tossed, right).float()
        verdicts = judge(reward)
        teaching = torch.tensor([verdict not in DEAD_BESIDE_A_BELIEF for verdict in verdicts])
        advantages = compute(reward, SURPRISE, GroupBatch(beliefs=(believed,), teaching=teaching))
        logps = torch.nn.functional.logsigmoid((2.0 * right - 1.0) * logits[:, None])
        optimizer.zero_grad()
        (-(advantages * logps)[teaching].sum() / max(int(teaching.sum()) * GROUP, 1)).backward()
        optimizer.step()
        memory.observe(rows.tolist(), reward.unsqueeze(-1))
        stream.observe(rows.tolist(), reward, verdicts)
        shares.append(float(coin[rows].float().mean()))
        skills.append(memory.metrics()["beliefs/skill"])
    third = steps // 3
    accuracy = float((base + features @ weights.detach()).sigmoid()[clean].mean())
    return fmean(shares[:third]), fmean(shares[-third:]), accuracy, fmean(skills[-third:])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, nargs="+", default=[400, 1600])
    parser.add_argument(
        "--noisy",
        type=float,
        nargs="+",
        default=[0.0, 0.02, 0.05, 0.1, 0.2],
        help="shares of rows that get a coin as their reward",
    )
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    cells = list(itertools.product(options.steps, options.noisy, options.arms))
    print("| steps | noisy rows | | first third | last third | right, clean rows | skill |")
    print("|---|---|---|---|---|---|---|", flush=True)
    with ProcessPoolExecutor(options.jobs) as pool:
        runs = {cell: [pool.submit(run, cell[2], cell[1], cell[0], seed) for seed in options.seeds] for cell in cells}
        for (steps, noisy, arm), started in runs.items():
            first, last, accuracies, skills = zip(*(each.result() for each in started), strict=True)
            spread = f" ± {stdev(accuracies):.3f}" if len(accuracies) > 1 else ""
            shares = f"{fmean(first):.3f} | {fmean(last):.3f} | {fmean(accuracies):.3f}{spread}"
            print(f"| {steps:,} | {noisy:.0%} | {arm} | {shares} | {fmean(skills):.2f} |", flush=True)


if __name__ == "__main__":
    main()
