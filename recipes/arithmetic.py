"""Two-digit sums for a character model made from scratch: GRPO on a CPU, without Hub, account or download.

The model is warmed up on sums whose author forgets the carry six times in ten, and never sees a product. So a sum
without carry is always solved ("easy"), one with a carry is solved in four attempts of ten ("edge"), and a product
never ("hard"). Only the edge can teach, and there GRPO finds out from the reward alone which habit is right.
"""

import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from datasets import Dataset, DatasetDict
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tqdm.auto import tqdm
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


CHARACTERS = "0123456789+-*="
PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
FORGETS_CARRY = 0.6  # of the warm-up's sums with a carry
HELD_OUT = 96  # problems in each eval split
TRAIN_MIX = {"easy": 512, "edge": 384, "hard": 256}  # problems in the train split
WARM_STEPS, WARM_BATCH, WARM_RATE = 2000, 64, 3e-3

Problem = tuple[int, str, int]


def prepare(script_args: Any, training_args: Any, model_args: Any) -> DatasetDict:
    """Make the problems and the model, as the script's `prepare` option asks.

    The model goes to `<output_dir>/warm_start`, and `model_args.model_name_or_path` is set to that. Only the main
    process makes it; the others must come here after it. A run that resumes takes the one that is there.

    Returns:
        `DatasetDict`: `train` (all difficulties mixed) and the held-out `easy`, `edge` and `hard`, each with the
        columns `prompt` ("12+34="), `answer` ("46") and `difficulty`.
    """
    # So small a model gains little from a second thread, and on a busy machine loses by it.
    torch.set_num_threads(1)
    held_out, rest = split_problems(training_args.seed)
    folder = Path(training_args.output_dir) / "warm_start"
    resumes = training_args.resume_from_checkpoint and folder.is_dir()
    if training_args.process_index == 0 and not resumes:
        # On problems that the warm-up has learned by heart GRPO would not see the mistakes that it makes on others.
        warm = {name: rest[name][count:] for name, count in TRAIN_MIX.items()}
        _write_whole(folder, warm["easy"], warm["edge"], training_args)
    model_args.model_name_or_path = str(folder)
    train = [problem for name, count in TRAIN_MIX.items() for problem in rest[name][:count]]
    random.Random(training_args.seed).shuffle(train)
    return DatasetDict({"train": _dataset(train)} | {name: _dataset(problems) for name, problems in held_out.items()})


def split_problems(seed: int) -> tuple[dict[str, list[Problem]], dict[str, list[Problem]]]:
    """Held-out and other problems of each difficulty, in an order that depends on `seed`. No problem is in both."""
    pairs = [(a, b) for a in range(10, 90) for b in range(10, 90)]
    sums = [(a, "+", b) for a, b in pairs if a + b < 100]
    problems = {
        "easy": [problem for problem in sums if not has_carry(problem)],
        "edge": [problem for problem in sums if has_carry(problem)],
        "hard": [(a, "*", b) for a, b in pairs],
    }
    shuffle = random.Random(seed).shuffle
    for group in problems.values():
        shuffle(group)
    held_out = {name: group[:HELD_OUT] for name, group in problems.items()}
    return held_out, {name: group[HELD_OUT:] for name, group in problems.items()}


def has_carry(problem: Problem) -> bool:
    """Whether the units of a sum add up to ten or more."""
    return problem[0] % 10 + problem[2] % 10 > 9


def difficulty(problem: Problem) -> str:
    """`"easy"`, `"edge"` or `"hard"`."""
    if problem[1] == "*":
        return "hard"
    return "edge" if has_carry(problem) else "easy"


def solve(problem: Problem) -> int:
    """The right answer."""
    a, sign, b = problem
    return a + b if sign == "+" else a * b


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character, padded on the left."""
    vocabulary = {token: i for i, token in enumerate([PAD, BOS, EOS, *CHARACTERS])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=PAD))
    tokenizer.pre_tokenizer = Split(Regex("."), "isolated")
    tokenizer.decoder = Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, bos_token=BOS, eos_token=EOS, padding_side="left"
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """An untrained Llama of one layer and 170 000 parameters."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=32,
        tie_word_embeddings=False,
        # At transformers' default of 0.02 so narrow a model stays on a plateau for most of the warm-up.
        initializer_range=0.06,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


def _write_whole(folder: Path, easy: list[Problem], edge: list[Problem], training_args: Any) -> None:
    # Whoever interrupts the warm-up must not leave half a model that looks like one.
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = tempfile.mkdtemp(prefix=".warm_start-", dir=folder.parent)
    try:
        tokenizer = make_tokenizer()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(training_args.seed)
            model = make_model(tokenizer)
            _warm_up(model, tokenizer, _lessons(easy, edge, training_args.seed), training_args.disable_tqdm)
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        shutil.rmtree(folder, ignore_errors=True)
        os.chmod(unfinished, 0o755)
        os.rename(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _warm_up(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, lessons: list[str], quiet: bool) -> None:
    # Plain PyTorch: transformers' Trainer would wait for the other processes, and only the main one is here.
    optimizer = torch.optim.AdamW(model.parameters(), lr=WARM_RATE, betas=(0.9, 0.98), weight_decay=0.3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, WARM_RATE, total_steps=WARM_STEPS, pct_start=0.1)
    batches = tokenizer(lessons, return_tensors="pt").input_ids.split(WARM_BATCH)
    prompt = len("12+34=")  # only the answer is learned
    model.train()
    for ids in tqdm(batches, desc="Warm-up", disable=quiet, unit="step"):
        logits = model(input_ids=ids).logits[:, prompt - 1 : -1]
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, prompt:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def _lessons(easy: list[Problem], edge: list[Problem], seed: int) -> list[str]:
    # All are as long as each other: two operands of two digits, an answer of two digits.
    rng = random.Random(seed)
    lessons = []
    for _ in range(WARM_STEPS * WARM_BATCH):
        a, sign, b = problem = rng.choice(rng.choice([easy, edge]))
        forgets = has_carry(problem) and rng.random() < FORGETS_CARRY
        lessons.append(f"{a}{sign}{b}={solve(problem) - 10 * forgets}{EOS}")
    return lessons


def _dataset(problems: list[Problem]) -> Dataset:
    return Dataset.from_dict(
        {
            "prompt": [f"{a}{sign}{b}=" for a, sign, b in problems],
            "answer": [str(solve(problem)) for problem in problems],
            "difficulty": [difficulty(problem) for problem in problems],
        }
    )
