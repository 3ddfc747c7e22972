"""Where in a batch its groups lie: each where its rows are already, as far as that goes, so that few change rank."""

from collections.abc import Sequence

from .groups import Plan


Ranks = tuple[int, ...]  # of the rows of one group, in order


def at_home(plan: Plan, held: Sequence[int], size: int, ranks: int) -> Plan:
    """The same groups in an order in which fewer rows change rank, if there is one; else the plan as it is.

    Live groups stay before filler. One whose rows are all in place stays there; of the others those go first that have
    most of a place's rows: where no group lies on two ranks nothing moves but what a rank has more of than it trains
    on. On one rank nothing changes.

    Args:
        plan ([`~trl_grpo_plus.groups.Plan`]): what is trained on.
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
    """Those that hold the rows of the `group`-th group, where each holds `share` rows."""
    return tuple(row // share for row in range(group * size, (group + 1) * size))


def _apart(home: Ranks, place: Ranks) -> int:
    """Rows that change rank from the one to the other."""
    return sum(a != b for a, b in zip(home, place, strict=True))


def _fill(part: range, homes: Sequence[Ranks], places: Sequence[Ranks]) -> list[int]:
    """Which of the groups in `part` lies in each of its places."""
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
