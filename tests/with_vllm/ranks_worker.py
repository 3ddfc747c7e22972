"""The script that test_vllm_ranks.py runs on two processes: `torchrun --nproc_per_node 2 ranks_worker.py OUT SERVED`.

It trains once for each of `RUNS`, and each rank writes its result to OUT/NAME-RANK.json. SERVED is a JSON list of the
options of each trainer that uses a server.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import shims
import tiny_models
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


if __name__ == "__main__":
    main()
