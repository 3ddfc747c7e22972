"""The end of a run: what is saved, and the closing report."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..traces import evaluations
from ..trainer import checkpoint_integrity, progress
from ..utils.files import TracesError, write_json
from ..utils.tables import in_a_line
from ..utils.terminal import say
from ..utils.text import percent
from ..utils.validation import ConfigError
from ..view import write_page
from .previous_run import PAGE, SUMMARY, stamps


if TYPE_CHECKING:
    from trl import GRPOTrainer


COUNT_KEYS = ("groups/generated", "groups/trained", "groups/rounds", "tokens/generated", "tokens/trained")


def save(trainer: "GRPOTrainer") -> list[str]:
    """Save model and state to `output_dir`. All processes must call this function.

    Returns:
        `list[str]`: names of the written files, on the main process; empty on the others.
    """
    folder, main = trainer.args.output_dir, trainer.accelerator.is_main_process
    before = stamps(folder) if main else {}
    trainer.save_model(folder)
    trainer.save_state()
    return sorted(name for name, stamp in stamps(folder).items() if before.get(name) != stamp) if main else []


def summarise(trainer: "GRPOTrainer", saved: list[str]) -> dict[str, Any]:
    """Return a summary of the run, and write it to `<output_dir>/summary.json`.

    Only the main process may call this function, after [`save`].

    Args:
        trainer: the run's trainer.
        saved (`list[str]`): names of files that [`save`] returned.

    Returns:
        `dict`: `steps`; `eval` (split -> rewards `before` and `after`, and the step of each; `before` is `None` if
        there was only one evaluation); `counts` (logged means per optimizer step); what
        [`~trl_grpo_plus.trainer.progress.sampled`] returns; `model`, `checkpoints`, `log` and `page` (paths; `page` is
        `None` if the page was not written); `files` (names of the files saved beside the summary).
    """
    folder, history = trainer.args.output_dir, trainer.state.log_history
    summary = {
        "steps": trainer.state.global_step,
        "eval": _before_and_after(history),
        "counts": {key: mean for key in COUNT_KEYS if (mean := progress.mean(history, key)) is not None},
        **progress.sampled(history, trainer.args),
        "model": folder,
        "checkpoints": [str(path) for path in checkpoint_integrity.checkpoints(folder)],
        "log": os.path.join(folder, "trainer_state.json"),
        "page": _write_page(folder),
        "files": saved,
    }
    write_json(Path(folder, SUMMARY), summary)
    return summary


def report(summary: dict[str, Any]) -> str:
    """Return the summary as text for a terminal."""
    lines = ["", f"{'reward':<12}{'before':>9}{'after':>9}{'points':>9}"] if summary["eval"] else []
    for split, was in summary["eval"].items():
        before, points = "-", "-"
        if was["before"] is not None:
            before, points = f"{was['before']:.3f}", f"{100 * (was['after'] - was['before']):+.1f}"
        # A run without eval_on_start has no evaluation before training.
        first = f"  (the first evaluation was at step {was['before_step']})" if was["before_step"] else ""
        lines.append(f"{split:<12}{before:>9}{was['after']:>9.3f}{points:>9}{first}")
    if summary["groups"]:
        shares = ", ".join(f"{percent(share)} {verdict}" for verdict, share in summary["groups"].items() if share)
        lines += ["", f"groups sampled: {shares}"]
    counts = summary["counts"]
    if len(counts) == len(COUNT_KEYS):
        lines.append(
            f"per step: {_mean(counts['groups/generated'])} groups and {counts['tokens/generated']:.0f} tokens "
            f"generated, {_mean(counts['groups/trained'])} and {counts['tokens/trained']:.0f} trained on"
        )
    lines += [*progress.cut_off(summary), *progress.kept_dead(summary)]
    checkpoints = ", ".join(Path(path).name for path in summary["checkpoints"])
    lines += [
        "",
        f"model        {summary['model']}",
        f"checkpoints  {checkpoints or 'none'}",
        f"log          {summary['log']}",
        f"summary      {os.path.join(summary['model'], SUMMARY)}",
        *([f"attempts     {summary['page']}"] if summary["page"] else []),
        *progress.hardly_alive(summary),
    ]
    return "\n".join(lines)


def _write_page(folder: str) -> str | None:
    page = os.path.join(folder, PAGE)
    try:
        write_page(folder, page)
    except Exception as error:  # such as no traces or a full disk: the run has still succeeded
        why = error if isinstance(error, TracesError | ConfigError | OSError) else in_a_line(error)
        say(f"The page of attempts was not written: {why}")
        return None
    return page


def _mean(count: float) -> str:
    """Return a mean number of groups, with a decimal if it is not whole."""
    return f"{count:.1f}".removesuffix(".0")


def _before_and_after(history: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    changes = {}
    for split, rewards in evaluations(history).items():
        (first_step, first), (last_step, last) = rewards[0] if len(rewards) > 1 else (None, None), rewards[-1]
        change = {"before": first, "before_step": first_step, "after": last, "after_step": last_step}
        changes[split.removeprefix("eval_")] = change
    return changes
