"""Helpers of the prepare functions that make a model and warm it up on lessons before the run."""

import glob
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from trl_grpo_plus.utils.validation import Number


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


def warm_up_of(
    default: WarmUp,
    steps: int | None = None,
    batch: int | None = None,
    rate: float | None = None,
    smoke: bool = False,
) -> WarmUp:
    """Return `default` with the numbers that are given; with `smoke` without steps."""
    given: dict[str, Any] = {"steps": steps, "batch": batch, "rate": rate}
    made = replace(default, **{name: value for name, value in given.items() if value is not None})
    return replace(made, steps=0) if smoke else made


def warm_folder(training_args: Any) -> tuple[Path, bool]:
    """Return the folder of the warm model, and `True` if a run that resumes already has the model there."""
    folder = Path(training_args.output_dir) / "warm_start"
    if not (resumed_from := training_args.resume_from_checkpoint):
        return folder, False
    beside = Path(resumed_from).parent / "warm_start"  # another folder if the resumed run was moved
    folder = beside if beside.is_dir() else folder
    return folder, folder.is_dir()


def one_thread(training_args: Any) -> None:
    """Let PyTorch use one thread on a CPU, for a character model.

    A model this small gains little from a second thread. On a busy machine threads wait for each other at each
    operation, and the run takes several times as long.
    """
    if training_args.device.type == "cpu":
        torch.set_num_threads(1)


def llama(
    tokenizer: PreTrainedTokenizerFast, layers: int, hidden_size: int, heads: int, **shape: Any
) -> LlamaForCausalLM:
    """Make an untrained Llama for this tokenizer; `shape` holds further settings of its config."""
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
        **shape,
    )
    return LlamaForCausalLM(config)


def write_whole(
    folder: Path,
    tokenizer: PreTrainedTokenizerFast,
    make_model: Callable[[], PreTrainedModel],
    teach: Callable[[PreTrainedModel], None],
    seed: int,
) -> None:
    """Make a model, teach it and write it to `folder`, completely or not at all.

    The state of the run's own random numbers does not change.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent):  # refuse a folder that cannot be written before the warm-up
        pass
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed GPUs too
        model = make_model()
    teach(model)
    save_whole(folder, model, tokenizer)


def save_whole(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
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
) -> None:
    """Train a model by supervised steps, one for each batch.

    Args:
        model (`PreTrainedModel`): the model, which is moved to the run's device.
        batches (`list[tuple[Tensor, Tensor]]`): ids (B, T), padded on the right, and labels (B, T): the same ids, or
            -100 for tokens that are not learned.
        rate (`float`): highest learning rate. The rate rises over a tenth of the steps and falls to 0.
        training_args: the run's training arguments, for device, bf16 and `disable_tqdm`.
        weight_decay (`float`, *optional*, defaults to 0.3): weight decay of AdamW.
    """
    # Plain PyTorch: transformers' Trainer would wait for the other processes, but only the main one runs this.
    device = training_args.device
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=weight_decay)
    steps = max(2, len(batches))
    rise = max(0.1, 1.01 / steps)  # PyTorch divides by zero if the rise ends with the first step
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=rise)
    for ids, labels in tqdm(batches, desc="Warm-up", disable=training_args.disable_tqdm, unit="step"):
        learned = (labels != NOT_LEARNED).any(0)
        first, last = int(learned.int().argmax()), int(learned.nonzero().max()) + 1
        with torch.autocast(device.type, torch.bfloat16, enabled=training_args.bf16):
            logits = model(input_ids=ids[:, :last].to(device)).logits[:, first - 1 : -1]
        targets = labels[:, first:last].to(device)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=NOT_LEARNED)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
