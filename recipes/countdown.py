"""The countdown game: reach a target from three or four numbers, each used once. This module makes the problems.

The task is that of TinyZero (https://github.com/Jiayi-Pan/TinyZero) and Mini-R1, in which a model learns from the
reward alone to try, check and try again. Every problem here has a solution, because the problem is made from it.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from typing import Any, NamedTuple

from datasets import Dataset, DatasetDict

from trl_grpo_plus.utils.validation import ConfigError

from .dataset_helpers import messages


SYSTEM_PROMPT = (
    "Think about the problem first, inside <think> and </think>: try something, check it, and try something else "
    "where it fails. Then give your final expression, and nothing else, inside <answer> and </answer>."
)
LARGEST_NUMBER = 99
TARGETS = range(10, 101)


class Problem(NamedTuple):
    """A countdown problem: the numbers, the target, and an expression that reaches the target."""

    numbers: tuple[int, ...]
    target: int
    solution: str


MOST_DRAWS = 10_000  # maximum draws for one problem; with three numbers or more a few draws are enough


def prepare(
    script_args: Any,
    training_args: Any,
    model_args: Any,
    *,
    train_rows: int = 50_000,
    test_rows: int = 256,
    counts: Sequence[int] = (3, 4),
    seed: int = 0,
    system_prompt: str | None = SYSTEM_PROMPT,
    smoke: bool = False,
) -> DatasetDict:
    """Return the run's rows. The script's `prepare` option calls this function.

    Args:
        script_args, training_args, model_args: the dataclasses that the script's parser returns.
        train_rows (`int`, *optional*, defaults to 50000), test_rows (`int`, *optional*, defaults to 256): number of
            rows.
        counts (`list[int]`, *optional*, defaults to `[3, 4]`): how many numbers a problem has. All counts are equally
            frequent.
        seed (`int`, *optional*, defaults to 0): seed of the problems. The run's `seed` does not change them.
        system_prompt (`str`, *optional*): system message of each prompt. It must ask for `<answer>`.
        smoke (`bool`, *optional*, defaults to `False`): make at most 500 training rows.

    Returns:
        `DatasetDict`: `train` and `test`, with the columns `prompt` (messages), `numbers` (list[int]), `target` (int)
        and `solution` (text). No two rows have the same numbers and target.

    Raises:
        ConfigError: a count is not from 2 to 6, or there are too few problems.
    """
    if not counts or min(counts) < 2 or max(counts) > 6:
        raise ConfigError(f"counts={list(counts)!r} must be numbers from 2 to 6.")
    made = problems(seed, counts)
    test = list(islice(made, test_rows))
    train = list(islice(made, min(train_rows, 500) if smoke else train_rows))
    return DatasetDict(train=_rows(train, system_prompt), test=_rows(test, system_prompt))


def problems(seed: int, counts: Sequence[int] = (3, 4)) -> Iterator[Problem]:
    """Yield problems without end, the same for the same seed, and none twice.

    Raises:
        ConfigError: hardly any problems are left, which happens soon with two numbers.
    """
    draw = random.Random(seed)
    seen: set[tuple[int, ...]] = set()
    for count in cycle(counts):
        for _ in range(MOST_DRAWS):
            numbers = tuple(draw.randint(1, LARGEST_NUMBER) for _ in range(count))
            target, solution = _joined(draw, numbers)
            key = (*sorted(numbers), target)
            if target in TARGETS and key not in seen:
                break
        else:
            raise ConfigError(
                f"there are hardly more than {len(seen):,} problems of counts={list(counts)!r}. Lower train_rows or "
                "test_rows, or ask for more numbers."
            )
        seen.add(key)
        yield Problem(numbers, target, solution)


def _joined(draw: random.Random, numbers: Sequence[int]) -> tuple[int, str]:
    """Join the numbers by random operations; return the value and the expression."""
    parts = [(number, str(number)) for number in numbers]
    while len(parts) > 1:
        draw.shuffle(parts)
        (a, left), (b, right) = parts.pop(), parts.pop()
        if a < b:
            a, left, b, right = b, right, a, left
        signs = ["+", "*"] + ["-"] * (a > b) + ["/"] * (a % b == 0)
        sign = draw.choice(signs)
        value = {"+": a + b, "*": a * b, "-": a - b, "/": a // b}[sign]
        parts.append((value, f"({left} {sign} {right})"))
    return parts[0]


def _rows(made: Sequence[Problem], system_prompt: str | None) -> Dataset:
    return Dataset.from_dict(
        {
            "prompt": [messages(system_prompt, question(problem)) for problem in made],
            "numbers": [list(problem.numbers) for problem in made],
            "target": [problem.target for problem in made],
            "solution": [problem.solution for problem in made],
        }
    )


def question(problem: Problem) -> str:
    """Return the text of a problem."""
    numbers = ", ".join(map(str, problem.numbers))
    return (
        f"Use the numbers {numbers} to make {problem.target}. Each of them must be used exactly once, with +, -, *, / "
        "and parentheses as you like. For example, 8 is made of 3, 4 and 12 by <answer>12 / 3 + 4</answer>"
    )
