"""The script that test_vllm_recipe.py runs: `python recipe_worker.py --config RECIPE`, as a recipe's run is launched."""

import sys

import shims

from trl_grpo_plus.launch.train import run


if __name__ == "__main__":
    shims.install()
    sys.exit(run())
