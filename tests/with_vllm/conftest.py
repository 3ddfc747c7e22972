import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest


pytest.register_assert_rewrite("watched")

if importlib.util.find_spec("vllm"):
    # Set before torch is imported. torch and vLLM each have a pool of threads, which would spin while it waits for the
    # other pool.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")


@pytest.fixture
def engine():
    """Let a test make engines, and remove them after the test."""
    import shims

    with shims.installed():
        yield


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="session")
def on_server(server):
    """Return a function that makes a trainer's options for the server. Each trainer needs its own port for weights."""
    return lambda: {"vllm_mode": "server", "vllm_server_base_url": server, "vllm_group_port": free_port()}


def is_up(url):
    try:
        return urllib.request.urlopen(f"{url}/health", timeout=5).status == 200
    except OSError:
        return False


@pytest.fixture(scope="session", autouse=True)
def starting_server(request, tmp_path_factory):
    """Start the server at the beginning of the session, if any test uses it. Give its process, address and log.

    It starts early because it takes long.
    """
    if not any("server" in item.fixturenames for item in request.session.items):
        yield None
        return
    import watched

    folder = tmp_path_factory.mktemp("server")
    port = free_port()
    options = {
        "model": watched.model_path(folder),
        "host": "127.0.0.1",
        "port": port,
        "dtype": "float32",
        "kv-cache-memory-bytes": "64M",
        "max-model-len": 64,
        "logprobs-mode": "processed_logprobs",
        "weight-transfer-config": json.dumps({"backend": "nccl"}),
        "worker-extension-cls": "wire.Extension",
    }
    # `vllm serve` would need an installed distribution called vllm, and the CPU build has another name.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
    command += [text for name, value in options.items() for text in (f"--{name}", str(value))]
    environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": str(Path(__file__).parent)}
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    yield process, f"http://127.0.0.1:{port}", folder / "log"
    process.terminate()
    process.wait(60)


@pytest.fixture(scope="session")
def server(starting_server):
    """Return the address of a vLLM server with the model that the tests train, once it answers."""
    process, url, log = starting_server
    deadline = time.monotonic() + 300
    while not is_up(url):
        waiting = process.poll() is None and time.monotonic() < deadline
        assert waiting, log.read_text()[-5000:]
        time.sleep(0.5)
    return url
