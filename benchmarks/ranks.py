"""Measure what a batch costs between ranks, on 8 and on 64 simulated ranks: rows that change rank, bytes, and seconds.

    python benchmarks/ranks.py [--output results.json]

It prints a table with a line for each shape of a batch; all figures are means of five batches. One process plays each
rank in turn. The seconds are processor seconds: for the plan, and for the writing and reading of one rank (median of
eight ranks). They do not include the network, whose seconds are bytes / bandwidth. Attempts have 4 kB of text and 1000
tokens; half of the groups are dead.

"as placed" is what `settle` and `exchange` do: few rows move, and a rank gets its own rows and the table of sizes, 8
bytes for each pair of ranks. The bytes are of the rank that gets most. "as planned" keeps the order in which the
groups were found, and each rank gets and reads everything that is sent, each part padded to the longest one like
torch's object gather does. The column of traces is what the first rank gets.
"""

import argparse
import json
import math
import os
import pickle
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any


os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}

import torch

from trl_grpo_plus.rollouts import exchange, resampling
from trl_grpo_plus.rollouts.groups import Attempt, Partition, Plan, Round, plan_batch
from trl_grpo_plus.traces import SampledBatch, part_of, pick


LENGTH, TOKENS, DEAD = 4000, 1000, 0.5


@dataclass(frozen=True)
class Shape:
    """Shape of a batch: `ranks`, `rows` on each rank, attempts in a group, and whether dead groups are resampled."""

    ranks: int
    rows: int
    size: int
    resample: bool

    def __str__(self) -> str:
        kind = "resample" if self.resample else "drop"
        return f"{self.ranks} ranks x {self.rows} rows, groups of {self.size}, {kind}"


SHAPES = [
    *(Shape(ranks, 64, 8, resample) for ranks in (8, 64) for resample in (False, True)),
    *(Shape(ranks, 8, 16, resample) for ranks in (8, 64) for resample in (False, True)),
]


class Simulated:
    """The attempts of a batch on all ranks, after all rounds."""

    def __init__(self, shape: Shape, seed: int):
        self.shape, rng = shape, random.Random(f"{shape} {seed}")
        self.least = shape.ranks // math.gcd(shape.size, shape.ranks)
        self.target = shape.ranks * shape.rows // shape.size
        words = " ".join(f"{rng.getrandbits(20):x}" for _ in range(50_000))
        tokens = [rng.randrange(150_000) for _ in range(50_000)]
        self.verdicts: list[tuple[str, ...]] = []
        missing = self.target
        while missing > 0 and len(self.verdicts) <= (2 if shape.resample else 0):
            groups = -(-missing // self.least) * self.least
            self.verdicts.append(tuple("tied" if rng.random() < DEAD else "alive" for _ in range(groups)))
            missing -= self.verdicts[-1].count("alive")
        self.attempts: list[list[Attempt]] = []
        for verdicts in self.verdicts:
            starts = [rng.randrange(40_000) for _ in range(len(verdicts) * shape.size)]
            of_round = []
            for row, start in enumerate(starts):
                question = f"Problem {row // shape.size}. {words[:300]}"
                text, ids = words[start : start + LENGTH], tokens[start : start + TOKENS]
                of_round.append(Attempt({"prompt": question, "answer": "42"}, question, tokens[:80], ids, text))
            self.attempts.append(of_round)

    def rounds(self, rank: int) -> list[Round]:
        """Return the rounds as this rank has them: with its own attempts, and the verdicts of all groups."""
        made = []
        for verdicts, attempts in zip(self.verdicts, self.attempts, strict=True):
            share = len(attempts) // self.shape.ranks
            own = tuple(attempts[rank * share : (rank + 1) * share])
            made.append(Round(own, torch.zeros(len(attempts), 1), verdicts))
        return made

    def moved(self, plan: Plan) -> int:
        """Return the number of rows that change rank."""
        share, size = len(plan.order) * self.shape.size // self.shape.ranks, self.shape.size
        held = [len(attempts) // self.shape.ranks for attempts in self.attempts]
        rows = [(r, group * size + k) for r, group in plan.order for k in range(size)]
        return sum(row // held[r] != place // share for place, (r, row) in enumerate(rows))

    def sends(self, rank: int, plan: Plan) -> dict[int, bytes]:
        """Return what `exchange` hands to the collective on this rank: the bytes for each rank."""
        caught: dict[int, bytes] = {}

        def catch(make: Callable[[], Mapping[int, bytes]]) -> list[bytes]:
            caught.update(make())
            raise _Stopped

        with _collective(catch), suppress(_Stopped):
            self.exchange(rank, plan)
        return caught

    def exchange(self, rank: int, plan: Plan) -> list[Attempt]:
        """Return the rank's attempts after the exchange."""
        partition = Partition(self.shape.size, rank, self.shape.ranks)
        return exchange.exchange(self.rounds(rank), plan.order, partition)


class _Stopped(Exception):
    pass


@contextmanager
def _collective(all_to_all: Callable[[Callable[[], Mapping[int, bytes]]], list[bytes]]) -> Iterator[None]:
    before = exchange.all_to_all_made
    exchange.all_to_all_made = all_to_all  # type: ignore[assignment]
    try:
        yield
    finally:
        exchange.all_to_all_made = before


def clocked(call: Callable[[], Any]) -> float:
    """Return the processor seconds of a call, the lowest of three."""
    taken = []
    for _ in range(3):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return min(taken)


def measure(shape: Shape, seed: int) -> dict[str, Any]:
    """Return rows, bytes and seconds of a batch of this shape."""
    batch = Simulated(shape, seed)
    some = range(0, shape.ranks, max(1, shape.ranks // 8))
    planned = plan_batch(batch.rounds(0), batch.target, batch.least, keep_dead=False)
    placed = resampling.settle(batch.rounds(0), "drop", 0, batch.least)
    sent = [batch.sends(rank, placed) for rank in range(shape.ranks)]
    received = [[parcels[rank] for parcels in sent if rank in parcels] for rank in range(shape.ranks)]

    def taken(rank: int) -> float:
        def all_to_all(make: Callable[[], Mapping[int, bytes]]) -> list[bytes]:
            make()
            return received[rank]

        with _collective(all_to_all):
            return clocked(partial(batch.exchange, rank, placed))

    # "as planned": rows in the order in which they were found, and every rank reads everything.
    loose = [[pickle.loads(parcel) for parcel in batch.sends(rank, planned).values()] for rank in range(shape.ranks)]
    plain = [pickle.dumps([row for parcel in of_rank for row in parcel]) for of_rank in loose]
    before = clocked(lambda: (pickle.dumps(loose[0]), [pickle.loads(part) for part in plain]))
    rows = len(planned.order) * shape.size
    traced = [pickle.dumps(part_of(rank, sampled(batch, rank), pick(batch.rounds(rank), None))) for rank in some]
    return {
        "rows": rows,
        "moved": {"as planned": batch.moved(planned) / rows, "as placed": batch.moved(placed) / rows},
        "sent_mb": {"as planned": sum(map(len, plain)) / 1e6, "as placed": sum(map(_size, received)) / 1e6},
        "got_mb": {
            "as planned": shape.ranks * max(map(len, plain)) / 1e6,
            "as placed": (max(map(_size, received)) + 8 * shape.ranks**2) / 1e6,
        },
        "rank_ms": {"as planned": 1000 * before, "as placed": 1000 * statistics.median(map(taken, some))},
        "plan_ms": 1000 * clocked(lambda: resampling.settle(batch.rounds(0), "drop", 0, batch.least)),
        "traces_got_mb": shape.ranks * max(map(len, traced)) / 1e6,
        "traces_read_ms": 1000 * clocked(lambda: [pickle.loads(part) for part in traced]) * shape.ranks / len(traced),
    }


def _size(parcels: list[bytes]) -> int:
    return sum(map(len, parcels))


def mean(figures: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean of each number."""
    return {
        name: mean([one[name] for one in figures])
        if isinstance(figures[0][name], dict)
        else statistics.mean(one[name] for one in figures)
        for name in figures[0]
    }


def sampled(batch: Simulated, rank: int) -> SampledBatch:
    """Return a batch for the recorder, which reads only the attempts here."""
    rounds = batch.rounds(rank)
    nothing = torch.zeros(0)
    return SampledBatch("train", 0, batch.shape.size, {}, rounds, Plan((), ()), nothing, nothing, None, True, {}, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=None, help="also write the figures as JSON")
    options = parser.parse_args()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} cores"
    print(versions)
    print(f"{'':48}{'rows that move':>18}{'MB a rank gets':>20}{'ms of a rank':>18}{'plan':>9}{'traces':>18}")
    figures = {}
    for shape in SHAPES:
        figures[str(shape)] = of = mean([measure(shape, seed) for seed in range(5)])
        moved, got, took = (tuple(of[name].values()) for name in ("moved", "got_mb", "rank_ms"))
        print(
            f"{shape!s:48}{moved[0]:9.1%} {moved[1]:7.1%}{got[0]:11.1f}{got[1]:8.1f}{took[0]:10.1f}{took[1]:8.1f}"
            f"{of['plan_ms']:6.1f} ms{of['traces_got_mb']:7.1f} MB{of['traces_read_ms']:6.1f} ms"
        )
    if options.output:
        options.output.write_text(json.dumps({"versions": versions, "figures": figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
