"""Tests of the checks of the weights that a run trains."""

import copy

import pytest
import tiny_models
import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from trl_grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from trl_grpo_plus.config import trained_weights
from trl_grpo_plus.utils.validation import ConfigError


def made(folder, model, optimizer=None, **options):
    config = GRPOPlusConfig(str(folder / "run"), **{**tiny_models.BASE, **options})
    given = {"processing_class": tiny_models.tokenizer(), "optimizers": (optimizer, None)}
    return GRPOPlusTrainer(model, tiny_models.digits, config, tiny_models.prompts(8), **given)


def loaded(folder, dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(tiny_models.model_path(folder), dtype=dtype)


@pytest.mark.parametrize("options", [{}, {"beta": 0.04}, {"gradient_checkpointing": True}])
def test_an_adapter_loaded_frozen_is_refused_before_a_batch_is_sampled(tmp_path, options):
    """With the last two TRL would train all steps without an error, and change no weight."""
    adapter = LoraConfig(r=2, target_modules=["q_proj"])
    get_peft_model(loaded(tmp_path), adapter).save_pretrained(tmp_path / "adapter")
    trainer = made(tmp_path, PeftModel.from_pretrained(loaded(tmp_path), tmp_path / "adapter"), **options)
    with pytest.raises(ConfigError, match=r"its adapter is frozen, .* with is_trainable=True"):
        trainer.train()
    assert not (tmp_path / "run" / "rollouts").exists()
    live = PeftModel.from_pretrained(loaded(tmp_path), tmp_path / "adapter", is_trainable=True)
    made(tmp_path, live, max_steps=1, **options).train()


def test_a_frozen_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no weight of the model is trained .*peft_config"):
        made(tmp_path, loaded(tmp_path).requires_grad_(False)).train()


SMALL = {"learning_rate": 1e-6}


@pytest.mark.parametrize(
    ("dtype", "options", "warned"),
    [
        (torch.bfloat16, SMALL, True),
        (torch.float16, SMALL, True),
        (torch.float32, SMALL, False),
        (torch.bfloat16, {"learning_rate": 1e-5}, False),
        (torch.bfloat16, {**SMALL, "optim": "sgd"}, False),
        (torch.bfloat16, {**SMALL, "optim": "adamw_anyprecision", "optim_args": "use_kahan_summation=True"}, False),
    ],
)
def test_updates_that_16_bits_lose_are_warned_of(tmp_path, caplog, dtype, options, warned):
    made(tmp_path, loaded(tmp_path, dtype), **options)
    said = [record.getMessage() for record in caplog.records if record.name == trained_weights.__name__]
    assert len(said) == warned
    if warned:
        assert f"The model's weights are {str(dtype)[6:]}, and learning_rate is 1e-06: nearly all" in said[0]


def test_an_optimizer_of_the_script_and_an_adapter_on_16_bit_weights_lose_no_updates(tmp_path, caplog):
    model = loaded(tmp_path, torch.bfloat16)
    made(tmp_path, model, torch.optim.AdamW(model.parameters(), lr=1e-6), **SMALL)
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"]))
    made(tmp_path, adapted, learning_rate=2e-6)
    made(tmp_path, adapted, torch.optim.AdamW(adapted.parameters(), lr=1e-4))
    assert not [record for record in caplog.records if record.name == trained_weights.__name__]


def test_a_learning_rate_for_whole_models_is_warned_of_with_an_adapter(tmp_path, caplog):
    made(tmp_path, get_peft_model(loaded(tmp_path), LoraConfig(r=2, target_modules=["q_proj"])), **SMALL)
    [record] = [record for record in caplog.records if record.name == trained_weights.__name__]
    assert "learning_rate=1e-06 for an adapter" in record.getMessage()


def test_the_warning_is_true(tmp_path):
    """The random initial weights are larger than those of a language model, so some of the smallest change."""
    shares = {}
    for dtype in (torch.float32, torch.bfloat16):
        trainer = made(tmp_path, loaded(tmp_path, dtype), **SMALL)
        before = tiny_models.weights(trainer)
        trainer.train()
        changed = sum((now != before[name]).sum() for name, now in tiny_models.weights(trainer).items())
        shares[dtype] = float(changed) / sum(value.numel() for value in before.values())
    assert shares[torch.bfloat16] < 0.05
    assert shares[torch.float32] > 0.7


@pytest.mark.parametrize(
    ("dropout", "options", "said"),
    [
        (0.05, {"num_iterations": 2}, "The model has dropout (0.05)."),
        (0.05, {"beta": 0.04}, "The KL term contains this noise."),
        (0.05, {"num_iterations": 2, "disable_dropout": True}, None),
        (0.05, {}, None),  # one step on each batch: the ratio is 1
        (0.0, {"num_iterations": 2}, None),
    ],
)
def test_dropout_that_disturbs_what_log_probs_are_compared_for(tmp_path, caplog, dropout, options, said):
    """With the learning rate 0 all tokens that are clipped are noise."""
    adapter = LoraConfig(r=4, target_modules="all-linear", lora_dropout=dropout, init_lora_weights=False)
    model = get_peft_model(loaded(tmp_path), adapter)
    trainer = made(tmp_path, model, learning_rate=0.0, max_steps=2, **options)
    logged = [record.getMessage() for record in caplog.records if record.name == trained_weights.__name__]
    assert len(logged) == bool(said)
    assert said is None or said in logged[0]
    trainer.train()
    clipped = [entry["clip_ratio/region_mean"] for entry in trainer.state.log_history[:2]]
    assert any(clipped) == bool(said and "num_iterations" in options)


def test_tokens_without_an_embedding_are_warned_of(tmp_path, caplog):
    tokenizer = copy.deepcopy(tiny_models.tokenizer())
    tokenizer.add_tokens(["<think>"])
    data = Dataset.from_dict({"prompt": ["1+1=<think>"] * 8})
    given = {"processing_class": tokenizer, "train_dataset": data}
    config = GRPOPlusConfig(str(tmp_path / "run"), **{**tiny_models.BASE, "max_steps": 1})
    trainer = GRPOPlusTrainer(loaded(tmp_path), tiny_models.digits, config, **given)
    [record] = [record for record in caplog.records if record.name == trained_weights.__name__]
    assert "The first prompt has the token '<think>', for which the model has no embedding" in record.getMessage()
    assert "the tokenizer has 19 tokens, the model embeddings of 18. Such a prompt ends" in record.getMessage()
    with pytest.raises(IndexError, match="index out of range"):
        trainer.train()
    model = loaded(tmp_path)
    model.resize_token_embeddings(len(tokenizer))
    caplog.clear()
    GRPOPlusTrainer(model, tiny_models.digits, config, **given).train()
    unused = {**given, "train_dataset": tiny_models.prompts(8)}  # as with published tokenizers that have more tokens
    GRPOPlusTrainer(loaded(tmp_path), tiny_models.digits, config, **unused)
    assert not [record for record in caplog.records if record.name == trained_weights.__name__]
