import importlib.util
import os
import socket
import subprocess
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


def options_for(url):
    """Return a trainer's options for a server. Each trainer needs its own port for weights."""
    return {"vllm_mode": "server", "vllm_server_base_url": url, "vllm_group_port": free_port()}


@pytest.fixture(scope="session")
def on_server(server):
    """Return a function that makes a trainer's options for the server that tests share."""
    return lambda: options_for(server)


def is_up(url):
    try:
        return urllib.request.urlopen(f"{url}/health", timeout=5).status == 200
    except OSError:
        return False


class Server:
    """A vLLM server in a process of its own.

    Args:
        folder (`Path`): holds its log.
        model (`str`, *optional*): the model's path, by default that of the model that the tests train.
        longest (`int`, *optional*, defaults to 64): tokens of prompt and completion together.
    """

    def __init__(self, folder: Path, model: str | None = None, longest: int = 64):
        import watched
        from trl.scripts.vllm_serve import ScriptArguments, build_command

        port = free_port()
        options = {"kv-cache-memory-bytes": "64M", "worker-extension-cls": "wire.Extension"}
        served = ScriptArguments(
            model=model or watched.model_path(folder),
            host="127.0.0.1",
            port=port,
            dtype="float32",
            max_model_len=longest,
            enforce_eager=True,
        )
        command = build_command(served, [text for name, value in options.items() for text in (f"--{name}", value)])
        # `vllm serve` would need an installed distribution called vllm, and the CPU build has another name.
        serve = command.index("vllm.entrypoints.cli.main")
        command[serve : serve + 3] = ["vllm.entrypoints.openai.api_server", "--model", served.model]
        environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": str(Path(__file__).parent)}
        self.url = f"http://127.0.0.1:{port}"
        self._log = folder / "log"
        with open(self._log, "w") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)

    def wait(self) -> str:
        """Return the server's address once it answers."""
        deadline = time.monotonic() + 300
        while not is_up(self.url):
            waiting = self._process.poll() is None and time.monotonic() < deadline
            assert waiting, self._log.read_text()[-5000:]
            time.sleep(0.5)
        return self.url

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)


@pytest.fixture(scope="session", autouse=True)
def starting_server(request, tmp_path_factory):
    """Start the server at the beginning of the session, if any test uses it, because a start takes long."""
    if not any("server" in item.fixturenames for item in request.session.items):
        yield None
        return
    starting = Server(tmp_path_factory.mktemp("server"))
    yield starting
    starting.stop()


@pytest.fixture(scope="session")
def server(starting_server):
    """Return the address of a vLLM server with the model that the tests train, once it answers."""
    return starting_server.wait()


@pytest.fixture
def on_own_server(tmp_path):
    """Return a function that makes a trainer's options for a server that the test may break: no other test uses it."""
    starting = Server(tmp_path)
    url = starting.wait()
    yield lambda: options_for(url)
    starting.stop()


@pytest.fixture(scope="session")
def tool_user(tmp_path_factory):
    """Return the path of a policy that calls a tool in three of four attempts."""
    import tool_models

    folder = tmp_path_factory.mktemp("policy")
    tool_models.tokenizer().save_pretrained(folder)
    return tool_models.taught(folder, hidden_size=64, heads=2)  # attention kernels need 32 dimensions per head
