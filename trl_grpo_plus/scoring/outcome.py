"""What becomes of a sample: its score, and how it came to it or why there is none."""

import math
import reprlib
from collections.abc import Collection, Iterable, Mapping, Sequence, Set, Sized
from itertools import islice
from typing import Any, NamedTuple


STATUSES = ("ok", "abstain", "too_long", "timeout", "error", "starved")
NO_VERDICT = STATUSES[3:]  # no verdict on the sample
LARGEST = 3.4028234663852886e38  # number in float32, in which TRL keeps rewards

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200


class Outcome(NamedTuple):
    """What became of one sample.

    Args:
        score (`float`, *optional*): `None`: not scored.
        status (`str`): "ok", "abstain" (the reward does not apply), "timeout", "error", "starved" (the machine was too
            busy, or had no process or memory for it) or "too_long" (scored; what was judged ran out of its own time).
        message (`str`): for "timeout", "error" and "starved", what happened.
    """

    score: float | None
    status: str
    message: str = ""


class Noted(float):
    """What a reward function may return for a number, to say more about the sample. A plain float to all others.

    Args:
        score (`float`): the number; NaN: not scored.
        status (`str`): "starved" or "too_long".
        message (`str`, *optional*): what happened.
    """

    status: str
    message: str

    def __new__(cls, score: float, status: str, message: str = "") -> "Noted":
        made = super().__new__(cls, score)
        made.status, made.message = status, message
        return made


def outcome_of(value: Any) -> Outcome:
    """The outcome that a reward function's value stands for: a finite number is a score, also one of NumPy or PyTorch.

    NaN abstains like `None`, which TRL turns into NaN: a reward function may use either.
    """
    if value is None:
        return Outcome(None, "abstain")
    if isinstance(value, Noted):
        plain = outcome_of(float(value))
        return plain if plain.status == "error" else Outcome(plain.score, value.status, value.message)
    try:
        number = value.item() if hasattr(value, "item") else value
        score = math.inf if isinstance(number, str | bytes | bytearray) else float(number)
    except Exception:  # whatever an object's own __float__ may raise
        score = math.inf
    if abs(score) > LARGEST:
        range_of = f", between {-LARGEST:.2g} and {LARGEST:.2g}" if math.isfinite(score) else ""
        what = f"The reward must be a finite number or None{range_of}, got {_SHORT.repr(value)}."
        return Outcome(None, "error", what)
    return Outcome(None, "abstain") if math.isnan(score) else Outcome(score, "ok")


def outcomes_of(scores: Any, completions: int) -> list[Outcome]:
    """The outcome of each completion, from what a reward function returned.

    Args:
        scores: one value a completion, see [`outcome_of`]: a list, a generator, ... or a tensor, (N,) or (N, 1).
        completions (`int`): N.

    Raises:
        ValueError: it is not one value a completion.
    """
    rows = scores.tolist() if hasattr(scores, "tolist") else scores
    # A dict, a set, a text or bytes can be gone through as well, and gives what are no rewards, or in any order.
    if not isinstance(rows, Iterable) or isinstance(rows, str | bytes | bytearray | memoryview | Mapping | Set):
        got = f"{type(scores).__name__}: {_SHORT.repr(scores)}"
        raise ValueError(f"it must return one reward a completion in a list, a tensor or an array, got {got}")
    values = list(rows) if isinstance(rows, Sized) else list(islice(rows, completions + 1))
    if len(values) != completions:
        more = "" if isinstance(rows, Sized) or len(values) < completions else " or more"
        raise ValueError(f"it returned {len(values)}{more} rewards for {completions} completions")
    if rows is not scores:
        values = [row[0] if isinstance(row, list) and len(row) == 1 else row for row in values]
    return list(map(outcome_of, values))


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
