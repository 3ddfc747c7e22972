"""The three advantage functions, which take the fields of `Normalization` and `GroupBatch` as keywords."""

import dataclasses

from trl_grpo_plus.objective import advantages
from trl_grpo_plus.objective.advantages import Normalization
from trl_grpo_plus.objective.group_batch import GroupBatch


LIMITS = {field.name for field in dataclasses.fields(Normalization)}


def records(names, options):
    """Return the normalization and the batch that the positional `names` and the keywords describe."""
    options = {**dict(zip(("baseline", "scale", "ddof", "eps", "floor", "tolerance"), names, strict=False)), **options}
    if "belief" in options:
        options["beliefs"] = (options.pop("belief"),)
    limits = {name: options.pop(name) for name in LIMITS & options.keys()}
    return Normalization(**limits), GroupBatch(**options)


def compute(rewards, *names, **options):
    return advantages.compute(rewards, *records(names, options))


def normalize_then_sum(components, weights, *names, **options):
    return advantages.normalize_then_sum(components, weights, *records(names, options))


def compute_with_kl(rewards, kl_to_go, beta, per_token, *names, **options):
    return advantages.compute_with_kl(rewards, kl_to_go, beta, per_token, *records(names, options))
