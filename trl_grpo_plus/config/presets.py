"""Published variants of GRPO as settings: `preset: dapo` in a recipe, `GRPOPlusConfig(preset="dapo", ...)` in Python.

A preset is a dict over TRL's options and this package's; it has no class and no code of its own. A user's settings win
over the preset, and the preset wins over the defaults. A preset has the settings that make the algorithm, as its paper
describes it. TRL's current defaults are named all the same, since defaults change. Sizes of batches and groups,
lengths, learning rates and rewards are left to the user.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..utils.validation import ConfigError, one_of


if TYPE_CHECKING:
    from .grpo_plus_config import GRPOPlusConfig


PAPERS = "https://huggingface.co/papers/"


@dataclass(frozen=True)
class Preset:
    """A variant of GRPO.

    Args:
        settings (`dict[str, Any]`): options of `GRPOPlusConfig` and their values.
        changes (`str`): how the algorithm differs from others, in a sentence.
        source (`str`): the source of the settings.
        leaves (`str`, *optional*, defaults to `""`): parts of the algorithm that the preset does not set.
    """

    settings: Mapping[str, Any]
    changes: str
    source: str
    leaves: str = ""


class AppliedPreset(str):
    """The name of a preset whose settings are applied.

    A config cannot tell a plain name from the name of an applied preset otherwise.
    """

    __slots__ = ()


PRESETS: dict[str, Preset] = {
    "grpo": Preset(
        {
            "loss_type": "grpo",
            "advantage_baseline": "mean",
            "scale_rewards": "group",
            "beta": 0.04,
            "kl_estimator": "k3",
            "use_bias_correction_kl": False,
            "num_iterations": 1,
        },
        "each answer has the same weight, whatever its length; a KL term in the loss.",
        PAPERS + "2402.03300",
        "the paper's groups of 64.",
    ),
    "dapo": Preset(
        {
            "loss_type": "dapo",
            "epsilon": 0.2,
            "epsilon_high": 0.28,
            "advantage_baseline": "mean",
            "scale_rewards": "group",
            "beta": 0.0,
            "zero_variance_groups": "resample",
        },
        "each token has the same weight; a higher upper bound of the ratio; dead groups are replaced; no KL.",
        PAPERS + "2503.14476",
        "several updates a batch (16 in the paper), without which every ratio is 1: set `steps_per_generation`; the "
        "paper's overlong filtering, which is `mask_truncated_completions: true`; the paper's overlong reward "
        "shaping, which is the reward `overlong`, at weight 0.5 where answers earn 0 or 1 "
        "(the paper: -1 or 1); with it `filter_metric`, to judge groups by the answer alone; the paper's groups of "
        "16. Resampling ends after `max_resample_rounds`; in the paper it goes on until the batch is full.",
    ),
    "ragen2": Preset(
        {"zero_variance_groups": "drop", "filter_metric": "total", "reward_variance_top_p": 0.9},
        "trains on the groups whose rewards vary most: those that hold 0.9 of the batch's variance of rewards.",
        PAPERS + "2604.06268",
        "the loss, the scale and the KL: the paper adds this filter to PPO, GRPO, DAPO and Dr. GRPO.",
    ),
    "dr_grpo": Preset(
        {"loss_type": "dr_grpo", "advantage_baseline": "mean", "scale_rewards": "none", "beta": 0.0},
        "no division by the std; the loss is divided by a constant, not by each answer's length; no KL.",
        PAPERS + "2503.20783",
        "`max_completion_length`, which is that constant.",
    ),
    "gspo": Preset(
        {
            "loss_type": "grpo",
            "importance_sampling_level": "sequence",
            "epsilon": 3e-4,
            "epsilon_high": 4e-4,
            "advantage_baseline": "mean",
            "scale_rewards": "group",
            "beta": 0.0,
        },
        "one ratio for each answer, the geometric mean of its tokens' ratios, clipped as a whole; no KL.",
        PAPERS + "2507.18071",
        "several updates a batch, without which every ratio is 1: set `steps_per_generation`, in the paper to "
        "four times `gradient_accumulation_steps`.",
    ),
    "cispo": Preset(
        {
            "loss_type": "cispo",
            "epsilon_high": 5.0,
            "advantage_baseline": "mean",
            "scale_rewards": "group",
            "beta": 0.0,
        },
        "the ratio is a detached weight of at most `epsilon_high`, so no token loses its gradient; no KL.",
        PAPERS + "2506.13585",
        "several updates a batch, without which every ratio is 1. The paper's bound is not known here; 5 is from "
        "ScaleRL (arXiv 2510.13786), which TRL recommends.",
    ),
    "sapo": Preset(
        {
            "loss_type": "sapo",
            "sapo_temperature_pos": 1.0,
            "sapo_temperature_neg": 1.05,
            "importance_sampling_level": "token",
            "advantage_baseline": "mean",
            "scale_rewards": "group",
            "beta": 0.0,
        },
        "a sigmoid of each token's ratio replaces clipping, steeper for tokens that are pushed down; no KL.",
        PAPERS + "2511.20347",
        "several updates a batch, without which every ratio is 1.",
    ),
    "lite_ppo": Preset(
        {"loss_type": "dapo", "advantage_baseline": "mean", "scale_rewards": "batch", "beta": 0.0},
        "the group's mean, but the std of all rewards of the batch; each token has the same weight; no KL.",
        PAPERS + "2508.08221",
        "the paper's sampling (`temperature`, `top_p`, `top_k`).",
    ),
    "rloo": Preset(
        {
            "loss_type": "dr_grpo",
            "advantage_baseline": "leave_one_out",
            "scale_rewards": "none",
            "num_iterations": 1,
            "beta": 0.0,
        },
        "an answer's baseline is the mean reward of the others; no division by the std nor by each answer's length.",
        PAPERS + "2402.14740",
        "the paper's KL in the reward: `beta` above 0 with `kl_placement: reward` and `kl_estimator: k1`; one "
        "update a batch: `steps_per_generation` at its default.",
    ),
    "opo": Preset(
        {
            "loss_type": "dr_grpo",
            "advantage_baseline": "length_weighted",
            "scale_rewards": "none",
            "num_iterations": 1,
            "beta": 0.0,
        },
        "the baseline is the mean reward weighted by length; no std, no KL.",
        PAPERS + "2505.23585",
        "one update a batch, since the method is on-policy: `steps_per_generation` at its default.",
    ),
    "maxrl": Preset(
        {"loss_type": "dr_grpo", "advantage_baseline": "mean", "scale_rewards": "mean", "beta": 0.0},
        "divides by the group's mean reward, not its std: this tends to maximise log p, so hard prompts weigh more.",
        PAPERS + "2602.02710",
        "rewards of 0 and 1: the method is made for these.",
    ),
    "passk": Preset(
        {"advantage_estimator": {"name": "passk", "args": {"k": 4, "scaled": True}}},
        "a prompt counts as solved if one of four answers is right, so mostly solved prompts teach nothing.",
        PAPERS + "2508.10751",
        "the loss and its KL; rewards of 0 and 1, since it takes no others; more than four attempts on each prompt, "
        "many more if possible.",
    ),
    "gdpo": Preset(
        {
            "multi_objective_aggregation": "normalize_then_sum",
            "advantage_baseline": "mean",
            "scale_rewards": "group",
        },
        "each reward function is normalised by itself within its group; their sum is normalised over the batch.",
        PAPERS + "2601.05242",
        "the loss and its KL; rewards that count only if another reward is earned. With one reward function the "
        "advantages differ from GRPO's only in scale.",
    ),
    "bnpo": Preset(
        {"loss_type": "bnpo"},
        "TRL's loss of that name: each token of a process's micro-batch has the same weight.",
        "https://huggingface.co/docs/trl/grpo_trainer",
        "the normalisation of rewards by a Beta distribution, the subject of the paper called BNPO (arXiv "
        "2506.02864): neither TRL nor this package has it.",
    ),
    "belief": Preset(
        {
            "num_generations": 2,
            "advantage_baseline": "belief",
            "scale_rewards": "prior",
            "prompt_selection": "belief",
            "belief_head": "prompt",
            "zero_variance_groups": "drop",
        },
        "this package's own method: small groups, a memory of each prompt's rewards, and a choice of prompts.",
        "fewer_rollouts.md#the-settings",
        "`max_steps`: the method needs fewer steps; `belief_key`, if a column tells hard prompts from easy ones.",
    ),
}


def preset_of(name: str) -> Preset:
    """Return the preset of that name.

    Raises:
        ConfigError: there is no such preset.
    """
    one_of("preset", name, PRESETS)
    return PRESETS[name]


def leave_out(config: Any, option: str) -> str:
    """Return the advice to leave an option out, or to set it back if the config's preset has this value for it."""
    settings = preset_of(config.preset).settings if config.preset else {}
    if option not in settings or settings[option] != getattr(config, option):
        return f"Leave {option} out."
    default = config.__dataclass_fields__[option].default
    return f"preset={str(config.preset)!r} sets it. Set {option}={default!r} beside the preset."


def with_preset(name: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config's arguments: the preset's settings, overridden by the user's own.

    Raises:
        ConfigError: there is no such preset.
    """
    return {**preset_of(name).settings, **own, "preset": AppliedPreset(name)}


def make(config_class: Any, name: str, /, **own: Any) -> Any:
    """Make a config with a preset's settings; `GRPOPlusConfig.preset("dapo", epsilon_high=0.3)` calls it.

    It also works for a subclass that is a dataclass, to which the keyword argument `preset` does not apply.

    Args:
        config_class (`type`): `GRPOPlusConfig` or a subclass.
        name (`str`): one of [`PRESETS`].
        own: the config's arguments, which win over the preset's settings.

    Raises:
        ConfigError: there is no such preset, or its settings with these arguments are refused.
    """
    return config_class(**with_preset(name, own))


def apply(options: dict[str, Any], positional: Sequence[str], fields: Sequence[str]) -> dict[str, Any]:
    """Return a config's keyword arguments, with the settings of the preset that they name.

    If every field is given, they are returned as they are. A parser gives also what its user left out.

    Args:
        options (`dict[str, Any]`): the keyword arguments.
        positional (`Sequence[str]`): the fields whose values are given by position.
        fields (`Sequence[str]`): all fields.
    """
    name = options.get("preset")
    if not isinstance(name, str) or isinstance(name, AppliedPreset) or {*fields} <= {*options, *positional}:
        return options
    return {key: value for key, value in with_preset(name, options).items() if key not in positional}


def check(preset: Any) -> None:
    """Refuse a config's `preset` if no preset has that name, or if its settings were not applied."""
    if preset is None:
        return
    settings = preset_of(preset).settings
    if not isinstance(preset, AppliedPreset):
        raise ConfigError(
            f"preset={preset!r}: this config cannot tell your own options from defaults, because a parser gave every "
            "option, the config's class is a subclass, or a script set the preset later. In Python, call the class's "
            f".preset({preset!r}, ...). In a script with a parser, set the preset's options themselves: "
            f"{', '.join(f'{name}={value!r}' for name, value in settings.items())}."
        )


def describe(config: "GRPOPlusConfig") -> str:
    """Describe a config's preset: what it sets, what the user changed, what it leaves out; "" without a preset."""
    if config.preset is None:
        return ""
    preset = PRESETS[config.preset]
    other = {name for name, value in preset.settings.items() if getattr(config, name) != value}
    kept = [f"{name}={value!r}" for name, value in preset.settings.items() if name not in other]
    own = [
        f"{name}={getattr(config, name)!r} (not {preset.settings[name]!r})"
        for name in preset.settings
        if name in other
    ]
    parts = [f"sets {', '.join(kept) or 'nothing'}", *([f"your own: {', '.join(own)}"] if own else [])]
    return f"{config.preset} {'; '.join(parts)}." + (f" Left to you: {preset.leaves}" if preset.leaves else "")
