"""A vLLM server in another process, to which the trainer sends its prompts and its weights."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest


pytest.importorskip("vllm", reason="make test-vllm runs these")

import tiny_models
import watched
from requests.adapters import HTTPAdapter

from trl_grpo_plus.trainer.vllm.server import ServerFailed


pytestmark = pytest.mark.usefixtures("engine")

MODES = {**{mode: {"zero_variance_groups": mode} for mode in ("skip", "drop")}, "resample": watched.RESAMPLE}


@pytest.mark.parametrize("mode", MODES)
def test_each_batch_is_whole(tmp_path, on_server, mode):
    trained = watched.trained(tmp_path, **on_server(), **MODES[mode])
    watched.check_batches(trained.batches)
    assert len(trained.batches) == 3
    assert [batch["syncs"] for batch in trained.batches] == [1] * 3
    rounds = [asked for batch in trained.batches for asked in batch["asked"][1:]]
    assert {4, 8} <= set(rounds) if mode == "resample" else not rounds
    assert max(tiny_models.logged(trained, "sampling/sampling_logp_difference/max")) < 1e-4


def test_weights_reach_the_server_when_they_are_sent(tmp_path, on_server):
    watched.check_sync(watched.trainer(tmp_path, **on_server()))


def test_attempts_with_prompts_of_their_own_are_sampled_from_them(tmp_path, on_server):
    """An environment may give each attempt another prompt. TRL alone would sample a group from the first one's."""
    made = watched.trainer(tmp_path, **on_server())
    made.environment_factories = {None: None}  # TRL makes an environment only with a template for tools
    made._set_up_vllm()
    ids = tiny_models.tokenizer()(list(tiny_models.prompts(2 * watched.SIZE)["prompt"]))["input_ids"]
    made.vllm_generation.sync_weights()
    for prompts in (ids, [ids[row - row % watched.SIZE] for row in range(len(ids))]):  # of their own; a group's
        _, completions, sampled, _ = made.vllm_generation.generate(prompts, None, watched.SIZE)
        weights = tiny_models.weights(made)
        for prompt, completion, logps in zip(prompts, completions, sampled, strict=True):
            expected = watched.logps(made.model, weights, prompt, completion)
            assert [token[0] for token in logps] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("asked", ["start_weight_update", "v1/completions"])
def test_the_error_of_a_server_that_is_gone_names_it(tmp_path, on_server, monkeypatch, asked):
    made = watched.trainer(tmp_path, **on_server())
    client, server = made.vllm_generation.vllm_client, made.args.vllm_server_base_url
    client.session.mount("http://", HTTPAdapter())  # TRL's adapter would retry for a minute
    post, gone = client._post, "http://127.0.0.1:9"
    made.args.vllm_server_base_url = gone
    monkeypatch.setattr(
        client, "_post", lambda url, **more: post(url.replace(server, gone) if url.endswith(asked) else url, **more)
    )
    with pytest.raises(ServerFailed, match=rf"{gone} failed after step 0: POST /{asked}: .*Connection refused"):
        made.train()


def test_a_server_with_half_of_an_update_takes_all_weights_of_the_next_trainer_or_ends_it(tmp_path, on_own_server):
    """It takes them if it has noticed the death of the first trainer. Half of an update is never sampled from."""
    worker, killed = Path(__file__).with_name("killed_worker.py"), on_own_server()
    command = [
        sys.executable,
        str(worker),
        str(tmp_path),
        killed["vllm_server_base_url"],
        str(killed["vllm_group_port"]),
    ]
    paths = os.pathsep.join(map(str, (worker.parent, worker.parent.with_name("helpers"))))
    # The timeout ends a deadlock.
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-5000:]

    made = watched.trainer(tmp_path, **on_own_server())
    failure = ""
    try:
        made.train()
    except ServerFailed as error:
        failure = str(error)
    if failure:
        assert re.search("failed after step 0: .*too many 500 .*Restart the server", failure)
        assert made.batches == []
    else:
        watched.check_batches(made.batches)
