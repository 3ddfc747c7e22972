"""Advantage functions and baselines as a user writes them in a file."""

import os

import torch

from trl_grpo_plus.registry import reads_columns


def like_grpo(rewards, weights, batch):
    """Return TRL's advantages for each token: (P, G, T)."""
    total = (rewards.double() * weights).nansum(dim=-1)
    values = (total - total.mean(dim=1, keepdim=True)) / (total.std(dim=1, keepdim=True) + 1e-4)
    return values.unsqueeze(-1).expand(batch.mask.shape)


def ramp(rewards, weights, batch, *, slope: float = 0.5, noise: float = 0.0):
    """Return the centred totals, plus noise for each attempt, times a factor that rises with the token's place."""
    total = (rewards.nan_to_num() * weights).sum(dim=-1)
    total = total + noise * torch.rand(total.shape, generator=batch.generator())
    centred = total - total.mean(dim=1, keepdim=True)
    return centred.unsqueeze(-1) * (1 + slope * torch.arange(batch.mask.shape[-1]))


def fails_on_one_rank(rewards, weights, batch):
    if os.environ.get("RANK") == "1":
        raise KeyError("a bug on the second rank")
    return rewards[..., 0]


def differs_by_rank(rewards, weights, batch):
    return rewards[..., 0] + int(os.environ.get("RANK", "0"))


@reads_columns("expected")
def less_expected(values, scored, batch):
    """Subtract a baseline that stands in a column of the dataset."""
    expected = torch.tensor(batch.columns["expected"], dtype=values.dtype)
    return values - expected.view(-1, *[1] * (values.dim() - 1))


@reads_columns("expected")
def total_less_expected(rewards, weights, batch):
    """Return the totals less the column's values, as an advantage function."""
    return (rewards * weights).nansum(dim=-1) - torch.tensor(batch.columns["expected"]).unsqueeze(1)


def of_another_shape(values, scored, batch):
    return values[:, :1]


def in_whole_numbers(values, scored, batch):
    return (values - values.mean()).long()


def baseline_fails_on_one_rank(values, scored, batch):
    if os.environ.get("RANK") == "1":
        raise KeyError("a bug on the second rank")
    return values


def baseline_differs_by_rank(values, scored, batch):
    return values + int(os.environ.get("RANK", "0"))


def in_place(values, scored, batch):
    values -= values.mean(dim=1, keepdim=True)
    return values
