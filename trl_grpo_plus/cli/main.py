"""The command line, `trl-grpo-plus`: ls, cp, run, race, check, view, rescore, export, env."""

import argparse
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from .. import __version__
from ..config.presets import PRESETS
from ..launch import LAUNCHERS, Start, headline, launch_command, recipes
from ..launch.accelerate import RUN_AS, content_of, on_cpu
from ..launch.command_line import set_environment
from ..launch.launchers import cpu_threads, in_this_python
from ..launch.nodes import OPTIONS, Nodes, machines, nodes
from ..launch.recipe_yaml import text_of
from ..utils.files import TracesError, beside
from ..utils.tables import aligned, failures, in_a_line, table
from ..utils.terminal import say, tell_errors_visibly
from ..utils.validation import ConfigError, did_you_mean, error_lines
from . import export, rescore, view
from .check import rewards_command as check_rewards
from .env import described, gpus


CHECK_HELP = """\
Check everything that a recipe needs before you spend GPU-hours on it: keys and values, data, rewards, model, prompt
lengths and batch sizes. Estimates memory and time. Reports all mistakes at once. What this machine cannot check
(no network, no GPU, no vLLM) is marked "not seen". Options that are not listed here go to the recipe.

  trl-grpo-plus check arithmetic_cpu --smoke
  trl-grpo-plus check my_run.yaml --accelerate_config zero2 --gpu A100 --gpu_memory 40
  trl-grpo-plus check my_run.yaml --num_processes 2 --smoke --learning_rate 2e-6

To check rewards alone:  trl-grpo-plus check rewards
"""

RUN_HELP = """\
Launch a recipe with accelerate, and print the accelerate command first. Options that are not listed here go to the
recipe.

  trl-grpo-plus run arithmetic_cpu
  trl-grpo-plus run my_run.yaml --learning_rate 2e-6 --output_dir outputs/second
  trl-grpo-plus run my_run.yaml --accelerate_config zero2 --num_processes 4
  trl-grpo-plus run my_run.yaml --num_machines 2 --machine_rank 0 --main_process_ip node1 --num_processes 16
"""

RACE_HELP = """\
Train a recipe twice and compare: once with stock TRL's trainer, once with this package's trainer and all of the
recipe's keys. Both runs have the same model, data, rewards, seed, learning rate and rollouts per step. A table and a
picture show both held-out rewards by rollouts and by seconds, evaluations not counted. The runs go side by side on two
CPU cores, and one after the other on GPUs. Options that are not listed here go to both runs, except num_generations,
which goes to this package's run only.

  trl-grpo-plus race arithmetic_cpu
  trl-grpo-plus race arithmetic_cpu --baseline_generations 4 --seed 2 --output_dir outputs/second
  trl-grpo-plus race arithmetic_cpu --resume
"""


CHECK_REWARDS = "check rewards"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
        `int`: the exit status: 0, 1 if a check failed, 2 if the command line is wrong, 130 after Ctrl-C.
    """
    tell_errors_visibly()
    parser = _parser()
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:2] == CHECK_REWARDS.split():
        words[:2] = [CHECK_REWARDS]
    options, rest = parser.parse_known_args(_with_name(words))
    if rest and options.run not in (_run, _race, _check):
        names = [word.partition("=")[0] for word in rest if word.startswith("--")]
        meant = "".join(did_you_mean(name, options.option_names) for name in names)
        parser.error(f"unrecognized arguments: {' '.join(rest)}.{meant}")
    options.rest, options.words = rest, words
    try:
        status = options.run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        say("\nStopped.", file=sys.stderr)
        return 128 + signal.SIGINT
    except Exception as error:
        if not _is_users(error):
            raise
        say(error_lines(error), file=sys.stderr)
        return 2


def _is_users(error: Exception) -> bool:
    """Return whether the user's values, files or packages caused an error. Other errors keep their traceback."""
    if isinstance(error, ImportError):  # a package that is missing, or whose release is not supported
        return (error.name or "").partition(".")[0] != __package__.partition(".")[0]
    return isinstance(error, ConfigError | TracesError | OSError | UnicodeDecodeError)


def _with_name(words: list[str]) -> list[str]:
    """Rewrite `run --config FILE`, the launch script's form, into `run FILE`, and leave out a lone `--`."""
    if words[:1] not in (["run"], ["race"], ["check"]):
        return words
    words = [word for word in words if word != "--"]
    for at, word in enumerate(words):
        if word == "--config" and at + 1 < len(words):
            return [words[0], words[at + 1], *words[1:at], *words[at + 2 :]]
        if word.startswith("--config="):
            return [words[0], word.partition("=")[2], *words[1:at], *words[at + 1 :]]
    return words


class _Parser(argparse.ArgumentParser):
    """A parser that suggests the closest command or choice for one that does not exist."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message, and exit."""
        wrong = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message)
        names = [name.strip("'") for name in wrong[2].split(", ")] if wrong else []
        super().error(f"{message}.{did_you_mean(wrong[1], names)}" if wrong else message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="trl-grpo-plus",
        description="Train language models with GRPO on Hugging Face TRL.",
        epilog="trl-grpo-plus COMMAND --help explains a command.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_ls(commands)
    _add_cp(commands)
    _add_run(commands)
    _add_race(commands)
    _add_check(commands)
    summary = "check that rewards score examples and gold answers correctly"
    check_rewards.add_options(_command(commands, CHECK_REWARDS, check_rewards.run, summary, check_rewards.HELP))
    summary = "write a page of a run's curves and attempts, or compare runs"
    view.add_options(_command(commands, "view", view.run, summary, view.HELP))
    summary = "score a run's attempts with another reward"
    rescore.add_options(_command(commands, "rescore", rescore.run, summary, rescore.HELP))
    summary = "write a run's attempts as a dataset to share"
    export.add_options(_command(commands, "export", export.run, summary, export.HELP))
    _command(commands, "env", _env, "show versions, GPUs and missing packages")
    return parser


def _command(
    commands: Any, name: str, run: Callable[..., int], summary: str, description: str | None = None
) -> argparse.ArgumentParser:
    """Add a command, and return its parser."""
    shape: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    description = description or f"{summary[0].upper()}{summary[1:]}."
    added: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=description, **shape)
    added.set_defaults(run=run, option_names=added._option_string_actions)
    return added


def _add_ls(commands: Any) -> None:
    ls = _command(commands, "ls", _ls, "list recipes, advantages, rewards and presets")
    ls.add_argument(
        "what", metavar="WHAT", nargs="?", choices=tuple(LISTS), help=f"one of {', '.join(LISTS)} (default: all)"
    )


def _add_cp(commands: Any) -> None:
    cp = _command(commands, "cp", _cp, "copy a recipe to a file that you can edit")
    cp.add_argument("name", metavar="NAME", help="name of the recipe (trl-grpo-plus ls recipes)")
    cp.add_argument("file", metavar="FILE", nargs="?", help="file to write (default: NAME.yaml in the current folder)")


def _add_run(commands: Any) -> None:
    run = _command(commands, "run", _run, "launch a recipe", RUN_HELP)
    _add_launch_options(run)
    _add_node_options(run)


def _add_race(commands: Any) -> None:
    race = _command(commands, "race", _race, "compare stock TRL's trainer with this package's on a recipe", RACE_HELP)
    _add_launch_options(race)
    race.add_argument(
        "--baseline_generations",
        type=int,
        default=8,
        metavar="N",
        help="num_generations of stock TRL's run (default: 8)",
    )
    race.add_argument(
        "--evaluations", type=int, default=10, metavar="N", help="evaluations during training (default: 10)"
    )
    race.add_argument("--resume", action="store_true", help="continue a race that was interrupted")


def _add_check(commands: Any) -> None:
    check = _command(commands, "check", _check, "check a recipe before you run it", CHECK_HELP)
    _add_launch_options(check)
    _add_node_options(check)
    check.add_argument(
        "--gpu", metavar="NAME", help="GPU to estimate for, such as A100 (default: this machine's, else H100)"
    )
    check.add_argument(
        "--gpu_memory", type=float, metavar="GIB", help="memory of each GPU (default: what that kind of GPU has)"
    )
    check.add_argument(
        "--smoke",
        action="store_true",
        help="also train two real steps of a tiny random model on the CPU; if the recipe is for the CPU and its model "
        "is here, also time that model",
    )


def _add_launch_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "name", metavar="NAME|FILE", help="name of a recipe (trl-grpo-plus ls recipes), or a YAML file"
    )
    command.add_argument(
        "--accelerate_config",
        metavar="NAME|FILE",
        help="one of TRL's accelerate configurations, such as zero2, or a configuration file of accelerate",
    )
    command.add_argument(
        "--num_processes",
        type=int,
        metavar="N",
        help="number of processes, of all nodes together (default: the configuration's, else one per GPU, else one)",
    )
    command.add_argument(
        "--launcher",
        metavar="NAME",
        default="accelerate",
        help=f"what starts them: {' or '.join(LAUNCHERS)} (default: accelerate)",
    )


def _add_node_options(command: argparse.ArgumentParser) -> None:
    for launcher, of_launcher in OPTIONS.items():
        group = command.add_argument_group(f"several nodes, with --launcher {launcher}")
        for name, text in of_launcher.items():
            group.add_argument(f"--{name}", metavar="VALUE", help=text)
            if "_" in name:  # also accept torchrun's spelling with dashes, but hide it in the help
                hidden = argparse.SUPPRESS
                group.add_argument(f"--{name.replace('_', '-')}", dest=name, default=hidden, help=hidden)


def _nodes(options: argparse.Namespace) -> Nodes:
    names = {name for of_launcher in OPTIONS.values() for name in of_launcher}
    given = {name: value for name, value in vars(options).items() if name in names}
    config = options.accelerate_config
    return nodes(options.launcher, given, content_of(config) if config else None)


def _ls(options: argparse.Namespace) -> int:
    shown = [options.what] if options.what else LISTS
    for number, what in enumerate(shown):
        lines = aligned((f"  {name}", line) for name, line in LISTS[what]().items())
        say("\n".join([*([""] if number else []), *([what] if len(shown) > 1 else []), *lines]))
    return 0


def _advantages() -> dict[str, str]:
    from ..registry import list_advantages

    return list_advantages()


def _rewards() -> dict[str, str]:
    from ..registry import find, list_rewards

    def line(name: str) -> str:
        try:
            return (find(name).function.__doc__ or "").strip().partition("\n")[0]
        except Exception as error:  # one broken package must not hide the others' rewards
            return f"cannot be loaded: {in_a_line(error)}"

    return {name: line(name) for name in list_rewards()}


# The lists that `ls` prints: list -> function that returns name -> line.
LISTS: dict[str, Callable[[], dict[str, str]]] = {
    "recipes": lambda: {name: headline(recipe) for name, recipe in recipes().items()},
    "advantages": _advantages,
    "rewards": _rewards,
    "presets": lambda: {name: preset.changes for name, preset in PRESETS.items()},
}


def _cp(options: argparse.Namespace) -> int:
    files = recipes()
    if options.name not in files:
        raise ConfigError(
            f"There is no recipe {options.name!r}, only {', '.join(files)}.{did_you_mean(options.name, files)}"
        )
    target = options.file or f"{options.name}.yaml"
    if os.path.isdir(target) or target.endswith("/"):
        target = os.path.join(target, f"{options.name}.yaml")
    try:
        with open(target, "x", encoding="utf-8") as file:
            file.write(text_of(files[options.name]))
    except FileExistsError:
        raise ConfigError(f"{target} already exists. Choose another name, or remove it.") from None
    except FileNotFoundError:
        folder = os.path.dirname(target)
        if os.path.isdir(folder):
            raise
        make = f"mkdir -p {shlex.quote(folder)}"
        raise ConfigError(f"there is no folder {folder}.{beside(folder)} Make it first: {make}") from None
    say(f"Wrote {target}. Edit it, then run:  trl-grpo-plus run {shlex.quote(target)}")
    return 0


def _run(options: argparse.Namespace) -> int:
    start = _start(options)
    command = launch_command(start)
    from .check.recipe import refuse

    refuse([start])
    threads = cpu_threads(start)
    say(
        shlex.join([*(f"{name}={value}" for name, value in threads.items()), options.launcher, *command[1:]]),
        flush=True,
    )
    os.environ |= {**threads, RUN_AS: shlex.join(["trl-grpo-plus", *options.words])}
    os.execv(sys.executable, in_this_python(command))


def _start(options: argparse.Namespace) -> Start:
    """Return the run to start. A run that cannot start is refused here, before the imports that take seconds."""
    set_environment(["--config", options.name])  # for the libraries that are imported here, and for the processes
    start = Start(
        options.name,
        tuple(options.rest),
        options.accelerate_config,
        options.num_processes,
        launcher=options.launcher,
        nodes=_nodes(options),
        of_command=tuple(name.lstrip("-").replace("-", "_") for name in options.option_names),
    )
    return start if on_cpu(start.recipe, start.options) else replace(start, num_gpus=len(gpus()))


def _race(options: argparse.Namespace) -> int:
    if (config := options.accelerate_config) and machines(content_of(config)) > 1:
        raise ConfigError(f"--accelerate_config {config} has several machines (num_machines). A race runs on one.")
    start = _start(options)
    from .race.plan import plan

    race = plan(start, options.baseline_generations, options.evaluations)
    from .check.recipe import refuse

    refuse(lane.start for lane in race.lanes)
    from .race.processes import run

    again = [word for word in options.words if word != "--resume"]
    return run(race, shlex.join(["trl-grpo-plus", *again, "--resume"]), options.resume)


def _env(options: argparse.Namespace) -> int:
    say(described())
    return 0


def _check(options: argparse.Namespace) -> int:
    try:
        start = _start(options)
    except ConfigError as error:
        meant = did_you_mean(options.name, ["rewards"], "check ") if options.name not in recipes() else ""
        raise ConfigError(f"{error}{meant}") from None
    from .check.recipe import check_recipe

    rows = check_recipe(start, options.gpu, options.gpu_memory, options.smoke)
    say(table(rows))
    return int(bool(failures(rows)))


if __name__ == "__main__":
    sys.exit(main())
