"""Checks of evaluations, which would end a run at the first evaluation, or measure nothing."""

import logging
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..utils.validation import ConfigError, did_you_mean


if TYPE_CHECKING:
    from .grpo_plus_config import GRPOPlusConfig


logger = logging.getLogger(__name__)

# The methods of a trainer that decide what a batch of an evaluation holds.
MADE_BY = ("get_eval_dataloader", "get_test_dataloader", "_get_eval_sampler", "prediction_step", "evaluation_loop")
# What transformers measures of each evaluation set. TRL's own metrics have no set's name.
MEASURED = ("loss", "runtime", "samples_per_second", "steps_per_second", "model_preparation_time")


def check_evaluations(eval_dataset: Any, config: "GRPOPlusConfig") -> None:
    """Refuse evaluations that would fail in the run, and warn of those that would fail or measure nothing.

    Args:
        eval_dataset: the evaluation set, or several by name.
        config ([`GRPOPlusConfig`]): the configuration.

    Raises:
        ConfigError: `eval_on_start` without a dataset, or with batches that hold parts of groups. Or no evaluation has
            the metric that `metric_for_best_model` names: transformers would stop at the first one.
    """
    if eval_dataset is None:
        if config.eval_on_start:
            raise ConfigError("eval_on_start=True needs an eval_dataset. Give one, or set eval_on_start=False.")
        return
    sets = eval_dataset if isinstance(eval_dataset, Mapping) else {"": eval_dataset}
    if config.eval_strategy == "no":  # TRL checks the batches of the others
        _check_batches(sets, config)
    elif isinstance(eval_dataset, Mapping) and sets:
        _check_best_metric(list(sets), config)
    if config.eval_strategy != "no" or config.eval_on_start:
        _check_sizes(sets, config)


def check_evaluation(dataset: Any, config: "GRPOPlusConfig", in_training: bool) -> None:
    """Refuse an evaluation that begins now and would fail, and outside a training warn of one that measures nothing.

    Args:
        dataset: the evaluation set. A script may have set or given another one than the trainer was made with. What a
            batch of a stream holds is not known.
        config ([`GRPOPlusConfig`]): the configuration.
        in_training (`bool`): whether a training evaluates. A warning would come with each of its evaluations.

    Raises:
        ConfigError: a batch of the evaluation would hold a part of a group.
    """
    if (why := parts_of_groups(config)) and hasattr(dataset, "__len__") and not _fits_into_a_batch(dataset, config):
        raise ConfigError(why)
    if not in_training and (why := _measures_nothing("this evaluation set", dataset, config)):
        _warn(config, why)


def warn_of_best_reward(config: "GRPOPlusConfig", names: Sequence[str]) -> None:
    """Warn of a `metric_for_best_model` of a reward that is none of `names`, unless a reward logs it by itself."""
    named = re.fullmatch("rewards/(.+)/(mean|std)", _best(config))
    if named and named[1] not in names and config.eval_strategy != "no":
        _warn(
            config,
            f"metric_for_best_model={config.metric_for_best_model!r} names none of the reward functions, "
            f"{', '.join(map(repr, names))}.{did_you_mean(named[1], names)} Unless a reward logs this metric, the "
            "first evaluation ends the run.",
        )


def has_best_metric(metrics: Mapping[str, Any], config: "GRPOPlusConfig") -> bool:
    """Return whether an evaluation can be the best so far; warn if the metric that decides has no value."""
    if config.metric_for_best_model is None or metrics.get(f"eval_{_best(config)}", 0) is not None:
        return True
    _warn(
        config,
        f"metric_for_best_model={config.metric_for_best_model!r}: this evaluation has no value of it, so it cannot be "
        "the best one. A reward has none if it scored no attempt: read its outcomes (docs/outcomes.md).",
    )
    return False


def parts_of_groups(config: "GRPOPlusConfig") -> str | None:
    """Return why a batch of an evaluation would hold a part of a group; `None` if it holds whole groups."""
    size, processes, attempts = config.per_device_eval_batch_size, config.world_size, _attempts(config)
    if not size * processes % attempts:
        return None
    step = attempts // math.gcd(attempts, processes)
    return (
        f"per_device_eval_batch_size ({size}) x processes ({processes}) must be divisible by num_generations_eval, or "
        f"by num_generations if num_generations_eval is not set ({attempts}). Set per_device_eval_batch_size to "
        f"{max(size // step, 1) * step}."
    )


def _attempts(config: "GRPOPlusConfig") -> int:
    """Return the number of attempts on a prompt in an evaluation."""
    return config.num_generations_eval or config.num_generations


def _batch(config: "GRPOPlusConfig") -> int:
    """Return the number of attempts in a batch of an evaluation, on all processes."""
    return config.per_device_eval_batch_size * config.world_size


def _check_batches(sets: Mapping[str, Any], config: "GRPOPlusConfig") -> None:
    if (why := parts_of_groups(config)) is None or all(_fits_into_a_batch(rows, config) for rows in sets.values()):
        return
    if config.eval_on_start:
        raise ConfigError(why)
    _warn(config, f"{why} Otherwise evaluate() fails.")


def _check_best_metric(names: list[str], config: "GRPOPlusConfig") -> None:
    """Refuse a best metric that no evaluation of one among several sets has."""
    best = _best(config)
    if best in MEASURED:
        metric = f"eval_{names[0]}_{best}"
        raise ConfigError(
            f"metric_for_best_model={config.metric_for_best_model!r} (the default with load_best_model_at_end is "
            f"'loss'): each evaluation set has a metric of its own, such as {metric}. Set "
            f"metric_for_best_model={metric!r}, or 'eval_reward', which is that of the last set."
        )
    for name in names:
        metric = best.removeprefix(f"{name}_")
        if metric != best and metric not in MEASURED:
            raise ConfigError(
                f"metric_for_best_model={config.metric_for_best_model!r}: TRL calls this metric eval_{metric} for "
                f"each evaluation set, and the last set, now {names[-1]!r}, decides. Put {name!r} last in "
                f"eval_dataset, and set metric_for_best_model='eval_{metric}'."
            )


def _check_sizes(sets: Mapping[str, Any], config: "GRPOPlusConfig") -> None:
    """Refuse or warn of sets without rows, or with fewer than a batch that must be full."""
    best = _best(config) if config.eval_strategy != "no" else ""
    for name, dataset in sets.items():
        if (why := _measures_nothing(f"eval_dataset {name}".strip(), dataset, config)) is None:
            continue
        # Of several sets, another one may have TRL's metrics.
        if best and (len(sets) == 1 or best.startswith(f"{name}_")):
            raise ConfigError(f"metric_for_best_model={config.metric_for_best_model!r}: {why}")
        _warn(config, why)


def _measures_nothing(what: str, dataset: Any, config: "GRPOPlusConfig") -> str | None:
    """Return why an evaluation on a set measures nothing; `None` if it measures something, or if this is not known."""
    needed = math.ceil(_batch(config) / _attempts(config)) if config.dataloader_drop_last else 1
    if not _fewer(dataset, needed):
        return None
    if count := len(dataset):
        return (
            f"{what} has {count} row{'s' * (count != 1)}, fewer than the {needed} of a batch, and "
            "dataloader_drop_last=True leaves out a batch that is not full. So an evaluation on it measures "
            "nothing. Set dataloader_drop_last=False, or a smaller per_device_eval_batch_size."
        )
    instead = "" if config.eval_strategy == "no" else ", or set eval_strategy='no'"
    return f"{what} has no rows, so an evaluation on it measures nothing. Give it rows{instead}."


def _fits_into_a_batch(dataset: Any, config: "GRPOPlusConfig") -> bool:
    """Return whether a set is known to fit into one batch, which holds whole groups unless processes fill it up."""
    return config.world_size == 1 and _fewer(dataset, _batch(config) // _attempts(config) + 1)


def _best(config: "GRPOPlusConfig") -> str:
    return (config.metric_for_best_model or "").removeprefix("eval_")


def _fewer(dataset: Any, than: int) -> bool:
    """Return whether a dataset is known to have fewer rows."""
    return hasattr(dataset, "__len__") and len(dataset) < than


def _warn(config: "GRPOPlusConfig", text: str) -> None:
    if config.process_index == 0:
        logger.warning(text)
