"""A run's data for the comparison page: its logged metrics, the cost of its steps, its options, and its outcome.

All data comes from text files: journals, trainer_state.json, run.json, and a race's settings. Nothing is unpickled.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from .. import traces
from ..traces import Points, Row, is_reward
from ..utils.files import within
from ..utils.validation import ConfigError
from .run_source import WITHIN_RUN, short_paths


# Options that may differ between two seeds of one setting.
OF_A_SEED = (
    "seed",
    "data_seed",
    "output_dir",
    "run_name",
    "logging_dir",
    "hub_model_id",
    "project",
    "trackio_space_id",
    "started",
    "finished",
)
AXES = ("rollouts", "tokens", "seconds")  # the x axes besides the steps
# Beginnings of names that have no default: of rewards, evaluations, packages and datasets, and of adapters.
_NO_OPTIONS, _OF_ADAPTERS = ("weight of ", "evaluations.", "versions.", "dataset."), "adapter."
_PATHS = ("model", "dataset.name")  # options that may be a local path


@dataclass(frozen=True)
class Run:
    """One of the compared runs.

    Args:
        name (`str`): the run's name on the page.
        folder (`Path`): the run's output_dir.
    """

    name: str
    folder: Path

    @cached_property
    def rollouts(self) -> Path | None:
        """Folder of the run's traces; `None` if there are none."""
        try:
            return traces.find(self.folder)
        except ValueError:
            return None

    @cached_property
    def of_stock_trl(self) -> bool:
        """True if the run's attempts are in TRL's own files only."""
        return self.rollouts is None and bool(traces.trl_completions.files(self.folder))

    @property
    def keeps_attempts(self) -> bool:
        """True if the run's folder has attempts, in its traces or in TRL's own files."""
        return self.rollouts is not None or self.of_stock_trl

    @cached_property
    def log(self) -> list[Row]:
        """Log entries of the trainer, in order: of the journal, or else of the most advanced trainer_state.json."""
        journal = self._of_traces("metrics.jsonl")
        if journal.exists() and (entries := list(traces.read_lines(journal))):
            return entries
        return max((state.get("log_history") or [] for state in self._states()), key=_last_step, default=[])

    def groups(self) -> Iterator[list[Row]]:
        """Return the run's groups of attempts; empty if it kept none."""
        return traces.trl_completions.groups(self.folder) if self.rollouts is None else traces.groups(self.folder)

    @cached_property
    def series(self) -> dict[str, Points]:
        """Points of each metric over the steps done. A metric of an evaluation is called `<split>/<metric>`."""
        return {name: of for name, of in traces.series(self.log).items() if not name.startswith("train_")}

    @cached_property
    def axes(self) -> dict[str, Points]:
        """Points of each known axis: the amount spent after each logged step.

        `seconds` is the sum of the run's `step_time`: sampling, scoring and training, without evaluations, checkpoints
        and the start. `tokens` is TRL's `num_tokens`: prompt and completion tokens that were trained on.
        """
        rate = self.race.get("rollouts")
        spent = {"rollouts": self.series.get("rollouts", []), "tokens": self.series.get("num_tokens", [])}
        if not spent["rollouts"] and rate:
            spent["rollouts"] = [[step, step * rate] for step in sorted({int(entry["step"]) for entry in self.log})]
        seconds, before = 0.0, 0.0
        spent["seconds"] = []
        for step, took in self.series.get("step_time", []):  # the mean over the steps since the entry before
            seconds += took * (step - before)
            before = step
            spent["seconds"].append([step, round(seconds, 3)])
        return {name: [[0, 0], *(p for p in points if p[0])] for name, points in spent.items() if points}

    @cached_property
    def about(self) -> Row:
        """Content of the run's run.json; empty if there is none."""
        return traces.shown_about(traces.read_object(self._of_traces("run.json")))

    @cached_property
    def race(self) -> Row:
        """Settings that a race recorded for the run; empty if there are none."""
        return traces.shown_about(traces.read_object(self.folder / traces.RACE_SETTINGS))

    @cached_property
    def options(self) -> dict[str, Any]:
        """All known options of the run, from run.json, a race's settings and trainer_state.json."""
        from_run_json = {key: value for key, value in self.about.items() if key not in ("rewards", "run")}
        weights = {f"weight of {name}": value for name, value in (self.about.get("rewards") or {}).items()}
        raced = {key: value for key, value in self.race.items() if key not in ("prompts", "splits", "rollouts")}
        state: Row = next(self._states(), {})
        kept: Row = {key: state[key] for key in ("max_steps", "num_train_epochs", "train_batch_size") if key in state}
        options: Row = {**kept, **_flat(raced), **_flat(from_run_json), **weights}
        return {key: self._within_output_dir(value) for key, value in options.items()}

    def _within_output_dir(self, value: Any) -> Any:
        """Rewrite a path within the run's own folder, such as a warm start's, to begin with `output_dir/`.

        A Hub id may begin with the folder's name too. So what may be an id counts as a path only if the file is there.
        """
        _, within, rest = f"/{value}".partition(f"/{self.folder.name}/") if isinstance(value, str) else ("", "", "")
        is_path = within and (value.count("/") > 1 or (self.folder / rest).exists())
        return f"{WITHIN_RUN}{rest}" if is_path else value

    @property
    def tells_all(self) -> bool:
        """True if all options of the run are known.

        Otherwise nobody can say that the run differs from another run in the seed only.
        """
        options = self.about.get("options")
        return isinstance(options, dict) and not traces.hides(options)

    @property
    def setting(self) -> str:
        """Key of the run's setting, equal for two runs that differ in the seed only."""
        if not self.tells_all:
            return str(self.folder)
        return json.dumps({key: v for key, v in self.options.items() if key not in OF_A_SEED}, sort_keys=True)

    @property
    def outcome(self) -> dict[str, Any]:
        """Outcome of the run.

        The keys are `steps`; `splits`, each split's first and last evaluation as [[step, reward], [step, reward]]; the
        total of each known axis; and `alarms`, how often each alarm came on, or `None` if the run has no traces.
        """
        rewards = {name.removesuffix("/reward"): points for name, points in self.series.items() if is_reward(name)}
        path = self._of_traces("alarms.jsonl")
        alarms = Counter(alarm["name"] for alarm in traces.read_lines(path)) if path.exists() else {}
        return {
            "steps": _last_step(self.log) if self.log else None,
            "splits": {split: [points[0], points[-1]] for split, points in rewards.items()},
            **{axis: points[-1][1] for axis, points in self.axes.items()},
            "alarms": None if self.rollouts is None else dict(alarms),
        }

    def _of_traces(self, name: str) -> Path:
        return (self.rollouts or within(self.folder / traces.FOLDER, self.folder)) / name

    def _states(self) -> Iterator[Row]:
        """Yield each trainer_state.json, the most advanced first. A checkpoint that is a symbolic link is skipped."""
        found = self.folder.glob("checkpoint-[0-9]*/trainer_state.json")
        paths = [*(path for path in found if not path.parent.is_symlink()), self.folder / "trainer_state.json"]
        yield from sorted(map(traces.read_object, paths), key=lambda state: -(state.get("global_step") or 0))


def open_runs(paths: Sequence[str | Path]) -> list[Run]:
    """Return the runs in these folders, each named by a part of its path that tells it from the others.

    Raises:
        ConfigError: a folder is not a run, or two are the same.
    """
    folders = [traces.output_dir(path) for path in paths]
    for number, (path, folder) in enumerate(zip(paths, folders, strict=True)):
        if folder in folders[:number]:
            raise ConfigError(f"{path} is the same run as {paths[folders.index(folder)]}. Name each run once.")
        run = Run("", folder)
        if not folder.is_dir():
            raise ConfigError(f"{path} is not a folder. Give the output_dir of each run.")
        if not (run.keeps_attempts or run.log):
            raise ConfigError(
                f"{path} is no run: it has neither attempts ({traces.FOLDER}/, or TRL's completions/) nor a log "
                f"({traces.FOLDER}/metrics.jsonl, trainer_state.json). Give the output_dir of each run."
            )
    return [Run(name, folder) for name, folder in zip(_names(folders), folders, strict=True)]


def shared_folder(folders: Sequence[Path]) -> Path:
    """Return the innermost folder that holds all these folders and is none of them."""
    common = Path(os.path.commonpath(folders))
    # Not a run's own folder: its files may be uploaded with the model.
    return common.parent if common in folders else common


def differing(settings: Sequence[Sequence[Run]]) -> list[list[Any]]:
    """Return `[option, value in each setting as text]` for each option that differs between the settings.

    A value is `None` if it is not known. If the runs of one setting have several values, such as seeds, the values are
    joined with commas.
    """
    names = sorted({name for runs in settings for run in runs for name in run.options})
    rows = []
    for name in names:
        cells = [_cell(name, runs) for runs in settings]
        if len({tuple(cell) for cell in cells}) > 1:
            shown = short_paths(text for cell in cells for text in cell) if name in _PATHS else {}
            rows.append([name, *(", ".join(shown.get(text, text) for text in cell) or None for cell in cells)])
    return rows


def _cell(name: str, runs: Sequence[Run]) -> list[str]:
    """Return the values of an option in the runs of one setting, as texts; empty if none is known."""
    values = (run.options.get(name, _unsaid(name, run)) for run in runs)
    known = (value for value in values if value is not None)
    return list(dict.fromkeys(value if isinstance(value, str) else json.dumps(value) for value in known))


def _unsaid(name: str, run: Run) -> str | None:
    """Return the value of an option that a run's description leaves out; `None` if it is not known."""
    if not run.tells_all:
        return None
    lacks_adapter = name.startswith(_OF_ADAPTERS) and not any(other.startswith(_OF_ADAPTERS) for other in run.options)
    return "none" if lacks_adapter or name.startswith(_NO_OPTIONS) else "default"


# -- files and names


def _names(folders: Sequence[Path]) -> list[str]:
    if len({folder.name for folder in folders}) == len(folders):
        return [folder.name for folder in folders]
    root = shared_folder(folders)
    return [str(folder.relative_to(root)) for folder in folders]


def _flat(values: Row) -> Row:
    """Flatten nested dicts: keys of an `options` dict stay as they are, keys of other dicts become `name.key`."""
    flat: Row = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= {name if key == "options" else f"{key}.{name}": inner for name, inner in _flat(value).items()}
        else:
            flat[key] = value
    return flat


def _last_step(log: list[Row]) -> int:
    return log[-1]["step"] if log else -1
