"""The rewards that ship."""

LIBRARY = {
    "choice_answer", "cosine_length", "countdown", "exact_answer", "gsm8k_answer", "instruction_checks", "json_schema",
    "math_answer", "overlong", "python_tests", "reasoning_gym", "regex_match", "repetition", "think_format",
}  # fmt: skip
