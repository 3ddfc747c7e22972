"""Launchers: the programs that start the processes of a run. One launcher is one entry of [`LAUNCHERS`].

A launcher defines the command that starts a recipe. `trl-grpo-plus run` shows that command and runs it through
[`trl_grpo_plus.launch.launcher_main`], so that Ctrl-C reaches the run and waits until the run has saved.
"""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..utils.resources import cores
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
from .nodes import ONE, Nodes


SCRIPT = f"{RECIPES}.grpo"
MAIN = "trl_grpo_plus.launch.launcher_main"
# Environment variables: "PID@HOST" of the launcher; the file in which torch's launcher looks for a process's error.
STARTED_BY, ERROR_FILE = "TRL_GRPO_PLUS_STARTED_BY", "TORCHELASTIC_ERROR_FILE"
THREADS = "OMP_NUM_THREADS"  # environment variable: threads of a process
LOST = """\
another process of this run has ended, or does not answer: {lost}
The output of the other processes and nodes says why. To continue, start the run again on all nodes with
--resume_from_checkpoint true. A run waits --ddp_timeout seconds (default: 1800) for a process that does not answer."""


@dataclass(frozen=True)
class Start:
    """A run to start, as the command line describes it. The constructor refuses a run that cannot be started.

    Args:
        recipe (`str`): a file, or the name of a recipe.
        options (`tuple[str, ...]`, *optional*): options of the launch script.
        accelerate_config (`str`, *optional*): one of [`~trl_grpo_plus.launch.accelerate.accelerate_configs`], or an
            accelerate configuration file. By default the launcher uses all GPUs here, or one process on the CPU.
        num_processes (`int`, *optional*): number of processes on all nodes together. Default: the number in the
            accelerate configuration file, or the number of GPUs of this machine times the number of nodes.
        num_gpus (`int`, *optional*, defaults to `0`): number of GPUs of this machine. Not used if the run is to
            `use_cpu`.
        launcher (`str`, *optional*, defaults to `"accelerate"`): one of [`LAUNCHERS`].
        nodes ([`~trl_grpo_plus.launch.nodes.Nodes`], *optional*): number of nodes, and the launcher's options for
            them. Default: this machine alone.
        of_command (`tuple[str, ...]`, *optional*): names of the options that the command itself has. They are offered
            in place of a mistyped one.

    Attributes:
        spread ([`~trl_grpo_plus.launch.accelerate.Distribution`]): number of processes, and the sharding.

    Raises:
        ConfigError: there is no such recipe, configuration or launcher, the launcher takes no configuration, or the
            processes cannot be divided among the nodes.
    """

    recipe: str
    options: tuple[str, ...] = ()
    accelerate_config: str | None = None
    num_processes: int | None = None
    num_gpus: int = 0
    launcher: str = "accelerate"
    nodes: Nodes = ONE
    of_command: tuple[str, ...] = ()
    spread: Distribution = field(init=False)

    def __post_init__(self) -> None:
        num_gpus = 0 if on_cpu(self.recipe, self.options) else self.num_gpus
        one_of("--launcher", self.launcher, LAUNCHERS)
        if self.accelerate_config is not None and not LAUNCHERS[self.launcher].takes_config:
            raise ConfigError(
                f"--accelerate_config {self.accelerate_config} is for accelerate, not for --launcher {self.launcher}. "
                "Leave one of the two out. To shard without it, set deepspeed: FILE or fsdp: true in the recipe."
            )
        spread = distribution(self.accelerate_config, self.num_processes, num_gpus, self.nodes)
        object.__setattr__(self, "spread", spread)


@dataclass(frozen=True)
class Launcher:
    """A program that starts the processes of a run.

    Args:
        package (`str`): package to install if the command is missing.
        arguments (`Callable`): `(Start) -> list[str]`, returns the words between the command and `-m SCRIPT`.
        main (`str`): `"module:function"`, the entry point of the command.
        takes_config (`bool`): whether the launcher reads an accelerate configuration.
    """

    package: str
    arguments: Callable[[Start], list[str]]
    main: str
    takes_config: bool = False


def _accelerate(start: Start) -> list[str]:
    processes = ["--num_processes", str(start.spread.processes)]
    # The recipe's bf16 decides. Under the precision in TRL's files, bf16: false is ignored by FSDP and an error for
    # DeepSpeed.
    precision = ["--mixed_precision", "no"]
    # Without a file accelerate takes what `accelerate config` once wrote on this machine: FSDP or GPUs by number, for
    # example.
    config = start.accelerate_config or ("multi_gpu" if start.spread.processes > 1 else "single_gpu")
    arguments = ["launch", "--config_file", config_file(config)]
    of_trl = config in accelerate_configs()
    arguments += processes if of_trl or start.num_processes or start.nodes.count > 1 else []
    arguments += precision if of_trl else []
    accumulation, content = "gradient_accumulation_steps", content_of(config)
    arguments += [*start.nodes.words, *_one_gpu(start, content)]
    deepspeed = content.get("deepspeed_config") or {}
    if accumulation in deepspeed:  # must equal the recipe's value
        arguments += [f"--{accumulation}", str(setting(accumulation, start.recipe, start.options) or 1)]
    if start.nodes.count > 1 and content.get("distributed_type") == "DEEPSPEED":
        arguments += _each_node_by_itself(deepspeed, config)
    return arguments


def _one_gpu(start: Start, content: dict[str, Any]) -> list[str]:
    """Return the option that shows one GPU to a run of one process.

    If it saw more, transformers would use them by DataParallel, which TRL refuses once it has loaded the model.
    """
    alone = start.spread.processes == 1 and start.spread.sharding == "none"
    if (
        not alone
        or start.num_gpus < 2
        or on_cpu(start.recipe, start.options)
        or content.get("gpu_ids") not in (None, "all")
    ):
        return []
    return ["--gpu_ids", os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]]


def _each_node_by_itself(deepspeed: dict[str, Any], config: str) -> list[str]:
    """Return the option by which accelerate starts this node alone. By default it would start all of them by pdsh."""
    name = "deepspeed_multinode_launcher"
    if deepspeed.get(name, "standard") != "standard":
        raise ConfigError(
            f"{config} has {name}: {deepspeed[name]}, which starts all nodes from one. Here each node has its own "
            f"command: set {name}: standard, or remove the key."
        )
    return [] if name in deepspeed else [f"--{name}", "standard"]


def _torchrun(start: Start) -> list[str]:
    where = start.nodes.words or ("--standalone",)
    return [*where, "--nproc_per_node", str(start.spread.processes // start.nodes.count)]


# To add a launcher, write a function from a Start to the arguments, and add an entry under the command's name.
LAUNCHERS: dict[str, Launcher] = {
    "accelerate": Launcher("accelerate", _accelerate, "accelerate.commands.accelerate_cli:main", True),
    "torchrun": Launcher("torch", _torchrun, "torch.distributed.run:main"),
}


def launch_command(start: Start, script: str = SCRIPT) -> list[str]:
    """Return the command that runs a recipe.

    Args:
        start ([`Start`]): the run.
        script (`str`, *optional*): module to launch.

    Raises:
        ConfigError: the launcher is not installed, or the nodes cannot be started each by its own command.
    """
    arguments = LAUNCHERS[start.launcher].arguments(start)
    return [_path(start.launcher), *arguments, "-m", script, "--config", start.recipe, *start.options]


def cpu_threads(start: Start) -> dict[str, str]:
    """Return the environment variable by which the processes of a run with `use_cpu` share this machine's cores.

    Without it accelerate gives each process one thread, because the run's configuration file does not say `use_cpu`.
    The result is empty for a run on GPUs, for one thread, and if the user has set the variable.
    """
    each = cores() // (start.spread.processes // start.nodes.count)
    if each < 2 or THREADS in os.environ or not on_cpu(start.recipe, start.options):
        return {}
    return {THREADS: str(each)}


def in_this_python(command: Sequence[str]) -> list[str]:
    """Return the command that runs a launcher's command in this Python. A Ctrl-C ends it together with its run."""
    return [sys.executable, "-m", MAIN, Path(command[0]).name, *command[1:]]


def _path(launcher: str) -> str:
    beside = Path(sys.executable).with_name(launcher)
    if path := str(beside) if beside.exists() else shutil.which(launcher):
        return path
    if find_spec(LAUNCHERS[launcher].main.partition(".")[0]) is None:
        raise ConfigError(f"{launcher} is not installed for this Python: pip install {LAUNCHERS[launcher].package}.")
    return launcher  # the module is run, so the script is not needed
