"""All mistakes of a user are refused at once, with the value and the fix, before anything is loaded or launched.

`check` is tested on every mistake. `run` and the launch script make the same checks, and are tested on one mistake for
each check.
"""

import dataclasses
import importlib
import math
import os
import re
from pathlib import Path
from unittest import mock

import pytest
import torch
from invalid_recipes import BELIEF, MISTAKES, Mistake, make_place

from trl_grpo_plus import GRPOPlusConfig
from trl_grpo_plus.cli.main import main
from trl_grpo_plus.launch import accelerate as launch
from trl_grpo_plus.launch import option_checks, preflight, recipe
from trl_grpo_plus.launch.accelerate import RUN_AS
from trl_grpo_plus.launch.command_line import parse
from trl_grpo_plus.launch.option_checks import bad_together
from trl_grpo_plus.recipes import grpo
from trl_grpo_plus.utils import resources
from trl_grpo_plus.utils.tables import FAILED, WARNED, CheckRow
from trl_grpo_plus.utils.validation import ConfigError


BY_NAME = {mistake.name: mistake for mistake in MISTAKES}
# For each check of the list, a mistake that it refuses.
REFUSED_BY = {
    "keys": "a mistyped key",
    "options": "numbers out of bounds",
    "machine": "a package that is not installed",
    "output": "a missing checkpoint to resume from",
    "rewards": "an unknown reward",
    "callables": "a missing tool",
    "filter_metric": "a filter by rewards whose weights are 0",
    "stream": "a missing class of a stream",
    "advantage": "a missing advantage function",
    "data": "two sources of data",
    "model": "a missing model",
    "attention": "an unknown attention",
    "splits": "evaluation without a split for it",
    "prompts": "an empty prompt",
    "enough": "too few rows for a step",
    "remembered": "a belief_key that is not a column",
    "columns": "a missing column",
    "template": "messages without a chat template",
}
# Tested elsewhere: `processes` in test_accelerate_configs.py, `reset` in test_recipe_data.py. `dtype` and
# `together` only warn a run, and are tested below. `preset` refuses nothing.
MIXED = ["a mixture with a missing file", "a mixture with a broken line"]
ELSEWHERE = {"processes", "reset", "dtype", "together", "preset"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistakes")
    make_place(folder)
    return folder


@pytest.fixture
def here(place, monkeypatch):
    """Work in the folder `place`, and yield the list that collects commands instead of launching them."""
    monkeypatch.chdir(place)
    launched = []
    monkeypatch.setenv(RUN_AS, "")  # the command sets it; pytest restores it
    monkeypatch.setattr(os, "execv", lambda path, command: launched.append(command))
    yield launched
    assert not (place / "out").exists(), "a check, or a refused run, left something"


def words(text):
    """Return the text in one line, because the table wraps it."""
    return " ".join(text.split())


def assert_says(text, mistake):
    for part in mistake.says:
        assert words(part) in words(text)


def script(*options):
    return grpo.main(*parse(grpo.make_parser(prog="grpo"), ["--config", "my_run.yaml", *options]))


def named(names):
    return pytest.mark.parametrize("mistake", [BY_NAME[name] for name in names], ids=list(names))


@pytest.mark.parametrize(
    ("keys", "options"),
    [
        ({}, []),
        # Options of features that are switched off on purpose.
        ({"lora_r": 8, "use_peft": False}, ["--use_vllm", "false", "--vllm_gpu_memory_utilization", "0.5"]),
    ],
    ids=["plain", "switches off"],
)
def test_a_recipe_without_a_mistake_is_in_order(here, place, capsys, keys, options):
    Mistake("none", (), keys).write(place)
    status, printed = main(["check", "my_run.yaml", *options]), capsys.readouterr().out
    assert status == 0, printed
    assert "FAILED" not in printed
    assert "no effect" not in printed
    main(["run", "my_run.yaml", *options])
    assert len(here) == 1


@named(BY_NAME)
def test_check_says_what_is_wrong(here, place, capsys, mistake):
    mistake.write(place)
    status = main(["check", mistake.recipe, *mistake.options])
    printed = capsys.readouterr()
    assert status == mistake.status, printed.out
    assert_says(printed.err if mistake.status == 2 else printed.out, mistake)
    assert ("FAILED" in printed.out) == (mistake.status == 1)


def test_each_check_of_the_list_has_a_mistake():
    assert {check.__name__ for check in (*preflight.PAPER, *preflight.DATA)} == REFUSED_BY.keys() | ELSEWHERE


@named([*REFUSED_BY.values(), *MIXED, "an unknown recipe", "a recipe in another encoding", "a folder below a file"])
def test_run_refuses_a_mistake_before_anything_is_launched(here, place, capsys, mistake):
    mistake.write(place)
    assert main(["run", mistake.recipe, *mistake.options]) == 2
    assert here == []
    refused = capsys.readouterr().err
    assert refused.startswith("error: ")
    assert_says(refused, mistake)


@named([*REFUSED_BY.values(), *MIXED, *(name for name, mistake in BY_NAME.items() if mistake.by == "script")])
def test_the_script_refuses_a_mistake_before_a_model_is_loaded(here, place, monkeypatch, mistake):
    mistake.write(place)
    monkeypatch.setattr("trl.GRPOTrainer.__init__", lambda *_, **__: pytest.fail("a trainer was made"))
    with pytest.raises(ConfigError) as error:
        script(*mistake.options)
    assert_says(str(error.value), mistake)


@pytest.mark.parametrize(
    ("keys", "evaluated"),
    [
        ({"do_eval": True}, ["test", "validation"]),
        ({"do_eval": True, "dataset_test_split": "test"}, ["test", "validation"]),
        ({"do_eval": True, "dataset_test_split": "validation"}, ["validation"]),
        ({"dataset_test_split": "validation"}, []),
        ({"dataset_test_split": "nowhere"}, []),
    ],
)
def test_a_named_split_is_evaluated_alone(here, place, monkeypatch, keys, evaluated):
    made = mock.Mock(side_effect=InterruptedError)
    monkeypatch.setattr("trl_grpo_plus.GRPOPlusTrainer", made)
    Mistake("none", (), {"dataset_name": "splits", **keys}).write(place)
    with pytest.raises(InterruptedError):
        script()
    sets = made.call_args.kwargs["eval_dataset"] or {}
    assert sorted(sets) == evaluated
    assert all(rows["prompt"][0].startswith(name[:5]) for name, rows in sets.items())


@pytest.mark.parametrize("word", ["no", "False", "0", "null", "none"])
def test_words_that_resume_from_nothing(here, place, word):
    Mistake("none", ()).write(place)
    main(["run", "my_run.yaml", "--resume_from_checkpoint", word])
    assert len(here) == 1


def test_two_dashes_before_the_options_of_the_recipe_mean_nothing(here, place, capsys):
    Mistake("none", ()).write(place)
    given = ["--seed", "3", "--num_processes", "1"]
    assert main(["check", "my_run.yaml", "--", *given]) == 0
    assert "11 keys, 2 words on the command line\n" in capsys.readouterr().out
    main(["run", "my_run.yaml", "--", *given])
    main(["run", "my_run.yaml", *given])
    assert here[0] == here[1]
    parsed = parse(grpo.make_parser(prog="grpo"), ["--", "--config", "my_run.yaml", "--", "--seed", "3"])
    assert (parsed[1].seed, parsed[1].max_steps) == (3, 1)


def test_each_mistake_is_an_error_of_its_own_and_none_follows_from_another(here, place, capsys):
    keys = {"dataset_name": ["data.jsonl", "dta.jsonl"], "model_name_or_path": ["./model"], "lerning_rate": 1}
    Mistake("three", (), keys).write(place)
    told = [
        "my_run.yaml: dataset_name=['data.jsonl', 'dta.jsonl'] must be a text.",
        "my_run.yaml: unknown key lerning_rate. Did you mean learning_rate or logging_strategy?",
        "my_run.yaml: model_name_or_path=['./model'] must be a text.",
    ]
    assert main(["run", "my_run.yaml"]) == 2
    refused = capsys.readouterr().err.splitlines()
    assert sorted(refused) == sorted(f"error: {line}" for line in told)
    with pytest.raises(ConfigError) as error:
        script()
    assert sorted(str(error.value).splitlines()) == sorted(told)  # `error: ` is the commands', not the exception's
    assert main(["check", "my_run.yaml"]) == 1
    checked = capsys.readouterr().out
    assert checked.count("FAILED") == len(told) + 1  # the last line names the check
    assert checked.endswith("FAILED: keys.\n")


def test_run_refuses_a_folder_that_it_may_not_write(here, place, capsys, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(place) or not mode & os.W_OK)
    Mistake("none", ()).write(place)
    assert main(["run", "my_run.yaml", "--output_dir", "new/run"]) == 2
    assert here == []
    assert f"error: output_dir: new/run cannot be used: the user {os.geteuid()} may not write into {place}, or" in (
        capsys.readouterr().err
    )


def test_a_missing_sandbox_is_one_of_the_mistakes(here, place, capsys, monkeypatch):
    module = importlib.import_module("trl_grpo_plus.rewards.python_tests")
    monkeypatch.setattr(module, "_runs_here", module._runs_here.__wrapped__)  # an earlier result is cached
    monkeypatch.setattr("trl_grpo_plus.sandbox.sandbox.tiers", list)
    Mistake("none", (), {"reward_funcs": ["python_tests"], "model_name_or_path": "./mdel"}).write(place)
    mistakes = (
        "reward 'python_tests' cannot run here: There is no safe way to run model-written programs",
        "model_name_or_path: there is no folder ./mdel.",
    )
    assert main(["check", "my_run.yaml"]) == 1
    checked = words(capsys.readouterr().out)
    assert main(["run", "my_run.yaml"]) == 2
    refused = words(capsys.readouterr().err)
    assert [text for text in mistakes if text not in checked or text not in refused] == []


@pytest.mark.parametrize("part", ["PAPER", "DATA"])
def test_a_check_in_the_list_is_made_by_check_run_and_the_script(here, place, capsys, monkeypatch, part):
    def budget(recipe):
        steps = recipe.training.max_steps
        return [CheckRow("budget", FAILED, f"max_steps={steps} teaches nothing.")] if steps < 2 else []

    monkeypatch.setattr(preflight, part, (*getattr(preflight, part), budget))
    Mistake("none", ()).write(place)
    assert main(["check", "my_run.yaml"]) == 1
    assert "budget FAILED max_steps=1 teaches nothing." in words(capsys.readouterr().out)
    assert main(["run", "my_run.yaml"]) == 2
    assert capsys.readouterr().err == "error: max_steps=1 teaches nothing.\n"
    with pytest.raises(ConfigError, match=r"^max_steps=1 teaches nothing\.$"):
        script()
    assert here == []
    main(["run", "my_run.yaml", "--max_steps", "2"])
    assert len(here) == 1


def test_updates_lost_in_rounding_fail_a_check_and_are_left_to_the_trainer_of_a_run(here, place, capsys, monkeypatch):
    class MadeError(Exception):
        pass

    monkeypatch.setattr("trl.GRPOTrainer.__init__", mock.Mock(side_effect=MadeError))
    Mistake("none", (), {"learning_rate": 1e-6, "dtype": "bfloat16"}).write(place)
    assert main(["check", "my_run.yaml", "--num_processes", "1"]) == 1
    assert "dtype FAILED dtype='bfloat16' with learning_rate=1e-06" in words(capsys.readouterr().out)
    main(["run", "my_run.yaml"])
    assert len(here) == 1
    with pytest.raises(MadeError):
        script()
    assert "lost in rounding" not in capsys.readouterr().err  # no trainer was made


@pytest.mark.parametrize(
    ("keys", "sharding", "trl", "warned"),
    [
        ({"dtype": "bfloat16", "use_peft": True, "use_vllm": True}, "fsdp", "1.16.0", True),
        ({"dtype": "bfloat16", "use_peft": True, "use_vllm": True}, "none", "1.11.0", True),
        ({"dtype": "bfloat16", "use_peft": True, "use_vllm": True}, "none", "1.12.0", False),
        ({"dtype": "bfloat16", "use_peft": True, "use_vllm": True}, "zero2", "1.16.0", False),
        ({"dtype": "float32", "use_peft": True, "use_vllm": True}, "fsdp", "1.16.0", False),
        ({"dtype": "bfloat16", "use_peft": True}, "fsdp", "1.16.0", False),
        ({"dtype": "bfloat16", "use_vllm": True, "learning_rate": 1e-4}, "fsdp", "1.16.0", False),
    ],
)
def test_an_adapter_whose_base_drifts_is_warned_of(here, place, monkeypatch, keys, sharding, trl, warned):
    """TRL merges it into the weights to send them to vLLM, and takes it out again: 16 bits round each time."""
    monkeypatch.setattr(option_checks, "multiplies_bfloat16", lambda: True)
    monkeypatch.setattr(option_checks, "version", lambda name: trl)
    Mistake("none", (), keys).write(place)
    spread = dataclasses.replace(launch.distribution(None, 1, 0), sharding=sharding)
    rows = preflight.dtype(recipe.read("my_run.yaml", (), spread))
    assert [row.status for row in rows] == [WARNED] * warned
    assert all(
        "dtype='bfloat16' with use_peft and use_vllm: each time TRL sends the weights" in row.text for row in rows
    )


@pytest.mark.parametrize(
    ("flags", "keys", "warned"),
    [
        ("avx2 avx512f", {"dtype": "bfloat16", "use_peft": True}, True),
        ("avx2 avx512f", {"dtype": "float16", "use_peft": True}, False),
        ("avx2 avx512f", {"dtype": "bfloat16", "use_peft": True, "use_cpu": False}, False),
        ("avx2 avx512f", {"dtype": "float32", "use_peft": True}, False),
        ("avx512f avx512_bf16", {"dtype": "bfloat16", "use_peft": True}, False),
        ("asimd bf16", {"dtype": "bfloat16", "use_peft": True}, False),
        (None, {"dtype": "bfloat16", "use_peft": True}, False),
    ],
)
def test_16_bits_on_a_processor_without_bfloat16(here, place, monkeypatch, tmp_path, flags, keys, warned):
    monkeypatch.setattr(resources, "PROCESSOR", tmp_path / "cpuinfo")
    if flags:
        (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {flags}\n")
    Mistake("none", (), keys).write(place)
    rows = preflight.dtype(recipe.read("my_run.yaml", (), launch.distribution(None, 1, 0)))
    expected = f"dtype='{keys['dtype']}' with use_cpu: this processor has no instructions for bfloat16, so float32 is"
    assert [row.text[: len(expected)] for row in rows if row.status == WARNED] == [expected] * warned


BAD_TOGETHER = [
    (
        {"num_generations": 2},
        "num_generations=2 with scale_rewards='group': the two advantages always have the same size",
    ),
    ({"num_generations": 2, "scale_rewards": "mad"}, "num_generations=2 with scale_rewards='mad'"),
    (
        {"prompt_selection": "belief"},
        "prompt_selection='belief' with advantage_baseline='mean': beliefs choose the prompts",
    ),
    (
        {"advantage_estimator": "vector", "zero_variance_groups": "drop"},
        "advantage_estimator='vector' with zero_variance_groups='drop' and filter_metric='total'",
    ),
]


MADE = {"use_cpu": True, "bf16": False, "report_to": "none", "per_device_train_batch_size": 8}


def test_long_attempts_lose_their_weight_to_the_product_of_ratios():
    long = {"use_vllm": True, "max_completion_length": 8192}
    (warned,) = bad_together(GRPOPlusConfig("out", **MADE, **long))
    assert "sequence_mask' with max_completion_length=8,192: an attempt's weight is the product" in warned
    assert "keep on average 66 % at 0.01 and 8 % at 0.03 nats a token of their weight" in warned
    for otherwise in (
        {"max_completion_length": 1999},
        {"use_vllm": False},
        {"vllm_importance_sampling_mode": "token_truncate"},
        {"vllm_importance_sampling_correction": False},
        {"vllm_importance_sampling_clip_max": None},
    ):
        assert bad_together(GRPOPlusConfig("out", **MADE, **{**long, **otherwise})) == []


@pytest.mark.parametrize(("tokens", "difference"), [(200, 0.01), (8192, 0.01), (8192, 0.03)])
def test_the_weight_that_long_attempts_keep_is_what_trl_would_give_them(tokens, difference):
    """As TRL weighs them: the exponential of the summed differences, 0 above the highest."""
    torch.manual_seed(0)
    size = difference * (math.pi / 2) ** 0.5
    assert (torch.randn(100_000) * size).abs().mean() == pytest.approx(difference, rel=0.02)
    # A token's ratio has the mean 1, so its logarithm has the mean -size^2 / 2.
    summed = torch.randn(400_000) * size * tokens**0.5 - tokens * size**2 / 2
    weights = summed.exp()
    kept = weights.masked_fill(weights > 3, 0).mean().item()
    assert option_checks.kept_by_product(tokens, difference, 3.0) == pytest.approx(kept, abs=0.01)


def test_the_docs_have_the_weights_that_are_reckoned():
    questions = (Path(__file__).parents[2] / "docs" / "faq.md").read_text()
    _, _, table = questions.partition("| mean difference, nats a token |")
    rows = re.findall(r"^\| (0\.0\d)" + r" \| (\d\.\d\d)" * 4, table, re.MULTILINE)
    assert len(rows) == 3
    for difference, *weights in rows:
        reckoned = [
            option_checks.kept_by_product(tokens, float(difference), 3.0) for tokens in (500, 2000, 4000, 8000)
        ]
        assert [float(weight) for weight in weights] == [round(weight, 2) for weight in reckoned]


def test_nothing_is_advised_that_step_reward_credit_refuses():
    for options in ({"num_generations": 2}, {"prompt_selection": "belief"}):
        assert bad_together(GRPOPlusConfig("out", **MADE, **options))
        assert not bad_together(GRPOPlusConfig("out", **MADE, **options, step_reward_credit="own"))


@pytest.mark.parametrize(("keys", "text"), BAD_TOGETHER)
def test_options_that_are_bad_together_give_a_warning(here, place, capsys, monkeypatch, keys, text):
    monkeypatch.setattr("trl.GRPOTrainer.__init__", mock.Mock(side_effect=InterruptedError))
    Mistake("none", (), keys).write(place)
    assert main(["check", "my_run.yaml"]) == 0
    printed = words(capsys.readouterr().out)
    assert f"options warning {text}" in printed
    assert printed.endswith("Warnings, which do not stop a run: options.")
    main(["run", "my_run.yaml"])
    assert len(here) == 1
    with pytest.raises(InterruptedError):
        script()
    assert f"warning: {text}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"learning_rate": 1e-6}, "learning_rate=1e-06 for an adapter"),
        ({"num_iterations": 2, "learning_rate": 1e-5}, "The model has dropout (0.05)."),
        ({"num_iterations": 2, "learning_rate": 1e-5, "lora_dropout": 0.0}, None),
    ],
)
def test_options_that_are_bad_for_an_adapter_give_a_warning(here, place, capsys, keys, text):
    Mistake("none", (), {"use_peft": True, **keys}).write(place)
    main(["check", "my_run.yaml"])
    printed = words(capsys.readouterr().out)
    assert f"options warning {text}" in printed if text else "options warning" not in printed


def test_a_recipe_whose_rewards_have_no_weight_gives_a_warning(here, place, capsys):
    Mistake("none", (), {"reward_weights": [0.0]}).write(place)
    assert main(["check", "my_run.yaml"]) == 0
    assert "rewards warning reward_weights=[0.0] are all 0, so all advantages are 0." in words(capsys.readouterr().out)


@pytest.mark.parametrize(
    "keys",
    [
        {"num_generations": 2, "scale_rewards": "batch"},
        {"num_generations": 2, **BELIEF},
        {"prompt_selection": "belief", **BELIEF},
        {"prompt_selection": {"name": "by_column", "args": {"column": "answer", "order": "hard_first"}}},
    ],
)
def test_options_that_go_together_give_no_warning(here, place, capsys, keys):
    Mistake("none", (), keys).write(place)
    assert main(["check", "my_run.yaml"]) == 0
    assert "warning" not in capsys.readouterr().out


@pytest.mark.parametrize("config", [["--config", "my_run.yaml"], ["--config=my_run.yaml"]])
def test_the_recipe_may_be_named_as_the_script_takes_it(here, place, capsys, config):
    Mistake("none", ()).write(place)
    assert main(["check", *config, "--seed", "3"]) == 0, capsys.readouterr().out
    main(["run", "--seed", "3", *config])
    main(["run", "my_run.yaml", "--seed", "3"])
    assert here[0] == here[1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_recipe_for_a_gpu_says_that_it_needs_one(here, place, capsys):
    Mistake("for a GPU", (), {"use_cpu": ..., "bf16": ...}).write(place)
    assert main(["run", "my_run.yaml"]) == 2
    refused = capsys.readouterr().err
    with pytest.raises(ConfigError) as error:
        script()
    for text in (refused, str(error.value)):
        assert "this run needs a GPU, because it trains in bf16, TRL's default. This machine has no GPU" in text
        assert "set use_cpu=True and bf16=False (in YAML use_cpu: true and bf16: false)." in text
    assert here == []
    assert main(["check", "my_run.yaml"]) == 0
    assert "no GPU here" in capsys.readouterr().out


def test_independent_mistakes_are_reported_together(here, place, capsys):
    keys = {"lerning_rate": 1e-5, "loss_type": "grop", "max_steps": "many", "lora_r": 8}
    keys |= {"reward_funcs": ["exact_answr"], "dataset_name": "dta.jsonl", "model_name_or_path": "./modle"}
    Mistake("several", (), {**keys, "resume_from_checkpoint": "nowhere"}).write(place)
    parts = ["unknown key lerning_rate", "loss_type='grop'", "max_steps='many'", "lora_r has no effect"]
    parts += ["'exact_answr'", "no file or folder dta.jsonl", "no folder ./modle", "nowhere is not a checkpoint"]
    assert main(["check", "my_run.yaml"]) == 1
    printed = words(capsys.readouterr().out)
    main(["run", "my_run.yaml"])
    refused = words(capsys.readouterr().err)
    for part in parts:
        assert printed.count(part) == 1, part
        assert part in refused, part
    assert here == []
