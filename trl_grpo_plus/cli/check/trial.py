"""The trial of a reward that has neither examples nor `gold`: one call on two rows of the data.

The call shows whether the reward takes the data's columns and returns a score for each completion. It cannot show
whether the scores are right. Two rows are few on purpose: a reward may be slow or cost money.
"""

import asyncio
import inspect
import re
import signal
import socket
import threading
import time
import urllib.error
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

from ...registry import Reward, check_columns, find, list_rewards
from ...scoring import NO_VERDICT, NOT_GIVEN, ONLY_IN_A_RUN, TRL_GIVES, Definition, Outcome, outcomes_of
from ...utils.import_path import is_path, load
from ...utils.signatures import call, name_of, needed, synchronous
from ...utils.tables import FAILED, OK, UNSEEN, WARNED, CheckRow, in_a_line
from ...utils.text import content_of
from ...utils.validation import ConfigError
from .attack import GOLD_COLUMNS
from .rewards import RewardCheck, as_completions, check_examples, not_installed


ROWS = 2
NO_ANSWER = "I do not know."  # the completion if there is no gold answer
GIVE_ROWS = "There are no rows here; check rewards takes them from --dataset."
NO_ARGS = "--args was checked, and not used: examples have arguments of their own. It counts with --dataset."
AN_OBJECT = "It is an object: give it to the trainer in Python, since a recipe names functions only."
LIMIT_S = 60  # seconds that a trial may take
_LACKING = (ConnectionError, TimeoutError, socket.gaierror, urllib.error.URLError, ModuleNotFoundError)


def definition_of(name: str) -> Definition:
    """Return the definition of the reward with that name or path; the path may lead to a callable object.

    Raises:
        ConfigError: there is no such reward.
    """
    if name not in list_rewards() and is_path(name):
        function = load(name)
        if not hasattr(function, "__name__"):
            return Definition(name_of(function), function, name)
    return find(name)


def is_registered(definition: Definition) -> bool:
    """Return whether a definition comes from `@register_reward`, and was not made from a plain function."""
    return definition.name in list_rewards() and find(definition.name).target == definition.target


def check_args(name: str, args: Mapping[str, Any]) -> None:
    """Check the arguments of a reward; their values only if the packages that it needs are installed.

    Raises:
        ConfigError: there is no such reward, or an argument is unknown, mistyped, missing or refused.
    """
    reward = Reward(definition_of(name), args)
    if not not_installed(reward.definition):
        reward.prepare()


def check_alone(name: str, args: Mapping[str, Any], dataset: Any = None) -> RewardCheck:
    """Score the examples of a registered reward; call another one on two rows of a dataset.

    Args:
        name (`str`): a registered name or a path.
        args (`Mapping[str, Any]`): arguments of the reward. Examples have arguments of their own.
        dataset (*optional*): a map-style dataset.
    """
    try:
        definition = definition_of(name)
        if is_registered(definition):
            finding = check_examples(name)
            note = NO_ARGS if args and dataset is None and finding.total else ""
            return replace(finding, note=note)
        reward = Reward(definition, args).prepare() if args else definition.function
        row = try_out(reward, dataset)
    except Exception as error:  # a broken reward must not stop the checks of the others
        return RewardCheck(name, "call", problems=(f"{type(error).__name__}: {error}",))
    if row.status == UNSEEN:
        return RewardCheck(name, "call", unseen=row.text)
    if row.status == FAILED:
        return RewardCheck(name, "call", total=ROWS, problems=(row.text,))
    only_in_python = "" if _is_function(definition.function) else f" {AN_OBJECT}"
    return RewardCheck(name, "call", ROWS, ROWS, note=row.text + only_in_python)


def try_out(reward: Any, dataset: Any = None) -> CheckRow:
    """Call a reward once, on two rows, and return a row of the table about the result.

    The first completion is empty. The second is its row's gold answer, or [`NO_ANSWER`] if the row has none.

    Args:
        reward: a [`Reward`], or another reward function.
        dataset (*optional*): a dataset, which may be a stream. `None`: the reward is called without columns.

    Returns:
        `CheckRow`: FAILED if the reward raises, or returns anything but a score for each completion; UNSEEN if it
        needs values that only the trainer has, or what this machine lacks.
    """
    function = reward.definition.function if isinstance(reward, Reward) else reward
    name = name_of(reward)
    if isinstance(function, type):
        made = f"make an instance, such as judge = {name}(...), and give that"
        return CheckRow(name, FAILED, f"it is a class, and a call of it makes an object, not rewards: {made}")
    try:
        check_columns(reward, dataset, "the dataset", read=False)
    except ConfigError as error:
        return CheckRow(name, FAILED, str(error))
    rows = [] if dataset is None else list(islice(dataset, ROWS))
    values = _values(rows)
    if lacking := [each for each in needed(function) if each in TRL_GIVES and each not in values]:
        return CheckRow(name, UNSEEN, _of_the_trainer(name, lacking))
    given = {*values, *(reward.args if isinstance(reward, Reward) else ())}
    if columns := [each for each in needed(function) if each not in given and not rows]:
        return CheckRow(name, UNSEEN, f"it needs the column {columns[0]!r}. {GIVE_ROWS}")
    return _called(reward, name, function, values, bool(rows))


def _values(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a reward is given: completions, and for rows of data their prompts and columns."""
    texts = ["", NO_ANSWER]
    logs = {"log_extra": _ignore, "log_metric": _ignore}
    if not rows:
        return {"completions": texts, **logs}
    rows = [rows[0], rows[-1]]
    golds = (rows[-1].get(name) for name in GOLD_COLUMNS)
    texts[1] = next((str(gold) for gold in golds if isinstance(gold, str | int | float)), NO_ANSWER)
    prompts = [row.get("prompt", "") for row in rows]
    columns = {name: [row.get(name) for row in rows] for name in rows[0] if name not in NOT_GIVEN}
    return {**columns, "prompts": prompts, "completions": as_completions(texts, prompts), **logs}


def _ignore(*logged: Any) -> None:
    """Ignore what a reward logs."""


def _called(reward: Any, name: str, function: Any, values: dict[str, Any], has_rows: bool) -> CheckRow:
    on = f"called once, on {ROWS} {'rows of the data' if has_rows else 'completions and no data'}"
    start = time.perf_counter()
    try:
        with _limited():
            outcomes = _outcomes(reward, values)
    except WrongScoresError as error:
        return CheckRow(name, FAILED, f"{on}: {error}. Return a list with a number, or None, for each completion.")
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        said = in_a_line(error)
        if _lacks_something(error):
            return CheckRow(name, UNSEEN, f"{on}: this machine cannot reach or find what the reward needs, {said}")
        if trainers := _read_by(function):
            return CheckRow(name, UNSEEN, f"{_of_the_trainer(name, trainers)} Without: {said}")
        if not has_rows and _reads_columns(function):
            return CheckRow(name, UNSEEN, f"{on}: {said}. {GIVE_ROWS}")
        return CheckRow(name, FAILED, f"{on}: it failed, {said}")
    seconds = time.perf_counter() - start
    took = "less than a second" if seconds < 1 else f"{seconds:.0f} s"
    texts = [content_of(completion) for completion in values["completions"]]
    wrong = [(o, text) for o, text in zip(outcomes, texts, strict=True) if o.status in NO_VERDICT]
    if wrong:
        if trainers := _read_by(function):
            return CheckRow(name, UNSEEN, _of_the_trainer(name, trainers))
        outcome, text = wrong[0]
        stops = not isinstance(reward, Reward) or reward.failure([outcome], [text])
        why = outcome.reason.rstrip(".")
        return CheckRow(name, FAILED if stops else WARNED, f"{on}: {why}. The completion was {text!r:.80}.")
    scores = ", ".join(f"{text!r:.80} {_score(o)}" for o, text in zip(outcomes, texts, strict=True))
    unknown = "It has no examples and no gold answers that tell whether this is right."
    return CheckRow(name, OK, f"{on}, in {took}: {scores}. {unknown}")


def _lacks_something(error: BaseException | None) -> bool:
    """Return whether an error or one of its causes shows that the network, a package, a GPU or a secret is missing."""
    import torch

    while error is not None:
        of_network = isinstance(error, _LACKING) or "Connect" in type(error).__name__
        of_gpu = "CUDA" in str(error) and not torch.cuda.is_available()
        of_secret = isinstance(error, KeyError) and str(error.args[0]).isupper()  # an environment variable
        if of_network or of_gpu or of_secret:
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def _limited() -> Iterator[None]:
    """Raise `TimeoutError` in the code inside after [`LIMIT_S`] seconds."""

    def stop(number: int, frame: Any) -> None:
        raise TimeoutError(f"it did not return within {LIMIT_S} s")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def _of_the_trainer(name: str, values: Sequence[str]) -> str:
    register = f"Register it to have it checked: @register_reward({name!r}, examples=[...], gold=...)."
    return f"it reads {', '.join(values)}, which only the trainer has. {register}"


def _score(outcome: Outcome) -> str:
    return "is not scored (None)" if outcome.score is None else f"scores {outcome.score:g}"


class WrongScoresError(ValueError):
    """A reward function returned something other than a score for each completion."""


def _outcomes(reward: Any, values: dict[str, Any]) -> list[Outcome]:
    if isinstance(reward, Reward):
        return reward.score(**values)
    returned = call(synchronous(reward), values)
    try:
        return outcomes_of(returned, values["completions"])
    except ValueError as error:
        raise WrongScoresError(str(error)) from error


def _read_by(function: Any) -> list[str]:
    """Return the values of the trainer that a function's source mentions and that a trial does not give."""
    try:
        source = inspect.getsource(function if _is_function(function) else type(function))
    except (OSError, TypeError):
        return []
    return [name for name in ONLY_IN_A_RUN if re.search(rf"\b{name}\b", source)]


def _reads_columns(function: Any) -> bool:
    """Return whether a function may read columns: it takes all of them, or names some."""
    definition = Definition("", function, "")
    return definition.takes_all or bool(definition.columns)


def _is_function(function: Any) -> bool:
    """Return whether a recipe can name a callable by its path."""
    return hasattr(function, "__name__")
