"""The check by which rewards refuse a dataset that has rows they cannot score."""

from collections.abc import Callable, Sequence
from typing import Any


SHOWN_ROWS = 5


def refuse_rows(
    name: str, problem_of: Callable[..., Any], *columns: Sequence[Any], hint: str = "Correct or filter these rows."
) -> None:
    """Raise an error if any row has a problem, and show the first few such rows.

    Args:
        name (`str`): name of the reward.
        problem_of (`Callable`): takes a row's values, and returns the problem as text or raises it as `ValueError`.
        columns (`Sequence`): columns of equal length.
        hint (`str`, *optional*): how to correct the rows.

    Raises:
        ValueError: a row has a problem.
    """
    problems = [_problem(problem_of, values) for values in zip(*columns, strict=True)]
    bad = [f"row {row}: {problem.rstrip('.')}" for row, problem in enumerate(problems) if problem]
    if bad:
        shown = "; ".join(bad[:SHOWN_ROWS])
        raise ValueError(f"{name}: {len(bad)} of {len(problems)} rows cannot be scored; {shown}. {hint}")


def _problem(problem_of: Callable[..., Any], values: Sequence[Any]) -> str:
    try:
        problem = problem_of(*values)
    except ValueError as error:
        return str(error)
    return problem if isinstance(problem, str) else ""
