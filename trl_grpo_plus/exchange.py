"""Hand attempts over between ranks, so that each ends with its equal share of the batch that is trained on."""

from collections.abc import Sequence

from accelerate.utils import gather_object

from .groups import Attempt, Round


def exchange(
    rounds: Sequence[Round], order: Sequence[tuple[int, int]], num_generations: int, rank: int, world_size: int
) -> list[Attempt]:
    """This rank's rows of the batch whose groups are `order`.

    Every rank must call it alike (one collective, none where no row changes rank). A row that stays is not sent.

    Args:
        rounds (`Sequence[Round]`): what was sampled. Row `i` of a round of n rows a rank is on rank `i // n`.
        order (`Sequence[tuple[int, int]]`): `(round, group)` of each group, equal on all ranks.
        num_generations (`int`): attempts in a group.
        rank, world_size (`int`): of this process.
    """
    rows = [(r, group * num_generations + k) for r, group in order for k in range(num_generations)]
    share = len(rows) // world_size
    owners = [row // len(rounds[r].attempts) for r, row in rows]

    def mine(position: int) -> Attempt:
        r, row = rows[position]
        return rounds[r].attempts[row % len(rounds[r].attempts)]

    moving = [position for position, owner in enumerate(owners) if owner != position // share]
    sent = [(position, mine(position)) for position in moving if owners[position] == rank]
    received = dict(gather_object(sent)) if moving else {}
    here = range(rank * share, (rank + 1) * share)
    return [mine(position) if owners[position] == rank else received[position] for position in here]
