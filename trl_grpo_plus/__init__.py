"""GRPO on Hugging Face TRL that does not pay for groups that teach nothing.

Swap two names in a TRL script, `GRPOTrainer` for [`GRPOPlusTrainer`] and `GRPOConfig` for [`GRPOPlusConfig`], and set
the options you want. With every new option at its default the trainer is TRL's, bit for bit.

The rooms, from the top floor down (docs/architecture.md follows one batch through them):

    cli           the commands: `trl-grpo-plus ls | cp | run | race | check | view | rescore | export | env`
    check/        everything that can be known of a recipe before its GPU-hours
    race/         a recipe with stock TRL and with this trainer, compared
    launch/       from a recipe to a run; recipes/ holds the recipes
    viewing       a run's page, several runs' or one that is served; view/ makes them
    rescore/      a reward tried on what a run has sampled
    trainer       TRL's methods that are overridden, in the order in which TRL calls them
    batch         the batch in flight               recorder   a batch -> traces/, alarms/, trackers (view/)
    credit        rewards -> advantages             rounds     resampling, and the hand-over between ranks
    config        the options                       resume     what a checkpoint holds of all this
    groups        verdicts on groups                selection  what may be trained on
    prompts       a run's stream and its memory     streams    which prompts are sampled next
    lookahead     a stream's rows, read ahead       shared_prior    what prompts share
    memory        beliefs and what they share       beliefs    what is known of each prompt
    own_stream    a user's way of choosing prompts  states     the policy's, at a prompt's end
    head          states -> what prompts promise    rests      rows that are left alone for a while
    reward_range  where rewards lie                 lease      one run at a time in a folder
    advantages    scales; scale and baseline used   baselines  what is subtracted from rewards
    variants      other advantage functions         estimators what `advantage_estimator` names
    kl            KL estimators, adaptive beta      steps      rewards of steps -> tokens
    filler        rows that only fill a batch up    config_checks   what a configuration may not hold
    presets       published variants as settings    vllm_check  whether vLLM samples from the policy
    generated     what TRL generates, row by row    placement   which rank trains on which groups
    export/       what a run sampled, to share      plain_rows values of rows, whatever a dataset's format
    nonfinite     steps that are not finite         checkpoints whether one is whole
    trl_releases  which TRL is tested               completions_table  TRL's, of smaller batches
    about         describes a run, for run.json     model_card what it adds to TRL's model card
    uploads       what stays out of uploads         indexed_rows    rows that carry their index
    known_states  states that are kept, for a while sampling   settings that change the distribution
    on_cpu        no needless copies on a CPU
    registry      rewards by name; scoring/ runs them, sandbox/ runs what a model wrote; rewards/ holds the rewards
    common/       what every room uses

To add one: a scale is an entry of `advantages.SCALES`, a baseline one of `baselines.BASELINES`, another advantage
function one of `variants.VARIANTS`, a KL estimator one of `kl.ESTIMATORS`, a preset one of `presets.PRESETS`, an alarm
a `Rule` in `alarms.rules.ALARMS`, a check a function in `launch.refusals`, a reward a file in rewards/ and a line of
its `LIBRARY`, a way of choosing prompts a class in `streams` and a line of `selection.STREAMS`. Options, messages and
tables follow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from .config import GRPOPlusConfig
    from .launch.console import SlimProgress
    from .registry import get_reward, list_rewards, register_reward
    from .trainer import GRPOPlusTrainer

__version__ = "0.1.0"
__all__ = ["GRPOPlusConfig", "GRPOPlusTrainer", "SlimProgress", "__version__"]
__all__ += ["get_reward", "list_rewards", "register_reward"]

_LAZY = {"GRPOPlusConfig": ".config", "GRPOPlusTrainer": ".trainer", "SlimProgress": ".launch.console"}
_LAZY |= dict.fromkeys(("get_reward", "list_rewards", "register_reward"), ".registry")


def __getattr__(name: str) -> Any:
    # TRL takes seconds to import; the pure modules (advantages, kl, groups) should not wait for it.
    if name in _LAZY:
        return getattr(import_module(_LAZY[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
