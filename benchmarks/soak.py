r"""Kill processes of training runs at random times, resume the runs, and compare them with an undisturbed run.

    python benchmarks/soak.py --minutes 25 --every 25 --seed 1 --folder /tmp/soak     # takes 10 minutes more than that

First it does an undisturbed run of `--steps` steps on `--processes` processes, with a recipe like arithmetic_cpu. Then
it repeats this run, round after round. At random times, about every `--every` seconds, one process gets SIGKILL. (In
four of five starts it kills nothing before the first step.) The processes are:

- `launcher`: the process of `trl-grpo-plus run`
- `rank 0`, `other ranks`: the trainers
- `fork server`: the process of a rank that forks its reward workers
- `reward worker`: a process that scores samples of a rank
- `view server`: `trl-grpo-plus view --serve`, which follows the run; it is started again after each kill

A run that ended early is resumed (`--resume_from_checkpoint true`; without a checkpoint it begins anew) until it is
done. After each round the script compares its folder with the folder of the undisturbed run, and prints differences:

- weights, and all lines of the traces that the reader shows: equal bit for bit, no line missing or there twice
- the entries of metrics.jsonl, alarms.jsonl and first_prompt.jsonl: equal, except metrics that measure time, or that
  transformers counts since the last start (`CLOCKS`)
- the names of all files; files that a resumed run has moved aside (`superseded-N`, `earlier-N`) are counted
- each file of attempts that a start of the run left is still there, with the same content
- all files of attempts and all checkpoints can be read
- no process of a run is left, and its TMPDIR is empty, except for files that torch leaves there in every run
  (`torchelastic_*`, `torchinductor_*`), or that wandb, which TRL imports, leaves when it is killed (`*wandb-media`,
  `*wandb-artifacts`)

If two reward workers in a row are killed on the same sample, the sample has no reward ("starved",
docs/when_things_fail.md), and the weights differ from then on. Such a round is reported as starved: its weights and
lines are not compared. The exit status is 1 if something differs. docs/when_things_fail.md has figures.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
import yaml
from safetensors.torch import load_file

from trl_grpo_plus.traces import reader
from trl_grpo_plus.trainer.checkpoint_integrity import lacking


KINDS = ("launcher", "rank 0", "other ranks", "fork server", "reward worker", "view server")
RECIPE = Path(__file__).parents[1] / "recipes" / "arithmetic_cpu.yaml"
PACKAGE = [sys.executable, "-m", "trl_grpo_plus.cli.main"]
MARK = "TRL_GRPO_PLUS_SOAK"  # environment variable that marks all processes of one start; children inherit it
OTHERS_LEAVE = ("torchelastic_*", "torchinductor_*", "*wandb-media", "*wandb-artifacts")
ENDS_WITHIN_S = 60  # time for the other processes of a run to end after one was killed
TRAINS_FIRST = 0.8  # share of the starts in which nothing is killed before the first step, so that the run advances
ASIDE = ("superseded-", "earlier-")
CLOCKS = re.compile(r"_time$|runtime$|_per_second$|^total_flos$|^train_loss$")
MOST_ATTEMPTS = 100


def recipe(options: argparse.Namespace, output_dir: Path) -> dict[str, Any]:
    """Return arithmetic_cpu with a reward in worker processes and a checkpoint every few steps."""
    own = {
        "prepare_args": {"warm_steps": 300},
        "reward_funcs": [{"name": "exact_answer", "timeout": 10}],
        "seed": options.seed,
        "output_dir": str(output_dir),
        "max_steps": options.steps,
        "save_steps": options.save_steps,
        "save_total_limit": 3,
        "logging_steps": 1,
        "per_device_train_batch_size": 96 // options.processes,
        "per_device_eval_batch_size": 384 // options.processes,
        # Otherwise DDP sums the gradients of a start's first step in another order, which matters from 3 processes on.
        "ddp_find_unused_parameters": options.processes > 2,
    }
    return {**yaml.safe_load(RECIPE.read_text()), **own}


def start(command: list[str], mark: str, log: Path) -> subprocess.Popen[bytes]:
    """Start a command of the package in its own session, with its own TMPDIR and mark."""
    temporary = log.with_name("tmp")
    temporary.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, MARK: mark, "TMPDIR": str(temporary), "HF_HUB_OFFLINE": "1"}
    with log.open("ab") as file:
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
        return subprocess.Popen([*PACKAGE, *command], env=env, **streams, start_new_session=True)


def living(mark: str) -> dict[int, str]:
    """Return process id -> kind of all processes with this mark."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environ = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            if f"{MARK}={mark}" in environ:
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                of_parent = Path("/proc", parent, "cmdline").read_text()
                found[int(entry.name)] = kind_of(words, of_parent, environ)
    return found


def kind_of(words: list[str], of_parent: str, environ: list[str]) -> str:
    """Return the kind of a process: one of [`KINDS`], or its command line if it is none of them."""
    if "trl_grpo_plus.launch.launcher_main" in words or (words[2:4] == ["trl_grpo_plus.cli.main", "run"]):
        return "launcher"
    if any(word.endswith("fork_server.py") for word in words):
        return "reward worker" if "fork_server.py" in of_parent else "fork server"
    if "trl_grpo_plus.recipes.grpo" in words:
        return "rank 0" if "RANK=0" in environ else "other ranks"
    return "view server" if "--serve" in words else " ".join(words)


def kill_one(marks: list[str], kinds: Sequence[str], chance: random.Random) -> str | None:
    """Kill a process of a random one of the kinds, and return the kind; `None` if none was there to kill."""
    running: dict[str, list[int]] = {}
    for mark in marks:
        for pid, kind in living(mark).items():
            running.setdefault(kind, []).append(pid)
    there = [kind for kind in kinds if kind in running]
    if not there:
        return None
    kind = chance.choice(there)
    try:
        os.kill(chance.choice(running[kind]), signal.SIGKILL)
    except ProcessLookupError:
        return None
    return kind


def wait_for_the_rest(mark: str) -> tuple[float, list[str]]:
    """Wait until no process of an ended start is left; kill those that stay. Return the seconds and their kinds."""
    begun = time.monotonic()
    while left := living(mark):
        if time.monotonic() > begun + ENDS_WITHIN_S:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return time.monotonic() - begun, sorted(left.values())
        time.sleep(0.1)
    return time.monotonic() - begun, []


def trains(run: Path, begun: float) -> bool:
    """Return whether a step was sampled since `begun`."""
    newest = reader.newest_training_file(run)
    with contextlib.suppress(FileNotFoundError):  # a resumed run has just moved it aside
        return newest is not None and newest.stat().st_mtime > begun
    return False


def answers(log: Path) -> bool:
    """Return whether the page's server answers at the address that it printed last."""
    lines = [line for line in log.read_text().splitlines() if ": http://" in line]
    try:
        with urllib.request.urlopen(lines[-1].partition(": ")[2], timeout=30) as page:
            return bool(page.status == 200 and b"</html>" in page.read())
    except (OSError, IndexError):
        return False


def attempts_of(folder: Path) -> dict[str, set[str]]:
    """Return the name of each file of attempts -> its digests, in whatever folder it is."""
    found: dict[str, set[str]] = {}
    for path in folder.rglob("*.jsonl*"):
        if reader.parse_name(path):
            found.setdefault(path.name, set()).add(hashlib.sha256(path.read_bytes()).hexdigest())
    return found


def run_round(options: argparse.Namespace, folder: Path, end: float, chance: random.Random) -> dict[str, Any]:
    """Run the recipe until it is done, and kill processes until `end`; return what happened."""
    folder.mkdir(parents=True)
    run, round_log = folder / "run", folder / "run.log"
    (folder / "soak.yaml").write_text(yaml.safe_dump(recipe(options, run)))
    seen: dict[str, set[str]] = {}
    report: dict[str, Any] = {"kills": [], "attempts": 0, "resumes": 0, "restarts of the page": 0, "faults": []}
    page_mark, page, due = str(uuid4()), None, time.monotonic() + chance.uniform(0.6, 1.4) * options.every
    while report["attempts"] < MOST_ATTEMPTS:
        whole = [path for path in run.glob("checkpoint-*") if not lacking(path)]
        resume = ["--resume_from_checkpoint", "true"] if whole else []
        mark, report["attempts"], killed = str(uuid4()), report["attempts"] + 1, []
        report["resumes"] += bool(whole)
        command = ["run", str(folder / "soak.yaml"), "--num_processes", str(options.processes), *resume]
        begun, waits = time.time(), chance.random() < TRAINS_FIRST
        attempt = start(command, mark, round_log)
        while attempt.poll() is None:
            if time.monotonic() < end and (page is None or page.poll() is not None):
                report["restarts of the page"] += page is not None
                page = start(["view", str(run), "--serve"], page_mark, folder / "page.log")
            if waits and trains(run, begun):
                waits, due = False, time.monotonic() + chance.uniform(0.1, 1.4) * options.every
            if (
                not waits
                and due < time.monotonic() < end
                and (kind := kill_one([mark, page_mark], options.kinds, chance))
            ):
                done = len(list((run / reader.FOLDER).glob("train-*")))
                report["kills"].append(kind)
                killed.append(kind)
                print(f"{time.strftime('%X')} {folder.name}: {kind} killed, {done} steps sampled", flush=True)
                due = time.monotonic() + chance.uniform(0.6, 1.4) * options.every
            time.sleep(0.1)
        took, stayed = wait_for_the_rest(mark)
        report["slowest end (s)"] = max(took, report.get("slowest end (s)", 0.0))
        if stayed:
            report["faults"].append(f"{ENDS_WITHIN_S} s after {killed}, left running: {stayed}")
        if attempt.returncode and not {*killed} & {"launcher", "rank 0", "other ranks"}:
            report["faults"].append(f"attempt {report['attempts']} ended with {attempt.returncode} after {killed}")
        seen = {name: seen.get(name, set()) | some for name, some in {**seen, **attempts_of(run)}.items()}
        if attempt.returncode == 0:
            break
    else:
        report["faults"].append(f"not done after {MOST_ATTEMPTS} attempts")
    lost = [name for name, some in seen.items() if some - attempts_of(run).get(name, set())]
    report["faults"] += [f"lost: {name}" for name in sorted(lost)]
    if page is not None:
        if page.poll() is None and not answers(folder / "page.log"):
            report["faults"].append("the page's server does not answer")
        for pid in living(page_mark):
            os.kill(pid, signal.SIGKILL)
        page.wait()
    left = [path for path in (folder / "tmp").iterdir() if not any(map(path.match, OTHERS_LEAVE))]
    report["faults"] += [f"left in TMPDIR: {path.name}" for path in left]
    return report


def names(run: Path) -> set[str]:
    """Return the paths of a run's files, without what was moved aside."""
    paths = (path.relative_to(run) for path in run.rglob("*"))
    return {str(path) for path in paths if not any(part.startswith(ASIDE) for part in path.parts)}


def entry_of(entry: dict[str, Any]) -> str:
    """Return an entry of a journal without what differs between two runs of the same seeds."""
    return json.dumps({name: value for name, value in entry.items() if not CLOCKS.search(name)}, sort_keys=True)


def lines(run: Path) -> list[str]:
    """Return the attempts that the reader shows."""
    return [json.dumps(row, sort_keys=True) for group in reader.groups(run) for row in group]


def differences(whole: Path, run: Path) -> Iterator[str]:
    """Yield how a run that was killed and resumed differs from the undisturbed run with the same seeds."""
    differing = names(whole) ^ names(run)
    for name in sorted(name for name in differing if str(Path(name).parent) not in differing):
        yield f"file {name}: only in the {'undisturbed' if name in names(whole) else 'disturbed'} run"
    for path in run.glob("checkpoint-*"):
        if lack := lacking(path):
            yield f"{path.name}: {lack}"
        elif load_file(path / "model.safetensors"):
            torch.load(path / "optimizer.pt", weights_only=True)
    for path in run.rglob("*.jsonl*"):
        try:
            sum(1 for _ in reader.read_lines(path))
        except ValueError as error:
            yield str(error)
    for name in reader.JOURNALS:
        more, fewer = _beyond([[entry_of(entry) for entry in reader.journal(at, name)] for at in (run, whole)])
        if more or fewer:
            yield f"{name}.jsonl: entries more or other {more}, fewer {fewer}"
    of_run = lines(run)
    if any("starved" in json.loads(line)["outcomes"].values() for line in of_run):
        yield "starved: a sample's reward worker was killed twice; weights and lines are not compared"
        return
    more, fewer = _beyond([of_run, lines(whole)])
    if more or fewer:
        steps = sorted({json.loads(line)["step"] for line in [*more, *fewer]})
        yield f"{len(more)} lines of attempts more, {len(fewer)} fewer or other, at steps {steps}"
    ours, theirs = (load_file(at / "model.safetensors") for at in (run, whole))
    if different := [name for name in theirs if not torch.equal(ours[name], theirs[name])]:
        yield f"weights differ: {different}"


def _beyond(both: list[list[str]]) -> tuple[list[str], list[str]]:
    """Return what the first has more often than the second, and the reverse."""
    first, second = map(Counter, both)
    return list((first - second).elements()), list((second - first).elements())


def main() -> int:
    """Do all runs, print the table, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=25.0, help="time during which processes are killed")
    parser.add_argument("--every", type=float, default=25.0, help="seconds between two kills, roughly")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="processes that are killed")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--save_steps", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1, help="seed of the training and of the kills")
    parser.add_argument("--folder", type=Path, required=True, help="a new folder; it is kept")
    options = parser.parse_args()
    chance, begun = random.Random(options.seed), time.monotonic()
    folder = options.folder.resolve()
    faults = run_round(options, folder / "undisturbed", begun, chance)["faults"]
    end, reports = time.monotonic() + 60 * options.minutes, list[dict[str, Any]]()
    while time.monotonic() < end:
        name = f"round-{len(reports) + 1}"
        reports.append(run_round(options, folder / name, end, chance))
        reports[-1]["faults"] += differences(folder / "undisturbed" / "run", folder / name / "run")
        print(f"{name}: {reports[-1]}", flush=True)
        faults += [f"{name}: {fault}" for fault in reports[-1]["faults"]]
    kills = Counter(kind for report in reports for kind in report["kills"])
    print(f"\n| rounds | hours | steps | {' | '.join(KINDS)} | resumes | begun anew |\n|{'---|' * (len(KINDS) + 5)}")
    resumes = sum(report["resumes"] for report in reports)
    anew = sum(report["attempts"] for report in reports) - resumes - len(reports)
    row = [len(reports), f"{(time.monotonic() - begun) / 3600:.2f}", options.steps, *(kills[kind] for kind in KINDS)]
    print(f"| {' | '.join(map(str, [*row, resumes, anew]))} |\n")
    print("\n".join(faults) if faults else "All rounds equal the undisturbed run.")
    return int(any(": starved:" not in fault for fault in faults))


if __name__ == "__main__":
    sys.exit(main())
