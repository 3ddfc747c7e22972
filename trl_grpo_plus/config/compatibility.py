"""Checks of the configuration against the reward functions, the data and the model, before the first step."""

import logging
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import torch
from packaging.version import Version

from ..curriculum.selection import check_dataset, check_stream
from ..objective.advantage_functions import by_path
from ..scoring import check_prompts, check_splits, columns_given, datasets_named, refuse_class
from ..traces import check_split_names
from ..utils.validation import ConfigError, did_you_mean, error_prefix
from .presets import leave_out
from .tool_checks import check_described, check_length, check_made, check_resets


if TYPE_CHECKING:
    from accelerate import Accelerator

    from .grpo_plus_config import GRPOPlusConfig


logger = logging.getLogger(__name__)


# The columns that `remove_unused_columns` leaves (`GRPOTrainer._set_signature_columns_if_needed`).
DEALT = ("prompt", "image", "images")
# The options that `GRPOPlusTrainer._compute_loss` reads.
IN_THE_LOSS = ("kl_estimator", "kl_placement", "kl_target", "importance_ratio")
# Options that act on the batches and the loss of any subclass.
_ELSEWHERE = ("preset", "nonfinite_step")


def will_train(eval_dataset: Any, config: "GRPOPlusConfig") -> bool:
    """Return whether a trainer is surely made to train. One with an evaluation set may be made to evaluate alone."""
    return eval_dataset is None or config.eval_strategy != "no" or config.eval_on_start


def check_later_data(train_dataset: Any, eval_dataset: Any, config: "GRPOPlusConfig") -> None:
    """Refuse datasets of a kind that a trainer takes when it is made, but not when a script sets them later."""
    if train_dataset is None:
        raise ConfigError("train_dataset is None: train() needs one. Set a Dataset.")
    from datasets import Dataset, IterableDataset  # the commands import this module, and `datasets` is slow to import

    workers = config.dataloader_num_workers and isinstance(train_dataset, IterableDataset)
    for what, rows in datasets_named(train_dataset, eval_dataset).items():
        if isinstance(rows, IterableDataset) and (config.accelerator_config.dispatch_batches is not False or workers):
            raise ConfigError(
                f"{what} is a stream, and this trainer was made with loaded rows: TRL prepares for a stream only when "
                "the trainer is made. Make a new trainer with this stream, or load the data without streaming."
            )
    if (config.draws_prompts or config.what_believes) and not isinstance(train_dataset, Dataset | IterableDataset):
        raise ConfigError(
            f"train_dataset is a {type(train_dataset).__name__}. To choose or remember prompts, this trainer needs a "
            "Dataset of the package `datasets`. Make one: Dataset.from_list(...)."
        )


def check_data(
    train_dataset: Any,
    eval_dataset: Any,
    rewards: Any,
    columns: Sequence[str],
    config: "GRPOPlusConfig",
    *,
    rollouts: Any,
    environments: Any,
    subclass: bool = False,
    removes: bool = False,
) -> None:
    """Refuse datasets that would stop TRL in one of its steps, as far as this is known without a model.

    Args:
        train_dataset, eval_dataset: the datasets; `eval_dataset` may map names to datasets.
        rewards: the reward functions, as the trainer takes them.
        columns (`Sequence[str]`): the columns that a baseline or an advantage function reads.
        config ([`GRPOPlusConfig`]): the configuration.
        rollouts, environments: `rollout_func` and environments of the trainer, false if there are none.
        subclass (`bool`, *optional*, defaults to `False`): whether the trainer is of a subclass that may add columns.
        removes (`bool`, *optional*, defaults to `False`):
            Whether the trainer removes all columns but those that TRL's `remove_unused_columns` leaves.
    """
    check_dataset(train_dataset, "train_dataset", config)
    if config.draws_prompts:
        check_stream(train_dataset, config)
    if isinstance(eval_dataset, list | tuple):
        raise ConfigError(
            f"eval_dataset is a {type(eval_dataset).__name__}. Give one dataset, or a dict of datasets by name, such "
            "as {'easy': ..., 'hard': ...}."
        )
    if config.trace_every:
        check_split_names(eval_dataset)
    if environments:  # they may supply the prompts
        check_length(train_dataset, config.max_steps)
        for environment in environments.values() if isinstance(environments, Mapping) else [environments]:
            check_made(environment)
        if not subclass and will_train(eval_dataset, config):
            dealt = [_as_dealt(rows) if removes else rows for rows in (train_dataset, eval_dataset)]
            check_resets(environments, datasets_named(*dealt))
    else:
        check_prompts(train_dataset, eval_dataset, read=rollouts is None)
    for reward in rewards or ():
        refuse_class(reward)

    def check_read(train: Any, evaluation: Any) -> None:
        if not (rollouts or environments or subclass):  # these add columns
            check_splits(rewards, train, evaluation)
        check_columns_read(columns, train, config)

    check_read(train_dataset, eval_dataset)
    if removes:
        said = (
            "remove_unused_columns=True removes all columns but the prompt and images. Set it to False, TRL's default"
        )
        with error_prefix(said):
            check_read(_as_dealt(train_dataset), _as_dealt(eval_dataset))


def _as_dealt(dataset: Any) -> Any:
    """Return a dataset, or several by name, with the columns that `remove_unused_columns` leaves."""
    if isinstance(dataset, Mapping):
        return {name: _as_dealt(rows) for name, rows in dataset.items()}
    names = getattr(dataset, "column_names", None) if hasattr(dataset, "remove_columns") else None
    return dataset.remove_columns([name for name in names if name not in DEALT]) if names else dataset


def warn_of_own_rows(args: "GRPOPlusConfig", trainer: str, method: str) -> None:
    """Warn that rows are drawn from the training set, although a subclass of this name deals rows by this method."""
    option, which = "zero_variance_groups='resample'", "the prompts that replace those of dead groups"
    if args.chooses_prompts:
        option, which = f"prompt_selection={args.prompt_selection!r}", "all prompts"
    fix = (
        "If your dataloader deals other rows, put these into train_dataset. If it changes rows, do so in "
        "trainer.data_collator."
    )
    if method == "_get_train_sampler":
        fix = (
            "Your sampler does not decide on these prompts. For an order of your own, set prompt_selection: by_column "
            "(easy rows first), mixture, or the path of a class."
        )
    logger.warning(f"{trainer} overrides {method}, and {option} draws {which} from train_dataset. {fix}")


def warn_of_own_batches(args: "GRPOPlusConfig", trainer: str) -> None:
    """Warn that nothing is recorded of batches that a subclass of this name makes, and of options without effect."""
    unread = [name for name in args.changed_options if name not in (*IN_THE_LOSS, *_ELSEWHERE)]
    told = f" These options have no effect on them: {', '.join(unread)}." if unread else ""
    logger.warning(
        f"{trainer} makes its batches without a call of super()._generate_and_score_completions, so no attempts are "
        f"kept for the page and the alarms.{told}"
    )


def warn_of_own_loss(args: "GRPOPlusConfig", trainer: str, own_batches: bool) -> None:
    """Warn of options that act in TRL's loss, if a subclass of this name computes a loss of its own.

    With `own_batches` it makes its batches as well, and no groups are filtered.
    """
    unread = [f"{name}={getattr(args, name)!r}" for name in args.changed(*IN_THE_LOSS)]
    have = "has" if len(unread) == 1 else "have"
    told = [f"{' and '.join(unread)} {have} no effect on this loss."] if unread else []
    if args.filters_groups and not own_batches:
        told.append(
            f"With zero_variance_groups={args.zero_variance_groups!r} this loss gets the rows of live groups "
            "alone, so it is not the loss of all groups. If these do not fill the batch, it has filler rows too: as "
            "in TRL's loss, multiply completion_mask by inputs['tool_mask'] if it is there, and divide by at least 1."
        )
    if told:
        logger.warning(f"{trainer} computes its own loss, without a call of super()._compute_loss. {' '.join(told)}")


def check_columns_read(columns: Sequence[str], dataset: Any, config: "GRPOPlusConfig") -> None:
    """Check that the training set has the columns that a baseline or an advantage function reads."""
    available = columns_given(dataset, columns)  # a stream may not know them
    for name in columns if available else ():
        if name not in available:
            function = by_path(
                config.advantage_estimator if config.estimates_advantages else config.advantage_baseline
            )
            raise ConfigError(
                f"{function!r} reads the column {name!r}, the training set has {', '.join(map(repr, available))}."
                f"{did_you_mean(name, available)}"
            )


def check_filter_metric(metric: str, names: Sequence[str]) -> None:
    """Check that `filter_metric` names one reward function, or is `total` or `any`."""
    if metric not in ("total", "any", *names):
        raise ConfigError(
            f"filter_metric={metric!r} is neither 'total' nor 'any' nor one of the reward functions. The reward "
            f"functions are {', '.join(map(repr, names))}.{did_you_mean(metric, ('total', 'any', *names))}"
        )
    if names.count(metric) > 1:
        raise ConfigError(f"filter_metric={metric!r} is the name of more than one reward function. Rename them.")


def check_weights(weights: Sequence[float] | None, args: "GRPOPlusConfig") -> None:
    """Check that some reward has a weight, if prompts are remembered or groups are chosen by what they teach.

    If no reward has a weight, TRL trains on the KL term alone.

    Args:
        weights (`Sequence[float]`, *optional*): weights of the reward functions; `None`: all 1.
        args ([`GRPOPlusConfig`]): the configuration.
    """
    if not weights or any(weights):
        return
    if args.what_believes:
        raise ConfigError(
            f"reward_weights={list(weights)} are all 0: no reward is left for {args.what_believes}. Give a reward "
            f"a weight other than 0, or leave {args.what_believes} out."
        )
    if not args.filters_groups and args.filter_metric != "any":
        return
    raise ConfigError(
        f"reward_weights={list(weights)} are all 0: no group could be alive. Give a reward a weight other than 0, or "
        f"set zero_variance_groups='keep' (now {args.zero_variance_groups!r}) and filter_metric='total' (now "
        f"{args.filter_metric!r}) to train without rewards, as TRL does."
    )


def no_reward(weights: Sequence[float] | None) -> str | None:
    """Return a warning if no reward function has a weight; `None` otherwise."""
    if not weights or any(weights):
        return None
    return (
        f"reward_weights={list(weights)} are all 0, so all advantages are 0. Only a KL term (beta) or an entropy "
        "bonus is trained on. Give a reward another weight."
    )


def warn_of_no_reward(weights: Sequence[float], args: "GRPOPlusConfig") -> None:
    """Log the warning of [`no_reward`] on the main process."""
    if (why := no_reward(weights)) and args.process_index == 0:
        logger.warning(why)


def no_step(args: "GRPOPlusConfig") -> str | None:
    """Return why the length of a training leaves it without a step; `None` if it has a length."""
    if args.max_steps == 0:
        return "max_steps=0 must be a positive number, or -1 to train for num_train_epochs."
    if args.max_steps < 0 and args.num_train_epochs <= 0:
        return f"num_train_epochs={args.num_train_epochs!r} must be above 0, unless max_steps is set."
    return None


def warn_of_no_step(args: "GRPOPlusConfig", dataset: Any) -> None:
    """Warn that a training has ended without a step."""
    if args.process_index:
        return
    if why := no_step(args):
        logger.warning(f"No step was trained: {why}")
    elif not hasattr(dataset, "__len__"):
        logger.warning(
            f"No step was trained: the stream has fewer than the {args.generation_batch_size // args.num_generations} "
            f"prompts of a generation batch (generation_batch_size {args.generation_batch_size} / num_generations "
            f"{args.num_generations}). Use a longer stream or a smaller generation batch."
        )


def warn_of_masked_stops(args: "GRPOPlusConfig", ends: Set[int]) -> None:
    """Warn if vLLM ends attempts in a way that TRL takes as the length limit, and TRL masks attempts that reach it.

    Args:
        args ([`GRPOPlusConfig`]): configuration of the run.
        ends (`set[int]`): the tokens with which a completion ends unless it is truncated.
    """
    given = (args.use_vllm and args.mask_truncated_completions and args.generation_kwargs) or {}
    tokens = [token for token in given.get("stop_token_ids") or () if token not in ends]
    stops = {"stop": given.get("stop"), "stop_token_ids": tokens}
    for name, value in stops.items():
        if value and args.process_index == 0:
            logger.warning(
                f"generation_kwargs has {name}={value!r}. TRL counts an attempt that ends there as truncated, and "
                "mask_truncated_completions=True leaves truncated attempts out of the loss. Leave one of the two out."
            )


def rounds_weights(args: "GRPOPlusConfig") -> str | None:
    """Return the option, "bf16" or "fp16", to whose dtype TRL rounds the weights; `None` if it does not.

    Before it generates with continuous batching, TRL casts the model, and does not restore the weights
    (`GRPOTrainer._generate_single_turn`).
    """
    if args.use_vllm or not args.use_transformers_continuous_batching:
        return None
    return "bf16" if args.bf16 else "fp16" if args.fp16 else None


def warn_of_rounded_weights(args: "GRPOPlusConfig", model: Any) -> None:
    """Warn if TRL will round float32 weights that are trained."""
    option = rounds_weights(args)
    if option is None or args.process_index:
        return
    if any(weight.dtype == torch.float32 for weight in model.parameters() if weight.requires_grad):
        dtype = {"bf16": "bfloat16", "fp16": "float16"}[option]
        logger.warning(
            f"use_transformers_continuous_batching=True with {option}=True: TRL rounds the model's weights to {dtype} "
            "when it first generates, and they stay rounded. The optimizer then loses each update that is small "
            f"compared with its weight. Set {option}=False, or generate with vLLM, or without continuous batching."
        )


def check_model(
    args: "GRPOPlusConfig", *, environments: Any, images: bool, rollouts: Any, tools: Any, trl_version: str
) -> None:
    """Refuse options that do not work with environments, images, a `rollout_func` or tools, and undescribed tools.

    Args:
        args ([`GRPOPlusConfig`]): the configuration.
        environments, rollouts, tools: environments, `rollout_func` and tools of the trainer, false if there are none.
        images (`bool`): whether the model reads images.
        trl_version (`str`): version of TRL.
    """
    if args.filters_groups and images and Version(trl_version) < Version("1.11"):
        raise ConfigError(
            f"zero_variance_groups={args.zero_variance_groups!r} with images needs TRL 1.11 or later: TRL "
            f"{trl_version} splits the pixels of a batch at wrong places. Upgrade TRL, or set "
            "zero_variance_groups='keep'."
        )
    if args.step_reward_credit is not None and (tools or environments):
        raise ConfigError(
            f"step_reward_credit={args.step_reward_credit!r} does not work with tools or environment_factory. A step "
            "ends at an offset in one text, but a conversation with tools has several texts. Leave it out, and each "
            "attempt earns the sum of its steps; or use a rollout_func with an env_mask, which makes one text."
        )
    if args.belief_head and (environments or images or rollouts):
        raise ConfigError(
            f"belief_head={args.belief_head!r} reads each prompt as the trainer's tokenizer writes it. With images, "
            f"environment_factory or rollout_func, other prompts are sampled. {leave_out(args, 'belief_head')} "
            "belief_key works here, because it reads a column and no prompt."
        )
    if not rollouts:  # a rollout_func need not tell the model of its tools
        check_described(tools or ())


def check_parallelism(accelerator: "Accelerator") -> None:
    """Refuse sharding in which several processes must read the same rows: TRL gives each process its own completions.

    TRL refuses two of the three kinds, but only if the script sets them: not those of accelerate's configuration, nor
    that which `tp_plan` sets.

    Args:
        accelerator (`accelerate.Accelerator`): the trainer's.
    """
    config = getattr(accelerator, "parallelism_config", None)
    for size in ("tp_size", "cp_size", "sp_size"):
        if getattr(config, size, 1) > 1:
            raise ConfigError(
                f"{size}={getattr(config, size)}: several processes would share a row, but TRL's GRPO gives each "
                f"process its own completions. Remove {size} from accelerate's configuration (parallelism_config), "
                "and tp_plan from model_init_kwargs. To divide a model among GPUs, use FSDP or DeepSpeed's ZeRO 3."
            )
