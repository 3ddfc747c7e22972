"""Importance ratios other than TRL's, which replace the log-ratio of policy and sampler before TRL clips it.

TRL's loss has two ratios, `importance_sampling_level="token"` and `"sequence"` (GSPO). A ratio here is one function of
the token log-ratio, an entry of [`RATIOS`]. TRL's own code then exponentiates, clips and averages its result.

| ratio | value of token t | gradient of token t |
|---|---|---|
| gspo_token | mean of the sequence's log-ratios | that of its own log-prob (arXiv 2507.18071, section 4.3) |

With one advantage for all tokens of an attempt, `gspo_token` has the loss and the gradient of GSPO under
`loss_type="grpo"` (not with `top_entropy_quantile` < 1 or weights of tokens from vLLM). It differs from GSPO if the
advantages differ by token (`step_reward_credit`, `kl_reward_form="reward_to_go"`), which GSPO's single ratio cannot
weigh.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


Ratio = Callable[[Tensor, Tensor], Tensor]


def gspo_token(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Return log-ratios with the value of the sequence's mean and the gradient of each token.

    Args:
        log_ratio (`Tensor`): `(B, T)`, log-prob of the policy minus that of the sampler.
        mask (`Tensor`): `(B, T)`, 1 at tokens that are in the loss.

    Returns:
        `Tensor`: `(B, T)`, `sg(mean_t log_ratio) + log_ratio_t - sg(log_ratio_t)`.

    Example:
        >>> gspo_token(torch.tensor([[0.2, 0.4, 9.0]]), torch.tensor([[1, 1, 0]]))
        tensor([[0.3000, 0.3000, 0.3000]])
    """
    mean = (log_ratio * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return mean.detach() + log_ratio - log_ratio.detach()


RATIOS: dict[str, Ratio] = {"gspo_token": gspo_token}
# Losses of TRL that compute a ratio of whole sequences by themselves.
LOSSES_WITH_THEIR_OWN = ("luspo", "vespo")


class OldLogps:
    """Stands in for the sampler's log-probs in TRL's `_compute_loss`: `logp - old` is the replaced log-ratio.

    Any other expression raises a TypeError. If TRL changes the line, training stops instead of going wrong.

    Args:
        ratio (`Callable`): an entry of [`RATIOS`].
        old (`Tensor`, *optional*): `(B, T)`, log-probs of the sampler; `None` if the sampler was the policy itself.
        mask (`Tensor`): `(B, T)`, 1 at tokens that are in the loss.
    """

    def __init__(self, ratio: Ratio, old: Tensor | None, mask: Tensor):
        self._ratio, self._old, self._mask = ratio, old, mask

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer `logp - old` and nothing else."""
        if func is torch.Tensor.sub and not kwargs and len(args) == 2 and isinstance(args[1], cls):
            logp, old = args
            log_ratio = logp - (logp.detach() if old._old is None else old._old)
            return old._ratio(log_ratio, old._mask)
        return NotImplemented
