"""The result of rescoring as a page's data."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...rollouts.verdicts import VERDICTS
from ...traces import Row
from ...view import Rescored, Tried
from .agreement import PLACES, Agreement, kind
from .effect import Rescoring
from .requested_rewards import TOTAL, RequestedReward
from .scoring_loop import Group


Place = tuple[int, ...]


def rescored(rescoring: Rescoring) -> Rescored:
    """Return the data of a page that opens on the disagreements."""
    groups, rewards, agreements = rescoring.groups, rescoring.rewards, rescoring.agreements
    numbers, differing = _Numbers(groups), bytearray(len(groups))
    new_verdicts = {label: found.turned for label, found in rescoring.effects.items()}
    for places in (places for found in agreements.values() for places in found.differences.values()):
        for place in places:
            differing[place // PLACES] = True

    def of(rows: Sequence[Row]) -> Tried | None:
        """Return a group's new scores; `None` if the group was not scored."""
        number = numbers.of(_place(rows[0]))
        if number is None or (group := groups[number]).size != len(rows):
            return None
        scores = [_scores(group, attempt, rewards) for attempt in range(group.size)]
        turned = [[label, VERDICTS[codes[number] - 1]] for label, codes in new_verdicts.items() if codes[number]]
        return Tried(scores, turned)

    def differs(of_split: str, place: tuple[int, ...]) -> bool | None:
        """Return whether a new score of the group differs; `None` if the group was not scored."""
        number = numbers.of(place) if of_split == rescoring.split else None
        if number is None:
            return None
        return bool(differing[number]) or any(codes[number] for codes in new_verdicts.values())

    sentences = [_sentence(reward, agreements[reward.label]) for reward in rewards]
    kinds = [(reward.label, name) for reward in rewards for name in agreements[reward.label].differences]
    return Rescored(rescoring.split, " ".join(sentences), kinds, of, differs)


class _Numbers:
    """The groups' numbers by their places, in half the memory of a dict from places to numbers."""

    def __init__(self, groups: Iterable[Group]):
        self._rounds: dict[Place, dict[int, int]] = {}  # (step, batch, round) -> group -> number
        for number, group in enumerate(groups):
            *of_round, in_round = _place(group.place)
            self._rounds.setdefault(tuple(of_round), {})[in_round] = number

    def of(self, place: Place) -> int | None:
        """Return the number of the group at a place; `None` if there is none."""
        return self._rounds.get(place[:-1], {}).get(place[-1])


def _sentence(reward: RequestedReward, counts: Agreement) -> str:
    of = "total" if reward.against == TOTAL else reward.against
    lacking = f" {counts.lacking:,} more recorded no {of}." if counts.lacking else ""
    return (
        f"{reward.label} against the recorded {of}: "
        f"{counts.equal:,} of {counts.attempts:,} attempts score the same.{lacking}"
    )


def _scores(group: Group, attempt: int, rewards: Sequence[RequestedReward]) -> list[list[Any]]:
    scores = []
    for reward in rewards:
        outcome = group.outcomes[reward.label][attempt]
        if reward.against not in group.recorded:
            scores.append([reward.label, None, None, outcome.score, None, ""])
            continue
        old = group.recorded[reward.against][attempt]
        differs = kind(old, outcome.score, outcome.status)
        scores.append([reward.label, reward.against, old, outcome.score, differs, outcome.reason[:200]])
    return scores


def _place(row: Mapping[str, Any]) -> Place:
    return row["step"], row["batch"], row["round"], row["group"]
