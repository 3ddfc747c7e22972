"""Prompt states: the policy's last hidden state at a prompt's last token."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from accelerate.utils import extract_model_from_parallel
from torch import Tensor, nn

from ..utils.signatures import signature_of


if TYPE_CHECKING:
    from accelerate import Accelerator


MOST_TOKENS = 1024  # read from the end of a prompt


@torch.no_grad()
def prompt_states(
    model: nn.Module, prompt_ids: Sequence[list[int]], device: torch.device, max_tokens: int, batch_size: int
) -> Tensor:
    """Return the state at the end of each prompt: the input of the map to the vocabulary.

    Each batch takes one forward without gradient, in evaluation mode, with the adapter of a PEFT model. The forward
    makes one row of logits a prompt and draws no random number.

    Args:
        model (`nn.Module`): a causal language model of transformers. It may be wrapped; the wrapper is called.
        prompt_ids (`Sequence[list[int]]`): P prompts of one token or more, without padding.
        device (`torch.device`): that the model computes on.
        max_tokens (`int`): read from the end of each prompt; earlier tokens are not read.
        batch_size (`int`): prompts in a forward; prompts of similar length go together.

    Returns:
        `Tensor`: `(P, hidden)` in float32, on `device`.

    Raises:
        RuntimeError: the model does not call its output embeddings.
    """
    ends = [ids[-max_tokens:] for ids in prompt_ids]
    order = sorted(range(len(ends)), key=lambda row: len(ends[row]))
    states = []
    with evaluating(model):
        for start in range(0, len(order), batch_size):
            states.append(_states(model, [ends[row] for row in order[start : start + batch_size]], device))
    rows = torch.empty(len(order), dtype=torch.long, device=device)
    rows[torch.tensor(order, device=device)] = torch.arange(len(order), device=device)
    return torch.cat(states)[rows]


def states_of_share(
    model: nn.Module,
    prompt_ids: Sequence[list[int]],
    accelerator: "Accelerator",
    batch_size: int,
    max_tokens: int = MOST_TOKENS,
) -> Tensor:
    """Return the [`prompt_states`] of P prompts. Each rank reads an equal share of them. Collective.

    The result is the same on all ranks. All ranks make the same number of forwards, which sharded models need.

    Args:
        model, prompt_ids, max_tokens, batch_size: as for [`prompt_states`]; all prompts, on every rank.
        accelerator (`Accelerator`): of the run.

    Returns:
        `Tensor`: `(P, hidden)` in float64, on the CPU.
    """
    share = math.ceil(len(prompt_ids) / accelerator.num_processes)
    own = list(prompt_ids[accelerator.process_index * share :][:share])
    own += [prompt_ids[0]] * (share - len(own))
    with accelerator.autocast():
        states = prompt_states(model, own, accelerator.device, max_tokens, batch_size)
    return accelerator.gather(states)[: len(prompt_ids)].to("cpu", torch.float64)


def _states(model: nn.Module, prompt_ids: list[list[int]], device: torch.device) -> Tensor:
    model = getattr(model, "_orig_mod", model)  # a compiled model has another signature, and may skip the hook
    causal = extract_model_from_parallel(model)
    causal = causal.get_base_model() if hasattr(causal, "get_base_model") else causal
    width = max(map(len, prompt_ids))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in prompt_ids], device=device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompt_ids], device=device)
    # Optional: without them the model makes more logits and a cache, and counts positions from the padding.
    options = {"logits_to_keep": 1, "use_cache": False, "position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0)}
    options = {name: value for name, value in options.items() if name in signature_of(type(causal).forward).parameters}
    head = causal.get_output_embeddings()
    _gather_for_backward(causal, head)
    hidden_states: list[Tensor] = []
    hook = head.register_forward_pre_hook(  # a copy, because a view would hold the states of all tokens
        lambda module, inputs: hidden_states.append(inputs[0][:, -1].to(torch.float32, copy=True))
    )
    try:
        model(input_ids=ids, attention_mask=mask, **options)
    finally:
        hook.remove()
    if not hidden_states:
        raise RuntimeError(f"{type(causal).__name__} does not call its output embeddings: its states cannot be read.")
    return hidden_states[-1]


def _gather_for_backward(causal: nn.Module, head: nn.Module) -> None:
    """Let DeepSpeed's ZeRO 3 gather the head's weights in each backward through the model.

    TRL's loss reads the weights without calling the head. DeepSpeed notices that only while they are not gathered.
    A forward that calls the head can leave them gathered; then DeepSpeed would free them before the backward.
    """
    for weight in head.parameters():
        if hasattr(weight, "ds_id"):
            import deepspeed

            deepspeed.zero.register_external_parameter(causal, weight)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode, without dropout and gradient checkpointing; then restore all modes."""
    training = [module for module in model.modules() if module.training]
    # Not by eval(): with `use_kernels`, transformers loads kernels there that have no backward, and loads those for
    # training only at a train() that finds the model in evaluation mode.
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
