"""Follow docs/quick_start.md in an empty folder, from the clone to the page, and print how long each step takes.

    python benchmarks/first_minutes.py [--torch "torch==2.13.0"]

It clones this repository into a temporary folder, and writes and runs the page's blocks there, in their order: a block
of Python that begins with a file's name is that file; each line of bash is run as it stands, in a shell of its own
with the environment that the page makes. Only the address of PyTorch's builds may be another one: `--torch` is what
pip installs in its place. The table has the minutes and seconds from the start, the seconds of each command, and the
last line that it printed. The time to read the page is not in it.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path


ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FROM_PYTORCH = re.compile(r"pip install torch --index-url \S+")


def commands(page: str, folder: Path, torch: str | None) -> list[str]:
    """Write the page's files into a folder, and return its commands."""
    found = []
    for kind, text in BLOCK.findall(page):
        if kind == "python":
            (folder / text.splitlines()[0].removeprefix("# ")).write_text(text)
            continue
        for line in text.splitlines():
            command = line.partition("  #")[0].strip()
            found.append(FROM_PYTORCH.sub(f"pip install {torch}", command) if torch else command)
    return found


def run(command: str, folder: Path) -> str:
    """Run a command in the environment, if there is one yet; return the last line that it printed."""
    script = f"set -e; [ ! -e .venv ] || source .venv/bin/activate; {command}"
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command} ended with status {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    lines = done.stdout.strip().splitlines()
    return lines[-1] if lines else ""


def main() -> None:
    """Follow the page and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--torch", help="what pip installs as PyTorch, if the page's address cannot be reached")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        clone = Path(scratch) / "trl-grpo-plus"
        start = time.perf_counter()
        print("| at | command | seconds | the last line printed |\n|---|---|---|---|")
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        for command in commands((clone / "docs" / "quick_start.md").read_text(), clone, options.torch):
            before = time.perf_counter()
            last = run(command, clone).replace("|", "\\|")
            minutes, seconds = divmod(round(before - start), 60)
            print(
                f"| {minutes}:{seconds:02} | `{command}` | {time.perf_counter() - before:.0f} | {last[:100]} |",
                flush=True,
            )
        minutes, seconds = divmod(round(time.perf_counter() - start), 60)
        print(f"| {minutes}:{seconds:02} | | | |")


if __name__ == "__main__":
    main()
