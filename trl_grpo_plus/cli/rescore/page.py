"""The result of rescoring as a page's data."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...traces import Row
from ...view import Rescored, Tried
from .compare import Agreement, agreement, alike_batches, kind, new_totals, verdicts
from .requested_rewards import TOTAL, RequestedReward
from .scoring_loop import Group


Place = tuple[int, ...]


def rescored(
    groups: Sequence[Group],
    split: str,
    rewards: Sequence[RequestedReward],
    weights: Mapping[str, float],
    limits: Mapping[str, Any],
) -> Rescored:
    """Return the data of a page that opens on the disagreements.

    Args:
        groups (`Sequence[Group]`): the scored groups.
        split (`str`): split of the groups.
        rewards (`Sequence[RequestedReward]`): the rewards that scored the groups.
        weights (`Mapping[str, float]`), limits (`Mapping`): as in [`~trl_grpo_plus.cli.rescore.report.report`].
    """
    agreements = {reward.label: agreement(groups, reward.label, reward.against) for reward in rewards}
    turned = _turned(groups, rewards, weights, limits)
    # (step, batch, round) -> group -> number: half the memory of whole places as keys
    numbers: dict[Place, dict[int, int]] = {}
    differing = bytearray(len(groups))
    for number, group in enumerate(groups):
        *where, in_round = _place(group.place)
        numbers.setdefault(tuple(where), {})[in_round] = number
        disagrees = any(score[4] is not None for n in range(group.size) for score in _scores(group, n, rewards))
        differing[number] = disagrees or _place(group.place) in turned

    def number_of(place: Place) -> int | None:
        return numbers.get(place[:-1], {}).get(place[-1])

    def of(rows: Sequence[Row]) -> Tried | None:
        number = number_of(_place(rows[0]))
        if number is None or (group := groups[number]).size != len(rows):
            return None
        scores = [_scores(group, attempt, rewards) for attempt in range(group.size)]
        return Tried(scores, turned.get(_place(group.place), []))

    def differs(of_split: str, place: tuple[int, ...]) -> bool | None:
        number = number_of(place) if of_split == split else None
        return None if number is None else bool(differing[number])

    sentences = [_sentence(reward, agreements[reward.label]) for reward in rewards]
    kinds = [(reward.label, name) for reward in rewards for name in agreements[reward.label].differences]
    return Rescored(split, " ".join(sentences), kinds, of, differs)


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
        message = (outcome.message or "").strip().rpartition("\n")[2]
        differs = kind(old, outcome.score, outcome.status)
        scores.append([reward.label, reward.against, old, outcome.score, differs, message[:200]])
    return scores


def _turned(
    groups: Sequence[Group],
    rewards: Sequence[RequestedReward],
    weights: Mapping[str, float],
    limits: Mapping[str, Any],
) -> dict[Place, list[list[str]]]:
    """Return the new verdicts of the groups whose verdict would change."""
    turned: dict[Place, list[list[str]]] = {}
    for reward in rewards:
        for alike in alike_batches(groups, reward.against, weights):
            judged = verdicts(alike, new_totals(alike, reward.label, reward.against, weights), limits)
            for group, new in zip(alike, judged, strict=True):
                if new != group.verdict:
                    turned.setdefault(_place(group.place), []).append([reward.label, new])
    return turned


def _place(row: Mapping[str, Any]) -> Place:
    return row["step"], row["batch"], row["round"], row["group"]
