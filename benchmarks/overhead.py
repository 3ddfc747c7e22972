"""What the options cost, and what dropping saves: a training step of ours against TRL's, in one run.

    python benchmarks/overhead.py [--rounds 7] [--steps 3] [--hidden 128] [--output results.json]

Each variant trains the same small Qwen2 on the same prompts with the same scripted completions, so that all pay for
the same generation. Variants take turns, `--rounds` times; a round times `--steps` steps of each. The table gives the
median over rounds of the time a step, and of its ratio to TRL's in the same round, so that a machine whose speed
drifts does not move the comparison.

The training phase (log-probs under the old policy and the reference, forward, backward, optimizer) is timed apart
from generation and rewards: 75 % of the groups are dead by construction, and "drop" spares the phase three quarters of
its rows.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
import trl
from datasets import Dataset
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from trl_grpo_plus import GRPOPlusConfig, GRPOPlusTrainer


ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
GROUP = 8
PROMPTS_A_STEP = 8
COMPLETION = 64

VARIANTS: dict[str, dict[str, Any]] = {
    "TRL": {},
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
    """Scripted completions of one length, and the time spent on them."""

    def __init__(self) -> None:
        self.tokenizer = make_tokenizer()

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        texts = [(prompt + ALPHABET * 3)[i % GROUP :][: COMPLETION - 1] for i, prompt in enumerate(prompts)]
        completion_ids = [[*ids, 1] for ids in self.tokenizer(texts)["input_ids"]]
        return {"prompt_ids": self.tokenizer(prompts)["input_ids"], "completion_ids": completion_ids, "logprobs": None}


def one_in_four(completions: list[str], number: list[int], **kwargs: Any) -> list[float]:
    """Varies for one prompt in four."""
    return [0.0 if n % 4 else float(i % 2) for i, n in enumerate(number)]


class Timed:
    """Mixed into a trainer: seconds in optimizer steps, and those of them in generation and rewards."""

    generation_s = 0.0

    def _generate(self, prompts: list) -> Any:
        start = time.perf_counter()
        result = super()._generate(prompts)  # type: ignore[misc]
        self.generation_s += time.perf_counter() - start
        return result


class TimedStock(Timed, GRPOTrainer):
    """TRL's trainer."""


class TimedPlus(Timed, GRPOPlusTrainer):
    """Ours."""


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
    stock = name == "TRL"
    config = GRPOConfig(**arguments) if stock else GRPOPlusConfig(**arguments, **VARIANTS[name])
    prompts = [f"{i:04d}" for i in range(4096)]
    return (TimedStock if stock else TimedPlus)(
        model=model,
        reward_funcs=one_in_four,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": prompts, "number": list(range(len(prompts)))}),
        processing_class=make_tokenizer(),
        rollout_func=Rollout(),
    )


def measure(name: str, model: str, folder: Path, steps: int) -> tuple[float, float]:
    """Seconds a step: whole, and without generation and rewards. The first two steps warm up and are not counted."""
    trainer = make_trainer(name, model, folder, steps + 2)
    marks: list[tuple[float, float]] = []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            marks.append((time.perf_counter(), trainer.generation_s))

    trainer.add_callback(Clock())
    trainer.train()
    (start, generated), (end, generated_at_end) = marks[1], marks[-1]
    whole = (end - start) / steps
    return whole, whole - (generated_at_end - generated) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=4, help="timed steps of a variant and round; even")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--output", type=Path, default=None, help="also write the figures as JSON")
    options = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory() as scratch:
        model = save_model(Path(scratch), options.hidden)
        for turn in range(options.rounds):
            for name in VARIANTS:
                taken[name].append(measure(name, model, Path(scratch), options.steps))
            print(f"round {turn + 1} of {options.rounds}", file=sys.stderr)
    report(taken, options)


def report(taken: dict[str, list[tuple[float, float]]], options: argparse.Namespace) -> None:
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, trl {trl.__version__}"
    print(
        f"{versions}, {os.cpu_count()} cores, {torch.get_num_threads()} thread(s); median of {options.rounds} rounds"
    )
    print(f"{'':36} {'ms/step':>9} {'x TRL':>7}   {'training ms':>11} {'x TRL':>7}")
    figures = {}
    for name, times in taken.items():
        row = []
        for part in (0, 1):
            ratios = [mine[part] / stock[part] for mine, stock in zip(times, taken["TRL"], strict=True)]
            row += [1000 * statistics.median(time[part] for time in times), statistics.median(ratios)]
        print(f"{name:36} {row[0]:9.1f} {row[1]:7.3f}   {row[2]:11.1f} {row[3]:7.3f}")
        figures[name] = dict(zip(["step_ms", "step_ratio", "training_ms", "training_ratio"], row, strict=True))
    saved = 1 / figures["drop, 75 % dead"]["training_ratio"]
    print(f"With 75 % dead groups drop makes the training phase {saved:.2f}x as fast as TRL's.")
    if options.output:
        options.output.write_text(json.dumps({"versions": versions, "figures": figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
