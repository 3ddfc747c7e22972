"""The models, prompts and rewards of the tests: models of a few thousand weights, a tokenizer of a few characters."""

import copy
import functools
import importlib.metadata
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import trl
from accelerate import PartialState
from datasets import Dataset
from packaging.version import Version
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, TrainerCallback

from trl_grpo_plus import GRPOPlusConfig, GRPOPlusTrainer


# Each run asks a dozen times whether a package is installed. Parsing its metadata each time took a sixth of a run.
_read = importlib.metadata.Distribution
_read.from_name = functools.cache(_read.from_name)  # type: ignore[method-assign, assignment]
_read.metadata = functools.cached_property(_read.metadata.fget)  # type: ignore[attr-defined, method-assign, assignment]
_read.metadata.__set_name__(_read, "metadata")  # type: ignore[attr-defined]

ALPHABET = "0123456789+=ab "
KNOWS_NAN = Version(trl.__version__) >= Version("1.11")  # TRL then takes a NaN log-prob as unknown

ON_CPU = "TEST_DEVICE" not in os.environ  # see conftest.py
BASE = {"bf16": False, "use_cpu": ON_CPU, "report_to": "none", "learning_rate": 1e-2, "max_completion_length": 6}
BASE |= {"per_device_train_batch_size": 8, "num_generations": 4, "max_steps": 3, "logging_steps": 1, "seed": 7}
BASE |= {"save_strategy": "no", "gradient_checkpointing": False, "dataloader_pin_memory": False, "disable_tqdm": True}


@functools.cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per character."""
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<eos>", "<unk>", *ALPHABET])}
    fast = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    fast.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    fast.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=fast, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


def chat_tokenizer() -> PreTrainedTokenizerFast:
    """Return a copy of the tokenizer with a chat template: the contents of the messages, then "="."""
    chats = copy.deepcopy(tokenizer())
    chats.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}="
    return chats


def qwen2(**sizes: Any) -> Qwen2Config:
    """Return a config of two layers for the tokenizer above. Its weights are large, so that completions vary."""
    widths = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    ends = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0, "max_position_embeddings": 64}
    shape = {"vocab_size": len(ALPHABET) + 3, "num_hidden_layers": 2, "tie_word_embeddings": False}
    return Qwen2Config(**{**shape, **widths, **ends, "initializer_range": 0.3, **sizes})


@functools.cache
def _model(seed: int) -> tuple[dict[str, bytes], torch.Tensor]:
    """Return the files of a saved model, and torch's random state after making it."""
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(seed)
        Qwen2ForCausalLM(qwen2()).save_pretrained(folder)  # rank 0 alone saves
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}, torch.get_rng_state()


def model_path(folder: Path, seed: int = 0) -> str:
    """Save a random Qwen2 of two layers and return its path. TRL with beta > 0 loads the reference model from it."""
    files, state = _model(seed)
    torch.set_rng_state(state)
    path = folder / f"model-{seed}"
    if PartialState().is_main_process and not path.exists():  # a loaded model may have an existing file mapped
        path.mkdir(parents=True)
        for name, data in files.items():
            (path / name).write_bytes(data)
    PartialState().wait_for_everyone()
    return str(path)


@functools.cache
def prompts(count: int) -> Dataset:
    """Return `count` distinct prompts, with their number in a column that rewards can read."""
    return Dataset.from_dict({"prompt": [f"{i:02d}+{i:02d}=" for i in range(count)], "number": list(range(count))})


def digits(completions, **kwargs) -> list[float]:
    """Return the share of digits, which differs within nearly every group."""
    return [sum(c.isdigit() for c in text) / max(len(text), 1) for text in completions]


def dead_where(dead: Callable[[int], bool], name: str) -> Callable[..., list[float]]:
    """Return a reward of this name: 0.3 for all attempts on prompts for which `dead` is true; for others, `digits`."""

    def reward(completions, number, **kwargs):
        return [0.3 if dead(n) else share for n, share in zip(number, digits(completions), strict=True)]

    reward.__name__ = name
    return reward


dead_for_most = dead_where(lambda n: n % 3 > 0, "dead_for_most")
half_dead = dead_where(lambda n: n % 4 > 1, "half_dead")  # prompts 0 and 1 are live, 2 and 3 dead, and so on
one_live_in_four = dead_where(lambda n: n % 4 > 0, "one_live_in_four")


def always_dead(completions, **kwargs) -> list[float]:
    """Return 0.3 for each completion."""
    return [0.3] * len(completions)


def scripted(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """Sample without chance, as a `rollout_func`: prompt and place in the group determine the completion."""
    first_row = trainer.accelerator.process_index * len(prompts)
    completions = []
    for i, prompt in enumerate(prompts):
        attempt = (first_row + i) % trainer.num_generations
        completions.append(f"{'ab' * attempt}{prompt[:2]}{attempt}"[: 2 + (attempt + int(prompt[:2])) % 5])
    tokenize = tokenizer()
    return {
        "prompt_ids": tokenize(list(prompts))["input_ids"],
        "completion_ids": [[*ids, tokenize.eos_token_id] for ids in tokenize(completions)["input_ids"]],
        "logprobs": None,
    }


# Nothing is random, and the optimizer is plain SGD. So equal weights after a step mean equal gradients.
EXACT = {"optim": "sgd", "learning_rate": 0.05, "max_grad_norm": 0.0, "shuffle_dataset": False, "max_steps": 2}
EXACT["extra"] = {"rollout_func": scripted}


def trainer(folder: Path, reward: Any = dead_for_most, cls: Any = GRPOPlusTrainer, **options: Any) -> Any:
    """Make a trainer of `cls` (TRL's or this package's) on 30 prompts.

    `options` are options of its config, except `data` (another dataset) and `extra` (more arguments of the trainer).
    """
    arguments = {**BASE, "output_dir": str(folder / "run"), **options}
    data, extra = arguments.pop("data", None), arguments.pop("extra", {})
    config = (GRPOPlusConfig if issubclass(cls, GRPOPlusTrainer) else trl.GRPOConfig)(**arguments)
    extra = {"train_dataset": prompts(30) if data is None else data, "processing_class": tokenizer(), **extra}
    return cls(model=model_path(folder), reward_funcs=reward, args=config, **extra)


def trained(*args: Any, **options: Any) -> Any:
    """Make a `trainer` and train it."""
    made = trainer(*args, **options)
    made.train()
    return made


def weights(trained: Any) -> dict[str, torch.Tensor]:
    """Return copies of the model's weights."""
    unwrapped = trained.accelerator.unwrap_model(trained.model)
    return {name: value.detach().clone() for name, value in unwrapped.state_dict().items()}


def losses(trained: Any) -> list[float]:
    """Return the logged losses, one per step."""
    return [entry["loss"] for entry in trained.state.log_history if "loss" in entry]


def logged(trained: Any, key: str) -> list[float]:
    """Return the logged values of a metric."""
    return [entry[key] for entry in trained.state.log_history if key in entry]


def same_weights(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    """Return whether two models' weights are equal, bit for bit."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def assert_same(first: Any, second: Any) -> None:
    """Assert that two trainers have the same losses and weights, bit for bit."""
    assert losses(first) == losses(second)
    assert same_weights(weights(first), weights(second))


def untimed(metrics: dict[str, float]) -> dict[str, float]:
    """Return the metrics without those that are times or rates."""
    return {key: value for key, value in metrics.items() if not key.endswith(("runtime", "per_second", "time"))}


class StopAt(TrainerCallback):
    """A callback that raises at the start of a step, as a crash would."""

    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise InterruptedError
