"""Values in a YAML file are converted as on the command line, or refused with what is allowed."""

import dataclasses
import inspect
import os
import re
import subprocess
import sys

import pytest
import yaml
from trl import GRPOTrainer
from trl.generation import vllm_generation

from trl_grpo_plus.config.grpo_plus_config import GRPOPlusConfig
from trl_grpo_plus.config.validation import TRL_CHOICES
from trl_grpo_plus.launch.arguments import make_parser
from trl_grpo_plus.launch.command_line import parse
from trl_grpo_plus.launch.recipe_yaml import checked, read_yaml
from trl_grpo_plus.utils.validation import ConfigError


@pytest.fixture(scope="module")
def parser():
    return make_parser(prog="grpo")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("learning_rate: 1e-6", 1e-6),  # YAML 1.1 reads a text
        ("learning_rate: 1.0e-6", 1e-6),
        ("learning_rate: 1", 1),
        ("max_steps: '100'", 100),
        ("bf16: 'yes'", True),
        ("bf16: off", False),
        ("use_vllm: 'False'", False),
        ("eval_strategy: no", "no"),  # YAML 1.1 reads false
        ("save_strategy: 'no'", "no"),
        ("reward_weights: ['1', 2, 0.5]", [1.0, 2, 0.5]),
        ("reward_weights: 1.5", [1.5]),
        ("lora_target_modules: all-linear", ["all-linear"]),
        ("lora_target_modules: [q_proj, v_proj]", ["q_proj", "v_proj"]),
        ("generation_kwargs: {top_k: 5}", {"top_k": 5}),
        ("advantage_clip: null", None),
        ("reward_funcs: [exact_answer, {name: overlong, args: {cache: 3}}]",
         ["exact_answer", {"name": "overlong", "args": {"cache": 3}}]),
        ("scale_rewards: false", False),
        ("resume_from_checkpoint: true", True),
        ("pad_to_multiple_of: 8", 8),
        ("report_to: [wandb]", ["wandb"]),
        ("deepspeed: ds.json", "ds.json"),
    ],
)  # fmt: skip
def test_a_value_that_is_right(parser, text, value):
    ((name, _),) = yaml.safe_load(text).items()
    right, wrong = checked(yaml.safe_load(text), parser)
    assert (right, wrong) == ({name: value}, {})
    assert type(right[name]) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("loss_type: grop", "is not one of 'grpo', 'dr_grpo', 'dapo', 'bnpo', 'cispo', 'sapo', 'luspo', 'vespo'. Did"),
        ("dtype: bf16", "is not one of 'auto', 'bfloat16', 'float16', 'float32'. Did you mean bfloat16?"),
        ("eval_strategy: true", "eval_strategy=True is not one of 'no', 'steps', 'epoch'."),
        ("std_ddof: 2", "std_ddof=2 is not one of 0, 1."),
        ("std_ddof: off", "std_ddof=False is not one of 0, 1."),
        ("bf16: 1", "bf16=1 must be true or false."),
        ("max_steps: true", "max_steps=True must be an integer."),
        ("max_steps: 1e3", "max_steps='1e3' must be an integer. Write 1000."),
        ("max_steps: [1]", "max_steps=[1] must be an integer."),
        ("learning_rate: yes", "learning_rate=True must be a number."),
        ("run_name: 12", 'run_name=12 must be a text. Put it in quotes: "12".'),
        ("model_revision: on", "model_revision=True must be a text. Without quotes YAML reads yes, no, on and off as"),
        ("lora_target_modules: [1]", "lora_target_modules=[1] must be a list in which each item is a text."),
        ("generation_kwargs: [1]", "generation_kwargs=[1] must be a mapping"),
        ("num_iterations:", "num_iterations has no value. Write one, or remove the line."),
        ("vllm_gpu_memory_utilisation: 0.3", "unknown key vllm_gpu_memory_utilisation. Did you mean vllm_gpu_"),
    ],
)  # fmt: skip
def test_a_value_that_is_wrong(parser, text, message):
    ((name, value),) = yaml.safe_load(text).items()
    right, wrong = checked({name: value}, parser)
    assert right == {}
    assert message in wrong[name]


def test_every_default_is_a_right_value(parser):
    for kind in parser.dataclass_types:
        fields = [field for field in dataclasses.fields(kind) if field.init]
        defaults = {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
        right, wrong = checked(defaults, parser)
        assert wrong == {}
        assert right.keys() == defaults.keys()


def test_a_yaml_gives_what_the_command_line_gives(tmp_path):
    keys = {"learning_rate": "3e-6", "bf16": "no", "use_cpu": "true", "max_steps": "7", "reward_weights": ["1"]}
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(keys))
    words = [word for name, value in keys.items() for word in (f"--{name}", value if name[0] != "r" else "1")]
    _, from_yaml, *_ = parse(make_parser(prog="grpo"), ["--config", str(path)])
    _, from_words, *_ = parse(make_parser(prog="grpo"), words)
    for name in keys:
        assert getattr(from_yaml, name) == getattr(from_words, name)
    assert (from_yaml.learning_rate, from_yaml.bf16, from_yaml.reward_weights) == (3e-6, False, [1.0])


def test_the_choices_hold_in_python_and_on_the_command_line(parser):
    for name, allowed in TRL_CHOICES.items():
        with pytest.raises(ValueError, match=re.escape(f"{name}='x' is not one of {allowed[0]!r}")):
            GRPOPlusConfig(use_cpu=True, bf16=False, **{name: "x"})
    with pytest.raises(ConfigError, match=r"loss_type='grop' is not one of .* Did you mean grpo"):
        parse(make_parser(prog="grpo"), ["--use_cpu", "true", "--bf16", "false", "--loss_type", "grop"])


def test_trl_knows_the_choices_that_we_list():
    """TRL's config accepts any text for these options. Only the code that uses them compares it with the choices."""
    source = inspect.getsource(GRPOTrainer) + inspect.getsource(vllm_generation)
    for name, allowed in TRL_CHOICES.items():
        for value in allowed:
            assert f'"{value}"' in source, f"{name}={value}"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("1E5", 1e5),
        ("-2.5e-3", -2.5e-3),
        ("{min_lr: 1e-7, on: [3e-4]}", {"min_lr": 1e-7, True: [3e-4]}),
        ("1e", "1e"),
        ("e5", "e5"),
        ("1e5-second", "1e5-second"),
        ("'1e-5'", "1e-5"),
        ("010", 10),
        ("-007", -7),
        ("10_000", 10_000),
        ("0o17", 15),
        ("0x1F", 31),
        ("1:30", "1:30"),
        ("1:30.5", "1:30.5"),
        ("0b11", "0b11"),
        ("[1., .5, -.inf]", [1.0, 0.5, float("-inf")]),
        ("{base: &b {x: 1}, more: {<<: *b, y: 2}}", {"base": {"x": 1}, "more": {"x": 1, "y": 2}}),
        ("[{a: 1}, {a: 2}]", [{"a": 1}, {"a": 2}]),
    ],
)
def test_yaml_reads_the_numbers_of_yaml_1_2_and_merges_mappings(text, value):
    assert read_yaml(text) == value


@pytest.mark.parametrize("text", ["{a: 1, a: 2}", "a: 1\nb: 2\na: 1", "a:\n  b: 1\n  b: 2"])
def test_a_key_that_appears_twice_is_refused(text):
    with pytest.raises(yaml.YAMLError, match=r"the key [ab] appears twice"):
        read_yaml(text)


def test_a_recipe_is_read_as_utf_8_whatever_the_locale(tmp_path):
    (tmp_path / "recipe.yaml").write_text("run_name: Größe\n", encoding="utf-8")
    code = "from trl_grpo_plus.launch.accelerate import setting; print(ascii(setting('run_name', 'recipe.yaml', [])))"
    of_ascii = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-X", "utf8=0", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=of_ascii, capture_output=True, text=True)
    assert done.stdout == ascii("Größe") + "\n", done.stderr
