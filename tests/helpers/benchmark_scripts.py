"""The scripts of benchmarks/ as modules, for tests that use parts of them."""

import importlib.util
from pathlib import Path
from types import ModuleType


def imported(name: str) -> ModuleType:
    """Import benchmarks/`name`.py again, under the module name `name`_benchmark."""
    path = Path(__file__).parents[2] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{name}_benchmark", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
