"""Draw the settings of short runs at random: options of TRL's and of this package's that go together.

The same seed always draws the same settings.
"""

import random
from collections.abc import Mapping
from typing import Any

import tiny_models

from trl_grpo_plus.config.validation import TRL_CHOICES


Options = dict[str, Any]  # as `tiny_models.trained` takes them

LOSS = {
    "loss_type": TRL_CHOICES["loss_type"],
    "importance_sampling_level": ["sequence", "token"],
    "multi_objective_aggregation": ["normalize_then_sum"],
    "scale_rewards": ["batch", "none"],
    "num_iterations": [2, 3],
    "epsilon": [0.1, 0.01],
    "epsilon_high": [0.28, 5.0],
    "delta": [1.5, 5.0],
    "top_entropy_quantile": [0.2, 0.5],
    "entropy_coef": [0.01, 0.1],
    "use_adaptive_entropy": [True],
    "off_policy_mask_threshold": [0.1, 1.0],
    "use_bias_correction_kl": [False],
    "mask_truncated_completions": [True],
    "cast_lm_head_to_fp32": [True],
}
SAMPLING = {
    "temperature": [0.7, 1.3],
    "top_k": [3, 10],
    "top_p": [0.9],
    "min_p": [0.1],
    "repetition_penalty": [1.2],
    "max_completion_length": [1, 3, 9],
    "num_generations_eval": [2, 8],
    "shuffle_dataset": [False],
    "data_seed": [3],
    "pad_to_multiple_of": [8],
}
TRAINING = {
    "gradient_accumulation_steps": [2, 3, 4],
    "gradient_checkpointing": [True],
    "bf16": [True],
    "max_grad_norm": [0.0, 0.1],
    "optim": ["sgd", "adafactor"],
    "lr_scheduler_type": ["cosine", "constant"],
    "warmup_steps": [2],
    "weight_decay": [0.1],
    "neftune_noise_alpha": [5.0],
    "log_completions": [True],
    "dataloader_drop_last": [True],
    "average_tokens_across_devices": [False],
}
BASELINES = {
    "advantage_baseline": ["leave_one_out", "median", "length_weighted"],
    "scale_rewards": ["mad", "mean", "running"],
    "std_floor": [0.1],
}
ESTIMATORS: list[Any] = ["pairwise", {"name": "pkpo", "args": {"k": 2}}, "vector"]
SELECTIONS: list[Any] = [
    {"name": "by_column", "args": {"column": "number", "order": order}}
    for order in ("easy_first", "hard_first", "interleaved")
]
KL = {"kl_estimator": ["k1", "k2", "abs"], "kl_target": [0.1]}
IN_THE_REWARD: Options = {"kl_placement": "reward", "kl_estimator": "k1"}
FILTERS: Options = {"filter_metric": ["any"], "filtered_verdicts": [["all_bad"], ["all_bad", "tied"]]}
ROUNDS: Options = {"max_resample_rounds": [1, 2], "resample_fallback": ["keep"]}
OUTPUT: Options = {"advantage_clip": [1.0], "trace_max_groups": [1], "trace_compress": [True]}
PRIORS: list[Options] = [{}, {"belief_key": "number"}, {"belief_head": "prompt", "belief_head_share": None}]
REWARDS: list[Any] = [tiny_models.digits, tiny_models.half_dead, tiny_models.one_live_in_four, tiny_models.always_dead]
REWARDS += [[tiny_models.digits, tiny_models.half_dead]] * 2


def of_trl(seed: int) -> tuple[Any, Options]:
    """Return a reward function, and options of TRL's alone."""
    chance = random.Random(seed)
    options: Options = {"seed": seed, "num_generations": chance.choice([4, 8]), "max_steps": 5}
    for table in (LOSS, SAMPLING, TRAINING):
        options |= _some(chance, table)
    if chance.random() < 0.5:
        options["beta"] = chance.choice([0.1, 0.01])
    if chance.random() < 0.5:
        options["steps_per_generation"] = chance.choice([1, 2, 3, 4])
    if options.get("beta") and chance.random() < 0.3:
        options |= {
            "sync_ref_model": True,
            "ref_model_sync_steps": chance.choice([1, 2]),
            "ref_model_mixup_alpha": 0.5,
        }
    if chance.random() < 0.4:
        options |= {"eval_strategy": "steps", "eval_steps": chance.choice([1, 2]), "per_device_eval_batch_size": 8}
        options["extra"] = {"eval_dataset": tiny_models.prompts(5)}
    data = tiny_models.prompts(chance.choice([30, 60]))
    options["data"] = data.to_iterable_dataset() if chance.random() < 0.1 else data
    return chance.choice(REWARDS), options


def of_both(seed: int) -> tuple[Any, Options]:
    """Return a reward function, and options of TRL's and of this package's that are not refused."""
    chance = random.Random(-1 - seed)
    reward, options = of_trl(seed)
    streams = not hasattr(options["data"], "__len__")
    scales_each = "multi_objective_aggregation" in options  # each reward is scaled by itself, and there is no total
    kind = "baseline" if scales_each else chance.choice(["baseline", "estimator", "belief", "belief"])
    if chance.random() < 0.8:
        options |= {"zero_variance_groups": chance.choice(["drop", "skip", "drop" if streams else "resample"])}
        options |= _some(chance, FILTERS)
        total = "filter_metric" not in options and not scales_each
        if total and kind != "belief" and options["zero_variance_groups"] != "resample" and chance.random() < 0.3:
            options["reward_variance_top_p"] = chance.choice([0.5, 0.9])
            options.pop("filtered_verdicts", None)
    if options.get("zero_variance_groups") == "resample":
        options |= _some(chance, ROUNDS)
    if kind == "baseline":
        options |= _some(chance, BASELINES)
        if scales_each and options.get("scale_rewards") == "running":
            options["scale_rewards"] = "mad"
    elif kind == "estimator":
        options["advantage_estimator"] = chance.choice(ESTIMATORS)
        options.pop("scale_rewards", None)  # an estimator makes the advantages in place of baseline and scale
    else:
        options |= {"advantage_baseline": "belief", "scale_rewards": chance.choice(["prior", "batch", "running"])}
    if not streams and chance.random() < 0.7:
        options["prompt_selection"] = chance.choice(["belief", *SELECTIONS])
        if options["prompt_selection"] == "belief":
            options.pop("reward_variance_top_p", None)
    if kind == "belief" or options.get("prompt_selection") == "belief":
        options |= chance.choice(PRIORS)
    if options.get("beta"):
        options |= _some(chance, KL)
        if chance.random() < 0.5 and kind != "estimator" and not scales_each:
            options |= {**IN_THE_REWARD, "kl_reward_form": chance.choice(["sequence", "reward_to_go"])}
        if options.get("kl_estimator") == "abs":  # its mean is no divergence
            options.pop("kl_target", None)
    for_tokens = options.get("importance_sampling_level") != "sequence" and "off_policy_mask_threshold" not in options
    if not for_tokens:
        options.pop("kl_reward_form", None)
    elif options.get("loss_type", "dapo") in ("dapo", "grpo"):
        options |= _some(chance, {"importance_ratio": ["gspo_token"]})
    return reward, options | _some(chance, OUTPUT)


def _some(chance: random.Random, table: Mapping[str, Any]) -> Options:
    """Return values for about a quarter of the options."""
    return {name: chance.choice(list(values)) for name, values in table.items() if chance.random() < 0.25}
