"""Advantages: dead is exactly 0, one scale a group, bounded, and TRL's numbers at TRL's settings."""

import math
import random

import pytest
import torch
from torch import Tensor
from trl.trainer.utils import nanstd

from trl_grpo_plus.advantages import batch_std, compute, compute_with_kl, normalize_then_sum


NAN = math.nan
BASELINES = ["mean", "leave_one_out", "median", "length_weighted"]
SCALES = ["group", "batch", "none", "mad", "mean", "running"]
PER_GROUP = ["group", "mad", "mean"]
NON_DYADIC = [0.05, 0.1, 0.3, 0.6, 0.7, 0.9, 1 / 3, 1.1, 1.3, -0.1]
EPSILONS = [0.0, 1e-9, 1e-6, 1e-4]


def advantages(rewards, baseline="mean", scale="group", **options) -> Tensor:
    """With whatever the baseline and the scale need."""
    rewards = rewards if isinstance(rewards, Tensor) else torch.tensor(rewards, dtype=torch.float64)
    options.setdefault("lengths", torch.arange(1, rewards.numel() + 1).view(rewards.shape))
    return compute(rewards, baseline, scale, **{"running_std": 0.7, **options})


def close(found, expected, **tolerance):
    expected = expected if isinstance(expected, Tensor) else torch.tensor(expected, dtype=found.dtype)
    torch.testing.assert_close(found, expected, **tolerance)


# -- dead groups


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("baseline", BASELINES)
def test_dead_groups_have_advantage_exactly_zero(baseline, scale, dtype):
    for size in (2, 6, 7, 8, 32):
        dead = torch.tensor(NON_DYADIC, dtype=dtype).unsqueeze(1).repeat(1, size)
        alive = torch.rand(3, size, dtype=dtype, generator=torch.Generator().manual_seed(size))
        for rewards in (dead, torch.cat([dead, alive])):
            for ddof in (0, 1):
                for eps in EPSILONS:
                    found = advantages(rewards, baseline, scale, ddof=ddof, eps=eps)
                    assert found[: len(dead)].count_nonzero() == 0
                    assert (found[len(dead) :] != 0).any(dim=1).all()


@pytest.mark.parametrize("scale", SCALES)
def test_rewards_within_the_tolerance_are_dead(scale):
    close(advantages([[0.3, 0.3 + 5e-7, 0.3]], scale=scale, eps=0.0), [[0.0] * 3], rtol=0, atol=0)
    close(advantages([[0.0, 0.4, 0.2]], scale=scale, tolerance=0.4), [[0.0] * 3], rtol=0, atol=0)
    assert advantages([[0.0, 0.4, 0.2]], scale=scale, tolerance=0.39).count_nonzero() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", PER_GROUP)
@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("eps", EPSILONS)
def test_normalize_then_sum_of_dead_groups_is_exactly_zero(baseline, scale, eps, dtype):
    for size in (2, 6, 7, 8, 32):
        rewards = torch.tensor(NON_DYADIC, dtype=dtype).unsqueeze(1).repeat(1, size)
        components = torch.stack([rewards, rewards.flip(0), 0 * rewards], dim=-1)
        lengths = torch.arange(1, rewards.numel() + 1).view(rewards.shape)
        found = normalize_then_sum(components, torch.ones(3), baseline, scale, eps=eps, lengths=lengths)
        assert found.count_nonzero() == 0
        components[0, 0] += 2e-7  # still within the tolerance
        found = normalize_then_sum(components, torch.ones(3), baseline, scale, eps=eps, lengths=lengths)
        assert found.count_nonzero() == 0


@pytest.mark.parametrize("eps", EPSILONS)
@pytest.mark.parametrize("scale", PER_GROUP)
@pytest.mark.parametrize("constant", NON_DYADIC)
def test_a_dead_component_changes_nothing_in_normalize_then_sum(constant, scale, eps):
    # ms-swift: a constant format reward of 0.3 moves a group of six by 0.957.
    varying = torch.rand(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    both = torch.stack([varying, torch.full_like(varying, constant)], dim=-1)
    both[1, 2:4, 1] += 4e-7  # tied up to the tolerance
    alone = normalize_then_sum(varying.unsqueeze(-1), torch.ones(1), scale=scale, eps=eps)
    close(normalize_then_sum(both, torch.ones(2), scale=scale, eps=eps), alone, rtol=0, atol=0)


@pytest.mark.parametrize("eps", EPSILONS)
@pytest.mark.parametrize("baseline", BASELINES)
def test_a_dead_group_beside_live_ones_is_exactly_zero_in_normalize_then_sum(baseline, eps):
    components = torch.rand(3, 6, 2, generator=torch.Generator().manual_seed(0))
    components[1] = torch.tensor([0.3, 0.9])
    found = normalize_then_sum(
        components, torch.ones(2), baseline, eps=eps, lengths=torch.arange(1.0, 19.0).view(3, 6)
    )
    assert found[1].count_nonzero() == 0
    assert found[[0, 2]].count_nonzero() == 12


def test_a_component_without_weight_keeps_no_group_alive():
    components = torch.rand(2, 4, 2, generator=torch.Generator().manual_seed(0))
    components[0, :, 0] = 0.3
    found = normalize_then_sum(components, torch.tensor([1.0, 0.0]), "median")
    assert found[0].count_nonzero() == 0
    assert found[1].count_nonzero() > 0


@pytest.mark.parametrize("eps", EPSILONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_batch_whose_components_cancel_is_not_blown_up(dtype, eps):
    # The second reward undoes the first, up to rounding: what is left is noise, and must stay small.
    first = torch.tensor([[0.1, 0.2, 0.7, 0.3], [0.9, 0.3, 0.6, 0.6]], dtype=dtype)
    found = normalize_then_sum(torch.stack([first, 1 - first], dim=-1), torch.ones(2), eps=eps)
    assert found.abs().max() < 1e-2


# -- live groups


@pytest.mark.parametrize("eps", EPSILONS)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("rewards", [[1, 0, 0, 0], [1, 1, 1, 0], [0] + [0.95] * 7, [1] + [0] * 7])
def test_a_live_group_is_kept_whole_with_one_scale(rewards, baseline, scale, eps):
    rewards = torch.tensor([rewards, rewards[::-1]], dtype=torch.float64)
    found = advantages(rewards, baseline, scale, eps=eps)
    # One scale for the group: differences of advantages are those of the rewards over one positive number.
    for one, reward in zip(found, rewards, strict=True):
        assert one.count_nonzero() > 0
        ratios = (one - one[0])[reward != reward[0]] / (reward - reward[0])[reward != reward[0]]
        expected_spread = len(reward) / (len(reward) - 1) if baseline == "leave_one_out" else 1.0
        assert (ratios > 0).all()
        close(ratios, ratios[:1].expand_as(ratios), rtol=1e-12, atol=0)
        assert one[reward == reward.max()].min() >= 0
        assert one[reward == reward.min()].max() <= 0
        if scale == "none":
            close(ratios, [expected_spread] * len(ratios))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
def test_no_attempt_of_a_live_group_is_lost(baseline, scale):
    for rewards in ([1, 0, 0, 0], [1, 1, 1, 0], [0] + [0.95] * 7):
        assert advantages([rewards], baseline, scale, eps=1e-9).count_nonzero() == len(rewards)


def near_equal_groups(size: int) -> list[list[float]]:
    """Where a scale of the group is tiny beside the distance of one attempt."""
    return [
        [1.0] + [0.0] * (size - 1),
        [0.0] + [1.0] * (size - 1),
        [1.0] + [0.3 + 2e-6 * i / size for i in range(size - 1)],
        [0.0] + [1.0 - 1e-5 * i / size for i in range(size - 1)],
        [0.3 + 2e-6] + [0.3] * (size - 1),
        [0.0] * (size - 1) + [3e-6],
        [1e-12 * i for i in range(size - 1)] + [1.0],
        [0.5] * (size // 2) + [0.5 + 3e-6] * (size - size // 2),
        [0.5 - 2e-6] * (size // 2) + [0.5] * (size - size // 2 - 1) + [1.0],
        [0.0] * (size // 2) + [1.0] * (size - size // 2),
    ]


@pytest.mark.parametrize("tolerance", [1e-6, 0.0])
@pytest.mark.parametrize("eps", [0.0, 1e-9, 1e-4])
@pytest.mark.parametrize("scale", PER_GROUP)
@pytest.mark.parametrize("baseline", BASELINES)
def test_per_group_scales_are_bounded_by_the_group_size(baseline, scale, eps, tolerance):
    rng = random.Random(0)
    for size in (2, 3, 4, 5, 8, 16, 64):
        generator = torch.Generator().manual_seed(size)
        adversarial = torch.tensor(near_equal_groups(size), dtype=torch.float64)
        uniform = torch.rand(200, size, dtype=torch.float64, generator=generator)
        ranges = torch.tensor([10 ** rng.uniform(-9, 0) for _ in range(200)]).double().unsqueeze(1)
        near = 0.5 * torch.rand(200, 1, dtype=torch.float64, generator=generator) + uniform * ranges / 2
        near[:100, 0] = torch.tensor([rng.choice([0.0, 1.0]) for _ in range(100)])
        rewards = torch.cat([adversarial, uniform, near, uniform.round()])
        lengths = torch.randint(0, 3, rewards.shape, generator=generator) ** 8
        lengths[:, 0] = 1
        for ddof in (0, 1):
            options = {"ddof": ddof, "eps": eps, "tolerance": tolerance, "lengths": lengths}
            found = advantages(rewards, baseline, scale, **options)
            assert found.isfinite().all()
            slack = 1e-9 if tolerance else 1e-3  # rounding is all that is left of a difference of 1e-12
            assert found.abs().max() <= size * (1 + slack)


@pytest.mark.parametrize("scale", PER_GROUP)
def test_completions_without_tokens_do_not_break_the_bound(scale):
    # Every completion truncated and masked: no lengths to weigh by, and no tokens either.
    found = advantages([[1.0, 1.0, 1.0, 0.99999]], "length_weighted", scale, eps=0.0, lengths=torch.zeros(1, 4))
    assert found.abs().max() <= 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 2), (5, 4), (3, 1), (0, 4)])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("baseline", BASELINES)
def test_shape_and_type_are_those_of_the_rewards(baseline, scale, shape, dtype):
    found = advantages(torch.rand(shape, dtype=dtype), baseline, scale)
    assert found.shape == shape
    assert found.dtype == dtype
    assert found.isfinite().all()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("baseline", BASELINES)
def test_finite_for_any_finite_rewards(baseline, scale):
    generator = torch.Generator().manual_seed(0)
    for size in (1e-30, 1.0, 1e30):
        rewards = torch.randn(40, 5, dtype=torch.float64, generator=generator) * size
        rewards[torch.rand(40, 5, generator=generator) < 0.3] = NAN
        assert advantages(rewards, baseline, scale, eps=0.0).isfinite().all()


# -- attempts that nobody scored


@pytest.mark.parametrize("eps", [0.0, 1e-4])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("baseline", BASELINES)
def test_unscored_attempts_are_zero_and_do_not_move_the_others(baseline, scale, eps):
    full, lengths = torch.tensor([[0.9, 0.2, 0.4]]).double(), torch.tensor([[3, 5, 9]])
    holed = torch.tensor([[NAN, 0.9, 0.2, NAN, 0.4]]).double()
    holed_lengths = torch.tensor([[100, 3, 5, 1000, 9]])
    alone = advantages(full, baseline, scale, eps=eps, lengths=lengths)
    found = advantages(holed, baseline, scale, eps=eps, lengths=holed_lengths)
    close(found[:, [1, 2, 4]], alone, rtol=1e-12, atol=1e-14)
    assert found[:, [0, 3]].count_nonzero() == 0


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("baseline", BASELINES)
def test_groups_with_one_scored_attempt_or_none_are_zero_and_do_not_move_other_groups(baseline, scale):
    alive = [0.9, 0.2, 0.4, 0.1]
    lengths = torch.tensor([[1, 2, 3, 4]]).repeat(3, 1)
    rewards = torch.tensor([[NAN] * 4, alive, [NAN] * 4]).double()
    found = advantages(rewards, baseline, scale, lengths=lengths)
    close(found[1:2], advantages([alive], baseline, scale, lengths=lengths[:1]))
    assert found[[0, 2]].count_nonzero() == 0
    rewards[2, 1] = 0.7
    assert advantages(rewards, baseline, scale, eps=0.0, lengths=lengths)[2].count_nonzero() == 0


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("baseline", BASELINES)
def test_singletons_are_zero(baseline, scale):
    for ddof in (0, 1):
        assert advantages([[1.0], [0.3], [NAN]], baseline, scale, ddof=ddof, eps=0.0).count_nonzero() == 0


def test_nothing_is_scored():
    rewards = torch.full((2, 4), NAN)
    for scale in SCALES:
        assert advantages(rewards, scale=scale, eps=0.0).tolist() == [[0.0] * 4] * 2
    assert normalize_then_sum(torch.full((2, 4, 3), NAN), torch.ones(3)).tolist() == [[0.0] * 4] * 2


# -- by hand


def test_the_worked_example():
    third = 1 / math.sqrt(3)
    close(advantages([[1, 1, 1, 0]], ddof=0, eps=0.0), [[third, third, third, -math.sqrt(3)]])
    close(advantages([[1, 1, 1, 0]], ddof=1, eps=0.0), [[0.5, 0.5, 0.5, -1.5]])


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [
        ("mean", [0.5, -0.25, 0.25, -0.5]),
        ("leave_one_out", [2 / 3, -1 / 3, 1 / 3, -2 / 3]),
        ("median", [0.5, -0.25, 0.25, -0.5]),
        # (1*1 + 2*.25 + 3*.75 + 4*0) / 10 = .375
        ("length_weighted", [0.625, -0.125, 0.375, -0.375]),
    ],
)
def test_baselines(baseline, expected):
    close(advantages([[1.0, 0.25, 0.75, 0.0]], baseline, "none"), [expected])


def test_leave_one_out_is_the_reward_minus_the_mean_of_the_others():
    rewards = torch.rand(6, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    others = torch.stack([rewards[:, [j for j in range(7) if j != i]].mean(dim=1) for i in range(7)], dim=1)
    close(advantages(rewards, "leave_one_out", "none"), rewards - others, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([0.0, 0.1, 1.0], [-0.1, 0.0, 0.9]),
        ([0.0, 0.2, 0.4, 1.0], [-0.3, -0.1, 0.1, 0.7]),
        ([1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]),
        ([NAN, 0.0, 1.0, 0.1], [0.0, -0.1, 0.9, 0.0]),
        ([NAN, 0.0, 1.0, NAN], [0.0, -0.5, 0.5, 0.0]),
    ],
)
def test_median(rewards, expected):
    close(advantages([rewards], "median", "none"), [expected])


def test_length_weighted_leaves_the_tokens_mean_at_zero():
    rewards, lengths = torch.rand(5, 6, dtype=torch.float64), torch.randint(1, 100, (5, 6))
    found = advantages(rewards, "length_weighted", "none", lengths=lengths)
    close((found * lengths).sum(dim=1), torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-10)
    same = advantages(rewards, "length_weighted", "none", lengths=torch.full((5, 6), 17))
    close(same, advantages(rewards, "mean", "none"))


def test_maxrl_divides_by_the_mean():
    close(advantages([[1, 0, 0, 0], [0.5, 1, 0.5, 0]], scale="mean"), [[3, -1, -1, -1], [0, 1, 0, -1]])


def test_maxrl_has_no_eps_and_no_floor():
    close(advantages([[1, 0, 0, 0]], scale="mean", eps=9.0, floor=9.0), [[3, -1, -1, -1]])


@pytest.mark.parametrize(
    "rewards",
    [
        [-1, 0, 0, 0],
        [1, -1, 1, -1],
        [-1, -2, -3, -4],
        [NAN, 1, -1, NAN],
        # 0 in decimals, of either sign by 1e-17 in binary.
        [0.1, 0.2, -0.3, 0.0],
        [0.3, -0.1, -0.1, -0.1],
        [0.7, -0.6, -0.1, 0.0],
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_maxrl_with_a_mean_of_zero_or_less_is_zero(rewards, dtype):
    found = advantages(torch.tensor([rewards, [1, 0, 0, 0]], dtype=dtype), scale="mean")
    assert found.tolist() == [[0.0] * 4, [3.0, -1.0, -1.0, -1.0]]


def test_mad_is_not_moved_by_one_outlier():
    # Median 3, deviations 2 1 0 1 2, their median 1.
    close(
        advantages([[1.0, 2.0, 3.0, 4.0, 5.0]], "median", "mad", eps=0.0),
        torch.tensor([[-2.0, -1, 0, 1, 2]]).double() / 1.4826,
    )
    near, far = (advantages([[1.0, 2, 3, 4, 5, last]], "median", "mad", eps=0.0) for last in (6.0, 8.0))
    close(near[0, :5] - near[0, 0], far[0, :5] - far[0, 0])


def test_mad_of_a_group_with_one_exception_is_the_mean_deviation():
    close(advantages([[1, 0, 0, 0]], "mean", "mad", eps=0.0), torch.tensor([[3.0, -1, -1, -1]]).double() / 1.2533)


def test_batch_scale_is_over_all_rewards():
    rewards = torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 0], [0.3, NAN, 0.3, 0.3]]).double()
    scored = rewards[~rewards.isnan()]
    for ddof in (0, 1):
        centred = torch.stack([row - row.nanmean() for row in rewards[:2]])
        expected = centred / (scored.std(correction=ddof) + 1e-4)
        close(advantages(rewards, scale="batch", ddof=ddof)[:2], expected)
        assert batch_std(rewards, ddof) == pytest.approx(scored.std(correction=ddof).item())


@pytest.mark.parametrize("rewards", [[[NAN, NAN]], [[0.4, NAN]], [[]]])
def test_the_std_of_a_batch_with_too_few_rewards_is_zero(rewards):
    assert batch_std(torch.tensor(rewards), ddof=1) == 0.0
    assert batch_std(torch.tensor(rewards), ddof=0) == 0.0


def test_running_scale_is_the_callers():
    close(advantages([[1, 0]], scale="running", running_std=0.25, eps=0.0), [[2, -2]])
    assert advantages([[1, 0]], scale="running", running_std=0.0, eps=0.0).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("scale", ["group", "batch", "mad", "running"])
def test_floor_is_the_smallest_scale_and_eps_is_added_to_it(scale):
    close(advantages([[0.5, 0.501]], scale=scale, floor=2.0, eps=0.5), [[-0.0002, 0.0002]])
    low, none = (advantages([[0.0, 1.0]], scale=scale, floor=floor) for floor in (1e-3, 0.0))
    close(low, none, rtol=0, atol=0)


def test_no_scale_takes_no_floor_and_no_eps():
    close(advantages([[0.0, 1.0]], scale="none", floor=5.0, eps=5.0), [[-0.5, 0.5]])


def test_float32_rewards_are_handled_in_float64():
    rewards = torch.tensor([[1e4 + 0.01 * i for i in range(8)]])
    close(advantages(rewards, eps=0.0), advantages(rewards.double(), eps=0.0).float(), rtol=0, atol=0)


# -- TRL's numbers


def trl_sum_then_normalize(rewards: Tensor, scale: str) -> Tensor:
    """`grpo_trainer.py`, from the grouped totals on."""
    flat = rewards.flatten()
    size = rewards.shape[1]
    mean = torch.nanmean(rewards, dim=1).repeat_interleave(size, dim=0)
    by_group = nanstd(rewards, dim=1).repeat_interleave(size, dim=0)
    std = nanstd(flat).expand_as(flat) if scale == "batch" else by_group
    found = flat - mean
    if scale != "none":
        found = found / (std + 1e-4)
    return torch.nan_to_num(found, nan=0.0).view_as(rewards)


def trl_normalize_then_sum(grouped: Tensor, weights: Tensor) -> Tensor:
    each = (grouped - torch.nanmean(grouped, dim=1, keepdim=True)) / (nanstd(grouped, dim=1, keepdim=True) + 1e-4)
    each = each.view(-1, grouped.shape[-1])
    rewards = (each * weights.unsqueeze(0)).nansum(dim=1)
    rewards[grouped.view(-1, grouped.shape[-1]).isnan().all(dim=1)] = torch.nan
    found = (rewards - torch.nanmean(rewards)) / (nanstd(rewards).expand_as(rewards) + 1e-4)
    return torch.nan_to_num(found, nan=0.0).view(grouped.shape[:2])


def with_holes(rewards: Tensor, share: float, seed: int) -> Tensor:
    holes = torch.rand(rewards.shape, generator=torch.Generator().manual_seed(100 + seed)) < share
    return rewards.masked_fill(holes, NAN)


@pytest.mark.parametrize("holes", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("values", ["uniform", "binary"])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_defaults_are_trls(scale, values, holes):
    for seed in range(20):
        rewards = torch.rand(6, 4, generator=torch.Generator().manual_seed(seed))
        rewards = with_holes(rewards.round() if values == "binary" else rewards, holes, seed)
        close(compute(rewards, scale=scale), trl_sum_then_normalize(rewards, scale), rtol=2e-5, atol=2e-6)


def test_an_unscored_row_and_an_unscored_group_are_as_in_trl():
    rewards = torch.tensor([[NAN] * 4, [1, NAN, 0, 0.5], [NAN, NAN, 0.7, NAN]])
    for scale in ("group", "batch", "none"):
        close(compute(rewards, scale=scale), trl_sum_then_normalize(rewards, scale), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("holes", [0.0, 0.2, 0.7])
@pytest.mark.parametrize("values", ["uniform", "binary"])
def test_normalize_then_sum_is_trls_whatever_the_scale(values, holes, scale):
    weights = torch.tensor([1.0, 0.5, -2.0])
    for seed in range(20):
        rewards = torch.rand(6, 4, 3, generator=torch.Generator().manual_seed(seed))
        rewards = with_holes(rewards.round() if values == "binary" else rewards, holes, seed)
        found = normalize_then_sum(rewards, weights, scale=scale)
        close(found, trl_normalize_then_sum(rewards, weights), rtol=1e-4, atol=2e-5)


def test_equal_totals_of_differing_components_teach_in_normalize_then_sum():
    # Totals tie, but the two rewards differ in spread once each is weighted by itself.
    components = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [0, 0], [0, 0], [0, 0]]])
    found = normalize_then_sum(components, torch.tensor([1.0, 0.5]))
    assert found[0].count_nonzero() == 4
    close(found, trl_normalize_then_sum(components, torch.tensor([1.0, 0.5])), rtol=1e-4, atol=1e-5)


def test_normalize_then_sum_by_hand_with_another_scale():
    components = torch.tensor([[[1.0, 0.3], [0.0, 0.3]], [[1.0, 0.0], [0.0, 1.0]]]).double()
    # MaxRL: +-1 and 0; +-1 and -+1. With weights 1 and 3: 1, -1, -2, 2, whose population std is sqrt(2.5).
    found = normalize_then_sum(components, torch.tensor([1.0, 3.0]), scale="mean", ddof=0, eps=0.0)
    close(found, torch.tensor([[1.0, -1.0], [-2.0, 2.0]]).double() / math.sqrt(2.5))


def test_normalize_then_sum_is_centred_over_the_batch_whatever_the_baseline():
    components = torch.tensor([[[1.0], [0.0], [0.0]], [[0.0], [0.2], [0.4]], [[0.3]] * 3]).double()
    # Medians 0 and 0.2, MaxRL's scales 1/3 and 0.2: 3 0 0, -1 0 1 and 0 0 0, whose mean is 1/3.
    raw = torch.tensor([[3.0, 0.0, 0.0], [-1.0, 0.0, 1.0], [0.0] * 3]).double()
    expected = (raw - raw.mean()) / raw.std(correction=0)
    found = normalize_then_sum(components, torch.ones(1), "median", "mean", ddof=0, eps=0.0)
    close(found[:2], expected[:2])
    assert found[2].count_nonzero() == 0


@pytest.mark.parametrize("filler", [0.5, NAN, math.inf])
def test_a_component_without_weight_is_no_part_of_normalize_then_sum(filler):
    alone = with_holes(torch.rand(6, 4, 2, generator=torch.Generator().manual_seed(3)), 0.4, 5)
    beside = torch.cat([alone, torch.full((6, 4, 1), filler)], dim=-1)
    weights = torch.tensor([1.0, 0.5, 0.0])
    assert torch.equal(normalize_then_sum(beside, weights), normalize_then_sum(alone, weights[:2]))
    assert normalize_then_sum(beside, torch.zeros(3)).tolist() == [[0.0] * 4] * 6


def test_one_group_of_one_attempt_in_normalize_then_sum():
    assert normalize_then_sum(torch.ones(1, 1, 2), torch.ones(2)).tolist() == [[0.0]]


# -- per-token returns


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("baseline", BASELINES)
def test_returns_that_are_the_reward_at_each_token_give_the_advantage_at_each_token(baseline, scale):
    rewards = torch.tensor([[0.9, 0.2, NAN, 0.4], [0.3] * 4, [1, 0, 0, 0]]).double()
    returns = rewards.nan_to_num(nan=5.0).unsqueeze(-1).repeat(1, 1, 6)
    found = advantages(rewards, baseline, scale, returns=returns)
    assert found.shape == (3, 4, 6)
    close(found, advantages(rewards, baseline, scale).unsqueeze(-1).repeat(1, 1, 6))


@pytest.mark.parametrize("baseline", BASELINES)
def test_returns_are_centred_at_each_token_and_scaled_by_the_rewards(baseline):
    generator = torch.Generator().manual_seed(0)
    rewards = torch.rand(3, 4, dtype=torch.float64, generator=generator)
    returns = torch.rand(3, 4, 5, dtype=torch.float64, generator=generator)
    lengths = torch.randint(1, 9, (3, 4), generator=generator)
    found = advantages(rewards, baseline, eps=0.0, returns=returns, lengths=lengths)
    for token in range(5):
        centred = advantages(returns[..., token], baseline, "none", lengths=lengths)
        close(found[..., token], centred / rewards.std(dim=1, keepdim=True))


@pytest.mark.parametrize("baseline", BASELINES)
def test_returns_of_dead_groups_and_unscored_attempts_are_zero(baseline):
    rewards = torch.tensor([[0.3, 0.3, 0.3], [NAN, 1.0, 0.0]])
    returns = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([[1, 2, 3], [9, 5, 6]])
    found = advantages(rewards, baseline, returns=returns, eps=0.0, lengths=lengths)
    assert found.dtype == torch.float32
    assert found[0].count_nonzero() == 0
    assert found[1, 0].count_nonzero() == 0
    without = advantages(rewards[1:, 1:], baseline, returns=returns[1:, 1:], eps=0.0, lengths=lengths[1:, 1:])
    close(found[1:, 1:], without)


# -- what is refused


@pytest.mark.parametrize(
    "call", [advantages, lambda r, *names: normalize_then_sum(r.unsqueeze(-1), torch.ones(1), *names)]
)
def test_unknown_names_are_refused_with_the_known_ones(call):
    rewards = torch.rand(2, 4)
    with pytest.raises(ValueError, match=r"'rloo'.*'mean', 'leave_one_out', 'median', 'length_weighted'"):
        call(rewards, "rloo", "group")
    with pytest.raises(ValueError, match=r"'std'.*'group'.*'mad', 'mean'"):
        call(rewards, "mean", "std")


def test_what_a_choice_needs_is_asked_for():
    with pytest.raises(ValueError, match=r"length_weighted.*lengths"):
        compute(torch.rand(2, 4), baseline="length_weighted")
    with pytest.raises(ValueError, match=r"running.*running_std"):
        compute(torch.rand(2, 4), scale="running")


@pytest.mark.parametrize("shape", [(8,), (2, 2, 2)])
def test_rewards_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"\(P, G\)"):
        compute(torch.zeros(shape))


# -- the KL in the reward

KL_OF = torch.tensor([[1.0, 3.0, 0.0, 0.0], [2.0, 0.0, 2.0, 0.0]]).unsqueeze(-1) * torch.tensor(
    [1.0, 0.5]
)  # (2, 4, 2)


def test_a_tied_group_bears_its_kl_with_scale_1():
    found = compute_with_kl(torch.tensor([[1.0, 1, 1, 1], [1, 0, 1, 0]]), KL_OF, 0.1, per_token=False)
    close(found[0], torch.tensor([0.0, -0.2, 0.1, 0.1]))
    penalised = torch.tensor([0.8, 0.0, 0.8, 0.0])
    close(found[1], (penalised - 0.4) / (penalised.std() + 1e-4))


def test_a_tied_group_bears_its_kl_from_each_token_on():
    found = compute_with_kl(torch.zeros(2, 4), KL_OF, 0.1, per_token=True)
    close(found[0], torch.tensor([[0.0, 0.0], [-0.2, -0.1], [0.1, 0.05], [0.1, 0.05]]))


@pytest.mark.parametrize("scale", ["group", "mad", "mean", "none"])
@pytest.mark.parametrize("floor", [0.0, 0.5])
def test_differences_within_the_tolerance_are_no_part_of_it(scale, floor):
    rewards = torch.tensor([[0.50, 0.53, 0.51, 0.5], [1.0, 0.0, 1.0, 0.0]])
    options = {"scale": scale, "floor": floor, "tolerance": 0.05}
    found = compute_with_kl(rewards, KL_OF, 0.1, per_token=False, **options)
    alike = compute_with_kl(torch.tensor([[7.0] * 4, [1.0, 0.0, 1.0, 0.0]]), KL_OF, 0.1, per_token=False, **options)
    close(found, alike, rtol=0, atol=0)
    close(found[0], torch.tensor([0.0, -0.2, 0.1, 0.1]))


def test_tied_groups_have_the_batchs_scale_as_all_have():
    rewards = torch.tensor([[1.0, 1, 1, 1], [0, 0, 0, 0]])
    std = batch_std(rewards - 0.1 * KL_OF[..., 0])
    found = compute_with_kl(rewards, KL_OF, 0.1, per_token=False, scale="batch")
    close(found[0], torch.tensor([0.0, -0.2, 0.1, 0.1]) / (std + 1e-4))
    found = compute_with_kl(rewards, KL_OF, 0.1, per_token=False, scale="running", running_std=0.25, eps=0.0)
    close(found[0], torch.tensor([0.0, -0.2, 0.1, 0.1]) / 0.25)


def test_a_batch_of_one_reward_has_scale_1():
    """Its std is that of the KL alone, which would undo beta."""
    for beta in (0.1, 1e-3):
        found = compute_with_kl(torch.ones(2, 4), KL_OF, beta, per_token=False, scale="batch")
        close(found[0], beta * torch.tensor([0.0, -2.0, 1.0, 1.0]))


@pytest.mark.parametrize("per_token", [False, True])
def test_what_nobody_scored_bears_the_kl_alone(per_token):
    rewards = torch.tensor([[NAN] * 4, [1.0, 0.0, NAN, NAN]])
    found = compute_with_kl(rewards, KL_OF, 0.1, per_token, scale="none")
    first = found[..., 0] if per_token else found
    close(first[0], torch.tensor([0.0, -0.2, 0.1, 0.1]))
    close(first[1], torch.tensor([0.4, -0.4, -0.1, 0.1]))  # the scored ones with their rewards, as if alone


def test_a_group_mean_of_0_and_less_leaves_the_kl():
    """MaxRL has no advantage there."""
    found = compute_with_kl(torch.tensor([[1.0, -1, 0, -3], [1, 0, 1, 0]]), KL_OF, 0.1, per_token=False, scale="mean")
    close(found[0], torch.tensor([0.0, -0.2, 0.1, 0.1]))


@pytest.mark.parametrize("scale", SCALES)
def test_without_a_kl_it_is_compute(scale):
    rewards = with_holes(torch.rand(5, 4, generator=torch.Generator().manual_seed(0)), 0.2, 1)
    rewards[2] = 0.4
    options = {"scale": scale, "running_std": 0.3}
    close(compute_with_kl(rewards, torch.zeros(5, 4, 3), 0.1, False, **options), compute(rewards, **options))


@pytest.mark.parametrize("per_token", [False, True])
def test_no_groups_have_no_advantages(per_token):
    shape = (0, 4, 3) if per_token else (0, 4)
    for scale in SCALES:
        assert compute_with_kl(torch.zeros(0, 4), torch.zeros(0, 4, 3), 0.1, per_token, scale=scale).shape == shape
