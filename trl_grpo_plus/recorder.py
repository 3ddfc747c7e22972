"""Hands each batch of a run to the traces on disk, the alarms and the trackers.

All ranks take part in gathering, rank 0 alone keeps, in a thread beside training: at most one batch is on its way.
What goes wrong (a full disk, a tracker that is down) is said once and is no reason to lose a run; and none of the
three depends on another.
"""

import contextvars
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import torch
from accelerate.logging import get_logger
from accelerate.utils import gather_object

from .alarms import Alarm, Batch, Thresholds, Watch
from .traces import Row, Said, Scored, Writer, lines, pick, plain, said
from .view import Trackers


logger = get_logger(__name__)

Lengths = list[list[tuple[int, bool]]]  # of each round, each row's tokens and whether it was cut off


@dataclass(frozen=True)
class Sampled:
    """A generation batch, as all ranks know it but for the attempts in its rounds, which are each rank's own.

    Args:
        split (`str`): "train", "eval" or "eval_<name>".
        step (`int`): optimizer steps done.
        scored ([`~trl_grpo_plus.traces.Scored`]): what was sampled and what became of it.
        alike (`bool`): whether the siblings of a group are of one row of the dataset, to which nothing was added.
        failing (`dict[str, float]`): reward -> share of time-outs, errors and starved samples.
        entropy (`float`, *optional*): the policy's, as last measured.
    """

    split: str
    step: int
    scored: Scored
    alike: bool
    failing: dict[str, float]
    entropy: float | None


class Recorder:
    """The record of one run. Every rank has one.

    Args:
        args ([`GRPOPlusConfig`]): of the trainer.
        names (`Sequence[str]`), weights (`Sequence[float]`): of the K rewards; weight 0 is a monitor.
        rank (`int`): of this process.

    Attributes:
        names (`tuple[str, ...]`): of the rewards, no two alike.
    """

    def __init__(self, args: Any, names: Sequence[str], weights: Sequence[float], rank: int):
        self.names = _distinct(names)
        self._args, self._rank, self._main = args, rank, rank == 0
        self._weights = tuple(weights)
        self._watch = self._new_watch()
        self._resumed = False
        about = {"rewards": dict(zip(self.names, weights, strict=True)), "num_generations": args.num_generations}
        traces = args.trace_every and self._main
        self._writer = Writer(args.output_dir, args.trace_compress, about) if traces else None
        self._trackers: Trackers | None = None
        self._said: set[tuple[str, type]] = set()
        # Python waits for it when it exits, so that what is on its way is written.
        self._beside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="traces")
        self._pending: Future[dict[str, float]] | None = None

    # -- of a run

    def begin(self, step: int, max_steps: int) -> None:
        """Training starts at `step` of `max_steps`."""
        self.settle()
        if not self._resumed:
            self._watch = self._new_watch()
        self._resumed = False
        if self._writer is not None:
            with self._never_fatal("Traces"):
                self._writer.begin(step, max_steps)
        if self._main and self._args.trace_log_groups:
            self._trackers = Trackers(self._args.report_to, max_steps, self._args.trace_log_groups)

    def evaluate(self, split: str, step: int) -> None:
        """An evaluation of `split` starts, after `step` steps; [`settle`] comes first."""
        if self._writer is not None:
            with self._never_fatal("Traces"):
                self._writer.fresh(split, step)

    def log(self, entry: dict[str, Any]) -> None:
        """Keep what the trainer logs."""
        if self._writer is not None:
            with self._never_fatal("Metrics"):
                self._writer.note("metrics", [plain(entry)])

    def end(self) -> None:
        """Training is over."""
        self.settle()
        if self._trackers is not None:
            self._trackers.close()
            self._trackers = None

    def state_dict(self) -> dict[str, Any] | None:
        """What the alarms remember, for a checkpoint."""
        return self._watch.state_dict() if self._watch is not None else None

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Go on from a checkpoint."""
        if self._watch is not None and state is not None:
            self._watch.load_state_dict(state)
            self._resumed = True

    # -- of a batch

    def traces(self, split: str, number: int) -> bool:
        """Whether the attempts of the `number`-th generation batch are written."""
        return bool(self._args.trace_every) and not (split == "train" and number % self._args.trace_every)

    def settle(self) -> dict[str, float]:
        """Wait until the last batch is kept.

        Returns:
            `dict[str, float]`: its metrics, on rank 0; none where they were taken before.
        """
        pending, self._pending = self._pending, None
        return pending.result() if pending is not None else {}

    def record(self, sampled: Sampled, traced: bool) -> None:
        """Look for alarms and, where it is `traced`, keep a batch; see [`settle`], which comes first. Collective."""
        rounds = sampled.scored.rounds
        chosen = pick(rounds, self._args.trace_max_groups) if traced else [[] for _ in rounds]
        gathered = gather_object([self._mine(sampled, chosen)])
        if self._main:
            # trackio keeps its run in a context variable.
            job = contextvars.copy_context().run
            self._pending = self._beside.submit(job, self._kept, sampled, chosen, gathered)

    def _kept(self, sampled: Sampled, chosen: list[list[int]], gathered: list) -> dict[str, float]:
        with self._never_fatal("Traces"):
            for part in gathered:
                if isinstance(part, Exception):
                    raise part
            return self._keep(sampled, chosen, gathered)
        return {}

    def _mine(self, sampled: Sampled, chosen: list[list[int]]) -> tuple[list[dict[int, Said]], Lengths] | Exception:
        """Of this rank's attempts: what is to be said of those in chosen groups, and all lengths; a list a round."""
        try:
            told, lengths = [], []
            for r, groups in enumerate(chosen):
                attempts, size = sampled.scored.rounds[r].attempts, sampled.scored.size
                first = self._rank * len(attempts)
                of_groups = (range(group * size, (group + 1) * size) for group in groups)
                rows = [row for group in of_groups for row in group if 0 <= row - first < len(attempts)]
                told.append(said(attempts, rows, first, size, sampled.alike))
                lengths.append([(attempt.num_tokens, attempt.truncated) for attempt in attempts])
            return told, lengths
        except Exception as error:  # of data that only this rank has: the others are waiting
            return RuntimeError(f"{type(error).__name__}: {error}")

    def _keep(self, sampled: Sampled, chosen: list[list[int]], gathered: list) -> dict[str, float]:
        split, step = sampled.split, sampled.step
        every_round = range(len(chosen))
        told = [{row: text for part in gathered for row, text in part[0][r].items()} for r in every_round]
        lengths = [[pair for part in gathered for pair in part[1][r]] for r in every_round]
        batch = self._writer.number(split, step) if self._writer is not None else 0
        rows = lines(sampled.scored, told, chosen, self.names, step, split, batch)
        alarms: list[Alarm] = []
        if self._watch is not None and split == "train":
            with self._never_fatal("Alarms"):
                alarms = self._watch.see(self._batch(sampled, rows, lengths))
                _mark(rows, alarms)
        if self._writer is not None and rows:
            with self._never_fatal("Traces"):
                self._writer.write(split, step, rows)
        if split != "train":
            return {}
        self._sound(alarms)
        self._show(sampled, rows)
        on = {alarm.name for alarm in alarms}
        names = self._watch.names if self._watch is not None else ()
        return {**_lengths(sampled.scored, lengths), **{f"alarms/{name}": float(name in on) for name in names}}

    def _batch(self, sampled: Sampled, rows: list[Row], lengths: Lengths) -> Batch:
        scored = sampled.scored
        every = [pair for of_round in lengths for pair in of_round]
        return Batch(
            step=sampled.step,
            names=self.names,
            weights=self._weights,
            rewards=torch.cat([one_round.rewards for one_round in scored.rounds]),
            totals=torch.cat(list(scored.totals)),
            size=scored.size,
            tokens=tuple(tokens for tokens, _ in every),
            truncated=tuple(truncated for _, truncated in every),
            verdicts=tuple(verdict for one_round in scored.rounds for verdict in one_round.verdicts),
            failing=sampled.failing,
            entropy=sampled.entropy,
            rows=rows,
        )

    def _sound(self, alarms: list[Alarm]) -> None:
        new = [asdict(alarm) for alarm in alarms if alarm.new]
        for alarm in new:
            logger.warning(f"Alarm {alarm['message']}")
            del alarm["new"]
        if self._writer is not None and new:
            with self._never_fatal("Alarms"):
                self._writer.note("alarms", plain(new))

    def _show(self, sampled: Sampled, rows: list[Row]) -> None:
        if self._trackers is not None and rows and self._trackers.due(sampled.step):
            groups = [list(group) for _, group in groupby(rows, key=itemgetter("round", "group"))]
            totals = torch.cat(list(sampled.scored.totals)).view(-1, sampled.scored.size)
            self._trackers.log(sampled.step, groups, totals)

    def _new_watch(self) -> Watch | None:
        wanted = self._args.alarms and self._main
        return Watch(Thresholds.of(self._args.alarm_thresholds or {})) if wanted else None

    @contextmanager
    def _never_fatal(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if (what, type(error)) not in self._said:
                self._said.add((what, type(error)))
                bug = not isinstance(error, OSError)  # then where it came from matters
                told = f"{what} could not be kept; training goes on. {type(error).__name__}: {error}"
                logger.warning(told, exc_info=bug)


def _mark(lines: list[Row], alarms: list[Alarm]) -> None:
    if alarms:
        for line in lines:
            place = (line["batch"], line["round"], line["group"])
            line["alarms"] = [alarm.name for alarm in alarms if place in alarm.groups]


def _lengths(scored: Scored, lengths: Lengths) -> dict[str, float]:
    """Mean number of tokens of the attempts in groups of each verdict that occurs."""
    found: dict[str, list[int]] = {}
    for one_round, of_rows in zip(scored.rounds, lengths, strict=True):
        for group, verdict in enumerate(one_round.verdicts):
            of_group = of_rows[group * scored.size : (group + 1) * scored.size]
            found.setdefault(verdict, []).extend(tokens for tokens, _ in of_group)
    return {f"completions/mean_length/{verdict}": statistics.fmean(tokens) for verdict, tokens in found.items()}


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """TRL lets two reward functions bear one name: the second becomes name-2."""
    taken: list[str] = []
    for name in names:
        number, free = 1, name
        while free in taken:
            number += 1
            free = f"{name}-{number}"
        taken.append(free)
    return tuple(taken)
