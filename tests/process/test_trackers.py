"""The groups that are logged to wandb and trackio: real offline runs, read back from the trackers' files."""

import functools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import tiny_models
import torch
import warm_processes
from synthetic_traces import group, row
from transformers import TrainerCallback
from trl import GRPOTrainer

from trl_grpo_plus import GRPOPlusTrainer, attach
from trl_grpo_plus.scoring import RewardError
from trl_grpo_plus.view import Trackers
from trl_grpo_plus.view.trackers import MOST_CHARACTERS, _histograms, columns, pick, storable, table


needs_wandb = pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed: pip install wandb")
needs_trackio = pytest.mark.skipif(
    find_spec("trackio") is None, reason="trackio is not installed: pip install trackio"
)

REWARDS = ["accuracy", "format"]
HOSTILE = 'mango <img src=x onerror="alert(1)"> [link](javascript:alert(1)) ![a](http://a.invalid/x.png) \ud800'

# The beginning of each script. As in a trainer's process, accelerate's state exists. Warnings are lines with WARNED.
SCRIPT = f"""
import logging, os, signal, sys, threading, time
logging.basicConfig(format="WARNED %(message)s")
from accelerate import PartialState
PartialState(cpu=True)
import torch
from synthetic_traces import group
from trl_grpo_plus.view import page
from trl_grpo_plus.view.trackers import Trackers, _histograms

REWARDS = {REWARDS}
HOSTILE = {HOSTILE!r}

def batch(step):
    scores = [[1.0, 0.0, 1.0, 0.0], [1.0] * 4, [0.0] * 4, [0.5] * 4, [0.0, 0.5, 0.0, 1.0], [0.0] * 4]
    groups = [group(of, step=step, group=number) for number, of in enumerate(scores)]
    for rows in groups:
        rows[0]["completion"] += HOSTILE
    return groups

def log(trackers, step):
    groups = batch(step)
    trackers.log(step, groups, torch.tensor([[attempt["reward"] for attempt in rows] for rows in groups]))

def log_and_send(trackers, *steps):
    for step in steps:
        log(trackers, step)
        trackers.close()

def open_wandb(**options):
    import wandb
    run = wandb.init(project="p", settings=wandb.Settings(console="off", x_disable_stats=True), **options)
    wandb.define_metric("train/global_step")
    wandb.define_metric("*", step_metric="train/global_step", step_sync=True)
    return wandb, run

def service():
    for entry in os.listdir("/proc"):
        try:
            fields = open(f"/proc/{{entry}}/stat").read().rsplit(")", 1)
            if "wandb-core" in fields[0] and int(fields[1].split()[1]) == os.getpid():
                return int(entry)
        except (OSError, ValueError):
            pass
    sys.exit("wandb's service is not running")
"""


def run_script(folder: Path, code: str, before: str = SCRIPT, start: Callable = warm_processes.Popen) -> str:
    """Run `before` and `code`, with all files of both trackers in `folder`, and return the output."""
    homes = {"WANDB_DIR": "wandb", "WANDB_DATA_DIR": "data", "WANDB_CACHE_DIR": "cache", "WANDB_CONFIG_DIR": "config"}
    env = {**os.environ, **{name: str(folder / place) for name, place in homes.items()}}
    for place in homes.values():
        (folder / place).mkdir(exist_ok=True)
    env |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "PYTHONUNBUFFERED": "1"}
    if start is warm_processes.cold:
        env["TRACKIO_DIR"] = str(folder / "trackio")  # trackio reads it at import
    tests = Path(tiny_models.__file__).parent
    env["PYTHONPATH"] = os.pathsep.join([str(tests.parent), str(tests)])
    printed = folder / f"printed-{time.monotonic_ns()}"
    process = start([sys.executable, "-c", before + code], env=env, cwd=folder, stdout=printed, stderr=printed)
    try:
        assert process.wait(300) == 0, printed.read_text()
    finally:
        process.kill()
    return printed.read_text()


def warnings(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if line.startswith("WARNED")]


@functools.cache
def wandb_history(folder: Path) -> tuple[Path, list[dict]]:
    """Return the folder of files of the only run in `folder`, and the rows of its history."""
    (run,) = (folder / "wandb" / "wandb").glob("offline-run-*")
    inspect = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(run)]
    lines = subprocess.run(inspect, capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()
    records = [json.loads(line) for line in lines]
    return run / "files", [record["history"]["item"] for record in records if record["type"] == "history"]


def trackio_history(folder: Path) -> tuple[str, list[dict]]:
    """Return trackio's folder of files in `folder`, and the rows of the run "r"."""
    read = """
import json
from trackio.sqlite_storage import SQLiteStorage
from trackio.utils import MEDIA_DIR
print(json.dumps([str(MEDIA_DIR), SQLiteStorage.get_logs("p", "r")]))
"""
    return json.loads(run_script(folder, read, before="", start=warm_processes.cold).splitlines()[-1])


def logs_of(history: list[dict]) -> list[dict]:
    return [item for item in history if "traces/attempts.path" in item]


def increments(folder: Path) -> list[list[dict]]:
    """Return the rows that each log added to the table, as dicts."""
    files, history = wandb_history(folder)
    tables = [json.loads((files / item["traces/attempts.path"]).read_text()) for item in logs_of(history)]
    return [[dict(zip(added["columns"], cells, strict=True)) for cells in added["data"]] for added in tables]


def assert_whole_groups(rows: list[dict], step: int, groups: int) -> None:
    """Assert that `rows` are `groups` whole groups of four, one after another, each sorted by advantage."""
    assert {cells["step"] for cells in rows} == {step}
    assert len(rows) == groups * 4
    for start in range(0, len(rows), 4):
        of_group = rows[start : start + 4]
        assert len({(cells["round"], cells["group"]) for cells in of_group}) == 1
        assert sorted(cells["attempt"] for cells in of_group) == [0, 1, 2, 3]
        advantages = [cells["advantage"] for cells in of_group]
        assert advantages == sorted(advantages, reverse=True)
    assert len({(cells["round"], cells["group"]) for cells in rows}) == groups


def assert_logged(item: dict, rows: list[dict], page: Path, step: int) -> None:
    """Assert that `item` is the log of `batch(step)`: four whole groups, and a page in which texts are no markup."""
    assert item["train/global_step"] == step
    assert list(rows[0]) == columns(REWARDS)
    assert_whole_groups(rows, step, groups=4)
    assert {cells["verdict"] for cells in rows} == {"alive", "all_good", "all_bad", "tied"}
    html = page.read_text()
    assert "mango" in html
    assert "<img src=x" not in html
    assert "app.wandb.ai" not in html  # no stylesheet from elsewhere


# -- which groups are logged, and their columns


def named(number: int, scores: list[float], *alarms: str) -> list[dict]:
    return group(scores, group=number, alarms=list(alarms))


def test_picked_groups_show_each_verdict_the_highest_reward_and_what_alarms_name():
    good, bad, alive = [1.0] * 4, [0.0] * 4, [0.0, 0.0, 0.5, 0.0]
    groups = [named(n, of) for n, of in enumerate([bad, bad, alive, bad, good, bad, alive, bad])]
    groups[5] = named(5, bad, "repetition")
    groups[7] = named(7, bad, "repetition", "no_answer")
    assert [rows[0]["group"] for rows in pick(groups, 4)] == [2, 4, 5, 7]
    assert [rows[0]["group"] for rows in pick(groups, 1)] == [7]
    assert pick(groups, 4) == pick(groups, 4)
    groups[:2] = named(0, bad, "repetition"), named(1, bad, "repetition")
    assert [rows[0]["group"] for rows in pick(groups, 4)] == [0, 2, 4, 7]  # 0 and 7, two of the four that alarms name


def test_picked_groups_are_in_the_order_given_and_no_more_than_there_are():
    groups = [named(n, [0.0, float(n), 0.0, 0.0]) for n in range(3)]
    assert pick(groups, 9) == groups
    assert pick([], 4) == []


def test_groups_nobody_scored_can_be_picked():
    unscored = [row(attempt=n, reward=None, advantage=None, verdict="unscored", rewards={}) for n in range(4)]
    assert pick([unscored, named(1, [1.0] * 4)], 1) == [named(1, [1.0] * 4)]
    assert pick([unscored], 4) == [unscored]
    assert [cells[4] for cells in table([unscored], REWARDS)] == [0, 1, 2, 3]


def test_a_row_holds_an_attempt():
    attempt = row(
        outcomes={"accuracy": "timeout", "format": "ok"},
        rewards={"accuracy": None, "format": 1.0},
        prompt=[{"role": "user", "content": "6 times 7?"}],
        reference={"answer": "zweiundvierzig: ü"},
        alarms=["repetition", "no_answer"],
        truncated=True,
        tokens=7,
    )
    (cells,) = table([[attempt]], REWARDS)
    same = ["split", "round", "group", "attempt", "verdict", "kept", "reason"]
    same += ["reward", "advantage", "tokens", "truncated", "completion"]
    assert dict(zip(columns(REWARDS), cells, strict=True)) == {
        **{name: attempt[name] for name in same},
        **{"step": attempt["step"], "accuracy": None, "format": 1.0, "outcome": "accuracy: timeout"},
        **{"prompt": "6 times 7?", "reference": '{"answer": "zweiundvierzig: ü"}'},
        "alarms": "repetition, no_answer",
    }


def test_a_reward_named_like_a_column_has_its_own():
    names = columns(["tokens", "accuracy"])
    assert len(set(names)) == len(names)
    (cells,) = table([[row(tokens=12, rewards={"tokens": 0.25, "accuracy": 1.0})]], ["tokens", "accuracy"])
    shown_as = dict(zip(names, cells, strict=True))
    assert (shown_as["tokens"], shown_as["rewards/tokens"], shown_as["accuracy"]) == (12, 0.25, 1.0)


def test_a_long_text_keeps_both_ends_and_says_what_is_left_out():
    text = "begin " + "x" * 50_000 + " end"
    cut = storable(text)
    assert cut.startswith("begin ")
    assert cut.endswith(" end")
    assert f"[... {len(text) - MOST_CHARACTERS:,} characters left out ...]" in cut
    assert len(cut) < MOST_CHARACTERS + 60
    assert storable("x" * MOST_CHARACTERS) == "x" * MOST_CHARACTERS
    assert storable("a\ud800b") == "a\\ud800b"


@needs_wandb
@pytest.mark.parametrize(
    ("totals", "counts"),
    [
        ([[1.0, 0.0, None], [float("nan"), 0.5, float("inf")], [None, None, None]], [3, 2]),
        ([[0.1 + 0.2, 0.0], [0.3, 0.0]], [4, 2]),  # spreads that differ by a rounding error: numpy cannot make bins
        ([[None, None]], []),
    ],
)
def test_histograms_are_of_what_was_scored(totals, counts):
    import wandb

    histograms = _histograms(wandb, totals)
    assert list(histograms) == ["traces/reward", "traces/spread"][: len(counts)]
    assert [sum(histogram.histogram) for histogram in histograms.values()] == counts


# -- when groups are logged


@pytest.mark.parametrize("generate_every", [1, 3])
@pytest.mark.parametrize("max_steps", [1, 7, 100, 101, 5000])
def test_a_run_is_logged_at_its_first_batch_and_at_most_a_hundred_times(monkeypatch, max_steps, generate_every):
    steps = range(1, max_steps + 1, generate_every)
    logged = _logged(monkeypatch, max_steps, steps)
    assert logged[0] == 1
    assert len(logged) <= 100
    every = -(-max_steps // 100)
    spans = {(step - 1) // every for step in steps}
    assert [(step - 1) // every for step in logged] == sorted(spans)


def test_a_resumed_run_is_logged_at_its_first_batch_and_then_where_it_would_have_been(monkeypatch):
    assert _logged(monkeypatch, 1000, range(334, 362)) == [334, 341, 351, 361]


def test_nothing_is_due_without_a_tracker_or_groups():
    assert not Trackers([], 10).due(1)
    assert not Trackers(["tensorboard", "none"], 10).due(1)
    assert not Trackers(["wandb"], 10, groups=0).due(1)


def _logged(monkeypatch, max_steps, steps):
    sent = []
    monkeypatch.setattr(Trackers, "_send", lambda self, step, *rest: sent.append(step))
    trackers = Trackers(["wandb"], max_steps)
    for step in steps:
        for _ in range(2):  # a step may have two batches, or a batch may be tried again
            trackers.log(step, [], torch.zeros(0, 4))
            trackers.close()
    return sent


def test_importing_it_imports_no_tracker(tmp_path):
    code = "import sys, trl_grpo_plus.view.trackers\nprint({'wandb', 'trackio', 'trl'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert ran.stdout.strip() == "set()"


# -- wandb


@needs_wandb
def test_wandb_keeps_every_log_among_the_metrics(tmp_path):
    """The main thread logs metrics at the same time, as a trainer does."""
    code = """
wandb, run = open_wandb()
trackers = Trackers(["wandb"], max_steps=400)
for step in range(1, 13, 2):
    log(trackers, step)
    for _ in range(25):
        wandb.log({"train/loss": 0.5, "train/global_step": step})
    log_and_send(trackers, step + 1)  # of the same span, of four steps; or tried again
trackers.close()
wandb.finish()
"""
    assert warnings(run_script(tmp_path, code)) == []
    files, history = wandb_history(tmp_path)
    logs = logs_of(history)
    assert [item["traces/attempts.increment_num"] for item in logs] == [0, 1, 2]
    assert [len(item["traces/attempts.previous_increments_paths"]) for item in logs] == [0, 1, 2]
    earlier = [item["traces/attempts.artifact_path"] for item in logs]
    assert logs[-1]["traces/attempts.previous_increments_paths"] == earlier[:-1]
    for step, rows, item in zip([1, 5, 9], increments(tmp_path), logs, strict=True):
        assert_logged(item, rows, files / item["traces/panel.path"], step)
        for key, count, ends in (("reward", 6 * 4, (1.0, 2.0)), ("spread", 6, (0.0, 1.0))):  # of all six groups
            assert sum(item[f"traces/{key}.values"]) == count
            assert (item[f"traces/{key}.bins"][0], item[f"traces/{key}.bins"][-1]) == ends
    metrics = [item for item in history if "train/loss" in item]
    assert [item["train/global_step"] for item in metrics] == [step for step in range(1, 13, 2) for _ in range(25)]
    assert len(history) == len(logs) + len(metrics)


@needs_wandb
def test_wandb_table_goes_on_after_a_resume(tmp_path):
    """An offline run has no server to resume from, so the script sets what the server would have returned."""
    code = """
wandb, run = open_wandb(id="same")
run._settings.resumed = True
summary = {"_type": "incremental-table-file", "increment_num": 6, "artifact_path": "wandb-client-artifact://six",
           "previous_increments_paths": [f"wandb-client-artifact://{n}" for n in range(6)]}
run.summary["traces/attempts"] = summary
log_and_send(Trackers(["wandb"], max_steps=10), 7, 8)
wandb.finish()
"""
    assert warnings(run_script(tmp_path, code)) == []
    logs = logs_of(wandb_history(tmp_path)[1])
    assert [item["traces/attempts.increment_num"] for item in logs] == [7, 8]
    before = [f"wandb-client-artifact://{n}" for n in (*range(6), "six")]
    assert logs[0]["traces/attempts.previous_increments_paths"] == before
    assert len(logs[1]["traces/attempts.previous_increments_paths"]) == 8
    for step, rows in zip([7, 8], increments(tmp_path), strict=True):
        assert_whole_groups(rows, step, groups=4)


@needs_wandb
def test_wandb_table_goes_on_where_one_run_is_trained_in_twice(tmp_path):
    code = """
wandb, run = open_wandb()
for _ in range(2):
    log_and_send(Trackers(["wandb"], max_steps=10), 0)
wandb.finish()
"""
    assert warnings(run_script(tmp_path, code)) == []
    logs = logs_of(wandb_history(tmp_path)[1])
    assert [item["traces/attempts.increment_num"] for item in logs] == [0, 1]


@needs_wandb
def test_training_goes_on_when_wandb_is_killed(tmp_path):
    code = """
wandb, run = open_wandb()
trackers = Trackers(["wandb"], max_steps=10)
log_and_send(trackers, 0)
os.kill(service(), signal.SIGKILL)
log_and_send(trackers, *range(1, 5))
print("trained on")
os._exit(0)
"""
    printed = run_script(tmp_path, code)
    assert "trained on" in printed
    (warning,) = warnings(printed)
    assert re.search("could not be logged to wandb.*Training goes on", warning)


@needs_wandb
@pytest.mark.full
def test_training_does_not_wait_for_a_wandb_that_stands_still(tmp_path):
    """wandb's service is stopped until a write to it blocks, as a hanging disk or network would do."""
    code = """
wandb, run = open_wandb()
trackers = Trackers(["wandb"], max_steps=10)
stopped = service()
os.kill(stopped, signal.SIGSTOP)
guard = threading.Timer(200, os.kill, (stopped, signal.SIGCONT))
guard.daemon = True
guard.start()
written = []
def fill():
    for n in range(64):
        run.log({"filler": "x" * 1_000_000})
        written.append(n)
filler = threading.Thread(target=fill)
filler.start()
seen = -1
while len(written) > seen:  # until three seconds bring no more
    seen = len(written)
    time.sleep(3)
for step in range(1, 6):  # one is being sent, one waits
    log(trackers, step)
trackers.close(timeout=0.5)
print("trained on", {thread.daemon for thread in threading.enumerate() if thread.name == "trackers"})
os.kill(stopped, signal.SIGCONT)
trackers.close(timeout=120)
filler.join()
wandb.finish()
"""
    printed = run_script(tmp_path, code)
    slow, late, skipped = warnings(printed)
    assert "slower than training" in slow
    assert "still being sent" in late
    assert "3 of 5 logs of groups were skipped" in skipped
    assert printed.index(late) < printed.index("trained on {True}")
    assert [item["train/global_step"] for item in logs_of(wandb_history(tmp_path)[1])] == [1, 2]


@needs_wandb
def test_training_goes_on_when_the_disk_is_full_and_so_do_logs_when_it_is_not(tmp_path):
    code = """
import resource
wandb, run = open_wandb()
trackers = Trackers(["wandb"], max_steps=10)
log_and_send(trackers, 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))  # more than is printed
log_and_send(trackers, 2, 3)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log_and_send(trackers, 4)
wandb.finish()
"""
    (warning,) = warnings(run_script(tmp_path, code))
    assert re.search("OSError.*its disk has room", warning)
    for step, rows in zip([1, 4], increments(tmp_path), strict=True):
        assert_whole_groups(rows, step, groups=4)


# -- trackio


@pytest.mark.full
@needs_trackio
def test_trackio_keeps_every_log_and_nothing_in_it_is_markup(tmp_path):
    """trackio keeps its run in a context variable. wandb is named too, but has no open run: trackio still gets all."""
    code = """
import trackio
trackio.init(project="p", name="r", auto_log_gpu=False)
trackers = Trackers(["trackio", "wandb"], max_steps=10)
for step in range(1, 4):
    log(trackers, step)
    log(trackers, step)
    trackio.log({"train/loss": 0.5, "train/global_step": step})
    trackers.close()
trackio.finish()
"""
    (warning,) = warnings(run_script(tmp_path, code, start=warm_processes.cold))
    assert "wandb" in warning
    media, history = trackio_history(tmp_path)
    assert [item["train/global_step"] for item in history if "train/loss" in item] == [1, 2, 3]
    logs = [item for item in history if "traces/attempts" in item]
    for step, item in zip(range(1, 4), logs, strict=True):
        assert item["traces/attempts"]["_type"] == "trackio.table"
        rows = item["traces/attempts"]["_value"]
        assert_logged(item, rows, Path(media) / item["traces/panel"]["file_path"], step)
        assert sum(item["traces/reward"]["values"]) == 6 * 4
        assert sum(item["traces/spread"]["values"]) == 6
        _assert_inert([cell for line in rows for cell in line.values() if isinstance(cell, str)])


def _assert_inert(texts: list[str]) -> None:
    assert any("<\u200bimg src=x" in text for text in texts)
    for text in texts:
        assert not re.search(r"<[a-zA-Z/!?]", text)  # a tag, a comment or an autolink
        assert not re.search(r"\][(\[:]", text)  # a link, an image, a reference or its definition
    assert any(HOSTILE.replace("\ud800", "\\ud800") in text.replace("\u200b", "") for text in texts)


# -- no tracker is there

ABSENT = """
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in ("wandb", "trackio"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


@pytest.mark.parametrize(
    ("before", "start", "fixes"),
    [
        (ABSENT, warm_processes.cold, ["pip install 'trl-grpo-plus[wandb]'", "pip install 'trl-grpo-plus[trackio]'"]),
        pytest.param("", warm_processes.Popen, ["wandb.init()", "trackio.init()"], marks=[needs_wandb, needs_trackio]),
    ],
    ids=["not installed", "no open run"],
)
def test_a_tracker_that_is_not_there_is_named_once(tmp_path, before, start, fixes):
    code = """
page.panel = lambda *_: print("a panel")
log_and_send(Trackers(["wandb", "trackio"], max_steps=10), *range(3))
"""
    printed = run_script(tmp_path, before + code, start=start)
    for warning, fix in zip(warnings(printed), fixes, strict=True):
        assert fix in warning
    assert "a panel" not in printed


# -- under a trainer

TRAIN = """
from pathlib import Path
import tiny_models
from transformers import TrainerCallback

class Sent(TrainerCallback):
    '''Waits for each step's groups: those for which a tracker has no time are skipped.'''

    def on_log(self, args, state, control, **kwargs):
        trained._recorder._trackers.close()

def train(name, **options):
    global trained
    options = {"max_steps": 5, "zero_variance_groups": "resample", "trace_log_groups": 2, **options}
    trained = tiny_models.trainer(Path("."), tiny_models.half_dead, report_to=[name], run_name="r", **options)
    trained.add_callback(Sent())
    trained.train()
    print("trained", trained.state.global_step)
    return trained
"""


@needs_wandb
def test_a_run_reports_to_wandb(tmp_path):
    """transformers' callback logs the scalars, and this package logs the groups: each step once."""
    printed = run_script(tmp_path, f"{TRAIN}\ntrain('wandb')\nimport wandb\nwandb.finish()")
    assert "trained 5" in printed
    _, history = wandb_history(tmp_path)
    metrics = [item for item in history if "train/reward" in item]
    assert [item["train/global_step"] for item in metrics] == [1, 2, 3, 4, 5]
    for item in metrics:
        assert 0 <= item["train/groups/alive"] <= 1
        assert item["train/alarms/dead_groups"] == 0
        assert any(key.startswith("train/completions/mean_length_of/") for key in item)
    assert [item["train/global_step"] for item in logs_of(history)] == [1, 2, 3, 4, 5]
    for rows, item in zip(increments(tmp_path), logs_of(history), strict=True):
        step = item["train/global_step"]
        assert_whole_groups(rows, step, groups=2)
        file = tmp_path / "run" / "rollouts" / f"train-{step:08d}.jsonl"
        traced = [json.loads(line) for line in file.read_text().splitlines()]
        written = {(line["round"], line["group"], line["attempt"]): line for line in traced}
        for cells in rows:
            line = written[cells["round"], cells["group"], cells["attempt"]]
            for key in ("prompt", "completion", "reward", "advantage", "verdict", "kept", "tokens"):
                assert cells[key] == line[key], key
        assert sum(item["traces/spread.values"]) == len(traced) / 4


@needs_trackio
def test_the_last_groups_are_sent_before_trackio_closes_its_run(tmp_path):
    callbacks = tiny_models.trainer(tmp_path, report_to="trackio").callback_handler.callbacks
    names = [type(callback).__name__ for callback in callbacks]
    assert names.index("Recorder") < names.index("TrackioCallback")


@pytest.mark.full
@needs_trackio
def test_a_run_reports_to_trackio(tmp_path):
    printed = run_script(tmp_path, f"{TRAIN}\ntrain('trackio', project='p')", start=warm_processes.cold)
    assert "trained 5" in printed
    _, rows = trackio_history(tmp_path)
    assert [item["train/global_step"] for item in rows if "traces/attempts" in item] == [1, 2, 3, 4, 5]
    assert len([item for item in rows if "train/reward" in item]) == 5


def traced_steps(folder: Path) -> list[int]:
    return [int(path.stem[-8:]) for path in sorted((folder / "run" / "rollouts").glob("train-*"))]


BREAKING = """
import shutil
from transformers import TrainerCallback

class Break(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2:
            broken()

options = {"report_to": [name], "run_name": "r", "project": "p", "max_steps": 8}
trained = tiny_models.trainer(Path("."), tiny_models.half_dead, **options)
trained.add_callback(Break())
try:
    trained.train()
except RuntimeError as error:
    print(f"ended: {error}")  # in one write: others write there too
print("steps:", trained.state.global_step)
"""


@pytest.mark.full
@needs_wandb
def test_a_run_whose_wandb_is_killed_ends_with_an_error_and_all_its_traces(tmp_path):
    """transformers and TRL also log to wandb during training, so that the run ends, with an error that says why."""
    code = f"{TRAIN}\nname, broken = 'wandb', lambda: os.kill(service(), signal.SIGKILL)\n{BREAKING}\nos._exit(0)"
    printed = run_script(tmp_path, code)
    word = r"^ended: wandb failed \(\w+: .*\)\. transformers and TRL log to it, so the run ends too.*report_to='none'"
    assert re.search(word, printed, re.MULTILINE), printed
    steps = int(re.search(r"steps: (\d+)", printed)[1])
    assert steps >= 2
    assert traced_steps(tmp_path)[:steps] == list(range(1, steps + 1))
    for path in (tmp_path / "run" / "rollouts").glob("*.jsonl"):
        assert all(json.loads(line) for line in path.read_text().splitlines())


@needs_wandb
@pytest.mark.parametrize("cls", [GRPOPlusTrainer, GRPOTrainer])
@pytest.mark.parametrize("where", ["callback", "reward"])
def test_what_a_script_does_wrong_with_a_tracker_is_not_blamed_on_the_trackers_of_the_run(tmp_path, cls, where):
    import wandb

    class Logs(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            wandb.log({"x": 1})  # no run is open

    def reward(completions, **kwargs):
        wandb.log({"x": 1})

    made = tiny_models.trainer(tmp_path, reward if where == "reward" else tiny_models.digits, cls)
    if cls is GRPOTrainer:
        attach(made)
    if where == "callback":
        made.add_callback(Logs())
    with pytest.raises((wandb.Error, RewardError), match=r"You must call wandb\.init") as raised:
        made.train()
    assert "report_to" not in str(raised.value)


@needs_trackio
@pytest.mark.full
def test_a_run_goes_on_when_the_folder_of_trackio_is_gone(tmp_path):
    broken = "shutil.move('trackio', 'gone') and Path('trackio').write_text('')"
    code = f"{TRAIN}\nname, broken = 'trackio', lambda: {broken}\n{BREAKING}\nos._exit(0)"
    printed = run_script(tmp_path, code, start=warm_processes.cold)
    assert "steps: 8" in printed
    assert traced_steps(tmp_path) == list(range(1, 9))
