"""An adapter merged for vLLM: vLLM gets what TRL would send, bit for bit, and the frozen weights stay as they are.

TRL's own loop reads the weights. It needs no engine.
"""

from contextlib import contextmanager

import peft
import pytest
import tiny_models
import torch
import trl
from adapters import reader, sent, with_adapter
from packaging.version import Version
from transformers import Qwen2ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from trl_grpo_plus.trainer.vllm import adapter_merge
from trl_grpo_plus.trainer.vllm.adapter_merge import merge_in_copies


pytestmark = pytest.mark.skipif(Version(trl.__version__) < Version("1.12"), reason="TRL before 1.12 sends otherwise")

ALL = {"target_modules": "all-linear"}
ADAPTERS = {
    "all layers": ALL,
    "some layers": {"target_modules": ["q_proj", "down_proj"]},
    "biases": {**ALL, "lora_bias": True},
    "dora": {**ALL, "use_dora": True},
    "rslora": {**ALL, "use_rslora": True},
    "embeddings": {"target_modules": ["embed_tokens", "v_proj"]},
    "embeddings and head": {"target_modules": ["embed_tokens", "lm_head"]},
    "a parameter": {"target_modules": ["q_proj"], "target_parameters": ["mlp.up_proj.weight"]},
    "a module trained as a whole": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
}
# PEFT wraps the module of the experts twice, once for each of its weights.
ADAPTERS["experts"] = {"target_modules": ["q_proj"]}
ADAPTERS["experts"]["target_parameters"] = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
EXPERTS = {"vocab_size": 20, "hidden_size": 16, "moe_intermediate_size": 8, "num_hidden_layers": 2, "head_dim": 8}
EXPERTS |= {"num_attention_heads": 2, "num_key_value_heads": 1, "num_experts": 4, "num_experts_per_tok": 2}
CASES = [(name, tied) for name in ADAPTERS for tied in (False, True)]


def adapted(name, tied=False):
    """Return a model in bfloat16 with an adapter that changes it; the same one at each call."""
    torch.manual_seed(0)
    if name == "experts":
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**EXPERTS, tie_word_embeddings=tied))
    else:
        model = Qwen2ForCausalLM(tiny_models.qwen2(tie_word_embeddings=tied))
    options = dict(ADAPTERS[name])
    if options["target_modules"] == "all-linear" and options.get("lora_bias"):
        options["target_modules"] = ["q_proj", "k_proj", "v_proj"]  # the layers that have a bias
    return with_adapter(model, **options)


def in_copies(model):
    made = reader(model)
    merge_in_copies(made)
    return made


def state(model):
    return {name: weight.clone() for name, weight in model.state_dict().items()}


def same(one, other):
    return len(one) == len(other) and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("name", "tied"), CASES)
def test_vllm_gets_what_trl_sends_and_no_weight_changes(name, tied):
    model = adapted(name, tied)
    before, made = state(model), in_copies(model)
    ours, again = sent(made), sent(made)
    assert same(state(model), before)
    theirs = sent(reader(adapted(name, tied)))
    assert [name for name, _ in ours] == [name for name, _ in theirs]
    assert same(dict(ours), dict(theirs))
    assert same(dict(again), dict(ours))
    with model.disable_adapter():
        frozen = {name: weight for name, weight in model.get_base_model().state_dict().items() if "lora" not in name}
    sent_base = {name.replace(".base_layer", ""): weight for name, weight in frozen.items()}
    assert any(not torch.equal(weight, sent_base.get(name, weight)) for name, weight in ours)


def test_trl_changes_the_frozen_weights():
    """Otherwise the test above would show nothing."""
    model = adapted("all layers")
    before = state(model)
    sent(reader(model))
    assert not same(state(model), before)


def merged_layers(model):
    return [module for module in model.modules() if getattr(module, "merged_adapters", None)]


def test_the_model_is_itself_while_a_weight_is_sent():
    model = adapted("all layers")
    ids = torch.tensor([[3, 4]])
    before, logits = state(model), model(ids).logits
    sending = in_copies(model)._iter_named_params()
    for number, _ in enumerate(sending):
        assert not merged_layers(model)
        assert number % 5 or torch.equal(model(ids).logits, logits)
    assert same(state(model), before)
    sending = in_copies(model)._iter_named_params()
    next(sending)  # as after an error of the engine, whose traceback keeps the generator
    model.merge_adapter()
    assert len(merged_layers(model)) > 1


def test_a_merge_that_fails_leaves_the_model_as_it_was(monkeypatch):
    model = adapted("all layers")
    before, merge = state(model), peft.tuners.lora.Linear.merge
    calls = []

    def failing(layer):
        merge(layer)
        calls.append(layer)
        if len(calls) == 3:
            raise RuntimeError("out of memory")

    monkeypatch.setattr(peft.tuners.lora.Linear, "merge", failing)
    with pytest.raises(RuntimeError, match="out of memory"):
        sent(in_copies(model))
    assert len(calls) == 3
    assert same(state(model), before)
    assert not merged_layers(model)


def test_layers_that_are_not_plain_are_left_to_trl(monkeypatch):
    """A layer with quantized weights, for one, makes new weights when it merges."""
    model = adapted("some layers")
    monkeypatch.setattr(adapter_merge, "PLAIN", (peft.tuners.lora.Embedding,))
    made = in_copies(model)
    assert "_iter_named_params" not in vars(made)
    before = state(model)
    sent(made)
    assert not same(state(model), before)


def test_a_trl_that_does_not_merge_while_it_reads_is_left_alone():
    """TRL's main branch merges before it reads, and restores the weights afterwards."""
    model = adapted("all layers")
    made = reader(model)
    made._iter_named_params = lambda: ((name, weight.data) for name, weight in model.named_parameters())
    merge_in_copies(made)
    assert all(weight.data_ptr() == model.get_parameter(name).data_ptr() for name, weight in made._iter_named_params())


@contextmanager
def gathered(parameters):
    """Fill weights inside the block that are empty outside it, as with ZeRO-3."""
    for weight in parameters:
        weight.data = weight.whole
    yield
    empty(parameters)


def empty(parameters):
    for weight in parameters:
        weight.data = torch.empty(0, dtype=weight.dtype)


def test_weights_that_trl_gathers_to_send_them():
    sharded = adapted("all layers")
    for weight in sharded.parameters():
        weight.whole = weight.data
    before = {name: weight.whole.clone() for name, weight in sharded.named_parameters()}
    empty(list(sharded.parameters()))
    made = in_copies(sharded)
    made._dist.gather_params = gathered
    assert same(dict(sent(made)), dict(sent(in_copies(adapted("all layers")))))
    assert same({name: weight.whole for name, weight in sharded.named_parameters()}, before)
