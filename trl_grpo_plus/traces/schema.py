"""The shapes of the values in a run's files, by key. Code that uses the files relies on them; the reader checks them.

A key that is not listed here may hold any value.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from ..utils.text import as_text
from ..utils.validation import finite_or_none


_MOST = 1e100  # sums of such numbers stay finite


Row = dict[str, Any]  # one attempt: a line of a trace


def logged_step(steps_done: int, split: str = "train") -> int:
    """Return the step at which a batch that is sampled after `steps_done` optimizer steps is logged.

    A training batch is logged once it was trained on, an evaluation at once. The console, trackers, traces and the
    page all hold this step.
    """
    return steps_done + 1 if split == "train" else steps_done


class ValueShape(NamedTuple):
    """The shape of a value: a description in words, and a function that checks whether a value `fits`."""

    words: str
    fits: Callable[[Any], bool]


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _is_number(value: Any) -> bool:
    return value is None or ((number := finite_or_none(value)) is not None and abs(number) <= _MOST)


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and _is_whole(value[0]) and _is_number(value[1])


def _is_written(value: Any) -> bool:
    """Return whether the value is a text, or messages that can be turned into a text."""
    if isinstance(value, str):
        return True
    if not (isinstance(value, list) and all(_is_object(one) and _is_text(one.get("role")) for one in value)):
        return False
    try:
        as_text(value)
    except (AttributeError, TypeError):
        return False
    return True


def _each(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _values(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(fits, value.values()))


def _is_entry(value: Any) -> bool:
    return isinstance(value, dict) and _is_whole(value.get("step"))


def _is_dataset(value: Any) -> bool:
    return value is None or (_is_object(value) and _is_number(value.get("rows")))


def _are_places(value: Any) -> bool:
    return value is None or _each(lambda place: _each(_is_whole)(place) and len(place) == 3)(value)


WHOLE = ValueShape("a whole number", _is_whole)
NUMBER = ValueShape("a finite number or null", _is_number)
TEXT = ValueShape("a text or null", _is_text)
OBJECT = ValueShape("an object", _is_object)
PAIRS = ValueShape("a list of [end, number]", _each(_is_pair))
SCORES = ValueShape("an object of numbers", _values(_is_number))
FLAG = ValueShape("true, false or null", lambda value: value is None or isinstance(value, bool))
MAYBE = ValueShape("an object or null", lambda value: value is None or _is_object(value))
WORDS = ValueShape("a text", lambda value: isinstance(value, str))
LIST_OF_WORDS = ValueShape("a list of texts", _each(WORDS.fits))

ATTEMPT: dict[str, ValueShape] = {
    **dict.fromkeys(("batch", "round", "group"), WHOLE),
    "attempt": ValueShape("a whole number from 0 on", lambda value: _is_whole(value) and value >= 0),
    "size": ValueShape("a whole number above 0", lambda value: _is_whole(value) and value > 0),
    "completion": ValueShape("a text or messages", _is_written),
    **dict.fromkeys(("reference", "returned", "extra"), OBJECT),
    "rewards": SCORES,
    "outcomes": ValueShape("an object of texts", _values(_is_text)),
    "steps": ValueShape("an object of lists of [end, number]", _values(PAIRS.fits)),
    "advantages": PAIRS,
    **dict.fromkeys(("reward", "advantage", "kl"), NUMBER),
    "tokens": ValueShape("a whole number or null", lambda value: value is None or _is_whole(value)),
    **dict.fromkeys(("verdict", "reason"), TEXT),
    **dict.fromkeys(("kept", "truncated"), FLAG),
    "belief": MAYBE,
    "alarms": LIST_OF_WORDS,
}
METRICS = {"step": WHOLE}
ALARMS = {
    **METRICS,
    "name": WORDS,
    "message": TEXT,
    "groups": ValueShape("a list of [batch, round, group]", _are_places),
}
FIRST_PROMPT = {**METRICS, "text": WORDS, "tokens": WHOLE, "flags": LIST_OF_WORDS}
ABOUT = {
    "rewards": SCORES,
    **dict.fromkeys(("num_generations", "max_steps"), NUMBER),
    **dict.fromkeys(("zero_variance_tolerance", "solved_reward", "failed_reward"), NUMBER),
    "model": TEXT,
    "dataset": ValueShape("null, or an object whose rows are a number or null", _is_dataset),
    "evaluations": SCORES,
    **dict.fromkeys(("options", "versions"), OBJECT),
}
STATE = {
    "global_step": NUMBER,
    "log_history": ValueShape("a list of entries, each with its step", _each(_is_entry)),
}
RACE = {"rollouts": NUMBER}


def lacking(values: Mapping[str, Any], *needed: Collection[str]) -> str:
    """Return the missing keys of the first incomplete collection in `needed`; "" if none are missing."""
    return next((", ".join(sorted(lacks)) for keys in needed if (lacks := set(keys) - values.keys())), "")


def misfit(values: Mapping[str, Any], shapes: Mapping[str, ValueShape], where: str = "") -> str:
    """Describe the first value that does not fit its shape, and `where` it is; "" if all fit.

    Example:
        >>> misfit({"step": [1]}, METRICS)
        'its step is a list, not a whole number'
    """
    for name, shape in shapes.items():
        if name in values and not shape.fits(values[name]):
            what = f"{name} of {where}" if where else f"its {name}"
            return f"{what} is {_quoted(values[name])}, not {shape.words}"
    return ""


def beyond(values: Mapping[str, Any]) -> str:
    """Describe an attempt's index that is not below the size of its group; "" if it is below."""
    attempt, size = values["attempt"], values["size"]
    return f"it is attempt {attempt} of {size}, which are counted from 0" if attempt >= size else ""


def _quoted(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "another number")
