"""Names of the launch script's options, read from its sources: to import TRL for a typo takes seconds.

The options are the fields of four dataclasses, and those of their bases, which are followed through the import
statements of this package, TRL and transformers. Where that leads nowhere, nothing is said, and the parser itself
finds what is mistyped.
"""

import ast
import functools
import re
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

from ..utils.validation import did_you_mean


# Where the launch script's parser has its options from.
SOURCES = (
    ("trl_grpo_plus.launch.arguments", "GRPOPlusScriptArguments"),
    ("trl_grpo_plus.config", "GRPOPlusConfig"),
    ("trl", "ModelConfig"),
    ("trl", "DatasetMixtureConfig"),
)
# What TRL and transformers have no more, and people's files still have.
GONE = {
    "torch_dtype": "Use dtype instead.",
    "warmup_ratio": "Use warmup_steps instead: a value below 1 is a share of all steps.",
    "evaluation_strategy": "Use eval_strategy instead.",
    "no_cuda": "Use use_cpu instead.",
    "use_liger_loss": "Use use_liger_kernel instead.",
    "max_prompt_length": "TRL no longer cuts prompts. Remove long prompts from the data.",
    "overwrite_output_dir": "Remove it: an earlier run in output_dir is moved to earlier-N.",
    "num_processes": "Give it to the command: trl-grpo-plus run NAME|FILE --num_processes N.",
    "accelerate_config": "Give it to the command: trl-grpo-plus run NAME|FILE --accelerate_config NAME|FILE.",
}
_OPTION = re.compile(r"--([A-Za-z][\w-]*)(?:=.*)?", re.DOTALL)


def refused(words: Sequence[str]) -> list[str]:
    """Why options of a command line are refused: those that surely do not exist."""
    try:
        known = known_options()
    except (LookupError, OSError, SyntaxError):
        return []
    named = [match[1].replace("-", "_") for word in words if (match := _OPTION.fullmatch(word))]
    unknown = [name for name in named if name not in known and name.removeprefix("no_") not in known]
    return [f"unknown option --{name}.{instead_of(name, known, '--')}" for name in dict.fromkeys(unknown)]


def instead_of(name: str, known: Iterable[str], prefix: str = "") -> str:
    """What to write in place of a key that does not exist, as far as that can be told."""
    return f" {GONE[name]}" if name in GONE else did_you_mean(name, known, prefix)


@functools.cache
def known_options() -> frozenset[str]:
    """Names of all options, and perhaps of more.

    Raises:
        LookupError: a class that has options cannot be found in the sources, or names them in another way.
    """
    return frozenset({"config", "help"}.union(*(_fields(module, name) for module, name in SOURCES)))


def _fields(module: str, name: str) -> set[str]:
    """Annotated names of a class and its bases."""
    tree = _tree(module)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _own(node).union(*(_fields(module, _name(base)) for base in node.bases))
    for statement in ast.walk(tree):
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                if (alias.asname or alias.name) == name:
                    return _fields(_absolute(statement, module), alias.name)
    raise LookupError(f"{module} has no class {name}")


def _own(node: ast.ClassDef) -> set[str]:
    parts = list(ast.walk(node))
    renames = any("aliases" in (getattr(part, "value", None), getattr(part, "arg", None)) for part in parts)
    if renames or any(_name(decorator) != "dataclass" for decorator in node.decorator_list):
        raise LookupError(f"{node.name} may have options that are no fields")
    targets = [part.target for part in parts if isinstance(part, ast.AnnAssign)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _name(node: ast.expr) -> str:
    """Of a base or a decorator."""
    node = node.func if isinstance(node, ast.Call) else node
    if isinstance(node, ast.Name):
        return node.id
    raise LookupError(ast.unparse(node))


def _absolute(statement: ast.ImportFrom, module: str) -> str:
    if not statement.level:
        return statement.module or ""
    parents = module.split(".")[: None if _file(module).name == "__init__.py" else -1]
    parents = parents[: len(parents) - statement.level + 1]
    return ".".join([*parents, *([statement.module] if statement.module else [])])


@functools.cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_file(module).read_bytes())


def _file(module: str) -> Path:
    """Of a module, without importing a package of somebody else's."""
    if module.startswith("trl_grpo_plus."):
        spec = find_spec(module)
        if spec is None or spec.origin is None:
            raise LookupError(module)
        return Path(spec.origin)
    root, *rest = module.split(".")
    spec = find_spec(root)
    if spec is None or not spec.submodule_search_locations:
        raise LookupError(module)
    path = Path(spec.submodule_search_locations[0], *rest)
    return path / "__init__.py" if path.is_dir() else path.with_name(f"{path.name}.py")
