"""Checks of the options that say which groups leave the batch."""

from typing import TYPE_CHECKING

from ..rollouts.verdicts import VERDICTS
from ..utils.validation import ConfigError, one_of


if TYPE_CHECKING:
    from .grpo_plus_config import GRPOPlusConfig


def check_groups(config: "GRPOPlusConfig") -> None:
    """Refuse `filtered_verdicts` and `reward_variance_top_p` that cannot work or have no effect."""
    _check_filtered_verdicts(config)
    if config.reward_variance_top_p < 1:
        _check_top_p(config)


def _check_filtered_verdicts(config: "GRPOPlusConfig") -> None:
    if not isinstance(config.filtered_verdicts, list | tuple | None):
        raise ConfigError(
            f"filtered_verdicts={config.filtered_verdicts!r} must be a list, such as ['all_bad', 'unscored']."
        )
    for verdict in config.filtered_verdicts or ():
        one_of("filtered_verdicts", verdict, VERDICTS[1:])
    filters = config.filters_groups or config.advantage_baseline == "belief"
    if config.filtered_verdicts is not None and not filters:
        raise ConfigError(
            f"filtered_verdicts={config.filtered_verdicts!r} has no effect: zero_variance_groups='keep' keeps every "
            "group. Set zero_variance_groups='drop', 'skip' or 'resample', or set advantage_baseline='belief', or "
            "leave filtered_verdicts out."
        )
    if config.filters_groups and not config.dead:
        raise ConfigError(
            f"filtered_verdicts=[] names no verdict, so zero_variance_groups={config.zero_variance_groups!r} has no "
            "effect. Name at least one verdict, or set zero_variance_groups='keep'."
        )


def _check_top_p(config: "GRPOPlusConfig") -> None:
    top_p, metric = config.reward_variance_top_p, config.filter_metric
    if config.zero_variance_groups not in ("drop", "skip"):
        raise ConfigError(
            f"reward_variance_top_p={top_p!r} needs zero_variance_groups='drop' or 'skip' (now "
            f"{config.zero_variance_groups!r}): it compares the groups of one batch, and those with least variance "
            "leave the batch."
        )
    if "low_variance" not in config.dead:
        raise ConfigError(
            f"reward_variance_top_p={top_p!r} has no effect: filtered_verdicts={config.filtered_verdicts!r} lacks "
            "'low_variance', the verdict on groups that it would leave out. Add it, or leave out filtered_verdicts."
        )
    if config.what_believes:
        raise ConfigError(
            f"reward_variance_top_p={top_p!r} does not go with {config.what_believes}: with beliefs a group can teach "
            "although its rewards do not differ. Leave one of the two out."
        )
    by_itself = metric == "total" and config.multi_objective_aggregation == "normalize_then_sum"
    beside = [f"filter_metric={metric!r}"] if metric == "any" else []
    beside += ["multi_objective_aggregation='normalize_then_sum'"] if by_itself else []
    beside += [f"step_reward_credit={config.step_reward_credit!r}"] if config.step_reward_credit else []
    if beside:
        raise ConfigError(
            f"reward_variance_top_p={top_p!r} does not go with {', '.join(beside)}: it compares the variance of one "
            "reward of whole attempts, and others make advantages too. Leave one of the two out, or (without steps) "
            "set filter_metric to the name of a reward function."
        )
