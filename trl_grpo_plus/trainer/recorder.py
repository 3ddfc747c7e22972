"""The recorder, which passes each batch of a run to the traces on disk, the alarms and the trackers.

Rank 0 gathers a batch, and keeps it. Rank 0 writes in a thread beside training, at most one batch at a time.
A failure (a full disk, a tracker that is down) is reported once and does not stop the run. Traces, alarms and trackers
do not depend on each other.
"""

import contextvars
import logging
import os
import secrets
import shlex
import statistics
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import torch
from accelerate import PartialState
from accelerate.logging import get_logger
from accelerate.utils import broadcast
from torch import Tensor
from tqdm.auto import tqdm
from trl import GRPOTrainer

from ..curriculum.selection import name_of
from ..objective.padding import first_tokens
from ..rollouts.groups import Attempt, totals
from ..traces import (
    FIRST_PROMPT,
    Part,
    SampledBatch,
    Thumbnails,
    Writer,
    advantages_by_token,
    as_given,
    by_group,
    complete,
    group_key,
    json_value,
    logged_step,
    newest_training_file,
    part_of,
    pick,
    split_name,
)
from ..traces.alarms import Alarm, Thresholds, Watch
from ..utils.distributed import gather_on_first_rank
from ..utils.terminal import visible
from ..utils.text import distinct
from ..utils.validation import RunError
from ..view import Trackers, failed_in
from .background_job import BackgroundJob
from .batch import Batch
from .progress import closing_words
from .run_metadata import run_json
from .training_state import StopsWhole


logger = get_logger(__name__)


class Recorder(StopsWhole):
    """The record of one run, and the callback that begins and ends it. Every rank has one.

    Args:
        args ([`GRPOPlusConfig`]): the trainer's.
        names (`Sequence[str]`), weights (`Sequence[float]`): names and weights of the K rewards; 0 for a monitor.
        rank (`int`): rank of this process.
        describe (`Callable`, *optional*): returns other content of run.json. Called for each training.
        metrics (`dict[str, list[float]]`, *optional*): the trainer's metrics, to which those of a batch are added.

    Attributes:
        weights (`dict[str, float]`): weights of the rewards by name; the names are distinct.
        run (`str`, *optional*): id of the run, which tells its checkpoints from those of another run in the folder. A
            resumed run keeps it. `None`: no run.json says which run it is.
        says_where (`bool`): whether the next training prints at its beginning how to watch the run, and at its end
            where the traces are and how to look at them. It is `False` after the first training, and if the script
            prints its own report.
        ends_at_max_steps (`bool`): whether a training that is resumed at its last step trains no further step.
        own_objective (`bool`): whether the trainer's class makes its loss or its batches itself.
    """

    own_objective = False

    def __init__(
        self,
        args: Any,
        names: Sequence[str],
        weights: Sequence[float],
        rank: int,
        describe: Callable[[], dict[str, Any]] = dict,
        metrics: dict[str, list[float]] | None = None,
    ):
        self.says_where = self.ends_at_max_steps = True
        self._metrics = defaultdict(list) if metrics is None else metrics
        self.weights = dict(zip(distinct(names), weights, strict=True))
        self._args, self._rank, self._main = args, rank, rank == 0
        self._watch = self._new_watch()
        self._resumed = False
        self.run: str | None = None
        self._run_before: str | None = None  # the id in the checkpoint that training resumes from
        self._describe = describe
        self._writer = self._new_writer() if args.trace_every and self._main else None
        self._thumbnails = Thumbnails(args.trace_thumbnails) if args.trace_thumbnails else None
        self._lacks_prompt = False  # whether the first prompt is missing, once training has begun
        self._trackers: Trackers | None = None
        self._warned: set[tuple[str, type]] = set()
        self._background = BackgroundJob()
        self._halting: str | None = None  # the alarm that ends this training
        self._split = "eval"  # the split under evaluation

    # -- a callback of the trainer

    @classmethod
    def say_no_folder(cls, trainer: GRPOTrainer) -> None:
        """Stop a trainer from printing where its traces are. Stock TRL's trainer prints nothing."""
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, cls):
                callback.says_where = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin the record, print how to watch the run, and say if there is nothing left to train."""
        super().on_train_begin(args, state, control, **kwargs)
        logged = sum(entry["step"] == state.global_step for entry in state.log_history)
        self.begin(state.global_step, state.max_steps, logged)
        if self.ends_at_max_steps and state.global_step and state.global_step >= state.max_steps:
            logger.warning(
                f"checkpoint-{state.global_step} is at max_steps={state.max_steps}: no step is left to train. To "
                "train more steps, raise max_steps or num_train_epochs."
            )
        if self.says_where and self._writer is not None and args.get_process_log_level() <= logging.WARNING:
            tqdm.write(f"To watch it: trl-grpo-plus view {shlex.quote(args.output_dir)} --serve")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the training with a checkpoint if an alarm of `halt_on_alarm` is new. Collective with that option."""
        alarm = self._halting_alarm()
        if alarm and state.global_step < state.max_steps:
            self.stop_after_step(args, state, control)
            logger.warning(
                f"Training stops after step {state.global_step}: halt_on_alarm names {alarm!r}. A checkpoint is "
                "saved. Read the attempts that show the alarm, then resume with resume_from_checkpoint=True."
            )

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Keep the entry that is logged, and tell the alarms. Later callbacks may log again, or trim the history."""
        entry = {**(logs or {}), "step": state.global_step}
        if self._watch is not None:
            with self._never_fatal("Alarms"):
                self._watch.note(entry)
        if self._writer is not None:
            with self._never_fatal("Metrics"):
                self._writer.note("metrics", [json_value(entry)])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the record. Print whether the run learned something, and where the traces are."""
        self.end()
        if self.says_where and self._main and args.get_process_log_level() <= logging.WARNING:
            self.says_where = False
            traced = self._writer is not None and newest_training_file(args.output_dir) is not None
            if lines := closing_words(state, self._args, traced, self.own_objective):
                # Printed, because loggers show only warnings by default. transformers prints its logs the same way.
                tqdm.write("\n".join(lines))

    # -- a run

    def begin(self, step: int, max_steps: int, logged: int | None = None) -> None:
        """Begin the record of a training that starts at `step` of `max_steps`, with `logged` log entries of `step`."""
        self.settle()
        self._follow_output_dir()
        self._halting = None
        if not self._resumed:
            self._watch = self._new_watch()
        self._resumed = False
        run, self.run, self._run_before = self._run_before or secrets.token_hex(4), self._run_before, None
        if self._writer is not None:
            with self._never_fatal("Traces"):
                self._writer.about = self._about()
                self._writer.begin(step, max_steps, logged, run)
                self.run = run
                self._lacks_prompt = not self._writer.holds(FIRST_PROMPT)
        if self._main and self._args.trace_log_groups:
            self._trackers = Trackers(self._args.report_to, max_steps, self._args.trace_log_groups)

    @contextmanager
    def evaluating(self, metric_key_prefix: str, step: int) -> Iterator[None]:
        """Evaluate after `step` steps inside this context. The prefix of the evaluation's metrics names the split."""
        self.settle()
        self._split = split_name(metric_key_prefix)
        self._follow_output_dir()
        if self._writer is not None:
            with self._never_fatal("Traces"):
                self._writer.fresh(self._split, step)
        yield
        self.settle()

    def _new_writer(self) -> Writer:
        # Absolute, because a reward may change the working folder while the thread writes.
        self._output_dir = os.path.abspath(self._args.output_dir)
        return Writer(self._output_dir, self._args.trace_compress, self._about())

    def _about(self) -> dict[str, Any]:
        """Return the content of run.json as the trainer is now."""
        return run_json(self._args, self.weights, self._describe())

    def _follow_output_dir(self) -> None:
        """Write into `output_dir` if a script has set another one."""
        if self._writer is not None and os.path.abspath(self._args.output_dir) != self._output_dir:
            self._writer = self._new_writer()

    def end(self) -> None:
        """End the record of a training."""
        self.settle()
        if self._trackers is not None:
            self._trackers.close()
            self._trackers = None

    def state_dict(self) -> dict[str, Any] | None:
        """Return the alarms' history for a checkpoint."""
        return self._watch.state_dict() if self._watch is not None else None

    def load_state_dict(self, state: dict[str, Any] | None, run: str | None = None) -> None:
        """Load the alarms' history of a checkpoint, and the id of its run."""
        self._run_before = run
        if self._watch is not None and state is not None:
            self._watch.load_state_dict(state)
            self._resumed = True

    @contextmanager
    def blaming_trackers(self) -> Iterator[None]:
        """Train inside this context, in which an error from a tracker names the tracker.

        TRL logs through the trackers too.
        """
        try:
            yield
        except Exception as error:
            if (name := failed_in(error)) is None:
                raise
            self.settle()
            why = " ".join(str(error).split())  # on one line
            raise RunError(
                f"{name} failed ({type(error).__name__}: {why}). transformers and TRL log to it, so the run ends too. "
                f"All sampled attempts are saved under {self._args.output_dir}/rollouts. Resume from the last "
                "checkpoint (resume_from_checkpoint=True). If it fails again, set report_to='none'; if it failed at "
                "TRL's table of completions, set log_completions=False."
            ) from error

    # -- a batch

    def settle(self) -> None:
        """Wait until the last batch is kept, and on rank 0 add its metrics to the trainer's."""
        for name, value in self._background.take().items():
            self._metrics[name].append(value)

    def _halting_alarm(self) -> str | None:
        """Return the new alarm of `halt_on_alarm`, the same on all ranks. Waits for the last batch. Collective."""
        names = self._args.halt_on_alarm
        if not names:
            return None
        self._background.wait()
        own = -1 if self._halting is None else names.index(self._halting)
        number = int(broadcast(torch.tensor([own], device=PartialState().device)))
        return None if number < 0 else names[number]

    def record_batch(
        self,
        trainer: GRPOTrainer,
        batch: Batch,
        number: int,
        advantages: Tensor,
        entropy: float | None,
        beliefs: Callable[[Batch], list[dict[str, Any]]] = lambda batch: [],
    ) -> None:
        """Pass a trainer's batch to traces and alarms. Collective.

        Args:
            trainer: the trainer.
            batch ([`~trl_grpo_plus.trainer.batch.Batch`]): its batch.
            number (`int`): the number of generation batches before it.
            advantages (`Tensor`): advantages of this rank's rows that are trained on.
            entropy (`float`, *optional*): the entropy that was measured last.
            beliefs (`Callable`, *optional*): returns the belief of each group of a batch.
        """
        self.settle()
        training, every = trainer.model.training, self._args.trace_every
        split = "train" if training else self._split
        traced = every > 0 and not (training and number % every)
        if not traced and not (self._args.alarms and training):
            return
        # Those of now: an evaluation may have other rewards than the training, and a callback may change the weights.
        weights = trainer.reward_weights.cpu()
        by_name = dict(zip(distinct(trainer.reward_func_names), weights.tolist(), strict=True))
        sampled = SampledBatch(
            split=split,
            step=logged_step(trainer.state.global_step, split),
            size=batch.size,
            weights=by_name,
            rounds=batch.rounds,
            plan=batch.plan,
            totals=totals(batch.sampled, weights),
            # Move to the CPU here: in the writer's thread the copy would wait for the training step on the device.
            advantages=first_tokens(advantages).cpu(),
            kl=None if batch.kl is None else batch.kl.cpu(),
            failing=dict(zip(by_name, batch.failing, strict=True)),
            entropy=entropy,
            beliefs=beliefs(batch),
            alike=not (getattr(trainer, "rollout_func", None) or getattr(trainer, "environment_factories", None)),
            by_token=advantages_by_token(batch.trained, advantages, trainer.processing_class),
        )
        if traced and training:
            self._note_first_prompt(trainer, batch.rounds[0].attempts[0], sampled.step)
        self.record(sampled, traced)

    def _note_first_prompt(self, trainer: Any, attempt: Attempt, step: int) -> None:
        """Keep the prompt as the model was given it, once a run."""
        if self._writer is not None and self._lacks_prompt:
            self._lacks_prompt = False
            with self._never_fatal("The first prompt"):
                self._writer.note(FIRST_PROMPT, [json_value({"step": step, **_first_prompt(trainer, attempt)})])

    def record(self, sampled: SampledBatch, traced: bool) -> None:
        """Look for alarms in a batch, and keep the batch if it is `traced`. Call [`settle`] first. Collective."""
        places = pick(sampled.rounds, self._args.trace_max_groups) if traced else []
        kls = None if sampled.kl is None else sampled.kl.tolist()
        everyones = gather_on_first_rank((self._part(sampled, places), sampled.advantages.tolist(), kls))
        if self._main:
            parts, advantages, kls = zip(*everyones, strict=True)
            kl = None if sampled.kl is None else _joined(kls, sampled.kl)
            sampled = replace(sampled, advantages=_joined(advantages, sampled.advantages), kl=kl)
            self._keep_beside(sampled, places, list(parts))

    def record_alone(self, sampled: SampledBatch, traced: bool) -> None:
        """Do the same for a batch that is on this rank alone, rank 0. Not collective."""
        places = pick(sampled.rounds, self._args.trace_max_groups) if traced else []
        self._keep_beside(sampled, places, [self._part(sampled, places)])

    def _keep_beside(self, *batch: Any) -> None:
        # trackio keeps its run in a context variable.
        self._background.start(contextvars.copy_context().run, self._keep, *batch)

    def _part(self, sampled: SampledBatch, places: list[tuple[int, int]]) -> tuple[Part, str | None]:
        """Return this rank's data of a batch; if its texts cannot be written, the rest of it and the reason."""
        try:
            return part_of(self._rank, sampled, places, self._thumbnails), None
        except Exception as error:  # an error in this rank's data must not leave the other ranks waiting
            return part_of(self._rank, sampled, ()), f"{type(error).__name__}: {error}"

    def _keep(
        self, sampled: SampledBatch, places: list[tuple[int, int]], of_ranks: list[tuple[Part, str | None]]
    ) -> dict[str, float]:
        with self._never_fatal("Traces"):
            parts = [part for part, _ in of_ranks]
            if why := next((why for _, why in of_ranks if why), None):
                places = []  # the alarms and the trackers go on without the texts
                self._warn_once("Traces", RuntimeError(why))
            split, step = sampled.split, sampled.step
            number = self._writer.number(split, step) if self._writer is not None else 0
            sampled = complete(sampled, places, parts, number)
            alarms = self._alarms(sampled)
            if self._writer is not None and sampled.lines:
                with self._never_fatal("Thumbnails"):  # written before the lines that name them
                    for part in parts:
                        self._writer.keep(part.thumbnails)
                with self._never_fatal("Traces"):
                    self._writer.write(split, step, sampled.lines)
            if split != "train":
                return {}
            self._announce(alarms)
            if self._trackers is not None and sampled.lines and self._trackers.due(step):
                groups = list(by_group(sampled.lines).values())
                self._trackers.log(step, groups, sampled.totals.view(-1, sampled.size))
            on, watch = {alarm.name for alarm in alarms}, self._watch
            watched = [name for name in watch.thresholds.names if name not in watch.failed] if watch else ()
            return {**_mean_lengths(sampled), **{f"alarms/{name}": float(name in on) for name in watched}}
        return {}

    def _alarms(self, sampled: SampledBatch) -> list[Alarm]:
        """Return the alarms that are on, and mark them on the lines of the groups that show them."""
        if self._watch is not None and sampled.split == "train":
            with self._never_fatal("Alarms"):
                alarms = self._watch.see(sampled)
                for name, error in self._watch.failed.items():
                    self._warn_once(f"What the alarm {name!r} finds", error)
                for line in sampled.lines if alarms else ():
                    line["alarms"] = [alarm.name for alarm in alarms if group_key(line) in alarm.groups]
                return alarms
        return []

    def _announce(self, alarms: list[Alarm]) -> None:
        new = [asdict(alarm) for alarm in alarms if alarm.new]
        for alarm in new:
            logger.warning(f"Alarm {alarm['message']}")
            if alarm["name"] in (self._args.halt_on_alarm or ()):
                self._halting = alarm["name"]
            del alarm["new"]
        if self._writer is not None and new:
            with self._never_fatal("Alarms"):
                self._writer.note("alarms", json_value(new))

    def _new_watch(self) -> Watch | None:
        if not (self._args.alarms and self._main):
            return None
        chosen = name_of(self._args.prompt_selection) != "shuffle" or not self._args.shuffle_dataset
        return Watch(Thresholds(**(self._args.alarm_thresholds or {})), chosen)

    @contextmanager
    def _never_fatal(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._warn_once(what, error)

    def _warn_once(self, what: str, error: Exception) -> None:
        if (what, type(error)) in self._warned:
            return
        self._warned.add((what, type(error)))
        message = f"{what} could not be kept; training goes on. {type(error).__name__}: {error}"
        if not isinstance(error, OSError):  # a bug, which needs its traceback
            message += "\n" + "".join(traceback.format_exception(error))
        logger.warning(visible(message))


def _first_prompt(trainer: Any, attempt: Attempt) -> dict[str, Any]:
    """Return an attempt's prompt as the model was given it."""
    options = getattr(trainer, "chat_template_kwargs", None) or trainer.args.chat_template_kwargs or {}
    template = {"tools": getattr(trainer, "tools", None) or None, **options}
    template["chat_template"] = getattr(trainer, "chat_template", None)
    return as_given(attempt.prompt_ids, attempt.prompt, trainer.processing_class, template)


def _joined(of_ranks: Sequence[list[float]], own: Tensor) -> Tensor:
    """Return all ranks' numbers in one tensor of the type of this rank's."""
    return torch.tensor([value for one in of_ranks for value in one], dtype=own.dtype)


def _mean_lengths(sampled: SampledBatch) -> dict[str, float]:
    """Return the mean number of tokens of attempts, for the groups of each verdict that occurs."""
    tokens: dict[str, list[int]] = {}
    for group, verdict in enumerate(sampled.verdicts):
        tokens.setdefault(verdict, []).extend(sampled.tokens[group * sampled.size : (group + 1) * sampled.size])
    return {f"completions/mean_length_of/{verdict}": statistics.fmean(counts) for verdict, counts in tokens.items()}
