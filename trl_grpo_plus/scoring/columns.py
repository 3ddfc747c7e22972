"""Checks that a dataset has the columns that a reward reads."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..utils.import_path import target_of
from ..utils.signatures import is_keyword_only, name_of, needed
from ..utils.validation import ConfigError, did_you_mean, error_prefix
from .definition import TRL_GIVES, Definition
from .prompts import columns_given, datasets_named
from .reward import Reward, plain


TAKEN = ("prompts", "completions")  # arguments that TRL gives a reward beside the columns
NOT_GIVEN = ("prompt", "completion", "completion_ids")  # columns that TRL does not pass to reward functions
IN_A_RECIPE = ", in a recipe in a function of yours (prepare: file.py:function)."


def check_splits(rewards: Any, train_dataset: Any, eval_dataset: Any) -> None:
    """Call [`check_columns`] for each reward and dataset; `eval_dataset` may map names to datasets."""
    for what, dataset in datasets_named(train_dataset, eval_dataset).items():
        for reward in rewards or ():
            check_columns(reward, dataset, what)


def check_columns(reward: Any, dataset: Any, what: str, read: bool = True) -> None:
    """Check before a run that a dataset has the columns that a reward reads.

    Args:
        reward: a [`Reward`], a combination with `parts`, or a plain function.
        dataset: a `datasets` dataset. Of a streamed dataset only the column names are checked, if it knows them.
        what (`str`): name of the dataset, for error messages.
        read (`bool`, *optional*, defaults to `True`): whether the values in the columns are checked, too.

    Raises:
        ConfigError: a column is missing, or the reward refuses a value.
    """
    for part in getattr(reward, "parts", ()):
        check_columns(part, dataset, what, read)
    stored = getattr(dataset, "column_names", None)
    if stored is None or not callable(reward):
        return
    required = reward.definition.needed if isinstance(reward, Reward) else needed(reward)
    named = getattr(reward, "renamed", {})
    with error_prefix(what):
        available = columns_given(dataset, [named.get(name, name) for name in required if name not in TRL_GIVES])
    if (taken := next((name for name in TAKEN if name in available), None)) and not is_model(reward):
        raise ConfigError(
            f"{what}: TRL gives each reward an argument {taken!r}, so a column cannot have this name. Rename the "
            f"column: dataset.rename_column({taken!r}, 'old_{taken}'){IN_A_RECIPE}"
        )
    with error_prefix(what, ValueError):  # a reward's own `check_columns` may raise any ValueError
        if isinstance(reward, Reward):
            columns = columns_of(reward.definition, available, reward.renamed, reward.__name__)
            # The values of a column that a transform makes are not read.
            read = read and hasattr(dataset, "__len__") and {*columns.values()} <= {*stored}
            if read and reward.definition.check_columns is not None:
                values = _values(dataset, columns, reward.definition.needed)
                reward.definition.check_columns(**values, **reward.all_args())
            return
        for name in needed(reward):
            if name not in TRL_GIVES:
                reason, args = "the column has another name", f"{{'columns': {{{name!r}: NAME}}}}"
                if is_keyword_only(reward, name):  # in an entry with `args` it is an argument
                    reason, args = "it is an argument", f"{{{name!r}: VALUE}}"
                called = f"{{'name': {_as_written(reward)}, 'args': {args}}}"
                _check_column(name_of(reward), name, available, f"If {reason}, give the reward as {called}.")


def _as_written(reward: Any) -> str:
    """Return a function as code or YAML can name it: its path; in a script or a notebook its name."""
    path = target_of(reward)
    if "<" in path:  # a lambda, or a function inside another one
        return "FUNCTION"
    return repr(path) if hasattr(reward, "__qualname__") and not path.startswith("__main__:") else name_of(reward)


def of_a_class(reward: type) -> str:
    """Return why a class is no reward, and what to give instead."""
    made = f"make an instance, such as judge = {reward.__name__}(...), and give that"
    return f"it is a class, and calling a class makes an object, not rewards: {made}"


def refuse_class(reward: Any) -> None:
    """Refuse a reward that is a class.

    Raises:
        ConfigError: it is one.
    """
    if isinstance(reward, type):
        raise ConfigError(f"reward_funcs: {reward.__name__!r} cannot score: {of_a_class(reward)}.")


def is_model(reward: Any) -> bool:
    """Return whether a reward is a model, to which TRL gives no columns."""
    from torch import nn  # imported here: the many scoring processes do not need torch

    return isinstance(reward, nn.Module)


def columns_of(
    definition: Definition, available: Iterable[str], renamed: Mapping[str, str], label: str
) -> dict[str, str]:
    """Map the function's columns to the dataset's columns, for those that the dataset has.

    Raises:
        ConfigError: a required or renamed column is missing.
    """
    available = list(available)
    columns = {name: renamed.get(name, name) for name in definition.columns}
    args = "{{column: NAME}}" if len(definition.needed) == 1 else "{{columns: {{{}: NAME}}}}"
    for name in (*definition.needed, *renamed):
        renaming = f"If the column has another name, name it in the reward's args: {args.format(name)}."
        _check_column(label, columns[name], available, renaming)
    return {name: column for name, column in columns.items() if column in available}


def _check_column(label: str, column: str, available: Sequence[str], advice: str) -> None:
    """Refuse a column that is missing or is not passed. `advice` says what to do about a missing one."""
    if column in available and column not in NOT_GIVEN:
        return
    if column in available:
        argument = column if column == "completion_ids" else f"{column}s"
        raise ConfigError(
            f"reward {label!r} reads the column {column!r}, which TRL does not pass to rewards. Read TRL's argument "
            f"{argument!r} instead, or rename the column: dataset.rename_column({column!r}, 'old_{column}')"
            f"{IN_A_RECIPE}"
        )
    readable = [name for name in available if name not in NOT_GIVEN]
    if column in NOT_GIVEN:  # TRL gives the arguments `prompts` and `completions`
        readable.append(f"{column}s")
    raise ConfigError(
        f"reward {label!r} needs the column {column!r}, the data has "
        f"{', '.join(available)}.{did_you_mean(column, readable)} {advice}"
    )


def _values(dataset: Any, columns: Mapping[str, str], needed: Sequence[str]) -> dict[str, list[Any]]:
    """Return the whole columns, without the rows that the reward does not score."""
    whole = {name: plain(list(dataset[column])) for name, column in columns.items()}
    scored = [i for i in range(len(dataset)) if all(whole[name][i] is not None for name in needed)]
    return {name: [values[i] for i in scored] for name, values in whole.items()}
