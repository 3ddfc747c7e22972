"""The memory that a run keeps of its prompts: beliefs about each quantity that advantages or the choice depend on.

Advantages are centred by the total reward, or under normalize_then_sum by each reward with a weight. Prompts are
chosen by the reward that `filter_metric` names, and by the total of a group to which this reward does not apply, as in
the verdicts. There is one belief for each of these quantities. A head ([`trl_grpo_plus.curriculum.belief_head`]) may
replace the prior that rows share.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from accelerate.logging import get_logger
from torch import Tensor

from ..rollouts.groups import metric_or_total, totals
from ..utils import dataset_rows
from ..utils.dataset_rows import Codes, encoded
from ..utils.text import distinct
from ..utils.validation import ConfigError, did_you_mean
from .belief_head import Ridge
from .beliefs import Belief, Beliefs
from .row_ids import RowIds, StreamIds, as_id, packed_ids, unpacked_ids
from .row_table import saved_rows
from .state_cache import StateCache, States


logger = get_logger(__name__)

TOTAL = "total"
HEAD_STRENGTH = 4.0  # a head's prediction counts as this number of attempts
_WAYS_ON = (
    "Resume with the same dataset, rewards and options; or start a new run from the checkpoint's weights; or remove "
    "the checkpoint's grpo_plus_state_*.pt files, and the run continues with new beliefs."
)


class BeliefOptions(Protocol):
    """The options of [`GRPOPlusConfig`] that beliefs depend on."""

    belief_key: str | None
    belief_id: str | None
    belief_head_share: float | None
    filter_metric: str
    multi_objective_aggregation: str
    failed_reward: float
    solved_reward: float
    remove_unused_columns: bool | None
    seed: int

    @property
    def chooses_prompts(self) -> bool:
        """Whether a sampler other than TRL's chooses the prompts."""

    @property
    def draws_prompts(self) -> bool:
        """Whether rows are drawn beyond those that TRL's sampler deals."""

    @property
    def what_believes(self) -> str:
        """The options that need beliefs, as a user would write them."""


class BeliefStore:
    """The beliefs of one run, the same on every rank.

    Args:
        config ([`GRPOPlusConfig`]): of the run.
        train_set ([`~datasets.Dataset`] or [`~datasets.IterableDataset`]): the training set. Each batch of a stream
            has rows of its own, which [`show`] sets. Without `belief_id` only the prior that they share is remembered.
        names (`Sequence[str]`), weights (`Sequence[float]`): of the rewards.
        states (`Callable`, *optional*): reads the prompt states for the head. `None`: there is no head. Collective.

    Attributes:
        believed_quantity (`str`): the quantity that [`believed`] is about: a reward's name, or "total".
        moved (`Callable`, *optional*): set by [`load_state_dict`] if the training set has changed. It maps rows of the
            checkpoint's training set to the same rows of this one, -1 for a row that is gone. It knows only the rows
            that the checkpoint holds.

    Raises:
        ConfigError: rows cannot be told apart, or there is no column `belief_key` or `belief_id`.
    """

    def __init__(
        self,
        config: BeliefOptions,
        train_set: Any,
        names: Sequence[str],
        weights: Sequence[float],
        states: States | None = None,
    ):
        check_belief_columns(train_set, config)
        self._weights = torch.tensor(weights)
        self._read_states = states
        self._cache = StateCache(self._states, config.seed, config.belief_head_share is None) if states else None
        names = distinct(names, taken=[TOTAL])  # a reward may be named "total"
        weighted = [name for name, weight in zip(names, weights, strict=True) if weight]
        self._credited = weighted if config.multi_objective_aggregation == "normalize_then_sum" else [TOTAL]
        named = config.filter_metric in names and config.chooses_prompts
        # A separate quantity: if the reward is credited, it has its own belief, which does not use totals.
        self._fallback = f"{config.filter_metric}, else {TOTAL}"
        self._chosen_by = [self._fallback] if named else self._credited
        self.believed_quantity = config.filter_metric if named else TOTAL
        self._names = names
        streamed = not hasattr(train_set, "__len__")
        keys: Codes | tuple[()] | None = None
        if config.belief_key:
            keys = () if streamed else _keys(train_set, config.belief_key)
        self._key = config.belief_key if streamed else None  # read from each row as it comes
        self._ids = RowIds(train_set, config.belief_id) if config.belief_id and not streamed else None
        self._stream_ids = StreamIds(config.belief_id) if config.belief_id and streamed else None
        self.moved: Callable[[Tensor], Tensor] | None = None
        limits = (config.failed_reward, config.solved_reward)
        quantities = dict.fromkeys([*self._credited, *self._chosen_by])
        num_rows = len(train_set) if not streamed else None if self._stream_ids is None else 0
        self._beliefs = {name: Beliefs(num_rows, *limits, keys) for name in quantities}
        self._heads = {name: Ridge(*limits) for name in quantities} if states else {}
        self._about = {
            "rewards": {name: float(weight) for name, weight in zip(names, weights, strict=True) if weight},
            **{name: getattr(config, name) for name in ("failed_reward", "solved_reward", "belief_key")},
        }
        # `None` for a stream.
        self._rows = None if streamed else dataset_rows.fingerprint(train_set, ("prompt", config.belief_key))
        self._id_column, self._draws = config.belief_id, config.draws_prompts

    def show(self, rows: Sequence[dict[str, Any]]) -> None:
        """Set the stream rows that indices refer to from now on."""
        keys = None if self._key is None else [as_key(self._key, row.get(self._key)) for row in rows]
        if self._stream_ids is not None:
            new = self._stream_ids.show(rows)
            for beliefs in self._beliefs.values():
                beliefs.grow(len(new), keys and [keys[index] for index in new])
            return
        if self._cache is not None:
            self._cache.forget()
        if keys is not None:
            for beliefs in self._beliefs.values():
                beliefs.show(keys)

    def read_states(self, rows: Sequence[int]) -> None:
        """Read the policy's states of rows that are about to be sampled, within the budget. Collective with a head."""
        if self._cache is not None:
            self._cache.read_due(self._places(rows))

    def credited(self, rows: Sequence[int]) -> list[Belief]:
        """Return the beliefs that serve as the baseline: about the total, or about each reward with a weight.

        Collective with a head.
        """
        self.read_states(rows)
        places = self._places(rows)
        return [self._of(name, places) for name in self._credited]

    def candidate_beliefs(self, rows: list[int]) -> tuple[Belief, float]:
        """Return [`believed`] of the candidate rows, and the skill of this belief.

        Collective with a head. The head first reads some of the candidates, for half of its budget. The other half is
        kept for the rows that are sampled, because the head learns from those.

        The skill is the larger of the head's skill and the beliefs' skill: a head that has read few rows may predict
        these rows well, while the beliefs about most rows are poor. Too large a skill does no harm to rows about which
        nothing is known. Their beliefs are equal, so that noise decides among them.
        """
        if self._cache is not None:
            self._cache.read_due(self._places(rows), share=1 / 2)
        skills = [self._skill(name) for name in self._chosen_by]
        return self.believed(rows), sum(skills) / len(skills)

    def believed(self, rows: Sequence[int]) -> Belief:
        """Return the belief that prompts are chosen by.

        Under normalize_then_sum its variance is the variance of a weighted sum of independent rewards.
        """
        places = self._places(rows)
        parts = [self._of(name, places) for name in self._chosen_by]
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
        self.read_states(rows)
        places = self._places(rows)
        for name, beliefs in self._beliefs.items():
            column, believed = self._column(name, rewards), self._of(name, places)
            if self._cache is not None:
                self._heads[name].learn(self._cache.of(places), column)
            beliefs.observe(places, column, believed)
        if self._cache is not None:
            self._cache.end_step(places, affordable)

    def metrics(self) -> dict[str, float]:
        """Return the metrics `beliefs/*` of the first quantity that prompts are chosen by."""
        name = self._chosen_by[0]
        values = self._beliefs[name].metrics()
        if name in self._heads:
            values["beliefs/head_skill"] = self._heads[name].skill
        if self._cache is not None:
            values |= self._cache.metrics()
        return values

    def state_dict(self, also: Tensor | None = None) -> dict[str, Any]:
        """Return the state for a checkpoint: what was learned, and the rewards, limits and rows that it is about.

        With `belief_id` it holds the ids of the rows about which something was learned, and of the rows `also`.
        """
        learned = {kind: {name: part.state_dict() for name, part in of.items()} for kind, of in self._parts.items()}
        state: dict[str, Any] = {**learned, "about": self._about, "rows": self._rows, "ids": None}
        if self._stream_ids is not None:
            state["ids"] = {"column": self._id_column, "ids": self._stream_ids.state_dict()}
        if self._ids is not None and self._rows is not None:
            tables = [saved_rows(part["table"]) for part in learned["beliefs"].values()]
            tables += [part["rows"] for part in learned["states"].values()]
            rows = _union([*tables, *([] if also is None else [also])], self._rows["num_rows"])
            state["ids"] = {"column": self._id_column, "rows": rows, "ids": packed_ids(self._ids.of(rows))}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a checkpoint's state.

        With `belief_id` the training set may have other rows, or the same rows in another order.

        Raises:
            ConfigError: the checkpoint is about other rewards or options or, without `belief_id`, about other rows.
        """
        about = state["about"]
        if changed := [name for name, now in self._about.items() if about[name] != now]:
            before, now = (", ".join(f"{name}={of[name]!r}" for name in changed) for of in (about, self._about))
            raise ConfigError(f"The checkpoint's beliefs are about {before}, this run has {now}. {_WAYS_ON}")
        for kind, parts in self._parts.items():
            if set(state[kind]) != set(parts):
                saved, now = (", ".join(names) or "nothing" for names in (state[kind], parts))
                raise ConfigError(f"The checkpoint has {kind} about {saved}, this run about {now}. {_WAYS_ON}")
        self.moved = self._moved(state)
        for kind, parts in self._parts.items():
            for name, part in parts.items():
                if self.moved is None or kind == "heads":
                    part.load_state_dict(state[kind][name])
                else:
                    saved = state[kind][name]
                    rows = saved_rows(saved["table"]) if kind == "beliefs" else saved["rows"]
                    part.load_state_dict(saved, self.moved(rows))
        if self._stream_ids is not None:
            self._stream_ids.load_state_dict(state["ids"]["ids"])

    def has_rows_of(self, other: "BeliefStore") -> bool:
        """Return whether both stores hold beliefs about the same loaded rows, in the same order."""
        return bool(self._rows and other._rows and not dataset_rows.difference(other._rows, self._rows))

    def _moved(self, state: dict[str, Any]) -> Callable[[Tensor], Tensor] | None:
        """Return a function from the checkpoint's rows to rows of this training set; `None` if the sets are equal."""
        column = (state["ids"] or {}).get("column")
        self._check_kind(state["rows"], column)
        if self._rows is None:
            return None
        what = dataset_rows.difference(state["rows"], self._rows)
        if self._ids is None or column != self._id_column:
            if what:
                raise ConfigError(self._other_rows(what, column))
            return None
        rows, ids = state["ids"]["rows"], unpacked_ids(state["ids"]["ids"])
        if not what and self._ids.of(rows) == ids:  # much faster than looking them up
            return None
        found = self._ids.rows_of(ids)
        if not what and torch.equal(rows, found):
            return None
        order = " The prompts come in a new order." if self._draws else ""
        logger.warning(
            f"The training set has changed. belief_id found {int((found >= 0).sum()):,} of the {len(found):,} "
            f"remembered prompts. They keep their beliefs and rests.{order}"
        )
        return lambda saved: found[torch.searchsorted(rows, saved)]

    def _check_kind(self, before: Any, column: str | None) -> None:
        """Refuse a stream's beliefs for loaded rows, the reverse, and those of a stream with another `belief_id`."""
        if (before is None) != (self._rows is None):
            saved, now = ("a stream" if rows is None else "a loaded dataset" for rows in (before, self._rows))
            raise ConfigError(
                f"The checkpoint's beliefs are about {saved}, this run's training set is {now}. {_WAYS_ON}"
            )
        if self._rows is None and column != self._id_column:
            raise ConfigError(
                f"The checkpoint's beliefs are about belief_id={column!r}, this run has "
                f"belief_id={self._id_column!r}. {_WAYS_ON}"
            )

    def _other_rows(self, what: str, column: str | None) -> str:
        hint = "To find prompts again in a changed training set, a run must set belief_id from its start."
        if self._ids is not None:
            hint = f"The checkpoint has belief_id={column!r}, so belief_id={self._id_column!r} finds no prompt in it."
        other = f"The checkpoint's beliefs are about other rows, or about the same rows in another order: {what}."
        return f"{other} {hint} {_WAYS_ON}"

    def _places(self, rows: Sequence[int]) -> Sequence[int]:
        """Return the rows' places in the tables of beliefs and states."""
        return rows if self._stream_ids is None else self._stream_ids.places(rows)

    def _states(self, places: list[int]) -> Tensor:
        """Read the states of rows by their places. Collective."""
        assert self._read_states is not None
        return self._read_states(places if self._stream_ids is None else self._stream_ids.indices(places))

    @property
    def _parts(self) -> dict[str, dict[str, Any]]:
        states = {} if self._cache is None else {"prompts": self._cache}
        return {"beliefs": self._beliefs, "heads": self._heads, "states": states}

    def _skill(self, name: str) -> float:
        skill = self._beliefs[name].skill
        return max(skill, self._heads[name].skill) if name in self._heads else skill

    def _of(self, name: str, rows: Sequence[int]) -> Belief:
        head, belief = self._heads.get(name), self._beliefs[name].of(rows)
        if self._cache is None or head is None or head.skill <= 0:  # the head predicts nothing
            return belief
        has_state = torch.tensor([row in self._cache for row in rows], dtype=torch.bool)
        foretold = self._beliefs[name].of(rows, *head.predict(self._cache.of(rows)), HEAD_STRENGTH)
        columns = ("mean", "variance", "count")
        return Belief(*(torch.where(has_state, getattr(foretold, name), getattr(belief, name)) for name in columns))

    def _column(self, name: str, rewards: Tensor) -> Tensor:
        """Return the rewards `(P, G)` of a quantity."""
        if name not in (TOTAL, self._fallback):
            return rewards[..., self._names.index(name)]
        summed = totals(rewards, self._weights)
        if name == TOTAL:
            return summed
        return metric_or_total(rewards[..., self._names.index(self.believed_quantity)], summed)


def _union(parts: Iterable[Tensor], num_rows: int) -> Tensor:
    """Return the rows that are in any part, in ascending order. `torch.unique` would sort them."""
    present = torch.zeros(num_rows, dtype=torch.bool)
    for rows in parts:
        present[rows] = True
    return present.nonzero().squeeze(1)


def _keys(train_set: Any, name: str) -> Codes:
    """Return the keys of a map-style training set's rows."""
    stored = dataset_rows.encoded_column(train_set, name)
    return stored or encoded([as_key(name, value) for value in dataset_rows.column(train_set, name)])


def check_belief_columns(train_set: Any, config: BeliefOptions) -> None:
    """Check that `belief_key` and `belief_id` are columns, and that a stream's rows keep all of their columns."""
    streamed = not hasattr(train_set, "__len__")
    if streamed and config.remove_unused_columns:
        raise ConfigError(
            f"remove_unused_columns=True does not go with {config.what_believes} on a stream: its rows must keep all "
            "their columns. Set remove_unused_columns=False, which is TRL's default."
        )
    rows = train_set if streamed else dataset_rows.unformatted(train_set)
    named = {name: getattr(config, name) for name in ("belief_key", "belief_id") if getattr(config, name)}
    first = next(iter(rows), None) if streamed or named else None
    if streamed and first is None:
        raise ConfigError("the stream has no rows. Check the source that it reads.")
    columns = getattr(train_set, "column_names", None) or list(first or ())
    for option, column in named.items():
        if column not in columns:
            raise ConfigError(
                f"{option}={column!r} is no column of the training set, which has "
                f"{', '.join(map(repr, columns)) or 'none'}.{did_you_mean(column, columns)}"
            )
    if config.belief_key and first is not None:
        as_key(config.belief_key, first.get(config.belief_key))
    if config.belief_id and first is not None:
        as_id(config.belief_id, first.get(config.belief_id), "the first row")
        if not streamed:
            RowIds(train_set, config.belief_id).check()


def as_key(name: str, value: Any) -> Any:
    """Return a value as a key. Rows with equal keys share a prior.

    A key must be a plain value, because checkpoints hold the keys of a stream.
    """
    key = dataset_rows.plain(value)
    if type(key) not in dataset_rows.PLAIN:
        raise ConfigError(
            f"belief_key={name!r} holds {type(key).__name__} values, which are no keys: {key!r:.80}. A key is a "
            "text, a number or a boolean. All rows without a key (None, NaN) share one. Name another column, or make "
            "a column of keys from this one."
        )
    return key
