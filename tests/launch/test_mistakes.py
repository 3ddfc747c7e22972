"""What users get wrong is refused before anything is loaded or launched, with the value and the fix, all at once."""

import os

import pytest
import torch
from wrong_recipes import MISTAKES, Mistake, make_place

from trl_grpo_plus.cli import main
from trl_grpo_plus.common.values import Refusal
from trl_grpo_plus.launch.command_line import parse
from trl_grpo_plus.recipes import grpo


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistakes")
    make_place(folder)
    return folder


@pytest.fixture
def here(place, monkeypatch):
    """In that folder, where whatever is launched is only noted."""
    monkeypatch.chdir(place)
    launched = []
    monkeypatch.setattr(os, "execv", lambda path, command: launched.append(command))
    yield launched
    assert not (place / "out").exists(), "a check, or a refused run, left something"


def words(text):
    """As one line: the table wraps."""
    return " ".join(text.split())


def named(mistakes):
    return pytest.mark.parametrize("mistake", mistakes, ids=[mistake.name for mistake in mistakes])


def test_the_recipe_without_a_mistake_is_in_order(here, place, capsys):
    Mistake("none", ()).write(place)
    assert main(["check", "my_run.yaml"]) == 0, capsys.readouterr().out
    assert "FAILED" not in capsys.readouterr().out
    main(["run", "my_run.yaml"])
    assert len(here) == 1


@named(MISTAKES)
def test_check_says_what_is_wrong(here, place, capsys, mistake):
    mistake.write(place)
    status = main(["check", mistake.recipe, *mistake.options])
    printed = capsys.readouterr()
    assert status == mistake.status, printed.out
    told = words(printed.out if mistake.status == 1 else printed.err)
    for wanted in mistake.told:
        assert words(wanted) in told
    assert ("FAILED" in told) == (mistake.status == 1)


@named([mistake for mistake in MISTAKES if mistake.by == "run"])
def test_run_refuses_it_before_anything_is_launched(here, place, capsys, mistake):
    mistake.write(place)
    assert main(["run", mistake.recipe, *mistake.options]) == 2
    assert here == []
    told = words(capsys.readouterr().err)
    assert told.startswith("error: ")
    for wanted in mistake.told:
        assert words(wanted) in told


@named(
    [
        mistake
        for mistake in MISTAKES
        if mistake.by and mistake.status == 1 and "--num_processes" not in mistake.options
    ]
)
def test_the_script_refuses_it_before_a_model_is_loaded(here, place, monkeypatch, mistake):
    mistake.write(place)
    monkeypatch.setattr("trl.GRPOTrainer.__init__", lambda *_, **__: pytest.fail("a trainer was made"))
    with pytest.raises(Refusal) as error:
        grpo.main(*parse(grpo.make_parser(prog="grpo"), ["--config", "my_run.yaml", *mistake.options]))
    for wanted in mistake.told:
        assert words(wanted) in words(str(error.value))


@pytest.mark.parametrize("given", [["--config", "my_run.yaml"], ["--config=my_run.yaml"]])
def test_the_recipe_may_be_named_as_the_script_takes_it(here, place, capsys, given):
    Mistake("none", ()).write(place)
    assert main(["check", *given, "--seed", "3"]) == 0, capsys.readouterr().out
    main(["run", "--seed", "3", *given])
    main(["run", "my_run.yaml", "--seed", "3"])
    assert here[0] == here[1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_recipe_for_a_gpu_says_that_it_needs_one(here, place, capsys):
    Mistake("for a GPU", (), {"use_cpu": ..., "bf16": ...}).write(place)
    assert main(["run", "my_run.yaml"]) == 2
    said = capsys.readouterr().err
    with pytest.raises(Refusal) as error:
        parse(grpo.make_parser(prog="grpo"), ["--config", "my_run.yaml"])
    for told in (said, str(error.value)):
        assert "this run needs a GPU, and there is none here" in told
        assert "set use_cpu: true and bf16: false." in told
    assert here == []
    assert main(["check", "my_run.yaml"]) == 0
    assert "no GPU here" in capsys.readouterr().out


def test_what_does_not_depend_on_each_other_is_said_in_one_go(here, place, capsys):
    several = {
        "lerning_rate": 1e-5,
        "loss_type": "grop",
        "max_steps": "many",
        "lora_r": 8,
        "reward_funcs": ["exact_answr"],
        "dataset_name": "dta.jsonl",
        "model_name_or_path": "./modle",
        "resume_from_checkpoint": "nowhere",
    }
    Mistake("several", (), several).write(place)
    assert main(["check", "my_run.yaml"]) == 1
    told = words(capsys.readouterr().out)
    main(["run", "my_run.yaml"])
    refused = words(capsys.readouterr().err)
    for wanted in (
        "unknown key lerning_rate",
        "loss_type='grop'",
        "max_steps='many'",
        "lora_r has no effect",
        "'exact_answr'",
        "no file or folder dta.jsonl",
        "no folder ./modle",
        "nowhere is not a checkpoint",
    ):
        assert wanted in told, wanted
        assert wanted in refused, wanted
    assert here == []


def test_a_switch_that_is_off_on_purpose_is_no_mistake(here, place, capsys):
    Mistake("none", (), {"lora_r": 8, "use_peft": False}).write(place)
    assert main(["check", "my_run.yaml", "--use_vllm", "false", "--vllm_gpu_memory_utilization", "0.5"]) == 0
    assert "no effect" not in capsys.readouterr().out
