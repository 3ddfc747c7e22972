"""Train the recipe `smollm2_135m_cpu` with vLLM or with transformers' generation, and print both learning curves.

    make real-model .venv-vllm/.installed
    .venv-vllm/bin/python benchmarks/vllm_curve.py vllm --seed 1 --output_dir outputs/curve_vllm
    .venv-vllm/bin/python benchmarks/vllm_curve.py transformers --seed 1 --output_dir outputs/curve_transformers
    .venv-vllm/bin/python benchmarks/vllm_curve.py report outputs/curve_vllm outputs/curve_transformers

vLLM runs in this process (colocate), on its CPU build, in float32 as the trained model. The stand-ins of
tests/with_vllm replace what only a GPU build has. A run takes about 20 minutes of one processor core.
"""

import argparse
import os
import sys
from pathlib import Path


# Set before torch is imported: vLLM has a second pool of threads, and either would spin while it waits for the other.
os.environ |= {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}
os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ["--config", "smollm2_135m_cpu", "--dtype", "float32", "--save_steps", "48"]
RECIPE += ["--model_name_or_path", str(ROOT / "outputs" / "SmolLM2-135M-Instruct")]
VLLM = ["--use_vllm", "true", "--vllm_mode", "colocate", "--vllm_max_model_length", "128"]
DIFFERENCE = "sampling/sampling_logp_difference/mean"


def use_cpu_build() -> None:
    """Install the stand-ins of the tests, with a cache that fits this recipe."""
    sys.path.insert(0, str(ROOT / "tests" / "with_vllm"))
    import shims

    shims.SmallLLM.cache_bytes = 512 * 2**20
    shims.install()


def train(generation: str, seed: int, output_dir: str) -> int:
    """Run the recipe in this process, and return its exit status."""
    import torch

    torch.set_num_threads(1)
    if generation == "vllm":
        use_cpu_build()
    from trl_grpo_plus.launch.train import run

    sys.argv[1:] = [*RECIPE, "--seed", str(seed), "--output_dir", output_dir, *(VLLM if generation == "vllm" else [])]
    return run()


def report(folders: list[str]) -> None:
    """Print for each run the mean reward of each batch, the evaluations, and the difference of the log-probs."""
    from trl_grpo_plus.traces import evaluations, journal

    for folder in folders:
        log = journal(folder, "metrics")
        print(folder)
        print("  reward of each batch", [round(entry["reward"], 2) for entry in log if "groups/alive" in entry])
        for split, points in evaluations(log).items():
            print(f"  {split}", " -> ".join(f"{reward:.2f}" for _, reward in points))
        if differences := [entry[DIFFERENCE] for entry in log if DIFFERENCE in entry]:
            print(f"  {DIFFERENCE}: at most {max(differences):.1e}")


def main() -> int:
    """Train one run, or report on finished runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("vllm", "transformers"):
        command = commands.add_parser(name)
        command.add_argument("--seed", type=int, default=1)
        command.add_argument("--output_dir", required=True)
    commands.add_parser("report").add_argument("folders", nargs="+")
    arguments = parser.parse_args()
    if arguments.command == "report":
        report(arguments.folders)
        return 0
    return train(arguments.command, arguments.seed, arguments.output_dir)


if __name__ == "__main__":
    raise SystemExit(main())
