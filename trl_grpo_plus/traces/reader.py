"""Reads traces: files under `output_dir/rollouts/` with one JSON object per attempt on a line.

    run.json                  the rewards and their weights (0: a monitor), attempts per group, steps, the verdicts'
                              limits; model, dataset, options that are not at their defaults, versions; run, an id
                              that is also in the run's checkpoints
    train-00000012.jsonl      the attempts of step 12, including those that the filter dropped
    eval_easy-00000100.jsonl  the attempts of an evaluation
    metrics.jsonl             the trainer's log entries
    alarms.jsonl              the alarms that came on, with step and reason
    first_prompt.jsonl        one line, the first prompt of the training as the model received it: step; text, without
                              the middle if it is long; tokens, their number; flags, one sentence for each oddity
    thumbnails/               thumbnails of images, named as in the lines (`trace_thumbnails`)
    superseded-1/             steps that a resumed run made again
    evaluation-1/             an evaluation without training, in a folder that already held a run

A line of a file of attempts holds

    step, split, batch     step at which the batch is logged; "train", "eval" or "eval_<name>"; number of
                           the batch within the step
    round, group           0, or the resampling round; index of the group in the round
    attempt, size          index of the attempt in the group; number of attempts in the group
    prompt, completion     text or messages
    reference              the row's other columns
    returned               only if a `rollout_func` returned values for the attempt: the values, which rewards got too
    rewards, outcomes      for each reward: its score or null; "ok" or another of `scoring.STATUSES`
    steps                  for each reward that scored steps: [[end, reward], ...], as offsets in the completion's text
    reward                 the weighted total, null if no reward scored
    advantage              the advantage in training (of the first token); null for a live group that was not needed
    advantages             only if tokens have advantages of their own: [[end, advantage], ...], stretches of equal
                           advantage (to 4 digits), as offsets like those of steps. Tokens without a character (the end
                           of sequence) are left out. The key is missing if the tokens do not decode to the text
    verdict                verdict on the group: "alive", "low_variance", "all_good", "all_bad", "tied", "unscored" or
                           "truncated"
    kept, reason           whether the group was trained on; if not, "zero_variance", "low_variance", "truncated",
                           "filler", "surplus" or "evaluation"
    tokens, truncated      number of tokens that the policy wrote; whether the attempt ran into the length limit
    kl                     mean over tokens of log pi - log pi_ref when sampled, if the run computes both, or null
    belief                 the belief about the prompt before sampling: "mean" and "std" of a reward, from a number of
                           "attempts"; "of" names the reward, without "of" it is the total. Or null
    extra                  values that reward functions logged for the attempt through `log_extra`
    alarms                 the alarms that name the group

A number that is not finite is written as null.
"""

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, pairwise
from pathlib import Path
from typing import IO, Any, cast

import orjson

from ..utils.files import TracesError, Unreadable, open_within, within
from ..utils.validation import ConfigError, finite_or_none
from . import schema, trl_completions
from .redaction import shown_about


_Kind = tuple[str, list[tuple[str, ...]], dict[str, schema.ValueShape]]
GroupKey = tuple[int, int, int]  # (batch, round, group) within a step
Points = list[list[float]]  # [step, value] of a metric, by step

FOLDER = "rollouts"
FIRST_PROMPT = "first_prompt"
RACE_SETTINGS = "race_settings.json"  # written by trl-grpo-plus race
JOURNALS = ("metrics", "alarms", FIRST_PROMPT)
_EVALUATED = re.compile(r"(eval(?:_.+)?)_runtime")
_NO_METRICS = ("step", "total_flos")  # numbers in each log entry
# Keys that every attempt has.
_PLACE = ("batch", "round", "group", "size")
_WRITTEN = ("attempt", "prompt", "completion")
_FILE = re.compile(r"(?P<split>train|eval.*)-(?P<step>\d{8,18})\.jsonl(\.gz)?")
_MOST_SHOWN = 60  # maximum characters of a line in an error message
# File name -> error text for a line that does not fit, required keys, and the shapes of the values.
_ENTRIES: dict[str, _Kind] = {
    "metrics.jsonl": ("no entry of a log", [("step",)], schema.METRICS),
    "alarms.jsonl": ("no alarm", [("step", "name")], schema.ALARMS),
    f"{FIRST_PROMPT}.jsonl": ("no prompt", [("step", "text", "tokens", "flags")], schema.FIRST_PROMPT),
}
_ATTEMPTS: _Kind = ("no attempt", [_PLACE, _WRITTEN], schema.ATTEMPT)
_OBJECTS = {"run.json": schema.ABOUT, "trainer_state.json": schema.STATE, RACE_SETTINGS: schema.RACE}
# Other programs may have written NaN, Infinity or 1e400: they are read as None.
# orjson reads four times as fast, but rounds integers of more than 64 bits.
_DIGITS, _LONG_NUMBER = bytes(48 if 48 <= byte < 58 else 32 for byte in range(256)), b"0" * 19
_decode = json.JSONDecoder(
    parse_constant=lambda name: None, parse_float=lambda number: finite_or_none(float(number))
).decode


def find(run: str | Path) -> Path:
    """Return the folder with a run's traces.

    Args:
        run (`str` or `Path`): the run's `output_dir`, or the folder with the traces itself.

    Raises:
        ConfigError: there are no traces.
        OSError: the path of the traces is not a folder, or is a link that leads out of the run.
    """
    if (Path(run) / FOLDER).is_file():
        raise Unreadable(f"{Path(run) / FOLDER} is a file, and should be a folder. Move it away.")
    for folder in (Path(run) / FOLDER, Path(run)):
        if any(parse_name(path) for path in folder.glob("*.jsonl*")):
            return within(folder, Path(run))
    raise ConfigError(f"{run} {_lack_of_traces(Path(run))}")


def output_dir(run: str | Path) -> Path:
    """Return a run's `output_dir`, given the `output_dir` or the folder with attempts in it.

    That folder is `rollouts`, or `completions` of stock TRL. The `output_dir` itself may have such a name.
    """
    path, names = Path(run).resolve(), (FOLDER, trl_completions.FOLDER)
    is_inside = path.name in names and not any((path / name).is_dir() for name in names)
    return path.parent if is_inside else path


def _lack_of_traces(run: Path) -> str:
    """Return the message for a path without traces: the reason, and which path to give instead."""
    if not run.is_dir():
        return f"is not a folder. Give the output_dir of a run: its attempts are in its folder `{FOLDER}`."
    if (run / FOLDER / "run.json").is_file():
        of_a_race = (
            ", or it is the run of stock TRL in a race, which keeps no attempts"
            if (run / RACE_SETTINGS).is_file()
            else ""
        )
        return (
            f"has no attempts in it: the run ended before its first batch was finished{of_a_race}. A subclass of the "
            "trainer that makes its batches without TRL's methods leaves none either."
        )
    runs = sorted(path.parent.name for path in run.glob(f"*/{FOLDER}") if path.is_dir())
    if runs:
        listed = ", ".join([*runs[:5], *(["..."] if runs[5:] else [])])
        return (
            f"has no traces in it, but holds the folders of runs: {listed}. Give one of them, such as {run / runs[0]}."
        )
    return (
        f"has no traces in it. Give the output_dir of a run of GRPOPlusTrainer: its attempts are in its folder "
        f"`{FOLDER}`, unless it ran with trace_every=0. For stock TRL: trl_grpo_plus.attach(trainer) before train()."
    )


def newest_training_file(output_dir: str | Path) -> Path | None:
    """Return the file of attempts of the last training step in a run's folder; `None` if there is none."""
    found = {name: path for path in (Path(output_dir) / FOLDER).glob("train-*") if (name := parse_name(path))}
    return found[max(found)] if found else None


def files(run: str | Path) -> list[tuple[int, str, Path]]:
    """Return step, split and path of each file of attempts, in order: the training of a step before its evaluations.

    Raises:
        ConfigError: there are no traces.
        TracesError: two files hold the same step, such as a file and its compressed copy.
    """
    named = [(*name, path) for path in find(run).iterdir() if (name := parse_name(path))]
    named.sort(key=lambda item: (item[0], item[1] != "train", *item[1:]))
    for (step, split, path), (*following, other) in pairwise(named):
        if [step, split] == following:
            raise TracesError(f"{path} and {other.name} hold the attempts of the same step. Move one of them away.")
    return named


def groups(run: str | Path, split: str | None = None, since: int = 0) -> Iterator[list[dict[str, Any]]]:
    """Yield each group of attempts, by step, the training of a step before its evaluations.

    Only whole groups are yielded: a group that was cut off because the run was killed while writing is left out.

    Args:
        run (`str` or `Path`): the run's `output_dir`.
        split (`str`, *optional*): the split to read; by default all.
        since (`int`, *optional*, defaults to `0`): the first step to read.

    Raises:
        ConfigError: there are no traces.
    """
    for step, of, path in files(run):
        if of != (split or of) or step < since:
            continue
        for rows, _, _ in whole_groups(lines(path), path):
            yield [{**row, "step": step, "split": of} for row in rows]


def whole_groups(lines: Iterable[bytes], path: Path) -> Iterator[tuple[list[dict[str, Any]], int, int]]:
    """Yield each whole group among a file's lines, with the offsets from the first line at which it begins and ends.

    Raises:
        TracesError: as for [`read_lines`]. The groups before the bad line are yielded first.
    """
    rows: list[dict[str, Any]] = []
    first = after = 0
    for line in lines:
        row = parse(line, path)
        if rows and group_key(row) != group_key(rows[0]):
            rows, first = [], after
        rows.append(row)
        after += len(line)
        if len(rows) == row["size"]:
            yield rows, first, after
            rows, first = [], after


def journal(run: str | Path, name: str) -> list[dict[str, Any]]:
    """Return the entries of a journal, in order; empty if its file is missing.

    "metrics" holds the trainer's log entries, "alarms" the alarms that came on, "first_prompt" a single entry.
    """
    path = find(run) / f"{name}.jsonl"
    return list(read_lines(path)) if path.exists() else []


def about(run: str | Path) -> dict[str, Any]:
    """Return the description of the run in run.json.

    It holds `rewards` (name -> weight), `num_generations`, `max_steps` and the limits that groups were judged by
    (`zero_variance_tolerance`, `solved_reward`, `failed_reward`). It also holds the result of
    [`trl_grpo_plus.trainer.run_metadata.describe`].
    """
    return shown_about(read_object(find(run) / "run.json"))


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one if there is no file.

    Raises:
        TracesError: the file holds no JSON object, or not one of the shape that a file of this name has.
    """
    if not path.exists():
        return {}
    with open_within(path, path.parent) as file:
        data = file.read()
    try:
        value = _json(data)
    except (ValueError, RecursionError) as error:
        raise TracesError(f"{path} is not JSON: {error}. Correct it, or remove it.") from None
    kind = "" if isinstance(value, dict) else "it is no JSON object"
    if why := kind or schema.misfit(value, _OBJECTS.get(path.name, {})):
        raise TracesError(f"{path} does not have the expected content: {why}. Correct it, or remove it.")
    return value


def evaluated(entry: dict[str, Any]) -> tuple[str, float] | None:
    """Return the split ("eval" or "eval_<name>") and mean reward of a log entry; `None` for other entries."""
    prefix = _metric_prefix(entry)
    reward = finite_or_none(entry.get(f"{prefix}_reward", entry.get("eval_reward"))) if prefix else None
    return None if prefix is None or reward is None else (split_name(prefix), reward)


def by_split(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a log entry in which each metric of an evaluation is called `<split>/<metric>`.

    Example:
        >>> by_split({"step": 8, "eval_easy_runtime": 1.5, "eval_reward": 0.5})
        {'step': 8, 'eval_easy/runtime': 1.5, 'eval_easy/reward': 0.5}
    """
    prefix = _metric_prefix(entry)
    return entry if prefix is None else {_split_metric(key, prefix): value for key, value in entry.items()}


def _metric_prefix(entry: dict[str, Any]) -> str | None:
    """Return the prefix of an evaluation's metrics, "eval" or "eval_<name>"; `None` for other entries."""
    # TRL lets its metrics begin with `eval_` for every split; only the Trainer's own keys name the split.
    ends = (key for key in entry if key.endswith("_runtime"))
    return next((match[1] for key in ends if (match := _EVALUATED.fullmatch(key))), None)


def _split_metric(key: str, prefix: str) -> str:
    start = next((start for start in (f"{prefix}_", "eval_") if key.startswith(start)), "")
    return f"{split_name(prefix)}/{key.removeprefix(start)}" if start else key


def series(entries: Iterable[dict[str, Any]]) -> dict[str, Points]:
    """Return the points of each metric in log entries. A metric of an evaluation is called `<split>/<metric>`.

    If a metric was logged twice at a step, the last value counts. A value that is not finite is left out.

    Example:
        >>> series([{"step": 8, "kl": 0.5}, {"step": 8, "eval_easy_runtime": 1.5, "eval_reward": 0.25}])
        {'kl': [[8, 0.5]], 'eval_easy/runtime': [[8, 1.5]], 'eval_easy/reward': [[8, 0.25]]}
    """
    found: dict[str, dict[int, float]] = {}
    for entry in entries:
        for name, value in by_split(entry).items():
            if name not in _NO_METRICS and (number := finite_or_none(value)) is not None:
                found.setdefault(name, {})[entry["step"]] = number
    return {name: [[step, value] for step, value in sorted(points.items())] for name, points in found.items()}


def is_reward(name: str) -> bool:
    """Return whether a metric of [`series`] is the total reward of an evaluation, such as `eval_easy/reward`."""
    return name.startswith("eval") and name.endswith("/reward") and name.count("/") == 1


def evaluations(entries: Iterable[dict[str, Any]]) -> dict[str, Points]:
    """Return the evaluations among log entries: by split, [step, mean reward] of each in the order of the entries."""
    found: dict[str, Points] = {}
    for entry in entries:
        if (evaluation := evaluated(entry)) is not None:
            found.setdefault(evaluation[0], []).append([entry["step"], evaluation[1]])
    return found


def split_name(metric_key_prefix: str) -> str:
    """Return the name of an evaluation's split in traces and their files, from the prefix of its metrics."""
    name = re.sub(r"[^\w.-]", "_", metric_key_prefix)
    return name if name.startswith("eval") else f"eval_{name}"


def check_split_names(eval_dataset: Any) -> None:
    """Refuse evaluation sets whose attempts would be written to the same files.

    Raises:
        ConfigError: two keys of `eval_dataset` differ only in characters that the files' names cannot have.
    """
    names: dict[str, str] = {}
    for key in eval_dataset if isinstance(eval_dataset, dict) else ():
        name = split_name(f"eval_{key}")
        if name in names:
            raise ConfigError(
                f"eval_dataset: the traces of {names[name]!r} and of {key!r} would have the same files, {name}-*. "
                "Rename one of them: names of files hold letters, digits, '_', '.' and '-'."
            )
        names[name] = key


def parse_name(path: Path) -> tuple[int, str] | None:
    """Return step and split of a file of attempts, from its name; `None` for another file."""
    match = _FILE.fullmatch(path.name)
    return (int(match["step"]), match["split"]) if match else None


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects in a file, up to a line that was cut off because the run was killed.

    Raises:
        TracesError: an earlier line is not a JSON object, or not one of the shape that a file of this name has. The
            message gives the line's number and the count of further bad lines.
    """
    for line in lines(path):
        yield parse(line, path)


def lines(path: Path, start: int = 0) -> Iterator[bytes]:
    """Yield the whole lines of a file, up to a line that was cut off because the run was killed.

    `start` is an offset in the file: of a line, or of a gzip member.

    Raises:
        TracesError: the compressed data are damaged.
    """
    with open_within(path, path.parent) as raw, _unpacked(raw, path) as file:
        raw.seek(start)
        try:
            for line in file:
                if not line.endswith(b"\n"):
                    return
                yield line
        except (EOFError, gzip.BadGzipFile):  # cut off in a gzip member or in its header
            return
        except zlib.error as error:
            raise damaged(path, error) from None


def damaged(path: Path, error: Exception) -> TracesError:
    """Return the error for a file whose compressed data cannot be read."""
    return TracesError(f"{path} is damaged ({error}). Move it away, or take it from a copy.")


def parse(line: bytes, path: Path, checks: bool = True) -> dict[str, Any]:
    """Return the object in a whole line of a file.

    Without `checks` it may be any JSON. Checking an attempt takes four times as long as reading it.

    Raises:
        TracesError: as for [`read_lines`].
    """
    try:
        value = _json(line)
    except (ValueError, RecursionError):
        raise TracesError(_problem(path)) from None
    if checks and _misfit(value, path):
        raise TracesError(_problem(path))
    return value


def _problem(path: Path) -> str:
    """Describe the fault of the first bad line of a file, and count the others."""
    found = [(number, why) for number, line in enumerate(lines(path), 1) if (why := _fault(line, path))]
    if not found:
        return f"{path} was changed while it was read. Read it again."
    (number, why), *others = found
    more = f" {len(others)} more {'line' if len(others) == 1 else 'lines'} of it cannot be read." if others else ""
    return f"{path}, line {number} is {why}. Correct or remove it to read the rest.{more}"


def _fault(line: bytes, path: Path) -> str:
    try:
        why = _misfit(_json(line), path)
    except (ValueError, RecursionError) as error:
        why = f"no JSON object ({error})"
    shown = line[:_MOST_SHOWN].decode(errors="replace").strip()
    return f"{why}: {shown!r}" if why.startswith("no JSON object") else why


def _misfit(value: Any, path: Path) -> str:
    """Describe what is wrong with the value of a line; "" if nothing is."""
    if not isinstance(value, dict):
        return f"no JSON object ({type(value).__name__})"
    kind, needed, of = _ATTEMPTS if parse_name(path) else _ENTRIES.get(path.name, ("", [], {}))
    lacks = schema.lacking(value, *needed)
    where = attempt_label(value)[:200] if of is schema.ATTEMPT else ""
    why = f"it has no {lacks}" if lacks else schema.misfit(value, of, where) or (schema.beyond(value) if where else "")
    return f"{kind}: {why}" if why else ""


def _json(data: bytes) -> Any:
    if _LONG_NUMBER not in data.translate(_DIGITS):
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:  # NaN, lone surrogates, other encodings; or not JSON, which is reported below
            pass
    return _decode(data.decode(json.detect_encoding(data), "surrogatepass"))


def _unpacked(file: IO[bytes], path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(file)) if path.suffix == ".gz" else file


def group_key(row: dict[str, Any]) -> GroupKey:
    """Return the key of an attempt's group within its step."""
    return row["batch"], row["round"], row["group"]


def attempt_label(row: Mapping[str, Any]) -> str:
    """Return the place of an attempt, for error messages. The line may lack some of the keys."""
    return ", ".join(f"{key} {row.get(key)}" for key in ("split", "step", "batch", "round", "group", "attempt"))


def by_group(rows: Iterable[dict[str, Any]]) -> dict[GroupKey, list[dict[str, Any]]]:
    """Return the rows of a batch by group. The rows of a group must be consecutive, as in a trace."""
    return {key: list(group) for key, group in groupby(rows, key=group_key)}
