"""[`attach`] for one of TRL's own trainers: traces, page, alarms and tables for trackers, with the same training.

[`attach`] wraps methods of one trainer object. Each wrapper calls the method that was there, returns what that method
returned, and keeps a record. Nothing draws random numbers, and no tensor of the training is changed.

observer      the options, and the wrappers that each trainer needs
batches       the wrappers for a trainer that samples and scores its batches itself
asynchronous  those for TRL's `AsyncGRPOTrainer`, with or without its dead groups
"""

import sys
from typing import Any

from accelerate.logging import get_logger
from trl import GRPOTrainer, RLOOTrainer

from ...utils.validation import did_you_mean
from ..grpo_plus_trainer import GRPOPlusTrainer, stops_of
from ..model_warnings import warn_of_model
from ..recorder import Recorder
from .batches import BatchObserver
from .observer import OPTIONS, Options


logger = get_logger(__name__)

RESAMPLING = "zero_variance_groups"  # an option for an `AsyncGRPOTrainer` alone


def attach(trainer: Any, **options: Any) -> None:
    """Keep traces of one of TRL's trainers, raise alarms, and log tables to its trackers.

    Call `attach` before the first `train()`: it keeps nothing of earlier steps, and warns if there are any. The
    weights, TRL's metrics and TRL's checkpoints are the same as without it, bit for bit. `log` gains the metrics
    `alarms/*` and `completions/mean_length_of/*`. The alarms' history is not in TRL's checkpoints: after a resume the
    alarms start anew. `attach` warns of models, adapters and chat templates with which a run learns little, as
    [`GRPOPlusTrainer`] does.

    Args:
        trainer ([`~trl.GRPOTrainer`], [`~trl.RLOOTrainer`] or [`~trl.experimental.async_grpo.AsyncGRPOTrainer`]): the
            trainer. Of a subclass that makes its batches without TRL's methods, no attempts are kept. Of an
            asynchronous trainer see docs/how_to/watch_trl.md.
        options: `alarms`, `alarm_thresholds`, `halt_on_alarm`, `trace_*`, `filter_metric`, `solved_reward`,
            `failed_reward` and `zero_variance_tolerance`, with the defaults of [`GRPOPlusConfig`]. For an
            asynchronous trainer also `zero_variance_groups`: with `"resample"` it trains on live groups alone.

    Raises:
        TypeError: the trainer is of another kind, or an option is unknown.
        ConfigError: a value cannot work.

    Example:

    ```python
    trainer = GRPOTrainer("Qwen/Qwen2.5-0.5B-Instruct", accuracy_reward, GRPOConfig("out"), dataset)
    trl_grpo_plus.attach(trainer)
    trainer.train()  # then: trl-grpo-plus view out
    ```
    """
    if isinstance(trainer, GRPOPlusTrainer):
        raise TypeError("A GRPOPlusTrainer keeps its traces itself: leave attach(trainer) out.")
    asynchronous = _is_async(trainer)
    if not (asynchronous or isinstance(trainer, GRPOTrainer | RLOOTrainer)):
        raise TypeError(
            f"attach takes TRL's GRPOTrainer, RLOOTrainer or AsyncGRPOTrainer, got {type(trainer).__name__}."
        )
    if any(isinstance(callback, Recorder) for callback in trainer.callback_handler.callbacks):
        raise TypeError("This trainer is attached already: call attach(trainer) once.")
    taken = (*OPTIONS, RESAMPLING) if asynchronous else OPTIONS
    for name in options:
        if name not in taken:
            raise TypeError(
                f"attach got an unexpected keyword argument {name!r}.{did_you_mean(name, taken)} "
                f"It takes {', '.join(taken)}."
            )
    observed = Options(trainer.args, options)
    if asynchronous:
        from .asynchronous import AsyncObserver  # it imports trl.experimental, which warns

        AsyncObserver(trainer, observed).wrap()
    else:
        BatchObserver(trainer, observed).wrap()
        warn_of_model(trainer, observed, trainer._tokenizer, stops_of(trainer))
    if steps := trainer.state.global_step:
        logger.warning(
            f"This trainer has trained {steps} steps already. attach cannot record these steps: traces and alarms "
            "begin with the next train(). Call attach(trainer) before the first train()."
        )


def _is_async(trainer: Any) -> bool:
    """Return whether the trainer is TRL's `AsyncGRPOTrainer`. A script that has one has imported its module."""
    module = sys.modules.get("trl.experimental.async_grpo")
    return module is not None and isinstance(trainer, module.AsyncGRPOTrainer)
