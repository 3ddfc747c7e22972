"""Models with adapters, and the part of TRL's vLLM engine that reads their weights. It needs no vLLM."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import peft
import torch
from trl.generation.vllm_generation import VLLMGeneration


READS_FSDP2 = hasattr(VLLMGeneration, "_iter_fsdp2_params")  # TRL reads the weights before it sends them


def with_adapter(model: Any, **options: Any) -> peft.PeftModel:
    """Return a model with a LoRA adapter that changes it. Weights that are not quantized become bfloat16."""
    base = model if getattr(model, "is_quantized", False) else model.to(torch.bfloat16)
    adapted = peft.get_peft_model(base, peft.LoraConfig(r=4, lora_alpha=8, **options))
    for weight in adapted.parameters():
        if weight.requires_grad:
            weight.data.add_(0.1 * torch.randn_like(weight))
    return adapted


def reader(model: Any, gather: Any = nullcontext) -> VLLMGeneration:
    """Return an engine whose `_iter_named_params` reads the model, inside `gather(parameters)`."""
    engine = object.__new__(VLLMGeneration)
    engine.model, engine._dist = model, SimpleNamespace(is_fsdp=False, gather_params=gather)
    return engine


def sent(engine: Any) -> list[tuple[str, torch.Tensor]]:
    """Return copies of the weights that an engine would send, with their names."""
    return [(name, weight.clone()) for name, weight in engine._iter_named_params()]
