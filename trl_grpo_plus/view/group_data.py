"""A page's data about a run: each group's line in the list, each group's texts, the curves, and the alarms.

All of it is plain data for `viewer/*.js`. Positions in texts are in UTF-16 units, as JavaScript counts.
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


# title -> the metric that the trainer logs, and the row key to average if the metric was not logged
_CURVES = {
    "reward": ("reward", "reward"),
    "KL": ("kl", "kl"),
    "entropy": ("entropy", None),
    "tokens": ("completions/mean_length", "tokens"),
}
_found_answer = lru_cache(maxsize=256)(find_answer)  # a group's line and its texts search the same text


def best_first(rows: Sequence[Row]) -> list[Row]:
    """Sort a group's attempts by advantage, then by reward, the best first; attempts without a value come last.

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
        "belief": calibration.believed(rows),
        "tokens": _mean_length(rows),
        "entropy": _entropy_of_answers(rows),
        "rewards": [finite_or_none(row.get("reward")) for row in best_first(rows)],
    }


def detail(rows: Sequence[Row], folder: Path | None = None) -> dict[str, Any]:
    """Return a group's texts: the prompt and the reference once, and the attempts, the best first.

    With the `folder` of the traces, also return the thumbnails of the pictures that the texts name, as data URLs.
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
    """Turn the lines of the list into columns.

    Words that recur (splits, verdicts, reasons, alarms) become numbers, and so do prompts. `words` and `prompts` may
    hold numbers given to earlier lines; new words and prompts are added to them.
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
        for name in ("differs", "turned"):  # only in the lines of rescored groups
            if name in line:
                table.setdefault(name, []).append(line[name])
        table["size"].append(len(line["rewards"]))
        table["alarms"].append([code(name) for name in line["alarms"]])
        rewards += line["rewards"]
    return {"words": list(words), "groups": table, "rewards": rewards}


# -- curves and alarms


class Tally:
    """The sums that the curves need, by split and step."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, int, str], list[float]] = defaultdict(lambda: [0.0, 0])
        self._verdicts: dict[int, Counter[str]] = defaultdict(Counter)
        self.beliefs: list[calibration.Pair] = []

    def see(self, rows: Sequence[Row]) -> None:
        """Add a group to the sums."""
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
        """Return [step, mean] of a row key for each step of a split."""
        return [[step, total / n] for (s, step, k), (total, n) in sorted(self._sums.items()) if (s, k) == (split, key)]

    def shares(self, verdict: str) -> list[list[float]]:
        """Return [step, share of the groups with the verdict] for each training step."""
        return [[step, counts[verdict] / counts.total()] for step, counts in sorted(self._verdicts.items())]

    @property
    def evaluations(self) -> list[str]:
        """The splits other than "train"."""
        return sorted({split for split, _, _ in self._sums} - {"train"})


def curves(metrics: Sequence[dict[str, Any]], tally: Tally, step_shift: int = 1) -> list[dict[str, Any]]:
    """Return the curves over the logged steps: logged metrics, or means over the traced attempts if none were logged.

    `step_shift` is added to the step of a training batch's trace, which gives the step at which the batch is logged.
    """
    drawn = [_curve(title, metric, key, metrics, tally, step_shift) for title, (metric, key) in _CURVES.items()]
    drawn[0]["series"] += _evaluations(metrics, tally)
    drawn.insert(1, _shares(metrics, tally, step_shift))
    return [curve for curve in drawn if curve["series"]]


def _curve(
    title: str, metric: str, key: str | None, metrics: Sequence[Row], tally: Tally, step_shift: int
) -> dict[str, Any]:
    points = _logged(metrics, metric) or (_shifted(tally.means("train", key), step_shift) if key else [])
    return {"title": title, "series": [{"name": "train", "points": thin(points)}] if points else []}


def _shifted(points: list[list[float]], step_shift: int) -> list[list[float]]:
    return [[step + step_shift, value] for step, value in points]


def _evaluations(metrics: Sequence[Row], tally: Tally) -> list[dict[str, Any]]:
    series: dict[str, list[list[float]]] = defaultdict(list)
    for line in metrics:
        if (evaluation := evaluated(line)) is not None:
            split, reward = evaluation
            series[split].append([line["step"], reward])
    series = dict(sorted(series.items())) or {split: tally.means(split, "reward") for split in tally.evaluations}
    return [{"name": name, "points": thin(points)} for name, points in series.items() if points]


def _shares(metrics: Sequence[Row], tally: Tally, step_shift: int) -> dict[str, Any]:
    logged = {verdict: _logged(metrics, f"groups/{verdict}") for verdict in VERDICTS}
    traced = {verdict: _shifted(tally.shares(verdict), step_shift) for verdict in VERDICTS}
    series = logged if any(logged.values()) else traced
    filled = [{"name": name, "points": thin(points)} for name, points in series.items() if points]
    return {"title": "verdicts", "stacked": True, "series": filled}


def _logged(metrics: Sequence[Row], name: str) -> list[list[float]]:
    return [[line["step"], value] for line in metrics if (value := finite_or_none(line.get(name))) is not None]


def thin(items: Sequence[Any], most: int = 1500) -> list[Any]:
    """Return at most `most` of the items, evenly spread, the first and the last included."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def by_name(alarms: Sequence[Row], most: int = 200) -> list[dict[str, Any]]:
    """Collect the alarms by name, in the order in which each name first came on; keep at most `most` times each."""
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
    """Map each training group's (step, batch, round, group) to the names of the alarms that name the group."""
    named: dict[tuple[int, ...], set[str]] = defaultdict(set)
    for alarm in alarms:
        for group in alarm.get("groups") or ():
            named[(alarm["step"], *group)].add(alarm["name"])
    return dict(named)


# -- values


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
    """Return `[role or None, text]` of each message. The texts joined by newlines equal `as_text` of all messages."""
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        return [[None, _text(value)]]
    return [[role if isinstance(role := message.get("role"), str) else None, _text([message])] for message in value]


def _told(messages: Sequence[Sequence[Any]]) -> str:
    return "\n".join(part for _, part in messages)


def _title(prompt: Any) -> str:
    """Return the first non-blank line of the user's last message, cut to 160 characters."""
    messages = _messages(prompt)
    text = next((text for role, text in reversed(messages) if role == "user"), messages[-1][1] if messages else "")
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:160]


def _identity(row: Row) -> str:
    """Return a hash of a row's prompt and reference, equal for all groups of one dataset row."""
    text = json.dumps([row["prompt"], row.get("reference")], default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _pairs(values: Any) -> list[list[str]]:
    return [[str(key), _shown(value)] for key, value in (values or {}).items()]


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
