"""Resampling: generate the batch, then as many fresh prompts as it has dead groups, and again, within limits.

Every rank makes the same decisions, from rewards that were gathered, so all make the same number of rounds.
"""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from accelerate.logging import get_logger
from accelerate.utils import gather_object

from .groups import Plan, Round, plan_batch, shares
from .selection import PromptStream


logger = get_logger(__name__)

Rows = list[dict[str, Any]]


def resample(
    sample: Callable[[Rows, list], Round],
    inputs: Rows,
    prompts: list,
    stream: PromptStream,
    dataset: Any,
    num_generations: int,
    max_rounds: int,
    rank: int,
    world_size: int,
) -> list[Round]:
    """The batch as first sampled, and the rounds that fill its gaps.

    Only what is missing is generated (rounded up so that ranks have equal rows), never a row that this step has seen,
    and each round is examined.

    Args:
        sample (`Callable`): generates and scores one completion for each of this rank's rows; collective.
        inputs (`list[dict]`), prompts (`list`): this rank's rows of the batch and their prompts.
        stream (`PromptStream`): where fresh prompts come from, as indices into `dataset`.
        dataset: map-style, with a `prompt` column.
        num_generations (`int`): attempts in a group.
        max_rounds (`int`): of resampling, beyond the first.
        rank, world_size (`int`): of this process.
    """
    rounds = [sample(inputs, prompts)]
    missing = len(rounds[0].where(alive=False))
    if not missing:
        return rounds
    fresh = _FreshRows(dataset, list(inputs[0]), set(gather_object(list({_key(row) for row in inputs}))))
    # A round must hold whole groups, and as many rows on each rank.
    unit = world_size // math.gcd(num_generations, world_size)
    while missing > 0 and len(rounds) <= max_rounds:
        rows = fresh.take(stream, -(-missing // unit) * unit, unit)
        if not rows:
            logger.warning_once(
                "Resampling found no row in the dataset that this step has not seen: it holds too few distinct rows. "
                "The groups that are missing are left to resample_fallback."
            )
            break
        everyone = [row for row in rows for _ in range(num_generations)]
        share = len(everyone) // world_size
        here = [dict(row) for row in everyone[rank * share : (rank + 1) * share]]
        rounds.append(sample(here, [row["prompt"] for row in here]))
        missing -= len(rounds[-1].where(alive=True))
    return rounds


class _FreshRows:
    """Rows of the dataset that a step has not seen."""

    def __init__(self, dataset: Any, columns: list[str], seen: set[str]):
        self._dataset, self._columns, self._seen = dataset, columns, seen
        self._found: Rows = []

    def take(self, stream: PromptStream, count: int, unit: int) -> Rows:
        """The next `count` or fewer, a multiple of `unit`."""
        self._found = []
        # At most what the step has seen is refused, unless rows repeat; then a long search would find little.
        taken = stream.take(count, self._accept, multiple_of=unit, patience=1000 + 2 * len(self._seen))
        return self._found[: len(taken)]

    def _accept(self, index: int) -> bool:
        row = self._dataset[index]
        row = {name: row[name] for name in self._columns}
        key = _key(row)
        if key in self._seen:
            return False
        self._seen.add(key)
        self._found.append(row)
        return True


def settle(rounds: Sequence[Round], fallback: str, step: int, unit: int) -> Plan:
    """What to train on after the rounds; the same on every rank.

    Args:
        rounds (`Sequence[Round]`): the batch as first sampled, then each resampling round.
        fallback (`str`): what becomes of groups that are still dead: "drop", "keep" or "raise".
        step (`int`): for the message.
        unit (`int`): see [`plan_batch`].

    Raises:
        RuntimeError: groups are still dead and `fallback` is "raise".
    """
    target = len(rounds[0].verdicts)
    missing = len(rounds[0].where(alive=False)) - sum(len(extra.where(alive=True)) for extra in rounds[1:])
    if missing > 0 and fallback == "raise":
        found = ", ".join(f"{share:.0%} {verdict}" for verdict, share in shares(rounds).items() if share)
        raise RuntimeError(
            f"After {len(rounds) - 1} resampling rounds {missing} of {target} groups of step {step} are still dead "
            f"(sampled: {found}). Raise max_resample_rounds, set resample_fallback='drop' or 'keep', or look at the "
            "data: too easy, too hard, or a broken reward?"
        )
    return plan_batch(rounds, target, unit, keep_dead=fallback == "keep")


def _key(row: dict[str, Any]) -> str:
    # The whole row: tasks may share a prompt and differ in another column. A digest, since every rank sends every
    # other one its own.
    text = json.dumps(
        row, sort_keys=True, default=lambda value: value.tolist() if hasattr(value, "tolist") else str(value)
    )
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
