"""Launchers: what starts the processes of a run. One launcher is one entry of [`LAUNCHERS`].

A launcher says which command starts a recipe. `trl-grpo-plus run` shows that command and runs it in its own process
([`trl_grpo_plus.launch.launcher_main`]), so that Ctrl-C reaches the run and waits until it has saved.
"""

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ..utils.validation import ConfigError, one_of
from .accelerate import (
    RECIPES,
    Distribution,
    accelerate_configs,
    config_file,
    content_of,
    distribution,
    on_cpu,
    setting,
)


SCRIPT = f"{RECIPES}.grpo"
MAIN = "trl_grpo_plus.launch.launcher_main"


@dataclass(frozen=True)
class Start:
    """What is to be started.

    Args:
        recipe (`str`): a file, or the name of a recipe.
        options (`tuple[str, ...]`): of the launch script.
        accelerate_config (`str`, *optional*): one of [`~trl_grpo_plus.launch.accelerate.accelerate_configs`], or a
            file of accelerate's.
        num_processes (`int`, *optional*): the number that the user named.
        spread ([`~trl_grpo_plus.launch.accelerate.Distribution`]): over how many processes.
    """

    recipe: str
    options: tuple[str, ...]
    accelerate_config: str | None
    num_processes: int | None
    spread: Distribution


@dataclass(frozen=True)
class Launcher:
    """A program that starts the processes of a run.

    Args:
        package (`str`): what to install where the command is missing.
        arguments (`Callable`): `(Start) -> list[str]`, what stands between the command and `-m SCRIPT`.
        main (`str`): `"module:function"`, the entry point of the command.
        takes_config (`bool`): whether it reads a configuration of accelerate's.
    """

    package: str
    arguments: Callable[[Start], list[str]]
    main: str
    takes_config: bool = False


def _accelerate(start: Start) -> list[str]:
    processes = ["--num_processes", str(start.spread.processes)]
    # The recipe's own bf16 decides: beside TRL's files bf16: false is overruled under FSDP, an error under DeepSpeed.
    precision = ["--mixed_precision", "no"]
    config = start.accelerate_config
    if config is None:
        # What accelerate would guess otherwise, each with a warning; without --multi_gpu it starts one, on a CPU too.
        arguments = ["launch", *processes, "--num_machines", "1", *precision, "--dynamo_backend", "no"]
        return [*arguments, "--multi_gpu"] if start.spread.processes > 1 else arguments
    arguments = ["launch", "--config_file", config_file(config)]
    arguments += (
        [*processes, *precision] if config in accelerate_configs() else processes if start.num_processes else []
    )
    accumulation = "gradient_accumulation_steps"
    if accumulation in (content_of(config).get("deepspeed_config") or {}):  # must be the recipe's
        arguments += [f"--{accumulation}", str(setting(accumulation, start.recipe, start.options) or 1)]
    return arguments


def _torchrun(start: Start) -> list[str]:
    return ["--standalone", "--nproc_per_node", str(start.spread.processes)]


# To add one: a function from what is started to its arguments, and an entry by the name of its command.
LAUNCHERS: dict[str, Launcher] = {
    "accelerate": Launcher("accelerate", _accelerate, "accelerate.commands.accelerate_cli:main", True),
    "torchrun": Launcher("torch", _torchrun, "torch.distributed.run:main"),
}


def launch_command(
    recipe: str,
    options: Sequence[str] = (),
    accelerate_config: str | None = None,
    num_processes: int | None = None,
    num_gpus: int = 0,
    script: str = SCRIPT,
    launcher: str = "accelerate",
) -> list[str]:
    """Return the command that runs a recipe.

    Args:
        recipe (`str`): a file, or the name of a recipe.
        options (`Sequence[str]`, *optional*): of the launch script.
        accelerate_config (`str`, *optional*): one of [`~trl_grpo_plus.launch.accelerate.accelerate_configs`], or a
            file of accelerate's. Without it the launcher uses the GPUs there are, or one process on the CPU.
        num_processes (`int`, *optional*): other than that of a file of accelerate's, or the number of GPUs.
        num_gpus (`int`, *optional*, defaults to `0`): of this machine. None count where the run is to `use_cpu`.
        script (`str`, *optional*): the module to launch.
        launcher (`str`, *optional*, defaults to `"accelerate"`): one of [`LAUNCHERS`].

    Raises:
        ConfigError: there is no such recipe, configuration or launcher, or the launcher takes no configuration.
    """
    check_launcher(launcher, accelerate_config)
    chosen = LAUNCHERS[launcher]
    spread = distribution(accelerate_config, num_processes, 0 if on_cpu(recipe, options) else num_gpus)
    start = Start(recipe, tuple(options), accelerate_config, num_processes, spread)
    return [_path(launcher), *chosen.arguments(start), "-m", script, "--config", recipe, *options]


def check_launcher(launcher: str, accelerate_config: str | None) -> None:
    """Refuse a launcher that there is not, or a configuration of accelerate's that the launcher does not read."""
    one_of("--launcher", launcher, LAUNCHERS)
    if accelerate_config is not None and not LAUNCHERS[launcher].takes_config:
        raise ConfigError(
            f"--accelerate_config {accelerate_config} is for accelerate, not for --launcher {launcher}. Leave one of "
            "the two out; sharding can stand in the recipe too (deepspeed: FILE, or fsdp: true)."
        )


def in_this_python(command: Sequence[str]) -> list[str]:
    """Return a launcher's command as a process of this Python, which ends with its run at a Ctrl-C."""
    return [sys.executable, "-m", MAIN, Path(command[0]).name, *command[1:]]


def _path(launcher: str) -> str:
    beside = Path(sys.executable).with_name(launcher)
    if path := str(beside) if beside.exists() else shutil.which(launcher):
        return path
    if find_spec(LAUNCHERS[launcher].main.partition(".")[0]) is None:
        raise ConfigError(f"{launcher} is not installed for this Python: pip install {LAUNCHERS[launcher].package}.")
    return launcher  # its module is run, its script is not needed
