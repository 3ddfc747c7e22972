"""What a run remembers of its prompts: beliefs about all that it centres by or chooses by, and a prior they share.

One belief for each quantity: the total reward, or under normalize_then_sum each reward with a weight; and where
prompts are chosen, what `filter_metric` looks at: a reward, or the total of a group to which it does not apply, as
verdicts do. A head ([`trl_grpo_plus.curriculum.belief_head`]) may stand in for what rows share.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..rollouts.groups import metric_or_total, totals
from ..utils import dataset_rows
from ..utils.validation import ConfigError, did_you_mean
from .belief_head import Ridge
from .beliefs import Belief, Beliefs
from .state_cache import StateCache, States


TOTAL = "total"
HEAD_STRENGTH = 4.0  # attempts that a head's prediction counts for
_WAYS_ON = (
    "Resume with the same dataset, rewards and options; or start a new run from the checkpoint's weights; or remove "
    "the checkpoint's grpo_plus_state_*.pt files: it goes on then, and beliefs start afresh."
)


class BeliefStore:
    """Beliefs of one run, the same on every rank.

    Args:
        config ([`GRPOPlusConfig`]): of the run.
        train_set ([`~datasets.Dataset`] or [`~datasets.IterableDataset`]): what is trained on. Of a stream's rows each
            batch has its own, which [`show`] tells; what is remembered is what they share.
        names (`Sequence[str]`), weights (`Sequence[float]`): of the rewards.
        states (`Callable`, *optional*): what the head reads. Collective.

    Attributes:
        promise_of (`str`): what [`promise`] is about: a reward's name, or "total".

    Raises:
        ValueError: rows that cannot be told apart, or no column `belief_key`.
    """

    def __init__(
        self,
        config: Any,
        train_set: Any,
        names: Sequence[str],
        weights: Sequence[float],
        states: States | None = None,
    ):
        check_rows(train_set, config)
        self._weights = torch.tensor(weights)
        self._known = StateCache(states, config.seed, config.belief_head_share is None) if states else None
        names = _told_apart(names)
        weighted = [name for name, weight in zip(names, weights, strict=True) if weight]
        self._credited = weighted if config.multi_objective_aggregation == "normalize_then_sum" else [TOTAL]
        named = config.filter_metric in names and config.chooses_prompts
        # A quantity of its own: the reward's own belief, where it is credited, knows nothing of totals.
        self._fallback = f"{config.filter_metric}, else {TOTAL}"
        self._chosen_by = [self._fallback] if named else self._credited
        self.promise_of = config.filter_metric if named else TOTAL
        self._names = names
        streamed = not hasattr(train_set, "__len__")
        keys = None
        if config.belief_key:
            name = config.belief_key
            keys = () if streamed else [as_key(name, value) for value in dataset_rows.column(train_set, name)]
        self._key = config.belief_key if streamed else None  # that rows are asked for as they come
        limits = (config.failed_reward, config.solved_reward)
        quantities = dict.fromkeys([*self._credited, *self._chosen_by])
        num_rows = None if streamed else len(train_set)
        self._beliefs = {name: Beliefs(num_rows, *limits, keys) for name in quantities}
        self._heads = {name: Ridge(config.seed, *limits) for name in quantities} if states else {}
        self._about = {
            "rewards": {name: float(weight) for name, weight in zip(names, weights, strict=True) if weight},
            **{name: getattr(config, name) for name in ("failed_reward", "solved_reward", "belief_key")},
        }
        self._prints = {} if streamed else dataset_rows.prints(train_set, ("prompt", config.belief_key))

    def show(self, rows: Sequence[dict[str, Any]]) -> None:
        """Set the rows of a stream that indices refer to from now on."""
        if self._known is not None:
            self._known.forget()
        if self._key is not None:
            keys = [as_key(self._key, row.get(self._key)) for row in rows]
            for beliefs in self._beliefs.values():
                beliefs.show(keys)

    def look(self, rows: Sequence[int]) -> None:
        """Have the policy read these rows, which are to be sampled, as far as it may. Collective, with a head."""
        if self._known is not None:
            self._known.look(rows)

    def credited(self, rows: Sequence[int]) -> list[Belief]:
        """Return the beliefs that advantages are made of: of the total, or of each reward with a weight. Collective,
        with a head.
        """
        self.look(rows)
        return [self._of(name, rows) for name in self._credited]

    def promise(self, rows: list[int]) -> tuple[Belief, float]:
        """[`believed`] of candidates, and how far to trust it. Collective where there is a head, which reads some of
        them first: half of what it may, as those that are sampled are what it learns from.

        Where the head has read few rows, it is right about these and the beliefs about most are not: the better one's
        skill counts, since rows of which nothing is known are drawn by lot among themselves whatever it is.
        """
        if self._known is not None:
            self._known.look(rows, share=1 / 2)
        skills = [self._skill(name) for name in self._chosen_by]
        return self.believed(rows), sum(skills) / len(skills)

    def believed(self, rows: Sequence[int]) -> Belief:
        """Return the belief that prompts are chosen by, and its skill.

        Under normalize_then_sum its variance is that of a weighted sum of independent rewards.
        """
        parts = [self._of(name, rows) for name in self._chosen_by]
        if self._chosen_by in ([TOTAL], [self._fallback]):
            return parts[0]
        weights = [float(self._weights[self._names.index(name)]) for name in self._chosen_by]
        means, variances = (torch.stack([getattr(part, name) for part in parts]) for name in ("mean", "variance"))
        by = torch.tensor(weights, dtype=torch.float64).unsqueeze(1)
        return Belief((by * means).sum(dim=0), (by**2 * variances).sum(dim=0), parts[0].count)

    def observe(self, rows: Sequence[int], rewards: Tensor, affordable: float = math.inf) -> None:
        """Learn from a generation batch: P rows and their `(P, G, K)` rewards. Ends the step. Collective, with a head.

        For the next step the head may read `affordable` prompts.
        """
        self.look(rows)
        for name, beliefs in self._beliefs.items():
            column, believed = self._column(name, rewards), self._of(name, rows)
            if self._known is not None:
                self._heads[name].learn(self._known.of(rows), column)
            beliefs.observe(rows, column, believed)
        if self._known is not None:
            self._known.end_step(rows, affordable)

    def metrics(self) -> dict[str, float]:
        """`beliefs/*` of what prompts are chosen by, or else of the first quantity."""
        name = self._chosen_by[0]
        values = self._beliefs[name].metrics()
        if name in self._heads:
            values["beliefs/head_skill"] = self._heads[name].skill
        if self._known is not None:
            values |= self._known.metrics()
        return values

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: what was learned, and what it is about."""
        learned = {kind: {name: part.state_dict() for name, part in of.items()} for kind, of in self._parts.items()}
        return {**learned, "about": self._about, "rows": self._prints}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint. Raises ValueError where that was of other data or rewards."""
        about = state.get("about", self._about)
        if changed := [name for name, now in self._about.items() if about[name] != now]:
            before, now = (", ".join(f"{name}={of[name]!r}" for name in changed) for of in (about, self._about))
            raise ConfigError(f"The checkpoint's beliefs are about {before}, this run has {now}. {_WAYS_ON}")
        for kind, parts in self._parts.items():
            if set(state.get(kind, ())) != set(parts):
                saved, now = (", ".join(names) or "nothing" for names in (state.get(kind, ()), parts))
                raise ConfigError(f"The checkpoint has {kind} about {saved}, this run about {now}. {_WAYS_ON}")
            for name, part in parts.items():
                part.load_state_dict(state[kind][name])
        prints = state.get("rows", self._prints)
        if other := [row for row, of_row in self._prints.items() if prints.get(row, of_row) != of_row]:
            raise ConfigError(
                "The checkpoint's beliefs are about other rows, or about these in another order: of "
                f"{len(self._prints)} rows that were compared {len(other)} differ, first row {other[0]}. {_WAYS_ON}"
            )

    @property
    def _parts(self) -> dict[str, dict[str, Any]]:
        states = {} if self._known is None else {"prompts": self._known}
        return {"beliefs": self._beliefs, "heads": self._heads, "states": states}

    def _skill(self, name: str) -> float:
        skill = self._beliefs[name].skill
        return max(skill, self._heads[name].skill) if name in self._heads else skill

    def _of(self, name: str, rows: Sequence[int]) -> Belief:
        head, belief = self._heads.get(name), self._beliefs[name].of(rows)
        if self._known is None or head is None or head.skill <= 0:  # it foretells nothing
            return belief
        known = torch.tensor([row in self._known for row in rows], dtype=torch.bool)
        foretold = self._beliefs[name].of(rows, *head.predict(self._known.of(rows)), HEAD_STRENGTH)
        columns = ("mean", "variance", "count")
        return Belief(*(torch.where(known, getattr(foretold, name), getattr(belief, name)) for name in columns))

    def _column(self, name: str, rewards: Tensor) -> Tensor:
        """`(P, G)`, of a quantity."""
        if name not in (TOTAL, self._fallback):
            return rewards[..., self._names.index(name)]
        summed = totals(rewards.flatten(0, 1), self._weights).view(rewards.shape[:2])
        return summed if name == TOTAL else metric_or_total(rewards[..., self._names.index(self.promise_of)], summed)


def _told_apart(names: Sequence[str]) -> list[str]:
    """Two rewards may have one name, and one may be called "total"."""
    taken = [TOTAL]
    for name in names:
        taken.append(name if name not in taken else f"{name} ({len(taken)})")
    return taken[1:]


def check_rows(train_set: Any, config: Any) -> None:
    """Check that `belief_key` is a column of the training set, and that a stream's rows keep all of their columns."""
    streamed = not hasattr(train_set, "__len__")
    if streamed and config.remove_unused_columns:
        raise ConfigError(
            f"remove_unused_columns=True does not go with {config.what_believes} on a stream, whose rows are read as "
            "they come. Set remove_unused_columns=False, which is TRL's default."
        )
    rows = train_set if streamed else dataset_rows.unformatted(train_set)
    first = next(iter(rows), None) if streamed or config.belief_key else None
    if streamed and first is None:
        raise ConfigError("the stream has no rows: look at what it is read from.")
    columns = getattr(train_set, "column_names", None) or list(first or ())
    if config.belief_key and config.belief_key not in columns:
        raise ConfigError(
            f"belief_key={config.belief_key!r} is no column of the training set, which has "
            f"{', '.join(map(repr, columns)) or 'none'}.{did_you_mean(config.belief_key, columns)}"
        )
    if config.belief_key and first is not None:
        as_key(config.belief_key, first.get(config.belief_key))


def as_key(name: str, value: Any) -> Any:
    """Return what rows share beliefs by: rows of equal keys do. A stream's keys are kept in checkpoints, which hold
    plain values alone.
    """
    key = dataset_rows.plain(value)
    if type(key) not in dataset_rows.PLAIN:
        raise ConfigError(
            f"belief_key={name!r} holds {type(key).__name__} values, which are no keys: {key!r:.80}. A key is a "
            "text, a number or a boolean; rows without one (None, NaN) share a key. Name another column, or one that "
            "you make of this."
        )
    return key
