"""Options and arguments that TRL or transformers had once, or other trainers have, with advice for who gives one."""

GONE_OPTIONS = {
    "warmup_ratio": "Use warmup_steps instead: a value below 1 is a share of all steps.",
    "evaluation_strategy": "Use eval_strategy instead.",
    "no_cuda": "Use use_cpu instead.",
    "use_liger_loss": "Use use_liger_kernel instead.",
    "max_prompt_length": "TRL no longer cuts prompts. Remove long prompts from the data.",
    "overwrite_output_dir": "Remove it: transformers no longer has it.",
    "group_by_length": "Remove it: TRL's sampler chooses the order of the prompts.",
    "include_tokens_per_second": "Remove it: transformers no longer has it. TRL logs num_tokens.",
    "save_safetensors": "Remove it: weights are always saved as safetensors.",
    "logging_dir": "Set the environment variable TENSORBOARD_LOGGING_DIR instead.",
    "vllm_max_model_len": "Use vllm_max_model_length instead.",
    "vllm_guided_decoding_regex": "Use vllm_structured_outputs_regex instead.",
    "vllm_device": "Use vllm_mode instead: 'colocate' or 'server'.",
    "wandb_log_unique_prompts": "Use log_unique_prompts instead.",
    "torch_dtype": "Use model_init_kwargs instead: {'dtype': ...}.",
    "vllm_dtype": "Remove it: TRL leaves this to vLLM. `trl vllm-serve` has --dtype.",
    "vllm_enable_prefix_caching": "Remove it: TRL leaves this to vLLM.",
    "kl_coef": "Use beta instead.",
    "kl_loss_coef": "Use beta instead.",
    "max_new_tokens": "Use max_completion_length instead.",
}
# Arguments of a trainer, likewise.
GONE_ARGUMENTS = {
    "tokenizer": "Use processing_class instead.",
    "reward_model": "Use reward_funcs instead.",
    "ref_model": "Remove it: TRL makes the reference itself, if beta is above 0.",
    "compute_metrics": "Remove it: TRL never calls it. Add a reward function with the weight 0, which is logged.",
    "data_collator": "Remove it: TRL gives the rows to the rewards as they are.",
    "formatting_func": "Remove it: make the column 'prompt' with dataset.map.",
}
