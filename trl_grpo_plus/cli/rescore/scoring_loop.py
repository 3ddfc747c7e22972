"""The scoring of traces, in batches of whole groups."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...scoring import Outcome, all_failed
from ...traces import Row, attempt_label
from ...utils.text import as_text
from ...utils.validation import ConfigError
from .requested_rewards import TOTAL, RequestedReward, columns_of


Score = float | None
FIRST, MOST = 32, 8192  # attempts in the first batch, and in the largest
BATCH_S = 1.0  # target seconds for scoring a batch, which an interrupt loses
TAIL_CHARS = 80
READ = ("prompt", "completion", "reference", "rewards", "reward", "advantage", "verdict")


@dataclass(frozen=True, slots=True)
class Group:
    """A scored group of G attempts.

    Args:
        place (`dict[str, int]`): `step`, `batch`, `round` and `group` of the group.
        verdict (`str`): the recorded verdict.
        recorded (`dict[str, list]`): name of a recorded reward -> its G values, `None` for an unscored attempt. The
            names are those that all G attempts recorded, and `"reward"` for the total. If a run was resumed with other
            rewards, the names differ between its groups.
        advantages (`list`): the G recorded advantages, `None` if the group was not trained on.
        outcomes (`dict[str, list[Outcome]]`): label of a requested reward -> its G outcomes.
        tails (`list[str]`): the ends of the G completions.
    """

    place: dict[str, int]
    verdict: str
    recorded: dict[str, list[Score]]
    advantages: list[Score]
    outcomes: dict[str, list[Outcome]]
    tails: list[str]

    @property
    def size(self) -> int:
        """G, the number of attempts."""
        return len(self.tails)

    def scores(self, label: str) -> list[Score]:
        """Return the G scores of a requested reward."""
        return [outcome.score for outcome in self.outcomes[label]]


def scored(groups: Iterable[Sequence[Row]], rewards: Sequence[RequestedReward]) -> Iterator[Group]:
    """Score groups with every reward, in batches that take about a second.

    Args:
        groups (`Iterable[Sequence[Mapping]]`): groups of attempts, as [`~trl_grpo_plus.traces.groups`] yields them.
        rewards (`Sequence[RequestedReward]`): the rewards.

    Raises:
        ConfigError: a line of the traces lacks a key.
    """
    batch: list[Sequence[Row]] = []
    most = FIRST
    for group in groups:
        _check(group)
        batch.append(sorted(group, key=lambda row: row["attempt"]))  # numbers of attempts are places in the group
        if sum(map(len, batch)) >= most:
            start = time.monotonic()
            yield from _scored(batch, rewards)
            took = max(time.monotonic() - start, 1e-3)
            most = int(min(MOST, max(1, most * min(4.0, BATCH_S / took))))
            batch = []
    yield from _scored(batch, rewards)


def _check(group: Sequence[Row]) -> None:
    for row in group:
        if lacking := [key for key in READ if key not in row]:
            raise ConfigError(
                f"the attempt at {attempt_label(row)} has no {lacking[0]} in its line. Repair or remove that group."
            )


def _scored(batch: Sequence[Sequence[Row]], rewards: Sequence[RequestedReward]) -> Iterator[Group]:
    outcomes = {reward.label: _outcomes(reward, batch) for reward in rewards}
    for number, group in enumerate(batch):
        first = group[0]
        of_all = [name for name in first["rewards"] if all(name in row["rewards"] for row in group)]
        yield Group(
            place={key: first[key] for key in ("step", "batch", "round", "group")},
            # A group has "low_variance" beside the other groups of its batch. By its own rewards it is alive.
            verdict="alive" if first["verdict"] == "low_variance" else first["verdict"] or "unknown",
            recorded={
                **{name: [row["rewards"][name] for row in group] for name in of_all},
                TOTAL: [row["reward"] for row in group],
            },
            advantages=[row["advantage"] for row in group],
            outcomes={label: of_groups[number] for label, of_groups in outcomes.items()},
            tails=[as_text(row["completion"])[-TAIL_CHARS:] for row in group],
        )


def _outcomes(reward: RequestedReward, groups: Sequence[Sequence[Row]]) -> list[list[Outcome]]:
    """Return the outcomes of each group. If a call with many samples fails, halving finds the samples at fault."""
    rows = [row for group in groups for row in group]
    if not rows:
        return []
    of_each = [columns_of(row) for row in rows]
    names = dict.fromkeys(name for own in of_each for name in own)
    columns = {name: [own.get(name) for own in of_each] for name in names}
    columns["prompts"] = [row["prompt"] for row in rows]
    given = reward.score([row["completion"] for row in rows], columns)
    if reward.at_once and len(rows) > 1 and all_failed(outcome for outcome in given if not outcome.decided):
        if len(groups) > 1:
            half = len(groups) // 2
            found = _outcomes(reward, groups[:half]) + _outcomes(reward, groups[half:])
        else:
            found = [[alone for row in rows for alone in _outcomes(reward, [[row]])[0]]]
        # If no sample fails by itself, the call failed, as with a function that returns one reward for all samples.
        if any(outcome.status == "error" for of_group in found for outcome in of_group):
            return found
    plain = iter(outcome._replace(steps=None) for outcome in given)
    return [[next(plain) for _ in group] for group in groups]
