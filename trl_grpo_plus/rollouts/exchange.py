"""Exchange of rows between ranks: which rank trains on which groups, and the transfer itself.

[`at_home`] orders the groups so that few rows change rank. [`exchange`] sends those that do.
"""

import pickle
from collections.abc import Sequence
from contextlib import nullcontext

from accelerate.utils import gather_object
from packaging.version import Version

from ..utils.distributed import raise_on_all_ranks
from ..utils.validation import ConfigError
from .generation import images_of
from .groups import Attempt, Plan, Round


Ranks = tuple[int, ...]  # of the rows of one group, in order


def at_home(plan: Plan, held: Sequence[int], size: int, ranks: int) -> Plan:
    """Reorder groups so that fewer rows move between ranks; return the plan as it is where none do.

    Live groups stay before filler. One whose rows are all in place stays there; of the others those go first that have
    most of a place's rows: where no group lies on two ranks nothing moves but what a rank has more of than it trains
    on. On one rank nothing changes.

    Args:
        plan ([`~trl_grpo_plus.rollouts.groups.Plan`]): what is trained on.
        held (`Sequence[int]`): rows on each rank, of each round. Row `i` of a round of n is on rank `i // n`.
        size (`int`): rows of a group.
        ranks (`int`): that share the batch alike.

    Example:
        >>> at_home(Plan(order=((0, 3), (0, 0)), live=(True, True)), held=[2], size=1, ranks=2).order
        ((0, 0), (0, 3))
    """
    if ranks == 1:
        return plan
    homes = [_ranks_of(group, held[r], size) for r, group in plan.order]
    places = [_ranks_of(place, len(homes) * size // ranks, size) for place in range(len(homes))]
    live = sum(plan.live)
    chosen = [*_fill(range(live), homes, places), *_fill(range(live, len(homes)), homes, places)]
    moved, before = (
        sum(map(_apart, (homes[group] for group in order), places)) for order in (chosen, range(len(homes)))
    )
    return Plan(tuple(plan.order[group] for group in chosen), plan.live) if moved < before else plan


def _ranks_of(group: int, share: int, size: int) -> Ranks:
    """Return those that hold the rows of the `group`-th group, where each holds `share` rows."""
    return tuple(row // share for row in range(group * size, (group + 1) * size))


def _apart(home: Ranks, place: Ranks) -> int:
    """Count the rows that change rank from the one to the other."""
    return sum(a != b for a, b in zip(home, place, strict=True))


def _fill(part: range, homes: Sequence[Ranks], places: Sequence[Ranks]) -> list[int]:
    """Return which of the groups in `part` lies in each of its places."""
    at = {i: i for i in part if homes[i] == places[i]}
    # What is alike is taken in order: there are fewer kinds of groups and of places than of them.
    groups: dict[Ranks, list[int]] = {}
    free: dict[Ranks, list[int]] = {}
    for i in part:
        if i not in at:
            groups.setdefault(homes[i], []).append(i)
            free.setdefault(places[i], []).append(i)
    on: dict[int, list[Ranks]] = {}
    for home in groups:
        for rank in dict.fromkeys(home):
            on.setdefault(rank, []).append(home)
    pairs = {(place, home): None for place in free for rank in place for home in on.get(rank, ())}
    for place, home in sorted(pairs, key=lambda pair: (_apart(*pair), free[pair[0]][0], groups[pair[1]][0])):
        while groups[home] and free[place]:
            at[free[place].pop(0)] = groups[home].pop(0)
    left = sorted(group for alike in groups.values() for group in alike)
    at |= dict(zip(sorted(place for alike in free.values() for place in alike), left, strict=True))
    return [at[i] for i in part]


def exchange(
    rounds: Sequence[Round], order: Sequence[tuple[int, int]], num_generations: int, rank: int, world_size: int
) -> list[Attempt]:
    """Return this rank's rows of the batch whose groups are `order`.

    Every rank must call it alike (collective where some row changes rank). A row that stays is not sent. All ranks get
    what is sent, but read only what is theirs.

    Args:
        rounds (`Sequence[Round]`): what was sampled. Row `i` of a round of n rows a rank is on rank `i // n`.
        order (`Sequence[tuple[int, int]]`): `(round, group)` of each group, equal on all ranks.
        num_generations (`int`): attempts in a group.
        rank, world_size (`int`): of this process.

    Raises:
        ConfigError: a row that is to move cannot be sent; on all ranks.
    """
    rows = [(r, group * num_generations + k) for r, group in order for k in range(num_generations)]
    share = len(rows) // world_size
    owners = [row // len(rounds[r].attempts) for r, row in rows]

    def attempt_at(position: int) -> Attempt:
        r, row = rows[position]
        return rounds[r].attempts[row % len(rounds[r].attempts)]

    moving = [position for position, owner in enumerate(owners) if owner != position // share]
    parcels: dict[int, list[tuple[int, Attempt]]] = {}
    for position in moving:
        if owners[position] == rank:
            parcels.setdefault(position // share, []).append((position, attempt_at(position)))
    with raise_on_all_ranks() if moving else nullcontext():
        sent = [(to, _pickled(rows_of_one)) for to, rows_of_one in parcels.items()]
    mine = [parcel for to, parcel in (gather_object(sent) if moving else ()) if to == rank]
    received = dict(row for parcel in mine for row in pickle.loads(parcel))
    here = range(rank * share, (rank + 1) * share)
    return [attempt_at(position) if owners[position] == rank else received[position] for position in here]


def _pickled(rows: list[tuple[int, Attempt]]) -> bytes:
    try:
        return pickle.dumps(rows)
    except Exception as error:
        raise ConfigError(
            "a row of the training set cannot be sent to the process that trains on it "
            f"({type(error).__name__}: {error}). Leave such columns out, or make them where they are used."
        ) from error


def carried(attempts: Sequence[Attempt], trl_version: str) -> tuple[bool, bool, bool]:
    """Return (any tool_mask, any logprobs, images on only some ranks), over all ranks. Collective.

    Raises:
        ValueError: some have `logprobs`, others not, and this release of TRL takes no NaN for one.
    """
    masks = any(attempt.tool_mask is not None for attempt in attempts)
    pictures = any(attempt.tool_images or images_of(attempt.prompt) for attempt in attempts)
    everywhere = gather_object([(masks, {attempt.logprobs is not None for attempt in attempts}, pictures)])
    logprobs = set().union(*(rank[1] for rank in everywhere))
    if len(logprobs) > 1 and Version(trl_version) < Version("1.11"):
        raise ConfigError(
            f"rollout_func gave logprobs for some attempts of a batch only, which TRL {trl_version} cannot train on. "
            "Return them for all or for none, or use TRL 1.11 or later."
        )
    return any(rank[0] for rank in everywhere), True in logprobs, len({rank[2] for rank in everywhere}) > 1
