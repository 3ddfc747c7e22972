"""The script's command line: shipped YAMLs by name, refused typos, functions by path, and how to resume."""

import argparse
import dataclasses
import os
import shlex
import shutil
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NoReturn

import yaml

from trl_grpo_plus import loading
from trl_grpo_plus.loading import near


class UserError(Exception):
    """A mistake in the command line or the YAML; its text is all that the user needs."""


def parse(parser: Any, argv: list[str]) -> tuple[Any, ...]:
    """Like TRL's `parse_args_and_config`, with `--config NAME` and `--config=...`, and nothing unknown let through.

    Args:
        parser (`trl.TrlParser`): the parser.
        argv (`list[str]`): the arguments, without the program.

    Returns:
        `tuple`: one instance of each of the parser's dataclasses.

    Raises:
        UserError: a config, key or option does not exist, or a value is refused.
    """
    argv, config = _take_config(argv)
    known = {field.name for dataclass in parser.dataclass_types for field in dataclasses.fields(dataclass)}
    if config:
        _refuse_unknown(f"{config}: unknown key", _read_keys(config), {*known, "env"})
    unused = [word for word in parser.parse_known_args(argv)[1] if word.startswith("-")]
    _refuse_unknown("unknown option", unused, {*known, "config"}, "--")
    if not config and not argv:
        parser.error(f"nothing to run. --config takes a file or one of: {', '.join(shipped_configs())}.")
    try:
        return parser.parse_args_and_config([*(["--config", config] if config else []), *argv])
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise UserError(str(error)) from None


def shipped_configs() -> list[str]:
    """Names of the YAML files in this package."""
    return sorted(item.name[: -len(".yaml")] for item in files(__package__).iterdir() if item.name.endswith(".yaml"))


def load(path: str, option: str) -> Callable[..., Any]:
    """The function at `pkg.mod.func`, `pkg.mod:func` or `path/to/file.py:func`.

    Args:
        path (`str`): where it is.
        option (`str`): the option that named it, for the error's text.

    Raises:
        UserError: there is no such module, file or function. An error inside the module is raised as it is.
    """
    with said_plainly(option):
        return loading.load(path)


@contextmanager
def said_plainly(option: str = "") -> Iterator[None]:
    """What this package refuses inside with a `ValueError` is the user's mistake, and its text all that they need."""
    try:
        yield
    except ValueError as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if not frame.f_globals["__name__"].startswith("trl_grpo_plus."):
            raise  # somebody else's, perhaps a bug
        text = str(error)
        raise UserError(text if not option or text.startswith(option) else f"{option}: {text}") from error


def launch_command(resume_from: str) -> str:
    """The command that started this run, to be started again from the checkpoint `resume_from`."""
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
    command = list(sys.orig_argv)
    if "ACCELERATE_MIXED_PRECISION" in os.environ or "TORCHELASTIC_RUN_ID" in os.environ:
        parent = Path(f"/proc/{os.getppid()}/cmdline")
        words = parent.read_text().split("\0")[:-1] if parent.exists() else []
        if __package__ and any(__package__ in word for word in words):
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
        raise UserError(f"--config needs a file or one of: {', '.join(shipped_configs())}.") from None
    return rest, _find_config(taken.config) if taken.config else None


def _find_config(name: str) -> str:
    if os.path.isfile(name):
        return name
    if name in shipped_configs():
        return str(files(__package__).joinpath(f"{name}.yaml"))
    raise UserError(
        f"--config {name!r} is neither a file nor one of those that ship with this package: "
        f"{', '.join(shipped_configs())}.{near(name, shipped_configs())}"
    )


def _read_keys(config: str) -> list[str]:
    try:
        content = yaml.safe_load(Path(config).read_text())
    except yaml.YAMLError as error:
        raise UserError(f"{config} is not YAML: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{config} must hold `key: value` lines.")
    return [str(key) for key in content]


def _refuse_unknown(what: str, given: Iterable[str], known: Iterable[str], dashes: str = "") -> None:
    known = set(known)
    for word in given:
        name = word.lstrip("-").partition("=")[0].replace("-", "_")
        if name not in known:
            _raise(f"{what} {dashes}{name}.{near(name, known, dashes)}")


def _raise(message: str) -> NoReturn:
    raise UserError(message)
