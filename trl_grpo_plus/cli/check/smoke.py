"""The parts of a check that train, through the launch script.

The smoke run trains two steps of the recipe on a tiny model, on the CPU. If the recipe is for the CPU and its model is
on this machine, the clocked run also trains the first steps of the real model, to measure their time.
"""

import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
from pathlib import Path
from typing import Any

from ...launch.launchers import Start, in_this_python, launch_command
from ...launch.option_checks import evaluates
from ...launch.recipe import Recipe, total_steps
from ...launch.reward_inputs import load_data, takes_smoke
from ...utils.tables import FAILED, OK, UNSEEN, WARNED, CheckRow
from ...utils.validation import ConfigError
from . import hub
from .estimate import GIB, rounded


SCRIPT, CLOCKED = "trl_grpo_plus.cli.check.smoke_run", "trl_grpo_plus.cli.check.timed_run"
CLOCK = "clock.json"  # written by the clocked run to its folder
REPORT, ERROR = "smoke.json", "smoke-error.txt"  # written by the smoke run to its folder
STEPS, GROUPS = 2, 6
MOST_PROCESSES, MOST_GENERATIONS, COMPLETION = 2, 8, 24
AS_FOR_A_CHECK = "The model is as prepare makes it for a check, before its warm-up; the warm-up's time is not counted."
NEED_EVALUATION = ("reduce_lr_on_plateau", "greedy")  # schedules that need evaluations, which are turned off here
TIMEOUT_S, CLOCKED_S = 900, 300

NOT_OF_A_STEP = ("eval_on_start", "load_best_model_at_end", "push_to_hub", "resume_from_checkpoint")
PUSHES = ("push_to_hub", "log_completions_hub_repo")
OFF = ("bf16", "fp16", "use_vllm", "use_transformers_continuous_batching", "use_liger_kernel", "torch_compile")
STEPS_ALONE: dict[str, Any] = {
    **dict.fromkeys(NOT_OF_A_STEP, False),
    "eval_strategy": "no",
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
}
ALWAYS: dict[str, Any] = {
    **dict.fromkeys(OFF, False),
    "max_steps": STEPS,
    "warmup_steps": 0,
    "logging_strategy": "steps",
    "logging_steps": 1,
    "trace_every": 1,
    "trace_max_groups": None,
    "vllm_check_every": 0,
    "use_cpu": True,
    "dtype": "float32",
    "model_init_kwargs": "{}",
    "dataloader_num_workers": 0,
}
# Options that would be refused without a GPU or together with those above. They are set only if the recipe sets them.
WHERE_SET: dict[str, Any] = {
    "load_in_4bit": False,
    "load_in_8bit": False,
    "tf32": False,
    "attn_implementation": "sdpa",
    "dataloader_prefetch_factor": None,
}


def smoke(recipe: Recipe, folder: str, launcher: str = "accelerate") -> list[CheckRow]:
    """Make the smoke run in `folder`, which the caller removes, and return its rows.

    Args:
        recipe ([`~trl_grpo_plus.launch.recipe.Recipe`]): the recipe as read.
        folder (`str`): folder of the run.
        launcher (`str`, *optional*, defaults to `"accelerate"`): one of
            [`~trl_grpo_plus.launch.launchers.LAUNCHERS`].
    """
    output = os.path.join(folder, "smoke")
    processes = min(recipe.spread.processes, MOST_PROCESSES)
    small = smaller(recipe.training, recipe.model, processes)
    options = (*recipe.options, *small, *recipe.on_a_cpu, "--output_dir", output)
    command = launch_command(Start(recipe.name, options, num_processes=processes, launcher=launcher), SCRIPT)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    status, errors = _launched(command, environment)
    if status is None:
        return [CheckRow("smoke", FAILED, f"two steps of a tiny model were not done after {TIMEOUT_S // 60} minutes")]
    if status:
        return [CheckRow("smoke", FAILED, _reason(Path(output), errors))]
    report = json.loads(Path(output, REPORT).read_text())
    if recipe.kind is None:
        report["model"] += " in the place of a model that is not known"
    on = "one process" if processes == 1 else f"{processes} processes"
    if recipe.spread.sharding.startswith(("zero", "fsdp")):
        on += f" without {recipe.spread.sharding}"
    if pushes := [name for name in PUSHES if getattr(recipe.training, name, None)]:
        on += f". {' and '.join(pushes)} {'is' if len(pushes) == 1 else 'are'} set aside: nothing is pushed"
    return rows_of(report, Path(output), on)


def clocked(recipe: Recipe, folder: str, launcher: str = "accelerate") -> CheckRow:
    """Measure the seconds of a step on the recipe's own batches and model, and estimate the seconds of the run.

    If `prepare` makes the model, it makes it as for a check (`smoke=True`). The arguments are those of [`smoke`].
    """
    output, args, processes = Path(folder, "clocked"), recipe.training, recipe.spread.processes
    every = args.steps_per_generation * args.num_iterations
    around = every // math.gcd(every, args.gradient_accumulation_steps)  # steps until the cycle repeats
    overrides = {**_steps_alone(args), "max_steps": 1 + around, "do_eval": False, "output_dir": str(output)}
    options = (*recipe.options, *_words(overrides))
    command = launch_command(Start(recipe.name, options, num_processes=processes, launcher=launcher), CLOCKED)
    status, errors = _launched(command, {**os.environ, "CUDA_VISIBLE_DEVICES": ""}, CLOCKED_S)
    if status:
        return CheckRow("speed", FAILED, _reason(output, errors))
    report = json.loads((output / CLOCK).read_text()) if (output / CLOCK).exists() else {"seconds": []}
    if status is None or len(report["seconds"]) < 2:
        ended = f"were done in {CLOCKED_S // 60} minutes" if status is None else "were done when it ended by itself"
        done = f"{len(report['seconds'])} of {1 + around} steps {ended}"
        return CheckRow("speed", UNSEEN, f"{done}, too few to tell how long the run takes")
    pace = _pace(report, total_steps(recipe))
    if recipe.prepared and takes_smoke(recipe.script):
        pace += f" {AS_FOR_A_CHECK}"
    return CheckRow("speed", OK, pace)


def _pace(report: dict[str, Any], total: int | None) -> str:
    first, *others = report["seconds"]
    step = statistics.fmean(others)
    steps = "the second" if len(others) == 1 else f"the mean of {len(others)}"
    text = f"{rounded(step)} s a step, {steps} after a first one of {rounded(first)} s, measured here"
    if total:
        whole = first + (total - 1) * step
        text += f"; all {total:,} steps: about {rounded(whole / 3600)} h ({rounded(whole / 60)} minutes)"
    peak = f"memory rose to {rounded(report['peak'] / GIB)} GiB"
    return f"{text}; {peak}. Longer or shorter completions, dropped groups and evaluations change both."


def _launched(command: list[str], environment: dict[str, str], limit_s: float = TIMEOUT_S) -> tuple[int | None, str]:
    """Run a launcher's command; return its exit status (`None` if it took too long) and its stderr.

    All processes of the command are ended in any case.
    """
    command = in_this_python(command)  # torch starts processes in sessions of their own, which end with this launcher
    pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    pipes |= {"encoding": "utf-8", "errors": "replace"}  # a library may print bytes that are no text
    with subprocess.Popen(command, env=environment, start_new_session=True, **pipes) as launcher:
        try:
            errors = launcher.communicate(timeout=limit_s)[1]
            return launcher.returncode, errors
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(launcher.pid, signal.SIGKILL)


def smaller(args: Any, model: Any, processes: int) -> list[str]:
    """Return options that make a recipe's run short, small and fit for a CPU, and change nothing else.

    Args:
        args ([`GRPOPlusConfig`]), model (`ModelConfig`): the recipe's own options.
        processes (`int`): number of processes of the run.
    """
    overrides = {
        **_steps_alone(args),
        **ALWAYS,
        **_batches(args, processes),
        "num_iterations": min(args.num_iterations, 2),
        "max_completion_length": min(args.max_completion_length or COMPLETION, COMPLETION),
        "do_eval": evaluates(args),
        **{name: value for name, value in WHERE_SET.items() if getattr(args, name, getattr(model, name, None))},
    }
    if not args.optim.value.startswith(("adamw_torch", "sgd", "adafactor")) or "bit" in args.optim.value:
        overrides |= {"optim": "adamw_torch", **({"optim_args": ""} if args.optim_args else {})}
    return _words(overrides)


def _steps_alone(args: Any) -> dict[str, Any]:
    """Return options that turn off everything but the steps."""
    schedule = {"lr_scheduler_type": "constant"} if args.lr_scheduler_type.value in NEED_EVALUATION else {}
    return STEPS_ALONE | schedule


def upload_no_completions(args: Any) -> None:
    """Turn off TRL's log of completions, and with it the upload, in the process that takes the steps.

    A command line cannot unset `log_completions_hub_repo`, and TRL refuses this option without `log_completions`.
    """
    args.log_completions, args.log_completions_hub_repo = False, None


def read_data(*args: Any) -> hub.Loaded:
    """Return the recipe's data, or sample rows of it where the data cannot be reached.

    The process that takes the steps calls this function.

    Args:
        args: the dataclasses that the launch script's parser returns.

    Raises:
        ConfigError: there are neither.
    """
    loaded = hub.data(load_data, *args)
    if loaded is None:
        raise ConfigError("the data cannot be reached, and no sample rows of it ship with this package.")
    return loaded


def _words(options: dict[str, Any]) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name}", _word(value))]


def _batches(args: Any, processes: int) -> dict[str, Any]:
    """Return options for small batches of whole groups, with equally many rows in each micro-batch of each process.

    A generation batch remains equal to, longer or shorter than an optimizer step, as in the recipe.
    """
    generations = args.num_generations if args.num_generations <= MOST_GENERATIONS else 4
    accumulation = min(args.gradient_accumulation_steps, 2)
    ratio = args.steps_per_generation / args.gradient_accumulation_steps
    every = accumulation if ratio == 1 else 2 * accumulation if ratio > 1 else max(accumulation // 2, 1)
    unit = processes * every
    groups = min(GROUPS, args.generation_batch_size // args.num_generations)
    rows = math.lcm(generations, unit) * max(1, groups * generations // math.lcm(generations, unit))
    eval_generations = min(args.num_generations_eval or generations, generations)
    return {
        "per_device_train_batch_size": rows // unit,
        "num_generations": generations,
        "gradient_accumulation_steps": accumulation,
        "generation_batch_size": None,
        "steps_per_generation": every,
        "num_generations_eval": eval_generations,
        "per_device_eval_batch_size": eval_generations,
    }


def rows_of(report: dict[str, Any], folder: Path, on: str) -> list[CheckRow]:
    """Return the rows about a finished smoke run in `folder`; `on` describes its processes."""
    from ... import traces

    seconds = (
        f"{report['steps']} steps in {report['seconds']:.0f} s on a tiny {report['model']} with random weights, {on}"
    )
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in report["verdicts"].items())
    planted = f"gold answers planted as {report['planted']} of {report['attempts']} attempts"
    if not report["planted"]:
        planted = "no gold answers planted: no reward could tell one"
    alive = report["verdicts"].get("alive", 0)
    groups = CheckRow("groups", OK, f"{verdicts}; {report['trained']} trained on; {planted}")
    if set(report["verdicts"]) == {"unscored"}:
        groups = _unscored(groups.text, report["planted"] > 0)
    elif report["planted"] and not alive:
        why = "no group was alive, though half its attempts were gold answers: does the reward tell them from noise?"
        groups = CheckRow("groups", FAILED, f"{groups.text}: {why}")
    try:
        attempts = sum(len(group) for group in traces.groups(folder) if group[0]["split"] == "train")
    except ValueError:  # there are no traces
        attempts = 0
    written = f"{attempts} attempts in rollouts/, and the page"
    return [
        CheckRow("smoke", OK if report["steps"] == STEPS else FAILED, seconds),
        groups,
        learned(report, alive),
        CheckRow(
            "traces", OK if attempts == report["attempts"] and (folder / "report.html").exists() else FAILED, written
        ),
    ]


def _unscored(text: str, planted: bool) -> CheckRow:
    """Return the row about the groups if no attempt got a score; `planted`: some attempts were gold answers."""
    why = "every reward with a weight returned None for every attempt, so that there is nothing to learn from"
    fix = "Return a number for attempts that the reward is for, 0.0 for a wrong or unreadable one"
    if planted:
        return CheckRow("groups", FAILED, f"{text}: {why}, though half of them were gold answers. {fix}.")
    return CheckRow("groups", WARNED, f"{text}: {why}. {fix}; None means that a reward does not apply.")


def learned(report: dict[str, Any], alive: int) -> CheckRow:
    """Check that the weights moved, and if not, whether there was a gradient to move them."""
    gradients = [norm for norm in report["gradients"] if norm == norm]
    norms = f"gradient norms {', '.join(f'{norm:.2g}' for norm in report['gradients'])}"
    if len(gradients) < len(report["gradients"]):
        return CheckRow("learning", FAILED, f"{norms}: not a number")
    if report["moved"] > 0:
        return CheckRow("learning", OK, f"moved, by {report['moved']:.1g} at most; {norms}")
    if not alive or not any(gradients):
        why = f"did not move, and nothing was there to move them: {alive} groups alive; {norms}"
        return CheckRow("learning", UNSEEN, why)
    return CheckRow("learning", FAILED, f"did not move, though there was a gradient ({norms}): look at learning_rate")


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool | None) else str(value)


def _reason(folder: Path, errors: str) -> str:
    error = folder / ERROR
    if error.exists():
        return error.read_text(encoding="utf-8")
    # The run ended without an error file. The launcher's traceback, which comes last, does not help.
    lines = [line for line in errors.splitlines() if line.strip()]
    own = [line for line in lines if line.startswith("error: ")]
    return "\n".join(own[-1:] or lines[-12:]) or "it printed nothing"
