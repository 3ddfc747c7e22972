"""Tests of a sample's effects on its worker: none reaches the next sample, and nothing keeps running."""

import subprocess
import sys
from pathlib import Path

import pytest
from leaking_rewards import LEAVE

from trl_grpo_plus.scoring import worker_pool
from trl_grpo_plus.scoring.worker_pool import Pool


FILE = Path(__file__).parents[1] / "helpers" / "leaking_rewards.py"
STATE, RUNNING, SHARES, LOWERS = (f"{FILE}:{name}" for name in ("state", "running", "shares", "lowers"))


def rows(*texts):
    return [{"completions": text} for text in texts]


@pytest.fixture
def pool(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(worker_pool, "_WARNED_OF", set())
    made = Pool(size=1)
    yield made
    made.close()


def pids(pool, *texts):
    outcomes = pool.map(RUNNING, {}, rows(*texts), timeout=30)
    assert [outcome.message for outcome in outcomes if outcome.status != "ok"] == []
    return [outcome.score for outcome in outcomes]


def test_the_next_sample_finds_the_worker_unchanged(pool):
    texts = [text for name in LEAVE for text in (name, "nothing")]
    outcomes = pool.map(STATE, {}, rows(*texts), timeout=30)
    after = dict(zip(LEAVE, outcomes[1::2], strict=True))
    assert {name: outcome.message for name, outcome in after.items() if outcome.score != 1.0} == {}
    assert [outcome.status for outcome in outcomes].count("error") == 1, "without builtins it cannot be scored"
    assert len(pool._idle) == 1


@pytest.mark.parametrize(
    "how", ["def judge(completions):\n    {}\n    return [1.0]", "{}\ndef judge(completions): return [1.0]"]
)
def test_the_next_reward_is_loaded_with_the_original_path(pool, tmp_path, how):
    """The first reward clears `sys.path` when it runs or on import. The next one still finds its modules."""
    (tmp_path / "clears.py").write_text("import sys\n" + how.format("sys.path.clear()"))
    (tmp_path / "next_one.py").write_text(
        "import wave, sys\ndef judge(completions): return [float(len(sys.path) > 1)]"
    )
    for _ in range(2):
        for name in ("clears", "next_one"):
            outcomes = pool.map(f"{tmp_path}/{name}.py:judge", {}, rows("a", "b"), timeout=30)
            assert [outcome.score for outcome in outcomes] == [1.0, 1.0], outcomes


def test_threads_and_processes_left_running_end_with_their_worker(pool, caplog):
    first, *others = pids(pool, "nothing", "a thread", "nothing", "a process", "nothing", "an orphan", "nothing")
    assert others[0] == first
    assert len({others[1], others[3], others[5]} | {first}) == 4  # a new worker after each of the three
    commands = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert f"{sys.executable} -S -c while True: pass busy" not in commands
    assert caplog.text.count("left a thread (spinner) running") == 1
    assert "trl_grpo_plus.scoring.kept()" in caplog.text
    assert caplog.text.count("is ended") == 1  # once for each reward


def test_threads_that_end_by_themselves_keep_the_worker(pool, caplog, monkeypatch):
    assert len(set(pids(pool, "nothing", *["what ends"] * 3, "nothing"))) == 1
    assert "is ended" not in caplog.text


def test_state_that_samples_share_stays(pool, caplog):
    outcomes = pool.map(SHARES, {}, rows(*"abc"), timeout=30)
    assert [outcome.score for outcome in outcomes] == [0.0, 1.0, 2.0], outcomes
    assert "is ended" not in caplog.text


def test_state_that_cannot_be_restored_ends_the_worker(pool):
    """A sample lowers a hard limit, which only root may raise again. The next sample finds the old limit."""
    outcomes = pool.map(LOWERS, {}, rows(*"abc"), timeout=30)
    assert len({outcome.score for outcome in outcomes}) == 1
