"""Processes that end together: where one fails alone, the others wait for it in a collective, half an hour long."""

from collections.abc import Iterator
from contextlib import contextmanager

from accelerate.utils import gather_object

from .validation import ConfigError


@contextmanager
def raise_on_all_ranks() -> Iterator[None]:
    """Have what fails inside on one rank end it on all of them. Collective at its end; what is collective inside
    comes before all that can fail.

    Raises:
        ConfigError: another rank refused what it was given; in the same words.
        RuntimeError: other ranks failed, and which.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as failed:
        error = failed
    told = gather_object([error and (isinstance(error, ConfigError), str(error), f"{type(error).__name__}: {error}")])
    if error is not None:
        raise error
    failures = {rank: what for rank, what in enumerate(told) if what}
    for refused, text, _ in failures.values():
        if refused:
            raise ConfigError(text)
    if failures:
        raise RuntimeError("; ".join(f"rank {rank}: {named}" for rank, (*_, named) in failures.items()))
