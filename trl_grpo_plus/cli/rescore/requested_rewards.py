"""The requested rewards, and a check that the traces hold their inputs."""

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...registry import RewardSpec
from ...scoring import ONLY_IN_A_RUN, Outcome, Reward, WrongScoresError, check_columns, outcomes_without_run
from ...traces import Row
from ...utils.signatures import name_of, needed
from ...utils.text import distinct
from ...utils.validation import ConfigError, one_of
from ..option_values import args_of


TOTAL = "reward"  # name of the total in a trace


@dataclass(frozen=True)
class RequestedReward:
    """A reward to score with.

    Args:
        label (`str`): name of the reward in the report.
        function: a [`Reward`], or a plain reward function with TRL's signature.
        against (`str`): name of the recorded reward to compare with; `"reward"` for the total.
    """

    label: str
    function: Any
    against: str

    @property
    def at_once(self) -> bool:
        """True if the function is called with many samples at once, so that an error in one sample fails all."""
        return not isinstance(self.function, Reward) or self.function.timeout is None

    def score(self, completions: Sequence[Any], columns: Mapping[str, Any]) -> list[Outcome]:
        """Return one outcome for each completion. A failure is an outcome too, despite `on_error` and `on_timeout`."""
        try:
            return outcomes_without_run(self.function, {"completions": completions, **columns})
        except (Exception, SystemExit) as error:
            if isinstance(self.function, Reward):  # no error of its function, but of a worker that cannot start
                raise
            message = str(error) if isinstance(error, WrongScoresError) else traceback.format_exc(limit=-8)
            return [Outcome(None, "error", message)] * len(completions)


def read(words: Iterable[tuple[str, str]]) -> list[tuple[str, dict[str, Any]]]:
    """Return the rewards' names and arguments, from `--reward` and `--args` in the order of the command line.

    Raises:
        ConfigError: arguments belong to no reward, or are not a JSON object.
    """
    entries: list[tuple[str, dict[str, Any] | None]] = []
    for option, text in words:
        if option == "--reward":
            entries.append((text, None))
        elif not entries:
            raise ConfigError(
                f"--args {text} comes before any --reward. Put it after the --reward that it belongs to."
            )
        elif entries[-1][1] is not None:
            raise ConfigError(
                f"--args {text}: {entries[-1][0]!r} already has arguments. Give all of them in one JSON object."
            )
        else:
            entries[-1] = (entries[-1][0], args_of(text))
    return [(name, args or {}) for name, args in entries]


def build(
    entries: Iterable[tuple[str, Mapping[str, Any]]],
    against: str | None,
    recorded: Sequence[str],
    timeout: float | None = None,
) -> list[RequestedReward]:
    """Make the requested rewards from their names or paths and arguments.

    Args:
        entries: name or path, and arguments, of each reward.
        against (`str`, *optional*): name of the recorded reward to compare all with. `None`: the recorded reward of
            the same name, or else the total.
        recorded (`Sequence[str]`): names of the recorded rewards.
        timeout (`float`, *optional*): time limit of a sample in seconds, instead of each reward's own.

    Raises:
        ConfigError: a reward does not exist or is a model, its arguments are wrong, or `against` is not recorded.
    """
    if against is not None:
        one_of("--against", against, (TOTAL, *recorded))
    rewards: list[RequestedReward] = []
    for name, args in entries:
        function = RewardSpec(name, args, timeout=timeout).build()
        if not callable(function):
            raise ConfigError(
                f"--reward {name} is a reward model. Give a function instead: a name, pkg.mod:f or file.py:f."
            )
        called = name_of(function)
        (label,) = distinct([called], taken=[reward.label for reward in rewards])
        rewards.append(RequestedReward(label, function, against or (called if called in recorded else TOTAL)))
    return rewards


def columns_of(row: Row) -> dict[str, Any]:
    """Return the columns that an attempt's rewards got: those of its row, and those that `rollout_func` returned."""
    return {**(row.get("reference") or {}), **(row.get("returned") or {})}


class _Columns:
    """A group's columns, with the parts of a dataset's interface that the check needs."""

    def __init__(self, rows: Sequence[Row]):
        self._rows = [columns_of(row) for row in rows]
        self.column_names = list(self._rows[0])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, name: str) -> list[Any]:
        return [row.get(name) for row in self._rows]


def check(rewards: Iterable[RequestedReward], group: Sequence[Row], where: str) -> None:
    """Refuse rewards that need inputs that the traces do not hold.

    Args:
        rewards (`Iterable[RequestedReward]`): the rewards.
        group (`Sequence[Mapping]`): the run's first group.
        where (`str`): name of the traces, for the error message.

    Raises:
        ConfigError: the traces lack a column, or an argument that TRL would give.
    """
    for reward in rewards:
        _check_given(reward.label, reward.function)
        check_columns(reward.function, _Columns(group), where)


def _check_given(label: str, function: Any) -> None:
    for part in getattr(function, "parts", ()):
        _check_given(label, part)
    plain: Callable[..., Any] = function.definition.function if isinstance(function, Reward) else function
    for name in needed(plain):
        if name in ONLY_IN_A_RUN:
            raise ConfigError(
                f"reward {label!r} needs {name}, which traces do not hold. They hold completions, prompts and the "
                f"row's columns. Make it optional (`{name}=None`) and do without it here, or score in a run."
            )
