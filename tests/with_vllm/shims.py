"""Stand-ins that let TRL use vLLM's CPU build. Each replaces something that only a GPU build has."""

import functools
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
import vllm
from accelerate.state import AcceleratorState
from trl.generation import vllm_client, vllm_generation
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.distributed.utils import StatelessProcessGroup
from vllm.model_executor.layers import utils


RENDEZVOUS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def plain_linear(layer: torch.nn.Module, remove_weight: bool) -> None:
    """Use a plain linear layer. The CPU build packs weights for oneDNN and empties them: no sync could fill them."""
    layer.cpu_linear = torch.nn.functional.linear


class SmallLLM(vllm.LLM):
    """The engine that TRL makes, but in float32, for exact log-probs, and with a cache of `cache_bytes`.

    The CPU build refuses sleep mode. Here `sleep` only clears the weights, as level 2 does.
    """

    cache_bytes = 64 * 2**20

    def __init__(self, *args: Any, enable_sleep_mode: bool, **kwargs: Any):
        small = {"dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": self.cache_bytes}
        super().__init__(*args, **kwargs, **small)

    def sleep(self, level: int) -> None:
        assert level == 2
        for weight in self.llm_engine.model_executor.driver_worker.model_runner.model.parameters():
            weight.data.zero_()

    def wake_up(self, tags: list[str]) -> None:
        pass


def open_endpoint(init_info: dict[str, Any]) -> SimpleNamespace:
    """Open the trainer's end of the TCP connection to a server (see wire.py). TRL closes its `group` at exit."""
    address = init_info["master_address"], init_info["master_port"]
    return SimpleNamespace(group=StatelessProcessGroup.create(*address, rank=0, world_size=init_info["world_size"]))


def send(iterator: Iterator, group: SimpleNamespace, src: int, post_iter_func: Callable[[Any], torch.Tensor]) -> None:
    """Send each tensor, in the order that TRL has announced."""
    for item in iterator:
        group.group.broadcast(post_iter_func(item).contiguous(), src)


# TRL's client uses torch only to check whether the trainer has a CUDA device.
CLAIMS_CUDA = SimpleNamespace(device=lambda device: SimpleNamespace(type="cuda", index=None))

STAND_INS = [
    (utils, "dispatch_cpu_unquantized_gemm", plain_linear),
    (vllm_generation, "LLM", SmallLLM),
    (vllm_client, "open_trainer_endpoint", open_endpoint),
    (vllm_client, "packed_nccl_broadcast_producer", send),
    (vllm_client, "get_ip", lambda: "127.0.0.1"),
    (vllm_client, "torch", CLAIMS_CUDA),
    # An engine collects garbage seven times, which takes longer than the rest of a test.
    (gc, "collect", lambda generation=2: 0),
    (torch, "set_num_threads", torch.set_num_threads),  # listed to be restored: the engine replaces it
]


def install() -> None:
    """Install the stand-ins for the rest of this process."""
    for target, name, stand_in in STAND_INS:
        setattr(target, name, stand_in)


@contextmanager
def installed() -> Iterator[None]:
    """Install the stand-ins in a `with` block. At its end shut all engines down and restore the process."""
    before = [(target, name, getattr(target, name)) for target, name, _ in STAND_INS]
    environment = {name: os.environ.get(name) for name in RENDEZVOUS}
    os.environ["MASTER_PORT"] = "0"  # any free port; accelerate would set its default, which may be taken
    engines: list[SmallLLM] = []
    made = SmallLLM.__init__

    @functools.wraps(made)
    def noted(self: SmallLLM, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        engines.append(self)

    SmallLLM.__init__ = noted  # type: ignore[method-assign]
    install()
    try:
        yield
    finally:
        SmallLLM.__init__ = made  # type: ignore[method-assign]
        for engine in engines:
            engine.llm_engine.engine_core.shutdown()
        # Otherwise the next test would believe that it runs in one of several processes.
        cleanup_dist_env_and_memory()
        AcceleratorState._reset_state(True)
        for target, name, value in before:
            setattr(target, name, value)
        for name, value in environment.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
