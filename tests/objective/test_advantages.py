"""Tests of advantages: exactly 0 in dead groups, one scale per group, bounded, and TRL's numbers at TRL's settings."""

import itertools
import math
import statistics
from typing import Any

import pytest
import torch
from advantages_by_keyword import compute, compute_with_kl, normalize_then_sum
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import NAN, anything, groups, in_unit, tied, tried
from torch import Tensor
from trl.trainer.utils import nanstd

from trl_grpo_plus.curriculum.beliefs import Belief
from trl_grpo_plus.objective.advantages import BASELINES, TOKENS_AT_ONCE
from trl_grpo_plus.objective.scales import SCALES, TRL_SCALES, Scale, batch_std


pytestmark = pytest.mark.long


PER_GROUP = [name for name, scale in SCALES.items() if scale.over == "group"]
EVERY = list(itertools.product(BASELINES, SCALES))
OF_GROUP = [name for name in BASELINES if name != "belief"]
EPSILONS = [0.0, 1e-9, 1e-6, 1e-4]


def lengths_of(rewards: Tensor) -> Tensor:
    return torch.arange(1, rewards.numel() + 1).view(rewards.shape)


def advantages(rewards, baseline="mean", scale="group", **options) -> Tensor:
    """Compute advantages with all that the baseline and the scale need."""
    rewards = rewards if isinstance(rewards, Tensor) else torch.tensor(rewards, dtype=torch.float64)
    return compute(rewards, baseline, scale, **{**known(rewards), **options})


def known(rewards: Tensor) -> dict[str, Any]:
    """Return the values that some baselines and scales need."""
    return {"lengths": lengths_of(rewards), "running_std": 0.7, "belief": belief_of(len(rewards))}


def belief_of(prompts: int, mean: float = 0.4, variance: float = 0.24, count: float = 3.0) -> Belief:
    return Belief(*(torch.full((prompts,), value, dtype=torch.float64) for value in (mean, variance, count)))


def close(actual, expected, **tolerance):
    expected = expected if isinstance(expected, Tensor) else torch.tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual, expected, **tolerance)


def uniform(*shape, seed=0, **options) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), **options)


ANY_DEAD = (tied(), st.integers(0, 99), st.sampled_from([torch.float32, torch.float64]), st.sampled_from(EPSILONS))


def assert_first_alone_is_dead(values, choice):
    assert values[0].count_nonzero() == 0, choice
    assert (values[1:] != 0).any(dim=1).all(), choice


# -- dead groups


@tried
@given(*ANY_DEAD)
def test_dead_groups_have_advantage_exactly_zero(dead, seed, dtype, eps):
    rewards = torch.cat([dead, uniform(3, dead.shape[1], seed=seed)]).to(dtype)
    limits = {"eps": eps, "tolerance": 2e-5 if dead.max() > 2 else 2e-6}
    for choice, ddof, batch in itertools.product(EVERY, (0, 1), (rewards[:1], rewards)):
        assert_first_alone_is_dead(advantages(batch, *choice, ddof=ddof, **limits), choice)


@pytest.mark.parametrize("scale", SCALES)
def test_rewards_within_the_tolerance_are_dead(scale):
    close(advantages([[0.3, 0.3 + 5e-7, 0.3]], scale=scale, eps=0.0), [[0.0] * 3], rtol=0, atol=0)
    close(advantages([[0.0, 0.4, 0.2]], scale=scale, tolerance=0.4), [[0.0] * 3], rtol=0, atol=0)
    assert advantages([[0.0, 0.4, 0.2]], scale=scale, tolerance=0.39).count_nonzero() > 0


@tried
@given(*ANY_DEAD)
def test_dead_groups_and_components_change_nothing_in_normalize_then_sum(dead, seed, dtype, eps):
    """Dead groups and components change no advantage. In ms-swift a constant format reward of 0.3 moves a group of six
    by 0.957."""
    varying = uniform(3, dead.shape[1], seed=seed, dtype=torch.float64)
    components = torch.stack([torch.cat([dead.flip(1), varying]), dead.expand(4, -1)], dim=-1).to(dtype)
    limits, lengths = {"eps": eps, "tolerance": 2e-5 if dead.max() > 2 else 2e-6}, lengths_of(components[..., 0])
    for choice in itertools.product(OF_GROUP, PER_GROUP):
        values = normalize_then_sum(components, torch.ones(2), *choice, lengths=lengths, **limits)
        assert_first_alone_is_dead(values, choice)
        without = normalize_then_sum(
            components * torch.tensor([1, 0]), torch.ones(2), *choice, lengths=lengths, **limits
        )
        close(values, without, rtol=0, atol=0)
        # A sum over another memory layout may round in another order, hence the tolerance.
        close(values, normalize_then_sum(components[..., :1], torch.ones(1), *choice, lengths=lengths, **limits))
        dead_alone = normalize_then_sum(components[:1], torch.ones(2), *choice, lengths=lengths[:1], **limits)
        assert dead_alone.count_nonzero() == 0, choice


@pytest.mark.parametrize("eps", EPSILONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_batch_whose_components_cancel_is_not_blown_up(dtype, eps):
    # The second reward cancels the first up to rounding. The noise that is left must stay small.
    first = torch.tensor([[0.1, 0.2, 0.7, 0.3], [0.9, 0.3, 0.6, 0.6]], dtype=dtype)
    found = normalize_then_sum(torch.stack([first, 1 - first], dim=-1), torch.ones(2), eps=eps)
    assert found.abs().max() < 1e-2


# -- live groups


def near_equal_groups(size: int) -> list[list[float]]:
    """Return groups whose scale may be tiny beside the distance of one attempt."""
    return [
        [1.0] + [0.3 + 2e-6 * i / size for i in range(size - 1)],
        [0.0] + [1.0 - 1e-5 * i / size for i in range(size - 1)],
        [0.3 + 2e-6] + [0.3] * (size - 1),
        [0.0] * (size - 1) + [3e-6],
        [1e-12 * i for i in range(size - 1)] + [1.0],
        [0.5] * (size // 2) + [0.5 + 3e-6] * (size - size // 2),
        [0.5 - 2e-6] * (size // 2) + [0.5] * (size - size // 2 - 1) + [1.0],
    ]


def assert_bounded(rewards, ddof, eps, tolerance, lengths):
    options = {"ddof": ddof, "eps": eps, "tolerance": tolerance, "lengths": lengths}
    slack = 1e-9 if tolerance else 1e-3  # a difference of 1e-12 is mostly rounding
    for choice in itertools.product(OF_GROUP, PER_GROUP):  # NaN fails the comparison, too
        assert advantages(rewards, *choice, **options).abs().max() <= rewards.shape[1] * (1 + slack), choice


LIMITS = [st.sampled_from([0, 1]), st.sampled_from([0.0, 1e-9, 1e-4]), st.sampled_from([1e-6, 0.0])]


@tried
@given(groups(), *LIMITS, st.randoms(use_true_random=False))
def test_per_group_scales_are_bounded_by_the_group_size(rewards, ddof, eps, tolerance, chance):
    lengths = torch.tensor([[chance.choice([0, 1, 256]) for _ in row] for row in rewards])
    rewards = torch.where((rewards > 0) & (rewards < 1e-12), 0.0, rewards)
    assert_bounded(rewards, ddof, eps, tolerance, lengths)


@pytest.mark.parametrize("tolerance", [1e-6, 0.0])
def test_advantages_are_bounded_where_a_scale_is_tiny(tolerance):
    for size, ddof, eps in itertools.product((2, 3, 4, 5, 8, 16, 64), (0, 1), (0.0, 1e-9, 1e-4)):
        rewards = torch.tensor(near_equal_groups(size), dtype=torch.float64)
        lengths = torch.randint(0, 3, rewards.shape, generator=torch.Generator().manual_seed(size)) ** 8
        assert_bounded(rewards, ddof, eps, tolerance, lengths)


@pytest.mark.parametrize("scale", PER_GROUP)
def test_completions_without_tokens_do_not_break_the_bound(scale):
    # All completions are truncated and masked, so every length is 0.
    found = advantages([[1.0, 1.0, 1.0, 0.99999]], "length_weighted", scale, eps=0.0, lengths=torch.zeros(1, 4))
    assert found.abs().max() <= 4


@tried
@given(groups(anything, size=st.integers(1, 6)), st.sampled_from([0, 1]))
def test_any_rewards_have_finite_advantages_of_their_shape_and_type(rewards, ddof):
    single = rewards.isfinite().sum(dim=1) < 2
    for choice, dtype in itertools.product(EVERY, (torch.float32, torch.float64)):
        values = advantages(rewards.to(dtype), *choice, ddof=ddof, eps=0.0 if dtype == torch.float64 else 1e-4)
        assert (values.shape, values.dtype) == (rewards.shape, dtype)
        assert dtype == torch.float32 or values.isfinite().all(), choice
        assert values[single].count_nonzero() == values[rewards.isnan()].count_nonzero() == 0, choice


def test_no_groups_have_no_advantages():
    none = torch.zeros(0, 4)
    for choice in EVERY:
        assert advantages(none, *choice).shape == (0, 4)
        for per_token, shape in ((False, (0, 4)), (True, (0, 4, 3))):
            assert compute_with_kl(none, torch.zeros(0, 4, 3), 0.1, per_token, *choice).shape == shape


# -- by hand


def by_hand(rewards, cost, baseline, scale, ddof, eps, floor):
    """Compute advantages attempt by attempt, as the tables of the module say. `cost` is beta * KL."""
    places = list(itertools.product(range(len(rewards)), range(len(rewards[0]))))
    lengths = {place: number for number, place in enumerate(places, start=1)}
    total = {(p, i): rewards[p][i] - cost[p][i] for p, i in places}

    def std(values):
        mean = sum(values) / len(values)
        return math.sqrt(sum((v - mean) ** 2 for v in values) / max(len(values) - ddof, 1))

    def centred(place, group, value):
        others = [other for other in group if other != place or baseline not in ("leave_one_out", "belief")]
        if baseline == "belief":  # numbers of `belief_of`; the others' mean KL is expected too
            expected = 0.4 * (value is total) - sum(cost[p][i] for p, i in others) / max(len(others), 1)
            return value[place] - (sum(value[other] for other in others) + 3 * expected) / (len(others) + 3)
        if baseline == "median":
            return value[place] - statistics.median([value[other] for other in group])
        weight = {other: lengths[other] if baseline == "length_weighted" else 1 for other in others}
        return value[place] - sum(weight[o] * value[o] for o in others) / max(sum(weight.values()), 1)

    def varies(group):
        values = [rewards[p][i] for p, i in group]
        return bool(values) and max(values) - min(values) > 1e-6

    def spread(group):
        values = [total[place] for place in group]
        if scale == "mad":
            away = [abs(v - statistics.median(values)) for v in values]
            median, mean = statistics.median(away), statistics.mean(away)
            robust = 1.4826 * median if median > 1e-6 else 1.2533 * mean
            return max(robust, max(abs(centred(place, group, total)) for place in group) / len(group))
        if scale in ("running", "prior"):
            return 0.7 if scale == "running" else math.sqrt(0.24)
        return std(values if scale == "group" else [total[place] for place in scored])

    scored = [(p, i) for p, i in places if not math.isnan(rewards[p][i])]
    found = [[0.0] * len(rewards[0]) for _ in rewards]
    for p, i in places:
        group = [(q, j) for q, j in scored if q == p]
        mean = sum(rewards[q][j] for q, j in group) / max(len(group), 1)  # MaxRL's scale leaves the KL out
        teaches = varies(group) and (scale != "mean" or mean > 1e-6)
        own_scale = (SCALES[scale].over == "group" and not teaches) or (scale == "batch" and not varies(scored))
        divisor = 1.0 if scale == "none" or own_scale else mean if scale == "mean" else max(spread(group), floor) + eps
        if (p, i) in scored and teaches:
            found[p][i] = centred((p, i), group, total) / divisor if divisor else 0.0
        elif any(map(any, cost)):
            everyone = [(p, j) for j in range(len(rewards[0]))]
            found[p][i] = centred((p, i), everyone, {place: -cost[place[0]][place[1]] for place in everyone}) / divisor
    return found


HOW = (st.sampled_from([0, 1]), st.sampled_from(EPSILONS), st.sampled_from([0.0, 0.05, 2.0]))


@tried
@given(groups(st.one_of(in_unit, in_unit, st.sampled_from([-0.5, NAN]))), *HOW)
def test_all_baselines_and_scales_by_hand(rewards, ddof, eps, floor):
    """All baselines and scales equal the formulas by hand, also in groups with unscored attempts."""
    for baseline, scale in EVERY:
        found = advantages(rewards, baseline, scale, ddof=ddof, eps=eps, floor=floor)
        expected = by_hand(rewards.tolist(), (0 * rewards.nan_to_num()).tolist(), baseline, scale, ddof, eps, floor)
        close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-7, atol=1e-9)


@tried
@given(groups(st.one_of(in_unit, st.sampled_from([0.5, NAN])), size=st.integers(2, 5)), *HOW, st.integers(0, 99))
def test_all_baselines_and_scales_with_a_kl_by_hand(rewards, ddof, eps, floor, seed):
    """With a KL all equal the formulas by hand. Tied groups and unscored attempts get the KL's advantage alone."""
    to_go = uniform(*rewards.shape, 2, seed=seed, dtype=torch.float64)
    for baseline, scale in EVERY:
        how = {"ddof": ddof, "eps": eps, "floor": floor, **known(rewards)}
        found = compute_with_kl(rewards, to_go, 0.1, False, baseline, scale, **how)
        expected = by_hand(rewards.tolist(), (0.1 * to_go[..., 0]).tolist(), baseline, scale, ddof, eps, floor)
        close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-7, atol=1e-9)
        per_token = compute_with_kl(rewards, to_go, 0.1, True, baseline, scale, **how)
        close(per_token[..., 0], found)


def test_the_worked_example():
    third = 1 / math.sqrt(3)
    close(advantages([[1, 1, 1, 0]], ddof=0, eps=0.0), [[third, third, third, -math.sqrt(3)]])
    close(advantages([[1, 1, 1, 0]], ddof=1, eps=0.0), [[0.5, 0.5, 0.5, -1.5]])
    close(advantages([[1, 0, 0, 0], [0.5, 1, 0.5, 0]], scale="mean", eps=9.0), [[3, -1, -1, -1], [0, 1, 0, -1]])
    # (1*1 + 2*.25 + 3*.75 + 4*0) / 10 = .375
    close(advantages([[1.0, 0.25, 0.75, 0.0]], "length_weighted", "none"), [[0.625, -0.125, 0.375, -0.375]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_maxrl_with_a_mean_of_zero_or_less_is_zero(dtype):
    below = [[-1, 0, 0, 0], [1, -1, 1, -1], [-1, -2, -3, -4], [NAN, 1, -1, NAN]]
    # These means are 0 in decimals, but about 1e-17 of either sign in binary.
    zero = [[0.1, 0.2, -0.3, 0.0], [0.3, -0.1, -0.1, -0.1], [0.7, -0.6, -0.1, 0.0]]
    found = advantages(torch.tensor([*below, *zero, [1, 0, 0, 0]], dtype=dtype), scale="mean")
    assert found.tolist() == [*[[0.0] * 4] * 7, [3.0, -1.0, -1.0, -1.0]]


def test_mad_is_not_moved_by_one_outlier():
    # The median is 3. The deviations are 2 1 0 1 2, and their median is 1.
    middle = torch.tensor([[-2.0, -1, 0, 1, 2]]).double() / 1.4826
    close(advantages([[1.0, 2.0, 3.0, 4.0, 5.0]], "median", "mad", eps=0.0), middle)
    near, far = (advantages([[1.0, 2, 3, 4, 5, last]], "median", "mad", eps=0.0) for last in (6.0, 8.0))
    close(near[0, :5] - near[0, 0], far[0, :5] - far[0, 0])


@pytest.mark.parametrize("rewards", [[[NAN, NAN]], [[0.4, NAN]], [[]]])
def test_the_std_of_a_batch_with_too_few_rewards_is_zero(rewards):
    assert batch_std(torch.tensor(rewards), ddof=1) == batch_std(torch.tensor(rewards), ddof=0) == 0.0


def test_a_running_std_of_zero_gives_nothing():
    assert advantages([[1, 0]], scale="running", running_std=0.0, eps=0.0).tolist() == [[0.0, 0.0]]


def test_float32_rewards_are_handled_in_float64():
    rewards = torch.tensor([[1e4 + 0.01 * i for i in range(8)]])
    close(advantages(rewards, eps=0.0), advantages(rewards.double(), eps=0.0).float(), rtol=0, atol=0)


# -- TRL's numbers


def trl_sum_then_normalize(rewards: Tensor, scale: str) -> Tensor:
    """Compute advantages from grouped totals, as TRL's `grpo_trainer.py` does."""
    centred = rewards - torch.nanmean(rewards, dim=1, keepdim=True)
    std = nanstd(rewards.flatten()) if scale == "batch" else nanstd(rewards, dim=1, keepdim=True)
    return torch.nan_to_num(centred if scale == "none" else centred / (std + 1e-4), nan=0.0)


def trl_normalize_then_sum(grouped: Tensor, weights: Tensor) -> Tensor:
    each = (grouped - torch.nanmean(grouped, dim=1, keepdim=True)) / (nanstd(grouped, dim=1, keepdim=True) + 1e-4)
    each = each.view(-1, grouped.shape[-1])
    rewards = (each * weights.unsqueeze(0)).nansum(dim=1)
    rewards[grouped.view(-1, grouped.shape[-1]).isnan().all(dim=1)] = torch.nan
    scaled = (rewards - torch.nanmean(rewards)) / (nanstd(rewards).expand_as(rewards) + 1e-4)
    return torch.nan_to_num(scaled, nan=0.0).view(grouped.shape[:2])


def with_holes(rewards: Tensor, share: float, seed: int) -> Tensor:
    return rewards.masked_fill(uniform(*rewards.shape, seed=100 + seed) < share, NAN)


@pytest.mark.parametrize("holes", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("values", [torch.clone, torch.round], ids=["uniform", "binary"])
@pytest.mark.parametrize("scale", TRL_SCALES)
def test_defaults_are_trls(scale, values, holes):
    for seed in range(20):
        rewards = with_holes(values(uniform(6, 4, seed=seed)), holes, seed)
        close(compute(rewards, scale=scale), trl_sum_then_normalize(rewards, scale), rtol=2e-5, atol=2e-6)
        rewards, weights = with_holes(values(uniform(6, 4, 3, seed=seed)), holes, seed), torch.tensor([1.0, 0.5, -2.0])
        ours = normalize_then_sum(rewards, weights, scale=scale)
        close(ours, trl_normalize_then_sum(rewards, weights), rtol=1e-4, atol=2e-5)


def test_an_unscored_row_and_an_unscored_group_are_as_in_trl():
    rewards = torch.tensor([[NAN] * 4, [1, NAN, 0, 0.5], [NAN, NAN, 0.7, NAN]])
    for scale in TRL_SCALES:
        close(compute(rewards, scale=scale), trl_sum_then_normalize(rewards, scale), rtol=1e-5, atol=1e-6)


def test_components_with_equal_sums_teach_in_normalize_then_sum():
    # In the first group the two rewards always sum to 1, but each differs by itself.
    components = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [0, 0], [0, 0], [0, 0]]])
    found = normalize_then_sum(components, torch.tensor([1.0, 0.5]))
    assert found[0].count_nonzero() == 4
    close(found, trl_normalize_then_sum(components, torch.tensor([1.0, 0.5])), rtol=1e-4, atol=1e-5)


def test_normalize_then_sum_by_hand_with_another_scale():
    components = torch.tensor([[[1.0, 0.3], [0.0, 0.3]], [[1.0, 0.0], [0.0, 1.0]]]).double()
    # MaxRL gives +-1 and 0 in the first group, +-1 and -+1 in the second. With weights 1 and 3 these sum to
    # 1, -1, -2, 2, whose population std is sqrt(2.5).
    found = normalize_then_sum(components, torch.tensor([1.0, 3.0]), scale="mean", ddof=0, eps=0.0)
    close(found, torch.tensor([[1.0, -1.0], [-2.0, 2.0]]).double() / math.sqrt(2.5))


def test_normalize_then_sum_is_centred_over_the_batch_whatever_the_baseline():
    components = torch.tensor([[[1.0], [0.0], [0.0]], [[0.0], [0.2], [0.4]], [[0.3]] * 3]).double()
    # The medians are 0 and 0.2, and MaxRL's scales 1/3 and 0.2. This gives 3 0 0, -1 0 1 and 0 0 0, with mean 1/3.
    raw = torch.tensor([[3.0, 0.0, 0.0], [-1.0, 0.0, 1.0], [0.0] * 3]).double()
    expected = (raw - raw.mean()) / raw.std(correction=0)
    found = normalize_then_sum(components, torch.ones(1), "median", "mean", ddof=0, eps=0.0)
    close(found[:2], expected[:2])
    assert found[2].count_nonzero() == 0


@pytest.mark.parametrize("filler", [0.5, NAN, math.inf])
def test_a_component_without_weight_is_no_part_of_normalize_then_sum(filler):
    alone = with_holes(uniform(6, 4, 2, seed=3), 0.4, 5)
    beside = torch.cat([alone, torch.full((6, 4, 1), filler)], dim=-1)
    weights = torch.tensor([1.0, 0.5, 0.0])
    assert torch.equal(normalize_then_sum(beside, weights), normalize_then_sum(alone, weights[:2]))
    assert normalize_then_sum(beside, torch.zeros(3)).tolist() == [[0.0] * 4] * 6


def test_the_tolerance_of_rewards_does_not_bound_sums_of_normalised_ones():
    """The tolerance is 4, and no two of these sums are further apart than that."""
    components = torch.tensor([[[0.0, 10.0], [100.0, 0.0]], [[100.0, 10.0], [40.0, 10.0]]])
    found = normalize_then_sum(components, torch.ones(2), tolerance=4.0)
    close(found, trl_normalize_then_sum(components, torch.ones(2)), rtol=1e-4, atol=2e-5)
    assert (found[1] != 0).all()


@pytest.mark.parametrize("skipped", [None, torch.zeros(0, 4, 2), torch.ones(2, 4, 2)], ids=["none", "0", "2 groups"])
def test_no_group_in_normalize_then_sum(skipped):
    """A batch may have no live group."""
    assert normalize_then_sum(torch.empty(0, 4, 2), torch.ones(2), skipped_rewards=skipped).shape == (0, 4)


@pytest.mark.parametrize("baseline", ["mean", "leave_one_out", "median"])
@pytest.mark.parametrize("scale", ["group", "mad", "mean"])
def test_skipped_groups_count_in_the_spread_of_normalize_then_sum(scale, baseline):
    """They may have any rewards: those of a group whose attempts are all masked differ."""
    rewards, weights = with_holes(uniform(6, 4, 3, seed=3), 0.2, 3), torch.tensor([1.0, 0.5, -2.0])
    rewards[4] = 0.25
    how = {"scale": scale, "baseline": baseline}
    found = normalize_then_sum(rewards[:3], weights, skipped_rewards=rewards[3:], **how)
    close(found, normalize_then_sum(rewards, weights, **how)[:3], rtol=1e-6, atol=1e-7)


def test_one_attempt_or_no_score_in_normalize_then_sum():
    assert normalize_then_sum(torch.ones(1, 1, 2), torch.ones(2)).tolist() == [[0.0]]
    assert normalize_then_sum(torch.full((2, 4, 3), NAN), torch.ones(3)).tolist() == [[0.0] * 4] * 2


# -- refused names and shapes, and added entries


@pytest.mark.parametrize(
    "call",
    [
        advantages,
        lambda r, *names: normalize_then_sum(r.unsqueeze(-1), torch.ones(1), *names),
        lambda r, *names: compute_with_kl(r, r.unsqueeze(-1), 0.1, False, *names),
    ],
)
def test_unknown_names_are_refused_with_the_known_ones(call):
    rewards = torch.rand(2, 4)
    with pytest.raises(ValueError, match=r"'rloo'.*'mean', 'leave_one_out', 'median', 'length_weighted'"):
        call(rewards, "rloo", "group")
    with pytest.raises(ValueError, match=r"'std'.*'group'.*'mad', 'mean'"):
        call(rewards, "mean", "std")


def test_a_missing_input_of_a_choice_is_named():
    with pytest.raises(ValueError, match=r"length_weighted.*lengths"):
        compute(torch.rand(2, 4), baseline="length_weighted")
    with pytest.raises(ValueError, match=r"running.*running_std"):
        compute(torch.rand(2, 4), scale="running")


@pytest.mark.parametrize("shape", [(8,), (2, 2, 2)])
def test_rewards_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"\(P, G\)"):
        compute(torch.zeros(shape))


def test_added_entries_work_in_all_functions(monkeypatch):
    """A scale and a baseline that are added to the dicts work in all three functions."""
    monkeypatch.setitem(SCALES, "largest", Scale(lambda rewards: rewards.values.amax(dim=1, keepdim=True), "group"))
    monkeypatch.setitem(BASELINES, "least", lambda values, scored, lengths: values - values.amin(dim=1, keepdim=True))
    rewards = torch.tensor([[1.0, 3.0, 4.0], [2.0, 2.0, 2.0]])
    expected = [[0.0, 0.5, 0.75], [0.0] * 3]
    close(compute(rewards, "least", "largest", eps=0.0), expected)
    close(compute_with_kl(rewards, torch.zeros(2, 3, 1), 0.1, False, "least", "largest", eps=0.0), expected)
    assert normalize_then_sum(rewards.unsqueeze(-1), torch.ones(1), "least", "largest")[0].count_nonzero() == 3


# -- the KL in the reward

HALVED = torch.tensor([1.0, 0.5])  # the KL to go halves from the first token to the second
KL_OF = torch.tensor([[1.0, 3.0, 0.0, 0.0], [2.0, 0.0, 2.0, 0.0]]).unsqueeze(-1) * HALVED  # (2, 4, 2)
ALONE = torch.tensor([0.0, -0.2, 0.1, 0.1])  # advantages of the first group from its KL alone, with beta 0.1


def test_a_tied_group_bears_its_kl_with_scale_1():
    found = compute_with_kl(torch.tensor([[1.0, 1, 1, 1], [1, 0, 1, 0]]), KL_OF, 0.1, per_token=False)
    close(found[0], ALONE)
    penalised = torch.tensor([0.8, 0.0, 0.8, 0.0])
    close(found[1], (penalised - 0.4) / (penalised.std() + 1e-4))
    found = compute_with_kl(torch.zeros(2, 4), KL_OF, 0.1, per_token=True)
    close(found[0], ALONE.unsqueeze(-1) * HALVED)


@pytest.mark.parametrize("scale", [*PER_GROUP, "none"])
@pytest.mark.parametrize("floor", [0.0, 0.5])
def test_differences_within_the_tolerance_do_not_change_the_kls_advantage(scale, floor):
    rewards = torch.tensor([[0.50, 0.53, 0.51, 0.5], [1.0, 0.0, 1.0, 0.0]])
    options = {"scale": scale, "floor": floor, "tolerance": 0.05}
    found = compute_with_kl(rewards, KL_OF, 0.1, per_token=False, **options)
    alike = compute_with_kl(torch.tensor([[7.0] * 4, [1.0, 0.0, 1.0, 0.0]]), KL_OF, 0.1, per_token=False, **options)
    close(found, alike, rtol=0, atol=0)
    close(found[0], ALONE)


def test_a_batch_of_one_reward_has_scale_1():
    """The std of a batch of equal rewards is that of the KL alone. Dividing by it would undo beta, so the scale is 1.
    The running std is used as it is."""
    for beta in (0.1, 1e-3):
        found = compute_with_kl(torch.ones(2, 4), KL_OF, beta, per_token=False, scale="batch")
        close(found[0], 10 * beta * ALONE)
    found = compute_with_kl(torch.ones(2, 4), KL_OF, 0.1, per_token=False, scale="running", running_std=0.25, eps=0.0)
    close(found[0], ALONE / 0.25)


@tried
@given(groups(st.one_of(in_unit, st.just(NAN))))
def test_a_kl_of_zero_changes_nothing(rewards):
    zero = torch.zeros(*rewards.shape, 3)
    for choice in EVERY:
        close(compute_with_kl(rewards, zero, 0.1, False, *choice, **known(rewards)), advantages(rewards, *choice))


@pytest.mark.parametrize("baseline", BASELINES)
def test_the_advantages_of_many_tokens_are_made_a_few_tokens_at_a_time(monkeypatch, baseline):
    """The float64 of all tokens at once is four times the memory of the result, and slow."""
    rewards = torch.tensor([[1.0, 1, 1, 1], [1, 0, NAN, 0]])
    to_go = uniform(2, 4, 3 * TOKENS_AT_ONCE + 1, seed=0)
    seen: list[int] = []

    def counting(values, *rest):
        seen.append(values.shape[-1] if values.dim() > 2 else 1)
        return centre(values, *rest)

    centre = BASELINES[baseline]
    monkeypatch.setitem(BASELINES, baseline, counting)
    found = compute_with_kl(rewards, to_go, 0.1, True, baseline, **known(rewards))
    assert max(seen) == TOKENS_AT_ONCE
    whole = compute_with_kl(rewards, to_go, 0.1, True, lambda *these: centre(*these), **known(rewards))
    close(found, whole, rtol=0, atol=0)


@pytest.mark.parametrize(("scale", "how"), [("prior", {}), ("running", {"running_std": 0.0})])
def test_a_kl_in_the_reward_is_divided_by_no_zero(scale, how):
    belief = Belief(*(torch.tensor([value, value], dtype=torch.float64) for value in (1.0, 0.0, 8.0)))
    rewards = torch.tensor([[1.0, 1, 1, 1], [1, 0, 1, 0]])
    found = compute_with_kl(rewards, KL_OF, 0.1, False, "belief", scale, eps=0.0, belief=belief, **how)
    assert found.isfinite().all()
