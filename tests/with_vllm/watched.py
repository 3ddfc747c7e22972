"""A trainer with vLLM that records each batch: what the engine was asked, what it returned, and what is trained on."""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from accelerate import PartialState
from transformers import Qwen2ForCausalLM

from trl_grpo_plus import GRPOPlusConfig, GRPOPlusTrainer


SIZE = 4  # attempts in a group
BASE = {
    **tiny_models.BASE,
    "use_vllm": True,
    "vllm_mode": "colocate",
    "num_generations": SIZE,
    "per_device_train_batch_size": 4 * SIZE,
    "learning_rate": 0.02,
    "lr_scheduler_type": "constant",
}
RESAMPLE = {"zero_variance_groups": "resample", "max_resample_rounds": 4}


def model_path(folder: Path) -> str:
    """Save a model as `tiny_models.model_path` does, but as large as vLLM's attention needs, and with a tokenizer."""
    path = str(folder / "model")
    if PartialState().is_main_process and not Path(path).exists():
        torch.manual_seed(0)
        config = tiny_models.qwen2(hidden_size=64, intermediate_size=64, initializer_range=0.2)
        Qwen2ForCausalLM(config).save_pretrained(path)
        tiny_models.tokenizer().save_pretrained(path)
    PartialState().wait_for_everyone()
    return path


def score(completion: str, number: int, place: int) -> float:
    """Return 0.3 for two prompts in three, for the others the share of digits plus 0.01 per place in the group."""
    return 0.3 if number % 3 else tiny_models.digits([completion])[0] + 0.01 * place


def reward(completions: list[str], number: list[int], **kwargs: Any) -> list[float]:
    """Return the `score` of each completion."""
    first = PartialState().process_index * len(completions)
    return [score(text, n, (first + i) % SIZE) for i, (text, n) in enumerate(zip(completions, number, strict=True))]


class Watched(GRPOPlusTrainer):
    """A trainer that records each batch in `batches`, as plain data:

    asked    number of this rank's rows in each call of the engine
    syncs    how often the weights were sent to the engine
    rows     this rank's rows that are trained on. Each has the `ids` of prompt and completion, and both as text;
             whether it `moved` here from another rank; the dataset row's prompt (`given`) and `number`; its
             `advantage`; the importance sampling `ratio`, for each token or one for all; and log-probs of the tokens:
             `sampled` are the engine's, and Hugging Face's are those with the weights `now`, `before` the last
             training step, and at `first`
    training whether the batch is of training, not of an evaluation
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.batches: list[dict[str, Any]] = []
        self._weights: tuple[Any, ...] = ()  # the first weights, and those at the last batch

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        now = tiny_models.weights(self)
        first, before = self._weights or (now, now)
        self._weights = (first, now)
        with _calls(self.vllm_generation) as (generated, syncs):
            output = super()._generate_and_score_completions(inputs)
        weights = {"now": now, "before": before, "first": first}
        model = self.accelerator.unwrap_model(self.model)
        rows = [_row(row, i, output, model, weights) for i, row in enumerate(inputs)]
        here = [ids for call in generated for ids in call]
        rows = [{**row, "moved": row["ids"] not in here} for row in rows]
        batch = {"asked": [len(call) for call in generated], "syncs": len(syncs), "rows": rows}
        self.batches.append({**batch, "training": self.model.training})
        return output


@contextmanager
def _calls(engine: Any) -> Iterator[tuple[list[list[tuple]], list[None]]]:
    generated: list[list[tuple]] = []
    syncs: list[None] = []
    generate, sync_weights = engine.generate, engine.sync_weights

    def generating(prompts: list, *args: Any, **kwargs: Any) -> Any:
        output = generate(prompts, *args, **kwargs)
        generated.append([(list(p), list(c)) for p, c in zip(prompts, output[1], strict=True)])
        return output

    def syncing() -> None:
        syncs.append(None)
        sync_weights()

    engine.generate, engine.sync_weights = generating, syncing
    try:
        yield generated, syncs
    finally:
        engine.generate, engine.sync_weights = generate, sync_weights


def _row(row: dict[str, Any], i: int, output: dict[str, Any], model: Any, weights: dict[str, Any]) -> dict[str, Any]:
    seen = output["completion_mask"][i].bool()
    prompt_ids = output["prompt_ids"][i][output["prompt_mask"][i].bool()].tolist()
    completion_ids = output["completion_ids"][i][seen].tolist()
    tokenizer = tiny_models.tokenizer()
    ratio = output.get("importance_sampling_ratio", torch.ones(len(output["advantages"]), 1))
    return {
        "ids": (prompt_ids, completion_ids),
        "prompt": tokenizer.decode(prompt_ids),
        "completion": tokenizer.decode(completion_ids, skip_special_tokens=True),
        "given": row["prompt"],
        "number": row["number"],
        "advantage": output["advantages"][i].tolist(),
        "sampled": output["sampling_per_token_logps"][i][seen].tolist(),
        "ratio": (ratio[i][seen] if ratio.shape == output["completion_ids"].shape else ratio[i]).tolist(),
        **{when: logps(model, values, prompt_ids, completion_ids) for when, values in weights.items()},
    }


def logps(model: Any, weights: dict[str, Any], prompt_ids: list[int], completion_ids: list[int]) -> list[float]:
    """Return the log-prob of each token of a completion, computed alone and without padding, as a safe reference."""
    ids = torch.tensor([[*prompt_ids, *completion_ids]])
    with torch.no_grad():
        logits = torch.func.functional_call(model, weights, kwargs={"input_ids": ids}).logits
    logits = logits[0, len(prompt_ids) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(completion_ids)[:, None])[:, 0].tolist()


def trainer(folder: Path, **options: Any) -> Watched:
    """Make a trainer on 30 prompts. `options` go to its config, except `extra` (more of its arguments) and `data`."""
    arguments = {**BASE, "output_dir": str(folder / "run"), **options}
    extra, data = arguments.pop("extra", {}), arguments.pop("data", None)
    return Watched(
        model=model_path(folder),
        reward_funcs=reward,
        args=GRPOPlusConfig(**arguments),
        train_dataset=tiny_models.prompts(30) if data is None else data,
        **{"processing_class": tiny_models.tokenizer(), **extra},
    )


def trained(folder: Path, **options: Any) -> Watched:
    """Make a `trainer` and train it."""
    made = trainer(folder, **options)
    made.train()
    return made


def groups(rows: Sequence[dict[str, Any]]) -> list[Sequence[dict[str, Any]]]:
    """Split the rows of all ranks into groups."""
    return [rows[start : start + SIZE] for start in range(0, len(rows), SIZE)]


def rewards_of(group: Sequence[dict[str, Any]]) -> list[float]:
    """Return the reward of each row, computed from its own completion."""
    return [score(row["completion"], row["number"], place) for place, row in enumerate(group)]


def check_batches(batches: Sequence[dict[str, Any]], advantages: bool = True) -> None:
    """Assert that each batch is whole, and was sampled from the weights after the step before it.

    The `rows` of a batch must be those of all ranks. `advantages` says whether advantages follow from rewards alone.
    """
    assert len(batches) > 1
    for batch in batches:
        check_rows(batch["rows"])
        check_ratios(batch["rows"])
        if advantages:
            check_advantages(batch["rows"])
    for batch in batches[1:]:
        assert apart(batch["rows"], batch["rows"], "before") > 0.1
    # Mixed-up rows would be noticed in at least one batch. (A single batch may by chance hold only equal attempts.)
    assert max(apart(rows, [*rows[1:], rows[0]]) for rows in (batch["rows"] for batch in batches)) > 0.3


def check_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Assert that in each row of a batch prompt, completion, dataset row and log-probs belong to the same attempt.

    The attempt must have been sampled from the current weights. `rows` are those of all ranks.
    """
    assert rows
    for group in groups(rows):
        assert len({row["number"] for row in group}) == 1
        for row in group:
            assert row["prompt"] == row["given"] == f"{row['number']:02d}+{row['number']:02d}="
            assert row["sampled"] == pytest.approx(row["now"], abs=1e-4)


def apart(rows: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]], key: str = "now") -> float:
    """Return the largest difference between the engine's log-probs in `rows` and the log-probs `key` in `others`."""
    pairs = zip(rows, others, strict=True)
    return max(abs(a - b) for row, other in pairs for a, b in zip(row["sampled"], other[key], strict=False))


def check_advantages(rows: Sequence[dict[str, Any]]) -> None:
    """Assert that advantages follow from the rewards of each group's own completions."""
    for group in groups(rows):
        rewards = rewards_of(group)
        mean, std = statistics.mean(rewards), statistics.stdev(rewards)
        expected = [(value - mean) / (std + 1e-4) for value in rewards]
        assert [row["advantage"] for row in group] == pytest.approx(expected, abs=1e-3)


def check_ratios(rows: Sequence[dict[str, Any]]) -> None:
    """Assert that importance sampling ratios are 1, because the engine samples from the policy itself."""
    for row in rows:
        assert row["ratio"] == pytest.approx([1.0] * len(row["ratio"]), abs=1e-3)


def check_sync(made: Watched) -> None:
    """Assert that the engine samples with the weights that were sent last, not with the trainer's current ones."""
    ids = tiny_models.tokenizer()(list(tiny_models.prompts(8)["prompt"]))["input_ids"]

    def distance() -> float:
        _, completions, sampled, _ = made.vllm_generation.generate(ids, None, 1)
        rows = [{"sampled": [token[0] for token in row]} for row in sampled]
        pairs = zip(ids, completions, strict=True)
        return apart(rows, [{"now": logps(made.model, tiny_models.weights(made), *pair)} for pair in pairs])

    made.vllm_generation.sync_weights()
    assert distance() < 1e-4
    with torch.no_grad():
        for weight in made.model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    assert distance() > 0.3
    made.vllm_generation.sync_weights()
    assert distance() < 1e-4
