"""Makes the lines of a trace: what each rank knows of its attempts, joined with the numbers that all ranks know.

A batch may hold thousands of attempts and a step little else, so this is written for speed: one dict an attempt, what
siblings share worked out once.
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
from ..utils.validation import finite_or_none
from .images import Thumbnails, is_picture, told
from .schema import Row
from .token_runs import ByToken, Runs


Place = tuple[int, int]  # round, group in it

PLACE = ("step", "split", "batch", "round", "group", "attempt", "size")
WRITTEN = ("prompt", "completion", "reference", "rewards", "steps", "outcomes", "reward", "advantage", "verdict")
KEYS = (*PLACE, *WRITTEN, "kept", "reason", "tokens", "truncated", "kl", "belief", "extra", "alarms")
_ATOMS = (str, int, bool, type(None))
_SHOWN_ELSEWHERE = ("prompt", "image", "images")  # of a row's columns; TRL's messages have the images in them


@dataclass(frozen=True)
class Sampled:
    """A generation batch, the same on all ranks but for the attempts in its rounds, which are each rank's own.

    Args:
        split (`str`): "train", "eval" or "eval_<name>".
        step (`int`): optimizer steps done.
        size (`int`): attempts in a group.
        weights (`dict[str, float]`): of the K rewards; 0 for a monitor.
        rounds (`Sequence[Round]`): what was sampled, N attempts in all.
        plan (`Plan`): which groups make up the batch that is trained on.
        totals (`Tensor`): `(N,)`, NaN where nobody scored.
        advantages (`Tensor`), kl (`Tensor`, *optional*): `(rows of the plan,)`.
        by_token (`ByToken`, *optional*): advantages of tokens, of this rank's rows of the plan.
        alike (`bool`): whether the siblings of a group are of one row of the dataset, to which nothing was added.
        failing (`dict[str, float]`): reward -> share of time-outs, errors and starved samples.
        entropy (`float`, *optional*): the policy's, in nats a token, as last measured.
        beliefs (`Sequence[dict]`, *optional*): of each group of all rounds, what was believed of its prompt.
        tokens (`Sequence[int]`), truncated (`Sequence[bool]`), calls (`Sequence[int | None]`), *optional*:
            `(N,)`; calls are the stretches that a tool or an environment wrote, `None` where there is none to call.
        rows (`Sequence[dict]`), *optional*:
            Lines of a trace of some groups or none, but of whole ones. See [`complete`].
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
    rows: Sequence[Row] = ()

    @property
    def rewards(self) -> Tensor:
        """`(N, K)`, NaN where unscored."""
        return torch.cat([one.rewards for one in self.rounds])

    @property
    def verdicts(self) -> tuple[str, ...]:
        """`(N / size,)`."""
        return tuple(verdict for one in self.rounds for verdict in one.verdicts)


class Details(NamedTuple):
    """What only the rank that sampled an attempt knows of it, as plain data."""

    prompt: Any
    completion: Any
    reference: dict[str, Any]
    outcomes: tuple[str | None, ...]
    extra: dict[str, Any]
    steps: Sequence[list[tuple[int, float]] | None]


class Part(NamedTuple):
    """What one rank adds to a batch. Lengths are lists, one a round."""

    details: dict[Place, list[Details]]  # of its attempts in the groups to be traced
    tokens: list[list[int]]
    truncated: list[list[bool]]
    calls: list[list[int | None]]
    runs: dict[int, Runs]  # advantages of tokens, by row of the plan
    thumbnails: dict[str, bytes]  # of its pictures that it has not sent before, by what lines say of them


def pick(rounds: Sequence[Round], limit: int | None) -> list[Place]:
    """Return which groups to trace, in order: all, or `limit` of them, every verdict in turn."""
    places = [(r, group) for r, one in enumerate(rounds) for group in range(len(one.verdicts))]
    if limit is None or limit >= len(places):
        return places
    seen = dict.fromkeys(VERDICTS, 0)
    ranked = []
    for r, group in places:
        verdict = rounds[r].verdicts[group]
        ranked.append((seen[verdict], (r, group)))
        seen[verdict] += 1
    return sorted(place for _, place in sorted(ranked)[:limit])


def part_of(rank: int, sampled: Sampled, places: Iterable[Place], small: Thumbnails | None = None) -> Part:
    """Return what a rank adds to a batch of which the groups at `places` are traced."""
    details: dict[Place, list[Details]] = {}
    thumbnails: dict[str, bytes] = {}
    for r, group in places:
        attempts = sampled.rounds[r].attempts
        start = group * sampled.size - rank * len(attempts)  # a group's attempts may be those of several ranks
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
    """Return how often tokens that are not the policy's begin."""
    return None if mask is None else sum(own < before for before, own in pairwise((1, *mask)))


def _runs(rank: int, sampled: Sampled, places: Iterable[Place]) -> dict[int, Runs]:
    """Return the token advantages of this rank's rows, in the groups to be traced."""
    if sampled.by_token is None:
        return {}
    traced, rows = set(places), len(sampled.by_token.attempts)
    order, first = sampled.plan.order, rank * rows
    own = [row for row in range(rows) if order[(first + row) // sampled.size] in traced]
    return {first + row: of_row for row, of_row in sampled.by_token.runs(own).items()}


def complete(sampled: Sampled, places: Iterable[Place], parts: Sequence[Part], batch: int = 0) -> Sampled:
    """Return the batch with `parts`, what all ranks add, in order: its lengths, and the lines of the groups at
    `places`.

    `batch` is its number among those of its split and step.
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
    return replace(sampled, rows=_lines(sampled, details, runs, batch))


def _details(attempts: Iterable[Attempt], alike: bool) -> Iterator[Details]:
    """Yield the details of sibling attempts."""
    reference = prompt = None
    for attempt in attempts:
        if reference is None or not alike:
            reference = plain({k: value for k, value in attempt.inputs.items() if k not in _SHOWN_ELSEWHERE})
            prompt = plain(attempt.prompt)
        logged = plain(attempt.logged) if attempt.logged else {}
        steps = [None if one is None else [(step.end, step.reward) for step in one] for one in attempt.steps]
        yield Details(prompt, plain(attempt.completion), reference, attempt.outcomes, logged, steps)


def _lines(sampled: Sampled, details: dict[Place, list[Details]], runs: dict[int, Runs], batch: int) -> list[Row]:
    """One dict an attempt, in order."""
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
        for attempt, known in enumerate(of_group):
            row, line = first + attempt, line.copy()
            # By name and one by one, which is a third faster than all at once.
            line["prompt"], line["completion"], line["reference"], outcomes, line["extra"], steps = known
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
    """As JSON lines in UTF-8."""
    return b"".join([_line(row) for row in rows])


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: a number that is not finite becomes `None`, a picture its mode, size and digest,
    what is no data a short text.
    """
    if type(value) in _ATOMS:
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return finite_or_none(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # arrays, tensors and their numbers
        listed = value.tolist()
        if type(listed) is not type(value):
            return plain(listed)
    if is_picture(value):
        return told(value)
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _line(row: Row) -> bytes:
    try:
        return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # lone surrogates, which some tokenizers yield: as escapes. Or integers beyond 64 bits.
        text = json.dumps(row, ensure_ascii=False, allow_nan=False)
        return f"{text}\n".encode("utf-8", "backslashreplace")


def _numbers(values: Tensor) -> list[Any]:
    """As (nested) lists, `None` for what is not finite. Scores come in float32: rounded, 0.3 is 0.3 again."""
    values = values.cpu().double()  # in this order: not every device has float64
    rounded = values.round(decimals=7).tolist()
    return rounded if values.isfinite().all() else plain(rounded)


def _outcomes(known: Sequence[str | None], scores: Sequence[float | None]) -> Sequence[str | None]:
    """Return the outcome of each reward: the recorded one, or the one that follows from its score."""
    if known and None not in known:
        return known
    known = known or [None] * len(scores)
    return [status or ("abstain" if score is None else "ok") for status, score in zip(known, scores, strict=True)]


def _reason(at: int | None, live: bool, verdict: str, dead: bool) -> str | None:
    if verdict == "truncated":  # in the batch or not
        return "truncated"
    if live:
        return None
    if at is not None:
        return "filler"
    return "zero_variance" if dead else "surplus"
