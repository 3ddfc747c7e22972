"""Trainings on a device that is not the CPU (helpers/second_device.py): nothing mixes devices, as on a GPU."""

import json
import sys

import pytest
import second_device_worker
import warm_processes


HELPERS = second_device_worker.__file__.rpartition("/")[0]
FAST = ["TRL", "keep", "drop, KL in the loss", "resample", "head"]
REST = [case for case in second_device_worker.CASES if case not in FAST]


def trained(cases):
    done = warm_processes.run([sys.executable, second_device_worker.__file__, *cases], timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def fast():
    return trained(FAST)


@pytest.fixture(scope="module")
def rest():
    return trained(REST)


def assert_as_on_the_cpu(figures):
    on_cpu, there = figures["losses"]
    assert len(on_cpu) == second_device_worker.STEPS
    assert there == pytest.approx(on_cpu, abs=1e-6)
    assert any(abs(loss) > 1e-4 for loss in on_cpu)
    assert figures["difference"] < 1e-6


@pytest.mark.parametrize("case", FAST)
def test_a_run_ends_as_on_the_cpu(fast, case):
    assert_as_on_the_cpu(fast[case])


@pytest.mark.full
@pytest.mark.parametrize("case", REST)
def test_more_runs_end_as_on_the_cpu(rest, case):
    assert_as_on_the_cpu(rest[case])


def test_the_host_reads_hardly_more_than_with_trl(fast):
    """A GPU makes the host wait at each read. Generation reads once for each token, and resampling generates again."""
    assert fast["keep"]["reads"] <= fast["TRL"]["reads"] + 6
    assert fast["resample"]["reads"] > fast["TRL"]["reads"] + 6
