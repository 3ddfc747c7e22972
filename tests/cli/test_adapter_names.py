"""The check names the modules and weights in an adapter's options that the model does not have."""

from types import SimpleNamespace

import pytest
import tiny_models
from peft import LoraConfig, get_peft_model
from transformers import Qwen2ForCausalLM

from trl_grpo_plus.cli.check.model import _without_effect
from trl_grpo_plus.utils.tables import FAILED, WARNED


def rows(**options):
    return _without_effect(SimpleNamespace(**{"use_peft": True, **options}), tiny_models.qwen2())


@pytest.mark.parametrize("use_peft", [True, False])
def test_a_module_that_the_model_lacks_fails(use_peft):
    found = rows(lora_modules_to_save=["lm_heat"], use_peft=use_peft)
    assert [row.status for row in found] == [FAILED] * use_peft
    if use_peft:
        assert found[0].text.startswith("lora_modules_to_save: the model has no module 'lm_heat', so this has no")
        assert "Did you mean lm_head?" in found[0].text


@pytest.mark.parametrize("given", ["q_proj.wight", ["q_proj.wight"]])
def test_a_weight_that_the_model_lacks_fails(given):
    (row,) = rows(lora_target_parameters=given)
    assert row.status == FAILED
    assert "the model has no weight 'q_proj.wight'" in row.text
    assert "Did you mean q_proj.weight" in row.text


def test_a_list_of_which_the_model_has_a_part_is_warned_of():
    (row,) = rows(lora_modules_to_save=["lm_head", "score"])
    assert (row.status, "no module 'score'," in row.text) == (WARNED, True)


@pytest.mark.parametrize("name", ["lm_head", "embed_tokens", "model.norm", "head", "layers.0.self_attn.q_proj"])
def test_what_peft_trains_passes(name):
    """peft takes each module whose name ends so."""
    assert rows(lora_modules_to_save=[name]) == []
    adapter = LoraConfig(target_modules=["v_proj"], modules_to_save=[name], task_type="CAUSAL_LM")
    model = get_peft_model(Qwen2ForCausalLM(tiny_models.qwen2()), adapter)
    assert any("modules_to_save" in weight for weight, _ in model.named_parameters())


@pytest.mark.parametrize("name", ["q_proj.weight", "self_attn.q_proj.weight", "weight"])
def test_a_weight_that_the_model_has_passes(name):
    assert rows(lora_target_parameters=[name]) == []


def test_nothing_is_said_of_a_model_of_another_class():
    config = tiny_models.qwen2()
    config.architectures = ["Qwen2ForSomethingElse"]
    options = SimpleNamespace(use_peft=True, lora_modules_to_save=["nope"])
    assert _without_effect(options, config) == []
