"""The plan of a race: one recipe run by stock TRL's trainer and by this package's trainer.

Both runs get the recipe's model, data, rewards, seed, learning rate and rollouts per step, and the command line's
options. Stock TRL's run gets its own group size, and no option that this package adds.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from ...launch.accelerate import RUN_AS, on_cpu, setting
from ...launch.launchers import THREADS, Start, cpu_threads, launch_command
from ...utils.resources import processors
from ...utils.validation import ConfigError, Number


STOCK, PLUS = "stock_trl", "trl_grpo_plus"  # folders of the two runs
NAMES = {STOCK: "stock TRL", PLUS: "trl_grpo_plus"}
RACER = "TRL_GRPO_PLUS_RACER"  # environment variable: the name of a process's run
SCRIPT = "trl_grpo_plus.cli.race.script"
RESULT, PICTURE = "race.json", "race.png"


@dataclass(frozen=True)
class Lane:
    """One of the two runs.

    Args:
        name (`str`): `STOCK` or `PLUS`.
        folder (`Path`): output_dir of the run.
        start ([`~trl_grpo_plus.launch.launchers.Start`]): the run.
    """

    name: str
    folder: Path
    start: Start

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
        folder (`Path`): folder of both runs.
        lanes (`tuple[Lane, ...]`): the two runs, stock TRL first.
        together (`bool`): whether the runs go side by side.
    """

    folder: Path
    lanes: tuple[Lane, ...]
    together: bool


def plan(start: Start, baseline_generations: int = 8, evaluations: int = 10) -> Race:
    """Return the race that a command line describes.

    Args:
        start ([`~trl_grpo_plus.launch.launchers.Start`]): both runs, except that `num_generations` among the options
            is for this package's run only.
        baseline_generations (`int`, *optional*, defaults to `8`): `num_generations` of stock TRL's run.
        evaluations (`int`, *optional*, defaults to `10`): number of evaluations during training, at least 2.

    Raises:
        ConfigError: a number is too small, or an option does not work for two runs.
    """
    recipe, options = start.recipe, start.options
    Number(at_least=2, integer=True).check("--baseline_generations", baseline_generations)
    Number(at_least=2, integer=True).check("--evaluations", evaluations)
    given = {word.partition("=")[0].replace("-", "_").strip("_") for word in options if word.startswith("--")}
    if "resume_from_checkpoint" in given:
        raise ConfigError(
            "--resume_from_checkpoint resumes one run, and a race has two. Use --resume to continue both."
        )
    if "eval_strategy" in given and setting("eval_strategy", recipe, options) == "no":
        raise ConfigError("A race compares held-out rewards, and --eval_strategy no measures none. Leave it out.")
    folder = Path(f"{Path(str(setting('output_dir', recipe, options) or 'trainer_output'))}_race")
    attempts = setting("num_generations_eval", recipe, options) or setting("num_generations", recipe, options) or 8
    # The last option wins: users may evaluate more often, but not change the options that keep the runs comparable.
    first = ["--eval_on_start", "true", "--eval_strategy", "steps", "--eval_steps", f"{1 / evaluations - 1e-9:.9f}"]
    last = ["--logging_strategy", "steps", "--logging_steps", "1", "--num_generations_eval", str(attempts)]
    own = {STOCK: ["--num_generations", str(baseline_generations)], PLUS: []}
    lanes = []
    for name in (STOCK, PLUS):
        of_lane = (*first, *options, *last, *own[name], "--output_dir", str(folder / name))
        lanes.append(Lane(name, folder / name, replace(start, options=of_lane)))
    alone = start.accelerate_config is None and start.num_processes in (None, 1) and on_cpu(recipe, options)
    return Race(folder, tuple(lanes), alone and processors() > 1)


def command(race: Race, lane: Lane, go_on_with: str) -> tuple[list[str], dict[str, str]]:
    """Return the command of a run and its environment; `go_on_with` is the command that continues the race."""
    start = lane.start
    if list(lane.folder.glob("checkpoint-[0-9]*")):
        start = replace(start, options=(*start.options, "--resume_from_checkpoint", "auto"))
    command = launch_command(start, SCRIPT)
    environment = {**os.environ, **cpu_threads(start), RACER: lane.name, RUN_AS: go_on_with, "PYTHONUNBUFFERED": "1"}
    if race.together and THREADS not in os.environ:  # also for a run that continues alone
        environment[THREADS] = str(max(1, processors() // len(race.lanes)))
    return command, environment
