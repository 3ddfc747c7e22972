"""The memory that a run keeps of its prompts: beliefs about each quantity that it centres by or chooses by.

Advantages are centred by the total reward, or under normalize_then_sum by each reward with a weight. Prompts are
chosen by the reward that `filter_metric` names, and by the total of a group to which this reward does not apply, as in
the verdicts. There is one belief for each of these quantities. A head ([`trl_grpo_plus.curriculum.belief_head`]) may
replace the prior that rows share.
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
HEAD_STRENGTH = 4.0  # a head's prediction counts as this number of attempts
_WAYS_ON = (
    "Resume with the same dataset, rewards and options; or start a new run from the checkpoint's weights; or remove "
    "the checkpoint's grpo_plus_state_*.pt files: it goes on then, and beliefs start afresh."
)


class BeliefStore:
    """The beliefs of one run, the same on every rank.

    Args:
        config ([`GRPOPlusConfig`]): of the run.
        train_set ([`~datasets.Dataset`] or [`~datasets.IterableDataset`]): the training set. Each batch of a stream
            has rows of its own, which [`show`] sets; only the prior that they share is remembered.
        names (`Sequence[str]`), weights (`Sequence[float]`): of the rewards.
        states (`Callable`, *optional*): reads the prompt states for the head. `None`: there is no head. Collective.

    Attributes:
        promise_of (`str`): the quantity that [`promise`] is about: a reward's name, or "total".

    Raises:
        ValueError: rows cannot be told apart, or there is no column `belief_key`.
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
        # A separate quantity: the reward's own belief, if the reward is credited, knows nothing about totals.
        self._fallback = f"{config.filter_metric}, else {TOTAL}"
        self._chosen_by = [self._fallback] if named else self._credited
        self.promise_of = config.filter_metric if named else TOTAL
        self._names = names
        streamed = not hasattr(train_set, "__len__")
        keys = None
        if config.belief_key:
            name = config.belief_key
            keys = () if streamed else [as_key(name, value) for value in dataset_rows.column(train_set, name)]
        self._key = config.belief_key if streamed else None  # read from each row as it comes
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
        """Set the stream rows that indices refer to from now on."""
        if self._known is not None:
            self._known.forget()
        if self._key is not None:
            keys = [as_key(self._key, row.get(self._key)) for row in rows]
            for beliefs in self._beliefs.values():
                beliefs.show(keys)

    def look(self, rows: Sequence[int]) -> None:
        """Read the policy's states of rows that are about to be sampled, within the budget. Collective with a head."""
        if self._known is not None:
            self._known.look(rows)

    def credited(self, rows: Sequence[int]) -> list[Belief]:
        """Return the beliefs that advantages are centred by: about the total, or about each reward with a weight.

        Collective with a head.
        """
        self.look(rows)
        return [self._of(name, rows) for name in self._credited]

    def promise(self, rows: list[int]) -> tuple[Belief, float]:
        """Return [`believed`] of the candidate rows, and the skill of this belief.

        Collective with a head. The head first reads some of the candidates, for half of its budget. The other half is
        kept for the rows that are sampled, because the head learns from those.

        The skill is the larger of the head's skill and the beliefs' skill. A head that has read few rows predicts
        these rows well, while the beliefs about most rows are poor. A large skill does no harm to rows about which
        nothing is known: they are drawn at random among themselves whatever the skill is.
        """
        if self._known is not None:
            self._known.look(rows, share=1 / 2)
        skills = [self._skill(name) for name in self._chosen_by]
        return self.believed(rows), sum(skills) / len(skills)

    def believed(self, rows: Sequence[int]) -> Belief:
        """Return the belief that prompts are chosen by.

        Under normalize_then_sum its variance is the variance of a weighted sum of independent rewards.
        """
        parts = [self._of(name, rows) for name in self._chosen_by]
        if self._chosen_by in ([TOTAL], [self._fallback]):
            return parts[0]
        weights = [float(self._weights[self._names.index(name)]) for name in self._chosen_by]
        means, variances = (torch.stack([getattr(part, name) for part in parts]) for name in ("mean", "variance"))
        by = torch.tensor(weights, dtype=torch.float64).unsqueeze(1)
        return Belief((by * means).sum(dim=0), (by**2 * variances).sum(dim=0), parts[0].count)

    def observe(self, rows: Sequence[int], rewards: Tensor, affordable: float = math.inf) -> None:
        """Learn from a generation batch, P rows and their `(P, G, K)` rewards, and end the step.

        Collective with a head. In the next step the head may read `affordable` prompts.
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
        """Return the metrics `beliefs/*` of the first quantity that prompts are chosen by."""
        name = self._chosen_by[0]
        values = self._beliefs[name].metrics()
        if name in self._heads:
            values["beliefs/head_skill"] = self._heads[name].skill
        if self._known is not None:
            values |= self._known.metrics()
        return values

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint: what was learned, and the rewards, limits and rows that it is about."""
        learned = {kind: {name: part.state_dict() for name, part in of.items()} for kind, of in self._parts.items()}
        return {**learned, "about": self._about, "rows": self._prints}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a checkpoint's state. Raises ValueError if the checkpoint is about other data or rewards."""
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
        if self._known is None or head is None or head.skill <= 0:  # the head predicts nothing
            return belief
        known = torch.tensor([row in self._known for row in rows], dtype=torch.bool)
        foretold = self._beliefs[name].of(rows, *head.predict(self._known.of(rows)), HEAD_STRENGTH)
        columns = ("mean", "variance", "count")
        return Belief(*(torch.where(known, getattr(foretold, name), getattr(belief, name)) for name in columns))

    def _column(self, name: str, rewards: Tensor) -> Tensor:
        """Return the rewards `(P, G)` of a quantity."""
        if name not in (TOTAL, self._fallback):
            return rewards[..., self._names.index(name)]
        summed = totals(rewards.flatten(0, 1), self._weights).view(rewards.shape[:2])
        return summed if name == TOTAL else metric_or_total(rewards[..., self._names.index(self.promise_of)], summed)


def _told_apart(names: Sequence[str]) -> list[str]:
    """Return distinct names: two rewards may have the same name, and a reward may be named "total"."""
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
    """Return a value as a key. Rows with equal keys share a prior.

    A key must be a plain value, because checkpoints hold the keys of a stream.
    """
    key = dataset_rows.plain(value)
    if type(key) not in dataset_rows.PLAIN:
        raise ConfigError(
            f"belief_key={name!r} holds {type(key).__name__} values, which are no keys: {key!r:.80}. A key is a "
            "text, a number or a boolean; rows without one (None, NaN) share a key. Name another column, or one that "
            "you make of this."
        )
    return key
