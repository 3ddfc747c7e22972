"""Send vLLM the weights with the adapter merged, and leave the frozen weights as they are: `vllm_merge_in_copies`.

TRL (`VLLMGeneration._iter_named_params`) merges the adapter into the frozen weights, sends them, and takes the adapter
out again. 16-bit weights are rounded both times, so `(w + d) - d` is not `w`. At each sending the frozen weights drift
a little further, and the saved adapter belongs to weights that nobody has saved. Here each layer is merged into copies
of its weights when TRL reads them. TRL's own loop, its names and its order stay. vLLM gets `w + d`, rounded as before.
The peak of memory rises by the weights of one layer.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from ..utils.patching import temporarily


Named = Iterator[tuple[str, Tensor]]


def merge_in_copies(engine: Any, model: Any) -> None:
    """Let an engine read the merged weights from copies.

    Args:
        engine (`trl.generation.vllm_generation.VLLMGeneration`): the trainer's engine, of TRL 1.12 or later.
        model (`peft.PeftModel`): its model, which is not sharded.
    """
    read = engine._iter_named_params
    engine._iter_named_params = lambda: _merged(model, read)


def _merged(model: Any, read: Callable[[], Named]) -> Named:
    """Yield what `read` yields while `model` is merged, layer by layer."""
    layers: dict[int, tuple[str, tuple[BaseTunerLayer, ...]]] = {}
    with temporarily(model, merge_adapter=_nothing, unmerge_adapter=_nothing), ExitStack() as merged:
        for name, weight in read():
            layers = layers or _layers_by_weight(model)  # now, because ZeRO-3 gathers the weights in `read`
            base_name, adapted = layers.get(weight.data_ptr(), ("", ()))
            if adapted:  # a copy has another address, so that the bias of a merged layer is not found
                merged.close()
                for layer in adapted:
                    merged.enter_context(_in_copies(layer))
                weight = getattr(adapted[0].get_base_layer(), base_name).data
            yield name, weight


def _layers_by_weight(model: nn.Module) -> dict[int, tuple[str, tuple[BaseTunerLayer, ...]]]:
    """Return, for each frozen weight under an adapter, its name in its module and the adapter's layers, by address.

    An adapter on tied weights has a layer for each module, and all of them change the weight.
    """
    found: dict[int, tuple[str, tuple[BaseTunerLayer, ...]]] = {}
    for layer in model.modules():
        if isinstance(layer, BaseTunerLayer):
            for name, weight in layer.get_base_layer().named_parameters(recurse=False):
                _, others = found.get(weight.data_ptr(), (name, ()))
                found[weight.data_ptr()] = name, (*others, layer)
    return found


@contextmanager
def _in_copies(layer: BaseTunerLayer) -> Iterator[None]:
    """Merge a layer inside the block, in copies of its frozen weights."""
    base = layer.get_base_layer()
    frozen = [(name, weight, weight.data) for name, weight in base.named_parameters(recurse=False)]
    for _, weight, values in frozen:
        weight.data = values.clone()
    layer.merge()
    try:
        yield
    finally:
        layer.merged_adapters.clear()
        for name, weight, values in frozen:
            weight.data = values
            setattr(base, name, weight)  # a layer with quantized weights has made a new parameter


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass
