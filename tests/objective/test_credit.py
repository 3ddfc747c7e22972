"""Tests of the way from a batch's rewards to its advantages: arguments, filler, and the running std."""

from dataclasses import replace
from types import SimpleNamespace

import advantages_by_keyword as advantages
import pytest
import torch

from trl_grpo_plus import GRPOPlusConfig
from trl_grpo_plus.curriculum.beliefs import Belief
from trl_grpo_plus.objective import advantages as rule
from trl_grpo_plus.objective import kl, scales
from trl_grpo_plus.objective.baselines import BASELINES
from trl_grpo_plus.objective.credit import Credit
from trl_grpo_plus.objective.group_batch import GroupBatch


def credit(**options):
    names = ("multi_objective_aggregation", "advantage_baseline", "scale_rewards", "std_ddof", "std_eps", "std_floor")
    names += ("zero_variance_tolerance", "running_std_decay", "advantage_clip", "kl_reward_form")
    names += ("solved_reward", "failed_reward", "advantage_estimator")
    defaults = {name: GRPOPlusConfig.__dataclass_fields__[name].default for name in names}
    return Credit(SimpleNamespace(**{**defaults, **options}))


REWARDS = torch.tensor([[0.9, 1.0], [0.2, 0.0], [0.4, 1.0], [0.1, 0.0], [0.7, 0.0], [0.7, 1.0]])
LENGTHS = torch.tensor([3, 1, 4, 1, 5, 9])
LENGTHS_OF_TWO, LENGTHS_OF_THREE = (GroupBatch(lengths=LENGTHS[: 2 * groups].view(groups, 2)) for groups in (2, 3))
WEIGHTS = torch.tensor([1.0, 0.0])  # the second is a monitor
BELIEF = Belief(torch.tensor([0.5, 0.1]), torch.tensor([0.25, 0.001]), torch.tensor([2.0, 20.0]))


def taught(belief: Belief) -> GroupBatch:
    """Return two groups that may have an advantage, with this belief about their prompts."""
    return replace(LENGTHS_OF_TWO, beliefs=(belief,), teaching=torch.tensor([True, True]))


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("scale", [name for name, scale in scales.SCALES.items() if scale.over != "run"])
def test_a_batch_has_the_chosen_advantages_and_filler_none(baseline, scale):
    """The batch has two live groups of two, and one of filler."""
    options = {"advantage_baseline": baseline, "scale_rewards": scale, "std_ddof": 0, "std_eps": 1e-6}
    known = replace(LENGTHS_OF_TWO, beliefs=(BELIEF,), teaching=torch.tensor([True, False]))
    of_batch = ((2, 2), REWARDS, WEIGHTS, known)
    values = credit(**options, std_floor=0.05).advantages(*of_batch)
    groups = REWARDS[:4, 0].view(2, 2), LENGTHS[:4].view(2, 2)
    floor = 0.02**0.5 if baseline == "belief" else 0.05  # `BELIEF_FLOOR` for rewards from 0 to 1
    about = {"lengths": groups[1], "belief": BELIEF, "teaching": torch.tensor([True, False])}
    expected = advantages.compute(groups[0], baseline, scale, 0, 1e-6, floor, **about)
    torch.testing.assert_close(values, torch.cat([expected.flatten(), torch.zeros(2)]))
    clipped = credit(**options, std_floor=0.05, advantage_clip=0.1).advantages(*of_batch)
    torch.testing.assert_close(clipped, values.clamp(-0.1, 0.1))
    assert values.abs().max() > 0.1


def test_rewards_are_normalised_separately():
    weights, by_itself = torch.tensor([1.0, 0.5]), credit(multi_objective_aggregation="normalize_then_sum")
    values = by_itself.advantages((3, 2), REWARDS, weights, LENGTHS_OF_THREE)
    expected = advantages.normalize_then_sum(REWARDS.view(3, 2, 2), weights)
    torch.testing.assert_close(values, expected.flatten())


@pytest.mark.parametrize("form", ["sequence", "reward_to_go"])
def test_the_kl_is_subtracted_where_it_is_given(form):
    to_go = torch.rand(6, 5, generator=torch.Generator().manual_seed(0))
    values = credit(kl_reward_form=form).advantages((2, 2), REWARDS, WEIGHTS, LENGTHS_OF_TWO, to_go, beta=0.3)
    groups = REWARDS[:4, 0].view(2, 2), to_go[:4].view(2, 2, 5)
    expected = advantages.compute_with_kl(*groups, 0.3, per_token=form == "reward_to_go").flatten(0, 1)
    torch.testing.assert_close(values, torch.cat([expected, expected.new_zeros(2, *expected.shape[1:])]))


def test_the_running_std_is_that_of_the_batches_so_far():
    running = credit(scale_rewards="running", running_std_decay=0.75, std_eps=0.0)
    first = running.advantages((3, 2), REWARDS, WEIGHTS, LENGTHS_OF_THREE)
    variance = REWARDS[:, 0].double().var().item()
    assert running.running_variance == pytest.approx(variance)
    centred = advantages.compute(REWARDS[:, 0].view(3, 2), scale="none").flatten()
    torch.testing.assert_close(first, centred / variance**0.5)
    running.advantages((3, 2), 2 * REWARDS, WEIGHTS, LENGTHS_OF_THREE)
    assert running.running_variance == pytest.approx(0.75 * variance + 0.25 * 4 * variance)
    resumed = credit(scale_rewards="running")
    resumed.load_state_dict(running.state_dict())
    assert resumed.running_variance == running.running_variance


@pytest.mark.parametrize("scale", ["batch", "running", "prior", "none"])
def test_a_surprise_is_bounded_where_all_rewards_are_alike(scale):
    """All attempts succeed, which the beliefs did not expect. The spread of the batch is 0, so a floor bounds the
    advantages."""
    belief = Belief(torch.tensor([0.5, 0.9]), torch.tensor([0.25, 0.09]), torch.tensor([2.0, 8.0]))
    shaping = {"advantage_baseline": "belief", "scale_rewards": scale}
    of_batch = ((2, 2), torch.ones(4, 2), WEIGHTS, taught(belief))
    values = credit(**shaping).advantages(*of_batch)
    assert (values > 0).all()
    assert values.max() <= 1 / 0.02**0.5


@pytest.mark.parametrize(
    ("scale", "by"),
    [("batch", "sum_then_normalize"), ("prior", "sum_then_normalize"), ("prior", "normalize_then_sum")],
)
@pytest.mark.parametrize("rewards", [REWARDS[:4], torch.ones(4, 2)], ids=["some", "all alike"])
def test_the_unit_of_rewards_changes_no_surprise(scale, by, rewards):
    """The bound of a surprise grows with the range of rewards: -5 to 95 is a hundred times as wide as 0 to 1."""
    belief = Belief(torch.tensor([0.5, 0.99]), torch.tensor([0.25, 0.0099]), torch.tensor([2.0, 8.0]))
    scaled = Belief(100 * belief.mean - 5, 100**2 * belief.variance, belief.count)
    shaping = {"advantage_baseline": "belief", "scale_rewards": scale, "std_eps": 0.0}
    shaping["multi_objective_aggregation"] = by
    wide = {**shaping, "failed_reward": -5.0, "solved_reward": 95.0}
    plain, other = (
        credit(**options).advantages((2, 2), values, WEIGHTS, taught(about))
        for options, values, about in ((shaping, rewards, belief), (wide, 100 * rewards - 5, scaled))
    )
    torch.testing.assert_close(other, plain, atol=1e-5, rtol=1e-5)
    assert plain.abs().max() > 0.1


def test_batches_without_a_spread_leave_the_running_std():
    """Batches without a live group, without scores or with equal rewards do not move the running std. The spread of
    equal rewards is that of the KL alone, and dividing by it would undo beta."""
    running = credit(scale_rewards="running", std_eps=0.0)
    to_go = torch.rand(6, 5, generator=torch.Generator().manual_seed(0))
    unscored = torch.full((6, 2), torch.nan)
    assert running.advantages((3, 2), unscored, WEIGHTS, LENGTHS_OF_THREE).tolist() == [0.0] * 6
    assert running.running_variance is None  # 0 would make the next batch's advantages three times as large
    tied = torch.ones(6, 2)
    values = running.advantages((3, 2), tied, WEIGHTS, LENGTHS_OF_THREE, to_go, beta=0.3)
    assert running.running_variance is None
    torch.testing.assert_close(values[:2], 0.3 * (to_go[:2, 0].mean() - to_go[:2, 0]))  # the scale is 1
    running.advantages((0, 2), REWARDS, WEIGHTS, GroupBatch(lengths=LENGTHS[:0].view(0, 2)))
    assert running.running_variance is None
    running.advantages((3, 2), REWARDS, WEIGHTS, LENGTHS_OF_THREE, to_go, beta=0.3)
    before = running.running_variance
    assert before == pytest.approx((REWARDS[:, 0] - 0.3 * to_go[:, 0]).var().item(), rel=1e-5)
    values = running.advantages((3, 2), tied, WEIGHTS, LENGTHS_OF_THREE, to_go, beta=0.3)
    running.advantages((3, 2), unscored, WEIGHTS, LENGTHS_OF_THREE)
    assert running.running_variance == before > 0
    torch.testing.assert_close(values[:2], 0.3 * (to_go[:2, 0].mean() - to_go[:2, 0]) / before**0.5)


@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_skipped_attempts_count_in_the_running_std_with_a_kl_in_the_reward(beta):
    running, to_go = credit(scale_rewards="running"), torch.rand(4, 5, generator=torch.Generator().manual_seed(0))
    skipped = torch.tensor([1.0, 1.0, torch.nan])
    running.advantages((2, 2), REWARDS[:4], WEIGHTS, replace(LENGTHS_OF_TWO, skipped=skipped), to_go, beta)
    expected = torch.cat([REWARDS[:4, 0] - beta * to_go[:, 0], torch.ones(2)])
    assert running.running_variance == pytest.approx(expected.double().var().item(), rel=1e-6)


def test_the_tables_of_the_modules_name_every_entry():
    for module, names in ((rule, BASELINES), (scales, scales.SCALES)):
        assert [name for name in names if module.__doc__.count(f"| {name} |") != 1] == []
    for name, estimator in kl.ESTIMATORS.items():
        rows = [line for line in kl.__doc__.splitlines() if line.startswith(f"| {name} ")]
        assert len(rows) == 1
        assert ("refused" in rows[0]) == bool(estimator.unweighted_refused)
        assert f" {name} = " in kl.__doc__
