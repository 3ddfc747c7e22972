"""The choice of the prompts that a run samples, and the reward estimates for them."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from accelerate.logging import get_logger
from accelerate.utils import broadcast_object_list, gather_object
from torch import Tensor

from ..curriculum import selection
from ..curriculum.belief_store import TOTAL, BeliefStore
from ..curriculum.draw import Draw
from ..curriculum.indexed_dataset import IndexedRows
from ..curriculum.prompt_states import MOST_TOKENS
from ..curriculum.samplers import LearnabilitySampler, PromptSampler
from ..curriculum.streaming_sampler import StreamingSampler
from ..rollouts.groups import totals
from ..utils import dataset_rows
from ..utils.distributed import raise_on_all_ranks
from ..utils.validation import ConfigError
from .batch import Batch


if TYPE_CHECKING:
    from accelerate import Accelerator

    from ..config import GRPOPlusConfig


logger = get_logger(__name__)

FAR = 0.01  # share of the first batch's rewards that may be further outside of the range than the range is wide


class PromptSource:
    """The source of a run's training prompts, with their reward estimates.

    Args:
        config ([`GRPOPlusConfig`]): the configuration.
        train_set ([`~datasets.Dataset`] or [`~datasets.IterableDataset`]): the training set.
        names (`Sequence[str]`), weights (`Sequence[float]`): names and weights of the rewards.
        accelerator (`Accelerator`): the run's.
        states (`Callable`): maps row indices to the policy's states at the ends of their prompts. Collective.

    Attributes:
        train_set: the training set.
        memory ([`~trl_grpo_plus.curriculum.belief_store.BeliefStore`], *optional*): the beliefs, if any option
            needs them.
        draw ([`~trl_grpo_plus.curriculum.draw.Draw`], *optional*): selects rows, if prompts are drawn beyond
            TRL's sampler.
        window ([`~trl_grpo_plus.curriculum.streaming_sampler.StreamingSampler`], *optional*): the
            rows that indices count, with beliefs on a stream.
        rollouts (`int`): attempts sampled since the run began, on all ranks and in all rounds.
    """

    def __init__(
        self,
        config: "GRPOPlusConfig",
        train_set: Any,
        names: Sequence[str],
        weights: Sequence[float],
        accelerator: "Accelerator",
        states: Callable[[list[int]], Tensor],
    ):
        self._config, self._accelerator, self._weights = config, accelerator, torch.tensor(weights)
        self.train_set = train_set
        self.memory: BeliefStore | None = None
        self.draw: Draw | None = None
        self.window: StreamingSampler | None = None
        self._stream: PromptSampler | None = None
        self.rollouts = 0
        # A fingerprint of the rows. `None`: the data is a stream, or the memory has the fingerprint.
        self._rows: dict[str, Any] | None = None
        if not config.what_believes and hasattr(train_set, "__len__"):
            self._rows = dataset_rows.fingerprint(train_set, ("prompt",))
        if config.what_believes:
            selection.check_stream(train_set, config)
            if not hasattr(train_set, "__len__"):
                self.window = StreamingSampler(train_set, config.seed, config.shuffle_dataset)
                if config.chooses_prompts and not (config.belief_key or config.belief_head or config.belief_id):
                    logger.warning(
                        "prompt_selection='belief' cannot tell a stream's rows apart, so it samples them at random. "
                        "Set belief_key, belief_head or, if the stream's rows come again, belief_id."
                    )
            self.memory = BeliefStore(config, train_set, names, weights, states if config.belief_head else None)
        if config.draws_prompts:
            self._stream = self.window or selection.make_sampler(train_set, config)
            believe = self.memory.candidate_beliefs if self.memory else None
            self.draw = Draw(self._stream, believe, bool(config.belief_head), accelerator.process_index)

    def dealt_from(self, train_set: Any) -> Any:
        """Return the dataset that TRL deals rows from.

        Rows of a stream have no index. If the run reads ahead and replaces rows, the stream repeats for ever, because
        TRL begins at the stream's start when a run is resumed after the stream's end.
        """
        if self.window is None:
            return IndexedRows(train_set)
        return train_set.repeat(None) if self._config.chooses_prompts else train_set

    def begin(self, batch: Batch, read: Callable[[list[int]], list[dict[str, Any]]]) -> None:
        """Begin a batch of the training set. Collective.

        With prompt selection, `read` reads the rows that replace the batch's own. With beliefs, the batch learns which
        rows it holds.
        """
        count = len(batch.inputs) * self._accelerator.num_processes // batch.size
        if self.window is not None:
            self._begin_streamed(self.window, batch, count)
        if self._config.chooses_prompts:
            assert self.draw is not None
            drawn = self.draw(count, lambda row: True, 1, None)
            if len(drawn) != count:
                raise ConfigError(
                    f"prompt_selection={self._config.prompt_selection!r} dealt the rows {drawn}, but a batch needs "
                    f"{count} distinct rows. Let its `take` return as many rows as `count` says."
                )
            mine = batch.partition.for_own_rows(drawn)
            batch.inputs[:], batch.input_indices[:], batch.row_indices = read(mine), mine, tuple(drawn)
        elif self.window is not None:
            batch.row_indices = tuple(range(count))
        elif self.memory is not None:
            indices = [-1 if index is None else index for index in batch.input_indices]
            indices = self._accelerator.gather(torch.tensor(indices, device=self._accelerator.device)).tolist()
            batch.row_indices = tuple(indices[:: batch.size])
            if min(batch.row_indices) < 0:
                raise ConfigError(
                    f"{self._config.what_believes} remembers rows by their index in the training set, but the rows of "
                    "this batch have no index, because they come from another dataloader than the trainer's. Use "
                    f"the trainer's dataloader, or leave out {self._config.what_believes}."
                )
        if self.memory is not None:
            self.memory.read_states(batch.row_indices)

    def _begin_streamed(self, window: StreamingSampler, batch: Batch, count: int) -> None:
        """Set the rows of a stream that a batch can use: rows read ahead, or the rows that TRL dealt. Collective."""
        if self._config.chooses_prompts:
            with raise_on_all_ranks():  # each process reads the stream by itself
                window.read_window(self._config.selection_pool * count, count)
            if len(set(gather_object([window.digest]))) > 1:
                raise ConfigError(
                    f"{self._config.what_believes}: the processes read different rows of the stream. Give each "
                    "process the whole stream, in the same order."
                )
        else:  # gather the columns that beliefs read, from the rows of all ranks
            columns = (self._config.belief_key, self._config.belief_id, self._config.belief_head and "prompt")
            needed = [name for name in columns if name]
            dealt = gather_object([{name: row.get(name) for name in needed} for row in batch.inputs])
            window.rows = dealt[:: batch.size]
        assert self.memory is not None
        batch.streamed = True
        self.memory.show(window.rows)

    def group_batch_fields(self, batch: Batch) -> dict[str, Any]:
        """Return the fields about beliefs of a [`~trl_grpo_plus.objective.group_batch.GroupBatch`]. Collective."""
        centred = self._config.advantage_baseline == "belief"
        if self.memory is None or not (centred or self._config.estimates_advantages):
            return {}
        rows = [one.row_indices[group] for one, group in batch.live]
        fields: dict[str, Any] = {"beliefs": tuple(self.memory.credited(rows))}
        if centred:
            alive = [one.verdicts[group] not in one.dead for one, group in batch.live]
            fields["teaching"] = torch.tensor(alive, dtype=torch.bool)
        return fields

    def believed(self, batch: Batch) -> list[dict[str, Any]]:
        """Return the belief of each group's prompt, over all rounds, for the traces."""
        rows = [row for one_round in batch.rounds for row in one_round.row_indices]
        if self.memory is None or not rows:
            return []
        belief, of = self.memory.believed(rows), self.memory.believed_quantity
        named = {} if of == TOTAL else {"of": of}
        columns = {"mean": belief.mean, "std": belief.variance.sqrt(), "attempts": belief.count}
        rounded = zip(*(column.round(decimals=4).tolist() for column in columns.values()), strict=True)
        return [{**dict(zip(columns, values, strict=True)), **named} for values in rounded]

    def remember(self, batch: Batch) -> dict[str, float]:
        """Update the beliefs with the sampled rewards, and return metrics. Collective.

        Call it after the advantages are computed and before the policy moves.
        """
        rows = [row for one_round in batch.rounds for row in one_round.row_indices]
        rewards = batch.sampled.unflatten(0, (-1, batch.size))
        if not self.rollouts and self._config.advantage_baseline == "belief":
            self._warn_of_range(totals(rewards, self._weights))
        self.rollouts += len(batch.sampled)
        metrics: dict[str, float] = {}
        if self.memory is not None:
            affordable = math.inf
            if self._config.belief_head and (share := self._config.belief_head_share):
                affordable = affordable_by(batch, share, self._accelerator)
            self.memory.observe(rows, rewards, affordable)
            metrics |= self.memory.metrics()
        if self._config.chooses_prompts:
            assert self.draw is not None
            verdicts = [verdict for one in batch.rounds for verdict in one.verdicts]
            metrics |= self.draw.observe(rows, totals(rewards, self._weights), verdicts)
        return metrics

    def _warn_of_range(self, rewards: Tensor) -> None:
        """Warn if the first batch's rewards lie far outside of the range with which beliefs begin."""
        low, high = self._config.failed_reward, self._config.solved_reward
        found = rewards[rewards.isfinite()]
        far = (found < 2 * low - high) | (found > 2 * high - low)
        if far.float().mean() > FAR:
            logger.warning(
                f"Rewards of the first batch go from {found.min():g} to {found.max():g}. Beliefs begin with the range "
                f"from failed_reward={low:g} to solved_reward={high:g}, so the baseline and the scale of the first "
                "step are far off. Set failed_reward and solved_reward to the rewards of failed and solved attempts."
            )

    def follow(self, before: "PromptSource") -> None:
        """Go on after a training on another training set in the same process. Collective.

        Rows keep their beliefs if both sets hold the same rows, or if `belief_id` finds them in both.
        """
        self.rollouts = before.rollouts
        if self.memory is None or before.memory is None or not before.rollouts:
            return
        streamed = self.window is not None or before.window is not None
        if not streamed and (self._config.belief_id or self.memory.has_rows_of(before.memory)):
            self.load_state_dict({**before.state_dict(), "buffered_inputs": None})
            return
        logger.warning(
            "train_dataset has changed since the last train(), so the beliefs about prompts are reset. To keep the "
            "beliefs about prompts that are in both datasets, set belief_id (not for streamed data)."
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint. The first rank's state is valid for all ranks."""
        state = {"prompt_selection": self._config.prompt_selection, "rollouts": self.rollouts, "rows": self._rows}
        if self._accelerator.process_index:
            return {"stream": None, "memory": None, **state}
        visited = self._stream.visited_rows if isinstance(self._stream, LearnabilitySampler) else None
        stream = None if self._stream is None else self._stream.state_dict()
        return {"stream": stream, "memory": self.memory and self.memory.state_dict(visited), **state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of a checkpoint. Collective."""
        # Refuse on every rank, or the others would wait. The memory loads first, since it knows a stream.
        names = ("stream", "memory", "prompt_selection", "rollouts", "rows")
        in_batch = state["buffered_inputs"] is not None
        saved = broadcast_object_list([{"in_batch": in_batch, **{name: state[name] for name in names}}])[0]
        self.rollouts = saved["rollouts"]
        if self.memory is not None and saved["memory"] is not None:
            self.memory.load_state_dict(saved["memory"])
        elif self.memory is not None:
            logger.warning(f"The checkpoint holds no beliefs: {self._config.what_believes} starts without any.")
        before, now = saved["prompt_selection"], self._config.prompt_selection
        if self._stream is None and saved["stream"] is not None and before != now:
            logger.warning(
                f"The checkpoint's prompts were dealt by prompt_selection={before!r}. This run has {now!r}: it deals "
                "the training set as TRL does, and forgets what the sampler knew. To go on as before, resume with "
                "the same prompt_selection."
            )
        if self._stream is not None and saved["stream"] is not None:
            if before != now:
                raise ConfigError(
                    f"The checkpoint's prompts were dealt by prompt_selection={before!r}, this run has {now!r}. "
                    "Resume with the same options, or start a new run from the checkpoint's weights."
                )
            moved = self.memory.moved if self.memory else None
            if moved is None:
                self._stream.load_state_dict(saved["stream"])
            elif isinstance(self._stream, LearnabilitySampler):  # the other samplers start afresh
                self._stream.load_state_dict(saved["stream"], moved)
        if saved["rows"] and self._rows and (what := dataset_rows.difference(saved["rows"], self._rows)):
            batch = " Until the next generation, the steps train on the checkpoint's batch, which has the old rows."
            logger.warning(
                "The checkpoint was saved with another training set, or with the same rows in another order: "
                f"{what}.{batch if saved['in_batch'] else ''} To train on the same rows, resume with the same dataset."
            )


def affordable_by(batch: Batch, share: float, accelerator: "Accelerator") -> float:
    """Return how many prompts the head may read for a share of the batch's sampled tokens. Collective.

    The prompts are assumed to be as long as the batch's.
    """
    prompts = [len(attempt.prompt_ids) for one_round in batch.rounds for attempt in one_round.attempts]
    counts = [sum(prompts) + batch.num_tokens, sum(min(length, MOST_TOKENS) for length in prompts), len(prompts)]
    sampled, to_read, attempts = (
        accelerator.gather(torch.tensor([counts], device=accelerator.device)).sum(dim=0).tolist()
    )
    return share * sampled / max(to_read / attempts, 1)
