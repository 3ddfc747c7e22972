"""Measure what the traces of a long run cost: bytes on disk, the live page, static pages, `rescore` and `export`.

    python benchmarks/long_traces.py --attempts 100000 500000 5000000 [--compress] [--folder /tmp/long]
        [--skip rescore export] [--keep] [--output results.json]

The package's own writer writes a made-up run. Each step has the attempts of 16 ranks, 8 groups of 8 on each rank, as
rank 0 writes them. Prompts have about 60 words (20,000 different words), completions about 200, with a think part and
an answer. Each attempt has two rewards, an advantage and a belief. Prompts become easier over the run. Then each
command runs in its own process; its peak resident memory is that of the kernel's count. It prints a line for each
command, with these figures:

| figure | |
|---|---|
| open | time from the start of `view --serve` until its first page is read |
| group, next step | the request for texts after a click: on a group in the middle, and on one a step later |
| search | all requests of one search over the texts of the list: the largest and the sum |
| during search | the largest of 50 requests for a group's texts, while another reader searches |
| prompts | the first and the second request for the lists of prompts |
| follow | the texts of the first and of the last group of a prompt |
| poll | the request that asks for news every few seconds |
| unindexed | open, for a copy of the run's files without the index |
| compare | the page of two runs: this one and a copy of it, which share all prompts |

`open` and the requests are the best of three. `cpu_s` is processor time. `load` is the load average of the last minute
when the program begins. On a shared machine all times but `cpu_s` are upper bounds.

With `--compress` the run is written again with `trace_compress`. A run of 5,000,000 attempts takes 11 GB of disk.
"""

import argparse
import json
import multiprocessing
import os
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil


RANKS, GROUPS, SIZE = 16, 8, 8  # ranks, groups on each rank in a step, attempts in a group
PROMPTS = 20_000
PROGRAMS = ("serve", "unindexed", "page", "compare", "rescore", "export")
COMMAND = [sys.executable, "-m", "trl_grpo_plus.cli.main"]
Row = dict[str, Any]
ABOUT = {"rewards": {"accuracy": 1.0, "format": 0.2}, "num_generations": SIZE, "solved_reward": 1.2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, nargs="+", default=[100_000])
    parser.add_argument("--compress", action="store_true", help="also write and open a compressed run")
    parser.add_argument("--folder", type=Path, help="folder of the runs (default: a temporary folder)")
    parser.add_argument("--skip", nargs="*", default=[], choices=PROGRAMS)
    parser.add_argument("--keep", action="store_true", help="keep the runs, and use runs that an earlier call kept")
    parser.add_argument("--output", type=Path, help="also write the figures as JSON")
    options = parser.parse_args()
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    versions = f"Python {platform.python_version()}, {os.cpu_count()} cores, load averages {load}"
    print(versions)
    figures: dict[str, Any] = {"versions": versions}
    with tempfile.TemporaryDirectory() as scratch:
        for attempts in options.attempts:
            for compress in (False, True)[: 1 + options.compress]:
                name = f"{attempts}{'-gzip' * compress}"
                folder = (options.folder or Path(scratch)) / name
                figures[name] = measured(folder, attempts, compress, options.skip)
                if not options.keep:
                    shutil.rmtree(folder)
    if options.output:
        options.output.write_text(json.dumps(figures, indent=2) + "\n")


def measured(folder: Path, attempts: int, compress: bool, skip: list[str]) -> dict[str, Any]:
    """Write a run, and measure all commands on it."""
    print(f"\n{attempts:,} attempts{', compressed' * compress}", flush=True)
    figures: dict[str, Any] = {}
    if not folder.exists():
        # Write in another process: a child's peak memory, as the kernel counts it, begins at that of its parent.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            figures["write"] = pool.apply(writing, (folder, attempts, compress))
        told("write", figures["write"])
    figures |= {"disk": disk(folder, attempts)}
    told("disk", figures["disk"])
    out = folder / "made"
    out.mkdir(exist_ok=True)
    run, reward = str(folder), ["--reward", "exact_answer", "--args", '{"column": "answer"}', "--max-mb", "100"]
    commands = {
        "page": ["view", run, "-o", str(out / "page.html")],
        "compare": ["view", run, str(folder / "copy"), "-o", str(out / "compare.html")],
        "rescore": ["rescore", run, *reward, "-o", str(out / "rescore.html"), "-o", str(out / "scores.jsonl")],
        "export": ["export", run, "--to", "parquet", "-o", str(out / "table"), "--overwrite"],
    }
    if "serve" not in skip:
        tries = [serving(folder) for _ in range(3)]
        figures["serve"] = {name: min(one[name] for one in tries) for name in tries[0]}
        figures["serve"]["peak_mb"] = max(one["peak_mb"] for one in tries)
        told("serve", figures["serve"])
    if "unindexed" not in skip:
        bare = linked(folder, "bare", "*.json*")
        figures["unindexed"] = serving(bare, clicks=False)
        figures["unindexed_again"] = serving(bare, clicks=False)
        told("unindexed", figures["unindexed"])
        told("unindexed, once more", figures["unindexed_again"])
        shutil.rmtree(bare)
    for name, command in commands.items():
        if name not in skip:
            copy = linked(folder, "copy", "*") if name == "compare" else None
            figures[name] = timed([*COMMAND, *command])
            figures[name]["made_mb"] = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / 1e6
            told(name, figures[name])
            shutil.rmtree(out)
            out.mkdir()
            if copy is not None:
                shutil.rmtree(copy)
    shutil.rmtree(out)
    return figures


def linked(folder: Path, name: str, files: str) -> Path:
    """Copy a run into a subfolder of it, as hard links."""
    copy = folder / name
    shutil.rmtree(copy, ignore_errors=True)
    (copy / "rollouts").mkdir(parents=True)
    for path in (folder / "rollouts").glob(files):
        os.link(path, copy / "rollouts" / path.name)
    return copy


def told(name: str, figures: dict[str, Any]) -> None:
    shown = ", ".join(
        f"{key} {value:,.3g}" if value < 100 else f"{key} {value:,.0f}" for key, value in figures.items()
    )
    print(f"{name}: {shown}", flush=True)


# -- a run


def writing(folder: Path, attempts: int, compress: bool) -> dict[str, float]:
    """Write a run; return the writer's seconds per million attempts."""
    from trl_grpo_plus.traces import Writer

    steps = attempts // (RANKS * GROUPS * SIZE)
    writer = Writer(str(folder), compress, ABOUT)
    writer.begin(0, steps)
    rng = random.Random(0)
    vocabulary = ["".join(rng.choices("aeioulnrstdmk", k=rng.randint(2, 7))) for _ in range(3000)]
    text = " ".join(rng.choices(vocabulary, k=800_000))
    took, written = 0.0, 0
    for step in range(steps):
        rows = list(batch(rng, text, step, steps))
        written += len(rows)
        start = time.perf_counter()
        writer.number("train", step)
        writer.write("train", step, rows)
        took += time.perf_counter() - start
        writer.note("metrics", [logged(rows, step + 1)])
    return {"writer_s_per_million": took * 1e6 / written}


def batch(rng: random.Random, text: str, step: int, steps: int) -> Iterator[Row]:
    """Yield the attempts of a step, rank by rank."""
    for group in range(RANKS * GROUPS):
        prompt = rng.randrange(PROMPTS)
        skill = min(1.0, max(0.0, prompt / PROMPTS * 1.6 - 0.6 + step / steps))
        scores = [float(rng.random() < skill) for _ in range(SIZE)]
        mean = sum(scores) / SIZE
        alive = 0 < mean < 1
        verdict = "alive" if alive else "all_good" if mean else "all_bad"
        start = prompt * 200
        for attempt, score in enumerate(scores):
            at = rng.randrange(len(text) - 2000)
            answer = prompt if score else rng.randrange(PROMPTS)
            yield {
                **{"step": step, "split": "train", "batch": 0, "round": 0, "group": group},
                **{"attempt": attempt, "size": SIZE},
                "prompt": [{"role": "user", "content": f"Problem {prompt}: {text[start : start + 330]}?"}],
                "completion": [
                    {
                        "role": "assistant",
                        "content": f"<think>{text[at : at + 1050]}</think> <answer>{answer}</answer>",
                    }
                ],
                "reference": {"answer": str(prompt)},
                "rewards": {"accuracy": score, "format": 1.0},
                "steps": {},
                "outcomes": {"accuracy": "ok", "format": "ok"},
                "reward": score + 0.2,
                "advantage": round(score - mean, 7),
                **{"verdict": verdict, "kept": alive, "reason": None if alive else "zero_variance"},
                **{"tokens": 180 + at % 40, "truncated": False, "kl": round(0.001 + at % 97 / 1e5, 7)},
                "belief": {"mean": round(0.2 + skill, 7), "std": 0.31, "attempts": 2.0 + step // 100},
                **{"extra": {}, "alarms": ["repetition"] if step % 200 == 7 and group == 3 else []},
            }


def logged(rows: list[Row], step: int) -> Row:
    mean = sum(row["reward"] for row in rows) / len(rows)
    lengths = sum(row["tokens"] for row in rows) / len(rows)
    return {"step": step, "reward": mean, "kl": 0.001, "entropy": 0.5, "completions/mean_length": lengths}


def disk(folder: Path, attempts: int) -> dict[str, float]:
    """Return MB per million attempts, of the files of attempts and of the index."""
    paths = list((folder / "rollouts").iterdir())
    traced = sum(path.stat().st_size for path in paths if path.name.startswith("train-"))
    index = sum(path.stat().st_size for path in paths if path.name == "groups.index")
    return {"attempts_mb_per_million": traced / attempts, "index_mb_per_million": index / attempts}


# -- programs


def timed(command: list[str]) -> dict[str, float]:
    """Run a command to its end and return its figures."""
    load, start = os.getloadavg()[0], time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    error = process.stderr.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(command)} failed: {error[-2000:]}")
    took = time.perf_counter() - start
    return {"load": load, "seconds": took, "cpu_s": used.ru_utime + used.ru_stime, "peak_mb": used.ru_maxrss / 1e3}


def serving(folder: Path, clicks: bool = True) -> dict[str, float]:
    """Open the live page, and send the requests of clicks."""
    load, start = os.getloadavg()[0], time.perf_counter()
    process = subprocess.Popen([*COMMAND, "view", str(folder), "--serve"], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        match = re.search(rb"http://\S+", process.stdout.readline())
        assert match is not None
        address = match[0].decode()
        page = asked(address)
        spent = psutil.Process(process.pid).cpu_times()
        figures = {"load": load, "open_s": time.perf_counter() - start, "open_cpu_s": spent.user + spent.system}
        figures["page_mb"] = len(page) / 1e6
        if clicks:
            figures |= clicked(address, page)
    finally:
        process.send_signal(signal.SIGINT)
        _, _, used = os.wait4(process.pid, 0)
    return {**figures, "peak_mb": used.ru_maxrss / 1e3}


def clicked(address: str, page: bytes) -> dict[str, float]:
    """Return the milliseconds of the requests that clicks send."""
    head, index = (json.loads(found) for found in re.findall(rb'id="(?:head|index)">(.*?)</script>', page))
    chunks, groups = index["chunks"], index["groups"]
    starts = [sum(chunks[:n]) for n in range(len(chunks))]
    epoch = head["live"]["epoch"]

    def texts(group: int, what: str = "texts") -> float:
        n = max(i for i, start in enumerate(starts) if start <= group)
        return took(f"{address}{what}?epoch={epoch}&from={starts[n]}&to={starts[n] + chunks[n]}")

    middle = len(groups["step"]) // 2
    after = groups["step"].index(groups["step"][middle] + 1)
    of_prompt = [g for g, prompt in enumerate(groups["prompt"]) if prompt == groups["prompt"][middle]]
    figures = {"group_ms": texts(middle), "next_step_ms": texts(after)}
    figures["follow_ms"] = texts(of_prompt[0]) + texts(of_prompt[-1])
    figures |= {"prompts_ms": took(f"{address}lists"), "prompts_again_ms": took(f"{address}lists")}
    known = head["live"]
    figures["poll_ms"] = took(f"{address}data?epoch={epoch}&groups={known['groups']}&version={known['version']}")
    searched = [texts(start, "searched") for start in starts]
    figures |= {"search_largest_ms": max(searched), "search_s": sum(searched) / 1e3}
    with ThreadPoolExecutor(1) as another:
        search = another.submit(lambda: [texts(start, "searched") for start in starts[: len(starts) // 4]])
        figures["during_search_ms"] = max(texts(starts[n * len(starts) // 50]) for n in range(50))
        search.result()
    listed = {"listed_groups": head["groups"], "groups": head["groups_total"]}
    return figures | listed


def took(address: str) -> float:
    start = time.perf_counter()
    asked(address)
    return 1e3 * (time.perf_counter() - start)


def asked(address: str) -> bytes:
    with urllib.request.urlopen(address) as answer:
        return bytes(answer.read())


if __name__ == "__main__":
    main()
