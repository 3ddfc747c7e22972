"""Filler: rows that make a batch divide evenly over ranks and micro-batches. This module keeps them out of the loss.

Filler is masked. TRL divides some losses by its own count of rows, which includes filler. The micro-batches of these
losses get a weight, so that the loss equals that of the live rows alone. This works because a loss is linear in its
advantages (apart from their sign) and in beta. With `zero_variance_groups: skip` the advantages are also multiplied
by the live share of all attempts (first row of the table) or of their tokens, which gives TRL's own denominator.

| loss types | divide by | weight of a micro-batch |
|---|---|---|
| grpo, sapo, dr_grpo, luspo | the micro-batch's rows | all rows / live rows |
| bnpo | the micro-batch's tokens | micro-batches / those with live rows: a mean over the latter |
| the others | the tokens of the batch, `num_items_in_batch` | 1 |

The trainer adds these keys to TRL's batch, and reads them in `_compute_loss`. R rows are on a rank.

| key | value | in |
|---|---|---|
| `live` | `(R,)` bool, rows that are not filler | a generation batch with filler |
| `live_rows`, `live_tokens` | rows and tokens in the loss, over all ranks | its micro-batches, and those with masks |
| `filler_weight` | the factor of advantages and beta | micro-batches of a batch with filler |
| `entropy_weight` | the factor of the entropy bonus | the same |
| `live_share` | the factor of advantages alone | a batch under `skip` |
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad


if TYPE_CHECKING:
    from accelerate import Accelerator


ROW_NORMALISED = ("grpo", "sapo", "dr_grpo", "luspo")
MICRO_BATCH_NORMALISED = ("bnpo",)
# TRL's metrics that may be means over rows, and their value for a filler row: a ratio of 1, which nothing clips.
ROW_MEANS = dict.fromkeys((*(f"clip_ratio/{of}_mean" for of in ("low", "high", "region")), "cispo_clip_ratio"), 0.0)
ROW_MEANS["vespo/phi_seq_mean"] = 1.0


def loss_mask(batch: dict[str, Any]) -> Tensor:
    """Return the mask of a batch's tokens in the loss, `(B, T)`, 0 or 1."""
    mask = batch["completion_mask"]
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask


def fitting(advantages: Tensor, completion_ids: Tensor) -> Tensor:
    """Move a rank's advantages to the device of its `(B, T)` completions; pad or cut those of tokens to T."""
    if advantages.dim() == 2:
        advantages = pad(advantages, (0, completion_ids.shape[1] - advantages.shape[1]))
    return advantages.to(completion_ids.device)


def first_tokens(advantages: Tensor) -> Tensor:
    """Return each row's advantage, `(B,)`; for `(B, T)` that of the first token."""
    return advantages if advantages.dim() == 1 else advantages[:, 0].contiguous()


def mask_rows(batch: dict[str, Any], live: Tensor, accelerator: "Accelerator") -> None:
    """Leave this rank's rows that are not `live`, `(B,)`, out of the loss and its denominator. Collective."""
    batch["live"] = live = live.to(accelerator.device)
    # Leave completion_mask alone: attention reads it, and the old log-probs were computed with all tokens visible.
    batch["tool_mask"] = batch.get("tool_mask", torch.ones_like(batch["completion_mask"])) * live.unsqueeze(1)
    batch["num_items_in_batch"] = accelerator.gather(loss_mask(batch).sum()).sum()
    if "importance_sampling_ratio" in batch:  # vespo multiplies it into a row's ratio
        batch["importance_sampling_ratio"] = batch["importance_sampling_ratio"].masked_fill(~live.unsqueeze(1), 1.0)


def count_and_weigh(batches: Sequence[dict[str, Any]], loss_type: str, accelerator: "Accelerator") -> None:
    """Count each micro-batch's rows and tokens in the loss, over all ranks. With filler, weigh it too. Collective.

    The results are written into the micro-batches: `live_rows` (those with a token in the loss), `live_tokens`; with
    filler also `filler_weight` and `entropy_weight`, the factors of the loss and of the entropy bonus.
    """
    masks = [loss_mask(batch) for batch in batches]
    live = [batch.get("live", mask.any(dim=1)) for batch, mask in zip(batches, masks, strict=True)]
    counted = zip(live, masks, strict=True)
    counts = [torch.stack([rows.sum(), mask.any(dim=1).sum(), mask.sum()]) for rows, mask in counted]
    of_ranks = accelerator.gather(torch.stack(counts, dim=1).unsqueeze(0)).cpu()
    rows, in_loss, tokens = of_ranks.unbind(dim=1)  # each (R, M)
    everywhere = zip(in_loss.sum(dim=0).tolist(), tokens.sum(dim=0).tolist(), strict=True)
    for batch, (live_rows, live_tokens) in zip(batches, everywhere, strict=True):
        batch.update(live_rows=live_rows, live_tokens=live_tokens)
    if "live" not in batches[0]:
        return
    weight = loss_weight(loss_type, rows, len(live[0]))
    shares = entropy_weights(tokens)[accelerator.process_index].tolist()
    for batch, share in zip(batches, shares, strict=True):
        batch.update(filler_weight=weight, entropy_weight=share)


def of_live_rows(metrics: Mapping[str, list[float]], before: Mapping[str, int], share: float) -> None:
    """Turn the means that TRL has just logged over all rows into means over the live rows.

    If each row has one ratio and one advantage, TRL's metrics of ratios are means over rows.

    Args:
        metrics (`Mapping[str, list[float]]`): TRL's metrics. Their last values change.
        before (`Mapping[str, int]`): the number of values of each metric before TRL logged.
        share (`float`): all rows / live rows, of all ranks.
    """
    for name, of_filler in ROW_MEANS.items():
        if name in metrics and len(metrics[name]) > before.get(name, 0):
            metrics[name][-1] = of_filler + share * (metrics[name][-1] - of_filler)


def forget_means(metrics: dict[str, list[float]], before: Mapping[str, int]) -> None:
    """Remove the means that TRL has just logged over no tokens, since no rank has live tokens.

    Args:
        metrics (`dict[str, list[float]]`): TRL's metrics, which change. The coefficient of the entropy is no mean.
        before (`Mapping[str, int]`): the number of values of each metric before TRL logged.
    """
    for name in metrics.keys() - {"entropy_coef"}:
        del metrics[name][before.get(name, 0) :]
        if not metrics[name]:  # TRL would log None for a list without values, and trackers warn of it
            del metrics[name]


def loss_weight(loss_type: str, live_rows: Tensor, rows: int) -> float:
    """Return the factor for a micro-batch's advantages and beta.

    Args:
        loss_type (`str`): TRL's option of that name.
        live_rows (`Tensor`): `(R, M)`, one count per micro-batch of each rank.
        rows (`int`): all rows of a micro-batch.
    """
    if loss_type in ROW_NORMALISED:
        return rows * live_rows.numel() / max(live_rows.sum().item(), 1)
    if loss_type in MICRO_BATCH_NORMALISED:
        return live_rows.numel() / max((live_rows > 0).sum().item(), 1)
    return 1.0


def entropy_weights(live_tokens: Tensor) -> Tensor:
    """Return the factor for a micro-batch's entropy: its share of the tokens, relative to the mean share.

    Args:
        live_tokens (`Tensor`): `(R, M)`, one count per micro-batch of each rank.
    """
    return live_tokens * live_tokens.numel() / max(live_tokens.sum().item(), 1)


class ScaledCoefficient(float):
    """Stands in for the coefficient of a bonus in TRL's `_compute_loss`: a product with it is `weight` times as large.

    The product is the same from either side, and so is that of `-coefficient` and of `coefficient / number`. TRL's
    controller adds to the coefficient, compares it and logs it: these see `value` and give plain floats. Any other
    arithmetic raises a TypeError. So if TRL changes the line, training stops instead of going wrong. One form cannot
    be told apart: a number that a function of torch takes by keyword, as `alpha` of `torch.sub`, is `value`.

    Args:
        value (`float`): the coefficient.
        weight (`float`): the factor of its products.
    """

    weight: float

    def __new__(cls, value: float, weight: float) -> "ScaledCoefficient":
        """Make a float with a weight."""
        coefficient = super().__new__(cls, value)
        coefficient.weight = weight
        return coefficient

    def __mul__(self, other: Any) -> Any:
        return float(self) * self.weight * other

    __rmul__ = __mul__  # torch falls back to this for a tensor, since `__torch_function__` returns NotImplemented

    def __truediv__(self, other: Any) -> Any:
        return float(self) * self.weight / other

    def __neg__(self) -> "ScaledCoefficient":
        return ScaledCoefficient(-float(self), self.weight)

    def _refuse(self, *others: Any) -> Any:
        raise TypeError(f"a {type(self).__name__} can only be multiplied, and divided by a number.")

    __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _refuse
    __pos__ = __abs__ = _refuse

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse all operations of a tensor, which would take the coefficient for a plain number."""
        return NotImplemented
