"""Helpers of the prepare functions that make a model and warm it up on lessons before the run."""

import glob
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from trl_grpo_plus.utils.validation import Number


PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
NOT_LEARNED = -100  # label of a token that the loss ignores


@dataclass(frozen=True)
class WarmUp:
    """The settings of a warm-up: supervised steps, lessons in each step, and the highest learning rate.

    Raises:
        ConfigError: a number is out of its bounds.
    """

    steps: int
    batch: int
    rate: float

    def __post_init__(self) -> None:
        Number(at_least=0, integer=True).check("warm_steps", self.steps)
        Number(at_least=1, integer=True).check("warm_batch", self.batch)
        Number(above=0).check("warm_rate", self.rate)


def start_from(
    training_args: Any,
    model_args: Any,
    make: Callable[[], tuple[PreTrainedModel, PreTrainedTokenizerBase]],
) -> None:
    """Let a run start from the model in `<output_dir>/warm_start`, which the main process makes with `make`.

    A run that resumes uses the model beside its checkpoint, or else the one in `<output_dir>/warm_start`.
    """
    folder, resumed_from = Path(training_args.output_dir) / "warm_start", training_args.resume_from_checkpoint
    if resumed_from and (beside := Path(resumed_from).parent / "warm_start").is_dir():
        folder = beside  # another folder if the resumed run was moved
    if training_args.process_index == 0 and not (resumed_from and folder.is_dir()):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent):  # refuse a folder that cannot be written before the work
            pass
        save_whole(folder, *make())
    model_args.model_name_or_path = str(folder)


def one_thread(training_args: Any) -> None:
    """Let PyTorch use one thread on a CPU, for a character model.

    A model this small gains little from a second thread. On a busy machine threads wait for each other at each
    operation, and the run takes several times as long.
    """
    if training_args.device.type == "cpu":
        torch.set_num_threads(1)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw random weights from a seed. The state of the run's own random numbers does not change."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed GPUs too
        yield


def word_level(words: Iterable[str], pre_tokenizer: Any, decoder: Any) -> PreTrainedTokenizerFast:
    """Make a tokenizer with one token for each of the words, padded on the left."""
    vocabulary = {token: i for i, token in enumerate(dict.fromkeys([PAD, BOS, EOS, *words]))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=PAD))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoder
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, bos_token=BOS, eos_token=EOS, padding_side="left"
    )


def llama(
    tokenizer: PreTrainedTokenizerFast,
    layers: int,
    hidden_size: int,
    heads: int,
    *,
    positions: int,
    spread: float,
    theta: float,
) -> LlamaForCausalLM:
    """Make an untrained Llama for this tokenizer, with weights of the standard deviation `spread`."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        max_position_embeddings=positions,
        initializer_range=spread,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
    )
    return LlamaForCausalLM(config)


def save_whole(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Save a model and its tokenizer to `folder`, completely or not at all. Only one process at a time may do so."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    beginning = f".{folder.name}-unfinished-"
    for left in folder.parent.glob(f"{glob.escape(beginning)}*"):  # left by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=beginning, dir=folder.parent) as unfinished:
        whole = Path(unfinished) / "whole"
        model.save_pretrained(whole)
        tokenizer.save_pretrained(whole)
        shutil.rmtree(folder, ignore_errors=True)
        whole.rename(folder)


def padded(pairs: Iterable[tuple[list[int], list[int]]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids (B, T), padded on the right, and labels (B, T), from the tokens of B prompts and their solutions.

    Only the solutions are learned.
    """
    rows = [(prompt + solution, [NOT_LEARNED] * len(prompt) + solution) for prompt, solution in pairs]
    ids, labels = ([torch.tensor(row) for row in column] for column in zip(*rows, strict=True))
    return pad_sequence(ids, True, pad), pad_sequence(labels, True, NOT_LEARNED)


def teach(
    model: PreTrainedModel,
    batches: list[tuple[torch.Tensor, torch.Tensor]],
    rate: float,
    training_args: Any,
    weight_decay: float = 0.3,
    bf16: bool | None = None,
) -> None:
    """Train a model by supervised steps, one for each batch.

    Args:
        model (`PreTrainedModel`): the model, which is moved to the run's device.
        batches (`list[tuple[Tensor, Tensor]]`): ids (B, T), padded on the right, and labels (B, T): the same ids, or
            -100 for tokens that are not learned.
        rate (`float`): highest learning rate. The rate rises over a tenth of the steps and falls to 0.
        training_args: the run's training arguments, for device, bf16 and `disable_tqdm`.
        weight_decay (`float`, *optional*, defaults to 0.3): weight decay of AdamW.
        bf16 (`bool`, *optional*): whether to compute in bfloat16; by default as the run does.
    """
    # Plain PyTorch: transformers' Trainer would wait for the other processes, but only the main one runs this.
    device, half = training_args.device, training_args.bf16 if bf16 is None else bf16
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=weight_decay)
    steps = max(2, len(batches))
    rise = max(0.1, 1.01 / steps)  # PyTorch divides by zero if the rise ends with the first step
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=rise)
    for ids, labels in tqdm(batches, desc="Warm-up", disable=training_args.disable_tqdm, unit="step"):
        learned = (labels != NOT_LEARNED).any(0)
        first, last = int(learned.int().argmax()), int(learned.nonzero().max()) + 1
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            logits = model(input_ids=ids[:, :last].to(device)).logits[:, first - 1 : -1]
        targets = labels[:, first:last].to(device)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=NOT_LEARNED)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
