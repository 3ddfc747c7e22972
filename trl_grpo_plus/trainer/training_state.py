"""What a checkpoint holds beside TRL's own files: each rank's state, and the reference model where it moves.

For a resumed run to be the one that went on.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.logging import get_logger
from accelerate.utils import broadcast_object_list, gather_object
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict

from ..utils.distributed import raise_on_all_ranks
from ..utils.validation import ConfigError


logger = get_logger(__name__)

REFERENCE = "grpo_plus_reference.pt"
FORMAT = 2  # one more with each change that another release cannot read
_INSTEAD = (
    "Resume from an earlier checkpoint, or remove this file: training then goes on from the weights, and what it held "
    "(the batch in flight, beliefs, adaptive beta, what alarms have seen) starts afresh."
)


def layout(args: Any, world_size: int) -> list[int]:
    """Return what must be as it was for the batches of a checkpoint to be used up."""
    sizes = [args.per_device_train_batch_size, args.gradient_accumulation_steps, args.steps_per_generation]
    return [world_size, *sizes, args.num_iterations, args.num_generations]


def save(folder: str, rank: int, state: Callable[[], dict[str, Any]]) -> None:
    """Write a rank's state into a checkpoint's folder, which need not be there yet. Collective: a checkpoint is not
    saved to its end where some rank's state is not in it.

    Raises:
        RuntimeError: another rank has no state, or could not write its own.
    """
    with raise_on_all_ranks():  # a full disk, or a stream of the user's
        os.makedirs(folder, exist_ok=True)
        torch.save({"format": FORMAT, **state()}, _path(folder, rank))


def load(folder: str, rank: int, layout: list[int]) -> dict[str, Any] | None:
    """Return what a rank goes on with, `None` where the checkpoint has no state; says what is missing. Collective.

    Where the batch cannot be used up, since it was made for another `layout` or some rank's file is not here (it may
    be on another machine; all have the first rank's then), "step" is left out and "buffered_inputs" is `None`.

    Raises:
        ConfigError: some rank's file cannot be read, or is of another format; on all ranks alike.
    """
    state, wrong = _read(_path(folder, rank))
    found = gather_object([(state is not None, state is not None and state["layout"] == layout, wrong)])
    for *_, wrong in found:
        if wrong:
            raise ConfigError(wrong)
    everyone_has_one = all(has for has, *_ in found)
    # Of all: a rank may find what another run left, which is of this layout though the first one's is not.
    if all(fits for _, fits, _ in found):
        return state
    if state is not None:
        state = {name: value for name, value in state.items() if name != "step"} | {"buffered_inputs": None}
    if not everyone_has_one:
        state = broadcast_object_list([state])[0]
    if state is None:
        logger.warning(f"{folder} was not saved by GRPOPlusTrainer: resampling and beta start afresh.")
    else:
        logger.warning(
            "The batch layout differs from the checkpoint's, or not every process finds its own state in it: the "
            "first batch is generated anew."
        )
    return state


@contextmanager
def loaded(folder: str, rank: int, layout: list[int]) -> Iterator[dict[str, Any] | None]:
    """[`load`], and what is not in it as it must be is refused by the file's name; on all ranks, which must be there
    when it is read to its end. See [`together`] for what may be collective in between."""
    state = load(folder, rank, layout)
    with raise_on_all_ranks():
        try:
            yield state
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            what = f"{type(error).__name__}: {error}"
            told = f"{_path(folder, rank)} does not hold what this release reads ({what}). {_INSTEAD}"
            raise ConfigError(told) from error


def save_reference(folder: str, rank: int, reference: torch.nn.Module) -> None:
    """Write a reference model, whole, into a checkpoint's folder. Collective.

    Raises:
        RuntimeError: the first rank could not write it; on all ranks.
    """
    with _gathered(reference):
        weights = get_model_state_dict(reference, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    with raise_on_all_ranks():
        if rank == 0:
            torch.save(weights, os.path.join(folder, REFERENCE))


def load_reference(folder: str, rank: int, reference: torch.nn.Module, promised: bool) -> None:
    """Give a reference model the weights that it had when the checkpoint was saved. Collective.

    Args:
        folder (`str`), rank (`int`): of the checkpoint, which the first rank alone must have.
        reference (`torch.nn.Module`): as [`save_reference`] took it.
        promised (`bool`): whether the checkpoint was saved with one. Where it was not, a warning says so.

    Raises:
        ConfigError: it was, and the file is not there; or it cannot be read. On all ranks alike.
    """
    path = os.path.join(folder, REFERENCE)
    weights, wrong, absent = {}, "", not promised and not os.path.exists(path)
    if rank == 0 and not absent:
        try:
            weights = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # whatever a damaged file makes of the unpickler
            wrong = f"{type(error).__name__}: {error}".partition("\n")[0]
    wrong, absent = broadcast_object_list([(wrong, absent)])[0]
    if wrong:
        raise ConfigError(
            f"{path} cannot be read ({wrong}), and sync_ref_model needs the reference model in it. Resume from "
            "an earlier checkpoint."
        )
    if absent:
        logger.warning(
            f"{folder} was saved without the reference model: it starts afresh, as the model that the run began with."
        )
        return
    several = torch.distributed.is_initialized()
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=several)
    with _gathered(reference):
        set_model_state_dict(reference, weights, options=options)


@contextmanager
def _gathered(model: torch.nn.Module) -> Iterator[None]:
    """ZeRO-3's shards put together while they are read or written; torch does that for FSDP's itself."""
    sharded = [parameter for parameter in model.parameters() if hasattr(parameter, "ds_id")]
    if not sharded:
        yield
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(sharded, modifier_rank=0):
        yield


def skip_epochs(sampler: Any, epochs: int) -> None:
    """Draw and forget the permutations of past epochs: a sampler of TRL's draws one an epoch, and a resumed run of
    TRL's would draw the first one again. A stream has no sampler."""
    for _ in range(epochs if sampler is not None and sampler.shuffle else 0):
        torch.randperm(sampler.num_samples, generator=sampler.generator)


def _read(path: str) -> tuple[dict[str, Any] | None, str]:
    """Return a rank's state, and what is wrong with it."""
    if not os.path.exists(path):
        return None, ""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        form = state.get("format", FORMAT)
        if form == FORMAT and not {"layout", "buffered_inputs"} <= state.keys():
            raise ValueError(f"it holds {', '.join(map(str, state)) or 'nothing'}")
    except Exception as error:  # whatever a damaged file makes of the unpickler
        what = f"{type(error).__name__}: {error}".partition("\n")[0]
        return None, f"{path} cannot be read ({what}): it was cut off, or changed since. {_INSTEAD}"
    if form != FORMAT:
        return (
            None,
            f"{path} is of format {form}, this release reads {FORMAT}: resume with the one it is of. {_INSTEAD}",
        )
    return state, ""


def _path(folder: str, rank: int) -> str:
    return os.path.join(folder, f"grpo_plus_state_{rank}.pt")
