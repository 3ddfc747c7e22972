"""`preset` in a recipe and on the command line: options of the user win over it, and the run names it."""

import pytest
import yaml

from trl_grpo_plus.cli import main
from trl_grpo_plus.cli.race.script import reset
from trl_grpo_plus.config import presets
from trl_grpo_plus.launch import accelerate, preflight, recipe, train
from trl_grpo_plus.launch.arguments import make_parser
from trl_grpo_plus.launch.command_line import parse


RECIPE = {"model_name_or_path": "./model", "dataset_name": "data.jsonl", "reward_funcs": ["exact_answer"]}
RECIPE |= {"use_cpu": True, "bf16": False, "report_to": "none"}


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a recipe with the given keys and with those that each recipe needs."""

    def write(**keys):
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump({**RECIPE, "output_dir": str(tmp_path / "out"), **keys}))
        return str(path)

    return write


def read(file, *options):
    return parse(make_parser(prog="grpo"), ["--config", file, *options])[1]


@pytest.mark.parametrize(
    ("keys", "options", "expected"),
    [
        ({"preset": "dapo"}, (), ("dapo", "resample", 0.28, 0.2)),
        ({}, ("--preset", "dapo"), ("dapo", "resample", 0.28, 0.2)),
        ({"preset": "dapo", "epsilon_high": 0.4}, (), ("dapo", "resample", 0.4, 0.2)),
        ({"epsilon_high": 0.4}, ("--preset=dapo", "--epsilon", "0.1"), ("dapo", "resample", 0.4, 0.1)),
        ({"preset": "dapo", "zero_variance_groups": "keep", "epsilon_high": None}, (), ("dapo", "keep", None, 0.2)),
        ({"preset": "dr_grpo", "epsilon": 0.3}, ("--preset", "dapo"), ("dapo", "resample", 0.28, 0.3)),
        ({"preset": None}, (), (None, "keep", None, 0.2)),
    ],
)
def test_a_users_keys_win_over_the_preset_and_it_over_the_defaults(write, keys, options, expected):
    args = read(write(**keys), *options)
    assert (args.preset, args.zero_variance_groups, args.epsilon_high, args.epsilon) == expected


@pytest.mark.parametrize(("keys", "options"), [({"preset": "dapoo"}, ()), ({}, ("--preset", "dapoo"))])
def test_an_unknown_preset_is_refused_once_with_the_nearest(write, keys, options):
    with pytest.raises(ValueError, match=r"preset='dapoo' is not one of 'grpo'.*Did you mean dapo") as caught:
        read(write(**keys), *options)
    assert str(caught.value).count("dapoo") == 1


def test_check_shows_what_the_preset_sets_and_what_the_user_changed(write):
    spread = accelerate.distribution(None, 1, 0)
    rows = preflight.preset(recipe.read(write(preset="dapo", epsilon=0.25), (), spread))
    assert [(row.name, row.status) for row in rows] == [("preset", "ok")]
    assert "zero_variance_groups='resample'" in rows[0].text
    assert "your own: epsilon=0.25 (not 0.2)." in rows[0].text
    assert preflight.preset in preflight.PAPER
    assert preflight.preset(recipe.read(write(), (), spread)) == []
    wrong = recipe.read(write(preset="dapoo"), (), spread)
    assert len(wrong.refused) == 1
    assert wrong.readable  # so the other checks are made


def test_a_run_begins_by_describing_its_preset(write, monkeypatch, capsys):
    class Begun(Exception):
        pass

    def loader(*arguments):
        raise Begun

    monkeypatch.setattr(train, "on_paper", lambda recipe: [])
    arguments = parse(make_parser(prog="grpo"), ["--config", write(preset="dapo", epsilon=0.25)])
    with pytest.raises(Begun):
        train.main(*arguments, loader=loader)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("preset ")]
    assert line == f"preset {presets.describe(arguments[1])}"
    assert "epsilon=0.25 (not 0.2)" in line


def test_a_single_setting_of_a_recipe_comes_from_its_preset_too(write):
    file = write(preset="belief")
    assert accelerate.setting("num_generations", file, ()) == 2
    assert accelerate.setting("num_generations", file, ("--num_generations", "4")) == "4"
    assert accelerate.setting("num_generations", file, ("--preset", "dapo")) is None
    assert accelerate.setting("num_generations", write(preset="belief", num_generations=3), ()) == 3
    assert accelerate.setting("num_generations", write(preset="belief", num_generations=None), ()) is None
    assert accelerate.setting("num_generations", write(), ()) is None


@pytest.mark.parametrize("text", ["007", "1e3", "[x", "true"])
def test_a_setting_of_the_command_line_is_taken_as_it_stands(write, text):
    assert accelerate.setting("output_dir", write(), ("--output_dir", text)) == text
    assert accelerate.setting("output_dir", write(), (f"--output-dir={text}",)) == text


def test_in_a_race_stock_trl_keeps_the_trl_options_of_the_preset(write):
    args = read(write(preset="dapo"))
    reset(args)
    assert (args.preset, args.zero_variance_groups, args.epsilon_high) == (None, "keep", 0.28)
    assert args.changed_options == {}


def test_ls_lists_presets(capsys):
    assert main.main(["ls", "presets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(presets.PRESETS)
    assert max(map(len, lines)) < 120
