"""Checks of the weights that a run trains: that there are any, and that their dtype holds the optimizer's updates."""

from typing import TYPE_CHECKING

import torch
from accelerate.logging import get_logger

from ..utils.validation import ConfigError


if TYPE_CHECKING:
    from trl import GRPOConfig


logger = get_logger(__name__)

LEAST_16_BIT_RATE = 1e-5  # learning rate below which updates of 16-bit weights are lost


def check_trained(model: torch.nn.Module) -> None:
    """Refuse to train a model in which no weight is trained.

    TRL would train such a model without an error if it has gradient checkpointing (then the gradient is 0), or an
    adapter and a KL term (then the gradient looks healthy): the optimizer has no weights.

    Raises:
        ConfigError: no weight of the model requires a gradient.
    """
    if any(weight.requires_grad for weight in model.parameters()):
        return
    if hasattr(model, "peft_config"):
        raise ConfigError(
            "no weight of the model is trained: its adapter is frozen, as PeftModel.from_pretrained loads it. Load "
            "the adapter with is_trainable=True."
        )
    raise ConfigError(
        "no weight of the model is trained (requires_grad is False for all). Call requires_grad_(True) on the weights "
        "to train, or give a peft_config to train an adapter."
    )


def loses_updates(args: "GRPOConfig") -> bool:
    """Return whether 16-bit weights would lose most updates in rounding.

    A bfloat16 has 8 significant bits. The neighbours of 0.02, a common size of a weight, are 1e-4 away, and an AdamW
    step is about as large as the learning rate. DeepSpeed keeps float32 copies of the weights. Under FSDP, accelerate
    makes the weights float32.
    """
    adam = "adam" in str(getattr(args.optim, "value", args.optim))
    return adam and 0 < args.learning_rate < LEAST_16_BIT_RATE


def warn_of_lost_updates(args: "GRPOConfig", model: torch.nn.Module) -> None:
    """Warn if most updates of a model that is not sharded are lost in the rounding of its 16-bit weights.

    Adapters are left out: they begin near 0, where 16 bits hold small updates.
    """
    if args.process_index or hasattr(model, "peft_config") or not loses_updates(args):
        return
    counts = {torch.float32: 0, torch.bfloat16: 0, torch.float16: 0}
    for weight in model.parameters():
        if weight.requires_grad and weight.dtype in counts:
            counts[weight.dtype] += weight.numel()
    most = max(counts, key=lambda dtype: counts[dtype])
    if most == torch.float32:
        return
    name = str(most).removeprefix("torch.")
    logger.warning(
        f"The model's weights are {name}, and learning_rate is {args.learning_rate:g}: nearly all updates are lost in "
        "rounding, so the model does not learn. Load the weights in float32: dtype='float32' in from_pretrained or "
        "model_init_kwargs, or dtype: float32 in a recipe. With bf16=True the run still computes in bfloat16. If "
        "float32 does not fit, launch with DeepSpeed, which keeps float32 copies, or train an adapter."
    )
