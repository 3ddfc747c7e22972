"""A page's data about a run: each group's line in the list, each group's texts, the curves, and the alarms.

All of it is plain data for `viewer/*.js`. Positions in texts are in UTF-16 units, as JavaScript counts.
"""

from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..rollouts.verdicts import VERDICTS
from ..traces import Block, Row, answer_place, best_first, evaluations, joined, messages_of, named_in, shown
from ..utils.validation import finite_or_none
from .token_credit import credit, utf16
from .tool_calls import calls, roles


# title -> the metric that the trainer logs, and the row key to average if the metric was not logged
_CURVES = {
    "reward": ("reward", "reward"),
    "KL": ("kl", "kl"),
    "entropy": ("entropy", None),
    "tokens": ("completions/mean_length", "tokens"),
}


def detail(rows: Sequence[Row], folder: Path | None = None) -> dict[str, Any]:
    """Return a group's texts: the prompt and the reference once, and the attempts, the best first.

    With the `folder` of the traces, also return the thumbnails of the pictures that the texts name, as data URLs.
    """
    prompt, attempts = messages_of(rows[0]["prompt"]), [_attempt(row) for row in best_first(rows)]
    named = named_in(folder, [joined(prompt), *(attempt["text"] for attempt in attempts)])
    small = {name: f"data:image/webp;base64,{b64encode(data).decode()}" for name, data in named}
    return {
        "prompt": prompt,
        "reference": _pairs(rows[0].get("reference")),
        "attempts": attempts,
        **({"thumbnails": small} if small else {}),
    }


def searched(rows: Sequence[Row]) -> list[str]:
    """Return the texts of a group that a search reads: those of [`detail`], which the page's `textsOf` finds there."""
    return [
        *(text for _, text in messages_of(rows[0]["prompt"])),
        *(text for _, text in _pairs(rows[0].get("reference"))),
        *(joined(messages_of(row["completion"])) for row in rows),
    ]


def _attempt(row: Row) -> dict[str, Any]:
    messages = messages_of(row["completion"])
    text = joined(messages)
    answer = answer_place(text)
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
        # Step, mean believed and mean earned of the groups of each block.
        self._believed = [(np.zeros(0, int), np.zeros(0), np.zeros(0))]

    def add(self, block: Block) -> None:
        """Add all groups of a block of the index to the sums."""
        (step, split), records = block.place, block.records
        scored = block.rewards[~np.isnan(block.rewards)]
        sums = {"reward": (scored.sum(), len(scored))}
        sums |= {key: (records[f"{key}_sum"].sum(), records[f"{key}_count"].sum()) for key in ("kl", "tokens")}
        for key, (total, count) in sums.items():
            if count:
                of_step = self._sums[split, step, key]
                of_step[0] += float(total)
                of_step[1] += int(count)
        if split == "train":
            for code, count in Counter(records["verdict"].tolist()).items():
                if code >= 0 and block.words[code]:
                    self._verdicts[step][block.words[code]] += count
        has_belief = ~np.isnan(records["mean"]) & ~np.isnan(records["earned"])
        self._believed.append(
            (np.full(has_belief.sum(), step), *(records[name][has_belief] for name in ("mean", "earned")))
        )

    @property
    def beliefs(self) -> tuple[Any, Any, Any]:
        """Step, mean believed and mean earned of each group that had a belief, as arrays."""
        steps, means, earned = zip(*self._believed, strict=True)
        return np.concatenate(steps), np.concatenate(means), np.concatenate(earned)

    def means(self, split: str, key: str) -> list[list[float]]:
        """Return [step, mean] of a row key for each step of a split."""
        of_steps = ((step, sums) for (s, step, k), sums in self._sums.items() if (s, k) == (split, key))
        return [[step, total / n] for step, (total, n) in sorted(of_steps)]

    def shares(self, verdict: str) -> list[list[float]]:
        """Return [step, share of the groups with the verdict] for each training step."""
        return [[step, counts[verdict] / counts.total()] for step, counts in sorted(self._verdicts.items())]

    @property
    def evaluations(self) -> list[str]:
        """The splits other than "train"."""
        return sorted({split for split, _, _ in self._sums} - {"train"})


def curves(metrics: Sequence[dict[str, Any]], tally: Tally) -> list[dict[str, Any]]:
    """Return the curves over the steps: logged metrics, or means over the traced attempts if none were logged."""
    drawn = [_curve(title, metric, key, metrics, tally) for title, (metric, key) in _CURVES.items()]
    drawn[0]["series"] += _evaluations(metrics, tally)
    drawn.insert(1, _shares(metrics, tally))
    return [curve for curve in drawn if curve["series"]]


def _curve(title: str, metric: str, key: str | None, metrics: Sequence[Row], tally: Tally) -> dict[str, Any]:
    points = _logged(metrics, metric) or (tally.means("train", key) if key else [])
    return {"title": title, "series": [{"name": "train", "points": thin(points)}] if points else []}


def _evaluations(metrics: Sequence[Row], tally: Tally) -> list[dict[str, Any]]:
    logged = dict(sorted(evaluations(metrics).items()))
    series = logged or {split: tally.means(split, "reward") for split in tally.evaluations}
    return [{"name": name, "points": thin(points)} for name, points in series.items() if points]


def _shares(metrics: Sequence[Row], tally: Tally) -> dict[str, Any]:
    logged = {verdict: _logged(metrics, f"groups/{verdict}") for verdict in VERDICTS}
    traced = {verdict: tally.shares(verdict) for verdict in VERDICTS}
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


def _pairs(values: Any) -> list[list[str]]:
    return [[str(key), shown(value)] for key, value in (values or {}).items()]
