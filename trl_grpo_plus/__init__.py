"""GRPO on Hugging Face TRL that filters, resamples or avoids groups that teach nothing.

Swap two names in a TRL script, `GRPOTrainer` for [`GRPOPlusTrainer`] and `GRPOConfig` for [`GRPOPlusConfig`], and set
the options that you want. With every new option at its default, losses and weights are TRL's, bit for bit, except for
what docs/options.md lists.

One training step runs through five rooms: curriculum -> rollouts -> scoring -> objective -> trainer.

    registry     rewards by name
    config/      the options, their validation, presets
    trainer/     GRPOPlusTrainer: the one room that overrides TRL's methods
    curriculum/  which prompts are sampled next, and what is believed of each
    rollouts/    groups of attempts, their verdicts, resampling, the exchange between ranks
    scoring/     runs reward functions: time limits, worker processes, outcomes
    objective/   rewards -> advantages; the KL term
    sandbox/     runs programs that a model wrote
    traces/      records of every attempt, and alarms about them
    view/        the HTML page, its server, tables for wandb and trackio
    launch/      from a recipe to a run
    cli/         the commands
    utils/       what every room uses

`trl_grpo_plus.rewards` is the folder rewards/ of the repository, `trl_grpo_plus.recipes` the folder recipes/.
docs/architecture.md draws the rooms, follows one batch through them and says where each kind of addition goes.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from .utils.lazy_imports import lazy_imports


# A script in the root of a clone imports this file there, where rewards/ and recipes/ are beside the package.
if not (Path(__file__).parent / "rewards").is_dir():
    __path__.append(str(Path(__file__).parents[1]))


if TYPE_CHECKING:
    from .config.grpo_plus_config import GRPOPlusConfig
    from .registry import get_reward, list_rewards, register_reward
    from .trainer.attach import attach
    from .trainer.grpo_plus_trainer import GRPOPlusTrainer
    from .trainer.progress import SlimProgress

__version__ = "0.1.0"
__all__ = ["GRPOPlusConfig", "GRPOPlusTrainer", "SlimProgress", "__version__"]
__all__ += ["attach", "get_reward", "list_rewards", "register_reward"]

_LAZY = {
    "GRPOPlusConfig": ".config.grpo_plus_config",
    "GRPOPlusTrainer": ".trainer.grpo_plus_trainer",
    "SlimProgress": ".trainer.progress",
    "attach": ".trainer.attach",
}
_LAZY |= dict.fromkeys(("get_reward", "list_rewards", "register_reward"), ".registry")
__getattr__ = lazy_imports(__name__, _LAZY)


def __dir__() -> list[str]:
    return sorted(__all__)
