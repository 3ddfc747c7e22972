"""Ctrl-C, SIGUSR1 and a closed terminal end the run after a saved step; a second Ctrl-C ends it at once."""

import os
import signal
import sys
import time
from types import FrameType
from typing import TYPE_CHECKING, Any

from transformers import IntervalStrategy

from ..trainer.training_state import StopsWhole
from ..utils.terminal import say


if TYPE_CHECKING:
    from accelerate import Accelerator


SAME_KEYPRESS = 1.0  # seconds; a launcher may pass on a signal that the terminal has already sent
# Not SIGTERM: torch sends it to the other processes when one has failed.
SIGNALS = (signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


class StopOnInterrupt(StopsWhole):
    """A callback that ends `train()` on SIGINT, SIGUSR1 or SIGHUP: it finishes the step and saves a full checkpoint.

    All processes stop at the same step, after the evaluation that is due then. If the signal comes during an
    evaluation of `eval_strategy="steps"`, the run ends after it. If it comes during another evaluation or the writing
    of a checkpoint, the run finishes this and the next step first. If the step is the last one, the run ends as usual.
    A second signal raises `KeyboardInterrupt` at once. So does the first SIGINT before or after `train()`. SIGHUP is
    never a second signal: the terminal may be closed after Ctrl-C, and a shell repeats it. Where SIGHUP is ignored, as
    under `nohup`, it stays ignored.

    Args:
        accelerator (`accelerate.Accelerator`): the trainer's accelerator.

    Attributes:
        stopped (`bool`): whether a signal ended the training.
    """

    def __init__(self, accelerator: "Accelerator") -> None:
        self.accelerator = accelerator
        self.stopped = False
        self._asked_at: float | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self._process: int | None = None  # the one that installed the handler; workers of a dataloader inherit it

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Install the signals' handler."""
        super().on_train_begin(args, state, control, **kwargs)
        evaluates = args.eval_strategy != IntervalStrategy.NO
        self._unfinished = "this step, and its evaluation if one is due" if evaluates else "this step"
        self._process = os.getpid()
        nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        numbers = [number for number in SIGNALS if not (nohup and number == signal.SIGHUP)]
        self._previous = {number: signal.signal(number, self._on_signal) for number in numbers}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save and stop if any process has received a signal."""
        if self._asked_at is not None:
            self.accelerator.set_trigger()
        if (self.accelerator.check_trigger() or self.stopped) and state.global_step < state.max_steps:
            self.stopped = True
            self.stop_after_step(args, state, control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save and stop after an evaluation that followed a step."""
        if args.eval_strategy == IntervalStrategy.STEPS and state.global_step:
            self.on_step_end(args, state, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Restore the previous handlers, unless a second signal of the same keypress may still arrive."""
        if not self.stopped:
            self._restore()

    def _restore(self) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at = now
            if self.accelerator.is_main_process and os.getpid() == self._process:
                say(
                    f"\nFinishing {self._unfinished}, then saving. Press Ctrl-C again to stop at once.",
                    file=sys.stderr,
                    flush=True,
                )
        elif number != signal.SIGHUP and now - self._asked_at > SAME_KEYPRESS:
            self._restore()
            raise KeyboardInterrupt
