"""The script of test_vllm_ranks.py: `torchrun --nproc_per_node 2 ranks_worker.py OUT SERVED POLICY TOOLS_SERVED`.

It trains once for each of `RUNS` and of `TOOL_RUNS`, and each rank writes its result to OUT/NAME-RANK.json. SERVED is
a JSON list of the options of each trainer in `RUNS` that uses a server. POLICY is the path of a model that calls a
tool, and TOOLS_SERVED holds the options for its server.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import shims
import test_tools
import tiny_models
import tool_models
import watched
from accelerate import PartialState
from vllm.distributed.parallel_state import destroy_model_parallel


# 3 groups of 4 attempts on 2 ranks of 6 rows: the middle group lies on both. With this seed some rows change ranks.
BATCH = {"per_device_train_batch_size": 6, "seed": 3, "vllm_check_every": 1}
DROP = {**BATCH, "zero_variance_groups": "drop"}
RESAMPLE = {**BATCH, **watched.RESAMPLE}
SHARED = {"vllm_tensor_parallel_size": 2}
RUNS: dict[str, dict[str, Any]] = {
    "drop, an engine each": DROP,
    "resample, an engine each": RESAMPLE,
    "drop, one engine": {**DROP, **SHARED},
    "resample, one engine": {**RESAMPLE, **SHARED},
    "drop, a server": DROP,
    "resample, a server": RESAMPLE,
}


TOOL_RUNS: dict[str, dict[str, Any]] = {"tools, one engine": SHARED, "tools, a server": {}}


def with_tools(policy: str, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Train a policy that calls a tool in some attempts, in other numbers on each rank."""
    engine = {"use_vllm": True, "vllm_mode": "colocate", "vllm_importance_sampling_mode": "token_mask"}
    engine |= {"per_device_train_batch_size": 4, "max_steps": 4, "zero_variance_groups": "drop", "report_to": "none"}
    run = test_tools.Run(policy, folder, lambda number: number % 2 > 0, **{**engine, **options})
    called = [[] for _ in range(4)]
    for row in run.scored:
        called[row.step].append(len(row.messages) > 1)
        assert "".join(text for _, text in row.runs) == tool_models.tokenizer().decode(row.ids)
    answers = [m["content"] for row in run.scored for m in row.messages if m["role"] == "tool"]
    assert answers == [str(a + b) for a, b in run.calls]
    return {"weights": fingerprint(run.trainer), "called": [sum(rows) for rows in called]}


def fingerprint(trained: watched.Watched) -> str:
    digest = hashlib.sha256()
    for _, value in sorted(tiny_models.weights(trained).items()):
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    out, served = Path(sys.argv[1]), iter(json.loads(sys.argv[2]))
    shims.install()
    state = PartialState(cpu=True)
    for name, options in RUNS.items():
        folder = out / name
        folder.mkdir(exist_ok=True)
        trained = watched.trained(folder, **options, **(next(served) if name.endswith("server") else {}))
        metrics = {key: tiny_models.logged(trained, f"groups/{key}") for key in ("rounds", "generated", "trained")}
        metrics["off"] = tiny_models.logged(trained, "sampler/logp_difference/max")
        seen = {"world": state.num_processes, "weights": fingerprint(trained), "batches": trained.batches, **metrics}
        (out / f"{name}-{state.process_index}.json").write_text(json.dumps(seen))
        state.wait_for_everyone()
        destroy_model_parallel()  # the next engine may be split in another way
    for name, options in TOOL_RUNS.items():
        served = json.loads(sys.argv[4]) if name.endswith("server") else {}
        folder = out / name
        found = with_tools(sys.argv[3], folder, {**options, **served})
        (out / f"{name}-{state.process_index}.json").write_text(json.dumps(found))
        state.wait_for_everyone()
        destroy_model_parallel()


if __name__ == "__main__":
    main()
