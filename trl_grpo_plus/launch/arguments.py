"""The launch script's options: four dataclasses and the parser over them."""

from dataclasses import dataclass
from typing import Any

from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments, TrlParser

from ..config.grpo_plus_config import GRPOPlusConfig
from ..config.option_names import take_help_from_docstring


@dataclass
class GRPOPlusScriptArguments(ScriptArguments):
    """The script arguments of TRL's scripts, and those of this package.

    Args:
        reward_funcs (`list[str]`, *optional*):
            Rewards, each a registered name, a path (`pkg.mod.func`, `pkg.mod:func`, `path/to/file.py:func`), a model's
            id, or `{name: ..., args: {...}, weight: 1, timeout: 5, monitor: false}`. See
            [`~trl_grpo_plus.registry.RewardSpec`].
        prepare (`str`, *optional*):
            Function that makes or loads the run's data and optionally its model, given as `pkg.mod.func`,
            `pkg.mod:func` or `path/to/file.py:func`:
            `(script_args, training_args, model_args, **prepare_args) -> DatasetDict`. It is called on the main process
            first, then on the others. If it has an argument `smoke`, `trl-grpo-plus check` passes `smoke=True`, and
            the function should return the same kind of data quickly. Without `prepare`, `dataset_name` or `datasets`
            names the data to load.
        prepare_args (`dict[str, Any]` or `str`, *optional*):
            Keyword arguments of `prepare`, on the command line as JSON.
        tools (`list[str]`, *optional*):
            Functions that the model may call, each given by its path, such as `path/to/file.py:func`.
        environment_factory (`str`, *optional*):
            Class, or function without arguments, that makes an environment, given by its path, such as
            `path/to/file.py:Class`.
        rollout_func (`str`, *optional*):
            Function `(prompts, trainer) -> dict` that samples completions in TRL's place, given by its path, such as
            `path/to/file.py:func`.
    """

    reward_funcs: list[str] | None = None
    prepare: str | None = None
    prepare_args: dict[str, Any] | str | None = None
    tools: list[str] | None = None
    environment_factory: str | None = None
    rollout_func: str | None = None


take_help_from_docstring(GRPOPlusScriptArguments)


def make_parser(prog: str | None = None, config: type | None = None) -> Any:
    """Make TRL's parser for the arguments of the script, the trainer, the model and the dataset mixture.

    Args:
        prog (`str`, *optional*): name of the program in messages.
        config (`type`, *optional*): a subclass of [`~trl_grpo_plus.GRPOPlusConfig`] to use in its place.
    """
    dataclass_types = (GRPOPlusScriptArguments, config or GRPOPlusConfig, ModelConfig, DatasetMixtureConfig)
    # argparse's own usage text would list some three hundred options.
    usage = "%(prog)s --config NAME|PATH [--option value ...]"
    return TrlParser(dataclass_types, prog=prog, usage=usage, allow_abbrev=False)
