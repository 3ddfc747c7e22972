"""What is installed here, what GPUs there are, and what is missing for what."""

import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec


PACKAGES = ("trl-grpo-plus", "trl", "transformers", "accelerate", "datasets", "torch", "peft", "vllm", "deepspeed")

# What is needed, how to tell that it is there, how to get it.
EXTRAS = {
    "math_answer": ("math_verify", "pip install 'trl-grpo-plus[rewards]'"),
    "json_schema": ("jsonschema", "pip install 'trl-grpo-plus[rewards]'"),
    "reasoning_gym": ("reasoning_gym", "pip install 'trl-grpo-plus[reasoning-gym]'"),
    "LoRA": ("peft", "pip install 'trl-grpo-plus[peft]'"),
    "use_vllm": ("vllm", "pip install 'trl-grpo-plus[vllm]'"),
    "report_to: wandb": ("wandb", "pip install 'trl-grpo-plus[wandb]'"),
    "report_to: trackio": ("trackio", "pip install 'trl-grpo-plus[trackio]'"),
    "the presets zero1 to zero3": ("deepspeed", "pip install deepspeed"),
}


def gpus() -> list[str]:
    """A line a GPU: its name and memory."""
    import torch

    found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return [f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB" for gpu in found]


def described() -> str:
    """The environment as text, for a terminal or a bug report."""
    lines = [f"{'python':<16}{platform.python_version()} on {platform.system()} {platform.release()}"]
    lines += [f"{name:<16}{_version(name)}" for name in PACKAGES]
    cards = gpus()
    lines += [f"{'gpu ' + str(i):<16}{card}" for i, card in enumerate(cards)] or [f"{'gpu':<16}none"]
    lines.append(f"{'bubblewrap':<16}{shutil.which('bwrap') or 'none: python_tests uses another tier'}")
    missing = [(what, how) for what, (module, how) in EXTRAS.items() if find_spec(module) is None]
    if missing:
        lines += ["", "not installed, needed for"]
        lines += [f"  {what:<28}{how}" for what, how in missing]
    return "\n".join(lines)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "-"
