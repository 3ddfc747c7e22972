"""Count the collectives of one generation batch and their bytes, with our trainer and with TRL's.

    python benchmarks/collectives.py [--processes 2 8] [--rows 8] [--seconds 5] [--output results.json]

It prints a table for each number of processes. Each mode of tests/helpers/collectives.py trains the tiny model of the
tests for two steps, on gloo processes of this machine; the second step is counted. A rank has `--rows` attempts of six
tokens, in groups of four. Half of the groups are dead, so that rows change rank with drop and with resample, which
samples one further round. A tensor gather is an all_gather. An object gather sends a pickle, in two messages (its
size, then its bytes). An exchange is an all_to_all. "sent" is the number of bytes that a rank hands in, "got" the
number that it gets from all others: of rank 0, and the largest of any other rank. The table leaves out what
DistributedDataParallel does by itself (gradients, buffers), because that runs in C++.

With `--seconds ROUNDS` it also measures the time of some modes. In each round all of them train for ten steps, in a
random order; the first two steps are warm-up. The table has the median step over the rounds, in wall-clock seconds and
in processor seconds of all ranks, and its ratio to TRL's step in the same round, with the lowest and the highest ratio
of the rounds. TRL runs twice: the difference between its two runs is noise. After each training all ranks must have
equal weights. The ratio is near the worst case, because the model is tiny and the cost of an option does not grow with
the model.

With `--slow MILLISECONDS` the last process sleeps at the start of each measured step, like a process with longer
attempts. "x TRL" then shows whether an option makes the other processes wait for it more often than TRL does.
"""

import argparse
import hashlib
import importlib
import itertools
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


HELPERS = Path(__file__).resolve().parent.parent / "tests" / "helpers"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
ENVIRONMENT |= {"ACCELERATE_USE_CPU": "true", "TOKENIZERS_PARALLELISM": "false"}
SHORT = {"tensor gathers": "T", "object gathers": "O", "exchanges": "E"}
SHORT |= {"broadcasts": "B", "sums": "S", "barriers": "W"}


TIMED = {
    "TRL": "TRL",
    "TRL once more": "TRL",
    "everything off": "everything off",
    "keep, traces, alarms": "keep, traces, alarms",
    "skip, traces, alarms": "skip, traces, alarms",
    "drop, traces, alarms": "drop, traces, alarms",
    "resample, one more round, traces, alarms": "resample, one more round, traces, alarms",
    "prompt choice, belief baseline, traces, alarms": "prompt choice, belief baseline, traces, alarms",
    "prompt choice, belief baseline and head": "prompt choice, belief baseline and head",
}
STEPS, WARM = 10, 2


def work(out: Path, rows: int, rounds: int, slow: float) -> None:
    """Count each mode, and measure the time of some, on one of the processes."""
    sys.path.insert(0, str(HELPERS))  # before this folder, which has a file of the same name as the helper
    ledger = importlib.import_module("collectives")
    from accelerate import PartialState

    state = PartialState(cpu=True)
    counted = {mode: ledger.summary(ledger.of_one_batch(out, mode, rows)) for mode in ledger.MODES}
    order, seconds = random.Random(0), {name: list[tuple[float, float]]() for name in TIMED}
    for _ in range(rounds):
        for name in order.sample(list(TIMED), len(TIMED)):
            seconds[name].append(clocked(ledger, out, TIMED[name], rows, slow))
    (out / f"{state.process_index}.json").write_text(json.dumps({"counted": counted, "seconds": seconds}))
    state.wait_for_everyone()


def clocked(ledger: Any, out: Path, mode: str, rows: int, slow: float) -> tuple[float, float]:
    """Return seconds per step, without the first steps: the wall-clock median, and the mean of processor seconds.

    Assert that all ranks have equal weights afterwards.
    """
    tiny_models = importlib.import_module("tiny_models")
    from accelerate import PartialState
    from accelerate.utils import gather_object
    from transformers import TrainerCallback

    sleeps = slow / 1000 if PartialState().is_last_process else 0.0
    ends: list[float] = []
    busy: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            time.sleep(sleeps)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            ends.append(time.perf_counter())
            busy.append(time.process_time())

    trainer = ledger.trainer(out, mode, rows, max_steps=STEPS)
    trainer.add_callback(Clock())
    trainer.train()
    digest = hashlib.sha256()
    for _, value in sorted(tiny_models.weights(trainer).items()):
        digest.update(value.numpy().tobytes())
    weights = gather_object([digest.hexdigest()])
    assert len(set(weights)) == 1, f"{mode}: the ranks' weights differ"
    taken = [after - before for before, after in itertools.pairwise(ends[WARM - 1 :])]
    return statistics.median(taken), (busy[-1] - busy[WARM - 1]) / len(taken)


def launch(out: Path, processes: int, *arguments: str) -> None:
    """Run this file in several processes that find each other."""
    warm_processes = importlib.import_module("warm_processes")
    command = [sys.executable, os.path.abspath(__file__), "--worker", str(out), *arguments]
    done = warm_processes.run_ranks(command, processes, env=dict(os.environ), timeout=3600)
    if done.returncode:
        sys.exit(done.stderr[-5000:])


def prepare() -> None:
    """Set the environment variables that libraries read at import, and put the tests' helpers on the path."""
    if not ENVIRONMENT.items() <= os.environ.items():
        os.environ.update(ENVIRONMENT)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    sys.path.insert(0, str(HELPERS))


def kinds(of_owner: dict[str, Any]) -> str:
    return " ".join(f"{SHORT[kind]}{count}" for kind, count in of_owner["kinds"].items()) or "-"


def report(processes: int, rows: int, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Print the table for one number of processes, and return its figures."""
    print(f"\n{processes} processes, {rows} attempts a process")
    print("T tensor gathers, O object gathers, E exchanges, B broadcasts, S sums")
    print(f"{'':42}{'ours':>12}{'sent':>8}{'got, 0':>9}{'others':>8}{'TRL':>13}{'sent':>7}{'got':>7}")
    figures = {}
    for mode in ranks[0]:
        ours, theirs = ([rank[mode][owner] for rank in ranks] for owner in ("ours", "theirs"))
        figures[mode] = {
            "ours": {"kinds": ours[0]["kinds"], "sent": max(one["sent"] for one in ours), "got_0": ours[0]["got"]},
            "theirs": {"kinds": theirs[0]["kinds"], "sent": max(one["sent"] for one in theirs)},
        }
        figures[mode]["ours"] |= {"got_others": max(one["got"] for one in ours[1:]), "sites": ours[0]["sites"]}
        figures[mode]["theirs"]["got"] = max(one["got"] for one in theirs)
        mine, stock = figures[mode].values()
        print(
            f"{mode:42}{kinds(mine):>12}{mine['sent']:8}{mine['got_0']:9}{mine['got_others']:8}"
            f"{kinds(stock):>13}{stock['sent']:7}{stock['got']:7}"
        )
    return figures


def report_seconds(ranks: list[dict[str, list[tuple[float, float]]]]) -> dict[str, Any]:
    """Print the table of seconds: wall-clock seconds of rank 0, and processor seconds of all ranks."""
    print(f"{'':48}{'clock':>11}{'x TRL':>7} (least, most){'processors':>14}{'x TRL':>7} (least, most)")
    figures: dict[str, Any] = {}
    rounds = range(len(ranks[0]["TRL"]))
    takes = {
        name: {
            "clock": [ranks[0][name][r][0] for r in rounds],
            "processors": [sum(rank[name][r][1] for rank in ranks) for r in rounds],
        }
        for name in ranks[0]
    }
    for name, of_name in takes.items():
        line, figures[name] = f"{name:48}", {}
        for what, taken in of_name.items():
            ratios = [mine / stock for mine, stock in zip(taken, takes["TRL"][what], strict=True)]
            middle, ratio = statistics.median(taken), statistics.median(ratios)
            figures[name][what] = {"step_s": middle, "ratio": ratio, "least": min(ratios), "most": max(ratios)}
            line += f"{1000 * middle:8.0f} ms{ratio:7.2f} ({min(ratios):5.2f}, {max(ratios):4.2f})   "
        print(line)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--rows", type=int, default=8, help="attempts per process: a multiple of 4")
    parser.add_argument(
        "--seconds", type=int, default=0, metavar="ROUNDS", help="also time optimizer steps, in this many rounds"
    )
    parser.add_argument(
        "--slow", type=float, default=0, metavar="MILLISECONDS", help="delay of the last process at each step"
    )
    parser.add_argument("--output", type=Path, default=None, help="also write the figures as JSON")
    parser.add_argument("--worker", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.rows, options.seconds, options.slow)
        return
    prepare()
    import torch
    import trl

    versions = f"Python {platform.python_version()}, torch {torch.__version__}, trl {trl.__version__}"
    print(f"python {' '.join(sys.argv)}\n{versions}, {os.cpu_count()} cores")
    figures = {}
    for processes in options.processes:
        with tempfile.TemporaryDirectory() as out:
            arguments = ("--rows", options.rows, "--seconds", options.seconds, "--slow", options.slow)
            launch(Path(out), processes, *map(str, arguments))
            ranks = [json.loads(Path(out, f"{rank}.json").read_text()) for rank in range(processes)]
        figures[processes] = report(processes, options.rows, [rank["counted"] for rank in ranks])
        if options.seconds:
            figures[processes] |= {"seconds": report_seconds([rank["seconds"] for rank in ranks])}
    if options.output:
        written = {"versions": versions, "rows": options.rows, "slow_ms": options.slow, "figures": figures}
        options.output.write_text(json.dumps(written, indent=2) + "\n")


if __name__ == "__main__":
    main()
