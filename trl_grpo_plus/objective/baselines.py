"""Baselines, subtracted from the rewards of a group. One baseline is one entry of [`BASELINES`].

A baseline is a function `(values, scored, batch) -> values minus the baseline`, over dim 1. Values are (P, G) or
(P, G, T), for P groups of G attempts, in float64. An unscored attempt is NaN and does not change others. The table of
[`trl_grpo_plus.objective.advantages`] defines each one. `advantage_baseline` also takes such a function or its path. A
function that reads columns of the dataset names them with [`reads_columns`].
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..utils.import_path import check_picklable, is_path, load, target_of
from ..utils.signatures import signature_of
from ..utils.tables import in_a_line
from ..utils.validation import ConfigError, did_you_mean, error_prefix
from .group_batch import GroupBatch


MOST_BELIEVED = 8.0  # attempts that a belief counts as, at most, since the policy moves


def less_mean(values: Tensor, scored: Tensor, batch: GroupBatch | None = None) -> Tensor:
    """Subtract the mean of the scored attempts."""
    return values - values.masked_fill(~scored, 0.0).sum(dim=1, keepdim=True) / count_of(scored)


def _leave_one_out(values: Tensor, scored: Tensor, batch: GroupBatch) -> Tensor:
    # r_i - mean of the others, written so that it is exact and defined for one attempt.
    return less_mean(values, scored) * count_of(scored) / (count_of(scored) - 1).clamp(min=1)


def less_median(values: Tensor, scored: Tensor, batch: GroupBatch | None = None) -> Tensor:
    """Subtract the median of the scored attempts."""
    return values - median_of(values, count_of(scored))


def _length_weighted(values: Tensor, scored: Tensor, batch: GroupBatch) -> Tensor:
    if batch.lengths is None:
        raise ConfigError("baseline='length_weighted' needs the batch's lengths, the completions' lengths in tokens.")
    weight = batch.lengths.double().masked_fill(~scored, 0.0)
    # A group whose tokens are all masked has no lengths. Give its attempts equal weights.
    weight = torch.where(weight.sum(dim=1, keepdim=True) > 0, weight, scored.double())
    total = (values.masked_fill(~scored, 0.0) * weight).sum(dim=1, keepdim=True)
    return values - total / weight.sum(dim=1, keepdim=True).clamp(min=1)


def _belief(values: Tensor, scored: Tensor, batch: GroupBatch) -> Tensor:
    if batch.belief is None:
        raise ConfigError("baseline='belief' needs the batch's beliefs, the estimates of the prompts' rewards.")
    mean = batch.belief.mean if batch.belief.mean.dim() == values.dim() else batch.belief.mean.unsqueeze(1)
    believed = batch.belief.count.clamp(max=MOST_BELIEVED).view(-1, *[1] * (values.dim() - 1))
    total = values.masked_fill(~scored, 0.0).sum(dim=1, keepdim=True)
    others = total - values
    return values - (others + believed * mean) / (count_of(scored) - 1 + believed)


Baseline = Callable[[Tensor, Tensor, GroupBatch], Tensor]
# To add a baseline, write a function and an entry.
BASELINES: dict[str, Baseline] = {
    "mean": less_mean,
    "leave_one_out": _leave_one_out,
    "median": less_median,
    "length_weighted": _length_weighted,
    "belief": _belief,
}
READ_LENGTHS = ("length_weighted",)  # the entries that read the batch's `lengths`


Function = TypeVar("Function", bound=Callable[..., Any])


def reads_columns(*names: str) -> Callable[[Function], Function]:
    """Name the dataset's columns that a baseline or an advantage function reads.

    Their values, one per group, are `batch.columns[name]`. They are gathered from all processes, so name few.

    Example:

    ```python
    @reads_columns("pass_rate")
    def expected(values, scored, batch):
        return values - torch.tensor(batch.columns["pass_rate"]).view(-1, *[1] * (values.dim() - 1))
    ```
    """

    def mark(function: Function) -> Function:
        """Note on the function which columns it reads."""
        function.columns = names  # type: ignore[attr-defined]
        return function

    return mark


def columns_of(function: Any) -> tuple[str, ...]:
    """Return the columns that a function reads."""
    return tuple(getattr(function, "columns", ()))


def check_baseline(name: Any) -> None:
    """Refuse an `advantage_baseline` that is no entry of [`BASELINES`], no path and no function.

    A path is not imported.
    """
    if callable(name):
        check_picklable("advantage_baseline", name)
    elif not isinstance(name, str) or not (name in BASELINES or is_path(name)):
        raise ConfigError(
            f"advantage_baseline={name!r} is not one of {', '.join(map(repr, BASELINES))}, a function or the path of "
            f"one.{did_you_mean(str(name), BASELINES)}"
        )


def baseline_of(name: str | Baseline) -> Baseline:
    """Return the function of an `advantage_baseline`. A path is imported.

    Raises:
        ConfigError: no such function exists, or it does not take `(values, scored, batch)`.
    """
    check_baseline(name)
    if isinstance(name, str) and name in BASELINES:
        return BASELINES[name]
    path = name if isinstance(name, str) else target_of(name)
    with error_prefix(f"advantage_baseline={path!r}"):
        function = load(name) if isinstance(name, str) else name
        try:
            signature_of(function).bind(None, None, None)
        except TypeError as error:
            raise ConfigError(f"it must take (values, scored, batch): {error}.") from None
    return _checked(function, path)


def _checked(function: Baseline, name: str) -> Baseline:
    def baseline(values: Tensor, scored: Tensor, batch: GroupBatch) -> Tensor:
        """Return the rewards minus the function's baseline."""
        if not values.numel():
            return values
        with error_prefix(f"advantage_baseline={name!r}"):
            return check(_called(function, values, scored, batch), values, scored)

    def check(centred: Any, values: Tensor, scored: Tensor) -> Tensor:
        """Refuse a result of another shape or kind, or one that is not finite where there is a reward."""
        fits = isinstance(centred, Tensor) and centred.shape == values.shape and centred.is_floating_point()
        if not fits or not centred[scored.expand_as(values)].isfinite().all():
            got = (
                f"{tuple(centred.shape)} of {centred.dtype}" if isinstance(centred, Tensor) else type(centred).__name__
            )
            raise ConfigError(
                f"it must return {tuple(values.shape)} of a floating-point dtype, finite where `scored` is true, "
                f"got {got}{' with values that are not finite' if fits else ''}."
            )
        return centred

    return reads_columns(*columns_of(function))(baseline)


def _called(function: Baseline, values: Tensor, scored: Tensor, batch: GroupBatch) -> Any:
    try:
        with torch.no_grad():  # clones, because the function may change its arguments
            return function(values.clone(), scored.clone(), batch)
    except Exception as error:
        raise ConfigError(in_a_line(error)) from error


def count_of(scored: Tensor) -> Tensor:
    """Count the scored attempts of each group, at least 1."""
    return scored.sum(dim=1, keepdim=True).clamp(min=1)


def median_of(values: Tensor, count: Tensor) -> Tensor:
    """Return the median over dim 1 of the `count` entries that are not NaN."""
    # nanquantile takes 16 million entries at most.
    ordered = values.sort(dim=1).values  # NaN last
    shape = (-1, 1, *values.shape[2:])
    low, high = ((count - 1) // 2).expand(shape), (count // 2).expand(shape)
    return (ordered.gather(1, low) + ordered.gather(1, high)) / 2
