"""A reward: a plain TRL reward function with its arguments, its time limit and its failure policies.

Every score has an outcome: ok, abstain (None: does not apply), timeout, error and others. The user chooses the scores
of a timeout and an error (`on_timeout`, `on_error`), since the model would be trained on a failure that silently
becomes 0.
"""

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any

from ..utils import optional_packages
from ..utils.import_path import load
from ..utils.signatures import call, is_async, name_of, synchronous
from ..utils.validation import ConfigError, Number, did_you_mean, error_prefix, fits, one_of, spelled
from .definition import FAILURES, FOR_ALL, NOT_IN_WORKERS, POLICIES, TRL_GIVES, Definition, Policy, definition_at
from .failures import RewardError, RowError, hint, in_one_line, own_frames, with_frames
from .outcome import Outcome, WrongScoresError, first_failure, outcomes_of
from .worker_pool import shared


TIMEOUT = Number(above=0, at_most=86_400, note=" (seconds)")


def plain(values: Any) -> Any:
    """Return a column with Python's integers in place of NumPy's, which a dataset in NumPy's format has."""
    if not isinstance(values, list):
        return values
    return [value.item() if isinstance(value, Integral) and hasattr(value, "item") else value for value in values]


def _on_cpu(value: Any) -> Any:
    """Return a value of a row without tensors on a GPU, which a dataset in torch's format has: workers have no GPU."""
    if type(value) is dict:
        return {name: _on_cpu(part) for name, part in value.items()}
    if type(value) is list:
        return [_on_cpu(part) for part in value]
    return value.cpu() if hasattr(value, "cpu") else value


class Reward:
    """A registered reward with its arguments: a picklable TRL reward function, logged under `__name__`.

    Args:
        definition ([`Definition`]): the registered definition.
        args (`Mapping[str, Any]`, *optional*): the function's arguments, and `column` or `columns`, which rename
            columns.
        label (`str`, *optional*): the name to log under, instead of the registered name.
        timeout, on_timeout, on_error (*optional*): values that replace the registered ones.

    Raises:
        ConfigError: an argument is unknown, mistyped, missing or refused.
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
        if is_async(definition.function):
            raise ConfigError(
                f"reward {definition.name!r} is an async function, which TRL runs itself. In reward_funcs, give the "
                "function or its path alone: args, timeout and label are for plain functions."
            )
        self.definition = definition
        self.options = dict(args or {})
        self.renamed = _renamed(definition, self.options)
        self.args = _checked_args(definition, self.options)
        self.timeout = definition.timeout if timeout is None else timeout
        self.on_timeout = on_timeout or definition.on_timeout
        self.on_error = on_error or definition.on_error
        self.__name__ = label or definition.name
        self.__doc__ = definition.function.__doc__
        self.__module__ = definition.function.__module__
        self.__wrapped__ = definition.function
        self._prepared = False
        for name, policy in (("on_timeout", self.on_timeout), ("on_error", self.on_error)):
            one_of(f"reward {self.__name__!r}: {name}", policy, POLICIES)

    def __call__(self, *positional: Any, **columns: Any) -> list[float | None]:
        """Score the completions, with the arguments that the function takes.

        Raises:
            RewardError: a sample failed, and the policy for its failure is "raise".
        """
        columns |= zip(self.definition.parameters, positional, strict=False)
        return [outcome.score for outcome in self._passed(columns)]

    def annotated(self, **columns: Any) -> list[float | None]:
        """Score as a call does, for another reward: an [`AnnotatedScore`] says that a sample timed out, failed, ...

        Raises:
            RewardError: a sample failed, and the policy for its failure is "raise".
        """
        return [outcome.as_score() for outcome in self._passed(columns)]

    def score(self, completions: Sequence[Any], **columns: Any) -> list[Outcome]:
        """Return one outcome per completion; `on_timeout` and `on_error` set the score of a failed sample.

        Raises:
            TypeError: a required column is not given, or one of the function's arguments is given.
            ValueError: a column has another length than `completions`.
        """
        for name in self.definition.arguments:
            if not isinstance(columns.get(name, ()), Sequence):  # a sequence is a column that has the same name
                how = f"get_reward({self.definition.name!r}, {name}={columns[name]!r})"
                raise TypeError(
                    f"reward {self.__name__!r}: {name} is an argument. Set it before the call, as in {how}."
                )
        values = self._picked(columns)
        for name, value in values.items():
            if name not in FOR_ALL and len(value) != len(completions):
                counts = f"{len(value)} values of {name} for {len(completions)} completions"
                raise ConfigError(f"reward {self.__name__!r} is given {counts}.")
        needed = self.definition.needed
        rows = [i for i in range(len(completions)) if all(values[name][i] is not None for name in needed)]
        outcomes = [Outcome(None, "abstain")] * len(completions)
        refused = self._refused(rows, values)
        for i, why in refused.items():
            outcomes[i] = Outcome(None, "error", why, of_row=True)
        rows = [i for i in rows if i not in refused]
        scored: dict[str, Any] = {n: v if n in FOR_ALL else [v[i] for i in rows] for n, v in values.items()}
        if "log_extra" in scored and len(rows) < len(completions):
            scored["log_extra"] = _spread(scored["log_extra"], rows, len(completions))
        run = self._in_process if self.timeout is None else self._in_workers
        for i, outcome in zip(rows, run([completions[i] for i in rows], scored) if rows else [], strict=True):
            outcomes[i] = self._by_policy(outcome)
        return outcomes

    @property
    def policies(self) -> dict[str, Policy]:
        """The policy for each status that has one."""
        return {"timeout": self.on_timeout, "error": self.on_error}

    def _passed(self, columns: dict[str, Any]) -> list[Outcome]:
        outcomes = self.score(**columns)
        failure = self.failure(outcomes, columns["completions"])
        if failure:
            raise (RowError if any(outcome.of_row for outcome in outcomes) else RewardError)(failure)
        return outcomes

    def failure(self, outcomes: Sequence[Outcome], completions: Sequence[Any]) -> str | None:
        """Describe the first outcome that must stop the run; `None` if there is none."""
        raising = {status for status, policy in self.policies.items() if policy == "raise"}
        return first_failure(f"reward {self.__name__!r}", outcomes, completions, raising)

    def prepare(self) -> "Reward":
        """Check, once, that the reward is ready for a run, and return the reward.

        No argument may be missing, workers must be able to load the function, the `preload` modules must be installed,
        and `check_args` must accept the arguments.

        Raises:
            ConfigError: the reward is not ready. A `RuntimeError` of `check_args` says that it cannot run here.
        """
        if self._prepared:
            return self
        missing = [name for name, value in self.all_args().items() if value is inspect.Parameter.empty]
        if missing:
            raise ConfigError(f"reward {self.__name__!r} needs args: {{{', '.join(f'{m}: ...' for m in missing)}}}.")
        if self.timeout is not None:
            self._check_loadable()
        for module, how in optional_packages.missing({module: module for module in self.definition.preload}).items():
            raise ConfigError(f"reward {self.__name__!r} needs {module}, which is not installed: {how}.")
        if self.definition.check_args:
            try:
                with error_prefix("", ValueError):
                    self.definition.check_args(**self.all_args())
            except RuntimeError as error:  # the machine lacks something, such as a sandbox for programs
                raise ConfigError(f"reward {self.__name__!r} cannot run here: {error}") from error
        self._prepared = True
        return self

    @property
    def parts(self) -> Sequence[Any]:
        """The other rewards that this reward calls. Their columns are required, too."""
        return self.definition.parts(**self.all_args()) if self.definition.parts else ()

    def changed(self, args: Mapping[str, Any], **options: Any) -> "Reward":
        """Return a copy with the given arguments, label, timeout or policies; the reward itself if none are given."""
        if not args and not options:
            return self
        return Reward(self.definition, {**self.options, **args}, **{**self._limits(), **options})

    def all_args(self) -> dict[str, Any]:
        """Return every argument of the function, with defaults filled in."""
        return {name: self.definition.parameters[name].default for name in self.definition.arguments} | self.args

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.definition.target, self.options, self._limits())

    def _limits(self) -> dict[str, Any]:
        policies = {"on_timeout": self.on_timeout, "on_error": self.on_error}
        return {"label": self.__name__, "timeout": self.timeout, **policies}

    def __repr__(self) -> str:
        args = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"get_reward({self.definition.name!r}{args})"

    def _picked(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Select the TRL values and dataset columns to call the function with, except the completions."""
        definition = self.definition
        picked = {n: columns[n] for n in definition.parameters if n in TRL_GIVES and n in columns}
        for name in definition.columns:
            column = self.renamed.get(name, name)
            if column in columns:
                picked[name] = plain(columns[column])
            elif name in definition.needed:
                raise TypeError(
                    f"reward {self.__name__!r} needs the column {column!r}. It got {', '.join(columns) or 'none'}."
                )
        if definition.takes_all:
            skip = {*self.renamed.values(), *self.args, "completions", *(NOT_IN_WORKERS if self.timeout else ())}
            picked = {**{name: value for name, value in columns.items() if name not in skip}, **picked}
        return picked

    def _refused(self, rows: Sequence[int], values: Mapping[str, Any]) -> dict[int, str]:
        """Return for each row of which no completion can be scored what is wrong with it."""
        refused: dict[int, str] = {}
        check, names = self.definition.check_row, [name for name in self.definition.columns if name in values]
        for i in rows if check else ():
            try:
                check(**{name: values[name][i] for name in names})  # type: ignore[misc]
            except ValueError as error:
                refused[i] = str(error)
        return refused

    def _in_process(self, completions: Sequence[Any], values: Mapping[str, Any]) -> list[Outcome]:
        count = len(completions)
        try:
            arguments = {"completions": completions, **values, **self.args}
            return outcomes_of(call(self.definition.function, arguments), completions)
        except RowError as error:  # of a reward that this one calls
            return [Outcome(None, "error", str(error), of_row=True)] * count
        except FAILURES as error:
            if own_frames(error) is None:
                why = in_one_line(error)
                return [Outcome(None, "error", f"{why[:1].upper()}{why[1:]}.")] * count
            why = f"It was called with all {count} samples at once.\n{with_frames(error)}"
            return [Outcome(None, "error", why + hint(error, completions))] * count

    def _in_workers(self, completions: Sequence[Any], values: Mapping[str, Any]) -> list[Outcome]:
        assert self.timeout is not None
        columns = {"completions": completions, **values}
        samples = [{name: _on_cpu(value[i]) for name, value in columns.items()} for i in range(len(completions))]
        definition = self.definition
        return shared().map(definition.target, self.args, samples, self.timeout, preload=definition.preload)

    def _by_policy(self, outcome: Outcome) -> Outcome:
        policy = self.policies.get(outcome.status)
        return outcome._replace(score=0.0) if policy == "zero" and not (outcome.decided or outcome.of_row) else outcome

    def _check_loadable(self) -> None:
        what = f"reward {self.__name__!r} has a timeout, so it runs in worker processes"
        TIMEOUT.check(f"reward {self.__name__!r}: timeout", self.timeout)
        taken = [name for name in NOT_IN_WORKERS if name in self.definition.parameters]
        if taken:
            raise ConfigError(f"{what}, which have no {taken[0]}. Leave out the parameter {taken[0]}, or the timeout.")
        where, _, name = self.definition.target.rpartition(":")
        if where == "__main__" or not _is_at(self.definition.target, self.definition.function):
            raise ConfigError(
                f"{what}. A worker imports the reward by its name, but {where}.{name} cannot be imported. Move the "
                "function to the top level of its own module, or leave the timeout out."
            )


def reports_outcomes(reward: Any) -> bool:
    """Return whether the outcomes of a reward are counted: those of a [`Reward`], and of a reward made of one."""
    return isinstance(reward, Reward) or any(map(reports_outcomes, getattr(reward, "parts", ())))


def scores_of_part(part: Any, columns: Mapping[str, Any]) -> list[float | None]:
    """Return the scores of a reward function for another that is made of it.

    Args:
        part (`Callable`): a [`Reward`], whose scores keep their status as an [`AnnotatedScore`], or another function,
            which may give steps: they are summed.
        columns (`Mapping[str, Any]`): all values of the call, with the completions.

    Raises:
        RewardError: a sample failed and nothing says what it scores, or a function does not return one score for each
            completion.
    """
    if isinstance(part, Reward):
        return part.annotated(**columns)
    what, given, completions = f"reward {name_of(part)!r}", part(**columns), columns["completions"]
    try:
        outcomes = outcomes_of(given, completions)
    except WrongScoresError as error:
        raise RewardError(f"{what}: {error}.") from error
    values = [value.item() if hasattr(value, "item") else value for value in given]
    # A number is not judged here: it may be infinite, and `clip` bounds it.
    outcomes = [
        Outcome(value, "ok") if isinstance(value, float) else outcome
        for value, outcome in zip(values, outcomes, strict=True)
    ]
    if failure := first_failure(what, outcomes, completions, fix="Return a number, None or a list of steps for it."):
        raise RewardError(failure)
    return [
        value if isinstance(value, float) else outcome.as_score()
        for value, outcome in zip(values, outcomes, strict=True)
    ]


def outcomes_without_run(reward: Any, columns: Mapping[str, Any]) -> list[Outcome]:
    """Return the outcomes of a reward function that is called outside a run. What it logs is not kept.

    Args:
        reward (`Callable`): a [`Reward`], or another function, which may be async and whose own errors are raised.
        columns (`Mapping[str, Any]`): all values of the call, with the completions.

    Raises:
        WrongScoresError: a function other than a [`Reward`] returns anything but a score for each completion.
    """
    values = {**columns, **dict.fromkeys(("log_extra", "log_metric"), lambda *logged: None)}
    if isinstance(reward, Reward):
        return reward.score(**values)
    return outcomes_of(call(synchronous(reward), values), columns["completions"])


def _is_at(path: str, function: Callable[..., Any]) -> bool:
    try:
        loaded = load(path)
    except ConfigError:
        return False
    return getattr(loaded, "__wrapped__", loaded) is function


def _spread(log_extra: Callable[[str, list[Any]], None], rows: Sequence[int], count: int) -> Callable[..., None]:
    """Wrap TRL's `log_extra`, which requires a value for every row, also for rows that were not scored."""

    def log(column: str, values: Sequence[Any]) -> None:
        by_row = dict(zip(rows, values, strict=True))
        log_extra(column, [by_row.get(i) for i in range(count)])

    return log


def _rebuild(path: str, args: dict[str, Any], options: dict[str, Any]) -> Reward:
    return Reward(definition_at(path), args, **options)


def _renamed(definition: Definition, options: Mapping[str, Any]) -> dict[str, str]:
    renamed = options.get("columns", {})
    reads = ", ".join(definition.columns) or "none"
    if "column" in options:
        if len(definition.needed) != 1:
            raise ConfigError(
                f"reward {definition.name!r} reads the columns {reads}, so column does not say which one it renames. "
                "Use columns: {one of them: NAME}."
            )
        renamed = {definition.needed[0]: options["column"]}
    if not fits(renamed, dict[str, str]):
        raise ConfigError(f"reward {definition.name!r}: columns must map names to names, got {renamed!r}.")
    for name in renamed:
        if name not in definition.columns:
            nearest = did_you_mean(name, definition.columns)
            raise ConfigError(f"reward {definition.name!r} reads no column {name!r}. It reads {reads}.{nearest}")
    return dict(renamed)


def _checked_args(definition: Definition, options: Mapping[str, Any]) -> dict[str, Any]:
    args = {name: value for name, value in options.items() if name not in ("column", "columns")}
    hints = _hints(definition.function)
    for name, value in args.items():
        if name not in definition.arguments:
            renames = ["column"] * (len(definition.needed) == 1) + ["columns"] * bool(definition.columns)
            known = [*definition.arguments, *renames]
            raise ConfigError(
                f"reward {definition.name!r} has no argument {name!r}, it takes "
                f"{', '.join(known) or 'none'}.{did_you_mean(name, known)}"
            )
        if not fits(value, hints.get(name, Any)):
            raise ConfigError(f"reward {definition.name!r}: {name}={value!r} must be {spelled(hints[name])}.")
    return args


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError):  # annotations that only a type checker can resolve
        return {}
