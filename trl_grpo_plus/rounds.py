"""Resampling: generate the batch, then as many fresh prompts as it has dead groups, and again, within limits.

Every rank makes the same decisions: verdicts follow from rewards that were gathered, so all make the same number of
rounds, and rank 0 draws the fresh prompts of all.
"""

import math
import pickle
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from accelerate.logging import get_logger
from accelerate.utils import broadcast_object_list, gather_object
from packaging.version import Version
from torch import Tensor

from .beliefs import Belief
from .common.ranks import together
from .common.values import Refusal
from .generated import images_of
from .groups import Attempt, Plan, Round, Rows, plan_batch, shares
from .placement import at_home
from .streams import Believe, Stream


logger = get_logger(__name__)


class Draw:
    """Draws rows of the training set for all ranks: the first one's stream deals, and all read what it asks of them.

    Args:
        stream ([`~trl_grpo_plus.streams.Stream`]): moves on rank 0 alone.
        believe (`Callable`, *optional*): what the stream may ask about rows.
        collective (`bool`): whether every rank must be there for an answer.
        rank (`int`): of this process.
    """

    def __init__(self, stream: Stream, believe: Believe | None, collective: bool, rank: int):
        self._stream, self._believe, self._collective, self._rank = stream, believe, collective, rank

    def __call__(self, count: int, wanted: Callable[[int], bool], multiple_of: int, patience: int | None) -> list[int]:
        """As a stream's `take`, on every rank alike; a failure stops all of them. Collective."""
        if self._rank == 0:
            believe = self._ask if self._believe and self._collective else self._believe
            try:
                answer = ("dealt", self._stream.take(count, wanted, multiple_of, patience, believe))
            except Refusal as error:
                broadcast_object_list([("refused", str(error))])
                raise
            except Exception as error:
                broadcast_object_list([("failed", f"{type(error).__name__}: {error}")])
                raise
            return broadcast_object_list([answer])[0][1]
        while True:
            kind, content = broadcast_object_list([None])[0]
            if kind == "refused":
                raise Refusal(content)
            if kind == "failed":
                raise RuntimeError(f"The first process could not choose prompts: {content}")
            if kind == "dealt":
                return content
            assert self._believe is not None
            self._believe(content)

    def observe(self, rows: Sequence[int], rewards: Tensor, verdicts: Sequence[str]) -> dict[str, float]:
        """As a stream's, and its metrics, on the first rank; none on the others. Collective, likewise."""
        metrics: dict[str, float] = {}
        with together():
            if self._rank == 0:
                self._stream.observe(rows, rewards, verdicts)
                metrics = self._stream.metrics()
        return metrics

    def _ask(self, rows: list[int]) -> tuple[Belief, float]:
        assert self._believe is not None
        broadcast_object_list([("asked", rows)])
        return self._believe(rows)


class Sampled(Exception):
    """Ends what TRL does with the rows of a further round, once they are sampled.

    TRL prepares rows (environments, tools, images) and generates in one method, which makes a batch of them too.
    """

    def __init__(self, sampled: Round):
        super().__init__()
        self.sampled = sampled


def resample(
    first: Round,
    sample: Callable[[Rows], Round],
    inputs: Rows,
    indices: Sequence[int | None],
    draw: Draw | None,
    read: Callable[[list[int]], Rows],
    num_generations: int,
    max_rounds: int,
    rank: int,
    world_size: int,
) -> list[Round]:
    """The batch as first sampled, and the rounds that fill its gaps.

    Only what is missing is generated (rounded up so that ranks have equal rows), never a row that this step has seen,
    and each round is examined.

    Args:
        first ([`~trl_grpo_plus.groups.Round`]): the batch as first sampled.
        sample (`Callable`): generates and scores one completion for each of this rank's further rows; collective.
        inputs (`list[dict]`): this rank's rows of the batch.
        indices (`Sequence[int | None]`): of these rows in the dataset, `None` where it is not known.
        draw ([`Draw`], *optional*): where fresh prompts come from, as indices into the dataset. `None`: nothing is
            resampled.
        read (`Callable`): indices to rows, which share no object, rows of the same index neither.
        num_generations (`int`): attempts in a group.
        max_rounds (`int`): of resampling, beyond the first.
        rank, world_size (`int`): of this process.
    """
    rounds = [first]
    missing = len(rounds[0].where(alive=False))
    if draw is None or not missing:
        return rounds
    dealt = gather_object([row if index is None else index for row, index in zip(inputs, indices, strict=True)])
    fresh = _Fresh(draw, read, dealt)
    # A round must hold whole groups, and as many rows on each rank.
    unit = world_size // math.gcd(num_generations, world_size)
    while missing > 0 and len(rounds) <= max_rounds:
        drawn = fresh.draw(-(-missing // unit) * unit, unit)
        if not drawn:
            logger.warning_once(
                "Resampling found no row in the dataset that this step has not seen: it holds too few. The groups "
                "that are missing are left to resample_fallback."
            )
            break
        everyone = [index for index in drawn for _ in range(num_generations)]
        share = len(everyone) // world_size
        here = read(everyone[rank * share : (rank + 1) * share])
        rounds.append(replace(sample(here), rows=tuple(drawn)))
        missing -= len(rounds[-1].where(alive=True))
    return rounds


class _Fresh:
    """Rows of the dataset that a step has not seen.

    Args:
        draw ([`Draw`]): what they are drawn from.
        read (`Callable`): as for [`resample`].
        dealt (`list`): for each row that the step began with its index, or the row itself where that is not known.
    """

    def __init__(self, draw: Draw, read: Callable[[list[int]], Rows], dealt: list[int | dict[str, Any]]):
        self._draw, self._read = draw, read
        self._seen = {row for row in dealt if isinstance(row, int)}
        self._unplaced = [row for row in dealt if not isinstance(row, int)]

    def draw(self, count: int, unit: int) -> list[int]:
        """Indices of the next `count` or fewer, a multiple of `unit`."""
        # Only where many rows are equal to one whose index is not known is more refused than the step has seen.
        patience = 1000 + 2 * (len(self._seen) + len(self._unplaced))
        drawn = self._draw(count, self._is_fresh, unit, patience)
        self._seen.update(drawn)
        return drawn

    def _is_fresh(self, index: int) -> bool:
        if index in self._seen:
            return False
        row = self._read([index])[0] if self._unplaced else {}
        return not any(_plain(row) == _plain(other) for other in self._unplaced)


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
        sampled = ", ".join(f"{share:.0%} {verdict}" for verdict, share in shares(rounds).items() if share)
        raise RuntimeError(
            f"After {len(rounds) - 1} resampling rounds {missing} of {target} groups of step {step} are still dead "
            f"(sampled: {sampled}). Raise max_resample_rounds, set resample_fallback='drop' or 'keep', or look at the "
            "data: too easy, too hard, or a broken reward?"
        )
    plan = plan_batch(rounds, target, unit, keep_dead=fallback == "keep")
    rows, held = len(rounds[0].rewards), [len(one.attempts) for one in rounds]
    return at_home(plan, held, rows // target, rows // held[0])


def groups_at_least(args: Any, world_size: int) -> int:
    """The number of groups in a batch is a multiple of this: TRL splits a rank's rows into steps_per_generation
    micro-batches, and forgets what is left over."""
    return math.lcm(args.num_generations, world_size * args.steps_per_generation) // args.num_generations


def warn_if_nothing_is_saved(args: Any, world_size: int) -> None:
    """Say so where a batch cannot be made smaller."""
    if groups_at_least(args, world_size) * args.num_generations == args.generation_batch_size:
        logger.warning(
            f"zero_variance_groups={args.zero_variance_groups!r} cannot make a batch smaller with "
            f"per_device_train_batch_size={args.per_device_train_batch_size}: each micro-batch of each process needs "
            "a row. Dead groups are masked, but nothing is saved. Use a larger per_device_train_batch_size and fewer "
            "gradient_accumulation_steps."
        )


def _plain(value: Any) -> Any:
    """With lists for arrays and tensors, which are compared element by element."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value.tolist() if hasattr(value, "tolist") else value


def exchange(
    rounds: Sequence[Round], order: Sequence[tuple[int, int]], num_generations: int, rank: int, world_size: int
) -> list[Attempt]:
    """This rank's rows of the batch whose groups are `order`.

    Every rank must call it alike (collective where some row changes rank). A row that stays is not sent. All ranks get
    what is sent, but read only what is theirs.

    Args:
        rounds (`Sequence[Round]`): what was sampled. Row `i` of a round of n rows a rank is on rank `i // n`.
        order (`Sequence[tuple[int, int]]`): `(round, group)` of each group, equal on all ranks.
        num_generations (`int`): attempts in a group.
        rank, world_size (`int`): of this process.

    Raises:
        Refusal: a row that is to move cannot be sent; on all ranks.
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
    with together() if moving else nullcontext():
        sent = [(to, _pickled(rows_of_one)) for to, rows_of_one in parcels.items()]
    mine = [parcel for to, parcel in (gather_object(sent) if moving else ()) if to == rank]
    received = dict(row for parcel in mine for row in pickle.loads(parcel))
    here = range(rank * share, (rank + 1) * share)
    return [attempt_at(position) if owners[position] == rank else received[position] for position in here]


def _pickled(rows: list[tuple[int, Attempt]]) -> bytes:
    try:
        return pickle.dumps(rows)
    except Exception as error:
        raise Refusal(
            "a row of the training set cannot be sent to the process that trains on it "
            f"({type(error).__name__}: {error}). Leave such columns out, or make them where they are used."
        ) from error


def carried(attempts: Sequence[Attempt], trl_version: str) -> tuple[bool, bool, bool]:
    """Whether any attempt, on any rank, has a `tool_mask`, and `logprobs`; and whether some rank has pictures while
    another has none. Collective.

    Raises:
        ValueError: some have `logprobs`, others not, and this release of TRL takes no NaN for one.
    """
    masks = any(attempt.tool_mask is not None for attempt in attempts)
    pictures = any(attempt.tool_images or images_of(attempt.prompt) for attempt in attempts)
    everywhere = gather_object([(masks, {attempt.logprobs is not None for attempt in attempts}, pictures)])
    logprobs = set().union(*(rank[1] for rank in everywhere))
    if len(logprobs) > 1 and Version(trl_version) < Version("1.11"):
        raise Refusal(
            f"rollout_func gave logprobs for some attempts of a batch only, which TRL {trl_version} cannot train on. "
            "Return them for all or for none, or use TRL 1.11 or later."
        )
    return any(rank[0] for rank in everywhere), True in logprobs, len({rank[2] for rank in everywhere}) > 1
