"""Training on two processes that have an engine each, share one engine, or use a server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


pytest.importorskip("vllm", reason="make test-vllm runs these")

import conftest
import watched


WORKER = Path(__file__).with_name("ranks_worker.py")
SOURCES = ["an engine each", "one engine", "a server"]


@pytest.fixture(scope="module")
def on_tool_server(tmp_path_factory, tool_user):
    """Return a trainer's options for a server of the policy that calls a tool."""
    starting = conftest.Server(tmp_path_factory.mktemp("tools"), tool_user, longest=256)
    yield conftest.options_for(starting.wait())
    starting.stop()


@pytest.fixture(scope="module")
def out(tmp_path_factory, on_server, tool_user, on_tool_server):
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(WORKER)]
    folders = (WORKER.parent, *map(WORKER.parent.with_name, ("helpers", "process")))
    paths = [os.environ.get("PYTHONPATH", ""), *map(str, folders)]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    # The timeout ends a deadlock. It is far longer than the runs take.
    done = subprocess.run(
        [*command, folder, json.dumps([on_server(), on_server()]), tool_user, json.dumps(on_tool_server)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return folder


def both(out, run):
    """Check that the ranks of a run agree and that their rows together make whole batches. Return both results."""
    first, second = (json.loads((out / f"{run}-{rank}.json").read_text()) for rank in range(2))
    assert first["world"] == second["world"] == 2
    for key in ("weights", "rounds", "generated", "trained", "off"):
        assert first[key] == second[key], key
    assert len(first["off"]) == 3
    assert max(first["off"]) < 1e-4
    pairs = list(zip(first["batches"], second["batches"], strict=True))
    for here, there in pairs:
        assert here["asked"] == there["asked"]
        assert here["syncs"] == there["syncs"] == 1
        assert len(here["rows"]) == len(there["rows"])
    batches = [{"rows": [*here["rows"], *there["rows"]]} for here, there in pairs]
    watched.check_batches(batches)
    assert [len(batch["rows"]) for batch in batches] == [watched.SIZE * count for count in first["trained"]]
    assert any(row["moved"] for batch in batches for row in batch["rows"])
    return first, second


@pytest.mark.parametrize("source", SOURCES)
def test_drop(out, source):
    first, _ = both(out, f"drop, {source}")
    assert [batch["asked"] for batch in first["batches"]] == [[6]] * 3
    assert min(first["trained"]) < 3


@pytest.mark.parametrize("source", SOURCES)
def test_resample(out, source):
    first, _ = both(out, f"resample, {source}")
    rounds = [asked for batch in first["batches"] for asked in batch["asked"][1:]]
    assert {2, 4} <= set(rounds)  # in a round with one group of 4, each rank has 2 rows
    assert first["rounds"] == [len(batch["asked"]) - 1 for batch in first["batches"]]


@pytest.mark.parametrize("source", SOURCES[1:])
def test_tools(out, source):
    """The attempts that call a tool are other numbers on each rank, and both ranks generate their further turns."""
    first, second = (json.loads((out / f"tools, {source}-{rank}.json").read_text()) for rank in range(2))
    assert first["weights"] == second["weights"]
    pairs = list(zip(first["called"], second["called"], strict=True))
    assert any(here != there for here, there in pairs)
    assert all(here + there for here, there in pairs)
