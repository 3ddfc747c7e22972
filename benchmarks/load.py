r"""Measure what large batches cost, and what hundreds of them leave behind: a step without the model.

    python benchmarks/load.py [--steps 500] [--math-in 16] [--output results.json]
    python benchmarks/load.py --steps 4 --math-in 1         # every row is a mathematics problem
    python benchmarks/load.py --groups 64 --trim            # memory without what the C allocator holds back

A batch has 256 groups of 16 attempts of 4 kB. The package's own objects do what they do in training: they choose
prompts by belief, compute rewards in this process and in workers, judge groups, resample one round, plan the batch,
compute advantages with beliefs as the baseline, write traces, check alarms, and update the beliefs. Completions are
slices of made-up words. There is neither a model nor TRL: nothing waits for a device, and the thread that writes
traces cannot overlap with training.

It prints how long each part holds up the training thread (median over the steps), and the processor time of that
thread, of the other threads and of the workers. Memory is the resident size of this process. One row in `--math-in` is
a mathematics problem, whose `math_answer` costs more than everything else together. The traces of a step are removed
two steps later. Ctrl-C ends the run and prints what was measured.
"""

import argparse
import ctypes
import gc
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import threading
import time
import warnings
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}

import psutil
import torch
from accelerate import Accelerator
from datasets import Dataset

from trl_grpo_plus import GRPOPlusConfig
from trl_grpo_plus.curriculum.indexed_dataset import IndexedRows
from trl_grpo_plus.objective.credit import Credit
from trl_grpo_plus.objective.group_batch import GroupBatch
from trl_grpo_plus.registry import resolve
from trl_grpo_plus.rollouts.exchange import carried, exchange
from trl_grpo_plus.rollouts.groups import Round, judge_batch, totals
from trl_grpo_plus.rollouts.resampling import groups_at_least, resample, settle
from trl_grpo_plus.scoring import Scoring, configure, shared
from trl_grpo_plus.traces import SampledBatch
from trl_grpo_plus.trainer.batch import Batch, Filtered, Generated
from trl_grpo_plus.trainer.prompt_source import PromptSource
from trl_grpo_plus.trainer.recorder import Recorder


GROUPS, SIZE, LENGTH = 256, 16, 4000  # groups, attempts in each, characters in each
ROWS = 20_000
EOS = 1
REWARDS: list[dict[str, Any]] = [
    {"name": "exact_answer", "timeout": 5.0},  # the time limit makes it run in the workers
    {"name": "math_answer", "args": {"column": "math"}},
    {"name": "think_format", "weight": 0.1},
    {"name": "overlong", "args": {"max_length": 4096, "cache": 512}},
]


class Load:
    """A run without a model.

    Args:
        folder (`Path`): folder of the traces.
        groups, size, length (`int`): groups in a step, attempts in a group, characters in an attempt.
        math_in (`int`): one row in this many is a mathematics problem.
        rewards (`Sequence[dict]`): entries of `reward_funcs`.
    """

    def __init__(
        self,
        folder: Path,
        groups: int = GROUPS,
        size: int = SIZE,
        length: int = LENGTH,
        math_in: int = 16,
        rewards: Sequence[dict[str, Any]] = REWARDS,
    ):
        # Arrays hold no Python objects. The benchmark counts objects, to see whether some are never freed.
        self.seconds: dict[str, array[float]] = {}
        self.attempts, self.bytes = array("l"), array("l")  # attempts of each step, bytes of its traces
        self._step, self._size, self._folder = 0, size, folder
        rows = max(ROWS if groups == GROUPS else 0, 8 * groups)
        data = Dataset.from_dict(
            {
                "prompt": [f"Problem {row}: what is {row} less {row // 2}?" for row in range(rows)],
                "answer": [str(row - row // 2) for row in range(rows)],
                "math": [rf"\frac{{{row}}}{{{row + 1}}}" if row % math_in == 0 else None for row in range(rows)],
            }
        )
        functions, weights = resolve(list(rewards))
        assert weights is not None
        self.args = args = GRPOPlusConfig(
            output_dir=str(folder),
            bf16=False,
            use_cpu=True,
            report_to="none",
            per_device_train_batch_size=groups * size,
            num_generations=size,
            reward_weights=weights,
            zero_variance_groups="resample",
            max_resample_rounds=1,
            prompt_selection="belief",
            advantage_baseline="belief",
            scale_rewards="prior",
        )
        configure(args.reward_workers, args.reward_worker_memory_mb)
        self._functions, self._names = functions, [function.__name__ for function in functions]
        self._weights, self._accelerator = torch.tensor(weights), Accelerator(cpu=True)
        self._rows = IndexedRows(data)
        about = (self._names, weights, self._accelerator)
        self._prompts = PromptSource(args, data, *about, states=lambda rows: torch.zeros(len(rows), 0))
        self._credit = Credit(args)
        self._recorder = Recorder(args, self._names, weights, rank=0)
        self._recorder.begin(0, max_steps=1_000_000)
        rng = random.Random(0)
        self._words = " ".join(f"{rng.getrandbits(20):x}" for _ in range(100_000))
        self._tokens = [rng.randrange(2, 30_000) for _ in range(100_000)]
        self._length, self._count = length, groups * size

    def step(self) -> None:
        """Process one batch, from the choice of prompts to the update of beliefs."""
        self._rng = random.Random(self._step)
        self._batch = batch = Batch(
            self._accelerator, self._size, [{} for _ in range(self._count)], [None] * self._count
        )
        with self._clocked("prompts are chosen"):
            self._prompts.begin(batch, self._read)
        first, partition = self._sample(batch.inputs), batch.partition
        assert self._prompts.draw is not None
        drawn_from = (batch.inputs, batch.input_indices, self._prompts.draw, self._read, partition)
        batch.rounds = resample(first, self._sample, *drawn_from, self.args.max_resample_rounds)
        with self._clocked("filter, plan and exchange"):
            plan = settle(batch.rounds, self.args.resample_fallback, self._step, groups_at_least(self.args, 1))
            attempts = exchange(batch.rounds, plan.order, partition)
            batch.filtered = Filtered(plan, attempts)
            Generated.of(attempts, *carried(attempts, "1.16.0")[:2])
        with self._clocked("advantages"):
            lengths = torch.tensor([attempt.num_tokens for attempt in attempts])[: sum(plan.live) * self._size]
            lengths = lengths.view(-1, self._size)
            of_groups = ((sum(plan.live), self._size), batch.rewards, self._weights)
            group_batch = GroupBatch(lengths=lengths, **self._prompts.group_batch_fields(batch))
            advantages = self._credit.advantages(*of_groups, group_batch)
        with self._clocked("traces: the batch before is awaited"):
            self._recorder.settle()
        with self._clocked("traces: handed over"):
            self._recorder.record(self._sampled(batch, advantages), traced=True)
        with self._clocked("remembered"):
            self._prompts.remember(batch)
        self.attempts.append(len(batch.sampled))
        self._tidy(self._step - 2)
        self._step += 1

    def close(self) -> None:
        """End the run and remove its traces."""
        self._recorder.end()
        for step in range(max(self._step - 2, 0), self._step):
            self._tidy(step)
        shared().close()

    def workers(self) -> list[psutil.Process]:
        """Return the reward workers, and the process that forks them."""
        return psutil.Process().children(recursive=True)

    def _read(self, indices: list[int]) -> list[dict[str, Any]]:
        rows = self._rows.__getitems__(indices)
        return [{name: value for name, value in row.items() if name in ("prompt", "answer", "math")} for row in rows]

    def _sample(self, inputs: list[dict[str, Any]]) -> Round:
        """Make up a round of completions in place of the generator, and score and judge it like the trainer."""
        batch, size, prompts = self._batch, self._size, [row["prompt"] for row in inputs]
        with self._clocked("(completions are made up)"):
            texts = [self._completion(row) for row in inputs]
            starts = [self._rng.randrange(50_000) for _ in inputs]
            ids = [[*self._tokens[start : start + self._length // 4], EOS] for start in starts]
            prompt_ids = [self._tokens[:80] for _ in inputs]
            batch.generated = Generated(prompt_ids, ids, None, texts, None, {}, None, [])
        with self._clocked("rewards"):
            scoring = Scoring(self._functions, self._names)
            columns = {name: [row[name] for row in inputs] for name in inputs[0]}
            given = {**columns, "prompts": prompts, "completions": texts, "completion_ids": ids}
            scores = [function(**given) for function in scoring.functions]
            rewards = torch.tensor([[torch.nan if s is None else s for s in column] for column in scores]).T
        with self._clocked("filter, plan and exchange"):
            attempts = batch.attempts(scoring, inputs, prompts, {}, {EOS})
            counted = batch.count(scoring, attempts, False, rewards)
            judged = judge_batch(self.args, rewards, self._weights, self._names, size, counted.loss_tokens > 0)
            return Round(
                attempts, rewards, tuple(judged), self.args.dead, batch.row_indices, outcomes=counted.outcomes
            )

    def _completion(self, row: dict[str, Any]) -> str:
        """Return a completion. The answer decides whether its prompt is solved never, sometimes or always."""
        start = self._rng.randrange(200_000)
        often = (0.0, 0.4, 0.6, 1.0)[int(row["answer"]) % 4]
        solved = self._rng.random() < often
        if row["math"] is None:
            answer = row["answer"] if solved else "none"
            return f"<think>{self._words[start : start + self._length]}</think>\n<answer>{answer}</answer>"
        answer = row["math"] if solved else rf"\frac{{1}}{{{self._rng.randrange(2, 99)}}}"
        return f"<think>{self._words[start : start + self._length]}</think>\nThe answer is \\boxed{{{answer}}}."

    def _sampled(self, batch: Batch, advantages: torch.Tensor) -> SampledBatch:
        return SampledBatch(
            split="train",
            step=self._step,
            size=self._size,
            weights=self._recorder.weights,
            rounds=batch.rounds,
            plan=batch.plan,
            totals=totals(batch.sampled, self._weights),
            advantages=advantages,
            kl=None,
            alike=True,
            failing=dict(zip(self._recorder.weights, batch.failing, strict=True)),
            entropy=1.0,
            beliefs=self._prompts.believed(batch),
        )

    def _tidy(self, step: int) -> None:
        path = self._folder / "rollouts" / f"train-{step:08d}.jsonl"
        if path.exists():
            self.bytes.append(path.stat().st_size)
            path.unlink()

    @contextmanager
    def _clocked(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        spent = self.seconds.setdefault(what, array("d"))
        spent.extend([0.0] * (self._step + 1 - len(spent)))
        spent[self._step] += time.perf_counter() - start


def measure(folder: Path, steps: int, trim: bool = False, **sizes: Any) -> dict[str, Any] | None:
    """Measure a run, from before it begins until all its objects and processes are gone.

    Args:
        folder (`Path`): folder of the traces.
        steps (`int`): number of steps.
        trim (`bool`): whether the C allocator gives free memory back before memory is measured.
        sizes: arguments of [`Load`].

    Returns:
        `dict`: the figures, `None` if Ctrl-C ended the run before anything was measured.
    """
    shared().close()  # end the workers of earlier scoring in this process
    process, rss, blocks = psutil.Process(), array("d"), array("l")
    before = _left(process)
    load = Load(folder, **sizes)
    start, cpu, here = time.perf_counter(), time.process_time(), time.thread_time()
    try:
        for step in range(1, steps + 1):
            load.step()
            if trim:
                ctypes.CDLL(None).malloc_trim(0)
            rss.append(process.memory_info().rss / 2**20)
            if step % 10 == 0:
                gc.collect()
                blocks.append(sys.getallocatedblocks())
    except KeyboardInterrupt:
        steps = len(rss)
    took, cpu, here = time.perf_counter() - start, time.process_time() - cpu, time.thread_time() - here
    workers = sum(sum(worker.cpu_times()[:2]) for worker in load.workers())
    load.close()
    if not steps or not load.bytes:
        return None
    attempts, written = statistics.mean(load.attempts), statistics.mean(load.bytes)
    parts = {what: statistics.median(spent) for what, spent in load.seconds.items()}
    seconds, args = load.seconds, load.args
    del load
    gc.collect()
    gone = time.monotonic() + 10
    while any((left := _left(process))[what] > before[what] for what in before) and time.monotonic() < gone:
        time.sleep(0.05)
    early, late = rss[min(40, len(rss) // 2) : 50] or rss, rss[-10:]
    return {
        **{"steps": steps, "attempts_a_step": attempts, "groups": args.generation_batch_size // args.num_generations},
        "traces_bytes_a_step": written,
        **{"seconds_a_step": took / steps, "median_s": parts, "in_all_s": {w: sum(s) for w, s in seconds.items()}},
        "processor_s_a_step": {"training thread": here / steps, "threads": (cpu - here) / steps},
        "workers_processor_s_a_step": workers / steps,
        "rss_mb": {"early": statistics.median(early), "late": statistics.median(late), "most": max(rss)},
        "rss_every_ten_mb": [round(value, 1) for value in rss[9::10]],
        "python_blocks_every_ten": list(blocks),
        "left_behind": {what: left[what] - before[what] for what in left},
    }


def _left(process: psutil.Process) -> dict[str, int]:
    return {
        "threads": threading.active_count(),
        "files": process.num_fds(),
        "processes": len(process.children(recursive=True)),
    }


def show(figures: dict[str, Any]) -> None:
    """Print the tables."""
    print(f"{figures['attempts_a_step']:,.0f} attempts a step, {figures['steps']} steps", end="")
    print(f"{'':18}the training thread is held up, of a step")
    parts = figures["median_s"]
    for what, seconds in parts.items():
        print(f"{what:50}{1000 * seconds:10.1f} ms{seconds / sum(parts.values()):8.1%}")
    written = figures["traces_bytes_a_step"] / 1e6
    print(f"{'a step':50}{1000 * sum(parts.values()):10.1f} ms, {written:.1f} MB of traces")
    by = {**figures["processor_s_a_step"], "workers": figures["workers_processor_s_a_step"]}
    for what, seconds in by.items():
        print(f"{f'processor time, {what}':50}{1000 * seconds:10.1f} ms{seconds / sum(by.values()):8.1%}")
    rss = figures["rss_mb"]
    print(f"memory {rss['early']:.0f} MB by step 50, {rss['late']:.0f} MB at the end, {rss['most']:.0f} MB at most")
    print(f"left behind: {', '.join(f'{count} {what}' for what, count in figures['left_behind'].items())}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--groups", type=int, default=GROUPS)
    parser.add_argument("--math-in", type=int, default=16)
    parser.add_argument(
        "--trim", action="store_true", help="return free memory to the system before memory is counted"
    )
    parser.add_argument("--output", type=Path, default=None, help="also write the figures as JSON")
    options = parser.parse_args()
    os.environ["ACCELERATE_USE_CPU"] = "true"  # not at import, because tests import this file
    warnings.filterwarnings("ignore")
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} cores"
    print(versions)
    with tempfile.TemporaryDirectory() as scratch:
        sizes = {"groups": options.groups, "math_in": options.math_in}
        figures = measure(Path(scratch), options.steps, options.trim, **sizes)
    if figures is None:
        sys.exit("Nothing was measured: it was ended in the first steps.")
    show(figures)
    if options.output:
        options.output.write_text(json.dumps({"versions": versions, **figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
