"""The processors and the memory of a machine, within the limits of its container."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trl_grpo_plus.utils import resources


CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, CORES),
        ({"cpu.max": "max 100000"}, CORES),
        ({"cpu.max": "100000 100000"}, 1),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "6400000 100000"}, 64),
        ({"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}, CORES),
        ({"cpu.cfs_quota_us": "100000", "cpu.cfs_period_us": "100000"}, 1),
    ],
)
def test_a_quota_takes_processors_away(tmp_path, monkeypatch, files, quota):
    monkeypatch.setattr(resources, "CONTROL_GROUPS", tmp_path)
    for folder in (tmp_path, tmp_path / "cpu"):  # control groups of version 2, of version 1
        folder.mkdir(exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text + "\n")
    assert resources.processors() == min(CORES, quota)


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, math.inf),
        ({"memory.max": "max"}, math.inf),
        ({"memory.max": "1048576"}, 1 << 20),
        ({"memory.limit_in_bytes": "2097152"}, 2 << 20),
        ({"memory.limit_in_bytes": "9223372036854771712"}, math.inf),  # v1 without a limit
    ],
)
def test_a_limit_takes_memory_away(tmp_path, monkeypatch, files, limit):
    monkeypatch.setattr(resources, "CONTROL_GROUPS", tmp_path)
    for folder in (tmp_path, tmp_path / "memory"):
        folder.mkdir(exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text + "\n")
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert resources.memory_bytes() == min(physical, limit)


@pytest.fixture
def quota():
    """Make a control group with the time of one processor, or skip the test if that is not allowed here."""
    names = dict(line.split(":")[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    own = next((path for controllers, path in names.items() if "cpu" in controllers.split(",")), None)
    base = Path("/sys/fs/cgroup") if own is None else Path("/sys/fs/cgroup/cpu")
    made = base / (names.get("", "/") if own is None else own).lstrip("/") / f"trl-grpo-plus-{os.getpid()}"
    try:
        made.mkdir()
        (made / ("cpu.max" if own is None else "cpu.cfs_quota_us")).write_text("100000")
    except OSError as error:
        if made.exists():
            made.rmdir()
        pytest.skip(f"no control group with a quota can be made here: {error}")
    yield made
    made.rmdir()


def test_the_kernel_s_own_quota_counts(quota):
    def enter():
        (quota / "cgroup.procs").write_text(str(os.getpid()))

    source = "from trl_grpo_plus.scoring import default_size; print(default_size())"
    ran = subprocess.run([sys.executable, "-c", source], preexec_fn=enter, capture_output=True, text=True, check=True)
    assert ran.stdout == "1\n"
