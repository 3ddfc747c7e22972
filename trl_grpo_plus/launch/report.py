"""The end of a run: what is saved, and the closing report."""

import math
import os
import statistics
from pathlib import Path
from typing import Any

from ..rollouts.verdicts import ADVICE, VERDICTS
from ..traces import evaluations
from ..utils.files import TracesError, write_json
from ..utils.tables import in_a_line
from ..utils.terminal import say
from ..utils.validation import ConfigError
from ..view import write_page
from .previous_run import PAGE, SUMMARY, stamps


TRUNCATED = "completions/clipped_ratio"  # a metric of TRL
COUNT_KEYS = ("groups/generated", "groups/trained", "groups/rounds", "tokens/generated", "tokens/trained")

LAST = 0.25  # share of a run's log that is its end
HARDLY_ALIVE = 0.05  # share of live groups in the end, below which the run has hardly learned anything
MANY = 0.25  # share of a dead verdict in the end, from which its advice is printed
WORTH_A_WORD = 0.1  # share of cut off attempts that is worth a line; docs/guide.md has the same share


def save(trainer: Any) -> list[str]:
    """Save model and state to `output_dir`. All processes must call this function.

    Returns:
        `list[str]`: names of the written files, on the main process; empty on the others.
    """
    folder, main = trainer.args.output_dir, trainer.accelerator.is_main_process
    before = stamps(folder) if main else {}
    trainer.save_model(folder)
    trainer.save_state()
    return sorted(name for name, stamp in stamps(folder).items() if before.get(name) != stamp) if main else []


def summarise(trainer: Any, saved: list[str]) -> dict[str, Any]:
    """Return a summary of the run, and write it to `<output_dir>/summary.json`.

    Only the main process may call this function, after [`save`].

    Args:
        trainer: the run's trainer.
        saved (`list[str]`): names of files that [`save`] returned.

    Returns:
        `dict`: `steps`; `eval` (split -> rewards `before` and `after`, and the step of each; `before` is `None` if
        there was only one evaluation); `groups` (mean share of each verdict); `counts` (logged means per optimizer
        step); `truncated` (mean share of attempts that were cut off at `max_completion_length`);
        `max_completion_length`; `end` (`groups` and `truncated` of the last quarter of the log, the step after which
        this quarter begins, and the verdicts that are `dead`); `model`, `checkpoints`, `log` and `page` (paths; `page`
        is `None` if the page was not written); `files` (names of the files saved beside the summary).
    """
    folder, history = trainer.args.output_dir, trainer.state.log_history
    before, end = _parted(history)
    checkpoints = sorted(Path(folder).glob("checkpoint-[0-9]*"), key=lambda path: int(path.name.rpartition("-")[2]))
    summary = {
        "steps": trainer.state.global_step,
        "eval": _before_and_after(history),
        "groups": _shares(history),
        "counts": {key: mean for key in COUNT_KEYS if (mean := _mean(history, key)) is not None},
        "truncated": _mean(history, TRUNCATED),
        "max_completion_length": trainer.args.max_completion_length,
        "end": {
            "after_step": before[-1]["step"] if before else 0,
            "groups": _shares(end),
            "dead": sorted(trainer.args.dead),
            "truncated": _mean(end, TRUNCATED),
        },
        "model": folder,
        "checkpoints": [str(path) for path in checkpoints],
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
        lines.append(f"{split:<12}{before:>9}{was['after']:>9.3f}{points:>9}")
    if summary["groups"]:
        shares = ", ".join(f"{share:.0%} {verdict}" for verdict, share in summary["groups"].items() if share)
        lines += ["", f"groups sampled: {shares}"]
    counts = summary["counts"]
    if len(counts) == len(COUNT_KEYS):
        lines.append(
            f"per step: {counts['groups/generated']:.0f} groups and {counts['tokens/generated']:.0f} tokens "
            f"generated, {counts['groups/trained']:.0f} and {counts['tokens/trained']:.0f} trained on"
        )
    lines += _cut_off(summary)
    checkpoints = ", ".join(Path(path).name for path in summary["checkpoints"])
    lines += [
        "",
        f"model        {summary['model']}",
        f"checkpoints  {checkpoints or 'none'}",
        f"log          {summary['log']}",
        f"summary      {os.path.join(summary['model'], SUMMARY)}",
        *([f"attempts     {summary['page']}"] if summary["page"] else []),
        *_hardly_alive(summary),
    ]
    return "\n".join(lines)


def _cut_off(summary: dict[str, Any]) -> list[str]:
    """Return a line on the share of cut off attempts, if it is high, with advice if it was still high at the end."""
    share, at_the_end = summary["truncated"], summary["end"]["truncated"]
    if share is None or max(share, at_the_end) < WORTH_A_WORD:
        return []
    line = f"cut off at max_completion_length={summary['max_completion_length']}: {share:.0%} of attempts"
    if at_the_end < WORTH_A_WORD:
        return [f"{line}, {at_the_end:.0%} at the end"]
    return [f"{line}, {at_the_end:.0%} at the end. Raise it, or ask for shorter answers in the prompt."]


def _hardly_alive(summary: dict[str, Any]) -> list[str]:
    """Return lines that say that the run ended with almost only dead groups, with their verdicts and advice."""
    shares, verdicts = summary["end"]["groups"], summary["end"]["dead"]
    if not shares or sum(share for verdict, share in shares.items() if verdict not in verdicts) > HARDLY_ALIVE:
        return []
    dead = sorted(
        ((share, verdict) for verdict, share in shares.items() if share and verdict in verdicts), reverse=True
    )
    of_each = ", ".join(f"{share:.0%} {verdict}" for share, verdict in dead)
    first, last = summary["end"]["after_step"] + 1, summary["steps"]
    steps = f"step {last}" if first == last else f"steps {first} to {last}"
    why = [f"{verdict}: {ADVICE[verdict]}" for share, verdict in dead if share >= MANY]
    where = 'More: docs/guide.md, "Nothing is learnt" and "All groups are dead".'
    return ["", f"Little was learned in {steps}: the sampled groups were {of_each}.", *why, where]


def _write_page(folder: str) -> str | None:
    page = os.path.join(folder, PAGE)
    try:
        write_page(folder, page)
    except Exception as error:  # such as no traces or a full disk: the run has still succeeded
        why = error if isinstance(error, TracesError | ConfigError | OSError) else in_a_line(error)
        say(f"The page of attempts was not written: {why}")
        return None
    return page


def _before_and_after(history: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    changes = {}
    for split, rewards in evaluations(history).items():
        (first_step, first), (last_step, last) = rewards[0] if len(rewards) > 1 else (None, None), rewards[-1]
        change = {"before": first, "before_step": first_step, "after": last, "after_step": last_step}
        changes[split.removeprefix("eval_")] = change
    return changes


def _parted(history: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the log entries of sampled batches in two lists: entries before the end, and entries of the end."""
    sampled = [entry for entry in history if TRUNCATED in entry]
    count = len(sampled) - math.ceil(LAST * len(sampled))
    return sampled[:count], sampled[count:]


def _shares(history: list[dict[str, Any]]) -> dict[str, float]:
    return {key: mean for key in VERDICTS if (mean := _mean(history, f"groups/{key}")) is not None}


def _mean(history: list[dict[str, Any]], key: str) -> float | None:
    values = [entry[key] for entry in history if entry.get(key) is not None]
    return statistics.fmean(values) if values else None
