"""The script of test_vllm_recipe.py: `python recipe_worker.py --config RECIPE` runs it as `trl-grpo-plus run` does."""

import sys

import shims

from trl_grpo_plus.launch.train import run


if __name__ == "__main__":
    shims.install()
    sys.exit(run())
