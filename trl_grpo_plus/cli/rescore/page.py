"""The result of rescoring as a page's data."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...traces import Row
from ...view import Rescored, Tried
from .compare import Agreement, agreement, alike_batches, kind, new_totals, verdicts
from .requested_rewards import TOTAL, Asked
from .scoring_loop import Group


Place = tuple[int, ...]


def rescored(
    groups: Sequence[Group],
    split: str,
    asked: Sequence[Asked],
    weights: Mapping[str, float],
    limits: Mapping[str, Any],
) -> Rescored:
    """Return the data of a page that opens on the disagreements.

    Args:
        groups (`Sequence[Group]`): the scored groups.
        split (`str`): split of the groups.
        asked (`Sequence[Asked]`): the rewards that scored the groups.
        weights (`Mapping[str, float]`), limits (`Mapping`): as in [`~trl_grpo_plus.cli.rescore.report.report`].
    """
    found = {one.label: agreement(groups, one.label, one.against) for one in asked}
    turned = _turned(groups, asked, weights, limits)
    by_place: dict[Place, int] = {}
    differing = bytearray(len(groups))
    for number, group in enumerate(groups):
        by_place[_place(group.place)] = number
        disagrees = any(score[4] is not None for n in range(group.size) for score in _scores(group, n, asked))
        differing[number] = disagrees or _place(group.place) in turned

    def of(rows: Sequence[Row]) -> Tried | None:
        number = by_place.get(_place(rows[0]))
        if number is None or (group := groups[number]).size != len(rows):
            return None
        scores = [_scores(group, attempt, asked) for attempt in range(group.size)]
        return Tried(scores, turned.get(_place(group.place), []))

    def differs(of_split: str, place: tuple[int, ...]) -> bool | None:
        number = by_place.get(place) if of_split == split else None
        return None if number is None else bool(differing[number])

    sentences = [_sentence(one, found[one.label]) for one in asked]
    kinds = [(one.label, name) for one in asked for name in found[one.label].differences]
    return Rescored(split, " ".join(sentences), kinds, of, differs)


def _sentence(asked: Asked, found: Agreement) -> str:
    of = "total" if asked.against == TOTAL else asked.against
    lacking = f" {found.lacking:,} more recorded no {of}." if found.lacking else ""
    return (
        f"{asked.label} against the recorded {of}: "
        f"{found.equal:,} of {found.attempts:,} attempts score the same.{lacking}"
    )


def _scores(group: Group, attempt: int, asked: Sequence[Asked]) -> list[list[Any]]:
    scores = []
    for one in asked:
        outcome = group.outcomes[one.label][attempt]
        if one.against not in group.recorded:
            scores.append([one.label, None, None, outcome.score, None, ""])
            continue
        old = group.recorded[one.against][attempt]
        message = (outcome.message or "").strip().rpartition("\n")[2]
        differs = kind(old, outcome.score, outcome.status)
        scores.append([one.label, one.against, old, outcome.score, differs, message[:200]])
    return scores


def _turned(
    groups: Sequence[Group], asked: Sequence[Asked], weights: Mapping[str, float], limits: Mapping[str, Any]
) -> dict[Place, list[list[str]]]:
    """Return the new verdicts of the groups whose verdict would change."""
    turned: dict[Place, list[list[str]]] = {}
    for one in asked:
        for alike in alike_batches(groups, one.against, weights):
            judged = verdicts(alike, new_totals(alike, one.label, one.against, weights), limits)
            for group, new in zip(alike, judged, strict=True):
                if new != group.verdict:
                    turned.setdefault(_place(group.place), []).append([one.label, new])
    return turned


def _place(row: Mapping[str, Any]) -> Place:
    return row["step"], row["batch"], row["round"], row["group"]
