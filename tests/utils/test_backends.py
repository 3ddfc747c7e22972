"""Collectives: those of the backend that carries the tensors of a run's device; errors around them."""

from unittest import mock

import pytest
import torch

from trl_grpo_plus.utils import distributed
from trl_grpo_plus.utils.validation import ConfigError, error_lines


@pytest.mark.parametrize(
    ("config", "device", "known"),
    [
        ("cpu:gloo,cuda:gloo", "cpu", True),
        ("cuda:nccl", "cuda", True),
        ("cuda:nccl,cpu:gloo", "cuda", True),  # accelerate asks for both with FSDP
        ("xpu:xccl,cpu:gloo", "xpu", False),
        ("cpu:mpi", "cpu", False),
        ("cuda:nccl", "cpu", False),
    ],
)
def test_the_backend_of_the_device_decides(monkeypatch, config, device, known):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_backend_config", lambda: config)
    assert distributed._is_gloo_or_nccl(torch.device(device)) is known


def test_a_run_of_one_process_sends_nothing():
    assert distributed._is_gloo_or_nccl(torch.device("cpu")) is False
    assert distributed.all_to_all_made(lambda: {0: b"own"}) == [b"own"]
    assert distributed.gather_on_first_rank({"a": 1}) == [{"a": 1}]


def test_each_refusal_of_another_rank_stays_one(monkeypatch):
    monkeypatch.setattr(distributed, "gather", lambda is_failed: is_failed + 1)
    refused = distributed._facts_of(ConfigError("a=1 must be 2.", "b=1 must be 2."))
    monkeypatch.setattr(distributed, "gather_object", lambda facts: [*facts, refused])
    with pytest.raises(ConfigError) as error, distributed.raise_on_all_ranks():
        pass
    assert error_lines(error.value) == "error: a=1 must be 2.\nerror: b=1 must be 2."


def test_an_error_after_which_nothing_can_be_gathered_is_raised_itself(monkeypatch):
    """A GPU can be unusable after an error. The error of the gather would hide the cause."""
    monkeypatch.setattr(distributed, "gather", mock.Mock(side_effect=RuntimeError("CUDA error: unspecified")))
    with pytest.raises(ZeroDivisionError), distributed.raise_on_all_ranks():
        1 / 0  # noqa: B018
    with pytest.raises(RuntimeError, match="CUDA error"), distributed.raise_on_all_ranks():
        pass
