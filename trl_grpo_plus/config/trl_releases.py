"""Which releases of TRL this works with, and what it needs of one that nobody has tried.

The trainer overrides and calls methods that are TRL's own. A release outside of what is tested is warned of; one in
which such a method is gone, or asks for something else, is refused before anything is built on it. What it may be
given beside is no reason: most overrides hand it on, and those that sample rows of their own, and so cannot
(`_generate_and_score_completions`, `_generate`, `_calculate_rewards`), fail in the first step if it is given.
"""

import inspect
import warnings

import transformers
from packaging.version import Version


OLDEST, NEWEST = "1.10", "1.16"  # minor releases that are tested, these two included
SEAMS: dict[str, list[str] | None] = {  # method -> its parameters; `None`: they are passed on, whatever they are
    "_generate": ["prompts"],
    "_calculate_rewards": ["inputs", "prompts", "completions", "completion_ids_list"],
    "_generate_and_score_completions": ["inputs"],
    "_prepare_inputs": ["generation_batch"],
    "_compute_loss": ["model", "inputs"],
    "_get_per_token_logps_and_entropies": None,
    "get_train_dataloader": [],
    "_remove_unused_columns": ["dataset", "description"],
    "_get_train_sampler": ["dataset"],
    "_tokenize_prompts": ["prompts"],
    "_get_grad_norm": ["model", "grad_norm"],
    "_save_checkpoint": ["model", "trial"],
    "_push_from_checkpoint": ["checkpoint_folder"],
    "_load_optimizer_and_scheduler": ["checkpoint"],
}


def changed(cls: type, name: str) -> str:
    """Return how a method of `cls` differs from its entry of `SEAMS`; "" if only optional parameters were added."""
    if (method := getattr(cls, name, None)) is None:
        return f"{cls.__name__}.{name} is gone"
    expected = SEAMS[name]
    parameters = [of for of in inspect.signature(method).parameters.values() if of.name != "self"]
    taken = [parameter.name for parameter in parameters]
    if expected is None or (
        taken[: len(expected)] == expected and not any(map(_is_required, parameters[len(expected) :]))
    ):
        return ""
    return f"{method.__module__}'s {name} takes {taken}, not {expected}"


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in (
        parameter.VAR_POSITIONAL,
        parameter.VAR_KEYWORD,
    )


def check(cls: type, version: str) -> None:
    """Warn of a TRL that nobody has tried; refuse one that lacks what is needed.

    Args:
        cls (`type`): TRL's [`~trl.GRPOTrainer`].
        version (`str`): of TRL.

    Raises:
        ImportError: a method that is overridden or called is not there, or takes something else.
    """
    tested = f"TRL {OLDEST} to {NEWEST}"
    if missing := [told for name in SEAMS if (told := changed(cls, name))]:
        raise ImportError(
            f"trl_grpo_plus builds on {tested}; this is TRL {version} with transformers {transformers.__version__}, "
            f"where {'; '.join(missing)}. Install releases that are tested (`pip install 'trl~={NEWEST}.0'`), or a "
            "newer trl_grpo_plus."
        )
    if not Version(OLDEST) <= Version(_minor(version)) <= Version(NEWEST):
        warnings.warn(
            f"trl_grpo_plus is tested with {tested}; this is TRL {version}. All methods that it builds on are there, "
            "and what they do may have changed.",
            stacklevel=2,
        )


def _minor(version: str) -> str:
    """`1.17` of `1.17.0.dev0`."""
    return ".".join(map(str, Version(version).release[:2]))
