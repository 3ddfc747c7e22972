"""The variables of a recipe's `env` are set before the libraries that read them are imported."""

import json
import os
import subprocess
import sys

import pytest
from invalid_recipes import Mistake, make_place

from trl_grpo_plus.launch.command_line import set_environment


FACTS = """
import json
import os
import sys

import huggingface_hub.constants
import torch

with open(os.environ["FACTS"], "w") as file:
    hub = huggingface_hub.constants
    json.dump([hub.HF_HOME, hub.HF_HUB_OFFLINE, torch.get_num_threads()], file)
"""
COMMANDS = {
    "check": ["trl_grpo_plus.cli.main", "check", "my_run.yaml"],
    "race": ["trl_grpo_plus.cli.main", "race", "my_run.yaml"],  # as `run` does
    "script": ["trl_grpo_plus.recipes.grpo", "--config", "my_run.yaml"],
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_libraries_are_imported_with_the_variables_of_the_recipe(tmp_path, words):
    make_place(tmp_path)
    (tmp_path / "facts.py").write_text(FACTS)
    home, facts = str(tmp_path / "hub"), tmp_path / "facts.json"
    env = {"HF_HOME": home, "HF_HUB_OFFLINE": 1, "OMP_NUM_THREADS": 1, "FACTS": str(facts)}
    # There is no such function, so each of the commands ends once it has imported the file.
    Mistake("", (), {"reward_funcs": ["facts.py:none"], "env": env}).write(tmp_path)
    of_shell = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    of_shell |= {"OMP_NUM_THREADS": "2"}
    ended = subprocess.run(
        [sys.executable, "-m", *words], cwd=tmp_path, env=of_shell, capture_output=True, text=True, check=False
    )
    assert "facts.py has no function 'none'" in ended.stdout + ended.stderr
    assert json.loads(facts.read_text()) == [home, True, 1]


@pytest.mark.parametrize("text", ["env: {A=B: 1}", "env: {'': 1}", "env: [A]", "env: {A: }", "a: b: c"])
def test_a_mistake_sets_nothing_and_is_left_to_the_reading_of_the_recipe(tmp_path, monkeypatch, text):
    monkeypatch.setattr(os, "environ", {"SHELL": "sh"})
    (tmp_path / "my_run.yaml").write_text(text)
    set_environment(["--config", str(tmp_path / "my_run.yaml")])
    set_environment(["--config", str(tmp_path / "missing.yaml")])
    set_environment(["--max_steps", "3"])
    assert os.environ == {"SHELL": "sh"}
