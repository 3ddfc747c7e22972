"""What must come to an end: a guard against work that grows with the square of a text, and no measure of speed.

A machine that others use takes several times as long as another. So what is right takes a tenth of the bound or less,
and what is wrong in that way many times the bound.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def ends(within_s: float = 6.0, clock: Callable[[], float] = time.process_time) -> Iterator[None]:
    """Fails if what is done takes so long: seconds of this process's processor, or of another `clock`."""
    start = clock()
    yield
    took = clock() - start
    assert took < within_s, f"it took {took:.1f} s"
