"""[`attach`] for TRL's `AsyncGRPOTrainer`, which samples and scores in a process beside the trainer.

That process is the child of TRL's rollout worker. It scores group after group, and puts the rows of each group into a
queue. Here [`watched_loop`] adds a record of the group to the first row, in the child. [`WatchedQueue`] takes the
records out, in the trainer's process on rank 0. At the end of each optimizer step the groups that have arrived since
the last one are recorded as one batch.

With `zero_variance_groups="resample"` a dead group puts only its record into the queue. The trainer then fills its
batch with later groups.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import islice
from typing import Any

import torch
from accelerate.logging import get_logger
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

from ...config.compatibility import check_filter_metric
from ...rollouts.groups import Attempt, Plan, Round, judge_batch, summary, totals
from ...rollouts.verdicts import DEAD
from ...scoring import STATUSES
from ...traces import SampledBatch, logged_step
from ...utils.text import distinct
from ...utils.validation import ConfigError, RunError, one_of
from ..recorder import Recorder
from ..run_metadata import describe
from .observer import Observer, Options, last_entropy


logger = get_logger(__name__)

DEAD_IN_A_ROW = 1000  # groups after which a run that leaves dead groups out ends: it would wait for ever
_WARN_EVERY = 100
_SECONDS_TO_EXIT = 15.0
_AT_ONCE = 256  # groups that wait for the end of their step, at most


@dataclass
class Judging:
    """The options of verdicts, in a form that the child can load. TRL sums the rewards of this trainer."""

    filter_metric: str
    zero_variance_tolerance: float
    solved_reward: float
    failed_reward: float
    multi_objective_aggregation: str = "sum_then_normalize"


@dataclass(frozen=True)
class ScoredGroup:
    """A group as the child has scored it.

    Args:
        names (`list[str]`): names of the K rewards.
        attempts (`list[Attempt]`): its G attempts.
        rewards (`list[list[float]]`): `(G, K)`, NaN where a reward does not apply.
        advantages (`list[float]`): the advantages that TRL computed, `(G,)`.
        verdict (`str`): the verdict on the group.
        left_out (`bool`): whether its rows are left out of the queue.
    """

    names: list[str]
    attempts: list[Attempt]
    rewards: list[list[float]]
    advantages: list[float]
    verdict: str
    left_out: bool


@dataclass(slots=True, kw_only=True)
class FirstRow(RolloutSample):
    """The first row of a group in the queue, with the group's record."""

    group: ScoredGroup


# -- in the rollout worker's child


def watched_loop(make: Callable[..., Any], judging: Judging, resamples: bool, **kwargs: Any) -> Any:
    """Make the child's loop, with `_score_group` wrapped. TRL calls this function in the child."""
    loop = make(**kwargs)
    loop._score_group = _Scorer(loop, judging, resamples).score
    return loop


class _Scorer:
    """The wrapper of a loop's `_score_group`."""

    def __init__(self, loop: Any, judging: Judging, resamples: bool):
        check_filter_metric(judging.filter_metric, loop.reward_func_names)
        self._loop, self._method, self._judging, self._resamples = loop, loop._score_group, judging, resamples
        self._dead_in_a_row = 0

    async def score(self, group: Any) -> list[RolloutSample]:
        """Return the rows of a group, the first with the group's record; the first alone if the group is left out."""
        rows: list[RolloutSample] = await self._method(group)
        if not rows:  # the policy wrote no token
            return rows
        scored = self._scored(group, rows)
        values = {field.name: getattr(rows[0], field.name) for field in fields(RolloutSample)}
        first = FirstRow(**values, group=scored)
        return [first] if scored.left_out else [first, *rows[1:]]

    def _scored(self, group: Any, rows: Sequence[RolloutSample]) -> ScoredGroup:
        names = list(self._loop.reward_func_names)
        ends = {*self._loop.eos_token_ids, self._loop.tokenizer.pad_token_id}
        rest = iter(rows)
        of_attempts = [list(islice(rest, len(sequences))) for sequences in group.completions_sequences]
        rewards = [
            [of_one[0].metrics[f"rewards/{name}"] if of_one else math.nan for name in names] for of_one in of_attempts
        ]
        trained = torch.tensor([bool(of_one) for of_one in of_attempts])
        values = torch.tensor(rewards, dtype=torch.float64)
        (verdict,) = judge_batch(self._judging, values, torch.ones(len(names)), names, len(rewards), trained)
        attempts = [
            Attempt(
                inputs={name: column[i] for name, column in group.reward_kwargs.items()},
                prompt=group.prompts[i],
                prompt_ids=_prompt_ids(of_one[0]) if of_one else [],
                completion_ids=list(group.completions_ids[i]),
                completion=group.completions[i],
                tool_mask=_written(of_one) if group.tool_call_counts[i] else None,
                truncated=not any(token in ends for token in group.completions_ids[i][-1:]),
            )
            for i, of_one in enumerate(of_attempts)
        ]
        advantages = [of_one[0].advantage if of_one else math.nan for of_one in of_attempts]
        return ScoredGroup(names, attempts, rewards, advantages, verdict, self._leaves_out(verdict))

    def _leaves_out(self, verdict: str) -> bool:
        if not self._resamples:
            return False
        dead = verdict in DEAD
        self._dead_in_a_row = self._dead_in_a_row + 1 if dead else 0
        if self._dead_in_a_row >= DEAD_IN_A_ROW:
            raise RunError(
                f"{DEAD_IN_A_ROW} groups in a row were dead, the last one {verdict}, so the trainer waits for a live "
                "one. Look at their attempts (trl-grpo-plus view): make the prompts easier or harder, check the "
                "rewards, or set zero_variance_groups='keep'."
            )
        if dead and not self._dead_in_a_row % _WARN_EVERY:
            logger.warning(f"The last {self._dead_in_a_row} groups were dead. The trainer waits for a live group.")
        return dead


def _prompt_ids(row: RolloutSample) -> list[int]:
    mask = list(row.completion_mask)
    return [int(token) for token in row.input_ids[: mask.index(1)]]


def _written(rows: Sequence[RolloutSample]) -> list[int]:
    """Return a mask of a conversation's tokens, 1 where the policy wrote the token. It may have several rows."""
    masks = [[int(written) for written in row.completion_mask] for row in rows]
    return [written for mask in masks for written in mask[mask.index(1) :]]


# -- in the trainer's process


class WatchedQueue:
    """The trainer's end of the queue. It passes the record of each group that arrives to `arrived`, with its row."""

    def __init__(self, rows: Any, arrived: Callable[[RolloutSample, ScoredGroup], None]):
        self._rows, self._arrived = rows, arrived

    def get(self, timeout: float) -> RolloutSample:
        """Return the next row to train on, within `timeout` seconds, as the queue's own `get` does."""
        end = time.monotonic() + timeout
        while True:
            row: RolloutSample = self._rows.get(timeout=max(end - time.monotonic(), 0.0))
            if not isinstance(row, FirstRow):
                return row
            self._arrived(row, row.group)
            if not row.group.left_out:
                return row

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rows, name)


def _stop(worker: Any, method: Callable[[], None]) -> None:
    """Stop the rollout worker. TRL's `stop` waits for ever for an answer from a child that is gone."""
    child = worker._process
    if child is not None and (worker._failed_event.is_set() or not child.is_alive()):
        child.join(timeout=_SECONDS_TO_EXIT)
        child.kill()
        worker._process = None
    method()


class AsyncObserver(Observer):
    """The keeper of the records of TRL's `AsyncGRPOTrainer`. Every rank has one; rank 0's receives the groups."""

    _recorder: "_AsyncRecorder"

    def __init__(self, trainer: Any, options: Options):
        resampling = options.zero_variance_groups or "keep"
        one_of("zero_variance_groups", resampling, ("keep", "resample"))
        options.zero_variance_groups = None  # the advice of a run's last lines is about the other trainers
        worker = trainer.rollout_worker
        given = getattr(worker, "_loop_kwargs", None)
        if worker is not None and (given is None or not hasattr(worker, "_loop_cls")):
            raise TypeError(
                f"attach watches TRL's AsyncRolloutWorker, and this trainer's rollout_worker is a "
                f"{type(worker).__name__}. Leave rollout_worker out, or derive yours from AsyncRolloutWorker."
            )
        functions = (given or {}).get("reward_funcs") or []
        names = [getattr(function, "__name__", type(function).__name__) for function in functions]
        if len({*names}) < len(names):
            raise ConfigError(
                f"The reward functions are named {', '.join(names)}. TRL keeps their rewards by name: give each "
                "another name."
            )
        environments = (given or {}).get("environment_factory")
        super().__init__(trainer, options)
        if worker is not None and environments is None:  # the child alone knows the rewards of environments
            check_filter_metric(options.filter_metric, names)
        options.shuffle_dataset = False  # TRL takes the prompts in order
        self._recorder = _AsyncRecorder(trainer, options, names, alike=environments is None)
        if worker is not None:
            limits = ("filter_metric", "zero_variance_tolerance", "solved_reward", "failed_reward")
            judging = Judging(**{name: getattr(options, name) for name in limits})
            worker._loop_cls = partial(watched_loop, worker._loop_cls, judging, resampling == "resample")
            worker.stop = partial(_stop, worker, worker.stop)
            trainer.rollout_queue = WatchedQueue(trainer.rollout_queue, self._recorder.arrived)

    def train(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Train, and record the last groups if training fails."""
        try:
            return super().train(method, *args, **kwargs)
        except BaseException:
            self._recorder.record_waiting()  # the worker may have failed on these groups
            self._recorder.settle()
            raise


class _AsyncRecorder(Recorder):
    """The record of a run whose groups arrive one by one. It begins with the first group, which names the rewards.

    Args:
        trainer ([`~trl.experimental.async_grpo.AsyncGRPOTrainer`]): the trainer.
        options ([`Options`]): its options.
        names (`Sequence[str]`): the names of its reward functions. Environments may add others.
        alike (`bool`): whether all attempts of a group have the same prompt.
    """

    def __init__(self, trainer: Any, options: Options, names: Sequence[str], alike: bool):
        rank = trainer.accelerator.process_index
        super().__init__(
            options, names, [1.0] * len(names), rank, partial(describe, trainer), trainer._metrics["train"]
        )
        self.ends_at_max_steps = False  # transformers may train one more step
        self._trainer, self._alike = trainer, alike
        self._waiting: list[tuple[ScoredGroup, bool]] = []  # groups since the last step, and whether each is too old
        self._pending_begin: Callable[[], None] | None = None

    def arrived(self, row: RolloutSample, group: ScoredGroup) -> None:
        """Keep the record of a group until the end of the step."""
        stale = self._trainer.model_version - row.model_version > self._trainer.args.max_staleness
        self._waiting.append((group, stale))
        if len(self._waiting) >= _AT_ONCE:
            self.record_waiting()

    def begin(self, step: int, max_steps: int, logged: int | None = None) -> None:
        """Begin the record with the first group of this training."""
        self._pending_begin = partial(super().begin, step, max_steps, logged)
        if not self._main:
            self._begin_now()

    def _begin_now(self) -> None:
        if self._pending_begin is not None:
            self._pending_begin()
            self._pending_begin = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the groups that have arrived since the last step."""
        self.record_waiting(state.global_step)
        super().on_step_end(args, state, control, **kwargs)

    def record_waiting(self, step: int | None = None) -> None:
        """Record the groups that have arrived, as a batch of `step`; by default of the step that is under way."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        step = logged_step(self._trainer.state.global_step) if step is None else step
        self.settle()
        groups, names = [group for group, _ in waiting], waiting[0][0].names
        self.weights = dict.fromkeys(distinct(names), 1.0)
        self._begin_now()
        one_round = Round(
            attempts=tuple(attempt for group in groups for attempt in group.attempts),
            rewards=torch.tensor([rewards for group in groups for rewards in group.rewards], dtype=torch.float64),
            verdicts=tuple(group.verdict for group in groups),
            outcomes=torch.zeros(len(names), len(STATUSES), dtype=torch.int64),
        )
        plan = [place for place, (group, stale) in enumerate(waiting) if not (group.left_out or stale)]
        planned = Plan(order=tuple((0, place) for place in plan), live=(True,) * len(plan))
        for name, value in summary([one_round], planned).items():
            self._metrics[name].append(value)
        every = self._args.trace_every
        traced = every > 0 and not (step - 1) % every
        if not traced and not self._args.alarms:
            return
        sampled = SampledBatch(
            split="train",
            step=step,
            size=len(groups[0].attempts),
            weights=self.weights,
            rounds=[one_round],
            plan=planned,
            totals=totals(one_round.rewards, torch.ones(len(names))),
            advantages=torch.tensor([value for place in plan for value in groups[place].advantages]),
            kl=None,
            failing=dict.fromkeys(self.weights, 0.0),
            entropy=last_entropy(self._trainer),
            alike=self._alike,
        )
        if traced:
            self._note_first_prompt(self._trainer, groups[0].attempts[0], step)
        self.record_alone(sampled, traced)
