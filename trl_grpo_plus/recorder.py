"""Hands each batch of a run to the traces on disk, the alarms and the trackers.

All ranks take part in gathering, rank 0 alone keeps. What goes wrong there (a full disk, a tracker that is down) is
said once and is no reason to lose a run.
"""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import torch
from accelerate.logging import get_logger
from accelerate.utils import gather_object

from . import traces
from .alarms import Alarm, Batch, Thresholds, Watch
from .trace_writer import Writer
from .trackers import Trackers


logger = get_logger(__name__)

Row = dict[str, Any]


@dataclass(frozen=True)
class Sampled:
    """A generation batch, as all ranks know it but for the attempts in its rounds, which are each rank's own.

    Args:
        split (`str`): "train", "eval" or "eval_<name>".
        step (`int`): optimizer steps done.
        number (`int`): of the generation batch, from 0.
        numbers ([`~trl_grpo_plus.traces.Scored`]): what was sampled and what became of it.
        failing (`dict[str, float]`): reward -> share of time-outs and errors.
        entropy (`float`, *optional*): the policy's, as last measured.
    """

    split: str
    step: int
    number: int
    numbers: traces.Scored
    failing: dict[str, float]
    entropy: float | None


class Recorder:
    """The record of one run. Every rank has one.

    Args:
        args ([`GRPOPlusConfig`]): of the trainer.
        names (`Sequence[str]`), weights (`Sequence[float]`): of the K rewards; weight 0 is a monitor.
        rank, world_size (`int`): of this process.
    """

    def __init__(self, args: Any, names: Sequence[str], weights: Sequence[float], rank: int, world_size: int):
        self._args, self._rank, self._world_size = args, rank, world_size
        self.names, self._weights = _distinct(names), tuple(weights)
        self._main = rank == 0
        self._watch = Watch(Thresholds.of(args.alarm_thresholds or {})) if args.alarms else None
        self._writer = Writer(args.output_dir, args.trace_compress) if args.trace_every and self._main else None
        self._trackers: Trackers | None = None

    # -- of a run

    def begin(self, step: int, max_steps: int) -> None:
        """Training starts at `step` of `max_steps`."""
        if not self._main:
            return
        if step == 0 and self._watch is not None:
            self._watch = Watch(Thresholds.of(self._args.alarm_thresholds or {}))
        with _never_fatal("Traces"):
            if self._writer is not None:
                rewards = dict(zip(self.names, self._weights, strict=True))
                about = {"rewards": rewards, "num_generations": self._args.num_generations, "max_steps": max_steps}
                self._writer.begin(step, about)
            if self._args.trace_log_groups:
                self._trackers = Trackers(self._args.report_to, max_steps, self._args.trace_log_groups)

    def log(self, entry: dict[str, Any]) -> None:
        """Keep what the trainer logs."""
        if self._writer is not None:
            with _never_fatal("Metrics"):
                self._writer.note("metrics", [traces.plain(entry)])

    def end(self) -> None:
        """Training is over."""
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

    # -- of a batch

    def record(self, sampled: Sampled) -> dict[str, float]:
        """Trace a batch and look for alarms. Collective.

        Returns:
            `dict[str, float]`: metrics, on rank 0.
        """
        training = sampled.split == "train"
        traced = self._args.trace_every and not (training and sampled.number % self._args.trace_every)
        if not traced and not (training and self._watch is not None):
            return {}
        rounds = sampled.numbers.rounds
        chosen = set(traces.pick(rounds, self._args.trace_max_groups)) if traced else set()
        gathered = gather_object([self._mine(sampled.numbers, chosen)])
        if not self._main:
            return {}
        texts = {place: text for part in gathered for place, text in part[0].items()}
        lengths = [_in_order([part[1][r] for part in gathered]) for r in range(len(rounds))]
        with _never_fatal("Traces and alarms"):
            return self._keep(sampled, texts, lengths)
        return {}

    def _mine(self, numbers: traces.Scored, chosen: set[tuple[int, int]]) -> tuple[dict[tuple[int, int], Row], list]:
        """This rank's attempts: texts of those in chosen groups by (round, row), and all lengths, a list a round."""
        texts: dict[tuple[int, int], Row] = {}
        lengths = []
        for r, one_round in enumerate(numbers.rounds):
            first = self._rank * len(one_round.attempts)
            lengths.append([(attempt.num_tokens, attempt.truncated) for attempt in one_round.attempts])
            here = [i for i in range(len(one_round.attempts)) if (r, (first + i) // numbers.size) in chosen]
            told = traces.said([one_round.attempts[i] for i in here])
            texts.update({(r, first + i): text for i, text in zip(here, told, strict=True)})
        return texts, lengths

    def _keep(self, sampled: Sampled, texts: dict[tuple[int, int], Row], lengths: list) -> dict[str, float]:
        split, step, numbers = sampled.split, sampled.step, sampled.numbers
        batch = self._writer.number(split, step) if self._writer is not None else 0
        lines = traces.rows(numbers, texts, step=step, split=split, batch=batch)
        if split != "train":
            self._write(split, step, lines)
            return {}
        alarms = self._watch.see(self._batch(sampled, lines, lengths)) if self._watch is not None else []
        _mark(lines, alarms)
        self._write(split, step, lines)
        self._sound(alarms)
        if self._trackers is not None and lines and self._trackers.due(step):
            grouped = [list(group) for _, group in groupby(lines, key=lambda line: (line["round"], line["group"]))]
            self._trackers.log(step, grouped, torch.cat(list(numbers.totals)).view(-1, numbers.size))
        on = {alarm.name for alarm in alarms}
        names = self._watch.names if self._watch is not None else ()
        return {**_lengths(numbers, lengths), **{f"alarms/{name}": float(name in on) for name in names}}

    def _batch(self, sampled: Sampled, lines: list[Row], lengths: list) -> Batch:
        everything = [pair for one_round in lengths for pair in one_round]
        return Batch(
            step=sampled.step,
            names=self.names,
            weights=self._weights,
            rewards=torch.cat([one_round.rewards for one_round in sampled.numbers.rounds]),
            totals=torch.cat(list(sampled.numbers.totals)),
            size=sampled.numbers.size,
            tokens=tuple(tokens for tokens, _ in everything),
            truncated=tuple(truncated for _, truncated in everything),
            verdicts=tuple(verdict for one_round in sampled.numbers.rounds for verdict in one_round.verdicts),
            failing=sampled.failing,
            entropy=sampled.entropy,
            rows=lines,
        )

    def _write(self, split: str, step: int, lines: list[Row]) -> None:
        if self._writer is not None and lines:
            self._writer.write(split, step, lines)

    def _sound(self, alarms: list[Alarm]) -> None:
        new = [asdict(alarm) for alarm in alarms if alarm.new]
        for alarm in new:
            logger.warning(f"Alarm {alarm['message']}")
            del alarm["new"]
        if self._writer is not None and new:
            self._writer.note("alarms", traces.plain(new))


def _mark(lines: list[Row], alarms: list[Alarm]) -> None:
    if alarms:
        for line in lines:
            place = (line["batch"], line["round"], line["group"])
            line["alarms"] = [alarm.name for alarm in alarms if place in alarm.groups]


def _lengths(numbers: traces.Scored, lengths: list) -> dict[str, float]:
    """Mean number of tokens of the attempts in groups of each verdict that occurs."""
    found: dict[str, list[int]] = {}
    for one_round, of_rows in zip(numbers.rounds, lengths, strict=True):
        for group, verdict in enumerate(one_round.verdicts):
            of_group = of_rows[group * numbers.size : (group + 1) * numbers.size]
            found.setdefault(verdict, []).extend(tokens for tokens, _ in of_group)
    return {f"completions/mean_length/{verdict}": statistics.fmean(tokens) for verdict, tokens in found.items()}


def _in_order(shares: list[list]) -> list:
    """What each rank has of a round, rank after rank."""
    return [pair for share in shares for pair in share]


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """TRL lets two reward functions bear one name: the second becomes name-2."""
    return tuple(
        name if names[:i].count(name) == 0 else f"{name}-{names[:i].count(name) + 1}"
        for i, name in enumerate(list(names))
    )


@contextmanager
def _never_fatal(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        logger.warning_once(f"{what} could not be kept; training goes on. {type(error).__name__}: {error}")
