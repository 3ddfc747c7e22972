"""Measure what beliefs and the choice of prompts cost with many rows. The costs do not depend on the model.

    python benchmarks/many_rows.py [--rows 100000 1000000 10000000] [--steps 60]

It prints four tables: the median milliseconds of each part of a step; seconds and bytes of a run's start; megabytes
of a checkpoint and the seconds to write and to read it, after these steps; the same once every row was visited. A
checkpoint is written three times, and read as often. Its seconds are by the clock, until the disk has it, and the
processor's in brackets; each is the least of three. A step samples 48 prompts x 2 attempts from a pool of 8 x 48, on
one core. The training set has a column of 20 levels (`belief_key`) and a column of texts that identify the rows
(`belief_id`). "The set in another order" is read with a shuffled set, in which each id is looked up.
"""

import argparse
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import torch
from datasets import Dataset

from trl_grpo_plus import GRPOPlusConfig
from trl_grpo_plus.curriculum.belief_store import BeliefStore
from trl_grpo_plus.curriculum.beliefs import Beliefs
from trl_grpo_plus.curriculum.row_ids import RowIds
from trl_grpo_plus.curriculum.samplers import LearnabilitySampler
from trl_grpo_plus.rollouts.groups import judge
from trl_grpo_plus.utils.dataset_rows import encoded_column


PROMPTS = 48
PARTS = ("choose", "remember", "metrics of beliefs", "metrics of the selection")
STARTS = ("beliefs and choice", "`belief_key`", "`belief_id`", "bytes a row", "more with `belief_key`")


def training_set(num_rows: int) -> Dataset:
    """Return rows with a level and an id."""
    levels = np.random.default_rng(0).integers(0, 20, num_rows)
    return Dataset(pa.table({"level": levels, "id": pa.array(np.arange(num_rows)).cast(pa.string())}))


def memory(train_set: Dataset, belief_id: str | None = "id") -> BeliefStore:
    """Return a run's beliefs about one reward."""
    options: dict[str, Any] = {"use_cpu": True, "bf16": False, "report_to": "none", "num_generations": 2}
    options |= {"prompt_selection": "belief", "advantage_baseline": "belief", "scale_rewards": "prior"}
    return BeliefStore(
        GRPOPlusConfig("unused", belief_key="level", belief_id=belief_id, **options), train_set, ["reward"], [1.0]
    )


def started(train_set: Dataset) -> dict[str, float]:
    """Return the figures of a run's start."""
    figures: dict[str, float] = {}
    num_rows = len(train_set)
    with _timed(figures, "`belief_id`"):
        RowIds(train_set, "id").check()
    with _timed(figures, "`belief_key`"):
        keys = encoded_column(train_set, "level")
    assert keys is not None
    with _timed(figures, "beliefs and choice"):
        beliefs, sampler = Beliefs(num_rows, keys=keys), LearnabilitySampler(num_rows, 0)
    in_all = _bytes(beliefs) + _bytes(sampler)
    figures["more with `belief_key`"] = keys.codes.nbytes / num_rows
    figures["bytes a row"] = in_all / num_rows - figures["more with `belief_key`"]
    return figures


def stepped(store: BeliefStore, sampler: LearnabilitySampler, steps: int) -> dict[str, float]:
    """Return the median milliseconds of each part of a step."""
    chance = torch.Generator().manual_seed(0)
    spent: dict[str, list[float]] = defaultdict(list)
    for _ in range(steps):
        figures: dict[str, float] = {}
        with _timed(figures, "choose"):
            rows = sampler.take(PROMPTS, lambda row: True, believe=store.candidate_beliefs)
        rewards = torch.rand(PROMPTS, 2, generator=chance).round()
        with _timed(figures, "remember"):
            store.observe(rows, rewards.unsqueeze(-1))
            sampler.observe(rows, rewards, judge(rewards))
        with _timed(figures, "metrics of beliefs"):
            store.metrics()
        with _timed(figures, "metrics of the selection"):
            sampler.metrics()
        for part, seconds in figures.items():
            spent[part].append(1000 * seconds)
    return {part: median(times) for part, times in spent.items()}


def saved(store: BeliefStore, sampler: LearnabilitySampler, read_by: BeliefStore | None = None) -> str:
    """Return the megabytes of a checkpoint, and the seconds for writing and reading it, as a cell of the table.

    `read_by` is the store that reads it, by default the one that wrote it.
    """
    tries = [_saved(store, sampler, read_by or store) for _ in range(3)]
    least = {name: min(figures[name] for figures in tries) for name in tries[0]}
    times = (f"{least[name]:.2f} s ({least[name + ' cpu']:.2f})" for name in ("write", "read"))
    return ", ".join((f"{least['MB']:.1f} MB", *times))


def _saved(store: BeliefStore, sampler: LearnabilitySampler, read_by: BeliefStore) -> dict[str, float]:
    figures: dict[str, float] = {}
    with tempfile.NamedTemporaryFile() as file:
        with _timed(figures, "write"), _timed(figures, "write cpu", time.process_time):
            state = {"memory": store.state_dict(sampler.visited_rows), "choice": sampler.state_dict()}
            torch.save(state, file.name)
            os.fsync(file.fileno())
        figures["MB"] = os.path.getsize(file.name) / 1e6
        del state
        with _timed(figures, "read"), _timed(figures, "read cpu", time.process_time):
            state = torch.load(file.name, weights_only=True)
            read_by.load_state_dict(state["memory"])
            LearnabilitySampler(sampler._num_prompts, 0).load_state_dict(state["choice"], read_by.moved)
    return figures


def visit_all(store: BeliefStore, sampler: LearnabilitySampler, num_rows: int) -> None:
    """Record one visit of every row."""
    for start in range(0, num_rows, 100_000):
        rows = range(start, min(start + 100_000, num_rows))
        rewards = torch.ones(len(rows), 2)
        store.observe(rows, rewards.unsqueeze(-1))
        sampler.observe(rows, rewards, ["all_good"] * len(rows))
    sampler._dealt.fill_(0)


@contextmanager
def _timed(figures: dict[str, float], name: str, clock: Callable[[], float] = time.perf_counter) -> Iterator[None]:
    start = clock()
    yield
    figures[name] = clock() - start


def _bytes(holder: Any) -> int:
    """Return the total bytes of all tensors and arrays that an object of the package holds."""
    parts = [getattr(holder, name) for name in vars(holder)]
    ours = [part for part in parts if type(part).__module__.startswith("trl_grpo_plus")]
    arrays = [part for part in parts if hasattr(part, "itemsize") and len(getattr(part, "shape", [0]))]
    return sum(part.itemsize * (part.numel() if hasattr(part, "numel") else len(part)) for part in arrays) + sum(
        map(_bytes, ours)
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tables: list[list[str]] = [[], [], [], []]
    for num_rows in options.rows:
        train_set = training_set(num_rows)
        start = started(train_set)
        store, sampler = memory(train_set), LearnabilitySampler(num_rows, 0)
        steps = stepped(store, sampler, options.steps)
        without, shuffled = memory(train_set, belief_id=None), memory(train_set.shuffle(seed=0))
        without.load_state_dict(store.state_dict())
        some = saved(without, sampler), saved(store, sampler)
        visit_all(store, sampler, num_rows)
        without.load_state_dict(store.state_dict())
        everything = saved(without, sampler), saved(store, sampler), saved(store, sampler, shuffled)
        tables[0].append(f"| {num_rows:,} | {' | '.join(f'{steps[part]:.2f} ms' for part in PARTS)} |")
        seconds = " | ".join(f"{start[name]:.2f} s" for name in STARTS[:3])
        tables[1].append(f"| {num_rows:,} | {seconds} | {' | '.join(f'{start[name]:.0f}' for name in STARTS[3:])} |")
        tables[2].append(f"| {num_rows:,} | {' | '.join(some)} |")
        tables[3].append(f"| {num_rows:,} | {' | '.join(everything)} |")
    after = (f"after {options.steps} steps", "the same with `belief_id`")
    visited = ("every row visited", "the same with `belief_id`", "the set in another order")
    for heads, lines in zip((PARTS, STARTS, after, visited), tables, strict=True):
        print(f"\n| rows | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 1)}", *lines, sep="\n")


if __name__ == "__main__":
    main()
