"""A plugin of pytest that runs TRL's own tests of its GRPO trainer on this package's trainer.

Before pytest imports a test, it puts `GRPOPlusTrainer` and `GRPOPlusConfig` in the place of `GRPOTrainer` and
`GRPOConfig` in the module `trl`. Tests that import these names from `trl` then test this package.

`make test-trl-own` clones TRL at the tag of the installed release, and runs the tests of the trainer. By hand, in such
a clone:

    PYTHONPATH=<this folder> pytest -p in_trls_place tests/test_grpo_trainer.py

The tests download tiny models and a small dataset from the Hugging Face Hub. Run a test that fails with
`TRL_OWN_TRAINER=trl` too: the names then stay TRL's.

Without a GPU the trainers run on the CPU. TRL's tests do not set `use_cpu`, so TRL would refuse their configs there.
"""

import os

import torch
import transformers
import trl

from trl_grpo_plus import GRPOPlusConfig, GRPOPlusTrainer


if os.environ.get("TRL_OWN_TRAINER") != "trl":
    trl.GRPOTrainer, trl.GRPOConfig = GRPOPlusTrainer, GRPOPlusConfig

if not torch.cuda.is_available():
    check = transformers.TrainingArguments.__post_init__

    def on_cpu(self: transformers.TrainingArguments) -> None:
        self.use_cpu = True
        check(self)

    transformers.TrainingArguments.__post_init__ = on_cpu
