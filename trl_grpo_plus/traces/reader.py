"""Traces: what each attempt of a run was, one JSON object a line, under `output_dir/rollouts/`.

    run.json                  the rewards and their weights (0: a monitor), attempts a group, steps, verdicts' limits;
                              model, data set, options that are not at their defaults, versions
    train-00000012.jsonl      the attempts sampled at step 12, also those that the filter dropped
    eval_easy-00000100.jsonl  an evaluation's
    metrics.jsonl             what the trainer logged
    alarms.jsonl              which alarm came on, when, and why
    first_prompt.jsonl        one line, the first prompt of the training as the model was given it: step; text, without
                              the middle of a long one; tokens, how many; flags, a sentence each of what to know
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
import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import IO, Any, cast

from ..utils.files import Unreadable, open_within, within
from ..utils.validation import finite_or_none
from . import schema
from .redaction import shown_about


_Kind = tuple[str, list[tuple[str, ...]], dict[str, schema.Shape]]
GroupKey = tuple[int, int, int]  # (batch, round, group) within a step

FOLDER = "rollouts"
FIRST_PROMPT = "first_prompt"
JOURNALS = ("metrics", "alarms", FIRST_PROMPT)
_EVALUATED = re.compile(r"(eval(?:_.+)?)_runtime")
# Keys that every attempt has.
_PLACE = ("batch", "round", "group", "size")
_WRITTEN = ("attempt", "prompt", "completion")
_FILE = re.compile(r"(?P<split>train|eval.*)-(?P<step>\d{8,18})\.jsonl(\.gz)?")
_MOST_SHOWN = 60  # characters of a line, for an error's text
# Name of a file -> what a line is if it does not fit, keys that it needs, and the shapes of what it holds.
_ENTRIES: dict[str, _Kind] = {
    "metrics.jsonl": ("no entry of a log", [("step",)], schema.METRICS),
    "alarms.jsonl": ("no alarm", [("step", "name")], schema.ALARMS),
    f"{FIRST_PROMPT}.jsonl": ("no prompt", [("step", "text", "tokens", "flags")], schema.FIRST_PROMPT),
}
_ATTEMPTS: _Kind = ("no attempt", [_PLACE, _WRITTEN], schema.ATTEMPT)
_OBJECTS = {"run.json": schema.ABOUT, "trainer_state.json": schema.STATE, "race_settings.json": schema.RACE}
# A number that is not finite is null, whoever wrote it.
_decode = json.JSONDecoder(parse_constant=lambda name: None).decode


def find(run: str | Path) -> Path:
    """Return the folder with a run's traces.

    Args:
        run (`str` or `Path`): the run's `output_dir`, or that folder itself.

    Raises:
        ValueError: there are no traces.
        OSError: their folder is none, or is a link that leads out of the run.
    """
    if (Path(run) / FOLDER).is_file():
        raise Unreadable(f"{Path(run) / FOLDER} is a file, and should be a folder. Move it away.")
    for folder in (Path(run) / FOLDER, Path(run)):
        if any(parse_name(path) for path in folder.glob("*.jsonl*")):
            return within(folder, Path(run))
    exists = "has no traces in it" if Path(run).is_dir() else "is not a folder"
    raise ValueError(
        f"{run} {exists}. Give the output_dir of a run of GRPOPlusTrainer: its attempts are in its folder `{FOLDER}`, "
        "unless it ran with trace_every=0."
    )


def newest(run: str | Path, split: str) -> Path | None:
    """Return the file of `split`'s last step in the folder of a run, `None` where there is none."""
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
        for row in read_lines(path):
            if group and group_key(row) != group_key(group[0]):
                group = []
            group.append({**row, "step": step, "split": of})
            if len(group) == row["size"]:
                yield group
                group = []


def journal(run: str | Path, name: str) -> list[dict[str, Any]]:
    """Return what the trainer logged ("metrics"), the alarms that came on ("alarms") or the one line of
    "first_prompt", in order.
    """
    path = find(run) / f"{name}.jsonl"
    return list(read_lines(path)) if path.exists() else []


def about(run: str | Path) -> dict[str, Any]:
    """Return what is known of the run as a whole: `rewards` (name -> weight), `num_generations`, `max_steps`, what
    groups
    were judged by (`zero_variance_tolerance`, `solved_reward`, `failed_reward`) and, of newer runs, what
    [`trl_grpo_plus.trainer.run_metadata.describe`] returns.
    """
    return shown_about(read_object(find(run) / "run.json"))


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object that is a whole file; an empty one where there is no file.

    Raises:
        ValueError: it is no JSON object, or not of the shape that a file of this name has.
    """
    if not path.exists():
        return {}
    with open_within(path, path.parent) as file:
        data = file.read()
    try:
        value = _json(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}. Mend it, or remove it.") from None
    kind = "" if isinstance(value, dict) else "it is no JSON object"
    if why := kind or schema.misfit(value, _OBJECTS.get(path.name, {})):
        raise ValueError(f"{path} is not what it should be: {why}. Mend it, or remove it.")
    return value


def evaluated(entry: dict[str, Any]) -> tuple[str, float] | None:
    """Split ("eval" or "eval_<name>") and mean reward of a log entry, or `None` where it is of no evaluation."""
    for key in entry:
        # TRL logs the reward as `eval_reward` whatever the split; only the Trainer's own keys name it.
        if match := _EVALUATED.fullmatch(key):
            reward = finite_or_none(entry.get(f"{match[1]}_reward", entry.get("eval_reward")))
            return None if reward is None else (split_name(match[1]), reward)
    return None


def split_name(metric_key_prefix: str) -> str:
    """Return what an evaluation's split is called in traces and their files, by the prefix of its metrics."""
    name = re.sub(r"[^\w.-]", "_", metric_key_prefix)
    return name if name.startswith("eval") else f"eval_{name}"


def parse_name(path: Path) -> tuple[int, str] | None:
    """Step and split of a file of attempts, `None` for another file."""
    match = _FILE.fullmatch(path.name)
    return (int(match["step"]), match["split"]) if match else None


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects in a file, up to where a kill cut it off.

    Raises:
        ValueError: a line before that is no JSON object, or not of the shape that a file of this name has; with its
            number, and how many more there are.
    """
    for line in lines(path):
        yield parse(line, path)


def lines(path: Path) -> Iterator[bytes]:
    """Yield the whole lines of a file, up to where a kill cut it off.

    Raises:
        ValueError: what is compressed is damaged.
    """
    with open_within(path, path.parent) as raw, _unpacked(raw, path) as file:
        try:
            for line in file:
                if not line.endswith(b"\n"):
                    return
                yield line
        except (EOFError, gzip.BadGzipFile):  # in the midst of a member, or of its header
            return
        except zlib.error as error:
            raise damaged(path, error) from None


def damaged(path: Path, error: Exception) -> ValueError:
    """Return the error that compressed data in a file cannot be read."""
    return ValueError(f"{path} is damaged ({error}). Move it away, or take it from a copy.")


def parse(line: bytes, path: Path) -> dict[str, Any]:
    """Return the object that a whole line of a file holds.

    Raises:
        ValueError: as [`read_lines`].
    """
    try:
        value = _json(line)
    except (ValueError, RecursionError):
        raise ValueError(_problem(path)) from None
    if _misfit(value, path):
        raise ValueError(_problem(path))
    return value


def _problem(path: Path) -> str:
    """Return what is wrong with the first line of a file that is not what it should be, and how many more there
    are.
    """
    found = [(number, why) for number, line in enumerate(lines(path), 1) if (why := _fault(line, path))]
    if not found:
        return f"{path} was changed while it was read. Read it again."
    (number, why), *others = found
    more = f" {len(others)} more {'line' if len(others) == 1 else 'lines'} of it cannot be read." if others else ""
    return f"{path}, line {number} is {why}. Mend or remove it to read the rest.{more}"


def _fault(line: bytes, path: Path) -> str:
    try:
        why = _misfit(_json(line), path)
    except (ValueError, RecursionError) as error:
        why = f"no JSON object ({error})"
    shown = line[:_MOST_SHOWN].decode(errors="replace").strip()
    return f"{why}: {shown!r}" if why.startswith("no JSON object") else why


def _misfit(value: Any, path: Path) -> str:
    """Return what is wrong with the value of a line; "" where nothing is."""
    if not isinstance(value, dict):
        return f"no JSON object ({type(value).__name__})"
    kind, needed, of = _ATTEMPTS if parse_name(path) else _ENTRIES.get(path.name, ("", [], {}))
    lacks = schema.lacking(value, *needed)
    where = told(value)[:200] if of is schema.ATTEMPT else ""
    why = f"it has no {lacks}" if lacks else schema.misfit(value, of, where) or (schema.beyond(value) if where else "")
    return f"{kind}: {why}" if why else ""


def _json(data: bytes) -> Any:
    return _decode(data.decode(json.detect_encoding(data), "surrogatepass"))


def _unpacked(file: IO[bytes], path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(file)) if path.suffix == ".gz" else file


def group_key(row: dict[str, Any]) -> GroupKey:
    """Return the key of an attempt's group within its step."""
    return row["batch"], row["round"], row["group"]


def told(row: Mapping[str, Any]) -> str:
    """Return where an attempt stands, for an error's text; of a line that may lack some of it."""
    return ", ".join(f"{key} {row.get(key)}" for key in ("split", "step", "batch", "round", "group", "attempt"))


def by_group(rows: Iterable[dict[str, Any]]) -> dict[GroupKey, list[dict[str, Any]]]:
    """Return rows of a batch, those of a group together as they are in a trace, by group."""
    return {key: list(group) for key, group in groupby(rows, key=group_key)}
