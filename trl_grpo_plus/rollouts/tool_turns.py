"""Turns of conversations with tools, where processes generate together: all ranks take each turn.

After a tool has answered, TRL generates the next turn of the attempts that called it (`GRPOTrainer._tool_call_loop`).
This loop runs on each rank alone: the ranks have different numbers of turns, and of attempts in a turn. But a vLLM
server, an engine that several ranks share, and a sharded model generate for all ranks at once. With TRL alone, a rank
with fewer turns leaves the others waiting, and completions go to the wrong attempts.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from accelerate.utils import gather_object

from ..utils.distributed import gather_made


@contextmanager
def in_step(generate: Callable[..., Any], idle: Callable[[], Any]) -> Iterator[Callable[..., Any]]:
    """Run a loop of turns inside this context, such that each rank generates as often as every other.

    Collective, in each turn and at the end. An error between two turns is raised on all ranks. An error of `generate`
    is raised as it would be without this context: on the ranks where it happened.

    Args:
        generate (`Callable`): generates a turn. The loop must call what the context yields in its place.
        idle (`Callable`): takes part in a turn for which this rank has no attempts.
    """
    failed: list[Exception] = []
    together = False  # whether the ranks are in collective calls, in which no rank may begin another one

    def generate_with_all(*args: Any, **more: Any) -> Any:
        """Generate, once all ranks are ready. Collective."""
        nonlocal together
        together = True
        gather_made(lambda: [True])
        made = generate(*args, **more)
        together = False
        return made

    def goes_on() -> list[bool]:
        """Say that this rank has no further turn, or raise the error that ended its loop."""
        if failed:
            raise failed[0]
        return [False]

    try:
        yield generate_with_all
    except Exception as error:
        if together:
            raise
        failed.append(error)
    while any(gather_made(goes_on)):
        idle()


def in_equal_shares(engine: Any) -> None:
    """Let ranks that generate together have unequal numbers of prompts.

    TRL slices the completions as if every rank had this rank's number of prompts (`VLLMGeneration.generate`). If the
    numbers differ, the prompts of all ranks are divided into equal shares, and the completions are sent back.

    Args:
        engine (`trl.generation.vllm_generation.VLLMGeneration`): the trainer's engine.
    """
    generate = engine.generate

    def generate_shared(prompts: list[Any], images: Any, num_generations: int, *rest: Any, **more: Any) -> Any:
        """Generate as TRL does. Collective."""
        counts = gather_object([len(prompts)])
        if len(set(counts)) == 1:
            return generate(prompts, images, num_generations, *rest, **more)
        rank = engine.accelerator.process_index
        everyones = gather_object([*zip(prompts, images or [None] * len(prompts), strict=True)])
        share = -(-len(everyones) // len(counts))
        filled = everyones + everyones[:1] * (share * len(counts) - len(everyones))
        own_prompts, own_images = map(list, zip(*filled[rank * share :][:share], strict=True))
        seen = any(image is not None for _, image in everyones)
        generated = generate(own_prompts, own_images if seen else None, 1, *rest, **more)
        start = sum(counts[:rank])
        return tuple(_gathered(column, start, len(prompts)) for column in generated)

    engine.generate = generate_shared


def _gathered(column: Sequence[Any] | None, start: int, count: int) -> list[Any] | None:
    """Return `count` rows of all ranks' column from `start` on; `None` if there is no such column. Collective."""
    return None if column is None else gather_object([*column])[start : start + count]
