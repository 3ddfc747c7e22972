"""The options of a configuration that advantages depend on.

They are a protocol, because this room may not import the configuration, whose room is above.
"""

from typing import Any, Protocol


class AdvantageOptions(Protocol):
    """The options that `objective` reads of a [`GRPOPlusConfig`]."""

    # TRL's
    num_generations: int
    scale_rewards: str
    loss_type: str
    importance_sampling_level: str
    multi_objective_aggregation: str
    off_policy_mask_threshold: float | None

    # This package's
    advantage_baseline: Any  # a name, a path or a function
    advantage_estimator: Any  # a name, a path, a function, or a dict with its arguments
    advantage_clip: float | None
    failed_reward: float
    filtered_verdicts: list[str] | None
    kl_reward_form: str
    running_std_decay: float
    solved_reward: float
    std_ddof: int
    std_eps: float
    std_floor: float
    step_reward_credit: str | None
    zero_variance_tolerance: float

    @property
    def dead(self) -> frozenset[str]:
        """The verdicts on groups that have nothing to teach."""

    @property
    def filters_groups(self) -> bool:
        """Whether zero-variance groups leave the batch."""
