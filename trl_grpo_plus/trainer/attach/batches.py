"""The wrappers for a trainer that samples and scores its batches itself: `GRPOTrainer` and `RLOOTrainer`."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from accelerate.logging import get_logger
from torch import Tensor
from trl import GRPOTrainer, RLOOTrainer

from ...config.compatibility import check_filter_metric
from ...objective.kl import at_hand
from ...objective.padding import loss_mask
from ...rollouts.generation import Generated
from ...rollouts.groups import Round, judge_batch
from ...rollouts.verdicts import DEAD
from ...scoring import Scoring
from ...traces import check_split_names
from ...utils.patching import replaces, temporarily
from ..batch import Batch
from ..grpo_plus_trainer import OBJECTIVE, ends_of
from ..model_warnings import warn_of_unread_answers
from ..recorder import Recorder
from ..run_metadata import describe
from .observer import Observer, Options, last_entropy


logger = get_logger(__name__)


class BatchObserver(Observer):
    """The keeper for a trainer that samples and scores its batches itself."""

    def __init__(self, trainer: Any, options: Options):
        names, weights = trainer.reward_func_names, trainer.reward_weights.tolist()
        super().__init__(trainer, options)
        check_filter_metric(options.filter_metric, names)
        if options.trace_every:
            check_split_names(trainer.eval_dataset)
        rank, about = trainer.accelerator.process_index, partial(describe, trainer)
        self._recorder = Recorder(options, names, weights, rank, about, trainer._metrics["train"])
        self._recorder.ends_at_max_steps = False  # transformers may train one more step
        of_trl = GRPOTrainer if isinstance(trainer, GRPOTrainer) else RLOOTrainer
        self._recorder.own_objective = replaces(trainer, of_trl, *OBJECTIVE)
        self._makes_batch = replaces(trainer, of_trl, "_generate_and_score_completions")
        self._batch = Batch()

    def wrappers(self) -> Sequence[Callable[..., Any]]:
        """Return the wrappers, also those of the methods that make a batch."""
        of_batches = self._generate, self._calculate_rewards, self._generate_and_score_completions
        return *of_batches, self.evaluation_loop, *super().wrappers()

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
            self._recorder.record_batch(trainer, self._batch, number, advantages, last_entropy(trainer))
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

    def evaluation_loop(
        self, method: Callable[..., Any], *args: Any, metric_key_prefix: str = "eval", **kwargs: Any
    ) -> Any:
        """Evaluate, and record the batches under the name of the evaluation's split."""
        with self._recorder.evaluating(metric_key_prefix, self._trainer.state.global_step):
            return method(*args, metric_key_prefix=metric_key_prefix, **kwargs)
