"""Groups of attempts on one prompt, and the verdict on each group, which says whether training can learn from it.

A group is judged once, on rewards gathered from all ranks, by `max - min <= tolerance`. A standard deviation would be
wrong: eight rewards of 0.3 have a float32 std above 0, and leave-one-out stds can split a group.

The position of a row identifies its group: row `i` of a gathered batch belongs to group `i // num_generations`,
whatever its prompt.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from .steps import StepMarks, by_group, steps_differ
from .verdicts import DEAD, VERDICTS


Rows = list[dict[str, Any]]  # of the dataset


@dataclass(frozen=True)
class Attempt:
    """One completion and the data of TRL's batch about it. A tuple of attempts is a rank's share of a batch."""

    inputs: dict[str, Any]  # the dataset row, with what `rollout_func` added
    prompt: Any  # text or messages
    prompt_ids: list[int]
    completion_ids: list[int]
    completion: Any  # text or messages
    logprobs: list[float | None] | None = None  # of the sampling engine
    tool_mask: list[int] | None = None  # 1 where the policy wrote the token
    tool_images: tuple[Any, ...] = ()  # from the answers of tools
    logged: dict[str, Any] = field(default_factory=dict)  # by reward functions, through `log_extra`
    outcomes: tuple[str | None, ...] = ()  # one of `scoring.STATUSES` a reward, None if unknown
    steps: tuple[tuple[Any, ...] | None, ...] = ()  # `scoring.Step`s of each reward, None if it gave none
    truncated: bool = False  # the completion ran into the length limit
    added: tuple[str, ...] = ()  # the names of the inputs that `rollout_func` added

    @property
    def num_tokens(self) -> int:
        """Tokens that the policy generated."""
        return len(self.completion_ids) if self.tool_mask is None else int(sum(self.tool_mask))

    def loss_tokens(self, masked: bool) -> int:
        """Return the number of tokens that are trained on; with `masked`, truncated completions have none."""
        return 0 if masked and self.truncated else self.num_tokens


@dataclass(frozen=True)
class Round:
    """The result of one call of the generator: this rank's attempts, and all ranks' rewards and verdicts.

    `rewards` is `(P * G, K)`: gathered, groups contiguous, one column a reward function, NaN where the function does
    not apply. `dead` holds the verdicts whose groups leave the batch. `row_indices` holds the index of each group's
    row in the training set (of a stream: in the window), if it is known. `marks` holds the steps of all ranks' P * G
    attempts, if steps are credited. `outcomes` is `(K, S)`, all ranks' number of samples by reward and status, and
    `tokens` their number of generated tokens. `loss_tokens` is `(P * G,)`, each attempt's number of tokens in the
    loss.
    """

    attempts: tuple[Attempt, ...]
    rewards: Tensor
    verdicts: tuple[str, ...]
    dead: frozenset[str] = DEAD
    row_indices: tuple[int, ...] = ()
    marks: tuple[StepMarks, ...] = ()
    outcomes: Tensor = field(default_factory=lambda: torch.tensor(0))
    tokens: int = 0
    loss_tokens: Tensor = field(default_factory=lambda: torch.tensor(0))

    def where(self, alive: bool) -> list[int]:
        """Return the indices of the groups that are live (`alive` True) or dead (False)."""
        return [group for group, verdict in enumerate(self.verdicts) if (verdict not in self.dead) == alive]


def judge(
    rewards: Tensor,
    tolerance: float = 1e-6,
    solved_reward: float = 1.0,
    failed_reward: float = 0.0,
    *,
    trainable: Tensor | None = None,
) -> list[str]:
    """Return the verdict on each group.

    Args:
        rewards (`Tensor`): `(P, G)`, NaN for an attempt that nobody scored.
        tolerance (`float`, *optional*, defaults to `1e-6`): largest max - min of a dead group.
        solved_reward (`float`, *optional*, defaults to `1.0`): if all attempts reach it, the group is `"all_good"`.
        failed_reward (`float`, *optional*, defaults to `0.0`): if all attempts are at or below it, the group is
            `"all_bad"`.
        trainable (`Tensor`, *optional*): `(P, G)`, whether any token of an attempt is trained on. `None`: all are.

    Returns:
        `list[str]`: P verdicts: `"alive"` (the attempts differ), `"all_good"`, `"all_bad"`, `"tied"` (equal, but
        neither), `"unscored"` (every attempt is NaN) or, whatever the rewards, `"truncated"` (no attempt is trainable:
        `mask_truncated_completions` masks all, or the policy wrote no token of them). Training learns only from
        `"alive"` groups. If some attempts of a group are trainable, the rewards of all its attempts decide. The
        rewards of the other attempts are in the mean, so that even trainable attempts with equal rewards have
        an advantage.

    Example:
        >>> judge(torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.3, 0.3]]))
        ['alive', 'all_good', 'all_bad', 'tied']
    """
    lowest, highest = (column.tolist() for column in extremes(rewards))
    unscored = rewards.isnan().all(dim=1).tolist()
    verdicts = [
        "unscored" if nobody else _verdict(low, high, tolerance, solved_reward, failed_reward)
        for low, high, nobody in zip(lowest, highest, unscored, strict=True)
    ]
    if trainable is None:
        return verdicts
    if trainable.shape != rewards.shape:
        raise ValueError(f"trainable must be {tuple(rewards.shape)}, as rewards, got shape {tuple(trainable.shape)}.")
    some = trainable.any(dim=1).tolist()
    return [verdict if alive else "truncated" for verdict, alive in zip(verdicts, some, strict=True)]


def judge_any(components: Tensor, totals: Tensor, **limits: Any) -> list[str]:
    """Judge groups by `totals` (P, G), but keep a group alive if any of its `components` (P, G, K) varies.

    `limits` are the other arguments of [`judge`].
    """
    of_components = [judge(component, **limits) for component in components.unbind(-1)]
    return [
        "alive" if "alive" in verdicts else verdict
        for verdict, *verdicts in zip(judge(totals, **limits), *of_components, strict=True)
    ]


def mark_low_variance(verdicts: Sequence[str], rewards: Tensor, top_p: float) -> list[str]:
    """Return the verdicts with `"low_variance"` for live groups beyond those that hold most of the variance.

    The groups are taken by the sample variance of their rewards, largest first, until their variances sum to `top_p`
    of that of all live groups. Of groups with equal variance the first in the batch is taken first. The others get
    `"low_variance"`. This is the SNR-aware filtering of [RAGEN-2](https://huggingface.co/papers/2604.06268).

    Args:
        verdicts (`Sequence[str]`): P verdicts.
        rewards (`Tensor`): `(P, G)`, NaN for an attempt that nobody scored, which does not count.
        top_p (`float`): share of the variance that stays, above 0 and at most 1.

    Example:
        >>> mark_low_variance(["alive", "alive"], torch.tensor([[1.0, 0.0, 0.0, 0.0], [9.0, 0.0, 9.0, 0.0]]), 0.9)
        ['low_variance', 'alive']
    """
    if "alive" not in verdicts:
        return [*verdicts]
    scored, live = ~rewards.isnan(), torch.tensor([verdict == "alive" for verdict in verdicts])
    values = rewards.double().masked_fill(~scored, 0.0)
    values = values / values[live].abs().max()  # so that squares of huge and tiny rewards are finite and not 0
    count = scored.sum(dim=1)
    mean = values.sum(dim=1) / count.clamp(min=1)
    squares = (values - mean.unsqueeze(1)).masked_fill(~scored, 0.0).square().sum(dim=1)
    variances = (squares / (count - 1).clamp(min=1)).masked_fill(~live, 0.0)
    # The variance of equal rewards depends on their order in the last digits, and so do the sums.
    ranked, order = (variances / variances.max()).round(decimals=9).sort(descending=True, stable=True)
    before = ranked.cumsum(0) - ranked
    stays = set(order[before < top_p * ranked.sum() - 1e-9].tolist())
    return ["low_variance" if live[i] and i not in stays else verdict for i, verdict in enumerate(verdicts)]


def totals(rewards: Tensor, weights: Tensor) -> Tensor:
    """Return weighted sums as TRL computes them, `(..., K), (K,) -> (...)`; NaN if no reward with a weight scored."""
    rewards, weights = rewards[..., weights != 0], weights[weights != 0]
    return (rewards * weights).nansum(dim=-1).masked_fill(rewards.isnan().all(dim=-1), torch.nan)


def monitors(weights: Tensor) -> list[int]:
    """Return the rewards with weight 0, if any reward has a weight: monitors are scored and logged only."""
    return [i for i, weight in enumerate(weights.tolist()) if not weight] if weights.any() else []


class VerdictOptions(Protocol):
    """The options of [`GRPOPlusConfig`] that verdicts depend on."""

    filter_metric: str
    multi_objective_aggregation: str
    zero_variance_tolerance: float
    solved_reward: float
    failed_reward: float


def judge_batch(
    config: VerdictOptions,
    rewards: Tensor,
    weights: Tensor,
    names: Sequence[str],
    size: int,
    trainable: Tensor | None = None,
    marks: Sequence[StepMarks] = (),
) -> list[str]:
    """Judge groups by a configuration's `filter_metric` and limits.

    Args:
        config ([`GRPOPlusConfig`]): the configuration.
        rewards (`Tensor`): `(P * G, K)`, groups contiguous, NaN where a reward does not apply.
        weights (`Tensor`), names (`Sequence[str]`): of the K rewards.
        size (`int`): attempts in a group, G.
        trainable (`Tensor`, *optional*): `(P * G,)`, whether any token of an attempt is trained on. `None`: all are.
        marks (`Sequence[StepMarks]`, *optional*): of the P * G attempts, if steps are credited. A group in which a
            reward scored steps is alive if and only if the rewards of these steps differ or the other rewards differ.
    """
    verdicts = _judge_wholes(config, rewards, weights, names, size, trainable)
    if not marks:
        return verdicts
    stepwise, rest = by_group(rewards, marks, size)
    of_rest = _judge_wholes(config, rest, weights, names, size, trainable)
    named = config.filter_metric not in ("total", "any")
    for group, scored in enumerate(stepwise):
        step_rewards = [scored[k] for k in scored if (names[k] == config.filter_metric if named else weights[k])]
        if not step_rewards or verdicts[group] in ("truncated", "unscored"):
            continue
        differ = any(steps_differ(steps, config.zero_variance_tolerance) for steps in step_rewards)
        if differ or (not named and of_rest[group] == "alive"):
            verdicts[group] = "alive"
        elif verdicts[group] == "alive":  # only the numbers of steps differ
            verdicts[group] = "tied"
    return verdicts


def _judge_wholes(
    config: VerdictOptions,
    rewards: Tensor,
    weights: Tensor,
    names: Sequence[str],
    size: int,
    trainable: Tensor | None,
) -> list[str]:
    limits: dict[str, Any] = {
        "trainable": None if trainable is None else trainable.view(-1, size),
        "tolerance": config.zero_variance_tolerance,
        "solved_reward": config.solved_reward,
        "failed_reward": config.failed_reward,
    }
    by_itself = config.multi_objective_aggregation == "normalize_then_sum"
    if config.filter_metric == "any" or (config.filter_metric == "total" and by_itself):
        components = rewards.view(-1, size, rewards.shape[1])
        return judge_any(components[..., weights != 0], totals(components, weights), **limits)
    return judge(judged_rewards(config.filter_metric, rewards, weights, names, size), **limits)


def judged_rewards(metric: str, rewards: Tensor, weights: Tensor, names: Sequence[str], size: int) -> Tensor:
    """Return the rewards of which `filter_metric` is the name or `"total"`, (P * G, K) -> (P, G)."""
    components = rewards.view(-1, size, rewards.shape[1])
    summed = totals(components, weights)
    return summed if metric == "total" else metric_or_total(components[..., names.index(metric)], summed)


def metric_or_total(metric: Tensor, summed: Tensor) -> Tensor:
    """Return the `(P, G)` rewards of one function, and the total for groups to which it does not apply.

    A function does not apply to some groups in a mixture of tasks.
    """
    return torch.where(metric.isnan().all(dim=1, keepdim=True), summed, metric)


def extremes(rewards: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lowest and highest scored reward of each group of (P, G), in float64; (inf, -inf) if unscored."""
    if rewards.dim() != 2:
        raise ValueError(f"rewards must be (P, G), prompts by attempts, got shape {tuple(rewards.shape)}.")
    values = rewards.double()
    unscored = values.isnan()
    return values.masked_fill(unscored, torch.inf).amin(dim=1), values.masked_fill(unscored, -torch.inf).amax(dim=1)


def _verdict(low: float, high: float, tolerance: float, solved: float, failed: float) -> str:
    if high - low > tolerance:
        return "alive"
    # 0.1 + 0.2 must count as 0.3 here too.
    if low >= solved - tolerance:
        return "all_good"
    return "all_bad" if high <= failed + tolerance else "tied"


@dataclass(frozen=True)
class Partition:
    """The partition of a batch's rows: groups of `num_generations` rows, and an equal share for each rank.

    Args:
        num_generations (`int`): attempts in a group.
        rank (`int`), world_size (`int`): of this process.
    """

    num_generations: int
    rank: int
    world_size: int

    def for_own_rows(self, of_groups: Sequence[Any]) -> list[Any]:
        """Return, for each of this rank's rows, the entry of its group in `of_groups`, the entries of all groups."""
        of_rows = [entry for entry in of_groups for _ in range(self.num_generations)]
        share = len(of_rows) // self.world_size
        return of_rows[self.rank * share : (self.rank + 1) * share]


@dataclass(frozen=True)
class Plan:
    """The groups of the batch that is trained on, in order, each as `(round, group)`.

    A group with `live` False is filler: it stays only because the rows must divide evenly, and is masked out of the
    loss.
    """

    order: tuple[tuple[int, int], ...]
    live: tuple[bool, ...]

    @classmethod
    def as_sampled(cls, num_groups: int) -> "Plan":
        """Train on all groups of the first round."""
        return cls(order=tuple((0, group) for group in range(num_groups)), live=(True,) * num_groups)


def plan_batch(rounds: Sequence[Round], target: int, unit: int, keep_dead: bool) -> Plan:
    """Choose the groups to train on.

    Live groups of the first round keep their place. Live groups of later rounds take the places of dead groups. The
    groups that are still dead are kept (`keep_dead`) or leave. As few dead groups as needed stay as masked filler,
    because the batch must hold a multiple of `unit` groups.

    Args:
        rounds (`Sequence[Round]`): the batch as first sampled, then each resampling round.
        target (`int`): groups in a full batch.
        unit (`int`): the number of groups must be a multiple of `unit`, and is at least `unit`.
        keep_dead (`bool`): whether dead groups are trained on when too few live ones were found.
    """
    spare = [(r, group) for r, extra in enumerate(rounds[1:], start=1) for group in extra.where(alive=True)]
    alive = set(rounds[0].where(alive=True))
    slots: list[tuple[int, int]] = []
    dead: list[tuple[int, int]] = []
    for group in range(target):
        if group in alive:
            slots.append((0, group))
        elif spare:
            slots.append(spare.pop(0))
        elif keep_dead:
            slots.append((0, group))
        else:
            dead.append((0, group))
    filler = max(-len(slots) % unit, unit - len(slots))
    return Plan(order=(*slots, *dead[:filler]), live=(True,) * len(slots) + (False,) * filler)


def shares(rounds: Sequence[Round]) -> dict[str, float]:
    """Return the share of each verdict among all sampled groups, before any filtering."""
    counts = Counter(verdict for sampled in rounds for verdict in sampled.verdicts)
    return {verdict: counts[verdict] / counts.total() for verdict in VERDICTS}


def summary(rounds: Sequence[Round], plan: Plan) -> dict[str, float]:
    """Return the metrics `groups/*` of a batch: the share of each sampled verdict, and counts of rounds and groups."""
    places = zip(plan.order, plan.live, strict=True)
    return {
        **{f"groups/{verdict}": share for verdict, share in shares(rounds).items()},
        "groups/rounds": len(rounds) - 1,
        "groups/generated": sum(len(sampled.verdicts) for sampled in rounds),
        "groups/trained": sum(live and rounds[r].verdicts[group] != "truncated" for (r, group), live in places),
    }
