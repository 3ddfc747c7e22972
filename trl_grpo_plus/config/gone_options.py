"""Options that the configuration of TRL or transformers had once, with advice for scripts and recipes that set one."""

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
}
