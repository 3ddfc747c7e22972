import gc
import os

import pytest


# Before torch is imported: the models are tiny, and threads that spin cost more than they bring.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Longest first: with several workers (`make test`) none is left alone with one of these at the end.
LONG = ["recipes", "check_recipe", "distributed", "trackers", "wheel", "presets", "parity", "cli", "resume"]
LONG += ["viewer", "python_tests", "trainer", "workers", "tracing", "alarms", "hub", "sandbox", "drop"]
# Where it is judged how long something takes.
TIMED = ["clock", "python_tests", "sandbox", "scarcity", "workers"]


def place(item):
    name = item.path.stem.removeprefix("test_")
    return LONG.index(name) if name in LONG else len(LONG)


def pytest_collection_modifyitems(config, items):
    if hasattr(config, "workerinput"):
        items.sort(key=place)


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
