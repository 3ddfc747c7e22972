"""Processes that end together: if one fails alone, the others wait for it in a collective for half an hour."""

import os
import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import gather, gather_object
from torch import Tensor

from .patching import temporarily
from .validation import ConfigError, RunError


T = TypeVar("T")

RECEIVED_AT_ONCE = 64 * 2**20  # bytes, of all ranks together
AGREEMENT = 1e-3  # largest difference between ranks' results from the same numbers, relative to their size


# What gloo, NCCL and torch's store say of a process that is gone or silent.
LOST = (
    "closed by peer",
    "closed by remote peer",
    "reset by peer",
    "Timed out waiting",
    "Connection was likely closed",
    "Broken pipe",
    "remote process exit",
    "caused pair closure",
    "No route to host",
    "Connection timed out",
    "timed out after",
    "Timed out after",
    "communicator was aborted",
    "collective operation timeout",
)
COMMUNICATING = ("torch", "accelerate", "vllm")  # packages whose code runs the collectives


def start_cpu_group(backend: str | None, seconds: float) -> None:
    """Start the process group of a run on CPUs, so that its collectives wait at most `seconds` for a process.

    With `use_cpu`, transformers ignores `ddp_timeout`, and torch's 30 minutes would apply. This function does nothing
    in a run of one process, or if the process group exists already.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ and not torch.distributed.is_initialized():
        PartialState(cpu=True, backend=backend, timeout=timedelta(seconds=seconds))


def lost_process(error: BaseException) -> str | None:
    """Return the line of an error that says that another process is gone or silent; `None` for any other error.

    Only errors that a collective raised count. Other errors, such as [`RewardError`] or an error of a tool or a
    `rollout_func`, may quote such a line about another connection.
    """
    of_collective = isinstance(error, torch.distributed.DistError) or _raised_by_a_collective(error)
    if not of_collective or int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return None
    return next((line.strip() for line in str(error).splitlines() if any(word in line for word in LOST)), None)


def _raised_by_a_collective(error: BaseException) -> bool:
    if type(error) is not RuntimeError:
        return False
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].f_globals.get("__name__", "").partition(".")[0] in COMMUNICATING


@contextmanager
def raise_on_all_ranks() -> Iterator[None]:
    """Raise an error on all ranks if the code inside fails on one rank.

    Collective at the end of the block. Inside the block, collective calls must come before all code that can fail.

    Raises:
        ConfigError: another rank raised a `ConfigError`; the message is the same.
        RunError: other ranks failed; the message names them.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as failed:
        error = failed
    try:
        is_failed = torch.tensor([error is not None], dtype=torch.uint8, device=PartialState().device)
        if not gather(is_failed).any():
            return
        facts = gather_object([_facts_of(error)])
    except Exception:
        if error is None:
            raise
        raise error  # noqa: B904  # after it the device may be unusable, so that nothing can be gathered
    _raise_first(error, facts)


@contextmanager
def raise_before(target: Any, name: str) -> Iterator[None]:
    """Raise an error on all ranks if the code inside fails on one rank before it calls the method `name` of `target`.

    Collective once, where the method is first called or where the code fails. Raises as [`raise_on_all_ranks`] does.
    """
    method, is_called = getattr(target, name), False

    def called(*args: Any, **kwargs: Any) -> Any:
        """Call the method if all ranks call it."""
        nonlocal is_called
        if not is_called:
            is_called = True
            with raise_on_all_ranks():
                pass
        return method(*args, **kwargs)

    with temporarily(target, **{name: called}):
        try:
            yield
        except Exception:
            if is_called:
                raise
            with raise_on_all_ranks():
                raise


def gather_made(make: Callable[[], Sequence[T]]) -> list[T]:
    """Gather the objects that `make` returns on each rank, in order of rank. Collective.

    An error in `make` on one rank is raised on all ranks, as by [`raise_on_all_ranks`]. The error is sent with the
    objects, which takes one gather instead of two.
    """
    made, error = _try(make)
    everyones = gather_object([(_facts_of(error), made or ())])
    _raise_first(error, [facts for facts, _ in everyones])
    return [one for _, made in everyones for one in made]


def all_to_all_made(make: Callable[[], Mapping[int, bytes]]) -> list[bytes | bytearray]:
    """Send the bytes that `make` returns for each rank to that rank; return those for this rank. Collective.

    The received bytes are in order of the ranks that sent them. A rank that sent nothing has no entry. They travel in
    pieces, so that no device receives more than [`RECEIVED_AT_ONCE`] bytes at once. With a backend other than gloo and
    NCCL all ranks get the bytes of all ranks, because not every backend can send a part to each. An error in `make` on
    one rank is raised on all ranks, as by [`raise_on_all_ranks`].
    """
    state = PartialState()
    if not _is_gloo_or_nccl(state.device):
        return [sent for to, sent in gather_made(lambda: list(make().items())) if to == state.process_index]
    made, error = _try(make)
    parcels = [(made or {}).get(rank, b"") for rank in range(state.num_processes)]
    sizes = torch.tensor([-1 if error else len(parcel) for parcel in parcels], device=state.device)
    table = gather(sizes).view(state.num_processes, -1).cpu()  # [from, to]
    if table.min() < 0:
        _raise_first(error, gather_object([_facts_of(error)]))
    received = [bytearray() for _ in parcels]
    most = max(1, RECEIVED_AT_ONCE // max(1, int((table > 0).sum(dim=0).max())))  # each rank receives from so many
    for start in range(0, int(table.max()), most):
        lengths = (table - start).clamp(0, most)
        going, coming = lengths[state.process_index].tolist(), lengths[:, state.process_index].tolist()
        pieces = _bytes_as_tensor(b"".join(parcel[start : start + most] for parcel in parcels))
        buffer = torch.empty(sum(coming), dtype=torch.uint8, device=state.device)
        torch.distributed.all_to_all_single(buffer, pieces.to(state.device), coming, going)
        for of_rank, piece in zip(received, buffer.cpu().split(coming), strict=True):
            of_rank += piece.numpy().data
    return [of_rank for of_rank in received if of_rank]


def _is_gloo_or_nccl(device: torch.device) -> bool:
    """Return whether there are several processes, and gloo or NCCL carries the tensors of this device.

    A run may have a backend for each kind of device: with FSDP accelerate asks for `cuda:nccl,cpu:gloo`.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return False
    backends = dict(pair.split(":") for pair in torch.distributed.get_backend_config().split(","))
    return backends.get(device.type) in ("gloo", "nccl")


def _bytes_as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def gather_on_first_rank(own: T) -> list[T]:
    """Gather an object of each rank on rank 0, in order of rank. Collective.

    The other ranks return an empty list. The pickles travel as the bytes of [`all_to_all_made`] do.
    """
    received = all_to_all_made(lambda: {0: pickle.dumps(own)})
    received.reverse()
    return [pickle.loads(received.pop()) for _ in range(len(received))]  # frees each pickle once it is read


def _try(make: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return make(), None
    except Exception as error:
        return None, error


def _facts_of(error: Exception | None) -> tuple[tuple[str, ...] | None, str] | None:
    """Return what other ranks need of an error: the refusals of a `ConfigError`, and the text with the type."""
    if error is None:
        return None
    reasons = tuple(map(str, error.args)) if isinstance(error, ConfigError) else None
    return reasons, f"{type(error).__name__}: {error}"


def _raise_first(error: Exception | None, facts: Sequence[tuple[tuple[str, ...] | None, str] | None]) -> None:
    """Raise this rank's `error`, or the first error in the ranks' `facts`; return if there is none."""
    if error is not None:
        raise error
    failures = {rank: what for rank, what in enumerate(facts) if what}
    for reasons, _ in failures.values():
        if reasons is not None:
            raise ConfigError(*reasons)
    if failures:
        raise RunError("; ".join(f"rank {rank}: {named}" for rank, (_, named) in failures.items()))


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
