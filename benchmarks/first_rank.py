"""Measure what the first process holds while it gathers the attempts of a batch for the traces.

    python benchmarks/first_rank.py [--processes 2 8 16] [--mb 4]

Each gloo process of this machine sends `--mb` MB of pickled text to the first one, as the recorder does with the
attempts of a batch (`utils.distributed.gather_on_first_rank`), and the last process sends three times as much. The
table compares pieces of that function's bound with a bound that is never reached. "buffers" is the most that lies in
the receiving tensors at once. On a GPU this is memory of the GPU. "peak" is the most resident memory of the first
process beyond what it had before, without the objects that it returns. Each line has processes of its own, so that no
line uses memory that another one freed.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock


ONE_PIECE, PIECES = "one piece", "pieces"
UNBOUNDED = 2**50
MB = 2**20


def resident(field: str) -> int:
    """Return a field of this process's status (`VmRSS`, `VmHWM`) in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


def measure(mb: int, name: str) -> None:
    """Gather in one way, as one of the processes, and print its line on the first."""
    import torch
    from accelerate import PartialState

    from trl_grpo_plus.utils import distributed

    state = PartialState(cpu=True)
    largest, exchange = [0], torch.distributed.all_to_all_single

    def noted(buffer: torch.Tensor, *others: Any) -> None:
        largest[0] = max(largest[0], buffer.numel())
        exchange(buffer, *others)

    share = 3 * mb if state.process_index == state.num_processes - 1 else mb
    own = [f"{state.process_index} {number:9} ".ljust(4096, "x") for number in range(share * MB // 4096)]
    bound = {ONE_PIECE: UNBOUNDED, PIECES: distributed.RECEIVED_AT_ONCE}[name]
    state.wait_for_everyone()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, begun = resident("VmRSS"), time.perf_counter()
    with (
        mock.patch.object(distributed, "RECEIVED_AT_ONCE", bound),
        mock.patch("torch.distributed.all_to_all_single", noted),
    ):
        everyones = distributed.gather_on_first_rank(own)
    seconds, peak = time.perf_counter() - begun, resident("VmHWM") - before
    kept = sum(len(text) for texts in everyones for text in texts)
    if state.is_main_process:
        sizes = " | ".join(f"{size / MB:.0f}" for size in (kept, largest[0], peak - kept))
        print(f"| {state.num_processes} | {name} | {sizes} | {seconds:.2f} |", flush=True)
    state.wait_for_everyone()


def main() -> None:
    """Start the processes, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 8, 16])
    parser.add_argument("--mb", type=int, default=4)
    parser.add_argument("--worker", choices=(ONE_PIECE, PIECES), default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return measure(options.mb, options.worker)
    head = ["processes", "sent as", "objects, MB", "buffers, MB", "peak beyond the objects, MB", "s"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for processes in options.processes:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
        for name in (ONE_PIECE, PIECES):
            worker = [*launcher, __file__, "--mb", str(options.mb), "--worker", name]
            subprocess.run(worker, env=environment, check=True)


if __name__ == "__main__":
    main()
