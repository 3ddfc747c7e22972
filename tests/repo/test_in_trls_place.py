"""The plugin that runs TRL's own tests on this package's trainer: tests/helpers/in_trls_place.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


HELPERS = Path(__file__).parents[1] / "helpers"
TEST = """
from trl import GRPOConfig, GRPOTrainer

def test_names(tmp_path):
    assert (GRPOTrainer.__name__, type(GRPOConfig(str(tmp_path))).__name__) == {names}
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("trainer", "names"), [("", ("GRPOPlusTrainer", "GRPOPlusConfig")), ("trl", ("GRPOTrainer", "GRPOConfig"))]
)
def test_a_test_of_trl_gets_the_trainer(tmp_path, trainer, names):
    (tmp_path / "test_names.py").write_text(TEST.format(names=names))
    command = [sys.executable, "-m", "pytest", "-p", "in_trls_place", "-p", "no:cacheprovider", "test_names.py"]
    environment = {**os.environ, "TRL_OWN_TRAINER": trainer, "PYTHONPATH": f"{HELPERS}:{HELPERS.parents[1]}"}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
