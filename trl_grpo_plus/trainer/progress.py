"""The output of a run: progress bars, one short line for each log entry, and what the log says at the end."""

import math
import shlex
import statistics
import warnings
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.utils import logging

from ..rollouts.resampling import can_shrink
from ..rollouts.verdicts import ADVICE, VERDICTS
from ..traces import FOLDER, by_split, evaluated
from ..utils.text import percent


if TYPE_CHECKING:
    from transformers import Trainer


TRUNCATED, DEAD = "completions/clipped_ratio", "frac_reward_zero_std"  # metrics of TRL
# Options at which nothing reads the tokens of dead groups, and their advantages are 0.
WITHOUT_DEAD: dict[str, Any] = {
    "beta": 0.0,
    "entropy_coef": 0.0,
    "use_adaptive_entropy": False,
    "top_entropy_quantile": 1.0,
    "filter_metric": "total",
    "advantage_estimator": "grpo",
    "advantage_baseline": "mean",
    "multi_objective_aggregation": "sum_then_normalize",
}
FULL_CONTEXT = "sampler/full_context"  # share of the first process's attempts that ended in vLLM's full context
LAST = 0.25  # share of a run's log that is its end
HARDLY_ALIVE = 0.05  # share of live groups in the end, below which the run has hardly learned anything
MANY = 0.25  # share of a dead verdict in the end, from which its advice is printed; of dead groups, of a hint
WORTH_A_WORD = 0.1  # share of cut off attempts that is worth a line; docs/faq.md has the same share


class SlimProgress(ProgressCallback):
    """transformers' progress bars, with one readable line for each log entry instead of some fifty numbers.

    [`GRPOPlusTrainer`] has it. Trackers and `trainer.state.log_history` still get all numbers. To use it with another
    `transformers.Trainer`:

        from trl_grpo_plus import SlimProgress

        SlimProgress.install(trainer)  # before trainer.train()
    """

    @classmethod
    def install(cls, trainer: "Trainer") -> None:
        """Replace the trainer's progress callback, or with `disable_tqdm=True` the printer of log entries.

        A subclass of either that a script gives the trainer stays.
        """
        for plain, slim in ((ProgressCallback, cls), (PrinterCallback, SlimPrinter)):
            of_transformers = [one for one in trainer.callback_handler.callbacks if type(one) is plain]
            if of_transformers:
                trainer.remove_callback(of_transformers[-1])
                trainer.add_callback(slim())
                return

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Print the entry above the bars."""
        _print_line(args, state, logs)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Remove the evaluation's bar, after the training too."""
        if self.prediction_bar is not None:
            self.prediction_bar.leave = False
        super().on_evaluate(args, state, control, **kwargs)


class SlimPrinter(PrinterCallback):
    """A printer of the same lines without progress bars."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Print the entry."""
        _print_line(args, state, logs)


def _print_line(args: Any, state: Any, logs: dict[str, Any] | None) -> None:
    line = describe(logs or {}, hasattr(args, "num_generations"))
    if state.is_world_process_zero and line:
        tqdm.write(f"step {state.global_step:>4}  {line}")


def describe(logs: dict[str, Any], samples: bool = False) -> str:
    """Return the part of a log entry that shows the state of the run, or an empty text.

    Args:
        logs (`dict`): the entry.
        samples (`bool`, *optional*, defaults to `False`):
            Whether the trainer samples batches. A step without a reward then trained on the batch of an earlier one.

    Example:
        >>> describe({"reward": 1.25, "rewards/math/mean": 0.5, "rewards/form/mean": 0.75, "entropy": 0.5})
        'reward 1.250 (math 0.500, form 0.750)  entropy 0.500'
    """
    evaluation = evaluated(logs)
    if evaluation is not None:
        split, reward = evaluation
        return f"{split.replace('_', ' ', 1)}: reward {reward:.3f}{_each_reward(by_split(logs), f'{split}/')}"
    each = _each_reward(logs)
    words = [
        f"{name} {logs[name]:.3f}{each if name == 'reward' else ''}"
        for name in ("reward", "entropy")
        if logs.get(name) is not None
    ]
    words += [f"{name} {percent(logs['groups/' + name])}" for name in VERDICTS if logs.get("groups/" + name)]
    words += ["(batch of an earlier step)"] if samples and "loss" in logs and "reward" not in logs else []
    alarms = [name.removeprefix("alarms/") for name, value in logs.items() if name.startswith("alarms/") and value]
    return "  ".join([*words, *([f"alarms: {', '.join(alarms)}"] if alarms else [])])


def _each_reward(logs: dict[str, Any], prefix: str = "") -> str:
    """Return the mean of each reward in parentheses; an empty text if there is one reward."""
    start, end = f"{prefix}rewards/", "/mean"
    means = {key: value for key, value in logs.items() if key.startswith(start) and key.endswith(end)}
    if len(means) < 2:
        return ""
    shown = (f"{key[len(start) : -len(end)]} {value:.3f}" for key, value in means.items() if value is not None)
    return f" ({', '.join(shown)})"


def closing_words(state: Any, args: Any, traced: bool, own_objective: bool = False) -> list[str]:
    """Return lines on a run that has ended: on attempts that were cut off, and on dead groups.

    Args:
        state (`TrainerState`): the trainer's.
        args ([`GRPOPlusConfig`]): the trainer's.
        traced (`bool`): whether to say where the traces are, and how to look at them.
        own_objective (`bool`, *optional*, defaults to `False`):
            Whether a subclass makes its loss or its batches itself, for which dead groups may count. Then nothing is
            said of leaving them out.
    """
    summary = {"steps": state.global_step, **sampled(state.log_history, args)}
    lines = [*cut_off(summary), *([] if own_objective else kept_dead(summary)), *hardly_alive(summary)]
    if traced:
        lines += [f"Attempts: {args.output_dir}/{FOLDER}. To look at them:", ""]
        lines += [f"  trl-grpo-plus view {shlex.quote(args.output_dir)}", ""]
    return lines


def sampled(history: list[dict[str, Any]], args: Any) -> dict[str, Any]:
    """Return what a run's log entries say of the sampled groups and attempts.

    Args:
        history (`list[dict]`): the log entries.
        args ([`GRPOPlusConfig`]): the trainer's.

    Returns:
        `dict`: `groups` (mean share of each verdict); `truncated` (mean share of attempts that were cut off);
        `max_completion_length`; `full_context` (mean of that metric; `None` if it was not logged); `kept_dead` (mean
        share of dead groups, if `skip` could have left them out with the same gradient, otherwise `None`); `end`
        (`groups` and `truncated` of the last quarter of the log, the step after which this quarter begins, and the
        verdicts that are `dead`).
    """
    before, end = _parted(history)
    return {
        "groups": _shares(history),
        "kept_dead": mean(history, DEAD) if _could_skip(args) else None,
        "truncated": mean(history, TRUNCATED),
        "max_completion_length": args.max_completion_length,
        "full_context": mean(history, FULL_CONTEXT),
        "end": {
            "after_step": before[-1]["step"] if before else 0,
            "groups": _shares(end),
            "dead": sorted(args.dead),
            "truncated": mean(end, TRUNCATED),
        },
    }


def cut_off(summary: dict[str, Any]) -> list[str]:
    """Return a line on the share of cut off attempts, if it is high, with advice if it was still high at the end."""
    share, at_the_end = summary["truncated"], summary["end"]["truncated"]
    if share is None or max(share, at_the_end) < WORTH_A_WORD:
        return []
    limit = f"max_completion_length={summary['max_completion_length']}"
    advice = "Raise this limit (a rollout_func has its own), or ask for shorter answers in the prompt."
    if summary["full_context"]:
        limit += ", or vLLM's context, vllm_max_model_length"
        advice = "Raise both limits, ask for shorter answers in the prompt, or leave out the longest prompts."
    line = f"cut off ({limit}): {percent(share)} of attempts"
    if at_the_end < WORTH_A_WORD:
        return [f"{line}, {percent(at_the_end)} at the end"]
    return [f"{line}, {percent(at_the_end)} at the end. {advice}"]


def hardly_alive(summary: dict[str, Any]) -> list[str]:
    """Return lines that say that the run ended with almost only dead groups, with their verdicts and advice."""
    shares, verdicts = summary["end"]["groups"], summary["end"]["dead"]
    if not shares or sum(share for verdict, share in shares.items() if verdict not in verdicts) > HARDLY_ALIVE:
        return []
    dead = sorted(
        ((share, verdict) for verdict, share in shares.items() if share and verdict in verdicts), reverse=True
    )
    of_each = ", ".join(f"{percent(share)} {verdict}" for share, verdict in dead)
    first, last = summary["end"]["after_step"] + 1, summary["steps"]
    steps = f"step {last}" if first == last else f"steps {first} to {last}"
    why = [f"{verdict}: {ADVICE[verdict]}" for share, verdict in dead if share >= MANY]
    where = 'More: docs/faq.md, "Nothing is learnt" and "All groups are dead".'
    return ["", f"Little was learned in {steps}: the sampled groups were {of_each}.", *why, where]


def kept_dead(summary: dict[str, Any]) -> list[str]:
    """Return a line that says how to save the time that dead groups took in the training phase, if they were many."""
    share = summary["kept_dead"]
    if share is None or share < MANY or hardly_alive(summary):
        return []
    return [
        f"dead groups: {percent(share)} of those sampled. They taught nothing, and took their share of the training "
        "phase. GRPOPlusTrainer with zero_variance_groups='skip' leaves them out, with the same gradient: "
        "docs/groups.md."
    ]


def _could_skip(args: Any) -> bool:
    """Return whether `zero_variance_groups: skip` would have saved time with the same gradient; see docs/groups.md."""
    return (
        args.zero_variance_groups == "keep"
        and all(getattr(args, name, value) == value for name, value in WITHOUT_DEAD.items())
        and args.loss_type != "bnpo"
        and args.scale_rewards != "batch"  # TRL's metric is then no share of dead groups
        and can_shrink(args, args.world_size)
    )


def _parted(history: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the log entries of sampled batches in two lists: entries before the end, and entries of the end."""
    entries = [entry for entry in history if TRUNCATED in entry]
    count = len(entries) - math.ceil(LAST * len(entries))
    return entries[:count], entries[count:]


def _shares(history: list[dict[str, Any]]) -> dict[str, float]:
    return {key: share for key in VERDICTS if (share := mean(history, f"groups/{key}")) is not None}


def mean(history: list[dict[str, Any]], key: str) -> float | None:
    """Return the mean of a metric over the log entries that have it; `None` if no entry has it."""
    values = [entry[key] for entry in history if entry.get(key) is not None]
    return statistics.fmean(values) if values else None


def silence_libraries() -> None:
    """Silence output that is not about this run: libraries' deprecations, and bars for reading and writing weights."""
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|trl|accelerate|torch)\b")
    logging.disable_progress_bar()
