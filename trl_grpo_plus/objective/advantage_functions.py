"""What `advantage_estimator` names: a variant that ships, a function that was registered, one at a path, or one
itself.

An estimator is called on every process with the same gathered tensors, and each process keeps the advantages of its
own rows: so all must come to the same values, and whatever is wrong on one is raised on all.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..rollouts.groups import totals
from ..utils.distributed import agreed
from ..utils.import_path import check_picklable, is_path, load, same_source, target_of
from ..utils.signatures import check_arguments
from ..utils.validation import ConfigError, did_you_mean, error_prefix
from .group_batch import GroupBatch
from .variants import VARIANTS, Variant


GRPO = "grpo"  # a baseline and a scale, as other options say
KEYS = ("name", "args")

_REGISTERED: dict[str, Variant] = {}


def register_advantage(
    name: str, *, entropies: bool = False
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Register the decorated function as the `advantage_estimator` of that name.

    Args:
        name (`str`): what `advantage_estimator` calls it.
        entropies (`bool`, *optional*, defaults to `False`): whether it reads `batch.entropies`. They take one more
            forward pass without gradient.

    Returns:
        A decorator that gives the function back. It is `f(rewards (P, G, K), weights (K,), batch, **args)`, and
        returns `(P, G)` or `(P, G, T)`; rewards are NaN where one does not apply, `batch` is
            a [`~trl_grpo_plus.objective.group_batch.GroupBatch`].

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
        known = _REGISTERED[name].function if name in _REGISTERED else None
        if name == GRPO or name in VARIANTS or (known and not same_source(known, function)):
            of = f": {target_of(known)}" if known else ", which ships"
            raise ConfigError(f"an advantage function named {name!r} exists already{of}. Choose another name.")
        _REGISTERED[name] = Variant(function, entropies=entropies)
        return function

    return register


def list_advantages() -> dict[str, str]:
    """Map the name of each advantage function to its description, one line."""
    named = {**VARIANTS, **_REGISTERED}
    grpo = {GRPO: "A baseline and a scale, as advantage_baseline and scale_rewards say."}
    return grpo | {name: _first_line(variant.function) for name, variant in named.items()}


def _first_line(function: Callable[..., Any]) -> str:
    first = (function.__doc__ or "").strip().partition("\n\n")[0]
    first = " ".join(first.partition(" ([")[0].split())  # without its sources
    return f"{first.rstrip('.')}." if first else ""


@dataclass(frozen=True)
class Estimator:
    """A variant with the arguments that a configuration gives.

    Args:
        name (`str`): what it is called where something is wrong.
        variant ([`~trl_grpo_plus.objective.variants.Variant`]): what is called.
        args (`Mapping[str, Any]`, *optional*): its keyword arguments.
        whole_only (`str`, *optional*, defaults to `""`): the options that advantages of tokens do not go with.
    """

    name: str
    variant: Variant
    args: Mapping[str, Any] = field(default_factory=dict)
    whole_only: str = ""

    def advantages(self, rewards: Tensor, weights: Tensor, batch: GroupBatch) -> Tensor:
        """Compute the advantages of P groups of G attempts. Collective.

        Args:
            rewards (`Tensor`): `(P, G, K)`, NaN where one does not apply.
            weights (`Tensor`): `(K,)`.
            batch ([`~trl_grpo_plus.objective.group_batch.GroupBatch`]): the rest of the batch.

        Returns:
            `Tensor`: `(P, G)`, or `(P, G, T)`, in the rewards' dtype; 0 for an attempt that no reward with a weight
            scored, and for tokens that are not in the loss.

        Raises:
            ConfigError: the function failed or did not return that, on any process: the same on all.
        """

        mask = batch.mask
        assert mask is not None

        def make() -> Tensor:
            with torch.no_grad():
                made = self.variant(rewards.clone(), weights.clone(), batch, **self.args)
                return self._checked(made, rewards, weights, mask)

        return agreed(make, f"advantage_estimator={self.name!r}", " Draw from batch.generator().")

    def _checked(self, made: Any, rewards: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
        shape = rewards.shape[:2]
        wanted = f"a float tensor of shape (P, G) = {tuple(shape)} or (P, G, T) = {tuple(mask.shape)}"
        if not isinstance(made, Tensor) or not made.is_floating_point():
            kind = f"a tensor of {made.dtype}" if isinstance(made, Tensor) else f"a {type(made).__name__}"
            raise ConfigError(f"it returned {kind}, and must return {wanted}.")
        if made.shape not in (shape, mask.shape):
            raise ConfigError(f"it returned a tensor of shape {tuple(made.shape)}, and must return {wanted}.")
        if made.dim() == 3 and self.whole_only:
            raise ConfigError(f"it returned advantages of tokens, which do not go with {self.whole_only}")
        counted = ~totals(rewards.flatten(0, 1), weights).isnan().view(shape)
        values = made.detach().cpu()
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


def estimator_of(config: Any) -> Estimator | None:
    """Return what a configuration's `advantage_estimator` names; `None` for "grpo". A file or module is imported.

    Raises:
        ConfigError: there is none of that name, or its arguments are not those that it takes.
    """
    name, args = _read(config.advantage_estimator)
    if name == GRPO:
        return None
    shown = name if isinstance(name, str) else target_of(name)
    with error_prefix(f"advantage_estimator={shown!r}"):
        variant = _variant(name)
        leading = ("rewards",) if variant.of_totals else ("rewards", "weights", "batch")
        takes = f"({', '.join(leading)}, **args)"
        check_arguments(variant.function, args, len(leading), '{"name": ..., "args": {{}}}', takes)
        if variant.check is not None:
            variant.check(args, config)
        reason = whole_only(config)
        if variant.of_tokens and reason:
            raise ConfigError(f"its advantages are of tokens, which do not go with {reason}")
    return Estimator(shown, variant, args, reason)


def whole_only(config: Any) -> str:
    """Return the options with which the tokens of a completion must have one advantage, and why; "" where there are
    none."""
    # Where its gradient is that of the ratio, all tokens of a completion share one, and earn the mean of what they do.
    if config.importance_sampling_level == "sequence" and config.loss_type not in ("cispo", "vespo"):
        return (
            f"importance_sampling_level='sequence' and loss_type={config.loss_type!r}: one ratio for a whole "
            "completion gives each of its tokens the mean of their advantages. Set importance_ratio='gspo_token' in "
            "its place, or importance_sampling_level='token', or loss_type='cispo' or 'vespo'."
        )
    if config.off_policy_mask_threshold is not None:
        return (
            f"off_policy_mask_threshold={config.off_policy_mask_threshold}, which masks whole completions by the sign "
            "of their advantage: here one completion has several. Leave one of the two out."
        )
    return ""


def check_estimator(value: Any) -> None:
    """Refuse an `advantage_estimator` that cannot be one; what is at a path is not looked at."""
    name, _ = _read(value)
    known = [GRPO, *VARIANTS, *_REGISTERED]
    if not isinstance(name, str):
        check_picklable("advantage_estimator", name)
    elif name not in known and not is_path(name):
        raise ConfigError(
            f"advantage_estimator={name!r} is not one of {', '.join(map(repr, known))}, and no path of a function."
            f"{did_you_mean(name, known)} Give package.module.f or file.py:f, or import what registers it first."
        )


def named_by(value: Any) -> Any:
    """Return what of an `advantage_estimator` names the function: a text, or the function itself."""
    return _read(value)[0]


def teaches(value: Any) -> frozenset[str]:
    """Verdicts on groups that teach by an `advantage_estimator`, though their attempts are alike."""
    name = _read(value)[0]
    variant = VARIANTS.get(name) if isinstance(name, str) else None
    return variant.teaches if variant else frozenset()


def by_path(value: Any) -> Any:
    """Return an option that may hold a function as JSON can hold it: the function as its path."""
    if isinstance(value, Mapping):
        return {key: by_path(item) if key == "name" else item for key, item in value.items()}
    return target_of(value) if callable(value) else value


def _read(value: Any) -> tuple[Any, dict[str, Any]]:
    """Return name or function, and arguments."""
    name, args = value, {}
    if isinstance(value, Mapping):
        if "name" not in value or set(value) - set(KEYS) or not isinstance(value.get("args") or {}, Mapping):
            raise ConfigError(
                f'advantage_estimator={dict(value)!r}: with arguments it is {{"name": "pkpo", "args": {{"k": 4}}}}.'
            )
        name, args = value["name"], dict(value.get("args") or {})
    if not callable(name) and (not isinstance(name, str) or not name):
        raise ConfigError(
            f"advantage_estimator={value!r} is not one of {', '.join(map(repr, [GRPO, *VARIANTS]))}, and no path of a "
            "function, function or {name, args}."
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
        known = {**VARIANTS, **_REGISTERED}
        if name in known:
            return known[name]
    function = load(name) if isinstance(name, str) else name
    registered = [variant for variant in [*VARIANTS.values(), *_REGISTERED.values()] if variant.function is function]
    return registered[0] if registered else Variant(function)
