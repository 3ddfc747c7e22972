"""The bounds of TRL's and transformers' numbers. These find most such mistakes in the middle of a run, or never."""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ..utils.validation import ConfigError, Number, library_options


if TYPE_CHECKING:
    from .grpo_plus_config import GRPOPlusConfig


COUNT, NOT_NEGATIVE = Number(at_least=1, integer=True, optional=True), Number(at_least=0, optional=True)
SHARE, POSITIVE = Number(at_least=0, at_most=1, optional=True), Number(above=0, optional=True)
BOUNDS = {
    **dict.fromkeys(("num_generations_eval", "max_completion_length", "ref_model_sync_steps"), COUNT),
    **dict.fromkeys(("learning_rate", "weight_decay", "epsilon", "epsilon_high"), NOT_NEGATIVE),
    **dict.fromkeys(("adam_epsilon", "neftune_noise_alpha"), NOT_NEGATIVE),
    **dict.fromkeys(("top_p", "min_p", "top_entropy_quantile"), SHARE),
    **dict.fromkeys(("adam_beta1", "adam_beta2"), Number(at_least=0, below=1)),
    **dict.fromkeys(("delta", "repetition_penalty"), POSITIVE),
    "per_device_eval_batch_size": Number(at_least=1, integer=True),
    "dataloader_num_workers": Number(at_least=0, integer=True),
    "max_steps": Number(integer=True),
    "seed": Number(at_least=0, at_most=2**32 - 1, integer=True),
}
# Options whose infinity means that there is no such bound, or never.
MAY_BE_INFINITE = {"max_grad_norm", "delta", "off_policy_mask_threshold", "eval_delay", "vllm_server_timeout"}
MAY_BE_INFINITE |= {"vllm_importance_sampling_clip_max", "vllm_importance_sampling_clip_min"}
MAY_BE_INFINITE |= {"vllm_importance_sampling_cap", "entropy_coef_min", "entropy_coef_max", "entropy_target"}


def check_finite(config: "GRPOPlusConfig", numbers: Mapping[str, Number]) -> None:
    """Refuse NaN as the value of an option, and infinity unless it means that there is no bound.

    `max_steps` makes an infinite number of epochs possible. `numbers` are the bounds of this package's options. The
    options that a user's subclass adds are not judged.
    """
    for name in library_options(config):
        value = getattr(config, name)
        if not isinstance(value, float) or math.isfinite(value):
            continue
        endless = name in MAY_BE_INFINITE or (name == "num_train_epochs" and config.max_steps > 0)
        if math.isnan(value) or not endless:
            {**BOUNDS, **numbers}.get(name, Number()).check(name, value)


def out_of_bounds(config: "GRPOPlusConfig") -> Iterator[str]:
    """Yield why options of TRL or transformers are out of their bounds."""
    bounds = dict(BOUNDS)
    if isinstance(getattr(config, "pad_to_multiple_of", None), int):  # later releases take a text too
        bounds["pad_to_multiple_of"] = COUNT
    if str(getattr(config.logging_strategy, "value", config.logging_strategy)) == "steps":
        bounds["logging_steps"] = Number(above=0)
    for name, number in bounds.items():
        value = getattr(config, name, None)
        if value == math.inf and name in MAY_BE_INFINITE:
            continue
        try:
            if hasattr(config, name):
                number.check(name, value)
        except ConfigError as error:
            yield str(error)


def check_bounds(config: "GRPOPlusConfig") -> None:
    """Refuse options that are out of their bounds."""
    if why := list(out_of_bounds(config)):
        raise ConfigError(" ".join(why))


def not_of_transformers(config: "GRPOPlusConfig") -> Iterator[str]:
    """Yield why transformers could not sample with settings that vLLM takes."""
    top_k = (config.generation_kwargs or {}).get("top_k", config.top_k)
    if not config.use_vllm and isinstance(top_k, int) and top_k < 0:
        yield f"top_k={top_k} turns top-k off in vLLM alone. Set top_k: 0, which turns it off in transformers too."
