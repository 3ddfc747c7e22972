"""Redacts a run's options: run.json and the pages show only options that are known to be harmless.

A user who shares a page also shares the options on it. Other options are replaced by their number, or by a note that
something is hidden.

Options are shown by name, and nested values only under the keys of [`KEYS`]. A text that looks like a token, a
password or an address is never shown, whatever its name.
"""

import re
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any

from ..utils.validation import finite_or_none


NOT_SHOWN = "not shown"
# Words in the names of options that are secret, or that hold the place of a thing.
_WORDS = """token key secret password passwd auth credential credentials url uri host port address endpoint proxy dir
path checkpoint hub bucket space repo project user account webhook cookie headers pin passcode apikey"""
_PRIVATE = set(_WORDS.split())
_EXCEPT = {"belief_key", "dataloader_pin_memory"}  # the name of a column, and a flag
# Options whose texts may be shown. Other options show only numbers, flags and the keys of [`KEYS`].
_OF_TEXT = """
lr_scheduler_type optim optim_args optim_target_modules torch_compile_backend torch_compile_mode logging_strategy
include_num_input_tokens_seen log_level log_level_replica eval_strategy include_for_metrics save_strategy
metric_for_best_model dataloader_multiprocessing_context label_names train_sampling_strategy length_column_name
ddp_backend fsdp deepspeed debug cache_implementation vllm_mode vllm_model_impl vllm_structured_outputs_regex
importance_sampling_level multi_objective_aggregation scale_rewards loss_type vllm_importance_sampling_mode preset
zero_variance_groups filter_metric filtered_verdicts resample_fallback advantage_baseline advantage_estimator
halt_on_alarm importance_ratio step_reward_credit prompt_selection belief_key belief_id belief_head kl_estimator
kl_placement kl_reward_form nonfinite_step pad_to_multiple_of
"""
TEXTS = set(_OF_TEXT.split())
# Keys nested in options: of models, sampling, chat templates, schedules, liger, FSDP, DeepSpeed, PEFT, this package.
_NESTED = """
dtype torch_dtype attn_implementation experts_implementation use_cache trust_remote_code low_cpu_mem_usage device_map
revision variant quantization_config quant_method load_in_4bit load_in_8bit bnb_4bit_compute_dtype
bnb_4bit_quant_type bnb_4bit_use_double_quant bnb_4bit_quant_storage rope_scaling rope_type rope_theta factor
max_position_embeddings original_max_position_embeddings sliding_window use_kernels attention_dropout vocab_size
hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads

temperature top_p top_k min_p typical_p repetition_penalty presence_penalty frequency_penalty length_penalty
no_repeat_ngram_size max_tokens min_tokens max_new_tokens min_new_tokens do_sample num_beams n best_of seed stop
stop_token_ids ignore_eos skip_special_tokens spaces_between_special_tokens include_stop_str_in_output logprobs
renormalize_logits cache_implementation block_size num_blocks max_batch_tokens

enable_thinking thinking reasoning_effort add_generation_prompt continue_final_message

num_cycles min_lr min_lr_rate power lr_end decay_type warmup_type num_decay_steps num_stable_steps min_lr_ratio
timescale patience mode threshold cooldown use_reentrant preserve_rng_state determinism_check
rope swiglu cross_entropy fused_linear_cross_entropy rms_norm layer_norm

version min_num_params transformer_layer_cls_to_wrap backward_prefetch forward_prefetch limit_all_gathers
use_orig_params sync_module_states cpu_ram_efficient_loading activation_checkpointing reshard_after_forward
state_dict_type auto_wrap_policy cpu_offload
zero_optimization stage offload_optimizer offload_param device pin_memory overlap_comm contiguous_gradients
reduce_bucket_size stage3_prefetch_bucket_size stage3_param_persistence_threshold stage3_max_live_parameters
stage3_max_reuse_distance stage3_gather_16bit_weights_on_model_save sub_group_size allgather_partitions
allgather_bucket_size reduce_scatter round_robin_gradients bf16 fp16 torch_autocast enabled auto_cast loss_scale
loss_scale_window initial_scale_power hysteresis min_loss_scale gradient_accumulation_steps gradient_clipping
steps_per_print train_batch_size train_micro_batch_size_per_gpu wall_clock_breakdown optimizer scheduler type params
lr betas eps weight_decay warmup_min_lr warmup_max_lr warmup_num_steps total_num_steps check_grad_overflow

peft_type r lora_alpha lora_dropout target_modules target_parameters modules_to_save bias init_lora_weights
use_rslora use_dora layers_to_transform layers_pattern rank_pattern alpha_pattern exclude_modules

name args k scaled draws alpha column order weights credit think_tag correct
window min_batches entropy_floor kl_floor sampler_floor distinct_floor grad_norm_floor monitor_flat rewards_diverge
held_out_window held_out_correlation held_out_floor held_out_gap perfect_scores no_answer length_drift length_reward
near_duplicates repetition reward_failures dead_groups entropy_collapse reward_collapse tool_avoidance
tool_failures diversity_loss runaway sampler_drift
"""
KEYS = set(_NESTED.split())
_MOST = 200  # maximum characters of a shown text
_NAMES = {"model", "dataset", "evaluations"}  # these hold names that other people chose
_COMMIT = re.compile(r"[0-9a-f]{7,40}")  # a commit as a revision
_SECRET = re.compile(
    r"""
    \b(hf|api_org|gh[oprsu]|gsk|r8|npm|nvapi|wandb|tvly|lin_api|pat)[_-][a-z0-9]{10}
    | \bhf_[a-z0-9]*\d | \bsk_\d | \b[sprw]k[-_](live|test|proj|ant|or|svcacct|admin)?[-_]?[\w-]{10}
    | \b(github_pat_|glpat-|dckr_pat_|pypi-|xapp-|xox[a-z]-|shpat_|atatt|sg\.|ya29\.|aiza)[\w-]{6}
    | \ba[ks]ia[a-z0-9]{12}
    | \beyj[\w-]{10} | -----begin | \bssh-\w+\ aaaa | \b(bearer|basic)\s+\S
    | (token|secret|passw\w*|pwd|api[-_ ]?key|key|auth\w*|credentials?|cookie)["']?\s*[=:]\s*\S
    | \b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b
    | (?=[a-z]*\d)(?=\d*[a-z])[a-z0-9]{24}
    """,
    re.VERBOSE | re.IGNORECASE,
)
# Long mixes of lower case, upper case and digits look like base64. Names of models may have them, options do not.
_MIXED = re.compile(r"[\w+/=-]{24,}", re.ASCII)
_ADDRESS = re.compile(
    r"""
    [a-z][a-z0-9+.-]*:// | ^// | \\\\ | \S@\S | \bwww\. | \blocalhost\b | \b\d{1,3}(\.\d{1,3}){3}\b
    | ::1\b | \b([0-9a-f]{1,4}:){3} | \[[0-9a-f:]{3,}\] | \w:\d{2,5}\b
    | \b[\w-]+\.(com|net|org|io|ai|dev|cloud|app|co|internal|local|lan|corp|intra|home)\b
    """,
    re.VERBOSE | re.IGNORECASE,
)


def shown_options(values: Mapping[str, Any], allowed: Collection[str] | None = None) -> dict[str, Any]:
    """Return the options that may be shown, by name, and the number of those that may not.

    Options whose names say that they are secret or a place are left out, and are not counted.

    Args:
        values (`Mapping`): option -> value.
        allowed (`Collection[str]`, *optional*): names of the options that may be shown. Texts are shown only for those
            in [`TEXTS`]. `None`: the options were already selected when they were written.

    Example:
        >>> shown_options({"beta": 0.1, "hub_token": "a", "mine": 1, "generation_kwargs": {"seed": 1, "x": 1}})
        {'beta': 0.1, 'mine': 1, 'generation_kwargs': {'seed': 1, 'not shown': 1}}
        >>> shown_options({"beta": 0.1, "mine": 1}, allowed={"beta"})
        {'beta': 0.1, 'not shown': 1}
    """
    found: dict[str, Any] = {}
    hidden = 0
    for name, value in values.items():
        if name == NOT_SHOWN:
            hidden += int(finite_or_none(value) or 0)
        elif is_private(name):
            continue
        elif (allowed is not None and name not in allowed) or not _is_harmless(name):
            hidden += 1
        else:
            found[name] = _value(name, value, texts=allowed is None or name in TEXTS)
    return {**found, NOT_SHOWN: hidden} if hidden else found


def shown_about(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a run.json of any version as it may be shown."""
    others = {
        # Every line of the traces has the names of the rewards, and totals need their weights.
        key: value if key == "rewards" else _checked(value, long=key in _NAMES)
        for key, value in values.items()
        if key != "options" and not is_private(key) and _is_harmless(key)
    }
    return {**others, **({"options": shown_options(values["options"])} if "options" in values else {})}


def shown_name(name: str | None) -> str | None:
    """Return the name or path of a model or dataset as it may be shown."""
    return name if name is None or _is_harmless(name, long=True) else NOT_SHOWN


def hides(values: Any) -> bool:
    """Return whether any of the options is not shown."""
    if isinstance(values, Mapping):
        return NOT_SHOWN in values or any(map(hides, values.values()))
    return any(map(hides, values)) if isinstance(values, list) else values == NOT_SHOWN


def is_private(name: str) -> bool:
    """Return whether an option's name says that the option is secret or a place."""
    return name not in _EXCEPT and not _PRIVATE.isdisjoint(re.split(r"[\W_]+", name.lower()))


def _value(name: str, value: Any, texts: bool) -> Any:
    if isinstance(value, Enum):
        value = value.value
    if f"{type(value).__module__}.{type(value).__name__}" == "torch.dtype":  # importing torch takes a second
        return str(value).removeprefix("torch.")
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return _within(value, {key for key in value if name == "args" and _is_argument(key, value[key])})
    if isinstance(value, list | tuple):
        found = [_value(name, item, texts) for item in value]
        return NOT_SHOWN if NOT_SHOWN in found else found
    if not isinstance(value, str) or not texts:
        return NOT_SHOWN
    commit = name == "revision" and _COMMIT.fullmatch(value)
    return value if commit or _is_harmless(value) else NOT_SHOWN


def _within(values: Mapping[Any, Any], also: Collection[Any] = ()) -> dict[str, Any]:
    """Return the values nested under [`KEYS`] and the keys `also`, and the number of the others."""
    shown = {key for key in values if key in KEYS or key in also}
    found = {key: _value(key, value, texts=True) for key, value in values.items() if key in shown}
    hidden = int(finite_or_none(values.get(NOT_SHOWN)) or 0)
    hidden += sum(key not in shown and key != NOT_SHOWN and not is_private(str(key)) for key in values)
    return {**found, NOT_SHOWN: hidden} if hidden else found


def _is_argument(key: Any, value: Any) -> bool:
    """Return whether an argument of a user's own function is a number or a flag, under a harmless name."""
    named = isinstance(key, str) and key.isidentifier() and _is_harmless(key) and not is_private(key)
    return named and isinstance(value, bool | int | float)


def _checked(value: Any, long: bool) -> Any:
    """Return a value that is not an option, without the texts that must not be shown."""
    if isinstance(value, Mapping):
        return {key: _checked(item, long) for key, item in value.items() if _is_harmless(key, long)}
    if isinstance(value, list):
        return [_checked(item, long) for item in value]
    return value if not isinstance(value, str) or _is_harmless(value, long) else NOT_SHOWN


def _is_harmless(text: str, long: bool = False) -> bool:
    """Return whether a text looks like neither a secret nor an address.

    With `long`, the text may contain long mixes of letters and digits.
    """
    mixed = not long and any(
        any(map(str.islower, run)) and any(map(str.isupper, run)) and any(map(str.isdigit, run))
        for run in _MIXED.findall(text)
    )
    return len(text) <= _MOST and not mixed and not _SECRET.search(text) and not _ADDRESS.search(text)
