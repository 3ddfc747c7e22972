"""Advantage functions beyond a baseline and a scale, named by `advantage_estimator`.

| variant | advantage of attempt i of G | expected gradient of a group, sum_i A_i grad log pi(y_i) |
|---|---|---|
| passk | what it adds to pass@k, less the group's pass@k; rewards 0 and 1 | (G - k) / k x that of pass@k |
| pkpo | mean over all k-subsets of their best less their best without i, 0 for one without i | that of E[best of k] |
| pairwise | mean over the others of r_i - r_j, each weighed by its size | G x that of E[w (r_i - r_j)], y_j held |
| vector | the group's best less its best without i, along random directions of the rewards | that of E[best of G] |
| zvp | mixed: GRPO's; all right: alpha H_t; all wrong: alpha (H_t - max H) | GRPO's + alpha H G p^(G-1) x that of p |

H_t is the entropy before token t. The gradient of zvp is for tokens that all have the entropy H. All functions are
pure and compute in float64. An unscored attempt (NaN) has advantage 0 and is not counted. Proofs by enumeration are in
tests/objective/test_variants.py. Only GRPO's own function divides by a spread.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..rollouts.groups import totals
from ..utils.validation import ConfigError, Number
from .advantages import compute
from .group_batch import GroupBatch
from .options import AdvantageOptions


# The bounds of arguments, which are checked with the configuration and when a function is called.
_TEMPERATURE = Number(above=0.0, optional=True)
_DRAWS = Number(at_least=1, integer=True)


def _up_to(most: int, what: str) -> Number:
    return Number(at_least=1, at_most=most, integer=True, note=f", {what}")


def passk(rewards: Tensor, k: int, scaled: bool = False) -> Tensor:
    """Credit each attempt with what it adds to pass@k, the chance that one of k attempts is right.

    Source: [Pass@k Training](https://huggingface.co/papers/2508.10751), analytic form.

    If c of n scored attempts are right, pass@k is estimated as rho = 1 - C(n-c, k) / C(n, k), and

        A = 1 - rho                                 of a right attempt
        A = 1 - rho - C(n-c-1, k-1) / C(n-1, k-1)   of a wrong one

    The expected gradient of A is (n - k) / k times that of pass@k. With k = n it is 0.

    Args:
        rewards (`Tensor`): `(P, G)`, 0 or 1, NaN for an attempt that nobody scored.
        k (`int`): number of attempts, one of which is to be right; at most G.
        scaled (`bool`, *optional*, defaults to `False`): divide by sqrt(rho (1 - rho)), as the paper does.

    Returns:
        `Tensor`: `(P, G)`; 0 for a group with fewer than k scored attempts.

    Raises:
        ConfigError: a reward is neither 0 nor 1, or k is more than G.

    Example:
        >>> passk(torch.tensor([[1.0, 0.0, 0.0, 0.0]]), k=2)
        tensor([[ 0.5000, -0.1667, -0.1667, -0.1667]])
    """
    scored = ~rewards.isnan()
    if ((rewards != 0) & (rewards != 1) & scored).any():
        other = rewards[(rewards != 0) & (rewards != 1) & scored][0].item()
        raise ConfigError(f"passk is for rewards of 0 and 1, got {other:g}. Use pkpo, or one reward of 0 and 1.")
    _up_to(rewards.shape[1], "the attempts of a group").check("k", k)
    n = scored.sum(dim=1, keepdim=True).double()
    wrong = n - rewards.double().nansum(dim=1, keepdim=True)
    missed = _ratio(wrong, k, n, k)  # 1 - rho
    of_wrong = missed - _ratio(wrong - 1, k - 1, n - 1, k - 1)
    values = torch.where(rewards == 1, missed, of_wrong)
    if scaled:
        spread = (missed * (1 - missed)).sqrt()
        values = torch.where(spread > 0, values / spread, 0.0)
    # In a group that is all wrong or all right, both values are 0 up to rounding.
    mixed = (wrong > 0) & (wrong < n)
    return torch.where(scored & mixed & (n >= k), values, 0.0).to(rewards.dtype)


def pkpo(rewards: Tensor, k: int) -> Tensor:
    """Credit each attempt with what it adds to the best of k attempts.

    Source: [PKPO](https://huggingface.co/papers/2505.15201), Eq. 33.

    Over all subsets I of k of the n scored attempts,

        A_i = 1 / C(n, k)  sum over I with i of (max of I - max of I without i)

    A term is 0 unless i is the best of I. So for sorted rewards A_i = sum_{j<i} C(j-1, k-2) (r_i - r_j) / C(n, k),
    which takes one sort. The expected gradient is exactly that of E[max of k rewards]. With k = 1 there are no others
    to compare with: A_i is (r_i - mean of the others) / n.

    Args:
        rewards (`Tensor`): `(P, G)`, any, NaN for an attempt that nobody scored.
        k (`int`): number of attempts, only the best of which counts; at most G.

    Returns:
        `Tensor`: `(P, G)`; 0 for a group with fewer than k scored attempts, or with one.

    Raises:
        ConfigError: k is more than G.

    Example:
        >>> pkpo(torch.tensor([[0.0, 1.0, 3.0]]), k=2)  # of (0,1), (0,3), (1,3): 1, 3 and 2 more, by the better one
        tensor([[0.0000, 0.3333, 1.6667]])
    """
    _up_to(rewards.shape[1], "the attempts of a group").check("k", k)
    scored = ~rewards.isnan()
    n = scored.sum(dim=1, keepdim=True).double()
    if k == 1:
        return (pairwise(rewards).double() / n.clamp(min=1)).to(rewards.dtype)
    values = rewards.double().masked_fill(~scored, torch.inf)  # sorted last
    ordered, order = (values - values.amin(dim=1, keepdim=True).nan_to_num(posinf=0.0)).sort(dim=1)
    ordered = ordered.masked_fill(ordered.isinf(), 0.0)
    below = torch.arange(rewards.shape[1], dtype=torch.float64).expand_as(ordered)  # number of attempts before each
    weight = _ratio(below, k - 2, n, k)
    count, total = _before(weight), _before(weight * ordered)
    gains = torch.zeros_like(ordered).scatter(1, order, count * ordered - total)
    return torch.where(scored & (n >= k), gains, 0.0).to(rewards.dtype)


def pairwise(rewards: Tensor, temperature: float | None = None) -> Tensor:
    """Average an attempt's gaps to the others, each weighed by its size.

        A_i = 1 / (n-1)  sum_j w_ij (r_i - r_j)          of n scored attempts

    Without a temperature w is 1, and A is that of RLOO: r_i less the mean of the others. With a temperature t,
    w_ij (r_i - r_j) = t tanh((r_i - r_j) / t). A gap far below t counts in full and a gap far above t counts as t, so
    that one outlier does not decide what the rest of the group learns. As t goes to 0, A_i / t becomes the share of
    attempts that attempt i beats less the share that beat it. With a temperature and without, the expected gradient is
    G times that of E[w (r_i - r_j)] as a function of the policy that writes y_i, with y_j held fixed. This function is
    this package's own.

    Args:
        rewards (`Tensor`): `(P, G)`, NaN for an attempt that nobody scored.
        temperature (`float`, *optional*): the t above, in units of the reward; `None` weighs all gaps equally.

    Returns:
        `Tensor`: `(P, G)`; 0 for the only scored attempt of a group.

    Example:
        >>> pairwise(torch.tensor([[0.0, 1.0, 5.0]])), pairwise(torch.tensor([[0.0, 1.0, 5.0]]), temperature=1.0)
        (tensor([[-3.0000, -1.5000,  4.5000]]), tensor([[-0.8808, -0.1189,  0.9996]]))
    """
    _TEMPERATURE.check("temperature", temperature)
    scored = ~rewards.isnan()
    values = rewards.double().masked_fill(~scored, 0.0)
    others = (scored.sum(dim=1, keepdim=True) - 1).clamp(min=1)
    gaps = values.unsqueeze(2) - values.unsqueeze(1)
    if temperature is not None:
        gaps = temperature * (gaps / temperature).tanh()
    summed = gaps.masked_fill(~scored.unsqueeze(1), 0.0).sum(dim=2)
    return torch.where(scored, summed / others, 0.0).to(rewards.dtype)


def vector(rewards: Tensor, weights: Tensor, batch: GroupBatch, *, draws: int = 64) -> Tensor:
    """Credit each attempt with what it adds to the group's best, whichever of several rewards counts.

    Source: [VPO](https://huggingface.co/papers/2605.22817), with the group in place of a set that one attempt writes.

    The importance of each reward is drawn: directions w from the flat Dirichlet, the same for a whole batch. With
    r(y) the rewards times their weights and Y the group,

        S(Y) = mean over w of max over y in Y of w . r(y)          A_i = S(Y) - S(Y without i)

    So an attempt earns its lead in the directions where it leads. Good attempts of several kinds all keep an
    advantage, whereas a sum of rewards has a single best. S(Y without i) does not depend on y_i, so the expected
    gradient is exactly that of E[S(Y)]. With one reward this is pkpo with k = G.

    Args:
        rewards (`Tensor`): `(P, G, K)`; NaN (does not apply) counts as 0 where another reward applies, as in TRL.
        weights (`Tensor`): `(K,)`; rewards of weight 0 are left out.
        batch ([`~trl_grpo_plus.objective.group_batch.GroupBatch`]): the batch, for its generator.
        draws (`int`, *optional*, defaults to `64`): number of directions.

    Returns:
        `Tensor`: `(P, G)`; 0 for the only scored attempt of a group.

    Example:
        >>> batch = GroupBatch(torch.ones(1, 3, 5).bool(), ("alive",))
        >>> rewards = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.6, 0.6]]])  # the third leads where both count equally
        >>> vector(rewards, torch.ones(2), batch, draws=100_000)  # 0.08, 0.08 and 0.01 with all directions
        tensor([[0.0797, 0.0805, 0.0100]])
    """
    _DRAWS.check("draws", draws)
    values = (rewards.double() * weights.double())[..., weights != 0]
    scored = ~values.isnan().all(dim=-1)
    none = rewards.new_zeros(rewards.shape[:2])
    if rewards.shape[1] < 2 or not values.shape[-1]:
        return none
    # Exponential draws divided by their sum have the flat Dirichlet distribution.
    drawn = torch.rand(draws, values.shape[-1], generator=batch.generator(), dtype=torch.float64)
    directions = -torch.log1p(-drawn)
    directions = directions / directions.sum(dim=1, keepdim=True)
    along = (values.nan_to_num() @ directions.T).masked_fill(~scored.unsqueeze(-1), -torch.inf)  # (P, G, draws)
    best, second = along.topk(2, dim=1).values.unbind(dim=1)
    leads = torch.where(along == best.unsqueeze(1), (best - second).unsqueeze(1), 0.0).mean(dim=-1)
    return torch.where(scored & (scored.sum(dim=1, keepdim=True) > 1), leads, 0.0).to(rewards.dtype)


def zvp(rewards: Tensor, weights: Tensor, batch: GroupBatch, *, alpha: float = 0.1) -> Tensor:
    """Use GRPO's advantage for mixed groups, and the policy's entropy at each token for uniform ones.

    Source: [RL-ZVP](https://huggingface.co/papers/2509.21880), Eq. 5.

        A_it = (r_i - mean) / (std + 1e-4)      of a group that differs, at each token
        A_it = alpha H_it                       of a group that is all right
        A_it = -alpha (max_s H_is - H_it)       of a group that is all wrong

    H_it is the policy's entropy before token t. Right answers become likelier where the policy was in doubt, and wrong
    answers less likely where the policy was sure. A group's verdict says which of the three cases applies. A tied
    group has advantage 0. Groups that are all right or all wrong must stay in the batch.

    Args:
        rewards (`Tensor`): `(P, G, K)`, weights (`Tensor`): `(K,)`.
        batch ([`~trl_grpo_plus.objective.group_batch.GroupBatch`]): the batch, with its entropies.
        alpha (`float`, *optional*, defaults to `0.1`): factor for uniform groups; results depend on it.

    Returns:
        `Tensor`: `(P, G, T)`, 0 outside the mask.

    Example:
        >>> nats = torch.tensor([[[0.5, 2.0]], [[0.5, 2.0]]])
        >>> batch = GroupBatch(torch.ones(2, 1, 2).bool(), ("all_good", "all_bad"), entropies=nats)
        >>> zvp(torch.tensor([[[1.0]], [[0.0]]]), torch.ones(1), batch).squeeze(1)
        tensor([[ 0.0500,  0.2000],
                [-0.1500, -0.0000]])
    """
    if batch.entropies is None or batch.mask is None:
        raise ConfigError("zvp needs batch.entropies, the policy's before each token.")
    summed = totals(rewards, weights).double()
    mixed = torch.tensor([verdict == "alive" for verdict in batch.verdicts], dtype=torch.bool)
    grpo = compute(summed, batch=GroupBatch(teaching=mixed))
    nats = batch.entropies.double().masked_fill(~batch.mask, 0.0)
    below = nats.amax(dim=-1, keepdim=True) - nats if nats.shape[-1] else nats
    of_verdict = {"alive": grpo.unsqueeze(-1).expand_as(nats), "all_good": alpha * nats, "all_bad": -alpha * below}
    none = torch.zeros_like(nats)
    values = torch.stack([of_verdict.get(verdict, none)[group] for group, verdict in enumerate(batch.verdicts)])
    return values.masked_fill(summed.isnan().unsqueeze(-1) | ~batch.mask, 0.0).to(rewards.dtype)


def _before(values: Tensor) -> Tensor:
    """Return for each entry the sum of the entries before it."""
    return values.cumsum(dim=1) - values


def _ratio(a: Tensor, b: int, n: Tensor, k: int) -> Tensor:
    """Return C(a, b) / C(n, k), 0 where a < b. Both coefficients may be far beyond a float."""

    def log_choose(n: Tensor, k: int) -> Tensor:
        return torch.lgamma(n + 1) - torch.lgamma((n - k).clamp(min=0) + 1)

    factorials = torch.lgamma(torch.tensor([k + 1.0, b + 1.0], dtype=torch.float64)).diff().neg()
    logs = log_choose(a.clamp(min=0), b) - log_choose(n.clamp(min=0), k) + factorials
    return torch.where(a >= b, logs.exp(), 0.0)


@dataclass(frozen=True)
class Variant:
    """An advantage function and its needs.

    Args:
        function (`Callable`): maps `(totals (P, G), **args)`, or without `of_totals` `(rewards (P, G, K), weights
            (K,), batch, **args)`, to `(P, G)` or `(P, G, T)`.
        of_totals (`bool`, *optional*, defaults to `False`): whether it reads only the weighted sum of the rewards.
        of_tokens (`bool`, *optional*, defaults to `False`): whether it always gives `(P, G, T)`.
        entropies (`bool`, *optional*, defaults to `False`): whether it reads `batch.entropies`: one more forward pass.
        teaches (`frozenset[str]`, *optional*): verdicts whose groups teach under it although their rewards are equal.
        check (`Callable`, *optional*): `(args, config)`: refuses arguments and options that cannot work.
    """

    function: Callable[..., Any]
    of_totals: bool = False
    of_tokens: bool = False
    entropies: bool = False
    teaches: frozenset[str] = frozenset()
    check: Callable[[Mapping[str, Any], AdvantageOptions], None] | None = None

    def __call__(self, rewards: Tensor, weights: Tensor, batch: GroupBatch, **args: Any) -> Any:
        """Call the function with the rewards, or with their weighted sum."""
        if not self.of_totals:
            return self.function(rewards, weights, batch, **args)
        return self.function(totals(rewards, weights), **args)


def _within(name: str, number: Number) -> Callable[[Mapping[str, Any], AdvantageOptions], None]:
    return lambda args, config: number.check(name, args[name]) if name in args else None


def _check_k(args: Mapping[str, Any], config: AdvantageOptions) -> None:
    _up_to(config.num_generations, "num_generations").check("k", args["k"])


def _check_passk(args: Mapping[str, Any], config: AdvantageOptions) -> None:
    _check_k(args, config)
    if args["k"] == config.num_generations:
        raise ConfigError(
            f"k={args['k']} is equal to num_generations. A group with one right attempt then has pass@k 1, whatever "
            "the other attempts are, so no advantage is left. Set a smaller k, a larger num_generations, or use pkpo."
        )


def _check_zvp(args: Mapping[str, Any], config: AdvantageOptions) -> None:
    _within("alpha", Number(above=0.0))(args, config)
    if config.filters_groups and (leaving := sorted(config.dead & ALIKE)):
        text = f"filtered_verdicts={config.filtered_verdicts!r} takes {' and '.join(leaving)} out of the batch"
        raise ConfigError(
            f"it learns from groups with equal rewards, but {text}. Leave filtered_verdicts out, or name other "
            "verdicts."
        )


ALIKE = frozenset({"all_good", "all_bad"})
# To add a variant, write a function and an entry. `trl-grpo-plus ls advantages` shows the function's first line.
VARIANTS: dict[str, Variant] = {
    "pairwise": Variant(pairwise, of_totals=True, check=_within("temperature", _TEMPERATURE)),
    "passk": Variant(passk, of_totals=True, check=_check_passk),
    "pkpo": Variant(pkpo, of_totals=True, check=_check_k),
    "vector": Variant(vector, check=_within("draws", _DRAWS)),
    "zvp": Variant(zvp, of_tokens=True, entropies=True, teaches=ALIKE, check=_check_zvp),
}
