"""Recipes and accelerate configurations by name, the number of processes, and the sharding of the model."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..config.presets import PRESETS
from ..utils.validation import ConfigError, did_you_mean, error_prefix
from .nodes import ONE, Nodes, machines
from .recipe_yaml import TRUE, settings_in, text_of


RECIPES = "trl_grpo_plus.recipes"
NOBODY = "no --num_processes, no GPU here"
RUN_AS = "TRL_GRPO_PLUS_RUN_AS"  # environment variable: the user's command, for the command to resume with


def recipes() -> dict[str, Any]:
    """Return the YAML files that ship with this package, by name."""
    shipped = [item for item in files(RECIPES).iterdir() if item.name.endswith(".yaml")]
    return dict(sorted((item.name.removesuffix(".yaml"), item) for item in shipped))


def headline(recipe: Any) -> str:
    """Return a recipe's first line, which describes the recipe."""
    return text_of(recipe).partition("\n")[0].lstrip("# ")


def find_recipe(name: str) -> str:
    """Return the path of a recipe: `name` itself if it is a file, or that of the recipe of this name.

    Raises:
        ConfigError: `name` is neither a file nor the name of a recipe.
    """
    names = recipes()
    if name.endswith(".py"):
        raise ConfigError(
            f"{name} is a Python script. Give a recipe: a YAML file, or one of {', '.join(names)}. To launch a script "
            f"of your own:  accelerate launch {shlex.quote(name)}"
        )
    if Path(name).is_file():
        return name
    if name in names:
        return str(names[name])
    raise ConfigError(
        f"{name!r} is neither a file nor a recipe.{did_you_mean(name, names)} Recipes: {', '.join(names)}."
    )


def accelerate_configs() -> dict[str, str]:
    """Return TRL's accelerate configurations, by name: single_gpu, multi_gpu, zero1 to zero3, fsdp1 and fsdp2."""
    spec = find_spec("trl")  # not an import of TRL, which takes seconds
    folder = Path(spec.origin).parent / "accelerate_configs" if spec and spec.origin else Path()
    return {path.stem: str(path) for path in sorted(folder.glob("*.yaml"))}


def on_cpu(recipe: str, options: Sequence[str] = ()) -> bool:
    """Return `True` if a run is set to `use_cpu`, so that GPUs do not count.

    Raises:
        ConfigError: there is no such recipe.
    """
    return str(setting("use_cpu", find_recipe(recipe), options)).lower() in TRUE


@dataclass(frozen=True)
class Distribution:
    """The number of a run's processes, the source of this number, and the sharding of the model over them.

    `sharding` is "none" (one process), "ddp", "zero1", "zero2", "zero3" or "fsdp". `offloads` names the state that is
    kept off the GPUs: "" for nothing, "optimizer" for the optimizer, "weights" for the optimizer and the weights.
    """

    processes: int
    decided_by: str
    sharding: str
    offloads: str = ""

    @property
    def named(self) -> bool:
        """True if an option of the command line decided the number of processes."""
        return self.decided_by.startswith("--")

    @property
    def guessed(self) -> bool:
        """True if neither an option nor the GPUs of this machine decided the number of processes."""
        return self.decided_by == NOBODY


def distribution(
    accelerate_config: str | None, num_processes: int | None, num_gpus: int, nodes: Nodes = ONE
) -> Distribution:
    """Return the distribution of a run: see [`~trl_grpo_plus.launch.launchers.Start`] for the arguments.

    Raises:
        ConfigError: there is no such configuration, or it does not allow this number of processes, or the processes
            cannot be divided among the nodes.
    """
    content = content_of(accelerate_config) if accelerate_config else {}
    processes, decided_by = _processes(accelerate_config, content, num_processes, num_gpus, nodes)
    if processes % nodes.count:
        raise ConfigError(
            f"{decided_by}: {processes} processes cannot be divided among {nodes.count} nodes. Give a multiple of "
            f"{nodes.count} as --num_processes, which counts the processes of all nodes together."
        )
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


def _processes(
    config: str | None, content: dict[str, Any], num_processes: int | None, num_gpus: int, nodes: Nodes
) -> tuple[int, str]:
    """Return the number of processes of all nodes together, and what decided it."""
    if num_processes is not None and num_processes < 1:
        raise ConfigError(f"--num_processes: {num_processes} must be 1 or more.")
    only_one = content.get("distributed_type") in ("NO", False)
    if only_one and num_processes not in (None, 1):
        raise ConfigError(f"--num_processes: {config} runs one process, not {num_processes}. Use multi_gpu.")
    if num_processes is not None and nodes.processes_per_node is not None:
        raise ConfigError(
            f"--num_processes {num_processes} and --nproc_per_node {nodes.processes_per_node}: give one of the two. "
            "--num_processes counts the processes of all nodes together."
        )
    times = f" x {nodes.count} nodes" if nodes.count > 1 else ""
    if nodes.processes_per_node is not None:
        return nodes.processes_per_node * nodes.count, f"--nproc_per_node{times}"
    if num_processes is not None:
        return num_processes, "--num_processes"
    if only_one:
        return 1, f"--accelerate_config {config}"
    of_trl = config in accelerate_configs()  # TRL's files say one node with 8 GPUs
    if content.get("num_processes") and not (num_gpus and of_trl):
        in_file = machines(content)
        if in_file not in (1, nodes.count):
            raise ConfigError(
                f"{nodes.count} nodes: {config} has num_machines: {in_file}, so its num_processes counts the "
                f"processes of {in_file} nodes. Add --num_processes, which counts the processes of all nodes together."
            )
        times = times if in_file == 1 else ""
        return content["num_processes"] * (nodes.count if in_file == 1 else 1), f"--accelerate_config {config}{times}"
    return max(num_gpus, 1) * nodes.count, f"the GPUs here{times}" if num_gpus else NOBODY


def sharded(spread: Distribution, deepspeed: Any = None, fsdp: Any = None) -> Distribution:
    """Return `spread` with the sharding that a recipe's own keys set.

    TRL reads these keys in addition to the accelerate configuration.

    Args:
        spread ([`Distribution`]): the launcher's distribution.
        deepspeed (`dict` or `str`, *optional*): DeepSpeed's configuration, as a dict, as JSON, or as the path of a
            JSON file.
        fsdp (*optional*): the recipe's `fsdp`. Any true value turns FSDP on.

    Raises:
        ConfigError: there is no such file, or it is not JSON or not UTF-8.
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
        with error_prefix("deepspeed"):
            text = deepspeed if deepspeed.lstrip().startswith("{") else text_of(Path(deepspeed))
    except FileNotFoundError:
        raise ConfigError(f"deepspeed: there is no file {deepspeed}.") from None
    except OSError as error:  # a folder, or a file that may not be read
        raise ConfigError(f"deepspeed: {deepspeed:.80} cannot be read: {error.strerror}.") from None
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"deepspeed: {deepspeed:.80} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"deepspeed: {deepspeed:.80} must map names of DeepSpeed's settings to values.")
    return content


def config_file(name: str) -> str:
    """Return the path of an accelerate configuration: one of [`accelerate_configs`], or a file.

    Raises:
        ConfigError: `name` is neither.
    """
    configs = accelerate_configs()
    if name in configs:
        return configs[name]
    if Path(name).is_file():
        return name
    raise ConfigError(
        f"--accelerate_config: {name!r} is neither a file nor one of TRL's configurations: "
        f"{', '.join(configs)}.{did_you_mean(name, configs)}"
    )


def content_of(accelerate_config: str) -> dict[str, Any]:
    """Read an accelerate configuration: a file, or one of TRL's configurations by name.

    Raises:
        ConfigError: there is no such configuration, or [`settings_in`] refuses it.
    """
    with error_prefix("--accelerate_config"):
        file = Path(config_file(accelerate_config))
        try:
            return settings_in(file)
        except ConfigError as error:
            raise ConfigError(f"{error} `accelerate config --config_file FILE` writes such a file.") from None


def setting(name: str, recipe: str, options: Sequence[str]) -> Any:
    """Return an option's text on the command line, else its value in the recipe, else in the preset; or `None`.

    Raises:
        ConfigError: there is no such recipe.
    """
    for word, following in reversed(list(pairwise([*options, "--"]))):
        option, equals, value = word.partition("=")
        if option.replace("-", "_") == f"__{name}":  # argparse takes either spelling
            return value if equals else "true" if following.startswith("--") else following
    path = Path(find_recipe(recipe))
    try:
        content = settings_in(path)
    except ConfigError:  # reading the recipe will report this
        return None
    if name in content:
        return content[name]
    preset = None if name == "preset" else PRESETS.get(str(setting("preset", recipe, options)))
    return preset.settings.get(name) if preset else None
