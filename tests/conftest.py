import functools
import gc
import os
import re
import signal
import sys
import threading
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[1]

# Before torch is imported: the models are tiny, and threads that spin cost more than they bring.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")  # else four threads for each model of 27 tensors

# Many processes import the same modules: they are compiled once.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell starts what runs in the background deaf to Ctrl-C, and what tests start would be deaf too.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Files with `pytestmark = pytest.mark.timed` judge how long something takes. They share one worker, since they wait
# for each other (cpu_load.py). So do the files of tests/process: to have warm processes takes as long as several of
# these tests (warm_processes.py).
PROCESS = "process"


@functools.cache
def _marked(file):
    """The names of the markers that a file gives to all of its tests."""
    line = re.search(r"^pytestmark = (.*)$", (ROOT / file).read_text(), re.MULTILINE)
    return re.findall(r"pytest\.mark\.(\w+)", line[1]) if line else []


def _scope(nodeid):
    """Which tests stay together on one worker: those of a file, which share what is trained, built or launched."""
    file = nodeid.partition("::")[0]
    if "timed" in _marked(file):
        return "timed"
    return PROCESS if Path(file).parent.name == PROCESS else file


def pytest_collection_modifyitems(config, items):
    if "TEST_BROWSER" in os.environ:  # the tests of another browser, not all of them once more
        items[:] = [item for item in items if "browser" in item.fixturenames]
    if hasattr(config, "workerinput"):
        # Longest first: with several workers (`make test`) none is left alone with one of these at the end.
        order = ["timed", PROCESS, "long"]
        markers = {item.nodeid: {_scope(item.nodeid), *_marked(item.nodeid.partition("::")[0])} for item in items}
        items.sort(key=lambda item: next((n for n, name in enumerate(order) if name in markers[item.nodeid]), 3))


@pytest.hookimpl(optionalhook=True)  # where vLLM is there is no xdist
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        """A file's tests stay together, since they share what is trained, built or launched for them, and some files.

        Not by `xdist_group`: with pytest 9.2 xdist 3.8 silently tells no group from another.
        """

        def _split_scope(self, nodeid):
            return _scope(nodeid)

    return ByFile(config, log)


def pytest_collection_finish():
    # Every training run begins with a `gc.collect()`, which takes as long as the run if it goes through all imports.
    gc.freeze()


@pytest.fixture(autouse=True)
def no_burners(request):
    if request.node.get_closest_marker("timed") is None:
        yield
        return
    from cpu_load import no_burners

    with no_burners():
        yield
