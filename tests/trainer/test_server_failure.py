"""Tests of the message when a run's vLLM server fails, with a local server that gives errors, or with none."""

import http.server
import os
import socket
import sys
import threading
from types import SimpleNamespace

import pytest
import requests
import tiny_models
from requests.adapters import HTTPAdapter
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from trl.generation.vllm_client import VLLMClient
from urllib3.util.retry import Retry

from trl_grpo_plus.launch import launcher_main, launchers, train
from trl_grpo_plus.trainer import progress
from trl_grpo_plus.trainer.vllm.server import ServerFailed, naming_server, noticing_errors
from trl_grpo_plus.utils.validation import ConfigError


GONE = "http://127.0.0.1:9"  # no server listens on this port
LOST = "Connection closed by peer [127.0.0.1]:17283."
# The retries of TRL's client, without its waits.
RETRIES = {"connect": 1, "read": 1, "status": 1, "status_forcelist": [500], "allowed_methods": ["POST"]}


@pytest.fixture
def up():
    yield from serving([])


@pytest.fixture
def starting():
    """Return the address of a server that answers with an error at first."""
    yield from serving([503] * 3)


def serving(first):
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            if self.path != "/cut":
                self.send_response(500)
                self.end_headers()

        def do_GET(self):
            self.send_response(first.pop() if first else 200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def served(url, **options):
    return SimpleNamespace(**{"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": url, **options})


def ask(url):
    session = requests.Session()
    session.mount("http://", HTTPAdapter(max_retries=Retry(**RETRIES)))
    session.post(url, json={})


def told(args, error, step=12):
    """Raise `error`, or call it if it is a function; return the text and the class of the error that the user gets."""

    def fail():
        with naming_server(args, step):
            if callable(error):
                error()
            raise error

    with pytest.raises((OSError, RuntimeError)) as raised:
        fail()
    return str(raised.value), type(raised.value)


@pytest.mark.parametrize(
    ("url", "path", "cause"),
    [
        (GONE, "/update_weights", "Connection refused"),
        ("up", "/v1/completions", "too many 500 error responses"),
        ("up", "/cut", "Remote end closed connection without response"),
    ],
)
def test_the_server_the_step_and_the_cause_are_named(up, url, path, cause):
    url = up if url == "up" else url
    text, kind = told(served(url), lambda: ask(url + path))
    assert kind is ServerFailed
    assert text.startswith(f"the vLLM server at {url} failed after step 12: POST {path}: ")
    assert cause in text
    assert text.endswith("Restart the server, then resume the run from its last checkpoint.")


def test_a_server_is_named_by_host_and_port():
    args = served(None, vllm_server_host="127.0.0.1", vllm_server_port=9)
    assert told(args, lambda: ask(f"{GONE}/v1/completions"))[0].startswith(f"the vLLM server at {GONE} failed")


def wait_for(url, timeout):
    """Wait for a server as TRL does when the run begins, without vLLM."""
    client = SimpleNamespace(base_url=url, host="127.0.0.1")
    args = served(url)
    with noticing_errors(args):
        VLLMClient.check_server(client, timeout, retry_interval=0.01)


@pytest.mark.parametrize(("url", "answer"), [(GONE, ""), ("starting", ", but answers: 503 Server Error")])
def test_a_server_that_does_not_start_is_named(starting, url, answer):
    """TRL itself would wait for ever for a server that answers with errors."""
    url = starting if url == "starting" else url
    text, kind = told(served(url), lambda: wait_for(url, 0.0), None)
    assert kind is ServerFailed
    assert f"failed when the run began: The vLLM server can't be reached at {url} after 0.0 seconds{answer}" in text
    assert text.endswith(". Start the server (restart it if it runs), then start the run.")


def test_a_server_that_starts_in_time_is_waited_for(starting):
    wait_for(starting, 60.0)


def test_an_update_that_fails_names_what_a_server_may_lack(up):
    text, _ = told(served(up), lambda: ask(f"{up}/update_weights"))
    assert ". The server's log says why. The server may serve another model than the trained one" in text


TOO_LONG = "This model's maximum context length is 64 tokens. However, your prompt contains 71 input tokens."
REFUSED = f'Request failed: 400, {{"error":{{"message":"{TOO_LONG}","type":"BadRequestError"}}}}'


@pytest.mark.parametrize(
    ("mode", "kind", "module", "text", "way"),
    [
        ("colocate", ValueError, "vllm.renderers.params", TOO_LONG, "raise vllm_max_model_length (now 64)"),
        ("server", Exception, "trl.generation.vllm_client", REFUSED, "start the server with a larger --max-model-len"),
    ],
)
def test_a_prompt_that_is_too_long_for_vllm(mode, kind, module, text, way):
    args = served(GONE, vllm_mode=mode, vllm_max_model_length=64)
    with pytest.raises(ConfigError) as raised, naming_server(args, 2):
        raise_in(module, kind(text))
    assert str(raised.value).startswith(f"step 3: a prompt is too long for vLLM. {TOO_LONG} Leave out the longest")
    assert way in str(raised.value)
    judge = ValueError(f"the judge: {TOO_LONG}")
    with pytest.raises(ValueError, match="the judge") as raised, naming_server(args, 2):
        raise judge
    assert raised.value is judge


def raise_in(module, error):
    """Raise an error in code that runs under the name of a module, because errors are recognised by that name."""
    exec("raise error", {"error": error, "__name__": module})


def lose():
    """Raise the error of a torch collective whose peer has ended."""
    raise_in("torch.distributed.distributed_c10d", RuntimeError(LOST))


def test_a_process_whose_peer_ended_names_the_server_too(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    text, kind = told(served(GONE), lose)
    assert kind is ServerFailed
    assert f"{GONE} failed after step 12: it does not answer, and another process ended ({LOST})" in text


def test_errors_without_a_failed_server_stay_as_they_are(up, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert told(served(up), lose) == (LOST, RuntimeError)  # the server still answers, so it did not cause this
    assert told(served(GONE), RuntimeError("no room")) == ("no room", RuntimeError)
    assert told(served(GONE), ConnectionError("a reward's")) == ("a reward's", ConnectionError)
    # The server that fails is another one, such as a reward's.
    assert told(served(up), lambda: ask(f"{GONE}/judge"))[1] is requests.ConnectionError
    assert told(served(GONE, vllm_mode="colocate"), RuntimeError(LOST)) == (LOST, RuntimeError)
    assert told(served(GONE, use_vllm=False), RuntimeError(LOST)) == (LOST, RuntimeError)


def test_the_trainer_names_the_server_and_the_steps_done(tmp_path):
    def rollout(prompts, trainer):
        if trainer.state.global_step == 1:
            ask(f"{GONE}/v1/completions")
        return {"prompt_ids": [[3]] * len(prompts), "completion_ids": [[4]] * len(prompts), "logprobs": None}

    trainer = tiny_models.trainer(tmp_path, extra={"rollout_func": rollout})
    vars(trainer.args).update(use_vllm=True, vllm_mode="server", vllm_server_base_url=GONE, vllm_check_every=0)
    with pytest.raises(ServerFailed, match=f"{GONE} failed after step 1: POST /v1/completions"):
        trainer.train()


def started(folder, monkeypatch):
    """Set up the arguments and names of a script's process as it begins."""
    monkeypatch.setattr(sys, "argv", ["grpo", "--config", "arithmetic_cpu", "--output_dir", str(folder)])
    monkeypatch.setattr(train, "launched_as", lambda: ("trl-grpo-plus", "run", "my_run.yaml"))
    monkeypatch.setattr("trl_grpo_plus.launch.command_line.launched_as", train.launched_as)
    monkeypatch.setattr(progress, "silence_libraries", lambda: None)  # it would silence the process until its end


@pytest.mark.parametrize(("local_rank", "saved"), [("0", True), ("0", False), ("1", True)])
def test_the_run_ends_with_one_message_per_node_and_a_command(tmp_path, monkeypatch, capsys, local_rank, saved):
    def fails(*parsed):
        monkeypatch.setenv("LOCAL_RANK", local_rank)
        raise ServerFailed(f"the vLLM server at {GONE} failed after step 12: no.")

    started(tmp_path, monkeypatch)
    if saved:
        (tmp_path / "checkpoint-12").mkdir()
        (tmp_path / "checkpoint-12" / "trainer_state.json").write_text("{}")
    assert train.run(fails) == 1
    printed = capsys.readouterr().err
    if local_rank != "0":
        assert not printed
        return
    assert printed.startswith(f"error: the vLLM server at {GONE} failed after step 12: no.")
    assert "Traceback" not in printed
    resume = f"\n\n  trl-grpo-plus run my_run.yaml --resume_from_checkpoint {tmp_path}/checkpoint-12\n"
    again = " It has saved none. To start it again:\n\n  trl-grpo-plus run my_run.yaml\n"
    assert (resume if saved else again) in printed


@pytest.mark.parametrize(
    ("error", "at_rank", "status", "way_on"),
    [
        (
            ServerFailed("it failed."),
            0,
            1,
            " It has saved none. To start it again:\n\n  trl-grpo-plus run my_run.yaml\n",
        ),
        (ConfigError("it failed."), 1, 2, ""),
    ],
)
def test_the_launcher_prints_the_error_of_one_process_last(
    tmp_path, monkeypatch, capsys, error, at_rank, status, way_on
):
    def fails(*parsed):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        raise error if rank == at_rank else RuntimeError(LOST)

    def entry():
        nonlocal rank
        for rank in (1, 0):
            monkeypatch.setenv(launchers.STARTED_BY, f"{os.getpid()}@{socket.gethostname()}")
            monkeypatch.setenv(launchers.ERROR_FILE, str(tmp_path / f"{rank}.json"))
            monkeypatch.delenv("LOCAL_RANK", raising=False)  # with it, transformers would join a process group
            started(tmp_path, monkeypatch)
            assert train.run(fails) == (status if rank == at_rank else 1)
        failures = {rank: ProcessFailure(rank, 100, 1, str(tmp_path / f"{rank}.json")) for rank in (1, 0)}
        raise ChildFailedError("grpo", failures)

    rank = 0
    monkeypatch.setattr(train, "lost_process", str)  # no other process exists, so keep the error as it is
    for name in ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", launchers.STARTED_BY):
        monkeypatch.setenv(name, "")  # the launcher sets these; monkeypatch restores them afterwards
    monkeypatch.setitem(launchers.LAUNCHERS, "two", launchers.Launcher("", list, "launcher_of_two:entry"))
    monkeypatch.setitem(sys.modules, "launcher_of_two", SimpleNamespace(entry=entry))
    monkeypatch.setattr(sys, "argv", ["launcher_main", "two"])
    monkeypatch.setattr(launcher_main.signal, "signal", lambda *_: None)
    assert launcher_main.main() == 1
    lost, told = capsys.readouterr().err.split("error: it failed.")
    assert f"error: another process of this run has ended, or does not answer: {LOST}" in lost
    assert told == f"{way_on}\n"
