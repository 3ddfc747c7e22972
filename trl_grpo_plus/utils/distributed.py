"""Processes that end together: where one fails alone, the others wait for it in a collective, half an hour long."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from accelerate.utils import gather_object
from torch import Tensor

from .validation import ConfigError


AGREEMENT = 1e-3  # by which what ranks compute of the same numbers may differ, relative to its size


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


def agreed(make: Callable[[], Tensor], what: str = "", advice: str = "") -> Tensor:
    """Compute a tensor that must be the same on all ranks, by a function that is not ours. Collective.

    Args:
        make (`Callable`): computes it, and may fail on some ranks only.
        what (`str`, *optional*): the option that names the function, before each message.
        advice (`str`, *optional*): what to do if the ranks differ.

    Raises:
        ConfigError: it failed on some rank, or the ranks differ; the same message on all.
    """
    wrong, cause, values = "", None, torch.zeros(0)
    try:
        values = make()
    except Exception as error:
        wrong, cause = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}", error
    # Each entry with a weight of its own: rows in another order are other values.
    weighed = values.double().flatten() * torch.linspace(1.0, 2.0, values.numel(), dtype=torch.float64)
    outcomes = gather_object([(wrong, weighed.sum().item(), values.double().abs().sum().item())])
    failed = next((text for text, *_ in outcomes if text), "")
    _, sums, sizes = zip(*outcomes, strict=True)  # on every rank the same, and so is what is made of them
    if not failed and max(sums) - min(sums) > AGREEMENT * (1e-9 + max(sizes)):
        failed = f"the processes came to different advantages of the same rewards.{advice}"
    if failed:
        raise ConfigError(f"{what}: {failed}" if what else failed) from cause
    return values
