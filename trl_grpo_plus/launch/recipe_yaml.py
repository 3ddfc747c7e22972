"""Strict checks of the values in a YAML file, as strict as those of the command line.

TRL makes the values the parser's defaults. argparse converts texts among them, but checks none. Mistakes such as a
list of texts in place of numbers, a `true` in place of a number, or an unknown choice then show late, or never.
"""

import enum
import json
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import yaml

from ..config.gone_options import GONE_OPTIONS
from ..utils.validation import ConfigError, did_you_mean, fits, spelled


# The code that uses these keys checks them, because it takes more forms than their annotations say.
LOOSE = (
    "advantage_estimator",
    "datasets",
    "debug",
    "fsdp",
    "prompt_selection",
    "resume_from_checkpoint",
    "reward_funcs",
    "scale_rewards",
)
TO_NODES = "trl-grpo-plus run NAME|FILE with the options of several nodes (docs/two_nodes.md)."
# Keys that do not exist, or no longer exist, but that users' files have -> advice.
GONE = {
    **GONE_OPTIONS,
    "torch_dtype": "Use dtype instead.",
    "overwrite_output_dir": "Remove it: an earlier run in output_dir is moved to earlier-N.",
    "num_processes": "Give it to the command: trl-grpo-plus run NAME|FILE --num_processes N.",
    "launcher": "Give it to the command: trl-grpo-plus run NAME|FILE --launcher torchrun.",
    "nproc_per_node": "Give it to the command: trl-grpo-plus run NAME|FILE --num_processes N.",
    **dict.fromkeys(("num_machines", "machine_rank", "nnodes", "node_rank"), f"Give it to the command: {TO_NODES}"),
    "accelerate_config": "Give it to the command: trl-grpo-plus run NAME|FILE --accelerate_config NAME|FILE.",
}
READ: dict[Any, Callable[[str], Any]] = {int: int, float: float, dict: json.loads}
TRUE, FALSE = ("yes", "true", "t", "y", "1"), ("no", "false", "f", "n", "0")  # TRL's, in any case


def checked(values: Mapping[str, Any], parser: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Convert the values of a YAML file as the command line would, and find the keys to refuse.

    Args:
        values (`Mapping[str, Any]`): values of a YAML file, by key.
        parser (`trl.TrlParser`): the parser.

    Returns:
        `tuple[dict[str, Any], dict[str, str]]`: the converted values, and the reason for each refused key.
    """
    from ..config.validation import TRL_CHOICES  # imports TRL

    hints = hints_of(parser)
    choices = {name: list(allowed) for name, allowed in TRL_CHOICES.items()}
    choices |= {action.dest: list(action.choices) for action in parser._actions if action.choices}
    right: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    for name, value in values.items():
        if name not in hints:
            wrong[name] = f"unknown key {name}.{instead_of(name, hints)}"
            continue
        try:
            if name == "datasets":
                _check_mixture(value, *typing.get_args(hints[name]))
            right[name] = value if name in LOOSE else _read(value, hints[name], choices.get(name))
        except ValueError as error:
            wrong[name] = f"{name}{'' if value is None else f'={value!r}'} {error}"
    return right, wrong


def hints_of(parser: Any) -> dict[str, Any]:
    """Return the annotation of each key that the parser knows."""
    return {name: hint for kind in parser.dataclass_types for name, hint in _hints(kind).items()}


def _hints(kind: type) -> dict[str, Any]:
    fields = kind.__dataclass_fields__  # type: ignore[attr-defined]
    return {name: hint for name, hint in typing.get_type_hints(kind).items() if name in fields and fields[name].init}


def _read(value: Any, hint: Any, choices: list[Any] | None) -> Any:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = [kind for kind in (typing.get_args(hint) if is_union else [hint]) if kind is not types.NoneType]
    if value is None:
        if types.NoneType in typing.get_args(hint):
            return None
        raise ValueError("has no value. Write one, or remove the line.")
    enums = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, enum.Enum)]
    choices = choices or [member.value for kind in enums for member in kind]
    if choices:
        value = "no" if value is False and "no" in choices else value  # YAML reads an unquoted no as False
        if not any(value == choice and type(value) is type(choice) for choice in choices):  # False is not 0
            raise ValueError(
                f"is not one of {', '.join(map(repr, choices))}.{did_you_mean(str(value), map(str, choices))}"
            )
        return value
    if fits(value, hint):
        return value
    converted = _converted(value, kinds)
    if not fits(converted, hint):
        raise ValueError(f"must be {' or '.join(map(spelled, kinds))}.{_hint(value, kinds)}")
    return converted


def _check_mixture(parts: Any, kind: type) -> None:
    """Refuse a value of `datasets` of which TRL cannot make a list of `kind`, its configuration of a dataset."""
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise ValueError("must be a list of mappings, such as [{path: json, data_files: FILE}].")
    hints = _hints(kind)
    hints["data_files"] = str | list[str] | dict[str, str | list[str]] | None  # as `load_dataset` takes it
    for part in parts:
        for name in part:
            if name not in hints:
                raise ValueError(f"has the unknown key {name}.{did_you_mean(str(name), hints)}")
            if not fits(part[name], hints[name]):
                raise ValueError(f"has {name}={part[name]!r}, which must be {spelled(hints[name])}.")
        if "path" not in part:
            raise ValueError("has an entry without path: a folder, an id on the Hub, or json, parquet or csv.")


def _converted(value: Any, kinds: list[Any]) -> Any:
    """Convert a value as the command line would; return it unchanged if that fails.

    Texts are parsed. If the option is a list, a single value becomes a list, and each item is converted.
    """
    for kind in kinds:
        if typing.get_origin(kind) is list:
            (inner,) = typing.get_args(kind)
            items = value if isinstance(value, list) else [value]
            return [item if fits(item, inner) else _converted(item, [inner]) for item in items]
        if isinstance(value, str) and kind is bool and value.lower() in (*TRUE, *FALSE):
            return value.lower() in TRUE
        read = READ.get(typing.get_origin(kind) or kind)
        if isinstance(value, str) and read:
            try:
                return read(value)
            except ValueError:
                return value
    return value


def _hint(value: Any, kinds: list[Any]) -> str:
    if isinstance(value, bool) and str in kinds:
        return " Without quotes YAML reads yes, no, on and off as true and false."
    takes_mapping = any((typing.get_origin(kind) or kind) is dict for kind in kinds)
    if isinstance(value, int | float) and not isinstance(value, bool) and str in kinds and not takes_mapping:
        return f' Put it in quotes: "{value}".'
    if int in kinds and not isinstance(value, bool):
        with suppress(TypeError, ValueError):
            return f" Write {int(value)}." if (value := float(value)).is_integer() else ""
    return ""


def instead_of(name: str, valid_names: Iterable[str], prefix: str = "") -> str:
    """Return advice on what to write instead of a key that does not exist; "" if there is none."""
    return f" {GONE[name]}" if name in GONE else did_you_mean(name, valid_names, prefix)


class Loader(yaml.SafeLoader):
    """PyYAML's safe loader, but with YAML 1.2's numbers, and with an error if a key appears twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping, and refuse a key that appears twice."""
        lines: dict[Any, int] = {}
        for key, _ in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in lines:
                raise yaml.YAMLError(f"the key {name} appears twice, in lines {lines[name]} and {line}.")
            lines[name] = line
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: Any) -> int:
        """Construct an integer. In YAML 1.1 010 is 8."""
        text = self.construct_scalar(node)
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


# YAML 1.2's numbers, and 10_000. In YAML 1.1 1e-5 is a text, and 1:30 is 90.
NUMBERS = {
    "tag:yaml.org,2002:int": r"[-+]?[0-9][0-9_]*$|0o[0-7]+$|0x[0-9a-fA-F]+$",
    "tag:yaml.org,2002:float": r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$"
    r"|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$",
}
Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if tag not in NUMBERS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _form in NUMBERS.items():
    Loader.add_implicit_resolver(_tag, re.compile(_form), list("-+.0123456789"))
Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)


def text_of(file: Any) -> str:
    """Return the text of a recipe or of another file with settings.

    Args:
        file: a `Path`, or a file of this package as [`~trl_grpo_plus.launch.recipes`] returns it.

    Raises:
        ConfigError: the file is not UTF-8.
        OSError: the file cannot be read.
    """
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{file} is not UTF-8: byte {error.start + 1} is of another encoding. Save the file as UTF-8."
        ) from None


def settings_in(file: Any) -> dict[str, Any]:
    """Return the settings in a recipe, or in another YAML file that maps names to values.

    Raises:
        ConfigError: the file is not UTF-8, is not YAML, or holds something else.
        OSError: the file cannot be read.
    """
    try:
        content = read_yaml(text_of(file))
    except yaml.YAMLError as error:
        raise ConfigError(f"{file} is not YAML: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{file} must hold `key: value` lines.")
    return {str(key): value for key, value in content.items()}


def read_yaml(text: str) -> Any:
    """Parse a YAML text.

    Raises:
        yaml.YAMLError: the text is not YAML, or a key appears twice.
    """
    return yaml.load(text, Loader)
