"""The timed first steps of a recipe with its own model and batches, on a CPU.

`trl-grpo-plus check RECIPE --smoke` launches this module. A model that a prepare function makes is made as for a check
(`smoke=True`). The seconds of each step, and the peak memory of the process, are written to `<output_dir>/clock.json`.
Then the process ends, without evaluating or saving.
"""

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from ... import GRPOPlusTrainer
from ...launch.train import main, run
from ...utils.files import replace
from . import hub
from .smoke import CLOCK
from .smoke_options import upload_no_completions


class Done(Exception):
    """Signal that all steps are done."""


class _Clock(TrainerCallback):
    """A callback that writes how long each step took, and ends the run after the last one."""

    def __init__(self) -> None:
        self._last, self._seconds = 0.0, list[float]()

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Start the clock of the first step."""
        self._last = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the seconds of the steps so far, and the peak memory."""
        now = time.monotonic()
        self._seconds.append(now - self._last)
        self._last = now
        if state.is_world_process_zero:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            # Replace the file as a whole, because a kill may come at any time.
            replace(Path(args.output_dir, CLOCK), [json.dumps({"seconds": self._seconds, "peak": peak}).encode()])
        if state.global_step == args.max_steps:
            raise Done


def trainer(*args: Any, **kwargs: Any) -> GRPOPlusTrainer:
    """Return the recipe's trainer, with a clock."""
    made = GRPOPlusTrainer(*args, **kwargs)
    made.add_callback(_Clock())
    return made


def _main(script_args: Any, training_args: Any, model_args: Any, dataset_args: Any) -> int:
    upload_no_completions(training_args)
    try:
        return main(script_args, training_args, model_args, dataset_args, trainer, hub.needed_data)
    except Done:
        return 0


if __name__ == "__main__":
    sys.exit(run(_main, "trl_grpo_plus.cli.check.timed_run"))
