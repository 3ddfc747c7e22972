"""The script's command line: shipped YAMLs by name, refused typos, functions by path, and how to resume."""

import argparse
import dataclasses
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ..config import presets
from ..utils import import_path
from ..utils.validation import ConfigError, error_prefix
from .accelerate import RECIPES, RUN_AS, find_recipe, recipes
from .recipe_yaml import checked, hints_of, instead_of, read_yaml


# An option, and the beginnings of those that TRL reads where it is on and forgets in silence where it is off.
SWITCHES = {"use_vllm": ("vllm_",), "use_peft": ("lora_", "use_rslora", "use_dora")}


def parse(parser: Any, argv: list[str]) -> tuple[Any, ...]:
    """Like TRL's `parse_args_and_config`, with `--config NAME` and `--config=...`, and nothing unknown let through.

    Args:
        parser (`trl.TrlParser`): the parser.
        argv (`list[str]`): the arguments, without the program.

    Returns:
        `tuple`: one instance of each of the parser's dataclasses.

    Raises:
        ConfigError: a config, key or option does not exist, or a value is refused.
    """
    settings = read(parser, argv)
    if settings.refused:
        raise ConfigError("\n".join(settings.refused.values()))
    if not settings.config and not argv:
        parser.error(f"no recipe is given. --config takes a file or one of: {', '.join(recipes())}.")
    made, refused = build(parser, settings)
    if refused:
        raise ConfigError("\n".join(refused))
    return tuple(made.values())


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a YAML and the command line say, not yet made into dataclasses."""

    argv: tuple[str, ...]  # the command line, without `--config`
    config: str | None  # the YAML's path
    values: dict[str, Any]  # its values, converted, without those that are refused
    env: dict[str, str]  # the environment variables that it sets
    refused: dict[str, str]  # for each key or option that is refused, why
    preset: str | None = None  # that they name

    @property
    def names(self) -> set[str]:
        """Keys and options that are set."""
        options = (_name(word) for word in self.argv if word.startswith("--"))
        return {*self.values, *options}


def read(parser: Any, argv: list[str]) -> Settings:
    """Read the YAML that the command line names, and find what is unknown, mistyped or without effect.

    Raises:
        ConfigError: there is no such YAML, or it is none.
    """
    rest, config = _take_config(argv)
    content = _content(config) if config else {}
    env = content.pop("env", None) or {}
    values, wrong = checked(content, parser)
    refused = {name: f"{config}: {why}" for name, why in wrong.items()}
    if not isinstance(env, dict) or not all(isinstance(n, str) and v is not None for n, v in env.items()):
        refused["env"], env = f"{config}: env={env!r} must map names of environment variables to values.", {}
    known = set(hints_of(parser))
    options, stray = parser.parse_known_args(rest)
    for word in stray:
        if word.startswith("-") and _name(word) not in known:
            refused[word] = f"unknown option --{_name(word)}.{instead_of(_name(word), {*known, 'config'}, '--')}"
    preset = options.preset or values.get("preset")
    try:
        presets.check(preset and presets.AppliedPreset(preset))
    except ConfigError as error:
        preset, refused["preset"] = None, str(error)
    env = {name: str(value) for name, value in env.items()}
    settings = Settings(tuple(rest), config, values, env, refused, preset)
    for switch, idle in _without_effect(settings.names):
        refused[switch] = (
            f"{', '.join(idle)} {'has' if len(idle) == 1 else 'have'} no effect without {switch}. Set {switch}: true, "
            f"or {switch}: false to keep {'it' if len(idle) == 1 else 'them'} unused."
        )
    return settings


def build(
    parser: Any, settings: Settings, instead: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Return the dataclasses, by the name of their class, and why others could not be made. Sets the YAML's `env`.

    Args:
        parser (`trl.TrlParser`), settings ([`Settings`]): what to read, and with what.
        instead (`Mapping[str, Any]`, *optional*): values that win over those.

    Raises:
        ConfigError: a word of the command line belongs to no option.
    """
    os.environ.update(settings.env)
    below = presets.preset_of(settings.preset).settings if settings.preset else {}
    parser.set_defaults_with_config(**{**below, **settings.values})
    namespace, stray = parser.parse_known_args(list(settings.argv))
    if stray:
        raise ConfigError(f"{' '.join(stray)}: does not belong to any option.")
    made, refused, instead = {}, [], instead or {}
    for kind in parser.dataclass_types:
        names = [field.name for field in dataclasses.fields(kind) if field.init]
        values = {name: getattr(namespace, name) for name in names} | {n: instead[n] for n in names if n in instead}
        if "preset" in values:
            values["preset"] = presets.AppliedPreset(settings.preset) if settings.preset else None
        try:
            made[kind.__name__] = kind(**values)
        except (ValueError, TypeError, argparse.ArgumentTypeError) as error:
            empty = [name for name in names if name in settings.names and values[name] is None]
            if empty and isinstance(error, TypeError):
                refused.append(f"{', '.join(empty)}: null is not allowed. Give a value, or remove the key. ({error})")
                continue
            processes = getattr(kind, "processes", None) or int(os.environ.get("WORLD_SIZE", 1))
            refused.append(_explained(str(error), processes))
    return made, refused


def load(path: str, option: str) -> Callable[..., Any]:
    """Return the function at `pkg.mod.func`, `pkg.mod:func` or `path/to/file.py:func`.

    Args:
        path (`str`): where it is.
        option (`str`): the option that named it, for the error's text.

    Raises:
        ConfigError: there is no such module, file or function. An error inside the module is raised as it is.
    """
    with error_prefix(option):
        return import_path.load(path)


def resume_command(resume_from: str) -> str:
    """Return the command that started this run, to be started again from the checkpoint `resume_from`."""
    command = list(launched_as())
    option = "--resume_from_checkpoint"
    if option in command:
        at = command.index(option)
        del command[at : at + 2]
    command = [word for word in command if not word.startswith(f"{option}=")]
    return shlex.join([*command, option, resume_from])


@cache
def launched_as() -> tuple[str, ...]:
    """Command line of the launcher, or of this process where there is none. Ask before the launcher is gone."""
    if RUN_AS in os.environ:
        return tuple(shlex.split(os.environ[RUN_AS]))
    command = list(sys.orig_argv)
    if "ACCELERATE_MIXED_PRECISION" in os.environ or "TORCHELASTIC_RUN_ID" in os.environ:
        parent = Path(f"/proc/{os.getppid()}/cmdline")
        words = parent.read_text().split("\0")[:-1] if parent.exists() else []
        if any(RECIPES in word for word in words):
            command = words
    is_script = len(command) > 1 and Path(command[0]).name.startswith("python") and not command[1].startswith("-")
    command = command[1:] if is_script and os.access(command[1], os.X_OK) else command
    short = Path(command[0]).name
    return (short if shutil.which(short) == command[0] else command[0], *command[1:])


def _take_config(argv: list[str]) -> tuple[list[str], str | None]:
    taker = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    taker.add_argument("--config")
    try:
        taken, rest = taker.parse_known_args(argv)
    except argparse.ArgumentError:
        raise ConfigError(f"--config needs a file or one of: {', '.join(recipes())}.") from None
    if not taken.config:
        return rest, None
    with error_prefix("--config"):
        name = find_recipe(taken.config)
    return rest, name if os.path.isfile(name) else str(recipes()[name])


def _content(config: str) -> dict[str, Any]:
    try:
        content = read_yaml(Path(config).read_text())
    except yaml.YAMLError as error:
        raise ConfigError(f"{config} is not YAML: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{config} must hold `key: value` lines.")
    return {str(key): value for key, value in content.items()}


def _without_effect(names: set[str]) -> Iterator[tuple[str, list[str]]]:
    """Switches that are not mentioned, and what was set that TRL ignores without them."""
    for switch, options in SWITCHES.items():
        idle = sorted(name for name in names if name.startswith(options))
        if idle and switch not in names:
            yield switch, idle


def _explained(why: str, processes: int) -> str:
    """TRL says that a generation batch does not divide, and not what it is made of; transformers that the setup does
    not support bf16, which TRL turned on.
    """
    if why.startswith("Your setup doesn't support bf16/gpu"):
        return (
            "this run needs a GPU, and there is none here: it trains in bf16, TRL's default. To train on the CPU, set "
            "use_cpu: true and bf16: false."
        )
    if not why.startswith("generation_batch_size ("):
        return why
    count = "1 process" if processes == 1 else f"{processes} processes"
    return f"{why} If it is not set, it is per_device_train_batch_size x steps_per_generation x {count}."


def _name(option: str) -> str:
    return option.lstrip("-").partition("=")[0].replace("-", "_")
