"""`GRPOPlusConfig`: TRL's `GRPOConfig` and the options that `GRPOPlusTrainer` adds.

Every check runs in `__post_init__`, because values from a YAML file do not pass argparse's own checks. An error there
costs a second; an error in mid-run costs a GPU-hour.
"""

import functools
import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import trl
from trl import GRPOConfig

from ..curriculum.selection import believes, name_of
from ..objective.advantage_functions import GRPO, by_path, named_by, teaches
from ..objective.kl import ESTIMATORS, TRL_ESTIMATOR
from ..objective.scales import TRL_SCALES
from ..rollouts import verdicts
from ..utils.distributed import start_cpu_group
from ..utils.validation import did_you_mean
from . import presets
from .validation import check, warn_of_no_effect


MAY_BE_FUNCTIONS = ("advantage_baseline", "advantage_estimator")

# `Any` for type checkers, because the class has a method of that name: see the end of this module.
if TYPE_CHECKING:
    PresetName = Any
else:
    PresetName = str | None


def _choice(default: Any, choices: Iterable[Any]) -> Any:
    return field(default=default, metadata={"choices": choices})


@dataclass
class GRPOPlusConfig(GRPOConfig):
    r"""Configuration class for the [`GRPOPlusTrainer`].

    Only parameters that are new, or take new values, are listed; others are [`~trl.GRPOConfig`]'s. With all of them at
    their defaults the trainer is TRL's, bit for bit (an attempt that only rewards of weight 0 score is unscored).

    Parameters:
        preset (`str`, *optional*):
            A published variant as settings, over which other options win: one of
            [`~trl_grpo_plus.config.presets.PRESETS`], such as `"dapo"`. In Python it is
            `GRPOPlusConfig.preset("dapo", ...)`.

        > Parameters that control zero-variance groups

        zero_variance_groups (`str`, *optional*, defaults to `"keep"`):
            What happens to a group whose attempts all earn the same reward. Such a group has no advantage to learn
            from; one whose every token is masked (`mask_truncated_completions`) has none either. One of:

            - `"keep"`: as in TRL, it is forwarded and back-propagated, and its tokens count in the loss denominator.
            - `"drop"`: it leaves the batch before any log-prob pass. The loss is that of the other groups alone.
            - `"resample"`: it is replaced by freshly sampled prompts, as in [DAPO](https://huggingface.co/papers/2503.14476).
        filter_metric (`str`, *optional*, defaults to `"total"`):
            What the verdict on a group looks at: `"total"` (the weighted sum of the rewards; under
            `multi_objective_aggregation="normalize_then_sum"` any weighted reward function, since there each is
            normalised by itself), the name of one reward function (the total where that applies to none of a group's
            attempts), or `"any"` (one weighted reward function that varies keeps the group).
        zero_variance_tolerance (`float`, *optional*, defaults to `1e-6`):
            Attempts of a group are alike if max - min of the metric over its scored ones is at most this.
        solved_reward (`float`, *optional*, defaults to `1.0`):
            A group whose attempts are alike and reach this value is `all_good`. With beliefs, `zvp` or
            `filtered_verdicts` the verdict decides whether it is dead; otherwise it is only logged. With beliefs this
            value is also the upper end of the least range of rewards.
        failed_reward (`float`, *optional*, defaults to `0.0`):
            A group whose attempts are alike, at this value or below, is `all_bad`. With beliefs, `zvp` or
            `filtered_verdicts` the verdict decides whether it is dead; otherwise it is only logged. With beliefs this
            value is also the lower end of the least range of rewards.
        filtered_verdicts (`list[str]`, *optional*):
            Which verdicts make a group dead: it leaves the batch under `"drop"`, is replaced under `"resample"`.
            `None`: all but `"alive"`; under `advantage_baseline="belief"`, where attempts that are alike teach too,
            `"all_bad"`, `"unscored"` and `"truncated"`, and such a group has no advantage under `"keep"` either.
        max_resample_rounds (`int`, *optional*, defaults to `3`):
            Most extra rounds of generation per generation batch under `"resample"`. Each round generates as many
            prompts as groups are missing, and each is examined.
        resample_fallback (`str`, *optional*, defaults to `"drop"`):
            What happens to the dead groups that are left when the rounds run out; the live ones found are always
            kept. `"drop"`: train on a smaller batch. `"keep"`: fill up with dead groups, as TRL does. `"raise"`: stop.

        > Parameters that control the advantage

        scale_rewards (`str` or `bool`, *optional*, defaults to `"group"`):
            What a group's centred rewards are divided by: TRL's `"group"` (or `True`), `"batch"`, `"none"` (or
            `False`), or `"mad"`, `"mean"`, `"running"`, `"prior"`.

            - `"mad"`: 1.4826 x the group's median absolute deviation, which one outlier does not move.
            - `"mean"`: the group's mean reward ([MaxRL](https://huggingface.co/papers/2602.02710)).
            - `"running"`: the root of an exponential moving average of the batch's variance.
            - `"prior"`: with `advantage_baseline="belief"`, the std of one reward as it was believed before.
        advantage_baseline (`str`, *optional*, defaults to `"mean"`):
            What is subtracted from a group's rewards. A function `f(values, scored, batch)` (in YAML its path,
            `"package.module.f"` or `"file.py:f"`; see [`trl_grpo_plus.objective.baselines`]), or one of `"mean"`,
            `"leave_one_out"` (RLOO), `"median"`, `"length_weighted"` ([OPO](https://huggingface.co/papers/2505.23585))
            and `"belief"`: the mean of the other attempts and of what the prompt was believed to earn before, for
            which small groups (`num_generations` 2 to 4) are enough. It needs `scale_rewards="prior"`, `"batch"`,
            `"none"` or `"running"`; a std of these is at least 0.14 of `solved_reward - failed_reward`.
        advantage_estimator (`str` or `dict[str, Any]`, *optional*, defaults to `"grpo"`):
            What makes the advantages: `"grpo"`, a baseline and a scale as the options around this one say, or in their
            place `"pairwise"`, `"passk"`, `"pkpo"`, `"vector"` or `"zvp"` (see [`trl_grpo_plus.objective.variants`]),
            a name of [`~trl_grpo_plus.registry.register_advantage`], a path (`"package.module.f"` or `"file.py:f"`),
            or in Python a function `f(rewards (P, G, K), weights (K,), batch, **args) -> (P, G)` or `(P, G, T)`. With
            arguments it is `{"name": "pkpo", "args": {"k": 4}}`.
        std_ddof (`int`, *optional*, defaults to `1`):
            Degrees of freedom of the std: `1` is the sample std (TRL), `0` the population std (DeepSeekMath).
        std_eps (`float`, *optional*, defaults to `1e-4`):
            Added to the scale before dividing (not to the mean of `scale_rewards="mean"`).
        std_floor (`float`, *optional*, defaults to `0.0`):
            Smallest scale to divide by, before `std_eps` is added (not for `scale_rewards="mean"` or `"none"`).
        running_std_decay (`float`, *optional*, defaults to `0.9`):
            Decay of the moving average under `scale_rewards="running"`, per generation batch.
        advantage_clip (`float`, *optional*):
            Largest absolute advantage; `None` does not clip.
        step_reward_credit (`str`, *optional*):
            What tokens earn where a reward scores the steps of a completion (a list of
            [`~trl_grpo_plus.registry.Step`]). `None`: the sum of its steps, as of any reward. Otherwise all step
            rewards of a group are normalised together, by their own mean and by `scale_rewards` (`"group"` or
            `"none"`), times the reward's weight; other rewards are credited as ever, and added. One of:

            - `"to_go"`: a token earns the steps that end at it or after it
              ([DeepSeekMath](https://huggingface.co/papers/2402.03300), 4.1.3).
            - `"own"`: the step that it lies in.

        > Parameters that control which prompts are sampled, and what is believed of them

        prompt_selection (`str` or `dict[str, Any]`, *optional*, defaults to `"shuffle"`):
            Which rows of the training set are sampled. An epoch is then as many prompts as the set has rows. One of:

            - `"shuffle"`: TRL's sampler.
            - `"belief"`: of a shuffled pool those from which most is expected to be learnt, as far as beliefs were
              right so far; see [`~trl_grpo_plus.curriculum.samplers.LearnabilitySampler`], of a stream
              [`trl_grpo_plus.curriculum.streaming_sampler`].
            - `{"name": "by_column", "column": ..., "order": "easy_first" | "hard_first" | "interleaved"}`.
            - `{"name": "mixture", "column": ..., "weights": {value: weight, ...}}`: the values of a column in
              proportion to weights; see [`~trl_grpo_plus.curriculum.samplers.MixtureSampler`].
            - the path of a class of your own (`"package.module.Class"` or `"file.py:Class"`), a
              [`~trl_grpo_plus.curriculum.samplers.PromptSampler`], made with the training set and the seed. With
              arguments: `{"name": path, **arguments}`.
        selection_pool (`int`, *optional*, defaults to `8`):
            Rows in the pool of `prompt_selection="belief"`, for each that is sampled.
        belief_key (`str`, *optional*):
            Column of the training set (level, source, ...) whose rows share what is believed of one that was not
            sampled yet. `None`: all rows share it.
        belief_id (`str`, *optional*):
            Column of the training set whose value identifies a prompt: a text or a number, different in each row. A
            run resumed with other rows, or with its rows in another order, then remembers its prompts; and a
            streamed dataset remembers the prompts that come again. `None`: a prompt is identified by the row's index,
            and the rows of a stream are not remembered.
        belief_head (`str`, *optional*):
            `"prompt"`: that is foretold from the policy's state at the prompt's end; see
            [`trl_grpo_plus.curriculum.belief_head`].
        belief_head_share (`float`, *optional*, defaults to `0.1`):
            Of the tokens that a batch samples, prompts and completions, the tokens of prompts that the head may read
            for the next one; see [`trl_grpo_plus.curriculum.state_cache`]. `None`: the whole pool is read anew at
            each step, which costs more than the step where answers are short.

        > Parameters that control the importance ratio

        importance_ratio (`str`, *optional*):
            Replaces TRL's token ratio by one of [`~trl_grpo_plus.objective.ratios.RATIOS`]: `"gspo_token"`, the value
            of GSPO's sequence ratio with the gradient of each token. `None`: TRL's `importance_sampling_level`
            decides.

        > Parameters that control the KL term (they need `beta > 0`)

        kl_estimator (`str`, *optional*, defaults to `"k3"`):
            Per-token estimator of the KL divergence from the reference: `"k1"`, `"k2"`, `"k3"` (TRL) or `"abs"`. With
            `use_bias_correction_kl=True` (TRL's default) all but abs descend the reverse KL. See
            [`trl_grpo_plus.objective.kl`].
        kl_placement (`str`, *optional*, defaults to `"loss"`):
            Whether the KL term is in the loss or in the reward. `"reward"` subtracts it from the reward before the
            baseline; this needs `kl_estimator="k1"`, the only one whose gradient is then the KL's. Reward and KL are
            then divided by the same scale: `scale_rewards="group"` divides `beta` by each group's std, `"none"` leaves
            it as it is. A group that is tied, and an attempt that nobody scored, bears its KL alone, under the scales
            of a group divided by 1; a group that is dropped bears none.
        kl_reward_form (`str`, *optional*, defaults to `"sequence"`):
            With `kl_placement="reward"`: `"sequence"` subtracts the whole completion's KL, `"reward_to_go"` at each
            token the KL from there on (per-token advantages, less variance). Both have the gradient of the sequence's
            KL, up to the scale; see [`trl_grpo_plus.objective.kl`].
        kl_target (`float`, *optional*):
            Adapts `beta` so that the logged `kl` (nats per token) approaches this value. `None` keeps `beta` fixed.
            Source: [Ziegler et al., 2019](https://huggingface.co/papers/1909.08593).
        kl_horizon (`int`, *optional*, defaults to `10000`):
            Completions, each counted once, over which `beta` may change by a factor of about 1.2, with `kl_target`.

        > Parameters that control the processes that rewards with a time limit run in

        reward_workers (`int`, *optional*):
            Most reward worker processes of each rank; `None`: its share of the processors that the machine's ranks may
            use, by affinity and quota, at most 16. With 10 or more for each, programs that hang starve each other.
        reward_worker_memory_mb (`int`, *optional*, defaults to `4096`):
            Address space of each reward worker process, in MiB.

        > Parameters that control what is watched: steps, traces, alarms

        nonfinite_step (`str`, *optional*, defaults to `"raise"`):
            What happens to a step whose loss or gradient is NaN or infinite. `"raise"`: the run stops, and the step
            is not taken; `"ignore"`: it is taken, as in TRL. Steps that a scaler of float16 skips do not count.
        trace_every (`int`, *optional*, defaults to `1`):
            The attempts of every n-th generation batch and of evaluations go to `output_dir/rollouts`; `0`: of none.
        trace_max_groups (`int`, *optional*):
            Most groups of a batch that are written, taken from each verdict in turn; `None` writes all.
        trace_compress (`bool`, *optional*, defaults to `False`):
            Whether to gzip the files of attempts.
        trace_thumbnails (`int`, *optional*, defaults to `0`):
            Pixels on the longer side of the pictures kept beside the traces; `0`: none, lines say digests.
        trace_log_groups (`int`, *optional*, defaults to `4`):
            Of the traced groups, so many are shown in wandb or trackio (`report_to`), some 100 times a run; `0`: none.
        alarms (`bool`, *optional*, defaults to `True`):
            Whether to watch for reward hacking and dead training ([`trl_grpo_plus.traces.alarms`]), in texts that are
            traced.
        alarm_thresholds (`dict[str, Any]` or `str`, *optional*):
            Thresholds other than [`~trl_grpo_plus.traces.alarms.Thresholds`] has, by name; `null`: off. In a shell,
            as JSON.
        halt_on_alarm (`list[str]`, *optional*):
            Alarms that end the training, with a checkpoint, when they are new. A resumed run does not end by them
            again. Each step then waits until its batch is written.
        vllm_check_every (`int`, *optional*, defaults to `10`):
            Look at every n-th batch whether vLLM has the policy's weights; `0`: not. See
            [`trl_grpo_plus.trainer.vllm_sync_check`].
    """

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [
        *GRPOConfig._VALID_DICT_FIELDS,
        "advantage_estimator",
        "alarm_thresholds",
        "prompt_selection",
    ]
    # True while a `GRPOPlusTrainer` is made, which acts on these options. Not a field.
    has_plus_trainer: ClassVar[bool] = False

    preset: PresetName = None

    # Parameters that control zero-variance groups
    zero_variance_groups: str = _choice("keep", ["keep", "drop", "resample"])
    filter_metric: str = "total"
    zero_variance_tolerance: float = 1e-6
    solved_reward: float = 1.0
    failed_reward: float = 0.0
    filtered_verdicts: list[str] | None = None
    max_resample_rounds: int = 3
    resample_fallback: str = _choice("drop", ["drop", "keep", "raise"])

    # Parameters that control the advantage
    scale_rewards: str = "group"
    advantage_baseline: str = "mean"  # or in Python a function
    advantage_estimator: str = GRPO  # or a function, or a dict, as YAML or JSON give it
    std_ddof: int = _choice(1, [0, 1])
    std_eps: float = 1e-4
    std_floor: float = 0.0
    running_std_decay: float = 0.9
    advantage_clip: float | None = None
    step_reward_credit: str | None = None

    # Parameters that control which prompts are sampled, and what is believed of them
    prompt_selection: str = "shuffle"  # or a dict, as YAML or JSON give it
    selection_pool: int = 8
    belief_key: str | None = None
    belief_id: str | None = None
    belief_head: str | None = None
    belief_head_share: float | None = 0.1

    # Parameters that control the importance ratio
    importance_ratio: str | None = None

    # Parameters that control the KL term
    kl_estimator: str = _choice(TRL_ESTIMATOR, ESTIMATORS)
    kl_placement: str = _choice("loss", ["loss", "reward"])
    kl_reward_form: str = _choice("sequence", ["sequence", "reward_to_go"])
    kl_target: float | None = None
    kl_horizon: int = 10_000

    # Parameters that control the processes that rewards with a time limit run in
    reward_workers: int | None = None
    reward_worker_memory_mb: int = 4096

    # Parameters that control what is watched: steps, traces, alarms
    nonfinite_step: str = _choice("raise", ["raise", "ignore"])
    trace_every: int = 1
    trace_max_groups: int | None = None
    trace_compress: bool = False
    trace_thumbnails: int = 0
    trace_log_groups: int = 4
    alarms: bool = True
    alarm_thresholds: dict[str, Any] | str | None = None
    halt_on_alarm: list[str] | None = None
    vllm_check_every: int = 10

    def __post_init__(self) -> None:
        if self.use_cpu and self.ddp_timeout != GRPOConfig.ddp_timeout:
            start_cpu_group(self.ddp_backend, self.ddp_timeout)
        super().__post_init__()
        check(self, GRPOPlusConfig.__annotations__, trl.__version__)

    @property
    def place_model_on_device(self) -> bool | None:
        """TRL's and transformers' property of that name, which also warns of options that have no effect."""
        # Only a `Trainer` that is being made reads this property, so the warning belongs here.
        if not self.has_plus_trainer and self.process_index == 0:
            warn_of_no_effect(self)
        return super().place_model_on_device

    @property
    def changed_options(self) -> dict[str, Any]:
        """The options of this class that are not at their defaults, by name.

        If there are none, the trainer is TRL's.
        """
        fields, of_trl = GRPOPlusConfig.__dataclass_fields__, GRPOConfig.__dataclass_fields__
        names = self.changed(*(name for name in fields if name not in of_trl))
        names += [] if self.scale_rewards in TRL_SCALES else ["scale_rewards"]
        return {name: by_path(getattr(self, name)) for name in names}

    def to_dict(self) -> dict[str, Any]:
        """Return transformers' dict, with a function of the user's as its path."""
        return {**super().to_dict(), **{name: by_path(getattr(self, name)) for name in MAY_BE_FUNCTIONS}}

    @property
    def filters_groups(self) -> bool:
        """Whether zero-variance groups leave the batch."""
        return self.zero_variance_groups != "keep"

    @property
    def dead(self) -> frozenset[str]:
        """The verdicts on groups that have nothing to teach."""
        if self.filtered_verdicts is not None:
            return frozenset(self.filtered_verdicts)
        believes = self.advantage_baseline == "belief"
        return (verdicts.DEAD_BESIDE_A_BELIEF if believes else verdicts.DEAD) - teaches(self.advantage_estimator)

    @property
    def chooses_prompts(self) -> bool:
        """Whether prompts are sampled other than those that TRL's sampler deals."""
        return name_of(self.prompt_selection) != "shuffle"

    @property
    def draws_prompts(self) -> bool:
        """Whether rows of the training set are drawn beyond those that TRL's sampler deals."""
        return self.chooses_prompts or self.zero_variance_groups == "resample"

    @property
    def what_believes(self) -> str:
        """The options that need beliefs about prompts, as a user would write them; "" if there are none."""
        options = {"advantage_baseline": self.advantage_baseline == "belief"}
        options["prompt_selection"] = believes(self.prompt_selection)
        return ", ".join(f"{name}={getattr(self, name)!r}" for name, needs in options.items() if needs)

    @property
    def estimates_advantages(self) -> bool:
        """Whether anything other than a baseline and a scale makes the advantages."""
        return named_by(self.advantage_estimator) != GRPO

    @property
    def changes_advantages(self) -> bool:
        """Whether the advantages differ from TRL's."""
        of_groups = ("zero_variance_groups", "zero_variance_tolerance", "kl_placement", "step_reward_credit")
        shaping = ("advantage_estimator", "advantage_baseline", "std_ddof", "std_eps", "std_floor", "advantage_clip")
        return self.scale_rewards not in TRL_SCALES or bool(self.changed(*of_groups, *shaping))

    def changed(self, *names: str) -> list[str]:
        """Return those of the named options that are not at this class's defaults.

        A subclass may have other defaults.
        """
        options = GRPOPlusConfig.__dataclass_fields__
        return [name for name in names if getattr(self, name) != options[name].default]


def _names_what_is_unknown(init: Callable[..., None]) -> Callable[..., None]:
    """Return the `__init__` of a dataclass, with an error that names the closest option to an unknown one."""

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **options: Any) -> None:
        if unknown := [name for name in options if name not in type(self).__dataclass_fields__]:
            hints = "".join(did_you_mean(name, type(self).__dataclass_fields__) for name in unknown)
            raise TypeError(f"{type(self).__name__} has no option {' nor '.join(map(repr, unknown))}.{hints}")
        init(self, *args, **options)

    return checked


GRPOPlusConfig.__init__ = _names_what_is_unknown(GRPOPlusConfig.__init__)  # type: ignore[method-assign]
# An instance has the preset's name in its field, so the class is free to have the constructor under `preset`.
GRPOPlusConfig.preset = classmethod(presets.make)
# On a command line an option's help is the first sentence of its entry in the docstring.
for _name, _sentence in re.findall(r"(?m)^    (\w+) \(`.*\):\n +([\s\S]+?\.)\s", inspect.getdoc(GRPOPlusConfig) or ""):
    _option = GRPOPlusConfig.__dataclass_fields__[_name]
    _option.metadata = MappingProxyType({**_option.metadata, "help": " ".join(_sentence.split())})


def config_for(model: Any, args: Any) -> GRPOPlusConfig:
    """Return a trainer's `args`; if they are `None`, the defaults with TRL's output folder for the model."""
    if args is None:
        name = model if isinstance(model, str) else model.config._name_or_path
        return GRPOPlusConfig(f"{name.split('/')[-1]}-GRPO")
    if not isinstance(args, GRPOPlusConfig):
        raise TypeError(
            f"args must be a GRPOPlusConfig, got {type(args).__name__}: it takes every argument of TRL's GRPOConfig."
        )
    return args
