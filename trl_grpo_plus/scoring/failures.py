"""The words for a failed reward: the user's own frames, the error in one line, and one warning for each kind."""

import logging
import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from ..utils import signatures
from ..utils.terminal import visible
from .outcome import Outcome


logger = logging.getLogger(__name__)  # accelerate's logger needs an initialised distributed state

_OURS = (os.path.join(os.path.dirname(os.path.abspath(__file__)), ""), os.path.abspath(signatures.__file__))
OF_ENVIRONMENTS = "trl.trainer.grpo_trainer"  # module of the function that calls an environment's `get_reward`
OF_GET_REWARD = (
    "It is the environment's get_reward. Let it return a number, or None for an attempt that it does not score."
)
_ON_LISTS = (
    "expected string or bytes-like object",
    "sequence item 0: expected str instance",
    "argument of type 'dict'",
)
TRL_UNSCORED = "All reward functions returned None"  # of a warning that TRL gives with each batch
_MESSAGES = "Completions are lists of messages here: the text of one is completion[-1]['content']."


class RewardError(RuntimeError):
    """Raised when a reward failed and its `on_error` or `on_timeout` is "raise".

    Control characters in the quoted text are made visible.
    """

    def __init__(self, what: str):
        super().__init__(visible(what))


class RowError(RewardError):
    """Raised when no completion of a row can be scored. It stops the run whatever `on_error` is."""


def own_frames(error: BaseException) -> TracebackType | None:
    """Return an error's traceback from the first frame that is not of this package's calls; `None` without one.

    The frames in which TRL calls an environment are left out too, unless the call itself failed.
    """
    frames = error.__traceback__
    while frames is not None and os.path.abspath(frames.tb_frame.f_code.co_filename).startswith(_OURS):
        frames = frames.tb_next
    own = frames
    while own is not None and own.tb_frame.f_globals.get("__name__") == OF_ENVIRONMENTS:
        own = own.tb_next
    return own or frames


def in_one_line(error: BaseException) -> str:
    """Return the type and the text of an error, or the text alone for this package's own errors about a reward."""
    if own_frames(error) is None and isinstance(error, TypeError | ValueError):
        return str(error)
    return " ".join("".join(traceback.format_exception_only(error)).split("\n")).strip()


def with_frames(error: BaseException) -> str:
    """Return an error with the traceback of the user's code, or in one line if it is not of the user's code."""
    if (frames := own_frames(error)) is None:
        return in_one_line(error)
    return "".join(traceback.format_exception(type(error), error, frames, limit=-8)).strip()


def where(error: BaseException) -> str:
    """Return the last place in the user's file, as " (rewards.py:4)"; "" if there is none."""
    if (frames := own_frames(error)) is None:
        return ""
    places = traceback.extract_tb(frames)
    last = [place for place in places if place.filename == places[0].filename][-1]
    return f" ({os.path.basename(last.filename)}:{last.lineno})"


def hint(error: BaseException, completions: Sequence[Any]) -> str:
    """Return advice if a function for texts failed because it was given messages, else ""."""
    if not completions or not isinstance(completions[0], list):
        return ""
    of_a_text = isinstance(error, AttributeError) and isinstance(error.obj, list | dict) and error.name in dir(str)
    given_a_list = isinstance(error, TypeError) and any(words in str(error) for words in _ON_LISTS)
    return f". {_MESSAGES}" if of_a_text or given_a_list else ""


def warn_of_first(
    name: str, outcomes: Sequence[Outcome], policies: Mapping[str, str], warned: set[tuple[str, str]]
) -> None:
    """Warn of the first failure of each kind that a reward has in a run, because training goes on in spite of it.

    Args:
        name (`str`): the reward's.
        outcomes (`Sequence[Outcome]`): the outcomes of its samples in this batch.
        policies (`Mapping[str, str]`): its policies by status.
        warned (`set`): names and statuses that a warning has named; this function adds to them.
    """
    for outcome in outcomes:
        status = outcome.status
        if status not in ("error", "timeout", "starved") or (name, status) in warned:
            continue
        warned.add((name, status))
        count = sum(other.status == status for other in outcomes)
        lines = [line.strip() for line in outcome.message.splitlines() if line.strip()]
        why = lines[-1][:300].rstrip(".") if lines else "no reason given"
        scored = f"scores {outcome.score:g}" if outcome.score is not None else "has no score"
        stop = (
            f" To stop the run at the first failure, with the whole message, set on_{status} of the reward to 'raise'."
        )
        logger.warning(
            visible(
                f"reward {name!r}: {count} of {len(outcomes)} samples ended with status {status!r}: {why}. Such "
                f"a sample {scored}. Each process warns once; the metric rewards/{name}/{status} logs their share."
                f"{stop if status in policies and not outcome.decided else ''}"
            )
        )


@contextmanager
def held_back(source: logging.Logger, text: str) -> Iterator[list[logging.LogRecord]]:
    """Keep a logger from logging messages that contain `text`, and yield the list of these messages."""
    held: list[logging.LogRecord] = []

    def passes(record: logging.LogRecord) -> bool:
        """Return whether a record is to be logged."""
        if text in record.getMessage():
            held.append(record)
            return False
        return True

    source.addFilter(passes)
    try:
        yield held
    finally:
        source.removeFilter(passes)
