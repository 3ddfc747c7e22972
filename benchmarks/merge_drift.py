"""Measure how the frozen weights under an adapter drift while it is merged for vLLM, TRL's way and in copies.

    make real-model
    python benchmarks/merge_drift.py                        # some minutes on one core

The model is SmolLM2-135M-Instruct in bfloat16 with LoRA of rank 32 on all linear layers, as in the recipe
smollm2_135m_cpu. TRL's own loop reads the weights (`VLLMGeneration._iter_named_params`); there is no engine. Between
two sendings the adapter takes a random step, about as large as one of Adam's at the recipe's learning rate. "In
copies" is trl_grpo_plus/trainer/adapter_merge.py. The table has, after so many sendings:

| column | |
|---|---|
| changed | share of the frozen weights under the adapter that differ from those of the start |
| of the adapter | norm of their change, over the norm of the change that the adapter itself makes |
| nats | mean difference per token of the log-probs: the model in memory, and its adapter on the weights of the start |
| seconds | median of a sending |
"""

import argparse
import copy
import statistics
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import peft
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.generation.vllm_generation import VLLMGeneration

from trl_grpo_plus.trainer.adapter_merge import merge_in_copies


MODEL = "outputs/SmolLM2-135M-Instruct"
STEP = 5e-4  # the recipe's learning rate: Adam moves a weight by about that much
TEXT = "What is 27 + 35? Answer with the number only. The sum of 27 and 35 is 62, since 20 + 30 is 50 and 7 + 5 is 12."


def adapted() -> peft.PeftModel:
    """Return the model with a new adapter."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16)
    return peft.get_peft_model(model, peft.LoraConfig(r=32, lora_alpha=64, target_modules="all-linear"))


def engine_of(model: Any, in_copies: bool) -> Any:
    """Return TRL's part of an engine that reads the weights."""
    engine: Any = object.__new__(VLLMGeneration)
    engine.model = model
    engine._dist = SimpleNamespace(is_fsdp=False, gather_params=lambda parameters: nullcontext())
    if in_copies:
        merge_in_copies(engine)
    return engine


@torch.no_grad()
def log_probs(model: Any) -> torch.Tensor:
    """Return the log-prob of each token of the text, computed in float32: bfloat16 would add its own rounding."""
    ids = AutoTokenizer.from_pretrained(MODEL)(TEXT, return_tensors="pt").input_ids
    return copy.deepcopy(model).float()(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])


@torch.no_grad()
def sent(in_copies: bool, looks: list[int]) -> None:
    """Send the weights again and again, and print a line at each of `looks`."""
    model = adapted()
    engine, chance, seconds = engine_of(model, in_copies), torch.Generator().manual_seed(0), []
    adapter = [weight for weight in model.parameters() if weight.requires_grad]
    layers = [module for module in model.modules() if isinstance(module, peft.tuners.lora.LoraLayer)]
    first = [layer.get_base_layer().weight.clone() for layer in layers]
    for sending in range(1, max(looks) + 1):
        for weight in adapter:
            weight += STEP * torch.randn(weight.shape, generator=chance).sign().to(weight.dtype)
        start = time.perf_counter()
        for _ in engine._iter_named_params():
            pass
        seconds.append(time.perf_counter() - start)
        if sending in looks:
            now = [layer.get_base_layer().weight for layer in layers]
            changed = sum(int((a != b).sum()) for a, b in zip(now, first, strict=True))
            apart = sum(float((a.float() - b.float()).square().sum()) for a, b in zip(now, first, strict=True))
            moved = sum(float(layer.get_delta_weight("default").float().square().sum()) for layer in layers)
            drifted, held = log_probs(model), [weight.clone() for weight in now]
            for weight, own in zip(now, first, strict=True):
                weight.copy_(own)
            nats = float((log_probs(model) - drifted).abs().mean())
            for weight, own in zip(now, held, strict=True):
                weight.copy_(own)
            share = changed / sum(weight.numel() for weight in now)
            cells = (f"{sending}", f"{share:.1%}", f"{(apart / moved) ** 0.5:.2f}", f"{nats:.4f}")
            print(f"| {'in copies' if in_copies else 'TRL'} | {' | '.join(cells)} |", end="")
            print(f" {statistics.median(seconds):.1f} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sendings", type=int, nargs="+", default=[1, 10, 100], help="after how many to measure")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| merged | sendings | changed | of the adapter | nats | seconds |\n|---|---|---|---|---|---|")
    for in_copies in (False, True):
        sent(in_copies, options.sendings)


if __name__ == "__main__":
    main()
