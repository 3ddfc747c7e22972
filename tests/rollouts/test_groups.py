"""Tests of the verdict on a group, and of the plan that chooses the groups of a batch."""

import math
import random
import statistics
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_strategies import NAN, NON_DYADIC, groups, tried
from trl.trainer.utils import nanstd

from trl_grpo_plus.rollouts.groups import (
    VERDICTS,
    Attempt,
    Plan,
    Round,
    extremes,
    judge,
    judge_any,
    judge_batch,
    mark_low_variance,
    monitors,
    plan_batch,
    shares,
    totals,
)


DTYPES = [torch.float32, torch.float64]


def verdict(rewards, dtype=torch.float32, **limits):
    return judge(torch.tensor([rewards], dtype=dtype), **limits)[0]


def sampled(*verdicts):
    return Round((), torch.zeros(0), verdicts)


# -- judge


@pytest.mark.parametrize("dtype", DTYPES)
def test_identical_rewards_are_dead_whatever_their_std(dtype):
    rewards = torch.tensor(NON_DYADIC, dtype=dtype).unsqueeze(1)
    for size in range(2, 33):
        alike = rewards.expand(-1, size)
        assert "alive" not in judge(alike) + judge(alike, tolerance=0.0)
    assert nanstd(rewards.float().expand(-1, 7), dim=1).count_nonzero() > 5, "these fool no std"


@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_sums_of_parts_are_dead(dtype):
    # Each value is 0.3 or 0.6 in decimals. In binary they differ in the last place.
    assert verdict([0.1 + 0.2, 0.3, 0.4 - 0.1, 0.3], dtype) == "tied"
    assert verdict([3 * 0.2, 0.6, 0.7 - 0.1, 2 * 0.3], dtype) == "tied"


@pytest.mark.parametrize(
    ("expected", "cases"),
    {
        "alive": [
            [1, 0, 0, 0], [1, 1, 1, 0], [0] + [0.95] * 7, [0.95] * 7 + [0], [1, -1, 1, -1], [0.3, 0.30001],
            [1e-5, 0, 0, 0], [-1, -1, -1, -2], [0.5] * 31 + [0.51], [NAN, 1.0, 0.0, NAN],
        ],
        "all_good": [[1.0] * 4, [2.0] * 4, [1 - 5e-7] * 4, [1.0], [1.0, NAN, NAN, NAN], [NAN, 1.0, 1.0, NAN]],
        "all_bad": [[0.0] * 4, [-1.0] * 4, [5e-7] * 4, [0.0], [NAN, NAN, NAN, 0.0], [NAN, -1.0, -1.0, NAN]],
        "tied": [
            [0.5] * 4, [0.9] * 4, [1 - 1e-5] * 4, [1e-5] * 4, [0.3], [NAN, 0.7, NAN, NAN], [0.3, NAN, 0.3, 0.3],
        ],
        "unscored": [[NAN] * 4, [NAN]],
    }.items(),
)  # fmt: skip
def test_verdicts(expected, cases):
    """Unscored attempts do not count for the verdict."""
    for rewards in cases:
        assert verdict(rewards, torch.float64) == expected, rewards
        assert verdict(rewards) == expected, rewards


def test_thresholds_can_be_moved_and_are_reached_up_to_rounding():
    expected = {0.5: "all_good", 0.3: "all_good", 0.1: "tied", -0.5: "all_bad", -0.7: "all_bad"}
    assert {reward: verdict([reward] * 4, solved_reward=0.3, failed_reward=-0.5) for reward in expected} == expected
    for dtype in DTYPES:
        assert verdict([0.3] * 4, dtype, solved_reward=0.1 + 0.2) == "all_good"
        assert verdict([0.1 + 0.2] * 4, dtype, failed_reward=0.3) == "all_bad"


def test_tolerance_is_the_largest_difference_of_a_dead_group():
    assert verdict([0.0, 0.5], tolerance=0.5) != "alive"
    assert verdict([0.0, 0.5, 0.25], tolerance=0.49) == "alive"
    assert verdict([0.0, 1e-30], torch.float64, tolerance=0.0) == "alive"


SCORES = st.sampled_from([0.0, 0.3, 1.0, NAN])


@tried
@given(groups(SCORES, size=st.just(4), most=20), st.randoms(use_true_random=False))
def test_the_verdict_does_not_depend_on_the_order_or_on_the_other_groups(rewards, chance):
    assert judge(rewards) == [verdict(chance.sample(group, 4), torch.float64) for group in rewards.tolist()]


@tried
@given(groups(SCORES), st.data())
def test_a_group_with_nothing_to_train_on_is_truncated_whatever_its_rewards(rewards, data):
    """A group is truncated only if no attempt of it is trained on. Otherwise all its rewards count for the verdict."""
    trainable = torch.tensor([[data.draw(st.booleans()) for _ in group] for group in rewards])
    alone = judge(rewards)
    expected = [kind if some else "truncated" for kind, some in zip(alone, trainable.any(dim=1), strict=True)]
    assert judge(rewards, trainable=trainable) == expected
    assert judge_any(rewards.unsqueeze(-1), rewards, trainable=trainable) == expected


@pytest.mark.parametrize("shape", [(3, 2), (2, 3), (6,)])
def test_a_trainable_mask_of_another_shape_is_refused(shape):
    with pytest.raises(ValueError, match=r"trainable must be \(2, 2\)"):
        judge(torch.zeros(2, 2), trainable=torch.ones(shape, dtype=torch.bool))


def test_integers_and_half_precision_are_judged_too():
    assert verdict([1, 0], torch.int64) == "alive"
    assert verdict([1, 1], torch.int64) == "all_good"
    assert verdict([0.3] * 8, torch.bfloat16) == "tied"
    assert verdict([0.3, 0.6], torch.float16) == "alive"


@pytest.mark.parametrize("shape", [(4,), (2, 2, 2), ()])
def test_rewards_of_another_shape_are_refused(shape):
    assert judge(torch.zeros(0, 4)) == []
    with pytest.raises(ValueError, match=r"\(P, G\)"):
        judge(torch.zeros(shape))


def test_extremes_ignore_unscored_attempts_and_are_float64():
    low, high = extremes(torch.tensor([[NAN, 0.5, -2.0], [NAN, NAN, NAN]]))
    assert low.dtype == high.dtype == torch.float64
    assert low.tolist() == [-2.0, math.inf]
    assert high.tolist() == [0.5, -math.inf]


# -- verdicts by a configuration


COLUMNS = {"rising": [0.0, 0.1], "falling": [0.1, 0.0], "tied": [0.3, 0.3], "elsewhere": [NAN, NAN]}


@pytest.mark.parametrize(
    ("metric", "by_itself", "weights", "expected"),
    [
        ("total", False, [1, 1, 1, 1], "tied"),
        ("total", True, [1, 1, 1, 1], "alive"),
        ("total", True, [0, 0, 1, 1], "tied"),
        ("any", False, [1, 1, 1, 1], "alive"),
        ("any", False, [0, 0, 1, 1], "tied"),
        ("rising", False, [0, 0, 1, 1], "alive"),
        ("tied", False, [1, 0, 1, 1], "tied"),
        ("elsewhere", False, [1, 0, 1, 1], "alive"),
        ("elsewhere", False, [1, 1, 1, 1], "tied"),
    ],
)
def test_the_verdict_uses_the_configured_metric(metric, by_itself, weights, expected):
    """If the metric applies to no attempt of a group, the total decides."""
    limits = {"zero_variance_tolerance": 1e-6, "solved_reward": 1.0, "failed_reward": 0.0}
    aggregation = "normalize_then_sum" if by_itself else "sum_then_normalize"
    config = SimpleNamespace(filter_metric=metric, multi_objective_aggregation=aggregation, **limits)
    rewards = torch.tensor(list(COLUMNS.values())).T
    arguments = (config, rewards, torch.tensor(weights), list(COLUMNS), 2)
    assert judge_batch(*arguments) == [expected]
    assert judge_batch(*arguments, torch.tensor([False, False])) == ["truncated"]


# -- low variance


def greedy(verdicts, rewards, top_p):
    """Take groups by `statistics.variance`, largest first, until they hold the share."""
    variances = {
        group: round(statistics.variance([value for value in row if not math.isnan(value)]), 9)
        for group, row in enumerate(rewards)
        if verdicts[group] == "alive"
    }
    left, stay = top_p * sum(variances.values()), []
    for group in sorted(variances, key=lambda group: -variances[group]):
        if left > 1e-9:
            stay.append(group)
        left -= variances[group]
    return ["low_variance" if group in set(variances) - set(stay) else each for group, each in enumerate(verdicts)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 1.0])
def test_the_groups_with_most_variance_stay(seed, top_p):
    chance = random.Random(seed)
    values = [[0.0, 1.0], [0.0, 0.1, 0.5, 1.0], [0.0, -3.0, 40.0]][seed % 3]
    rewards = [[chance.choice([*values, NAN]) for _ in range(5)] for _ in range(chance.randint(1, 12))]
    verdicts = judge(torch.tensor(rewards))
    marked = mark_low_variance(verdicts, torch.tensor(rewards, dtype=torch.float64), top_p)
    assert marked == greedy(verdicts, rewards, top_p)
    assert "alive" not in verdicts or "alive" in marked
    if top_p == 1:
        assert marked == verdicts


def test_of_equal_variances_the_first_stay():
    rewards = torch.tensor([[0.0, 1.0]] * 10)
    assert mark_low_variance(["alive"] * 10, rewards, 0.3) == ["alive"] * 3 + ["low_variance"] * 7
    assert mark_low_variance(["alive"] * 10, rewards, 0.31) == ["alive"] * 4 + ["low_variance"] * 6


@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1e30, 1e200])
def test_variances_of_huge_and_tiny_rewards_are_compared(scale):
    rewards = torch.tensor([[0.0, 1.0], [0.0, 0.1], [0.0, 0.0]], dtype=torch.float64) * scale
    assert mark_low_variance(["alive", "alive", "all_bad"], rewards, 0.9) == ["alive", "low_variance", "all_bad"]


def test_a_batch_without_a_live_group_stays_as_it_is():
    verdicts = ["all_bad", "unscored", "truncated"]
    rewards = torch.tensor([[0.0, 0.0], [NAN, NAN], [0.0, 1.0]])
    assert mark_low_variance(verdicts, rewards, 0.5) == verdicts
    assert mark_low_variance([], torch.zeros(0, 4), 0.5) == []


def test_totals_leave_out_rewards_of_weight_0():
    rewards = torch.tensor([[1.0, 2.0, 9.0], [NAN, 2.0, 9.0], [NAN, NAN, 9.0]])
    weights = torch.tensor([1.0, -0.5, 0.0])
    torch.testing.assert_close(totals(rewards, weights), torch.tensor([0.0, -1.0, NAN]), equal_nan=True)
    by_group = totals(rewards.view(1, 3, 3).repeat(2, 1, 1), weights)
    torch.testing.assert_close(by_group, torch.tensor([[0.0, -1.0, NAN]] * 2), equal_nan=True)
    assert monitors(weights) == [2]
    assert monitors(torch.zeros(3)) == []  # no monitors: the run trains on the KL alone


# -- judge_any


def test_equal_totals_of_differing_components_are_alive_only_through_judge_any():
    components = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]])
    assert judge(components.sum(dim=-1)) == ["all_good"]
    assert judge_any(components, components.sum(dim=-1)) == ["alive"]


def test_judge_any_takes_a_dead_groups_verdict_from_its_total():
    components = torch.tensor([[pair] * 3 for pair in ([0.5, 0.5], [0.0, 0.0], [0.1, 0.2], [NAN, NAN], [1.0, NAN])])
    totals = components.nansum(dim=-1).masked_fill(components.isnan().all(dim=-1), NAN)
    assert judge_any(components, totals) == ["all_good", "all_bad", "tied", "unscored", "all_good"]


def test_judge_any_keeps_a_group_for_whichever_component_varies():
    for varying in range(3):
        components = torch.full((3, 4, 3), 0.3)
        components[1, 2, varying] = 0.9
        assert judge_any(components, torch.full((3, 4), 0.9)) == ["tied", "alive", "tied"]
    for_one = torch.tensor([[[0.3, NAN], [0.3, 0.9], [0.3, NAN]]])  # the second reward scores one attempt only
    assert judge_any(for_one, torch.full((1, 3), 0.3)) == ["tied"]


def test_judge_any_passes_the_limits_on():
    components = torch.tensor([[[0.2], [0.3]]])
    assert judge_any(components, components[..., 0]) == ["alive"]
    assert judge_any(components, components[..., 0], tolerance=0.2, solved_reward=0.2) == ["all_good"]
    assert judge_any(components, components[..., 0], tolerance=0.2, failed_reward=0.3, solved_reward=9) == ["all_bad"]


# -- plan_batch


@st.composite
def rounds(draw):
    """Draw a unit, a target that it divides, and rounds, the first of which has `target` groups."""
    unit, parts = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    verdicts = st.one_of(st.just("alive"), st.sampled_from(VERDICTS))
    first = draw(st.lists(verdicts, min_size=unit * parts, max_size=unit * parts))
    later = draw(st.lists(st.lists(verdicts, max_size=unit * parts + 2), max_size=3))
    return unit, unit * parts, [sampled(*one) for one in (first, *later)]


@settings(tried, max_examples=200)
@given(rounds(), st.booleans())
def test_plan_properties(drawn, keep_dead):
    unit, target, rounds = drawn
    plan = plan_batch(rounds, target, unit, keep_dead)
    assert len(set(plan.order)) == len(plan.order) == len(plan.live)
    assert unit <= len(plan.order) <= target
    assert len(plan.order) % unit == 0
    alive = {(r, g) for r, sampled_round in enumerate(rounds) for g in sampled_round.where(alive=True)}
    trained = [key for key, live in zip(plan.order, plan.live, strict=True) if live]
    filler = plan.order[len(trained) :]
    assert list(plan.live) == sorted(plan.live, reverse=True)  # filler comes last
    # Live groups of the first round are all trained on, in order. Later ones follow in the order of finding.
    first = [key for key in trained if key in alive and key[0] == 0]
    later = [key for key in trained if key in alive and key[0] > 0]
    assert first == [(0, g) for g in rounds[0].where(alive=True)]
    assert later == sorted(alive - set(first))[: len(later)]
    assert len(first) + len(later) == min(target, len(alive))
    # Dead groups come from the first round. They are trained on only with keep_dead. Otherwise they are filler, and
    # no more than needed.
    assert all(key[0] == 0 and key not in alive for key in filler)
    dead = [key for key in trained if key not in alive]
    if keep_dead:
        assert len(trained) == target
        assert all(plan.order[g] == (0, g) for _, g in (*first, *dead))
    else:
        assert not dead
        assert len(filler) == (unit if not trained else -len(trained) % unit)


def test_live_groups_keep_their_places_and_found_ones_replace_dead_ones():
    rounds = [sampled("all_bad", "alive", "tied", "alive"), sampled("tied", "alive"), sampled("alive", "alive")]
    assert plan_batch(rounds, 4, 1, False) == Plan(order=((1, 1), (0, 1), (2, 0), (0, 3)), live=(True,) * 4)


def test_missing_groups_are_left_out_or_filled_with_dead_ones():
    rounds = [sampled("tied", "alive", "all_bad", "all_good"), sampled("alive")]
    assert plan_batch(rounds, 4, 1, False) == Plan(((1, 0), (0, 1)), (True, True))
    assert plan_batch(rounds, 4, 1, True) == Plan(((1, 0), (0, 1), (0, 2), (0, 3)), (True,) * 4)


def test_filler_completes_a_unit_and_no_more():
    rounds = [sampled("alive", "tied", "alive", "tied", "alive", "tied")]
    assert plan_batch(rounds, 6, 2, False) == Plan(((0, 0), (0, 2), (0, 4), (0, 1)), (True, True, True, False))
    assert plan_batch(rounds, 6, 3, False) == Plan(((0, 0), (0, 2), (0, 4)), (True,) * 3)


@pytest.mark.parametrize("unit", [1, 2, 4])
def test_a_dead_batch_is_one_unit_of_filler(unit):
    plan = plan_batch([sampled(*["tied"] * 8), sampled("all_bad")], 8, unit, keep_dead=False)
    assert plan.live == (False,) * unit
    assert plan.order == tuple((0, g) for g in range(unit))


# -- rounds and attempts


def test_shares_are_of_all_groups_sampled():
    some = {"alive": 0.5, "all_bad": 0.25, "tied": 0.25}
    assert shares([sampled("alive", "tied", "all_bad"), sampled("alive")]) == {**dict.fromkeys(VERDICTS, 0.0), **some}


def test_where_lists_groups_by_verdict():
    mixed = sampled("tied", "alive", "unscored", "alive", "all_good")
    assert [mixed.where(alive=alive) for alive in (True, False)] == [[1, 3], [0, 2, 4]]


def test_tokens_of_an_attempt_are_those_that_the_policy_wrote():
    whole, *masked = (Attempt({}, "p", [1], [2, 3, 4], "c", tool_mask=m) for m in (None, [1, 0, 1], [0, 0, 0]))
    assert [attempt.num_tokens for attempt in (whole, *masked)] == [3, 2, 0]
    assert whole.loss_tokens(masked=True)
    assert not masked[1].loss_tokens(masked=False)
    assert [Attempt({}, "p", [1], [2], "c", truncated=True).loss_tokens(masked) for masked in (0, 1)] == [1, 0]
