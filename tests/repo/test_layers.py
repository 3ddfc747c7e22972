"""Tests of the rooms of the package: their number, their size, and which room may import which.

The tests read the imports in the code. An import between rooms goes down the layers, never up and never sideways.
"""

import ast
import functools
import re

import pytest
from package_source import LAYER, MODULES, ROOT, room, tree, trees
from trl_private_names import ATTRIBUTES, METHODS


MOST_ON_TOP = 14
MOST_FILES = 18  # in a room, without the files in its inner folders
MOST_LINES = 450
# Rooms from which other rooms import only the face, `__init__.py`.
BY_THE_FACE = {"sandbox", "scoring", "traces", "view"}
# The trainer, and the trainer of the smoke test, which plants gold answers among the sampled ones.
TRAINERS = {
    "trl_grpo_plus.trainer.grpo_plus_trainer",
    "trl_grpo_plus.trainer.attach",
    "trl_grpo_plus.trainer.attach.batches",
    "trl_grpo_plus.trainer.attach.observer",
    "trl_grpo_plus.trainer.attach.asynchronous",
    "trl_grpo_plus.cli.check.smoke_run",
}


def imports(module, for_types=True):
    """Yield the modules of the package that `module` imports anywhere. A name from a module counts as that module."""
    skipped = set() if for_types else only_for_types(tree(module))
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree(module)):
        if node in skipped:
            continue
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


def only_for_types(source):
    """Return the nodes under `if TYPE_CHECKING:`, which is never true in a run."""
    guards = [n for n in ast.walk(source) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    return {node for guard in guards for statement in guard.body for node in ast.walk(statement)}


@functools.cache
def arrows():
    """Return module -> the other modules of the package that it imports."""
    return {module: sorted(set(imports(module)) - {module}) for module in MODULES}


def between_rooms():
    """Return the pairs of modules of two rooms of which the first imports the second."""
    return [(module, other) for module, others in arrows().items() for other in others if room(module) != room(other)]


def test_the_top_has_few_entries():
    on_top = [path for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()]
    assert len(on_top) <= MOST_ON_TOP, sorted(path.name for path in on_top)


@pytest.mark.parametrize("folder", sorted({path.parent for path in MODULES.values()}), ids=lambda path: path.name)
def test_a_room_has_few_files(folder):
    if folder.name == "recipes":  # one recipe, one file
        return
    inside = sorted(path.name for path in folder.glob("*.py"))
    # Each registered reward has its own file, which does not count.
    counted = [name for name in inside if folder.name != "rewards" or name.startswith("_")]
    assert len(counted) <= MOST_FILES, counted


def test_files_are_cohesive_and_not_endless():
    lines = {module: len(path.read_text().splitlines()) for module, path in MODULES.items()}
    long = {module: count for module, count in lines.items() if count > MOST_LINES}
    # The trainer may be longer: one class with TRL's methods, in the order in which TRL calls them.
    assert set(long) <= {"trl_grpo_plus.trainer.grpo_plus_trainer"}, long


def test_every_room_has_a_layer():
    assert {room(module) for module in MODULES} <= set(LAYER)


def test_imports_go_down():
    up = [
        f"{module} -> {other}"
        for module, other in between_rooms()
        if LAYER[room(other)] >= LAYER[room(module)]
        # The package's face imports a name only when the name is used. The face of rewards is a list of names.
        and module != "trl_grpo_plus"
        and (other != "trl_grpo_plus.rewards" or arrows()[other])
    ]
    assert up == []


def test_there_is_no_circle():
    left = {module: set(imports(module, for_types=False)) - {module} for module in MODULES}
    while leaves := [module for module, others in left.items() if not others]:
        for leaf in leaves:
            del left[leaf]
        left = {module: others - set(leaves) for module, others in left.items()}
    assert left == {}


def test_rooms_are_entered_by_their_face():
    faces = {f"trl_grpo_plus.{name}" for name in BY_THE_FACE} | {"trl_grpo_plus.traces.alarms"}
    inside = [arrow for arrow in between_rooms() if room(arrow[1]) in BY_THE_FACE and arrow[1] not in faces]
    assert inside == []


@pytest.mark.parametrize(
    "face",
    sorted(module for module, path in MODULES.items() if path.name == "__init__.py" and module.count(".") > 0),
)
def test_a_face_names_each_file_behind_it(face):
    if face in ("trl_grpo_plus.rewards", "trl_grpo_plus.recipes", "trl_grpo_plus.sandbox.child"):
        return  # in the first two the files' names say enough; the third is imported file by file
    named = re.findall(r"[\w/]+", ast.get_docstring(tree(face)) or "")
    behind = {module.rpartition(".")[2] for module in MODULES if module.rpartition(".")[0] == face}
    assert {name for name in behind if name not in named and f"{name}/" not in named} == set()


def test_no_other_room_imports_the_recipes():
    """No module outside the recipes imports a recipe, not even with `import_module`. Recipes are launched by name."""
    for module, source in trees().items():
        if room(module) == "recipes":
            continue
        assert not [other for other in arrows()[module] if room(other) == "recipes"], module
        for node in ast.walk(source):
            if isinstance(node, ast.Call) and re.search(r"import_module$|__import__$", ast.unparse(node.func)):
                assert "recipes" not in ast.unparse(node).lower(), f"{module}: {ast.unparse(node)}"


def imports_trl(node):
    if isinstance(node, ast.ImportFrom):
        return not node.level and bool(re.match(r"trl(\.|$)", node.module or ""))
    return isinstance(node, ast.Import) and any(re.match(r"trl(\.|$)", alias.name) for alias in node.names)


def test_the_trainer_alone_knows_what_is_private_to_trl():
    private = {name for name in [*METHODS, *ATTRIBUTES] if name.startswith("_")}
    for module, source in trees().items():
        if module in TRAINERS:
            continue
        for node in ast.walk(source):
            if isinstance(node, ast.ImportFrom | ast.Import):
                names = ".".join([getattr(node, "module", None) or "", *(alias.name for alias in node.names)])
                assert not (imports_trl(node) and any(part.startswith("_") for part in names.split("."))), module
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) != "self":
                assert node.attr not in private, f"{module}: {ast.unparse(node)}"
                assert not (node.attr.startswith("_") and ast.unparse(node.value).endswith("trainer")), module
            if isinstance(node, ast.ClassDef) and "Trainer" in "".join(map(ast.unparse, node.bases)):
                assert not {part.name for part in node.body if isinstance(part, ast.FunctionDef)} & private, module


def test_trl_is_imported_where_it_is_extended_or_launched():
    """The code that judges, scores, traces and shows does not need TRL."""
    importing = {room(module) for module, source in trees().items() for node in ast.walk(source) if imports_trl(node)}
    assert importing <= {"trainer", "config", "rollouts", "launch", "cli"}
