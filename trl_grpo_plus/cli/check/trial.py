"""All checks of a reward: its examples and gold answers or, without these, a trial: one call on two rows of the data.

The trial shows whether the reward takes the data's columns and returns a score for each completion. It cannot show
whether the scores are right. Two rows are few on purpose: a reward may be slow or cost money.
"""

import asyncio
import inspect
import re
import socket
import time
import urllib.error
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from ...registry import Reward, check_columns, find, list_rewards
from ...scoring import (
    NO_VERDICT,
    NOT_GIVEN,
    ONLY_IN_A_RUN,
    TRL_GIVES,
    Definition,
    Outcome,
    WrongScoresError,
    of_a_class,
    outcomes_without_run,
)
from ...utils.import_path import is_path, load
from ...utils.signatures import name_of, needed
from ...utils.tables import in_a_line
from ...utils.text import content_of
from ...utils.validation import ConfigError
from .attack import GOLD_COLUMNS
from .rewards import RewardCheck, as_completions, check_examples, check_gold, limited, not_installed


ROWS = 2
NO_ANSWER = "I do not know."  # the completion if there is no gold answer
GIVE_ROWS = "There are no rows here; check rewards takes them from --dataset."
NO_ARGS = "--args was checked but not used, because examples have their own arguments. It is used with --dataset."
AN_OBJECT = "It is an object: give it to the trainer in Python, because a recipe can name only functions."
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


def check_named(name: str, args: Mapping[str, Any], dataset: Any = None, **limit: int) -> list[RewardCheck]:
    """Check a reward by its name or path, as [`check_reward`] does; strictly, if the reward is registered."""
    try:
        definition = definition_of(name)
        registered = is_registered(definition)
        reward = Reward(definition, args) if registered or args else definition.function
    except Exception as error:  # a broken reward must not stop the checks of the others
        return [RewardCheck.broken(name, "call", error)]
    findings = [replace(finding, name=name) for finding in check_reward(reward, dataset, strict=registered, **limit)]
    if registered and args and dataset is None and findings[0].total:
        return [replace(findings[0], note=NO_ARGS)]
    return findings


def check_reward(reward: Any, dataset: Any = None, limit: int = 200, strict: bool = False) -> list[RewardCheck]:
    """Score a reward's examples, and a dataset's gold answers. Call a reward once if it has neither.

    Args:
        reward: a [`Reward`], or another reward function.
        dataset (*optional*): a dataset. The gold answers of a stream are not scored.
        limit (`int`, *optional*, defaults to `200`): maximum number of rows whose gold answers are scored.
        strict (`bool`, *optional*, defaults to `False`): whether a [`Reward`] that ships no examples fails, and one
            that has no `gold` is called on the dataset too.

    Raises:
        ConfigError: `limit` is below 2, or the reward is not ready for a run.
    """
    findings: list[RewardCheck] = []
    if isinstance(reward, Reward):
        definition = reward.definition
        if strict or (definition.examples and is_registered(definition)):
            findings.append(check_examples(definition.name))
        if any(finding.unseen for finding in findings):
            return findings
        if definition.gold is None:
            findings += [try_out(reward.prepare(), dataset)] if strict and dataset is not None else []
        elif hasattr(dataset, "__len__"):
            findings += check_gold(reward.prepare(), dataset, limit)
    return findings or [try_out(reward, dataset)]


def try_out(reward: Any, dataset: Any = None) -> RewardCheck:
    """Call a reward once, on two rows, and return the result of the check.

    The first completion is empty. The second is its row's gold answer, or [`NO_ANSWER`] if the row has none.

    Args:
        reward: a [`Reward`], or another reward function.
        dataset (*optional*): a dataset, which may be a stream. `None`: the reward is called without columns.

    Returns:
        `RewardCheck`: FAILED if the reward raises, or returns anything but a score for each completion; UNSEEN if it
        needs values that only the trainer has, or what this machine lacks.
    """
    if isinstance(_function(reward), type):
        return _failed(reward, of_a_class(_function(reward)))
    try:
        check_columns(reward, dataset, "the dataset", read=False)
    except ConfigError as error:
        return _failed(reward, str(error))
    rows = [] if dataset is None else list(islice(dataset, ROWS))
    values, needs = _values(rows), needed(_function(reward))
    if lacking := [name for name in needs if name in ("prompts", *ONLY_IN_A_RUN) and name not in values]:
        return _unseen(reward, _of_the_trainer(reward, lacking))
    args = reward.args if isinstance(reward, Reward) else ()
    if not rows and (columns := [name for name in needs if name not in (*TRL_GIVES, *args)]):
        return _unseen(reward, f"it needs the column {columns[0]!r}. {GIVE_ROWS}")
    return _called(reward, values)


def _failed(reward: Any, text: str) -> RewardCheck:
    return RewardCheck(name_of(reward), "call", total=ROWS, problems=(text,))


def _unseen(reward: Any, text: str) -> RewardCheck:
    return RewardCheck(name_of(reward), "call", unseen=text)


def _function(reward: Any) -> Any:
    return reward.definition.function if isinstance(reward, Reward) else reward


def _values(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a reward is given: completions, and for rows of data their prompts and columns."""
    texts = ["", NO_ANSWER]
    if not rows:
        return {"completions": texts}
    rows = [rows[0], rows[-1]]
    golds = (rows[-1].get(name) for name in GOLD_COLUMNS)
    texts[1] = next((str(gold) for gold in golds if isinstance(gold, str | int | float)), NO_ANSWER)
    prompts = [row.get("prompt", "") for row in rows]
    columns = {name: [row.get(name) for row in rows] for name in rows[0] if name not in NOT_GIVEN}
    return {**columns, "prompts": prompts, "completions": as_completions(texts, prompts)}


def _called(reward: Any, values: Mapping[str, Any]) -> RewardCheck:
    on = f"called once, on {ROWS} {'rows of the data' if 'prompts' in values else 'completions and no data'}"
    start = time.perf_counter()
    try:
        with limited(TimeoutError):
            outcomes = outcomes_without_run(reward, values)
    except WrongScoresError as error:
        return _failed(reward, f"{on}: {error}. Return a list with a number, or None, for each completion.")
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        return _raised(reward, error, on, "prompts" in values)
    seconds = time.perf_counter() - start
    took = "less than a second" if seconds < 1 else f"{seconds:.0f} s"
    texts = [content_of(completion) for completion in values["completions"]]
    for outcome, text in zip(outcomes, texts, strict=True):
        if outcome.status in NO_VERDICT:
            return _without_verdict(reward, outcome, text, on)
    said = ("is not scored (None)" if outcome.score is None else f"scores {outcome.score:g}" for outcome in outcomes)
    scores = ", ".join(f"{text!r:.80} {score}" for text, score in zip(texts, said, strict=True))
    examples = "examples and no " if not (isinstance(reward, Reward) and reward.definition.examples) else ""
    unknown = f"It has no {examples}gold answers, so nobody knows whether these scores are right."
    in_python = "" if hasattr(_function(reward), "__name__") else f" {AN_OBJECT}"
    return RewardCheck(name_of(reward), "call", ROWS, ROWS, note=f"{on}, in {took}: {scores}. {unknown}{in_python}")


def _raised(reward: Any, error: BaseException, on: str, has_rows: bool) -> RewardCheck:
    """Return the result of a call that raised: not seen, if the call lacked what a run would give it."""
    said = in_a_line(error)
    if _lacks_something(error):
        return _unseen(reward, f"{on}: this machine cannot reach or find what the reward needs, {said}")
    if trainers := _read_by(_function(reward)):
        return _unseen(reward, f"{_of_the_trainer(reward, trainers)} Without: {said}")
    if not has_rows and _reads_columns(_function(reward)):
        return _unseen(reward, f"{on}: {said}. {GIVE_ROWS}")
    return _failed(reward, f"{on}: it failed, {said}")


def _without_verdict(reward: Any, outcome: Outcome, text: str, on: str) -> RewardCheck:
    """Return the result of a call with an outcome that gives no verdict on its completion."""
    if trainers := _read_by(_function(reward)):
        return _unseen(reward, _of_the_trainer(reward, trainers))
    why = f"{on}: {outcome.reason.rstrip('.')}. The completion was {text!r:.80}."
    if not isinstance(reward, Reward) or reward.failure([outcome], [text]):
        return _failed(reward, why)
    return RewardCheck(name_of(reward), "call", ROWS, ROWS, warning=why)


def _lacks_something(error: BaseException | None) -> bool:
    """Return whether an error or one of its causes shows that the network, a package, a GPU or a secret is missing."""
    import torch

    while error is not None:
        of_network = isinstance(error, _LACKING) or "Connect" in type(error).__name__
        of_gpu = "CUDA" in str(error) and not torch.cuda.is_available()
        of_secret = isinstance(error, KeyError) and str(error).isupper()  # an environment variable
        if of_network or of_gpu or of_secret:
            return True
        error = error.__cause__ or error.__context__
    return False


def _of_the_trainer(reward: Any, values: Sequence[str]) -> str:
    reads = f"it reads {', '.join(values)}, which only the trainer has."
    if isinstance(reward, Reward) and is_registered(reward.definition):
        return reads
    return f"{reads} Register it to have it checked: @register_reward({name_of(reward)!r}, examples=[...], gold=...)."


def _read_by(function: Any) -> list[str]:
    """Return the values of the trainer that a function's source mentions and that a trial does not give."""
    try:
        source = inspect.getsource(function if hasattr(function, "__name__") else type(function))
    except (OSError, TypeError):
        return []
    return [name for name in ONLY_IN_A_RUN if re.search(rf"\b{name}\b", source)]


def _reads_columns(function: Any) -> bool:
    """Return whether a function may read columns: it takes all of them, or names some."""
    definition = Definition("", function, "")
    return definition.takes_all or bool(definition.columns)
