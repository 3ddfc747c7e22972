"""The clock of a process: the time that a busy machine makes it wait does not count, and any other time does."""

import contextlib
import os
import subprocess
import sys
import time

import pytest
from cpu_load import MANY, PROCESSOR, burners

from trl_grpo_plus.utils import run_clock as _clock
from trl_grpo_plus.utils.run_clock import Clock, TooBusy, TooLong, _Thread, _Usage


pytestmark = pytest.mark.timed


SPIN = "while True:\n    pass"
# Each thread works long in C without Python's lock, so that all work at once.
SPIN_IN_THREADS = """
import hashlib, threading
data = bytes(1 << 22)
def spin():
    while True:
        hashlib.sha256(data).digest()
for _ in range(20):
    threading.Thread(target=spin).start()
"""
SLEEP_BESIDE_A_THREAD_THAT_WAKES = """
import threading, time
def wake():
    while True:
        time.sleep(0.001)
for _ in range(10):
    threading.Thread(target=wake).start()
time.sleep(1000)
"""


@contextlib.contextmanager
def running(source):
    """Run a program on `PROCESSOR` and give its process id."""
    keep = {"preexec_fn": lambda: os.sched_setaffinity(0, {PROCESSOR}), "start_new_session": True}
    process = subprocess.Popen([sys.executable, "-c", source], **keep)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def end_of(source, limit_s, fresh=True):
    """Run a program on `PROCESSOR`. Return which error its clock raises, and after how many wall-clock seconds."""
    with running(source) as pid:
        begun = time.monotonic()
        clock = Clock(limit_s, [pid], fresh)
        try:
            while True:
                time.sleep(min(clock.left(), 0.05))
        except (TooLong, TooBusy) as end:
            return type(end), time.monotonic() - begun


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize(
    "source",
    [SPIN, "import time\ntime.sleep(1000)", "import os\nos.kill(os.getpid(), 19)", "input()", SPIN_IN_THREADS],
    ids=["computes", "sleeps", "stops itself", "waits for input", "computes in threads"],
)
def test_a_program_takes_too_long_on_an_idle_machine(source, fresh):
    assert end_of(source, 0.4, fresh=fresh)[0] is TooLong


@pytest.mark.parametrize("fresh", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_program_that_computes_without_a_processor_is_starved(fresh):
    with burners(MANY):
        end, wall = end_of(SPIN, 0.2, fresh)
    assert end is TooBusy
    assert wall >= _clock.PATIENCE * 0.2


@pytest.mark.parametrize("source", [SLEEP_BESIDE_A_THREAD_THAT_WAKES, "import os\nos.kill(os.getpid(), 19)"])
def test_a_program_that_wants_no_processor_is_not_starved_on_a_busy_machine(source):
    with burners(3):
        assert end_of(source, 2.0)[0] is TooLong


def test_a_programs_own_threads_do_not_count_as_a_busy_machine():
    """The program's threads wait for each other nearly all the time, and that time counts."""
    with burners(1):
        assert end_of(SPIN_IN_THREADS, 0.5)[0] is TooLong


def run_out(clock):
    while True:
        time.sleep(clock.left())


def test_a_process_that_nothing_is_known_of_has_the_wall_clock():
    with pytest.raises(TooLong):
        run_out(Clock(0.2))


def test_what_is_excused_does_not_count():
    clock = Clock(0.2)
    begun = time.monotonic()
    clock.excuse(0.3)
    with pytest.raises(TooLong):
        run_out(clock)
    assert time.monotonic() - begun >= 0.5
    clock = Clock(0.1)
    clock.excuse(1000)
    with pytest.raises(TooBusy):
        run_out(clock)


def test_what_was_waited_for_is_reported():
    waits = []
    with running(SPIN) as pid:
        clock = Clock(1.0, [pid], on_wait=waits.append)
        with burners(3):
            time.sleep(0.5)
        clock.stop()
    assert sum(waits) > 0.1


WAITS = _Thread(7, 1000, 0.5, True)


@pytest.mark.parametrize(
    ("then", "now", "queued"),
    [
        (WAITS, WAITS, True),
        (None, WAITS, False),  # a new thread
        (WAITS._replace(runnable=False), WAITS, False),  # has just woken up
        (WAITS._replace(ran=999), WAITS, False),
        (WAITS._replace(waited=0.4), WAITS, False),  # the kernel has counted its waiting, so it has run since
        (WAITS._replace(runnable=False), WAITS._replace(runnable=False), False),
    ],
)
def test_a_thread_that_waits_has_been_waiting_all_the_while(then, now, queued):
    """Otherwise threads that wait by turns would look like one thread that waits all the time."""
    last = _Usage({} if then is None else {1: then}, 0.0)
    assert _Usage({1: now}, 0.0).is_queued_since(last) is queued
