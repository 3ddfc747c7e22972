"""The benchmarks find the modules of the tests that they import by name, which no type checker sees."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest


BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def imported_by_name():
    for path in sorted(BENCHMARKS.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            called = isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module")
            if called and isinstance(node.args[0], ast.Constant):
                yield path.name, node.args[0].value


@pytest.mark.parametrize(("script", "module"), imported_by_name())
def test_a_module_that_is_imported_by_name_exists(script, module):
    assert importlib.util.find_spec(module), script


@pytest.mark.full
def test_the_benchmark_of_mistakes_runs():
    command = [sys.executable, BENCHMARKS / "mistakes.py", "--only", "an unknown preset"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n1 of 1 told as they should be" in done.stdout
