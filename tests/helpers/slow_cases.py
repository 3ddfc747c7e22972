"""Split the cases of a slow test: `make test` runs some of them, and `make test-full` runs the others."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def some(cases: Iterable[Any], is_run_each_time: Callable[..., Any]) -> list[Any]:
    """Return the parameters of a test. `make test` runs the cases for which `is_run_each_time(*case)` is true.

    A case that is a tuple holds the values of several parameters.
    """
    values = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [pytest.param(*case, marks=() if is_run_each_time(*case) else pytest.mark.full) for case in values]


def covering(is_run_each_time: Callable[..., Any], *choices: Iterable[Any]) -> list[Any]:
    """Return all combinations of `choices`, split as [`some`] does."""
    return some(itertools.product(*choices), is_run_each_time)


def one_in(every: int, cases: Iterable[Any]) -> list[Any]:
    """Return `cases`, of which `make test` runs the first of each `every`."""
    numbers = itertools.count()
    return some(cases, lambda *case: next(numbers) % every == 0)
