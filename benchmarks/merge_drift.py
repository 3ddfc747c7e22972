"""Measure how the frozen weights under an adapter drift while it is merged for vLLM, TRL's way and in copies.

    make real-model
    python benchmarks/merge_drift.py                        # some minutes on one core
    python benchmarks/merge_drift.py --bits 4               # QLoRA: it needs bitsandbytes, and more time

The model is SmolLM2-135M-Instruct, in bfloat16 or quantized to 4 bits (nf4), with LoRA of rank 32 on all linear layers
as in the recipe smollm2_135m_cpu. TRL's own loop reads the weights (`VLLMGeneration._iter_named_params`); there is no
engine. Between two sendings the adapter takes a random step, about as large as one of Adam's at the recipe's learning
rate. "In copies" is trl_grpo_plus/trainer/vllm/adapter_merge.py. The table has, after so many sendings:

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
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from trl.generation.vllm_generation import VLLMGeneration

from trl_grpo_plus.trainer.vllm.adapter_merge import merge_in_copies


MODEL = "outputs/SmolLM2-135M-Instruct"
STEP = 5e-4  # the recipe's learning rate: Adam moves a weight by about that much
TEXT = "What is 27 + 35? Answer with the number only. The sum of 27 and 35 is 62, since 20 + 30 is 50 and 7 + 5 is 12."


def adapted(bits: int) -> peft.PeftModel:
    """Return the model with a new adapter."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"dtype": torch.bfloat16}
    if bits == 4:
        nf4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
        options = {"dtype": torch.float32, "quantization_config": nf4}
    model = AutoModelForCausalLM.from_pretrained(MODEL, **options)
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
    in_float32 = model if getattr(model, "is_quantized", False) else copy.deepcopy(model).float()
    return in_float32(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])


def values(layer: torch.nn.Module) -> torch.Tensor:
    """Return the values of a layer's weight, in float32."""
    weight: Any = layer.weight
    if not hasattr(weight, "quant_state"):
        return weight.float()
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(weight.data, weight.quant_state).float()


@torch.no_grad()
def sent(in_copies: bool, bits: int, looks: list[int]) -> None:
    """Send the weights again and again, and print a line at each of `looks`."""
    model = adapted(bits)
    engine, chance, seconds = engine_of(model, in_copies), torch.Generator().manual_seed(0), []
    adapter = [weight for weight in model.parameters() if weight.requires_grad]
    layers = [module for module in model.modules() if isinstance(module, peft.tuners.lora.LoraLayer)]
    first = [copy.deepcopy(layer.get_base_layer()) for layer in layers]
    for sending in range(1, max(looks) + 1):
        for weight in adapter:
            weight += STEP * torch.randn(weight.shape, generator=chance).sign().to(weight.dtype)
        start = time.perf_counter()
        for _ in engine._iter_named_params():
            pass
        seconds.append(time.perf_counter() - start)
        if sending in looks:
            now = [layer.get_base_layer() for layer in layers]
            apart, changed, moved = 0.0, 0, 0.0
            for layer, own, base in zip(layers, first, now, strict=True):
                change = values(base) - values(own)
                apart, changed = apart + float(change.square().sum()), changed + int((change != 0).sum())
                moved += float(layer.get_delta_weight("default").float().square().sum())
            drifted = log_probs(model)
            for layer, own in zip(layers, first, strict=True):
                layer.base_layer = own
            nats = float((log_probs(model) - drifted).abs().mean())
            for layer, base in zip(layers, now, strict=True):
                layer.base_layer = base
            share = changed / sum(layer.in_features * layer.out_features for layer in layers)
            cells = (f"{sending}", f"{share:.1%}", f"{(apart / moved) ** 0.5:.2f}", f"{nats:.4f}")
            print(f"| {'in copies' if in_copies else 'TRL'} | {' | '.join(cells)} |", end="")
            print(f" {statistics.median(seconds):.1f} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sendings", type=int, nargs="+", default=[1, 10, 100], help="after how many to measure")
    parser.add_argument("--bits", type=int, choices=[4, 16], default=16, help="of a frozen weight")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| merged | sendings | changed | of the adapter | nats | seconds |\n|---|---|---|---|---|---|")
    for in_copies in (False, True):
        sent(in_copies, options.bits, options.sendings)


if __name__ == "__main__":
    main()
