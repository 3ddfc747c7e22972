"""Tiny models of the kinds that people train: each keeps the parts of its kind, and fits a tokenizer and GRPO."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from trl_grpo_plus.cli.check.tiny_model import END, PAD, build, byte_tokenizer, shrink, write


KINDS = [
    *("llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "mistral", "phi", "phi3", "olmo2", "granite"),
    *("smollm3", "qwen2_moe", "qwen3_moe", "mixtral", "gpt_oss", "gpt2", "gpt_neox", "starcoder2", "exaone4", "glm4"),
]
TEXT = 'Hé\n  <|im_start|>x 12+34=46 😀\tdef f(): return "a"'


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


@pytest.mark.parametrize("kind", KINDS)
def test_a_tiny_model_of_each_kind_runs_and_is_reproducible(kind, tokenizer):
    config = AutoConfig.for_model(kind)
    before = config.to_dict()
    small = shrink(config, tokenizer)
    assert config.to_dict() == before
    assert (small.model_type, small.vocab_size) == (kind, len(tokenizer))
    assert (small.eos_token_id, small.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    model = build(small)
    assert type(model) is AutoModelForCausalLM._model_mapping[type(config)]
    assert sum(weight.numel() for weight in model.parameters()) < 100_000
    ids = torch.tensor([tokenizer(TEXT)["input_ids"]])
    model(input_ids=ids, labels=ids).loss.backward()
    assert all(weight.grad is not None for name, weight in model.named_parameters() if "experts" not in name)
    again = build(small).state_dict()
    assert all(torch.equal(weight, again[name]) for name, weight in model.state_dict().items())


def test_the_traits_of_a_kind_stay(tokenizer):
    qwen = AutoConfig.for_model("qwen2", num_attention_heads=28, num_key_value_heads=4, tie_word_embeddings=True)
    small = shrink(qwen, tokenizer)
    assert (small.num_attention_heads, small.num_key_value_heads) == (2, 1)  # grouped-query attention
    assert small.tie_word_embeddings
    assert shrink(LlamaConfig(), tokenizer).num_key_value_heads == 2  # not grouped
    assert set(shrink(AutoConfig.for_model("gemma3_text"), tokenizer).layer_types) == {
        "sliding_attention",
        "full_attention",
    }
    assert shrink(AutoConfig.for_model("gemma2"), tokenizer).final_logit_softcapping == 30.0
    assert shrink(LlamaConfig(max_position_embeddings=777), tokenizer).max_position_embeddings == 777


def test_long_context_factors_for_another_width_are_removed(tokenizer):
    factors = {"rope_type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48, "rope_theta": 5000.0}
    config = AutoConfig.for_model("phi3", rope_parameters=factors, original_max_position_embeddings=4096)
    assert shrink(config, tokenizer).rope_parameters["rope_type"] == "default"
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048, "rope_theta": 5000.0}
    assert shrink(LlamaConfig(rope_parameters=yarn), tokenizer).rope_parameters["rope_type"] == "yarn"


def test_a_vision_model_becomes_its_text_model(tokenizer):
    small = shrink(AutoConfig.for_model("gemma3"), tokenizer)
    assert small.model_type == "gemma3_text"


def test_a_kind_that_cannot_be_made_tiny_is_named(tokenizer):
    with pytest.raises(ValueError, match="no tiny t5 could be made: ValueError: Unrecognized configuration class"):
        shrink(AutoConfig.for_model("t5"), tokenizer)


def test_a_tiny_model_is_saved_with_its_tokenizer(tokenizer, tmp_path):
    write(AutoConfig.for_model("qwen3"), tokenizer, str(tmp_path))
    model, loaded = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert model.generation_config.eos_token_id == loaded.eos_token_id
    assert loaded(TEXT)["input_ids"] == tokenizer(TEXT)["input_ids"]
    assert loaded.chat_template == tokenizer.chat_template


def test_the_tokenizer_of_bytes_decodes_what_it_encodes(tokenizer):
    ids = tokenizer(TEXT)["input_ids"]
    assert tokenizer.decode(ids) == TEXT
    assert len(ids) == len(TEXT.encode()) - len("<|im_start|>") + 1  # one for each byte, one for <|im_start|>
    assert tokenizer.decode([*tokenizer("4")["input_ids"], tokenizer.eos_token_id], skip_special_tokens=True) == "4"
    assert (tokenizer.eos_token, tokenizer.pad_token, tokenizer.padding_side) == (END, PAD, "left")
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    assert tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n"
    )
