"""Run the parts of `on_a_gpu.sh run`, each as a process with a time limit, and write their figures into one JSON file.

    python benchmarks/on_a_gpu.py OUT WORK [recipe] [race] [vllm]

recipe  SmolLM2-135M-Instruct with LoRA, 256 attempts per step: accuracy before and after, seconds, tokens per second
race    the same recipe with TRL's trainer and with this package's
vllm    the same recipe with a colocated vLLM engine: also its alarms, and how far the engine's log-probs differ

If a part fails, its reason goes into the file, and the next part is run. Without a GPU each part is two small steps,
and the file says so.
"""

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil


FIGURES = "on_a_gpu.json"
RECIPE = "smollm2_135m_cpu"
ONE_STEP_A_BATCH = {"num_iterations": 1, "learning_rate": 5e-4}  # each step samples, so each has a reward and a time
COMMAND = [sys.executable, "-m", "trl_grpo_plus.cli.main"]
ON_GPU = {"use_cpu": "false", "bf16": "true", "dataloader_pin_memory": "true", "per_device_train_batch_size": 256}
ON_GPU |= {"per_device_eval_batch_size": 256, "save_strategy": "no"}
WITHOUT = {
    "per_device_train_batch_size": 8,
    "max_completion_length": 4,
    "num_generations_eval": 2,
    "max_steps": 2,
    "save_strategy": "no",
}
SLOWER = 6  # factor on the time limits without a GPU
PACKAGES = ("trl-grpo-plus", "torch", "transformers", "trl", "accelerate", "peft", "datasets", "vllm")
Figures = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A command, and the function that reads figures from its output folder.

    Args:
        words (`tuple[str, ...]`): words of the command line.
        options (`dict`): options of the recipe on a GPU.
        seconds (`int`): time limit.
        read (`Callable`): output folder -> figures.
        needs (`str`, *optional*): module without which the part is left out.
    """

    words: tuple[str, ...]
    options: dict[str, Any]
    seconds: int
    read: Callable[[Path], Figures]
    needs: str | None = None


def of_run(folder: Path) -> Figures:
    """Return accuracy before and after, seconds and tokens of a run with this package's trainer."""
    summary = json.loads((folder / "summary.json").read_text())
    steps = [entry for entry in _journal(folder) if "step_time" in entry]
    later = steps[1:]  # the first one compiles and allocates
    return {
        "accuracy": {split: [was["before"], was["after"]] for split, was in summary["eval"].items()},
        "steps": summary["steps"],
        "reward_a_step": [round(entry["reward"], 4) for entry in steps],
        "first_step_s": round(steps[0]["step_time"], 3),
        "step_s": round(statistics.median(entry["step_time"] for entry in later), 3),
        "tokens_generated_a_s": round(_sum(later, "tokens/generated") / _sum(later, "step_time")),
        "tokens_trained_a_step": round(summary["counts"]["tokens/trained"], 1),
        "alarms": sorted({name for entry in steps for name in entry if name.startswith("alarms/") and entry[name]}),
    }


def of_vllm(folder: Path) -> Figures:
    """Return the figures of [`of_run`], and how far the engine's log-probs differ from the trainer's."""
    engine = "sampler/logp_difference/mean", "sampler/logp_difference/max", "sampler/policy_moved"
    names = (*engine, "sampling/sampling_logp_difference/mean")
    checked = {name: [round(entry[name], 5) for entry in _journal(folder) if name in entry] for name in names}
    return {**of_run(folder), "check": checked}


def of_race(folder: Path) -> Figures:
    """Return, for both runs, rewards at the start and at the end, rollouts, and seconds without evaluations."""
    return {
        lane["name"]: {
            "accuracy": {
                split: [before, lane["evaluations"][-1]["rewards"][split]]
                for split, before in lane["evaluations"][0]["rewards"].items()
            },
            **{name: lane[name] for name in ("step", "rollouts", "seconds", "evaluations")},
            "num_generations": lane["settings"]["num_generations"],
        }
        for lane in json.loads((folder.with_name(f"{folder.name}_race") / "race.json").read_text())
    }


PARTS = {
    "recipe": Part(("run", RECIPE), {**ONE_STEP_A_BATCH, "max_steps": 60}, 300, of_run),
    "race": Part(("race", RECIPE, "--evaluations", "4"), {**ONE_STEP_A_BATCH, "max_steps": 60}, 520, of_race),
    "vllm": Part(
        ("run", RECIPE),
        {
            **ONE_STEP_A_BATCH,
            "max_steps": 20,
            "use_vllm": "true",
            "vllm_mode": "colocate",
            "vllm_gpu_memory_utilization": 0.3,
            "vllm_max_model_length": 256,
            "vllm_check_every": 1,
        },
        360,
        of_vllm,
        needs="vllm",
    ),
}


def _journal(folder: Path) -> list[Figures]:
    return [json.loads(line) for line in (folder / "rollouts" / "metrics.jsonl").read_text().splitlines()]


def _sum(entries: Sequence[Figures], name: str) -> float:
    return sum(entry.get(name, 0.0) for entry in entries)


def machine() -> Figures:
    """Return the hardware and versions to which the figures belong."""
    versions = {}
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    found = gpu("name,driver_version,memory.total")
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes"),
        "gpu": found,
        "python": sys.version.split()[0],
        "versions": versions,
        **({} if found else {"no_gpu": "These are two small steps on a CPU: they show that it runs, and no more."}),
    }


def gpu(query: str) -> list[str]:
    """Return a line for each GPU."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    return asked.stdout.splitlines() if asked.returncode == 0 else []


@contextmanager
def peak_memory() -> Iterator[Figures]:
    """Read the GPUs' memory twice a second. `gpu_peak_mib` is that of the fullest GPU, other processes included."""
    seen: Figures = {}
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.5) and (used := gpu("memory.used")):
            known = [int(mib) for mib in used if mib.strip().isdecimal()]  # some GPUs say [N/A]
            seen["gpu_peak_mib"] = max([seen.get("gpu_peak_mib", 0), *known])

    watching = threading.Thread(target=look)
    watching.start()
    try:
        yield seen
    finally:
        over.set()
        watching.join()


def run(name: str, model: Path, work: Path, log: Path, on_gpu: bool) -> Figures:
    """Run a part and return its figures, or `failed` with the reason."""
    part, folder = PARTS[name], work / "runs" / name
    if part.needs and importlib.util.find_spec(part.needs) is None:
        return {"failed": f"left out: {part.needs} is not installed"}
    for old in (folder, folder.with_name(f"{name}_race")):
        shutil.rmtree(old, ignore_errors=True)
    options = {
        "model_name_or_path": model,
        "output_dir": folder,
        "disable_tqdm": "true",
        **part.options,
        **(ON_GPU if on_gpu else WITHOUT),
    }
    if on_gpu:  # not a process for each GPU
        options["num_processes"] = 1
    command = [*COMMAND, *part.words, *(text for key, value in options.items() for text in (f"--{key}", str(value)))]
    start = time.monotonic()
    with peak_memory() as peak:
        failed = ended(command, log, part.seconds * (1 if on_gpu else SLOWER))
    figures: Figures = {"command": command[1:], "wall_s": round(time.monotonic() - start, 1), **peak}
    try:
        return {**figures, **({"failed": failed} if failed else {}), **part.read(folder)}
    except (OSError, LookupError, ValueError, ArithmeticError) as error:  # an early end leaves incomplete files
        return {**figures, "failed": failed or f"its figures cannot be read: {error!r}"}


def ended(command: Sequence[str], log: Path, seconds: int) -> str | None:
    """Run a command until it ends or the time limit kills it and its children; return why it failed, if it did."""
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        try:
            status = f"exit status {process.wait(seconds)}"
        except subprocess.TimeoutExpired:
            status = f"ended after {seconds} s"
        finally:
            with suppress(psutil.NoSuchProcess):  # the runs of a race have their own sessions, and would keep the GPU
                started = psutil.Process(process.pid)
                for each in (*started.children(recursive=True), started):
                    each.kill()
    if status == "exit status 0":
        return None
    return f"{status}: ...{log.read_text(errors='replace')[-1500:]}"


def main() -> int:
    """Run the parts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="folder of the figures and logs")
    parser.add_argument("work", type=Path, help="folder of the model and the runs")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"parts to run, of {', '.join(PARTS)}; default: all")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}, only {', '.join(PARTS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / FIGURES
    figures = (json.loads(file.read_text()) if file.exists() else {}) | machine()
    model = options.work / "model"
    failed = ended([sys.executable, "-m", "trl_grpo_plus.recipes.smollm2", str(model)], options.out / "model.log", 240)
    for name in options.parts or PARTS:
        log = options.out / f"{name}.log"
        found = (
            {"failed": f"no model: {failed}"} if failed else run(name, model, options.work, log, bool(figures["gpu"]))
        )
        figures[name] = found
        file.write_text(json.dumps(figures, indent=1) + "\n")
        print(f"{name}: {found.get('failed') or 'done'}", flush=True)
    return int(any("failed" in figures[name] for name in options.parts or PARTS))


if __name__ == "__main__":
    sys.exit(main())
