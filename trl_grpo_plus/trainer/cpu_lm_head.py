"""What keeps training on a CPU from costing several times as much as it has to."""

from typing import Any

import torch
from torch import nn


def spare_copies(model: nn.Module) -> Any:
    """Hand the frozen map to the vocabulary its states in one piece, on a CPU and in 16 bits.

    transformers hands it a slice, the states of the completion's tokens. A slice is not contiguous; of a weight that
    is frozen, as under LoRA, PyTorch's `matmul` makes a copy for each row of the batch then (`should_fold` in
    ATen/native/LinearAlgebra.cpp): 56 MB x 64 rows for SmolLM2-135M in bfloat16, at each generation's first token and
    in each forward of the training. The products are the same but for rounding, and of SmolLM2 to the bit. In float32
    they differ more often and the copy costs less: such models are left alone.

    Args:
        model (`nn.Module`): a model of transformers or PEFT, wrapped or not.

    Returns:
        The hook's handle, or `None` where it is not needed: the weight is trained, or has 32 bits.
    """
    find = getattr(model, "get_output_embeddings", None)
    head = find() if callable(find) else None
    if not isinstance(head, nn.Linear) or head.weight.requires_grad or head.weight.element_size() != 2:
        return None
    return head.register_forward_pre_hook(_in_one_piece)


def _in_one_piece(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    # The weights may come to an accelerator later, where there is no copy.
    if not inputs or inputs[0].device.type != "cpu":
        return inputs
    return (inputs[0].contiguous(), *inputs[1:])
