"""`GRPOPlusTrainer`: TRL's `GRPOTrainer`, not paying for groups that teach nothing; advantage and KL are a choice.

The only file that touches TRL-private names; tests/test_trl_contract.py pins each. What it alone changes:

- `_generate`: under drop and resample, rounds of `super()._generate` + `super()._calculate_rewards` are judged on
  rewards gathered from all ranks, and the caller's `inputs` and `prompts` are replaced by the batch to train on. All
  that follows in TRL (padding, old and reference log-probs, counts, metrics) is then on that batch.
- `get_train_dataloader`: under resample, rows say their index in the training set, which is taken out before TRL reads
  them.
- `_calculate_rewards`: keeps the gathered rewards and the outcome of each sample, and stops all ranks where a reward
  failed; after such a batch, returns those already computed. Monitors (weight 0) are no part of what TRL gets.
- `_generate_and_score_completions`: replaces the advantages, masks filler rows, logs `groups/*` and `tokens/*`.
- `_prepare_inputs`: weighs micro-batches that hold filler rows, so that the loss is that of the live rows alone.
- `_compute_loss`: another KL estimator, none where the KL is in the reward, adaptive beta, no filler in the entropy.
- `log`, `evaluation_loop`: what is logged, and which split is evaluated, for the traces.
- checkpoints: what the above must know to resume exactly.

Evaluation is left to TRL, but its attempts are traced too.
"""

import copy
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import trl
from accelerate.logging import get_logger
from accelerate.utils import broadcast_object_list, gather_object, send_to_device
from packaging.version import Version
from torch import Tensor
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import nanstd

from . import advantages, kl, model_card, uploads
from .advantages import TRL_SCALES
from .common.values import Refusal
from .config import GRPOPlusConfig
from .groups import Attempt, Plan, Round, check_filter_metric, check_weights, judge, judge_any, summary
from .indexed_rows import IndexedRows, pop_indices
from .recorder import Recorder
from .registry import check_columns, resolve
from .rounds import exchange, resample, settle
from .scoring import NO_VERDICT, STATUSES, Reward, RewardError, Scoring, configure
from .selection import PromptStream, check_dataset, check_rows, check_stream
from .traces import Sampled, split_name


logger = get_logger(__name__)

# Loss types that divide by the number of rows, and the one that divides by each micro-batch's own tokens; the others
# divide by `num_items_in_batch`.
ROW_NORMALISED = ("grpo", "sapo", "dr_grpo", "luspo")
MICRO_BATCH_NORMALISED = ("bnpo",)


class GRPOPlusTrainer(GRPOTrainer):
    """
    TRL's [`~trl.GRPOTrainer`] that can leave zero-variance groups out of the batch or replace them, and that offers
    more baselines, scales and KL estimators. With every option of [`GRPOPlusConfig`] at its default it is TRL's, bit
    for bit.

    Args:
        reward_funcs:
            As [`~trl.GRPOTrainer`], and registered names, paths to functions and `{name, args, weight, ...}`; see
            [`~trl_grpo_plus.registry.RewardSpec`].
        model, ...:
            As [`~trl.GRPOTrainer`].
        args ([`GRPOPlusConfig`], *optional*):
            Configuration for this trainer. If `None`, a default configuration is used.

    Raises:
        TypeError: `args` is another configuration.
        ValueError: an option does not go with the dataset, the model or the rewards.

    Example:

    ```python
    from trl_grpo_plus import GRPOPlusConfig, GRPOPlusTrainer

    trainer = GRPOPlusTrainer(
        model="Qwen/Qwen2.5-0.5B-Instruct",
        reward_funcs=accuracy_reward,
        args=GRPOPlusConfig(zero_variance_groups="resample"),
        train_dataset=dataset,
    )
    trainer.train()
    ```
    """

    args: GRPOPlusConfig
    beta: float
    entropy_coef: float
    _last_world_entropy: float
    reward_funcs: list[Any]
    reward_func_names: list[str]
    reward_weights: Tensor

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GRPOPlusConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        *rest: Any,
        **kwargs: Any,
    ):
        if args is None:
            model_id = model if isinstance(model, str) else model.config._name_or_path
            args = GRPOPlusConfig(f"{model_id.split('/')[-1]}-GRPO")
        if not isinstance(args, GRPOPlusConfig):
            raise TypeError(
                f"args must be a GRPOPlusConfig, got {type(args).__name__}: replace `GRPOConfig(...)` by "
                "`GRPOPlusConfig(...)`, which takes every argument of TRL's."
            )
        self._inputs: list[dict[str, Any]] = []  # of the batch being generated; `_generate` replaces its rows
        self._indices: list[int | None] = []  # of its rows as they were dealt, in the training set
        self._generated: tuple[Any, ...] = ()  # what TRL's `_generate` returned for it
        self._plan: Plan | None = None  # of the batch being generated, where groups are filtered
        self._rounds: list[Round] = []  # likewise
        self._rewards = torch.empty(0, 0)  # (N, K), gathered, of the batch being generated
        self._outcomes = torch.empty(0, 0)  # (K, S), how many samples had each of STATUSES, of all ranks, likewise
        self._with_monitors: tuple[list[Any], list[str], Tensor] | None = None  # rewards, while TRL sees no monitors
        self._statuses: list[tuple[str | None, ...]] = []  # of this rank's samples that were scored last
        self._kl_of_rows: Tensor | None = None  # (B,), mean over each completion's tokens, where it is computed
        self._entropy: float | None = None  # as last measured
        self._split = "eval"  # that is being evaluated
        self._tokens_generated = 0  # on this rank, for the batch being generated
        self._kl_seen: list[tuple[float, int]] = []  # (kl, completions) of each micro-batch since beta last changed
        self._window_tokens = 0  # live ones of all ranks, in the micro-batches since the last optimizer step
        self._running_variance: float | None = None
        self._stream: PromptStream | None = None
        self._sampler: Any = None  # TRL's, of the training set
        check_dataset(train_dataset, "train_dataset")
        reward_funcs, weights = resolve(reward_funcs, args.reward_weights)
        if weights != args.reward_weights:
            args = copy.copy(args)  # the caller may make another trainer with it
            args.reward_weights = weights
        if args.push_to_hub:
            uploads.check_seam()
        configure(args.reward_workers, args.reward_worker_memory_mb)
        if not any((rest, kwargs.get("rollout_func"), kwargs.get("environment_factory"))):  # they add columns
            _check_columns(reward_funcs, train_dataset, eval_dataset)
        with _temporarily(args, has_plus_trainer=True):
            super().__init__(model, reward_funcs, args, train_dataset, eval_dataset, *rest, **kwargs)
        # What TRL does not know it would refuse; its advantages are replaced then.
        self.scale_rewards = args.scale_rewards if args.scale_rewards in TRL_SCALES else "group"
        check_filter_metric(args.filter_metric, self.reward_func_names)
        check_weights(self.reward_weights.tolist(), args)
        if args.filters_groups:
            self._check_filterable()
        if args.kl_placement == "reward" and self._is_vlm:
            raise Refusal("kl_placement='reward' is for text-only models. Set kl_placement='loss'.")
        if args.zero_variance_groups == "resample":
            self._stream = self._make_stream()
        rewards = (self.reward_func_names, self.reward_weights.tolist())
        self._recorder = Recorder(args, *rewards, self.accelerator.process_index)
        # First, since trackio's own callback closes its run when training ends.
        self.callback_handler.callbacks.insert(0, _Recording(self._recorder))

    # -- construction

    def _check_filterable(self) -> None:
        mode = f"zero_variance_groups={self.args.zero_variance_groups!r}"
        if self.environment_factories is not None:
            raise Refusal(
                f"{mode} does not go with environment_factory: TRL binds one environment to each row before "
                "generation, and rows change here. Set zero_variance_groups='keep', or use tools or rollout_func."
            )
        if self._is_vlm:
            raise Refusal(
                f"{mode} is for models with a tokenizer, this one has a processor (images). Set "
                "zero_variance_groups='keep'."
            )
        if self._groups_at_least() * self.num_generations == self.args.generation_batch_size:
            logger.warning(
                f"{mode} cannot make a batch smaller with per_device_train_batch_size="
                f"{self.args.per_device_train_batch_size}: each micro-batch of each process needs a row. Dead groups "
                "are masked, but nothing is saved. Use a larger per_device_train_batch_size and fewer "
                "gradient_accumulation_steps."
            )

    def _groups_at_least(self) -> int:
        """The number of groups in a batch is a multiple of this: TRL splits a rank's rows into steps_per_generation
        micro-batches, and forgets what is left over."""
        chunks = self.accelerator.num_processes * self.args.steps_per_generation
        return math.lcm(self.num_generations, chunks) // self.num_generations

    def _make_stream(self) -> PromptStream:
        check_stream(self.train_dataset, self.args)
        check_rows(len(self.train_dataset), self.args)
        return PromptStream(len(self.train_dataset), self.args.seed)

    # -- data

    def get_train_dataloader(self) -> Any:
        """As TRL's. Where prompts are drawn beyond it, each row says its index in the training set."""
        if self._stream is None:
            return super().get_train_dataloader()
        rows = IndexedRows(self._columns_in_use())
        # A collator that removes columns would remove the index.
        with _temporarily(self, train_dataset=rows), _temporarily(self.args, remove_unused_columns=False):
            return super().get_train_dataloader()

    def _columns_in_use(self) -> Any:
        return self._remove_unused_columns(self.train_dataset, description="training")

    def _read(self, indices: list[int]) -> list[dict[str, Any]]:
        """Rows of the training set as the dataloader deals them: each has objects of its own, on the device."""
        return send_to_device(self._columns_in_use().__getitems__(indices), self.accelerator.device)

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        self._sampler = super()._get_train_sampler(dataset)
        return self._sampler

    # -- sampling

    def _generate(self, prompts: list) -> tuple:
        if not (self.args.filters_groups and self.model.training):
            self._generated = super()._generate(prompts)
            return self._generated
        ranks = (self.accelerator.process_index, self.accelerator.num_processes)
        if self._stream is None:
            rounds = [self._sample(self._inputs, prompts)]
        else:
            rounds = resample(
                self._sample,
                self._inputs,
                prompts,
                indices=self._indices,
                stream=self._stream,
                read=self._read,
                num_generations=self.num_generations,
                max_rounds=self.args.max_resample_rounds,
                rank=self.accelerator.process_index,
                world_size=self.accelerator.num_processes,
            )
        fallback = "drop" if self._stream is None else self.args.resample_fallback
        self._rounds = rounds
        try:
            plan = settle(rounds, fallback, self.state.global_step, self._groups_at_least())
        except RuntimeError:  # on all ranks: what is to be looked at must be there
            self._record(Plan((), ()), torch.empty(0, device=self.accelerator.device))
            self._settle_record()
            raise
        attempts = exchange(rounds, plan.order, self.num_generations, *ranks)
        self._plan = plan
        grouped = [sampled.rewards.view(-1, self.num_generations, len(self.reward_funcs)) for sampled in rounds]
        self._rewards = torch.cat([grouped[r][group] for r, group in plan.order])
        self._tokens_generated = sum(attempt.num_tokens for sampled in rounds for attempt in sampled.attempts)
        self._inputs[:] = [attempt.inputs for attempt in attempts]
        prompts[:] = [attempt.prompt for attempt in attempts]
        self._put_back_logged(attempts)
        return _as_generated(attempts, *self._who_brings(attempts))

    def _sample(self, inputs: list[dict[str, Any]], prompts: list) -> Round:
        """Generate and score one completion for each row; all that TRL does for a batch, up to the rewards."""
        self._generated = super()._generate(prompts)
        _, completion_ids, _, completions, _, extra, _, _ = self._generated
        if len(completion_ids) != len(prompts):
            raise ValueError(
                f"rollout_func returned {len(completion_ids)} completions for {len(prompts)} prompts. To drop or "
                "resample groups, it must return one for each prompt it is given."
            )
        inputs = [{**row, **_row_of(extra, i)} for i, row in enumerate(inputs)]
        rewards = self._score(inputs, prompts, completions, completion_ids).cpu()
        attempts = self._attempts(inputs, prompts)
        self._pending_extra_logs.clear()  # they travel with their rows
        return Round(attempts, rewards, tuple(self._judge(rewards, self._trainable(attempts))))

    def _who_brings(self, attempts: Sequence[Attempt]) -> tuple[bool, bool]:
        """Whether any attempt, on any rank, has a `tool_mask`, and `logprobs`."""
        masks = any(attempt.tool_mask is not None for attempt in attempts)
        logprobs = {attempt.logprobs is not None for attempt in attempts}
        everywhere = gather_object([(masks, logprobs)])
        logprobs = set().union(*(rank[1] for rank in everywhere))
        if len(logprobs) > 1 and Version(trl.__version__) < Version("1.11"):
            raise ValueError(
                f"rollout_func gave logprobs for some attempts of a batch only, which TRL {trl.__version__} cannot "
                "train on. Return them for all or for none, or use TRL 1.11 or later."
            )
        return any(rank[0] for rank in everywhere), True in logprobs

    def _attempts(self, inputs: list[dict[str, Any]], prompts: list) -> tuple[Attempt, ...]:
        """What was generated and scored last on this rank."""
        prompt_ids, completion_ids, tool_mask, completions, logprobs, _, _, _ = self._generated
        columns = {name: values for name, values in self._pending_extra_logs.items() if len(values) == len(inputs)}
        tokenizer = self._tokenizer
        ends = {*getattr(self, "eos_token_ids", [tokenizer.eos_token_id]), tokenizer.pad_token_id}
        return tuple(
            Attempt(
                inputs=inputs[i],
                prompt=prompts[i],
                prompt_ids=prompt_ids[i],
                completion_ids=completion_ids[i],
                completion=completions[i],
                logprobs=None if logprobs is None else logprobs[i],
                tool_mask=None if tool_mask is None else tool_mask[i],
                logged={name: values[i] for name, values in columns.items()},
                outcomes=self._statuses[i],
                truncated=not any(int(token) in ends for token in completion_ids[i][-1:]),
            )
            for i in range(len(inputs))
        )

    # -- rewards

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        self._show_monitors()
        if self._plan is not None:
            return self._without_monitors(self._rewards.to(self.accelerator.device))
        rewards = self._score(inputs, prompts, completions, completion_ids_list)
        # All that is decided on them is a matter of a few numbers in float64, which not every device has.
        self._rewards = rewards.cpu()
        attempts = self._attempts(inputs, prompts)
        self._tokens_generated = sum(attempt.num_tokens for attempt in attempts)
        verdicts = self._judge(self._rewards, self._trainable(attempts))
        self._rounds = [Round(attempts, self._rewards, tuple(verdicts))]
        if self.args.filters_groups:  # in evaluation: its rows come after the fewer ones of a filtered batch
            self._put_back_logged(attempts)
        return self._without_monitors(rewards)

    @property
    def _monitors(self) -> list[int]:
        """Columns of the rewards that have weight 0, where others have not."""
        weights = self.reward_weights.tolist()
        return [i for i, weight in enumerate(weights) if not weight] if any(weights) else []

    def _without_monitors(self, rewards: Tensor) -> Tensor:
        """What TRL makes advantages of, (N, K - monitors). It sees none until it has made the batch: to TRL an attempt
        that a monitor scores is scored, and how a sum is rounded depends on how many it is of."""
        monitors = self._monitors
        if not monitors:
            return rewards
        weighted = [i for i in range(len(self.reward_funcs)) if i not in monitors]
        self._with_monitors = (self.reward_funcs, self.reward_func_names, self.reward_weights)
        self.reward_funcs = [self.reward_funcs[i] for i in weighted]
        self.reward_func_names = [self.reward_func_names[i] for i in weighted]
        self.reward_weights = self.reward_weights[weighted]
        return rewards[:, weighted]

    def _show_monitors(self) -> None:
        if self._with_monitors is not None:
            self.reward_funcs, self.reward_func_names, self.reward_weights = self._with_monitors
            self._with_monitors = None

    def _score(self, inputs: Any, *batch: Any) -> Tensor:
        """TRL's rewards, (N, K) and gathered. A failure stops all ranks, with the same message."""
        scoring = Scoring(self.reward_funcs, self.reward_func_names)
        tool_mask = self._generated[2] if self._generated else None
        if tool_mask is not None:  # which tokens are the policy's: TRL keeps it to itself
            inputs = [{**row, "tool_mask": mask} for row, mask in zip(inputs, tool_mask, strict=True)]
        with _temporarily(self, reward_funcs=scoring.functions):
            rewards = super()._calculate_rewards(inputs, *batch)
        failed = [len(scoring.failures)] * len(STATUSES)
        counts = torch.tensor([*scoring.counts(), failed], device=self.accelerator.device)
        counts = self.accelerator.gather(counts.unsqueeze(0)).sum(dim=0).cpu()
        if counts[-1, 0]:
            raise RewardError(gather_object(scoring.failures)[0]) from scoring.cause
        if failure := scoring.failure_of_models(rewards):
            raise RewardError(failure)
        self._outcomes = counts[:-1] + (self._outcomes if self._outcomes.numel() else 0)
        self._statuses = scoring.statuses(len(inputs))
        return rewards

    @property
    def _group_size(self) -> int:
        return self.num_generations if self.model.training else self.num_generations_eval

    def _totals(self, rewards: Tensor) -> Tensor:
        """(N, K) -> (N,), NaN where no reward with a weight scored; as TRL sums them."""
        weights = self.reward_weights.cpu()
        rewards, weights = rewards[:, weights != 0], weights[weights != 0]
        return (rewards * weights).nansum(dim=1).masked_fill(rewards.isnan().all(dim=1), torch.nan)

    def _trainable(self, attempts: Sequence[Attempt]) -> Tensor:
        """(N,), gathered: whether TRL leaves any token of an attempt in the loss."""
        masked = self.mask_truncated_completions
        found = [attempt.num_tokens > 0 and not (masked and attempt.truncated) for attempt in attempts]
        return self.accelerator.gather(torch.tensor(found, device=self.accelerator.device).int()).bool().cpu()

    def _judge(self, rewards: Tensor, trainable: Tensor | None = None) -> list[str]:
        """The verdict on each group; without `trainable`, on its rewards alone."""
        args = self.args
        limits: dict[str, Any] = {
            "trainable": None if trainable is None else trainable.view(-1, self._group_size),
            "tolerance": args.zero_variance_tolerance,
            "solved_reward": args.solved_reward,
            "failed_reward": args.failed_reward,
        }
        totals = self._totals(rewards).view(-1, self._group_size)
        components = rewards.view(-1, self._group_size, rewards.shape[1])
        by_itself = self.multi_objective_aggregation == "normalize_then_sum"
        if args.filter_metric == "any" or (args.filter_metric == "total" and by_itself):
            return judge_any(components[..., self.reward_weights.cpu() != 0], totals, **limits)
        if args.filter_metric == "total":
            return judge(totals, **limits)
        metric = components[..., self.reward_func_names.index(args.filter_metric)]
        # In a mixture of tasks a reward function may not apply to a group at all.
        metric = torch.where(metric.isnan().all(dim=1, keepdim=True), totals, metric)
        return judge(metric, **limits)

    def _put_back_logged(self, attempts: Sequence[Attempt]) -> None:
        """Give TRL what the rewards logged about these rows, for its table of completions."""
        # Every rank needs every column: TRL before 1.14 gathers each of its own, and one that is elsewhere only hangs.
        logged = set(gather_object(sorted({name for attempt in attempts for name in attempt.logged})))
        self._pending_extra_logs.clear()
        # Each column must be as long as the table. TRL's is full after one batch, and here a batch may be smaller.
        for name in sorted(logged | set(self._logs["extra"])):
            column = self._logs["extra"][name]
            column.extend([None] * (len(self._logs["prompt"]) - len(column)))
            self._pending_extra_logs[name] = [attempt.logged.get(name) for attempt in attempts]

    # -- the batch that is trained on

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._indices = pop_indices(inputs)
        self._inputs, self._plan, self._rounds, self._outcomes = inputs, None, [], torch.empty(0, 0)
        if self.args.filters_groups and self.model.training:
            self._forget_logged_rows()
        try:
            output = super()._generate_and_score_completions(inputs)
        finally:
            self._show_monitors()
        self._log_monitors()
        self._plan = plan = self._plan or Plan.as_sampled(len(self._rounds[0].verdicts))
        if self.model.training:
            if not all(plan.live):
                self._mask_filler(output, plan)
            if self.args.changes_advantages:
                self._replace_advantages(output, plan)
            self._log_batch(output, self._rounds, plan)
        self._log_outcomes()
        self._record(plan, output["advantages"], self._kl_per_attempt(output))
        self._inputs, self._plan, self._rounds, self._rewards = [], None, [], torch.empty(0, 0)
        self._generated, self._kl_of_rows = (), None
        return output

    def _mine(self, gathered: Tensor) -> Tensor:
        """This rank's rows of a gathered tensor."""
        share = len(gathered) // self.accelerator.num_processes
        start = self.accelerator.process_index * share
        return gathered[start : start + share]

    def _mask_filler(self, output: dict[str, Any], plan: Plan) -> None:
        live = torch.tensor(plan.live, device=output["completion_mask"].device)
        live = self._mine(live.repeat_interleave(self.num_generations))
        # Not in completion_mask, which the forward pass attends by: the old log-probs were taken with all tokens seen.
        output["tool_mask"] = output.get("tool_mask", torch.ones_like(output["completion_mask"])) * live.unsqueeze(1)
        output["num_items_in_batch"] = self.accelerator.gather(_loss_mask(output).sum()).sum()
        output["live"] = live

    def _replace_advantages(self, output: dict[str, Any], plan: Plan) -> None:
        values = self._compute_advantages(output, sum(plan.live))  # (P_live, G) or (P_live, G, T), on the CPU
        if self.args.advantage_clip is not None:
            values = values.clamp(-self.args.advantage_clip, self.args.advantage_clip)
        flat = values.flatten(0, 1)
        everyone = flat.new_zeros(len(self._rewards), *flat.shape[1:])
        everyone[: len(flat)] = flat
        local = self._mine(everyone).to(output["advantages"].device)
        output["advantages"] = local if local.dim() == 1 else local[:, : output["completion_ids"].shape[1]]
        logged = self._logs["advantages"]
        for _ in range(min(len(everyone), len(logged))):
            logged.pop()
        logged.extend((everyone if everyone.dim() == 1 else everyone[:, 0]).tolist())

    def _compute_advantages(self, output: dict[str, Any], num_live: int) -> Tensor:
        args, size = self.args, self.num_generations
        shaping: dict[str, Any] = {
            "baseline": args.advantage_baseline,
            "scale": args.scale_rewards,
            "ddof": args.std_ddof,
            "eps": args.std_eps,
            "floor": args.std_floor,
            "tolerance": args.zero_variance_tolerance,
        }

        def grouped(per_row: Tensor) -> Tensor:
            return per_row[: num_live * size].unflatten(0, (num_live, size)).cpu()

        if args.advantage_baseline == "length_weighted":
            shaping["lengths"] = grouped(self.accelerator.gather(_loss_mask(output).sum(dim=1)))
        if self.multi_objective_aggregation == "normalize_then_sum":
            return advantages.normalize_then_sum(grouped(self._rewards), self.reward_weights.cpu(), **shaping)
        totals = grouped(self._totals(self._rewards))
        if args.kl_placement == "loss":
            return advantages.compute(totals, **shaping, running_std=self._running_std(totals))
        to_go = grouped(self.accelerator.gather(self.accelerator.pad_across_processes(self._kl_to_go(output), dim=1)))
        alike = not totals.numel() or not advantages.varies(totals.view(1, -1), args.zero_variance_tolerance)
        shaping["running_std"] = self._running_std(totals - self.beta * to_go[..., 0], alike)
        per_token = args.kl_reward_form == "reward_to_go"
        values = advantages.compute_with_kl(totals, to_go, self.beta, per_token, **shaping)
        self._adapt_beta()
        return values

    def _running_std(self, totals: Tensor, alike: bool = False) -> float | None:
        """The moving average under scale_rewards="running". A batch moves it on, but not one whose rewards are all
        `alike`: what differs there is the KL."""
        if self.args.scale_rewards != "running":
            return None
        if alike:
            return math.sqrt(self._running_variance or 1.0)
        variance = advantages.batch_std(totals, self.args.std_ddof) ** 2
        if self._running_variance is not None:
            decay = self.args.running_std_decay
            variance = decay * self._running_variance + (1 - decay) * variance
        if totals.numel():
            self._running_variance = variance
        return math.sqrt(variance)

    def _kl_to_go(self, output: dict[str, Any]) -> Tensor:
        """(B, T), and logs `kl`, the mean over tokens of all ranks."""
        mask = _loss_mask(output)
        logps = output.get("old_per_token_logps")
        if logps is None:
            logps = self._policy_logps(output)
        to_go = kl.kl_to_go(logps, output["ref_per_token_logps"], mask)
        self._kl_of_rows = to_go[:, 0] / mask.sum(dim=1).clamp(min=1)
        sums = self.accelerator.reduce(torch.stack([to_go[:, 0].sum(), mask.sum().float()]), reduction="sum")
        mean = (sums[0] / sums[1].clamp(min=1.0)).item()
        self._metrics["train"]["kl"].append(mean)
        live = sum(self._plan.live) if self._plan is not None else 0
        self._kl_seen.append((mean, live * self.num_generations))
        return to_go

    def _policy_logps(self, output: dict[str, Any]) -> Tensor:
        """Log-probs of the completions under the policy as it is: TRL leaves them out where sampling is on-policy."""
        ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
        mask = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
        width, batch_size = output["completion_ids"].shape[1], self.args.per_device_train_batch_size
        with torch.no_grad(), disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs):
            return self._get_per_token_logps_and_entropies(self.model, ids, mask, width, batch_size=batch_size)[0]

    # -- loss

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if self.model.training and self._buffered_inputs is not before and "live" in inputs:
            self._weigh_micro_batches(self._buffered_inputs)
        return inputs

    def _weigh_micro_batches(self, batches: list[dict[str, Any]]) -> None:
        """Undo what masked filler rows do to losses that divide by a count TRL takes itself, and to the entropy bonus,
        which is a mean over micro-batches of each one's own mean over tokens."""
        counts = [torch.stack([batch["live"].sum(), _loss_mask(batch).sum()]) for batch in batches]
        # Each (ranks, micro-batches).
        everywhere, tokens = self.accelerator.gather(torch.stack(counts, dim=1).unsqueeze(0)).cpu().unbind(dim=1)
        weight = 1.0
        if self.loss_type in ROW_NORMALISED:
            weight = len(batches[0]["live"]) * everywhere.numel() / max(everywhere.sum().item(), 1)
        elif self.loss_type in MICRO_BATCH_NORMALISED:
            weight = everywhere.numel() / max((everywhere > 0).sum().item(), 1)
        shares = tokens[self.accelerator.process_index] * tokens.numel() / max(tokens.sum().item(), 1)
        of_batches = torch.stack([everywhere.sum(dim=0), tokens.sum(dim=0)], dim=1).tolist()
        for batch, (live_rows, live_tokens), share in zip(batches, of_batches, shares.tolist(), strict=True):
            batch.update(filler_weight=weight, live_rows=live_rows, live_tokens=live_tokens, entropy_weight=share)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if not self.model.training:
            return super()._compute_loss(model, inputs)
        # Every loss type is linear in the advantages, up to their sign, and in beta.
        weight = inputs.get("filler_weight", 1.0)
        beta = self.beta * weight if self.args.kl_placement == "loss" else 0.0
        if weight != 1.0:
            inputs = {**inputs, "advantages": inputs["advantages"] * weight}
        weighted = self.args.use_bias_correction_kl
        if beta and self.args.kl_estimator != kl.TRL_ESTIMATOR:
            old_and_weighted = (inputs.get("old_per_token_logps"), weighted)
            term = partial(self._kl_term, inputs["ref_per_token_logps"], *old_and_weighted)
            inputs = {**inputs, "ref_per_token_logps": kl.ReferenceLogps(term)}
            weighted = False
        metrics = self._metrics["train"]
        rows = inputs.get("live_rows", len(inputs["completion_ids"]) * self.accelerator.num_processes)
        tokens = inputs.get("live_tokens", 1)  # where there is no filler TRL decides
        before = {} if tokens else {name: len(values) for name, values in metrics.items()}
        entropy = self._without_filler_in_the_entropy(inputs.get("entropy_weight", 1.0), tokens)
        with _temporarily(self, beta=beta), _temporarily(self.args, use_bias_correction_kl=weighted), entropy:
            loss = super()._compute_loss(model, inputs)
        if tokens and metrics.get("entropy"):
            self._entropy = metrics["entropy"][-1]
        if beta:
            self._kl_seen.append((metrics["kl"][-1], rows))
        if not tokens:  # nothing to train on, on any rank: TRL has logged means over no tokens
            for name, values in metrics.items():
                if name != "entropy_coef":
                    del values[before.get(name, 0) :]
        if beta and self.accelerator.sync_gradients:
            self._adapt_beta(passes=self.num_iterations)
        return loss

    @contextmanager
    def _without_filler_in_the_entropy(self, weight: float, tokens: int) -> Iterator[None]:
        """TRL's entropy bonus and the controller of its coefficient, for a micro-batch with so many live `tokens`."""
        before = self.entropy_coef, self._last_world_entropy
        if weight != 1.0:
            self.entropy_coef = _Weighed(self.entropy_coef, weight)
        try:
            yield
        finally:
            if isinstance(self.entropy_coef, _Weighed):  # TRL did not change it
                self.entropy_coef = before[0]
        self._window_tokens += tokens
        if not self.accelerator.sync_gradients:
            return
        if not self._window_tokens:  # TRL has measured the entropy of no tokens, 0
            self.entropy_coef, self._last_world_entropy = before
            if logged := self._metrics["train"].get("entropy_coef"):
                logged[-1] = self.entropy_coef
        self._window_tokens = 0

    def _kl_term(self, ref_logp: Tensor, old_logp: Tensor | None, weighted: bool, logp: Tensor) -> Tensor:
        return kl.penalty(self.args.kl_estimator, logp, ref_logp, old_logp, importance_weighted=weighted)

    def _adapt_beta(self, passes: int = 1) -> None:
        """Adapt beta to the KL seen since it was last adapted, over completions that are each seen `passes` times."""
        seen, self._kl_seen = self._kl_seen, []
        completions = sum(rows for _, rows in seen)
        if self.args.kl_target is None or not completions:
            return
        mean = sum(value * rows for value, rows in seen) / completions
        self.beta = kl.adapt_beta(self.beta, mean, self.args.kl_target, completions / passes, self.args.kl_horizon)
        self._metrics["train"]["beta"].append(self.beta)

    # -- metrics

    def _log_batch(self, output: dict[str, Any], rounds: Sequence[Round], plan: Plan) -> None:
        metrics = self._metrics["train"]
        for name, value in summary(rounds, plan).items():
            metrics[name].append(value)
        tokens = torch.tensor(self._tokens_generated, device=self.accelerator.device)
        metrics["tokens/generated"].append(self.accelerator.gather(tokens).sum().item())
        metrics["tokens/trained"].append(output["num_items_in_batch"].item())
        rewards = torch.cat([sampled.rewards for sampled in rounds])
        # TRL's is a batch statistic under scale_rewards="batch" and normalize_then_sum.
        differ = [verdict == "alive" for verdict in self._judge(rewards)]
        metrics["frac_reward_zero_std"][-1] = 1.0 - sum(differ) / len(differ)
        if self.args.filters_groups:
            self._log_rewards_as_sampled(rewards)

    def _log_rewards_as_sampled(self, rewards: Tensor) -> None:
        """TRL has just logged the rewards of the groups that were kept, which say nothing of the policy."""
        metrics = self._metrics["train"]
        for name, column in zip(self.reward_func_names, rewards.unbind(dim=1), strict=True):
            metrics[f"rewards/{name}/mean"][-1] = column.nanmean().item()
            metrics[f"rewards/{name}/std"][-1] = advantages.batch_std(column)
        totals = self._totals(rewards)
        metrics["reward"][-1] = totals.nanmean().item()
        metrics["reward_std"][-1] = advantages.batch_std(totals)

    def _log_monitors(self) -> None:
        """As TRL logs the rewards that it knows of."""
        metrics = self._metrics["train" if self.model.training else "eval"]
        for i in self._monitors:
            name, column = self.reward_func_names[i], self._rewards[:, i]
            metrics[f"rewards/{name}/mean"].append(column.nanmean().item())
            metrics[f"rewards/{name}/std"].append(nanstd(column).item())
            self._logs["rewards"][name].extend(column.tolist())
        rewards = torch.cat([sampled.rewards for sampled in self._rounds])
        if self._monitors and (self._totals(rewards).isnan() & ~rewards.isnan().all(dim=1)).any():
            logger.warning_once(
                "Some attempts are scored by monitors alone: every reward with a weight returned None. They count as "
                "unscored; see `groups/unscored` and the traces."
            )

    def _log_outcomes(self) -> None:
        metrics = self._metrics["train" if self.model.training else "eval"]
        for reward, name, counts in zip(self.reward_funcs, self.reward_func_names, self._outcomes, strict=True):
            if isinstance(reward, Reward):
                for status, share in zip(STATUSES[1:], (counts / counts.sum())[1:].tolist(), strict=True):
                    metrics[f"rewards/{name}/{status}"].append(share)

    # -- traces

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """As TRL's, and into the run's journal."""
        self._settle_record()
        super().log(logs, *args, **kwargs)
        self._recorder.log(self.state.log_history[-1])

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """As the `Trainer`'s; notes which split it is about."""
        self._settle_record()
        self._split = split_name(metric_key_prefix)
        self._recorder.evaluate(self._split, self.state.global_step)
        evaluated = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        self._settle_record()
        return evaluated

    def _record(self, plan: Plan, advantages: Tensor, kl_of_rows: Tensor | None = None) -> None:
        """Traces and alarms. `advantages` and `kl_of_rows` are of this rank's rows of the plan."""
        split = "train" if self.model.training else self._split
        traced = self._recorder.traces(split, self._step // (self.args.steps_per_generation * self.num_iterations))
        if not traced and not (self.args.alarms and self.model.training):
            return
        first = advantages if advantages.dim() == 1 else advantages[:, 0].contiguous()
        failing = (self._outcomes[:, -len(NO_VERDICT) :].sum(dim=1) / self._outcomes.sum(dim=1).clamp(min=1)).tolist()
        sampled = Sampled(
            split=split,
            step=self.state.global_step,
            size=self._group_size,
            weights=self._recorder.weights,
            rounds=self._rounds,
            plan=plan,
            totals=torch.cat([self._totals(one.rewards) for one in self._rounds]),
            # To the CPU here: in the thread that keeps them it would wait behind the training step on the device.
            advantages=self.accelerator.gather(first).cpu(),
            kl=None if kl_of_rows is None else self.accelerator.gather(kl_of_rows).cpu(),
            alike=self.rollout_func is None and self.environment_factories is None,
            failing=dict(zip(self._recorder.weights, failing, strict=True)),
            entropy=self._entropy,
        )
        self._settle_record()
        self._recorder.record(sampled, traced)

    def _settle_record(self) -> None:
        for name, value in self._recorder.settle().items():
            self._metrics["train"][name].append(value)

    def _kl_per_attempt(self, output: dict[str, Any]) -> Tensor | None:
        """(B,), nats a token, where the run has both log-probs at hand."""
        old, ref = output.get("old_per_token_logps"), output.get("ref_per_token_logps")
        if self._kl_of_rows is not None or old is None or ref is None:
            return self._kl_of_rows
        mask = _loss_mask(output)
        return ((old - ref) * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)

    def _forget_logged_rows(self) -> None:
        # TRL's table of completions is as long as a full batch: a smaller one would leave older rows in it.
        self._logs["extra"].clear()
        for column in self._logs.values():
            for rows in column.values() if isinstance(column, dict) else [column]:
                rows.clear()

    # -- checkpoints

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        # Before TRL's own, which ends with trainer_state.json: a checkpoint that has that has this too.
        if not self.args.save_only_model:
            folder = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            folder = os.path.join(self._get_output_dir(trial=trial), folder)
            os.makedirs(folder, exist_ok=True)
            torch.save(self._resume_state(), _state_file(folder, self.accelerator.process_index))
        super()._save_checkpoint(model, trial)

    def create_model_card(self, model_name: str | None = None, *args: Any, **kwargs: Any) -> None:
        """As TRL's, with the rewards, the options and what trained it; see [`trl_grpo_plus.model_card`]."""
        folder = Path(self.args.output_dir).resolve().name
        super().create_model_card(model_name or folder, *args, **kwargs)
        if self.is_world_process_zero():
            path = Path(self.args.output_dir) / "README.md"
            weights = list(zip(self.reward_func_names, self.reward_weights.tolist(), strict=True))
            card = path.read_text(encoding="utf-8")
            card = model_card.complete(card, folder, self.args.changed_options, weights)
            path.write_text(card, encoding="utf-8")

    def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
        """As the `Trainer`'s, without the traces; see [`trl_grpo_plus.uploads`]."""
        with uploads.kept_at_home():
            return super().push_to_hub(*args, **kwargs)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        with uploads.kept_at_home():
            super()._push_from_checkpoint(checkpoint_folder)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        if self._sampler is not None:
            # It draws one permutation an epoch: in a later epoch TRL's resumed run would draw the first one again.
            _skip_epochs(self._sampler, int(self.state.epoch or 0))
        own = _state_file(checkpoint, self.accelerator.process_index)
        state = torch.load(own, map_location="cpu", weights_only=True) if os.path.exists(own) else None
        everyone_has_one = all(gather_object([state is not None]))
        if not everyone_has_one:  # all go on with the first one's, which may be on another machine
            state = broadcast_object_list([state and {**state, "buffered_inputs": None}])[0]
        if state is None:
            logger.warning(f"{checkpoint} was not saved by GRPOPlusTrainer: resampling and beta start afresh.")
            return
        self._load_run_state(state)
        if everyone_has_one and state["layout"] == self._layout():
            self._load_batch_state(state)
        else:
            logger.warning(
                "The batch layout differs from the checkpoint's, or not every process finds its own state in it: the "
                "first batch is generated anew."
            )

    def _layout(self) -> list[int]:
        args = self.args
        sizes = [args.per_device_train_batch_size, args.gradient_accumulation_steps, args.steps_per_generation]
        return [self.accelerator.num_processes, *sizes, self.num_iterations, self.num_generations]

    def _resume_state(self) -> dict[str, Any]:
        self._settle_record()
        generate_every = self.args.steps_per_generation * self.num_iterations
        return {
            "layout": self._layout(),
            "step": self._step,
            # TRL generates anew when it resumes, in the midst of a batch too.
            "buffered_inputs": self._buffered_inputs if self._step % generate_every else None,
            "beta": self.beta,
            "running_variance": self._running_variance,
            # Rank 0 draws for all.
            "stream": self._stream.state_dict() if self._stream and self.is_world_process_zero() else None,
            "alarms": self._recorder.state_dict(),
            "entropy": self._entropy,
        }

    def _load_run_state(self, state: dict[str, Any]) -> None:
        if self.args.kl_target is not None:
            self.beta = state["beta"]
        self._running_variance = state["running_variance"]
        self._recorder.load_state_dict(state.get("alarms"))
        self._entropy = state.get("entropy")
        if self._stream is not None and state["stream"] is not None:
            self._stream.load_state_dict(state["stream"])

    def _load_batch_state(self, state: dict[str, Any]) -> None:
        self._step = state["step"]
        if state["buffered_inputs"] is not None:
            self._buffered_inputs = [_to(batch, self.accelerator.device) for batch in state["buffered_inputs"]]


class _Weighed(float):
    """TRL's entropy coefficient, which counts `weight` times where the entropy is multiplied by it, and as it is where
    TRL adapts or logs it."""

    weight: float

    def __new__(cls, value: float, weight: float) -> "_Weighed":
        made = super().__new__(cls, value)
        made.weight = weight
        return made

    def __mul__(self, other: Any) -> Any:
        return float(self) * self.weight * other


class _Recording(TrainerCallback):
    def __init__(self, recorder: Recorder):
        self._recorder = recorder

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._recorder.begin(state.global_step, state.max_steps)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._recorder.end()


def _check_columns(rewards: Any, train_dataset: Any, eval_dataset: Any) -> None:
    data = eval_dataset if isinstance(eval_dataset, dict) else {"": eval_dataset}
    data = {"train_dataset": train_dataset, **{f"eval_dataset {name}".strip(): data[name] for name in data}}
    for what, dataset in data.items():
        for reward in rewards or ():
            check_columns(reward, dataset, what)


def _as_generated(attempts: Sequence[Attempt], masked: bool, logprobs: bool) -> tuple:
    """What TRL's `_generate` returns for these rows; `masked` and `logprobs`: whether any row of the batch has them.

    A row without a mask is the policy's own; a log-prob that is not known is NaN, which TRL takes as no difference.
    """
    return (
        [attempt.prompt_ids for attempt in attempts],
        [attempt.completion_ids for attempt in attempts],
        [_filled(attempt.tool_mask, 1, attempt) for attempt in attempts] if masked else None,
        [attempt.completion for attempt in attempts],
        [_filled(attempt.logprobs, math.nan, attempt) for attempt in attempts] if logprobs else None,
        {},  # extra fields are in the rows already
        None,  # images
        [],  # tool images
    )


def _filled(values: list | None, value: float, attempt: Attempt) -> list:
    return [value] * len(attempt.completion_ids) if values is None else values


def _row_of(extra_fields: dict[str, Any], row: int) -> dict[str, Any]:
    # As TRL merges them: a list holds one value a row, anything else is for all.
    return {
        name: values[row] if isinstance(values, list) else values
        for name, values in extra_fields.items()
        if not isinstance(values, list) or row < len(values)
    }


def _loss_mask(batch: dict[str, Any]) -> Tensor:
    mask = batch["completion_mask"]
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask


def _state_file(folder: str, rank: int) -> str:
    return os.path.join(folder, f"grpo_plus_state_{rank}.pt")


def _to(batch: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}


def _skip_epochs(sampler: Any, epochs: int) -> None:
    for _ in range(epochs if sampler.shuffle else 0):
        torch.randperm(sampler.num_samples, generator=sampler.generator)


@contextmanager
def _temporarily(target: Any, **values: Any) -> Iterator[None]:
    before = {name: getattr(target, name) for name in values}
    for name, value in values.items():
        setattr(target, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(target, name, value)
