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
# They start processes: on one worker, since to have warm ones takes as long as several of these tests (warm.py).
RANKS = ["recipes", "check_recipe", "distributed", "images", "tools", "accelerate_configs", "warm"]
RANKS += ["tracing", "checkpoints", "interrupts", "serve", "trackers", "race"]
TOGETHER = {"timed": TIMED, "ranks": RANKS}
# Longest first: with several workers (`make test`) none is left alone with one of these at the end.
LONG = [
    *TIMED,
    *RANKS,
    "promises",
    "wheel",
    "every_reward",
    "parity",
    "resume",
]
LONG += ["viewer", "cli", "trainer", "hub", "drop", "resample", "lookahead", "estimators", "alarms"]
LONG += ["monitors", "losses_and_runaways", "advantages"]


def _file(nodeid):
    return nodeid.partition("::")[0].rpartition("/")[2].removeprefix("test_").removesuffix(".py")


def pytest_collection_modifyitems(config, items):
    if "TEST_BROWSER" in os.environ:  # the tests of another browser, not all of them once more
        items[:] = [item for item in items if "browser" in item.fixturenames]
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: LONG.index(name) if (name := _file(item.nodeid)) in LONG else len(LONG))


@pytest.hookimpl(optionalhook=True)  # where vLLM is there is no xdist
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        """A file's tests stay together, since they share what is trained, built or launched for them, and some files.

        Not by `xdist_group`: with pytest 9.2 xdist 3.8 silently tells no group from another.
        """

        def _split_scope(self, nodeid):
            name = _file(nodeid)
            return next((scope for scope, files in TOGETHER.items() if name in files), name)

    return ByFile(config, log)


def pytest_collection_finish():
    # Every training run begins with a `gc.collect()`, which takes as long as the run if it goes through all imports.
    gc.freeze()


@pytest.fixture(autouse=True)
def no_burners(request):
    if _file(request.node.nodeid) not in TIMED:
        yield
        return
    from busy import no_burners

    with no_burners():
        yield
