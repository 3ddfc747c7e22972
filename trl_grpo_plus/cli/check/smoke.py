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

from ...launch.launchers import THREADS, Start, cpu_threads, in_this_python, launch_command
from ...launch.recipe import Recipe, total_steps
from ...launch.reward_inputs import takes_smoke
from ...utils.tables import FAILED, OK, UNSEEN, WARNED, CheckRow
from .estimate import GIB, rounded
from .smoke_options import STEPS, smaller, steps_alone, words


SCRIPT, CLOCKED = "trl_grpo_plus.cli.check.smoke_run", "trl_grpo_plus.cli.check.timed_run"
CLOCK = "clock.json"  # written by the clocked run to its folder
REPORT, ERROR = "smoke.json", "smoke-error.txt"  # written by the smoke run to its folder
AS_FOR_A_CHECK = "The model is the one that prepare makes for a check, without a warm-up. A warm-up takes more time."
PUSHES = ("push_to_hub", "log_completions_hub_repo")
MOST_PROCESSES = 2
TIMEOUT_S, CLOCKED_S = 900, 300


def smoke(recipe: Recipe, folder: str, launcher: str = "accelerate", model_known: bool = True) -> list[CheckRow]:
    """Make the smoke run in `folder`, which the caller removes, and return its rows.

    Args:
        recipe ([`~trl_grpo_plus.launch.recipe.Recipe`]): the recipe as read.
        folder (`str`): folder of the run.
        launcher (`str`, *optional*, defaults to `"accelerate"`): one of
            [`~trl_grpo_plus.launch.launchers.LAUNCHERS`].
        model_known (`bool`, *optional*, defaults to `True`): whether the model's config is known.
    """
    output = os.path.join(folder, "smoke")
    processes = min(recipe.spread.processes, MOST_PROCESSES)
    small = smaller(recipe.training, recipe.model, processes)
    options = (*recipe.options, *small, *recipe.on_a_cpu, "--output_dir", output)
    command = launch_command(Start(recipe.name, options, num_processes=processes, launcher=launcher), SCRIPT)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", THREADS: os.environ.get(THREADS, "1")}
    status, errors = _launched(command, environment)
    if status is None:
        return [CheckRow("smoke", FAILED, f"two steps of a tiny model were not done after {TIMEOUT_S // 60} minutes")]
    if status:
        return [CheckRow("smoke", FAILED, _reason(Path(output), errors))]
    report = json.loads(Path(output, REPORT).read_text())
    if not model_known:
        report["model"] += ", because the recipe's model is not known"
    on = "one process" if processes == 1 else f"{processes} processes"
    if recipe.spread.sharding.startswith(("zero", "fsdp")):
        on += f" without {recipe.spread.sharding}"
    if pushes := [name for name in PUSHES if getattr(recipe.training, name, None)]:
        on += f". {' and '.join(pushes)} {'has' if len(pushes) == 1 else 'have'} no effect here: nothing is pushed"
    return rows_of(report, Path(output), on)


def clocked(recipe: Recipe, folder: str, launcher: str = "accelerate") -> CheckRow:
    """Measure the seconds of a step on the recipe's own batches and model, and estimate the seconds of the run.

    If `prepare` makes the model, it makes it as for a check (`smoke=True`). The arguments are those of [`smoke`].
    """
    output, args, processes = Path(folder, "clocked"), recipe.training, recipe.spread.processes
    every = args.steps_per_generation * args.num_iterations
    around = every // math.gcd(every, args.gradient_accumulation_steps)  # steps until the cycle repeats
    overrides = {**steps_alone(args), "max_steps": 1 + around, "do_eval": False, "output_dir": str(output)}
    options = (*recipe.options, *words(overrides))
    start = Start(recipe.name, options, num_processes=processes, launcher=launcher)
    environment = {**os.environ, **cpu_threads(start), "CUDA_VISIBLE_DEVICES": ""}
    status, errors = _launched(launch_command(start, CLOCKED), environment, CLOCKED_S)
    if status:
        return CheckRow("speed", FAILED, _reason(output, errors))
    report = json.loads((output / CLOCK).read_text()) if (output / CLOCK).exists() else {"seconds": []}
    if status is None or len(report["seconds"]) < 2:
        ended = f"were done in {CLOCKED_S // 60} minutes" if status is None else "were done when the run ended early"
        done = f"{len(report['seconds'])} of {1 + around} steps {ended}"
        return CheckRow("speed", UNSEEN, f"{done}. These are too few to estimate the time of the whole run")
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


def rows_of(report: dict[str, Any], folder: Path, on: str) -> list[CheckRow]:
    """Return the rows about a finished smoke run in `folder`; `on` describes its processes."""
    from ... import traces

    seconds = (
        f"{report['steps']} steps in {report['seconds']:.0f} s on a tiny {report['model']} with random weights, {on}"
    )
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in report["verdicts"].items())
    planted = f"gold answers planted as {report['planted']} of {report['attempts']} attempts"
    if not report["planted"]:
        planted = "no gold answers planted: there is none that a reward is known to give full marks"
    alive = report["verdicts"].get("alive", 0)
    groups = CheckRow("groups", OK, f"{verdicts}; {report['trained']} trained on; {planted}")
    if set(report["verdicts"]) == {"unscored"}:
        groups = _unscored(groups.text, report["planted"] > 0)
    elif report["planted"] and not alive:
        why = "no group was alive, although half the attempts were gold answers: does the reward reject wrong answers?"
        groups = CheckRow("groups", FAILED, f"{groups.text}: {why}")
    try:
        attempts = sum(len(group) for group in traces.groups(folder) if group[0]["split"] == "train")
        written = f"{attempts} attempts in rollouts/, and the page"
    except ValueError as error:  # there are no traces, or they are damaged
        attempts, written = 0, str(error)
    whole = attempts == report["attempts"] and (folder / "report.html").exists()
    return [
        CheckRow("smoke", OK if report["steps"] == STEPS else FAILED, seconds),
        groups,
        learned(report, alive),
        CheckRow("traces", OK if whole else FAILED, written),
    ]


def _unscored(text: str, planted: bool) -> CheckRow:
    """Return the row about the groups if no attempt got a score; `planted`: some attempts were gold answers."""
    why = "every reward with a weight returned None for every attempt, so the policy cannot learn"
    fix = "Return a number for each attempt that the reward applies to, and 0.0 for a wrong or unreadable attempt"
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
        why = f"did not move, because there was no gradient: {alive} groups alive; {norms}"
        return CheckRow("learning", UNSEEN, why)
    return CheckRow("learning", FAILED, f"did not move, although there was a gradient ({norms}): check learning_rate")


def _reason(folder: Path, errors: str) -> str:
    error = folder / ERROR
    if error.exists():
        return error.read_text(encoding="utf-8")
    # The run ended without an error file. The launcher's traceback, which comes last, does not help.
    lines = [line for line in errors.splitlines() if line.strip()]
    own = [line for line in lines if line.startswith("error: ")]
    return "\n".join(own[-1:] or lines[-12:]) or "it printed nothing"
