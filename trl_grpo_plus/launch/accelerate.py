"""How a recipe is launched: which YAML is meant, and the `accelerate launch` command that runs it."""

import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from ..config.presets import PRESETS
from ..utils.validation import ConfigError, did_you_mean
from .recipe_yaml import read_yaml


RECIPES = "trl_grpo_plus.recipes"
SCRIPT = f"{RECIPES}.grpo"
NOBODY = "no --num_processes, no GPU here"
LAUNCHER = "trl_grpo_plus.launch.accelerate_main"
RUN_AS = "TRL_GRPO_PLUS_RUN_AS"  # environment variable: the command that the user gave, to be given again to resume


def recipes() -> dict[str, Any]:
    """The YAML files that ship with this package, by name."""
    shipped = [item for item in files(RECIPES).iterdir() if item.name.endswith(".yaml")]
    return dict(sorted((item.name.removesuffix(".yaml"), item) for item in shipped))


def headline(recipe: Any) -> str:
    """What a recipe's first line says of it."""
    return recipe.read_text().partition("\n")[0].lstrip("# ")


def find_recipe(name: str) -> str:
    """`name` as the launch script takes it: a file, or the name of a recipe.

    Raises:
        ConfigError: it is neither.
    """
    known = recipes()
    if name.endswith(".py"):
        raise ConfigError(
            f"{name} is a Python script. Give a recipe: a YAML file, or one of {', '.join(known)}. To launch a script "
            f"of your own:  accelerate launch {shlex.quote(name)}"
        )
    if name in known or Path(name).is_file():
        return name
    raise ConfigError(
        f"{name!r} is neither a file nor a recipe. Recipes: {', '.join(known)}.{did_you_mean(name, known)}"
    )


def accelerate_configs() -> dict[str, str]:
    """TRL's configurations of accelerate, by name: single_gpu, multi_gpu, zero1 to zero3, fsdp1 and fsdp2."""
    spec = find_spec("trl")  # without importing it, which takes seconds
    folder = Path(spec.origin).parent / "accelerate_configs" if spec and spec.origin else Path()
    return {path.stem: str(path) for path in sorted(folder.glob("*.yaml"))}


def launch_command(
    recipe: str,
    options: Sequence[str] = (),
    accelerate_config: str | None = None,
    num_processes: int | None = None,
    num_gpus: int = 0,
    script: str = SCRIPT,
) -> list[str]:
    """The command that runs a recipe.

    Args:
        recipe (`str`): a file, or the name of a recipe.
        options (`Sequence[str]`, *optional*): of the launch script.
        accelerate_config (`str`, *optional*): one of [`accelerate_configs`], or a file of accelerate's. Without it
            accelerate is told to use the GPUs there are, or one process on the CPU.
        num_processes (`int`, *optional*): other than that of a file of accelerate's, or the number of GPUs.
        num_gpus (`int`, *optional*, defaults to `0`): of this machine. None count where the run is to `use_cpu`.
        script (`str`, *optional*): the module to launch.

    Raises:
        ConfigError: there is no such recipe or configuration.
    """
    spread = distribution(accelerate_config, num_processes, 0 if on_cpu(recipe, options) else num_gpus)
    processes = ["--num_processes", str(spread.processes)]
    # The recipe's own bf16 decides: beside TRL's files bf16: false is overruled under FSDP, an error under DeepSpeed.
    precision = ["--mixed_precision", "no"]
    command = [_accelerate(), "launch"]
    if accelerate_config is None:
        # What accelerate would guess otherwise, each with a warning; without --multi_gpu it starts one, on a CPU too.
        command += [*processes, "--num_machines", "1", *precision, "--dynamo_backend", "no"]
        command += ["--multi_gpu"] if spread.processes > 1 else []
    else:
        of_trl = accelerate_config in accelerate_configs()
        command += ["--config_file", config_file(accelerate_config)]
        command += [*processes, *precision] if of_trl else processes if num_processes else []
        accumulation = "gradient_accumulation_steps"
        if accumulation in (_content(accelerate_config).get("deepspeed_config") or {}):  # must be the recipe's
            command += [f"--{accumulation}", str(setting(accumulation, recipe, options) or 1)]
    return [*command, "-m", script, "--config", recipe, *options]


def on_cpu(recipe: str, options: Sequence[str] = ()) -> bool:
    """Whether a run is to `use_cpu`, so that GPUs do not count.

    Raises:
        ConfigError: there is no such recipe.
    """
    return str(setting("use_cpu", find_recipe(recipe), options)).lower() in ("true", "yes", "t", "y", "1")


@dataclass(frozen=True)
class Distribution:
    """How many processes a run has, says who, and how its model is spread over them.

    `sharding` is "none" (one process), "ddp", "zero1", "zero2", "zero3" or "fsdp"; `offloads` what is not on the GPUs:
    nothing (""), the "optimizer", or that and the "weights".
    """

    processes: int
    decided_by: str
    sharding: str
    offloads: str = ""

    @property
    def named(self) -> bool:
        """Whether somebody said how many processes."""
        return self.decided_by.startswith("--")

    @property
    def guessed(self) -> bool:
        """Whether neither somebody nor this machine did."""
        return self.decided_by == NOBODY


def distribution(accelerate_config: str | None, num_processes: int | None, num_gpus: int) -> Distribution:
    """What [`launch_command`] of the same arguments would start.

    Raises:
        ConfigError: there is no such configuration, or it does not go with that number of processes.
    """
    if num_processes is not None and num_processes < 1:
        raise ConfigError(f"--num_processes: {num_processes} must be 1 or more.")
    content = _content(accelerate_config) if accelerate_config else {}
    only_one = content.get("distributed_type") in ("NO", False)
    if only_one and num_processes not in (None, 1):
        raise ConfigError(
            f"--num_processes: {accelerate_config} runs one process, not {num_processes}. Use multi_gpu."
        )
    if num_processes is not None:
        processes, decided_by = num_processes, "--num_processes"
    elif only_one:
        processes, decided_by = 1, f"--accelerate_config {accelerate_config}"
    elif content.get("num_processes") and not (num_gpus and accelerate_config in accelerate_configs()):  # theirs is 8
        processes, decided_by = content["num_processes"], f"--accelerate_config {accelerate_config}"
    else:
        processes, decided_by = max(num_gpus, 1), "the GPUs here" if num_gpus else NOBODY
    deepspeed, fsdp = content.get("deepspeed_config") or {}, content.get("fsdp_config") or {}
    spread = Distribution(processes, decided_by, "ddp" if processes > 1 else "none")
    if content.get("distributed_type") == "FSDP":
        return replace(spread, sharding="fsdp", offloads="weights" if fsdp.get("fsdp_offload_params") else "")
    if content.get("distributed_type") != "DEEPSPEED":
        return spread
    if deepspeed.get("deepspeed_config_file"):
        return sharded(spread, deepspeed["deepspeed_config_file"])
    devices = [deepspeed.get(f"offload_{what}_device", "none") for what in ("param", "optimizer")]
    return replace(spread, sharding=f"zero{deepspeed.get('zero_stage', 2)}", offloads=_offloads(*devices))


def sharded(spread: Distribution, deepspeed: Any = None, fsdp: Any = None) -> Distribution:
    """`spread` with the sharding that a recipe's own keys ask for, which TRL takes besides accelerate's configuration.

    Args:
        spread ([`Distribution`]): of the launcher.
        deepspeed (`dict` or `str`, *optional*): DeepSpeed's configuration, or the path of its JSON file.
        fsdp (*optional*): whatever turns FSDP on.

    Raises:
        ConfigError: there is no such file, or it is not JSON.
    """
    if not deepspeed:
        return replace(spread, sharding="fsdp") if fsdp else spread
    zero = (deepspeed if isinstance(deepspeed, dict) else _json_of(deepspeed)).get("zero_optimization") or {}
    stage = zero.get("stage", 0)
    devices = [(zero.get(f"offload_{what}") or {}).get("device", "none") for what in ("param", "optimizer")]
    return replace(spread, sharding=f"zero{stage}" if stage else spread.sharding, offloads=_offloads(*devices))


def _offloads(weights_to: str, optimizer_to: str) -> str:
    return "weights" if weights_to != "none" else "optimizer" if optimizer_to != "none" else ""


def _json_of(deepspeed: str) -> dict[str, Any]:
    try:
        content = json.loads(deepspeed if deepspeed.lstrip().startswith("{") else Path(deepspeed).read_text())
    except OSError:
        raise ConfigError(f"deepspeed: there is no file {deepspeed}.") from None
    except ValueError as error:
        raise ConfigError(f"deepspeed: {deepspeed:.80} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"deepspeed: {deepspeed:.80} must map names of DeepSpeed's settings to values.")
    return content


def config_file(name: str) -> str:
    """Path of a configuration of accelerate's: one of [`accelerate_configs`], or a file.

    Raises:
        ConfigError: it is neither.
    """
    known = accelerate_configs()
    if name in known:
        return known[name]
    if Path(name).is_file():
        return name
    raise ConfigError(
        f"--accelerate_config: {name!r} is neither a file nor one of TRL's configurations: "
        f"{', '.join(known)}.{did_you_mean(name, known)}"
    )


def _content(accelerate_config: str) -> dict[str, Any]:
    return read_yaml(Path(config_file(accelerate_config)).read_text()) or {}


def setting(name: str, recipe: str, options: Sequence[str]) -> Any:
    """What the command line, else the recipe, else the preset that they name says of an option; or `None`."""
    for word, following in reversed(list(pairwise([*options, "--"]))):
        option, equals, value = word.partition("=")
        if option.replace("-", "_") == f"__{name}":  # argparse takes either spelling
            return read_yaml(value if equals else "true" if following.startswith("--") else following)
    file = Path(recipe) if Path(recipe).is_file() else recipes()[recipe]
    try:
        content = read_yaml(file.read_text())
    except yaml.YAMLError:  # the recipe will say so
        return None
    if isinstance(content, dict) and name in content:
        return content[name]
    preset = None if name == "preset" else PRESETS.get(str(setting("preset", recipe, options)))
    return preset.settings.get(name) if preset else None


def _accelerate() -> str:
    beside = Path(sys.executable).with_name("accelerate")
    path = str(beside) if beside.exists() else shutil.which("accelerate")
    if path is None:
        raise ConfigError("The command accelerate is not installed for this Python: pip install accelerate.")
    return path
