"""What TRL's model card leaves out: the rewards, this package and its options, and nothing of a base model without a
name. It is TRL's card that is completed, since its template is one of TRL's own files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import __version__


VERSIONS = "### Framework versions\n"


def write(output_dir: str, options: Mapping[str, Any], weights: Sequence[tuple[str, float]]) -> None:
    """Complete the card in `output_dir`; see [`complete`]."""
    path = Path(output_dir).resolve() / "README.md"
    card = complete(path.read_text(encoding="utf-8"), path.parent.name, options, weights)
    path.write_text(card, encoding="utf-8")


def complete(card: str, folder: str, options: Mapping[str, Any], weights: Sequence[tuple[str, float]]) -> str:
    """TRL's card with what it leaves out.

    Args:
        card (`str`): TRL's.
        folder (`str`): where the model is, while it is not on the Hub.
        options (`Mapping[str, Any]`): this package's options that are not at their defaults.
        weights (`Sequence[tuple[str, float]]`): each reward's name and weight, 0 for a monitor.
    """
    card = card.replace("is a fine-tuned version of [None](https://huggingface.co/None)", "was fine-tuned")
    card = card.replace('model="None"', f'model="{folder}"')
    card = card.replace("\n- TRL:", f"\n- trl_grpo_plus: {__version__}\n- TRL:")
    own = f"{_rewards(weights)}\n{_options(options)}\n"
    if VERSIONS not in card:
        return f"{card.rstrip()}\n\n{own}"
    return card.replace(VERSIONS, own + VERSIONS)


def _rewards(weights: Sequence[tuple[str, float]]) -> str:
    lines = [f"- `{name}`, {f'weight {weight:g}' if weight else 'scored and logged only'}" for name, weight in weights]
    return "\n".join(["### Rewards", "", *lines, ""])


def _options(options: Mapping[str, Any]) -> str:
    trainer = f"`GRPOPlusTrainer` of trl_grpo_plus {__version__}"
    if not options:
        return f"### Options\n\nTrained by {trainer} with its options at their defaults, where it is TRL's trainer.\n"
    lines = [f"- `{name}`: `{value!r}`" for name, value in options.items()]
    return "\n".join(["### Options", "", f"Trained by {trainer}, with these of its options:", "", *lines, ""])
