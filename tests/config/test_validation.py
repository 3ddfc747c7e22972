"""Tests of the options: refused and accepted values, messages, and parsing of a command line and of YAML."""

import dataclasses
import functools
import inspect
import json
import pickle
import re
import typing
import warnings

import numpy as np
import pytest
import torch
import trl
from transformers import HfArgumentParser
from trl import GRPOConfig, TrlParser

from trl_grpo_plus import GRPOPlusConfig
from trl_grpo_plus.config.compatibility import check_filter_metric
from trl_grpo_plus.config.gone_options import GONE_OPTIONS
from trl_grpo_plus.config.validation import READ_WITH
from trl_grpo_plus.objective.baselines import BASELINES
from trl_grpo_plus.objective.kl import ESTIMATORS
from trl_grpo_plus.objective.scales import SCALES, TRL_SCALES


CPU = {"bf16": False, "use_cpu": True, "report_to": "none"}
KL = {"beta": 0.1}
NEW = [f for f in dataclasses.fields(GRPOPlusConfig) if f.name not in {g.name for g in dataclasses.fields(GRPOConfig)}]
DOCSTRING = inspect.getdoc(GRPOPlusConfig)  # without indentation, which only Python 3.13 strips by itself
HINTS = typing.get_type_hints(GRPOPlusConfig)
OURS = [*NEW, GRPOPlusConfig.__dataclass_fields__["scale_rewards"]]


@pytest.fixture
def make(tmp_path):
    return lambda **options: GRPOPlusConfig(output_dir=str(tmp_path), **CPU, **options)


@pytest.fixture
def cli(tmp_path):
    return ["--output_dir", str(tmp_path), "--bf16", "false", "--use_cpu", "true", "--report_to", "none"]


@pytest.fixture
def from_yaml(tmp_path):
    """Return a function that reads a config from the text of a YAML file, as `trl grpo --config` does."""

    def read(text, *arguments):
        path = tmp_path / "run.yaml"
        path.write_text(f"output_dir: {tmp_path}\nbf16: false\nuse_cpu: true\nreport_to: none\n{text}\n")
        return TrlParser(GRPOPlusConfig).parse_args_and_config(["--config", str(path), *arguments])[0]

    return read


@pytest.mark.parametrize(
    ("option", "match"),
    [
        (
            "zero_variance_group",
            "GRPOPlusConfig got an unexpected keyword argument 'zero_variance_group'. Did you mean zero_variance_gr",
        ),
        (
            "max_prompt_length",
            "unexpected keyword argument 'max_prompt_length'. TRL no longer cuts prompts. Remove long prompts",
        ),
        ("nothing_like_it_at_all", "unexpected keyword argument 'nothing_like_it_at_all'.$"),
    ],
)
def test_an_unknown_option_is_refused_with_the_closest_one(make, option, match):
    with pytest.raises(TypeError, match=match):
        make(**{option: "drop"})


def test_a_script_that_leaves_out_what_python_calls_unexpected_makes_a_config(make):
    """Scripts for several releases of TRL read the name from Python's message, and try again without that option."""
    options = {"max_prompt_length": 128, "use_liger_loss": False, "beta": 0.5}
    with pytest.raises(TypeError, match=r"'max_prompt_length'\. TRL .* It also got 'use_liger_loss'\. Use "):
        make(**options)
    for _ in range(3):
        try:
            config = make(**options)
        except TypeError as error:
            del options[re.search(r"unexpected keyword argument '(\w+)'", str(error)).group(1)]
    assert config.beta == 0.5
    assert options == {"beta": 0.5}


def test_the_replacement_of_a_removed_option_is_an_option():
    fields = GRPOPlusConfig.__dataclass_fields__
    still_there = [fields[name] for name in GONE_OPTIONS.keys() & fields.keys()]  # with transformers 5.8: warmup_ratio
    assert all("will be removed" in one.metadata["help"] for one in still_there)
    assert {word for advice in GONE_OPTIONS.values() for word in re.findall(r"Use (\w+)", advice)} <= fields.keys()


# -- single values

# Values in a YAML file bypass argparse's check of choices, so the config checks them itself.
CHOICES = {f.name: tuple(f.metadata["choices"]) for f in OURS if "choices" in f.metadata}
CHOICES |= {"scale_rewards": tuple(SCALES), "advantage_baseline": tuple(BASELINES)}
NEEDS_BETA = ("kl_estimator", "kl_placement", "kl_reward_form")


def test_the_choices_are_those_of_the_dicts():
    assert CHOICES["advantage_baseline"] == tuple(BASELINES)
    assert CHOICES["advantage_baseline"] == ("mean", "leave_one_out", "median", "length_weighted", "belief")
    assert CHOICES["scale_rewards"] == (*TRL_SCALES, "mad", "mean", "running", "prior")
    assert CHOICES["kl_estimator"] == tuple(ESTIMATORS) == ("k1", "k2", "k3", "abs")
    assert len(CHOICES) == 9


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        (name, value, allowed)
        for name, allowed in CHOICES.items()
        for value in ("", "Group", "nonesuch", 2, None, *([True, False, "1"] if name == "std_ddof" else []))
    ],
)
def test_a_value_that_is_no_choice_is_refused_with_the_choices(make, name, value, allowed):
    with pytest.raises(ValueError, match=re.escape(f"{name}={value!r}")) as caught:
        make(beta=0.1, **{name: value})
    assert all(repr(choice) in str(caught.value) for choice in allowed)


@pytest.mark.parametrize(
    ("name", "value"), [(n, v) for n, values in CHOICES.items() if n not in NEEDS_BETA for v in values]
)
def test_each_choice_passes(make, name, value):
    with_it = {"belief": {"scale_rewards": "prior"}, "prior": {"advantage_baseline": "belief"}}.get(value, {})
    with_it = READ_BESIDE.get(name, with_it)
    assert getattr(make(**{name: value}, **with_it), name) == value


# Refused values, the words of the message for what is allowed, and values that pass.
NUMBERS = [
    ("zero_variance_tolerance", [-1e-9, -1], ">= 0", [0, 0.0, 1e-6, 0.5]),
    ("solved_reward", [], "finite", [0.5, 1, 100.0]),
    ("failed_reward", [], "finite", [-1, 0.5, -100.0]),
    ("reward_variance_top_p", [0, -0.1, 1.1, 2], "> 0.0 and <= 1.0", [1, 1.0]),
    ("max_resample_rounds", [0, -1, 1.5, 2.0], "an integer and >= 1", [1, 3, 100]),
    ("selection_pool", [0, -1, 1.5], "an integer and >= 1", [1, 64]),
    ("belief_head_share", [0, -1], "> 0", [0.5, 2.0, None]),
    ("reward_workers", [0, -1, 1.5], "an integer and >= 1", [None, 1, 64]),
    ("reward_worker_memory_mb", [0, 255, 512.5], "an integer and >= 256", [256, 8192]),
    ("std_eps", [-1e-4], ">= 0", [0, 0.0, 1e-9, 1.0]),
    ("std_floor", [-1e-4], ">= 0", [0, 0.0, 1e-9, 1.0]),
    ("running_std_decay", [-0.1, 1, 1.0, 1.5], ">= 0.0 and < 1.0", [0, 0.0, 0.5, 0.999]),
    ("advantage_clip", [0, 0.0, -1.0], "> 0", [1e-3, 5, None]),
    ("kl_target", [0, 0.0, -1.0], "> 0", [1e-3, 6, None]),
    ("kl_horizon", [0, -1, 1e4, 0.5], "an integer and >= 1", [1, 10_000]),
    ("trace_every", [-1, 1.5], "an integer and >= 0", [0, 7]),
    ("trace_log_groups", [-1, 1.5], "an integer and >= 0", [0, 7]),
    ("trace_thumbnails", [-1, 1.5], "an integer and >= 0", [0, 96]),
    ("trace_max_groups", [0, -1, 1.5], "an integer and >= 1", [None, 1]),
    ("vllm_check_every", [-1, 1.5], "an integer and >= 0", [0, 7]),
]


# The options beside which an option is read.
CHOSEN = {"prompt_selection": "belief"}
READ_BESIDE = {
    "running_std_decay": {"scale_rewards": "running"},
    "selection_pool": CHOSEN,
    "belief_head_share": {**CHOSEN, "belief_head": "prompt"},
    "kl_horizon": {"kl_target": 0.1},
    "vllm_check_every": {"use_vllm": True},
}
NO_NUMBERS = (float("nan"), float("inf"), -float("inf"), "1e-4", "x", True, False, [1])


def test_the_table_above_holds_every_number():
    numbers = (int, float, int | None, float | None)
    bounded = {f.name for f in NEW if HINTS[f.name] in numbers and "choices" not in f.metadata}
    assert sorted(name for name, *_ in NUMBERS) == sorted(bounded)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [(n, value, allowed) for n, refused, allowed, _ in NUMBERS for value in (*refused, *NO_NUMBERS)],
)
def test_a_number_out_of_range_is_refused_with_the_range(make, name, value, allowed):
    with pytest.raises(ValueError, match=re.escape(f"{name}={value!r}")) as caught:
        make(beta=0.1, **{name: value})
    assert allowed in str(caught.value)


@pytest.mark.parametrize("name", [name for name, *_, passing in NUMBERS if None not in passing])
def test_none_is_refused_where_it_has_no_meaning(make, name):
    with pytest.raises(ValueError, match=f"{name}=None"):
        make(**{name: None})


def test_a_string_is_refused_with_a_word_about_yaml(make):
    """The message mentions YAML, because the config cannot know whether a script or a YAML file gave the string."""
    with pytest.raises(ValueError, match=r"std_eps='1e-4' must be .*leave the quotes out\. .*YAML.*1\.0e-4"):
        make(std_eps="1e-4")


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, _, _, values in NUMBERS for v in values])
def test_a_number_in_range_passes(make, name, value):
    assert getattr(make(beta=0.1, **{name: value}, **READ_BESIDE.get(name, {})), name) == value


@pytest.mark.parametrize("value", ["", None, 3, True, ["total"]])
def test_a_filter_metric_that_is_no_name_is_refused(make, value):
    with pytest.raises(ValueError, match=re.escape(f"filter_metric={value!r}") + r".*'total', 'any'.*reward function"):
        make(filter_metric=value)
    assert [make(filter_metric=name).filter_metric for name in ("any", "accuracy")] == ["any", "accuracy"]


def test_two_rewards_of_one_name_cannot_be_told_apart():
    with pytest.raises(ValueError, match="filter_metric='accuracy' is the name of more than one reward function"):
        check_filter_metric("accuracy", ["accuracy", "format", "accuracy"])
    check_filter_metric("format", ["accuracy", "format", "accuracy"])


# -- combinations


IN_REWARD = {**KL, "kl_placement": "reward"}
K1_IN_REWARD = {**IN_REWARD, "kl_estimator": "k1"}
GSPO_TOKEN = {"importance_ratio": "gspo_token"}
PAIRWISE = {"advantage_estimator": "pairwise"}
PAIRS_CHOSEN = {"prompt_selection": {"name": "by_column", "args": {"column": "level", "order": "easy_first"}}}
TOP_P = {"zero_variance_groups": "drop", "reward_variance_top_p": 0.9}
BY_ITSELF = {"multi_objective_aggregation": "normalize_then_sum"}
IMPOSSIBLE = [
    ({"failed_reward": 1.0}, ["failed_reward", "1.0", "below", "solved_reward"]),
    ({"failed_reward": 0.5, "solved_reward": 0.2}, ["failed_reward", "0.5", "solved_reward", "0.2"]),
    (
        {"scale_rewards": "running", **BY_ITSELF},
        ["scale_rewards='running'", "normalize_then_sum", "'group', 'mad' or 'mean'", "sum_then_normalize"],
    ),
    ({**K1_IN_REWARD, **BY_ITSELF}, ["kl_placement='reward'", "sum_then_normalize"]),
    ({"kl_estimator": "k2"}, ["kl_estimator='k2'", "beta=0", "positive"]),
    ({"kl_target": 0.5}, ["kl_target=0.5", "beta=0", "positive"]),
    ({"kl_placement": "reward", "kl_estimator": "k1"}, ["kl_placement='reward'", "kl_estimator='k1'", "beta=0"]),
    ({"kl_reward_form": "reward_to_go"}, ["kl_reward_form='reward_to_go'", "beta=0"]),
    (IN_REWARD, ["kl_placement='reward'", "'k3'", "kl_estimator='k1'", "forward"]),
    ({**IN_REWARD, "kl_estimator": "k2"}, ["kl_placement='reward'", "'k2'", "kl_estimator='k1'"]),
    ({**IN_REWARD, "kl_estimator": "abs"}, ["kl_placement='reward'", "'abs'", "='k1'"]),
    (
        {**KL, "kl_estimator": "k1", "use_bias_correction_kl": False},
        ["kl_estimator='k1'", "use_bias_correction_kl=True", "gradient is 0", "kl_placement='reward'"],
    ),
    (
        {**K1_IN_REWARD, "kl_reward_form": "reward_to_go", "importance_sampling_level": "sequence"},
        ["kl_reward_form='reward_to_go'", "one ratio for a whole completion", "importance_ratio='gspo_token'"],
    ),
    (
        {**K1_IN_REWARD, "kl_reward_form": "reward_to_go", "off_policy_mask_threshold": 0.5},
        ["kl_reward_form='reward_to_go'", "off_policy_mask_threshold=0.5"],
    ),
    ({**KL, "kl_reward_form": "reward_to_go"}, ["kl_reward_form='reward_to_go'", "kl_placement='reward'"]),
    ({**KL, "kl_target": 0.1, "kl_estimator": "abs"}, ["kl_target", "'k1', 'k2' or 'k3'", "'abs'"]),
    ({"advantage_estimator": {"nam": "pkpo"}}, ["{'nam': 'pkpo'}", "with arguments it is", '"args": {"k": 4}']),
    (
        {"advantage_estimator": {"name": "pkpo", "k": 4}},
        ["with arguments it is", '{"name": "pkpo", "args": {"k": 4}}.'],
    ),
    ({"advantage_estimator": {"name": "pkpo", "kwargs": {"k": 4}}}, ['it is {"name": "pkpo", "args": {"k": 4}}.']),
    ({"advantage_estimator": {"name": "grpo", "args": {"k": 2}}}, ["'grpo' takes no arguments", "advantage_baseline"]),
    ({"advantage_estimator": "pkpo"}, ["'pkpo': it needs k", '"args": {"k": ...}']),
    ({"advantage_estimator": {"name": "pkpo", "args": {"k": 9}}}, ["'pkpo': k=9 must be", "<= 8, num_generations"]),
    ({"advantage_estimator": {"name": "pkpo", "args": {"k": 2.0}}}, ["'pkpo': k=2.0 must be"]),
    ({"advantage_estimator": {"name": "pkpo", "args": {"kk": 2}}}, ["no argument 'kk'; it takes k. Did you mean k?"]),
    (
        {"advantage_estimator": {"name": "passk", "args": {"k": 8}}},
        ["k=8 is equal to num_generations", "no advantage is left"],
    ),
    ({"advantage_estimator": {"name": "pairwise", "args": {"temperature": 0}}}, ["temperature=0 must be", "> 0"]),
    ({"advantage_estimator": "pairwize"}, ["'pairwize' is not one of 'grpo', 'pairwise'", "Did you mean pairwise?"]),
    (
        {"advantage_estimator": lambda rewards, weights, about: rewards},
        ["cannot be saved", "def at the top of a file"],
    ),
    ({"advantage_estimator": {"name": "zvp", "args": {"alpha": 0}}}, ["alpha=0 must be", "> 0"]),
    ({"advantage_estimator": "zvp", "importance_sampling_level": "sequence"}, ["'zvp': its advantages are of tokens"]),
    ({"advantage_estimator": "zvp", "off_policy_mask_threshold": 0.5}, ["'zvp'", "off_policy_mask_threshold=0.5"]),
    (
        {"advantage_estimator": "zvp", "zero_variance_groups": "resample", "filtered_verdicts": ["all_bad", "tied"]},
        ["filtered_verdicts=['all_bad', 'tied'] takes all_bad out of the batch", "Leave filtered_verdicts out"],
    ),
    (
        {**PAIRWISE, "scale_rewards": "batch", "std_eps": 0.1},
        ["scale_rewards='batch', std_eps=0.1 have no effect", "Leave scale_rewards out. Leave std_eps out."],
    ),
    (
        {**PAIRWISE, "step_reward_credit": "own"},
        ["step_reward_credit='own' has no effect", "Leave step_reward_credit out."],
    ),
    ({**PAIRWISE, "advantage_baseline": "median"}, ["advantage_baseline='median' has no effect", "'pairwise'"]),
    ({**PAIRWISE, **BY_ITSELF}, ["normalize_then_sum", "no effect", "filter_metric='any'"]),
    ({**PAIRWISE, **K1_IN_REWARD}, ["kl_placement='reward' does not go with advantage_estimator='pairwise'"]),
    ({"filtered_verdicts": "all_bad"}, ["filtered_verdicts='all_bad'", "must be a list, such as ['all_bad'"]),
    ({"zero_variance_groups": "drop", "filtered_verdicts": []}, ["filtered_verdicts=[]", "='drop' has no effect"]),
    ({"reward_variance_top_p": 0.9}, ["reward_variance_top_p=0.9 needs", "='drop' or 'skip' (now 'keep')"]),
    ({**TOP_P, "zero_variance_groups": "resample"}, ["reward_variance_top_p=0.9 needs", "(now 'resample')"]),
    ({**TOP_P, "filtered_verdicts": ["all_bad"]}, ["no effect: filtered_verdicts=['all_bad'] lacks 'low_variance'"]),
    (
        {**TOP_P, "prompt_selection": "belief"},
        ["reward_variance_top_p=0.9 does not go with prompt_selection='belief'"],
    ),
    ({**TOP_P, "filter_metric": "any"}, ["does not go with filter_metric='any'", "to the name of a reward function"]),
    ({**TOP_P, **BY_ITSELF}, ["does not go with multi_objective_aggregation='normalize_then_sum'"]),
    ({**TOP_P, "step_reward_credit": "own"}, ["does not go with step_reward_credit='own'"]),
    ({"importance_ratio": "gspo"}, ["importance_ratio='gspo'", "None, 'gspo_token'"]),
    ({**GSPO_TOKEN, "importance_sampling_level": "sequence"}, ["importance_sampling_level='sequence'"]),
    ({**GSPO_TOKEN, "loss_type": "vespo"}, ["loss_type='vespo'", "'grpo'"]),
    ({**GSPO_TOKEN, "off_policy_mask_threshold": 0.5}, ["off_policy_mask_threshold=0.5"]),
    ({"step_reward_credit": "togo"}, ["step_reward_credit='togo'", "None, 'to_go', 'own'", "Did you mean to_go?"]),
    (
        {"step_reward_credit": "own", "scale_rewards": "batch"},
        ["step_reward_credit='own'", "scale_rewards='batch'", "'group' or 'none'"],
    ),
    (
        {"step_reward_credit": "own", "advantage_baseline": "belief", "scale_rewards": "none"},
        ["step_reward_credit='own'", "advantage_baseline='belief'", "leave step_reward_credit out"],
    ),
    (
        {"step_reward_credit": "own", **BY_ITSELF},
        ["step_reward_credit='own'", "'normalize_then_sum'", "'sum_then_normalize'"],
    ),
    (
        {"step_reward_credit": "own", **K1_IN_REWARD},
        ["step_reward_credit='own'", "kl_placement='reward'", "kl_placement='loss'"],
    ),
    (
        {"step_reward_credit": "own", "importance_sampling_level": "sequence"},
        [
            "step_reward_credit='own'",
            "importance_sampling_level='sequence'",
            "the mean of their advantages",
            "'cispo' or 'vespo'",
        ],
    ),
    (
        {"step_reward_credit": "own", "off_policy_mask_threshold": 0.5},
        ["step_reward_credit='own'", "off_policy_mask_threshold=0.5"],
    ),
    ({"vllm_check_every": 5}, ["vllm_check_every=5 has nothing to compare", "without vLLM", "use_vllm=True"]),
    (
        {"vllm_check_every": 5, "use_vllm": True, "top_p": 0.9, "min_p": 0.1},
        ["vllm_check_every=5 has nothing to compare", "with top_p=0.9, min_p=0.1", "or leave out top_p, min_p"],
    ),
    (
        {"use_vllm": True, "vllm_mode": "server", "generation_kwargs": {"n": 4}, "num_generations": 8},
        ["generation_kwargs has n=4", "num_generations (now 8)"],
    ),
    (
        {"use_vllm": True, "vllm_mode": "colocate", "generation_kwargs": {"seed": 0}},
        ["generation_kwargs has seed=0", "all attempts on a prompt would be the same", "set the option seed instead"],
    ),
]


@pytest.mark.parametrize(("options", "parts"), IMPOSSIBLE)
def test_combinations_that_cannot_work_are_refused_with_the_way_out(make, options, parts):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        make(**options)
    assert [part for part in parts if part not in str(caught.value)] == []


@pytest.mark.parametrize(
    "options",
    [
        {"zero_variance_groups": "resample", "resample_fallback": "raise", "max_resample_rounds": 1},
        {"solved_reward": -0.5, "failed_reward": -1.0},
        {"scale_rewards": "running", "running_std_decay": 0.0},
        {"scale_rewards": "mad", **BY_ITSELF},
        {"scale_rewards": "none", **BY_ITSELF},
        {**K1_IN_REWARD, "use_bias_correction_kl": False},
        {**K1_IN_REWARD, "kl_reward_form": "reward_to_go", "kl_target": 0.2},
        {**KL, "kl_estimator": "k2", "use_bias_correction_kl": False},
        {**KL, "kl_target": 0.1, "kl_horizon": 100},
        {**KL, **BY_ITSELF, "kl_estimator": "k2"},
        *({**KL, "kl_estimator": name} for name in ESTIMATORS),
        {**PAIRWISE, **KL, "kl_estimator": "k2", "zero_variance_groups": "drop", "advantage_clip": 1.0},
        {**PAIRWISE, "prompt_selection": "belief", "belief_key": "level"},
        {"advantage_estimator": {"name": "passk", "args": {"k": 7, "scaled": True}}},
        {"advantage_estimator": "zvp"},
        {"advantage_estimator": "zvp", "zero_variance_groups": "drop"},
        {"advantage_estimator": "zvp", "zero_variance_groups": "drop", "filtered_verdicts": ["tied", "unscored"]},
        {"advantage_estimator": "nowhere.at_all.yet"},  # checked when the trainer is made
        {**GSPO_TOKEN, "step_reward_credit": "own", "loss_type": "grpo"},
        {**KL, "step_reward_credit": "to_go", "scale_rewards": "none", "advantage_baseline": "median"},
        {"step_reward_credit": "own", "importance_sampling_level": "sequence", "loss_type": "vespo"},
        {"vllm_check_every": 0, "top_p": 0.9},
        {"use_vllm": True, "top_p": 0.9},
        {"use_vllm": True, "vllm_mode": "server", "generation_kwargs": {"seed": 3}},
        {"generation_kwargs": {"seed": 3, "n": 2}},  # an engine of a rollout_func may know them
    ],
)
def test_combinations_that_work_pass(make, options):
    config = make(**options)
    assert {name: getattr(config, name) for name in options} == options


NOT_READ = [
    ({"running_std_decay": 0.0}, "scale_rewards='group': set scale_rewards='running'"),
    ({**PAIRS_CHOSEN, "selection_pool": 4}, "prompt_selection={'name': 'by_column'"),
    ({**CHOSEN, "belief_head_share": None}, "belief_head=None: set belief_head='prompt'"),
    ({**KL, "kl_horizon": 50}, "kl_target=None: set kl_target,"),
]


@pytest.mark.parametrize(("options", "way_out"), NOT_READ)
def test_an_option_that_is_not_read_is_refused_unless_it_is_at_its_default(make, options, way_out):
    name = next(name for name in options if name in READ_WITH)
    default = GRPOPlusConfig.__dataclass_fields__[name].default
    with pytest.raises(
        ValueError, match=re.escape(f"{name}={options[name]!r} has no effect with {way_out}")
    ) as caught:
        make(**options)
    assert str(caught.value).endswith(f", or leave it out ({name}={default!r}).")
    assert make(**{**options, name: default})


def test_the_table_above_holds_every_option_that_needs_another():
    assert {name for options, _ in NOT_READ for name in options if name in READ_WITH} == set(READ_WITH)


def test_a_subclass_may_have_its_own_default_of_an_option_that_is_not_read(tmp_path):
    @dataclasses.dataclass
    class Own(GRPOPlusConfig):
        kl_horizon: int = 5

    assert Own(output_dir=str(tmp_path), **CPU).kl_horizon == 5
    with pytest.raises(ValueError, match="kl_horizon=4 has no effect"):
        Own(output_dir=str(tmp_path), **CPU, kl_horizon=4)


@pytest.mark.parametrize(
    "options",
    [
        # Switched off on purpose: a recipe's other options about traces and alarms may stay.
        {"trace_every": 0, "trace_compress": True, "trace_max_groups": 1},
        {"alarms": False, "alarm_thresholds": {"dead_groups": 0.5}},
        *({"zero_variance_groups": mode, "max_resample_rounds": 5} for mode in ("keep", "drop")),
    ],
)
def test_an_option_beside_one_that_was_switched_off_passes(make, options):
    config = make(**options)
    assert {name: getattr(config, name) for name in options} == options


LIGER = [
    {"zero_variance_groups": "drop"},
    {"step_reward_credit": "own"},
    {**KL, "kl_estimator": "k2"},
    {**KL, "kl_target": 0.1},
    GSPO_TOKEN,
]


@pytest.mark.parametrize("options", LIGER)
def test_ligers_loss_of_old_trl_is_refused_if_it_would_ignore_an_option(make, monkeypatch, options):
    monkeypatch.setattr(trl, "__version__", "1.13.2")
    refusal = r"use_liger_kernel=True with TRL 1\.13\.2.*trl>=1\.14.*use_liger_kernel=False"
    with pytest.raises(ValueError, match=refusal):
        make(use_liger_kernel=True, **options)
    assert make(use_liger_kernel=True, advantage_baseline="median").use_liger_kernel
    monkeypatch.setattr(trl, "__version__", "1.14.0")
    assert make(use_liger_kernel=True, **options).use_liger_kernel


# -- defaults and effects of the options


def test_changed_options_are_those_with_another_value(make, tmp_path):
    assert make().changed_options == {}
    assert make(learning_rate=1e-3, scale_rewards="batch").changed_options == {}
    changed = {"zero_variance_groups": "drop", "scale_rewards": "mad"}
    assert make(**changed).changed_options == changed

    @dataclasses.dataclass
    class Population(GRPOPlusConfig):
        std_ddof: int = 0
        own: int = 1

    config = Population(output_dir=str(tmp_path), **CPU, own=2)
    assert config.changed_options == {"std_ddof": 0}
    assert config.changes_advantages


def test_trls_own_options_keep_trls_defaults(make, tmp_path):
    theirs = GRPOConfig(output_dir=str(tmp_path), **CPU).to_dict()
    ours = make().to_dict()
    assert {name for name, value in theirs.items() if ours[name] != value} <= {"logging_dir", "run_name"}
    assert set(ours) - set(theirs) == {field.name for field in NEW}


@pytest.mark.parametrize(("value", "expected"), [(True, "group"), (False, "none"), ("batch", "batch")])
def test_scale_rewards_takes_trls_values(make, tmp_path, value, expected):
    assert make(scale_rewards=value).scale_rewards == expected
    assert GRPOConfig(output_dir=str(tmp_path), **CPU, scale_rewards=value).scale_rewards == expected
    assert not make(scale_rewards=value).changes_advantages


CHANGING = [{"zero_variance_groups": mode} for mode in ("drop", "resample")]
CHANGING += [{"scale_rewards": scale} for scale in ("mad", "mean", "running")]
CHANGING += [{"advantage_baseline": "median"}, {"std_ddof": 0}, {"std_eps": 1e-6}, {"std_floor": 0.1}]
CHANGING += [{"advantage_clip": 5.0}, K1_IN_REWARD, PAIRWISE]
OTHERS = [{}, {"filter_metric": "any"}, {"solved_reward": 2.0}, {"max_resample_rounds": 9}]
OTHERS += [{"scale_rewards": "none"}, {**KL, "kl_estimator": "k2"}, {**KL, "kl_target": 0.1, "kl_horizon": 5}]


@pytest.mark.parametrize("options", [*CHANGING, *OTHERS])
def test_options_about_the_advantage_change_it_and_others_leave_it_to_trl(make, options):
    config = make(**options)
    assert config.changes_advantages == (options in CHANGING)
    assert config.filters_groups == ("zero_variance_groups" in options)


# -- documentation


@pytest.mark.parametrize("field", OURS, ids=lambda field: field.name)
def test_each_field_is_documented(field):
    assert len(field.metadata["help"]) > 15
    assert field.metadata["help"].endswith(".")
    kind = f"`{_type_name(field).removesuffix(' | None')}`"
    of_several = {"scale_rewards": "`str` or `bool`", "prompt_selection": r"`str` or `dict\[str, Any\]`"}
    of_several |= {"advantage_baseline": "`str` or `Callable`"}
    of_several |= {"advantage_estimator": r"`str`, `dict\[str, Any\]` or `Callable`"}
    of_several |= {"alarm_thresholds": r"`dict\[str, Any\]` or `str`", "filtered_verdicts": r"`list\[str\]`"}
    of_several["halt_on_alarm"] = r"`list\[str\]`"
    kind = of_several.get(field.name, kind)
    default = "" if field.default is None else rf", defaults to `{re.escape(_documented(field.default))}`"
    entry = rf"(?m)^    {field.name} \({kind}, \*optional\*{default}\):\n        \S"
    assert re.search(entry, DOCSTRING)


def _type_name(field):
    kind = HINTS[field.name]
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)


def _documented(default):
    if isinstance(default, str):
        return f'"{default}"'
    return {1e-6: "1e-6", 1e-4: "1e-4"}.get(default, str(default))


def test_the_docstring_names_no_field_that_is_gone():
    named = re.findall(r"(?m)^    (\w+) \(`", DOCSTRING)
    assert sorted(named) == sorted(field.name for field in OURS)


@pytest.mark.parametrize("field", OURS, ids=lambda field: field.name)
def test_the_docstring_names_every_choice(field):
    entry = re.split(r"(?m)^    (?=\w+ \(`|>)", DOCSTRING.split(f"    {field.name} (`")[1])[0]
    assert [c for c in CHOICES.get(field.name, ()) if f'"{c}"' not in entry and f"`{c}`" not in entry] == []


# -- the command line and YAML

# The parsed values. STRINGS has their texts, some of them written in another way.
PARSED = {
    **{"zero_variance_groups": "resample", "resample_fallback": "keep", "filter_metric": "accuracy"},
    **{"zero_variance_tolerance": 1e-5, "solved_reward": 2.0, "failed_reward": -0.5, "max_resample_rounds": 5},
    **{"scale_rewards": "running", "advantage_baseline": "leave_one_out", "advantage_clip": 5.0},
    **{"std_ddof": 0, "std_eps": 1e-6, "std_floor": 0.01, "running_std_decay": 0.5},
    **{"filtered_verdicts": ["all_bad", "tied"], "prompt_selection": "belief", "selection_pool": 4},
    **{
        "belief_key": "level",
        "belief_id": "id",
        "belief_head": "prompt",
        "belief_head_share": 0.5,
        "advantage_estimator": {"name": "grpo"},
    },
    **{"beta": 0.01, "kl_estimator": "k1", "kl_placement": "reward", "kl_reward_form": "reward_to_go"},
    "importance_ratio": "gspo_token",
    **{"kl_target": 0.2, "kl_horizon": 2000, "reward_workers": 3, "reward_worker_memory_mb": 1024},
    **{"trace_every": 5, "trace_max_groups": 16, "trace_compress": True, "trace_log_groups": 2},
    **{"alarms": False, "alarm_thresholds": {"dead_groups": 0.5}, "vllm_check_every": 0, "nonfinite_step": "ignore"},
    "trace_thumbnails": 64,
}
# Refused together with some of PARSED.
APART = [
    {"step_reward_credit": "own", "halt_on_alarm": ["dead_groups"]},
    {"zero_variance_groups": "skip", "reward_variance_top_p": 0.9},
]
STRINGS = {name: str(value) for name, value in PARSED.items()}
STRINGS |= {"solved_reward": "2", "advantage_clip": "5", "beta": "1e-2", "kl_target": "2e-1"}
STRINGS["advantage_estimator"] = '{"name": "grpo"}'
STRINGS |= {"trace_compress": "true", "alarms": "false", "alarm_thresholds": '{"dead_groups": 0.5}'}
WORDS = {**{name: [text] for name, text in STRINGS.items()}, "filtered_verdicts": PARSED["filtered_verdicts"]}


def assert_parsed(config):
    assert {name: getattr(config, name) for name in PARSED} == PARSED
    strings = {name for name, value in PARSED.items() if isinstance(value, str)}
    assert {name for name in PARSED if isinstance(getattr(config, name), str)} == strings


def test_the_table_above_holds_every_field_away_from_its_default():
    table = PARSED | APART[0] | {"reward_variance_top_p": APART[1]["reward_variance_top_p"]}
    assert {field.name for field in OURS} - {"preset"} <= set(table)
    assert not [field.name for field in OURS if table.get(field.name) == field.default and field.name != "preset"]


def test_a_preset_is_refused_of_a_parser_that_would_not_apply_it(from_yaml):
    with pytest.raises(ValueError, match=r"a parser gave every option.*loss_type='dapo', epsilon=0\.2"):
        from_yaml("preset: dapo")


@pytest.mark.parametrize("parser", [HfArgumentParser, TrlParser])
def test_every_option_comes_from_a_command_line(cli, parser):
    arguments = [part for name, words in WORDS.items() for part in (f"--{name}", *words)]
    assert_parsed(parser(GRPOPlusConfig).parse_args_into_dataclasses([*cli, *arguments])[0])
    for options in APART:
        words = list(cli)
        for name, value in options.items():
            words += [f"--{name}", *(value if isinstance(value, list) else [str(value)])]
        config = parser(GRPOPlusConfig).parse_args_into_dataclasses(words)[0]
        assert {name: getattr(config, name) for name in options} == options


def test_every_option_comes_from_yaml(from_yaml):
    # 1e-5 without a point is a string in YAML 1.1, which argparse turns into the field's type.
    assert_parsed(from_yaml("\n".join(f"{name}: {value}" for name, value in STRINGS.items())))
    for options in APART:
        config = from_yaml("\n".join(f"{name}: {value}" for name, value in options.items()))
        assert {name: getattr(config, name) for name in options} == options


BY_COLUMN = {"name": "by_column", "args": {"column": "level", "order": "easy_first"}}


def test_a_sampler_with_arguments_comes_from_command_line_and_yaml(from_yaml, cli):
    from_line = HfArgumentParser(GRPOPlusConfig).parse_args_into_dataclasses(
        [*cli, "--prompt_selection", json.dumps(BY_COLUMN)]
    )[0]
    from_file = from_yaml("prompt_selection: {name: by_column, args: {column: level, order: easy_first}}")
    assert from_line.prompt_selection == from_file.prompt_selection == BY_COLUMN


def test_an_advantage_function_with_arguments_comes_from_command_line_and_yaml(from_yaml, cli):
    pkpo = {"name": "pkpo", "args": {"k": 3}}
    words = [*cli, "--advantage_estimator", json.dumps(pkpo)]
    (from_line,) = HfArgumentParser(GRPOPlusConfig).parse_args_into_dataclasses(words)
    from_file = from_yaml("advantage_estimator: {name: pkpo, args: {k: 3}}")
    assert from_line.advantage_estimator == from_file.advantage_estimator == pkpo


def centred(rewards, weights, about):
    return rewards.sum(-1) - rewards.sum(-1).mean(dim=1, keepdim=True)


def test_a_function_of_ones_own_is_saved_by_its_path(make):
    config = make(advantage_estimator={"name": centred, "args": {}})
    assert config.changed_options == {"advantage_estimator": {"name": f"{__name__}:centred", "args": {}}}
    saved = json.loads(config.to_json_string())["advantage_estimator"]
    assert make(advantage_estimator=saved).advantage_estimator == saved
    assert pickle.loads(pickle.dumps(config)).advantage_estimator["name"] is centred


def test_numbers_of_numpy_become_pythons_own(make):
    given = {"selection_pool": np.int64(4), "kl_target": np.float32(0.5), "alarms": np.bool_(False), **KL}
    given |= {"prompt_selection": "belief", "num_generations": np.int32(4), "learning_rate": np.float64(0.25)}
    config = make(**given, reward_weights=np.array([1.0, 0.5]))
    assert config.reward_weights == [1.0, 0.5]
    told = json.loads(config.to_json_string())
    for name, value in given.items():
        assert told[name] == value
        assert type(getattr(config, name)) in (int, float, bool, str)
    within = make(
        reward_weights=[np.float32(1), torch.tensor(0.5)],
        generation_kwargs={"top_k": np.int64(5), "stop_token_ids": (np.int64(3), 4), "stop": ["a"]},
    )
    assert within.reward_weights == [1.0, 0.5]
    assert within.generation_kwargs == {"top_k": 5, "stop_token_ids": (3, 4), "stop": ["a"]}
    assert '"top_k": 5' in within.to_json_string()  # TensorBoard's callback writes it when training begins
    own = {"stop": ["a"]}
    assert make(generation_kwargs=own).generation_kwargs is own
    config = make(alarm_thresholds={"near_duplicates": np.float32(0.5), "window": np.int64(4), "length_drift": None})
    thresholds = json.loads(config.to_json_string())["alarm_thresholds"]
    assert thresholds == {"near_duplicates": 0.5, "window": 4, "length_drift": None}
    with pytest.raises(ValueError, match=r"selection_pool=2.5 must be an integer"):
        make(selection_pool=np.float64(2.5), prompt_selection="belief")


@pytest.mark.parametrize("option", ["advantage_estimator", "advantage_baseline"])
def test_a_partial_is_refused_as_it_has_no_path(make, option):
    with pytest.raises(ValueError, match=rf"{option}=functools.partial.* has no path.* Define a function") as caught:
        make(**{option: functools.partial(centred, about=None)})
    assert ('or give {"name"' in str(caught.value)) == (option == "advantage_estimator")


def test_the_command_line_wins_over_yaml(from_yaml):
    config = from_yaml("std_eps: 1e-6\nzero_variance_groups: drop", "--std_eps", "1e-5")
    assert (config.std_eps, config.zero_variance_groups) == (1e-5, "drop")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("true", "group"), ("false", "none"), ("none", "none"), ("mad", "mad"), ("'mean'", "mean"), ("no", "none")],
)
def test_scale_rewards_from_yaml(from_yaml, text, expected):
    assert from_yaml(f"scale_rewards: {text}").scale_rewards == expected


WRONG = ["zero_variance_groups: dropp", "scale_rewards: null", "std_eps: -1.0", "std_eps: true", "std_ddof: 2"]
WRONG += ["kl_horizon: 1.0e+4", "max_resample_rounds: 0", "advantage_clip: 0", "kl_target: 0.1", "filter_metric: null"]
WRONG += ["advantage_estimator: {name: 3}", "advantage_estimator: null", "advantage_estimator: rloo"]
WRONG += ["filtered_verdicts: [dead]", "prompt_selection: {name: by_column, column: level}"]


@pytest.mark.parametrize("line", WRONG)
def test_wrong_yaml_is_refused_by_name(from_yaml, line):
    # Values from YAML are argparse defaults, so its own checks of choices do not see them.
    with pytest.raises(ValueError, match=line.split(":")[0]):
        from_yaml(line)


@pytest.mark.parametrize("line", ["kl_horizon: 1e4", "std_eps: small", "advantage_clip: off-ish"])
def test_yaml_that_argparse_cannot_convert_is_refused_by_name(from_yaml, capsys, line):
    with pytest.raises(SystemExit):
        from_yaml(line)
    assert f"--{line.split(':')[0]}" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["advantage_clip: null", "advantage_clip: none", "kl_target: ~"])
def test_null_means_none(from_yaml, line):
    assert getattr(from_yaml(line), line.split(":")[0]) is None


@pytest.mark.parametrize(
    "arguments", [["--zero_variance_groups", "dropp"], ["--kl_estimator", "k4"], ["--std_eps", "x"]]
)
def test_a_wrong_command_line_is_refused_by_name(cli, capsys, arguments):
    with pytest.raises(SystemExit):
        HfArgumentParser(GRPOPlusConfig).parse_args_into_dataclasses([*cli, *arguments])
    assert arguments[0] in capsys.readouterr().err


def test_a_wrong_scale_on_the_command_line_is_refused_by_name(cli):
    with pytest.raises(ValueError, match=r"scale_rewards='False'.*'none'"):
        HfArgumentParser(GRPOPlusConfig).parse_args_into_dataclasses([*cli, "--scale_rewards", "False"])


def test_the_options_survive_json(make):
    config = make(beta=0.1, kl_estimator="k2", scale_rewards=False, advantage_clip=2.0)
    saved = json.loads(config.to_json_string())
    assert make(**{field.name: saved[field.name] for field in OURS}, beta=0.1) == config


def test_a_mistyped_option_that_is_set_later_gives_a_warning(make):
    config = make()
    with pytest.warns(
        UserWarning, match="'zero_variance_group' is no option, and has no effect. Did you mean zero_var"
    ):
        config.zero_variance_group = "drop"
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*is no option")
        config.zero_variance_groups, config.note, config.trace_folder = "drop", "mine", "traces"
        assert make().device.type == "cpu"  # transformers and TRL set attributes of their own
