"""The check names each package that the options of a run need and that is not installed."""

import inspect
from types import SimpleNamespace

import pytest
from transformers.training_args import OptimizerNames

from trl_grpo_plus.launch.needed_packages import missing_packages, module_of_optimizer
from trl_grpo_plus.utils import optional_packages


# Words in the code of transformers that makes an optimizer, and the module which that code needs.
WORDS = ("bitsandbytes", "torchao", "torch_xla", "torch_npu", "torchdistx", "galore_torch", "apollo_torch")
WORDS += ("lomo_optim", "grokadamw", "schedulefree", "optimi")


def missing(training=(), **model):
    options = {"use_vllm": False, "optim": "adamw_torch", "use_liger_kernel": False, "report_to": []}
    of_model = {"load_in_4bit": False, "load_in_8bit": False, "use_peft": False, "attn_implementation": None}
    training_args = SimpleNamespace(**{**options, "model_init_kwargs": None, **dict(training)})
    return missing_packages(training_args, SimpleNamespace(**{**of_model, **model}))


@pytest.fixture
def installed(monkeypatch):
    """Give the set of the modules that are taken for installed."""
    modules = set()
    monkeypatch.setattr(optional_packages, "is_installed", modules.__contains__)
    return modules


@pytest.mark.parametrize("optimizer", [name.value for name in OptimizerNames])
def test_an_optimizer_needs_the_module_that_transformers_imports_for_it(optimizer):
    module = pytest.importorskip("transformers.trainer_optimizer", reason="an older transformers")
    source = inspect.getsource(module._OPTIMIZER_HANDLERS[optimizer])
    imported = [word for word in WORDS if f"from {word}" in source]
    assert imported == [module for module in [module_of_optimizer(optimizer)] if module]


@pytest.mark.parametrize(
    ("training", "model", "command"),
    [
        ({"optim": "paged_adamw_8bit"}, {}, "pip install bitsandbytes"),
        ({"optim": OptimizerNames.STABLE_ADAMW}, {}, "pip install torch-optimi"),
        ({"use_liger_kernel": True}, {}, "pip install liger_kernel"),
        ({}, {"attn_implementation": "flash_attention_2"}, "pip install flash-attn --no-build-isolation"),
        ({}, {"attn_implementation": "paged|flash_attention_2"}, "pip install flash-attn --no-build-isolation"),
        ({}, {"attn_implementation": "kernels-community/flash-attn2"}, "pip install kernels"),
        ({"model_init_kwargs": {"attn_implementation": "flash_attention_3"}}, {}, "pip install flash-attn-3"),
    ],
)
def test_the_command_installs_what_is_missing(installed, training, model, command):
    assert list(missing(training, **model).values()) == [command]


@pytest.mark.parametrize("module", ["flash_attn", "kernels"])
def test_flash_attention_may_come_from_its_package_or_from_the_hub(installed, module):
    installed.add(module)
    assert missing(attn_implementation="flash_attention_2") == {}


@pytest.mark.parametrize("name", [None, "sdpa", "eager", "flex_attention", {"text_config": "flash_attention_2"}])
def test_the_other_attentions_need_no_package(installed, name):
    assert missing(attn_implementation=name) == {}
