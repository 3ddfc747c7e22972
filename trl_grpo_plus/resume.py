"""What a checkpoint holds beside TRL's own files: each rank's state, for a resumed run to be the one that went on."""

import os
from typing import Any

import torch
from accelerate.logging import get_logger
from accelerate.utils import broadcast_object_list, gather_object


logger = get_logger(__name__)


def layout(args: Any, world_size: int) -> list[int]:
    """What must be as it was for the batches of a checkpoint to be used up."""
    sizes = [args.per_device_train_batch_size, args.gradient_accumulation_steps, args.steps_per_generation]
    return [world_size, *sizes, args.num_iterations, args.num_generations]


def save(folder: str, rank: int, state: dict[str, Any]) -> None:
    """Write a rank's state into a checkpoint's folder, which need not be there yet."""
    os.makedirs(folder, exist_ok=True)
    torch.save(state, _path(folder, rank))


def load(folder: str, rank: int, layout: list[int]) -> dict[str, Any] | None:
    """What a rank goes on with, `None` where the checkpoint has no state; says what is missing. Collective.

    Where the batch cannot be used up, since it was made for another `layout` or some rank's file is not here (it may
    be on another machine; all have the first rank's then), "step" is left out and "buffered_inputs" is `None`.
    """
    path = _path(folder, rank)
    state = torch.load(path, map_location="cpu", weights_only=True) if os.path.exists(path) else None
    everyone_has_one = all(gather_object([state is not None]))
    if everyone_has_one and state is not None and state["layout"] == layout:
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


def skip_epochs(sampler: Any, epochs: int) -> None:
    """Draw and forget the permutations of past epochs: a sampler of TRL's draws one an epoch, and a resumed run of
    TRL's would draw the first one again."""
    for _ in range(epochs if sampler.shuffle else 0):
        torch.randperm(sampler.num_samples, generator=sampler.generator)


def _path(folder: str, rank: int) -> str:
    return os.path.join(folder, f"grpo_plus_state_{rank}.pt")
