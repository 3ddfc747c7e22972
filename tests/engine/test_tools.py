"""A policy that really calls a tool: rows that were dropped or moved keep their calls, answers, rewards and masks."""

import copy
import functools
import itertools
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, TrainerCallback
from transformers.utils import get_json_schema
from trl.chat_template_utils import qwen3_instruct_2507_chat_template

from trl_grpo_plus import GRPOPlusConfig, GRPOPlusTrainer


END = "<|im_end|>"
SPECIAL = ["<pad>", "<unk>", "<|im_start|>", END]
MARKUP = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
CALL = '<tool_call>\n{{"name": "add", "arguments": {{"a": {a}, "b": {b}}}}}\n</tool_call>'
TOOL_TURN = "\n<|im_start|>user\n<tool_response>\n{}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"

LESSONS = 160
# With this `top_p` only the digits are left to chance: what surrounds them has been learned too well.
OPTIONS = {"top_p": 0.95, "max_completion_length": 48, "learning_rate": 1e-4, "scale_rewards": "none"}
OPTIONS |= {"per_device_train_batch_size": 16}


def adder(calls: list[tuple[int, int]]) -> Callable[[int, int], int]:
    """The tool, noting each call."""

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
    """One token a character, but for what prompts and calls always say: that makes short work of learning them."""
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
    """Ids and labels of a conversation: three in four call the tool on digits; all answer with any digit."""
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
    """A Qwen2 of two layers that has been taught to call the tool, saved."""
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


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> str:
    return taught(tmp_path_factory.mktemp("policy"))


@dataclass
class Scored:
    """A row as the reward saw it."""

    step: int
    number: int
    ids: list[int]
    messages: list[dict[str, Any]]
    tool_mask: list[int]
    reward: float

    @property
    def runs(self) -> list[tuple[int, str]]:
        """What these messages are as tokens: runs of (by the policy?, text)."""
        return [self._run(message) for message in self.messages]

    def _run(self, message: dict[str, Any]) -> tuple[int, str]:
        if message["role"] == "tool":
            return 0, TOOL_TURN.format(message["content"])
        calls = [CALL.format(**call["function"]["arguments"]) for call in message.get("tool_calls", [])]
        return 1, "".join([message["content"], *calls, END])

    @property
    def written(self) -> int:
        """How many tokens the policy wrote."""
        return sum(len(encode(text)) for mine, text in self.runs if mine)


@dataclass
class Buffered:
    """A live row of the batch that a step trained on."""

    number: int
    ids: list[int]
    tool_mask: list[int]
    advantage: float

    @property
    def runs(self) -> list[tuple[int, str]]:
        places = itertools.groupby(range(len(self.ids)), key=self.tool_mask.__getitem__)
        return [(mine, tokenizer().decode([self.ids[i] for i in run])) for mine, run in places]


class Run(TrainerCallback):
    """A run with everything that was called, scored and trained on; prompts for which `dead` is true get 0.3."""

    def __init__(self, policy: str, folder: Path, dead: Callable[[int], bool], **options: Any):
        self.dead = dead
        self.calls: list[tuple[int, int]] = []
        self.scored: list[Scored] = []
        self.buffered: list[list[Buffered]] = []  # a list for each step
        self.rows: list[int] = []  # of each step, filler included
        data = Dataset.from_dict({"prompt": [question(n) for n in range(30)], "number": list(range(30))})
        config = GRPOPlusConfig(**{**tiny.BASE, **OPTIONS, "output_dir": str(folder), **options})
        extra = {"processing_class": tokenizer(), "tools": [adder(self.calls)], "callbacks": [self]}
        self.trainer = GRPOPlusTrainer(policy, self.reward, config, data, **extra)
        self.trainer.train()

    def reward(self, prompts, completions, completion_ids, tool_mask, number, trainer_state, **kwargs) -> list[float]:
        """A ninth of the digit answered."""
        assert prompts == [question(n) for n in number]
        answers = [int(messages[-1]["content"]) for messages in completions]
        rewards = [0.3 if self.dead(n) else answer / 9 for n, answer in zip(number, answers, strict=True)]
        rows = copy.deepcopy(list(zip(number, completion_ids, completions, tool_mask, rewards, strict=True)))
        self.scored += [Scored(trainer_state.global_step, *row) for row in rows]
        return rewards

    def on_step_end(self, *args, **kwargs) -> None:
        batches = self.trainer._buffered_inputs
        self.buffered.append([row for batch in batches for row in live_rows(batch)])
        self.rows.append(sum(len(batch["completion_ids"]) for batch in batches))

    def logged(self, key: str) -> list[float]:
        return tiny.logged(self.trainer, key)


def live_rows(batch: dict[str, torch.Tensor]) -> list[Buffered]:
    """The rows of a micro-batch that are not masked as filler, without padding."""
    shown = batch["completion_mask"].bool()
    live = batch.get("live", torch.ones(len(shown), dtype=torch.bool))
    assert not batch["tool_mask"][~live].any()
    assert batch["tool_mask"].shape == batch["completion_ids"].shape == shown.shape
    prompts = tokenizer().batch_decode(batch["prompt_ids"])
    rows = []
    for i in live.nonzero().flatten().tolist():
        columns = (batch[key][i][shown[i]].tolist() for key in ("completion_ids", "tool_mask"))
        number = int(prompts[i].rpartition("user\n")[2][:2])
        rows.append(Buffered(number, *columns, batch["advantages"][i].item()))
    return rows


def check(run: Run) -> None:
    """What was called, what the rewards saw, what was trained on and what was counted agree."""
    tool_messages = [m for row in run.scored for m in row.messages if m["role"] == "tool"]
    assert [m["content"] for m in tool_messages] == [str(a + b) for a, b in run.calls]
    assert {len(row.messages) for row in run.scored} == {1, 3}  # some rows answer without the tool
    for row in run.scored:
        assert "".join(text for _, text in row.runs) == tokenizer().decode(row.ids)
        assert row.tool_mask == [mine for mine, text in row.runs for _ in encode(text)]
    steps = [[row for row in run.scored if row.step == step] for step in range(3)]
    for scored, buffered in zip(steps, run.buffered, strict=True):
        check_batch(scored, buffered)
    assert run.logged("tokens/generated") == [sum(row.written for row in scored) for scored in steps]
    assert sum(run.logged("tokens/generated")) < sum(len(row.ids) for row in run.scored)  # tool output is not counted
    assert run.logged("tokens/trained") == [sum(sum(row.tool_mask) for row in rows) for rows in run.buffered]
    assert run.logged("groups/generated") == [len(scored) / 4 for scored in steps]
    assert run.logged("groups/trained") == [len(rows) / 4 for rows in run.buffered]
    assert min(run.logged("tools/call_frequency")) > 0
    assert run.logged("tools/failure_frequency") == [0] * 3


def check_batch(scored: list[Scored], buffered: list[Buffered]) -> None:
    """Whole groups, each row with the ids, the mask and the reward that are its own."""
    for number in {row.number for row in buffered}:
        attempts = sorted((row for row in scored if row.number == number), key=lambda row: row.ids)
        kept = sorted((row for row in buffered if row.number == number), key=lambda row: row.ids)
        mean = sum(row.reward for row in attempts) / 4
        assert len({row.reward for row in attempts}) > 1
        assert [row.ids for row in kept] == [row.ids for row in attempts]
        assert [row.runs for row in kept] == [row.runs for row in attempts]
        assert [row.advantage for row in kept] == pytest.approx([row.reward - mean for row in attempts], abs=1e-6)


@pytest.mark.parametrize(("micro_batches", "rows"), [(1, [8, 4, 4]), (8, [8, 8, 8])])
def test_drop(policy, tmp_path, micro_batches, rows):
    """Of prompts 0 to 3, 4 to 7 and 8 to 11 those stay that 3 divides, with filler where there are 8 micro-batches."""
    options = {"per_device_train_batch_size": 16 // micro_batches, "gradient_accumulation_steps": micro_batches}
    options |= {"zero_variance_groups": "drop", "shuffle_dataset": False}
    run = Run(policy, tmp_path, dead=lambda number: number % 3 > 0, **options)
    check(run)
    assert [{row.number for row in live} for live in run.buffered] == [{0, 3}, {6}, {9}]
    assert run.rows == rows
    assert run.logged("groups/generated") == [4] * 3
    assert run.logged("groups/trained") == [2, 1, 1]
    called = [sum(len(row.messages) > 1 for row in run.scored if row.step == step) for step in range(3)]
    assert run.logged("tools/call_frequency") == [count / 16 for count in called]


def test_resample(policy, tmp_path):
    """Two prompts of each four are odd and replaced."""
    options = {"zero_variance_groups": "resample", "max_resample_rounds": 8, "shuffle_dataset": False}
    run = Run(policy, tmp_path, dead=lambda number: number % 2 > 0, **options)
    check(run)
    assert min(run.logged("groups/rounds")) > 0
    assert min(run.logged("groups/generated")) > 4
    assert run.logged("groups/trained") == [4] * 3
    numbers = {row.number for rows in run.buffered for row in rows}
    assert not any(number % 2 for number in numbers)
    assert max(numbers) > 11
