"""Packages that may not be installed: their releases, and the commands that install them."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec


# The extra of this package that installs a module.
EXTRAS = {
    "math_verify": "rewards",
    "jsonschema": "rewards",
    "reasoning_gym": "reasoning-gym",
    "peft": "peft",
    "vllm": "vllm",
    "wandb": "wandb",
    "trackio": "trackio",
    "matplotlib": "race",
}
# What `pip install` takes where it is not the module's name.
NAMES = {
    "flash_attn": "flash-attn --no-build-isolation",  # its build needs the installed PyTorch
    "flash_attn_interface": "flash-attn-3",
    "optimi": "torch-optimi",
}


def is_installed(module: str) -> bool:
    """Return whether a module can be imported."""
    try:
        found = find_spec(module)
        return found is not None and found.origin is not None  # a mere folder of that name has no origin
    except ModuleNotFoundError:  # the package that contains the module is not installed
        return False


def release(package: str) -> str | None:
    """Return the installed release of a package; `None` if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def install(module: str) -> str:
    """Return the command that installs a module's package."""
    root = module.partition(".")[0]
    return f"pip install 'trl-grpo-plus[{EXTRAS[root]}]'" if root in EXTRAS else f"pip install {NAMES.get(root, root)}"


def missing(modules: Mapping[str, str]) -> dict[str, str]:
    """Map each key of `modules` (what needs the module) to the install command of its module, if this is missing."""
    return {what: install(module) for what, module in modules.items() if not is_installed(module)}
