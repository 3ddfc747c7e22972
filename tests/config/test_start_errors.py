"""Tests of the errors for batch sizes, a wrong folder, a wrong model name and a text instead of a number."""

import dataclasses
import inspect
import re

import pytest
import tiny_models

from trl_grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from trl_grpo_plus.config.gone_options import GONE_ARGUMENTS
from trl_grpo_plus.utils.validation import ConfigError


def made(model, **options):
    config = GRPOPlusConfig(**{**tiny_models.BASE, **options})
    return GRPOPlusTrainer(model, tiny_models.digits, config, tiny_models.prompts(30))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("file", "is a file. Name a folder; it need not exist."),
        ("file/run", "cannot be made: .*/file is a file. Name another folder"),
        ("/proc/nope", "cannot be used: the user .* may not write into /proc"),
        ("l" * 300, "cannot be made [(]File name too long[)]"),
    ],
)
def test_an_output_dir_that_cannot_be_made_is_refused(tmp_path, name, words):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=f"^output_dir: .*{words}"):
        tiny_models.trainer(tmp_path, output_dir=str(tmp_path / name))


def test_a_mistyped_models_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "tiny").mkdir()
    for name, near in (("tinny", "tiny"), ("./tinny", "./tiny")):
        with pytest.raises(
            ConfigError, match=re.escape(f"model={name!r}: there is no such folder. Did you mean {near}?")
        ):
            made(name, output_dir="out")
    with pytest.raises(OSError, match="We couldn't connect"):  # an id on the Hub keeps transformers' own error
        made("nobody/none", output_dir="out")


@pytest.mark.parametrize(
    "options", [{"learning_rate": "1e-3"}, {"max_steps": "3"}, {"per_device_train_batch_size": "8"}, {"beta": "0.1"}]
)
def test_a_text_for_a_number_is_refused(options):
    ((name, value),) = options.items()
    with pytest.raises(ConfigError, match=f"^{name}={value!r} must be .* not a text: leave the quotes out"):
        GRPOPlusConfig(**{**tiny_models.BASE, **options})


@pytest.mark.parametrize("name", ["alarm_thresholds", "advantage_estimator", "model_init_kwargs"])
def test_a_text_that_is_not_json_is_refused_with_its_option(name):
    text = re.escape("""{"x"' is not JSON: Expecting ':' delimiter: line 1 column 5 (char 4). Write it as in""")
    with pytest.raises(ConfigError, match=f"^{name}='{text}"):
        GRPOPlusConfig(**{**tiny_models.BASE, name: '{"x"'})


KWARGS = ["chat_template_kwargs", "lr_scheduler_kwargs", "model_init_kwargs", "generation_kwargs"]
KWARGS += ["activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"]
KWARGS += ["transformers_continuous_batching_config"]


@pytest.mark.parametrize("name", [name for name in KWARGS if name in GRPOPlusConfig.__dataclass_fields__])
def test_a_text_that_is_no_mapping_is_refused(name):
    with pytest.raises(ConfigError, match=f"^{name}='nope' must be a mapping, not a text, or else JSON"):
        GRPOPlusConfig(**{**tiny_models.BASE, name: "nope"})
    if name in GRPOPlusConfig._VALID_DICT_FIELDS:  # TRL 1.10.0 lacks two
        right = GRPOPlusConfig("out", **tiny_models.BASE, **{name: '{"a": 1}'})
        assert getattr(right, name) == {"a": 1}


def test_an_empty_text_is_refused_where_transformers_takes_no_empty_text():
    with pytest.raises(ConfigError, match=r"^lr_scheduler_kwargs='' must be a mapping"):
        GRPOPlusConfig("out", **tiny_models.BASE, lr_scheduler_kwargs="")
    assert GRPOPlusConfig("out", **tiny_models.BASE, model_init_kwargs="").model_init_kwargs == ""


DEVICE = "per_device_train_batch_size (8)"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"num_generations": 3},
            f"generation_batch_size (16) must be divisible by num_generations (3). The former is {DEVICE} x "
            "gradient_accumulation_steps (2) x 1 process. Set num_generations to a divisor of 16, or one of these "
            "factors so that 3 divides their product.",
        ),
        ({"num_generations": 3, "steps_per_generation": 4}, f"The former is {DEVICE} x steps_per_generation (4) x 1"),
        (
            {"num_generations": 3, "generation_batch_size": 16},
            "(3). Set num_generations to a divisor of 16, or generation_batch_size to a multiple of 3.",
        ),
        (
            {"generation_batch_size": 12},
            f"must be divisible by the global batch size (8). The latter is {DEVICE} x 1 process. Set a multiple of "
            "it, or leave generation_batch_size out.",
        ),
        (
            {"generation_batch_size": 16, "steps_per_generation": 2},
            "generation_batch_size=16 and steps_per_generation=2 are both set, and each follows from the other. Leave "
            "one of the two out.",
        ),
        (
            {"eval_strategy": "steps", "per_device_eval_batch_size": 3},
            "per_device_eval_batch_size (3) x processes (1) must be divisible by num_generations_eval, or by "
            "num_generations if num_generations_eval is not set (4). Set per_device_eval_batch_size to 4.",
        ),
        ({"num_generations": 0}, "num_generations=0 must be an integer and >= 2: GRPO compares the attempts"),
        ({"per_device_train_batch_size": 0, "generation_batch_size": 8}, "per_device_train_batch_size=0 must be an"),
        ({"steps_per_generation": 0}, "steps_per_generation=0 must be an integer and >= 1."),
    ],
)
def test_a_config_says_how_its_batches_are_computed(options, words):
    of_four = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "num_generations": 4}
    with pytest.raises(ConfigError, match=re.escape(words)):
        GRPOPlusConfig(**{**tiny_models.BASE, **of_four, **options})


def test_a_config_can_be_made_from_another_one_as_the_error_says():
    of_four = GRPOPlusConfig(**{**tiny_models.BASE, "preset": "dr_grpo", "gradient_accumulation_steps": 2})
    with pytest.raises(ConfigError, match=r"dataclasses.replace\(config, ...\) generation_batch_size=None"):
        dataclasses.replace(of_four, seed=1)
    replaced = dataclasses.replace(of_four, seed=1, generation_batch_size=None)
    assert {**replaced.to_dict(), "seed": of_four.seed} == of_four.to_dict()


def test_a_path_instead_of_a_models_name_is_refused(tmp_path):
    for model in (tmp_path, None):
        with pytest.raises(ConfigError, match=re.escape(f"model={model!r} is neither a text nor a model.")):
            made(model, output_dir=str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"train_dataset": [{"prompt": "1+1="}]},
            "train_dataset is a list, no Dataset. Make one: datasets.Dataset.from_",
        ),
        ({"train_dataset": {"prompt": ["1+1="]}}, "is a dict, no Dataset. Make one: datasets.Dataset.from_dict(...)."),
        ({"reward_funcs": (tiny_models.digits,)}, "reward_funcs is a tuple of 1. Give a list."),
    ],
)
def test_a_value_of_another_type_is_refused(tmp_path, arguments, words):
    config = GRPOPlusConfig(**{**tiny_models.BASE, "output_dir": str(tmp_path / "out")})
    given = {"reward_funcs": tiny_models.digits, "train_dataset": tiny_models.prompts(30), **arguments}
    with pytest.raises(ConfigError, match=re.escape(words)):
        GRPOPlusTrainer("no model", args=config, **given)


def test_one_weight_without_a_list_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"^reward_weights=1[.]0 must be a list with one weight per reward"):
        made("no model", reward_weights=1.0, output_dir=str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tokenizer": None}, "'tokenizer'. Use processing_class instead."),
        ({"compute_metrics": None}, "'compute_metrics'. Remove it: TRL never calls it."),
        ({"learning_rate": 1e-5}, "'learning_rate'. It is an option: GRPOPlusConfig(learning_rate=...)."),
        ({"reward_func": len}, "'reward_func'. Did you mean reward_funcs"),
    ],
)
def test_an_argument_that_no_trainer_has_is_refused_with_advice(tmp_path, arguments, words):
    with pytest.raises(TypeError, match=re.escape(f"GRPOPlusTrainer got an unexpected keyword argument {words}")):
        tiny_models.trainer(tmp_path, extra=arguments)


def test_the_replacement_of_a_gone_argument_is_an_argument():
    known = inspect.signature(GRPOPlusTrainer).parameters
    assert not GONE_ARGUMENTS.keys() & known
    assert {word for advice in GONE_ARGUMENTS.values() for word in re.findall(r"Use (\w+)", advice)} <= known.keys()


@pytest.mark.parametrize("given", [{}, {"split_batches": True}, {"dispatch_batches": False, "even_batches": False}])
def test_accelerate_may_deal_rows_in_the_ways_that_change_nothing(given):
    GRPOPlusConfig("out", **tiny_models.BASE, accelerator_config=given)  # of one process


def test_rows_of_texts_cannot_be_sent_by_accelerate():
    with pytest.raises(ConfigError, match="Leave dispatch_batches out"):
        GRPOPlusConfig("out", **tiny_models.BASE, accelerator_config={"dispatch_batches": True})


def test_a_batch_that_accelerate_would_split_is_refused(monkeypatch):
    monkeypatch.setattr(GRPOPlusConfig, "world_size", 2)
    with pytest.raises(ConfigError, match=r"with 2 processes.*8 attempts instead of 16"):
        GRPOPlusConfig("out", **tiny_models.BASE, accelerator_config={"split_batches": True})
