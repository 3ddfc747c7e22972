"""Traces: what each attempt of a run was, one JSON object a line, under `output_dir/rollouts/`.

    run.json                  the rewards and their weights (0: a monitor), attempts a group, steps
    train-00000012.jsonl      the attempts sampled at step 12, also those that the filter dropped
    eval_easy-00000100.jsonl  an evaluation's
    metrics.jsonl             what the trainer logged
    alarms.jsonl              which alarm came on, when, and why
    superseded-1/             steps that a resumed run made again

A line of the first kind holds

    step, split, batch     steps done when it was sampled; "train", "eval" or "eval_<name>"; which batch of that step
    round, group           0, or the resampling round; place in the round
    attempt, size          place in the group; attempts in it
    prompt, completion     text or messages
    reference              the row's other columns
    rewards, outcomes      of each reward: its score or null; "ok", "abstain", "timeout" or "error"
    reward                 the weighted total, null where nobody scored
    advantage              trained with (at its first token); null for a live group that was not needed
    verdict                on its group: "alive", "all_good", "all_bad", "tied" or "unscored"
    kept, reason           whether it was trained on; if not, "zero_variance", "filler", "surplus" or "evaluation"
    tokens, truncated      that the policy wrote; whether it ran into the limit
    kl                     mean over tokens of log pi - log pi_ref when sampled, where the run computes both, or null
    extra                  what reward functions logged of it through `log_extra`
    alarms                 those that name its group

A number that is not finite is null.
"""

import gzip
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from torch import Tensor

from .groups import VERDICTS, Attempt, Plan, Round


FOLDER = "rollouts"
JOURNALS = ("metrics", "alarms")
_EVALUATED = re.compile(r"(eval(?:_.+)?)_runtime")
_ATOMS = (str, int, bool, type(None))
_SHOWN_ELSEWHERE = ("prompt", "image", "images")  # of a row's columns; TRL's messages have the images in them
_FILE = re.compile(r"(?P<split>train|eval.*)-(?P<step>\d{8,})\.jsonl(\.gz)?")


# -- reading


def find(run: str | Path) -> Path:
    """The folder with a run's traces.

    Args:
        run (`str` or `Path`): the run's `output_dir`, or that folder itself.

    Raises:
        ValueError: there are no traces.
    """
    for folder in (Path(run) / FOLDER, Path(run)):
        if any(parse_name(path) for path in folder.glob("*.jsonl*")):
            return folder
    exists = "has no traces in it" if Path(run).is_dir() else "is not a folder"
    raise ValueError(
        f"{run} {exists}. Give the output_dir of a run of GRPOPlusTrainer: its attempts are in its folder `{FOLDER}`, "
        "unless it ran with trace_every=0."
    )


def groups(run: str | Path) -> Iterator[list[dict[str, Any]]]:
    """Each group of attempts, by step, the evaluations of a step before its training.

    Only whole groups: one that a kill cut off in writing is left out.

    Raises:
        ValueError: there are no traces.
    """
    folder = find(run)
    found = [(name, path) for path in folder.iterdir() if (name := parse_name(path))]
    for (step, split), path in sorted(found, key=lambda item: (item[0][0], item[0][1] == "train", item[0][1])):
        group: list[dict[str, Any]] = []
        for row in read_lines(path):
            if group and _key(row) != _key(group[0]):
                group = []
            group.append({**row, "step": step, "split": split})
            if len(group) == row["size"]:
                yield group
                group = []


def journal(run: str | Path, name: str) -> list[dict[str, Any]]:
    """What the trainer logged ("metrics") or the alarms that came on ("alarms"), in order."""
    path = find(run) / f"{name}.jsonl"
    return list(read_lines(path)) if path.exists() else []


def about(run: str | Path) -> dict[str, Any]:
    """What is known of the run as a whole: `rewards` (name -> weight), `num_generations`, `max_steps`."""
    path = find(run) / "run.json"
    return json.loads(path.read_text()) if path.exists() else {}


def evaluated(entry: dict[str, Any]) -> tuple[str, float] | None:
    """Split ("eval" or "eval_<name>") and mean reward of a log entry, or `None` where it is of no evaluation."""
    for key in entry:
        # TRL logs the reward as `eval_reward` whatever the split; only the Trainer's own keys name it.
        if match := _EVALUATED.fullmatch(key):
            reward = entry.get(f"{match[1]}_reward", entry.get("eval_reward"))
            return None if reward is None else (match[1], reward)
    return None


def parse_name(path: Path) -> tuple[int, str] | None:
    """Step and split of a file of attempts, `None` for another file."""
    match = _FILE.fullmatch(path.name)
    return (int(match["step"]), match["split"]) if match else None


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects in a file, up to where a kill cut it off."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        try:
            for line in file:
                if not line.endswith(b"\n"):
                    return
                yield json.loads(line)
        except (EOFError, gzip.BadGzipFile):  # in the midst of a member, or of its header
            return


def _key(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["batch"], row["round"], row["group"]


# -- writing


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def to_lines(rows: Iterable[dict[str, Any]]) -> bytes:
    """As JSON lines in UTF-8; lone surrogates, which some tokenizers yield, as escapes."""
    return "".join([f"{_encode(row)}\n" for row in rows]).encode("utf-8", "backslashreplace")


def pick(rounds: Sequence[Round], limit: int | None) -> list[tuple[int, int]]:
    """Which groups to trace, as (round, group): all, or `limit` of them, every verdict in turn."""
    everyone = [(r, group) for r, sampled in enumerate(rounds) for group in range(len(sampled.verdicts))]
    if limit is None or limit >= len(everyone):
        return everyone
    seen = dict.fromkeys(VERDICTS, 0)
    ranked = []
    for r, group in everyone:
        verdict = rounds[r].verdicts[group]
        ranked.append((seen[verdict], (r, group)))
        seen[verdict] += 1
    return sorted(place for _, place in sorted(ranked)[:limit])


def said(attempts: Sequence[Attempt]) -> list[dict[str, Any]]:
    """What the rank that sampled some attempts knows of them."""
    told: list[dict[str, Any]] = []
    before, reference = None, {}
    for attempt in attempts:
        if attempt.inputs != before:  # siblings share theirs, unless `rollout_func` added to them
            before = attempt.inputs
            reference = plain({name: value for name, value in before.items() if name not in _SHOWN_ELSEWHERE})
        told.append(
            {
                "prompt": plain(attempt.prompt),
                "completion": plain(attempt.completion),
                "reference": reference,
                "outcomes": attempt.outcomes,
                "tokens": attempt.num_tokens,
                "truncated": attempt.truncated,
                "extra": plain(attempt.logged) if attempt.logged else {},
            }
        )
    return told


@dataclass(frozen=True)
class Scored:
    """A batch in numbers, the same on all ranks.

    Args:
        rounds (`Sequence[Round]`): what was sampled.
        plan (`Plan`): which groups make up the batch that is trained on.
        names (`Sequence[str]`): of the K rewards.
        totals (`Sequence[Tensor]`): for each round `(rows,)`, NaN where nobody scored.
        advantages (`Tensor`), kl (`Tensor`, *optional*): `(rows of the batch that is trained on,)`.
        size (`int`): attempts in a group.
        evaluation (`bool`): nothing was trained on.
    """

    rounds: Sequence[Round]
    plan: Plan
    names: Sequence[str]
    totals: Sequence[Tensor]
    advantages: Tensor
    kl: Tensor | None
    size: int
    evaluation: bool = False


def rows(
    scored: Scored, texts: dict[tuple[int, int], dict[str, Any]], step: int, split: str = "train", batch: int = 0
) -> list[dict[str, Any]]:
    """The lines of a batch.

    Args:
        scored (`Scored`): its numbers.
        texts (`dict`): (round, row of the round) -> what [`said`] says of it; only these rows are written.
        step (`int`), split (`str`), batch (`int`): as in each line.
    """
    places = {group: place for place, group in enumerate(scored.plan.order)}
    rewards = [_numbers(sampled.rewards) for sampled in scored.rounds]
    totals = [_numbers(total) for total in scored.totals]
    advantages = _numbers(scored.advantages)
    kl = _numbers(scored.kl) if scored.kl is not None else [None] * len(advantages)
    lines = []
    for (r, row), text in sorted(texts.items(), key=itemgetter(0)):
        group, attempt = divmod(row, scored.size)
        at, verdict = places.get((r, group)), scored.rounds[r].verdicts[group]
        live = at is not None and scored.plan.live[at]
        scores = rewards[r][row]
        advantage = 0.0 if verdict != "alive" else None
        if at is not None:
            advantage = advantages[at * scored.size + attempt]
        lines.append(
            {
                "step": step,
                "split": split,
                "batch": batch,
                "round": r,
                "group": group,
                "attempt": attempt,
                "size": scored.size,
                "prompt": text["prompt"],
                "completion": text["completion"],
                "reference": text["reference"],
                "rewards": dict(zip(scored.names, scores, strict=True)),
                "outcomes": dict(zip(scored.names, _outcomes(text["outcomes"], scores), strict=True)),
                "reward": totals[r][row],
                "advantage": advantage,
                "verdict": verdict,
                "kept": live and not scored.evaluation,
                "reason": "evaluation" if scored.evaluation else _reason(at, live, verdict),
                "tokens": text["tokens"],
                "truncated": text["truncated"],
                "kl": kl[at * scored.size + attempt] if at is not None and live else None,
                "extra": text["extra"],
                "alarms": [],
            }
        )
    return lines


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: a number that is not finite becomes `None`, what is no data a short text."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is dict:
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # arrays, tensors and their numbers
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return plain(dict(value))
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _numbers(values: Tensor) -> list:
    """As (nested) lists, `None` for what is not finite. Scores come in float32: rounded, 0.3 is 0.3 again."""
    rounded = values.double().round(decimals=7)
    if values.isfinite().all():
        return rounded.tolist()
    return plain(rounded.tolist())


def _outcomes(told: Sequence[str | None], scores: Sequence[float | None]) -> list[str]:
    told = told or [None] * len(scores)
    return [status or ("abstain" if score is None else "ok") for status, score in zip(told, scores, strict=True)]


def _reason(place: int | None, live: bool, verdict: str) -> str | None:
    if live:
        return None
    if place is not None:
        return "filler"
    return "surplus" if verdict == "alive" else "zero_variance"
