"""A reward: TRL's plain function, its arguments, the limits it runs under, and what a failure means.

Every score has an outcome: ok, abstain (None: does not apply), timeout, error. What the last two score is a choice
(`on_timeout`, `on_error`), since a failure that becomes 0 in silence is what the model is then trained on.
"""

import functools
import inspect
import traceback
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..common import packages
from ..common.loading import load, target_of
from ..common.signatures import call
from ..common.values import Refusal, about, fits, near, spelled
from .workers import Outcome, outcomes_of, shared


# What TRL hands to every reward function besides the dataset's columns, and where there are tools its trainer's own
# `tool_mask`, which [`GRPOPlusTrainer`] adds.
BY_ROW = ("prompts", "completion_ids", "tool_mask", "environments")
FOR_ALL = ("trainer_state", "log_extra", "log_metric")
TRL_GIVES = ("completions", *BY_ROW, *FOR_ALL)
NOT_GIVEN = ("prompt", "completion", "completion_ids")  # columns that TRL keeps back
NOT_IN_WORKERS = ("environments", *FOR_ALL)

# What a reward function may raise, and is then said to have failed. Ctrl-C is the user's.
FAILURES = (Exception, SystemExit)

Policy = Literal["zero", "abstain", "raise"]
POLICIES = typing.get_args(Policy)
LONGEST_TIMEOUT_S = 86_400
RewardFunction = Callable[..., Any]


class RewardError(RuntimeError):
    """A reward failed, and its `on_error` or `on_timeout` is "raise"."""


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
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """Of the function, without `*` and `**`."""
        found = inspect.signature(self.function).parameters
        return {n: p for n, p in found.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}

    @functools.cached_property
    def takes_all(self) -> bool:
        """Whether the function takes any column (`**kwargs`)."""
        return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(self.function).parameters.values())

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


class Reward:
    """A registered reward with its arguments: a TRL reward function, picklable, logged under `__name__`.

    Args:
        definition ([`Definition`]): what was registered.
        args (`Mapping[str, Any]`, *optional*): the function's arguments, and `column` or `columns`, which rename.
        label (`str`, *optional*): the name to log under, where it is not the registered one.
        timeout, on_timeout, on_error (*optional*): in place of the registered ones.

    Raises:
        ValueError: an argument is unknown, mistyped, missing or refused.
    """

    def __init__(
        self,
        definition: Definition,
        args: Mapping[str, Any] | None = None,
        *,
        label: str | None = None,
        timeout: float | None = None,
        on_timeout: Policy | None = None,
        on_error: Policy | None = None,
    ):
        if inspect.iscoroutinefunction(definition.function):
            raise Refusal(
                f"reward {definition.name!r} is an async function, which TRL runs itself. Give it in reward_funcs as "
                "it is or by its path; args, timeout and label are for plain functions."
            )
        self.definition = definition
        self.given = dict(args or {})
        own = {name: value for name, value in self.given.items() if name not in ("column", "columns")}
        self.renamed = _renamed(definition, self.given)
        self.args = _checked_args(definition, own)
        self.timeout = definition.timeout if timeout is None else timeout
        self.on_timeout = on_timeout or definition.on_timeout
        self.on_error = on_error or definition.on_error
        self.__name__ = label or definition.name
        self.__doc__ = definition.function.__doc__
        self.__module__ = definition.function.__module__
        self.__wrapped__ = definition.function
        self._prepared = False
        for name, policy in (("on_timeout", self.on_timeout), ("on_error", self.on_error)):
            if policy not in POLICIES:
                raise Refusal(f"reward {self.__name__!r}: {name}={policy!r} is none of {', '.join(POLICIES)}.")

    def __call__(self, *positional: Any, **given: Any) -> list[float | None]:
        """Score; a failure whose policy is "raise" raises [`RewardError`]. Takes what the function takes."""
        given |= zip(self.definition.parameters, positional, strict=False)
        outcomes = self.score(**given)
        failure = self.failure(outcomes, given["completions"])
        if failure:
            raise RewardError(failure)
        return [outcome.score for outcome in outcomes]

    def score(self, completions: Sequence[Any], **given: Any) -> list[Outcome]:
        """One outcome a completion, its score by `on_timeout` and `on_error` where the function gave none.

        Raises:
            TypeError: a column that it needs is not given, or an argument is.
            ValueError: a column has another length.
        """
        for name in self.definition.arguments:
            if name in given and not isinstance(given[name], Sequence):  # else a column that happens to be called so
                how = f"get_reward({self.definition.name!r}, {name}={given[name]!r})"
                raise TypeError(f"reward {self.__name__!r}: {name} is an argument, which is set beforehand: {how}.")
        values = self._values(given)
        for name, value in values.items():
            if name not in FOR_ALL and len(value) != len(completions):
                counts = f"{len(value)} values of {name} for {len(completions)} completions"
                raise Refusal(f"reward {self.__name__!r} is given {counts}.")
        needed = self.definition.needed
        lines = [i for i in range(len(completions)) if all(values[name][i] is not None for name in needed)]
        outcomes = [Outcome(None, "abstain")] * len(completions)
        picked: dict[str, Any] = {
            name: value if name in FOR_ALL else [value[i] for i in lines] for name, value in values.items()
        }
        if "log_extra" in picked and len(lines) < len(completions):
            picked["log_extra"] = _spread(picked["log_extra"], lines, len(completions))
        run = self._in_process if self.timeout is None else self._in_workers
        found = run({"completions": [completions[i] for i in lines], **picked}) if lines else []
        for i, outcome in zip(lines, found, strict=True):
            outcomes[i] = self._settled(outcome)
        return outcomes

    def failure(self, outcomes: Sequence[Outcome], completions: Sequence[Any]) -> str | None:
        """What must stop the run, if anything."""
        policies = {"timeout": self.on_timeout, "error": self.on_error}
        raising = {status for status, policy in policies.items() if policy == "raise"}
        return first_failure(f"reward {self.__name__!r}", outcomes, completions, raising)

    def prepare(self) -> "Reward":
        """Check, once, what only a run needs: no argument is missing, workers can load it, and `check_args`."""
        if self._prepared:
            return self
        missing = [name for name in self.definition.arguments if name not in self.args and self._has_no_default(name)]
        if missing:
            raise Refusal(f"reward {self.__name__!r} needs args: {{{', '.join(f'{m}: ...' for m in missing)}}}.")
        if self.timeout is not None:
            self._check_loadable()
        for module, how in packages.missing({module: module for module in self.definition.preload}).items():
            raise Refusal(f"reward {self.__name__!r} needs {module}, which is not installed: {how}.")
        if self.definition.check_args:
            with about("", ValueError):
                self.definition.check_args(**self.all_args())
        self._prepared = True
        return self

    @property
    def parts(self) -> Sequence[Any]:
        """The other rewards that it calls, whose columns it needs too."""
        return self.definition.parts(**self.all_args()) if self.definition.parts else ()

    def changed(self, args: Mapping[str, Any], **options: Any) -> "Reward":
        """The same with other arguments, label, limits or policies where they are given; itself where none are."""
        if not args and not options:
            return self
        return Reward(self.definition, {**self.given, **args}, **{**self._options(), **options})

    def all_args(self) -> dict[str, Any]:
        """Every argument of the function, defaults filled in."""
        parameters = self.definition.parameters
        return {name: parameters[name].default for name in self.definition.arguments} | self.args

    def __reduce__(self) -> tuple:
        return _rebuild, (self.definition.target, self.given, self._options())

    def _options(self) -> dict[str, Any]:
        names = {"timeout": self.timeout, "on_timeout": self.on_timeout, "on_error": self.on_error}
        return {"label": self.__name__, **names}

    def __repr__(self) -> str:
        args = "".join(f", {name}={value!r}" for name, value in self.given.items())
        return f"get_reward({self.definition.name!r}{args})"

    def _has_no_default(self, name: str) -> bool:
        return self.definition.parameters[name].default is inspect.Parameter.empty

    def _values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        definition = self.definition
        found = {name: given[name] for name in definition.parameters if name in TRL_GIVES and name in given}
        for name in definition.columns:
            column = self.renamed.get(name, name)
            if column in given:
                found[name] = given[column]
            elif name in definition.needed:
                raise TypeError(
                    f"reward {self.__name__!r} needs the column {column!r}, given are {', '.join(given) or 'none'}."
                )
        if definition.takes_all:
            skip = {*self.renamed.values(), *self.args, "completions", *(NOT_IN_WORKERS if self.timeout else ())}
            found = {**{name: value for name, value in given.items() if name not in skip}, **found}
        return found

    def _in_process(self, values: Mapping[str, Any]) -> list[Outcome]:
        count = len(values["completions"])
        try:
            return outcomes_of(call(self.definition.function, {**values, **self.args}), count)
        except FAILURES:
            trace = traceback.format_exc(limit=-8)
            return [Outcome(None, "error", f"It was called with all {count} samples at once.\n{trace}")] * count

    def _in_workers(self, values: Mapping[str, Any]) -> list[Outcome]:
        assert self.timeout is not None
        samples = [{name: value[i] for name, value in values.items()} for i in range(len(values["completions"]))]
        definition = self.definition
        return shared().map(definition.target, self.args, samples, self.timeout, preload=definition.preload)

    def _settled(self, outcome: Outcome) -> Outcome:
        policy = {"timeout": self.on_timeout, "error": self.on_error}.get(outcome.status)
        return outcome._replace(score=0.0) if policy == "zero" else outcome

    def _check_loadable(self) -> None:
        what = f"reward {self.__name__!r} has a timeout, so it runs in worker processes"
        assert self.timeout is not None
        if not fits(self.timeout, float) or not 0 < self.timeout <= LONGEST_TIMEOUT_S:
            raise Refusal(
                f"reward {self.__name__!r}: timeout={self.timeout!r} must be seconds above 0, at most a day."
            )
        taken = [name for name in NOT_IN_WORKERS if name in self.definition.parameters]
        if taken:
            raise Refusal(f"{what}, where {taken[0]} is not to be had. Leave that parameter or the timeout out.")
        where, _, name = self.definition.target.rpartition(":")
        if where == "__main__" or not _is_at(self.definition.target, self.definition.function):
            raise Refusal(
                f"{what}, which import it by name, and {where}.{name} cannot be imported. Move the function to the "
                "top level of a module of its own, or leave the timeout out."
            )


def first_failure(
    what: str, outcomes: Sequence[Outcome], completions: Sequence[Any], raising: Collection[str] = ("error",)
) -> str | None:
    """In words, the first of `outcomes` whose status is one of `raising`, if there is one."""
    for i, outcome in enumerate(outcomes):
        if outcome.status in raising:
            happened = "ran out of time" if outcome.status == "timeout" else "failed"
            return (
                f"{what} {happened} on sample {i} of {len(outcomes)}. {outcome.message}\nIts completion is "
                f"{completions[i]!r:.300}.\nTo go on in spite of it, set on_{outcome.status} of the reward to 'zero' "
                f"or 'abstain': reward_funcs takes {{'name': ..., 'on_{outcome.status}': ...}}."
            )
    return None


def columns_of(
    definition: Definition, available: Iterable[str], renamed: Mapping[str, str], label: str
) -> dict[str, str]:
    """Column of the function -> column of the dataset, for those that are there.

    Raises:
        ValueError: one that it needs, or that a renaming names, is missing.
    """
    available = list(available)
    wanted = {name: renamed.get(name, name) for name in definition.columns}
    rename = "column: NAME" if len(definition.needed) == 1 else "columns: {{{}: NAME}}"
    for name in (*definition.needed, *renamed):
        check_column(label, wanted[name], available, rename.format(name))
    return {name: column for name, column in wanted.items() if column in available}


def check_column(label: str, column: str, available: Sequence[str], rename: str) -> None:
    """Raise `ValueError` if TRL will not hand out the column to the reward `label`."""
    if column in available and column not in NOT_GIVEN:
        return
    known = [*(name for name in available if name not in NOT_GIVEN), *TRL_GIVES]
    raise Refusal(
        f"reward {label!r} needs the column {column!r}, the data has {', '.join(available)}.{near(column, known)} If "
        f"it has another name there, say so in the reward's args: {{{rename}}}."
    )


def definition_at(path: str) -> Definition:
    """What is registered at a path, or a definition of the plain function there.

    Raises:
        ValueError: there is no such function.
    """
    found = load(path)
    return found.definition if isinstance(found, Reward) else define(found)


def define(function: RewardFunction) -> Definition:
    """A definition of a plain function, under its own name."""
    return Definition(function.__name__, function, target_of(function))


def _is_at(path: str, function: RewardFunction) -> bool:
    try:
        found = load(path)
    except ValueError:
        return False
    return getattr(found, "__wrapped__", found) is function


def _spread(log_extra: Callable[[str, list[Any]], None], lines: Sequence[int], count: int) -> Callable[..., None]:
    """TRL wants a value a row, also of those that were left out."""

    def log(column: str, values: Sequence[Any]) -> None:
        by_row = dict(zip(lines, values, strict=True))
        log_extra(column, [by_row.get(i) for i in range(count)])

    return log


def _rebuild(path: str, args: dict[str, Any], options: dict[str, Any]) -> Reward:
    return Reward(definition_at(path), args, **options)


def _is_argument(parameter: inspect.Parameter) -> bool:
    # A default of None marks a column that a dataset need not have; TRL's users write arguments with other defaults.
    if parameter.name in TRL_GIVES:
        return False
    return parameter.kind is parameter.KEYWORD_ONLY or parameter.default not in (parameter.empty, None)


def _renamed(definition: Definition, given: Mapping[str, Any]) -> dict[str, str]:
    renamed = given.get("columns", {})
    if "column" in given:
        if len(definition.needed) != 1:
            raise Refusal(
                f"reward {definition.name!r} reads the columns {', '.join(definition.columns) or '(none)'}: rename "
                "with columns: {one of them: NAME}, not with column."
            )
        renamed = {definition.needed[0]: given["column"]}
    if not fits(renamed, dict[str, str]):
        raise Refusal(f"reward {definition.name!r}: columns must map names to names, got {renamed!r}.")
    for name in renamed:
        if name not in definition.columns:
            raise Refusal(
                f"reward {definition.name!r} reads no column {name!r}, only {', '.join(definition.columns) or 'none'}."
                f"{near(name, definition.columns)}"
            )
    return dict(renamed)


def _checked_args(definition: Definition, args: dict[str, Any]) -> dict[str, Any]:
    hints = _hints(definition.function)
    for name, value in args.items():
        if name not in definition.arguments:
            raise Refusal(
                f"reward {definition.name!r} has no argument {name!r}, it takes "
                f"{', '.join(definition.arguments) or 'none'}.{near(name, definition.arguments)}"
            )
        if not fits(value, hints.get(name, Any)):
            raise Refusal(f"reward {definition.name!r}: {name}={value!r} must be {spelled(hints[name])}.")
    return args


def _hints(function: RewardFunction) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError):  # annotations for a type checker alone
        return {}
