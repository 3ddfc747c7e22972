"""The inputs of TRL's loss: another KL estimator or importance ratio, and the weight of a micro-batch with filler.

TRL's loss stays as it is. It gets objects in place of the reference's and the old log-probs, which answer its
subtractions with the estimator ([`~trl_grpo_plus.objective.kl.ReferenceLogps`]) and the ratio
([`~trl_grpo_plus.objective.ratios.OldLogps`]).
"""

from functools import partial
from typing import Any, Protocol

from . import kl, padding, ratios


class LossOptions(Protocol):
    """The options of a [`GRPOPlusConfig`] that the loss of a micro-batch depends on."""

    importance_ratio: str | None
    kl_estimator: str
    use_bias_correction_kl: bool


def for_trl(inputs: dict[str, Any], args: LossOptions, weight: float, beta: float) -> tuple[dict[str, Any], bool]:
    """Return the inputs for TRL's loss of a micro-batch, and TRL's `use_bias_correction_kl` for it.

    Args:
        inputs (`dict`): the micro-batch as TRL has made it. It does not change.
        args ([`GRPOPlusConfig`]): the configuration.
        weight (`float`): the factor of the advantages; see [`trl_grpo_plus.objective.padding`].
        beta (`float`): the coefficient of the KL in the loss; 0 for a loss without it.
    """
    replaced, bias_correction = {}, args.use_bias_correction_kl
    old = inputs.get("old_per_token_logps")
    if weight != 1.0:
        replaced["advantages"] = inputs["advantages"] * weight
    # TRL would weigh its k3 by the replaced ratio, which is not the tokens' density ratio.
    if beta and (args.kl_estimator != kl.TRL_ESTIMATOR or args.importance_ratio):
        logps = {"ref_logp": inputs["ref_per_token_logps"], "old_logp": old}
        term = partial(kl.penalty, args.kl_estimator, **logps, importance_weighted=bias_correction)
        replaced["ref_per_token_logps"] = kl.ReferenceLogps(term)
        bias_correction = False
    if args.importance_ratio:
        ratio = ratios.RATIOS[args.importance_ratio]
        replaced["old_per_token_logps"] = ratios.OldLogps(ratio, old, padding.loss_mask(inputs))
    return ({**inputs, **replaced} if replaced else inputs), bias_correction
