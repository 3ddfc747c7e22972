"""The trainer, and all that must know TRL's private names.

grpo_plus_trainer     [`GRPOPlusTrainer`]: TRL's methods that are overridden, in the order in which TRL calls them
attach                the same records for one of TRL's own trainers
batch                 the generation batch in flight
progress              what a run prints while it trains
prompt_source         which prompts the run samples, and what it remembers of them
recorder              a batch -> traces, alarms, trackers
training_state        this package's state in a checkpoint
checkpoint_integrity  whether a checkpoint is whole
nonfinite_guard       skips steps whose gradients are not finite
vllm_sync_check       whether vLLM samples from the policy that is trained
completions_table     TRL's table of completions, for batches that are smaller
hub                   what stays out of uploads; the model card
run_metadata          describes a run, for run.json
cpu_lm_head           avoids copies of a frozen 16-bit head on a CPU
"""

from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from .grpo_plus_trainer import GRPOPlusTrainer

__all__ = ["GRPOPlusTrainer"]


def __getattr__(name: str) -> Any:
    if name == "GRPOPlusTrainer":  # here: it imports TRL, which takes seconds
        from .grpo_plus_trainer import GRPOPlusTrainer

        return GRPOPlusTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
