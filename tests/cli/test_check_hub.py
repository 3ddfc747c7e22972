"""If the Hub cannot be reached, stand-ins take its place. A name that the Hub does not have fails the check."""

import http.server
import json
import os
import re
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from invalid_recipes import Mistake, make_place
from transformers import LlamaConfig
from trl.scripts.utils import DatasetConfig, DatasetMixtureConfig

from trl_grpo_plus.cli.check import hub, samples, tiny_model
from trl_grpo_plus.utils.validation import ConfigError


pytestmark = pytest.mark.long
# transformers' messages about missing packages begin with an empty line.
NEEDS = "\nLlamaTokenizer requires the protobuf library but it was not found in your environment.\nInstall it."


@pytest.fixture
def asking(monkeypatch):
    """Unset HF_HUB_OFFLINE for a test, and set it again afterwards."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    yield
    os.environ["HF_HUB_OFFLINE"] = "1"


class Hub(http.server.BaseHTTPRequestHandler):
    """A server that answers like a Hub without any repository."""

    def do_GET(self):
        there = self.path.startswith("/api/models?")
        self.send_response(200 if there else 404)
        if not there:
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("X-Error-Message", "Repository not found")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(b"[]" if there else b"{}")

    do_HEAD = do_GET

    def log_message(self, *args):
        pass


@contextmanager
def serving(handler):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture
def empty_hub():
    with serving(Hub) as url:
        yield url


def test_a_hub_that_answers(asking, empty_hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", empty_hub)
    hub.settle()
    assert hub.online()
    assert "HF_HUB_OFFLINE" not in os.environ


def test_a_hub_that_refuses_or_is_silent_is_not_asked_again(asking, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections and never answers
        for port, why, patience in ((silent.getsockname()[1], "timed out|no answer", 0.2), (9, "refused", 60.0)):
            monkeypatch.setattr(hub, "TIMEOUT_S", patience)
            monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
            monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
            hub.settle()
            assert os.environ["HF_HUB_OFFLINE"] == "1"
            assert not hub.online()
            assert f"127.0.0.1:{port}" in hub.unreachable()
            assert re.search(why, hub.unreachable()), hub.unreachable()


def test_a_proxy_that_forbids_the_hub_is_named(asking, monkeypatch):
    class Proxy(Hub):
        def do_GET(self):
            self.send_error(403)

    with serving(Proxy) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        hub.settle()
    assert not hub.online()
    assert "HTTP Error 403" in hub.unreachable()


def test_the_check_imports_no_library_that_asks_the_hub():
    """The libraries read HF_HUB_OFFLINE only on import, so the check must set it before the import.

    accelerate 1.10 imports huggingface_hub; a later accelerate does not.
    """
    names = "{'huggingface_hub', 'transformers', 'datasets', 'trl'}"
    code = f"""
import sys, accelerate
of_accelerate = {{*sys.modules}} & {{'huggingface_hub'}}
import trl_grpo_plus.cli.check.recipe
print({names} & {{*sys.modules}} - of_accelerate or 'none')
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "none\n", done.stderr


@pytest.mark.parametrize("imported", ["huggingface_hub.constants", "accelerate"])
def test_an_unreachable_hub_is_not_asked_by_a_library_that_was_imported(imported):
    code = f"""
import {imported}
from trl_grpo_plus.cli.check import hub
hub.settle()
from huggingface_hub import is_offline_mode
print(is_offline_mode())
"""
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9"}
    environment.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "True\n", done.stderr


def test_the_hub_is_not_asked_if_the_user_is_offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "true")
    monkeypatch.setattr(hub, "_ask_hub", lambda: pytest.fail("it was asked"))
    monkeypatch.setattr(hub, "_REASON", [])
    hub.settle()
    assert not hub.online()
    assert hub.unreachable() == "the Hub cannot be reached (HF_HUB_OFFLINE is set)"


def test_a_name_that_the_hub_does_not_have_fails(tmp_path, empty_hub):
    """The command runs in its own process, because libraries read these variables on import."""
    make_place(tmp_path)
    keys = {"model_name_or_path": "someone/no-such-model", "dataset_name": "someone/no-such-data"}
    Mistake("", (), keys).write(tmp_path)
    environment = {**os.environ, "HF_ENDPOINT": empty_hub, "HF_HOME": str(tmp_path / "cache")}
    del environment["HF_HUB_OFFLINE"]
    command = [sys.executable, "-m", "trl_grpo_plus.cli.main", "check", "my_run.yaml"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    printed = " ".join(done.stdout.split())
    assert done.returncode == 1, done.stdout + done.stderr
    assert "model FAILED model_name_or_path: the Hub has no model someone/no-such-model" in printed
    assert "data FAILED someone/no-such-data: DatasetNotFoundError" in printed
    assert "not seen" not in printed.partition("output ok")[2]


def test_facts_stand_in_for_a_model_that_cannot_be_reached(monkeypatch):
    monkeypatch.setattr(samples, "config_of", lambda name: {"model_type": "llama", "hidden_size": 64})
    config = hub.model_config("someone/unreachable")
    assert (config.origin, config.is_real, config.what.hidden_size) == ("stand-in", False, 64)
    monkeypatch.setattr(samples, "config_of", lambda name: None)
    assert hub.model_config("someone/unreachable") is None
    tokens = hub.tokenizer("someone/unreachable")
    assert not tokens.is_real
    assert tokens.what.chat_template


def test_a_local_folder_is_read_or_refused(tmp_path):
    LlamaConfig(hidden_size=64).save_pretrained(tmp_path)
    config = hub.model_config(str(tmp_path))
    assert (config.origin, config.is_real, config.what.hidden_size) == ("here", True, 64)
    with pytest.raises(ValueError, match=f"the tokenizer of {tmp_path} cannot be read"):
        hub.tokenizer(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    said = f"model_name_or_path of {tmp_path} cannot be read: ValueError: Unrecognized model"
    with pytest.raises(ValueError, match=said):
        hub.model_config(str(tmp_path))


def arguments(**script):
    script = {"prepare": None, "prepare_args": None, "dataset_config": None, "dataset_streaming": False, **script}
    return SimpleNamespace(**script), None, None, SimpleNamespace(datasets=[])


def test_sample_rows_stand_in_for_data_that_cannot_be_reached(tmp_path, monkeypatch):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{i}"}) + "\n" for i in range(5)))
    monkeypatch.setattr(samples, "sample_of", lambda name, config=None: str(rows) if name == "some/data" else None)
    sample = hub.data(*arguments(dataset_name="some/data", dataset_config="main"))
    assert (sample.is_real, sample.what["train"]["prompt"]) == (False, ["0", "1", "2", "3", "4"])
    assert hub.data(*arguments(dataset_name="other/data")) is None
    here = hub.data(*arguments(dataset_name=str(rows)))
    assert (here.is_real, here.origin) == (True, "here")
    with pytest.raises(Exception, match="there is no file"):
        hub.data(*arguments(dataset_name="./nowhere.jsonl"))


def test_a_mixture_has_a_sample_for_each_part(tmp_path, monkeypatch):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    monkeypatch.setattr(samples, "sample_of", lambda name, config=None: str(rows))
    mixture = DatasetMixtureConfig(datasets=[DatasetConfig("some/data", name="main"), DatasetConfig("other/data")])
    script, *_ = arguments(dataset_name=None)
    sample = hub.data(script, None, None, mixture)
    assert not sample.is_real
    assert sample.what["train"]["prompt"] == ["a", "b", "a", "b"]


@pytest.mark.parametrize(
    ("paths", "origin"),
    [
        (["openai/gsm8k", "json"], "stand-in"),
        (["openai/gsm8k", "someone/unknown"], None),
        (["someone/unknown"], None),
    ],
)
def test_sample_rows_stand_in_for_a_mixture_as_a_whole_or_not_at_all(monkeypatch, paths, origin):
    def load(script_args, training_args, model_args, dataset_args, smoke):
        if any("/" in part.path for part in dataset_args.datasets):
            raise ConnectionError("no network")
        return "rows"

    mixture = DatasetMixtureConfig(datasets=[DatasetConfig(path, name="main") for path in paths])
    monkeypatch.setattr(hub, "load_data", load)
    sample = hub.data(SimpleNamespace(dataset_name=None), None, None, mixture)
    assert (sample and sample.origin) == origin
    if sample:
        assert [part.path for part in mixture.datasets] == ["json", "json"]
        assert mixture.datasets[0].data_files.endswith(".jsonl")


def test_a_reason_after_an_empty_line_is_told(tmp_path):
    class Tokenizer:
        @staticmethod
        def from_pretrained(name, **options):
            raise ImportError(NEEDS)

    with pytest.raises(ConfigError, match="cannot be read: ImportError: LlamaTokenizer requires the protobuf library"):
        hub._from_hub(Tokenizer, "the tokenizer", str(tmp_path), None, False)


def test_a_tiny_model_tells_such_a_reason_too(monkeypatch):
    def build(config):
        raise ImportError(NEEDS)

    monkeypatch.setattr(tiny_model, "build", build)
    with pytest.raises(ValueError, match="no tiny llama could be made: ImportError: LlamaTokenizer requires"):
        tiny_model.shrink(LlamaConfig(), tiny_model.byte_tokenizer())
