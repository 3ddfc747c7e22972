"""Merge an adapter for vLLM in copies, so that the frozen weights stay as they are.

TRL 1.12 to 1.16 (`VLLMGeneration._iter_named_params`) merge the adapter into the frozen weights, send them, and take
the adapter out again. The results are rounded, so `(w + d) - d` is not `w`. At each sending 16-bit weights drift a
little further, and the saved adapter belongs to weights that nobody has saved. Weights of 4 bits drift more, because
they are quantized anew. TRL's main branch restores the weights from copies.

Here each weight is merged in a copy when TRL reads it. TRL's loop, its names and its order stay. vLLM gets `w + d`,
rounded as by TRL. Sending takes the memory of the copies that vLLM holds at once: one layer if it is colocated, about
a gigabyte if it is a server.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from peft.tuners import lora
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from ...utils.patching import temporarily


# Other layers, such as those of 8-bit weights, also change more than the values of their weights.
PLAIN = (lora.Linear, lora.Embedding, lora.layer.ParamWrapper, lora.layer._ConvNd)
IN_4_BIT = getattr(lora, "Linear4bit", ())  # it is there if bitsandbytes is
Named = Iterator[tuple[str, Tensor]]
Layers = tuple[BaseTunerLayer, ...]


def merge_in_copies(engine: Any) -> None:
    """Let an engine read merged weights from copies, if TRL would merge them in place and all layers are LoRA's.

    The frozen weights of a layer may have 32, 16 or 4 bits.

    Args:
        engine (`trl.generation.vllm_generation.VLLMGeneration`): the trainer's engine. With FSDP it must not be given:
            TRL then reads other tensors than the layers' own.
    """
    layers = [module for module in engine.model.modules() if isinstance(module, BaseTunerLayer)]
    if hasattr(engine, "_iter_named_params") and all(isinstance(layer, (*PLAIN, IN_4_BIT)) for layer in layers):
        read = engine._iter_named_params
        engine._iter_named_params = lambda: _merged(engine.model, read)


def _merged(model: Any, read: Callable[[], Named]) -> Named:
    """Yield what `read` yields. If it merges the adapter of `model`, each weight is merged in a copy in its place."""
    merges: list[bool] = []

    def merge(*args: Any, **kwargs: Any) -> None:
        merges.append(True)

    layers: dict[int, tuple[str, Layers]] = {}
    reading = read()
    while True:
        # While the caller has a weight the model is itself, in case that the caller fails.
        with temporarily(model, merge_adapter=merge, unmerge_adapter=lambda: None):
            named = next(reading, None)
        if named is None:
            return
        name, weight = named
        if merges:
            layers = layers or _by_address(model)  # not before, because ZeRO-3 gathers the weights in `read`
            of_base, adapted = layers.get(weight.data_ptr(), ("", ()))
            weight = _sum(of_base, adapted) if adapted else weight
        yield name, weight


def _by_address(model: nn.Module) -> dict[int, tuple[str, Layers]]:
    """Return, for each frozen weight under an adapter, its name in its module and the adapter's layers, by address.

    An adapter on tied weights has a layer for each module, and all of them change the weight.
    """
    found: dict[int, tuple[str, Layers]] = {}
    for layer in model.modules():
        if isinstance(layer, BaseTunerLayer):
            for name, weight in layer.get_base_layer().named_parameters(recurse=False):
                _, others = found.get(weight.data_ptr(), (name, ()))
                found[weight.data_ptr()] = name, (*others, layer)
    return found


def _sum(name: str, layers: Layers) -> Tensor:
    """Return a new tensor: a frozen weight and what the layers add to it."""
    if isinstance(layers[0], IN_4_BIT):  # a merge makes a new weight, and changes the old one's attributes
        merged_copy = copy.deepcopy(layers[0])
        merged_copy.merge()
        return getattr(merged_copy.get_base_layer(), name).data
    with ExitStack() as merged:
        for layer in layers:
            merged.enter_context(_in_copies(layer))
        weight: Tensor = getattr(layers[0].get_base_layer(), name).data
    return weight


@contextmanager
def _in_copies(layer: BaseTunerLayer) -> Iterator[None]:
    """Merge a layer inside the block, in copies of its frozen weights."""
    frozen = [(weight, weight.data) for weight in layer.get_base_layer().parameters(recurse=False)]
    try:
        for weight, values in frozen:
            weight.data = values.clone()
        layer.merge()
        yield
    finally:
        layer.merged_adapters.clear()
        for weight, values in frozen:
            weight.data = values
