"""An adapter merged for vLLM under DeepSpeed, on two processes. It needs DeepSpeed: `make test-deepspeed`."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="no DeepSpeed here: make test-deepspeed")

WORKER = Path(__file__).parents[1] / "helpers" / "zero_merge_worker.py"


@pytest.mark.parametrize("stage", [2, 3])
def test_vllm_gets_what_trl_sends_and_no_weight_changes(tmp_path, stage):
    """With ZeRO-3 TRL changes none either: it merges in gathered weights, which are discarded."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(WORKER)]
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(WORKER.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*command, str(stage), str(tmp_path)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-5000:]
    for rank in range(2):
        found = json.loads((tmp_path / str(rank)).read_text())
        assert found == {"sharded": stage == 3, "same": True, "changed": False, "changed by TRL": stage == 2}
