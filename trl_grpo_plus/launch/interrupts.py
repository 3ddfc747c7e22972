"""Ctrl-C: the first one ends the run after a saved step, the second at once."""

import signal
import sys
import time
from types import FrameType
from typing import Any

from transformers import TrainerCallback

from ..utils.terminal import say


SAME_KEYPRESS = 1.0  # seconds; a launcher may pass on a signal that the terminal has sent already


class StopOnInterrupt(TrainerCallback):
    """Finishes the running step on SIGINT, saves a full checkpoint and ends `train()`. All processes agree on it.

    During an evaluation or the writing of a checkpoint, that and the next step are finished first. Where the step was
    the last one, the run is as good as done and ends as if nothing had been. A second SIGINT raises
    `KeyboardInterrupt` wherever the run is; so does the first one before or after `train()`.

    Args:
        accelerator (`accelerate.Accelerator`): the trainer's.

    Attributes:
        stopped (`bool`): whether that is how training ended.
    """

    def __init__(self, accelerator: Any) -> None:
        self.accelerator = accelerator
        self.stopped = False
        self._asked_at: float | None = None
        self._previous: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take over SIGINT."""
        self._previous = signal.signal(signal.SIGINT, self._on_sigint)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save and stop where any process was asked to."""
        if self._asked_at is not None:
            self.accelerator.set_trigger()
        if self.accelerator.check_trigger() and state.global_step < state.max_steps:
            self.stopped = True
            args.save_only_model = False
            control.should_save = control.should_training_stop = True
            control.should_evaluate = False

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Give SIGINT back, unless it may be the same keypress that is still coming in."""
        if not self.stopped:
            signal.signal(signal.SIGINT, self._previous)

    def _on_sigint(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at = now
            if self.accelerator.is_main_process:
                say(
                    "\nFinishing this step, then saving. Press Ctrl-C again to stop at once.",
                    file=sys.stderr,
                    flush=True,
                )
        elif now - self._asked_at > SAME_KEYPRESS:
            signal.signal(signal.SIGINT, self._previous)
            raise KeyboardInterrupt
