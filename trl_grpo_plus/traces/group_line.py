"""A group's line in the list of a page: what a reader sees of the group before its texts.

The writer keeps these lines in the index of a run, so that a page of a long run need not read the texts.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from ..utils.text import as_text, find_answer
from ..utils.validation import finite_or_none, finite_values
from .schema import Row


TITLE_CHARS = 160

answer_place = lru_cache(maxsize=256)(find_answer)  # a group's line and its texts search the same text


def best_first(rows: Sequence[Row]) -> list[Row]:
    """Sort a group's attempts by advantage, then by reward, the best first; attempts without a value come last.

    If advantages differ between the tokens of an attempt, the reward comes first: a row's `advantage` is then that of
    the first token.

    Example:
        >>> [row["attempt"] for row in best_first([{"attempt": 0, "reward": None}, {"attempt": 1, "reward": 0.5}])]
        [1, 0]
    """
    names = ("reward", "advantage") if any(row.get("advantages") for row in rows) else ("advantage", "reward")

    def key(row: Row) -> tuple[Any, ...]:
        """Return what the attempts of a group are sorted by."""
        values = [finite_or_none(row.get(name)) for name in names]
        return *((value is None, -(value or 0.0)) for value in values), row.get("attempt", 0)

    return sorted(rows, key=key)


def entry(rows: Sequence[Row], named: Iterable[str] = ()) -> dict[str, Any]:
    """Return a group's line in the list.

    Args:
        rows (`Sequence[dict]`): the group's attempts.
        named (`Iterable[str]`, *optional*): alarms that name the group, besides the alarms that its rows hold.
    """
    first = rows[0]
    return {
        **{key: first[key] for key in ("split", "step", "batch", "round", "group")},
        "verdict": first.get("verdict"),
        "kept": _trained_on(rows),
        "reason": first.get("reason"),
        "alarms": sorted({name for row in rows for name in row.get("alarms") or ()} | set(named)),
        "title": _title(first["prompt"]),
        "prompt": _identity(first),
        "belief": believed(rows),
        "tokens": _mean_length(rows),
        "entropy": _entropy_of_answers(rows),
        "rewards": [finite_or_none(row.get("reward")) for row in best_first(rows)],
    }


def believed(rows: Sequence[Row]) -> list[Any] | None:
    """Return the belief about a group's prompt and the mean reward that the group earned.

    Returns:
        `list`: the believed mean, std and attempts, then the earned mean of the same reward, then that reward's name
        if it is not the total. `None` if there was no belief.

    Example:
        >>> belief = {"mean": 0.4, "std": 0.49, "attempts": 3.5}
        >>> believed([{"reward": 1.0, "belief": belief}, {"reward": 0.0, "belief": belief}])
        [0.4, 0.49, 3.5, 0.5]
    """
    belief = rows[0].get("belief")
    if not isinstance(belief, dict) or finite_or_none(belief.get("mean")) is None:
        return None
    of = belief.get("of")
    rewards = [
        finite_or_none(row.get("reward") if of is None else (row.get("rewards") or {}).get(str(of))) for row in rows
    ]
    scored = [reward for reward in rewards if reward is not None]
    earned = sum(scored) / len(scored) if scored else None
    values = [*(finite_or_none(belief.get(key)) for key in ("mean", "std", "attempts")), earned]
    return values if of is None else [*values, str(of)]


def messages_of(value: Any) -> list[list[Any]]:
    """Return `[role or None, text]` of each message. The texts joined by newlines equal `as_text` of all messages."""
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        return [[None, _text(value)]]
    return [[role if isinstance(role := message.get("role"), str) else None, _text([message])] for message in value]


def joined(messages: Sequence[Sequence[Any]]) -> str:
    """Return the texts of [`messages_of`] as one text."""
    return "\n".join(part for _, part in messages)


def shown(value: Any) -> str:
    """Return a text as it is, and another value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _trained_on(rows: Sequence[Row]) -> int | None:
    """Return 1 if any attempt was kept for training, 0 if none was, `None` if this is not known."""
    return int(any(row["kept"] for row in rows)) if rows[0].get("kept") is not None else None


def _entropy_of_answers(rows: Sequence[Row]) -> float | None:
    """Return the entropy of the attempts' answers, in bits; `None` for fewer than two attempts.

    The entropy is 0 if all attempts give the same answer, 1 if two answers are given equally often, and log2 of the
    number of attempts if all answers differ. If no answer is found in a text, the whole text is the answer.
    """
    if len(rows) < 2:
        return None
    answers = Counter(_answer(joined(messages_of(row["completion"]))) for row in rows)
    return round(sum(count / len(rows) * math.log2(len(rows) / count) for count in answers.values()), 3)


def _answer(text: str) -> str:
    answer = answer_place(text)
    return text[slice(*answer)].strip() if answer else text.strip()


def _mean_length(rows: Sequence[Row]) -> float | None:
    lengths = finite_values(rows, "tokens")
    return round(sum(lengths) / len(lengths), 1) if lengths else None


def _text(messages: Any) -> str:
    try:
        return as_text(messages)
    except (AttributeError, TypeError):  # neither a text nor messages
        return shown(messages)


def _title(prompt: Any) -> str:
    """Return the first non-blank line of the user's last message, cut to 160 characters."""
    messages = messages_of(prompt)
    text = next((text for role, text in reversed(messages) if role == "user"), messages[-1][1] if messages else "")
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= TITLE_CHARS else f"{line[: TITLE_CHARS - 1].rstrip()}…"


def _identity(row: Row) -> str:
    """Return a hash of a row's prompt and reference, equal for all groups of one dataset row."""
    text = json.dumps([row["prompt"], row.get("reference")], default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
