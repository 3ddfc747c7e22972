"""Rewards by name: `@register_reward`, `get_reward`, `list_rewards`, and what may stand in `reward_funcs`.

A registered reward is a plain TRL reward function, `(completions, **columns) -> list[float | None]`, which stock TRL
takes too. Its signature says what it reads:

    def near(completions, answer, hint=None, *, tolerance: float = 0.01): ...
             TRL's own    a column  one if     an argument:
                                    there      {name: near, args: {tolerance: 0.1}}

Names come from `@register_reward` and from the entry-point group `trl_grpo_plus.rewards`, where this package lists its
own library and other packages theirs.
"""

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.metadata import entry_points
from math import isfinite
from typing import Any

from .common.loading import is_path, same_source, target_of
from .common.signatures import name_of, needed
from .common.values import fits, near, spelled
from .scoring import (
    TRL_GIVES,
    Definition,
    Example,
    Policy,
    Reward,
    RewardError,
    RewardFunction,
    check_column,
    columns_of,
    define,
    definition_at,
)


__all__ = [
    "Example",
    "Reward",
    "RewardError",
    "RewardSpec",
    "get_reward",
    "list_rewards",
    "register_reward",
    "resolve",
]

GROUP = "trl_grpo_plus.rewards"


def register_reward(
    name: str,
    *,
    examples: Iterable[Example] = (),
    timeout: float | None = None,
    on_timeout: Policy = "abstain",
    on_error: Policy = "raise",
    check_args: Callable[..., None] | None = None,
    check_columns: Callable[..., None] | None = None,
    gold: Callable[..., str | None] | None = None,
    full_marks: float = 1.0,
    preload: Iterable[str] = (),
    parts: Callable[..., Sequence[Any]] | None = None,
) -> Callable[[RewardFunction], Reward]:
    """Register the decorated function as the reward `name`.

    Args:
        name (`str`): what `reward_funcs` calls it and what it is logged under.
        examples (`Iterable[Example]`, *optional*): completions and the rewards that they deserve, for the self-test.
        timeout (`float`, *optional*):
            Seconds that a sample may take. Given, the function runs in killable worker processes, called with one
            sample at a time. `None`: in the trainer's process, on the whole batch, without a limit.
        on_timeout (`str`, *optional*, defaults to `"abstain"`):
            What a sample that ran out of time scores: `"zero"` 0.0, `"abstain"` None; `"raise"` stops the run.
        on_error (`str`, *optional*, defaults to `"raise"`): the same for an exception or a crash of the function.
        check_args (`Callable`, *optional*):
            Called with the arguments as keywords before a run; raises `ValueError`.
        check_columns (`Callable`, *optional*):
            Called with whole columns (rows without a needed value left out) and the arguments before a run; raises
            `ValueError`.
        gold (`Callable`, *optional*):
            `(**row, **args) -> str | None`: a completion that deserves full marks, for the self-test.
        full_marks (`float`, *optional*, defaults to `1.0`): what that scores.
        preload (`Iterable[str]`, *optional*): modules that worker processes start with.
        parts (`Callable`, *optional*):
            `(**args) -> rewards`: other rewards that the function calls with all columns (`**columns`), so that their
            columns are checked too.

    Returns:
        A decorator that gives a [`Reward`], itself a TRL reward function.

    Raises:
        ValueError: another function has the name.

    Example:

    ```python
    @register_reward("starts_with")
    def starts_with(completions, prefix, *, points: float = 1.0):
        return [points if text.startswith(wanted) else 0.0 for text, wanted in zip(completions, prefix)]
    ```
    """

    def register(function: RewardFunction) -> Reward:
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
            gold=gold,
            full_marks=full_marks,
            preload=tuple(preload),
            parts=parts,
        )
        known = [_REGISTERED[name].target] if name in _REGISTERED else _entry_points().get(name, [])
        again = name in _REGISTERED and same_source(_REGISTERED[name].function, function)
        if known and definition.target not in known and not again:
            raise ValueError(f"a reward named {name!r} exists already: {known[0]}. Choose another name.")
        _REGISTERED[name] = definition
        return Reward(definition)

    return register


def get_reward(name: str, **args: Any) -> Reward:
    """The reward of that name, or at that path, with these arguments.

    Args:
        name (`str`): a registered name, `pkg.mod:func`, `pkg.mod.func` or `path/to/file.py:func`.
        args:
            Its arguments; `column="solution"` renames the one column that it needs, `columns={"target": "goal"}` any.

    Raises:
        ValueError: no such reward; or an argument is unknown, mistyped, missing or refused.

    Example:
        >>> get_reward("exact_answer", column="solution")(completions=["46"], solution=["46"])
        [1.0]
    """
    return Reward(find(name), args).prepare()


def list_rewards() -> list[str]:
    """Names of all rewards, sorted."""
    return sorted({*_REGISTERED, *_entry_points()})


def find(name: str) -> Definition:
    """The definition of that name, or at that path.

    Raises:
        ValueError: there is none; the text has near matches and what exists.
    """
    if name in _REGISTERED:
        return _REGISTERED[name]
    if name in _entry_points():
        paths = _entry_points()[name]
        if len(paths) > 1:
            raise ValueError(f"two packages register a reward {name!r}: {' and '.join(paths)}. Give the path instead.")
        return definition_at(paths[0])
    if is_path(name):
        return definition_at(name)
    raise ValueError(
        f"there is no reward named {name!r}.{near(name, list_rewards())} There are {', '.join(list_rewards())}. Else "
        "give pkg.mod.func, pkg.mod:func, path/to/file.py:func or a reward model's folder or full id."
    )


@dataclass(frozen=True)
class RewardSpec:
    """One entry of `reward_funcs`, as code or YAML may give it: `{name: countdown, args: {...}, weight: 2}`.

    Args:
        name (`str` or `Callable`): a registered name, a path to a function, a model's id, or the function itself.
        args (`Mapping[str, Any]`, *optional*): the reward's arguments; `column` or `columns` rename what it reads.
        weight (`float`, *optional*): of the total; `None`: as `reward_weights` says, else 1.
        timeout (`float`, *optional*): seconds that a sample may take; see [`register_reward`].
        on_timeout, on_error (`str`, *optional*): "zero", "abstain" or "raise"; see [`register_reward`].
        monitor (`bool`, *optional*, defaults to `False`): scored, logged and traced, but no part of the total.
        label (`str`, *optional*): the name to log under. Two entries of one name need it.
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
            raise ValueError(f"reward_funcs: {self.name!r} is no name, path, model id, function or model.")
        hints = {"args": dict[str, Any], "weight": float | None, "timeout": float | None}
        for name, hint in {**hints, "monitor": bool, "label": str | None}.items():
            value = getattr(self, name)
            if not fits(value, hint) or value == "" or (isinstance(value, float) and not isfinite(value)):
                raise ValueError(f"reward_funcs: {self.name!r}: {name}={value!r} must be {spelled(hint)}.")
        if self.monitor and self.weight not in (None, 0):
            raise ValueError(
                f"reward_funcs: {self.name!r} is a monitor, which has no weight, and has weight={self.weight}. Leave "
                "one of the two out."
            )

    @classmethod
    def of(cls, entry: Any) -> "RewardSpec":
        """The spec of an entry in whatever form."""
        if isinstance(entry, RewardSpec):
            return entry
        if not isinstance(entry, Mapping):
            return cls(entry)
        known = [item.name for item in fields(cls)]
        for key in entry:
            if key not in known:
                raise ValueError(
                    f"reward_funcs: {dict(entry)!r} has the unknown key {key!r}.{near(str(key), known)} Keys are "
                    f"{', '.join(known)}."
                )
        if "name" not in entry:
            raise ValueError(f"reward_funcs: {dict(entry)!r} has no name.")
        return cls(**{**entry, "args": entry.get("args") or {}})  # `args:` with nothing behind it

    def build(self) -> Any:
        """What the trainer is given: a [`Reward`], or the entry itself where that is TRL's to read."""
        options: dict[str, Any] = {"timeout": self.timeout, "on_timeout": self.on_timeout, "on_error": self.on_error}
        options = {name: value for name, value in {**options, "label": self.label}.items() if value is not None}
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
            raise ValueError(f"reward_funcs: {changed[0]} is for functions; {self.name!r:.80} is a model.")
        else:
            return self.name
        if not changed and definition.target not in _registered_targets():
            return definition.function  # a plain function by its path: TRL's own kind
        return Reward(definition, self.args, **options).prepare()


def resolve(reward_funcs: Any, reward_weights: Sequence[float] | None = None) -> tuple[Any, list[float] | None]:
    """What TRL's trainer takes, from `reward_funcs` as ours takes it.

    Args:
        reward_funcs: an entry or a list of entries; see [`RewardSpec`].
        reward_weights (`Sequence[float]`, *optional*): TRL's.

    Returns:
        `tuple`: the functions and models, and their weights (`None`: all 1).

    Raises:
        ValueError: an entry is not understood, or a weight is given twice and differs.
    """
    if reward_funcs is None:
        return None, None if reward_weights is None else list(reward_weights)
    specs = [RewardSpec.of(entry) for entry in (reward_funcs if isinstance(reward_funcs, list) else [reward_funcs])]
    built = [spec.build() for spec in specs]
    names = [getattr(reward, "__name__", None) for reward in built]
    twice = [reward.__name__ for reward in built if isinstance(reward, Reward) and names.count(reward.__name__) > 1]
    if twice:
        raise ValueError(f"reward_funcs: {twice[0]!r} is there twice. Give one of them a label to be logged under.")
    return built, _weights(specs, reward_weights)


def check_splits(rewards: Any, train_dataset: Any, eval_dataset: Any) -> None:
    """[`check_columns`] of each reward on each data set; `eval_dataset` may be several, by name."""
    splits = eval_dataset if isinstance(eval_dataset, dict) else {"": eval_dataset}
    splits = {"train_dataset": train_dataset, **{f"eval_dataset {name}".strip(): splits[name] for name in splits}}
    for what, dataset in splits.items():
        for reward in rewards or ():
            check_columns(reward, dataset, what)


def check_columns(reward: Any, dataset: Any, what: str) -> None:
    """Check before a run that a dataset has what a reward reads.

    Args:
        reward: a [`Reward`], a combination with `parts`, or a plain function.
        dataset: a `datasets` dataset; a streamed one is checked by its column names alone, if it knows them.
        what (`str`): which data it is, for an error's text.

    Raises:
        ValueError: a column is missing, or the reward refuses a value.
    """
    for part in getattr(reward, "parts", ()):
        check_columns(part, dataset, what)
    available = getattr(dataset, "column_names", None)
    if available is None or not callable(reward):
        return
    try:
        if isinstance(reward, Reward):
            _check_registered(reward, dataset, available)
            return
        for name in needed(reward):
            if name not in TRL_GIVES:
                check_column(name_of(reward), name, available, f"columns: {{{name}: NAME}}")
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None


def _check_registered(reward: Reward, dataset: Any, available: Sequence[str]) -> None:
    definition = reward.definition
    columns = columns_of(definition, available, reward.renamed, reward.__name__)
    if definition.check_columns is not None and hasattr(dataset, "__len__"):
        definition.check_columns(**_values(dataset, columns, definition.needed), **reward.all_args())


def _values(dataset: Any, columns: Mapping[str, str], needed: Sequence[str]) -> dict[str, list[Any]]:
    """Whole columns, without the rows that the reward does not score."""
    found = {name: list(dataset[column]) for name, column in columns.items()}
    lines = [i for i in range(len(dataset)) if all(found[name][i] is not None for name in needed)]
    return {name: [values[i] for i in lines] for name, values in found.items()}


def _weights(specs: Sequence[RewardSpec], reward_weights: Sequence[float] | None) -> list[float] | None:
    own = [0.0 if spec.monitor else spec.weight for spec in specs]
    if specs and all(spec.monitor for spec in specs):
        raise ValueError("reward_funcs holds monitors only: there is no reward to train on.")
    if all(weight is None for weight in own):
        return None if reward_weights is None else list(reward_weights)
    if reward_weights is None:
        return [1.0 if weight is None else float(weight) for weight in own]
    if len(reward_weights) != len(specs):
        raise ValueError(f"reward_weights has {len(reward_weights)} values for {len(specs)} reward_funcs.")
    for spec, weight, given in zip(specs, own, reward_weights, strict=True):
        if weight is not None and weight != given:
            raise ValueError(
                f"reward_funcs gives {spec.name!r} the weight {weight}{' (a monitor)' if spec.monitor else ''}, "
                f"reward_weights {given}. Leave one of the two out."
            )
    return list(reward_weights)


def _is_model(name: str) -> bool:
    is_folder = os.path.isdir(name) and name not in list_rewards()
    return ("/" in name and not is_path(name)) or is_folder


@functools.cache
def _entry_points() -> dict[str, list[str]]:
    """Name -> paths; more than one where packages clash, which concerns only who asks for that name."""
    found: dict[str, list[str]] = {}
    for point in entry_points(group=GROUP):
        found[point.name] = sorted({*found.get(point.name, []), point.value})
    return found


_REGISTERED: dict[str, Definition] = {}


def _registered_targets() -> set[str]:
    return {definition.target for definition in _REGISTERED.values()}
