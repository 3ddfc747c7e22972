"""Tests of the settings that make the sampling distribution differ from that of the log-probs."""

import inspect
import re
import sys
import types

import pytest
import tiny_models
import torch
from transformers import GenerationConfig, GenerationMixin, Qwen2ForCausalLM
from trl import GRPOConfig

from trl_grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from trl_grpo_plus.config.sampling_distribution import (
    NEUTRAL,
    chosen_settings,
    differences,
    inherited_settings,
    refused_by_vllm,
)
from trl_grpo_plus.utils.validation import ConfigError


CPU = {"bf16": False, "use_cpu": True, "report_to": "none"}
# A value of each setting that changes the distribution.
BENT = {
    **{"top_p": 0.5, "top_k": 3, "min_p": 0.2, "top_h": 0.4, "typical_p": 0.5, "epsilon_cutoff": 0.05},
    **{"eta_cutoff": 0.05, "repetition_penalty": 1.5, "encoder_repetition_penalty": 1.5, "no_repeat_ngram_size": 2},
    **{"encoder_no_repeat_ngram_size": 2, "min_length": 9, "min_new_tokens": 3, "forced_eos_token_id": 1},
    **{"exponential_decay_length_penalty": (1, 1.5), "suppress_tokens": [5], "begin_suppress_tokens": [5]},
    **{"bad_words_ids": [[5]], "sequence_bias": [[[5], -9.0]], "guidance_scale": 1.5, "num_beams": 2},
    **{"watermarking_config": {"bias": 2.0}, "do_sample": False},
}
TRL_S = {"top_p", "top_k", "repetition_penalty", "do_sample"}
# transformers reads these too. They leave the softmax as it is, or act only on a prompt of one token.
NO_MATTER = {"forced_bos_token_id", "max_length", "remove_invalid_values", "renormalize_logits", "temperature"}
NO_MATTER |= {"use_cache", "num_return_sequences"}
ENDS = {"eos_token_id": [1, 5], "max_length": 5, "max_new_tokens": 2, "temperature": 0.3, "custom_key": 3}


def args_of(folder, **options):
    return GRPOConfig(str(folder), **CPU, **options)


@pytest.fixture(scope="module")
def model():
    return Qwen2ForCausalLM(tiny_models.qwen2())


def processors(model, passed, own):
    """Return the names of transformers' logits processors and its sampling mode.

    `passed` are the settings from TRL, `own` those of the model.
    """
    model.generation_config = GenerationConfig(**{"eos_token_id": 1, **own})
    merged, _ = model._prepare_generation_config(GenerationConfig(**passed))
    model._prepare_special_tokens(merged, True, device="cpu")
    found = model._get_logits_processor(
        merged, input_ids_seq_length=4, encoder_input_ids=torch.ones(2, 4).long(), device="cpu"
    )
    return [type(one).__name__ for one in found], merged.get_generation_mode().value


def passed_by_trl(args):
    options = {name: getattr(args, name) for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")}
    return {"do_sample": True, "max_new_tokens": 6, **options, **(args.generation_kwargs or {})}


@pytest.mark.parametrize("name", [*BENT, *ENDS])
def test_inherited_settings_are_those_that_transformers_takes_from_the_model(tmp_path, model, name):
    args, own = args_of(tmp_path), {name: {**BENT, **ENDS}[name]}
    as_it_is = processors(model, passed_by_trl(args), {})
    assert as_it_is == ([], "sample")
    bent = processors(model, passed_by_trl(args), own) != as_it_is
    assert inherited_settings(args, own) == (own if bent else {})
    assert bent == (name in BENT and name not in TRL_S)


def test_every_setting_that_transformers_reads_is_known():
    source = inspect.getsource(GenerationMixin._get_logits_processor)
    assert set(re.findall(r"generation_config\.([a-z]\w+)", source)) - NO_MATTER <= set(NEUTRAL)
    assert set(NEUTRAL) == set(BENT)


@pytest.mark.parametrize("name", [name for name in BENT if NEUTRAL[name] and name not in TRL_S])
def test_generation_kwargs_replace_the_models_settings(tmp_path, model, name):
    own, neutral = {name: BENT[name]}, NEUTRAL[name][0]
    args = args_of(tmp_path, generation_kwargs={name: neutral})
    assert inherited_settings(args, own) == {}
    found, mode = processors(model, passed_by_trl(args), own)
    assert mode == "sample"
    # transformers makes these for any value. With the neutral value they leave the logits as they are.
    made = {"min_p": ["MinPLogitsWarper"], "suppress_tokens": ["SuppressTokensLogitsProcessor"]}
    made["begin_suppress_tokens"] = ["SuppressTokensAtBeginLogitsProcessor"]
    assert found == made.get(name, [])
    assert f"generation_kwargs: {{{name}: {neutral}}}" in differences(args_of(tmp_path), own)[0]
    kept = args_of(tmp_path, generation_kwargs={name: BENT[name]})
    assert differences(kept, own) == []  # the user set it, and no ratio of log-probs is taken


@pytest.mark.parametrize(
    "options", [{"use_vllm": True}, {"use_transformers_continuous_batching": True}, {"min_p": 0.0}], ids=str
)
def test_settings_that_are_not_taken_from_the_model(tmp_path, options):
    if not hasattr(GRPOConfig, next(iter(options))):
        pytest.skip("an option of later releases")
    assert differences(args_of(tmp_path, **options), {"min_p": 0.2}) == []
    assert len(differences(args_of(tmp_path), {"min_p": 0.2})) == 1


def of_plus(folder, **options):
    return GRPOPlusConfig(str(folder), **CPU, **options)


@pytest.fixture
def vllm(monkeypatch):
    """Put a stand-in with three settings in the place of vLLM."""
    module = types.ModuleType("vllm")
    module.SamplingParams = lambda n=1, min_tokens=0, stop=None: None
    monkeypatch.setitem(sys.modules, "vllm", module)


@pytest.mark.parametrize("name", ["repetition_penaltyy", "temperatur", "top_pp", "max_new_token", 3])
def test_a_mistyped_name_in_generation_kwargs_is_refused(tmp_path, name):
    """transformers' GenerationConfig keeps any name, so that the setting would silently have no effect."""
    with pytest.raises(ConfigError, match=rf"has {name!r}, which is no setting of transformers' GenerationConfig\."):
        of_plus(tmp_path, generation_kwargs={name: 2})


def test_a_name_that_is_like_no_other_is_warned_of(tmp_path):
    """The code of a model or a rollout_func may read it."""
    (said,) = differences(of_plus(tmp_path, generation_kwargs={"seed": 3, "min_tokens": 2}), {})
    assert said.startswith("generation_kwargs has 'seed', 'min_tokens': no setting of transformers' GenerationConfig")
    assert "Did you mean min_new_tokens" in said
    assert differences(of_plus(tmp_path, generation_kwargs={"min_new_tokens": 2}), {}) == []


def test_a_list_of_names_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"generation_kwargs=\['min_tokens'\] must be a mapping, such as"):
        of_plus(tmp_path, generation_kwargs=["min_tokens"])


def test_a_colocated_vllm_has_the_settings_of_its_own(tmp_path, vllm):
    assert refused_by_vllm(of_plus(tmp_path, **VLLM, generation_kwargs={"min_tokens": 2})) is None
    says = "which is no setting of vLLM's SamplingParams"
    with pytest.raises(ConfigError, match=f"has 'min_token', {says}"):
        of_plus(tmp_path, **VLLM, vllm_mode="colocate", generation_kwargs={"min_token": 2})
    other = of_plus(tmp_path, **VLLM, vllm_mode="colocate", generation_kwargs={"quite_different": 2})
    assert f"has 'quite_different', {says}" in refused_by_vllm(other)
    with pytest.raises(ConfigError, match="has 'quite_different'"):
        GRPOPlusTrainer(str(tmp_path), tiny_models.digits, other, tiny_models.prompts(8))


def test_the_request_to_a_server_may_have_other_names(tmp_path, vllm):
    server = {**VLLM, "vllm_mode": "server"}
    config = of_plus(tmp_path, **server, generation_kwargs={"cache_salt": "a"})
    assert differences(config, {}) == []
    with pytest.raises(ConfigError, match="Did you mean min_tokens"):
        of_plus(tmp_path, **server, generation_kwargs={"min_token": 2})


def test_nothing_is_said_of_a_vllm_that_cannot_be_imported(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    assert differences(of_plus(tmp_path, **VLLM, generation_kwargs={"min_token": 2}), {}) == []


VLLM = {"use_vllm": True}
TWICE = {"num_iterations": 2}


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, {}),
        ({"temperature": 0.7, "generation_kwargs": {"max_time": 3.0}}, {}),
        ({"top_p": 0.9}, {"top_p": 0.9}),
        ({"top_p": 0.9, "generation_kwargs": {"top_p": 1.0}}, {}),
        ({"generation_kwargs": {"typical_p": 0.9, "do_sample": False}}, {"typical_p": 0.9, "do_sample": False}),
        ({"generation_kwargs": {"temperature": 0.7}}, {"generation_kwargs.temperature": 0.7}),
        ({"top_k": -1, **VLLM}, {}),
        ({"generation_kwargs": {"seed": 3, "presence_penalty": 0.5}, **VLLM}, {"presence_penalty": 0.5}),
        ({"vllm_structured_outputs_regex": "a+", **VLLM}, {"vllm_structured_outputs_regex": "a+"}),
        ({"vllm_structured_outputs_regex": "a+"}, {}),
    ],
    ids=str,
)
def test_settings_that_the_user_chose(tmp_path, options, settings):
    assert chosen_settings(args_of(tmp_path, **options)) == settings
    # A user's own setting gives a warning only if a ratio of log-probs is taken.
    assert (len(differences(args_of(tmp_path, **options, **TWICE), {})) == 1) == bool(settings)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, None),
        (TWICE, "trained on in several steps"),
        ({"gradient_accumulation_steps": 2, "steps_per_generation": 4}, "trained on in several steps"),
        ({"gradient_accumulation_steps": 4, "steps_per_generation": 2}, None),
        (VLLM, "vllm_importance_sampling_correction takes this difference for a difference of weights"),
        ({**VLLM, "vllm_importance_sampling_correction": False}, None),
    ],
    ids=str,
)
def test_a_warning_comes_where_a_ratio_is_taken(tmp_path, options, says):
    said = differences(args_of(tmp_path, top_p=0.9, **options), {"top_p": 0.5})
    assert len(said) == (says is not None)
    if says:
        assert said[0].startswith("Sampling with top_p=0.9 draws attempts from another distribution than")
        assert says in said[0]
        assert "Leave out top_p." in said[0]


def told(caplog):
    return [
        record.getMessage() for record in caplog.records if record.name == "trl_grpo_plus.config.sampling_distribution"
    ]


def test_the_trainer_warns_of_the_models_settings(tmp_path, caplog):
    trained = tiny_models.trained(tmp_path, max_steps=1)
    digits = [i for i, token in enumerate(tiny_models.ALPHABET, 3) if token.isdigit()]
    assert any(token in digits for token in sampled(trained))
    assert told(caplog) == []
    path = tmp_path / "model-0"
    GenerationConfig(eos_token_id=1, pad_token_id=0, suppress_tokens=digits).save_pretrained(path)
    trained = tiny_models.trained(tmp_path, max_steps=1, output_dir=str(tmp_path / "second"))
    (said,) = told(caplog)
    assert f"The model's generation_config has suppress_tokens={digits}. " in said
    assert not any(token in digits for token in sampled(trained))


def sampled(trained):
    (buffered,) = trained._buffered_inputs
    return buffered["completion_ids"].flatten().tolist()


def test_a_rollout_func_gives_no_warning(tmp_path, caplog):
    tiny_models.trainer(tmp_path, extra={"rollout_func": tiny_models.scripted}, top_p=0.9, num_iterations=2)
    assert told(caplog) == []
    tiny_models.trainer(tmp_path, top_p=0.9, num_iterations=2)
    assert len(told(caplog)) == 1
