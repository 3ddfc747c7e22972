"""What a reward is: a plain function, and what was registered with it. Its signature says what it reads."""

import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..utils.import_path import load, target_of
from ..utils.validation import ConfigError


# What TRL hands to every reward function besides the dataset's columns, and where there are tools its trainer's own
# `tool_mask`, which [`GRPOPlusTrainer`] adds.
BY_ROW = ("prompts", "completion_ids", "tool_mask", "environments")
FOR_ALL = ("trainer_state", "log_extra", "log_metric")
TRL_GIVES = ("completions", *BY_ROW, *FOR_ALL)
NOT_IN_WORKERS = ("environments", *FOR_ALL)

# What a reward function may raise, and is then said to have failed. Ctrl-C is the user's.
FAILURES = (Exception, SystemExit)

Policy = Literal["zero", "abstain", "raise"]
POLICIES = typing.get_args(Policy)
RewardFunction = Callable[..., Any]


@dataclass(frozen=True)
class Example:
    """A completion, its row's columns, and the reward that it deserves (`None`: not scored)."""

    completion: Any
    columns: Mapping[str, Any] = field(default_factory=dict)
    reward: float | None = 1.0
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Definition:
    """A reward as it was registered. See [`register_reward`] for the fields."""

    name: str
    function: RewardFunction
    target: str  # pkg.mod:function or /path/file.py:function, which a worker process loads
    examples: tuple[Example, ...] = ()
    timeout: float | None = None
    on_timeout: Policy = "abstain"
    on_error: Policy = "raise"
    check_args: Callable[..., None] | None = None
    check_columns: Callable[..., None] | None = None
    gold: Callable[..., str | None] | None = None
    full_marks: float = 1.0
    preload: tuple[str, ...] = ()
    parts: Callable[..., Sequence[Any]] | None = None

    @functools.cached_property
    def _signature(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.function).parameters

    @functools.cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """Of the function, without `*` and `**`."""
        return {n: p for n, p in self._signature.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}

    @functools.cached_property
    def takes_all(self) -> bool:
        """Whether the function takes any column (`**kwargs`)."""
        return any(p.kind is p.VAR_KEYWORD for p in self._signature.values())

    @functools.cached_property
    def arguments(self) -> tuple[str, ...]:
        """Names that `args` may set."""
        return tuple(n for n, p in self.parameters.items() if _is_argument(p))

    @functools.cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the dataset columns, needed and optional."""
        return tuple(n for n, p in self.parameters.items() if n not in TRL_GIVES and not _is_argument(p))

    @functools.cached_property
    def needed(self) -> tuple[str, ...]:
        """Names of the columns without which it cannot score."""
        return tuple(n for n in self.columns if self.parameters[n].default is inspect.Parameter.empty)


def define(function: RewardFunction) -> Definition:
    """Return a definition of a plain function, under its own name.

    Raises:
        ConfigError: it is an object with a `__call__`, which no path leads to in another process.
    """
    if not hasattr(function, "__name__"):
        raise ConfigError(f"{function!r:.80} is an object, not a function. Name a function that calls it.")
    return Definition(function.__name__, function, target_of(function))


def definition_at(path: str) -> Definition:
    """Return what is registered at a path, or a definition of the plain function there.

    Raises:
        ConfigError: there is no such function.
    """
    function = load(path)
    registered = getattr(function, "definition", None)
    return registered if isinstance(registered, Definition) else define(function)


def _is_argument(parameter: inspect.Parameter) -> bool:
    # A default of None marks a column that a dataset need not have; TRL's users write arguments with other defaults.
    if parameter.name in TRL_GIVES:
        return False
    return parameter.kind is parameter.KEYWORD_ONLY or parameter.default not in (parameter.empty, None)
