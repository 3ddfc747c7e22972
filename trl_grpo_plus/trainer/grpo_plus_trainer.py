"""`GRPOPlusTrainer`: TRL's `GRPOTrainer` with zero-variance group filtering and a choice of advantage and KL.

tests/trainer/test_trl_contract.py pins each private name of TRL that the package uses. The overridden
methods, in TRL's order of calls:

- `train`: refuses what cannot be trained on, and finds a complete checkpoint. `get_batch_samples` begins each step.
- `get_train_dataloader`: adds each row's index in the training set, if prompts are drawn or remembered.
- `_prepare_inputs`: weighs micro-batches with filler rows, so that the loss is that of the live rows alone.
- `_generate_and_score_completions`: selects prompts before TRL's method, and replaces masks, advantages and metrics
  after it. Each further round calls TRL's method again, since it prepares rows (environments, tools, images).
- Inside it TRL's calls of `_generate` and `_calculate_rewards` reach this trainer's stand-ins, which call those two
  methods, a subclass's if it overrides them.
- `_generated_batch`: unless all groups are kept, samples and scores in rounds, judges the groups on rewards gathered
  from all ranks, and replaces the caller's `inputs` and `prompts` by the batch to train on. TRL's later work (padding,
  old and reference log-probs, counts, metrics) is then on that batch.
- `_tool_call_loop`: lets ranks that generate together take the turns of tools together.
- `_batch_rewards`: keeps the gathered rewards and outcomes, and stops all ranks if a reward failed. Called for a
  filtered batch, it returns the rewards that are computed already. TRL does not get monitors (weight 0).
- `_compute_loss`: puts in another KL estimator or none, adapts beta, and keeps filler out of the entropy.
- `_get_grad_norm`: checks that the norm is finite. `_get_per_token_logps_and_entropies` keeps the log-probs for that.
- `log`, `evaluation_loop`: record logs and evaluations for the traces. TRL evaluates.
- `evaluate`, `predict`: refuse batches that hold a part of a group. `_determine_best_metric` skips a metric of `None`.
- Checkpoints hold the state of all this, for an exact resume. The Hub gets a full model card and no traces.
"""

import copy
import functools
import inspect
import logging
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import trl
from accelerate.utils import is_peft_model, send_to_device, set_seed
from torch import Tensor
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import nanstd

from ..config import (
    bounds,
    chat_checks,
    compatibility,
    evaluation_checks,
    sampling_distribution,
    start_errors,
    tool_checks,
    trained_weights,
    trl_releases,
)
from ..config.grpo_plus_config import GRPOPlusConfig, config_for
from ..curriculum import indexed_dataset, selection
from ..curriculum.prompt_states import states_of_share
from ..objective import kl, loss_inputs, padding
from ..objective.credit import Credit
from ..objective.scales import TRL_SCALES
from ..registry import resolve
from ..rollouts import groups, resampling, tool_turns
from ..rollouts.exchange import carried, exchange
from ..rollouts.generation import IMAGE_FIELDS, Generated, one_each
from ..scoring import TRL_UNSCORED, RewardError, Scoring, check_tokens, configure, held_back
from ..traces import logged_step
from ..utils import folder_lock
from ..utils.distributed import raise_before, raise_on_all_ranks
from ..utils.patching import replaces, temporarily
from ..utils.validation import ConfigError
from . import checkpoint_integrity, hub, training_state
from . import completions_table as table
from .batch import Batch, Filtered, failures_explain
from .cpu_lm_head import spare_copies
from .image_rows import check_images, lacks_images, with_images_in_prompts
from .model_warnings import warn_of_model, warn_of_unread_answers
from .nonfinite_guard import GROUPS, StepGuard
from .progress import FULL_CONTEXT, SlimProgress
from .prompt_source import PromptSource
from .recorder import Recorder
from .run_metadata import describe
from .vllm.engine import sample_from_own_prompts, shard_before_sending, warn_of_full_context
from .vllm.server import naming_server, noticing_errors
from .vllm.sync_check import VLLMCheck


if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset
    from peft import PeftConfig, PeftModel
    from transformers import (
        BitsAndBytesConfig,
        PreTrainedModel,
        PreTrainedTokenizerBase,
        ProcessorMixin,
        TrainerCallback,
    )
    from trl.trainer.grpo_trainer import EnvironmentFactory, RewardFunc, RolloutFunc

trl_releases.check(GRPOTrainer, trl.__version__)

# TRL 1.14.0 and older have no such parameter: the method reads the option `num_generations` in each turn.
_TURNS_TAKE_A_GROUP_SIZE = "num_generations" in inspect.signature(GRPOTrainer._generate_single_turn).parameters
_LOSS = ("compute_loss", "_compute_loss")  # the methods that make a loss
OBJECTIVE = (*_LOSS, "_generate_and_score_completions")  # and the batch that it is made of
_TRLS_LOGGER = logging.getLogger(GRPOTrainer.__module__)


def _raising_in_short(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method so that a failed reward's error shows the reward's frames, not forty frames of the libraries."""

    @functools.wraps(method)
    def in_short(*args: Any, **kwargs: Any) -> Any:
        """Call the method, and raise the error of a reward without the frames above the reward's."""
        try:
            return method(*args, **kwargs)
        except RewardError as error:
            raise error.with_traceback(None) from error.__cause__

    return in_short


def stops_of(trainer: GRPOTrainer) -> set[int]:
    """Return the tokens at which generation stops."""
    return {*getattr(trainer, "eos_token_ids", [trainer._tokenizer.eos_token_id])}


def ends_of(trainer: GRPOTrainer) -> set[int]:
    """Return the tokens with which a completion ends unless it is truncated."""
    return {*stops_of(trainer), trainer._tokenizer.pad_token_id}


class GRPOPlusTrainer(GRPOTrainer):
    """Subclass of [`~trl.GRPOTrainer`] that filters or resamples zero-variance groups.

    It also adds configurable advantages and KL terms, prompt selection, traces and alarms. With every option of
    [`GRPOPlusConfig`] at its default this trainer is TRL's, bit for bit, except for what docs/options.md lists.

    Args:
        reward_funcs:
            As for [`~trl.GRPOTrainer`], and registered names, paths to functions and `{name, args, weight, ...}`; see
            [`~trl_grpo_plus.registry.RewardSpec`].
        model, train_dataset, ..., environment_factory:
            As for [`~trl.GRPOTrainer`], in its order. `later` takes arguments that a later TRL adds.
        args ([`GRPOPlusConfig`], *optional*):
            Configuration for this trainer. If `None`, a default configuration is used.

    Raises:
        TypeError: `args` is a configuration of another class.
        ConfigError: an option does not go with the dataset, the model or the rewards.

    Example:

    ```python
    config = GRPOPlusConfig(zero_variance_groups="resample")
    GRPOPlusTrainer("Qwen/Qwen2.5-0.5B-Instruct", accuracy_reward, config, dataset).train()
    ```
    """

    args: GRPOPlusConfig
    beta: float
    entropy_coef: float
    _last_world_entropy: float
    _step: int
    _steps_per_epoch: int  # optimizer steps
    # The entropy of each micro-batch since the last optimizer step, and its tokens on all ranks.
    _entropies: list[tuple[float, float]]
    # The loss since the last log entry, and that entry's step, of the checkpoint that the training resumes from.
    _unlogged_loss: tuple[float, int] | None
    _loads_from = ""  # the checkpoint, while its weights are loaded
    _begun: tuple[int, int]  # optimizer steps done and TRL's `_step`, both when the present step began
    _has_sampled = _has_stepped = _uses_trls_loss = False
    _batch = Batch()  # the batch in flight; empty between two batches, and in a trainer made without __init__

    def __init__(
        self,
        model: "str | PreTrainedModel | PeftModel",
        reward_funcs: "str | RewardFunc | dict[str, Any] | list[str | RewardFunc | dict[str, Any]] | None" = None,
        args: GRPOPlusConfig | None = None,
        train_dataset: "Dataset | IterableDataset | None" = None,
        eval_dataset: "Dataset | IterableDataset | Mapping[str, Dataset | IterableDataset] | None" = None,
        processing_class: "PreTrainedTokenizerBase | ProcessorMixin | None" = None,
        reward_processing_classes: "PreTrainedTokenizerBase | list[PreTrainedTokenizerBase] | None" = None,
        callbacks: "list[TrainerCallback] | None" = None,
        optimizers: tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LambdaLR | None] = (None, None),
        quantization_config: "BitsAndBytesConfig | None" = None,
        peft_config: "PeftConfig | None" = None,
        tools: list[Callable[..., Any]] | None = None,
        rollout_func: "RolloutFunc | None" = None,
        environment_factory: "EnvironmentFactory | dict[str, EnvironmentFactory] | None" = None,
        **later: Any,
    ):
        args = config_for(model, args)
        start_errors.check_arguments(later, GRPOTrainer, inspect.signature(GRPOPlusTrainer).parameters, args)
        self._batch = Batch()
        self._sampler: Any = None  # TRL's sampler of the training set
        self._entropy: float | None = None  # mean over the last optimizer step
        self._failures_warned: set[tuple[str, str]] = set()  # rewards and statuses that a warning has told of
        bounds.check_bounds(args)
        if rollout_func is None and (why := sampling_distribution.refused_by_vllm(args)):
            raise ConfigError(why)
        evaluation_checks.check_evaluations(eval_dataset, args)
        reward_funcs, weights = resolve(reward_funcs, args.reward_weights)
        if weights != args.reward_weights:
            args = copy.copy(args)  # the caller may use it for another trainer
            args.reward_weights = weights
        self._credit = Credit(args)
        if args.push_to_hub:
            hub.check_seam()
        configure(args.reward_workers, args.reward_worker_memory_mb)
        added_by = {"rollouts": rollout_func, "environments": environment_factory}
        self._check_data(train_dataset, eval_dataset, reward_funcs, args, **added_by)
        if compatibility.will_train(eval_dataset, args):
            self._check_rows(train_dataset, args)
        explaining = start_errors.making_trainer(model, args.output_dir, makes_it=args.process_index == 0)
        with temporarily(args, has_plus_trainer=True), naming_server(args), noticing_errors(args), explaining:
            super().__init__(
                model,
                reward_funcs,
                args,
                train_dataset,
                eval_dataset,
                processing_class,
                reward_processing_classes,
                callbacks,
                optimizers,
                quantization_config,
                peft_config,
                tools,
                rollout_func,
                environment_factory,
                **later,
            )
        compatibility.check_parallelism(self.accelerator)
        if self._is_vlm and self._is_sharded:
            check_images(train_dataset, eval_dataset)
        self._check_prompts()
        self._checked = self.train_dataset, self.eval_dataset
        spare_copies(self.model)
        # TRL would refuse a scale that it does not know. With such a scale, TRL's advantages are replaced.
        self.scale_rewards = args.scale_rewards if args.scale_rewards in TRL_SCALES else "group"
        names, weights = self.reward_func_names, self.reward_weights.tolist()
        self._check_model(names, weights)
        self._prompts = self._prompt_source()
        if args.use_vllm:
            self._set_up_vllm()
        self._vllm_check = VLLMCheck(args, self.accelerator, self._policy_logps, not self._is_vlm)
        self._layout = training_state.layout(args, self.accelerator.num_processes)
        rank, about = self.accelerator.process_index, partial(describe, self)
        self._recorder = Recorder(args, names, weights, rank, about, self._metrics["train"])
        self._recorder.own_objective = replaces(self, GRPOPlusTrainer, *OBJECTIVE)
        self._forget_step()
        self._step_start = training_state.StepStart() if args.enable_jit_checkpoint else None
        if self._step_start is not None:
            self.add_callback(self._step_start)
        SlimProgress.install(self)
        # After transformers' callback that asks for evaluations: `halt_on_alarm` leaves one out. Before trackio's own
        # callback, which closes its run when training ends.
        self.callback_handler.callbacks[1:1] = [training_state.EpochEnd(), self._recorder]

    def _set_up_vllm(self) -> None:
        args = self.args
        if args.vllm_mode == "colocate":
            # An engine in this process has seeded the random numbers by its rank alone, and it draws from them.
            set_seed(args.seed + self.accelerator.process_index // args.vllm_tensor_parallel_size)
            if not (self.tools or self.environment_factories or self.rollout_func):  # later turns may fill the context
                warn_of_full_context(self.vllm_generation, ends_of(self), self._log_full_context)
        elif self.environment_factories is not None or (self.tools and not _TURNS_TAKE_A_GROUP_SIZE):
            sample_from_own_prompts(self.vllm_generation)
        if self.tools and self._shares_engine:
            tool_turns.in_equal_shares(self.vllm_generation)
        if self.is_fsdp_enabled:
            shard_before_sending(self.vllm_generation)
        if is_peft_model(self.vllm_generation.model) and not self.is_fsdp_enabled:
            from .vllm.adapter_merge import merge_in_copies  # it needs peft

            merge_in_copies(self.vllm_generation)

    @property
    def _is_sharded(self) -> bool:
        """Whether each of several processes holds a part of the weights, so that they make forward passes together."""
        return self.accelerator.num_processes > 1 and (self.is_fsdp_enabled or is_deepspeed_zero3_enabled())

    @property
    def _shares_engine(self) -> bool:
        """Whether several processes use one engine of vLLM."""
        args, several = self.args, self.accelerator.num_processes > 1
        return args.use_vllm and several and (args.vllm_mode == "server" or args.vllm_tensor_parallel_size > 1)

    def _send_weights_again(self) -> None:
        """Let TRL send the weights to vLLM before it generates next.

        TRL does so only if the number of steps is another than at the last sending. But weights may be others after
        the same number: a script has set them, the best checkpoint was loaded, or a further training begins at step 0.
        """
        self._last_loaded_step = -1

    def get_train_dataloader(self) -> Any:
        """Return TRL's dataloader.

        If prompts are drawn beyond it or remembered, each row has its index in the training set.
        """
        if not (self.args.draws_prompts or self.args.what_believes):
            return super().get_train_dataloader()
        rows = self._prompts.dealt_from(self._remove_unused_columns(self.train_dataset, description="training"))
        # A collator must neither see nor remove the index.
        collator = partial(indexed_dataset.collated, self.data_collator)
        with (
            temporarily(self, train_dataset=rows, data_collator=collator),
            temporarily(self.args, remove_unused_columns=False),
        ):
            return super().get_train_dataloader()

    def _read(self, indices: list[int]) -> list[dict[str, Any]]:
        """Return rows of the training set as the dataloader deals them: fresh objects, collated, on the device."""
        rows = self._prompts.window or self._remove_unused_columns(self._prompts.train_set, description="training")
        return send_to_device(self.data_collator(rows.__getitems__(indices)), self.accelerator.device)

    def _get_train_sampler(self, dataset: Any = None, *rest: Any, **more: Any) -> Any:
        self._sampler = super()._get_train_sampler(dataset, *rest, **more)
        return self._sampler

    # -- the batch begins, and TRL asks for its completions

    def _prepare_inputs(self, generation_batch: Any, *rest: Any, **more: Any) -> Any:
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch, *rest, **more)
        if self.model.training and self._buffered_inputs is not before:
            # Like filler, a micro-batch whose attempts are all truncated has no token in the loss.
            if "live" in inputs or self.mask_truncated_completions:
                padding.count_and_weigh(self._buffered_inputs, self.loss_type, self.accelerator)
            elif self.args.filters_groups:  # other batches of the same optimizer step may be counted
                mean = inputs["num_items_in_batch"].item() / len(self._buffered_inputs)
                for batch in self._buffered_inputs:
                    batch["live_tokens"] = mean
        return inputs

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        training = self.model.training
        size = self.num_generations if training else self.num_generations_eval
        filters = self.args.filters_groups and training
        replaced = {"_generate": self._generate, "_calculate_rewards": self._calculate_rewards}
        outer = self._batch  # empty, unless a reward evaluates while it scores a batch
        indices = indexed_dataset.pop_indices(inputs)
        self._batch = batch = Batch(self.accelerator, size, inputs, indices, filters, replaced)
        stand_ins = {"_generate": self._generated_batch, "_calculate_rewards": self._batch_rewards}
        if training:
            self._prompts.begin(batch, self._read)
        if filters:
            table.forget(self._logs)
        try:
            with (
                batch.hiding,
                naming_server(self.args, self.state.global_step),
                temporarily(self, **stand_ins),
                self._resetting(),
            ):
                output = super()._generate_and_score_completions(self._shown(inputs))
            self._log_monitors()
            if training:
                if not all(batch.plan.live):
                    live = torch.tensor(batch.plan.live).repeat_interleave(size)
                    padding.mask_rows(output, batch.own_rows(live), self.accelerator)
                if self.args.changes_advantages:
                    self._replace_advantages(output, sum(batch.plan.live))
                self._log_batch(output)
                self._log(self._vllm_check.metrics(output, self.model, self.state.global_step).items())
                output[GROUPS] = self._guard.number(batch.groups_named(self.state.global_step))
                if self.args.zero_variance_groups == "skip":
                    share = batch.live_share(of_attempts=self.loss_type in padding.ROW_NORMALISED)
                    output["live_share"] = torch.tensor(share)  # TRL splits tensors and lists alone
            self._log(batch.outcome_shares(self.reward_funcs, self.reward_func_names))
            if batch.kl is None:
                batch.kl = kl.at_hand(output, padding.loss_mask(output))
            self._record(output["advantages"])
            if training:
                self._log(self._prompts.remember(batch).items())
                self._metrics["train"]["rollouts"] = [self._prompts.rollouts]
            return output
        finally:
            self._batch = outer

    def _resetting(self) -> AbstractContextManager[None]:
        """Prepare rows in this context. A `reset` that fails on one rank raises on all, before they generate."""
        alone = self.environment_factories is None or self.accelerator.num_processes == 1
        return nullcontext() if alone else raise_before(self, "_generate")

    def _prompt_source(self) -> PromptSource:
        names, weights = self.reward_func_names, self.reward_weights.tolist()
        return PromptSource(self.args, self.train_dataset, names, weights, self.accelerator, self._prompt_states)

    def _prompt_states(self, rows: list[int]) -> Tensor:
        """Return the policy's states at the ends of these rows' prompts, (P, hidden). Collective."""
        ids = self._tokenize_prompts([row["prompt"] for row in self._read(rows)])[0]
        return states_of_share(self.model, ids, self.accelerator, self.args.train_batch_size)

    def _call_replaced(self, name: str, *args: Any) -> Any:
        """Call a method that a stand-in replaces, without the stand-ins: a judge may call `_generate` itself."""
        training = self.model.training
        try:
            with temporarily(self, **self._batch.replaced):
                return self._batch.replaced[name](*args)
        finally:
            if self.model.training != training:  # TRL's continuous batching ends in training mode, in evaluation too
                self.model.train(training)

    def _generated_batch(self, prompts: list[Any]) -> tuple[Any, ...]:
        """Stand in for `_generate` where TRL makes a batch."""
        batch = self._batch
        if not batch.filters:
            return self._generated(prompts)
        partition = batch.partition
        draw = self._prompts.draw if self.args.zero_variance_groups == "resample" else None
        batch.rounds = resampling.resample(
            first=self._sample(batch.inputs, prompts),
            sample=self._sample_further,
            inputs=batch.inputs,
            indices=batch.input_indices,
            draw=draw,
            read=self._read,
            partition=partition,
            max_rounds=self.args.max_resample_rounds,
        )
        fallback = "drop" if draw is None else self.args.resample_fallback
        unit = resampling.groups_at_least(self.args, partition.world_size)
        try:
            plan = resampling.settle(batch.rounds, fallback, logged_step(self.state.global_step), unit)
        except RuntimeError:  # on all ranks; write the traces first, so that the cause can be inspected
            batch.filtered = Filtered(groups.Plan((), ()))
            self._record(torch.empty(0, device=self.accelerator.device))
            self._recorder.settle()
            raise
        attempts = exchange(batch.rounds, plan.order, partition)
        masked, logprobs, images_on_some_ranks_only, logged = carried(attempts, trl.__version__)
        batch.filtered = Filtered(plan, attempts, images_on_some_ranks_only)
        batch.inputs[:] = [attempt.inputs for attempt in attempts]
        prompts[:] = [attempt.prompt for attempt in attempts]
        if self.environment_factories is not None:  # TRL finds the tools of a prompt with images by these names
            names = [row.get("environment") if self._multi_environment else None for row in batch.inputs]
            self._batch_environments = names
        table.put_back(self._logs, self._pending_extra_logs, attempts, logged)
        return Generated.of(attempts, masked, logprobs)

    def _shown(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return rows in the form that TRL gets them."""
        moves = self._is_vlm and (self._batch.filters or any(map(lacks_images, rows)))
        return with_images_in_prompts(rows) if moves else rows

    def _sample_further(self, inputs: list[dict[str, Any]]) -> groups.Round:
        """Do the work of `_sample` for rows that TRL has not prepared.

        TRL does all that it does for a batch, up to its call of `_generate`.
        """

        def sample_and_stop(prompts: list[Any]) -> NoReturn:
            raise resampling.StopAfterSampling(self._sample(inputs, prompts))

        with temporarily(self, _generate=sample_and_stop), self._resetting():
            try:
                super()._generate_and_score_completions(self._shown(inputs))
            except resampling.StopAfterSampling as ended:
                return ended.sampled
        raise AssertionError("TRL has made a batch without calling _generate")

    def _sample(self, inputs: list[dict[str, Any]], prompts: list[Any]) -> groups.Round:
        """Generate and score one completion per row, with all that TRL does for a batch up to the rewards."""
        generated = self._generated(prompts)
        inputs = generated.rows(inputs)
        sampled = self._score(inputs, prompts, generated.completions, generated.completion_ids)
        self._pending_extra_logs.clear()  # the attempts carry these logs
        return sampled

    def _generated(self, prompts: list[Any]) -> Generated:
        """Return what `_generate` returns, with a check of a `rollout_func`, and a list of images for each row."""
        whole = self.rollout_func
        if whole is not None:
            reads_logprobs = self.args.use_vllm or self.args.off_policy_mask_threshold is not None
            per_token = ["env_mask", *(["logprobs"] if reads_logprobs else [])]
            whole = one_each(whole, collective=self._batch.filters, per_token=per_token)
        with temporarily(self, rollout_func=whole):
            generated = Generated(*self._call_replaced("_generate", prompts))
        if generated.images is not None:  # TRL has None for a row without images, which its processors refuse
            generated = generated._replace(images=[images or [] for images in generated.images])
        warn_of_unread_answers(self, generated.completions)
        self._batch.generated = generated
        return generated

    def _tool_call_loop(self, prompts: Any, prompt_ids: Any, *rest: Any) -> Any:
        """Call tools as TRL does. Processes that generate together take each turn together."""
        # A rank's own engine needs the other ranks only if it loads sharded weights again in each turn.
        shards = self._is_sharded and (not self.args.use_vllm or self.args.vllm_enable_sleep_mode)
        if not (shards or self._shares_engine):
            return super()._tool_call_loop(prompts, prompt_ids, *rest)
        turn: tuple[Any, Any, Any] = [], None, {}
        if not self._shares_engine:  # the vision part must run on all ranks or on none
            turn = (prompt_ids, *rest[-2:]) if self._is_vlm else ([[self._tokenizer.eos_token_id]], None, {})
        group_of_one = {"num_generations": 1} if _TURNS_TAKE_A_GROUP_SIZE else {}
        idle = partial(self._generate_single_turn, *turn, **group_of_one)
        with (
            tool_turns.in_step(self._generate_single_turn, idle) as generate,
            temporarily(self, _generate_single_turn=generate),
        ):
            return super()._tool_call_loop(prompts, prompt_ids, *rest)

    def _batch_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        """Stand in for `_calculate_rewards` where TRL makes a batch."""
        batch = self._batch
        batch.hiding.close()
        if batch.filtered is None:
            batch.rounds = [self._score(inputs, prompts, completions, completion_ids_list)]
            if self.args.filters_groups:  # an evaluation: the filtered batch before it may have had fewer rows
                attempts = batch.rounds[0].attempts
                table.put_back(self._logs, self._pending_extra_logs, attempts, table.columns_logged(attempts))
            uneven = self._is_vlm and self.log_multimodal and batch.images_on_some_ranks_only(inputs)
        else:
            uneven = batch.filtered.images_on_some_ranks_only
        if uneven:  # a rank with images would wait for the others to log theirs
            self._logs["images"].clear()
            batch.hiding.enter_context(temporarily(self, log_multimodal=False))
        return batch.without_monitors(self, batch.rewards.to(self.accelerator.device))

    def _score(self, inputs: list[dict[str, Any]], prompts: list[Any], *completions: Any) -> groups.Round:
        """Score the last generation. A failure of a reward stops all ranks with the same message."""
        if not (self._has_sampled or self.tools or self.environment_factories or self.rollout_func):
            chat_checks.warn_of_dropped_tokens(completions[1], self._tokenizer, ends_of(self))
        self._has_sampled = True
        batch = self._batch
        sampled = batch.as_sampled(inputs, prompts)
        masks = batch.generated and batch.generated.tool_mask
        scoring = Scoring(self.reward_funcs, self.reward_func_names, self._failures_warned, masks)
        with temporarily(self, reward_funcs=scoring.functions), held_back(_TRLS_LOGGER, TRL_UNSCORED) as held:
            rewards = self._call_replaced("_calculate_rewards", inputs, prompts, *completions)
        attempts = batch.attempts(scoring, *sampled, self._pending_extra_logs, ends_of(self))
        rewards = rewards.cpu()  # decisions need a few numbers in float64, which not every device has
        if not failures_explain(attempts, batch.own_rows(rewards)):
            for record in held:
                _TRLS_LOGGER.handle(record)
        masked, decodes = self.mask_truncated_completions, self.args.step_reward_credit and self.processing_class
        outcomes, tokens, loss_tokens, marks = batch.count(scoring, attempts, masked, rewards, decodes)
        verdicts = self._judge(rewards, marks, loss_tokens > 0)
        if batch.filters and (top_p := self.args.reward_variance_top_p) < 1:
            weights, metric = self.reward_weights.cpu(), self.args.filter_metric
            judged = groups.judged_rewards(metric, rewards, weights, self.reward_func_names, batch.size)
            verdicts = groups.mark_low_variance(verdicts, judged, top_p)
        return groups.Round(
            attempts, rewards, tuple(verdicts), self.args.dead, batch.row_indices, marks, outcomes, tokens, loss_tokens
        )

    def _judge(self, rewards: Tensor, marks: Sequence[Any], trainable: Tensor | None = None) -> list[str]:
        """Return the verdict on each group. Without `trainable` only its rewards decide."""
        weights, names = self.reward_weights.cpu(), self.reward_func_names
        return groups.judge_batch(self.args, rewards, weights, names, self._batch.size, trainable, marks)

    # -- TRL's advantages are replaced

    def _replace_advantages(self, output: dict[str, Any], num_live: int) -> None:
        batch, mask, credit = self._batch, padding.loss_mask(output), self._credit
        entropies = to_go = None
        if self.args.kl_placement == "reward":
            to_go = batch.of_all(self._kl_to_go(output, num_live))
        if credit.estimator and credit.estimator.variant.entropies:
            entropies = self._policy_logps(output, entropies=True)
        group_batch = batch.group_batch(
            mask,
            credit,
            entropies,
            step=self.state.global_step,
            seed=f"{self.args.seed} {self._step}",
            **(batch.skipped(self.reward_weights.cpu()) if self.args.zero_variance_groups == "skip" else {}),
            **self._prompts.group_batch_fields(batch),
        )
        groups_of = (num_live, self.num_generations)
        values = credit.advantages(groups_of, batch.rewards, self.reward_weights, group_batch, to_go, self.beta)
        if to_go is not None:
            self._adapt_beta()
        output["advantages"] = padding.fitting(batch.own_rows(values), output["completion_ids"])
        table.replace(self._logs["advantages"], padding.first_tokens(values).tolist())

    def _kl_to_go(self, output: dict[str, Any], num_live: int) -> Tensor:
        """Return the KL from each token on, (B, T), or of the whole completion, (B, 1), and log `kl`."""
        mask = padding.loss_mask(output)
        logps = output.get("old_per_token_logps")
        logps = self._policy_logps(output) if logps is None else logps
        to_go = kl.kl_to_go(logps, output["ref_per_token_logps"], mask)
        self._batch.kl = to_go[:, 0] / mask.sum(dim=1).clamp(min=1)
        mean = kl.mean_of_ranks(to_go[:, 0].sum(), mask.sum(), self.accelerator)
        self._log([("kl", mean)])
        self._controller.see(mean, num_live * self.num_generations)
        return to_go if self.args.kl_reward_form == "reward_to_go" else to_go[:, :1]

    def _policy_logps(self, output: dict[str, Any], entropies: bool = False) -> Tensor:
        """Return the completions' log-probs under the current policy, or with `entropies` its entropies.

        TRL computes neither if it trains on-policy.
        """
        ids, mask = (torch.cat([output[f"prompt_{of}"], output[f"completion_{of}"]], dim=1) for of in ("ids", "mask"))
        width = output["completion_ids"].shape[1]
        how = {"batch_size": self.args.per_device_train_batch_size, "compute_entropy": entropies}
        how |= {name: output[name] for name in IMAGE_FIELDS if name in output}
        with torch.no_grad(), disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs):
            return self._get_per_token_logps_and_entropies(self.model, ids, mask, width, **how)[int(entropies)]

    # -- metrics, traces and evaluation

    def _log(self, values: Iterable[tuple[str, float]], again: bool = False) -> None:
        """Append to TRL's metrics; with `again`, replace the values that TRL has just logged."""
        metrics, values = self._metrics["train" if self.model.training else "eval"], [*values]
        for name, _ in values if again else ():  # pop all before the first append: two rewards may share a name
            metrics[name].pop()
        for name, value in values:
            metrics[name].append(value)

    def _log_batch(self, output: dict[str, Any]) -> None:
        batch = self._batch
        trained = output["num_items_in_batch"].item()
        tokens = {"tokens/generated": sum(one_round.tokens for one_round in batch.rounds), "tokens/trained": trained}
        self._log({**groups.summary(batch.rounds, batch.plan), **tokens}.items())
        # TRL's value is a batch statistic under scale_rewards="batch" and normalize_then_sum.
        alike = [verdict != "alive" for verdict in self._judge(batch.sampled, batch.marks_sampled)]
        share = torch.tensor(alike).float().mean().item()  # rounded as TRL's
        self._log([("frac_reward_zero_std", share)], again=True)
        if self.args.filters_groups:
            self._log(batch.rewards_sampled(self.reward_func_names, self.reward_weights.cpu()), again=True)

    def _log_full_context(self, share: float) -> None:
        if self.model.training:
            self._log([(FULL_CONTEXT, share)])

    def _log_monitors(self) -> None:
        """Log the monitors as TRL logs the other rewards."""
        names, weights = self.reward_func_names, self.reward_weights.cpu()
        for i in groups.monitors(weights):
            self._logs["rewards"][names[i]].extend(self._batch.rewards[:, i].tolist())
        self._log(self._batch.monitored(names, weights, nanstd))

    def _record(self, advantages: Tensor) -> None:
        number = self._step // (self.args.steps_per_generation * self.num_iterations)
        self._recorder.record_batch(self, self._batch, number, advantages, self._entropy, self._prompts.believed)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log as TRL does. The recorder, a callback, writes the entry into the run's journal.

        An entry of the training, also the last one of a run, has the metrics of the steps since the entry before it.
        TRL leaves them out after an evaluation, because the model is in evaluation mode then.
        """
        self._recorder.settle()
        training = self.model.training or not {"loss", "train_runtime"}.isdisjoint(logs)
        with table.printed_visibly(sys.modules[GRPOTrainer.__module__]), temporarily(self.model, training=training):
            super().log(logs, *args, **kwargs)

    @_raising_in_short
    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate as transformers' `Trainer` does; refuse batches that hold a part of a group."""
        self._check_evaluation(self.eval_dataset if eval_dataset is None else eval_dataset)
        return super().evaluate(eval_dataset, *args, **kwargs)

    def predict(self, test_dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Predict as transformers' `Trainer` does; refuse batches that hold a part of a group."""
        self._check_evaluation(test_dataset)
        return super().predict(test_dataset, *args, **kwargs)

    def _check_evaluation(self, dataset: Any) -> None:
        if isinstance(dataset, Mapping) or replaces(self, GRPOPlusTrainer, *evaluation_checks.MADE_BY):
            return  # each of several sets is evaluated by a call of its own
        rows = self.eval_dataset[dataset] if isinstance(dataset, str) else dataset
        with temporarily(self.args, num_generations_eval=self.num_generations_eval):
            evaluation_checks.check_evaluation(rows, self.args, self.is_in_train)

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """Evaluate as transformers' `Trainer` does, and note the split for the traces."""
        if not self.is_in_train:
            self._send_weights_again()
        with self._recorder.evaluating(metric_key_prefix, self.state.global_step):
            return super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)

    def _determine_best_metric(self, metrics: dict[str, float], *args: Any, **kwargs: Any) -> bool:
        # transformers cannot compare `None`.
        has_one = evaluation_checks.has_best_metric(metrics, self.args)
        return has_one and super()._determine_best_metric(metrics, *args, **kwargs)

    # -- loss

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Take a micro-batch's step as TRL does. After the first one, warn of options that a subclass passes over."""
        loss = super().training_step(*args, **kwargs)
        if not self._has_stepped:
            self._has_stepped = True
            own_batches = not self._prompts.rollouts
            if own_batches:
                compatibility.warn_of_own_batches(self.args, type(self).__name__)
            if not self._uses_trls_loss and replaces(self, GRPOPlusTrainer, *_LOSS):
                compatibility.warn_of_own_loss(self.args, type(self).__name__, own_batches)
        return loss

    def _compute_loss(self, model: Any, inputs: dict[str, Any], *rest: Any, **more: Any) -> Tensor:
        self._uses_trls_loss = True
        if not self.model.training:
            return super()._compute_loss(model, inputs, *rest, **more)
        self._guard.begin_micro_batch()
        # Every loss type is linear in the advantages, up to their sign, and in beta.
        weight = inputs.get("filler_weight", 1.0)
        beta = self.beta * weight if self.args.kl_placement == "loss" else 0.0
        share = float(inputs.get("live_share", 1.0))
        replaced, bias_correction = loss_inputs.for_trl(inputs, self.args, weight * share, beta)
        with (
            temporarily(self, beta=beta),
            temporarily(self.args, use_bias_correction_kl=bias_correction),
            self._without_filler(inputs),
        ):
            loss = super()._compute_loss(model, replaced, *rest, **more)
        if beta and self.accelerator.sync_gradients:
            self._adapt_beta(passes=self.num_iterations)
        return self._guard.record_micro_batch(loss, inputs)

    @contextmanager
    def _without_filler(self, inputs: dict[str, Any]) -> Iterator[None]:
        """Keep filler out of TRL's entropy bonus, and rows without a token in the loss out of its metrics.

        Note the entropy and the KL among them. Unless groups are filtered, TRL's own values are logged.
        """
        metrics, coefficient, last_entropy = self._metrics["train"], self.entropy_coef, self._last_world_entropy
        before = {name: len(values) for name, values in metrics.items()}
        sampled = len(inputs["completion_ids"]) * self.accelerator.num_processes
        live_rows, live_tokens = inputs.get("live_rows", sampled), inputs.get("live_tokens", 1)
        if (weight := inputs.get("entropy_weight", 1.0)) != 1.0:
            self.entropy_coef = padding.ScaledCoefficient(coefficient, weight)
        try:
            yield
        finally:
            if isinstance(self.entropy_coef, padding.ScaledCoefficient):  # TRL did not change it
                self.entropy_coef = coefficient
        logged = {name: values[-1] for name, values in metrics.items() if len(values) > before.get(name, 0)}
        if live_tokens and "kl" in logged:
            self._controller.see(logged["kl"], live_rows)
        if live_tokens and "entropy" in logged:
            self._entropies.append((logged["entropy"], live_tokens))
        if self.accelerator.sync_gradients:
            self._end_entropies(coefficient, last_entropy)
        if not self.args.filters_groups:
            return
        of_rows = self.importance_sampling_level == "sequence" or self.loss_type == "vespo"
        if of_rows and inputs["advantages"].dim() == 1 and live_rows:
            padding.of_live_rows(metrics, before, sampled / live_rows)
        if not live_tokens:
            padding.forget_means(metrics, before)

    def _end_entropies(self, coefficient: float, last_entropy: float) -> None:
        """Set the entropy of an optimizer step. After a step without live tokens, put back what TRL adapted by it."""
        if self._entropies:
            values, weights = zip(*self._entropies, strict=True)
            self._entropy = sum(map(operator.mul, values, weights)) / sum(weights)
        elif self.args.filters_groups:  # TRL has measured an entropy of 0, over no tokens
            self.entropy_coef, self._last_world_entropy = coefficient, last_entropy
        if coefficients := self._metrics["train"].get("entropy_coef"):  # TRL may have logged the scaled coefficient
            coefficients[-1] = self.entropy_coef
        self._entropies = []

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        computed = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._guard.forwarded(computed[0])
        return computed

    def _get_grad_norm(self, *args: Any, **kwargs: Any) -> Any:
        norm = super()._get_grad_norm(*args, **kwargs)
        return self._guard.checked(norm, self.state.global_step, self._recorder.settle)

    def _adapt_beta(self, passes: int = 1) -> None:
        if (beta := self._controller.adapt(self.beta, passes)) is not None:
            self.beta = beta
            self._metrics["train"]["beta"].append(beta)

    # -- checkpoints and the Hub

    @_raising_in_short
    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train as transformers' `Trainer` does; resume only from a complete checkpoint.

        Args:
            resume_from_checkpoint (`str` or `bool`, *optional*): a checkpoint; `True` for the last complete one in
                `output_dir`; `"auto"` for the same, or a new run if there is none.
            *args, **kwargs: as in transformers' `Trainer.train`.

        Raises:
            ConfigError: a dataset that a script has set cannot be trained on, the training set has too few rows for
                a step, no weight of the model is trained, or another run writes into `output_dir`; see
                [`trl_grpo_plus.utils.folder_lock`].
        """
        self._check_new_data()
        self._check_rows(self.train_dataset, self.args)
        trained_weights.check_trained(self.model)
        folder = self.args.output_dir
        with folder_lock.hold(folder), self._recorder.blaming_trackers():
            checkpoint = checkpoint_integrity.complete_checkpoint(resume_from_checkpoint, folder)
            if checkpoint:
                checkpoint_integrity.check_fits(checkpoint, self.accelerator.unwrap_model(self.model))
            else:
                checkpoint_integrity.warn_of_earlier(folder)
            if self.train_dataset is not self._prompts.train_set:  # a script has set another one
                before, self._prompts = self._prompts, self._prompt_source()
                if not checkpoint:
                    self._prompts.follow(before)
            self._send_weights_again()
            try:
                trained = super().train(checkpoint, *args, **kwargs)
            except BaseException:
                self._forget_noise()
                raise
            if not self.state.global_step:
                compatibility.warn_of_no_step(self.args, self.train_dataset)
            return trained

    def _forget_step(self) -> None:
        """Forget what was noted of an optimizer step that has not ended."""
        self._begun = -1, 0
        self._controller = kl.BetaController(self.args.kl_target, self.args.kl_horizon)
        self._guard = StepGuard(self.args, self.accelerator)
        self._entropies, self._unlogged_loss = [], None
        # TRL keeps these: the entropies of the step, and what rewards logged of a batch that was not scored whole.
        self._entropy_window_stats = None
        self._pending_metrics.clear()
        self._pending_extra_logs.clear()

    def _forget_noise(self) -> None:
        """Remove NEFTune's hook, which transformers leaves after an error. With a second hook noise is added twice."""
        if (hook := getattr(self, "neftune_hook_handle", None)) is not None:
            hook.remove()

    def _check_model(self, names: Sequence[str], weights: Sequence[float]) -> None:
        """Check the options against the model and the rewards, and warn of settings that gain nothing."""
        args = self.args
        compatibility.check_filter_metric(args.filter_metric, names)
        evaluation_checks.warn_of_best_reward(args, names)
        compatibility.check_weights(weights, args)
        compatibility.warn_of_no_reward(weights, args)
        compatibility.check_model(
            args,
            environments=self.environment_factories,
            images=self._is_vlm,
            rollouts=self.rollout_func,
            tools=self.tools,
            trl_version=trl.__version__,
        )
        if args.filters_groups:
            resampling.warn_if_nothing_is_saved(args, self.accelerator.num_processes)
        for method in ("get_train_dataloader", "_get_train_sampler") if args.draws_prompts else ():
            if replaces(self, GRPOPlusTrainer, method):
                compatibility.warn_of_own_rows(args, type(self).__name__, method)
        warn_of_model(self, args, self._tokenizer, stops_of(self))

    def _check_prompts(self) -> None:
        if self.tools:
            tool_checks.check_conversations(self.train_dataset, self.eval_dataset)
        if not (self.rollout_func or self.environment_factories or self.chat_template):
            check_tokens(self.train_dataset, self.eval_dataset, self.processing_class)

    def _check_new_data(self) -> None:
        """Check datasets that a script has set since they were checked last, as when the trainer is made."""
        before, now = self._checked, (self.train_dataset, self.eval_dataset)
        if now[0] is before[0] and now[1] is before[1]:
            return
        compatibility.check_later_data(*now, self.args)
        evaluation_checks.check_evaluations(now[1], self.args)
        added_by = {"rollouts": self.rollout_func, "environments": self.environment_factories}
        self._check_data(*now, self.reward_funcs, self.args, **added_by)
        self._check_prompts()
        self._checked = now

    def _check_data(self, train: Any, evaluation: Any, rewards: Any, args: GRPOPlusConfig, **added_by: Any) -> None:
        # Rows that are drawn do not pass a subclass's methods.
        overrides = replaces(self, GRPOPlusTrainer, "get_train_dataloader", "_generate_and_score_completions")
        added_by["subclass"] = overrides and not args.draws_prompts
        own_columns = replaces(self, GRPOPlusTrainer, "_set_signature_columns_if_needed", "_remove_unused_columns")
        added_by["removes"] = args.remove_unused_columns and not own_columns
        compatibility.check_data(train, evaluation, rewards, self._credit.columns, args, **added_by)

    def _check_rows(self, train_dataset: Any, args: GRPOPlusConfig) -> None:
        """Check that a loaded training set has the rows of one step. A trainer that only evaluates needs none.

        TRL's sampler drops prompts that do not fill a generation batch. With fewer rows than that it deals none, and
        the run would end without a step.
        """
        as_trl = not replaces(self, GRPOPlusTrainer, "get_train_dataloader", "_get_train_sampler")
        if as_trl and hasattr(train_dataset, "__len__") and hasattr(train_dataset, "column_names"):
            selection.check_enough_rows(len(train_dataset), args)  # a subclass may repeat rows

    def set_initial_training_values(self, *args: Any, **kwargs: Any) -> Any:
        """Return the lengths of the run as transformers' `Trainer` does, and keep that of an epoch.

        A training begins here, also one that begins anew with a smaller batch (`auto_find_batch_size`). The one before
        it may have ended within a step.
        """
        self._forget_step()
        values = super().set_initial_training_values(*args, **kwargs)
        self._steps_per_epoch = values[1]
        return values

    def _load_rng_state(self, *args: Any, **kwargs: Any) -> None:
        super()._load_rng_state(*args, **kwargs)
        if self._step_start is not None:
            self._step_start.random_state_loaded()

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Return the next batches as transformers' `Trainer` does; none after the last step.

        transformers would train one step more if a run is resumed from the checkpoint of its last step.
        """
        if self._unlogged_loss is not None:  # transformers has set its own to 0
            loss, self._globalstep_last_logged = self._unlogged_loss
            self._tr_loss += loss
            self._total_loss_scalar -= loss  # `train_loss` is of this training alone
            self._unlogged_loss = None
        if self.state.global_step >= self.state.max_steps:
            return [], None
        self._begun = self.state.global_step, self._step
        if self._step_start is None:
            return super().get_batch_samples(*args, **kwargs)
        self._step_start.keep(self, self._resume_state())
        samples = super().get_batch_samples(*args, **kwargs)
        self._step_start.rows_are_there()
        return samples

    def _save_checkpoint(self, model: Any, trial: Any, *rest: Any, **more: Any) -> None:
        folder = Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        step, in_batch = self._resumes_at()
        if self._step_start is None and not (self.args.save_only_model or in_batch or step == self._step):
            training_state.warn_of_save_within_step(self.state.global_step)
        start = nullcontext() if self._step_start is None else self._step_start.restored(self)
        with checkpoint_integrity.saving(folder, self.accelerator.process_index), start as begun:
            # Saved before TRL's files. trainer_state.json is the last: a checkpoint with that file has this state.
            if not self.args.save_only_model:
                training_state.save(str(folder), self.accelerator.process_index, lambda: begun or self._resume_state())
                if self._moving_reference is not None:
                    training_state.save_reference(str(folder), self.accelerator.process_index, self._moving_reference)
            super()._save_checkpoint(model, trial, *rest, **more)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model, as transformers' trainer does. If rank 0 cannot write a checkpoint, all ranks raise."""
        # transformers' `push_to_hub` makes an internal call without a folder, which one rank may make alone.
        with raise_on_all_ranks() if _internal_call and output_dir is not None else nullcontext():
            super().save_model(output_dir, _internal_call)

    def _save_rng_state(self, *args: Any, **kwargs: Any) -> None:
        # Until all ranks have saved theirs, the checkpoint must not look whole, nor may older ones be removed.
        with raise_on_all_ranks():
            super()._save_rng_state(*args, **kwargs)

    @property
    def _moving_reference(self) -> Any:
        """The reference model if it follows the policy, else `None`."""
        return self.ref_model if self.args.sync_ref_model else None

    def _resumes_at(self) -> tuple[int, bool]:
        """Return the step of TRL at which a checkpoint of now resumes, and whether it is within the batch at hand."""
        generate_every = self.args.steps_per_generation * self.num_iterations
        # A callback may save before the optimizer's step. The run resumes where this step began.
        at, begun = self._begun
        step = begun if at == self.state.global_step else self._step
        return step, step % generate_every > 0 and step // generate_every == (self._step - 1) // generate_every

    def _resume_state(self) -> dict[str, Any]:
        self._recorder.settle()
        step, in_batch = self._resumes_at()
        return {
            "layout": self._layout,
            "step": step,
            # Without this buffer TRL would generate again after a resume in the middle of a batch.
            "buffered_inputs": self._buffered_inputs if in_batch else None,
            "groups": self._guard.groups,
            "beta": self.beta,
            "reference": self._moving_reference is not None,
            checkpoint_integrity.RUN: self._recorder.run,
            "alarms": self._recorder.state_dict(),
            "entropy": self._entropy,
            # A subclass may log NumPy's numbers, which `torch.load` refuses.
            "unlogged": {name: [*map(float, values)] for name, values in self._metrics["train"].items()},
            "unlogged_loss": (self._tr_loss.item(), self._globalstep_last_logged),
            **self._prompts.state_dict(),
            **self._credit.state_dict(),
        }

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *args: Any, **kwargs: Any) -> None:
        with training_state.keeping_dtypes(self.model), temporarily(self, _loads_from=resume_from_checkpoint):
            super()._load_from_checkpoint(resume_from_checkpoint, *args, **kwargs)

    def _load_best_model(self) -> None:
        best = self.state.best_model_checkpoint
        with training_state.keeping_dtypes(self.model), temporarily(self, _loads_from=best):
            super()._load_best_model()

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        if not training_state.load_renamed(self.model, self._loads_from, load_result):
            super()._issue_warnings_after_load(load_result)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None, *rest: Any, **more: Any) -> None:
        if checkpoint is not None:
            training_state.round_as_when_sampling(self)
        super()._load_optimizer_and_scheduler(checkpoint, *rest, **more)
        if checkpoint is None:
            return
        self._metrics["train"].clear()
        # Not `state.epoch`: with more or fewer rows than before, an epoch is longer or shorter.
        training_state.skip_epochs(self._sampler, self.state.global_step // self._steps_per_epoch)
        rank, reference = self.accelerator.process_index, self._moving_reference
        with training_state.loaded(checkpoint, rank, self._layout) as state:
            if reference is not None:
                training_state.load_reference(checkpoint, rank, reference, bool(state and state["reference"]))
            if state is None:
                return
            self._prompts.load_state_dict(state)  # first: it is collective, and later lines may fail on one rank
            if self.args.kl_target is not None:
                self.beta = state["beta"]
            self._credit.load_state_dict(state)
            self._recorder.load_state_dict(state["alarms"], state[checkpoint_integrity.RUN])
            self._guard.groups = state["groups"]
            self._entropy, self._step = state["entropy"], state.get("step", self._step)
            self._metrics["train"].update(state["unlogged"])
            self._unlogged_loss = state["unlogged_loss"]
            self._buffered_inputs = send_to_device(state["buffered_inputs"], self.accelerator.device)

    def create_model_card(self, model_name: str | None = None, *args: Any, **kwargs: Any) -> None:
        """Write TRL's model card, with the rewards, the options and this trainer's name.

        See [`trl_grpo_plus.trainer.hub`].
        """
        super().create_model_card(model_name or Path(self.args.output_dir).resolve().name, *args, **kwargs)
        if self.is_world_process_zero():
            hub.complete_card(self.args.output_dir, self.args.changed_options, list(self._recorder.weights.items()))

    def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
        """Push as transformers' `Trainer` does, without the traces; see [`trl_grpo_plus.trainer.hub`]."""
        with hub.uploading_no_attempts():
            return super().push_to_hub(*args, **kwargs)

    def _push_from_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        with hub.uploading_no_attempts():
            super()._push_from_checkpoint(*args, **kwargs)
