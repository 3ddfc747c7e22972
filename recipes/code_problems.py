"""Competitive programming in Python, with tests: scripts that read stdin and print.

The raw format is that of open-r1/verifiable-coding-problems-python (from PrimeIntellect; 35,735 rows, only `train`):

    problem_statement       str  "Read n, then n numbers, and print their sum. ..."
    gold_standard_solution  str  a program that passes; may be missing
    verification_info       {"language": "python", "test_cases": [{"fn_name": str | None, "input": str, "output": str,
                                                                   "type": "stdin_stdout"}]}

A few test cases have another `type`, for functions. Other columns (`source`, `task_type`, `problem_id`,
`in_source_id`, `metadata`) are not read.
"""

from functools import partial
from typing import Any, NamedTuple

from datasets import DatasetDict

from trl_grpo_plus.registry import find
from trl_grpo_plus.utils.validation import ConfigError

from .dataset_helpers import Raw, Row, make_splits, messages


SYSTEM_PROMPT = (
    "Think about the problem step by step. Then write the whole program, which reads from standard input and prints "
    "to standard output, in one block that starts with ```python. It has Python's standard library and nothing else."
)


def prepare(
    script_args: Any,
    training_args: Any,
    model_args: Any,
    *,
    system_prompt: str | None = SYSTEM_PROMPT,
    test_rows: int | None = 256,
    min_tests: int = 5,
    max_tests: int = 16,
    max_test_chars: int = 5000,
    max_chars: int = 6000,
) -> DatasetDict:
    """Return the run's rows. The script's `prepare` option calls this function.

    Args:
        script_args, training_args, model_args: the dataclasses that the script's parser returns.
        system_prompt (`str`, *optional*): system message of each prompt; `null` keeps the model's default.
        test_rows (`int`, *optional*, defaults to 256): rows of `train` to hold out, at most a quarter.
        min_tests (`int`, *optional*, defaults to 5): minimum number of tests of a problem. Problems with fewer tests
            are left out, because a guess may pass a few tests.
        max_tests (`int`, *optional*, defaults to 16): maximum number of tests of a problem. The tests with the longest
            input are kept. Most statements show the short ones, whose answers a program could simply print.
        max_test_chars (`int`, *optional*, defaults to 5000): maximum length of a test's input and output together.
            Longer tests are not used, because the tests are traced with each attempt.
        max_chars (`int`, *optional*, defaults to 6000): maximum length of a statement. Problems with longer statements
            are left out.

    Returns:
        `DatasetDict`: `train` and `test`, with the columns `prompt` (messages), `tests`
        (`[{"stdin": text, "stdout": text}]`) and `solution`, as `python_tests` reads them.

    Raises:
        ConfigError: a column is missing, or no row can be used.
    """
    if not 1 <= min_tests <= max_tests:
        raise ConfigError(f"min_tests={min_tests} must be at least 1 and at most max_tests={max_tests}.")
    limits = Limits(min_tests, max_tests, max_test_chars, max_chars)
    make = partial(make_row, system_prompt=system_prompt, limits=limits)
    return make_splits(script_args, make, ["problem_statement", "verification_info"], test_rows)


class Limits(NamedTuple):
    """The limits on a problem's tests and statement, see [`prepare`]."""

    min_tests: int
    max_tests: int
    max_test_chars: int
    max_chars: int


def make_row(raw: Raw, system_prompt: str | None, limits: Limits) -> Row:
    """Convert a raw row into a run's row.

    Raises:
        ValueError: the row has no statement or a too long one, too few short tests, tests of functions, or tests that
            the reward refuses.
    """
    statement, info = (raw["problem_statement"] or "").strip(), raw["verification_info"] or {}
    if not statement or len(statement) > limits.max_chars:
        raise ValueError(f"without a statement of at most {limits.max_chars} characters")
    cases = info.get("test_cases") or []
    if info.get("language") != "python" or any(case["type"] != "stdin_stdout" for case in cases):
        raise ValueError("whose tests are not for a Python script")
    tests = [{"stdin": case["input"] or "", "stdout": case["output"] or ""} for case in cases]
    short = [test for test in tests if len(test["stdin"]) + len(test["stdout"]) <= limits.max_test_chars]
    if len(short) < limits.min_tests:
        raise ValueError(f"with fewer than {limits.min_tests} tests that are short enough")
    chosen = sorted(short, key=lambda test: len(test["stdin"]), reverse=True)[: limits.max_tests]
    _refuse_what_the_reward_refuses(chosen)
    solution = raw.get("gold_standard_solution")
    return {"prompt": messages(system_prompt, statement), "tests": chosen, "solution": solution}


def _refuse_what_the_reward_refuses(tests: list[dict[str, str]]) -> None:
    check = find("python_tests").check_columns
    assert check is not None
    try:
        check(tests=[tests])
    except ValueError:
        raise ValueError("with tests that python_tests refuses") from None
