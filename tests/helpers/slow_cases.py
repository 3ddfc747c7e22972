"""Split the cases of a slow test between `make test` and `make test-full`."""

from collections.abc import Iterable
from typing import Any

import pytest


def one_in(every: int, cases: Iterable[Any], run_each_time: Iterable[Any] = ()) -> list[Any]:
    """Return the parameters of a test: each `every`-th of `cases` and those of `run_each_time` run in `make test`.

    `make test-full` runs the others. A case that is a tuple holds the values of several parameters.
    """
    kept = list(run_each_time)
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if number % every == 0 or case in kept else pytest.mark.full,
        )
        for number, case in enumerate(cases)
    ]
