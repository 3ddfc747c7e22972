"""A page's data about a reward that was tried on a run: both scores of each attempt, and the groups' disagreements."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..traces import Row


ANY, TURNED = "any disagreement", "another verdict"


class Rescored(NamedTuple):
    """The results of rewards that were tried on a run's attempts.

    Args:
        split (`str`): the split of the scored groups.
        summary (`str`): a summary of the results, in a sentence or two.
        kinds (`list[tuple[str, str]]`): label and kind of each disagreement that occurs.
        of (`Callable`): function from a group's attempts to a [`Tried`], or to `None` for a group that was not scored.
        differs (`Callable`): function from the split and (step, batch, round, group) of a group to whether scores of
            its attempts or its verdict differ; `None` for a group that was not scored, which the page leaves out.
    """

    split: str
    summary: str
    kinds: list[tuple[str, str]]
    of: Callable[[Sequence[Row]], "Tried | None"]
    differs: Callable[[str, tuple[int, ...]], bool | None]


class Tried(NamedTuple):
    """The results for one group of G attempts.

    Args:
        scores (`list[list]`): for each attempt, by its number in the trace, a list of `[label, recorded as, recorded,
            new, kind or None, message]`, one for each reward. "recorded as" is `None` if the reward is compared with
            no recorded reward.
        verdicts (`list[list[str]]`): `[label, new verdict]` of each reward that would change the group's verdict.
    """

    scores: list[list[list[Any]]]
    verdicts: list[list[str]]


def words(rescored: Rescored) -> list[str]:
    """Return the choices of the page's filter: [`ANY`], each kind, and [`TURNED`].

    If there are several rewards, each kind begins with the reward's label.
    """
    labels = list(dict.fromkeys(label for label, _ in rescored.kinds))
    kinds = [kind if len(labels) == 1 else f"{label}: {kind}" for label, kind in rescored.kinds]
    return [ANY, *kinds, TURNED]


def marked(line: dict[str, Any], texts: dict[str, Any], tried: Tried, rescored: Rescored) -> None:
    """Add a group's results to its line of the list and to its texts."""
    found = {(score[0], score[4]) for of_attempt in tried.scores for score in of_attempt if score[4] is not None}
    differs = [number for number, kind in enumerate(rescored.kinds, 1) if kind in found]
    turned = [len(rescored.kinds) + 1] if tried.verdicts else []
    line |= {"differs": [*([0] if differs else []), *differs, *turned], "turned": tried.verdicts}
    for attempt in texts["attempts"]:
        attempt["rescored"] = tried.scores[attempt["attempt"]]
