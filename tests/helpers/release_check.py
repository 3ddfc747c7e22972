"""The script of `make release-check`. It checks that the wheel in dist/ works in an environment of its own, and that
the source archive builds the same wheel.

    python tests/helpers/release_check.py .venv-release/bin/python

That environment has the wheel without extras. This script needs only the standard library.
"""

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


ROOT = Path(__file__).parents[2]
PIP = ["-m", "pip", "--disable-pip-version-check"]
TRAINING = ["run", "arithmetic_cpu", "--max_steps", "2", "--output_dir", "out", "--prepare_args", '{"warm_steps": 20}']
FENCED = re.DOTALL | re.MULTILINE
IMPORTED = """
import importlib.metadata, trl_grpo_plus
from trl_grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
print(trl_grpo_plus.__file__, trl_grpo_plus.__version__, importlib.metadata.version("trl-grpo-plus"))
"""


def only(pattern: str, folder: Path = ROOT / "dist") -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        sys.exit(f"{folder} must have one {pattern}, and has {[path.name for path in found]}")
    return found[0]


def run(*words: str | Path, cwd: Path) -> str:
    """Return what a command prints. It runs in `cwd`, without PYTHONPATH, so that it cannot import the repository."""
    command = [str(word) for word in words]
    shown = [Path(word).name if os.path.isabs(word) else "..." if "\n" in word else word for word in command]
    print("+", *shown, flush=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\nexit status {done.returncode}")
    return done.stdout


def expect(holds: bool, what: str, output: object) -> None:
    if not holds:
        sys.exit(f"not so: {what}\n{output}")


def files(wheel: Path) -> dict[str, int]:
    """Return file -> checksum. RECORD and WHEEL, which describe the build, get 0."""
    built = re.compile(r"\.dist-info/(RECORD|WHEEL)$")
    with zipfile.ZipFile(wheel) as archive:
        return {entry.filename: 0 if built.search(entry.filename) else entry.CRC for entry in archive.infolist()}


def the_archive_makes_the_same_wheel(wheel: Path, folder: Path) -> None:
    run(sys.executable, *PIP, "wheel", "--no-deps", "--wheel-dir", folder / "again", only("*.tar.gz"), cwd=folder)
    ours, again = files(wheel), files(only("*.whl", folder / "again"))
    expect(ours == again, "the source archive makes the same wheel", sorted(ours.items() ^ again.items()))


def shorter(code: str) -> str:
    """Return a block of the quick start with fewer steps, on the CPU."""
    for long, short in {
        "seed=1)": "seed=1, use_cpu=True, disable_tqdm=True)",
        "model)\n": "model, warm_steps=20)\n",
        "max_steps=100": "max_steps=2",
        "logging_steps=10": "logging_steps=1",
        "eval_steps=100": "eval_steps=2",
        "bf16=torch.cuda.is_available()": "bf16=False, use_cpu=True, disable_tqdm=True",
    }.items():
        code = code.replace(long, short)
    return code


def the_pages_scripts_work(python: Path, folder: Path) -> None:
    """Run the README's reward and, with fewer steps, the scripts of the quick start."""
    command = python.with_name("trl-grpo-plus")
    for page in ("README.md", "docs/quick_start.md"):
        for name, code in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", (ROOT / page).read_text(), FENCED):
            (folder / name).write_text(shorter(code))
    run(command, "check", "rewards", "my_rewards.py:ends_well", cwd=folder)
    for script in ("quick_data.py", "quick_model.py"):
        run(python, script, cwd=folder)
    run(command, "check", "rewards", "quick_reward.py:right_sum", "--dataset", "quick_train.jsonl", cwd=folder)
    printed = run(python, "quick_run.py", cwd=folder)
    expect("step    2  eval: reward" in printed, "the quick start's script trains", printed)


def the_wheel_works(wheel: Path, python: Path, folder: Path) -> None:
    command, version = python.with_name("trl-grpo-plus"), wheel.name.split("-")[1]
    file, *versions = run(python, "-c", IMPORTED, cwd=folder).splitlines()[-1].split()
    expect(Path(file).is_relative_to(python.parents[1]), "the package is the wheel's", file)
    expect(versions == [version, version], f"the version is {version}", versions)
    listed = run(command, "ls", cwd=folder)
    expect("arithmetic_cpu" in listed and "math_answer" in listed, "`ls` names recipes and rewards", listed)
    run(command, *TRAINING, cwd=folder)
    run(command, "view", "out", cwd=folder)
    page = folder / "out" / "report.html"
    expect(page.is_file() and page.stat().st_size > 50_000, "`view` writes the page", page)
    the_pages_scripts_work(python, folder)
    lacking = run(command, "check", "rewards", "math_answer", cwd=folder)
    expect("trl-grpo-plus[rewards]" in lacking, "a reward that lacks its package names the extra", lacking)
    run(python, *PIP, "install", "--quiet", "-c", ROOT / "constraints.txt", f"{wheel}[rewards]", cwd=folder)
    checked = run(command, "check", "rewards", "math_answer", cwd=folder)
    expect(bool(re.search(r" ok +examples ([1-9]\d*)/\1,", checked)), "a reward is right on its examples", checked)


def main() -> None:
    wheel, python = only("*.whl"), Path(sys.argv[1]).absolute()  # a link to another interpreter: not resolved
    with tempfile.TemporaryDirectory() as temporary:
        the_archive_makes_the_same_wheel(wheel, Path(temporary))
        the_wheel_works(wheel, python, Path(temporary))
    print(f"{wheel.name} works.")


if __name__ == "__main__":
    main()
