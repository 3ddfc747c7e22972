"""The installed packages, the GPUs of this machine, and the missing packages with the features that need them."""

import platform
import shutil

from ..utils import optional_packages
from ..utils.tables import aligned


PACKAGES = ("trl-grpo-plus", "trl", "transformers", "accelerate", "datasets", "torch", "peft", "vllm", "deepspeed")
NEEDED_FOR = {
    "math_answer": "math_verify",
    "json_schema": "jsonschema",
    "reasoning_gym": "reasoning_gym",
    "LoRA": "peft",
    "the picture of a race": "matplotlib",
    "use_vllm": "vllm",
    "report_to: wandb": "wandb",
    "report_to: trackio": "trackio",
    "zero1, zero2 and zero3": "deepspeed",
}


def gpus() -> list[str]:
    """Return a line for each GPU: its name and memory."""
    import torch

    cards = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return [f"{card.name}, {card.total_memory / 2**30:.0f} GiB" for card in cards]


def described() -> str:
    """Return the environment as text, for a terminal or a bug report."""
    from ..launch.option_checks import lacks_compiler  # it imports torch

    facts = {"python": f"{platform.python_version()} on {platform.system()} {platform.release()}"}
    facts |= {name: optional_packages.release(name) or "-" for name in PACKAGES}
    facts |= {f"gpu {i}": card for i, card in enumerate(gpus())} or {"gpu": "none"}
    facts |= {"compiler": why} if (why := lacks_compiler()) else {}
    facts["bubblewrap"] = shutil.which("bwrap") or "not installed: python_tests uses another tier of its sandbox"
    lines = aligned(facts.items())
    if missing := optional_packages.missing(NEEDED_FOR):
        lines += [
            "",
            "missing packages, by what needs them",
            *aligned((f"  {what}", how) for what, how in missing.items()),
        ]
    return "\n".join(lines)
