"""A run that was resumed with other rewards: its later attempts recorded other names than its earlier ones."""

import json
import shutil
from pathlib import Path

import pytest
import synthetic_traces

from trl_grpo_plus.cli.main import main


REWARDS = """
from itertools import count

times = count()

def accuracy(completions, answer):
    return [float(f"<answer>{wanted}</answer>" in text) for text, wanted in zip(completions, answer)]

def format(completions):
    return [1.0 for _ in completions]

def short(completions):
    return [0.25 for _ in completions]

def interrupted(completions):
    if next(times):
        raise KeyboardInterrupt
    return [1.0 for _ in completions]
"""
OUTCOMES = {"accuracy": "ok", "short": "ok"}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Write a run: 16 attempts scored by accuracy and format, then 16 by accuracy and short.

    run.json has the weights of accuracy and short.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(REWARDS)
    groups = [
        synthetic_traces.group([1.0, 0.0, 0.0, 1.0], step=step, group=number, prompt=f"Task {number}")
        for step in range(4)
        for number in range(2)
    ]
    for row in (row for group in groups[4:] for row in group):
        right = row["rewards"]["accuracy"]
        row |= {"rewards": {"accuracy": right, "short": 0.5}, "outcomes": OUTCOMES, "reward": right + 0.25}
    about = {"rewards": {"accuracy": 1.0, "short": 0.5}, "num_generations": 4, "max_steps": 4}
    synthetic_traces.write_traces(tmp_path / "run", groups, about=about)
    return "run"


def lines_of(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize(
    ("reward", "equal", "recorded"),
    [("short", 0, [{}, {"short": 0.5}]), ("format", 16, [{"format": 1.0}, {}])],
)
def test_attempts_that_recorded_no_such_reward_are_counted_and_not_compared(run, capsys, reward, equal, recorded):
    assert main(["rescore", run, "--reward", f"mine.py:{reward}", "-o", "out.jsonl"]) == 0
    out = capsys.readouterr().out
    assert f"{reward} against the recorded {reward}\n  equal     {equal} of 16 (" in out
    assert "  outcomes  ok 32\n" in out
    assert f"  16 more attempts recorded no {reward}. They are not compared.\n" in out
    assert "was None" not in out
    lines = lines_of("out.jsonl")
    assert [line["recorded"] for line in lines] == [recorded[0]] * 16 + [recorded[1]] * 16
    assert all(line["new"][reward] is not None for line in lines)


def test_totals_of_unknown_weights_are_not_guessed(run, capsys):
    assert main(["rescore", run, "--reward", "mine.py:accuracy"]) == 0
    out = capsys.readouterr().out
    assert "equal     32 of 32 (100.00 %)" in out
    assert "recorded no" not in out
    assert "  left out  4 of 8: their recorded rewards are not the ones that run.json has\n" in out
    assert "            weights for (accuracy, short), so their new total is unknown\n" in out
    assert "  alive     4 of 4 (100.00 %) recorded, 4 (100.00 %) now\n" in out


def test_the_report_says_if_nothing_could_be_compared(run, capsys, monkeypatch):
    """Ctrl-C ended the scoring before the first step that recorded `short`."""
    for name in ("FIRST", "MOST"):
        monkeypatch.setattr(f"trl_grpo_plus.cli.rescore.scoring_loop.{name}", 4)
    assert main(["rescore", run, "--reward", "mine.py:interrupted", "--against", "short"]) == 130
    out = capsys.readouterr().out
    assert "  equal     0 of 0 (-)\n" in out
    assert "  4 more attempts recorded no short. They are not compared.\n" in out
    assert "  left out  1 of 1: their recorded rewards" in out


def test_pages_and_export_accept_a_resumed_run(run, capsys):
    shutil.copytree(run, "again")
    assert main(["view", run]) == main(["view", run, "again"]) == 0
    assert main(["export", run, "--to", "jsonl", "-o", "all.jsonl"]) == 0
    rows = lines_of("all.jsonl")
    assert [row["rewards"]["short"] for row in rows] == [None] * 16 + [0.5] * 16
    assert [row["rewards"]["format"] for row in rows] == [1.0] * 16 + [None] * 16


@pytest.mark.parametrize(
    ("weights", "known"),
    [
        ({"accuracy": 1.0, "short": 0.5, "seen": 0.0}, 4),  # a monitor that was added later changes no total
        ({"accuracy": 1.0, "short": 0.8}, 0),  # the rewards are the same, their weights are not
    ],
)
def test_totals_are_known_if_the_weights_reproduce_them(run, capsys, weights, known):
    path = Path(run, "rollouts", "run.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "rewards": weights}))
    assert main(["rescore", run, "--reward", "mine.py:accuracy"]) == 0
    out = capsys.readouterr().out
    assert f"  left out  {8 - known} of 8: their recorded rewards" in out
