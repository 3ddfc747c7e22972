"""Tests of warnings and refusals of options that do not go with the model or the processes."""

from types import SimpleNamespace

import pytest
import tiny_models
import torch
from accelerate.parallelism_config import ParallelismConfig

from trl_grpo_plus import GRPOPlusConfig
from trl_grpo_plus.config import compatibility
from trl_grpo_plus.utils.validation import ConfigError


MASKED = {"use_vllm": True, "mask_truncated_completions": True}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({**MASKED, "generation_kwargs": {"stop": ["</answer>"]}}, "stop=['</answer>']"),
        ({**MASKED, "generation_kwargs": {"stop_token_ids": [1, 5]}}, "stop_token_ids=[5]"),
        ({**MASKED, "generation_kwargs": {"stop_token_ids": [1], "stop": None}}, None),  # 1 ends attempts anyway
        ({**MASKED, "generation_kwargs": {"min_tokens": 3}}, None),
        (MASKED, None),
        ({"use_vllm": True, "generation_kwargs": {"stop": ["</answer>"]}}, None),
    ],
)
def test_stops_that_are_masked(tmp_path, caplog, options, named):
    config = GRPOPlusConfig(str(tmp_path), bf16=False, use_cpu=True, report_to="none", **options)
    compatibility.warn_of_masked_stops(config, ends={0, 1})
    said = [record.getMessage() for record in caplog.records if record.name == compatibility.__name__]
    assert len(said) == bool(named)
    if named:
        assert f"generation_kwargs has {named}. TRL counts an attempt that ends there as truncated" in said[0]
        assert said[0].endswith("leaves truncated attempts out of the loss. Leave one of the two out.")


CONTINUOUS = {"use_transformers_continuous_batching": True}


@pytest.mark.parametrize(
    ("options", "frozen", "named"),
    [
        ({**CONTINUOUS, "bf16": True}, False, "bf16=True: TRL rounds the model's weights to bfloat16"),
        ({**CONTINUOUS, "bf16": True}, True, None),
        ({**CONTINUOUS, "bf16": False}, False, None),
        ({"bf16": True}, False, None),
    ],
)
def test_weights_that_trl_rounds(tmp_path, caplog, options, frozen, named):
    config = GRPOPlusConfig(str(tmp_path), use_cpu=True, report_to="none", **options)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).bfloat16())
    model[0].requires_grad_(not frozen)
    compatibility.warn_of_rounded_weights(config, model)
    said = [record.getMessage() for record in caplog.records if record.name == compatibility.__name__]
    assert len(said) == bool(named)
    if named:
        assert f"use_transformers_continuous_batching=True with {named}" in said[0]
        assert "Set bf16=False" in said[0]


@pytest.mark.parametrize("size", ["tp_size", "cp_size", "sp_size"])
def test_processes_that_share_rows_are_refused(size):
    """accelerate reads the sizes from its configuration, and transformers sets `tp_size` for a `tp_plan`."""
    sizes = ParallelismConfig(dp_replicate_size=2)
    compatibility.check_parallelism(SimpleNamespace(parallelism_config=sizes))
    compatibility.check_parallelism(SimpleNamespace(parallelism_config=None))
    setattr(sizes, size, 2)
    with pytest.raises(ConfigError, match=f"^{size}=2: .*FSDP or DeepSpeed"):
        compatibility.check_parallelism(SimpleNamespace(parallelism_config=sizes))


def test_a_trainer_checks_its_own_accelerator(tmp_path, monkeypatch):
    checked = []
    monkeypatch.setattr(compatibility, "check_parallelism", checked.append)
    assert checked == [tiny_models.trainer(tmp_path).accelerator]


@pytest.mark.parametrize(
    "options",
    [
        {"epsilon": -0.1},
        {"top_p": 90.0},
        {"max_steps": 2.0},
        {"top_entropy_quantile": 2.0},
        {"num_generations_eval": -1},
        {"per_device_eval_batch_size": 0},
        {"learning_rate": float("inf")},
        {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 0},
    ],
)
def test_a_trainer_refuses_bounds_that_trl_finds_late_or_never(tmp_path, options):
    *_, (name, value) = options.items()
    with pytest.raises(ConfigError, match=rf"^{name}={value} must be "):
        tiny_models.trainer(tmp_path, **options)


@pytest.mark.parametrize("norm", [float("inf"), -1.0])
def test_a_norm_that_clips_nothing_is_no_mistake(tmp_path, norm):
    tiny_models.trainer(tmp_path, max_grad_norm=norm)
