"""Tests of the pool: a hang or a crash costs only its own sample, nothing stays behind, and any thread may use it."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pytest
from cpu_load import MANY, burners, keep_there
from programs_hostile import all_gone, descendants

from trl_grpo_plus.scoring import Outcome, Step, worker_connection, worker_pool
from trl_grpo_plus.scoring.worker_pool import Pool
from trl_grpo_plus.utils.resources import processors


pytestmark = pytest.mark.timed


FILE = Path(__file__).parents[1] / "helpers" / "user_rewards.py"
JUDGE, PID, SLOW = f"{FILE}:judge", f"{FILE}:pid", f"{FILE}:slow"


def samples(*texts, answer="1"):
    return [{"completions": text, "answer": answer} for text in texts]


def results(outcomes):
    return [(outcome.score, outcome.status) for outcome in outcomes]


def zygote_of(pool):
    return pool._zygote._stop.peek()[2][0].pid


@pytest.fixture
def pool():
    made = Pool(size=2)
    yield made
    made.close()


def test_scores_are_in_order(pool):
    outcomes = pool.map(JUDGE, {"points": 2.0}, samples(*"12131"), timeout=5)
    assert outcomes == [Outcome(score, "ok") for score in (2.0, 0.0, 2.0, 0.0, 2.0)]
    assert pool.map(JUDGE, {}, [], timeout=5) == []


def test_steps_come_back(pool):
    assert pool.map(f"{FILE}:by_halves", {}, samples("1234", ""), timeout=5) == [
        Outcome(1.5, "ok", steps=(Step(2, 1.0), Step(4, 0.5))),
        Outcome(0.0, "ok", steps=()),
    ]


def test_two_hanging_samples_cost_two_workers_one_limit(pool):
    pool.map(JUDGE, {}, samples("1", "1"), timeout=5)

    def took():
        start = time.monotonic()
        outcomes = pool.map(JUDGE, {}, samples("hang", "1", "hang", "1", "1", "1", "1", "1"), timeout=2)
        assert results(outcomes) == [(None, "timeout"), (1.0, "ok")] * 2 + [(1.0, "ok")] * 4
        assert "after 2 s" in outcomes[0].message
        return time.monotonic() - start

    # The batch takes one limit, not the sum of two. A busy machine has three tries.
    assert any(2 <= took() < 4 for _ in range(3))


def test_waiting_for_a_worker_does_not_count(pool):
    """Eight samples of 0.3 s run on two workers with a limit of 0.8 s. The last starts after 0.9 s, and is scored."""
    pool.map(SLOW, {}, [{"completions": "a"}] * 2, timeout=5)
    outcomes = pool.map(SLOW, {}, [{"completions": "a"}] * 8, timeout=0.8)
    assert {outcome.status for outcome in outcomes} == {"ok"}


def test_importing_the_reward_does_not_count(pool, tmp_path):
    (tmp_path / "heavy.py").write_text("import time\ntime.sleep(1)\n\n\ndef one(completions):\n    return [1.0]\n")
    outcomes = pool.map(f"{tmp_path}/heavy.py:one", {}, [{"completions": "a"}] * 3, timeout=0.5)
    assert [outcome.score for outcome in outcomes] == [1.0] * 3


def test_a_failure_affects_its_own_sample_only(pool):
    failures = {
        "die": "ended itself with exit status 3",
        "segfault": "died of SIGSEGV",
        "signal 40": "died of signal 40.",
        "raise": "KeyError: 'no such key'",
        "leave": "SystemExit: 0",
        "memory 8000": "MemoryError",
    }
    right, *failed, wrong = pool.map(JUDGE, {}, samples("1", *failures, "2"), timeout=10)
    assert results([right, wrong]) == [(1.0, "ok"), (0.0, "ok")]
    assert results(failed) == [(None, "error")] * 6
    assert [words for words, one in zip(failures.values(), failed, strict=True) if words not in one.message] == []
    assert results(pool.map(JUDGE, {}, samples(*"1111"), timeout=10)) == [(1.0, "ok")] * 4


FORKS = """
import os
import time

def through(completions):
    if not os.fork():
        return [9.0]
    time.sleep(0.3)  # the other process is the first to come back
    return [1.0]

def plain(completions):
    return [2.0]

def to_all(completions):
    for number in range(3, 64):
        try:
            os.write(number, b"not an answer")
        except OSError:
            pass
    return [1.0]

def raw(completions):
    for number in range(3, 64):
        try:
            os.write(number, bytes.fromhex(completions[0]))
        except OSError:
            pass
    time.sleep(60)

def in_other_words(completions):
    import json
    json.dumps = lambda *given, **options: completions[0]
    return [1.0]

def closing(completions):
    os.closerange(3, 64)
    time.sleep(float(completions[0]))
    return [1.0]
"""


def test_a_fork_that_comes_back_from_the_reward_answers_for_no_sample(pool, tmp_path):
    (tmp_path / "forks.py").write_text(FORKS)
    outcomes = pool.map(f"{tmp_path}/forks.py:through", {}, [{"completions": ""}] * 2, timeout=10)
    assert outcomes == [Outcome(1.0, "ok")] * 2
    assert (
        pool.map(f"{tmp_path}/forks.py:plain", {}, [{"completions": ""}] * 2, timeout=10) == [Outcome(2.0, "ok")] * 2
    )


def test_a_reward_that_writes_to_its_workers_connection_does_not_hang_the_run(pool, tmp_path):
    (tmp_path / "forks.py").write_text(FORKS)
    outcomes = pool.map(f"{tmp_path}/forks.py:to_all", {}, [{"completions": ""}], timeout=10)
    assert results(outcomes) == [(None, "error")]
    assert outcomes[0].message == worker_pool.SPOILED
    assert pool.map(f"{tmp_path}/forks.py:plain", {}, [{"completions": ""}], timeout=10) == [Outcome(2.0, "ok")]


def framed(text):
    return (len(text).to_bytes(4, "big") + text.encode()).hex()


PARTS = ["00", "00000100", "000001007b", "ffffffff00", "fffffffe"]
WRONG = [
    "{}",
    "garbage",
    "3",
    "[" * 100_000,
    '{"outcome": 3}',
    '{"other": 3}',
    '{"waited": "long"}',
    '{"outcome": [0]}',
]
WRONG += ['{"waited": Infinity}', '{"cannot start": "x"}', '{"loaded": true}']
WRONG += [f'{{"outcome": [{values}, "", null, false, false]}}' for values in ('1, "fine"', '"a", "ok"')]


def test_a_reward_that_sends_a_part_of_a_reply_or_a_wrong_one_costs_its_own_sample(pool, tmp_path):
    (tmp_path / "forks.py").write_text(FORKS)
    pool.map(f"{tmp_path}/forks.py:plain", {}, [{"completions": ""}], timeout=60)
    written = [*PARTS, *map(framed, WRONG)]
    outcomes = pool.map(f"{tmp_path}/forks.py:raw", {}, [{"completions": text} for text in written], timeout=1)
    spoiled = Outcome(None, "error", worker_pool.SPOILED)
    assert [text for text, outcome in zip(written, outcomes, strict=True) if outcome != spoiled] == []
    assert pool.map(f"{tmp_path}/forks.py:plain", {}, [{"completions": ""}], timeout=10) == [Outcome(2.0, "ok")]


@pytest.mark.parametrize("words", ["garbage", "{}"])
def test_a_reward_that_changes_how_its_worker_answers_costs_its_own_sample(pool, tmp_path, words):
    (tmp_path / "forks.py").write_text(FORKS)
    outcomes = pool.map(f"{tmp_path}/forks.py:in_other_words", {}, [{"completions": words}], timeout=10)
    assert outcomes == [Outcome(None, "error", worker_pool.SPOILED)]
    assert pool.map(f"{tmp_path}/forks.py:plain", {}, [{"completions": ""}], timeout=10) == [Outcome(2.0, "ok")]


def test_a_large_sample_for_a_stopped_worker_goes_to_another(pool, monkeypatch):
    monkeypatch.setattr(worker_connection, "STALLED_S", 1)
    pool.map(JUDGE, {}, samples("1"), timeout=5)
    for worker in pool._idle:
        os.kill(worker.child.pid, signal.SIGSTOP)
    outcomes = pool.map(JUDGE, {}, samples("1" + " " * (1 << 24)), timeout=20)
    assert results(outcomes) == [(0.0, "ok")]


def test_a_fresh_worker_that_takes_nothing_in_does_not_hang_the_run(pool, monkeypatch):
    monkeypatch.setattr(worker_connection, "STALLED_S", 1)
    take, stopped = pool._take, []

    def first_stopped():
        worker = take()
        if not stopped:
            stopped.append(worker)
            os.kill(worker.child.pid, signal.SIGSTOP)
        return worker

    monkeypatch.setattr(pool, "_take", first_stopped)
    outcomes = pool.map(JUDGE, {}, samples("1" + " " * (1 << 24)), timeout=20)
    assert results(outcomes) == [(0.0, "ok")]
    assert stopped


@pytest.mark.parametrize("then_runs_s", ["0", "20"])
def test_a_reward_that_closes_its_workers_connection_is_told_so(pool, tmp_path, then_runs_s):
    (tmp_path / "forks.py").write_text(FORKS)
    outcomes = pool.map(f"{tmp_path}/forks.py:closing", {}, [{"completions": then_runs_s}], timeout=10)
    assert outcomes == [Outcome(None, "error", worker_pool.SPOILED)]


def test_a_sample_that_cannot_be_sent_costs_no_worker(pool):
    for _ in range(3):
        # Both depend on Python's release.
        with pytest.raises((AttributeError, pickle.PicklingError), match=r"pickle|local object"):
            pool.map(JUDGE, {}, [*samples("1"), {"completions": lambda: None, "answer": "1"}], timeout=5)
    assert results(pool.map(JUDGE, {}, samples("1", "2"), timeout=5)) == [(1.0, "ok"), (0.0, "ok")]
    assert len(descendants(zygote_of(pool))) <= pool.size


def test_a_worker_is_killed_with_all_that_it_started(pool):
    seconds = 10**6 + os.getpid()  # no other process sleeps for this long
    outcomes = pool.map(JUDGE, {}, samples(f"spawn {seconds}", "1"), timeout=1)
    assert [outcome.status for outcome in outcomes] == ["timeout", "ok"]
    commands = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert f"sleep {seconds}" not in commands


@pytest.mark.parametrize(("memory_mb", "status"), [(512, "error"), (2048, "ok")])
def test_memory_is_bounded(memory_mb, status):
    pool = Pool(size=1, memory_mb=memory_mb)
    (outcome,) = pool.map(JUDGE, {}, samples("memory 1000"), timeout=10)
    pool.close()
    assert outcome.status == status
    assert ("MemoryError" in outcome.message) == (status == "error")


def test_workers_are_kept(pool):
    first = {outcome.score for outcome in pool.map(PID, {}, [{"completions": ""}] * 20, timeout=5)}
    second = {outcome.score for outcome in pool.map(PID, {}, [{"completions": ""}] * 20, timeout=5)}
    assert first | second <= first
    assert 1 <= len(first) <= 2
    assert os.getpid() not in first


def test_any_thread_may_use_the_pool(pool):
    def use(name):
        return results(pool.map(JUDGE, {}, samples(str(name), "hang", "1", answer=str(name)), timeout=0.5))

    with ThreadPool(4) as threads:
        assert threads.map(use, range(2, 6)) == [[(1.0, "ok"), (None, "timeout"), (0.0, "ok")]] * 4


def test_threads_share_the_workers(pool):
    with ThreadPool(6) as threads:
        batches = threads.map(lambda _: pool.map(PID, {}, [{"completions": ""}] * 8, timeout=5), range(6))
    assert sum(map(len, batches)) == 48
    assert len({outcome.score for outcomes in batches for outcome in outcomes}) <= pool.size


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("no_such_module_at_all:judge", "there is no module no_such_module_at_all"),
        (f"{FILE}:jugde", "Did you mean judge"),
    ],
)
def test_a_reward_that_cannot_be_loaded_ends_the_run(pool, target, words):
    with pytest.raises(RuntimeError, match="cannot be loaded") as caught:
        pool.map(target, {}, samples("1"), timeout=5)
    assert words in str(caught.value)
    assert pool.map(JUDGE, {}, samples("1"), timeout=5)[0].score == 1.0


LIKE_CUDA = """
import mmap

libraries = mmap.mmap(-1, 6 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)

def judge(completions):
    return [1.0 for _ in completions]
"""


def test_libraries_that_a_reward_loads_do_not_count_as_its_memory(pool, tmp_path):
    """The libraries of PyTorch's CUDA builds are mapped to up to 5 GiB of addresses, which are not writable."""
    (tmp_path / "like_cuda.py").write_text(LIKE_CUDA)
    assert pool.memory_mb == 4096
    assert results(pool.map(f"{tmp_path}/like_cuda.py:judge", {}, samples("1"), timeout=5)) == [(1.0, "ok")]


@pytest.mark.parametrize("error", ["MemoryError", "ImportError('lib.so: failed to map segment from shared object')"])
def test_a_reward_that_needs_more_memory_to_load_names_the_option(pool, tmp_path, error):
    (tmp_path / "large.py").write_text(f"raise {error}\n")
    with pytest.raises(RuntimeError, match=rf"may use {pool.memory_mb} MiB: raise reward_worker_memory_mb\.$"):
        pool.map(f"{tmp_path}/large.py:judge", {}, samples("1"), timeout=5)


def test_a_worker_that_cannot_start_ends_the_run_and_scores_nothing(pool, monkeypatch):
    """A limit of the machine may forbid what a worker sets up."""
    monkeypatch.setattr(worker_pool, "granted_mb", lambda _: 1 << 60)
    with pytest.raises(RuntimeError, match=r"a reward worker cannot start\.\n(.*\n)*OverflowError"):
        pool.map(JUDGE, {}, samples("1"), timeout=5)


@pytest.mark.parametrize(("end", "words"), [("os._exit(3)", "exit status 3"), ("os.abort()", "SIGABRT")])
def test_a_worker_that_dies_before_its_sample_ends_the_run_and_scores_nothing(pool, tmp_path, end, words):
    (tmp_path / "dies.py").write_text(f"import os\n{end}\n")
    with pytest.raises(RuntimeError, match=rf"cannot be loaded in a worker process\. .*{words}.* Twice"):
        pool.map(f"{tmp_path}/dies.py:judge", {}, samples("1", "1"), timeout=5)
    assert pool.map(JUDGE, {}, samples("1"), timeout=5)[0].score == 1.0


def test_a_sample_that_meets_a_dying_worker_goes_to_another(pool, tmp_path):
    """An earlier sample may be what killed the worker."""
    judge = (
        f"import os\nif not os.path.exists('{tmp_path}/mark'):\n    open('{tmp_path}/mark', 'x')\n    os._exit(3)\n"
    )
    (tmp_path / "dies.py").write_text(f"{judge}def judge(completions, answer): return [1.0]\n")
    assert pool.map(f"{tmp_path}/dies.py:judge", {}, samples("1"), timeout=5) == [Outcome(1.0, "ok")]


def test_the_zygote_may_be_killed(pool):
    pool.map(JUDGE, {}, samples("1", "1"), timeout=5)
    os.kill(zygote_of(pool), signal.SIGKILL)
    assert [outcome.score for outcome in pool.map(JUDGE, {}, samples(*"1211"), timeout=5)] == [1.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize("count", [1, 5])
def test_idle_workers_may_be_killed(pool, count):
    pool.map(JUDGE, {}, samples("1", "1", "1", "1"), timeout=5)
    for worker in pool._idle:
        os.kill(worker.child.pid, signal.SIGKILL)
    time.sleep(0.2)
    outcomes = pool.map(JUDGE, {}, samples(*"1" * count), timeout=5)
    assert outcomes == [Outcome(1.0, "ok")] * count


def test_a_sample_whose_worker_the_machine_killed_is_tried_once_more(pool, tmp_path):
    outcomes = pool.map(JUDGE, {}, samples("1", f"killed {tmp_path}/mark", "1"), timeout=10)
    assert [outcome.status for outcome in outcomes] == ["ok"] * 3
    assert (tmp_path / "mark").exists()


def test_a_sample_whose_worker_is_killed_again_is_starved_and_no_error(pool):
    outcomes = pool.map(JUDGE, {}, samples("1", "killed", "1", "2"), timeout=10)
    assert results(outcomes) == [(1.0, "ok"), (None, "starved"), (1.0, "ok"), (0.0, "ok")]
    assert "SIGKILL" in outcomes[1].message


def test_a_run_ends_when_nothing_at_all_could_be_scored_for_long(pool, monkeypatch):
    pool.map(JUDGE, {}, samples("killed"), timeout=10)
    assert pool.map(JUDGE, {}, samples("killed", "1"), timeout=10)[1].status == "ok"  # this restarts the count
    monkeypatch.setattr(worker_pool, "GIVE_UP_S", 1e-6)
    with pytest.raises(RuntimeError, match=r"no sample could be scored\. .*SIGKILL"):
        pool.map(JUDGE, {}, samples("killed"), timeout=10)


STUCK = """
import time
from trl_grpo_plus.scoring import excuse

def judge(completions):
    while completions != ["1"]:
        time.sleep(0.05)
        excuse(0.05)
    return [1.0]
"""


def test_the_rest_is_starved_when_no_sample_ends_for_long(pool, tmp_path, monkeypatch):
    """Otherwise each sample could take ten times its limit, one after the other, while other ranks wait."""
    (tmp_path / "stuck.py").write_text(STUCK)
    judge = f"{tmp_path}/stuck.py:judge"
    pool.map(judge, {}, [{"completions": "1"}] * 2, timeout=60)  # a busy machine takes long to start the pool
    monkeypatch.setattr(worker_pool, "GIVE_UP_S", 0.5)
    outcomes = pool.map(judge, {}, [{"completions": text} for text in ("1", *"2222")], timeout=0.5)
    assert outcomes[0] == Outcome(1.0, "ok")
    assert outcomes[1:] == [Outcome(None, "starved", "Nothing could be scored for 1 s.")] * 4
    assert len(descendants(zygote_of(pool))) <= 1  # at most one idle worker
    with pytest.raises(RuntimeError, match=r"no sample could be scored\. Nothing could be scored for 1 s"):
        pool.map(judge, {}, [{"completions": "2"}] * 3, timeout=0.5)
    assert pool.map(judge, {}, [{"completions": "1"}], timeout=0.5) == [Outcome(1.0, "ok")]


def test_a_sample_is_not_given_up_before_its_limit(pool, monkeypatch):
    pool.map(JUDGE, {}, samples("1", "1"), timeout=60)  # a busy machine takes long to start the pool
    monkeypatch.setattr(worker_pool, "GIVE_UP_S", 1.0)
    outcomes = pool.map(JUDGE, {}, samples("hang", "hang"), timeout=1.5)
    assert {outcome.status for outcome in outcomes} == {"timeout"}


def test_a_reward_that_gets_no_time_to_load_is_starved(pool, tmp_path, monkeypatch):
    monkeypatch.setattr(worker_pool, "LOAD_LIMIT_S", 0.05)
    (tmp_path / "slow.py").write_text(
        "import time\nfrom trl_grpo_plus.scoring import excuse\nexcuse(1e6)\ntime.sleep(9)\n"
    )
    outcomes = pool.map(f"{tmp_path}/slow.py:judge", {}, [{"completions": "1"}], timeout=7)
    assert outcomes[0].status == "starved"
    assert "in 0.5 s the loading of the reward did not get its 0.05 s" in outcomes[0].message


@pytest.mark.full  # tests/utils/test_run_clock.py tests the clock on a busy machine
def test_a_sample_without_a_processor_is_starved_and_a_sleeping_one_times_out(pool):
    pool.map(JUDGE, {}, samples("1"), timeout=60)
    keep_there(pool._zygote)
    while pool._idle:
        pool._end(pool._idle.pop())
    with burners(MANY):
        starved, hung = pool.map(JUDGE, {}, samples("compute 0.28", "hang"), timeout=0.3)
    assert (starved.status, hung.status) == ("starved", "timeout")
    assert "in 3 s the sample did not get its 0.3 s" in starved.message


def test_time_that_a_reward_excuses_does_not_count(pool):
    outcomes = pool.map(f"{FILE}:excused", {}, [{"completions": "a"}], timeout=0.5)
    assert outcomes == [Outcome(1.0, "ok")]


REFUSED = """
import time
from trl_grpo_plus.utils.fork_client import NoProcess
from trl_grpo_plus.sandbox import Sandbox
from trl_grpo_plus.scoring import excuse

def judge(completions):
    with Sandbox(self_test=False, on_wait=excuse) as sandbox:
        ask, until = sandbox._zygote._ask_for_child, time.monotonic() + 2.5

        def refuse(*args):
            if time.monotonic() < until:
                raise NoProcess("none")
            return ask(*args)

        sandbox._zygote._ask_for_child = refuse
        return [float(sandbox.run("print(1)").stdout == b"1\\n")]
"""


def test_the_wait_for_a_programs_process_does_not_count(pool, tmp_path):
    (tmp_path / "refused.py").write_text(REFUSED)
    outcomes = pool.map(f"{tmp_path}/refused.py:judge", {}, [{"completions": "a"}], timeout=2.0)
    assert outcomes == [Outcome(1.0, "ok")]


def test_a_sample_that_kills_the_zygote_twice_is_starved_with_a_warning(pool, caplog, monkeypatch):
    """The pool cannot see whether the kernel or the sample killed the zygote. So the sample is starved, not an error,
    and a warning tells of it."""
    outcomes = pool.map(JUDGE, {}, samples("orphan"), timeout=5)
    assert [outcome.status for outcome in outcomes] == ["starved"]
    assert "The process that forks workers died while it ran. Twice" in outcomes[0].message
    assert "1 of 1 samples were starved. The process that forks workers died" in caplog.text
    monkeypatch.setattr(worker_pool, "GIVE_UP_S", 1e-6)
    with pytest.raises(RuntimeError, match="no sample could be scored"):
        pool.map(JUDGE, {}, samples("orphan"), timeout=5)
    assert pool.map(JUDGE, {}, samples("1"), timeout=5)[0].score == 1.0


def test_closing_does_not_wait_for_a_fork_of_the_trainer(pool):
    """A fork of the trainer, such as a DataLoader's worker, holds the other end of every socket."""
    pool.map(JUDGE, {}, samples("1"), timeout=5)
    zygote = zygote_of(pool)
    fork = os.fork()
    if fork == 0:
        time.sleep(60)
        os._exit(0)
    start = time.monotonic()
    pool.close()
    took = time.monotonic() - start
    os.kill(fork, signal.SIGKILL)
    os.waitpid(fork, 0)
    assert took < 3  # after five seconds it is killed, without time to end its children
    assert not Path(f"/proc/{zygote}").exists()


def test_a_sample_that_workers_cannot_read_is_an_error(pool):
    sample = {"completions": Unreadable(), "answer": "1"}
    outcomes = pool.map(JUDGE, {}, [sample, *samples("1")], timeout=5)
    assert [outcome.status for outcome in outcomes] == ["error", "ok"]
    assert "ZeroDivisionError" in outcomes[0].message


class Unreadable:
    """An object that can be pickled but not unpickled."""

    def __reduce__(self):
        return divmod, (1, 0)


def test_closing_leaves_nothing_and_can_be_undone(pool):
    first = pool.map(PID, {}, [{"completions": ""}], timeout=5)[0].score
    pool.close()
    assert not Path(f"/proc/{int(first)}").exists()
    assert pool.map(PID, {}, [{"completions": ""}], timeout=5)[0].score != first


# A test run in the background may inherit that Ctrl-C is ignored.
SCRIPT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from trl_grpo_plus.scoring import shared
texts = sys.argv[2:]
print("start", flush=True)
print(shared().map(sys.argv[1], {}, [{"completions": t, "answer": "1"} for t in texts], timeout=60), flush=True)
"""


def start(tmp_path, *texts):
    (tmp_path / "uses_a_pool.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "uses_a_pool.py"), JUDGE, *texts]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "start\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_orphan_is_left(tmp_path, number):
    process = start(tmp_path, "spawn 600", "spawn 600")
    end = time.monotonic() + 60
    while len(pids := descendants(process.pid)) < 6 and time.monotonic() < end:
        time.sleep(0.05)
    assert len(pids) >= 6  # the zygote, its workers, and what these started
    process.send_signal(number)
    process.wait(60)
    assert all_gone(pids)


def test_a_script_that_ends_leaves_no_orphan_and_is_not_run_again(tmp_path):
    """Workers are forked from a process that never imports the script, unlike multiprocessing's."""
    process = start(tmp_path, "1", "2")
    pids = set()
    while process.poll() is None:
        pids.update(descendants(process.pid))
        time.sleep(0.01)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "score=1.0" in out
    assert "start" not in out
    assert pids
    assert all_gone(pids)


def test_ctrl_c_while_scoring_does_not_spoil_the_next_batch(pool):
    pool.map(JUDGE, {}, samples("1", "1"), timeout=5)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        pool.map(JUDGE, {}, samples("hang", "hang"), timeout=30)
    signal.signal(signal.SIGINT, before)
    assert not descendants(zygote_of(pool))  # the two that hang are ended, not forgotten
    assert [outcome.score for outcome in pool.map(JUDGE, {}, samples(*"1221"), timeout=5)] == [1.0, 0.0, 0.0, 1.0]


def test_a_fork_of_the_trainer_has_a_pool_of_its_own():
    def pids():
        return {outcome.score for outcome in worker_pool.shared().map(PID, {}, [{"completions": ""}] * 4, timeout=5)}

    parents = pids()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, repr(pids()).encode())
            worker_pool.shared().close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    own = eval(os.read(reading, 10_000))
    os.close(reading)
    os.close(writing)
    assert own
    assert not own & parents
    assert pids() <= parents


def test_configure_changes_the_shared_pool():
    worker_pool.configure(3, 1024)
    assert (worker_pool.shared().size, worker_pool.shared().memory_mb) == (3, 1024)
    kept = worker_pool.shared()
    worker_pool.configure(3, 1024)
    assert worker_pool.shared() is kept
    worker_pool.configure()
    assert worker_pool.shared().size == worker_pool.default_size()


@pytest.mark.parametrize(("ranks", "most"), [("1", 16), ("1000", 1)])
def test_ranks_share_the_cores(monkeypatch, ranks, most):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert worker_pool.default_size() == max(1, min(most, processors() // int(ranks)))


@pytest.mark.parametrize(("size", "ranks", "warns"), [(9, "1", False), (10, "1", True), (5, "2", True)])
def test_too_many_workers_per_processor_give_one_warning(monkeypatch, caplog, size, ranks, warns):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    monkeypatch.setattr(worker_pool, "processors", lambda: 1)
    worker_pool._warn_if_many.cache_clear()
    for _ in range(2):
        Pool(size)
    assert caplog.text.count("reward workers on this machine share 1 processors") == warns


def test_a_worker_that_dies_before_it_has_read_its_sample_ends_the_run_with_the_reason():
    """The sample does not fit into the socket's buffer."""
    pool = Pool(size=1, memory_mb=1)
    try:
        with pytest.raises(RuntimeError, match=r"a reward worker cannot start|cannot be loaded in a worker process"):
            pool.map(JUDGE, {}, [{"completions": "a" * 8_000_000, "answer": ""}], timeout=10)
    finally:
        pool.close()
