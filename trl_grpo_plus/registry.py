"""Rewards by name: `@register_reward`, `get_reward`, `list_rewards`, and the entries that `reward_funcs` takes.

A registered reward is a plain TRL reward function, `(completions, **columns) -> list[float | None]`, which stock TRL
takes too. If the function gives a list of [`Step`] for a completion, TRL gets their sum. The function's signature says
what it reads:

    def did_you_mean(completions, answer, hint=None, *, tolerance: float = 0.01): ...
             TRL's own    a column  one if     an argument:
                                    there      {name: did_you_mean, args: {tolerance: 0.1}}

Names come from `@register_reward`, from `LIBRARY` in `trl_grpo_plus.rewards` (the rewards that ship), and from the
entry-point group `trl_grpo_plus.rewards`, where other packages list their rewards. `@register_advantage` does the same
for advantages; see `trl_grpo_plus.objective.advantage_functions`.
"""

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from .scoring import (
    Definition,
    Example,
    Policy,
    Reward,
    RewardError,
    Step,
    check_columns,
    define,
    definition_at,
    is_model,
    refuse_class,
)
from .utils.files import beside, looks_local
from .utils.import_path import is_path, same_source, start_of, target_of
from .utils.lazy_imports import lazy_imports
from .utils.validation import ConfigError, Number, did_you_mean, fits, spelled


if TYPE_CHECKING:
    from .objective.advantage_functions import list_advantages, register_advantage
    from .objective.baselines import reads_columns


__all__ = [
    "Example", "Reward", "RewardError", "RewardSpec", "Step", "check_columns", "get_reward", "list_advantages",
    "list_rewards", "reads_columns", "register_advantage", "register_reward", "resolve",
]  # fmt: skip

GROUP = "trl_grpo_plus.rewards"  # the group of entry points, and the module of the rewards that ship

# The short names that `trl grpo` takes in `reward_funcs`, with advice for a YAML that comes from there.
TRL_NAMES = {
    **{
        name: f"It is TRL's: write trl.rewards.{name}."
        for name in ("accuracy_reward", "reasoning_accuracy_reward", "think_format_reward")
    },
    "get_soft_overlong_punishment": "It is TRL's: take overlong instead, which punishes length in the same way.",
}

# These modules import torch, which the processes that score must not import.
__getattr__ = lazy_imports(
    __name__,
    {
        "list_advantages": "..objective.advantage_functions",
        "register_advantage": "..objective.advantage_functions",
        "reads_columns": "..objective.baselines",
    },
)


def register_reward(
    name: str,
    *,
    examples: Iterable[Example] = (),
    timeout: float | None = None,
    on_timeout: Policy = "abstain",
    on_error: Policy = "raise",
    check_args: Callable[..., None] | None = None,
    check_columns: Callable[..., None] | None = None,
    check_row: Callable[..., None] | None = None,
    gold: Callable[..., str | None] | None = None,
    full_marks: float = 1.0,
    preload: Iterable[str] = (),
    parts: Callable[..., Sequence[Any]] | None = None,
) -> Callable[[Callable[..., Any]], Reward]:
    """Register the decorated function as the reward `name`.

    Args:
        name (`str`): the name in `reward_funcs` and in the logs.
        examples (`Iterable[Example]`, *optional*): completions and the rewards that they deserve, for the self-test.
        timeout (`float`, *optional*):
            Seconds that a sample may take. With a value, the function runs in killable worker processes, called with
            one sample at a time. `None`: it runs in the trainer's process, on the whole batch, without a limit.
        on_timeout (`str`, *optional*, defaults to `"abstain"`):
            Score of a sample that ran out of time: `"zero"` 0.0, `"abstain"` None; `"raise"` stops the run.
        on_error (`str`, *optional*, defaults to `"raise"`): the same for an exception or a crash of the function.
        check_args (`Callable`, *optional*):
            Called with the arguments as keywords before a run; raises `ValueError`, or `RuntimeError` if the reward
            cannot run on this machine.
        check_columns (`Callable`, *optional*):
            Called with whole columns (rows without a needed value left out) and the arguments before a run; raises
            `ValueError`.
        check_row (`Callable`, *optional*):
            Called in this process with a row's values as keywords, before each of its completions is scored. Raises
            `ValueError` if no completion of the row can be scored. Such a row stops the run whatever `on_error` is.
        gold (`Callable`, *optional*):
            `(**row, **args) -> str | None`: a completion that deserves full marks, for the self-test.
        full_marks (`float`, *optional*, defaults to `1.0`): the score of the completion of `gold`.
        preload (`Iterable[str]`, *optional*): modules that worker processes start with.
        parts (`Callable`, *optional*):
            `(**args) -> rewards`: other rewards that the function calls with all columns (`**columns`), so that their
            columns are checked too.

    Returns:
        A decorator that gives a [`Reward`], itself a TRL reward function.

    Raises:
        ConfigError: another function has the name.

    Example:

    ```python
    @register_reward("starts_with")
    def starts_with(completions, prefix, *, points: float = 1.0):
        return [points if text.startswith(wanted) else 0.0 for text, wanted in zip(completions, prefix)]
    ```
    """

    def register(function: Callable[..., Any]) -> Reward:
        """Add the function under the name, and return its reward."""
        definition = Definition(
            name=name,
            function=function,
            target=target_of(function),
            examples=tuple(examples),
            timeout=timeout,
            on_timeout=on_timeout,
            on_error=on_error,
            check_args=check_args,
            check_columns=check_columns,
            check_row=check_row,
            gold=gold,
            full_marks=full_marks,
            preload=tuple(preload),
            parts=parts,
        )
        targets = [_REGISTERED[name].target] if name in _REGISTERED else _listed().get(name, [])
        again = name in _REGISTERED and same_source(_REGISTERED[name].function, function)
        if targets and definition.target not in targets and not again:
            raise ConfigError(f"a reward named {name!r} exists already: {targets[0]}. Choose another name.")
        _REGISTERED[name] = definition
        return Reward(definition)

    return register


def get_reward(name: str, **args: Any) -> Reward:
    """Return the reward with that name or path, with these arguments.

    Args:
        name (`str`): a registered name, `pkg.mod:func`, `pkg.mod.func` or `path/to/file.py:func`.
        args:
            The reward's arguments. `column="solution"` renames the only column that the reward needs,
            `columns={"target": "goal"}` any column.

    Raises:
        ConfigError: there is no such reward, or an argument is unknown, mistyped, missing or refused.

    Example:
        >>> get_reward("exact_answer", column="solution")(completions=["46"], solution=["46"])
        [1.0]
    """
    return Reward(find(name), args).prepare()


def list_rewards() -> list[str]:
    """Return the sorted names of all rewards."""
    return sorted({*_REGISTERED, *_listed()})


def find(name: str) -> Definition:
    """Return the definition of the reward with that name or path.

    Raises:
        ConfigError: there is no such reward; the text names similar ones and all that exist.
    """
    if name in _REGISTERED:
        return _REGISTERED[name]
    if paths := _listed().get(name):
        if len(paths) > 1:
            raise ConfigError(
                f"two packages register a reward {name!r}: {' and '.join(paths)}. Give the path instead."
            )
        return definition_at(paths[0])
    if is_path(name):
        return definition_at(name)
    folders = [entry for entry in os.listdir() if os.path.isdir(entry)]  # one may hold a reward model
    hint = f" {TRL_NAMES[name]}" if name in TRL_NAMES else did_you_mean(name, [*list_rewards(), *folders])
    raise ConfigError(
        f"there is no reward named {name!r}.{hint} There are "
        f"{', '.join(list_rewards())}. Or give the path of a function (path/to/file.py:func, pkg.mod.func), or the "
        "folder or full id of a reward model."
    )


@dataclass(frozen=True)
class RewardSpec:
    """One entry of `reward_funcs`, as code or YAML may give it: `{name: countdown, args: {...}, weight: 2}`.

    Args:
        name (`str` or `Callable`): a registered name, a path to a function, a model's id, or the function itself.
        args (`Mapping[str, Any]`, *optional*): the reward's arguments; `column` or `columns` rename what it reads.
        weight (`float`, *optional*): weight in the total; `None`: that of `reward_weights`, else 1.
        timeout (`float`, *optional*): seconds that a sample may take; see [`register_reward`].
        on_timeout, on_error (`str`, *optional*): "zero", "abstain" or "raise"; see [`register_reward`].
        monitor (`bool`, *optional*, defaults to `False`): whether the reward is scored, logged and traced only.
        label (`str`, *optional*): the name in the logs. Two entries with one name need labels.
    """

    name: Any
    args: Mapping[str, Any] = field(default_factory=dict)
    weight: float | None = None
    timeout: float | None = None
    on_timeout: Policy | None = None
    on_error: Policy | None = None
    monitor: bool = False
    label: str | None = None

    def __post_init__(self) -> None:
        if not (callable(self.name) or (isinstance(self.name, str) and self.name)):
            raise ConfigError(f"reward_funcs: {self.name!r} is no name, path, model id, function or model.")
        what = f"reward_funcs: {self.name!r}: "
        for name in ("weight", "timeout"):
            Number(optional=True).check(what + name, getattr(self, name))
        for name, hint in {"args": dict[str, Any], "monitor": bool, "label": str | None}.items():
            value = getattr(self, name)
            if not fits(value, hint) or value == "":
                raise ConfigError(f"{what}{name}={value!r} must be {spelled(hint)}.")
        if self.monitor and self.weight not in (None, 0):
            raise ConfigError(
                f"reward_funcs: {self.name!r} has monitor=True and weight={self.weight}, but a monitor has no weight. "
                "Leave one of the two out."
            )

    @classmethod
    def of(cls, entry: Any) -> "RewardSpec":
        """Return the spec of an entry in any form."""
        if isinstance(entry, RewardSpec):
            return entry
        if not isinstance(entry, Mapping):
            return cls(entry)
        keys = [item.name for item in fields(cls)]
        for key in entry:
            if key not in keys:
                raise ConfigError(
                    f"reward_funcs: {dict(entry)!r} has the unknown key "
                    f"{key!r}.{did_you_mean(str(key), keys)} Keys are "
                    f"{', '.join(keys)}."
                )
        if "name" not in entry:
            raise ConfigError(f"reward_funcs: {dict(entry)!r} has no name.")
        return cls(**{**entry, "args": entry.get("args") or {}})  # YAML may have `args:` with nothing after it

    def build(self) -> Any:
        """Return what the trainer gets: a [`Reward`], or the entry itself if TRL reads it."""
        names = ("timeout", "on_timeout", "on_error", "label")
        options = {name: value for name in names if (value := getattr(self, name)) is not None}
        changed = [*options, *(["args"] if self.args else [])]
        if isinstance(self.name, str) and not _is_model(self.name):
            definition = find(self.name)
        elif isinstance(self.name, Reward):
            return self.name.changed(self.args, **options).prepare()
        elif callable(self.name) and hasattr(self.name, "__name__") and not isinstance(self.name, type):
            if not changed:
                return self.name
            definition = define(self.name)
        elif changed:
            refuse_class(self.name)
            kind = "a model" if isinstance(self.name, str) or is_model(self.name) else "an object"
            raise ConfigError(
                f"reward_funcs: {changed[0]} applies to functions only, but {self.name!r:.80} is {kind}. Leave "
                f"{changed[0]} out, or call {'the model' if kind == 'a model' else 'it'} in a function."
            )
        else:
            self._check_folder()
            return self.name
        if changed:
            refuse_class(definition.function)
        if not changed and definition.target not in {registered.target for registered in _REGISTERED.values()}:
            return definition.function  # a plain function by its path: TRL's own kind
        return Reward(definition, self.args, **options).prepare()

    def _check_folder(self) -> None:
        """Refuse the path of a reward model that is no folder here. The Hub's error would not say so."""
        if isinstance(self.name, str) and looks_local(self.name) and not os.path.isdir(os.path.expanduser(self.name)):
            raise ConfigError(
                f"reward_funcs: there is no folder {self.name} with a reward model.{beside(self.name)}"
                f"{start_of(os.path.expanduser(self.name))}"
            )


def resolve(reward_funcs: Any, reward_weights: Sequence[float] | None = None) -> tuple[Any, list[float] | None]:
    """Convert `reward_funcs` from this package's form to what TRL's trainer takes.

    Args:
        reward_funcs: an entry or a list of entries; see [`RewardSpec`].
        reward_weights (`Sequence[float]`, *optional*): TRL's option of that name.

    Returns:
        `tuple`: the functions and models, and their weights (`None`: all 1).

    Raises:
        ConfigError: an entry is not understood, a weight is no number, it is given twice and differs, or
            `reward_weights` has another number of values than `reward_funcs`.
    """
    if isinstance(reward_weights, str | int | float):
        raise ConfigError(f"reward_weights={reward_weights!r} must be a list with one weight per reward.")
    if isinstance(reward_funcs, tuple):
        raise ConfigError(f"reward_funcs is a tuple of {len(reward_funcs)}. Give a list.")
    if reward_funcs is None:
        return None, None if reward_weights is None else list(reward_weights)
    specs = [RewardSpec.of(entry) for entry in (reward_funcs if isinstance(reward_funcs, list) else [reward_funcs])]
    built = [spec.build() for spec in specs]
    names = [getattr(reward, "__name__", None) for reward in built]
    twice = [reward.__name__ for reward in built if isinstance(reward, Reward) and names.count(reward.__name__) > 1]
    if twice:
        raise ConfigError(f"reward_funcs: {twice[0]!r} is there twice. Give one of them a label to be logged under.")
    return built, _weights(specs, reward_weights)


def _weights(specs: Sequence[RewardSpec], reward_weights: Sequence[float] | None) -> list[float] | None:
    own = [0.0 if spec.monitor else spec.weight for spec in specs]
    for given in () if reward_weights is None else reward_weights:  # TRL would train on NaN as on rewards of 0
        Number().check("reward_weights", given.item() if hasattr(given, "item") else given)
    if specs and all(spec.monitor for spec in specs):
        raise ConfigError(
            "reward_funcs holds monitors only: there is no reward to train on. Leave monitor out of one entry."
        )
    if reward_weights is not None and len(reward_weights) != len(specs):
        raise ConfigError(
            f"reward_weights has {len(reward_weights)} values for {len(specs)} reward_funcs. Give one weight per "
            "reward."
        )
    if all(weight is None for weight in own):
        return None if reward_weights is None else list(reward_weights)
    if reward_weights is None:
        return [1.0 if weight is None else float(weight) for weight in own]
    for spec, weight, other in zip(specs, own, reward_weights, strict=True):
        if weight is not None and weight != other:
            raise ConfigError(
                f"reward_funcs gives {spec.name!r} the weight {weight}{' (a monitor)' if spec.monitor else ''}, but "
                f"reward_weights gives it {other}. Leave one of the two out."
            )
    return list(reward_weights)


def _is_model(name: str) -> bool:
    return ("/" in name and not is_path(name)) or (os.path.isdir(name) and name not in list_rewards())


@functools.cache
def _listed() -> dict[str, list[str]]:
    """Map the names of rewards to their paths.

    A name has several paths if packages clash. That concerns only users of that name.
    """
    from .rewards import LIBRARY  # names only: the modules that they name import this module

    listed = {name: {f"{GROUP}.{module}:{name}"} for name, module in LIBRARY.items()}
    for point in entry_points(group=GROUP):
        listed.setdefault(point.name, set()).add(point.value)
    return {name: sorted(paths) for name, paths in listed.items()}


_REGISTERED: dict[str, Definition] = {}
