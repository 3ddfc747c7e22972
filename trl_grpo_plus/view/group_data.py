"""What a page shows of a run: each group's line in the list and its texts, the curves, the alarms.

All of it plain data for `viewer/*.js`. Positions in texts are in UTF-16 units, as JavaScript counts.
"""

import hashlib
import json
import math
from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..rollouts.verdicts import VERDICTS
from ..traces import Row, evaluated, named_in
from ..utils.text import as_text, find_answer
from ..utils.validation import finite_or_none
from . import calibration
from .token_credit import credit, utf16
from .tool_calls import calls, roles


# title -> the metric that the trainer logs, and the key of a row to average where it was not logged
_CURVES = {
    "reward": ("reward", "reward"),
    "KL": ("kl", "kl"),
    "entropy": ("entropy", None),
    "tokens": ("completions/mean_length", "tokens"),
}
_found_answer = lru_cache(maxsize=256)(find_answer)  # a group's line and its texts ask for the same


def best_first(rows: Sequence[Row]) -> list[Row]:
    """Return a group's attempts by advantage, then by reward, the best first; those without one come last.

    Example:
        >>> [row["attempt"] for row in best_first([{"attempt": 0, "reward": None}, {"attempt": 1, "reward": 0.5}])]
        [1, 0]
    """

    def key(row: Row) -> tuple[Any, ...]:
        values = [finite_or_none(row.get(name)) for name in ("advantage", "reward")]
        return *((value is None, -(value or 0.0)) for value in values), row.get("attempt", 0)

    return sorted(rows, key=key)


def entry(rows: Sequence[Row], named: Iterable[str] = ()) -> dict[str, Any]:
    """Return a group's line in the list.

    Args:
        rows (`Sequence[dict]`): its attempts.
        named (`Iterable[str]`, *optional*): alarms that name it, besides those its rows hold.
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
        "belief": calibration.believed(rows),
        "tokens": _mean_length(rows),
        "entropy": _entropy_of_answers(rows),
        "rewards": [finite_or_none(row.get("reward")) for row in best_first(rows)],
    }


def detail(rows: Sequence[Row], folder: Path | None = None) -> dict[str, Any]:
    """Return a group's texts: the prompt and the reference once, and its attempts, the best first. With the `folder`
    of the traces also the thumbnails of the pictures that they name, as addresses.
    """
    prompt, attempts = _messages(rows[0]["prompt"]), [_attempt(row) for row in best_first(rows)]
    named = named_in(folder, [_told(prompt), *(attempt["text"] for attempt in attempts)])
    small = {name: f"data:image/webp;base64,{b64encode(data).decode()}" for name, data in named}
    return {
        "prompt": prompt,
        "reference": _pairs(rows[0].get("reference")),
        "attempts": attempts,
        **({"thumbnails": small} if small else {}),
    }


def _attempt(row: Row) -> dict[str, Any]:
    messages = _messages(row["completion"])
    text = _told(messages)
    answer = _found_answer(text)
    outcomes = row.get("outcomes") or {}
    return {
        "attempt": row["attempt"],
        "text": text,
        "roles": roles(row["completion"], messages) if len(messages) > 1 else [],
        "answer": [utf16(text[:end]) for end in answer] if answer else None,
        "parts": [
            [name, finite_or_none(score), outcomes.get(name)] for name, score in (row.get("rewards") or {}).items()
        ],
        **{key: finite_or_none(row.get(key)) for key in ("reward", "advantage", "tokens", "kl")},
        "truncated": row.get("truncated"),
        "extra": _pairs(row.get("extra")),
        **credit(row),
        **({"calls": called} if (called := calls(row["completion"])) else {}),
    }


def columns(
    entries: Iterable[dict[str, Any]], words: dict[str, int] | None = None, prompts: dict[str, int] | None = None
) -> dict[str, Any]:
    """Lines of the list turned into columns; words that recur (splits, verdicts, alarms) become numbers,
    and so do prompts. Those that have numbers already, from lines before, may be given; new ones are added.
    """
    words = {} if words is None else words
    prompts = {} if prompts is None else prompts
    coded = ("split", "verdict", "reason")
    names = (*coded, "step", "batch", "round", "group", "kept", "title", "belief", "tokens", "entropy")
    table: dict[str, list[Any]] = {name: [] for name in (*names, "prompt", "size", "alarms")}
    rewards: list[float | None] = []

    def code(word: str | None) -> int:
        return -1 if word is None else words.setdefault(word, len(words))

    for line in entries:
        for name in names:
            table[name].append(code(line[name]) if name in coded else line[name])
        table["prompt"].append(prompts.setdefault(line["prompt"], len(prompts)))
        for name in ("differs", "turned"):  # of a reward that was tried
            if name in line:
                table.setdefault(name, []).append(line[name])
        table["size"].append(len(line["rewards"]))
        table["alarms"].append([code(name) for name in line["alarms"]])
        rewards += line["rewards"]
    return {"words": list(words), "groups": table, "rewards": rewards}


# -- curves and alarms


class Tally:
    """Sums of what the curves need, by split and step."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, int, str], list[float]] = defaultdict(lambda: [0.0, 0])
        self._verdicts: dict[int, Counter[str]] = defaultdict(Counter)
        self.beliefs: list[calibration.Pair] = []

    def see(self, rows: Sequence[Row]) -> None:
        """Count a group."""
        split, step = rows[0]["split"], rows[0]["step"]
        for row in rows:
            for key in ("reward", "kl", "tokens"):
                if (value := finite_or_none(row.get(key))) is not None:
                    total = self._sums[split, step, key]
                    total[0] += value
                    total[1] += 1
        if split == "train" and rows[0].get("verdict"):
            self._verdicts[step][rows[0]["verdict"]] += 1
        if (belief := calibration.believed(rows)) and belief[3] is not None:
            self.beliefs.append((step, belief[0], belief[3]))

    def means(self, split: str, key: str) -> list[list[float]]:
        """[step, mean] of a key of the rows."""
        return [[step, total / n] for (s, step, k), (total, n) in sorted(self._sums.items()) if (s, k) == (split, key)]

    def shares(self, verdict: str) -> list[list[float]]:
        """[step, share of the groups with that verdict]."""
        return [[step, counts[verdict] / counts.total()] for step, counts in sorted(self._verdicts.items())]

    @property
    def evaluations(self) -> list[str]:
        """Splits other than "train"."""
        return sorted({split for split, _, _ in self._sums} - {"train"})


def curves(metrics: Sequence[dict[str, Any]], tally: Tally) -> list[dict[str, Any]]:
    """Return what to draw over the steps: logged metrics, or means over the traced attempts where nothing was logged.

    `offset` is 1 where a point at step n is about attempts of step n - 1: the trainer logs after the step.
    """
    drawn = [_curve(title, metric, key, metrics, tally) for title, (metric, key) in _CURVES.items()]
    drawn[0]["series"] += _evaluations(metrics, tally)
    drawn.insert(1, _shares(metrics, tally))
    return [curve for curve in drawn if curve["series"]]


def _curve(title: str, metric: str, key: str | None, metrics: Sequence[Row], tally: Tally) -> dict[str, Any]:
    points = _logged(metrics, metric)
    offset = int(bool(points))
    points = points or (tally.means("train", key) if key else [])
    return {"title": title, "offset": offset, "series": [{"name": "train", "points": thin(points)}] if points else []}


def _evaluations(metrics: Sequence[Row], tally: Tally) -> list[dict[str, Any]]:
    series: dict[str, list[list[float]]] = defaultdict(list)
    for line in metrics:
        if (evaluation := evaluated(line)) is not None:
            split, reward = evaluation
            series[split].append([line["step"], reward])
    series = dict(sorted(series.items())) or {split: tally.means(split, "reward") for split in tally.evaluations}
    return [{"name": name, "points": thin(points)} for name, points in series.items() if points]


def _shares(metrics: Sequence[Row], tally: Tally) -> dict[str, Any]:
    logged = {verdict: _logged(metrics, f"groups/{verdict}") for verdict in VERDICTS}
    offset = int(any(logged.values()))
    series = logged if offset else {verdict: tally.shares(verdict) for verdict in VERDICTS}
    filled = [{"name": name, "points": thin(points)} for name, points in series.items() if points]
    return {"title": "verdicts", "offset": offset, "stacked": True, "series": filled}


def _logged(metrics: Sequence[Row], name: str) -> list[list[float]]:
    return [[line["step"], value] for line in metrics if (value := finite_or_none(line.get(name))) is not None]


def thin(items: Sequence[Any], most: int = 1500) -> list[Any]:
    """At most so many of `items`, evenly spread, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def by_name(alarms: Sequence[Row], most: int = 200) -> list[dict[str, Any]]:
    """Alarms of one name together, in the order in which each first came on."""
    names = dict.fromkeys(alarm["name"] for alarm in alarms)
    together = {name: [alarm for alarm in alarms if alarm["name"] == name] for name in names}
    return [
        {
            "name": name,
            "count": len(those),
            "times": [
                {"step": a["step"], "message": a.get("message", ""), "groups": a.get("groups") or []}
                for a in thin(those, most)
            ],
        }
        for name, those in together.items()
    ]


def names_by_group(alarms: Sequence[Row]) -> dict[tuple[int, ...], set[str]]:
    """(step, batch, round, group) of the training -> alarms that name it."""
    named: dict[tuple[int, ...], set[str]] = defaultdict(set)
    for alarm in alarms:
        for group in alarm.get("groups") or ():
            named[(alarm["step"], *group)].add(alarm["name"])
    return dict(named)


# -- values


def _trained_on(rows: Sequence[Row]) -> int | None:
    """1 or 0, `None` where that is not known."""
    return int(any(row["kept"] for row in rows)) if rows[0].get("kept") is not None else None


def _entropy_of_answers(rows: Sequence[Row]) -> float | None:
    """In bits: 0 where all attempts give one answer, 1 where two are given as often, log2 of the attempts where each
    gives its own. A text in which no answer is found is its own answer; of one attempt alone there is none.
    """
    if len(rows) < 2:
        return None
    answers = Counter(_answer(_told(_messages(row["completion"]))) for row in rows)
    return round(sum(count / len(rows) * math.log2(len(rows) / count) for count in answers.values()), 3)


def _answer(text: str) -> str:
    answer = _found_answer(text)
    return text[slice(*answer)].strip() if answer else text.strip()


def _mean_length(rows: Sequence[Row]) -> float | None:
    known = [value for row in rows if (value := finite_or_none(row.get("tokens"))) is not None]
    return round(sum(known) / len(known), 1) if known else None


def _text(messages: Any) -> str:
    try:
        return as_text(messages)
    except (AttributeError, TypeError):  # neither a text nor messages
        return _shown(messages)


def _messages(value: Any) -> list[list[Any]]:
    """[role or null, text] of each message; joined by newlines they are `as_text` of all."""
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        return [[None, _text(value)]]
    return [[role if isinstance(role := message.get("role"), str) else None, _text([message])] for message in value]


def _told(messages: Sequence[Sequence[Any]]) -> str:
    return "\n".join(part for _, part in messages)


def _title(prompt: Any) -> str:
    """First line that says something, of the last message of the user."""
    messages = _messages(prompt)
    text = next((text for role, text in reversed(messages) if role == "user"), messages[-1][1] if messages else "")
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:160]


def _identity(row: Row) -> str:
    """Return the same for groups of one row of the dataset."""
    text = json.dumps([row["prompt"], row.get("reference")], default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _pairs(values: Any) -> list[list[str]]:
    return [[str(key), _shown(value)] for key, value in (values or {}).items()]


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
