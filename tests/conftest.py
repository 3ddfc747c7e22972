import gc
import os
import signal
import sys
import threading

import pytest


# Before torch is imported: the models are tiny, and threads that spin cost more than they bring.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Many processes import the same modules: they are compiled once.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell starts what runs in the background deaf to Ctrl-C, and what tests start would be deaf too.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Where it is judged how long something takes: on one worker, since they wait for each other (busy.py).
TIMED = ["python_tests", "sandbox", "workers", "clock", "scarcity"]
# Longest first: with several workers (`make test`) none is left alone with one of these at the end.
LONG = [*TIMED, "recipes", "check_recipe", "distributed", "wheel", "trackers", "every_reward", "parity", "resume"]
LONG += ["viewer", "cli", "trainer", "hub", "tracing", "alarms", "drop"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    def name(item):
        return item.path.stem.removeprefix("test_")

    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: LONG.index(name(item)) if name(item) in LONG else len(LONG))
    if not config.pluginmanager.hasplugin("xdist"):  # as where vLLM is
        return
    for item in items:  # a file's tests stay together, since they share what is trained, built or launched for them
        item.add_marker(pytest.mark.xdist_group("timed" if name(item) in TIMED else name(item)))


def pytest_collection_finish():
    # Every training run begins with a `gc.collect()`, which takes as long as the run if it goes through all imports.
    gc.freeze()


@pytest.fixture(autouse=True)
def no_burners(request):
    if request.path.stem.removeprefix("test_") not in TIMED:
        yield
        return
    from busy import no_burners

    with no_burners():
        yield
