"""The outcome of a sample: its score, and a status that says how it was scored or why it has no score."""

import math
import operator
import reprlib
from collections.abc import Collection, Iterable, Mapping, Sequence, Set, Sized
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, NamedTuple

from ..utils.text import content_of


STATUSES = ("ok", "abstain", "too_long", "timeout", "error", "starved")
NO_VERDICT = STATUSES[3:]  # statuses without a verdict on the sample
LARGEST = 3.4028234663852886e38  # largest finite float32; TRL stores rewards in float32

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200


def same_score(first: float | None, second: float | None) -> bool:
    """Return whether two scores are equal but for rounding to float32; `None` equals only `None`."""
    if first is None or second is None:
        return first is second
    return math.isclose(first, second, rel_tol=1e-6, abs_tol=1e-6)  # traces hold float32 rounded to 7 decimals


@dataclass(frozen=True)
class Step:
    """A step of a completion, and its reward. A reward function may return a list of steps for a completion.

    Args:
        end (`int`): end of the step, as an exclusive character offset in the completion's text. For messages, the text
            is the content of the policy's last message. A step begins where the previous step ends.
        reward (`float`): a finite number.
    """

    end: int
    reward: float


class Outcome(NamedTuple):
    """The outcome of one sample.

    Args:
        score (`float`, *optional*): the score; `None`: not scored. If steps were scored, the sum of their rewards.
        status (`str`): "ok", "abstain" (the reward does not apply), "timeout", "error", "starved" (the machine was too
            busy, or had no process or memory for the sample) or "too_long" (scored; the judged program ran out of its
            own time).
        message (`str`): the cause, for "timeout", "error" and "starved".
        steps (`tuple[Step]`, *optional*): the steps, if they were scored one by one.
        decided (`bool`): whether a "timeout" or "error" is the failure of another reward or scorer that this reward
            calls. The score then stands: `on_timeout` and `on_error` of this reward do not change it.
        of_row (`bool`): whether an "error" is the fault of the row, of which no completion can be scored. It stops the
            run, whatever `on_error` is.
    """

    score: float | None
    status: str
    message: str = ""
    steps: tuple[Step, ...] | None = None
    decided: bool = False
    of_row: bool = False

    @property
    def reason(self) -> str:
        """The last line of the message: after a traceback, the error itself."""
        return self.message.strip().rpartition("\n")[2]

    def as_json(self) -> list[Any]:
        """Return the outcome as a list for JSON; [`of_json`] reads it."""
        steps = self.steps and [[step.end, step.reward] for step in self.steps]
        return [self.score, self.status, self.message, steps, self.decided, self.of_row]

    @classmethod
    def of_json(cls, values: list[Any]) -> "Outcome":
        """Return the outcome that a list from `as_json` describes."""
        score, status, message, steps, decided, of_row = values
        read = None if steps is None else tuple(Step(*step) for step in steps)
        return cls(score, status, message, read, decided, of_row)

    def as_score(self) -> "float | None":
        """Return the score, as an [`AnnotatedScore`] if the status is neither "ok" nor "abstain"."""
        if self.status in ("ok", "abstain"):
            return self.score
        return AnnotatedScore(math.nan if self.score is None else self.score, self.status, self.message)


class WrongScoresError(ValueError):
    """A reward function returned something other than a score for each completion."""


class AnnotatedScore(float):
    """A score with a status and a message, which a reward function may return. Other code sees a plain float.

    The score stands: `on_timeout` and `on_error` of the reward that returns it do not change it.

    Args:
        score (`float`): the score; NaN: not scored.
        status (`str`): "starved" or "too_long"; "timeout" or "error" of another reward that the function calls.
        message (`str`, *optional*): the cause.

    Raises:
        ValueError: there is no such status.
    """

    status: str
    message: str

    def __new__(cls, score: float, status: str, message: str = "") -> "AnnotatedScore":
        """Make a float with the status and the message as attributes; `ValueError` if there is no such status."""
        if status not in STATUSES[2:]:
            raise ValueError(f"AnnotatedScore: status={status!r} must be one of {', '.join(STATUSES[2:])}.")
        made = super().__new__(cls, score)
        made.status, made.message = status, message
        return made

    def __getnewargs__(self) -> tuple[float, str, str]:  # type: ignore[override]
        """Return the arguments with which `pickle` and `copy` make the score anew."""
        return float(self), self.status, self.message


def with_worst_status(score: float | None, parts: Iterable[float | None]) -> float | None:
    """Return `score` with the worst status among the scores that it was made of, and the message of that status.

    The worst is the last in [`STATUSES`]. If no part is an [`AnnotatedScore`], `score` is returned as it is.
    """
    noted = [part for part in parts if isinstance(part, AnnotatedScore)]
    if not noted:
        return score
    worst = max(noted, key=lambda part: STATUSES.index(part.status))
    return AnnotatedScore(math.nan if score is None else score, worst.status, worst.message)


def outcome_of(value: Any) -> Outcome:
    """Return the outcome for a value that a reward function returned.

    A finite number is a score, including a NumPy or PyTorch scalar. NaN and `None` both mean "abstain", since TRL
    turns `None` into NaN. A list of [`Step`] scores the sum of the steps' rewards. An empty list scores 0.
    """
    if value is None:
        return Outcome(None, "abstain")
    if isinstance(value, list) and all(isinstance(step, Step) for step in value):
        return _of_steps(value)
    if isinstance(value, AnnotatedScore):
        plain = outcome_of(float(value))
        if plain.status == "error":
            return plain
        return Outcome(plain.score, value.status, value.message, decided=value.status in ("timeout", "error"))
    try:
        number = value.item() if hasattr(value, "item") else value
        score = math.inf if isinstance(number, str | bytes | bytearray) else float(number)
    except Exception:  # an object's own __float__ may raise anything
        score = math.inf
    if abs(score) > LARGEST:
        range_of = f", between {-LARGEST:.2g} and {LARGEST:.2g}" if math.isfinite(score) else ""
        what = f"The reward must be a finite number or None{range_of}, got {_SHORT.repr(value)}."
        return Outcome(None, "error", what)
    return Outcome(None, "abstain") if math.isnan(score) else Outcome(score, "ok")


def _of_steps(steps: Sequence[Step]) -> Outcome:
    plain = []
    for number, step in enumerate(steps):
        what, scored = f"step {number} of {len(steps)}, {_SHORT.repr(step)}", outcome_of(step.reward)
        if scored.status != "ok" or scored.score is None:
            return Outcome(None, "error", f"The reward of {what}, must be a finite number.")
        try:
            plain.append(Step(operator.index(step.end), scored.score))
        except TypeError:
            return Outcome(None, "error", f"The end of {what}, must be an integer: an offset in characters.")
    for number, (before, after) in enumerate(pairwise([0, *(step.end for step in plain)])):
        if after <= before:
            where = f"step {number - 1}, which ends at {before}" if number else "the text begins, at 0"
            what = f"Step {number} of {len(steps)}, {plain[number]}"
            return Outcome(None, "error", f"{what}, must end after {where}: steps are in order and do not overlap.")
    total = outcome_of(math.fsum(step.reward for step in plain))
    return total._replace(steps=tuple(plain)) if total.status == "ok" else total


def _within(outcome: Outcome, completion: Any) -> Outcome:
    """Return `outcome`, or an error outcome if its steps extend beyond the end of the completion's text."""
    length = len(content_of(completion)) if outcome.steps else 0
    if not outcome.steps or outcome.steps[-1].end <= length:
        return outcome
    number = next(i for i, step in enumerate(outcome.steps) if step.end > length)
    what = f"Step {number} of {len(outcome.steps)}, {outcome.steps[number]}"
    return Outcome(None, "error", f"{what}, ends beyond the text, which has {length} characters.")


def outcomes_of(scores: Any, completions: Sequence[Any]) -> list[Outcome]:
    """Return the outcome of each completion, from a reward function's return value.

    Args:
        scores: one value per completion, see [`outcome_of`]: a list, a generator, ... or a tensor, (N,) or (N, 1).
        completions (`Sequence`): N texts or lists of messages.

    Raises:
        WrongScoresError: `scores` does not hold one value per completion.
    """
    rows = scores.tolist() if hasattr(scores, "tolist") else scores
    # A dict, a set, a text and bytes are iterable as well, but their items are no rewards or have no order.
    if not isinstance(rows, Iterable) or isinstance(rows, str | bytes | bytearray | memoryview | Mapping | Set):
        got = f"{type(scores).__name__}: {_SHORT.repr(scores)}"
        raise WrongScoresError(
            f"it must return one reward for each completion, in a list, a tensor or an array, got {got}"
        )
    count = len(completions)
    values = list(rows) if isinstance(rows, Sized) else list(islice(rows, count + 1))
    if len(values) != count:
        more = "" if isinstance(rows, Sized) or len(values) < count else " or more"
        raise WrongScoresError(f"it returned {len(values)}{more} rewards for {count} completions")
    if rows is not scores:
        values = [row[0] if isinstance(row, list) and len(row) == 1 else row for row in values]
    return list(map(_within, map(outcome_of, values), completions))


def first_failure(
    what: str,
    outcomes: Sequence[Outcome],
    completions: Sequence[Any],
    raising: Collection[str] = ("error",),
    fix: str | None = None,
) -> str | None:
    """Describe the first undecided one of `outcomes` whose status is in `raising`; `None` if there is none.

    The description ends with `fix`, or else with the option that lets the run continue. An outcome that is the fault
    of its row counts whatever `raising` is.
    """
    for i, outcome in enumerate(outcomes):
        if not (outcome.of_row or (outcome.status in raising and not outcome.decided)):
            continue
        about = f"sample {i} of {len(outcomes)}. {outcome.message}\nIts completion is {completions[i]!r:.300}."
        if outcome.of_row:
            return f"{what} cannot score {about}"
        happened, option = "ran out of time" if outcome.status == "timeout" else "failed", f"on_{outcome.status}"
        fix = fix or (
            f"To continue after such a failure, set {option} of the reward to 'zero' or 'abstain': reward_funcs takes "
            f"{{'name': ..., '{option}': ...}}."
        )
        return f"{what} {happened} on {about}\n{fix}"
    return None


def all_failed(outcomes: Iterable[Outcome]) -> bool:
    """Return whether each sample that the reward was called with failed, as when one sample's error ends the call.

    A sample without a needed value abstains before the call, so it does not count.
    """
    called = [outcome for outcome in outcomes if outcome.status != "abstain"]
    return bool(called) and all(outcome.status == "error" for outcome in called)
