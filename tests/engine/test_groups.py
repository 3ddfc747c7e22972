"""The verdict on a group, and which groups make up a batch."""

import math
import random

import pytest
import torch
from trl.trainer.utils import nanstd

from trl_grpo_plus.groups import VERDICTS, Attempt, Plan, Round, extremes, judge, judge_any, plan_batch, shares


NAN = math.nan
DTYPES = [torch.float32, torch.float64]
# All of them rounded in binary, so that a mean of equal ones need not be one of them.
NON_DYADIC = [0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.45, 0.6, 0.7, 0.8, 0.9, 0.95, 1 / 3, 2 / 3, 1.1, 1.3, -0.1, 100.1]


def verdict(rewards, dtype=torch.float32, **limits):
    return judge(torch.tensor([rewards], dtype=dtype), **limits)[0]


def sampled(*verdicts):
    return Round((), torch.zeros(0), tuple(verdicts))


# -- judge


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", range(2, 33))
def test_identical_rewards_are_dead_whatever_their_std(dtype, size):
    rewards = torch.tensor(NON_DYADIC, dtype=dtype).unsqueeze(1).expand(-1, size)
    assert "alive" not in judge(rewards)
    assert "alive" not in judge(rewards, tolerance=0.0)


def test_the_cases_above_do_fool_a_std():
    rewards = torch.tensor(NON_DYADIC).unsqueeze(1).expand(-1, 7)
    assert nanstd(rewards, dim=1).count_nonzero() > 5


@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_sums_of_parts_are_dead(dtype):
    # Each is 0.3 or 0.6 by another route; in binary they differ in the last place.
    assert verdict([0.1 + 0.2, 0.3, 0.4 - 0.1, 0.3], dtype) == "tied"
    assert verdict([3 * 0.2, 0.6, 0.7 - 0.1, 2 * 0.3], dtype) == "tied"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "rewards",
    [
        [1, 0, 0, 0],
        [1, 1, 1, 0],
        [0] + [0.95] * 7,
        [0.95] * 7 + [0],
        [1, -1, 1, -1],
        [0.3, 0.30001],
        [1e-5, 0, 0, 0],
        [-1, -1, -1, -2],
        [0.5] * 31 + [0.51],
    ],
)
def test_rewards_that_differ_are_alive(dtype, rewards):
    assert verdict(rewards, dtype) == "alive"


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([0.5] * 4, "tied"),
        ([1.0] * 4, "all_good"),
        ([2.0] * 4, "all_good"),
        ([0.0] * 4, "all_bad"),
        ([-1.0] * 4, "all_bad"),
        ([0.9] * 4, "tied"),
        ([1 - 5e-7] * 4, "all_good"),
        ([5e-7] * 4, "all_bad"),
        ([1 - 1e-5] * 4, "tied"),
        ([1e-5] * 4, "tied"),
        ([0.3], "tied"),
        ([1.0], "all_good"),
        ([0.0], "all_bad"),
    ],
)
def test_dead_groups_are_good_bad_or_tied(rewards, expected):
    assert verdict(rewards, torch.float64) == expected


@pytest.mark.parametrize(
    ("reward", "expected"), [(0.5, "all_good"), (0.3, "all_good"), (0.1, "tied"), (-0.5, "all_bad"), (-0.7, "all_bad")]
)
def test_thresholds_can_be_moved(reward, expected):
    assert verdict([reward] * 4, solved_reward=0.3, failed_reward=-0.5) == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_threshold_that_the_rewards_only_reach_up_to_rounding_counts(dtype):
    assert verdict([0.3] * 4, dtype, solved_reward=0.1 + 0.2) == "all_good"
    assert verdict([0.1 + 0.2] * 4, dtype, failed_reward=0.3) == "all_bad"


def test_tolerance_is_the_largest_difference_of_a_dead_group():
    assert verdict([0.0, 0.5], tolerance=0.5) != "alive"
    assert verdict([0.0, 0.5, 0.25], tolerance=0.49) == "alive"
    assert verdict([0.0, 1e-30], torch.float64, tolerance=0.0) == "alive"


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([NAN] * 4, "unscored"),
        ([NAN], "unscored"),
        ([NAN, 0.7, NAN, NAN], "tied"),
        ([1.0, NAN, NAN, NAN], "all_good"),
        ([NAN, NAN, NAN, 0.0], "all_bad"),
        ([NAN, 1.0, 0.0, NAN], "alive"),
        ([0.3, NAN, 0.3, 0.3], "tied"),
        ([NAN, 1.0, 1.0, NAN], "all_good"),
        ([NAN, -1.0, -1.0, NAN], "all_bad"),
    ],
)
def test_unscored_attempts_are_left_out(rewards, expected):
    assert verdict(rewards) == expected


def test_the_verdict_does_not_depend_on_the_order_or_on_the_other_groups():
    rng = random.Random(0)
    groups = [rng.choices(rng.choice([[0.0, 0.3, 1.0, NAN], [0.3, NAN], [1.0], [0.0], [NAN]]), k=4) for _ in range(60)]
    together = judge(torch.tensor(groups))
    assert set(together) == set(VERDICTS) - {"truncated"}
    assert together == [verdict(rng.sample(group, 4)) for group in groups]


@pytest.mark.parametrize("rewards", [[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.3, 0.3], [NAN, NAN]])
def test_a_group_with_nothing_to_train_on_is_truncated_whatever_its_rewards(rewards):
    trainable = torch.tensor([[False, False], [False, True], [True, True]])
    found = judge(torch.tensor([rewards] * 3), trainable=trainable)
    assert found == ["truncated", *[verdict(rewards)] * 2]


def test_truncated_attempts_that_differ_from_tied_ones_keep_them_alive():
    """Their rewards are in the mean, so that the others have an advantage."""
    found = judge(torch.tensor([[1.0, 1.0, 0.0, 0.0]]), trainable=torch.tensor([[True, True, False, False]]))
    assert found == ["alive"]


@pytest.mark.parametrize("shape", [(3, 2), (2, 3), (6,)])
def test_what_is_trainable_has_the_rewards_shape(shape):
    with pytest.raises(ValueError, match=r"trainable must be \(2, 2\)"):
        judge(torch.zeros(2, 2), trainable=torch.ones(shape, dtype=torch.bool))


def test_integers_and_half_precision_are_judged_too():
    assert verdict([1, 0], torch.int64) == "alive"
    assert verdict([1, 1], torch.int64) == "all_good"
    assert verdict([0.3] * 8, torch.bfloat16) == "tied"
    assert verdict([0.3, 0.6], torch.float16) == "alive"


@pytest.mark.parametrize("shape", [(4,), (2, 2, 2), ()])
def test_rewards_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"\(P, G\)"):
        judge(torch.zeros(shape))


def test_no_groups_no_verdicts():
    assert judge(torch.zeros(0, 4)) == []


def test_extremes_ignore_unscored_attempts_and_are_float64():
    low, high = extremes(torch.tensor([[NAN, 0.5, -2.0], [NAN, NAN, NAN]]))
    assert low.dtype == high.dtype == torch.float64
    assert low.tolist() == [-2.0, math.inf]
    assert high.tolist() == [0.5, -math.inf]


# -- judge_any


def test_equal_totals_of_differing_components_are_alive_only_through_judge_any():
    components = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]])
    totals = components.sum(dim=-1)
    assert judge(totals) == ["all_good"]
    assert judge_any(components, totals) == ["alive"]


def test_judge_any_takes_a_dead_groups_verdict_from_its_total():
    components = torch.tensor(
        [[[0.5, 0.5]] * 3, [[0.0, 0.0]] * 3, [[0.1, 0.2]] * 3, [[NAN, NAN]] * 3, [[1.0, NAN]] * 3]
    )
    totals = components.nansum(dim=-1).masked_fill(components.isnan().all(dim=-1), NAN)
    assert judge_any(components, totals) == ["all_good", "all_bad", "tied", "unscored", "all_good"]


def test_judge_any_keeps_a_group_for_whichever_component_varies():
    for varying in range(3):
        components = torch.full((3, 4, 3), 0.3)
        components[1, 2, varying] = 0.9
        totals = torch.full((3, 4), 0.9)
        assert judge_any(components, totals) == ["tied", "alive", "tied"]


def test_judge_any_does_not_see_a_component_that_applies_to_one_attempt():
    components = torch.tensor([[[0.3, NAN], [0.3, 0.9], [0.3, NAN]]])
    assert judge_any(components, torch.full((1, 3), 0.3)) == ["tied"]


def test_judge_any_passes_the_limits_on():
    components = torch.tensor([[[0.2], [0.3]]])
    assert judge_any(components, components[..., 0]) == ["alive"]
    assert judge_any(components, components[..., 0], tolerance=0.2, solved_reward=0.2) == ["all_good"]
    assert judge_any(components, components[..., 0], tolerance=0.2, failed_reward=0.3, solved_reward=9) == ["all_bad"]


def test_judge_any_calls_a_group_with_nothing_to_train_on_truncated():
    components = torch.tensor([[[0.2], [0.3]]] * 2)
    trainable = torch.tensor([[False, False], [True, False]])
    assert judge_any(components, components[..., 0], trainable=trainable) == ["truncated", "alive"]


# -- plan_batch


def random_rounds(rng, target):
    chance = rng.choice([0.0, 0.2, 0.5, 0.9, 1.0])

    def drawn(size):
        return sampled(*("alive" if rng.random() < chance else rng.choice(VERDICTS[1:]) for _ in range(size)))

    return [drawn(target), *(drawn(rng.randint(0, target + 2)) for _ in range(rng.randint(0, 3)))]


@pytest.mark.parametrize("keep_dead", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_plan_properties(seed, keep_dead):
    rng = random.Random(seed)
    for _ in range(200):
        unit = rng.randint(1, 4)
        target = unit * rng.randint(1, 5)
        rounds = random_rounds(rng, target)
        check_plan(plan_batch(rounds, target, unit, keep_dead), rounds, target, unit, keep_dead)


def check_plan(plan, rounds, target, unit, keep_dead):
    assert len(plan.order) == len(plan.live)
    assert len(set(plan.order)) == len(plan.order)
    assert unit <= len(plan.order) <= target
    assert len(plan.order) % unit == 0
    alive = {(r, g) for r, sampled_round in enumerate(rounds) for g in sampled_round.where(alive=True)}
    trained = [key for key, live in zip(plan.order, plan.live, strict=True) if live]
    filler = plan.order[len(trained) :]
    assert list(plan.live) == sorted(plan.live, reverse=True)  # filler comes last
    # Every live group of the first round is trained on, in order; later ones in the order they were found.
    first = [key for key in trained if key in alive and key[0] == 0]
    later = [key for key in trained if key in alive and key[0] > 0]
    assert first == [(0, g) for g in rounds[0].where(alive=True)]
    assert later == sorted(alive - set(first))[: len(later)]
    assert len(first) + len(later) == min(target, len(alive))
    # Dead groups: from the first round only, trained on only under keep_dead, else no more than are needed.
    assert all(key[0] == 0 and key not in alive for key in filler)
    dead = [key for key in trained if key not in alive]
    if keep_dead:
        assert len(trained) == target
        assert all(plan.order[g] == (0, g) for _, g in (*first, *dead))
    else:
        assert not dead
        assert len(filler) == (unit if not trained else -len(trained) % unit)


def test_live_groups_keep_their_place_and_found_ones_take_the_dead_ones_places():
    rounds = [sampled("all_bad", "alive", "tied", "alive"), sampled("tied", "alive"), sampled("alive", "alive")]
    assert plan_batch(rounds, 4, 1, False) == Plan(order=((1, 1), (0, 1), (2, 0), (0, 3)), live=(True,) * 4)


def test_the_deficit_leaves_or_is_filled_with_dead_groups():
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


def test_more_found_than_missing_does_not_grow_the_batch():
    plan = plan_batch([sampled("alive", "tied"), sampled("alive", "alive", "alive")], 2, 1, keep_dead=False)
    assert plan == Plan(((0, 0), (1, 0)), (True, True))


# -- the rest


def test_shares_are_of_all_groups_sampled():
    result = shares([sampled("alive", "tied", "all_bad"), sampled("alive")])
    others = {"all_good": 0.0, "unscored": 0.0, "truncated": 0.0}
    assert result == {"alive": 0.5, "all_bad": 0.25, "tied": 0.25, **others}


def test_shares_sum_to_one():
    rng = random.Random(3)
    for _ in range(50):
        result = shares(random_rounds(rng, rng.randint(1, 20)))
        assert tuple(result) == VERDICTS
        assert sum(result.values()) == pytest.approx(1.0)


def test_where_lists_groups_by_verdict():
    mixed = sampled("tied", "alive", "unscored", "alive", "all_good")
    assert mixed.where(alive=True) == [1, 3]
    assert mixed.where(alive=False) == [0, 2, 4]


def test_tokens_of_an_attempt_are_those_that_the_policy_wrote():
    attempt = Attempt({}, "p", [1], [2, 3, 4], "c")
    assert attempt.num_tokens == 3
    assert Attempt({}, "p", [1], [2, 3, 4], "c", tool_mask=[1, 0, 1]).num_tokens == 2
    assert Attempt({}, "p", [1], [2, 3], "c", tool_mask=[0, 0]).num_tokens == 0
