"""`GRPOPlusConfig`: TRL's `GRPOConfig` and the options that `GRPOPlusTrainer` adds.

Every check runs in `__post_init__`, because values from a YAML file do not pass argparse's own checks, and again when
a trainer is made. An error there costs a second; an error in mid-run costs a GPU-hour.
"""

import difflib
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import trl
from trl import GRPOConfig

from ..curriculum.selection import believes, name_of
from ..objective.advantage_functions import GRPO, by_path, named_by, teaches
from ..objective.kl import ESTIMATORS, TRL_ESTIMATOR
from ..objective.scales import TRL_SCALES
from ..rollouts import verdicts
from ..utils.distributed import start_cpu_group
from . import presets
from .option_names import knowing_names, take_help_from_docstring
from .start_errors import making_config
from .validation import check, check_before_trl, warn_of_no_effect


MAY_BE_FUNCTIONS = ("advantage_baseline", "advantage_estimator")

# What type checkers see. At run time the parser of a command line reads the types, and a shell can only give a text.
if TYPE_CHECKING:
    PresetName = Any  # because the class has a method of that name: see the end of this module
    NameOrFunction = str | Callable[..., Any]
    NameOrDict = str | dict[str, Any]
    NameFunctionOrDict = str | Callable[..., Any] | dict[str, Any]
else:
    PresetName = str | None
    NameOrFunction = NameOrDict = NameFunctionOrDict = str


def _choice(default: Any, choices: Iterable[Any]) -> Any:
    return field(default=default, metadata={"choices": choices})


@dataclass
class GRPOPlusConfig(GRPOConfig):
    r"""Configuration class for the [`GRPOPlusTrainer`].

    Only parameters that are new, or take new values, are listed; others are [`~trl.GRPOConfig`]'s. With all of them at
    their defaults losses and weights are TRL's, bit for bit, except for what docs/options.md lists.

    Parameters:
        preset (`str`, *optional*):
            A published variant of GRPO as settings: one of [`~trl_grpo_plus.config.presets.PRESETS`], such as
            `"dapo"`. Options that you give yourself win over it.

        > Parameters that control zero-variance groups

        zero_variance_groups (`str`, *optional*, defaults to `"keep"`):
            What happens to a group whose attempts all earn the same reward. Such a group has no advantage to learn
            from. Neither has a group whose tokens are all masked (`mask_truncated_completions`). One of:

            - `"keep"`: the group is forwarded and back-propagated, and its tokens count in the loss denominator (TRL).
            - `"drop"`: the group leaves the batch before any log-prob pass. The loss is that of the other groups.
            - `"skip"`: as `"drop"`, but it counts in the denominator: at TRL's defaults, TRL's gradient in less time.
            - `"resample"`: other prompts are sampled in its place, as in [DAPO](https://huggingface.co/papers/2503.14476).
        filter_metric (`str`, *optional*, defaults to `"total"`):
            The reward that decides a group's verdict. One of:

            - `"total"`: the weighted sum of the rewards. Under `multi_objective_aggregation="normalize_then_sum"` it
              means `"any"`, because each reward function is then normalised by itself.
            - the name of a reward function. The total decides where that function scores no attempt of the group.
            - `"any"`: the group is alive if any weighted reward function varies.
        zero_variance_tolerance (`float`, *optional*, defaults to `1e-6`):
            Largest difference between the rewards of a group (maximum - minimum over its scored attempts) at which
            they count as equal.
        solved_reward (`float`, *optional*, defaults to `1.0`):
            Reward from which on a group of equal rewards is `all_good`. The verdict is only logged, unless beliefs,
            `zvp` or `filtered_verdicts` use it. With beliefs the range of rewards reaches at least to this value.
        failed_reward (`float`, *optional*, defaults to `0.0`):
            Reward up to which a group of equal rewards is `all_bad`. The verdict is only logged, unless beliefs,
            `zvp` or `filtered_verdicts` use it. With beliefs the range of rewards reaches at least down to this value.
        filtered_verdicts (`list[str]`, *optional*):
            Verdicts of dead groups: `"drop"` and `"skip"` remove them, `"resample"` replaces them. `None`: all but
            `"alive"`. With `advantage_baseline="belief"` groups of equal rewards can teach too, so `None` means
            `"all_bad"`, `"unscored"` and `"truncated"`, and such groups have no advantage under `"keep"` either.
        reward_variance_top_p (`float`, *optional*, defaults to `1.0`):
            With `"drop"` and `"skip"`: train on the groups whose rewards vary most, and that hold this share of the
            batch's variance together ([RAGEN-2](https://huggingface.co/papers/2604.06268): 0.9). The verdict on other
            groups that are alive is `low_variance`. The sample variance counts, of the reward that `filter_metric`
            names. `1.0`: all groups whose rewards differ.
        max_resample_rounds (`int`, *optional*, defaults to `3`):
            Largest number of extra rounds of generation per generation batch, for `"resample"`. Each round samples as
            many prompts as groups are missing.
        resample_fallback (`str`, *optional*, defaults to `"drop"`):
            What `"resample"` does about groups that are still missing after the last round. `"drop"`: train on a
            smaller batch. `"keep"`: fill it up with dead groups. `"raise"`: stop the run.

        > Parameters that control the advantage

        scale_rewards (`str` or `bool`, *optional*, defaults to `"group"`):
            Divisor of a group's centred rewards: TRL's `"group"` (or `True`), `"batch"`, `"none"` (or
            `False`), or `"mad"`, `"mean"`, `"running"`, `"prior"`.

            - `"mad"`: 1.4826 x the group's median absolute deviation, and at least a G-th of the largest deviation.
            - `"mean"`: the group's mean reward ([MaxRL](https://huggingface.co/papers/2602.02710)).
            - `"running"`: the root of an exponential moving average of the batch's variance.
            - `"prior"`: with `advantage_baseline="belief"`, the std of one reward under the prompt's belief.
        advantage_baseline (`str` or `Callable`, *optional*, defaults to `"mean"`):
            Baseline to subtract from a group's rewards. A function `f(values, scored, batch)` (in YAML its path,
            `"package.module.f"` or `"file.py:f"`; see [`trl_grpo_plus.objective.baselines`]), or one of `"mean"`,
            `"leave_one_out"` (RLOO), `"median"`, `"length_weighted"` ([OPO](https://huggingface.co/papers/2505.23585))
            and `"belief"`: a mean of the other attempts' rewards and of the prompt's reward as estimated from earlier
            batches. Small groups (`num_generations` 2 to 4) are enough for it. It needs `scale_rewards="prior"`,
            `"batch"`, `"none"` or `"running"`. A std of these is at least 0.14 of `solved_reward - failed_reward`.
        advantage_estimator (`str`, `dict[str, Any]` or `Callable`, *optional*, defaults to `"grpo"`):
            How advantages are computed: `"grpo"`, by the baseline and the scale of the other options. Or in their
            place `"pairwise"`, `"passk"`, `"pkpo"`, `"vector"` or `"zvp"` (see [`trl_grpo_plus.objective.variants`]),
            a name of [`~trl_grpo_plus.registry.register_advantage`], a path (`"package.module.f"` or `"file.py:f"`),
            or in Python a function `f(rewards (P, G, K), weights (K,), batch, **args) -> (P, G)` or `(P, G, T)`. With
            arguments it is `{"name": "pkpo", "args": {"k": 4}}`.
        std_ddof (`int`, *optional*, defaults to `1`):
            Degrees of freedom of the std: `1` is the sample std (TRL), `0` the population std.
        std_eps (`float`, *optional*, defaults to `1e-4`):
            Number that is added to the scale before the division (not for `scale_rewards="mean"`).
        std_floor (`float`, *optional*, defaults to `0.0`):
            Smallest scale to divide by, before `std_eps` is added (not for `scale_rewards="mean"` or `"none"`). Under
            `normalize_then_sum` it bounds the scale of each reward, not that of their sums.
        running_std_decay (`float`, *optional*, defaults to `0.9`):
            Decay of the moving average under `scale_rewards="running"`, per generation batch.
        advantage_clip (`float`, *optional*):
            Largest absolute advantage; `None` does not clip.
        step_reward_credit (`str`, *optional*):
            Credit of a token, for a reward that scores the steps of a completion (a list of
            [`~trl_grpo_plus.registry.Step`]). `None`: each token earns the sum of all steps, as with any reward.
            Otherwise all step rewards of a group are normalised together, by their own mean and by `scale_rewards`
            (`"group"` or `"none"`), and multiplied by the reward's weight. The advantages of the other rewards are
            added. One of:

            - `"to_go"`: a token earns the steps that end at it or after it
              ([DeepSeekMath](https://huggingface.co/papers/2402.03300), 4.1.3).
            - `"own"`: a token earns the step that it lies in.

        > Parameters that control which prompts are sampled, and the estimates of their rewards (beliefs)

        prompt_selection (`str` or `dict[str, Any]`, *optional*, defaults to `"shuffle"`):
            Which rows of the training set are sampled. An epoch is then as many prompts as the set has rows. One of:

            - `"shuffle"`: TRL's sampler.
            - `"belief"`: the rows of a shuffled pool that teach most, as beliefs predict it. The more the beliefs
              were right so far, the more they decide; otherwise chance does. See
              [`~trl_grpo_plus.curriculum.samplers.LearnabilitySampler`], and for a stream
              [`trl_grpo_plus.curriculum.streaming_sampler`].
            - `{"name": "by_column", "args": {"column": ..., "order": ...}}`: by the values of a column. The order is
              "easy_first", "hard_first" or "interleaved"; see [`~trl_grpo_plus.curriculum.samplers.ColumnSampler`].
            - `{"name": "mixture", "args": {"column": ..., "weights": {value: weight, ...}}}`: the values of a column
              in proportion to weights; see [`~trl_grpo_plus.curriculum.samplers.MixtureSampler`].
            - the path of a class of your own (`"package.module.Class"` or `"file.py:Class"`), a
              [`~trl_grpo_plus.curriculum.samplers.PromptSampler`], made with the training set and the seed. With
              arguments: `{"name": path, "args": {...}}`.
        selection_pool (`int`, *optional*, defaults to `8`):
            Candidate rows for each row that `prompt_selection="belief"` samples.
        belief_key (`str`, *optional*):
            Column of the training set, such as level or source, that predicts the reward of a prompt. The belief of a
            row that was not sampled yet starts from the mean reward of the rows with the same value. `None`: it starts
            from the mean reward of all rows.
        belief_id (`str`, *optional*):
            Column of the training set whose value identifies a prompt: a text or a number, different in each row.
            With it, a run that is resumed with other rows or another order of them keeps its beliefs, and so does a
            stream whose prompts come again. `None`: the row's index identifies a prompt, a stream keeps no beliefs.
        belief_head (`str`, *optional*):
            How to predict the reward of a prompt that was not sampled yet. `"prompt"`: by a linear regression on the
            policy's last hidden state at the prompt's end; see [`trl_grpo_plus.curriculum.belief_head`]. `None`: by
            the mean of the other prompts (`belief_key`).
        belief_head_share (`float`, *optional*, defaults to `0.1`):
            Most prompt tokens that `belief_head` may read for a batch, as a share of the tokens (prompts and
            completions) of the batch before. `None`: it reads the whole pool for each batch. Where answers are short,
            that costs more than the step. See [`trl_grpo_plus.curriculum.state_cache`].

        > Parameters that control the importance ratio

        importance_ratio (`str`, *optional*):
            Importance ratio in the place of TRL's, one of [`~trl_grpo_plus.objective.ratios.RATIOS`]: `"gspo_token"`
            has the value of GSPO's sequence ratio and the gradient of each token. `None`: TRL's
            `importance_sampling_level` decides.

        > Parameters that control the KL term (they need `beta > 0`)

        kl_estimator (`str`, *optional*, defaults to `"k3"`):
            Per-token estimator of the KL divergence from the reference: `"k1"`, `"k2"`, `"k3"` (TRL) or `"abs"`. With
            `use_bias_correction_kl=True` (TRL's default) all but abs descend the reverse KL, k3 only with
            `importance_sampling_level="token"`. See [`trl_grpo_plus.objective.kl`].
        kl_placement (`str`, *optional*, defaults to `"loss"`):
            Whether the KL term is in the loss or in the reward. `"reward"` subtracts it from the reward before the
            baseline. It needs `kl_estimator="k1"`, the only one whose gradient is then the KL's. The scale divides
            both reward and KL: `scale_rewards="group"` divides `beta` by each group's std, `"none"` leaves it as it
            is. A tied group and an unscored attempt have the KL term alone; the scales that are computed for a group
            divide it by 1. A dropped group has no KL term.
        kl_reward_form (`str`, *optional*, defaults to `"sequence"`):
            With `kl_placement="reward"`: `"sequence"` subtracts the whole completion's KL, `"reward_to_go"` at each
            token the KL from there on (per-token advantages, less variance). Both have the gradient of the sequence's
            KL, up to the scale; see [`trl_grpo_plus.objective.kl`].
        kl_target (`float`, *optional*):
            Adapts `beta` so that the logged `kl` (nats per token) approaches this value. `None` keeps `beta` fixed.
            Source: [Ziegler et al., 2019](https://huggingface.co/papers/1909.08593).
        kl_horizon (`int`, *optional*, defaults to `10000`):
            With `kl_target`: number of completions over which `beta` changes by a factor of about 1.2 at most. Each
            completion is counted once.

        > Parameters that control the processes that rewards with a time limit run in

        reward_workers (`int`, *optional*):
            Largest number of reward worker processes of each rank. `None`: the rank's share of the processors that the
            machine's ranks may use (by affinity and quota), at most 16. With 10 or more workers for each processor,
            programs that hang take the time of the others.
        reward_worker_memory_mb (`int`, *optional*, defaults to `4096`):
            Private writable memory of each reward worker process, in MiB (`RLIMIT_DATA`). The code of libraries does
            not count.

        > Parameters that control what is watched: steps, traces, alarms

        nonfinite_step (`str`, *optional*, defaults to `"raise"`):
            What happens at a step whose loss or gradient is NaN or infinite. `"raise"`: the run stops before the step
            is taken. `"ignore"`: the step is taken, as in TRL. A step that float16's scaler skips stops no run.
        trace_every (`int`, *optional*, defaults to `1`):
            Write the attempts of every n-th generation batch, and of evaluations, to `output_dir/rollouts`. `0`: none.
        trace_max_groups (`int`, *optional*):
            Largest number of groups of a batch to write, taken from each verdict in turn. `None`: all.
        trace_compress (`bool`, *optional*, defaults to `False`):
            Whether to gzip the files of attempts.
        trace_thumbnails (`int`, *optional*, defaults to `0`):
            Pixels on the longer side of the pictures beside the traces. `0`: no pictures; the lines hold digests.
        trace_log_groups (`int`, *optional*, defaults to `4`):
            Number of traced groups to show in wandb or trackio (`report_to`), about 100 times a run. `0`: none.
        alarms (`bool`, *optional*, defaults to `True`):
            Whether to watch for signs of reward hacking and of dead training. The alarms about texts see the
            traced texts. See [`trl_grpo_plus.traces.alarms`].
        alarm_thresholds (`dict[str, Any]` or `str`, *optional*):
            Thresholds of alarms by name, in the place of the defaults in [`~trl_grpo_plus.traces.alarms.Thresholds`].
            `null` turns an alarm off. In a shell: as JSON.
        halt_on_alarm (`list[str]`, *optional*):
            Names of alarms that end the run with a checkpoint when they are raised. The resumed run does not end by
            the same alarm again. With this option each step waits until its batch is written.
        vllm_check_every (`int`, *optional*, defaults to `10`):
            Check at every n-th batch that vLLM has the policy's weights. `0`: never. See
            [`trl_grpo_plus.trainer.vllm.sync_check`].
    """

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [
        *GRPOConfig._VALID_DICT_FIELDS,
        "advantage_estimator",
        "alarm_thresholds",
        "prompt_selection",
    ]
    # True while a `GRPOPlusTrainer` is made. Other trainers ignore these options, so they get a warning. Not a field.
    has_plus_trainer: ClassVar[bool] = False

    preset: PresetName = None

    # Parameters that control zero-variance groups
    zero_variance_groups: str = _choice("keep", ["keep", "drop", "skip", "resample"])
    filter_metric: str = "total"
    zero_variance_tolerance: float = 1e-6
    solved_reward: float = 1.0
    failed_reward: float = 0.0
    filtered_verdicts: list[str] | None = None
    reward_variance_top_p: float = 1.0
    max_resample_rounds: int = 3
    resample_fallback: str = _choice("drop", ["drop", "keep", "raise"])

    # Parameters that control the advantage
    scale_rewards: str = "group"
    advantage_baseline: NameOrFunction = "mean"
    advantage_estimator: NameFunctionOrDict = GRPO
    std_ddof: int = _choice(1, [0, 1])
    std_eps: float = 1e-4
    std_floor: float = 0.0
    running_std_decay: float = 0.9
    advantage_clip: float | None = None
    step_reward_credit: str | None = None

    # Parameters that control which prompts are sampled, and the beliefs about them
    prompt_selection: NameOrDict = "shuffle"
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

    # Parameters that control the worker processes of rewards with a time limit
    reward_workers: int | None = None
    reward_worker_memory_mb: int = 4096

    # Parameters that control how a run is watched: steps, traces, alarms
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
        check_before_trl(self)  # first, because transformers and TRL compare numbers and divide by them
        if self.use_cpu and self.ddp_timeout != GRPOConfig.ddp_timeout:
            start_cpu_group(self.ddp_backend, self.ddp_timeout)
        with making_config(self):
            super().__post_init__()
        check(self, GRPOPlusConfig.__annotations__, trl.__version__)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, and warn of one that is nearly the name of an option of this class."""
        # transformers and scripts set attributes of their own, so that others are no mistake.
        if not (name.startswith("_") or name in self.__dataclass_fields__ or hasattr(type(self), name)):
            for option in difflib.get_close_matches(name, GRPOPlusConfig.__annotations__, n=1, cutoff=0.85):
                warnings.warn(f"{name!r} is no option, and has no effect. Did you mean {option}?", stacklevel=2)
        super().__setattr__(name, value)

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
        """Whether a sampler other than TRL's chooses the prompts."""
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


GRPOPlusConfig.__init__ = knowing_names(GRPOPlusConfig.__init__)  # type: ignore[method-assign]
# `GRPOPlusConfig.preset(...)` is a constructor. An instance has its preset's name under this attribute.
GRPOPlusConfig.preset = classmethod(presets.make)
take_help_from_docstring(GRPOPlusConfig)


def config_for(model: Any, args: Any) -> GRPOPlusConfig:
    """Return a trainer's `args`, checked again, or if they are `None` the defaults with TRL's output folder."""
    if args is None:
        name = model if isinstance(model, str) else model.config._name_or_path
        return GRPOPlusConfig(f"{name.split('/')[-1]}-GRPO")
    if not isinstance(args, GRPOPlusConfig):
        raise TypeError(f"args must be a GRPOPlusConfig, got {type(args).__name__}. Make it with the same arguments.")
    check_before_trl(args)  # a script may have set options since the config was made
    check(args, GRPOPlusConfig.__annotations__, trl.__version__)
    return args
