"""Verifiable rewards: one reward per file, each a plain TRL reward function.

To add a reward, write a file here with a function of the reward's name under `@register_reward`, and add a line to
`LIBRARY`. The name works at once, without another install. Rewards of other packages come through entry points; see
`trl_grpo_plus.registry`.
"""

# name -> module
LIBRARY = {
    "choice_answer": "choice_answer",
    "cosine_length": "cosine_length",
    "countdown": "countdown",
    "exact_answer": "exact_answer",
    "gsm8k_answer": "gsm8k_answer",
    "instruction_checks": "instruction_checks",
    "json_schema": "json_schema",
    "math_answer": "math_answer",
    "overlong": "overlong",
    "python_tests": "python_tests",
    "reasoning_gym": "reasoning_gym_answer",
    "regex_match": "regex_match",
    "repetition": "repetition",
    "steps_check": "steps_check",
    "think_format": "think_format",
}
