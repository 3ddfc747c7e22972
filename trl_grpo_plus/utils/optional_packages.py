"""Packages that are not always there, and how to get them."""

from collections.abc import Mapping
from importlib.util import find_spec


# The extra of ours that brings a module.
EXTRAS = {
    "math_verify": "rewards",
    "jsonschema": "rewards",
    "reasoning_gym": "reasoning-gym",
    "peft": "peft",
    "vllm": "vllm",
    "wandb": "wandb",
    "trackio": "trackio",
}


def is_installed(module: str) -> bool:
    """Return whether it could be imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its package is not
        return False


def install(module: str) -> str:
    """Return the command that installs what brings a module."""
    root = module.partition(".")[0]
    return f"pip install 'trl-grpo-plus[{EXTRAS[root]}]'" if root in EXTRAS else f"pip install {root}"


def missing(modules: Mapping[str, str]) -> dict[str, str]:
    """Return how to install each module that is not there, by what needs it, as `modules` are."""
    return {what: install(module) for what, module in modules.items() if not is_installed(module)}
