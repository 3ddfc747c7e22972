"""The source of the package: its modules, their syntax trees, and the layers of its rooms."""

import ast
import functools
from importlib.resources import files
from pathlib import Path

import trl_grpo_plus


ROOT = Path(trl_grpo_plus.__file__).parent
LAYERS = (  # from the bottom up
    "utils",
    "rollouts scoring sandbox",
    "curriculum traces",
    "objective view",
    "config registry",
    "rewards",
    "trainer",
    "trl_grpo_plus",  # the package's own face
    "launch",
    "cli recipes",
)
LAYER = {room: number for number, rooms in enumerate(LAYERS) for room in rooms.split()}


def modules():
    """Return module -> file for the package and for the two folders that are installed into it."""
    parts = {"": ROOT} | {f".{name}": Path(str(files(f"trl_grpo_plus.{name}"))) for name in ("rewards", "recipes")}
    files_of = {}
    for suffix, folder in parts.items():
        for path in folder.rglob("*.py"):
            stem = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix("__init__").rstrip(".")
            files_of[f"trl_grpo_plus{suffix}" + (f".{stem}" if stem else "")] = path
    return files_of


MODULES = modules()


@functools.cache
def tree(module):
    """Return the syntax tree of a module. Nothing is parsed at import: each worker imports all tests, few need it."""
    return ast.parse(MODULES[module].read_text())


def trees():
    """Return module -> syntax tree."""
    return {module: tree(module) for module in MODULES}


def room(module):
    """Return the room of a module: "launch" of `trl_grpo_plus.launch.train`, "registry" of `trl_grpo_plus.registry`.

    A module outside the package is its own room.
    """
    return module.split(".")[1] if "." in module else module
