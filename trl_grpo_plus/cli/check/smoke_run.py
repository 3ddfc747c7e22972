"""Two steps of a recipe on a tiny model of the same architecture: `trl-grpo-plus check RECIPE --smoke` launches this.

A random model earns no rewards. Gold answers of the rewards are therefore planted as some attempts of some groups.
Groups are then alive, solved and failed by turns, so that the filter, the advantages and the gradient are exercised.
Everything else is the recipe's own: rewards, filter, KL, adapter, traces. The result is written to
`<output_dir>/smoke.json`.
"""

import json
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from ... import GRPOPlusTrainer
from ...launch.train import main, run
from ...scoring import Reward, same_score
from ...utils.validation import ConfigError
from . import hub
from .rewards import gold_text, outcomes, row_values
from .smoke import ERROR, REPORT
from .smoke_options import upload_no_completions
from .tiny_model import write


MOST_ROWS, EVAL_ROWS = 64, 2
LONGEST_GOLD = 4096  # tokens


class SmokeTrainer(GRPOPlusTrainer):
    """A trainer that plants gold answers among the attempts, and writes a report at the end."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._rows: list[dict[str, Any]] = []  # rows whose completions are generated
        self.planted = 0
        self.verdicts: Counter[str] = Counter()
        self.trained = 0
        self.add_callback(_Watch(self))

    def gold_of(self, row: dict[str, Any]) -> str | None:
        """Return a gold completion from the reward with the highest weight that can make one.

        If none can, try the gold completion of each monitor and the bare value of the row's `answer`. Return the first
        that earns full marks from a weighted reward which does not give full marks to an empty completion, or `None`.
        """
        weighed = sorted(zip(self.reward_funcs, self.reward_weights.tolist(), strict=True), key=lambda pair: -pair[1])
        paid = [reward for reward, weight in weighed if weight > 0 and isinstance(reward, Reward)]
        if (gold := next(_golds(paid, row), None)) is not None:
            return gold
        monitors = [reward for reward, weight in weighed if weight == 0 and isinstance(reward, Reward)]
        answer = row.get("answer")
        others = [*_golds(monitors, row), *([str(answer)] if isinstance(answer, str | int | float) else [])]
        telling = [reward for reward in paid if others and not _full_marks(reward, row, "")]
        return next((text for reward in telling for text in others if _full_marks(reward, row, text)), None)

    def _sample(self, inputs: list[dict[str, Any]], prompts: list[Any]) -> Any:
        self._rows = inputs
        return super()._sample(inputs, prompts)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._rows = inputs
        return super()._generate_and_score_completions(inputs)

    def _generate_single_turn(self, prompt_ids: list[Any], *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        completion_ids, *rest = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        if self.model.training and len(self._rows) == len(completion_ids):
            first = self.accelerator.process_index * len(completion_ids)
            golds: dict[int, str | None] = {}  # one for each group, since finding a gold answer may call the rewards
            for i, row in enumerate(self._rows):
                group, attempt = divmod(first + i, self.num_generations)
                if is_planted(group, attempt):
                    if group not in golds:
                        golds[group] = self.gold_of(row)
                    completion_ids[i] = self._planted(golds[group], completion_ids[i])
        return completion_ids, *rest

    def _planted(self, gold: str | None, otherwise: list[int]) -> list[int]:
        ids = [] if gold is None else self._tokenizer(gold, add_special_tokens=False)["input_ids"]
        if not 0 < len(ids) <= LONGEST_GOLD:
            return otherwise
        self.planted += 1
        return [*ids, self._tokenizer.eos_token_id]

    def _log_batch(self, output: dict[str, Any]) -> None:
        super()._log_batch(output)
        self.verdicts.update(verdict for sampled in self._batch.rounds for verdict in sampled.verdicts)
        self.trained += sum(self._batch.plan.live)


def _golds(rewards: Iterable[Reward], row: dict[str, Any]) -> Iterator[str]:
    """Yield the gold completions that rewards make for a row."""
    for reward in rewards:
        if reward.definition.gold is None or (values := _values(reward, row)) is None:
            continue
        if (gold := gold_text(reward, values)) is not None:
            yield gold


def _values(reward: Reward, row: dict[str, Any]) -> dict[str, Any] | None:
    """Return the values that a reward reads from a row; `None` if the row lacks one that the reward needs."""
    values = row_values(reward, row)
    return None if any(values[name] is None for name in reward.definition.needed) else values


def _full_marks(reward: Reward, row: dict[str, Any], text: str) -> bool:
    """Return whether a completion earns full marks."""
    values = _values(reward, row)
    return values is not None and same_score(outcomes(reward, [(values, text)])[0].score, reward.definition.full_marks)


def is_planted(group: int, attempt: int) -> bool:
    """Return `True` if a gold answer replaces an attempt.

    This is every other attempt of the first group, all of the second, none of the third, and so on.
    """
    return (attempt % 2 == 0, True, False)[group % 3]


class _Watch(TrainerCallback):
    """A callback that compares the weights before and after training, and writes the report."""

    def __init__(self, trainer: SmokeTrainer):
        self._trainer = trainer
        self._before: dict[str, torch.Tensor] = {}
        self._began = 0.0

    def _weights(self) -> dict[str, torch.Tensor]:
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        return {name: weight.detach().clone() for name, weight in model.named_parameters() if weight.requires_grad}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keep the weights before training, and the time."""
        self._began = time.monotonic()
        self._before = self._weights()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the report of the steps."""
        trainer = self._trainer
        planted = trainer.accelerator.reduce(torch.tensor(trainer.planted), reduction="sum").item()
        moved = max((after - self._before[name]).abs().max().item() for name, after in self._weights().items())
        report = {
            "steps": state.global_step,
            "seconds": time.monotonic() - self._began,
            "model": trainer.model.config.model_type,
            "verdicts": dict(trainer.verdicts),
            "attempts": trainer.verdicts.total() * trainer.num_generations,
            "trained": trainer.trained,
            "planted": planted,
            "moved": moved,
            "gradients": [entry["grad_norm"] for entry in state.log_history if "grad_norm" in entry],
        }
        if trainer.accelerator.is_main_process:
            Path(args.output_dir, REPORT).write_text(json.dumps(report))


def load(script_args: Any, training_args: Any, model_args: Any, dataset_args: Any) -> Any:
    """Return a few rows of the recipe's data, and replace the model by a tiny one.

    `model_args.model_name_or_path` is set to the tiny model, which the main process makes.
    """
    splits = hub.needed_data(script_args, training_args, model_args, dataset_args)
    name, options = model_args.model_name_or_path, (model_args.model_revision, training_args.trust_remote_code)
    model_args.model_name_or_path, model_args.model_revision = str(Path(training_args.output_dir, "tiny")), "main"
    if training_args.process_index == 0:
        write(tiny_config(name, *options), hub.tokenizer(name, *options).what, model_args.model_name_or_path)
    if splits is None:  # the environment makes the prompts
        return None
    train = script_args.dataset_train_split
    return type(splits)(
        {split: _some(rows, MOST_ROWS if split == train else EVAL_ROWS) for split, rows in splits.items()}
    )


def tiny_config(name: str, revision: str | None, trust_remote_code: bool) -> Any:
    """Return the config to shrink: the model's own, or else a Llama's."""
    from transformers import LlamaConfig

    loaded = hub.model_config(name, revision, trust_remote_code)
    return loaded.what if loaded else LlamaConfig()


def _some(rows: Any, most: int) -> Any:
    """Return at most `most` rows, spread over the dataset, so that all parts of a mixture are among them."""
    if not hasattr(rows, "__len__"):
        return rows.take(most)
    return rows.select(range(0, len(rows), max(1, -(-len(rows) // most))))


def _main(script_args: Any, training_args: Any, model_args: Any, dataset_args: Any) -> int:
    folder = training_args.output_dir
    upload_no_completions(training_args)
    try:
        return main(script_args, training_args, model_args, dataset_args, SmokeTrainer, load)
    except (Exception, SystemExit) as error:
        os.makedirs(folder, exist_ok=True)
        text = str(error) if isinstance(error, ConfigError) else "".join(traceback.format_exception_only(error))
        Path(folder, ERROR).write_text(text.strip(), encoding="utf-8", errors="backslashreplace")
        raise


if __name__ == "__main__":
    sys.exit(run(_main, "trl_grpo_plus.cli.check.smoke_run"))
