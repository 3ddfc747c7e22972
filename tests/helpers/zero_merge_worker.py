"""The script that test_zero_adapter_merge.py runs in each process: `python zero_merge_worker.py STAGE FOLDER`.

DeepSpeed shards a model with an adapter, and TRL's loop reads the weights for vLLM, as TRL does it and in copies. What
each process found is written to FOLDER.
"""

import json
import os
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import deepspeed
import peft
import tiny_models
import torch
from transformers import Qwen2ForCausalLM
from trl.generation.vllm_generation import VLLMGeneration

from trl_grpo_plus.trainer.adapter_merge import merge_in_copies


CONFIG = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_allow_untested_optimizer": True}


def adapted() -> peft.PeftModel:
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(tiny_models.qwen2()).to(torch.bfloat16)
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data.add_(0.1 * torch.randn_like(weight))
    return model


@contextmanager
def gathered(parameters):
    with deepspeed.zero.GatheredParameters(parameters):
        yield


def main(stage: int, folder: Path) -> None:
    deepspeed.init_distributed("gloo")
    model = adapted()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    settings = {**CONFIG, "zero_optimization": {"stage": stage}}
    deepspeed.initialize(model=model, config=settings, optimizer=torch.optim.AdamW(trained, lr=1e-3))
    gather = gathered if stage == 3 else lambda parameters: nullcontext()
    engine = object.__new__(VLLMGeneration)
    engine.model, engine._dist = model, SimpleNamespace(is_fsdp=False, gather_params=gather)

    def whole():
        with gather(list(model.parameters())):
            return [weight.data.clone() for weight in model.parameters()]

    def sent():
        return [(name, weight.clone()) for name, weight in engine._iter_named_params()]

    before = whole()
    merge_in_copies(engine)
    ours, after_ours = sent(), whole()
    del engine._iter_named_params
    theirs, after_theirs = sent(), whole()
    found = {
        "sharded": any(not weight.numel() for weight in model.parameters()),
        "same": all(a == b and torch.equal(x, y) for (a, x), (b, y) in zip(ours, theirs, strict=True)),
        "changed": not all(map(torch.equal, before, after_ours)),
        "changed by TRL": not all(map(torch.equal, before, after_theirs)),
    }
    (folder / os.environ["RANK"]).write_text(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
