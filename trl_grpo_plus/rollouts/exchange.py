"""Exchange of rows between ranks: the choice of the groups that each rank trains on, and the transfer itself.

[`with_fewest_moves`] orders the groups so that few rows change rank. [`exchange`] sends the rows that do.
"""

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from accelerate import PartialState
from accelerate.utils import gather_object, send_to_device
from packaging.version import Version

from ..utils.distributed import all_to_all_made
from ..utils.validation import ConfigError
from .generation import images_of
from .groups import Attempt, Partition, Plan, Round


Ranks = tuple[int, ...]  # the rank of each row of one group


def with_fewest_moves(plan: Plan, rows_per_rank: Sequence[int], size: int, ranks: int) -> Plan:
    """Reorder groups so that fewer rows move between ranks; return the plan unchanged if no order saves a move.

    Live groups stay before filler. A group whose rows are all in place stays in its place. The other groups are placed
    by the number of rows that already lie on the place's ranks, highest first. If no group lies on two ranks, only
    those rows move that a rank holds in excess of the rows it trains on. On one rank nothing changes.

    Args:
        plan ([`~trl_grpo_plus.rollouts.groups.Plan`]): the groups that are trained on.
        rows_per_rank (`Sequence[int]`): rows on each rank, for each round. Row `i` of a round with n rows on each rank
            is on rank `i // n`.
        size (`int`): rows in a group.
        ranks (`int`): the number of ranks, which share the batch equally.

    Example:
        >>> plan = Plan(order=((0, 3), (0, 0)), live=(True, True))
        >>> with_fewest_moves(plan, rows_per_rank=[2], size=1, ranks=2).order
        ((0, 0), (0, 3))
    """
    if ranks == 1:
        return plan
    homes = [_ranks_of(group, rows_per_rank[r], size) for r, group in plan.order]
    places = [_ranks_of(place, len(homes) * size // ranks, size) for place in range(len(homes))]
    live = sum(plan.live)
    chosen = [*_fill(range(live), homes, places), *_fill(range(live, len(homes)), homes, places)]
    moved, before = (
        sum(map(_apart, (homes[group] for group in order), places)) for order in (chosen, range(len(homes)))
    )
    return Plan(tuple(plan.order[group] for group in chosen), plan.live) if moved < before else plan


def _ranks_of(group: int, share: int, size: int) -> Ranks:
    """Return the ranks that hold the rows of the `group`-th group, if each rank holds `share` rows."""
    return tuple(row // share for row in range(group * size, (group + 1) * size))


def _apart(home: Ranks, place: Ranks) -> int:
    """Count the rows whose rank differs between `home` and `place`."""
    return sum(a != b for a, b in zip(home, place, strict=True))


def _fill(part: range, homes: Sequence[Ranks], places: Sequence[Ranks]) -> list[int]:
    """Assign the groups in `part` to the places in `part`; return the group of each place.

    With two ranks and groups of two, `homes` [(0, 0), (1, 1), (0, 0)] and `places` [(0, 0), (0, 1), (1, 1)]: group 0
    stays. Groups 1 and 2 go to places 2 and 1, where they have as many rows on their ranks as can be: [0, 2, 1].
    """
    group_of = {i: i for i in part if homes[i] == places[i]}
    # Groups and places with equal ranks are matched as kinds, in order: there are few kinds.
    groups: dict[Ranks, list[int]] = {}
    free: dict[Ranks, list[int]] = {}
    for i in part:
        if i not in group_of:
            groups.setdefault(homes[i], []).append(i)
            free.setdefault(places[i], []).append(i)
    on: dict[int, list[Ranks]] = {}
    for home in groups:
        for rank in dict.fromkeys(home):
            on.setdefault(rank, []).append(home)
    pairs = {(place, home): None for place in free for rank in place for home in on.get(rank, ())}
    for place, home in sorted(pairs, key=lambda pair: (_apart(*pair), free[pair[0]][0], groups[pair[1]][0])):
        while groups[home] and free[place]:
            group_of[free[place].pop(0)] = groups[home].pop(0)
    left = sorted(group for alike in groups.values() for group in alike)
    group_of |= dict(zip(sorted(place for alike in free.values() for place in alike), left, strict=True))
    return [group_of[i] for i in part]


def exchange(rounds: Sequence[Round], order: Sequence[tuple[int, int]], partition: Partition) -> list[Attempt]:
    """Return this rank's rows of the batch whose groups are `order`.

    Every rank must call this function for the same rounds and `order` (collective if any row changes rank). A row
    that stays on its rank is not sent. A row that moves is sent to its new rank only, where the backend can do so.

    Args:
        rounds (`Sequence[Round]`): the sampled rounds. Row `i` of a round with n rows on each rank is on rank
            `i // n`.
        order (`Sequence[tuple[int, int]]`): `(round, group)` of each group, equal on all ranks.
        partition ([`~trl_grpo_plus.rollouts.groups.Partition`]): of the rows of the batch.

    Raises:
        ConfigError: a row that must move cannot be sent; raised on all ranks.
    """
    size, rank = partition.num_generations, partition.rank
    rows = [(r, group * size + k) for r, group in order for k in range(size)]
    share = len(rows) // partition.world_size
    owners = [row // len(rounds[r].attempts) for r, row in rows]

    def attempt_at(position: int) -> Attempt:
        """Return the attempt in a place of the batch."""
        r, row = rows[position]
        return rounds[r].attempts[row % len(rounds[r].attempts)]

    moving = [position for position, owner in enumerate(owners) if owner != position // share]
    parcels: dict[int, list[tuple[int, Attempt]]] = {}
    for position in moving:
        if owners[position] == rank:
            parcels.setdefault(position // share, []).append((position, attempt_at(position)))
    sent = all_to_all_made(lambda: {to: _pickled(rows) for to, rows in parcels.items()}) if moving else ()
    received = dict(row for parcel in sent for row in _unpickled(parcel))
    here = range(rank * share, (rank + 1) * share)
    return [attempt_at(position) if owners[position] == rank else received[position] for position in here]


def _pickled(rows: list[tuple[int, Attempt]]) -> bytes:
    try:
        return pickle.dumps([(at, _on_cpu(attempt)) for at, attempt in rows])
    except Exception as error:
        raise ConfigError(
            "a row of the training set cannot be sent to the process that trains on it "
            f"({type(error).__name__}: {error}). Remove the column that cannot be pickled, or make its values in the "
            "function that uses them."
        ) from error


def _on_cpu(attempt: Attempt) -> Attempt:
    # Pickle would restore a tensor on the GPU of the same number. A dataset in torch's format has tensors there.
    inputs, logged = send_to_device((attempt.inputs, attempt.logged), "cpu")
    return replace(attempt, inputs=inputs, logged=logged)


def _unpickled(parcel: bytes | bytearray) -> list[tuple[int, Attempt]]:
    device = PartialState().device  # the dataloader has put this rank's own rows there
    return [(at, replace(moved, inputs=send_to_device(moved.inputs, device))) for at, moved in pickle.loads(parcel)]


class Carried(NamedTuple):
    """The parts that a batch's attempts have, over all ranks.

    Args:
        masks (`bool`): whether any attempt has a tool mask.
        logprobs (`bool`): whether any attempt has log-probs.
        images_on_some_ranks_only (`bool`): whether some ranks' attempts have images and others' none.
        logged (`set[str]`): the columns that rewards logged about any attempt.
    """

    masks: bool
    logprobs: bool
    images_on_some_ranks_only: bool
    logged: set[str]


def carried(attempts: Sequence[Attempt], trl_version: str) -> Carried:
    """Return the parts that the attempts of all ranks have. Collective.

    Raises:
        ConfigError: only some attempts have `logprobs`, and this release of TRL accepts no NaN as a log-prob.
    """
    masks = any(attempt.tool_mask is not None for attempt in attempts)
    pictures = any(attempt.tool_images or images_of(attempt.prompt) for attempt in attempts)
    logged = {name for attempt in attempts for name in attempt.logged}
    everywhere = gather_object([(masks, {attempt.logprobs is not None for attempt in attempts}, pictures, logged)])
    logprobs = set().union(*(rank[1] for rank in everywhere))
    if len(logprobs) > 1 and Version(trl_version) < Version("1.11"):
        raise ConfigError(
            f"rollout_func returned logprobs for only some attempts of a batch, and TRL {trl_version} cannot train on "
            "such a batch. Return logprobs for all attempts or for none, or use TRL 1.11 or later."
        )
    masks, pictures = any(rank[0] for rank in everywhere), len({rank[2] for rank in everywhere}) > 1
    return Carried(masks, True in logprobs, pictures, set().union(*(rank[3] for rank in everywhere)))
