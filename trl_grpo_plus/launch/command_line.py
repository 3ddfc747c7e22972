"""The script's command line: shipped YAMLs by name, refused typos, functions by path, and the resume command."""

import argparse
import dataclasses
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from ..config import presets
from ..utils import import_path
from ..utils.validation import ConfigError, error_prefix
from .accelerate import RECIPES, RUN_AS, find_recipe, recipes
from .recipe_yaml import checked, hints_of, instead_of, settings_in


# switch -> prefixes of the options that TRL silently ignores while the switch is off
SWITCHES = {"use_vllm": ("vllm_",), "use_peft": ("lora_", "use_rslora", "use_dora")}


def parse(parser: Any, argv: list[str]) -> tuple[Any, ...]:
    """Parse the command line and the recipe, and refuse every unknown key and option.

    Unlike TRL's `parse_args_and_config`, this function also takes `--config NAME` and `--config=...`.

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
        raise ConfigError(*settings.refused.values())
    if not settings.config and not argv:
        parser.error(f"no recipe is given. --config takes a file or one of: {', '.join(recipes())}.")
    made, refused = build(parser, settings)
    if refused:
        raise ConfigError(*refused)
    return tuple(made.values())


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a YAML and the command line, before the dataclasses are made."""

    argv: tuple[str, ...]  # the command line, without `--config`
    config: str | None  # the YAML's path
    values: dict[str, Any]  # the YAML's values, converted, without the refused ones
    env: dict[str, str]  # the environment variables that the YAML sets
    refused: dict[str, str]  # refused key or option -> the reason
    preset: str | None = None  # the preset that the command line or the YAML names

    @property
    def names(self) -> set[str]:
        """The names of all keys and options that are set."""
        options = (_name(word) for word in self.argv if word.startswith("--"))
        return {*self.values, *options}


def read(parser: Any, argv: list[str], of_command: Collection[str] = ()) -> Settings:
    """Read the YAML that the command line names, and find settings that are unknown, mistyped or without effect.

    Args:
        parser (`trl.TrlParser`): the parser.
        argv (`list[str]`): the arguments, without the program.
        of_command (`Collection[str]`, *optional*): names of the options that the command itself has, such as
            `num_processes`. They are offered in place of a mistyped one.

    Raises:
        ConfigError: there is no such YAML, or the file is not YAML or not UTF-8.
    """
    rest, config = _take_config(argv)
    content = settings_in(Path(config)) if config else {}
    given = content.pop("env", None)
    values, wrong = checked(content, parser)
    refused = {name: f"{config}: {why}" for name, why in wrong.items()}
    try:
        env = _variables(given)
    except ConfigError as error:
        refused["env"], env = f"{config}: {error}", {}
    valid_names = set(hints_of(parser))
    options, stray = parser.parse_known_args(rest)
    for word in stray:
        if word.startswith("-") and (name := _name(word)) not in valid_names:
            near = {*valid_names, "config", *of_command} - {name}
            refused[word] = f"unknown option --{name}.{instead_of(name, near, '--')}"
    on_line = any(_name(word) == "do_train" for word in rest if word.startswith("--"))
    if not (options.do_train if on_line else values.get("do_train", True)):
        refused["do_train"] = (
            "do_train: false has no effect: a run always trains. Remove it. For an evaluation alone, set "
            "max_steps: 1, learning_rate: 0 and do_eval: true."
        )
    preset = options.preset or values.get("preset")
    try:
        presets.check(preset and presets.AppliedPreset(preset))
    except ConfigError as error:
        preset, refused["preset"] = None, str(error)
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
    """Return the dataclasses by class name, and the reasons why others could not be made.

    This also sets the environment variables in the YAML's `env`, for scripts that do not call [`set_environment`].

    Args:
        parser (`trl.TrlParser`), settings ([`Settings`]): the parser, and the settings to parse.
        instead (`Mapping[str, Any]`, *optional*): values that override the settings.

    Raises:
        ConfigError: a word of the command line belongs to no option.
    """
    os.environ.update(settings.env)
    below = presets.preset_of(settings.preset).settings if settings.preset else {}
    parser.set_defaults_with_config(**{**below, **settings.values})
    namespace, stray = parser.parse_known_args(list(settings.argv))
    if stray:
        raise ConfigError(f"{' '.join(stray)} does not belong to any option. Remove it.")
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
            refused.append(str(error))
    return made, refused


def set_environment(argv: Sequence[str]) -> None:
    """Set the environment variables in the `env` of the YAML that a command line names.

    Libraries such as torch and huggingface_hub read their variables on import: call this function before. The YAML's
    values replace those of the shell. A mistake in the YAML is left to [`read`].

    Args:
        argv (`Sequence[str]`): the arguments, without the program.
    """
    with suppress(ConfigError, OSError):
        _, config = _take_config(list(argv))
        os.environ.update(_variables(settings_in(Path(config)).get("env")) if config else {})


def _variables(env: Any) -> dict[str, str]:
    """Return the environment variables that the value of `env` sets."""
    env = env or {}
    if not isinstance(env, dict) or not all(_is_variable(name) and v is not None for name, v in env.items()):
        raise ConfigError(f"env={env!r} must map names of environment variables to values.")
    return {name: str(value) for name, value in env.items()}


def _is_variable(name: Any) -> bool:
    return isinstance(name, str) and name != "" and "=" not in name


def load(path: str, option: str) -> Callable[..., Any]:
    """Return the function at `pkg.mod.func`, `pkg.mod:func` or `path/to/file.py:func`.

    Args:
        path (`str`): path of the function.
        option (`str`): option that named the function, for the error message.

    Raises:
        ConfigError: there is no such module, file or function. An error inside the module is raised as it is.
    """
    with error_prefix(option):
        return import_path.load(path)


def resume_command(resume_from: str) -> str:
    """Return the command that resumes this run from the checkpoint `resume_from`.

    For a run of a race it is the race's command, which resumes both runs from their last checkpoints.
    """
    command = list(launched_as())
    if "--resume" in command:
        return shlex.join(command)
    option = "--resume_from_checkpoint"
    if option in command:
        at = command.index(option)
        del command[at : at + 2]
    command = [word for word in command if not word.startswith(f"{option}=")]
    return shlex.join([*command, option, resume_from])


@cache
def launched_as() -> tuple[str, ...]:
    """Return the command line of the launcher, or of this process if there is no launcher.

    Call this function first while the launcher is still running.
    """
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
        taken, rest = taker.parse_known_args([word for word in argv if word != "--"])
    except argparse.ArgumentError:
        raise ConfigError(f"--config needs a file or one of: {', '.join(recipes())}.") from None
    if not taken.config:
        return rest, None
    with error_prefix("--config"):
        return rest, find_recipe(taken.config)


def _without_effect(names: set[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each switch that is not set, with the set options that TRL ignores without the switch."""
    for switch, options in SWITCHES.items():
        idle = sorted(name for name in names if name.startswith(options))
        if idle and switch not in names:
            yield switch, idle


def _name(option: str) -> str:
    return option.lstrip("-").partition("=")[0].replace("-", "_")
