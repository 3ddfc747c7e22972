"""The plan of a race: one recipe run by stock TRL's trainer and by this package's trainer.

Both runs get the recipe's model, data, rewards, seed, learning rate and rollouts per step, and the command line's
options. Stock TRL's run gets its own group size, and no option that this package adds.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...launch.accelerate import RUN_AS, on_cpu, setting
from ...launch.launchers import launch_command
from ...utils.validation import ConfigError, Number


STOCK, PLUS = "stock_trl", "trl_grpo_plus"  # folders of the two runs
NAMES = {STOCK: "stock TRL", PLUS: "trl_grpo_plus"}
RACER = "TRL_GRPO_PLUS_RACER"  # environment variable: the name of a process's run
SCRIPT = "trl_grpo_plus.cli.race.script"
SETTINGS, RESULT, PICTURE = "race_settings.json", "race.json", "race.png"


@dataclass(frozen=True)
class Lane:
    """One of the two runs.

    Args:
        name (`str`): `STOCK` or `PLUS`.
        folder (`Path`): output_dir of the run.
        options (`tuple[str, ...]`): options of the launch script, without the recipe.
    """

    name: str
    folder: Path
    options: tuple[str, ...]

    @property
    def log(self) -> Path:
        """File with the output of the run."""
        return self.folder.with_suffix(".log")

    @property
    def finished(self) -> bool:
        """True if the run has finished."""
        return (self.folder / "summary.json").exists()


@dataclass(frozen=True)
class Race:
    """A race of two runs.

    Args:
        recipe (`str`): name or file of the recipe.
        folder (`Path`): folder of both runs.
        lanes (`tuple[Lane, ...]`): the two runs, stock TRL first.
        together (`bool`): whether the runs go side by side.
        spread_over (`tuple`): accelerate configuration, processes and GPUs, as `launch_command` takes them.
        launcher (`str`): one of [`~trl_grpo_plus.launch.launchers.LAUNCHERS`].
    """

    recipe: str
    folder: Path
    lanes: tuple[Lane, ...]
    together: bool
    spread_over: tuple[str | None, int | None, int]
    launcher: str = "accelerate"


def plan(
    recipe: str,
    options: Sequence[str],
    spread_over: tuple[str | None, int | None, int],
    baseline_generations: int = 8,
    looks: int = 10,
    launcher: str = "accelerate",
) -> Race:
    """Return the race that a command line describes.

    Args:
        recipe (`str`): a file, or the name of a recipe.
        options (`Sequence[str]`): options of the launch script for both runs, except `num_generations`, which is for
            this package's run only.
        spread_over (`tuple`): accelerate configuration, processes and GPUs.
        baseline_generations (`int`, *optional*, defaults to `8`): `num_generations` of stock TRL's run.
        looks (`int`, *optional*, defaults to `10`): number of evaluations during training, at least 2.
        launcher (`str`, *optional*, defaults to `"accelerate"`): launcher of both runs.

    Raises:
        ConfigError: there is no such recipe, a number is too small, or an option does not work for two runs.
    """
    Number(at_least=2, integer=True).check("--baseline_generations", baseline_generations)
    Number(at_least=2, integer=True).check("--evaluations", looks)
    given = {word.partition("=")[0].replace("-", "_").strip("_") for word in options if word.startswith("--")}
    if "resume_from_checkpoint" in given:
        raise ConfigError(
            "--resume_from_checkpoint resumes one run, and a race has two. Use --resume to continue both."
        )
    folder = Path(str(setting("output_dir", recipe, options) or "trainer_output") + "_race")
    attempts = setting("num_generations_eval", recipe, options) or setting("num_generations", recipe, options) or 8
    # The last option wins: users may evaluate more often, but not change the options that keep the runs comparable.
    first = ["--eval_on_start", "true", "--eval_strategy", "steps", "--eval_steps", f"{1 / looks - 1e-9:.9f}"]
    last = ["--logging_strategy", "steps", "--logging_steps", "1", "--num_generations_eval", str(attempts)]
    own = {STOCK: ["--num_generations", str(baseline_generations)], PLUS: []}
    lanes = tuple(
        Lane(name, folder / name, (*first, *options, *last, *own[name], "--output_dir", str(folder / name)))
        for name in (STOCK, PLUS)
    )
    config, processes, _ = spread_over
    alone = config is None and processes in (None, 1) and on_cpu(recipe, options)
    return Race(recipe, folder, lanes, alone and len(os.sched_getaffinity(0)) > 1, spread_over, launcher)


def command(race: Race, lane: Lane, go_on_with: str) -> tuple[list[str], dict[str, str]]:
    """Return the command of a run and its environment; `go_on_with` is the command that continues the race."""
    options = list(lane.options)
    if list(lane.folder.glob("checkpoint-[0-9]*")):
        options += ["--resume_from_checkpoint", "true"]
    command = launch_command(race.recipe, options, *race.spread_over, script=SCRIPT, launcher=race.launcher)
    environment = {**os.environ, RACER: lane.name, RUN_AS: go_on_with, "PYTHONUNBUFFERED": "1"}
    if race.together:  # also for a run that continues alone
        environment["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // len(race.lanes)))
    return command, environment
