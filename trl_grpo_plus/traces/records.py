"""Makes the lines of a trace: joins each rank's data on its attempts with the numbers that all ranks share.

A batch may hold thousands of attempts, and a step may do little else. So this module is written for speed: it makes
one dict per attempt, and computes the values that siblings share only once.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import orjson
import torch
from torch import Tensor

from ..rollouts.groups import Attempt, Plan, Round
from ..rollouts.verdicts import VERDICTS
from ..utils.text import shortened
from ..utils.validation import finite_or_none
from .images import Thumbnails, image_name, is_picture
from .schema import Row
from .token_runs import ByToken, Runs


RoundPlace = tuple[int, int]  # round, group in the round

PLACE = ("step", "split", "batch", "round", "group", "attempt", "size")
WRITTEN = ("prompt", "completion", "reference", "rewards", "steps", "outcomes", "reward", "advantage", "verdict")
KEYS = (*PLACE, *WRITTEN, "kept", "reason", "tokens", "truncated", "kl", "belief", "extra", "alarms")
_ATOMS = (str, int, bool, type(None))
_SHOWN_ELSEWHERE = ("prompt", "image", "images")  # columns left out of `reference`: TRL's messages hold the images


@dataclass(frozen=True)
class SampledBatch:
    """A generation batch. It is the same on all ranks, except for the attempts in its rounds, which differ by rank.

    Until the recorder has gathered them, `advantages` and `kl` belong to this rank's rows of the plan.

    Args:
        split (`str`): "train", "eval" or "eval_<name>".
        step (`int`): the step at which it is logged.
        size (`int`): attempts per group.
        weights (`dict[str, float]`): weights of the K rewards; 0 for a monitor.
        rounds (`Sequence[Round]`): the sampled rounds, with N attempts in all.
        plan (`Plan`): the groups that make up the batch to train on.
        totals (`Tensor`): weighted totals, `(N,)`, NaN if no reward scored.
        advantages (`Tensor`), kl (`Tensor`, *optional*): `(rows of the plan,)`.
        by_token (`ByToken`, *optional*): advantages of tokens, for this rank's rows of the plan.
        alike (`bool`): whether the siblings of a group come from one row of the dataset, to which nothing was added.
        failing (`dict[str, float]`): reward -> share of time-outs, errors and starved samples.
        entropy (`float`, *optional*): the policy's entropy as last measured, in nats per token.
        beliefs (`Sequence[dict]`, *optional*): for each group of all rounds, the belief about its prompt.
        tokens (`Sequence[int]`), truncated (`Sequence[bool]`), calls (`Sequence[int | None]`), *optional*:
            `(N,)`. `calls` counts the stretches that a tool or an environment wrote, `None` if there is neither.
        lines (`Sequence[dict]`), *optional*:
            Lines of a trace, for any number of groups, but only for whole groups. See [`complete`].
    """

    split: str
    step: int
    size: int
    weights: dict[str, float]
    rounds: Sequence[Round]
    plan: Plan
    totals: Tensor
    advantages: Tensor
    kl: Tensor | None
    alike: bool
    failing: dict[str, float]
    entropy: float | None
    beliefs: Sequence[Row | None] = ()
    by_token: ByToken | None = None
    tokens: Sequence[int] = ()
    truncated: Sequence[bool] = ()
    calls: Sequence[int | None] = ()
    lines: Sequence[Row] = ()

    @property
    def rewards(self) -> Tensor:
        """Scores of the rewards, `(N, K)`, NaN where unscored."""
        return torch.cat([one.rewards for one in self.rounds])

    @property
    def verdicts(self) -> tuple[str, ...]:
        """Verdicts on the groups, `(N / size,)`."""
        return tuple(verdict for one in self.rounds for verdict in one.verdicts)


class Details(NamedTuple):
    """The data on an attempt that only the rank which sampled it has, as plain data."""

    prompt: Any
    completion: Any
    reference: dict[str, Any]
    returned: dict[str, Any]
    outcomes: tuple[str | None, ...]
    extra: dict[str, Any]
    steps: Sequence[list[tuple[int, float]] | None]


class Part(NamedTuple):
    """One rank's data for a batch. `tokens`, `truncated` and `calls` hold one list per round."""

    details: dict[RoundPlace, list[Details]]  # of the rank's attempts in the traced groups
    tokens: list[list[int]]
    truncated: list[list[bool]]
    calls: list[list[int | None]]
    runs: dict[int, Runs]  # advantages of tokens, by row of the plan
    thumbnails: dict[str, bytes]  # new thumbnails, by the names of their images in the lines


def pick(rounds: Sequence[Round], limit: int | None) -> list[RoundPlace]:
    """Return the groups to trace, in order: all, or `limit` of them, chosen from the verdicts in turn."""
    places = [(r, group) for r, one in enumerate(rounds) for group in range(len(one.verdicts))]
    if limit is None or limit >= len(places):
        return places
    counts = dict.fromkeys(VERDICTS, 0)
    ranked = []
    for r, group in places:
        verdict = rounds[r].verdicts[group]
        ranked.append((counts[verdict], (r, group)))
        counts[verdict] += 1
    return sorted(place for _, place in sorted(ranked)[:limit])


def part_of(rank: int, sampled: SampledBatch, places: Iterable[RoundPlace], small: Thumbnails | None = None) -> Part:
    """Return this rank's data for a batch whose groups at `places` are traced."""
    details: dict[RoundPlace, list[Details]] = {}
    thumbnails: dict[str, bytes] = {}
    for r, group in places:
        attempts = sampled.rounds[r].attempts
        start = group * sampled.size - rank * len(attempts)  # a group's attempts may be on several ranks
        if own := attempts[max(start, 0) : max(start + sampled.size, 0)]:
            details[r, group] = list(_details(own, sampled.alike))
            if small is not None:
                thumbnails |= small.of(own, sampled.alike)
    attempts_of = [one.attempts for one in sampled.rounds]
    tokens = [[attempt.num_tokens for attempt in attempts] for attempts in attempts_of]
    truncated = [[attempt.truncated for attempt in attempts] for attempts in attempts_of]
    calls = [[_calls(attempt.tool_mask) for attempt in attempts] for attempts in attempts_of]
    return Part(details, tokens, truncated, calls, _runs(rank, sampled, places), thumbnails)


def _calls(mask: Sequence[int] | None) -> int | None:
    """Count the stretches of tokens that the policy did not write."""
    return None if mask is None else sum(own < before for before, own in pairwise((1, *mask)))


def _runs(rank: int, sampled: SampledBatch, places: Iterable[RoundPlace]) -> dict[int, Runs]:
    """Return the token advantages of this rank's rows in the traced groups."""
    if sampled.by_token is None:
        return {}
    traced, rows = set(places), len(sampled.by_token.attempts)
    order, first = sampled.plan.order, rank * rows
    own = [row for row in range(rows) if order[(first + row) // sampled.size] in traced]
    return {first + row: of_row for row, of_row in sampled.by_token.runs(own).items()}


def complete(
    sampled: SampledBatch, places: Iterable[RoundPlace], parts: Sequence[Part], batch: int = 0
) -> SampledBatch:
    """Return the batch with the data of all ranks: lengths, and the lines of the groups at `places`.

    Args:
        sampled ([`SampledBatch`]): the batch.
        places (`Iterable[RoundPlace]`): the groups to trace.
        parts (`Sequence[Part]`): the data of all ranks, in order of rank.
        batch (`int`, *optional*, defaults to `0`): number of the batch within its split and step.
    """
    details = {place: [one for part in parts for one in part.details.get(place, ())] for place in places}
    rounds = range(len(sampled.rounds))
    sampled = replace(
        sampled,
        tokens=[count for r in rounds for part in parts for count in part.tokens[r]],
        truncated=[cut for r in rounds for part in parts for cut in part.truncated[r]],
        calls=[count for r in rounds for part in parts for count in part.calls[r]],
    )
    runs = {row: of_row for part in parts for row, of_row in part.runs.items()}
    return replace(sampled, lines=_lines(sampled, details, runs, batch))


def _details(attempts: Iterable[Attempt], alike: bool) -> Iterator[Details]:
    """Yield the details of sibling attempts."""
    reference = prompt = None
    for attempt in attempts:
        if reference is None or not alike:
            elsewhere = (*_SHOWN_ELSEWHERE, *attempt.added)
            reference = json_value({k: value for k, value in attempt.inputs.items() if k not in elsewhere})
            prompt = json_value(attempt.prompt)
        returned = {name: json_value(attempt.inputs[name]) for name in attempt.added if name in attempt.inputs}
        logged = json_value(attempt.logged) if attempt.logged else {}
        steps = [None if one is None else [(step.end, step.reward) for step in one] for one in attempt.steps]
        completion = json_value(attempt.completion)
        yield Details(prompt, completion, reference, returned, attempt.outcomes, logged, steps)


def _lines(
    sampled: SampledBatch, details: dict[RoundPlace, list[Details]], runs: dict[int, Runs], batch: int
) -> list[Row]:
    """Return one dict per attempt, in order."""
    plan, size, split = sampled.plan, sampled.size, sampled.split
    trained = {place: at for at, place in enumerate(plan.order)}
    rewards, totals, advantages = map(_numbers, (sampled.rewards, sampled.totals, sampled.advantages))
    kl = _numbers(sampled.kl) if sampled.kl is not None else None
    groups_before = [0, *accumulate(len(one.verdicts) for one in sampled.rounds)]
    written = []
    for (r, group), of_group in details.items():
        at, verdict = trained.get((r, group)), sampled.rounds[r].verdicts[group]
        live = at is not None and plan.live[at]
        line = dict.fromkeys(KEYS)
        line |= {"step": sampled.step, "split": split, "batch": batch, "round": r, "group": group, "size": size}
        dead = verdict in sampled.rounds[r].dead
        line |= {"verdict": verdict, "advantage": 0.0 if dead else None}
        line["reason"] = "evaluation" if split != "train" else _reason(at, live, verdict, dead)
        line["kept"] = line["reason"] is None
        line["belief"] = sampled.beliefs[groups_before[r] + group] if sampled.beliefs else None
        first = (groups_before[r] + group) * size
        for attempt, of_attempt in enumerate(of_group):
            row, line = first + attempt, line.copy()
            # Setting keys one by one is a third faster than building a dict for all.
            line["prompt"], line["completion"], line["reference"], returned, outcomes, line["extra"], steps = (
                of_attempt
            )
            if returned:
                line["returned"] = returned
            line["steps"] = {name: of_one for name, of_one in zip(sampled.weights, steps) if of_one is not None}  # noqa: B905
            line["tokens"], line["truncated"] = sampled.tokens[row], sampled.truncated[row]
            line["attempt"] = attempt
            line["rewards"] = dict(zip(sampled.weights, rewards[row]))  # noqa: B905
            line["outcomes"] = dict(zip(sampled.weights, _outcomes(outcomes, rewards[row])))  # noqa: B905
            line["reward"] = totals[row]
            line["alarms"] = []
            if at is not None:
                line["advantage"] = advantages[at * size + attempt]
                line["kl"] = kl[at * size + attempt] if kl is not None and live else None
                if (of_row := runs.get(at * size + attempt)) is not None:
                    line["advantages"] = of_row
            written.append(line)
    return written


def to_lines(rows: Iterable[Row]) -> bytes:
    """Return the rows as JSON lines in UTF-8."""
    return b"".join([_line(row) for row in rows])


def json_value(value: Any) -> Any:
    """Convert a value to plain data that JSON can hold.

    A number that is not finite becomes `None`, an image becomes its mode, size and digest, and an object of another
    type becomes a short text.
    """
    if type(value) in _ATOMS:
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return finite_or_none(value)
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if hasattr(value, "tolist"):  # arrays, tensors and their numbers
        listed = value.tolist()
        if type(listed) is not type(value):
            return json_value(listed)
    if is_picture(value):
        return image_name(value)
    return shortened(str(value), 200)


def _line(row: Row) -> bytes:
    try:
        return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # lone surrogates, which some tokenizers yield, or integers beyond 64 bits
        text = json.dumps(row, ensure_ascii=False, allow_nan=False)
        return f"{text}\n".encode("utf-8", "backslashreplace")


def _numbers(values: Tensor) -> list[Any]:
    """Return the values as (nested) lists, `None` if not finite; rounded, since 0.3 in float32 is not 0.3."""
    values = values.cpu().double()  # cpu() first: not every device has float64
    rounded = values.round(decimals=7).tolist()
    return rounded if values.isfinite().all() else json_value(rounded)


def _outcomes(recorded: Sequence[str | None], scores: Sequence[float | None]) -> Sequence[str | None]:
    """Return the outcome of each reward: the recorded one, or the one that follows from its score."""
    if recorded and None not in recorded:
        return recorded
    recorded = recorded or [None] * len(scores)
    return [status or ("abstain" if score is None else "ok") for status, score in zip(recorded, scores, strict=True)]


def _reason(at: int | None, live: bool, verdict: str, dead: bool) -> str | None:
    if verdict == "truncated":  # whether or not the group is in the batch
        return "truncated"
    if live:
        return None
    if at is not None:
        return "filler"
    if not dead:
        return "surplus"
    return "low_variance" if verdict == "low_variance" else "zero_variance"
