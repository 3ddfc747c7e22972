"""A model's numbers from its `config.json`, counted on a model without memory (PyTorch's meta device)."""

from typing import Any

import torch

from .estimate import Shape


NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # of a config, by the kind of model


def count(config: Any, peft_config: Any = None) -> Shape:
    """The shape of a causal language model.

    Args:
        config (`PretrainedConfig`): of the model.
        peft_config (`peft.PeftConfig`, *optional*): of the adapter that is trained.

    Raises:
        ValueError: the installed transformers cannot build it, or the adapter does not fit it.
    """
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        if peft_config is not None:
            from peft import get_peft_model

            model = get_peft_model(model, peft_config)
    named = list(model.named_parameters())
    parameters = sum(weight.numel() for _, weight in named)
    text = config.get_text_config()
    # Of linear maps: what an embedding looks up has no width, and its adapter is in `lora_embedding_A`.
    adapted = [module for module in model.modules() if getattr(module, "lora_A", None)]
    experts = sum(weight.numel() for name, weight in named if ".experts." in name)
    per_token, all_experts = _experts(text)
    embedding = 0 if text.tie_word_embeddings else text.vocab_size * text.hidden_size  # looked up, not multiplied by
    heads = text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    feed_forward = getattr(text, "moe_intermediate_size", None) if experts else None
    return Shape(
        parameters=parameters,
        active=round(parameters - embedding - experts * (1 - per_token / all_experts)),
        trained=sum(weight.numel() for _, weight in named if weight.requires_grad),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        queries=heads * head_dim,
        keys=(getattr(text, "num_key_value_heads", None) or heads) * head_dim,
        feed_forward=(feed_forward or getattr(text, "intermediate_size", None) or 4 * text.hidden_size) * per_token,
        words=text.vocab_size,
        adapted=tuple(module.in_features for module in adapted),
        ranks=sum(sum(module.r.values()) for module in adapted),
    )


def context_of(config: Any) -> int | None:
    """Most tokens that the model was made for, where its config tells."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def _experts(text: Any) -> tuple[int, int]:
    """How many a token passes through, and how many there are."""
    every = next((count for name in NUM_EXPERTS if (count := getattr(text, name, None))), None)
    return ((getattr(text, "num_experts_per_tok", None) or 1), every) if every else (1, 1)
