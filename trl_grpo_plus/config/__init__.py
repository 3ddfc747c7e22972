"""The options: their definitions, their allowed values, and published settings.

grpo_plus_config       [`GRPOPlusConfig`]: TRL's options and this package's
validation             refuses values and combinations that cannot work, and says the fix
bounds                 the bounds of TRL's and transformers' numbers
compatibility          checks the configuration against the reward functions, the data and the model
group_checks           checks of the options that say which groups leave the batch
option_names           refuses unknown names of options, and takes their help from the docstring
gone_options           options that TRL or transformers had once, and what to write instead
presets                published variants of GRPO as settings
sampling_distribution  settings that make the sampled distribution differ from the trained one
trl_releases           the releases of TRL that are tested
tool_checks            checks of tools and environments
evaluation_checks      checks of evaluations
chat_checks            doubts about the chat template, its arguments, and where answers end
trained_weights        checks of the model: its trained weights, their dtype, its dropout and its embeddings
start_errors           TRL's errors about batch sizes, folders, models and tools, with the cause and the fix
"""

from typing import TYPE_CHECKING

from ..utils.lazy_imports import lazy_imports


if TYPE_CHECKING:
    from .grpo_plus_config import GRPOPlusConfig

__all__ = ["GRPOPlusConfig"]

__getattr__ = lazy_imports(__name__, {"GRPOPlusConfig": ".grpo_plus_config"})
