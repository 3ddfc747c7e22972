"""The output of a run while it trains: progress bars, and one short line for each log entry."""

import warnings
from typing import Any

from tqdm.auto import tqdm
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.utils import logging

from ..traces import by_split, evaluated


class SlimProgress(ProgressCallback):
    """transformers' progress bars, with one readable line for each log entry instead of some fifty numbers.

    [`GRPOPlusTrainer`] has it. Trackers and `trainer.state.log_history` still get all numbers. To use it with another
    `transformers.Trainer`:

        from trl_grpo_plus import SlimProgress

        SlimProgress.install(trainer)  # before trainer.train()
    """

    @classmethod
    def install(cls, trainer: Any) -> None:
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
    words += [
        f"{name} {100 * logs['groups/' + name]:.0f} %"
        for name in ("alive", "all_good", "all_bad", "tied", "unscored", "truncated")
        if logs.get("groups/" + name)
    ]
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


def silence_libraries() -> None:
    """Silence output that is not about this run: libraries' deprecations, and bars for reading and writing weights."""
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|trl|accelerate|torch)\b")
    logging.disable_progress_bar()
