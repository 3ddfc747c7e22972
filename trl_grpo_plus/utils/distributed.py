"""Processes that end together: if one fails alone, the others wait for it in a collective for half an hour."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from accelerate.utils import gather_object
from torch import Tensor

from .validation import ConfigError


AGREEMENT = 1e-3  # largest difference between ranks' results from the same numbers, relative to their size


@contextmanager
def raise_on_all_ranks() -> Iterator[None]:
    """Raise an error on all ranks if the code inside fails on one rank.

    Collective at the end of the block. Inside the block, collective calls must come before all code that can fail.

    Raises:
        ConfigError: another rank raised a `ConfigError`; the message is the same.
        RuntimeError: other ranks failed; the message names them.
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
    """Compute a tensor that must be the same on all ranks, by a user's function. Collective.

    Args:
        make (`Callable`): computes the tensor, and may fail on some ranks only.
        what (`str`, *optional*): the option that names the function; it precedes each message.
        advice (`str`, *optional*): what to do if the ranks differ.

    Raises:
        ConfigError: `make` failed on some rank, or the ranks differ; the message is the same on all ranks.
    """
    wrong, cause, values = "", None, torch.zeros(0)
    try:
        values = make()
    except Exception as error:
        wrong, cause = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}", error
    # Each entry has a weight of its own, so that rows in another order give another sum.
    weighed = values.double().flatten() * torch.linspace(1.0, 2.0, values.numel(), dtype=torch.float64)
    outcomes = gather_object([(wrong, weighed.sum().item(), values.double().abs().sum().item())])
    failed = next((text for text, *_ in outcomes if text), "")
    _, sums, sizes = zip(*outcomes, strict=True)  # equal on every rank, so all ranks decide alike
    if not failed and max(sums) - min(sums) > AGREEMENT * (1e-9 + max(sizes)):
        failed = f"the processes came to different advantages of the same rewards.{advice}"
    if failed:
        raise ConfigError(f"{what}: {failed}" if what else failed) from cause
    return values
