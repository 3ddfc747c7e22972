"""Measure what the options cost, and what dropping saves: our training step and TRL's, in one run.

    python benchmarks/overhead.py [--rounds 40] [--hidden 64] [--output results.json]

It prints a table with a line for each variant. Each variant trains the same small Qwen2 on the same prompts with the
same scripted completions, so that generation costs nothing. A generation batch is used twice (`num_iterations=2`), so
the unit of measurement is a cycle of two steps. All variants run in this process and take turns in a random order, one
cycle each per round: if the speed of the machine drifts, it slows down a whole round. The table has medians over the
rounds: of the time per step, and of its ratio to TRL's in the same round, with the standard error of the ratio. TRL
runs twice: the difference between its two runs is noise. Two runs of the same code differ by some per cent, depending
on where their memory is. Therefore the work that our trainer adds with all options off is also measured by itself.

The training phase (log-probs under the old policy and the reference, forward, backward, optimizer) is measured apart
from generation and filtering. 75 % of the groups are dead by construction, so "drop" removes three quarters of the
rows from this phase.
"""

import argparse
import contextlib
import io
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from trl_grpo_plus import GRPOPlusConfig, GRPOPlusTrainer


# Otherwise the C allocator returns memory to the system at each free, and page faults are most of what is measured.
ENVIRONMENT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184", "OMP_NUM_THREADS": "1"}
ENVIRONMENT |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
GROUP = 8
PROMPTS_A_STEP = 8
COMPLETION = 64

VARIANTS: dict[str, dict[str, Any]] = {
    "TRL": {},
    "TRL once more": {},
    "all options off": {},
    "keep, own advantages (mad, median)": {"scale_rewards": "mad", "advantage_baseline": "median"},
    "kl_estimator=k2": {"kl_estimator": "k2"},
    "kl_placement=reward": {"kl_estimator": "k1", "kl_placement": "reward", "kl_reward_form": "reward_to_go"},
    "kl_target": {"kl_target": 0.1},
    "drop, 75 % dead": {"zero_variance_groups": "drop"},
    "resample, 75 % dead": {"zero_variance_groups": "resample", "max_resample_rounds": 3},
}


def make_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<eos>", "<unk>", *ALPHABET])}
    fast = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    fast.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=fast, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


def save_model(folder: Path, hidden: int) -> str:
    torch.manual_seed(0)
    sizes = {"hidden_size": hidden, "intermediate_size": 4 * hidden, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": len(ALPHABET) + 3}
    config = Qwen2Config(**sizes, **heads, bos_token_id=None, eos_token_id=1, pad_token_id=0)
    Qwen2ForCausalLM(config).save_pretrained(folder / "model")
    return str(folder / "model")


class Rollout:
    """A `rollout_func` that returns scripted completions of one length."""

    def __init__(self) -> None:
        self.tokenizer = make_tokenizer()

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        texts = [(prompt + ALPHABET * 3)[i % GROUP :][: COMPLETION - 1] for i, prompt in enumerate(prompts)]
        completion_ids = [[*ids, 1] for ids in self.tokenizer(texts)["input_ids"]]
        return {"prompt_ids": self.tokenizer(prompts)["input_ids"], "completion_ids": completion_ids, "logprobs": None}


def one_in_four(completions: list[str], number: list[int], **kwargs: Any) -> list[float]:
    """Return rewards that differ within the group for one prompt in four."""
    return [0.0 if n % 4 else float(i % 2) for i, n in enumerate(number)]


class Timed:
    """Mixin for a trainer that measures the seconds of generation."""

    generation_s = 0.0

    def timed(self, generate: Callable[..., Any], prompts: list[Any]) -> Any:
        start = time.perf_counter()
        result = generate(prompts)
        self.generation_s += time.perf_counter() - start
        return result


class TimedStock(Timed, GRPOTrainer):
    """TRL's trainer, measured."""

    def _generate(self, prompts: list[Any]) -> Any:
        return self.timed(super()._generate, prompts)


class TimedPlus(Timed, GRPOPlusTrainer):
    """Our trainer, measured. `own_s` are the seconds of the work that it adds with all options off."""

    own_s = 0.0

    def _generated_batch(self, prompts: list[Any]) -> Any:
        return self.timed(super()._generated_batch, prompts)

    def _judge(self, *scored: Any) -> list[str]:
        start = time.perf_counter()
        verdicts = super()._judge(*scored)
        self.own_s += time.perf_counter() - start
        return verdicts

    def _log_batch(self, *batch: Any) -> None:
        before, start = self.own_s, time.perf_counter()
        super()._log_batch(*batch)
        self.own_s = before + time.perf_counter() - start


def make_trainer(name: str, model: str, folder: Path, steps: int) -> Any:
    arguments: dict[str, Any] = {
        "output_dir": str(folder / "run"),
        "bf16": False,
        "use_cpu": True,
        "report_to": "none",
        "per_device_train_batch_size": GROUP * PROMPTS_A_STEP,
        "num_generations": GROUP,
        "max_completion_length": COMPLETION,
        "max_steps": steps,
        "shuffle_dataset": False,
        "save_strategy": "no",
        "logging_strategy": "no",
        "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
        "num_iterations": 2,
        "beta": 0.04,
    }
    stock = name.startswith("TRL")
    off: dict[str, Any] = {"trace_every": 0, "alarms": False}
    config = GRPOConfig(**arguments) if stock else GRPOPlusConfig(**arguments, **off, **VARIANTS[name])
    prompts = [f"{i:04d}" for i in range(4096)]
    return (TimedStock if stock else TimedPlus)(
        model=model,
        reward_funcs=one_in_four,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": prompts, "number": list(range(len(prompts)))}),
        processing_class=make_tokenizer(),
        rollout_func=Rollout(),
    )


class Turns(transformers.TrainerCallback):
    """Callback that lets trainers, each in its own thread, run one cycle at a time, and measures the cycles."""

    def __init__(self, baton: threading.Condition, order: list["Turns"], done: list["Turns"]):
        self.baton, self.order, self.done = baton, order, done
        self.times: list[tuple[float, float]] = []  # seconds per step: in all, and without generation
        self.trainer: Any = None
        self.start = (0.0, 0.0)
        order.append(self)

    def wait(self) -> None:
        """Wait until this trainer is the first in the order."""
        with self.baton:
            self.baton.wait_for(lambda: bool(self.order) and self.order[0] is self)
        self.start = (time.perf_counter(), self.trainer.generation_s)

    def hand_over(self, last: bool) -> None:
        """Let the next trainer run."""
        with self.baton:
            self.order.remove(self)
            if not last:
                self.done.append(self)
            if not self.order:
                self.order.extend(random.sample(self.done, len(self.done)))
                self.done.clear()
            self.baton.notify_all()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the cycle at every second step."""
        if state.global_step % 2:
            return
        whole = (time.perf_counter() - self.start[0]) / 2
        self.times.append((whole, whole - (self.trainer.generation_s - self.start[1]) / 2))
        last = state.global_step == state.max_steps
        self.hand_over(last)
        if not last:
            self.wait()


def run(turns: Turns) -> None:
    turns.wait()
    turns.trainer.train()


def measure(
    names: list[str], model: str, folder: Path, rounds: int
) -> tuple[dict[str, list[tuple[float, float]]], float]:
    """Return the seconds per step of each variant and round, and those of verdicts and metrics with all options off.

    The seconds of a variant are pairs: in all, and without generation. The first two rounds are warm-up.
    """
    baton, order, done = threading.Condition(), list[Turns](), list[Turns]()
    turns = {name: Turns(baton, order, done) for name in names}
    for name, turn in turns.items():
        turn.trainer = make_trainer(name, model, folder, steps=2 * (rounds + 2))
        turn.trainer.add_callback(turn)
    threads = [threading.Thread(target=run, args=(turn,)) for turn in turns.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    own = turns["all options off"].trainer.own_s / (2 * (rounds + 2))
    return {name: turn.times[2:] for name, turn in turns.items()}, own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--output", type=Path, default=None, help="also write the figures as JSON")
    options = parser.parse_args()
    if not ENVIRONMENT.items() <= os.environ.items():
        os.environ.update(ENVIRONMENT)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    warnings.filterwarnings("ignore", category=FutureWarning)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as scratch:
        model = save_model(Path(scratch), options.hidden)
        with contextlib.redirect_stdout(io.StringIO()):  # hide the summary that each trainer prints
            taken, own = measure(list(VARIANTS), model, Path(scratch), options.rounds)
    report(taken, own, options)


def report(taken: dict[str, list[tuple[float, float]]], own: float, options: argparse.Namespace) -> None:
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, trl {trl.__version__}"
    print(f"{versions}, {os.cpu_count()} cores, {torch.get_num_threads()} thread, {options.rounds} rounds")
    print(f"{'':34} {'step':>9} {'x TRL':>16}   {'training':>9} {'x TRL':>16}")
    figures = {}
    for name in taken:
        step, training = (compare(taken, name, part) for part in (0, 1))
        print(
            f"{name:34} {step[0]:6.1f} ms {step[1]:7.3f} +- {step[2]:.3f}   "
            f"{training[0]:6.1f} ms {training[1]:7.3f} +- {training[2]:.3f}"
        )
        figures[name] = {"step_ms": step[0], "step_ratio": step[1], "training_ms": training[0]}
        figures[name] |= {"training_ratio": training[1]}
    share = 1000 * own / figures["all options off"]["step_ms"]
    print(f"With all options off verdicts and metrics take {1000 * own:.2f} ms a step, {100 * share:.2f} % of it.")
    saved = 1 / figures["drop, 75 % dead"]["training_ratio"]
    print(f"With 75 % dead groups drop makes the training phase {saved:.2f}x as fast as TRL's.")
    if options.output:
        options.output.write_text(
            json.dumps({"versions": versions, "own_ms": 1000 * own, "figures": figures}, indent=2) + "\n"
        )


def compare(taken: dict[str, list[tuple[float, float]]], name: str, part: int) -> tuple[float, float, float]:
    """Return median milliseconds, median ratio to TRL's in the same round, and the standard error of that median."""
    mine, stock = ([times[part] for times in taken[who]] for who in (name, "TRL"))
    ratios = [one / other for one, other in zip(mine, stock, strict=True)]
    # The standard error of a normal distribution's median is 1.2533 x that of its mean.
    error = 1.2533 * statistics.stdev(ratios) / len(ratios) ** 0.5 if name != "TRL" else 0.0
    return 1000 * statistics.median(mine), statistics.median(ratios), error


if __name__ == "__main__":
    main()
