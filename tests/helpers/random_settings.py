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
    "beta": [0.1, 0.01],
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
REWARDS = [tiny_models.digits, tiny_models.half_dead, tiny_models.one_live_in_four, tiny_models.always_dead]


def of_trl(seed: int) -> tuple[Any, Options]:
    """Return a reward function, and options of TRL's alone."""
    chance = random.Random(seed)
    options: Options = {"seed": seed, "num_generations": chance.choice([4, 8]), "max_steps": 5}
    for table in (LOSS, SAMPLING, TRAINING):
        options |= _some(chance, table)
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
    sums_scaled = "multi_objective_aggregation" in options  # each reward is scaled by itself, and there is no total
    if chance.random() < 0.8:
        options["zero_variance_groups"] = chance.choice(["drop", "drop" if streams else "resample"])
        options |= _some(chance, {"filter_metric": ["any"], "filtered_verdicts": [["all_bad"], ["all_bad", "tied"]]})
    if options.get("zero_variance_groups") == "resample":
        options |= _some(chance, {"max_resample_rounds": [1, 2], "resample_fallback": ["keep"]})
    believes = False
    kind = chance.choice(["baseline", "estimator", "belief"])
    if kind == "baseline" or sums_scaled:
        options |= _some(chance, {**BASELINES, "scale_rewards": ["mad", "mean"]} if sums_scaled else BASELINES)
    elif kind == "estimator":
        options["advantage_estimator"] = chance.choice(ESTIMATORS)
        options.pop("scale_rewards", None)  # an estimator makes the advantages in place of baseline and scale
    else:
        believes = True
        options |= {"advantage_baseline": "belief", "scale_rewards": chance.choice(["prior", "batch", "running"])}
    if not streams and chance.random() < 0.7:
        options["prompt_selection"] = chance.choice(["belief", *SELECTIONS])
        believes = believes or options["prompt_selection"] == "belief"
    if believes:
        options |= chance.choice([{}, {"belief_key": "number"}, {"belief_head": "prompt", "belief_head_share": None}])
    if options.get("beta"):
        options |= _some(chance, {"kl_estimator": ["k1", "k2"], "kl_target": [0.1]})
        if chance.random() < 0.3 and not sums_scaled and kind != "estimator":
            options |= {
                "kl_placement": "reward",
                "kl_estimator": "k1",
                **_some(chance, {"kl_reward_form": ["reward_to_go"]}),
            }
    other_ratio = options.get("importance_sampling_level") == "sequence" or "off_policy_mask_threshold" in options
    if not other_ratio and options.get("loss_type", "dapo") in ("dapo", "grpo"):
        options |= _some(chance, {"importance_ratio": ["gspo_token"]})
    options |= _some(chance, {"advantage_clip": [1.0], "trace_max_groups": [1], "trace_compress": [True]})
    return reward, options


def _some(chance: random.Random, table: Mapping[str, Any]) -> Options:
    """Return values for about a quarter of the options."""
    return {name: chance.choice(list(values)) for name, values in table.items() if chance.random() < 0.25}
