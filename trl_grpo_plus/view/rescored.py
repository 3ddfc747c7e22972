"""What a page says of a reward that was tried on a run: both scores of each attempt, and how groups disagree."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..traces import Row


ANY, TURNED = "any disagreement", "another verdict"


class Rescored(NamedTuple):
    """Rewards tried on what a run sampled.

    Args:
        split (`str`): of whose groups these are.
        told (`str`): of all of it, in a sentence or two.
        kinds (`list[tuple[str, str]]`): label and kind of each way to disagree that occurs.
        of (`Callable`): the attempts of a group -> a [`Tried`], or `None` for a group that was not scored, which is
            left out.
    """

    split: str
    told: str
    kinds: list[tuple[str, str]]
    of: Callable[[Sequence[Row]], "Tried | None"]


class Tried(NamedTuple):
    """A group of G attempts.

    Args:
        scores (`list[list]`): of each attempt, by its place in the trace, a list of `[label, recorded as, recorded,
            new, kind or None, message]` of each reward; "recorded as" is `None` where nothing was recorded that it is
            compared with.
        verdicts (`list[list[str]]`): `[label, new verdict]` of the rewards that would change it.
    """

    scores: list[list[list[Any]]]
    verdicts: list[list[str]]


def words(rescored: Rescored) -> list[str]:
    """Return what a filter offers: [`ANY`], each kind, and [`TURNED`]; with the reward's name where there are
    several.
    """
    labels = list(dict.fromkeys(label for label, _ in rescored.kinds))
    kinds = [kind if len(labels) == 1 else f"{label}: {kind}" for label, kind in rescored.kinds]
    return [ANY, *kinds, TURNED]


def marked(line: dict[str, Any], texts: dict[str, Any], tried: Tried, rescored: Rescored) -> None:
    """Add to a group's line of the list and to its texts what is known of it."""
    found = {(score[0], score[4]) for of_attempt in tried.scores for score in of_attempt if score[4] is not None}
    differs = [number for number, kind in enumerate(rescored.kinds, 1) if kind in found]
    turned = [len(rescored.kinds) + 1] if tried.verdicts else []
    line |= {"differs": [*([0] if differs else []), *differs, *turned], "turned": tried.verdicts}
    for attempt in texts["attempts"]:
        attempt["rescored"] = tried.scores[attempt["attempt"]]
