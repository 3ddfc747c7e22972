"""A second device for machines without a GPU. Its tensors do not mix with those of the CPU, as a GPU's do not.

`install` registers the device `second` with PyTorch, through its key for devices that are written in Python
(PrivateUse1). A tensor there holds a CPU tensor, and PyTorch's CPU kernels compute. So a run on the device ends with
the CPU's numbers, up to the rounding of other kernels for attention.

The rules of a GPU that hold here:

- An operation on tensors of both devices raises `MixedDevices`. CPU tensors without dimension may take part, and CPU
  indices may index a tensor of the device.
- `numpy` raises. `to`, `cpu`, `copy_`, `tolist` and `item` copy. `reads` counts the copies to the host: a GPU makes
  the host wait at each.

What it has not: kernels, streams, memory, mixed precision and random numbers of its own, and collectives.

`TEST_DEVICE=second` runs tests on it; see tests/conftest.py.
"""

import collections
import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend


NAME = "second"
aten = torch.ops.aten

reads: "collections.Counter[str]" = collections.Counter()  # copies from the device to the host, by operation

# These return a value, or a shape that depends on values, so the host needs them.
READING = {aten._local_scalar_dense, aten.equal, aten.nonzero, aten.masked_select, aten._unique2, aten.unique_dim}
COPYING = {aten.copy_, aten._to_copy}
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}


class MixedDevices(RuntimeError):
    """An operation got tensors of the CPU and of the device."""


class SecondTensor(torch.Tensor):
    """A tensor on the device. `inner` is the CPU tensor that it stands for."""

    inner: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner):
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), **layout, device=torch.device(NAME, 0))

    def __init__(self, inner):
        self.inner = inner

    def __repr__(self):
        return f"{self.inner!r} on {NAME}"

    def __reduce_ex__(self, protocol):
        what = (self.inner, self.dtype, str(self.device), self.requires_grad)
        return torch._utils._rebuild_device_tensor_from_cpu_tensor, what

    def untyped_storage(self):
        return self.inner.untyped_storage()  # safetensors finds weights that share memory by its address

    def tolist(self):
        reads["tolist"] += 1
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in pytree.tree_leaves(values) if isinstance(value, torch.Tensor)]


def _check(func: Any, args: Any, kwargs: Any) -> None:
    if func.overloadpacket in INDEXING and isinstance(args[0], SecondTensor):
        args = (args[0], *args[2:])  # without the indices
    tensors = _tensors((args, kwargs))
    on_device = [isinstance(tensor, SecondTensor) for tensor in tensors]
    if any(on_device) and any(tensor.dim() for tensor, there in zip(tensors, on_device, strict=True) if not there):
        where = [
            (NAME if there else "cpu", tuple(tensor.shape)) for tensor, there in zip(tensors, on_device, strict=True)
        ]
        raise MixedDevices(f"Expected all tensors of {func} to be on the same device, got {where}.")


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    packet, from_device = func.overloadpacket, any(isinstance(t, SecondTensor) for t in _tensors((args, kwargs)))
    if packet not in COPYING:
        _check(func, args, kwargs)
    to = kwargs.get("device")
    to_host = from_device and to is not None and torch.device(to).type == "cpu"
    inner = pytree.tree_map(lambda value: value.inner if isinstance(value, SecondTensor) else value, (args, kwargs))
    if to is not None:
        inner[1]["device"] = torch.device("cpu")
    into_host = packet is aten.copy_ and not isinstance(args[0], SecondTensor)
    if packet in READING or to_host or into_host:
        reads[packet.__name__] += 1
    out = func(*inner[0], **inner[1])
    if into_host:
        return args[0]
    if packet is aten._to_copy and out is inner[0][0]:  # a copy to another device is never the tensor itself
        out = out.clone()
    if to_host:
        return out
    out = pytree.tree_map(lambda value: SecondTensor(value) if isinstance(value, torch.Tensor) else value, out)
    return return_and_correct_aliasing(func, args, kwargs, out)


class _Module:
    """What `torch.second` answers, as `torch.cuda` does."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def set_device(self, device: Any) -> None: ...

    def synchronize(self, device: Any = None) -> None: ...

    def empty_cache(self) -> None: ...

    def manual_seed(self, seed: int) -> None: ...

    def manual_seed_all(self, seed: int) -> None: ...

    def _is_in_bad_fork(self) -> bool:
        return False


def _factories() -> Iterator[tuple[str, Any]]:
    """Yield the operations that make a tensor from no tensor, with their names."""
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.removeprefix("aten::").partition(".")
        if full.startswith("aten::") and not overload.endswith("out"):
            with contextlib.suppress(AttributeError, RuntimeError):  # some operations have no Python name
                op = getattr(getattr(aten, name), overload or "default")
                arguments = op._schema.arguments
                if any(a.name == "device" for a in arguments) and not any("Tensor" in str(a.type) for a in arguments):
                    yield full.removeprefix("aten::"), op


_library: list[torch.library.Library] = []  # the operations are registered as long as this object lives


def install() -> None:
    """Register the device, before the first backward of the process: autograd then starts a thread for each device."""
    if _library:
        return
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    torch.__future__.set_swap_module_params_on_conversion(True)  # `Module.to` cannot set `data` to another class
    library = torch.library.Library("aten", "IMPL")
    for name, op in _factories():
        library.impl(name, lambda *a, op=op, **k: SecondTensor(op(*a, **{**k, "device": "cpu"})), "PrivateUse1")

    # torch.tensor(..., device="second") and `to` call these with a CPU tensor.
    def to_copy(tensor: torch.Tensor, **options: Any) -> SecondTensor:
        return SecondTensor(aten._to_copy.default(tensor, **{**options, "device": "cpu"}).clone())

    def copy_from(source: torch.Tensor, target: Any, non_blocking: bool = False) -> Any:
        return target.copy_(source)

    library.impl("_to_copy", to_copy, "PrivateUse1")
    library.impl("_copy_from", copy_from, "PrivateUse1")
    _library.append(library)


@contextlib.contextmanager
def trainers_here(on: bool = True) -> Iterator[None]:
    """Let accelerate choose the device for trainers that are made within. Their config has `use_cpu=False`."""
    from accelerate import PartialState
    from accelerate.state import AcceleratorState

    def forget() -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        PartialState._reset_state()

    before = os.environ.pop("ACCELERATE_TORCH_DEVICE", None)
    try:
        if on:
            os.environ["ACCELERATE_TORCH_DEVICE"] = f"{NAME}:0"
        forget()
        yield
    finally:
        forget()
        os.environ.pop("ACCELERATE_TORCH_DEVICE", None)
        if before is not None:
            os.environ["ACCELERATE_TORCH_DEVICE"] = before
