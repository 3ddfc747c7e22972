"""Numbers of TRL's and transformers' options are refused before a model is loaded, unless they work in TRL."""

import math
from dataclasses import dataclass

import pytest
import tiny_models

from trl_grpo_plus import GRPOPlusConfig
from trl_grpo_plus.config.bounds import MAY_BE_INFINITE, not_of_transformers, out_of_bounds
from trl_grpo_plus.utils.validation import ConfigError


def made(**options):
    return GRPOPlusConfig("out", **{**tiny_models.BASE, **options})


FLOATS = [field.name for field in GRPOPlusConfig.__dataclass_fields__.values() if field.type in (float, float | None)]


@pytest.mark.parametrize("name", FLOATS)
def test_nan_is_refused_for_every_option(name):
    with pytest.raises(ConfigError, match=f"^{name}=nan must be a finite number"):
        made(**{name: math.nan})


@pytest.mark.parametrize("name", FLOATS)
def test_infinity_is_refused_unless_it_means_no_bound(name):
    options = {name: -math.inf if name.endswith("_min") else math.inf, "max_steps": -1}
    if name in MAY_BE_INFINITE:
        assert list(out_of_bounds(made(**options))) == []
        return
    with pytest.raises(ConfigError, match=f"^{name}=inf must be a finite number"):
        made(**options)


def test_the_options_that_may_be_infinite_exist():
    known = GRPOPlusConfig.__dataclass_fields__
    assert [name for name in MAY_BE_INFINITE if name not in known] in ([], ["vllm_importance_sampling_cap"])


def test_a_number_of_steps_makes_an_infinite_number_of_epochs_possible():
    assert made(num_train_epochs=math.inf, max_steps=3).num_train_epochs == math.inf


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("adam_beta1", 1.0, ">= 0 and < 1"),
        ("adam_beta2", -0.1, ">= 0 and < 1"),
        ("adam_epsilon", -1e-8, ">= 0"),
        ("neftune_noise_alpha", -5.0, ">= 0"),
        ("delta", 0.0, "> 0"),
        ("repetition_penalty", 0.0, "> 0"),
        ("dataloader_num_workers", -1, ">= 0"),
        ("pad_to_multiple_of", 0, ">= 1"),
        ("logging_steps", -1, "> 0"),
    ],
)
def test_a_number_out_of_its_bounds_is_refused(name, value, allowed):
    (why,) = out_of_bounds(made(**{name: value}))
    assert why.startswith(f"{name}={value!r} must be a")
    assert why.endswith(f"{allowed}.")


@pytest.mark.parametrize(
    "options",
    [
        {"adam_beta1": 0.0, "adam_epsilon": 0.0, "max_grad_norm": -1.0, "off_policy_mask_threshold": -0.1},
        {"logging_strategy": "no", "logging_steps": 0, "pad_to_multiple_of": 8, "neftune_noise_alpha": 0.0},
        {"logging_steps": 0.5, "delta": None, "pad_to_multiple_of": None},
    ],
)
def test_what_works_in_trl_is_in_bounds(options):
    assert list(out_of_bounds(made(**options))) == []


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"top_k": -1}, True),
        ({"generation_kwargs": {"top_k": -1}}, True),
        ({"top_k": -1, "generation_kwargs": {"top_k": 0}}, False),
        ({"top_k": 0}, False),
        ({"generation_kwargs": {"top_k": "50"}}, False),
        ({"top_k": -1, "use_vllm": True}, False),
    ],
)
def test_only_vllm_takes_a_top_k_of_minus_1(options, refused):
    assert len(list(not_of_transformers(made(**options)))) == refused


@dataclass
class OfAUser(GRPOPlusConfig):
    cap: float = math.inf


def test_an_option_that_a_subclass_adds_may_be_infinite():
    assert OfAUser("out", use_cpu=True, bf16=False, report_to="none").cap == math.inf
