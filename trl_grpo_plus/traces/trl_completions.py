"""Reads the files that stock TRL writes with `log_completions=True`, as `completions/completions_00050.parquet`.

The files are in the `output_dir`. They hold the prompt, the completion, one column per reward function, the values
that rewards logged, and the advantage. They do not say which columns are rewards, the rewards' weights, the number of
attempts in a group, which rows are evaluations, or the outcome of a reward that failed. So columns of floats between
the completion and the advantage are taken for rewards, their unweighted sum for the total, and consecutive rows with
one prompt for a group.
"""

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from ..utils.files import TracesError, open_within
from ..utils.validation import finite_or_none


FOLDER = "completions"
NOTE = (
    "Read from TRL's own completions: verdicts, outcomes, weights, rounds, token counts and splits are not in them. "
    "Columns of floats are taken for rewards (a float logged by a reward looks the same), the total is their "
    "unweighted sum, and consecutive rows with one prompt are taken for a group. So groups with equal prompts look "
    "like one, and a group whose prompts an environment changes looks like several. Runs with attach tell them apart."
)


def files(run: str | Path) -> list[Path]:
    """Return the files in a run's `output_dir` or in its `completions` folder, by step; `[]` if there are none."""
    for folder in (Path(run) / FOLDER, Path(run)):
        if paths := sorted(folder.glob("completions_*.parquet"), key=lambda path: (len(path.name), path.name)):
            return paths
    return []


def groups(run: str | Path) -> Iterator[list[dict[str, Any]]]:
    """Yield each group of attempts as rows like those of `traces.groups`; values that TRL lacks are `None` or empty.

    Raises:
        TracesError: a file cannot be read, or is not one of TRL's.
        OSError: a file is a link that leads out of the run.
    """
    for path in files(run):
        for number, rows in enumerate(_of_file(path, Path(run))):
            yield [_row(row, number, attempt, len(rows)) for attempt, row in enumerate(rows)]


def _of_file(path: Path, run: Path) -> list[list[dict[str, Any]]]:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    with open_within(path, run) as file:
        try:
            table = pq.read_table(file)
        except (OSError, pa.ArrowInvalid) as error:
            raise TracesError(
                f"{path} cannot be read as parquet ({error}). Move it away if a kill cut it off."
            ) from error
    missing = {"step", "prompt", "completion", "advantage"} - set(table.column_names)
    if missing:
        raise TracesError(f"{path} lacks {', '.join(sorted(missing))}: not a file of TRL's log_completions.")
    steps = table.column("step")
    if not pa.types.is_integer(steps.type) or steps.null_count:
        raise TracesError(f"{path} has a step that is no whole number: not a file of TRL's log_completions.")
    names = table.column_names
    between = names[names.index("completion") + 1 : names.index("advantage")]
    rewards = [name for name in between if pa.types.is_floating(table.schema.field(name).type)]
    rows = [{**row, "_rewards": rewards, "_between": between} for row in table.to_pylist()]
    return [list(same) for _, same in groupby(rows, key=lambda row: json.dumps(row["prompt"], default=str))]


def _row(row: dict[str, Any], number: int, attempt: int, size: int) -> dict[str, Any]:
    scores = {name: finite_or_none(row[name]) for name in row["_rewards"]}
    finite_scores = [score for score in scores.values() if score is not None]
    return {
        "step": int(row["step"]),
        "split": "train",
        "batch": 0,
        "round": 0,
        "group": number,
        "attempt": attempt,
        "size": size,
        "prompt": row["prompt"],
        "completion": row["completion"],
        "reference": {},
        "rewards": scores,
        "steps": {},
        "outcomes": {},
        "reward": sum(finite_scores) if finite_scores else None,
        "advantage": finite_or_none(row["advantage"]),
        **dict.fromkeys(("verdict", "kept", "reason", "tokens", "truncated", "kl")),
        "extra": {name: row[name] for name in row["_between"] if name not in scores and row[name] is not None},
        "alarms": [],
    }
