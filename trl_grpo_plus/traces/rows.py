"""Makes the lines of a trace: what each rank knows of its attempts, joined with the numbers that all ranks know.

A batch may hold thousands of attempts and a step little else, so this is written for speed: one dict an attempt, what
siblings share worked out once.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from torch import Tensor

from ..groups import VERDICTS, Attempt, Plan, Round


Row = dict[str, Any]
Said = tuple[Any, ...]  # prompt, completion, reference, outcomes, tokens, truncated, extra

PLACE = ("step", "split", "batch", "round", "group", "attempt", "size")
WRITTEN = ("prompt", "completion", "reference", "rewards", "outcomes", "reward", "advantage", "verdict")
KEYS = (*PLACE, *WRITTEN, "kept", "reason", "tokens", "truncated", "kl", "extra", "alarms")
_ATOMS = (str, int, bool, type(None))
_SHOWN_ELSEWHERE = ("prompt", "image", "images")  # of a row's columns; TRL's messages have the images in them


@dataclass(frozen=True)
class Scored:
    """A batch in numbers, the same on all ranks.

    Args:
        rounds (`Sequence[Round]`): what was sampled.
        plan (`Plan`): which groups make up the batch that is trained on.
        totals (`Sequence[Tensor]`): for each round `(rows,)`, NaN where nobody scored.
        advantages (`Tensor`), kl (`Tensor`, *optional*): `(rows of the plan,)`.
        size (`int`): attempts in a group.
    """

    rounds: Sequence[Round]
    plan: Plan
    totals: Sequence[Tensor]
    advantages: Tensor
    kl: Tensor | None
    size: int


def pick(rounds: Sequence[Round], limit: int | None) -> list[list[int]]:
    """Which groups of each round to trace: all, or `limit` of them, every verdict in turn."""
    everyone = [(r, group) for r, sampled in enumerate(rounds) for group in range(len(sampled.verdicts))]
    if limit is not None and limit < len(everyone):
        seen = dict.fromkeys(VERDICTS, 0)
        ranked = []
        for r, group in everyone:
            verdict = rounds[r].verdicts[group]
            ranked.append((seen[verdict], (r, group)))
            seen[verdict] += 1
        everyone = sorted(place for _, place in sorted(ranked)[:limit])
    return [[group for at, group in everyone if at == r] for r in range(len(rounds))]


def said(attempts: Sequence[Attempt], rows: Iterable[int], first: int, size: int, alike: bool) -> dict[int, Said]:
    """What the rank that sampled some attempts knows of them.

    Args:
        attempts (`Sequence[Attempt]`): this rank's of one round.
        rows (`Iterable[int]`): which to tell of, as rows of the round.
        first (`int`): row of the first of `attempts`.
        size (`int`): attempts in a group.
        alike (`bool`): whether siblings are of one row of the dataset, to which nothing was added.

    Returns:
        `dict[int, tuple]`: by row of the round, what [`lines`] needs, as plain data.
    """
    told = {}
    of, reference = -1, {}
    for row in rows:
        attempt = attempts[row - first]
        if not alike or row // size != of:
            of = row // size
            reference = plain({k: value for k, value in attempt.inputs.items() if k not in _SHOWN_ELSEWHERE})
        prompt, completion = attempt.prompt, attempt.completion
        told[row] = (
            prompt if type(prompt) is str else plain(prompt),
            completion if type(completion) is str else plain(completion),
            reference,
            attempt.outcomes,
            attempt.num_tokens,
            attempt.truncated,
            plain(attempt.logged) if attempt.logged else {},
        )
    return told


def lines(
    scored: Scored,
    told: Sequence[dict[int, Said]],
    chosen: Sequence[Sequence[int]],
    names: Sequence[str],
    step: int,
    split: str,
    batch: int = 0,
) -> list[Row]:
    """One dict an attempt, in order.

    Args:
        scored (`Scored`): the batch in numbers.
        told (`Sequence[dict]`): of each round, what all ranks [`said`].
        chosen (`Sequence[Sequence[int]]`): of each round, which groups.
        names (`Sequence[str]`): of the K rewards.
        step (`int`), split (`str`), batch (`int`): as in each line.
    """
    places = {place: at for at, place in enumerate(scored.plan.order)}
    advantages = _numbers(scored.advantages)
    kl = _numbers(scored.kl) if scored.kl is not None else None
    written = []
    for r, groups in enumerate(chosen):
        rewards, totals = _numbers(scored.rounds[r].rewards), _numbers(scored.totals[r])
        for group in groups:
            place, verdict = places.get((r, group)), scored.rounds[r].verdicts[group]
            live = place is not None and scored.plan.live[place]
            line = dict.fromkeys(KEYS)
            line |= {"step": step, "split": split, "batch": batch, "round": r, "group": group, "size": scored.size}
            line |= {"verdict": verdict, "advantage": None if verdict == "alive" else 0.0}
            line["reason"] = "evaluation" if split != "train" else _reason(place, live, verdict)
            line["kept"] = line["reason"] is None
            for attempt in range(scored.size):
                row, line = group * scored.size + attempt, line.copy()
                # In the order of `said`; by name and one by one, which is a third faster than all at once.
                line["prompt"], line["completion"], line["reference"], outcomes, *rest = told[r][row]
                line["tokens"], line["truncated"], line["extra"] = rest
                line["attempt"] = attempt
                line["rewards"] = dict(zip(names, rewards[row]))  # noqa: B905
                line["outcomes"] = dict(zip(names, _outcomes(outcomes, rewards[row])))  # noqa: B905
                line["reward"] = totals[row]
                line["alarms"] = []
                if place is not None:
                    line["advantage"] = advantages[place * scored.size + attempt]
                    line["kl"] = kl[place * scored.size + attempt] if kl is not None and live else None
                written.append(line)
    return written


def to_lines(rows: Iterable[Row]) -> bytes:
    """As JSON lines in UTF-8."""
    return b"".join([_line(row) for row in rows])


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: a number that is not finite becomes `None`, what is no data a short text."""
    if type(value) in _ATOMS:
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # arrays, tensors and their numbers
        listed = value.tolist()
        if type(listed) is not type(value):
            return plain(listed)
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _line(row: Row) -> bytes:
    try:
        return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # lone surrogates, which some tokenizers yield: as escapes. Or integers beyond 64 bits.
        text = json.dumps(row, ensure_ascii=False, allow_nan=False)
        return f"{text}\n".encode("utf-8", "backslashreplace")


def _numbers(values: Tensor) -> list:
    """As (nested) lists, `None` for what is not finite. Scores come in float32: rounded, 0.3 is 0.3 again."""
    values = values.cpu().double()  # in this order: not every device has float64
    rounded = values.round(decimals=7).tolist()
    return rounded if values.isfinite().all() else plain(rounded)


def _outcomes(told: Sequence[str | None], scores: Sequence[float | None]) -> Sequence[str | None]:
    if told and None not in told:
        return told
    told = told or [None] * len(scores)
    return [status or ("abstain" if score is None else "ok") for status, score in zip(told, scores, strict=True)]


def _reason(place: int | None, live: bool, verdict: str) -> str | None:
    if verdict == "truncated":  # in the batch or not
        return "truncated"
    if live:
        return None
    if place is not None:
        return "filler"
    return "surplus" if verdict == "alive" else "zero_variance"
