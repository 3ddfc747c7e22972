"""[`attach`] for one of TRL's own trainers: traces, page, alarms and tables for trackers, with the same training.

[`attach`] wraps methods of one trainer object. Each wrapper calls the method that was there, returns what that method
returned, and keeps a record. Nothing draws random numbers, and no tensor of the training is changed.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from accelerate.logging import get_logger
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer, RLOOTrainer

from ..config import GRPOPlusConfig
from ..config.compatibility import check_filter_metric
from ..config.validation import NUMBERS, check_flag, check_watching
from ..objective.kl import at_hand
from ..objective.padding import loss_mask
from ..rollouts.generation import Generated
from ..rollouts.groups import Round, judge_batch
from ..rollouts.verdicts import DEAD
from ..scoring import Scoring
from ..traces import check_split_names
from ..utils import folder_lock
from ..utils.patching import replaces, temporarily
from ..utils.validation import ConfigError, did_you_mean
from . import hub
from .batch import Batch
from .grpo_plus_trainer import OBJECTIVE, GRPOPlusTrainer, ends_of, stops_of
from .model_warnings import warn_of_model, warn_of_unread_answers
from .recorder import Recorder
from .run_metadata import describe


logger = get_logger(__name__)

_JUDGING = ("failed_reward", "filter_metric", "solved_reward", "zero_variance_tolerance")
_WATCHING = ("alarm", "halt_on_", "trace_")  # how the names of the others begin
OPTIONS = tuple(sorted({*_JUDGING, *(name for name in GRPOPlusConfig.__annotations__ if name.startswith(_WATCHING))}))


def attach(trainer: Any, **options: Any) -> None:
    """Keep traces of one of TRL's trainers, raise alarms, and log tables to its trackers.

    Call `attach` before the first `train()`: it keeps nothing of earlier steps, and warns if there are any. The
    weights, TRL's metrics and TRL's checkpoints are the same as without it, bit for bit. `log` gains the metrics
    `alarms/*` and `completions/mean_length_of/*`. The alarms' history is not in TRL's checkpoints: after a resume the
    alarms start anew. `attach` warns of models, adapters and chat templates with which a run learns little, as
    [`GRPOPlusTrainer`] does.

    Args:
        trainer ([`~trl.GRPOTrainer`] or [`~trl.RLOOTrainer`]): the trainer. Of a subclass that makes its
            batches without TRL's methods, no attempts are kept.
        options: `alarms`, `alarm_thresholds`, `halt_on_alarm`, `trace_*`, `filter_metric`, `solved_reward`,
            `failed_reward` and `zero_variance_tolerance`, with the defaults of [`GRPOPlusConfig`].

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
    if not isinstance(trainer, GRPOTrainer | RLOOTrainer):
        raise TypeError(f"attach takes TRL's GRPOTrainer or TRL's RLOOTrainer, got {type(trainer).__name__}.")
    if any(isinstance(callback, Recorder) for callback in trainer.callback_handler.callbacks):
        raise TypeError("This trainer is attached already: call attach(trainer) once.")
    for name in options:
        if name not in OPTIONS:
            raise TypeError(
                f"attach got an unexpected keyword argument {name!r}.{did_you_mean(name, OPTIONS)} "
                f"It takes {', '.join(OPTIONS)}."
            )
    observed = _Options(trainer.args, options)
    _Observer(trainer, observed).wrap()
    warn_of_model(trainer, observed, trainer._tokenizer, stops_of(trainer))
    if steps := trainer.state.global_step:
        logger.warning(
            f"This trainer has trained {steps} steps already. attach cannot record these steps: traces and alarms "
            "begin with the next train(). Call attach(trainer) before the first train()."
        )


class _Options:
    """The options of [`attach`], a trainer's arguments, and defaults for options that an `RLOOConfig` lacks."""

    dead = DEAD

    def __init__(self, args: Any, options: dict[str, Any]):
        self._args, self.world_size, self.process_index = args, args.world_size, args.process_index
        if not isinstance(args, GRPOConfig):
            self.zero_variance_groups = None  # an `RLOOTrainer` has no way to leave groups out
        self.__dict__.update(options)

    def __getattr__(self, name: str) -> Any:
        if name not in GRPOPlusConfig.__dataclass_fields__:
            raise AttributeError(name)
        return getattr(self._args, name, GRPOPlusConfig.__dataclass_fields__[name].default)


class _Observer:
    """The keeper of one trainer's records. Every rank has one."""

    def __init__(self, trainer: Any, options: _Options):
        names, weights = trainer.reward_func_names, trainer.reward_weights.tolist()
        for name in OPTIONS:
            if name in NUMBERS:
                NUMBERS[name].check(name, getattr(options, name))
            if isinstance(GRPOPlusConfig.__dataclass_fields__[name].default, bool):
                check_flag(name, getattr(options, name))
        check_watching(options)
        if "reward_failures" in (options.halt_on_alarm or ()):
            raise ConfigError(
                "halt_on_alarm names 'reward_failures', which attach cannot see, because TRL calls the rewards. Use "
                "GRPOPlusTrainer, or name another alarm."
            )
        check_filter_metric(options.filter_metric, names)
        if options.trace_every:
            check_split_names(trainer.eval_dataset)
        if trainer.args.push_to_hub:
            hub.check_seam()
        self._trainer, self._options = trainer, options
        rank, about = trainer.accelerator.process_index, partial(describe, trainer)
        self._recorder = Recorder(options, names, weights, rank, about, trainer._metrics["train"])
        self._recorder.ends_at_max_steps = False  # transformers may train one more step
        of_trl = GRPOTrainer if isinstance(trainer, GRPOTrainer) else RLOOTrainer
        self._recorder.own_objective = replaces(trainer, of_trl, *OBJECTIVE)
        self._makes_batch = replaces(trainer, of_trl, "_generate_and_score_completions")
        self._batch = Batch()

    def wrap(self) -> None:
        """Replace the trainer's methods by the wrappers."""
        trainer = self._trainer
        for wrapper in (
            self._generate,
            self._calculate_rewards,
            self._generate_and_score_completions,
            self.log,
            self.evaluation_loop,
            self.train,
            self.push_to_hub,
            self._push_from_checkpoint,
        ):
            setattr(trainer, wrapper.__name__, partial(wrapper, getattr(trainer, wrapper.__name__)))
        # After transformers' callback that asks for evaluations: a stopped epoch leaves one out. Before trackio's own
        # callback, which closes its run when training ends.
        trainer.callback_handler.callbacks.insert(1, self._recorder)

    # A wrapper has the name of the method that it wraps, and takes that method as its first argument.

    def _generate(self, method: Callable[..., Any], prompts: list[Any]) -> Any:
        output = method(prompts)
        if len(output) == 3:  # the output of RLOO's trainer
            prompt_ids, completion_ids, completions = output
            self._batch.generated = Generated(prompt_ids, completion_ids, None, completions, None, {}, None, [])
        else:
            self._batch.generated = Generated(*output)
            warn_of_unread_answers(self._trainer, self._batch.generated.completions)
        return output

    def _calculate_rewards(self, method: Callable[..., Any], inputs: Any, prompts: Any, *completions: Any) -> Tensor:
        trainer, batch, options = self._trainer, self._batch, self._options
        if batch.generated is None:  # a subclass that samples by itself
            rewards: Tensor = method(inputs, prompts, *completions)
            return rewards
        sampled = batch.as_sampled(inputs, prompts)
        with temporarily(batch, generated=batch.generated):  # a judge may call `_generate` itself
            rewards = method(inputs, prompts, *completions)
        names = trainer.reward_func_names
        unwatched = Scoring(trainer.reward_funcs, names)  # the outcomes are not known
        attempts = batch.attempts(unwatched, *sampled, trainer._pending_extra_logs, ends_of(trainer))
        masked, accelerator = trainer.mask_truncated_completions, trainer.accelerator
        own = torch.tensor([attempt.loss_tokens(masked) for attempt in attempts], device=accelerator.device)
        in_loss = accelerator.gather(own).bool().cpu()
        values, weights = rewards.cpu(), trainer.reward_weights.cpu()
        verdicts = tuple(judge_batch(options, values, weights, names, batch.size, in_loss))
        batch.rounds = [Round(attempts, values, verdicts, DEAD, outcomes=torch.tensor(unwatched.counts()))]
        return rewards

    def _generate_and_score_completions(self, method: Callable[..., Any], inputs: Any) -> dict[str, Any]:
        trainer = self._trainer
        size = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
        # A reward may evaluate while it scores a batch.
        with temporarily(self, _batch=Batch(trainer.accelerator, size, inputs)):
            output: dict[str, Any] = method(inputs)
            if not self._batch.rounds:
                logger.warning_once(
                    f"{type(trainer).__name__} makes its batches without TRL's _generate or _calculate_rewards, so "
                    "attach cannot keep its attempts."
                )
                return output
            advantages = output["advantages"]
            if not self._makes_batch or self._has_the_attempts(output["completion_ids"]):
                self._batch.kl = at_hand(output, loss_mask(output))
            else:
                advantages = self._logged_advantages()
            number = trainer._step // (trainer.args.steps_per_generation * trainer.num_iterations)
            self._recorder.record_batch(trainer, self._batch, number, advantages, self._entropy())
        return output

    def _has_the_attempts(self, padded: Tensor) -> bool:
        """Return whether these completions, `(B, T)`, are the last generated ones; warn once if they are not."""
        generated = self._batch.generated
        assert generated is not None
        rows = zip(padded.tolist(), generated.completion_ids, strict=False)
        if len(padded) == len(generated.completion_ids) and all(row[: len(ids)] == [*ids] for row, ids in rows):
            return True
        logger.warning_once(
            f"{type(self._trainer).__name__} trains on other rows than TRL's last call of _generate returned. attach "
            "shows the attempts of that call, with the advantages that TRL gave them. To see the attempts of all "
            "calls, use GRPOPlusTrainer in the place of TRL's trainer."
        )
        return False

    def _logged_advantages(self) -> Tensor:
        """Return the advantages that TRL has logged last for this rank's attempts; NaN for those that it has not."""
        batch = self._batch
        count = len(batch.rounds[0].rewards)
        logged = [*self._trainer._logs["advantages"]][-count:]
        return batch.own_rows(torch.tensor([math.nan] * (count - len(logged)) + logged))

    def log(self, method: Callable[..., None], logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        self._recorder.settle()
        method(logs, *args, **kwargs)

    def evaluation_loop(
        self, method: Callable[..., Any], *args: Any, metric_key_prefix: str = "eval", **kwargs: Any
    ) -> Any:
        with self._recorder.evaluating(metric_key_prefix, self._trainer.state.global_step):
            return method(*args, metric_key_prefix=metric_key_prefix, **kwargs)

    def train(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with folder_lock.hold(self._trainer.args.output_dir), self._recorder.blaming_trackers():
            return method(*args, **kwargs)

    def push_to_hub(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with hub.uploading_no_attempts():
            return method(*args, **kwargs)

    def _push_from_checkpoint(self, method: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        with hub.uploading_no_attempts():
            method(*args, **kwargs)

    def _entropy(self) -> float | None:
        """Return the policy's entropy as TRL last measured it, in nats a token."""
        measured = self._trainer._metrics["train"].get("entropy")
        logged = (entry["entropy"] for entry in reversed(self._trainer.state.log_history) if "entropy" in entry)
        return measured[-1] if measured else next(logged, None)
