"""The releases of TRL that this package works with, and what it needs of an untested release.

The trainer overrides and calls TRL's own methods. An untested release gives a warning. A release in which such a
method is gone or needs other parameters is refused before anything is built on it. New optional parameters are no
reason to refuse: most overrides pass them on. `_generate_and_score_completions` and the stand-ins for `_generate` and
`_calculate_rewards` sample rows of their own and cannot do so. They fail in the first step if TRL gives such a
parameter.
"""

import inspect
import warnings

import transformers
from packaging.version import Version


OLDEST, NEWEST = "1.10", "1.16"  # the tested minor releases, both included
SEAMS: dict[str, list[str] | None] = {  # method -> its parameters; `None`: all parameters are passed on
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
    "_tool_call_loop": None,
    "_generate_single_turn": None,
    "_determine_best_metric": ["metrics", "trial"],
    "_get_grad_norm": ["model", "grad_norm"],
    "_save_checkpoint": ["model", "trial"],
    "_save_rng_state": ["output_dir"],
    "_push_from_checkpoint": ["checkpoint_folder"],
    "_load_from_checkpoint": ["resume_from_checkpoint", "model"],
    "_load_best_model": [],
    "_issue_warnings_after_load": ["load_result"],
    "_load_optimizer_and_scheduler": ["checkpoint"],
    "_load_rng_state": ["checkpoint"],
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
    """Warn of an untested release of TRL; refuse a release that lacks what is needed.

    Args:
        cls (`type`): TRL's [`~trl.GRPOTrainer`].
        version (`str`): version of TRL.

    Raises:
        ImportError: a method that is overridden or called is missing, or takes other parameters.
    """
    tested = f"TRL {OLDEST} to {NEWEST}"
    if missing := [change for name in SEAMS if (change := changed(cls, name))]:
        raise ImportError(
            f"trl_grpo_plus builds on {tested}; this is TRL {version} with transformers {transformers.__version__}, "
            f"where {'; '.join(missing)}. Install releases that are tested (`pip install 'trl~={NEWEST}.0'`), or a "
            "newer trl_grpo_plus."
        )
    if not Version(OLDEST).release <= Version(version).release[:2] <= Version(NEWEST).release:
        warnings.warn(
            f"trl_grpo_plus is tested with {tested}; this is TRL {version}. All methods that trl_grpo_plus calls "
            "exist in this release, but they may do something else than before.",
            stacklevel=2,
        )
