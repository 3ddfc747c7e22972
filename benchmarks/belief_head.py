"""Measure on a real language model how much of a step the belief head takes, and how well it predicts.

    python benchmarks/belief_head.py --batches 50 --output results.json     # needs `make real-model`

It trains SmolLM2-135M-Instruct with LoRA on mental arithmetic, as recipes/smollm2_135m_cpu.yaml does, but with one
step on each batch: 32 prompts x 2 attempts, chosen by belief, at a constant learning rate. With `head` the belief head
reads some prompts at each step (`belief_head_share` 0.1). With `key` the column `kind`, one of five kinds of problem,
is the `belief_key`. With `neither` there is no head and no key.

It prints a line for every ten batches, with means over these: "skill" is 1 - the squared error of a prediction / the
variance of the rewards, on prompts before they are sampled; "alive" is the share of sampled groups whose two attempts
disagree; "beliefs" is the processor time of predictions and updates, with the forward passes and the linear algebra
of the head, as a share of the whole step.
"""

import argparse
import functools
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any


os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1")

import accelerate
import torch
import transformers
import trl
from families import FAMILIES
from to_target import Spec, config_of
from transformers import PrinterCallback, TrainerCallback

from trl_grpo_plus import GRPOPlusTrainer
from trl_grpo_plus.curriculum.belief_store import BeliefStore
from trl_grpo_plus.registry import get_reward


RUNS = {"head": "head-2", "key": "key-2", "neither": "choice-2"}
EVERY = 10
METHODS = {
    name: getattr(BeliefStore, name)
    for name in ("read_states", "credited", "candidate_beliefs", "believed", "observe")
}
LOGGED = {
    "skill": "beliefs/skill",
    "head skill": "beliefs/head_skill",
    "prompts read": "beliefs/head_read",
    "known": "beliefs/head_known",
    "alive": "groups/alive",
    "reward": "reward",
}


class Clock:
    """Adds up the processor time of calls. A call inside another one is not counted twice."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._running = False

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time added."""

        @functools.wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._running:
                return call(*args, **kwargs)
            self._running, start = True, time.process_time()
            try:
                return call(*args, **kwargs)
            finally:
                self._running, self.seconds = False, self.seconds + time.process_time() - start

        return timed


class Batches(TrainerCallback):
    """Callback that notes what is logged of each batch, and the processor seconds of its step and of the beliefs."""

    def __init__(self, beliefs: Clock) -> None:
        self.lines: list[dict[str, float]] = []
        self._beliefs = beliefs

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self._last = time.process_time(), self._beliefs.seconds

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        now = time.process_time(), self._beliefs.seconds  # prompts are drawn before a step begins
        self._took, self._of_beliefs = (later - earlier for later, earlier in zip(now, self._last, strict=True))
        self._last = now

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **kwargs: Any) -> None:
        if "reward" in logs:
            line = {name: float(logs[key]) for name, key in LOGGED.items() if key in logs}
            self.lines.append({**line, "step seconds": self._took, "belief seconds": self._of_beliefs})


def run(name: str, batches: int, seed: int, dtype: str) -> list[dict[str, float]]:
    """Train and return a line for each batch."""
    transformers.set_seed(seed)
    family = FAMILIES["smollm2"]("hard", seed)
    clock = Clock()
    noted = Batches(clock)
    for method, call in METHODS.items():
        setattr(BeliefStore, method, clock.around(call))
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(
            family, Spec("smollm2", "hard", RUNS[name], seed, 1.0, "constant", dtype=dtype), folder, batches
        )
        config.logging_strategy, config.logging_steps, config.lr_scheduler_type = "steps", 1, "constant"
        trainer = GRPOPlusTrainer(
            model=family.model(dtype),
            reward_funcs=[get_reward(family.reward) if isinstance(family.reward, str) else family.reward],
            args=config,
            train_dataset=family.train,
            processing_class=family.tokenizer(),
            callbacks=[noted],
            peft_config=family.adapter(),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return noted.lines


def summary(lines: list[dict[str, float]]) -> dict[str, float]:
    """Return the means over batches, and the beliefs' share of their processor time."""
    means = {name: fmean(line[name] for line in lines) for name in lines[0]}
    return {**means, "beliefs": means["belief seconds"] / means["step seconds"]}


def main() -> None:
    """Train the runs and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=["head", "key"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for name in options.runs:
        lines = results[name] = run(name, options.batches, options.seed, options.dtype)
        parts = {
            f"{start + 1} to {start + EVERY}": lines[start : start + EVERY] for start in range(0, len(lines), EVERY)
        }
        columns = [column for column in (*LOGGED, "step seconds", "beliefs") if column in summary(lines)]
        print(f"\n{name}\n\n| batches | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}")
        for title, part in {**parts, "all": lines}.items():
            means = summary(part)
            print(f"| {title} | {' | '.join(f'{means[column]:.3g}' for column in columns)} |", flush=True)
    if options.output:
        versions = {one.__name__: one.__version__ for one in (torch, transformers, trl, accelerate)}
        facts = {
            "versions": versions,
            "machine": platform.processor() or platform.machine(),
            **{name: value for name, value in vars(options).items() if name != "output"},
        }
        options.output.write_text(json.dumps({"about": facts, "batches": results}, default=str, indent=1) + "\n")


if __name__ == "__main__":
    main()
