"""How a recipe is launched: which YAML is meant, and the `accelerate launch` command that runs it."""

import shutil
import sys
from collections.abc import Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .loading import near


RECIPES = "trl_grpo_plus.recipes"
SCRIPT = f"{RECIPES}.grpo"


def recipes() -> dict[str, Any]:
    """The YAML files that ship with this package, by name."""
    found = {item.name.removesuffix(".yaml"): item for item in files(RECIPES).iterdir() if item.name.endswith(".yaml")}
    return dict(sorted(found.items()))


def headline(recipe: Any) -> str:
    """What a recipe's first line says of it."""
    return recipe.read_text().partition("\n")[0].lstrip("# ")


def find_recipe(name: str) -> str:
    """`name` as the launch script takes it: a file, or the name of a recipe.

    Raises:
        ValueError: it is neither.
    """
    known = recipes()
    if name in known or Path(name).is_file():
        return name
    raise ValueError(f"{name!r} is neither a file nor a recipe, which are {', '.join(known)}.{near(name, known)}")


def presets() -> dict[str, str]:
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
) -> list[str]:
    """The command that runs a recipe.

    Args:
        recipe (`str`): a file, or the name of a recipe.
        options (`Sequence[str]`, *optional*): of the launch script.
        accelerate_config (`str`, *optional*): one of [`presets`], or a file of accelerate's. Without it accelerate is
            told to use the GPUs there are, or one process on the CPU.
        num_processes (`int`, *optional*): other than the configuration's, or the number of GPUs.
        num_gpus (`int`, *optional*, defaults to `0`): of this machine.

    Raises:
        ValueError: there is no such recipe or configuration.
    """
    command = [_accelerate(), "launch"]
    if accelerate_config is not None:
        command += ["--config_file", _config_file(accelerate_config)]
        if num_processes is not None:
            command += ["--num_processes", str(num_processes)]
    else:
        processes = num_processes or max(num_gpus, 1)
        # What accelerate would guess otherwise, each with a warning. The recipe's own bf16 decides the precision.
        command += ["--num_processes", str(processes), "--num_machines", "1", "--mixed_precision", "no"]
        command += ["--dynamo_backend", "no", *(["--multi_gpu"] if num_gpus and processes > 1 else [])]
    return [*command, "-m", SCRIPT, "--config", find_recipe(recipe), *options]


def _config_file(name: str) -> str:
    known = presets()
    if name in known:
        return known[name]
    if Path(name).is_file():
        return name
    raise ValueError(
        f"--accelerate_config: {name!r} is neither a file nor one of TRL's presets, which are {', '.join(known)}."
        f"{near(name, known)}"
    )


def _accelerate() -> str:
    beside = Path(sys.executable).with_name("accelerate")
    found = str(beside) if beside.exists() else shutil.which("accelerate")
    if found is None:
        raise ValueError("accelerate's command is not installed beside this Python: pip install accelerate.")
    return found
