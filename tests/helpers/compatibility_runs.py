"""Runs of one feature of TRL in one mode of this package: a few steps of a tiny model, and the checks that both the
feature and the mode had their effect. compatibility_matrix.py lists the features and the modes.
"""

import asyncio
import copy
import functools
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import datasets
import peft
import pytest
import tiny_models
import tool_models as caller
import torch
import vision_models
from transformers import (
    AutoModelForCausalLM,
    Qwen2Config,
    Qwen2ForSequenceClassification,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    TrainerCallback,
)
from transformers.generation.continuous_batching.continuous_api import ContinuousMixin

from trl_grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from trl_grpo_plus.objective import kl
from trl_grpo_plus.objective.advantage_functions import AdvantageEstimator
from trl_grpo_plus.traces import reader


Options = Mapping[str, Any]


# -- a run of one feature in one mode


@dataclass
class Run:
    """A finished run, and what the checks read of it.

    `without` returns the weights that the same mode ends with if the feature is off. `keeping` returns those with the
    feature if all groups are kept. `seen` holds what the feature's rewards noted, and how often each function of
    `SPIED` was called.
    """

    trainer: Any
    before: dict[str, torch.Tensor]
    reference: dict[str, torch.Tensor] | None
    seen: dict[str, Any]
    without: Callable[[], dict[str, torch.Tensor]]
    keeping: Callable[[], dict[str, torch.Tensor]]

    @property
    def after(self) -> dict[str, torch.Tensor]:
        return tiny_models.weights(self.trainer)

    def logged(self, key: str) -> list[float]:
        return tiny_models.logged(self.trainer, key)

    def batches(self) -> list[dict[str, torch.Tensor]]:
        """Return the micro-batches of the last generation batch."""
        return [batch for batch in self.trainer._buffered_inputs if batch]


def changes(run: Run) -> None:
    """Assert that the feature changed the trained weights."""
    assert not tiny_models.same_weights(run.after, run.without())


def changes_nothing(run: Run) -> None:
    """Assert that the trained weights are those without the feature, up to rounding.

    This is for features that save memory or time, or have nothing to act on.
    """
    torch.testing.assert_close(run.after, run.without(), rtol=1e-4, atol=1e-5)


def micro_batches(count: int) -> Callable[[Run], None]:
    def check(run: Run) -> None:
        assert len(run.batches()) == count

    return check


def logs(*names: str) -> Callable[[Run], None]:
    """Return a check that each metric is logged, finite, and not always 0."""

    def check(run: Run) -> None:
        for name in names:
            values = [value for value in run.logged(name) if value is not None]  # TRL logs the mean of nothing as None
            assert any(values), name
            assert all(map(math.isfinite, values)), name

    return check


def both(*checks: Callable[[Run], None]) -> Callable[[Run], None]:
    def check(run: Run) -> None:
        for one in checks:
            one(run)

    return check


# -- modes of this package


@dataclass(frozen=True)
class Mode:
    """A mode: its heading in docs/what_works.md, its options, and the check that it had its effect."""

    head: str
    options: Options
    check: Callable[[Run], None]


def filtered(run: Run) -> None:
    assert any(
        kept < made for kept, made in zip(run.logged("groups/trained"), run.logged("groups/generated"), strict=True)
    )


def resampled(run: Run) -> None:
    assert max(run.logged("groups/rounds")) > 0


def believed(run: Run) -> None:
    """Assert that beliefs and the choice were logged, and that advantages do not sum to 0.

    Advantages about their group's mean would sum to 0. They also do with `normalize_then_sum`, which normalises all
    advantages of a batch once more.
    """
    names = {name.partition("/")[0] for entry in run.trainer.state.log_history for name in entry}
    assert {"beliefs", "selection"} <= names
    total = abs(sum(batch["advantages"].sum().item() for batch in run.batches()))
    assert total > 1e-3 or run.trainer.multi_objective_aggregation == "normalize_then_sum"


def kl_through(name: str) -> Callable[[Run], None]:
    return both(called(name), logs("kl"))


def traced(run: Run) -> None:
    groups = [group for group in reader.groups(Path(run.trainer.args.output_dir)) if group[0]["split"] == "train"]
    attempts = sum(len(group) for group in groups)
    assert attempts == run.trainer.num_generations * sum(run.logged("groups/generated"))
    assert all(row["rewards"].keys() == set(run.trainer.reward_func_names) for group in groups for row in group)


def own_advantages(rewards: torch.Tensor, weights: torch.Tensor, about: Any) -> torch.Tensor:
    """Return twice the difference between each total and its group's mean."""
    totals = (rewards * weights).nansum(dim=-1)
    return 2 * (totals - totals.mean(dim=1, keepdim=True))


# Functions whose calls are counted during a run: (the module or class in which the package looks them up, name).
SPIED = [(kl, "kl_to_go"), (kl, "penalty"), (AdvantageEstimator, "advantages")]
SPIED += [(ContinuousMixin, "generate_batch")]


def called(name: str) -> Callable[[Run], None]:
    def check(run: Run) -> None:
        assert run.seen[name] > 0

    return check


# -- rewards, data and models of the runs


def half_dead(completions: list[Any], number: list[int], **kwargs: Any) -> list[float]:
    """Return the share of digits for prompts with an even number, else 0.3. Of messages, only the last one counts."""
    texts = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
    return [0.3 if n % 2 else share for n, share in zip(number, tiny_models.digits(texts), strict=True)]


def questions(count: int) -> datasets.Dataset:
    """Return `tiny_models.prompts` as conversations."""
    return tiny_models.prompts(count).map(lambda row: {"prompt": [{"role": "user", "content": row["prompt"]}]})


@functools.cache
def chatting_tokenizer() -> Any:
    """Return the tiny tokenizer with a chat template that takes the argument `brief`."""
    made = copy.deepcopy(tiny_models.tokenizer())
    made.chat_template = "{% if brief %}bb{% endif %}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    return made


class Models:
    """The models that the runs load. Each is made once, in `folder`."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.without: dict[Any, dict[str, torch.Tensor]] = {}  # the trained weights of runs without a feature

    @functools.cached_property
    def plain(self) -> str:
        return tiny_models.model_path(self.folder)

    def _saved(self, name: str, make: Callable[[], Any], tokenizer: Any = None) -> str:
        path = self.folder / name
        if not path.exists():
            torch.manual_seed(0)
            make().save_pretrained(path)
            if tokenizer is not None:
                tokenizer.save_pretrained(path)
        return str(path)

    def scorer(self) -> str:
        shape = tiny_models.qwen2().to_dict() | {"num_labels": 1}
        return self._saved(
            "scorer", lambda: Qwen2ForSequenceClassification(Qwen2Config(**shape)), tiny_models.tokenizer()
        )

    def experts(self) -> str:
        sizes = tiny_models.qwen2().to_dict()
        kept = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        kept += ("num_key_value_heads", "bos_token_id", "eos_token_id", "pad_token_id", "initializer_range")
        router = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
        config = Qwen3MoeConfig(**{name: sizes[name] for name in kept}, **router, max_position_embeddings=64)
        return self._saved("experts", lambda: Qwen3MoeForCausalLM(config))

    @functools.cache  # noqa: B019
    def seeing(self) -> str:
        return vision_models.model_path(self.folder, "qwen2.5-vl")

    def caller(self) -> str:
        config = tiny_models.qwen2(vocab_size=len(caller.tokenizer()), max_position_embeddings=512)
        config.eos_token_id = caller.tokenizer().eos_token_id
        return self._saved("caller", lambda: tiny_models.Qwen2ForCausalLM(config))


@dataclass
class Made:
    """What a feature needs besides options: a model (a path, or a loaded model), more arguments of the trainer, data,
    rewards, and functions to call with the trainer before and after training."""

    model: Any = None
    extra: dict[str, Any] = field(default_factory=dict)
    data: Any = None
    rewards: list[Any] = field(default_factory=lambda: [half_dead])
    before: Callable[[Any], None] = lambda trainer: None
    after: Callable[[Any], None] = lambda trainer: None


Maker = Callable[[Models, dict[str, Any]], Made]


@dataclass(frozen=True)
class Feature:
    """A row of the table.

    Args:
        name: how TRL's docs call the feature.
        options: the options that turn it on.
        beside: options of both the run with the feature and the run without it.
        make: makes what the feature needs besides options.
        check: asserts that the feature had its effect.
    """

    name: str
    options: Options = field(default_factory=dict)
    beside: Options = field(default_factory=dict)
    make: Maker | None = None
    check: Callable[[Run], None] = changes


# -- rewards of the kinds in TRL's docs


async def asynchronous(completions: list[str], **kwargs: Any) -> list[float]:
    await asyncio.sleep(0)
    return [text.count("a") / 6 for text in completions]


def of_some(completions: list[str], number: list[int], **kwargs: Any) -> list[float | None]:
    """Return a score for prompts with an even number, and `None` for the others."""
    return [None if n % 2 else text.count("b") / 6 for n, text in zip(number, completions, strict=True)]


def that_logs(
    completions: list[str], log_extra: Any, log_metric: Any, trainer_state: Any, **kwargs: Any
) -> list[float]:
    log_extra("length", [len(text) for text in completions])
    log_metric("steps", trainer_state.global_step)
    return [len(text) / 12 for text in completions]


def rewards(*others: Any) -> Maker:
    return lambda models, seen: Made(rewards=[half_dead, *others])


def scored_by_a_model(models: Models, seen: dict[str, Any]) -> Made:
    return Made(rewards=[half_dead, models.scorer()])


def scored_by_a_loaded_model(models: Models, seen: dict[str, Any]) -> Made:
    model = Qwen2ForSequenceClassification.from_pretrained(models.scorer())
    extra = {"reward_processing_classes": [None, copy.deepcopy(tiny_models.tokenizer())]}
    return Made(rewards=[half_dead, model], extra=extra)


def extra_is_of_its_rows(run: Run) -> None:
    logged = run.trainer._logs
    assert list(logged["extra"]["length"]) == [len(text) for text in logged["completion"]]
    assert "steps" in run.trainer.state.log_history[0]


# -- data


def conversations(models: Models, seen: dict[str, Any]) -> Made:
    def reward(prompts: Any, completions: Any, number: Any, **kwargs: Any) -> list[float]:
        seen["messages"] = (prompts[0], completions[0])
        return half_dead(completions, number)

    reward.__name__ = "half_dead"
    return Made(data=questions(30), rewards=[reward], extra={"processing_class": chatting_tokenizer()})


def are_messages(run: Run) -> None:
    prompt, completion = run.seen["messages"]
    assert prompt[0]["role"] == "user"
    assert [message["role"] for message in completion] == ["assistant"]


def begin_with(text: str) -> Callable[[Run], None]:
    def check(run: Run) -> None:
        (batch,) = run.batches()
        prompts = run.trainer.processing_class.batch_decode(batch["prompt_ids"], skip_special_tokens=True)
        assert all(prompt.startswith(text) for prompt in prompts)

    return check


def stream(models: Models, seen: dict[str, Any]) -> Made:
    return Made(data=tiny_models.prompts(30).to_iterable_dataset())


def was_a_stream(run: Run) -> None:
    assert isinstance(run.trainer.train_dataset, datasets.IterableDataset)


def held_out(sets: Any) -> Maker:
    def make(models: Models, seen: dict[str, Any]) -> Made:
        return Made(extra={"eval_dataset": sets()})

    return make


EVALUATION = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8}


def evaluated(sets: int = 1, before: int = 0) -> Callable[[Run], None]:
    """Return a check that there were `sets` evaluations at each step, and `before` more before the first step."""

    def check(run: Run) -> None:
        values = run.logged("eval_reward")
        assert len(values) == sets * (run.trainer.state.global_step + before)
        assert all(map(math.isfinite, values))

    return check


def generated_in_evaluation(attempts: int) -> Callable[[Run], None]:
    """Return a check that the evaluation sampled so many attempts per prompt.

    A run ends with an evaluation, so TRL's table of completions holds the evaluation's attempts.
    """

    def check(run: Run) -> None:
        assert set(Counter(run.trainer._logs["prompt"]).values()) == {attempts}

    return check


# -- rollouts, tools, environments and images


def is_rolled_out(models: Models, seen: dict[str, Any]) -> Made:
    """Use a `rollout_func` that returns a column for the rewards, and an `env_mask`.

    The mask keeps the first and the last token of a completion. Those between them count as the environment's.
    """

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        drawn = tiny_models.scripted(prompts, trainer)
        mask = [[1, *([0] * (len(ids) - 2)), 1] for ids in drawn["completion_ids"]]
        return {**drawn, "env_mask": mask, "turns": [2] * len(prompts)}

    def reward(completions: Any, number: Any, turns: Any = None, **kwargs: Any) -> list[float]:
        seen["turns"] = turns
        return half_dead(completions, number)

    reward.__name__ = "half_dead"
    return Made(rewards=[reward], extra={"rollout_func": rollout})


def was_rolled_out(run: Run) -> None:
    assert set(run.seen["turns"]) == {2}
    (batch,) = run.batches()
    shown = batch["completion_mask"].bool()
    assert (batch["tool_mask"] * shown).sum(dim=1).max() == 2 < shown.sum(dim=1).max()


def add(a: int, b: int) -> int:
    """
    Add.

    Args:
        a: One.
        b: Other.
    """
    return a + b


async def add_later(a: int, b: int) -> int:
    """
    Add.

    Args:
        a: One.
        b: Other.
    """
    return a + b


add_later.__name__ = "add"


def calling(tool: Callable[..., Any]) -> Maker:
    """Return a maker whose model calls the tool in half of its attempts, and ends each attempt with a digit.

    A function stands in for the model's `generate`.
    """

    def make(models: Models, seen: dict[str, Any]) -> Made:
        chance = random.Random(0)

        def generate(input_ids: torch.Tensor, **kwargs: Any) -> torch.Tensor:
            written = []
            for row in input_ids:
                answers = caller.tokenizer().decode(row).count("<tool_response>")
                calls = not answers and chance.random() < 0.5
                call = caller.CALL.format(a=chance.randrange(10), b=chance.randrange(10))
                written.append(caller.encode((call if calls else str(chance.randrange(10))) + caller.END))
            pad = caller.tokenizer().pad_token_id
            return torch.cat([input_ids, caller.padded(written, pad)], dim=1)

        def reward(completions: Any, number: Any, **kwargs: Any) -> list[float]:
            answers = [int(messages[-1]["content"]) for messages in completions]
            return [0.3 if n % 2 else answer / 9 for n, answer in zip(number, answers, strict=True)]

        reward.__name__ = "half_dead"
        numbers = list(range(30))
        data = datasets.Dataset.from_dict({"prompt": [caller.question(n) for n in numbers], "number": numbers})
        extra = {"processing_class": caller.tokenizer(), "tools": [tool]}
        before = lambda trainer: setattr(trainer.model, "generate", generate)  # noqa: E731
        return Made(models.caller(), extra, data, [reward], before)

    return make


class Asker(caller.Adding):
    """An environment with the tool `add`, whose reward grows with the sum of all that was added in it."""

    def reset(self, **row: Any) -> None:
        self.total = 0

    def get_reward(self) -> float:
        return self.total / 18


def in_environments(models: Models, seen: dict[str, Any]) -> Made:
    made = calling(add)(models, seen)
    made.extra["environment_factory"] = Asker
    del made.extra["tools"]
    return made


def pictures(models: Models, seen: dict[str, Any]) -> Made:
    extra = {"processing_class": vision_models.processor("qwen2.5-vl")}
    return Made(models.seeing(), extra, vision_models.questions(30))


def pictures_are_of_their_rows(run: Run) -> None:
    rows = vision_models.kept(run.trainer, "qwen2.5-vl")
    assert rows
    assert vision_models.wrong(rows, "qwen2.5-vl") == []


def tools_were_called(run: Run) -> None:
    """Assert that tools were called, and that exactly the tokens of their answers are masked."""
    (batch,) = run.batches()
    logs("tools/call_frequency")(run)
    turn = r"\n<\|im_start\|>user\n<tool_response>.*?<\|im_start\|>assistant\n"
    for ids, shown, mine in zip(
        *(batch[name] for name in ("completion_ids", "completion_mask", "tool_mask")), strict=True
    ):
        written = caller.tokenizer().decode(ids[shown.bool() & mine.bool()])
        whole = caller.tokenizer().decode(ids[shown.bool()])
        assert written == re.sub(turn, "", whole, flags=re.DOTALL)
    assert (batch["completion_mask"] * (1 - batch["tool_mask"])).any()


# -- models


def adapter(**options: Any) -> peft.LoraConfig:
    return peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", **options)


def new_adapter(models: Models, seen: dict[str, Any]) -> Made:
    return Made(extra={"peft_config": adapter()})


def own_adapter(models: Models, seen: dict[str, Any]) -> Made:
    model = AutoModelForCausalLM.from_pretrained(models.plain)
    torch.manual_seed(0)
    return Made(peft.get_peft_model(model, adapter(init_lora_weights=False)))


def only_the_adapter_moved(run: Run) -> None:
    moved = {name for name, value in run.after.items() if not torch.equal(value, run.before[name])}
    assert moved
    assert all("lora_" in name and ".ref." not in name for name in moved)


def experts(models: Models, seen: dict[str, Any]) -> Made:
    return Made(models.experts())


def reference_moved(run: Run) -> None:
    now = run.trainer.accelerator.unwrap_model(run.trainer.ref_model).state_dict()
    assert run.reference is not None
    assert not tiny_models.same_weights(now, run.reference)


def half_precision(models: Models, seen: dict[str, Any]) -> Made:
    return Made(AutoModelForCausalLM.from_pretrained(models.plain, dtype=torch.bfloat16))


def is_checkpointing(run: Run) -> None:
    assert run.trainer.model.is_gradient_checkpointing


def padded_to_16(run: Run) -> None:
    (batch,) = run.batches()
    assert batch["completion_ids"].shape[1] == batch["prompt_ids"].shape[1] == 16


def head_is_fp32(run: Run) -> None:
    assert run.trainer.model.lm_head.weight.dtype == torch.float32
    assert run.trainer.model.model.embed_tokens.weight.dtype == torch.bfloat16


def truncated_are_masked(run: Run) -> None:
    ends = (tiny_models.tokenizer().eos_token_id, tiny_models.tokenizer().pad_token_id)
    (batch,) = run.batches()
    cut = torch.tensor([ids[-1] not in ends for ids in batch["completion_ids"].tolist()])
    assert cut.any()
    assert not batch["completion_mask"][cut].any()


def completions_were_logged(run: Run) -> None:
    assert list((Path(run.trainer.args.output_dir) / "completions").glob("*.parquet"))


def card(models: Models, seen: dict[str, Any]) -> Made:
    return Made(after=lambda trainer: trainer.create_model_card("tiny"))


def card_is_there(run: Run) -> None:
    text = (Path(run.trainer.args.output_dir) / "README.md").read_text()
    assert "GRPO" in text
    assert "half_dead" in text


# -- running


class Seeded(TrainerCallback):
    """A callback that seeds each step, so that a step's attempts do not depend on the shuffles of earlier steps."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        torch.manual_seed(7 + state.global_step)


QUIET = {"trace_every": 0, "alarms": False, "shuffle_dataset": False, "max_steps": 2, "learning_rate": 2e-2}


def run(
    models: Models,
    feature: Feature,
    mode: Mode,
    folder: Path,
    with_it: bool = True,
    resume: bool = False,
) -> Run:
    """Train a few steps with the feature in the mode.

    With `with_it=False`, train the run to compare with. With `resume=True`, begin at the folder's last checkpoint.
    """
    seen: Counter[str] = Counter()
    options = {**tiny_models.BASE, **QUIET, **mode.options, **feature.beside, "output_dir": str(folder)}
    options |= feature.options if with_it else {}
    made = feature.make(models, seen) if feature.make and (with_it or feature.options) else Made()
    extra = {
        "train_dataset": made.data or tiny_models.prompts(30),
        "processing_class": tiny_models.tokenizer(),
        "callbacks": [Seeded()],
        **made.extra,
    }
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in SPIED:
            patch.setattr(owner, name, counted(getattr(owner, name), seen))
        trainer = GRPOPlusTrainer(made.model or models.plain, made.rewards, GRPOPlusConfig(**options), **extra)
        made.before(trainer)
        reference = getattr(trainer, "ref_model", None)
        reference = None if reference is None else copy.deepcopy(dict(reference.state_dict()))
        before = tiny_models.weights(trainer)
        trainer.train(resume_from_checkpoint=resume)
    made.after(trainer)

    def without() -> dict[str, torch.Tensor]:
        alike = (
            mode.head,
            repr(sorted(feature.beside.items())),
            feature.name if feature.options and feature.make else "",
        )
        if alike not in models.without:
            other = run(models, feature, mode, folder.with_name(f"{folder.name}-without"), with_it=False)
            models.without[alike] = other.after
        return models.without[alike]

    def keeping() -> dict[str, torch.Tensor]:
        kept = replace(mode, options={**mode.options, "zero_variance_groups": "keep"})
        return run(models, feature, kept, folder.with_name(f"{folder.name}-keeping")).after

    return Run(trainer, before, reference, seen, without, keeping)


def counted(function: Callable[..., Any], calls: Counter[str]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        calls[function.__name__] += 1
        return function(*args, **kwargs)

    return call
