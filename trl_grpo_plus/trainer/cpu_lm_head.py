"""A hook that avoids copies of the output head's weight, which make training on a CPU several times slower."""

from typing import Any

import torch
from torch import nn


def spare_copies(model: nn.Module) -> Any:
    """Make the input of a frozen 16-bit output head contiguous on a CPU, to avoid copies of the weight.

    transformers gives the head a slice of the hidden states, those of the completion's tokens, which is not
    contiguous. If the weight is frozen, as under LoRA, PyTorch's `matmul` then copies the weight for each row of the
    batch (`should_fold` in ATen/native/LinearAlgebra.cpp): 56 MB x 64 rows for SmolLM2-135M in bfloat16, at each
    generation's first token and in each forward pass of the training. The products are the same up to rounding, and
    for SmolLM2 to the bit. In float32 they differ more often and the copy costs less, so such models are left alone.

    Args:
        model (`nn.Module`): a model of transformers or PEFT, wrapped or not.

    Returns:
        The hook's handle, or `None` if the hook is not needed: the weight is trained, or has 32 bits.
    """
    find = getattr(model, "get_output_embeddings", None)
    head = find() if callable(find) else None
    if not isinstance(head, nn.Linear) or head.weight.requires_grad or head.weight.element_size() != 2:
        return None
    return head.register_forward_pre_hook(_in_one_piece)


def _in_one_piece(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    # The model may move to an accelerator later, where no copy is made.
    if not inputs or inputs[0].device.type != "cpu":
        return inputs
    return (inputs[0].contiguous(), *inputs[1:])
