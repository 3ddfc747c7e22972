"""Two corrections of what TRL asks of a vLLM engine, and a warning of attempts that the engine's context cut off."""

import hashlib
import logging
import pickle
from collections.abc import Callable, Set
from typing import Any

from accelerate.utils import gather_object
from torch.distributed.fsdp import FSDPModule


logger = logging.getLogger(__name__)


def sample_from_own_prompts(engine: Any) -> None:
    """Let a server sample each attempt from its own prompt if the prompts of a group differ.

    TRL sends the first prompt of each group, and asks for all of the group's attempts. But an environment may give
    each attempt another prompt, and after a call of a tool TRL 1.14.0 and older ask for groups too. Where prompts
    differ, each is sent.

    Args:
        engine (`trl.generation.vllm_generation.VLLMGeneration`): the trainer's engine, with a server.
    """
    generate = engine.generate

    def generate_from_own(prompts: list[Any], images: Any, num_generations: int, *rest: Any, **more: Any) -> Any:
        """Generate as TRL does. Collective."""
        rows = zip(prompts, images or [None] * len(prompts), strict=True)
        everyones = gather_object([hashlib.sha256(pickle.dumps(row)).digest() for row in rows])
        alike = all(row == everyones[i - i % num_generations] for i, row in enumerate(everyones))
        return generate(prompts, images, num_generations if alike else 1, *rest, **more)

    engine.generate = generate_from_own


def shard_before_sending(engine: Any) -> None:
    """Shard the weights under FSDP 2 again before TRL sends them to the engine.

    A forward pass without a backward leaves some weights whole on each process, as in an evaluation or where the
    belief head reads prompts. TRL then asks a whole weight to gather itself, which ends the run with an error
    (`VLLMGeneration._iter_fsdp2_params`).

    Args:
        engine (`trl.generation.vllm_generation.VLLMGeneration`): the trainer's engine.
    """
    send = engine.sync_weights

    def send_sharded(*args: Any, **more: Any) -> Any:
        """Send as TRL does. Collective."""
        for module in engine.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        return send(*args, **more)

    engine.sync_weights = send_sharded


def warn_of_full_context(engine: Any, ends: Set[int], note: Callable[[float], None]) -> None:
    """Let an engine in the trainer's process warn of the first attempts that end early because its context is full.

    TRL asks for `max_completion_length` tokens. Where a prompt leaves less room than that, vLLM 0.31 ends the attempt
    without an error, and TRL counts it as truncated. A server refuses such a prompt.

    Args:
        engine (`trl.generation.vllm_generation.VLLMGeneration`): the trainer's engine, colocated.
        ends (`set[int]`): the tokens with which a completion ends unless it is truncated.
        note (`Callable`): gets the share of such attempts among those of this process, at each generation.
    """
    generate, warned = engine.generate, False

    def generate_and_warn(*args: Any, **more: Any) -> Any:
        """Generate as TRL does."""
        nonlocal warned
        generated = generate(*args, **more)
        most = (engine.generation_kwargs or {}).get("max_tokens", engine.max_completion_length)
        if most is None:  # vLLM takes `None` as all that the context has room for
            return generated
        context = engine.llm.llm_engine.model_config.max_model_len
        cut_off = [
            len(prompt)
            for prompt, completion in zip(*generated[:2], strict=True)
            if len(completion) < most and len(prompt) + len(completion) >= context and ends.isdisjoint(completion[-1:])
        ]
        note(len(cut_off) / len(generated[1]))
        if cut_off and not warned:
            warned = True
            logger.warning(
                f"vLLM ended {len(cut_off)} of {len(generated[1])} attempts of this process before the {most} tokens "
                f"that it was asked for, because prompt and completion filled its context of {context} tokens. The "
                f"longest of their prompts has {max(cut_off)}. They count as truncated. Lower max_completion_length, "
                "leave out the longest prompts, or raise vllm_max_model_length if the model's context is longer."
            )
        return generated

    engine.generate = generate_and_warn
