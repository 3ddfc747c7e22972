"""The data and the rewards that a run's script arguments name."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from ..registry import resolve
from ..utils.signatures import name_of, signature_of
from ..utils.validation import ConfigError, did_you_mean, error_prefix
from . import datasets_by_name
from .command_line import load
from .recipe_yaml import read_yaml


def read_rewards(entries: Any, weights: list[float] | None) -> tuple[list[Any], list[float] | None]:
    """Return the rewards that `reward_funcs` names, and their weights.

    Raises:
        ConfigError: an entry is not understood, or the weights do not match the rewards.
    """
    entries = [entries] if isinstance(entries, str | dict) else entries or []
    if not entries:
        raise ConfigError("reward_funcs is empty: name at least one reward function.")
    with error_prefix("reward_funcs"):
        # The command line gives an entry with options, or a list of entries, as a text.
        parsed = [one for entry in entries for one in (_parsed(entry) if isinstance(entry, str) else [entry])]
        return resolve(parsed, weights)


def _parsed(entry: str) -> list[Any]:
    if not entry.lstrip().startswith(("{", "[")):
        return [entry]
    try:
        value = read_yaml(entry)
    except yaml.YAMLError:
        raise ConfigError(f"reward_funcs: {entry!r} is not {{name: ..., weight: ...}} in YAML or JSON.") from None
    return value if isinstance(value, list) else [value]


def load_callables(script_args: Any) -> dict[str, Any]:
    """Return the trainer's `tools`, `environment_factory` and `rollout_func` that a recipe names by path.

    Raises:
        ConfigError: there is no such module, file, function or class.
    """
    single = {name: getattr(script_args, name) for name in ("environment_factory", "rollout_func")}
    loaded: dict[str, Any] = {name: load(path, name) for name, path in single.items() if path}
    return loaded | ({"tools": [load(path, "tools") for path in script_args.tools]} if script_args.tools else {})


def check_data_name(script_args: Any, dataset_args: Any) -> None:
    """Refuse a recipe that names no data, or names a prepare function, an argument or a file that does not exist."""
    if script_args.prepare:
        _prepare_args(load(script_args.prepare, "prepare"), script_args.prepare_args, smoke=False)
    elif script_args.prepare_args:
        raise ConfigError("prepare_args needs prepare, the function that takes them.")
    elif not (script_args.dataset_name or dataset_args.datasets):
        raise ConfigError("There is no data: set dataset_name, datasets or prepare.")
    ways = {"dataset_name": script_args.dataset_name, "prepare": script_args.prepare}
    if dataset_args.datasets and any(ways.values()):
        raise ConfigError(
            f"datasets does not go with {' and '.join(name for name in ways if ways[name])}. Remove one."
        )
    if script_args.dataset_name and not script_args.prepare:  # a prepare function decides what the name means
        with error_prefix("dataset_name"):
            datasets_by_name.check_name(script_args.dataset_name, script_args.dataset_config)
    with error_prefix("datasets"):
        for part in dataset_args.datasets:
            datasets_by_name.check_part(part)


def load_data(script_args: Any, training_args: Any, model_args: Any, dataset_args: Any, smoke: bool = False) -> Any:
    """Return the run's data: the result of `prepare`, the mixture `datasets`, or the dataset `dataset_name`.

    Args:
        script_args, training_args, model_args, dataset_args: the dataclasses that the launch script's parser returns.
        smoke (`bool`, *optional*, defaults to `False`): passed to `prepare` if it has an argument `smoke`.

    Raises:
        ConfigError: `prepare` does not take its arguments or returns no dict of splits, or a file does not exist.
    """
    if script_args.prepare:
        prepare = load(script_args.prepare, "prepare")
        arguments = _prepare_args(prepare, script_args.prepare_args, smoke)
        made = prepare(script_args, training_args, model_args, **arguments)
        if not isinstance(made, Mapping) and not (made is None and script_args.environment_factory):
            returned = "None" if made is None else f"a {type(made).__name__}"
            raise ConfigError(
                f"prepare={script_args.prepare!r} returned {returned}. Return a dict of splits, such as "
                "DatasetDict(train=Dataset.from_list(rows))."
            )
        return made
    if dataset_args.datasets:
        with error_prefix("datasets"):
            return datasets_by_name.load_mixture(dataset_args)
    with error_prefix("dataset_name"):
        return datasets_by_name.load(
            script_args.dataset_name, script_args.dataset_config, script_args.dataset_streaming
        )


def takes_smoke(script_args: Any) -> bool:
    """Return `True` if the recipe's prepare function has an argument `smoke`, which makes it do less for a check."""
    return bool(script_args.prepare) and "smoke" in signature_of(load(script_args.prepare, "prepare")).parameters


def _prepare_args(prepare: Callable[..., Any], arguments: Any, smoke: bool) -> dict[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            raise ConfigError(f"prepare_args: {arguments!r} is not JSON.") from None
    if not isinstance(arguments, dict | None):
        raise ConfigError(f"prepare_args: {arguments!r} must map names of prepare's arguments to values.")
    parameters = signature_of(prepare).parameters.values()
    takes = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    free = [name for name in takes[3:] if name != "smoke"]
    for name in arguments or {}:
        if name not in free and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            allowed = f", only {', '.join(free)}" if free else ""
            raise ConfigError(f"prepare_args: prepare has no argument {name!r}{allowed}.{did_you_mean(name, free)}")
    return {**(arguments or {}), **({"smoke": True} if smoke and "smoke" in takes else {})}


def reward_name(reward: Any) -> str:
    """Return the name under which TRL logs a reward: a function's name, or the last part of a model's name."""
    return reward.split("/")[-1] if isinstance(reward, str) else name_of(reward)
