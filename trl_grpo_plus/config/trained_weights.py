"""Checks of the model that a run trains: its trained weights, their dtype, its dropout and its embeddings."""

from typing import TYPE_CHECKING, Any

import torch
from accelerate.logging import get_logger

from ..utils.text import as_text
from ..utils.validation import ConfigError


if TYPE_CHECKING:
    from trl import GRPOConfig


logger = get_logger(__name__)

LEAST_16_BIT_RATE = 1e-5  # learning rate below which updates of 16-bit weights are lost
OF_WHOLE_MODELS = 1e-6  # learning rate: TRL's default


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
    makes the weights float32. Optimizers with Kahan summation keep what is rounded off.
    """
    optimizer = str(getattr(args.optim, "value", args.optim))
    steps_alike = "adam" in optimizer or "lion" in optimizer
    kept = "kahan" in str(args.optim_args)
    return steps_alike and not kept and 0 < args.learning_rate < LEAST_16_BIT_RATE


def warn_of_lost_updates(args: "GRPOConfig", model: torch.nn.Module) -> None:
    """Warn on the main process if an unsharded model loses most updates in the rounding of its 16-bit weights.

    Adapters are left out: they begin near 0, where 16 bits hold small updates.
    """
    if hasattr(model, "peft_config") or not loses_updates(args):
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
        "rounding, so most weights never change. Load the weights in float32: dtype='float32' in from_pretrained or "
        "model_init_kwargs, or dtype: float32 in a recipe. With bf16=True the run still computes in bfloat16. If "
        "float32 does not fit, launch with DeepSpeed, which keeps float32 copies, or train an adapter."
    )


def dropout_disturbs(args: "GRPOConfig", share: float) -> str | None:
    """Return a warning if log-probs that a run compares have the noise of dropout; `None` otherwise.

    Args:
        args ([`~trl.GRPOConfig`]): configuration of the run.
        share (`float`): the largest share that dropout leaves out; 0 if there is none.
    """
    several = args.gradient_accumulation_steps % (args.steps_per_generation * args.num_iterations)
    corrects = args.use_vllm and args.vllm_importance_sampling_correction
    if not (share and (several or corrects or args.beta)) or args.disable_dropout:
        return None
    what = "The KL term contains this noise."
    if corrects:
        what = "vLLM samples without it, so the importance ratio of each step contains this noise."
    if several:
        what = "In later steps on a batch the importance ratio contains this noise, and clips tokens for it."
    return (
        f"The model has dropout ({share:g}). TRL samples and computes log-probs with it, so two passes over the same "
        f"attempt differ. {what} Set disable_dropout=True, or lora_dropout to 0 (0.05 is the default of TRL's "
        "ModelConfig, and so of recipes)."
    )


def hardly_moves(args: "GRPOConfig") -> str | None:
    """Return a warning if the learning rate is too small for an adapter; `None` otherwise."""
    if not 0 < args.learning_rate <= OF_WHOLE_MODELS:
        return None
    return (
        f"learning_rate={args.learning_rate:g} for an adapter: TRL's default is for whole models, and an adapter "
        "hardly moves at it. Set 1e-5 or more."
    )


def warn_of_slow_adapter(args: "GRPOConfig", model: torch.nn.Module) -> None:
    """Log the warning of [`hardly_moves`] on the main process."""
    if hasattr(model, "peft_config") and (why := hardly_moves(args)):
        logger.warning(why)


def warn_of_dropout(args: "GRPOConfig", model: torch.nn.Module) -> None:
    """Log the warning of [`dropout_disturbs`] on the main process."""
    layers = [layer.p for layer in model.modules() if isinstance(layer, torch.nn.Dropout)]
    if why := dropout_disturbs(args, max(layers, default=0)):
        logger.warning(why)


def warn_of_unknown_tokens(model: Any, tokenizer: Any, prompt: Any) -> None:
    """Warn on the main process of a first prompt with a token for which the model has no embedding.

    Some published tokenizers have such tokens, and no prompt has them.
    """
    try:
        rows = getattr(model.get_input_embeddings(), "num_embeddings", None)  # the weight may be sharded
    except NotImplementedError:  # of a model whose embeddings transformers does not find
        return
    if rows is None or len(tokenizer) <= rows or not prompt:
        return
    unknown = max(tokenizer(as_text(prompt), add_special_tokens=False)["input_ids"], default=0)
    if unknown < rows:
        return
    logger.warning(
        f"The first prompt has the token {tokenizer.convert_ids_to_tokens(unknown)!r}, for which the model has no "
        f"embedding: the tokenizer has {len(tokenizer):,} tokens, the model embeddings of {rows:,}. Such a prompt "
        "ends the run with 'index out of range', on a GPU with 'device-side assert triggered'. If you have added "
        "tokens, call model.resize_token_embeddings(len(tokenizer)) first."
    )
