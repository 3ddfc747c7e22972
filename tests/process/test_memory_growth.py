"""A short form of benchmarks/load.py: batches leave no memory, process, thread or file behind."""

import os

import benchmark_scripts
import pytest


SIZES = {"groups": 8, "size": 4, "length": 400}


@pytest.fixture(scope="module")
def load():
    return benchmark_scripts.imported("load")


@pytest.fixture
def cheap(load):
    """Return the rewards of the benchmark without `math_answer`, whose libraries take longest to load."""
    return [reward for reward in load.REWARDS if reward["name"] != "math_answer"]


@pytest.mark.full
def test_thirty_steps_leave_no_object_process_thread_or_file_behind(load, cheap, tmp_path):
    figures = load.measure(tmp_path, 30, **SIZES, rewards=cheap)
    assert figures["left_behind"].keys() == {"threads", "files", "processes"}
    assert max(figures["left_behind"].values()) <= 0  # below 0 if something of an earlier test ends meanwhile
    assert figures["attempts_a_step"] > 8 * 4  # some groups were resampled
    first, *_, last = figures["python_blocks_every_ten"]
    assert last - first < 3000  # in twenty steps; the batches of these steps hold many times as many blocks


@pytest.mark.parametrize("ended_in", [1, pytest.param(2, marks=pytest.mark.full), 3])
def test_ended_in_the_first_steps(load, cheap, tmp_path, monkeypatch, ended_in):
    step, left = load.Load.step, iter(range(ended_in - 1))

    def until_then(self):
        if next(left, None) is None:
            raise KeyboardInterrupt
        step(self)

    monkeypatch.setattr(load.Load, "step", until_then)
    figures = load.measure(tmp_path, 30, **SIZES, rewards=cheap)
    assert (figures and figures["steps"]) == (ended_in - 1 or None)


def test_where_nothing_was_measured_a_sentence_says_so(load, monkeypatch):
    monkeypatch.setattr(load, "measure", lambda *args, **sizes: None)
    monkeypatch.setattr("sys.argv", ["load.py"])
    monkeypatch.setenv("ACCELERATE_USE_CPU", "false")
    with pytest.raises(SystemExit, match="Nothing was measured"):
        load.main()
    assert os.environ["ACCELERATE_USE_CPU"] == "true"


def test_importing_the_benchmark_does_not_change_the_environment(monkeypatch):
    """The process that imports it runs other tests too."""
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    benchmark_scripts.imported("load")
    assert "ACCELERATE_USE_CPU" not in os.environ
