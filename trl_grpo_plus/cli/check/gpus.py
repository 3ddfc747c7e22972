"""The kinds of GPU that are known, and the one to estimate for."""

import re
from typing import NamedTuple

from ...utils.validation import ConfigError, Number, did_you_mean


class GPU(NamedTuple):
    """A kind of GPU, with published numbers: dense 16-bit TFLOP/s, memory bandwidth in GB/s, memory in GiB."""

    name: str
    tflops: float
    bandwidth: float
    memory: float


GPUS = (
    GPU("B200", 2250, 8000, 180),
    GPU("H200", 989, 4800, 141),
    GPU("GH200", 989, 4000, 96),
    GPU("H100", 989, 3350, 80),
    GPU("H20", 148, 4000, 96),
    GPU("A100", 312, 2039, 80),
    GPU("L40S", 362, 864, 48),
    GPU("L40", 181, 864, 48),
    GPU("A40", 150, 696, 48),
    GPU("RTX 6000 Ada", 364, 960, 48),
    GPU("RTX A6000", 155, 768, 48),
    GPU("RTX 5090", 210, 1792, 32),
    GPU("V100", 125, 900, 32),
    GPU("L4", 121, 300, 24),
    GPU("A10G", 70, 600, 24),
    GPU("A10", 125, 600, 24),
    GPU("RTX 4090", 165, 1008, 24),
    GPU("RTX 3090", 71, 936, 24),
    GPU("T4", 65, 320, 16),
)
DEFAULT_GPU = next(gpu for gpu in GPUS if gpu.name == "H100")


def gpu_of(name: str) -> GPU | None:
    """Return the kind of GPU that a name means; `None` if unknown.

    The name comes from a device or a user, such as "NVIDIA A100-SXM4-80GB", "a100" or "4090".
    """
    words = name.lower().replace("-", " ")
    for gpu in GPUS:
        label = gpu.name.lower()
        if f" {label} " in f" {words} " or words.replace(" ", "") in (label.replace(" ", ""), label.split()[-1]):
            return gpu
    return None


class Card(NamedTuple):
    """The GPU to estimate for, the reason for this GPU, and whether a user or this machine named it."""

    gpu: GPU
    why: str
    named: bool


def gpu_for(name: str | None, memory_gib: float | None, here: list[str]) -> Card:
    """Return the GPU to estimate for.

    Args:
        name (`str`, *optional*): value of `--gpu`. Its memory, as in "A100-SXM4-40GB", replaces that of the kind.
        memory_gib (`float`, *optional*): value of `--gpu_memory`.
        here (`list[str]`): name and memory of each GPU of this machine, see [`~trl_grpo_plus.cli.env.gpus`].

    Raises:
        ConfigError: the requested GPU is unknown, or its memory is no number above 0.
    """
    Number(above=0, optional=True).check("--gpu_memory", memory_gib)
    card = name or (here[0] if here else "")
    kind = gpu_of(card)
    if name and kind is None:
        names = [gpu.name for gpu in GPUS]
        raise ConfigError(f"--gpu {name!r} is not one of {', '.join(names)}.{did_you_mean(name, names)}")
    gpu = kind or DEFAULT_GPU
    why = f"--gpu {name}" if name else card or "no GPU here"
    why += "" if kind else f", estimated as for {gpu.name} (--gpu names another)"
    if memory_gib is not None:
        return Card(gpu._replace(memory=memory_gib), f"{why}; --gpu_memory", True)
    if said := re.findall(r"(\d+(?:\.\d+)?) ?Gi?B", card, re.IGNORECASE):
        gpu = gpu._replace(memory=float(said[-1]))
    return Card(gpu, why, bool(card))
