"""QLoRA: an adapter on weights of 4 bits, on a CPU. It needs bitsandbytes: `make test-quantized`."""

import math
from importlib.util import find_spec

import peft
import pytest
import tiny_models
import torch
from compatibility_matrix import MODES
from compatibility_runs import Feature, Made, Models, only_the_adapter_moved, run
from transformers import BitsAndBytesConfig
from trl import GRPOTrainer

from trl_grpo_plus import GRPOPlusTrainer


pytestmark = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="no bitsandbytes here: make test-quantized")


def quantized():
    """Return the trainer's arguments for QLoRA."""
    bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    adapter = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return {"quantization_config": bits, "peft_config": adapter}


def made(models, seen):
    return Made(extra=quantized())


QLORA = Feature("QLoRA", make=made, check=only_the_adapter_moved)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return Models(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("mode", MODES)
def test_each_mode(models, tmp_path, mode):
    done = run(models, QLORA, MODES[mode], tmp_path / "run")
    layer = done.trainer.model.base_model.model.model.layers[0].self_attn.q_proj
    assert type(layer).__name__ == "Linear4bit"
    assert all(map(math.isfinite, tiny_models.losses(done.trainer)))
    MODES[mode].check(done)
    QLORA.check(done)


@pytest.mark.parametrize("options", [{}, {"beta": 0.1}], ids=str)
def test_the_defaults_are_trl(tmp_path, options):
    ours, theirs = (
        tiny_models.trained(tmp_path / cls.__name__, tiny_models.digits, cls, extra=quantized(), **options)
        for cls in (GRPOPlusTrainer, GRPOTrainer)
    )
    tiny_models.assert_same(ours, theirs)


@pytest.mark.parametrize("options", [{}, {"zero_variance_groups": "resample", "steps_per_generation": 2}], ids=str)
def test_a_resumed_run_equals_one_that_never_stopped(tmp_path, options):
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1, "extra": quantized(), **options}
    whole = tiny_models.trained(tmp_path, **options)
    resumed = tiny_models.trainer(tmp_path, **options)
    resumed.train(resume_from_checkpoint=f"{whole.args.output_dir}/checkpoint-1")
    tiny_models.assert_same(resumed, whole)
    trained = [weight.dtype for weight in resumed.model.parameters() if weight.requires_grad]
    assert set(trained) == {torch.bfloat16}
