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

# Set before torch is imported: the models are so tiny that more threads cost more than they gain.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")  # without it four threads load each model of 27 tensors

# Write bytecode, so that modules that many processes import are compiled only once.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# TEST_DEVICE=second: trainers are on the device of helpers/second_device.py.
if "TEST_DEVICE" in os.environ:
    sys.path.insert(0, str(ROOT / "tests" / "helpers"))
    import second_device

    second_device.install()
    os.environ["ACCELERATE_TORCH_DEVICE"] = f"{second_device.NAME}:0"

# A shell starts background jobs with SIGINT ignored, and processes that the tests start would inherit that.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Files with `pytestmark = pytest.mark.timed` measure how long something takes. They share one worker, because they
# would wait for each other anyway (cpu_load.py). The files of tests/process, and others that use warm_processes.py,
# share one worker too, because starting its fork server takes as long as several of these tests.
PROCESS = "process"


@functools.cache
def _marked(file):
    """Return the names of the markers that a file gives to all of its tests."""
    line = re.search(r"^pytestmark = (.*)$", (ROOT / file).read_text(), re.MULTILINE)
    return re.findall(r"pytest\.mark\.(\w+)", line[1]) if line else []


@functools.cache
def _forks(file):
    """Return whether a file starts processes with warm_processes.py."""
    return re.search(r"^import warm_processes$", (ROOT / file).read_text(), re.MULTILINE) is not None


def _scope(nodeid):
    """Return the group of tests, usually one file, that runs on one worker and shares its module fixtures."""
    file = nodeid.partition("::")[0]
    if "timed" in _marked(file):
        return "timed"
    return PROCESS if Path(file).parent.name == PROCESS or _forks(file) else file


def pytest_collection_modifyitems(config, items):
    if "TEST_BROWSER" in os.environ:  # run only the tests that use a browser
        items[:] = [item for item in items if "browser" in item.fixturenames]
    if hasattr(config, "workerinput"):
        # Longest first. Otherwise one worker would run a long file at the end, when the others have finished.
        order = ["timed", PROCESS, "long"]
        markers = {item.nodeid: {_scope(item.nodeid), *_marked(item.nodeid.partition("::")[0])} for item in items}
        items.sort(key=lambda item: next((n for n, name in enumerate(order) if name in markers[item.nodeid]), 3))


@pytest.hookimpl(optionalhook=True)  # the environment with vLLM has no xdist
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        """A scheduler that keeps the tests of a scope (see `_scope`) on one worker, where they share module fixtures.

        It does not use `xdist_group`: with pytest 9.2, xdist 3.8 does not distinguish the groups, and gives no error.
        """

        def _split_scope(self, nodeid):
            return _scope(nodeid)

    return ByFile(config, log)


@pytest.fixture(autouse=True, scope="module")
def frozen():
    # Each training run begins with `gc.collect()`. It would take as long as the run itself if it had to traverse all
    # imported objects, and those that earlier files left.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_burners(request):
    if request.node.get_closest_marker("timed") is None:
        yield
        return
    from cpu_load import no_burners

    with no_burners():
        yield
