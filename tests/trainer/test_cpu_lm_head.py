"""Tests of the hook that makes the input of a frozen output head contiguous on a CPU."""

import pytest
import tiny_models
import torch
from peft import LoraConfig, get_peft_model
from torch.profiler import ProfilerActivity, profile
from transformers import LlamaConfig, LlamaForCausalLM

from trl_grpo_plus.trainer.cpu_lm_head import spare_copies


ROWS, TOKENS, VOCABULARY = 3, 7, 320


@pytest.fixture
def frozen():
    """Make a Llama with an adapter. Only the adapter is trained; the embeddings are tied, as in small models."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    return get_peft_model(model, LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM"))


def _forward(model):
    ids = torch.arange(ROWS * TOKENS).view(ROWS, TOKENS)
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        logits = model(input_ids=ids, logits_to_keep=4).logits
    # Of the head alone: the rotary embedding of transformers 5.8 has a bmm too.
    events = seen.key_averages(group_by_input_shape=True)
    return logits, {event.key for event in events if any(VOCABULARY in shape for shape in event.input_shapes)}


def test_the_same_logits_without_a_copy_of_the_weight_for_each_row(frozen):
    before, kernels = _forward(frozen)
    assert "aten::bmm" in kernels  # without bmm, PyTorch no longer copies the weight: remove cpu_lm_head.py
    handle = spare_copies(frozen)
    after, kernels = _forward(frozen)
    assert torch.equal(after, before)
    assert "aten::bmm" not in kernels
    handle.remove()
    assert "aten::bmm" in _forward(frozen)[1]


def test_a_weight_that_is_trained_is_left_alone(frozen):
    assert spare_copies(frozen.merge_and_unload().requires_grad_(True)) is None
    assert spare_copies(torch.nn.Linear(2, 2)) is None  # not a model of transformers


def test_a_float32_head_is_left_alone(frozen):
    assert spare_copies(frozen.float()) is None


def test_a_head_that_is_called_by_keyword_is_left_alone(frozen):
    spare_copies(frozen)
    frozen.get_output_embeddings()(input=torch.zeros(1, 2, 64, dtype=torch.bfloat16))


def test_the_trainer_makes_the_heads_input_contiguous(tmp_path):
    lora = LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM")
    options = {"model_init_kwargs": {"dtype": "bfloat16"}}
    trained = tiny_models.trainer(tmp_path, **options, extra={"peft_config": lora})
    seen = []
    trained.model.get_output_embeddings().register_forward_pre_hook(
        lambda module, inputs: seen.append(inputs[0].is_contiguous())
    )
    trained.train()
    assert seen
    assert all(seen)
