"""The generation batch in flight, from the rows that TRL deals to the batch that is trained on.

A batch object lives until its batch is complete or has failed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from accelerate.logging import get_logger
from accelerate.utils import gather_object
from torch import Tensor

from ..objective.credit import Credit
from ..objective.group_batch import GroupBatch
from ..objective.scales import batch_std
from ..rollouts.generation import Generated, unshared
from ..rollouts.groups import Attempt, Partition, Plan, Round, Rows, totals
from ..rollouts.groups import monitors as monitors_of
from ..rollouts.steps import StepMarks, marked
from ..scoring import NO_VERDICT, STATUSES, RewardError, Scoring, reports_outcomes
from ..traces import logged_step
from ..utils import dataset_rows
from ..utils.distributed import gather_made
from ..utils.patching import temporarily
from ..utils.text import content_of, first_words
from ..utils.validation import ConfigError
from .image_rows import images_in_columns


if TYPE_CHECKING:
    from trl import GRPOTrainer


logger = get_logger(__name__)


@dataclass(frozen=True)
class Filtered:
    """The batch that is trained on after dead groups were dropped or replaced.

    Args:
        plan ([`~trl_grpo_plus.rollouts.groups.Plan`]): its groups.
        attempts (`Sequence[Attempt]`): this rank's rows.
        images_on_some_ranks_only (`bool`): whether some ranks' rows have images and others' none.
    """

    plan: Plan
    attempts: Sequence[Attempt] = ()
    images_on_some_ranks_only: bool = False


class Counted(NamedTuple):
    """The counts of one generation over all ranks.

    Args:
        outcomes (`Tensor`): `(K, S)`, number of samples by reward and status.
        tokens (`int`): number of generated tokens.
        loss_tokens (`Tensor`): `(N,)`, number of tokens of each attempt that TRL leaves in the loss.
        marks (`tuple[StepMarks]`): the N attempts' steps, as tokens; none if steps are not credited.
    """

    outcomes: Tensor
    tokens: int
    loss_tokens: Tensor
    marks: tuple[StepMarks, ...] = ()


@dataclass
class Batch:
    """One rank's part of a generation batch.

    The trainer makes it with the rows that TRL deals. Each generation that was scored becomes a round. With `filters`,
    groups then leave, and `filtered` is set. Until then, and without `filters`, the first round is the batch to train
    on. At the end the batch is recorded and discarded.

    Args:
        accelerator (`Accelerator`): the trainer's.
        size (`int`): attempts in a group.
        inputs (`list[dict]`): the rows that TRL dealt, later replaced by the rows that are trained on.
        input_indices (`list[int | None]`): for each of the `inputs` that TRL dealt, its row's index in the training
            set, `None` if it is not known.
        filters (`bool`): whether its groups may be dropped or replaced.
        replaced (`dict[str, Callable]`): the methods that stand-ins replace, by name: the trainer's `_generate` and
            `_calculate_rewards`, or a subclass's.
        row_indices (`tuple[int]`): for each group of all ranks, its row's index in the training set, or with
            `streamed` in the window; empty if prompts are neither chosen nor remembered.
        streamed (`bool`): whether `row_indices` count the rows of a window on a stream.
        generated ([`Generated`], *optional*): the last generation.
        rounds (`list[Round]`): the sampled groups.
        filtered ([`Filtered`], *optional*): the batch to train on, once groups are filtered.
        kl (`Tensor`, *optional*): `(B,)`, each completion's mean KL over its tokens, if it is computed.
        hiding (`ExitStack`): hides monitors from TRL while it computes advantages. Closing it shows them again.
    """

    accelerator: Any = None
    size: int = 1
    inputs: Rows = field(default_factory=list)
    input_indices: list[int | None] = field(default_factory=list)
    filters: bool = False
    replaced: dict[str, Callable[..., Any]] = field(default_factory=dict)
    row_indices: tuple[int, ...] = ()
    streamed: bool = False
    generated: Generated | None = None
    rounds: list[Round] = field(default_factory=list)
    filtered: Filtered | None = None
    kl: Tensor | None = None
    hiding: ExitStack = field(default_factory=ExitStack)

    def images_on_some_ranks_only(self, rows: Rows) -> bool:
        """Return whether the rows have images, given or generated, on some ranks only. Collective."""
        of_prompts = self.generated.images if self.generated else None
        any_here = any(of_prompts or ()) or any(map(images_in_columns, rows))
        ranks = self.accelerator.gather(torch.tensor([int(any_here)], device=self.accelerator.device))
        return 0 < int(ranks.sum()) < len(ranks)

    @property
    def plan(self) -> Plan:
        """The groups of the batch to train on."""
        return self.filtered.plan if self.filtered else Plan.as_sampled(len(self.rounds[0].verdicts))

    @property
    def trained(self) -> Sequence[Attempt]:
        """This rank's attempts of the batch to train on."""
        return self.filtered.attempts if self.filtered else self.rounds[0].attempts

    @property
    def sampled(self) -> Tensor:
        """The gathered rewards of all rounds, `(N, K)`."""
        return torch.cat([one_round.rewards for one_round in self.rounds])

    @property
    def rewards(self) -> Tensor:
        """The gathered rewards of the groups to train on, `(N, K)`."""
        grouped = [one_round.rewards.chunk(len(one_round.verdicts)) for one_round in self.rounds]
        return torch.cat([grouped[r][group] for r, group in self.plan.order])

    @property
    def marks(self) -> list[StepMarks]:
        """The steps of the same N attempts; empty without `step_reward_credit`."""
        size = self.size
        return [
            mark for r, group in self.plan.order for mark in self.rounds[r].marks[group * size : (group + 1) * size]
        ]

    @property
    def marks_sampled(self) -> list[StepMarks]:
        """The steps of the attempts of all rounds."""
        return [mark for one_round in self.rounds for mark in one_round.marks]

    @property
    def live(self) -> list[tuple[Round, int]]:
        """The live groups of the plan, each as its round and its number there."""
        places = zip(self.plan.order, self.plan.live, strict=True)
        return [(self.rounds[r], group) for (r, group), lives in places if lives]

    def live_share(self, of_attempts: bool) -> float:
        """Return the live groups' share of the sampled attempts, or of their tokens in the loss."""
        if of_attempts:
            return len(self.live) * self.size / len(self.sampled)
        live = sum(one.loss_tokens.view(-1, self.size)[group].sum().item() for one, group in self.live)
        return live / max(sum(one.loss_tokens.sum().item() for one in self.rounds), 1)

    def skipped(self, weights: Tensor) -> dict[str, Tensor]:
        """Return the fields of a [`GroupBatch`] about the attempts of dead groups."""
        dead = [one.rewards.view(-1, self.size, one.rewards.shape[1])[one.where(alive=False)] for one in self.rounds]
        rewards = torch.cat(dead)
        return {"skipped": totals(rewards, weights).flatten(), "skipped_rewards": rewards}

    def of_all(self, rows: Tensor) -> Tensor:
        """Gather all ranks' `(B, T)`, padded to the longest. Collective."""
        return self.accelerator.gather(self.accelerator.pad_across_processes(rows, dim=1))

    def own_rows(self, gathered: Tensor) -> Tensor:
        """Return this rank's rows of a gathered tensor."""
        return gathered.chunk(self.accelerator.num_processes)[self.accelerator.process_index]

    def group_batch(self, mask: Tensor, credit: Credit, entropies: Tensor | None = None, **fields: Any) -> GroupBatch:
        """Return the record of the groups that are trained on. Collective.

        Args:
            mask (`Tensor`): this rank's `(B, T)`, the tokens in the loss.
            credit ([`~trl_grpo_plus.objective.credit.Credit`]): says what it reads; nothing else is gathered.
            entropies (`Tensor`, *optional*): this rank's `(B, T)` nats.
            fields: other fields of the record.
        """
        live = self.live
        indices = tuple(one.row_indices[group] for one, group in live if one.row_indices)

        def of_live(gathered: Tensor) -> Tensor:
            """Return the rows of the live groups, by group."""
            return gathered[: len(live) * self.size].unflatten(0, (len(live), self.size)).cpu()

        # As bytes, because TRL's masks are int64 and each rank gets the masks of all ranks.
        everyones = of_live(self.of_all(mask.to(torch.uint8))).bool() if credit.reads_mask else None
        if entropies is not None and everyones is not None:
            entropies = of_live(self.of_all(entropies)).float().masked_fill(~everyones, 0.0)
        sums = credit.reads_lengths and everyones is None
        lengths = of_live(self.accelerator.gather(mask.sum(dim=1))) if sums else None
        return GroupBatch(
            mask=everyones,
            verdicts=tuple(one.verdicts[group] for one, group in live),
            row_indices=None if self.streamed or len(indices) < len(live) else indices,
            entropies=entropies,
            lengths=lengths,
            columns=self._columns(credit.columns),
            marks=self.marks,
            **fields,
        )

    @property
    def partition(self) -> Partition:
        """The partition of the batch's rows over the ranks."""
        return Partition(self.size, self.accelerator.process_index, self.accelerator.num_processes)

    def _columns(self, names: Sequence[str]) -> dict[str, list[Any]]:
        """Return the values of these columns of the dataset, one per group that is trained on. Collective."""
        if not names:
            return {}
        first_row = self.accelerator.process_index * len(self.trained)

        def own() -> list[dict[str, Any]]:
            """Return this rank's columns, one row a group."""
            return [
                {name: _column_of(attempt.inputs, name) for name in names}
                for row, attempt in enumerate(self.trained, first_row)
                if row % self.size == 0  # one per group
            ]

        rows = gather_made(own)[: len(self.live)]
        return {name: [row[name] for row in rows] for name in names}

    @property
    def num_tokens(self) -> int:
        """The number of tokens that this rank generated, in all rounds."""
        return sum(attempt.num_tokens for one_round in self.rounds for attempt in one_round.attempts)

    def groups_named(self, step: int) -> list[str]:
        """Return the group's name for each of this rank's rows, for an error's text.

        The name is the group's place on the page (without the batch of the step) and the first words of its prompt.
        """
        own = self.partition.for_own_rows(self.plan.order)
        names: dict[tuple[int, int], str] = {}
        for (r, group), attempt in zip(own, self.trained, strict=True):
            if (r, group) not in names:
                words = first_words(attempt.prompt)
                names[r, group] = f"group {group} of round {r}, sampled at step {logged_step(step)} ({words!r})"
        return [names[place] for place in own]

    @property
    def outcomes(self) -> Tensor:
        """The number of samples by reward and status, `(K, S)`, over all ranks and rounds."""
        return torch.stack([one_round.outcomes for one_round in self.rounds]).sum(dim=0)

    @property
    def failing(self) -> list[float]:
        """The share of samples on which each reward gave no verdict."""
        outcomes = self.outcomes
        return (outcomes[:, -len(NO_VERDICT) :].sum(dim=1) / outcomes.sum(dim=1).clamp(min=1)).tolist()

    def count(
        self,
        scoring: Scoring,
        attempts: Sequence[Attempt],
        masked: bool,
        rewards: Tensor,
        tokenizer: Any = None,
    ) -> Counted:
        """Count the outcomes and tokens of the last generation over all ranks. Collective.

        Args:
            scoring ([`~trl_grpo_plus.scoring.Scoring`]): the scoring of this rank's last generation.
            attempts (`Sequence[Attempt]`): this rank's attempts, from [`attempts`].
            masked (`bool`): whether TRL leaves truncated attempts out of the loss.
            rewards (`Tensor`): `(N, K)`, gathered.
            tokenizer (*optional*): the tokenizer that decodes completions, to credit steps. `None`: no steps.

        Raises:
            RewardError: a reward failed on some rank. All ranks raise.
        """
        marks = [] if tokenizer is None else _marked(attempts, scoring, tokenizer.decode)
        counts = scoring.counts()
        numbers = [*chain(*counts), len(scoring.failures), sum(attempt.num_tokens for attempt in attempts)]
        loss_tokens = [attempt.loss_tokens(masked) for attempt in attempts]
        # One gather for all of them: its time depends on the number of messages, not of bytes.
        everyones = self.accelerator.gather(
            torch.tensor([numbers + loss_tokens], device=self.accelerator.device)
        ).cpu()
        *summed, failures, tokens = everyones[:, : len(numbers)].sum(dim=0).tolist()
        if failures:
            raise RewardError(gather_object(scoring.failures)[0]) from scoring.cause
        if failure := scoring.failure_of_models(rewards):
            raise RewardError(failure)
        outcomes = torch.tensor(summed, dtype=torch.int64).view(len(counts), -1)
        of_each = everyones[:, len(numbers) :].flatten()
        if tokenizer is None:
            return Counted(outcomes, tokens, of_each)
        marks = gather_object(marks)
        if all(of_one is None for mark in marks for of_one in mark.steps):
            logger.warning_once(
                "step_reward_credit is set, but no reward returned steps for any attempt of this batch. The option "
                "has no effect until a reward returns a list of Step for a completion."
            )
        return Counted(outcomes, tokens, of_each, tuple(marks))

    def as_sampled(self, inputs: Rows, prompts: list[Any]) -> tuple[Rows, list[Any]]:
        """Keep the completions, and return rows and prompts, as they are before a reward can change them in place."""
        if self.generated is not None:
            self.generated = self.generated._replace(completions=unshared(self.generated.completions))
        return unshared(inputs), unshared(prompts)

    def attempts(
        self, scoring: Scoring, inputs: Rows, prompts: list[Any], logged: Mapping[str, list[Any]], ends: set[int]
    ) -> tuple[Attempt, ...]:
        """Return the last generated attempts, with the outcomes and steps of their scoring.

        `logged` are columns for the traces; those that do not have a value for each row are left out, with a warning.
        A completion whose last token is not in `ends` is truncated.
        """
        assert self.generated is not None
        statuses, steps = scoring.statuses(len(inputs)), scoring.steps_of(len(inputs))
        for name in [name for name, values in logged.items() if len(values) != len(inputs)]:
            logger.warning_once(
                f"log_extra({name!r}, values): the values of a batch are not one for each completion, so the traces "
                "leave them out. Give a value for each completion, once a batch. Two rewards need two names."
            )
        logged = {name: values for name, values in logged.items() if len(values) == len(inputs)}
        prompt_ids, completion_ids, tool_mask, completions, logprobs, *_, tool_images = self.generated
        added = tuple(self.generated.extra_fields)
        return tuple(
            Attempt(
                inputs=inputs[i],
                prompt=prompts[i],
                prompt_ids=prompt_ids[i],
                completion_ids=completion_ids[i],
                completion=completions[i],
                logprobs=None if logprobs is None else logprobs[i],
                tool_mask=None if tool_mask is None else tool_mask[i],
                tool_images=tuple(tool_images[i]) if tool_images else (),
                logged={name: values[i] for name, values in logged.items()},
                outcomes=statuses[i],
                steps=steps[i],
                truncated=not any(int(token) in ends for token in completion_ids[i][-1:]),
                added=added,
            )
            for i in range(len(inputs))
        )

    def without_monitors(self, trainer: "GRPOTrainer", rewards: Tensor) -> Tensor:
        """Hide the monitors from TRL until it has made the batch, and return the other rewards `(N, K - monitors)`.

        TRL would count an attempt that only a monitor scores as scored. A sum over more columns also rounds
        differently.
        """
        monitors = monitors_of(trainer.reward_weights)
        if not monitors:
            return rewards
        weighted = [i for i in range(len(trainer.reward_funcs)) if i not in monitors]
        hidden: dict[str, Any] = {"reward_weights": trainer.reward_weights[weighted]}
        for name in ("reward_funcs", "reward_func_names"):
            hidden[name] = [getattr(trainer, name)[i] for i in weighted]
        self.hiding.enter_context(temporarily(trainer, **hidden))
        return rewards[:, weighted]

    # -- metrics, under TRL's names

    def rewards_sampled(self, names: Sequence[str], weights: Tensor) -> Iterator[tuple[str, float]]:
        """Return reward metrics over all rounds, since the kept groups alone are a biased sample of the policy."""
        for name, column in zip(names, self.sampled.unbind(dim=1), strict=True):
            yield f"rewards/{name}/mean", column.nanmean().item()
            yield f"rewards/{name}/std", batch_std(column)
        summed = totals(self.sampled, weights)
        yield "reward", summed.nanmean().item()
        yield "reward_std", batch_std(summed)

    def monitored(
        self, names: Sequence[str], weights: Tensor, std: Callable[[Tensor], Tensor]
    ) -> Iterator[tuple[str, float]]:
        """Return metrics of the monitors, with TRL's `std`. Warn of attempts that only monitors scored."""
        monitors = monitors_of(weights)
        for i in monitors:
            column = self.rewards[:, i]
            yield f"rewards/{names[i]}/mean", column.nanmean().item()
            yield f"rewards/{names[i]}/std", std(column).item()
        unscored = totals(self.sampled, weights).isnan()
        if monitors and (unscored & ~self.sampled.isnan().all(dim=1)).any():
            logger.warning_once(
                "Only monitors scored some attempts: every reward with a weight returned None. These attempts count "
                "as unscored; see `groups/unscored` and the traces."
            )

    def outcome_shares(self, rewards: Sequence[Any], names: Sequence[str]) -> Iterator[tuple[str, float]]:
        """Yield the share of each outcome, for rewards that report outcomes."""
        for reward, name, counts in zip(rewards, names, self.outcomes, strict=True):
            if reports_outcomes(reward) and counts.any():  # a subclass may score without the reward functions
                for status, share in zip(STATUSES[1:], (counts / counts.sum())[1:].tolist(), strict=True):
                    yield f"rewards/{name}/{status}", share


def failures_explain(attempts: Sequence[Attempt], rewards: Tensor) -> bool:
    """Return whether a reward failed on each of these attempts that has none of its `rewards`, `(B, K)`."""
    unscored = rewards.isnan().all(dim=1).tolist()
    failed = [any(status in NO_VERDICT for status in attempt.outcomes) for attempt in attempts]
    return all(fails for fails, has_none in zip(failed, unscored, strict=True) if has_none)


def _marked(attempts: Sequence[Attempt], scoring: Scoring, decode: Callable[..., str]) -> list[StepMarks]:
    """Return the attempts' steps as tokens. A step without tokens is noted as a failure."""
    marks = []
    for row, attempt in enumerate(attempts):
        what = (attempt.completion_ids, content_of(attempt.completion), attempt.steps)
        try:
            marks.append(marked(*what, partial(decode, skip_special_tokens=True)))
        except ValueError as error:
            try:  # a parsed response may keep special tokens
                marks.append(marked(*what, partial(decode, skip_special_tokens=False)))
            except ValueError:
                reason = f"The steps of sample {row} cannot be credited. {error}"
                scoring.failures.append(
                    f"{reason} Leave step_reward_credit out: each attempt then earns the sum of its steps."
                )
    return marks


def _column_of(row: dict[str, Any], name: str) -> Any:
    if name not in row:
        raise ConfigError(
            f"a baseline or an advantage function reads the column {name!r}, but a row has only "
            f"{', '.join(map(repr, row))}."
        )
    value = dataset_rows.plain(row[name])  # a dataset's format may make it a tensor on the rank's device
    return value.cpu() if isinstance(value, Tensor) else value
