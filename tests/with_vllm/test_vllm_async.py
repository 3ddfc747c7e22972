"""TRL's AsyncGRPOTrainer with a vLLM server, watched by `attach`. Only its attention and transfer have stand-ins."""

import pytest


pytest.importorskip("vllm", reason="make test-vllm runs these")

import async_runs
import tiny_models
from conftest import Server
from transformers import Qwen2ForCausalLM

import trl_grpo_plus
from trl_grpo_plus.traces import reader


@pytest.fixture
def policy(tmp_path):
    """Return the path of a model that a chat template of TRL fits into."""
    path = str(tmp_path / "policy")
    Qwen2ForCausalLM(
        tiny_models.qwen2(hidden_size=64, max_position_embeddings=512, initializer_range=0.02)
    ).save_pretrained(path)
    tiny_models.tokenizer().save_pretrained(path)
    return path


@pytest.fixture
def url(tmp_path, policy):
    starting = Server(tmp_path, policy, longest=512)
    yield starting.wait()
    starting.stop()


def test_it_trains_on_live_groups_of_the_server_alone(tmp_path, policy, url):
    options = {"max_inflight_tasks": 8, "queue_maxsize": 16}
    with async_runs.trainer(tmp_path, async_runs.last_is_digit, policy, url, **options) as trainer:
        trl_grpo_plus.attach(trainer, zero_variance_groups="resample")
        trainer.train()
    losses = tiny_models.losses(trainer)
    assert len(losses) == 3
    assert all(tiny_models.logged(trainer, "grad_norm"))
    rows = [row for group in reader.groups(str(tmp_path / "run"), "train") for row in group]
    assert {row["verdict"] for row in rows if row["kept"]} == {"alive"}
    assert sum(row["kept"] for row in rows) >= 3 * 8
    for row in rows:
        assert row["reward"] == async_runs.last_is_digit([row["completion"]])[0]
        assert 1 <= row["tokens"] <= tiny_models.BASE["max_completion_length"]
