"""Reward for the Countdown game: reach a target with each given number once."""

import ast
import functools
import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations
from typing import Any

from trl_grpo_plus.registry import Example, register_reward
from trl_grpo_plus.utils.validation import Number

from ._rows import refuse_rows
from ._text import SIGNS, after_opened, answer_of, text_of


MAX_LENGTH = 1000  # characters of an answer; this also limits the nesting and the size of the numbers
GOLD_NUMBERS = 6

_ALLOWED = re.compile(r"[0-9+\-*/() \t]+")
_OPERATIONS: dict[type[ast.operator], Any] = {
    ast.Add: Fraction.__add__,
    ast.Sub: Fraction.__sub__,
    ast.Mult: Fraction.__mul__,
    ast.Div: Fraction.__truediv__,
}


def _check_args(format_reward: float, **_: Any) -> None:
    Number(at_least=0, below=1, note=". Try 0.1").check("countdown: format_reward", format_reward)


def _check_columns(numbers: list[Any], target: list[Any], **_: Any) -> None:
    hint = "Correct or filter these rows, or name the right columns: args: {columns: {numbers: nums}}."
    refuse_rows("countdown", _problem, numbers, target, hint=hint)


def _gold(numbers: list[int], target: int, think_opened: bool = False, **_: Any) -> str | None:
    expression = solve(numbers, target)
    return None if expression is None else after_opened(f"<answer>{expression}</answer>", think_opened)


TASK = {"numbers": [2, 5, 7], "target": 25}


@register_reward(
    "countdown",
    examples=[
        Example("<answer>(7 - 2) * 5</answer>", TASK, 1.0),
        Example("<think>7 - 2 is 5</think><answer>(7 - 2) × 5 = 25</answer>", TASK, 1.0),
        Example("<answer>(7 - 2) * 5 = 26</answer>", TASK, 0.0),
        Example("<answer>5 * 5</answer>", TASK, 0.0),
        Example("<answer>7 * 5 - 2</answer>", TASK, 0.1, {"format_reward": 0.1}),
        Example("I do not know.", TASK, 0.0),
    ],
    check_args=_check_args,
    check_columns=_check_columns,
    gold=_gold,
)
def countdown(
    completions: list[Any],
    numbers: list[list[int]],
    target: list[int],
    *,
    format_reward: float = 0.0,
    think_opened: bool = False,
) -> list[float | None]:
    """1.0 for a completion whose last `<answer>...</answer>` reaches the target with each number used once, else 0.0.

    This is the task of TinyZero (https://github.com/Jiayi-Pan/TinyZero, dataset Jiayi-Pan/Countdown-Tasks-3to4, whose
    column of numbers is called `nums`) and of Mini-R1. Their rewards evaluate the text with Python's `eval` and a
    tolerance. Here a grammar reads whole numbers, `+ - * /`, parentheses and a minus before a number or a parenthesis,
    and the value is an exact fraction.

    `× · ⋅ ∗` count as `*`, `÷` as `/`, a minus sign or en dash as `-`. A tail `= 25` that repeats the target is
    allowed, also on a line of its own, since Mini-R1's prompt shows such a tail. Any other equation is refused. So are
    powers, `//`, decimals, `1_0`, hexadecimal, comments, names, LaTeX, a plus before a number, other digits than 0-9,
    and more than 1,000 characters.

    A minus before a number reaches no positive target that the given (positive) numbers do not reach without it.

    Args:
        completions (`list`): N completions, each a text or a list of messages, of which the policy's last one counts.
        numbers (`list[list[int]]`): for each completion, the numbers to use, none negative.
        target (`list[int]`): for each completion, the value to reach.
        format_reward (`float`, *optional*, defaults to `0.0`):
            Reward of an expression that uses each number once and misses the target. TinyZero pays 0.1 for anything
            in the tags, which a model can earn with a constant answer.
        think_opened (`bool`, *optional*, defaults to `False`):
            Whether the prompt ends with `<think>`. A completion without `</think>` is then all thinking, and scores 0.

    Returns:
        `list[float | None]`: N rewards, 0.0, `format_reward` or 1.0.

    Raises:
        ValueError: the numbers or the target are no whole numbers.

    Example:
        >>> texts = ["<answer>(7 - 2) * 5</answer>", "<answer>5 * 7 - 2 = 33</answer>", "<answer>5 * 5</answer>"]
        >>> countdown(texts, numbers=[[2, 5, 7]] * 3, target=[25] * 3)
        [1.0, 0.0, 0.0]
    """
    rewards: list[float | None] = []
    for completion, operands, goal in zip(completions, numbers, target, strict=True):
        if problem := _problem(operands, goal):
            raise ValueError(f"countdown: {problem}. Correct or filter this row.")
        rewards.append(_score(text_of(completion), operands, goal, format_reward, think_opened))
    return rewards


def _score(text: str, numbers: list[int], target: int, format_reward: float, think_opened: bool) -> float:
    tree = _parsed(answer_of(text, think_opened) or "", target)
    if tree is None or sorted(_numbers_in(tree)) != sorted(numbers):
        return 0.0
    try:
        return 1.0 if _value(tree) == target else format_reward
    except ZeroDivisionError:
        return format_reward


def _problem(numbers: Any, target: Any) -> str | None:
    """Return what is wrong with a row's columns; `None` if nothing is."""
    if not isinstance(numbers, list | tuple) or not numbers:
        return f"numbers={numbers!r} must be a list with a whole number at least"
    if any(type(number) is not int or number < 0 for number in numbers):
        return f"numbers={numbers!r} must be whole numbers, none negative"
    if len("+".join(map(str, numbers))) > MAX_LENGTH // 2:
        return f"numbers={numbers!r} are too many: an answer has {MAX_LENGTH} characters at most"
    return None if type(target) is int else f"target={target!r} must be a whole number"


# -- reading an answer


def _parsed(body: str, target: int) -> ast.expr | None:
    """Return the expression in an answer; `None` if the answer breaks the grammar."""
    if len(body) > MAX_LENGTH:
        return None
    expression, equals, tail = body.translate(SIGNS).strip().partition("=")
    expression = expression.strip()
    if (equals and tail.strip() != str(target)) or not _ALLOWED.fullmatch(expression):
        return None
    try:
        tree = ast.parse(expression, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return tree if _is_arithmetic(tree) else None


def _is_arithmetic(tree: ast.expr) -> bool:
    # `ast.walk` does not recurse, so that no nesting is too deep.
    return all(
        isinstance(node, ast.operator | ast.unaryop)
        or (isinstance(node, ast.Constant) and type(node.value) is int)
        or (isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS)
        or (isinstance(node, ast.UnaryOp) and type(node.op) is ast.USub and not isinstance(node.operand, ast.UnaryOp))
        for node in ast.walk(tree)
    )


def _numbers_in(tree: ast.expr) -> list[int]:
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, int)]


def _value(node: ast.expr) -> Fraction:
    """Return the value of an expression; raise `ZeroDivisionError` if it divides by zero."""
    if isinstance(node, ast.BinOp):
        value: Fraction = _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
        return value
    if isinstance(node, ast.UnaryOp):
        return -_value(node.operand)
    return Fraction(*_numbers_in(node))


# -- solving a task


def solve(numbers: list[int], target: int) -> str | None:
    """Return an expression that uses each number once and reaches the target.

    The result is `None` if there is no such expression, or for more than 6 numbers, where a search takes long.
    """
    if len(numbers) > GOLD_NUMBERS:
        return None
    return _reaching(tuple(sorted(numbers)), Fraction(target))


@functools.lru_cache(maxsize=100_000)
def _reaching(numbers: tuple[int, ...], target: Fraction) -> str | None:
    if len(numbers) <= 3:
        return _values(numbers).get(target)
    # Every expression joins a value of some numbers (`few`) to a value of the others. Given the target and the first
    # value, the second one is determined.
    for few, others in _splits(numbers):
        for value, text in _values(few).items():
            for counterpart, form in _counterparts(value, target):
                if rest := _reaching(others, counterpart):
                    return form.format(text, rest)
    return None


@functools.lru_cache(maxsize=10_000)
def _values(numbers: tuple[int, ...]) -> dict[Fraction, str]:
    """Return all values that the numbers can reach, with an expression for each."""
    if len(numbers) == 1:
        return {Fraction(numbers[0]): str(numbers[0])}
    reached: dict[Fraction, str] = {}
    for few, others in _splits(numbers):
        for a, left in _values(few).items():
            for b, right in _values(others).items():
                reached |= {a + b: f"({left} + {right})", a - b: f"({left} - {right})", b - a: f"({right} - {left})"}
                reached |= {a * b: f"({left} * {right})"}
                reached |= {a / b: f"({left} / {right})"} if b else {}
                reached |= {b / a: f"({right} / {left})"} if a else {}
    return reached


@functools.lru_cache(maxsize=10_000)
def _splits(numbers: tuple[int, ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    places = range(len(numbers))
    chosen = [c for size in range(1, len(numbers) // 2 + 1) for c in combinations(places, size)]
    splits = [(tuple(numbers[i] for i in c), tuple(numbers[i] for i in places if i not in c)) for c in chosen]
    return list(dict.fromkeys(splits))


def _counterparts(value: Fraction, target: Fraction) -> Iterator[tuple[Fraction, str]]:
    """Yield each value that makes the target together with the given one, and the form of that expression."""
    yield target - value, "({0} + {1})"
    yield value - target, "({0} - {1})"
    yield target + value, "({1} - {0})"
    if value:
        yield target / value, "({0} * {1})"
        yield target * value, "({1} / {0})"
        if target:
            yield value / target, "({0} / {1})"
