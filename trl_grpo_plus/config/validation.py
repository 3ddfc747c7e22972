"""Checks that refuse values and combinations of options that cannot work. Each error says the fix."""

import typing
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from packaging.version import Version

from ..curriculum.selection import check_selection, name_of
from ..objective.advantage_functions import by_path, check_estimator, estimator_of, named_by, whole_only
from ..objective.baselines import check_baseline
from ..objective.kl import ESTIMATORS
from ..objective.process_rewards import STEP_REWARD_CREDITS, STEP_SCALES
from ..objective.ratios import LOSSES_WITH_THEIR_OWN, RATIOS
from ..objective.scales import SCALES
from ..traces.alarms import ALARMS, Thresholds
from ..utils.dataset_rows import plain, plain_within
from ..utils.import_path import is_path
from ..utils.validation import ConfigError, Number, one_of, user_level
from . import presets
from .bounds import check_finite
from .group_checks import check_groups
from .sampling_distribution import check_generation_kwargs, logprob_options
from .start_errors import check_accelerator_config, check_mappings


if TYPE_CHECKING:
    from .grpo_plus_config import GRPOPlusConfig


# These bounds are not in the fields' metadata, because transformers' parser passes that to argparse.
NUMBERS = {
    "zero_variance_tolerance": Number(at_least=0.0),
    "solved_reward": Number(),
    "failed_reward": Number(),
    "reward_variance_top_p": Number(above=0.0, at_most=1.0),
    "max_resample_rounds": Number(at_least=1, integer=True),
    "std_eps": Number(at_least=0.0),
    "std_floor": Number(at_least=0.0),
    "running_std_decay": Number(at_least=0.0, below=1.0),
    "advantage_clip": Number(above=0.0, optional=True),
    "selection_pool": Number(at_least=1, integer=True),
    "belief_head_share": Number(above=0.0, optional=True),
    "kl_target": Number(above=0.0, optional=True),
    "kl_horizon": Number(at_least=1, integer=True),
    "reward_workers": Number(at_least=1, integer=True, optional=True),
    "reward_worker_memory_mb": Number(at_least=256, integer=True),
    "trace_every": Number(at_least=0, integer=True),
    "trace_max_groups": Number(at_least=1, integer=True, optional=True),
    "trace_thumbnails": Number(at_least=0, integer=True),
    "trace_log_groups": Number(at_least=0, integer=True),
    "vllm_check_every": Number(at_least=0, integer=True),
    # TRL's own options. TRL checks them late: after the model is loaded, or after a batch is sampled.
    "temperature": Number(above=0.0),
    "beta": Number(at_least=0.0),
}
# TRL divides by these when a config is made, or later by what it makes of them.
DIVISORS = {
    **dict.fromkeys(("per_device_train_batch_size", "generation_batch_size"), Number(at_least=1, integer=True)),
    **dict.fromkeys(("steps_per_generation", "gradient_accumulation_steps"), Number(at_least=1, integer=True)),
    "num_iterations": Number(at_least=1, integer=True),
    "num_generations": Number(at_least=2, integer=True, note=": GRPO compares the attempts on a prompt"),
}
# TRL's own options, which TRL checks late too.
TRL_CHOICES = {
    "loss_type": ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"),
    "importance_sampling_level": ("token", "sequence"),
    "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
    "vllm_mode": ("colocate", "server"),
    "vllm_importance_sampling_mode": ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
}

# Option -> the option without which the run does not read it, and that one's value (`None`: any that is on). Those of
# `resample` are not here: a recipe may keep them while a command line sets `keep` or `drop` to compare.
READ_WITH: dict[str, tuple[str, str | None]] = {
    "running_std_decay": ("scale_rewards", "running"),
    "selection_pool": ("prompt_selection", "belief"),
    "belief_head_share": ("belief_head", "prompt"),
    "kl_horizon": ("kl_target", None),
}


def check_before_trl(config: "GRPOPlusConfig") -> None:
    """Refuse a text as the value of any option that takes a number, and what TRL cannot divide by.

    A number or an array of NumPy or PyTorch becomes Python's own, and so does a number in a list or a dict:
    transformers writes the options as JSON, for TensorBoard after the model is loaded.
    """
    for name, field in config.__dataclass_fields__.items():
        given = getattr(config, name)
        value = given.tolist() if hasattr(given, "tolist") else plain_within(given)
        if value is not given:
            setattr(config, name, value)
        kinds = {*typing.get_args(field.type)} or {field.type}
        if isinstance(value, str) and kinds <= {int, float, type(None)}:
            NUMBERS.get(name, Number()).check(name, value)
    check_mappings(config)
    check_finite(config, {**NUMBERS, **DIVISORS})
    for name, number in DIVISORS.items():
        if (value := getattr(config, name)) is not None:
            number.check(name, value)


def check(config: "GRPOPlusConfig", annotations: Mapping[str, Any], trl_version: str) -> None:
    """Refuse a [`GRPOPlusConfig`] that cannot work.

    Args:
        config ([`GRPOPlusConfig`]): the configuration.
        annotations (`Mapping[str, Any]`): the annotations of the fields that this package adds.
        trl_version (`str`): the installed version of TRL.
    """
    presets.check(config.preset)
    _check_values(config, annotations)
    _check_advantage(config)
    _check_process(config)
    _check_belief_baseline(config)
    check_groups(config)
    _check_belief_options(config)
    check_selection(config.prompt_selection)
    _check_ratio(config)
    _check_kl(config)
    _check_estimator(config)
    _check_vllm(config)
    check_generation_kwargs(config)
    _check_read(config)
    check_watching(config)
    _check_liger(config, trl_version)
    check_accelerator_config(config)


def warn_of_no_effect(config: "GRPOPlusConfig") -> None:
    """Warn if a trainer other than this package's was given options of this package."""
    changed = [name for name in config.changed_options if name != "preset"]
    if changed:
        warnings.warn(
            f"{_no_effect(config, changed)}: the trainer that got this GRPOPlusConfig "
            "is not a GRPOPlusTrainer. Replace GRPOTrainer(...) by GRPOPlusTrainer(...), which takes the same "
            "arguments: from trl_grpo_plus import GRPOPlusTrainer.",
            stacklevel=user_level(),
        )


def check_flag(name: str, value: Any) -> None:
    """Refuse a value that is not `True` or `False`."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={value!r} must be True or False (in YAML true or false).")


def _check_values(config: "GRPOPlusConfig", annotations: Mapping[str, Any]) -> None:
    for name, allowed in TRL_CHOICES.items():
        one_of(name, getattr(config, name), allowed)
    one_of("scale_rewards", config.scale_rewards, SCALES)
    for name, number in NUMBERS.items():
        number.check(name, getattr(config, name))
    for name in [name for name in annotations if name in config.__dataclass_fields__]:
        value, metadata = getattr(config, name), config.__dataclass_fields__[name].metadata
        if "choices" in metadata:
            one_of(name, value, metadata["choices"])
        if annotations[name] is bool:
            check_flag(name, value)
    if not isinstance(config.filter_metric, str) or not config.filter_metric:
        raise ConfigError(
            f"filter_metric={config.filter_metric!r} must be 'total', 'any' or the name of a reward function."
        )
    if config.failed_reward >= config.solved_reward:
        raise ConfigError(
            f"failed_reward ({config.failed_reward}) must be below solved_reward ({config.solved_reward}): a failed "
            "attempt earns failed_reward, and a successful one earns solved_reward."
        )


def _check_advantage(config: "GRPOPlusConfig") -> None:
    check_baseline(config.advantage_baseline)
    if config.multi_objective_aggregation != "normalize_then_sum":
        return
    if SCALES[config.scale_rewards].over == "run":
        raise ConfigError(
            f"scale_rewards={config.scale_rewards!r} does not go with multi_objective_aggregation="
            "'normalize_then_sum', which divides each reward function by its own group's scale. Use "
            f"{_any_of(name for name, scale in SCALES.items() if scale.over == 'group')}, or "
            "multi_objective_aggregation='sum_then_normalize'."
        )
    if config.kl_placement == "reward":
        raise ConfigError(
            "kl_placement='reward' needs multi_objective_aggregation='sum_then_normalize': 'normalize_then_sum' "
            "normalises each reward function by itself, and has no total reward to subtract the KL from."
        )


def _check_process(config: "GRPOPlusConfig") -> None:
    one_of("step_reward_credit", config.step_reward_credit, (None, *STEP_REWARD_CREDITS))
    if config.step_reward_credit is None:
        return
    what = f"step_reward_credit={config.step_reward_credit!r}"
    if config.scale_rewards not in STEP_SCALES:
        raise ConfigError(
            f"{what} does not go with scale_rewards={config.scale_rewards!r}: the reward of a step is either divided "
            f"by the std of all step rewards of its group, or not divided. Set scale_rewards={_any_of(STEP_SCALES)}."
        )
    if config.advantage_baseline == "belief":
        raise ConfigError(
            f"{what} does not go with advantage_baseline='belief': a belief predicts the reward of a whole attempt, "
            "not the reward of a step. Set another advantage_baseline, or leave step_reward_credit out."
        )
    if config.multi_objective_aggregation == "normalize_then_sum":
        raise ConfigError(
            f"{what} does not go with multi_objective_aggregation='normalize_then_sum', which normalises one number "
            "for each attempt over the batch. With steps an attempt has several. Use 'sum_then_normalize'."
        )
    if config.kl_placement == "reward":
        raise ConfigError(
            f"{what} does not go with kl_placement='reward', which subtracts the KL from the reward of the whole "
            "attempt. Steps have their own rewards and their own baseline. Set kl_placement='loss'."
        )
    if reason := whole_only(config):
        raise ConfigError(f"{what} does not go with {reason}")


def _check_belief_baseline(config: "GRPOPlusConfig") -> None:
    scale, believes = config.scale_rewards, config.advantage_baseline == "belief"
    by_itself = config.multi_objective_aggregation == "normalize_then_sum"
    if believes and (SCALES[scale].over == "group" or (by_itself and scale != "prior")):
        allowed = ["prior"] if by_itself else [name for name in SCALES if SCALES[name].over != "group"]
        raise ConfigError(
            f"advantage_baseline='belief' does not go with scale_rewards={scale!r}: the group's scale is computed "
            "from the rewards that it divides. It can be 0, and in a small group it is a poor estimate. Set "
            f"scale_rewards={_any_of(allowed)}."
        )
    if scale == "prior" and not believes:
        raise ConfigError(
            "scale_rewards='prior' divides by the std of the belief about a prompt. It needs "
            f"advantage_baseline='belief' (now {by_path(config.advantage_baseline)!r}). Set that "
            f"baseline, or change the scale. {presets.leave_out(config, 'scale_rewards')}"
        )


def _check_belief_options(config: "GRPOPlusConfig") -> None:
    one_of("belief_head", config.belief_head, (None, "prompt"))
    for name in ("belief_key", "belief_id"):
        value = getattr(config, name)
        if value is not None and (not isinstance(value, str) or not value):
            raise ConfigError(f"{name}={value!r} must be the name of a column. To use no column, leave {name} out.")
    for name in ("belief_key", "belief_id", "belief_head"):
        if getattr(config, name) is not None and not config.what_believes:
            raise ConfigError(
                f"{name}={getattr(config, name)!r} has no effect: this run keeps no beliefs about prompts. Set "
                f"advantage_baseline='belief' or prompt_selection='belief', or leave {name} out."
            )


def _check_read(config: "GRPOPlusConfig") -> None:
    """Refuse an option of `READ_WITH` that the run would not read, unless it has its default or a subclass's."""
    fields = config.__dataclass_fields__
    for name in config.changed(*READ_WITH):
        (other, needed), value = READ_WITH[name], getattr(config, name)
        now = getattr(config, other)
        chosen = name_of(now) if other == "prompt_selection" else now
        if value != fields[name].default and not (chosen == needed if needed else chosen):
            setting = f"{other}={needed!r}" if needed else other
            # A command line cannot take an option out of a recipe, so the message names the default.
            raise ConfigError(
                f"{name}={value!r} has no effect with {other}={now!r}: set {setting}, or leave it out "
                f"({name}={fields[name].default!r})."
            )


def _check_estimator(config: "GRPOPlusConfig") -> None:
    check_estimator(config.advantage_estimator)
    if not config.estimates_advantages:
        return
    name = named_by(config.advantage_estimator)
    chosen = f"advantage_estimator={by_path(name)!r}"
    silent = config.changed(
        "advantage_baseline",
        "scale_rewards",
        "std_ddof",
        "std_eps",
        "std_floor",
        "running_std_decay",
        "step_reward_credit",
    )
    if silent:
        raise ConfigError(
            f"{_no_effect(config, silent)} with {chosen}, which computes the advantages without a baseline or a scale."
            f" {' '.join(presets.leave_out(config, option) for option in silent)}"
        )
    if config.multi_objective_aggregation != "sum_then_normalize":
        raise ConfigError(
            f"multi_objective_aggregation={config.multi_objective_aggregation!r} has no effect with {chosen}, which "
            "gets all rewards and their weights, and combines them itself. "
            f"{presets.leave_out(config, 'multi_objective_aggregation')} To keep each group in which one reward "
            "varies, set filter_metric='any'."
        )
    if config.kl_placement == "reward":
        raise ConfigError(
            f"kl_placement='reward' does not go with {chosen}: it subtracts the KL from the rewards, and an advantage "
            "function needs the rewards as they were scored. Set kl_placement='loss'."
        )
    if not (isinstance(name, str) and is_path(name)):  # a function at a path is imported when the trainer is made
        estimator_of(config)


def _no_effect(config: "GRPOPlusConfig", options: Sequence[str]) -> str:
    settings = ", ".join(f"{name}={by_path(getattr(config, name))!r}" for name in options)
    return f"{settings} {'has' if len(options) == 1 else 'have'} no effect"


def _check_kl(config: "GRPOPlusConfig") -> None:
    changed = config.changed("kl_estimator", "kl_placement", "kl_reward_form", "kl_target")
    name, estimator = config.kl_estimator, ESTIMATORS[config.kl_estimator]
    if changed and config.beta <= 0:
        raise ConfigError(
            f"{_no_effect(config, changed)} with beta={config.beta}: there is no KL term and no reference model. Set "
            "beta to a positive value (0.04 in DeepSeekMath), or leave the KL options at their defaults."
        )
    if config.kl_placement == "reward" and estimator.in_reward_refused:
        allowed = _any_of(other for other in ESTIMATORS if not ESTIMATORS[other].in_reward_refused)
        raise ConfigError(
            f"kl_placement='reward' needs kl_estimator={allowed}, got {name!r}: in the reward "
            f"{estimator.in_reward_refused}. Set kl_estimator={allowed}."
        )
    if config.kl_placement == "loss" and estimator.unweighted_refused and not config.use_bias_correction_kl:
        raise ConfigError(
            f"kl_estimator={name!r} in the loss needs use_bias_correction_kl=True: without the importance weight "
            f"{estimator.unweighted_refused}. Set use_bias_correction_kl=True, or kl_placement='reward', or "
            "kl_estimator='k2' (the reverse KL's gradient on-policy)."
        )
    if config.kl_placement == "loss" and config.kl_reward_form != "sequence":
        raise ConfigError(
            f"kl_reward_form={config.kl_reward_form!r} has no effect on a KL in the loss. Set kl_placement='reward', "
            "or leave kl_reward_form out."
        )
    if config.kl_reward_form == "reward_to_go" and (reason := whole_only(config)):
        raise ConfigError(
            f"kl_reward_form='reward_to_go' gives each token its own advantage, which cannot be used with {reason}"
        )
    if config.kl_target is not None and not estimator.is_kl:
        raise ConfigError(
            f"kl_target does not go with kl_estimator={name!r}, whose mean is not the KL divergence. Set kl_estimator="
            f"{_any_of(other for other in ESTIMATORS if ESTIMATORS[other].is_kl)}."
        )


def _check_ratio(config: "GRPOPlusConfig") -> None:
    one_of("importance_ratio", config.importance_ratio, (None, *RATIOS))
    if config.importance_ratio is None:
        return
    what = f"importance_ratio={config.importance_ratio!r}"
    if config.importance_sampling_level != "token":
        raise ConfigError(
            f"{what} replaces TRL's ratio, and so does "
            f"importance_sampling_level={config.importance_sampling_level!r}. Leave one of the two out."
        )
    if config.loss_type in LOSSES_WITH_THEIR_OWN:
        raise ConfigError(
            f"{what} does not go with loss_type={config.loss_type!r}, which computes its own ratio of whole "
            "sequences. Set another loss_type (GSPO's is 'grpo'), or leave importance_ratio out."
        )
    if config.off_policy_mask_threshold is not None:
        raise ConfigError(
            f"{what} does not go with off_policy_mask_threshold={config.off_policy_mask_threshold!r}, which needs the "
            "sampler's log-probs. The ratio replaces these. Leave one of the two out."
        )


def _check_vllm(config: "GRPOPlusConfig") -> None:
    if not config.changed("vllm_check_every") or not config.vllm_check_every:
        return
    what = f"vllm_check_every={config.vllm_check_every!r} has nothing to compare"
    if not config.use_vllm:
        raise ConfigError(
            f"{what}: without vLLM attempts are sampled from the trainer's own weights. Set use_vllm=True, or leave "
            "vllm_check_every out."
        )
    if names := logprob_options(config):
        options = ", ".join(f"{name}={getattr(config, name)!r}" for name in names)
        raise ConfigError(
            f"{what}: with {options} vLLM samples from another distribution than the trainer's. Leave "
            f"vllm_check_every out, or leave out {', '.join(names)}."
        )


class WatchOptions(Protocol):
    """The options of alarms."""

    alarms: bool
    alarm_thresholds: dict[str, float | None] | None
    halt_on_alarm: list[str] | None


def check_watching(config: WatchOptions) -> None:
    """Check the options of alarms, which [`~trl_grpo_plus.attach`] takes too."""
    if config.alarm_thresholds is not None and not isinstance(config.alarm_thresholds, dict):
        raise ConfigError(
            f"alarm_thresholds={config.alarm_thresholds!r} must be thresholds by name, such as "
            '{"near_duplicates": 0.8, "length_drift": None} (in YAML and JSON null).'
        )
    if config.alarm_thresholds:
        config.alarm_thresholds = {str(name): plain(value) for name, value in config.alarm_thresholds.items()}
    Thresholds(**(config.alarm_thresholds or {}))
    if config.halt_on_alarm is None:
        return
    if not isinstance(config.halt_on_alarm, list):
        raise ConfigError(
            f"halt_on_alarm={config.halt_on_alarm!r} must be a list of alarms, such as ['length_drift']."
        )
    for name in config.halt_on_alarm:
        one_of("halt_on_alarm", name, ALARMS)
        if not config.alarms or (config.alarm_thresholds or {}).get(name, 0) is None:
            raise ConfigError(f"halt_on_alarm names {name!r}, which is off. Set alarms=True, and give it a threshold.")


def _check_liger(config: "GRPOPlusConfig", trl_version: str) -> None:
    # Before TRL 1.14 the Liger loss is computed outside `_compute_loss`: the options below would silently not apply.
    needs_loss = config.changed(
        "zero_variance_groups", "kl_estimator", "kl_placement", "kl_target", "step_reward_credit", "importance_ratio"
    )
    if config.use_liger_kernel and needs_loss and Version(trl_version) < Version("1.14"):
        raise ConfigError(
            f"use_liger_kernel=True with TRL {trl_version} computes the loss where zero_variance_groups, "
            "step_reward_credit, importance_ratio and the KL options cannot reach it. Upgrade to trl>=1.14, or set "
            "use_liger_kernel=False."
        )


def _any_of(names: Iterable[str]) -> str:
    """Join names as in "'a', 'b' or 'c'"."""
    *others, last = map(repr, names)
    return f"{', '.join(others)} or {last}" if others else last
