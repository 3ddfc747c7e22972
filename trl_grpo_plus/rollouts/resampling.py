"""Resampling: generate the batch, then a fresh prompt for each dead group, and repeat within limits.

Every rank makes the same decisions. Verdicts follow from gathered rewards, so all ranks make the same number of
rounds. Rank 0 draws the fresh prompts of all ranks.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from accelerate import PartialState
from accelerate.logging import get_logger
from accelerate.utils import gather, gather_object

from ..utils.text import percent
from .exchange import with_fewest_moves
from .groups import Partition, Plan, Round, Rows, plan_batch, shares


logger = get_logger(__name__)


class StopAfterSampling(Exception):
    """An exception that ends TRL's work on the rows of a further round, once they are sampled.

    TRL prepares rows (environments, tools, images), generates, and makes a batch of them in one method.
    """

    def __init__(self, sampled: Round):
        super().__init__()
        self.sampled = sampled


def resample(
    first: Round,
    sample: Callable[[Rows], Round],
    inputs: Rows,
    indices: Sequence[int | None],
    draw: Callable[[int, Callable[[int], bool], int, int | None], list[int]] | None,
    read: Callable[[list[int]], Rows],
    partition: Partition,
    max_rounds: int,
) -> list[Round]:
    """Return the batch as first sampled, and the rounds that replace its dead groups.

    A round generates only the missing groups, rounded up so that ranks have equally many rows. A round never uses a
    row that this step has seen. The live groups of each round determine the size of the next.

    Args:
        first ([`~trl_grpo_plus.rollouts.groups.Round`]): the batch as first sampled.
        sample (`Callable`): generates and scores one completion for each of this rank's further rows; collective.
        inputs (`list[dict]`): this rank's rows of the batch.
        indices (`Sequence[int | None]`): of these rows in the dataset; `None` for an unknown index.
        draw (`Callable`, *optional*): `(count, accepts, multiple_of, patience)` -> indices of rows of the dataset for
            which `accepts` is true: `count`, or a multiple of `multiple_of` below it. It gives up once `accepts` has
            refused more than `patience` rows. A [`~trl_grpo_plus.curriculum.draw.Draw`] in a run; collective. `None`:
            nothing is resampled.
        read (`Callable`): maps indices to rows that share no object; two rows of the same index share none either.
        partition ([`~trl_grpo_plus.rollouts.groups.Partition`]): of each round's rows.
        max_rounds (`int`): of resampling, beyond the first.
    """
    rounds = [first]
    missing = len(rounds[0].where(alive=False))
    if draw is None or not missing:
        return rounds
    dealt = _dealt(inputs, indices)
    seen = {row for row in dealt if isinstance(row, int)}
    unplaced = [_plain(row) for row in dealt if not isinstance(row, int)]  # rows whose index is not known

    def is_fresh(index: int) -> bool:
        """Return whether this step has not seen the row."""
        return index not in seen and not (unplaced and _plain(read([index])[0]) in unplaced)

    # A round must hold whole groups, and the same number of rows on each rank.
    unit = partition.world_size // math.gcd(partition.num_generations, partition.world_size)
    while missing > 0 and len(rounds) <= max_rounds:
        # More rows than were seen are refused only if many rows equal a row whose index is not known.
        patience = 1000 + 2 * (len(seen) + len(unplaced))
        drawn = draw(-(-missing // unit) * unit, is_fresh, unit, patience)
        if not drawn:
            logger.warning_once(
                "Resampling found no row that is new in this step: the dataset has too few rows. resample_fallback "
                "decides about the missing groups."
            )
            break
        seen.update(drawn)
        here = read(partition.for_own_rows(drawn))
        rounds.append(replace(sample(here), row_indices=tuple(drawn)))
        missing -= len(rounds[-1].where(alive=True))
    return rounds


def _dealt(inputs: Rows, indices: Sequence[int | None]) -> list[Any]:
    """Return the index of each row of all ranks, or the row itself if its index is not known. Collective."""
    own = [-1 if index is None else index for index in indices]
    everyones = gather(torch.tensor(own, device=PartialState().device)).tolist()
    if min(everyones, default=0) >= 0:
        return everyones
    return gather_object([row if index is None else index for row, index in zip(inputs, indices, strict=True)])


def settle(rounds: Sequence[Round], fallback: str, step: int, unit: int) -> Plan:
    """Return the plan of the groups to train on after all rounds, the same on every rank.

    Args:
        rounds (`Sequence[Round]`): the batch as first sampled, then each resampling round.
        fallback (`str`): the treatment of groups that are still dead: "drop", "keep" or "raise".
        step (`int`): the step at which the batch will be logged, for the message.
        unit (`int`): see [`plan_batch`].

    Raises:
        RuntimeError: groups are still dead and `fallback` is "raise".
    """
    target = len(rounds[0].verdicts)
    missing = len(rounds[0].where(alive=False)) - sum(len(extra.where(alive=True)) for extra in rounds[1:])
    if missing > 0 and fallback == "raise":
        sampled = ", ".join(f"{percent(share)} {verdict}" for verdict, share in shares(rounds).items() if share)
        raise RuntimeError(
            f"After {len(rounds) - 1} resampling rounds {missing} of {target} groups of step {step} are still dead "
            f"(sampled: {sampled}). Raise max_resample_rounds, set resample_fallback='drop' or 'keep', or check the "
            "data and the rewards: the prompts may be too easy or too hard, or a reward may be broken."
        )
    plan = plan_batch(rounds, target, unit, keep_dead=fallback == "keep")
    rows, rows_per_rank = len(rounds[0].rewards), [len(one.attempts) for one in rounds]
    return with_fewest_moves(plan, rows_per_rank, rows // target, rows // rows_per_rank[0])


def groups_at_least(args: Any, world_size: int) -> int:
    """Return the unit: the number of groups in a batch must be a multiple of this number.

    TRL splits a rank's rows into steps_per_generation micro-batches, and loses rows that are left over.
    """
    return math.lcm(args.num_generations, world_size * args.steps_per_generation) // args.num_generations


def can_shrink(args: Any, world_size: int) -> bool:
    """Return whether a batch can be made smaller."""
    return bool(groups_at_least(args, world_size) * args.num_generations < args.generation_batch_size)


def warn_if_nothing_is_saved(args: Any, world_size: int) -> None:
    """Warn if a batch cannot be made smaller."""
    if not can_shrink(args, world_size):
        logger.warning(
            f"zero_variance_groups={args.zero_variance_groups!r} cannot make a batch of {args.generation_batch_size} "
            f"attempts smaller: it must have whole groups of {args.num_generations}, and equally many attempts in "
            f"each of {args.steps_per_generation} micro-batches (steps_per_generation) of {world_size} processes. "
            "Dead groups are masked, but take as much time as live ones. Use a larger per_device_train_batch_size, "
            "and fewer gradient_accumulation_steps."
        )


def _plain(value: Any) -> Any:
    """Replace arrays and tensors, which compare element by element, by lists."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value.tolist() if hasattr(value, "tolist") else value
