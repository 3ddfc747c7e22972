"""The rewards that were asked for, and whether the traces have what they read."""

import asyncio
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...registry import RewardSpec
from ...scoring import Outcome, Reward, check_columns, outcomes_of
from ...utils.signatures import call, is_async, name_of, needed
from ...utils.validation import ConfigError, json_object, one_of


TOTAL = "reward"  # what a trace calls it
GIVEN = ("completions", "prompts", "log_extra", "log_metric")  # besides the columns
NOT_HELD = ("completion_ids", "tool_mask", "environments", "trainer_state")  # of what TRL gives

Row = Mapping[str, Any]  # an attempt, as a line of a trace


@dataclass(frozen=True)
class Asked:
    """A reward to score with.

    Args:
        label (`str`): what it is called in the report.
        function: a [`Reward`], or a plain function of TRL's kind.
        against (`str`): the recorded reward that it is compared with, `"reward"` for the total.
    """

    label: str
    function: Any
    against: str

    @property
    def at_once(self) -> bool:
        """Whether the function is called with many samples at once, so that one that raises fails all of them."""
        return not isinstance(self.function, Reward) or self.function.timeout is None

    def score(self, completions: Sequence[Any], columns: Mapping[str, Any]) -> list[Outcome]:
        """One outcome a completion; a failure is one too, whatever the reward's `on_error` and `on_timeout`."""
        columns = {**columns, "log_extra": _nothing, "log_metric": _nothing}
        if isinstance(self.function, Reward):
            return self.function.score(completions, **columns)
        try:
            scores = call(self.function, {"completions": completions, **columns})
            if is_async(self.function):
                scores = asyncio.run(scores)
            return outcomes_of(scores, completions)
        except (Exception, SystemExit):
            return [Outcome(None, "error", traceback.format_exc(limit=-8))] * len(completions)


def _nothing(*args: Any) -> None:
    """In the place of TRL's loggers."""


def read(words: Iterable[tuple[str, str]]) -> list[tuple[str, dict[str, Any]]]:
    """Return names and arguments, from `--reward` and `--args` in the order in which they were given.

    Raises:
        ConfigError: arguments that belong to no reward, or are no JSON object.
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
            entries[-1] = (entries[-1][0], json_object("--args", text))
    return [(name, args or {}) for name, args in entries]


def build(
    entries: Iterable[tuple[str, Mapping[str, Any]]],
    against: str | None,
    recorded: Sequence[str],
    timeout: float | None = None,
) -> list[Asked]:
    """Return the rewards of these names or paths and arguments.

    Args:
        entries: of each, its name or path and its arguments.
        against (`str`, *optional*): what all are compared with. `None`: the recorded one of the same name, else the
            total.
        recorded (`Sequence[str]`): names of the recorded rewards.
        timeout (`float`, *optional*): seconds a sample, in the place of what each was registered with.

    Raises:
        ConfigError: no such reward, a model, wrong arguments, or nothing of the name `against` is recorded.
    """
    if against is not None:
        one_of("--against", against, (TOTAL, *recorded))
    asked: list[Asked] = []
    times: Counter[str] = Counter()
    for name, args in entries:
        function = RewardSpec(name, args, timeout=timeout).build()
        if not callable(function):
            raise ConfigError(
                f"--reward {name} is a reward model. Give a function instead: a name, pkg.mod:f or file.py:f."
            )
        called = name_of(function)
        times[called] += 1
        label = called if times[called] == 1 else f"{called}-{times[called]}"
        asked.append(Asked(label, function, against or (called if called in recorded else TOTAL)))
    return asked


class _Columns:
    """A group's columns, as much of a dataset as is looked at before scoring."""

    def __init__(self, rows: Sequence[Row]):
        self._rows = [row.get("reference") or {} for row in rows]
        self.column_names = list(self._rows[0])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, name: str) -> list[Any]:
        return [row.get(name) for row in self._rows]


def check(asked: Iterable[Asked], group: Sequence[Row], where: str) -> None:
    """Refuse rewards that need what the traces do not hold.

    Args:
        asked (`Iterable[Asked]`): the rewards.
        group (`Sequence[Mapping]`): the first of the run's.
        where (`str`): whose traces, for an error's text.

    Raises:
        ConfigError: a column is missing, or a value that TRL gives and traces have not.
    """
    for one in asked:
        _check_given(one.label, one.function)
        check_columns(one.function, _Columns(group), where)


def _check_given(label: str, function: Any) -> None:
    for part in getattr(function, "parts", ()):
        _check_given(label, part)
    plain: Callable[..., Any] = function.definition.function if isinstance(function, Reward) else function
    for name in needed(plain):
        if name in NOT_HELD:
            raise ConfigError(
                f"reward {label!r} needs {name}, which traces do not hold. They hold {', '.join(GIVEN[:2])} and the "
                f"row's columns. Make it optional (`{name}=None`) and do without it here, or score in a run."
            )
