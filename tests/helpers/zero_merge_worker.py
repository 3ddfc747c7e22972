"""The script that test_zero_adapter_merge.py runs in each process: `python zero_merge_worker.py STAGE FOLDER`.

DeepSpeed shards a model with an adapter, and TRL's loop reads the weights for vLLM, as TRL does it and in copies. What
each process found is written to FOLDER.
"""

import json
import os
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path

import deepspeed
import tiny_models
import torch
from adapters import reader, sent, with_adapter
from transformers import Qwen2ForCausalLM

from trl_grpo_plus.trainer.vllm.adapter_merge import merge_in_copies


CONFIG = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_allow_untested_optimizer": True}


@contextmanager
def gathered(parameters):
    with deepspeed.zero.GatheredParameters(parameters):
        yield


def main(stage: int, folder: Path) -> None:
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else minutes go into compiling it
    deepspeed.init_distributed("gloo")
    torch.manual_seed(0)
    model = with_adapter(Qwen2ForCausalLM(tiny_models.qwen2()), target_modules="all-linear")
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    settings = {**CONFIG, "zero_optimization": {"stage": stage}}
    deepspeed.initialize(model=model, config=settings, optimizer=torch.optim.AdamW(trained, lr=1e-3))
    gather = gathered if stage == 3 else nullcontext
    engine = reader(model, gather)

    def whole():
        with gather(list(model.parameters())):
            return [weight.data.clone() for weight in model.parameters()]

    before = whole()
    merge_in_copies(engine)
    ours, after_ours = sent(engine), whole()
    del engine._iter_named_params
    theirs, after_theirs = sent(engine), whole()
    found = {
        "sharded": any(not weight.numel() for weight in model.parameters()),
        "same": all(a == b and torch.equal(x, y) for (a, x), (b, y) in zip(ours, theirs, strict=True)),
        "changed": not all(map(torch.equal, before, after_ours)),
        "changed by TRL": not all(map(torch.equal, before, after_theirs)),
    }
    (folder / os.environ["RANK"]).write_text(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
