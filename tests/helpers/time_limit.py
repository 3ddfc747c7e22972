"""A time limit for tests: a guard against work that grows with the square of a text's length. It measures no speed.

A busy machine can take several times as long as an idle one. So right code takes at most a tenth of the limit, and
code with quadratic work takes many times the limit.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def ends(within_s: float = 6.0, clock: Callable[[], float] = time.process_time) -> Iterator[None]:
    """Fail if the code inside takes `within_s` or more: seconds of processor time, or of another `clock`."""
    start = clock()
    yield
    took = clock() - start
    assert took < within_s, f"it took {took:.1f} s"
