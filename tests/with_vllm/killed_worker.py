"""The script that test_vllm_server.py runs: `python killed_worker.py FOLDER URL PORT`.

It trains with the server at URL, and sends its weights by PORT. It kills itself between two tensors of the second
update.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import shims
import torch
import watched
from trl.generation import vllm_client


TENSORS = 5  # sent in the second update before the end
updates = 0


def send(iterator: Iterator, group: SimpleNamespace, src: int, post_iter_func: Callable[[Any], torch.Tensor]) -> None:
    global updates
    updates += 1
    shims.send(_killing(iterator) if updates == 2 else iterator, group, src, post_iter_func)


def _killing(tensors: Iterator) -> Iterator:
    for number, tensor in enumerate(tensors):
        if number == TENSORS:
            os.kill(os.getpid(), signal.SIGKILL)
        yield tensor


if __name__ == "__main__":
    folder, url, port = sys.argv[1:]
    shims.install()
    vllm_client.packed_nccl_broadcast_producer = send
    watched.trained(Path(folder), vllm_mode="server", vllm_server_base_url=url, vllm_group_port=int(port))
