"""What works in TRL passes the checks of options, however odd it looks. Refusals are in test_mistakes.py."""

from types import SimpleNamespace

import pytest
import tiny_models
from transformers import AttentionInterface
from transformers.trainer_utils import FSDPOption, SchedulerType

from trl_grpo_plus import GRPOPlusConfig
from trl_grpo_plus.launch.option_checks import unknown_attention, wrong_options
from trl_grpo_plus.launch.recipe import _check_fsdp
from trl_grpo_plus.utils.validation import ConfigError


MODEL = {"load_in_4bit": False, "load_in_8bit": False, "use_peft": False, "lora_alpha": 32, "dtype": "float32"}
NEEDED = {
    "cosine_with_min_lr": {"min_lr": 1e-3},
    "cosine_warmup_with_min_lr": {"min_lr_rate": 0.1},
    "warmup_stable_decay": {"num_decay_steps": 10},
    "polynomial": {"lr_end": 1e-4},
}


def wrong(folder, **options):
    args = GRPOPlusConfig(str(folder / "out"), **{**tiny_models.BASE, **options})
    return wrong_options(args, SimpleNamespace(**MODEL), generates=True)


@pytest.mark.parametrize("schedule", [kind.value for kind in SchedulerType])
@pytest.mark.parametrize("max_steps", [3, -1])
def test_each_schedule_passes_with_its_own_arguments(tmp_path, schedule, max_steps):
    measured = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "reward"}
    options = {"lr_scheduler_type": schedule, "lr_scheduler_kwargs": NEEDED.get(schedule), "max_steps": max_steps}
    assert wrong(tmp_path, **options, **measured, warmup_steps=2) == []


@pytest.mark.parametrize("learning_rate", [0.0, 1e-8])
def test_a_schedule_is_made_with_the_learning_rate_of_the_run(tmp_path, learning_rate):
    (why,) = wrong(tmp_path, lr_scheduler_type="polynomial", learning_rate=learning_rate)
    assert "lr_end (1e-07) must be smaller than initial lr" in why


@pytest.mark.parametrize(
    "options",
    [
        {"optim_args": "rank=64, scale=0.5"},
        {"optim_args": ""},
        {"torch_compile_backend": "aot_eager"},
        {"torch_compile_backend": "INDUCTOR"},
        {"model_init_kwargs": {"dtype": "auto"}},
        {"model_init_kwargs": {"dtype": None}},
        {"save_strategy": "best", "metric_for_best_model": "reward"},
        {"save_strategy": "best", "load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 1},
        {"dataloader_persistent_workers": True, "dataloader_num_workers": 1},
        {"sync_ref_model": True, "beta": 0.1},
    ],
    ids=str,
)
def test_what_works_in_trl_passes(tmp_path, options):
    assert wrong(tmp_path, **options) == []


def attention(name, **options):
    training_args = SimpleNamespace(**{"model_init_kwargs": None, "trust_remote_code": False, **options})
    return unknown_attention(training_args, SimpleNamespace(attn_implementation=name))


@pytest.mark.parametrize(
    "name",
    [None, "eager", "sdpa", "flex_attention", "flash_attention_2", "paged|sdpa", "kernels-community/flash-attn2"],
)
def test_an_attention_of_transformers_or_the_hub_passes(name):
    assert attention(name) is None


def test_an_attention_that_a_function_registered_passes(monkeypatch):
    assert "Did you mean sdpa" in attention("sdpa2")
    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa2", len)
    assert attention("sdpa2") is None
    assert attention("of the model's own code", trust_remote_code=True) is None


@pytest.mark.parametrize("given", [None, True, "", *(option.value for option in FSDPOption), "full_shard auto_wrap"])
def test_the_words_of_fsdp_pass(given):
    _check_fsdp(given)
    if isinstance(given, str) and given:
        with pytest.raises(ConfigError, match="fsdp: 'nope' is not one of full_shard"):
            _check_fsdp(f"{given} nope")
