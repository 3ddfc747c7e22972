"""The house: who may import whom, read from the imports themselves.

A place is a room (a folder) or a module beside the rooms. Arrows go down the floors, never up and never along one.
"""

import ast
import re
from importlib.resources import files
from pathlib import Path

import pytest
from test_trl_contract import ATTRIBUTES, METHODS

import trl_grpo_plus


ROOT = Path(trl_grpo_plus.__file__).parent
FLOORS = (  # from the ground up
    "common",
    "reward_range steps",
    "groups head lease plain_rows on_cpu presets trl_releases sandbox scoring shared_prior rests states known_states "
    "sampling",
    "beliefs own_stream",
    "baselines variants",
    "estimators",
    "generated advantages completions_table filler kl memory placement traces registry streams indexed_rows",
    "alarms credit export lookahead rounds selection uploads view vllm_check",
    "batch config_checks recorder",
    "prompts",
    "about checkpoints config model_card nonfinite resume rewards",
    "trainer",
    "trl_grpo_plus",  # the package's own face
    "launch",
    "check race recipes rescore viewing",
    "cli",
)
FLOOR = {place: number for number, places in enumerate(FLOORS) for place in places.split()}
# Rooms that others enter by their face alone. What launch and check hold is imported as it is needed, since some of it
# brings torch and TRL; common has no face.
BY_THE_FACE = {"alarms", "export", "sandbox", "scoring", "traces", "view"}
# The trainer, and that of the smoke test, which plants gold answers among what is sampled.
TRAINERS = {"trl_grpo_plus.trainer", "trl_grpo_plus.check.smoke_run"}


def modules():
    """Module -> file, of the package and of the two folders that install into it."""
    parts = {"": ROOT} | {f".{name}": Path(str(files(f"trl_grpo_plus.{name}"))) for name in ("rewards", "recipes")}
    files_of = {}
    for suffix, folder in parts.items():
        for path in folder.rglob("*.py"):
            stem = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix("__init__").rstrip(".")
            files_of[f"trl_grpo_plus{suffix}" + (f".{stem}" if stem else "")] = path
    return files_of


MODULES = modules()
TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def place(module):
    """`trl_grpo_plus.launch.data` is of `launch`, `trl_grpo_plus.kl` of `kl`."""
    return module.split(".")[1] if "." in module else module


def imports(module):
    """Modules of the house that `module` imports anywhere in its code; a name of a module counts as that module."""
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*parents, *([node.module] if node.module else [])])
            for alias in node.names:
                inside = f"{origin}.{alias.name}"
                if inside in MODULES:
                    yield inside
                elif origin in MODULES and alias.name != "__version__":
                    yield origin


ARROWS = {module: sorted(set(imports(module)) - {module}) for module in MODULES}
BETWEEN = [(module, other) for module, others in ARROWS.items() for other in others if place(module) != place(other)]


def test_every_place_has_a_floor():
    assert {place(module) for module in MODULES} <= set(FLOOR)


def test_arrows_go_down():
    up = [
        f"{module} -> {other}"
        for module, other in BETWEEN
        if FLOOR[place(other)] >= FLOOR[place(module)]
        # The package's face hands on what is behind it, when it is asked. That of rewards is a list of names.
        and module != "trl_grpo_plus"
        and (other != "trl_grpo_plus.rewards" or ARROWS[other])
    ]
    assert up == []


def test_there_is_no_circle():
    left = {module: set(others) for module, others in ARROWS.items()}
    while leaves := [module for module, others in left.items() if not others]:
        for leaf in leaves:
            del left[leaf]
        left = {module: others - set(leaves) for module, others in left.items()}
    assert left == {}


def test_rooms_are_entered_by_their_face():
    inside = [arrow for arrow in BETWEEN if place(arrow[1]) in BY_THE_FACE and arrow[1].count(".") > 1]
    assert inside == []


@pytest.mark.parametrize(
    "room", sorted({m.rpartition(".")[0] for m in MODULES if m.count(".") == 2} - {"trl_grpo_plus"})
)
def test_a_face_names_each_file_behind_it(room):
    named = re.findall(r"[\w/]+", ast.get_docstring(TREES[room]) or "")
    behind = {module.rpartition(".")[2] for module in MODULES if module.rpartition(".")[0] == room}
    if room in ("trl_grpo_plus.rewards", "trl_grpo_plus.recipes"):  # each file is what it is called
        return
    assert {name for name in behind if name not in named and f"{name}/" not in named} == set()


def test_nobody_reaches_for_the_recipes():
    """Their names serve to launch and to read YAMLs; no module of the core imports one, not by name either."""
    for module, tree in TREES.items():
        if place(module) == "recipes":
            continue
        assert not [other for other in ARROWS[module] if place(other) == "recipes"], module
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and re.search(r"import_module$|__import__$", ast.unparse(node.func)):
                assert "recipes" not in ast.unparse(node).lower(), f"{module}: {ast.unparse(node)}"


def imports_trl(node):
    if isinstance(node, ast.ImportFrom):
        return not node.level and bool(re.match(r"trl(\.|$)", node.module or ""))
    return isinstance(node, ast.Import) and any(re.match(r"trl(\.|$)", alias.name) for alias in node.names)


def test_the_trainer_alone_knows_what_is_private_to_trl():
    private = {name for name in [*METHODS, *ATTRIBUTES] if name.startswith("_")}
    for module, tree in TREES.items():
        if module in TRAINERS:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom | ast.Import):
                names = ".".join([getattr(node, "module", None) or "", *(alias.name for alias in node.names)])
                assert not (imports_trl(node) and any(part.startswith("_") for part in names.split("."))), module
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) != "self":
                assert node.attr not in private, f"{module}: {ast.unparse(node)}"
                assert not (node.attr.startswith("_") and ast.unparse(node.value).endswith("trainer")), module
            if isinstance(node, ast.ClassDef) and "Trainer" in "".join(map(ast.unparse, node.bases)):
                assert not {part.name for part in node.body if isinstance(part, ast.FunctionDef)} & private, module


def test_trl_is_imported_where_it_is_extended_or_launched():
    """What judges, scores, traces and shows does without it."""
    importing = {place(module) for module, tree in TREES.items() for node in ast.walk(tree) if imports_trl(node)}
    assert importing <= {"trainer", "config", "config_checks", "generated", "launch", "race", "check", "cli"}
