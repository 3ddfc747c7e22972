"""Tests on a machine short of processes: no completion ends a run, and honest programs still get their reward."""

import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from programs_hostile import EXHAUSTION

from trl_grpo_plus.scoring import worker_pool


pytestmark = [pytest.mark.timed, pytest.mark.full]


HONEST = "print(sum(map(int, input().split())))"
THREADED = (
    "import threading\nheld = threading.Event()\n"
    "threads = [threading.Thread(target=held.wait) for _ in range(3)]\n"
    "[thread.start() for thread in threads]\nheld.set()\n" + HONEST
)
TESTS = [{"stdin": "2 3\n", "stdout": "5\n"}]
SCORE = """
import json, os, sys
from trl_grpo_plus.scoring import worker_pool
from trl_grpo_plus.registry import get_reward
from trl_grpo_plus.sandbox import Sandbox
with Sandbox(self_test=False) as sandbox:
    print(json.dumps(os.geteuid() == 0 or sandbox.tier.counts_alone), flush=True)
programs, tests = json.load(sys.stdin)
worker_pool.configure(4)
reward = get_reward("python_tests", time_s=1.0)
for _ in range(2):
    outcomes = reward.score(completions=[f"```python\\n{p}\\n```" for p in programs], tests=[tests] * len(programs))
    print(json.dumps(outcomes), flush=True)
"""
PATHS = [str(Path(worker_pool.__file__).parents[2]), *(path for path in sys.path if path.endswith("site-packages"))]
SPARE_UID = 1_900_000_001  # no user has this id, so its processes are the test's


class Scarce:
    """Runs a command with room for few processes, under one of the limits that a machine may have."""

    def __init__(self, kind, room):
        self.kind, self.room = kind, room
        self.group = _pids_group() if kind == "pids.max" else None

    def run(self, source, text):
        python, user = sys.executable, {}
        if self.kind == "RLIMIT_NPROC" and os.geteuid() == 0:  # the limit does not bind root
            python = "/usr/bin/python3"  # another user may not read our Python's folder
            user = {"user": SPARE_UID, "group": SPARE_UID, "extra_groups": []}
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            Path(folder, "sitecustomize.py").write_text(
                f"import site\nfor path in {PATHS}:\n    site.addsitedir(path)\n"
            )
            options = {"input": text, "capture_output": True, "text": True, "timeout": 300, "cwd": "/"}
            env = {**os.environ, "OMP_NUM_THREADS": "1", "HOME": "/tmp", "PYTHONPATH": folder}
            return subprocess.run([python, "-c", source], env=env, preexec_fn=self._enter, **options, **user)

    def _enter(self):
        if self.group is not None:
            (self.group / "pids.max").write_text(str(self.room))
            (self.group / "cgroup.procs").write_text(str(os.getpid()))
        else:
            resource.setrlimit(resource.RLIMIT_NPROC, (self.room, self.room))


def _pids_group():
    """Make a control group whose processes can be limited; skip the test if none can be made."""
    names = dict(line.split(":")[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    folders = [Path("/sys/fs/cgroup/pids" + names.get("pids", "")), Path("/sys/fs/cgroup" + names.get("", ""))]
    for folder in folders:
        made = folder / f"trl-grpo-plus-{os.getpid()}"
        try:
            made.mkdir()
            if (made / "pids.max").exists():
                return made
            made.rmdir()
        except OSError:
            continue
    return pytest.skip("no control group with pids.max can be made here")


@pytest.fixture(params=["pids.max", "RLIMIT_NPROC"])  # the second needs no root
def scarce(request):
    made = []

    def make(room):
        if request.param == "RLIMIT_NPROC" and os.geteuid() != 0:
            room += sum(1 for path in Path("/proc").glob("[0-9]*") if _is_ours(path))
        made.append(Scarce(request.param, room))
        probe = made[-1].run("from trl_grpo_plus.scoring import worker_pool; print('runs')", "")
        if probe.stdout != "runs\n":
            pytest.skip(f"nothing can be run under {request.param} here: {probe.stderr[-300:]}")
        return made[-1]

    yield make
    for one in made:
        if one.group is not None:
            with contextlib.suppress(OSError):
                one.group.rmdir()


def _is_ours(path):
    try:
        return path.stat().st_uid == os.getuid()
    except OSError:
        return False


def test_thread_bombs_among_honest_programs_do_not_end_the_run(scarce):
    programs = [HONEST, EXHAUSTION["thread bomb"].source, THREADED] * 4
    ran = scarce(130).run(SCORE, json.dumps([programs, TESTS]))
    assert ran.returncode == 0, ran.stderr[-3000:]
    counts_alone, *lines = ran.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        scores = [score for score, *_ in json.loads(line)]
        assert scores[0::3] == [1.0] * 4, line
        assert scores[1::3] == [0.0] * 4, line
        # If one limit counts the threads of all programs, a program that takes them all can make another one fail.
        assert set(scores[2::3]) <= ({1.0} if json.loads(counts_alone) else {1.0, 0.0}), line


WAIT = f"""
import json, sys, threading
from trl_grpo_plus.scoring import worker_pool

JUDGE = {str(Path(__file__).parents[1] / "helpers" / "user_rewards.py")!r} + ":judge"
threading.stack_size(1 << 16)
pool = worker_pool.Pool(2)

def score():
    rows = [{{"completions": text, "answer": "1"}} for text in "1211"]
    print(json.dumps([(o.score, o.status) for o in pool.map(JUDGE, {{}}, rows, timeout=10)]), flush=True)

def fill():
    # All the room there is; what comes back frees it.
    held, threads = threading.Event(), []
    try:
        while True:
            threads.append(threading.Thread(target=held.wait))
            threads[-1].start()
    except RuntimeError:
        return held.set

score()
while pool._idle:  # the next samples need new workers
    pool._end(pool._idle.pop())
timer = threading.Timer(2.0, lambda: free())
timer.start()
free = fill()
score()
timer.join()

worker_pool.SCARCE_S = worker_pool.GIVE_UP_S = 1.0
while pool._idle:
    pool._end(pool._idle.pop())
free = fill()
try:
    score()
except RuntimeError as error:
    print(json.dumps(str(error)))
worker_pool.GIVE_UP_S = 600.0
pool._starved_s = 0.0
score()
free()
score()
pool.close()
"""


def test_samples_without_a_worker_wait_then_starve_and_then_end_the_run(scarce):
    ran = scarce(60).run(WAIT, "")
    assert ran.returncode == 0, ran.stderr[-3000:]
    first, waited, end, starved, freed = map(json.loads, ran.stdout.splitlines())
    scored = [[1.0, "ok"], [0.0, "ok"], [1.0, "ok"], [1.0, "ok"]]
    assert (first, waited, freed) == (scored, scored, scored)
    assert starved == [[None, "starved"]] * 4
    assert "no sample could be scored" in end
    assert "no process could be forked" in end


LITTLE_MEMORY = r"""
import json
from trl_grpo_plus.registry import get_reward
outcomes = get_reward("math_answer").score(completions=[r"\boxed{4}", r"\boxed{5}"], answer=["4", "4"])
print(json.dumps([(outcome.score, outcome.status) for outcome in outcomes]))
"""


def test_right_answers_are_rewarded_under_a_hard_limit_on_memory():
    """The hard limit, as of `ulimit -v`, is below `reward_worker_memory_mb`."""
    limit = 2 << 30

    def enter():
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    options = {"capture_output": True, "text": True, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
    ran = subprocess.run([sys.executable, "-c", LITTLE_MEMORY], preexec_fn=enter, **options)
    assert ran.stdout == '[[1.0, "ok"], [0.0, "ok"]]\n', ran.stderr
    assert "reward_worker_memory_mb=4096 is more than the hard limit" in ran.stderr
    assert "set reward_worker_memory_mb to 2048" in ran.stderr
