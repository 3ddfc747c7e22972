"""Settings that make the sampled distribution differ from the one that the log-probs describe.

TRL's log-probs are of `softmax(logits / temperature)`. They leave out everything else that changes the sampled
distribution (`NEUTRAL`), so that the policy is trained on attempts of another distribution. Such settings come from
two places:

- **chosen**: options of the config, and `generation_kwargs` over them. The user knows of these settings, so they
  matter only if a ratio of log-probs is taken.
- **inherited**: the model's own `generation_config`. transformers silently takes from it whatever TRL leaves at
  `None`. TRL sets `temperature`, `top_p`, `top_k`, `repetition_penalty` and the settings that end an attempt. vLLM
  takes from it only the settings that end an attempt, and continuous batching takes nothing.
"""

import difflib
import importlib
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from accelerate.logging import get_logger

from ..utils.text import shortened
from ..utils.validation import ConfigError, did_you_mean


if TYPE_CHECKING:
    from trl import GRPOConfig


logger = get_logger(__name__)

OPTIONS = ("top_p", "top_k", "min_p", "repetition_penalty")  # options of a [`~trl.GRPOConfig`]
# Settings that change the distribution, with the values (besides `None`) that do not change it. `generation_kwargs`
# can set the first value in place of the model's value. If there is no value, only the model can be changed.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_p": (1.0,),
    "top_k": (0, -1),
    "min_p": (0.0,),
    "top_h": (),
    "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "repetition_penalty": (1.0,),
    "encoder_repetition_penalty": (1.0,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "exponential_decay_length_penalty": (),
    "forced_eos_token_id": (),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "bad_words_ids": (),
    "sequence_bias": (),
    "guidance_scale": (1.0,),
    "watermarking_config": (),
    "num_beams": (1,),
    "do_sample": (True,),
}
OF_VLLM: dict[str, tuple[Any, ...]] = {
    **{name: NEUTRAL[name] for name in OPTIONS},
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "min_tokens": (0,),
    "bad_words": ([],),
    "logit_bias": ({},),
    "allowed_token_ids": (),
    "structured_outputs": (),
}
_MOST_SHOWN = 60  # characters of a value
_NEAR = 0.85  # similarity above which an unknown name is a mistyped one; names of other engines are below it


def check_generation_kwargs(config: "GRPOConfig") -> None:
    """Refuse what is no mapping, and settings of vLLM by which it would sample other attempts than a group needs."""
    if not isinstance(config.generation_kwargs or {}, Mapping):
        raise ConfigError(
            f"generation_kwargs={config.generation_kwargs!r} must be a mapping, such as {{'min_tokens': 8}}."
        )
    given = (config.use_vllm and config.generation_kwargs) or {}
    if "n" in given:
        raise ConfigError(
            f"generation_kwargs has n={given['n']!r}, but num_generations (now {config.num_generations}) is the "
            "number of attempts on a prompt. Set num_generations, and leave n out."
        )
    # A server numbers the attempts that are asked for in one request, and adds the number to the seed.
    if given.get("seed") is not None and config.vllm_mode == "colocate":
        raise ConfigError(
            f"generation_kwargs has seed={given['seed']!r}. A colocated vLLM starts each attempt from this seed, so "
            "all attempts on a prompt would be the same. Leave it out, and set the option seed instead."
        )
    _check_names(config)


def _check_names(config: "GRPOConfig") -> None:
    """Refuse mistyped names in `generation_kwargs`.

    transformers keeps unknown names, which the code of a model or a `rollout_func` may read, and a server's request
    has more names than its sampling. So [`unread`] warns of names that are like no other.
    """
    known, unknown = _unknown_names(config)
    for name in unknown:
        if not isinstance(name, str) or difflib.get_close_matches(name, known, cutoff=_NEAR):
            raise ConfigError(_no_setting(name, known, config))


def refused_by_vllm(config: "GRPOConfig") -> str | None:
    """Return why a colocated vLLM would refuse `generation_kwargs` in a step; `None` if it would not.

    Not for a run with a `rollout_func`, which may read names of its own.
    """
    if not config.use_vllm or config.vllm_mode != "colocate":
        return None
    known, unknown = _unknown_names(config)
    return _no_setting(unknown[0], known, config) if unknown else None


def _no_setting(name: Any, known: list[str], config: "GRPOConfig") -> str:
    guess = did_you_mean(str(name), known)
    what = f"generation_kwargs has {name!r}, which is no setting of {_engine(config)}."
    return f"{what}{guess} Correct it, or leave it out."


def _unknown_names(config: "GRPOConfig") -> tuple[list[str], list[Any]]:
    """Return the names of the engine's settings, and those in `generation_kwargs` that are not among them."""
    known = _known_names(config.use_vllm) if config.generation_kwargs else []
    return known, [name for name in config.generation_kwargs or () if known and name not in known]


def _known_names(use_vllm: bool) -> list[str]:
    """Return the names of the engine's settings; [] if they are not known, because vLLM cannot be imported."""
    from transformers import GenerationConfig

    if not use_vllm:
        return [name for name in vars(GenerationConfig()) if not name.startswith("_")]
    try:
        return [*inspect.signature(importlib.import_module("vllm").SamplingParams).parameters]
    except Exception:  # not installed, or broken: the check of packages and TRL say so
        return []


def _engine(config: "GRPOConfig") -> str:
    return "vLLM's SamplingParams" if config.use_vllm else "transformers' GenerationConfig"


def unread(config: "GRPOConfig") -> str | None:
    """Return a warning if transformers does not read names in `generation_kwargs`; `None` otherwise."""
    # Continuous batching reads more names than those of the config.
    if config.use_vllm or config.use_transformers_continuous_batching:
        return None
    known, unknown = _unknown_names(config)
    if not unknown:
        return None
    named = "".join(did_you_mean(name, known) for name in unknown)
    return (
        f"generation_kwargs has {', '.join(map(repr, unknown))}: no setting of {_engine(config)}, so it has no effect "
        f"unless the model's own code or a rollout_func reads it.{named} Correct it, or leave it out."
    )


def altering_settings(settings: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]] = NEUTRAL) -> dict[str, Any]:
    """Return the settings that change the sampled distribution."""
    return {
        name: value
        for name, value in settings.items()
        if name in neutral and value is not None and value not in neutral[name]
    }


def sampling_settings(args: "GRPOConfig") -> dict[str, Any]:
    """Return the sampling settings of a [`~trl.GRPOConfig`]; `generation_kwargs` win."""
    return {name: getattr(args, name) for name in ("temperature", *OPTIONS)} | dict(args.generation_kwargs or {})


def chosen_settings(args: "GRPOConfig") -> dict[str, Any]:
    """Return the settings of a [`~trl.GRPOConfig`] that change the distribution, with their values."""
    settings = altering_settings(sampling_settings(args), OF_VLLM if args.use_vllm else NEUTRAL)
    temperature = sampling_settings(args)["temperature"]
    if temperature != args.temperature:  # the logits are divided by the option
        settings["generation_kwargs.temperature"] = temperature
    if args.use_vllm and args.vllm_structured_outputs_regex is not None:
        settings["vllm_structured_outputs_regex"] = args.vllm_structured_outputs_regex
    return settings


def inherited_settings(
    args: "GRPOConfig", generation_config: Mapping[str, Any], passed: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the settings of a model's generation_config that reach sampling and change the distribution.

    Args:
        args ([`~trl.GRPOConfig`]): configuration of the run.
        generation_config (`Mapping[str, Any]`): the model's.
        passed (`Mapping[str, Any]`, *optional*): what TRL passes to transformers; `None`: the settings in `args`.
    """
    if args.use_vllm or args.use_transformers_continuous_batching:
        return {}
    passed = {"do_sample": True, **sampling_settings(args)} if passed is None else passed
    return {name: value for name, value in altering_settings(generation_config).items() if passed.get(name) is None}


def differences(
    args: "GRPOConfig", generation_config: Mapping[str, Any], passed: Mapping[str, Any] | None = None
) -> list[str]:
    """Return a text for each kind of setting that makes the sampled distribution differ from the trained one.

    Arguments are those of [`inherited_settings`].
    """
    texts = [text] if (text := unread(args)) else []
    if settings := inherited_settings(args, generation_config, passed):
        texts.append(_of_the_model(settings))
    if (settings := chosen_settings(args)) and (ratios := _ratios(args)):
        texts.append(
            f"Sampling with {_shown(settings)} draws attempts from another distribution than softmax(logits / "
            f"temperature), which the log-probs belong to. {' '.join(ratios)} Leave out {', '.join(settings)}. To "
            "sharpen the distribution, lower temperature: the log-probs take it into account."
        )
    return texts


def warn_of_another_distribution(args: "GRPOConfig", model: Any, passed: Mapping[str, Any] | None) -> None:
    """Log the texts of [`differences`] for a model on the main process."""
    own = getattr(model, "generation_config", None)
    own = own if isinstance(own, Mapping) else getattr(own, "to_dict", dict)()
    for text in differences(args, own, passed):
        logger.warning(text)


def _of_the_model(settings: Mapping[str, Any]) -> str:
    by_option = {name: NEUTRAL[name][0] for name in settings if NEUTRAL[name]}
    others = ", ".join(f"model.generation_config.{name} = None" for name in settings if name not in by_option)
    ways = [f"generation_kwargs: {_keys(by_option)}"] if by_option else []
    ways += [f"{others}, before the trainer is made, or in the model's generation_config.json"] if others else []
    return (
        f"The model's generation_config has {_shown(settings)}. TRL does not replace this, so transformers samples "
        "with it. The log-probs leave it out, so the policy is trained on attempts from another "
        f"distribution. To sample from the policy itself, set {'; and '.join(ways)}. To keep it, set it in "
        "generation_kwargs too."
    )


def _ratios(args: "GRPOConfig") -> list[str]:
    """Return a text for each ratio of log-probs that the settings bias."""
    wrong = []
    if args.use_vllm and args.vllm_importance_sampling_correction:
        wrong.append(
            "vLLM's log-probs include it. vllm_importance_sampling_correction takes this difference for a difference "
            "of weights, and multiplies the loss by the share of probability that was left (0.9 under top_p=0.9)."
        )
    if args.gradient_accumulation_steps % (args.steps_per_generation * args.num_iterations):
        wrong.append(
            "Each batch is trained on in several steps. In the later steps the importance ratio does not belong to "
            "the distribution that was sampled from."
        )
    return wrong


def _shown(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={shortened(repr(value), _MOST_SHOWN)}" for name, value in settings.items())


def _keys(settings: Mapping[str, Any]) -> str:
    return f"{{{', '.join(f'{name}: {value}' for name, value in settings.items())}}}"


# Keys of generation_kwargs that do not change the distribution, whatever their value.
HARMLESS = {"seed", "stop", "stop_token_ids", "ignore_eos", "include_stop_str_in_output"}


def logprob_options(args: "GRPOConfig") -> list[str]:
    """Return the options under which vLLM's log-probs and the trainer's are of different distributions."""
    names = [*altering_settings({name: getattr(args, name) for name in OPTIONS})]
    if set(args.generation_kwargs or ()) - HARMLESS:
        names.append("generation_kwargs")
    if args.vllm_structured_outputs_regex is not None:
        names.append("vllm_structured_outputs_regex")
    # A server may return log-probs without the temperature. TRL checks this only if it corrects by them.
    if args.temperature != 1 and args.vllm_mode == "server" and not args.vllm_importance_sampling_correction:
        names.append("temperature")
    return names
