"""A policy that really calls a tool, and environments whose method is the tool."""

import functools
import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tiny_models
import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import get_json_schema
from trl import GRPOConfig
from trl.chat_template_utils import qwen3_instruct_2507_chat_template

from trl_grpo_plus import GRPOPlusConfig, GRPOPlusTrainer


END = "<|im_end|>"
SPECIAL = ["<pad>", "<unk>", "<|im_start|>", END]
MARKUP = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
CALL = '<tool_call>\n{{"name": "add", "arguments": {{"a": {a}, "b": {b}}}}}\n</tool_call>'
TOOL_TURN = "\n<|im_start|>user\n<tool_response>\n{}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"

LESSONS = 160
# With this `top_p` only the digits are random. The model is too sure of all other tokens.
OPTIONS = {"top_p": 0.95, "max_completion_length": 48, "learning_rate": 1e-4, "scale_rewards": "none"}
OPTIONS |= {"per_device_train_batch_size": 16}


def adder(calls: list[tuple[int, int]]) -> Callable[[int, int], int]:
    """Return the tool, which appends each call to `calls`."""

    def add(a: int, b: int) -> int:
        """
        Add.

        Args:
            a: One.
            b: Other.
        """
        calls.append((a, b))
        return a + b

    return add


@functools.cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per character.

    The phrases that all prompts and calls contain are one token each, so that the model learns them fast.
    """
    phrases = {
        json.dumps(get_json_schema(adder([]))),
        *re.findall(r"[A-Za-z][A-Za-z ,-]+", qwen3_instruct_2507_chat_template.replace("\\n", "\n")),
        *re.findall(r"[^\d\n]{2,}", CALL.format(a=1, b=2).split("\n")[1]),
    }
    phrases = sorted(phrases, key=lambda phrase: (-len(phrase), phrase))
    characters = ["\n", *map(chr, range(32, 127))]
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *MARKUP, *phrases, *characters])}
    fast = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    pieces = Regex("|".join(map(re.escape, phrases)) + r"|[\s\S]")
    fast.pre_tokenizer = pre_tokenizers.Split(pieces, behavior="isolated")
    fast.decoder = decoders.Fuse()
    fast.add_special_tokens(SPECIAL)
    fast.add_tokens(MARKUP)
    special = {"pad_token": "<pad>", "eos_token": END, "unk_token": "<unk>", "padding_side": "left"}
    made = PreTrainedTokenizerFast(tokenizer_object=fast, **special)
    made.chat_template = qwen3_instruct_2507_chat_template
    return made


def encode(text: str) -> list[int]:
    return tokenizer()(text)["input_ids"]


def question(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{number:02d}"}]


def lesson(chance: random.Random) -> tuple[list[int], list[int]]:
    """Return ids and labels of a conversation. Three in four call the tool on digits; all answer with any digit."""
    how = {"tools": [adder([])], "add_generation_prompt": True, "return_dict": False}
    prompt = tokenizer().apply_chat_template(question(chance.randrange(30)), **how)
    answer = encode(f"{chance.randrange(10)}{END}")
    if chance.random() < 0.25:
        return prompt + answer, [-100] * len(prompt) + answer
    a, b = chance.randrange(10), chance.randrange(10)
    call, reply = encode(CALL.format(a=a, b=b) + END), encode(TOOL_TURN.format(a + b))
    return prompt + call + reply + answer, [-100] * len(prompt) + call + [-100] * len(reply) + answer


def padded(rows: Sequence[list[int]], value: int) -> torch.Tensor:
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=value)


def taught(path: Path, hidden_size: int = 48, heads: int = 4) -> str:
    """Train a Qwen2 of two layers to call the tool, save it, and return its path."""
    torch.manual_seed(0)
    sizes = {"hidden_size": hidden_size, "intermediate_size": 96, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": heads, "num_key_value_heads": heads // 2, "max_position_embeddings": 512}
    tokens = {"eos_token_id": tokenizer().eos_token_id, "pad_token_id": tokenizer().pad_token_id}
    config = Qwen2Config(vocab_size=len(tokenizer()), bos_token_id=None, **sizes, **tokens)
    model, chance = Qwen2ForCausalLM(config), random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=LESSONS)
    for _ in range(LESSONS):
        ids, labels = zip(*(lesson(chance) for _ in range(8)), strict=True)
        model(input_ids=padded(ids, 0), labels=padded(labels, -100)).loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.save_pretrained(path)
    return str(path)


class World:
    """A record of the environments of a run: which were made, reset and scored, in order.

    Args:
        dead (`Callable`): number -> whether every attempt on it earns 0.3.
    """

    def __init__(self, dead: Callable[[int], bool]):
        self.dead = dead
        self.made = 0
        self.events: list[tuple[str, int, int]] = []  # ("reset" or "reward", index of the environment, number)

    def adder(self) -> "Adder":
        """Make an environment of this world."""
        self.made += 1
        return Adder(self, self.made - 1)

    def subtracter(self) -> "Subtracter":
        """Make an environment of this world that has a second tool."""
        self.made += 1
        return Subtracter(self, self.made - 1)


class Adding:
    """A class with the tool as a method. `total` is the sum of the arguments of all calls."""

    total = 0

    def add(self, a: int, b: int) -> int:
        """
        Add.

        Args:
            a: One.
            b: Other.
        """
        self.total += a + b
        return a + b


class Adder(Adding):
    """An environment with the tool `add`. It asks each attempt another number, so that attempts differ by design."""

    def __init__(self, world: World, place: int):
        self._world, self._place = world, place
        self._number, self._asked = -1, 0

    def reset(self, number: int, **row: Any) -> str:
        """Begin a rollout and return the number that it asks."""
        assert not row, row
        self._world.events.append(("reset", self._place, number))
        self._number, self.total, self._asked = number, 0, (7 * number + 3 * (self._place % 4)) % 30
        return f"{self._asked:02d}"

    def get_reward(self) -> float:
        """Return a reward that depends on the asked number and on the sums, so that each rollout has its own."""
        self._world.events.append(("reward", self._place, self._number))
        return 0.3 if self._world.dead(self._number) else (self._asked + self.total) / 48


class Subtracter(Adder):
    """An environment that also has the tool `subtract`."""

    def subtract(self, a: int, b: int) -> int:
        """
        Subtract.

        Args:
            a: One.
            b: Other.
        """
        return a - b

    def get_reward(self) -> float:
        """Return the reward of `Adder`."""
        return super().get_reward()


def numbers(count: int, **columns: Any) -> Dataset:
    """Return rows with a number and no prompt: the environment makes the prompt."""
    return Dataset.from_dict({"number": list(range(count)), **columns})


def acting(world: World, policy: str, folder: Path, cls: Any = GRPOPlusTrainer, **options: Any) -> Any:
    """Train a trainer of `cls` on 30 numbers, in environments of `world`, and return it.

    Nothing is random: the policy always writes the likeliest token, and the optimizer is plain SGD. `data` and
    `factory` among the options replace the rows and the environment.
    """
    exact = {name: value for name, value in tiny_models.EXACT.items() if name != "extra"}
    arguments = {
        **tiny_models.BASE,
        **OPTIONS,
        **exact,
        "top_p": 1.0,
        "top_k": 1,
        "output_dir": str(folder / "run"),
        **options,
    }
    data, factory = arguments.pop("data", numbers(30)), arguments.pop("factory", world.adder)
    config = (GRPOPlusConfig if issubclass(cls, GRPOPlusTrainer) else GRPOConfig)(**arguments)
    extra = {"train_dataset": data, "processing_class": tokenizer(), "environment_factory": factory}
    made = cls(policy, args=config, **extra)
    made.train()
    return made
