"""Verifiable rewards: one reward a file, each a plain TRL reward function.

To add one: a file here with a function of the reward's name under `@register_reward`, and a line in `LIBRARY`. Its
name works at once, without another install. Rewards of other packages come by entry points; see
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
