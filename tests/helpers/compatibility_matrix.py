"""The table of the features that TRL's documentation of GRPO names, against the modes of this package.

tests/trainer/test_compatibility_matrix.py tests each cell, and `make what-works` writes docs/what_works.md from the
table. To add a row, add a `Feature` to `FEATURES`. If a mode refuses the feature, add a line to `REFUSED`. If the
feature has nothing to act on in a mode, add a line to `IDLE`. A feature that a short run in this process cannot show
goes into `ELSEWHERE`, with the test that proves it in each mode.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import tiny_models
from compatibility_runs import (
    EVALUATION,
    Feature,
    Mode,
    add,
    add_later,
    are_messages,
    asynchronous,
    begin_with,
    believed,
    both,
    called,
    calling,
    card,
    card_is_there,
    changes,
    changes_nothing,
    completions_were_logged,
    conversations,
    evaluated,
    experts,
    extra_is_of_its_rows,
    filtered,
    generated_in_evaluation,
    half_precision,
    head_is_fp32,
    held_out,
    in_environments,
    is_checkpointing,
    is_rolled_out,
    kl_through,
    logs,
    micro_batches,
    new_adapter,
    of_some,
    only_the_adapter_moved,
    own_adapter,
    own_advantages,
    padded_to_16,
    pictures,
    pictures_are_of_their_rows,
    reference_moved,
    resampled,
    rewards,
    scored_by_a_loaded_model,
    scored_by_a_model,
    stream,
    that_logs,
    tools_were_called,
    traced,
    truncated_are_masked,
    was_a_stream,
    was_rolled_out,
)
from vision_models import SPECIAL


PAGE = Path(__file__).parents[2] / "docs" / "what_works.md"

# -- modes of this package

FILTER = {"filter_metric": "half_dead"}
EXACT = {"optim": "sgd", "learning_rate": 0.05, "max_grad_norm": 0.0}  # equal weights mean equal gradients
KL = {"beta": 0.1}
MODES = {
    "off": Mode("options off", {}, lambda run: None),
    "skip": Mode("`skip`", {"zero_variance_groups": "skip", **FILTER, **EXACT}, filtered),
    "drop": Mode("`drop`", {"zero_variance_groups": "drop", **FILTER}, filtered),
    "resample": Mode("`resample`", {"zero_variance_groups": "resample", **FILTER}, resampled),
    "belief": Mode(
        "`belief`: baseline and choice",
        {"advantage_baseline": "belief", "scale_rewards": "prior", "prompt_selection": "belief"},
        believed,
    ),
    "kl_in_reward": Mode(
        "KL in the reward",
        {**KL, "kl_estimator": "k1", "kl_placement": "reward", "max_steps": 3},
        kl_through("kl_to_go"),
    ),
    "kl_estimator": Mode("`kl_estimator`", {**KL, "kl_estimator": "k2"}, kl_through("penalty")),
    "advantage_estimator": Mode(
        "`advantage_estimator`", {"advantage_estimator": own_advantages}, called("advantages")
    ),
    "traces": Mode("traces", {"trace_every": 1, "alarms": True}, traced),
}


# -- the table


# Two steps on one generation batch, of two micro-batches each. In the second step the ratios of log-probs are not 1.
# The normalisers of the losses differ too.
LATER = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_iterations": 2}
UNCLIPPED = {**LATER, "epsilon": 0.99, "epsilon_high": 9.0}
FOUR_GROUPS = {"per_device_train_batch_size": 16}
GPU = "needs a GPU"
SLEEP = (
    "on vLLM's CPU build an engine that slept gets all weights again. Whether a sleeping engine frees its memory was "
    "not tested, because that needs a GPU"
)
LOSSES = ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo")


def loss(name: str) -> Feature:
    other = {"loss_type": "grpo" if name == "dapo" else "dapo"}
    return Feature(f'`loss_type="{name}"`', {"loss_type": name}, {**LATER, **other})


FEATURES: dict[str, dict[str, Feature]] = {
    "Loss": {
        **{f"loss_{name}": loss(name) for name in LOSSES},
        "sequence": Feature(
            '`importance_sampling_level="sequence"` (GSPO)', {"importance_sampling_level": "sequence"}, LATER
        ),
        "iterations": Feature("`num_iterations`", {"num_iterations": 2}),
        "steps_per_generation": Feature(
            "`steps_per_generation`", {"steps_per_generation": 2}, {"per_device_train_batch_size": 4}
        ),
        "micro_batches": Feature(
            "a group over several micro-batches",
            {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
            check=both(micro_batches(4), logs("groups/trained")),
        ),
        "epsilon": Feature("`epsilon`, `epsilon_high`", {"epsilon": 1e-3, "epsilon_high": 1e-3}, UNCLIPPED),
        "delta": Feature("`delta` (two-sided clip)", {"delta": 1.01}, UNCLIPPED),
        "truncated": Feature(
            "`mask_truncated_completions`", {"mask_truncated_completions": True}, check=truncated_are_masked
        ),
        "off_policy": Feature("`off_policy_mask_threshold`", {"off_policy_mask_threshold": 1e-3}, UNCLIPPED),
        "entropy_quantile": Feature("`top_entropy_quantile`", {"top_entropy_quantile": 0.5}),
        "entropy_bonus": Feature("`entropy_coef`", {"entropy_coef": 0.5}),
        "entropy_adaptive": Feature(
            "`use_adaptive_entropy`",
            {"use_adaptive_entropy": True, "entropy_target": 10.0},
            check=both(changes, logs("entropy_coef")),
        ),
        "scale_batch": Feature('`scale_rewards="batch"`', {"scale_rewards": "batch"}, FOUR_GROUPS),
        "scale_none": Feature('`scale_rewards="none"`', {"scale_rewards": "none"}, FOUR_GROUPS),
        "normalize_then_sum": Feature(
            '`multi_objective_aggregation="normalize_then_sum"`',
            {"multi_objective_aggregation": "normalize_then_sum"},
            make=rewards(that_logs),
        ),
    },
    "Reference": {
        "beta": Feature("`beta`", {"beta": 0.3}, check=both(changes, logs("kl"))),
        "bias_correction": Feature(
            "`use_bias_correction_kl=False`", {"use_bias_correction_kl": False}, {**LATER, **KL}
        ),
        "sync_ref_model": Feature(
            "`sync_ref_model`",
            {"sync_ref_model": True, "ref_model_sync_steps": 1},
            KL,
            check=both(changes, reference_moved),
        ),
    },
    "Rewards": {
        "reward_model": Feature(
            "a reward model by name", make=scored_by_a_model, check=both(changes, logs("rewards/scorer/mean"))
        ),
        "reward_model_loaded": Feature(
            "a loaded one, `reward_processing_classes`",
            make=scored_by_a_loaded_model,
            check=both(changes, logs("rewards/scorer/mean")),
        ),
        "async_reward": Feature(
            "async rewards", make=rewards(asynchronous), check=both(changes, logs("rewards/asynchronous/mean"))
        ),
        "none_rewards": Feature(
            "`None` rewards",
            beside=FOUR_GROUPS,
            make=rewards(of_some),
            check=both(changes, logs("rewards/of_some/mean")),
        ),
        "weights": Feature("`reward_weights`", {"reward_weights": [0.3, 0.7]}, make=rewards(that_logs)),
        "log_extra": Feature(
            "`trainer_state`, `log_extra`, `log_metric`",
            make=rewards(that_logs),
            check=both(changes, logs("rewards/that_logs/mean", "steps"), extra_is_of_its_rows),
        ),
    },
    "Data and evaluation": {
        "conversational": Feature("conversational prompts", make=conversations, check=are_messages),
        "chat_template_kwargs": Feature(
            "`chat_template_kwargs`",
            {"chat_template_kwargs": {"brief": True}},
            make=conversations,
            check=begin_with("bb"),
        ),
        "stream": Feature("a streamed dataset", make=stream, check=was_a_stream),
        "shuffle": Feature("`shuffle_dataset`", {"shuffle_dataset": True}, FOUR_GROUPS),
        "workers": Feature("`dataloader_num_workers`", {"dataloader_num_workers": 1}, check=changes_nothing),
        "evaluation": Feature(
            "evaluation", EVALUATION, make=held_out(lambda: tiny_models.prompts(4)), check=evaluated()
        ),
        "eval_sets": Feature(
            "several sets to evaluate on",
            EVALUATION,
            make=held_out(lambda: {"near": tiny_models.prompts(4), "far": tiny_models.prompts(2)}),
            check=both(evaluated(sets=2), logs("eval_near_loss", "eval_far_loss")),
        ),
        "eval_on_start": Feature(
            "`eval_on_start`",
            {**EVALUATION, "eval_on_start": True},
            make=held_out(lambda: tiny_models.prompts(4)),
            check=evaluated(before=1),
        ),
        "num_generations_eval": Feature(
            "`num_generations_eval`",
            {**EVALUATION, "num_generations_eval": 2},
            make=held_out(lambda: tiny_models.prompts(4)),
            check=both(evaluated(), generated_in_evaluation(2)),
        ),
    },
    "Sampling": {
        "sampling": Feature(
            "`temperature`, `top_p`, `top_k`, `min_p`, `repetition_penalty`",
            {"temperature": 0.9, "top_p": 0.9, "top_k": 10, "min_p": 0.01, "repetition_penalty": 1.1},
        ),
        "generation_kwargs": Feature(
            "`generation_kwargs`", {"generation_kwargs": {"num_beams": 2, "length_penalty": -0.1}}
        ),
        "cache": Feature("`cache_implementation`", {"cache_implementation": "static"}, check=changes_nothing),
        "continuous_batching": Feature(
            "`use_transformers_continuous_batching`",
            {
                "use_transformers_continuous_batching": True,
                "transformers_continuous_batching_config": {"num_blocks": 64, "max_batch_tokens": 64},
            },
            check=called("generate_batch"),
        ),
        "padding": Feature("`pad_to_multiple_of`", {"pad_to_multiple_of": 16}, check=padded_to_16),
        "rollout_func": Feature(
            "`rollout_func`, with `env_mask` and more columns", make=is_rolled_out, check=was_rolled_out
        ),
        "tools": Feature("`tools`", {"max_completion_length": 48}, make=calling(add), check=tools_were_called),
        "async_tools": Feature(
            "async `tools`", {"max_completion_length": 48}, make=calling(add_later), check=tools_were_called
        ),
        "environments": Feature(
            "`environment_factory`, with `get_reward`",
            {"max_completion_length": 48},
            make=in_environments,
            check=both(tools_were_called, logs("rewards/Asker/mean")),
        ),
        "images": Feature(
            "images",
            {"generation_kwargs": {"suppress_tokens": list(range(2, len(SPECIAL)))}},
            make=pictures,
            check=pictures_are_of_their_rows,
        ),
    },
    "Model": {
        "peft": Feature("`peft_config`", make=new_adapter, check=only_the_adapter_moved),
        "peft_beta": Feature(
            "`peft_config` with `beta`",
            {"beta": 0.1},
            make=new_adapter,
            check=both(only_the_adapter_moved, logs("kl")),
        ),
        "peft_model": Feature("a `PeftModel`", make=own_adapter, check=only_the_adapter_moved),
        "peft_model_beta": Feature(
            "a `PeftModel` with `beta`",
            {"beta": 0.1},
            make=own_adapter,
            check=both(only_the_adapter_moved, logs("kl")),
        ),
        "moe": Feature(
            "Mixture of Experts, `router_aux_loss_coef`",
            {"router_aux_loss_coef": 0.5},
            {"router_aux_loss_coef": 0.0},
            make=experts,
            check=both(changes, logs("aux_loss")),
        ),
        "checkpointing": Feature(
            "`gradient_checkpointing`", {"gradient_checkpointing": True}, check=both(changes_nothing, is_checkpointing)
        ),
        "head": Feature(
            "`cast_lm_head_to_fp32`", {"cast_lm_head_to_fp32": True}, make=half_precision, check=head_is_fp32
        ),
    },
    "Logs": {
        "log_completions": Feature(
            "`log_completions`, `num_completions_to_print`, `log_unique_prompts`",
            {"log_completions": True, "num_completions_to_print": 1, "log_unique_prompts": True},
            check=completions_were_logged,
        ),
        "card": Feature("the model card", make=card, check=card_is_there),
    },
}
ALL = {key: feature for rows in FEATURES.values() for key, feature in rows.items()}


@dataclass(frozen=True)
class Elsewhere:
    """A row that other tests prove: mode -> `file::test` in tests/, and why it was not run in the other modes."""

    name: str
    proofs: Mapping[str, str] = field(default_factory=dict)
    others: str = "no test in these modes yet"


COLOCATE, SERVER = "with_vllm/test_vllm_colocate.py", "with_vllm/test_vllm_server.py"
RANKS, SHARDED = "process/test_distributed.py", "process/test_accelerate_configs.py"
ELSEWHERE = {
    "vLLM": [
        Elsewhere(
            '`vllm_mode="colocate"`',
            {
                "off": f"{COLOCATE}::test_each_batch_is_whole",
                "skip": f"{COLOCATE}::test_each_batch_is_whole",
                "drop": f"{COLOCATE}::test_each_batch_is_whole",
                "resample": f"{COLOCATE}::test_each_batch_is_whole",
                "belief": f"{COLOCATE}::test_beliefs_and_the_choice_by_them",
                "kl_in_reward": f"{COLOCATE}::test_kl_in_the_reward",
                "kl_estimator": f"{COLOCATE}::test_kl_in_the_loss",
                "traces": f"{COLOCATE}::test_traces_hold_every_attempt",
            },
        ),
        Elsewhere(
            '`vllm_mode="server"`',
            dict.fromkeys(("skip", "drop", "resample"), f"{SERVER}::test_each_batch_is_whole"),
        ),
        Elsewhere(
            "vLLM on two processes: an engine each, one engine, a server",
            {
                "drop": "with_vllm/test_vllm_ranks.py::test_drop",
                "resample": "with_vllm/test_vllm_ranks.py::test_resample",
            },
        ),
        Elsewhere(
            "`vllm_importance_sampling_correction`",
            dict.fromkeys(
                ("off", "skip", "drop", "resample"),
                f"{COLOCATE}::test_sampling_metrics_are_of_the_batch_that_is_trained_on",
            )
            | {"kl_in_reward": f"{COLOCATE}::test_kl_in_the_reward"},
        ),
        Elsewhere("vLLM with LoRA", {"resample": f"{COLOCATE}::test_lora"}),
        Elsewhere("vLLM with tools", {"resample": f"{COLOCATE}::test_a_policy_that_calls_a_tool"}),
        Elsewhere(
            "tools on two processes: one engine, a server", {"drop": "with_vllm/test_vllm_ranks.py::test_tools"}
        ),
        Elsewhere("vLLM with environments", dict.fromkeys(("drop", "resample"), f"{COLOCATE}::test_environments")),
        Elsewhere("vLLM with a `rollout_func`", {"resample": f"{COLOCATE}::test_rollout_func"}),
        Elsewhere("vLLM with evaluation", {"resample": f"{COLOCATE}::test_evaluation"}),
        Elsewhere("`vllm_enable_sleep_mode`", {"resample": f"{COLOCATE}::test_sleep"}, SLEEP),
        Elsewhere(
            "`vllm_structured_outputs_regex`",
            dict.fromkeys(("drop", "resample"), f"{COLOCATE}::test_a_regex_that_completions_match"),
        ),
    ],
    "At scale": [
        Elsewhere(
            "several processes (DDP)",
            {
                "off": f"{RANKS}::test_defaults_are_trl",
                "skip": f"{RANKS}::test_skipping_is_trls_training_on_all_groups",
                "drop": f"{RANKS}::test_dropping_is_training_on_the_live_groups_alone",
                "resample": f"{RANKS}::test_resampling_is_collective",
                "belief": f"{RANKS}::test_ranks_agree",
                "kl_in_reward": f"{RANKS}::test_ranks_agree",
                "advantage_estimator": f"{RANKS}::test_ranks_agree",
                "traces": f"{RANKS}::test_traces_are_those_of_one_process",
            },
        ),
        Elsewhere(
            "FSDP, DeepSpeed ZeRO 1 to 3",
            {
                "drop": f"{SHARDED}::test_a_configuration_trains_what_ddp_trains",
                "resample": f"{SHARDED}::test_a_configuration_trains_what_ddp_trains",
                "belief": f"{SHARDED}::test_the_head_reads_a_sharded_models_states",
                "kl_in_reward": f"{SHARDED}::test_a_configuration_trains_what_ddp_trains",
                "traces": f"{SHARDED}::test_traces_are_those_of_ddp",
            },
        ),
        Elsewhere(
            "tools under FSDP and ZeRO 3, called on one process only",
            {"drop": f"{SHARDED}::test_ranks_with_and_without_turns_of_tools_generate_together"},
        ),
        Elsewhere("`use_liger_kernel`", others=GPU),
        Elsewhere("`quantization_config` (QLoRA)", dict.fromkeys(MODES, "trainer/test_quantized.py::test_each_mode")),
    ],
}

NO_SCALE = "which computes the advantages without a baseline or a scale"
EACH_REWARD = "which gets all rewards and their weights, and combines them itself"
NO_TOTAL = "normalises each reward function by itself, and has no total reward to subtract the KL from"
NO_INDEX = "needs a map-style dataset to draw other prompts from"
# (feature, mode) -> a part of the error message.
REFUSED: dict[tuple[str, str], str] = {
    ("scale_batch", "advantage_estimator"): NO_SCALE,
    ("scale_none", "advantage_estimator"): NO_SCALE,
    ("normalize_then_sum", "advantage_estimator"): EACH_REWARD,
    ("normalize_then_sum", "kl_in_reward"): NO_TOTAL,
    ("stream", "resample"): NO_INDEX,
}
# A part of an error message -> the reason that the page gives, in whole sentences.
REASONS = {
    NO_SCALE: "An `advantage_estimator` replaces the baseline and the scale. So `scale_rewards` would have no effect.",
    EACH_REWARD: "An `advantage_estimator` gets each reward and the weights. It does not use `normalize_then_sum`.",
    NO_TOTAL: "`normalize_then_sum` makes no total reward from which the KL could be subtracted.",
    NO_INDEX: "`resample` draws rows by index. A stream has no index.",
}
# (feature, mode) -> why the trained model is the same without the feature.
IDLE: dict[tuple[str, str], str] = {
    ("bias_correction", "kl_in_reward"): "With the KL in the reward the loss has no KL term.",
    ("shuffle", "belief"): "The choice draws its pools from shuffled rows, whatever `shuffle_dataset` is.",
}
# Features with which dead groups have a part in TRL's gradient (docs/groups.md), so that `skip` has another one. With
# more rewards than `half_dead`, groups that are dead by it have advantages in TRL.
DEAD_GROUPS_TEACH = {"beta", "sync_ref_model", "peft_beta", "peft_model_beta", "bias_correction"}
DEAD_GROUPS_TEACH |= {"entropy_bonus", "entropy_adaptive", "moe", "entropy_quantile", "loss_bnpo"}
DEAD_GROUPS_TEACH |= {"reward_model", "reward_model_loaded", "async_reward", "weights", "log_extra"}
DEAD_GROUPS_TEACH |= {"normalize_then_sum", "environments"}


# -- the page

HEAD = """# What works with what

Rows: the features that TRL's documentation of GRPO names. Columns: the modes of this package. `make what-works` writes
this page from `tests/helpers/compatibility_matrix.py`, the table that the tests run.

| cell | meaning |
| --- | --- |
| **yes** | a test trained a tiny model for two or three steps with both, on a CPU and in one process |
| **yes\\*** | shown by [other tests](#other-tests) |
| refused, no effect | the number leads to [the reason](#why-not) |
| – | [not run](#not-run) |

Each test asserts that the weights moved, that the losses were finite, and that both the feature and the mode had their
effect. For a feature that is about speed or memory it asserts that the trained weights are the same as without it.

In one process, the test of `skip` asserts that the weights are the same as with all groups, except where [dead
groups have a part in TRL's gradient](groups.md#skip-drop-and-trls-gradient): there they must differ. With
`steps_per_generation` chance deals rows to steps, so nothing is compared.

With the options off, a run with each feature was also resumed from a checkpoint. Its weights and losses equal those of
a run that never stopped. Tools and environments were left out: their policy in the tests is a function with a random
state that no checkpoint holds. `make test` resumes one feature in nine, `make test-full` the others.
"""


def page() -> str:
    """Return the text of docs/what_works.md."""
    why = list(dict.fromkeys([*REFUSED.values(), *IDLE.values()]))

    def cell(key: str, mode: str) -> str:
        if reason := REFUSED.get((key, mode)):
            return f"refused ({why.index(reason) + 1})"
        if reason := IDLE.get((key, mode)):
            return f"no effect ({why.index(reason) + 1})"
        return "yes"

    parts = [HEAD]
    for title, rows in FEATURES.items():
        parts += [f"## {title}\n", table((f.name, [cell(key, mode) for mode in MODES]) for key, f in rows.items())]
    for title, others in ELSEWHERE.items():
        cells = ((row.name, [r"yes\*" if mode in row.proofs else "–" for mode in MODES]) for row in others)
        parts += [f"## {title}\n", table(cells)]
    numbered = [f"{number}. {REASONS.get(reason, reason)}" for number, reason in enumerate(why, 1)]
    parts += ["## Why not\n", "\n".join(numbered) + "\n"]
    rows = [row for others in ELSEWHERE.values() for row in others]
    files = {proof.partition("::")[0]: None for row in rows for proof in row.proofs.values()}
    shown = {f"tests/{file}": [row.name for row in rows if file in " ".join(row.proofs.values())] for file in files}
    parts += [
        "## Other tests\n",
        "`make test-vllm` runs those with vLLM, on its CPU build; `make test-quantized` those with bitsandbytes.\n",
        bullets(shown),
    ]
    left = [row for row in rows if MODES.keys() - row.proofs.keys()]
    reasons = {row.others: [other.name for other in left if other.others == row.others] for row in left}
    parts += ["## Not run\n", bullets(reasons)]
    return "\n".join(parts)


def bullets(lists: Mapping[str, list[str]]) -> str:
    return "".join(f"- {name}: {'; '.join(items)}\n" for name, items in lists.items())


def table(rows: Iterable[tuple[str, list[str]]]) -> str:
    heads = ["", *(mode.head for mode in MODES.values())]
    lines = [heads, ["---"] * len(heads), *([name, *cells] for name, cells in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page())
