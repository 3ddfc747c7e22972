"""A module that a vLLM server's worker loads, so that weights come over TCP. NCCL has no CPU build.

Only the transport of vLLM's NCCL engine is replaced. The requests, announcements and steps of a transfer are vLLM's.
"""

from typing import Any

import torch
from vllm.distributed.utils import StatelessProcessGroup
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine


class TCPWeightTransferEngine(NCCLWeightTransferEngine):
    """A transfer engine for a server with one worker."""

    def init_transfer_engine(self, init_info: Any) -> None:
        assert init_info.packed
        address = init_info.master_address, init_info.master_port
        ranks = {"rank": init_info.rank_offset, "world_size": init_info.world_size}
        self.model_update_group = StatelessProcessGroup.create(*address, **ranks)

    def receive_weights(self, update_info: Any) -> None:
        announced = zip(update_info.names, update_info.dtype_names, update_info.shapes, strict=True)
        for name, dtype_name, shape in announced:
            weight = self.model_update_group.broadcast(None, src=0)
            assert (weight.dtype, list(weight.shape)) == (getattr(torch, dtype_name), list(shape))
            self.model.load_weights([(name, weight)])


WeightTransferEngineFactory._registry["nccl"] = lambda: TCPWeightTransferEngine


class Extension:
    """An empty class that vLLM adds to its worker. Naming it makes the worker import this module."""
