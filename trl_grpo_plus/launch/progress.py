"""What a run prints while it goes: progress bars and a short line a log entry."""

import warnings
from typing import Any

from tqdm.auto import tqdm
from transformers.trainer_callback import ProgressCallback
from transformers.utils import logging

from ..traces import evaluated


class SlimProgress(ProgressCallback):
    """transformers' progress bars, with one readable line for each log entry in place of some thirty numbers.

    Recipes have it; a script of your own asks for it with [`install`], of any `transformers.Trainer`:

        from trl_grpo_plus import SlimProgress

        SlimProgress.install(trainer)  # before trainer.train()
    """

    @classmethod
    def install(cls, trainer: Any) -> None:
        """Put it in the place of the trainer's progress callback, if it has one (none with `disable_tqdm=True`)."""
        if trainer.pop_callback(ProgressCallback) is not None:
            trainer.add_callback(cls())

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Print the entry, above the bars."""
        line = describe(logs or {})
        if state.is_world_process_zero and line:
            tqdm.write(f"step {state.global_step:>4}  {line}")

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the evaluation's bar away, after the training too."""
        if self.prediction_bar is not None:
            self.prediction_bar.leave = False
        super().on_evaluate(args, state, control, **kwargs)


def describe(logs: dict[str, Any]) -> str:
    """Return the part of a log entry that says how the run is going, or an empty text."""
    evaluation = evaluated(logs)
    if evaluation is not None:
        return f"{evaluation[0].replace('_', ' ', 1)}: reward {evaluation[1]:.3f}"
    words = [f"{name} {logs[name]:.3f}" for name in ("reward", "entropy") if logs.get(name) is not None]
    words += [
        f"{name} {100 * logs['groups/' + name]:.0f} %"
        for name in ("alive", "all_good", "all_bad", "tied", "truncated")
        if logs.get("groups/" + name)
    ]
    return "  ".join(words)


def hush() -> None:
    """Silence what is not about this run: deprecations inside the libraries, bars for reading and writing weights."""
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|trl|accelerate|torch)\b")
    logging.disable_progress_bar()
