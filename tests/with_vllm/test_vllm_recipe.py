"""A recipe with vLLM, from its start to the end of its process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


pytest.importorskip("vllm", reason="make test-vllm runs these")

import watched


WORKER = Path(__file__).with_name("recipe_worker.py")
HELPERS = WORKER.parent.with_name("helpers")
RECIPE = """
model_name_or_path: {model}
dataset_name: {data}
dataset_train_split: train
output_dir: {out}
dtype: float32
reward_funcs: [{rewards}:digits]
zero_variance_groups: resample
use_vllm: true
vllm_max_model_length: 64
per_device_train_batch_size: 8
num_generations: 4
max_completion_length: 8
max_steps: 2
use_cpu: true
bf16: false
report_to: none
"""


def test_a_recipe_with_a_colocated_engine_ends_without_a_traceback(tmp_path):
    """The engine tears down torch's process group when Python ends, and raises an error if that is gone already."""
    data = tmp_path / "data" / "train.jsonl"
    data.parent.mkdir()
    data.write_text("\n".join(json.dumps({"prompt": f"{i:02d}+1="}) for i in range(20)))
    recipe = tmp_path / "recipe.yaml"
    paths = {"model": watched.model_path(tmp_path), "data": data.parent, "rewards": HELPERS / "tiny_models.py"}
    recipe.write_text(RECIPE.format(out=tmp_path / "out", **paths))
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(WORKER.parent), str(HELPERS)]))
    done = subprocess.run(
        [sys.executable, str(WORKER), "--config", str(recipe)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert "checkpoint-2" in done.stdout
    assert "Traceback" not in done.stderr, done.stderr[-5000:]
