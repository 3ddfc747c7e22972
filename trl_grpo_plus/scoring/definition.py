"""The definition of a reward: a plain function and its registered options. Its signature names the inputs it reads."""

import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..utils.import_path import load, target_of
from ..utils.signatures import signature_of
from ..utils.validation import ConfigError, error_prefix


# Arguments that TRL passes to every reward function besides the dataset's columns. With tools, [`GRPOPlusTrainer`]
# adds the trainer's `tool_mask`.
BY_ROW = ("prompts", "completion_ids", "tool_mask", "environments")
FOR_ALL = ("trainer_state", "log_extra", "log_metric")
TRL_GIVES = ("completions", *BY_ROW, *FOR_ALL)
NOT_IN_WORKERS = ("environments", *FOR_ALL)
ONLY_IN_A_RUN = ("completion_ids", "tool_mask", "environments", "trainer_state")  # have no value without a run

# Exceptions that count as a failure of the reward function. KeyboardInterrupt is left out: the user pressed Ctrl-C.
FAILURES = (Exception, SystemExit)

Policy = Literal["zero", "abstain", "raise"]
POLICIES = typing.get_args(Policy)
RewardFunction = Callable[..., Any]


@dataclass(frozen=True)
class Example:
    """A completion, the columns of its row, and its expected reward (`None`: not scored)."""

    completion: Any
    columns: Mapping[str, Any] = field(default_factory=dict)
    reward: float | None = 1.0
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Definition:
    """A registered reward. See [`register_reward`] for the fields."""

    name: str
    function: RewardFunction
    target: str  # pkg.mod:function or /path/file.py:function, which a worker process loads
    examples: tuple[Example, ...] = ()
    timeout: float | None = None
    on_timeout: Policy = "abstain"
    on_error: Policy = "raise"
    check_args: Callable[..., None] | None = None
    check_columns: Callable[..., None] | None = None
    check_row: Callable[..., None] | None = None
    gold: Callable[..., str | None] | None = None
    full_marks: float = 1.0
    preload: tuple[str, ...] = ()
    parts: Callable[..., Sequence[Any]] | None = None

    @functools.cached_property
    def _signature(self) -> Mapping[str, inspect.Parameter]:
        return signature_of(self.function).parameters

    @functools.cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """Parameters of the function, without `*args` and `**kwargs`."""
        return {n: p for n, p in self._signature.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}

    @functools.cached_property
    def takes_all(self) -> bool:
        """`True` if the function takes every column (`**kwargs`)."""
        return any(p.kind is p.VAR_KEYWORD for p in self._signature.values())

    @functools.cached_property
    def arguments(self) -> tuple[str, ...]:
        """Names of the parameters that `args` may set."""
        return tuple(n for n, p in self.parameters.items() if _is_argument(p))

    @functools.cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the dataset columns that the function reads, required and optional."""
        return tuple(n for n, p in self.parameters.items() if n not in TRL_GIVES and not _is_argument(p))

    @functools.cached_property
    def needed(self) -> tuple[str, ...]:
        """Names of the columns that the function requires."""
        return tuple(n for n in self.columns if self.parameters[n].default is inspect.Parameter.empty)


def define(function: RewardFunction) -> Definition:
    """Return a definition of a plain function, named after the function.

    Raises:
        ConfigError: `function` is an object with a `__call__`. Another process cannot import it by a path.
    """
    if not hasattr(function, "__name__"):
        raise ConfigError(f"{function!r:.80} is an object, not a function. Name a function that calls it.")
    return Definition(function.__name__, function, target_of(function))


def definition_at(path: str) -> Definition:
    """Return the definition registered at a path, or a new definition of the plain function there.

    Raises:
        ConfigError: there is no function at the path.
    """
    function = load(path)
    registered = getattr(function, "definition", None)
    if isinstance(registered, Definition):
        return registered
    with error_prefix(path):
        return define(function)


def _is_argument(parameter: inspect.Parameter) -> bool:
    # A default of None marks an optional column. TRL's users give arguments other defaults.
    if parameter.name in TRL_GIVES:
        return False
    return parameter.kind is parameter.KEYWORD_ONLY or parameter.default not in (parameter.empty, None)
