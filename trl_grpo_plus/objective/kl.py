"""The KL penalty: its estimators with their gradients, and the controller of beta.

Write l = log pi - log pi_ref for one sampled token, g = grad log pi, w = pi / pi_old (attached unless said otherwise).

    k1 = l        k2 = l^2 / 2        k3 = exp(-l) - 1 + l        abs = |l|

As values, k1 and k3 are unbiased for KL(pi || pi_ref), and k2 nearly so. But the gradients train the model:

| in the loss | gradient per sample | expectation on-policy | off-policy |
|---|---|---|---|
| k1 | g | 0: refused | - |
| k2 | l g | reverse KL | biased |
| k3 | (1 - exp(-l)) g | forward KL | biased |
| abs | sign(l) g | no KL | no KL |
| w k1 | w (1 + l) g | reverse KL | reverse KL |
| sg(w) k2 | w l g | reverse KL | reverse KL |
| w k3 (TRL's default, DeepSeek-V3.2 section 3.1) | w l g | reverse KL | reverse KL |
| w abs | w (sign(l) + abs(l)) g | that of E abs(l) | that of E abs(l) |

"Reverse KL" is grad KL(pi || pi_ref), "forward" grad KL(pi_ref || pi). The estimator decides what is detached. Three
other products are never built: w k2 with w attached has a wrong gradient, sg(w) k3 the forward KL's, sg(w) k1 none.
With `importance_sampling_level="sequence"` TRL's w of k3 is the whole sequence's ratio, and its row does not hold.

Each of these terms is about one token. Their sum over a sequence leaves out that an early token changes the KL of
later tokens. Only k1 subtracted from the reward ([`kl_to_go`]) has, in expectation, the gradient of
the whole sequence's KL. This holds

- on-policy;
- in a loss that sums tokens: `dr_grpo`; `dapo` divides by the batch's number of tokens. `grpo` divides each completion
  by its own length, which is another gradient;
- up to a factor, because an advantage is divided by its scale: `scale_rewards="group"` divides beta by each group's
  std, `"none"` by nothing. The baseline mean adds the factor (G - 1) / G, leave_one_out does not.

Sources: arXiv 2506.09477, 2510.01555, 2512.21852, 2512.02556; joschu.net/blog/kl-approx.html for the values.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..utils.validation import ConfigError, one_of


if TYPE_CHECKING:
    from accelerate import Accelerator


# In nats. Above this ratio k3 continues as a straight line: without the importance weight its gradient stays at
# exp(20) - 1. The importance weight stays at exp(20), without gradient. exp overflows float32 at 88 nats.
MAX_LOG_RATIO = 20.0


def _k3(log_ratio: Tensor) -> Tensor:
    d = -log_ratio
    within = d.clamp(max=MAX_LOG_RATIO)
    # exp(d) - 1, and its tangent from MAX_LOG_RATIO on. expm1 keeps the digits that exp(d) - 1 loses for small d.
    return torch.expm1(within) + (d - within) * torch.exp(within.detach()) - d


def _attached(weight: Tensor, value: Tensor, log_ratio: Tensor) -> Tensor:
    return weight * value


def _as_k2(weight: Tensor, value: Tensor, log_ratio: Tensor) -> Tensor:
    # grad (w k3) = w l g = sg(w) grad k2. Written as w k3, the halves of the product rule would not cancel where exp
    # is cut.
    k2 = log_ratio.square() / 2
    return weight.detach() * (value.detach() + k2 - k2.detach())


@dataclass(frozen=True)
class KLEstimator:
    """An estimator of the KL from one token, and the options that it allows.

    Args:
        value (`Callable`): `l` -> nats, differentiable, of any shape.
        weighted (`Callable`, *optional*): `(w, value, l)` -> the term with the importance weight. Defaults to `w *
            value`, `w` attached.
        is_kl (`bool`, *optional*, defaults to `True`): whether its mean is a KL divergence, to which beta can adapt.
        unweighted_refused (`str`, *optional*, defaults to `""`): the reason to refuse it in the loss without the
            importance weight, if any.
        in_reward_refused (`str`, *optional*): the reason to refuse it in the reward; "" only for k1, which
            [`kl_to_go`] uses.
    """

    value: Callable[[Tensor], Tensor]
    weighted: Callable[[Tensor, Tensor, Tensor], Tensor] = _attached
    is_kl: bool = True
    unweighted_refused: str = ""
    in_reward_refused: str = "its gradient is not a KL's"


# To add an estimator, write an entry. The configuration's choices and refusals follow.
ESTIMATORS: dict[str, KLEstimator] = {
    "k1": KLEstimator(
        lambda log_ratio: log_ratio,
        unweighted_refused="its expected gradient is 0, so it would add noise and no penalty",
        in_reward_refused="",
    ),
    "k2": KLEstimator(lambda log_ratio: log_ratio.square() / 2, weighted=_as_k2),
    "k3": KLEstimator(
        _k3, weighted=_as_k2, in_reward_refused="its gradient is the reverse KL's minus the forward KL's"
    ),
    "abs": KLEstimator(lambda log_ratio: log_ratio.abs(), is_kl=False),
}
TRL_ESTIMATOR = "k3"


def penalty(
    estimator: str,
    logp: Tensor,
    ref_logp: Tensor,
    old_logp: Tensor | None = None,
    importance_weighted: bool = True,
) -> Tensor:
    """Compute the per-token KL term of the loss, differentiable as the table above says.

    Args:
        estimator (`str`): one of [`ESTIMATORS`].
        logp (`Tensor`): log-probs of the sampled tokens under the policy, any shape, with gradient.
        ref_logp (`Tensor`): the same under the reference.
        old_logp (`Tensor`, *optional*): the same under the policy that sampled; `None` on-policy.
        importance_weighted (`bool`, *optional*, defaults to `True`): multiply by pi / pi_old.

    Returns:
        `Tensor`: like `logp`, in nats. Finite, with a finite gradient, for |logp - ref_logp| = 100 in float32 and
        bfloat16.

    Raises:
        ConfigError: the estimator is unknown, or is k1 without the weight, whose expected gradient is 0.
    """
    one_of("estimator", estimator, ESTIMATORS)
    chosen = ESTIMATORS[estimator]
    if chosen.unweighted_refused and not importance_weighted:
        raise ConfigError(
            f"estimator={estimator!r} in the loss needs importance_weighted=True: without the importance weight "
            f"{chosen.unweighted_refused}."
        )
    log_ratio = logp - ref_logp.detach()
    value = chosen.value(log_ratio)
    if not importance_weighted:
        return value
    old_logp = logp if old_logp is None else old_logp
    weight = torch.exp((logp - old_logp.detach()).clamp(max=MAX_LOG_RATIO))
    return chosen.weighted(weight, value, log_ratio)


def kl_to_go(logp: Tensor, ref_logp: Tensor, mask: Tensor) -> Tensor:
    """Sum k1 from each token to the end, `(B, T) -> (B, T)`, detached. Column 0 is the whole completion's KL."""
    log_ratio = (logp - ref_logp).detach()
    # bfloat16 is too coarse for a sum over thousands of tokens.
    k1 = log_ratio.to(torch.promote_types(log_ratio.dtype, torch.float32)).masked_fill_(mask == 0, 0.0)
    reversed_k1 = k1.flip(-1)
    if torch.are_deterministic_algorithms_enabled():  # CUDA has no deterministic cumsum, and torch would raise
        reversed_k1 = reversed_k1.cpu()
    return reversed_k1.cumsum_(dim=-1).to(k1.device).flip(-1)


def mean_of_tokens(per_token: Tensor, mask: Tensor) -> Tensor:
    """Average each completion over its tokens in `mask`, `(B, T) -> (B,)`; 0 if there are none."""
    return (per_token * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)


def at_hand(batch: Mapping[str, Any], mask: Tensor) -> Tensor | None:
    """Return each completion's mean KL when sampled, `(B,)`; `None` without old and reference log-probs."""
    old, ref = batch.get("old_per_token_logps"), batch.get("ref_per_token_logps")
    return None if old is None or ref is None else mean_of_tokens(old - ref, mask)


def mean_of_ranks(total: Tensor, count: Tensor, accelerator: "Accelerator") -> float:
    """Return the sum of all ranks' totals divided by the sum of their counts. Collective."""
    sums = accelerator.reduce(torch.stack([total, count.float()]), reduction="sum")
    return (sums[0] / sums[1].clamp(min=1.0)).item()


def adapt_beta(beta: float, kl: float, target: float, num_completions: float, horizon: int) -> float:
    """Raise beta if the mean `kl` of `num_completions` is above `target`, lower it if below.

    One call changes beta by at most 20 %, and by less for fewer completions than `horizon` (Ziegler et al. 2019, arXiv
    1909.08593, section 2.2). A KL of NaN changes nothing.
    """
    if math.isnan(kl):
        return beta
    error = min(max(kl / target - 1.0, -0.2), 0.2)
    return beta * (1.0 + error * min(num_completions / horizon, 1.0))


class BetaController:
    """Adapts beta to the measured KL. Between optimizer steps it has no state but beta.

    Args:
        target (`float`, *optional*): KL to approach, in nats a token. `None` leaves beta as it is.
        horizon (`int`): see [`adapt_beta`].
    """

    def __init__(self, target: float | None, horizon: int):
        self._target, self._horizon = target, horizon
        self._noted: list[tuple[float, float]] = []

    def see(self, kl: float, completions: float) -> None:
        """Note the mean KL of this many completions, until beta is adapted."""
        self._noted.append((kl, completions))

    def adapt(self, beta: float, passes: int = 1) -> float | None:
        """Return beta for the KL noted since the last call, or `None` if it does not change.

        Each completion was noted `passes` times.
        """
        noted, self._noted = self._noted, []
        completions = sum(count for _, count in noted)
        if self._target is None or not completions:
            return None
        mean = sum(kl * count for kl, count in noted) / completions
        return adapt_beta(beta, mean, self._target, completions / passes, self._horizon)


class ReferenceLogps:
    """Stands in for the reference log-probs in TRL's `_compute_loss`.

    TRL's expression `exp(ref - logp) - (ref - logp) - 1` then evaluates to `term(logp)`, step by step:

        D = ref - logp        a _Difference, which holds term(logp)
        E = exp(D)            awaits the subtraction of D
        E - D                 awaits the subtraction of 1
        E - D - 1             term(logp)

    So TRL's masks, normalisers and `kl` metric also apply to a KL term that TRL does not know. Any other expression
    raises a TypeError: if TRL changes the line, training stops instead of going wrong.
    """

    def __init__(self, term: Callable[[Tensor], Tensor]):
        self._term = term
        self._difference: _Difference | None = None  # TRL's line has the difference twice

    def __sub__(self, logp: Tensor) -> "_Difference":
        if self._difference is None or self._difference.logp is not logp:
            self._difference = _Difference(self._term(logp), logp)
        return self._difference


class _Difference:
    """`ref - logp`."""

    def __init__(self, value: Tensor, logp: Tensor):
        self.value, self.logp = value, logp

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is torch.exp and not kwargs and len(args) == 1:
            return _AwaitsSubtraction(args[0], _AwaitsSubtraction(1, args[0].value))
        return NotImplemented


class _AwaitsSubtraction:
    """A part of TRL's expression from which only `operand` may be subtracted, with `difference` as the result."""

    def __init__(self, operand: object, difference: object):
        self._operand, self._difference = operand, difference

    def __sub__(self, other: object) -> Any:
        return self._difference if type(other) is type(self._operand) and other == self._operand else NotImplemented
