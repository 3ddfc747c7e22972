"""Functions that read and check `advantage_estimator`: a variant, a registered function, a path, or a function.

Every process calls the estimator with the same gathered tensors and keeps the advantages of its own rows. So all must
compute the same values. An error on one process is raised on all.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..rollouts.groups import totals
from ..utils.distributed import agreed
from ..utils.import_path import check_picklable, is_path, load, same_source, target_of
from ..utils.signatures import check_arguments, name_and_args
from ..utils.validation import ConfigError, did_you_mean, error_prefix
from .group_batch import GroupBatch
from .options import AdvantageOptions
from .variants import VARIANTS, Variant


GRPO = "grpo"  # a baseline and a scale, set by other options

_REGISTERED: dict[str, Variant] = {}


def register_advantage(
    name: str, *, entropies: bool = False
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Register the decorated function as the `advantage_estimator` of that name.

    Args:
        name (`str`): the value of `advantage_estimator` that selects it.
        entropies (`bool`, *optional*, defaults to `False`): whether the function reads `batch.entropies`. They take
            one more forward pass without gradient.

    Returns:
        A decorator that returns the function unchanged. The function is `f(rewards (P, G, K), weights (K,), batch,
            **args)` and returns `(P, G)` or `(P, G, T)`. Rewards that do not apply are NaN; `batch` is a
            [`~trl_grpo_plus.objective.group_batch.GroupBatch`].

    Raises:
        ConfigError: another function has the name.

    Example:

    ```python
    @register_advantage("over_the_worst")
    def over_the_worst(rewards, weights, batch):
        total = (rewards.nan_to_num() * weights).sum(dim=-1)
        return total - total.amin(dim=1, keepdim=True)
    ```
    """

    def register(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Add the function under the name, and return it."""
        other = _REGISTERED[name].function if name in _REGISTERED else None
        if name == GRPO or name in VARIANTS or (other and not same_source(other, function)):
            of = f": {target_of(other)}" if other else ", which ships"
            raise ConfigError(f"an advantage function named {name!r} exists already{of}. Choose another name.")
        _REGISTERED[name] = Variant(function, entropies=entropies)
        return function

    return register


def list_advantages() -> dict[str, str]:
    """Map the name of each advantage function to its one-line description."""
    named = {**VARIANTS, **_REGISTERED}
    grpo = {GRPO: "A baseline and a scale, as advantage_baseline and scale_rewards say."}
    return grpo | {name: _first_line(variant.function) for name, variant in named.items()}


def _first_line(function: Callable[..., Any]) -> str:
    first = (function.__doc__ or "").strip().partition("\n\n")[0]
    first = " ".join(first.partition(" ([")[0].split())  # without sources
    return f"{first.rstrip('.')}." if first else ""


@dataclass(frozen=True)
class AdvantageEstimator:
    """A variant with a configuration's arguments.

    Args:
        name (`str`): its name in error messages.
        variant ([`~trl_grpo_plus.objective.variants.Variant`]): the function and its needs.
        args (`Mapping[str, Any]`, *optional*): its keyword arguments.
        whole_only (`str`, *optional*, defaults to `""`): the options that forbid advantages of tokens, and why.
    """

    name: str
    variant: Variant
    args: Mapping[str, Any] = field(default_factory=dict)
    whole_only: str = ""

    def advantages(self, rewards: Tensor, weights: Tensor, batch: GroupBatch) -> Tensor:
        """Compute the advantages of P groups of G attempts. Collective.

        Args:
            rewards (`Tensor`): `(P, G, K)`, NaN where a reward does not apply.
            weights (`Tensor`): `(K,)`.
            batch ([`~trl_grpo_plus.objective.group_batch.GroupBatch`]): the rest of the batch.

        Returns:
            `Tensor`: `(P, G)`, or `(P, G, T)`, in the rewards' dtype; 0 for an attempt that no reward with a weight
            scored, and for tokens that are not in the loss.

        Raises:
            ConfigError: the function failed or returned something else on some process. All processes raise.
        """
        mask = batch.mask
        assert mask is not None

        def make() -> Tensor:
            """Compute the advantages by the variant, and check them."""
            with torch.no_grad():
                values = self.variant(rewards.clone(), weights.clone(), batch, **self.args)
                return self._checked(values, rewards, weights, mask)

        return agreed(make, f"advantage_estimator={self.name!r}", " Draw from batch.generator().")

    def _checked(self, returned: Any, rewards: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
        shape = rewards.shape[:2]
        required = f"a float tensor of shape (P, G) = {tuple(shape)} or (P, G, T) = {tuple(mask.shape)}"
        if not isinstance(returned, Tensor) or not returned.is_floating_point():
            kind = f"a tensor of {returned.dtype}" if isinstance(returned, Tensor) else f"a {type(returned).__name__}"
            raise ConfigError(f"it returned {kind}, and must return {required}.")
        if returned.shape not in (shape, mask.shape):
            raise ConfigError(f"it returned a tensor of shape {tuple(returned.shape)}, and must return {required}.")
        if returned.dim() == 3 and self.whole_only:
            raise ConfigError(f"it returned advantages of tokens, which cannot be used with {self.whole_only}")
        counted = ~totals(rewards, weights).isnan()
        values = returned.detach().cpu()
        counted = counted if values.dim() == 2 else counted.unsqueeze(-1) & mask
        values = values.masked_fill(~counted, 0.0).to(rewards.dtype)
        if not values.isfinite().all():
            place = tuple((~values.isfinite()).nonzero()[0].tolist())
            what = "group, attempt" if len(place) == 2 else "group, attempt, token"
            raise ConfigError(
                f"it returned {values[place].item()} for {what} {place}. Every advantage of an attempt that was "
                "scored must be finite."
            )
        return values


def estimator_of(config: AdvantageOptions) -> AdvantageEstimator | None:
    """Return the estimator of a configuration, `None` for "grpo". A path is imported.

    Raises:
        ConfigError: no function has the name, or it does not take the arguments.
    """
    name, args = _read(config.advantage_estimator)
    if name == GRPO:
        return None
    shown = name if isinstance(name, str) else target_of(name)
    with error_prefix(f"advantage_estimator={shown!r}"):
        variant = _variant(name)
        leading = ("rewards",) if variant.of_totals else ("rewards", "weights", "batch")
        takes = f"({', '.join(leading)}, **args)"
        check_arguments(variant.function, args, len(leading), takes)
        if variant.check is not None:
            variant.check(args, config)
        reason = whole_only(config)
        if variant.of_tokens and reason:
            raise ConfigError(f"its advantages are of tokens, which cannot be used with {reason}")
    return AdvantageEstimator(shown, variant, args, reason)


def whole_only(config: AdvantageOptions) -> str:
    """Return the options under which a completion must have one advantage, and why; "" without such options."""
    # A sequence ratio's gradient gives each token of a completion the mean of its tokens' advantages.
    if config.importance_sampling_level == "sequence" and config.loss_type not in ("cispo", "vespo"):
        return (
            f"importance_sampling_level='sequence' and loss_type={config.loss_type!r}: one ratio for a whole "
            "completion gives each of its tokens the mean of their advantages. Set importance_ratio='gspo_token' "
            "instead, or importance_sampling_level='token', or loss_type='cispo' or 'vespo'."
        )
    if config.off_policy_mask_threshold is not None:
        return (
            f"off_policy_mask_threshold={config.off_policy_mask_threshold}, which masks a whole completion by the "
            "sign of its advantage. Here a completion has several advantages. Remove one of the two options."
        )
    return ""


def check_estimator(value: Any) -> None:
    """Refuse an invalid `advantage_estimator`. A path is not imported."""
    name, _ = _read(value)
    names = [GRPO, *VARIANTS, *_REGISTERED]
    if not isinstance(name, str):
        check_picklable("advantage_estimator", name, ', or give {"name": the function, "args": {...}}')
    elif name not in names and not is_path(name):
        raise ConfigError(
            f"advantage_estimator={name!r} is not one of {', '.join(map(repr, names))}, and no path of a function."
            f"{did_you_mean(name, names)} Give package.module.f or file.py:f, or first import the module that "
            "registers the function."
        )


def named_by(value: Any) -> Any:
    """Return the name, the path or the function of an `advantage_estimator`, without its arguments."""
    return _read(value)[0]


def teaches(value: Any) -> frozenset[str]:
    """Return the verdicts whose groups teach under an `advantage_estimator` although their rewards are equal."""
    name = _read(value)[0]
    variant = VARIANTS.get(name) if isinstance(name, str) else None
    return variant.teaches if variant else frozenset()


def by_path(value: Any) -> Any:
    """Return an option that may hold a function as JSON can hold it: the function as its path."""
    if isinstance(value, Mapping):
        return {key: by_path(item) if key == "name" else item for key, item in value.items()}
    return target_of(value) if callable(value) else value


def _read(value: Any) -> tuple[Any, dict[str, Any]]:
    """Split an `advantage_estimator` into the name or function, and the arguments."""
    name, args = name_and_args("advantage_estimator", value, '{"name": "pkpo", "args": {"k": 4}}')
    if not callable(name) and (not isinstance(name, str) or not name):
        raise ConfigError(
            f"advantage_estimator={value!r} is not one of {', '.join(map(repr, [GRPO, *VARIANTS]))}, a function, the "
            "path of one or {name, args}."
        )
    if name == GRPO and args:
        raise ConfigError(
            f"advantage_estimator={GRPO!r} takes no arguments, got {', '.join(args)}: set advantage_baseline, "
            "scale_rewards and std_* instead."
        )
    return name, args


def _variant(name: Any) -> Variant:
    check_estimator(name)
    if isinstance(name, str):
        variants = {**VARIANTS, **_REGISTERED}
        if name in variants:
            return variants[name]
    function = load(name) if isinstance(name, str) else name
    registered = [variant for variant in [*VARIANTS.values(), *_REGISTERED.values()] if variant.function is function]
    return registered[0] if registered else Variant(function)
