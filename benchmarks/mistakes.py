"""Measure how long it takes until the command line reports a mistake in a recipe: `python benchmarks/mistakes.py`.

It writes a recipe for each mistake of tests/helpers/invalid_recipes.py, starts `trl-grpo-plus check` and `run` on it,
each in its own process without a network, and prints a line with the seconds until they refuse it. Some mistakes can
be refused only by the launch script, because it has read the data: their time with `run` includes all that accelerate
does before.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any


HELPERS = Path(__file__).parent.parent / "tests" / "helpers"
COMMAND = [sys.executable, "-m", "trl_grpo_plus.cli.main"]
LIMIT_S = 300


def main() -> int:
    """Print a line for each mistake, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="only mistakes whose name contains this text")
    parser.add_argument("-o", "--output", metavar="FILE", help="also write the figures as JSON")
    options = parser.parse_args()
    sys.path.insert(0, str(HELPERS))
    wrong = import_module("invalid_recipes")
    found: list[dict[str, Any]] = []
    print(f"{'seconds (of the processor) until it is refused by':52} {'check':>14} {'run':>14}")
    with tempfile.TemporaryDirectory() as folder:
        wrong.make_place(Path(folder))
        for mistake in wrong.MISTAKES:
            if options.only in mistake.name:
                found.append(clocked(mistake, Path(folder)))
                print(line(found[-1]), flush=True)
    figures = {"machine": machine(), "mistakes": found}
    clocks = [row[command] for row in found for command in ("check", "run") if row[command]]
    slowest, busiest = (max(clock[kind] for clock in clocks) for kind in ("seconds", "processor"))
    told = sum(row["told"] for row in found)
    print(
        f"\n{told} of {len(found)} told as they should be; at most {slowest:.1f} s, {busiest:.1f} s of the processor"
    )
    if options.output:
        Path(options.output).write_text(json.dumps(figures, indent=1) + "\n")
    return int(told < len(found))


def clocked(mistake: Any, folder: Path) -> dict[str, Any]:
    """Return the seconds until `check` and `run` refuse a mistake, and whether both print the expected message."""
    mistake.write(folder)
    check, check_told = started("check", mistake, folder, mistake.status)
    row = {"name": mistake.name, "by": mistake.by or "check", "check": check, "run": None, "told": check_told}
    if mistake.by:
        row["run"], run_told = started("run", mistake, folder, 2)
        row["told"] = check_told and run_told
    return row


def started(command: str, mistake: Any, folder: Path, status: int) -> tuple[dict[str, float], bool]:
    """Return a command's wall-clock and processor seconds, and whether its status and output are as expected."""
    words = [*COMMAND, command, mistake.recipe, *mistake.options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    start, before = time.perf_counter(), processor_seconds()
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    clock = {"seconds": round(time.perf_counter() - start, 2), "processor": round(processor_seconds() - before, 2)}
    said = " ".join((done.stdout + done.stderr).split())
    return clock, done.returncode == status and all(" ".join(words.split()) in said for words in mistake.says)


def processor_seconds() -> float:
    """Return the processor seconds of all commands so far, which do not depend on what else the machine does."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def line(row: dict[str, Any]) -> str:
    """Return the figures of a mistake as a line of the table."""
    both = [
        f"{row[command]['seconds']:6.1f} ({row[command]['processor']:.1f})" if row[command] else ""
        for command in ("check", "run")
    ]
    return f"{row['name']:52} {both[0]:>14} {both[1]:>14}  {'' if row['told'] else 'NOT TOLD'}"


def machine() -> str:
    """Return the cores and versions of this machine."""
    python, cores = platform.python_version(), os.cpu_count()
    return f"{cores} cores, Python {python}, TRL {version('trl')}, torch {version('torch')}, no network"


if __name__ == "__main__":
    sys.exit(main())
