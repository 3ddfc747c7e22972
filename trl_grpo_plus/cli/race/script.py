"""The script of one run of a race: the recipe as `run` launches it, with stock TRL's or this package's trainer.

The environment variable RACER names the trainer. Besides the usual files of a run, the script writes its settings.
"""

import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...launch.command_line import set_environment
from ...utils.terminal import end_at_ctrl_c, interrupt_at_ctrl_c


if __name__ == "__main__":
    end_at_ctrl_c()  # before the imports that take seconds
    set_environment(sys.argv[1:])  # before the imports that read it

import trl
from transformers import TrainerCallback
from trl import GRPOTrainer

from ... import GRPOPlusTrainer
from ...launch import train
from ...registry import resolve
from ...scoring import Reward, configure, is_model
from ...traces import RACE_SETTINGS, Writer, json_value
from ...trainer.run_metadata import describe, run_json
from ...utils.files import write_json
from ...utils.signatures import taking_all
from .plan import RACER, STOCK


if TYPE_CHECKING:
    from ...config import GRPOPlusConfig


def main() -> int:
    """Run the recipe that this process's command line names.

    Returns:
        `int`: the exit status, as in [`train.main`].
    """
    return train.run(_train, prog="race")


def stock_trainer(args: "GRPOPlusConfig", reward_funcs: Any, **options: Any) -> GRPOTrainer:
    """Make a `trl.GRPOTrainer` with these rewards and with TRL's own options only."""
    rewards, args.reward_weights = resolve(reward_funcs, args.reward_weights)
    configure(args.reward_workers, args.reward_worker_memory_mb)
    # TRL gives a function all of its values, also one without `**kwargs`.
    own = (Reward, str)
    given = [reward if isinstance(reward, own) or is_model(reward) else taking_all(reward) for reward in rewards]
    return GRPOTrainer(args=args, reward_funcs=given, **options)


def reset(training_args: Any) -> None:
    """Set all options that this package adds to their defaults, except those of the reward workers."""
    defaults = {option.name: option.default for option in fields(training_args)}
    for name in training_args.changed_options:
        if not name.startswith("reward_worker"):
            setattr(training_args, name, defaults[name])


def _train(script_args: Any, training_args: Any, model_args: Any, dataset_args: Any) -> int:
    if os.environ[RACER] == STOCK:
        reset(training_args)
    return train.main(script_args, training_args, model_args, dataset_args, trainer_class=_made)


def _made(**options: Any) -> Any:
    trainer = (stock_trainer if os.environ[RACER] == STOCK else GRPOPlusTrainer)(**options)
    trainer.callback_handler.callbacks.insert(1, SettingsAndJournal(trainer))  # before printers, which change the logs
    return trainer


class SettingsAndJournal(TrainerCallback):
    """A callback that writes the settings of a run, and also the journal if the trainer keeps none.

    Args:
        trainer: the run's trainer.
    """

    def __init__(self, trainer: GRPOPlusTrainer):
        args = trainer.args
        self._settings = {
            "trainer": f"{type(trainer).__name__} (TRL {trl.__version__})",
            "num_generations": args.num_generations,
            "prompts": args.generation_batch_size // args.num_generations,
            "rollouts": args.generation_batch_size
            * args.gradient_accumulation_steps
            / (args.steps_per_generation * args.num_iterations),
            "learning_rate": args.learning_rate,
            "seed": args.seed,
            "splits": len(trainer.eval_dataset) if isinstance(trainer.eval_dataset, dict) else 1,
            "options": json_value(args.changed_options),
        }
        main = trainer.accelerator.is_main_process
        keeps = isinstance(trainer, GRPOPlusTrainer) and args.trace_every
        weights = dict(zip(trainer.reward_func_names, trainer.reward_weights.tolist(), strict=True))
        about = run_json(args, weights, describe(trainer))
        self._writer = Writer(args.output_dir, about=about) if main and not keeps else None
        self._folder = Path(args.output_dir) if main else None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the run's settings, and begin the trace if the trainer keeps none."""
        if self._writer is not None:
            self._writer.begin(state.global_step, state.max_steps)
        if self._folder is not None:
            settings = {**self._settings, "max_steps": state.max_steps}
            write_json(self._folder / RACE_SETTINGS, settings)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Write the log entry into the trace."""
        if self._writer is not None and logs is not None:
            self._writer.note("metrics", [json_value({**logs, "step": state.global_step})])


if __name__ == "__main__":
    interrupt_at_ctrl_c()
    sys.exit(main())
