"""Traces: what each attempt of a run was, one JSON object a line, under `output_dir/rollouts/`.

    run.json                  the rewards and their weights (0: a monitor), attempts a group, steps, verdicts' limits;
                              model, data set, options that are not at their defaults, versions
    train-00000012.jsonl      the attempts sampled at step 12, also those that the filter dropped
    eval_easy-00000100.jsonl  an evaluation's
    metrics.jsonl             what the trainer logged
    alarms.jsonl              which alarm came on, when, and why
    thumbnails/               of pictures, named as lines name them (`trace_thumbnails`)
    superseded-1/             steps that a resumed run made again
    evaluation-1/             an evaluation without training, in a folder that held a run

A line of the first kind holds

    step, split, batch     steps done when it was sampled; "train", "eval" or "eval_<name>"; which batch of that step
    round, group           0, or the resampling round; place in the round
    attempt, size          place in the group; attempts in it
    prompt, completion     text or messages
    reference              the row's other columns
    rewards, outcomes      of each reward: its score or null; "ok" or another of `scoring.STATUSES`
    steps                  of each reward that scored steps: [[end, reward], ...], as offsets in its completion's text
    reward                 the weighted total, null where nobody scored
    advantage              trained with (at its first token); null for a live group that was not needed
    advantages             of its tokens, only where they have their own: [[end, advantage], ...] of stretches of equal
                           advantage (to 4 digits), as offsets like those of steps. The tokens that have no character
                           (the end of sequence) are left out; not there where tokens do not decode to the text
    verdict                on its group: "alive", "all_good", "all_bad", "tied", "unscored" or "truncated"
    kept, reason           whether its group was trained on; if not, "zero_variance", "truncated", "filler", "surplus"
                           or "evaluation"
    tokens, truncated      that the policy wrote; whether it ran into the limit
    kl                     mean over tokens of log pi - log pi_ref when sampled, where the run computes both, or null
    belief                 of its prompt before it was sampled: "mean" and "std" of a reward, on so many "attempts";
                           "of" names one reward, without it the total is meant. Or null
    extra                  what reward functions logged of it through `log_extra`
    alarms                 those that name its group

A number that is not finite is null.
"""

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import IO, Any, cast

from ..common.files import open_within, within


GroupKey = tuple[int, int, int]  # (batch, round, group) within a step

FOLDER = "rollouts"
JOURNALS = ("metrics", "alarms")
_EVALUATED = re.compile(r"(eval(?:_.+)?)_runtime")
_PLACE = {"batch", "round", "group", "size"}  # keys that every attempt has
_FILE = re.compile(r"(?P<split>train|eval.*)-(?P<step>\d{8,})\.jsonl(\.gz)?")


def find(run: str | Path) -> Path:
    """The folder with a run's traces.

    Args:
        run (`str` or `Path`): the run's `output_dir`, or that folder itself.

    Raises:
        ValueError: there are no traces.
        OSError: it is a link that leads out of the run.
    """
    for folder in (Path(run) / FOLDER, Path(run)):
        if any(parse_name(path) for path in folder.glob("*.jsonl*")):
            return within(folder, Path(run))
    exists = "has no traces in it" if Path(run).is_dir() else "is not a folder"
    raise ValueError(
        f"{run} {exists}. Give the output_dir of a run of GRPOPlusTrainer: its attempts are in its folder `{FOLDER}`, "
        "unless it ran with trace_every=0."
    )


def newest(run: str | Path, split: str) -> Path | None:
    """The file of `split`'s last step in the folder of a run, `None` where there is none."""
    named = {path: name for path in (Path(run) / FOLDER).glob(f"{split}-*") if (name := parse_name(path))}
    return max((path for path, (_, of) in named.items() if of == split), key=named.__getitem__, default=None)


def files(run: str | Path) -> list[tuple[int, str, Path]]:
    """Step, split and file of attempts, in order: the evaluations of a step before its training.

    Raises:
        ValueError: there are no traces.
    """
    named = [(*name, path) for path in find(run).iterdir() if (name := parse_name(path))]
    return sorted(named, key=lambda item: (item[0], item[1] == "train", item[1]))


def groups(run: str | Path, split: str | None = None, since: int = 0) -> Iterator[list[dict[str, Any]]]:
    """Each group of attempts, by step, the evaluations of a step before its training.

    Only whole groups: one that a kill cut off in writing is left out.

    Args:
        run (`str` or `Path`): the run's `output_dir`.
        split (`str`, *optional*): the only one to read.
        since (`int`, *optional*, defaults to `0`): the first step to read.

    Raises:
        ValueError: there are no traces.
    """
    for step, of, path in files(run):
        if of != (split or of) or step < since:
            continue
        group: list[dict[str, Any]] = []
        for number, row in enumerate(read_lines(path), 1):
            if lacking := _PLACE - row.keys():
                lacks = ", ".join(sorted(lacking))
                raise ValueError(f"{path}, line {number} is no attempt: it has no {lacks}. Mend or remove it.")
            if group and group_key(row) != group_key(group[0]):
                group = []
            group.append({**row, "step": step, "split": of})
            if len(group) == row["size"]:
                yield group
                group = []


def journal(run: str | Path, name: str) -> list[dict[str, Any]]:
    """What the trainer logged ("metrics") or the alarms that came on ("alarms"), in order."""
    path = find(run) / f"{name}.jsonl"
    return list(read_lines(path)) if path.exists() else []


def about(run: str | Path) -> dict[str, Any]:
    """What is known of the run as a whole: `rewards` (name -> weight), `num_generations`, `max_steps`, what groups
    were judged by (`zero_variance_tolerance`, `solved_reward`, `failed_reward`) and, of newer runs, what
    [`trl_grpo_plus.about.describe`] returns."""
    path = find(run) / "run.json"
    try:
        if not path.exists():
            return {}
        with open_within(path, path.parent) as file:
            return json.loads(file.read())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}. Mend it, or remove it.") from None


def evaluated(entry: dict[str, Any]) -> tuple[str, float] | None:
    """Split ("eval" or "eval_<name>") and mean reward of a log entry, or `None` where it is of no evaluation."""
    for key in entry:
        # TRL logs the reward as `eval_reward` whatever the split; only the Trainer's own keys name it.
        if match := _EVALUATED.fullmatch(key):
            reward = entry.get(f"{match[1]}_reward", entry.get("eval_reward"))
            return None if reward is None else (split_name(match[1]), reward)
    return None


def split_name(metric_key_prefix: str) -> str:
    """What an evaluation's split is called in traces and their files, by the prefix of its metrics."""
    name = re.sub(r"[^\w.-]", "_", metric_key_prefix)
    return name if name.startswith("eval") else f"eval_{name}"


def parse_name(path: Path) -> tuple[int, str] | None:
    """Step and split of a file of attempts, `None` for another file."""
    match = _FILE.fullmatch(path.name)
    return (int(match["step"]), match["split"]) if match else None


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects in a file, up to where a kill cut it off.

    Raises:
        ValueError: a line before that is no JSON object; with its number.
    """
    with open_within(path, path.parent) as raw, unpacked(raw, path) as file:
        try:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                yield _object(line, path, number)
        except (EOFError, gzip.BadGzipFile):  # in the midst of a member, or of its header
            return


def unpacked(file: IO[bytes], path: Path) -> IO[bytes]:
    """What is in an open file of that name."""
    return cast(IO[bytes], gzip.open(file)) if path.suffix == ".gz" else file


def _object(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        why = str(error)
    else:
        if isinstance(value, dict):
            return value
        why = type(value).__name__
    shown = line[:60].decode(errors="replace").strip()
    raise ValueError(
        f"{path}, line {number} is no JSON object ({why}): {shown!r}. Mend or remove it to read the rest."
    )


def group_key(row: dict[str, Any]) -> GroupKey:
    """Of the group of an attempt, within its step."""
    return row["batch"], row["round"], row["group"]


def told(row: Mapping[str, Any]) -> str:
    """Where an attempt stands, for an error's text; of a line that may lack some of it."""
    return ", ".join(f"{key} {row.get(key)}" for key in ("split", "step", "batch", "round", "group", "attempt"))


def by_group(rows: Iterable[dict[str, Any]]) -> dict[GroupKey, list[dict[str, Any]]]:
    """Rows of a batch, those of a group together as they are in a trace, by group."""
    return {key: list(group) for key, group in groupby(rows, key=group_key)}
