"""What keeps training on a CPU from costing several times as much as it has to."""

from typing import Any

import torch
from torch import nn


def spare_copies(model: nn.Module) -> Any:
    """Hand the frozen map to the vocabulary its states in one piece, on a CPU.

    transformers hands it a slice, the states of the completion's tokens. A slice is not contiguous; of a weight that
    is frozen, as under LoRA, PyTorch's `matmul` makes a copy for each row of the batch then (`should_fold` in
    ATen/native/LinearAlgebra.cpp): 56 MB x 64 rows for SmolLM2-135M in bfloat16, at each generation's first token and
    in each forward of the training. The product is the same to the bit.

    Args:
        model (`nn.Module`): a model of transformers or PEFT, wrapped or not.

    Returns:
        The hook's handle, or `None` where it is not needed: the weight is trained, or is not on a CPU.
    """
    find = getattr(model, "get_output_embeddings", None)
    head = find() if callable(find) else None
    if not isinstance(head, nn.Linear) or head.weight.requires_grad or head.weight.device.type != "cpu":
        return None
    return head.register_forward_pre_hook(_in_one_piece)


def _in_one_piece(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (inputs[0].contiguous(), *inputs[1:])
