"""A page's data about a run: each group's line in the list, each group's texts, the curves, and the alarms.

All of it is plain data for `viewer/*.js`. Positions in texts are in UTF-16 units, as JavaScript counts.
"""

from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..rollouts.verdicts import VERDICTS
from ..traces import (
    Block,
    Points,
    Row,
    answer_place,
    best_first,
    evaluations,
    is_reward,
    joined,
    messages_of,
    named_in,
    shown,
)
from ..utils.validation import finite_or_none
from .token_credit import credit, utf16
from .tool_calls import calls, roles


# title of a curve -> metric
_CURVES = {"reward": "reward", "KL": "kl", "entropy": "entropy", "tokens": "completions/mean_length"}
_TRACED = {"reward": "reward", "kl": "kl", "completions/mean_length": "tokens"}  # metric -> row key to average


def detail(rows: Sequence[Row], folder: Path | None = None) -> dict[str, Any]:
    """Return a group's texts: the prompt and the reference once, and the attempts, the best first.

    An environment may give each attempt another prompt. An attempt whose prompt is not the group's has it in `extra`.

    With the `folder` of the traces, also return the thumbnails of the pictures that the texts name, as data URLs.
    """
    prompt, attempts = messages_of(rows[0]["prompt"]), [_attempt(row, rows[0]["prompt"]) for row in best_first(rows)]
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


def _attempt(row: Row, prompt: Any) -> dict[str, Any]:
    messages = messages_of(row["completion"])
    text = joined(messages)
    answer = answer_place(text)
    outcomes = row.get("outcomes") or {}
    own = {} if row["prompt"] == prompt else {"its prompt": joined(messages_of(row["prompt"]))}
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
        "extra": _pairs({**own, **(row.get("returned") or {}), **(row.get("extra") or {})}),
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
        # Split and row key -> step -> the sum over the attempts that have the key, and their number.
        self._sums: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(dict)
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
                of_step = self._sums[split, key].setdefault(step, [0.0, 0])
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

    def means(self, split: str, key: str) -> Points:
        """Return [step, mean] of a row key for each step of a split."""
        return [[step, total / n] for step, (total, n) in sorted(self._sums.get((split, key), {}).items())]

    def shares(self, verdict: str) -> Points:
        """Return [step, share of the groups with the verdict] for each training step."""
        return [[step, counts[verdict] / counts.total()] for step, counts in sorted(self._verdicts.items())]

    def rewards(self) -> dict[str, Points]:
        """Return [step, mean reward] of the evaluations of each split, which is called `<split>/reward`."""
        splits = sorted(split for split, key in self._sums if key == "reward" and split != "train")
        return {f"{split}/reward": self.means(split, "reward") for split in splits}

    def series(self, without: Collection[str] = ()) -> dict[str, Points]:
        """Return the points of each metric that the attempts tell, as [`~trl_grpo_plus.traces.series`] of a log.

        The metrics of the training in `without` are left out.
        """
        found = {metric: self.means("train", key) for metric, key in _TRACED.items() if metric not in without}
        shares = {f"groups/{verdict}": verdict for verdict in VERDICTS}
        found |= {metric: self.shares(verdict) for metric, verdict in shares.items() if metric not in without}
        return {metric: points for metric, points in found.items() if points} | self.rewards()


def curves(metrics: Sequence[dict[str, Any]], tally: Tally) -> list[dict[str, Any]]:
    """Return the curves over the steps: logged metrics, or means over the traced attempts if none were logged."""
    verdicts = {verdict: f"groups/{verdict}" for verdict in VERDICTS}
    # A long log has many metrics, of which only these are read.
    logged = {metric: _logged(metrics, metric) for metric in (*_CURVES.values(), *verdicts.values())}
    logged |= {f"{split}/reward": points for split, points in evaluations(metrics).items()}
    traced = tally.series(without={metric for metric, points in logged.items() if points})
    rewards = {metric.removesuffix("/reward"): metric for metric in {**logged, **traced} if is_reward(metric)}
    found: list[dict[str, Any]] = [
        {"title": title, "series": _lines({"train": metric}, logged, traced)} for title, metric in _CURVES.items()
    ]
    found[0]["series"] += _lines(dict(sorted(rewards.items())), logged, traced)
    found.insert(1, {"title": "verdicts", "stacked": True, "series": _lines(verdicts, logged, traced)})
    return [curve for curve in found if curve["series"]]


def _lines(named: dict[str, str], logged: dict[str, Points], traced: dict[str, Points]) -> list[dict[str, Any]]:
    """Return the lines of a curve, all from the log, or all from the traces. `named` gives the metric of each line."""
    known = logged if any(logged.get(metric) for metric in named.values()) else traced
    return [{"name": name, "points": thin(known[metric])} for name, metric in named.items() if known.get(metric)]


def _logged(metrics: Sequence[Row], name: str) -> Points:
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
                {"step": a["step"], "message": a.get("message") or "", "groups": a.get("groups") or []}
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
