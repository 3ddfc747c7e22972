"""Tests of the weights for filler: the loss of a batch with filler equals that of its live rows alone."""

import json
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import tried

from trl_grpo_plus.config.validation import TRL_CHOICES
from trl_grpo_plus.objective import padding


ROWS, TOKENS = 4, 3


def loss(loss_type, values, mask, tokens):
    """Compute TRL's loss of a micro-batch (rows, T).

    `tokens` is `num_items_in_batch` for one micro-batch of one rank.
    """
    sums, lengths = (values * mask).sum(dim=1), mask.sum(dim=1)
    return {
        "grpo": (sums / lengths.clamp(min=1)).mean(),
        "sapo": (sums / lengths.clamp(min=1)).mean(),
        "luspo": sums.mean(),
        "dr_grpo": sums.mean() / TOKENS,
        "bnpo": sums.sum() / lengths.sum().clamp(min=1),
    }.get(loss_type, sums.sum() / tokens)


@pytest.mark.parametrize("loss_type", TRL_CHOICES["loss_type"])
@tried
@given(st.integers(1, 2), st.integers(1, 3), st.data())
def test_the_loss_is_that_of_the_live_rows_alone(loss_type, ranks, micro, data):
    generator, rows = torch.Generator().manual_seed(data.draw(st.integers(0, 999))), ranks * micro * ROWS
    live = torch.tensor(data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows))).view(ranks, micro, ROWS)
    values = torch.rand(*live.shape, TOKENS, dtype=torch.float64, generator=generator)
    lengths = torch.randint(1, TOKENS + 1, (*live.shape, 1), generator=generator)
    mask = (torch.arange(TOKENS) < lengths) * live.unsqueeze(-1)
    tokens = mask.sum().clamp(min=1) / (ranks * micro)
    weight = padding.loss_weight(loss_type, live.sum(dim=-1), ROWS)
    each = [[loss(loss_type, values[r, m], mask[r, m], tokens) for m in range(micro)] for r in range(ranks)]
    found = weight * torch.tensor(each).mean()  # the mean over micro-batches and ranks
    if loss_type == "bnpo":  # each micro-batch has its own mean
        some = live.any(dim=-1)
        expected = torch.tensor(each)[some].mean() if some.any() else torch.tensor(0.0)
    else:
        expected = loss(loss_type, values[live], mask[live], tokens * ranks * micro) if live.any() else torch.zeros(())
    torch.testing.assert_close(found, expected.to(found.dtype), rtol=1e-6, atol=1e-7)
    assert live.all() <= (weight == 1.0)


@tried
@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=2))
def test_the_entropy_is_a_mean_over_live_tokens(counts):
    tokens = torch.tensor(counts)
    means = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(0))
    found = (padding.entropy_weights(tokens) * means).mean()
    torch.testing.assert_close(found, (tokens * means).sum() / tokens.sum().clamp(min=1))


def test_each_micro_batch_gets_its_weights_and_counts():
    """Rank 1 of 2 has a micro-batch with 2 live rows of 3 tokens, and one without live rows."""
    batch = {"completion_mask": torch.ones(4, 3), "completion_ids": torch.zeros(4, 3)}
    batch["importance_sampling_ratio"] = torch.full((4, 1), 2.0)
    everyone = SimpleNamespace(device="cpu", process_index=1, gather=lambda own: own * 2)
    padding.mask_rows(batch, torch.tensor([True, True, False, False]), everyone)
    assert batch["tool_mask"].tolist() == [[1.0] * 3] * 2 + [[0.0] * 3] * 2
    assert batch["completion_mask"].all()  # attention reads this mask, so filler stays visible
    assert batch["importance_sampling_ratio"].tolist() == [[2.0], [2.0], [1.0], [1.0]]
    assert batch["num_items_in_batch"] == 12
    halves = [{name: value[part] for name, value in batch.items() if value.ndim} for part in (slice(2), slice(2, 4))]
    everyone.gather = lambda own: torch.cat([torch.tensor([[[1, 2], [1, 2], [3, 5]]]), own.long()])
    padding.count_and_weigh(halves, "grpo", everyone)
    weighed = ("filler_weight", "entropy_weight", "live_rows", "live_tokens")
    first, second = ({name: half[name] for name in weighed} for half in halves)
    assert first == pytest.approx({"filler_weight": 1.6, "live_rows": 3, "live_tokens": 9, "entropy_weight": 24 / 14})
    assert second == pytest.approx({"filler_weight": 1.6, "live_rows": 2, "live_tokens": 5, "entropy_weight": 0.0})


BONUS = torch.tensor(3.0, requires_grad=True)
PRODUCTS = {
    "from the left": lambda coefficient: coefficient * BONUS,
    "from the right": lambda coefficient: BONUS * coefficient,
    "negated": lambda coefficient: -(-coefficient * BONUS),
    "negated, from the right": lambda coefficient: 0.0 - BONUS * -coefficient,
    "divided": lambda coefficient: coefficient / 2 * (2 * BONUS),
    "with a number": lambda coefficient: (2.0 * coefficient) * (BONUS / 2),
    "in place": lambda coefficient: in_place(BONUS.clone(), coefficient),
}


def in_place(bonus, coefficient):
    bonus *= coefficient
    return bonus


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
def test_a_scaled_coefficient_has_its_weight_in_each_form_of_the_product(product):
    made = product(padding.ScaledCoefficient(0.5, 4.0))
    (slope,) = torch.autograd.grad(made, BONUS)
    assert (made.item(), slope.item()) == (6.0, 2.0)


REFUSED = {
    "a sum": lambda coefficient: BONUS + coefficient,
    "a difference": lambda coefficient: coefficient - BONUS,
    "a quotient": lambda coefficient: BONUS / coefficient,
    "a number's quotient": lambda coefficient: 1.0 / coefficient,
    "a power": lambda coefficient: coefficient**2,
    "an exponent": lambda coefficient: BONUS**coefficient,
    "an absolute value": abs,
    "torch.mul": lambda coefficient: torch.mul(BONUS, coefficient),
    "torch.lerp": lambda coefficient: torch.lerp(BONUS, BONUS, coefficient),
}


@pytest.mark.parametrize("operation", REFUSED.values(), ids=REFUSED)
def test_operations_that_would_lose_the_weight_are_refused(operation):
    with pytest.raises(TypeError):
        operation(padding.ScaledCoefficient(0.5, 4.0))


def test_a_controller_and_a_log_see_the_unweighted_coefficient():
    coefficient = padding.ScaledCoefficient(0.5, 4.0)
    for made in (coefficient + 0.25, 1.25 - coefficient, min(coefficient + 0.25, 9.0), sum([coefficient]) + 0.25):
        assert (type(made), made) == (float, 0.75)
    assert coefficient == 0.5 < 0.75
    assert json.dumps(coefficient) == str(coefficient) == "0.5"


def test_without_filler_the_rows_with_a_token_in_the_loss_are_counted_alone():
    """A truncated attempt has no token in the loss. The weights are for filler."""
    halves = [{"completion_mask": torch.tensor(mask)} for mask in ([[1, 1, 0], [0, 0, 0]], [[0, 0, 0], [0, 0, 0]])]
    everyone = SimpleNamespace(process_index=0, gather=lambda own: own.repeat(2, 1, 1))
    padding.count_and_weigh(halves, "grpo", everyone)
    assert [{name: half[name] for name in half if name != "completion_mask"} for half in halves] == [
        {"live_rows": 2, "live_tokens": 4},
        {"live_rows": 0, "live_tokens": 0},
    ]
