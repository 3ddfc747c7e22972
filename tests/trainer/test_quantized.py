"""QLoRA: an adapter on weights of 4 bits, on a CPU. It needs bitsandbytes: `make test-quantized`."""

import math
from importlib.util import find_spec
from types import SimpleNamespace

import adapters
import peft
import pytest
import tiny_models
import torch
from compatibility_matrix import MODES
from compatibility_runs import Feature, Made, Models, only_the_adapter_moved, run
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import GRPOTrainer, ModelConfig

from trl_grpo_plus import GRPOPlusTrainer
from trl_grpo_plus.cli.check.estimate import Job, count, memory
from trl_grpo_plus.cli.check.model import _quantized_bytes
from trl_grpo_plus.trainer.vllm.adapter_merge import merge_in_copies


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


@pytest.mark.parametrize(("bits", "dtype"), [(4, torch.bfloat16), (4, torch.float32), (8, torch.bfloat16)])
def test_weights_take_the_estimated_bytes(tmp_path, bits, dtype):
    config = tiny_models.qwen2(hidden_size=128, intermediate_size=256, head_dim=64)
    tiny_models.Qwen2ForCausalLM(config).save_pretrained(tmp_path)
    of = BitsAndBytesConfig(load_in_4bit=bits == 4, load_in_8bit=bits == 8, bnb_4bit_compute_dtype=dtype)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=of, dtype=dtype)
    scales = [getattr(weight, "quant_state", None) for weight in model.parameters()]
    stored = sum(weight.nbytes for weight in model.parameters())
    stored += sum(state.absmax.nbytes for state in scales if state is not None)
    recipe = SimpleNamespace(model=ModelConfig(load_in_4bit=bits == 4, load_in_8bit=bits == 8))
    job = Job(1, 1, 1, 1, weight_bytes=dtype.itemsize, quantized_bytes=_quantized_bytes(recipe))
    assert memory(count(config), job).always["weights"] == pytest.approx(stored, rel=0.01)


def with_trained_adapter(folder):
    """Return a model of 4 bits with an adapter that changes it; the same one at each call."""
    torch.manual_seed(0)
    bits = quantized()["quantization_config"]
    model = AutoModelForCausalLM.from_pretrained(tiny_models.model_path(folder), quantization_config=bits)
    # In evaluation mode bitsandbytes packs weights for AVX-512 BF16, and refuses the widths of this model.
    return adapters.with_adapter(model.train(), target_modules="all-linear")


def unpacked(model):
    """Return the values of the weights of 4 bits, before the adapter."""
    from bitsandbytes.functional import dequantize_4bit
    from bitsandbytes.nn import Linear4bit

    layers = {name: module for name, module in model.named_modules() if isinstance(module, Linear4bit)}
    assert layers
    return {name: dequantize_4bit(layer.weight.data, layer.weight.quant_state) for name, layer in layers.items()}


def test_vllm_gets_what_trl_sends_and_the_weights_of_4_bits_stay(tmp_path):
    ours, theirs = with_trained_adapter(tmp_path), with_trained_adapter(tmp_path)
    before, ids = unpacked(ours), torch.tensor([[3, 4, 5]])
    logits = ours(ids).logits
    reading = adapters.reader(ours)
    merge_in_copies(reading)
    sent, again, stock = adapters.sent(reading), adapters.sent(reading), adapters.sent(adapters.reader(theirs))
    assert [name for name, _ in sent] == [name for name, _ in stock]
    assert tiny_models.same_weights(dict(sent), dict(stock))
    assert tiny_models.same_weights(dict(sent), dict(again))
    assert tiny_models.same_weights(unpacked(ours), before)
    assert torch.equal(ours(ids).logits, logits)
    assert not tiny_models.same_weights(unpacked(theirs), before)  # otherwise this would show nothing
