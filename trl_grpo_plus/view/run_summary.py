"""A run as others are laid beside it: what it logged, what its steps had cost, its options, and what came of it.

All of it from files of plain data: journals, trainer_state.json, run.json, a race's settings. Nothing is unpickled.
"""

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from .. import traces
from ..traces import Row
from ..utils.files import within
from ..utils.validation import finite_or_none
from .group_data import thin


Points = list[list[float]]  # [x, y], by x

# What two seeds of one setting may differ in.
OF_A_SEED = (
    *("seed", "data_seed", "output_dir", "run_name", "logging_dir", "hub_model_id"),
    *("project", "trackio_space_id", "started", "finished"),
)
AXES = ("rollouts", "tokens", "seconds")  # beside the steps
_RUNS_OWN = ("step", "total_flos")  # keys of a log entry that are no metric
RACE_SETTINGS = "race_settings.json"  # that trl-grpo-plus race leaves


@dataclass(frozen=True)
class Run:
    """One of the runs.

    Args:
        name (`str`): what it is called beside the others.
        folder (`Path`): its output_dir.
    """

    name: str
    folder: Path

    @cached_property
    def rollouts(self) -> Path | None:
        """Where its traces are, if it has any."""
        try:
            return traces.find(self.folder)
        except ValueError:
            return None

    @property
    def traced(self) -> bool:
        """Whether it has traces."""
        return self.rollouts is not None

    @cached_property
    def of_stock_trl(self) -> bool:
        """Whether its attempts are in TRL's own files alone."""
        return not self.traced and bool(traces.trl_completions.files(self.folder))

    @cached_property
    def log(self) -> list[Row]:
        """What the trainer logged, in order: of the journal, else of the trainer_state.json that got furthest."""
        journal = self._of_traces("metrics.jsonl")
        if journal.exists() and (entries := list(traces.read_lines(journal))):
            return entries
        return max((state.get("log_history") or [] for state in self._states()), key=_last_step, default=[])

    def groups(self) -> Iterator[list[Row]]:
        """Its groups of attempts; none where it kept none."""
        if self.traced:
            return traces.groups(self.folder)
        return traces.trl_completions.groups(self.folder) if self.of_stock_trl else iter(())

    @cached_property
    def series(self) -> dict[str, Points]:
        """Metric -> its values over the steps done. One of an evaluation is called `<split>/<metric>`."""
        found: dict[str, dict[int, float]] = defaultdict(dict)
        for entry in self.log:
            split = next((key.removesuffix("_runtime") for key in entry if _names_a_split(key)), None)
            for key, value in entry.items():
                number = finite_or_none(value)
                if number is not None and key not in _RUNS_OWN and not key.startswith("train_"):
                    found[_named(key, split)][entry["step"]] = number
        return {name: [[step, value] for step, value in sorted(points.items())] for name, points in found.items()}

    @cached_property
    def axes(self) -> dict[str, Points]:
        """Of each axis that is known: what had been spent after each step logged.

        `seconds` are the run's `step_time`, summed: sampling, scoring and training, without evaluations, checkpoints
        and the start. `tokens` are `num_tokens`, which TRL counts: prompts and completions of what was trained on.
        """
        rate = self.race.get("rollouts")
        spent = {"rollouts": self.series.get("rollouts", []), "tokens": self.series.get("num_tokens", [])}
        if not spent["rollouts"] and rate:
            spent["rollouts"] = [[step, step * rate] for step in sorted({int(entry["step"]) for entry in self.log})]
        seconds, before = 0.0, 0.0
        spent["seconds"] = []
        for step, took in self.series.get("step_time", []):  # a mean since the entry before
            seconds += took * (step - before)
            before = step
            spent["seconds"].append([step, round(seconds, 3)])
        return {name: [[0, 0], *(p for p in points if p[0])] for name, points in spent.items() if points}

    @cached_property
    def about(self) -> Row:
        """Its run.json; empty where there is none."""
        return traces.shown_about(traces.read_object(self._of_traces("run.json")))

    @cached_property
    def race(self) -> Row:
        """What a race noted of it."""
        return traces.shown_about(traces.read_object(self.folder / RACE_SETTINGS))

    @cached_property
    def options(self) -> dict[str, Any]:
        """Each option that is known of it, from run.json, a race's settings and trainer_state.json."""
        told = {key: value for key, value in self.about.items() if key != "rewards"}
        weights = {f"weight of {name}": value for name, value in (self.about.get("rewards") or {}).items()}
        raced = {key: value for key, value in self.race.items() if key not in ("prompts", "splits", "rollouts")}
        state: Row = next(self._states(), {})
        kept: Row = {key: state[key] for key in ("max_steps", "num_train_epochs", "train_batch_size") if key in state}
        known: Row = {**kept, **_flat(raced), **_flat(told), **weights}
        return {key: self._at_home(value) for key, value in known.items()}

    def _at_home(self, value: Any) -> Any:
        """Return a path within the run's own folder, such as that of a warm start, without what comes before."""
        _, within, rest = value.partition(f"{self.folder.name}/") if isinstance(value, str) else ("", "", "")
        return f"output_dir/{rest}" if within else value

    @property
    def tells_all(self) -> bool:
        """Whether all its options are known: else nobody can say that it differs from another in the seed alone."""
        options = self.about.get("options")
        return isinstance(options, dict) and not traces.hides(options)

    @property
    def setting(self) -> str:
        """The same for two runs that differ in the seed alone."""
        if not self.tells_all:
            return str(self.folder)
        return json.dumps({key: v for key, v in self.options.items() if key not in OF_A_SEED}, sort_keys=True)

    @property
    def outcome(self) -> dict[str, Any]:
        """Steps; `splits`, each split's first and last evaluation as [[step, reward], [step, reward]]; what was spent;
        how often each alarm came on, `None` where nobody watched.
        """
        rewards = {name.removesuffix("/reward"): points for name, points in self.series.items() if _is_reward(name)}
        path = self._of_traces("alarms.jsonl")
        alarms = Counter(alarm["name"] for alarm in traces.read_lines(path)) if path.exists() else {}
        return {
            "steps": _last_step(self.log) if self.log else None,
            "splits": {split: [points[0], points[-1]] for split, points in rewards.items()},
            **{axis: points[-1][1] for axis, points in self.axes.items()},
            "alarms": dict(alarms) if self.traced else None,
        }

    def _of_traces(self, name: str) -> Path:
        return within(self.folder / traces.FOLDER, self.folder) / name

    def _states(self) -> Iterator[Row]:
        """Each trainer_state.json, the furthest first. A checkpoint that is a link is not looked into."""
        found = self.folder.glob("checkpoint-[0-9]*/trainer_state.json")
        paths = [*(path for path in found if not path.parent.is_symlink()), self.folder / "trainer_state.json"]
        yield from sorted(map(traces.read_object, paths), key=lambda state: -(state.get("global_step") or 0))


def open_runs(paths: Sequence[str | Path]) -> list[Run]:
    """Return the runs in these folders, each called by as much of its path as tells it from the others.

    Raises:
        ValueError: one is no run, or two are the same.
    """
    folders = [_output_dir(path) for path in paths]
    for number, (path, folder) in enumerate(zip(paths, folders, strict=True)):
        if folder in folders[:number]:
            raise ValueError(f"{path} is the same run as {paths[folders.index(folder)]}. Name each run once.")
        run = Run("", folder)
        if not folder.is_dir():
            raise ValueError(f"{path} is not a folder. Give the output_dir of each run.")
        if not (run.traced or run.of_stock_trl or run.log):
            raise ValueError(
                f"{path} is no run: it has neither attempts ({traces.FOLDER}/, or TRL's completions/) nor a log "
                f"({traces.FOLDER}/metrics.jsonl, trainer_state.json). Give the output_dir of each run."
            )
    return [Run(name, folder) for name, folder in zip(_names(folders), folders, strict=True)]


def shared_folder(folders: Sequence[Path]) -> Path:
    """Return the innermost folder that holds all of these and is none of them."""
    common = Path(os.path.commonpath(folders))
    # What lies in a run's own folder may be uploaded with its model.
    return common.parent if common in folders else common


def differing(settings: Sequence[Sequence[Run]]) -> list[list[Any]]:
    """[option, its value in each setting as text] of each option that is not the same in all of them.

    A value is `None` where it is not known. What a setting's own runs differ in, the seeds, stands with commas.
    """
    names = sorted({name for runs in settings for run in runs for name in run.options})
    rows = []
    for name in names:
        cells = [_cell(name, runs) for runs in settings]
        if len(set(cells)) > 1:
            rows.append([name, *cells])
    return rows


def _cell(name: str, runs: Sequence[Run]) -> str | None:
    # run.json has the options that are not at their defaults.
    unsaid = "default" if runs[0].tells_all else None
    values = [run.options.get(name, unsaid) for run in runs]
    texts = dict.fromkeys(
        value if isinstance(value, str) else json.dumps(value) for value in values if value is not None
    )
    return ", ".join(texts) if texts else None


def sampled(points: Points) -> Points:
    """So many of a metric's points as a plot shows."""
    return thin(points, 1000)


# -- files and names


def _output_dir(path: str | Path) -> Path:
    folder = Path(path).resolve()
    return folder.parent if folder.name in (traces.FOLDER, "completions") else folder


def _names(folders: Sequence[Path]) -> list[str]:
    if len({folder.name for folder in folders}) == len(folders):
        return [folder.name for folder in folders]
    root = shared_folder(folders)
    return [str(folder.relative_to(root)) for folder in folders]


def _flat(values: Row) -> Row:
    """Options in a dict of their own beside the others; other dicts as `name.key`."""
    flat: Row = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= {name if key == "options" else f"{key}.{name}": inner for name, inner in _flat(value).items()}
        else:
            flat[key] = value
    return flat


def _last_step(log: list[Row]) -> int:
    return log[-1]["step"] if log else -1


def _names_a_split(key: str) -> bool:
    return key.startswith("eval_") and key.endswith("_runtime")


def _named(key: str, split: str | None) -> str:
    """Return a metric's name; TRL begins those of an evaluation with `eval_` whatever its split is called."""
    if split is None:
        return key
    rest = key.removeprefix(f"{split}_") if key.startswith(f"{split}_") else key.removeprefix("eval_")
    return key if rest == key else f"{traces.split_name(split)}/{rest}"


def _is_reward(name: str) -> bool:
    return name.startswith("eval") and name.endswith("/reward") and name.count("/") == 1
