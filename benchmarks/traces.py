"""Measure what traces cost: milliseconds and bytes per step of 64 attempts of 2 kB, and the share of the demo's step.

    python benchmarks/traces.py [--steps 100] [--demo-steps 40] [--page] [--output results.json]

It prints three parts:

1. A table with a line for each sink. The recorder is called like the trainer calls it, on made-up texts. "here" is how
   long the training thread is held up (median), "in all" the processor time of all threads of the process. Trackers
   show four groups at most 100 times in a run: their line is the cost of one such log. wandb runs offline. wandb and
   trackio are left out if they are not installed.
2. The page of a run of 50,000 attempts of 2 kB, and the page of two such runs side by side: seconds and megabytes, and
   the seconds until they can be used in Chromium and in Firefox, if these are installed. `--page` does only this part.
3. The demo's recipe: the time that the recorder takes in the training thread (gathering, waiting for the batch before)
   and in the thread beside it (JSON, alarms, files). Training is slowed down by the sum of both at most.
"""

import argparse
import contextlib
import importlib
import importlib.util
import io
import json
import os
import platform
import random
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from trl_grpo_plus import GRPOPlusTrainer
from trl_grpo_plus.rollouts.groups import Attempt, Plan, Round, judge
from trl_grpo_plus.traces import SampledBatch
from trl_grpo_plus.trainer.recorder import Recorder


GROUPS, SIZE, LENGTH = 8, 8, 2000  # groups, attempts in each, characters in each
OFF: dict[str, Any] = {"trace_every": 0, "trace_log_groups": 0, "alarms": False}
OFF |= {"zero_variance_tolerance": 1e-6, "solved_reward": 1.0, "failed_reward": 0.0}  # the defaults
OFF |= {"prompt_selection": "shuffle", "shuffle_dataset": True, "trace_thumbnails": 0}
SINKS: dict[str, dict[str, Any]] = {
    "nothing": OFF,
    "alarms alone": {**OFF, "alarms": True},
    "JSON lines": {**OFF, "trace_every": 1},
    "JSON lines, gzip": {**OFF, "trace_every": 1, "trace_compress": True},
    "JSON lines and alarms (the default)": {**OFF, "trace_every": 1, "alarms": True},
    "wandb, offline": {**OFF, "trace_every": 1, "trace_log_groups": 4, "report_to": ["wandb"]},
    "trackio": {**OFF, "trace_every": 1, "trace_log_groups": 4, "report_to": ["trackio"]},
}
PAGE_STEPS, PAGE_GROUPS = 250, 25  # with 8 attempts in a group: 50,000 attempts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--demo-steps", type=int, default=40)
    parser.add_argument("--page", action="store_true", help="measure only the pages")
    parser.add_argument("--output", type=Path, default=None, help="also write the figures as JSON")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} cores"
    print(versions)
    with tempfile.TemporaryDirectory() as scratch, _quiet_trackers(Path(scratch)):
        figures: dict[str, Any] = {"versions": versions}
        if not options.page:
            figures["sinks"] = sinks(Path(scratch), options.steps)
        figures["page"] = page(Path(scratch))
        if not options.page:
            figures["demo"] = demo(Path(scratch), options.demo_steps)
    if options.output:
        options.output.write_text(json.dumps(figures, indent=2) + "\n")


def sinks(scratch: Path, steps: int) -> dict[str, dict[str, float]]:
    """Return milliseconds and bytes per step for each sink."""
    print(f"\n{GROUPS * SIZE} attempts of {LENGTH} characters a step{'':8}{'here':>10}{'in all':>12}{'bytes':>12}")
    figures: dict[str, dict[str, float]] = {}
    for name, chosen in SINKS.items():
        package = (chosen.get("report_to") or [""])[0]
        if package and importlib.util.find_spec(package) is None:
            print(f"{name:40} not installed")
            continue
        folder = scratch / f"sink-{len(figures)}"
        with _open_run(package, folder):
            figures[name] = one_sink(folder, {**OFF, "trace_compress": False, "report_to": [], **chosen}, steps)
        shown = figures[name]
        print(f"{name:40}{shown['here_ms']:7.2f} ms{shown['cpu_ms']:9.2f} ms{shown['bytes']:12,.0f}")
    return figures


def one_sink(folder: Path, chosen: dict[str, Any], steps: int) -> dict[str, float]:
    """Record `steps` batches, and return milliseconds and bytes per step."""
    args = argparse.Namespace(
        **chosen, output_dir=str(folder), alarm_thresholds=None, trace_max_groups=None, num_generations=SIZE
    )
    recorder = Recorder(args, ["accuracy", "format"], [1.0, 0.5], rank=0)
    recorder.begin(0, max_steps=steps)
    batches = [sampled(step) for step in range(steps)]
    taken, before = [], time.process_time()
    for batch in batches:
        start = time.perf_counter()
        recorder.settle()
        recorder.record(batch, traced=bool(args.trace_every))
        taken.append(time.perf_counter() - start)
        time.sleep(0.2 if chosen["report_to"] else 0.05)  # in place of the rest of a step
    recorder.end()
    cpu = time.process_time() - before
    written = sum(path.stat().st_size for path in (folder / "rollouts").glob("train*"))
    return {"here_ms": 1000 * statistics.median(taken), "cpu_ms": 1000 * cpu / steps, "bytes": written / steps}


def sampled(step: int) -> SampledBatch:
    """Return a batch in which one group in four is alive, and each attempt has a different text."""
    rng = random.Random(step)
    totals = torch.tensor([[float(rng.random() < (0.5, 0, 1, 1)[g % 4]) for _ in range(SIZE)] for g in range(GROUPS)])
    attempts = tuple(
        Attempt(
            inputs={"prompt": f"Problem {step}.{i // SIZE}. {words(rng, 300)}", "answer": "42"},
            prompt=f"Problem {step}.{i // SIZE}. {words(rng, 300)}",
            prompt_ids=[0] * 80,
            completion_ids=[0] * 500,
            completion=words(rng, LENGTH),
        )
        for i in range(GROUPS * SIZE)
    )
    rewards = torch.stack([totals.flatten(), torch.ones(GROUPS * SIZE)], dim=1)
    one_round = Round(attempts, rewards, tuple(judge(totals)))
    flat = totals.flatten()
    weights, plan = {"accuracy": 1.0, "format": 0.5}, Plan.as_sampled(GROUPS)
    return SampledBatch("train", step, SIZE, weights, [one_round], plan, flat, flat - flat.mean(), None, True, {}, 1.0)


def words(rng: random.Random, length: int) -> str:
    """Return about `length` characters of made-up words."""
    return " ".join(f"{rng.getrandbits(20):x}" for _ in range(length // 6))


def page(scratch: Path) -> dict[str, float]:
    """Return seconds and bytes of the page of 50,000 attempts, and of the page of two such runs."""
    from trl_grpo_plus.view import write_comparison, write_page

    first, second = (attempts_of_a_run(scratch / name) for name in ("first", "second"))
    start = time.perf_counter()
    written = write_page(first, scratch / "page.html")
    took = time.perf_counter() - start
    print(
        f"\npage of {written.attempts_total:,} attempts: {took:.1f} s, {written.bytes / 1e6:.1f} MB, "
        f"{written.attempts_written:,} of them in it"
    )
    figures = {"seconds": took, "bytes": written.bytes, "attempts": written.attempts_total, **browse(written.path)}
    start = time.perf_counter()
    compared = write_comparison([first, second], scratch / "compare.html")
    took = time.perf_counter() - start
    print(f"two such runs side by side: {took:.1f} s, {compared.bytes / 1e6:.1f} MB")
    return {**figures, "compare_seconds": took, "compare_bytes": compared.bytes, **browse_two(compared.path)}


def attempts_of_a_run(folder: Path) -> Path:
    """Write traces of 50,000 attempts, and return their folder."""
    args = argparse.Namespace(
        **{**OFF, "trace_every": 1, "report_to": []},
        **{"output_dir": str(folder), "alarm_thresholds": None, "trace_compress": False, "trace_max_groups": None},
        num_generations=SIZE,
    )
    recorder = Recorder(args, ["accuracy", "format"], [1.0, 0.5], rank=0)
    recorder.begin(0, max_steps=PAGE_STEPS)
    for step in range(PAGE_STEPS * PAGE_GROUPS // GROUPS):
        recorder.settle()
        recorder.record(sampled(step), traced=True)
    recorder.end()
    return folder


BROWSERS: dict[str, tuple[str, dict[str, Any]]] = {  # name -> the program, and playwright's options to start it
    "chromium": ("chromium", {"args": ["--no-sandbox", "--disable-gpu"]}),
    "firefox": ("firefox-esr", {"channel": "moz-firefox"}),
}
Clock = Callable[[str, Callable[[], Any], str], None]


def _browsed(tries: Callable[[Any, Clock], None]) -> dict[str, float]:
    """Return the seconds that `tries` measures in a tab of each installed browser."""
    if importlib.util.find_spec("playwright") is None:
        print("no playwright: the page was not opened")
        return {}
    took: dict[str, float] = {}
    for name, (program, options) in BROWSERS.items():
        path = shutil.which(program)
        if path is None:
            print(f"no {program}: the page was not opened in it")
            continue
        with _clocked_tab(name, {"executable_path": path, **options}, took) as (tab, clock):
            tries(tab, clock)
    return took


@contextlib.contextmanager
def _clocked_tab(name: str, options: dict[str, Any], took: dict[str, float]) -> Iterator[tuple[Any, Clock]]:
    """Yield a tab of a headless browser, and a function that measures an act until a script returns true."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = getattr(playwright, name).launch(**options)
        tab = browser.new_page()
        here: dict[str, float] = {}

        def clock(what: str, act: Callable[[], Any], done: str) -> None:
            start = time.perf_counter()
            act()
            while not tab.evaluate(done):
                time.sleep(0.01)
            here[what] = time.perf_counter() - start

        yield tab, clock
        browser.close()
    print(", ".join(f"{what} {seconds:.2f} s" for what, seconds in here.items()) + f" in {name.capitalize()}")
    took |= {f"{name}_{what}_s": seconds for what, seconds in here.items()}


def browse_two(path: Path) -> dict[str, float]:
    """Return the seconds until the page of two runs is drawn."""

    def tries(tab: Any, clock: Clock) -> None:
        drawn = "document.querySelector('.one, #group .empty') !== null"
        clock("compare_open", lambda: tab.goto(f"file://{path}"), drawn)

    return _browsed(tries)


def browse(path: Path) -> dict[str, float]:
    """Return the seconds until a group is drawn and its prompt is followed, and those of a filter and a search."""

    def tries(tab: Any, clock: Clock) -> None:
        clock("open", lambda: tab.goto(f"file://{path}"), "document.querySelector('.attempt') !== null")
        drawn = "document.querySelector('#pair') !== null"
        clock("follow", lambda: tab.keyboard.press("f"), drawn)
        tab.keyboard.press("f")
        tab.check("#all-steps")
        before = tab.inner_text("#status")
        changed = f"document.querySelector('#status').textContent !== {json.dumps(before)}"
        clock("filter", lambda: tab.select_option("#verdict", "alive"), changed)
        tab.select_option("#verdict", "")
        finished = "document.querySelector('#status').textContent.startsWith('0 groups') && "
        finished += "document.querySelector('#cancel').hidden"
        clock("search", lambda: tab.fill("#query", "written nowhere"), finished)

    return _browsed(tries)


def demo(scratch: Path, steps: int) -> dict[str, float]:
    """Return the recorder's share of the demo's training time."""
    import transformers

    grpo = importlib.import_module("trl_grpo_plus.recipes.grpo")
    parse = importlib.import_module("trl_grpo_plus.launch.command_line").parse
    here, beside = [0.0], [0.0]
    methods = [(Recorder, "log", here), (Recorder, "settle", here), (GRPOPlusTrainer, "_record", here)]
    methods.append((Recorder, "_keep", beside))
    before: list[Any] = [(owner, name, getattr(owner, name)) for owner, name, _ in methods]
    for owner, name, spent in methods:
        setattr(owner, name, _clocked(getattr(owner, name), spent))
    arguments = ["--config", "arithmetic_cpu", "--output_dir", str(scratch / "demo"), "--max_steps", str(steps)]
    arguments += [
        "--eval_on_start",
        "false",
        "--eval_strategy",
        "no",
        "--save_strategy",
        "no",
        "--disable_tqdm",
        "true",
    ]
    transformers.utils.logging.set_verbosity_error()
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        grpo.main(*parse(grpo.make_parser(), arguments))
    took = time.perf_counter() - start
    for owner, name, method in before:
        setattr(owner, name, method)
    state = json.loads((scratch / "demo" / "trainer_state.json").read_text())
    runtime = next(entry["train_runtime"] for entry in state["log_history"] if "train_runtime" in entry)
    rows = sum(len(path.read_text().splitlines()) for path in (scratch / "demo" / "rollouts").glob("train*"))
    held, thread, step = (1000 * seconds / steps for seconds in (here[0], beside[0], runtime))
    print(
        f"demo, {steps} steps of {rows / steps:.0f} attempts: the training thread is held up for {held:.1f} ms of "
        f"{step:.0f} ms a step, {100 * held / step:.1f} %; the thread beside it works {thread:.1f} ms "
        f"({took:.0f} s with loading, evaluations and page)"
    )
    return {"held_up_ms": held, "beside_ms": thread, "step_ms": step, "share": held / step}


def _clocked(method: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    """Return `method`, wrapped so that its seconds are added to `spent`; nested calls are counted once."""

    def call(*args: Any, **kwargs: Any) -> Any:
        start, outer = time.perf_counter(), not _RUNNING.get(id(spent))
        _RUNNING[id(spent)] = True
        try:
            return method(*args, **kwargs)
        finally:
            if outer:
                spent[0] += time.perf_counter() - start
                _RUNNING[id(spent)] = False

    return call


_RUNNING: dict[int, bool] = {}


@contextlib.contextmanager
def _open_run(package: str, folder: Path) -> Iterator[None]:
    if not package:
        yield
        return
    module = importlib.import_module(package)
    folder.mkdir(parents=True)
    with contextlib.redirect_stdout(io.StringIO()):
        module.init(project="traces", **({"mode": "offline", "dir": str(folder)} if package == "wandb" else {}))
    try:
        yield
    finally:
        with contextlib.redirect_stdout(io.StringIO()):
            module.finish()
        shutil.rmtree(folder / "wandb", ignore_errors=True)


@contextlib.contextmanager
def _quiet_trackers(scratch: Path) -> Iterator[None]:
    # Keep the trackers from writing into the home folder.
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "TRACKIO_DIR"):
        os.environ[name] = str(scratch / name.lower())
    os.environ |= {"WANDB_SILENT": "true", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    yield


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
