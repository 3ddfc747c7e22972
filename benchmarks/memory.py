r"""Compare the memory that `trl-grpo-plus check` estimates for a run on a CPU with what it uses, with a real model.

    python benchmarks/memory.py                                     # half an hour on one core
    python benchmarks/memory.py --model path/to/folder --cases drop-float32 drop-lora-bfloat16
    python benchmarks/memory.py --report                            # estimate the measured cases again, no training

It prints a table of all cases in GiB. Each case is its own process, started through the launch script: three steps
(two with long completions) of 32 attempts, eight on each of four prompts. Cases train all weights, or an adapter of
rank 32 on all linear layers; in float32, in bfloat16, or in float32 with bfloat16 autocast. In the cases `qlora` the
layers under the adapter are quantized to 4 bits, which needs bitsandbytes. They use the options
`drop`, belief as the baseline (`belief`), or belief with the head (`head`). Rewards are random, so that no group is
dropped, and every completion has the maximum length: a run then uses the most memory that its settings allow, and
this is what the estimate means. Prompts have 45 tokens with the chat template of SmolLM2-135M-Instruct, the default
model, which is read from the Hub or from a folder. A case may take 10 GiB.

Memory is the peak resident size of the process (`ru_maxrss`). A thread reads the resident size every 20 ms, and notes
in which phase it was highest. "base" is the resident size before the trainer is made: Python and all imports.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path
from typing import Any


os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "TOKENIZERS_PARALLELISM": "false"}

import yaml


MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
RESULTS = Path("benchmarks/results/memory-cpu.json")
MIB = 2**20
STEPS, ATTEMPTS, GROUP, TOKENS = 3, 32, 8, 24

ADAPTER = {"use_peft": True, "lora_r": 32, "lora_alpha": 64, "lora_target_modules": ["all-linear"]}
WEIGHTS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "lora-float32": ADAPTER,
    "lora-bfloat16": {**ADAPTER, "dtype": "bfloat16"},
}
QLORA = {**ADAPTER, "load_in_4bit": True}
LONG = {"max_completion_length": 128, "max_steps": 2}
BELIEF = {"advantage_baseline": "belief", "scale_rewards": "prior"}
WAYS: dict[str, dict[str, Any]] = {
    "drop": {},
    "belief": BELIEF,
    "head": {**BELIEF, "belief_head": "prompt"},
}
CASES: dict[str, dict[str, Any]] = {
    **{f"{way}-{name}": {**keys, **more} for name, keys in WEIGHTS.items() for way, more in WAYS.items()},
    "drop-autocast": {"bf16": True},
    "drop-lora-autocast": {**ADAPTER, "bf16": True},
    "drop-float32-checkpointing": {"gradient_checkpointing": True},
    "drop-lora-bfloat16-checkpointing": {**WEIGHTS["lora-bfloat16"], "gradient_checkpointing": True},
    "drop-bfloat16-long": {**WEIGHTS["bfloat16"], **LONG},
    "drop-lora-bfloat16-checkpointing-long": {**WEIGHTS["lora-bfloat16"], "gradient_checkpointing": True, **LONG},
    "drop-qlora-float32": QLORA,
    "drop-qlora-bfloat16": {**QLORA, "dtype": "bfloat16"},
    "drop-float32-accumulated": {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4},
}


def chance(completions: list[Any], **columns: Any) -> list[float]:
    """Return rewards that depend on the text alone, in a way that cannot be learnt."""
    return [zlib.crc32(str(text).encode()) % 1000 / 1000 for text in completions]


def recipe(case: str, model: str, folder: Path) -> Path:
    """Write the recipe of a case and its data into `folder`, and return the recipe's path."""
    rows = [
        {"prompt": [{"role": "user", "content": f"What is {row} plus {row * 7 % 100}? Answer with the number."}]}
        for row in range(10, 74)
    ]
    (folder / "data.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    keys = {
        "model_name_or_path": model,
        "dataset_name": str(folder / "data.jsonl"),
        "reward_funcs": [f"{Path(__file__).resolve()}:chance"],
        "output_dir": str(folder / "run"),
        "max_steps": STEPS,
        "per_device_train_batch_size": ATTEMPTS,
        "num_generations": GROUP,
        "max_completion_length": TOKENS,
        "zero_variance_groups": "drop",
        "learning_rate": 1e-5,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
        **CASES[case],
    }
    keys["generation_kwargs"] = {"min_new_tokens": keys["max_completion_length"]}
    path = folder / f"{case}.yaml"
    path.write_text(yaml.safe_dump(keys))
    return path


class Watch:
    """Read the resident size of this process from a thread, until the process ends."""

    def __init__(self) -> None:
        self.doing, self.most = "before", dict[str, int]()
        threading.Thread(target=self._look, daemon=True).start()

    def now(self) -> int:
        """Return the resident size in bytes."""
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def _look(self) -> None:
        while True:
            self.most[self.doing] = max(self.most.get(self.doing, 0), self.now())
            time.sleep(0.02)

    def during(self, what: str, function: Any) -> Any:
        """Return `function`, wrapped so that its time counts as the phase `what`."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            before, self.doing = self.doing, what
            try:
                return function(*args, **kwargs)
            finally:
                self.doing = before

        return watched


def run_here(path: str) -> int:
    """Run a case in this process, and print its figures as the last line."""
    from transformers import TrainerCallback

    from trl_grpo_plus import GRPOPlusTrainer
    from trl_grpo_plus.launch import train

    watch, measured = Watch(), dict[str, Any](seconds=[], after=[])
    began = [0.0]

    class Steps(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            began[0] = time.monotonic()

        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            watch.doing = "optimizer"

        def on_step_end(self, *_: Any, **__: Any) -> None:
            watch.doing = "training"
            measured["seconds"].append(round(time.monotonic() - began[0], 1))
            measured["after"].append(watch.now() // MIB)

    def make(*args: Any, **kwargs: Any) -> Any:
        measured["base"] = watch.now() // MIB
        watch.doing = "loading"
        trainer = GRPOPlusTrainer(*args, **kwargs)
        model = trainer.accelerator.unwrap_model(trainer.model)
        model.generate = watch.during("generating", model.generate)
        trainer.accelerator.backward = watch.during("backward", trainer.accelerator.backward)
        trainer.add_callback(Steps())
        watch.doing = "training"
        return trainer

    def start(script_args: Any, training_args: Any, model_args: Any, dataset_args: Any) -> int:
        return train.main(script_args, training_args, model_args, dataset_args, make)

    sys.argv = ["memory", "--config", path]
    status = train.run(start, "memory")
    measured["phases"] = {name: size // MIB for name, size in watch.most.items()}
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"measured": most // MIB, **measured}), flush=True)
    return status


def estimated(path: Path) -> dict[str, int]:
    """Return what `check` estimates for a recipe, in MiB by part."""
    from trl_grpo_plus.cli.check import data as check_data
    from trl_grpo_plus.cli.check import hub
    from trl_grpo_plus.cli.check import model as check_model
    from trl_grpo_plus.cli.check.estimate import memory
    from trl_grpo_plus.launch.accelerate import distribution
    from trl_grpo_plus.launch.preflight import on_data, on_paper
    from trl_grpo_plus.launch.recipe import read

    one = read(str(path), (), distribution(None, None, 0))
    on_paper(one), check_data.load(one), on_data(one)
    name = one.model.model_name_or_path
    config, tokens = hub.model_config(name), hub.tokenizer(name)
    assert config
    _, shape = check_model.shape(one, config)
    assert shape
    job = check_model.job_of(one, config, shape, max(check_model.lengths(one, tokens.what)))
    return {name: round(size / MIB) for name, size in memory(shape, job).parts.items()}


def table(results: dict[str, Any]) -> str:
    """Return the table of the cases in Markdown, in GiB."""
    lines = ["| case | estimated | measured | estimated / measured | what is largest |", "|---|---|---|---|---|"]
    for case, result in results.items():
        about, most = sum(result["estimated"].values()), result["measured"]
        largest = ", ".join(f"{name} {size / 1024:.1f}" for name, size in list(result["estimated"].items())[:2])
        lines.append(f"| {case} | {about / 1024:.1f} | {most / 1024:.1f} | {about / most:.2f} | {largest} |")
    return "\n".join(lines)


def main() -> int:
    """Run the cases, then report; with `--report` only report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true", help="measure nothing; compute the estimates again")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        return run_here(options.run)
    results: dict[str, Any] = json.loads(options.output.read_text()) if options.output.exists() else {}
    cases = [case for case in options.cases if case in results or not options.report]
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            path = recipe(case, options.model, Path(folder))
            if not options.report:
                command = [sys.executable, __file__, "--run", str(path)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                results[case] = json.loads(done.stdout.strip().splitlines()[-1])
            results[case]["estimated"] = estimated(path)
        options.output.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
