"""Uploads to the Hub: files that stay local when a model is pushed, and additions to TRL's model card.

transformers uploads all of `output_dir` except checkpoints and names that begin with `_`, and has no option for more
exceptions. So [`uploading_no_attempts`] adds exceptions where transformers calls the Hub's client: the run's prompts,
reference columns and completions stay local. [`complete_card`] adds the rewards, this package and its options to the
card that TRL wrote.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import transformers
from transformers import trainer as seam

from .. import __version__
from ..traces import FOLDER
from ..utils.folder_lock import FILE as LOCK
from ..utils.patching import temporarily


# The traces, the pages that show them, earlier runs that the recipes' script moved aside, and the lock.
NOT_UPLOADED = (f"{FOLDER}/*", "report.html", "rescore.html", "earlier-*", LOCK)


@contextmanager
def uploading_no_attempts() -> Iterator[None]:
    """Keep transformers' trainer from uploading the files of [`NOT_UPLOADED`] inside this context.

    Raises:
        RuntimeError: this release of transformers calls the Hub in another way.
    """
    wrap: dict[str, Any] = {"hf_api": lambda api: lambda: _Client(api()), "upload_folder": _sparing}
    with temporarily(seam, **{name: wrap[name](original) for name, original in check_seam().items()}):
        yield


def check_seam() -> dict[str, Callable[..., Any]]:
    """Return how transformers' trainer calls the Hub: `hf_api().upload_folder`, or in older releases `upload_folder`.

    Raises:
        RuntimeError: transformers has neither.
    """
    calls = {name: getattr(seam, name) for name in ("hf_api", "upload_folder") if hasattr(seam, name)}
    if not calls:
        raise RuntimeError(
            f"transformers {transformers.__version__} uploads in a way that trl_grpo_plus does not know. It would "
            f"also upload {', '.join(NOT_UPLOADED)} of output_dir. Set push_to_hub=False and upload the model "
            "yourself, or use an older transformers 5."
        )
    return calls


class _Client:
    def __init__(self, api: Any):
        self._api = api
        self.upload_folder = _sparing(api.upload_folder)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)


def _sparing(upload_folder: Callable[..., Any]) -> Callable[..., Any]:
    def upload(*args: Any, ignore_patterns: list[str] | str | None = None, **kwargs: Any) -> Any:
        patterns = [ignore_patterns] if isinstance(ignore_patterns, str) else ignore_patterns or []
        return upload_folder(*args, ignore_patterns=[*patterns, *NOT_UPLOADED], **kwargs)

    return upload


VERSIONS = "### Framework versions\n"


def complete_card(output_dir: str, options: Mapping[str, Any], weights: Sequence[tuple[str, float]]) -> None:
    """Complete the card in `output_dir`; see [`completed`]."""
    path = Path(output_dir).resolve() / "README.md"
    card = completed(path.read_text(encoding="utf-8"), path.parent.name, options, weights)
    path.write_text(card, encoding="utf-8")


def completed(card: str, folder: str, options: Mapping[str, Any], weights: Sequence[tuple[str, float]]) -> str:
    """Add the rewards, this package and its options to TRL's card.

    Args:
        card (`str`): TRL's card.
        folder (`str`): folder of the model, while the model is not on the Hub.
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
