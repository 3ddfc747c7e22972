"""Tests of the range of rewards: usual rewards widen it, one bad reward does not, and unreached ends are forgotten."""

import pytest
import torch
from hypothesis_strategies import NAN

from trl_grpo_plus.curriculum.belief_head import Ridge
from trl_grpo_plus.curriculum.beliefs import Beliefs
from trl_grpo_plus.curriculum.reward_range import BATCHES, RewardRange


PLAIN = torch.tensor([[0.0, 1.0]] * 12, dtype=torch.float64)
BAD = [-100.0, 1e6, -1e30, 3e38]


def ends(of: RewardRange) -> tuple[float, float]:
    return of.low, of.high


def with_bad(bad: float, groups: int) -> torch.Tensor:
    """Make a batch in which the first `groups` groups hold a bad reward."""
    rewards = PLAIN.clone()
    rewards[:groups, 1] = bad
    return rewards


@pytest.mark.parametrize("bad", BAD)
def test_one_bad_reward_leaves_the_range_and_is_clipped_to_it(bad):
    of = RewardRange(0, 1)
    for batch in (PLAIN, with_bad(bad, groups=1), PLAIN):
        inside = of.observe(batch)
        assert ends(of) == (0, 1)
        assert inside[0, 1] == (1.0 if batch[0, 1] > 0 else 0.0)
        assert of.outside == pytest.approx(1 / 24 if batch[0, 1] == bad else 0)


@pytest.mark.parametrize("bad", BAD)
def test_one_bad_batch_leaves_the_range(bad):
    of = RewardRange(0, 1)
    of.observe(PLAIN)
    of.observe(with_bad(bad, groups=12))
    assert ends(of) == (0, 1)


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_first_batch_is_forgotten_with_the_second(bad):
    of = RewardRange(0, 1)
    of.observe(with_bad(bad, groups=12))
    of.observe(PLAIN)
    assert ends(of) == (0, 1)


@pytest.mark.parametrize("groups", [1, 2, 12, 300])
def test_usual_rewards_widen_the_range_at_once(groups):
    of = RewardRange(0, 1)
    rewards = torch.tensor([[-1.0, 2.5], [0.5, 0.5]] * groups, dtype=torch.float64)[: max(groups, 1)]
    assert torch.equal(of.observe(rewards.repeat(2, 1)), rewards.repeat(2, 1))
    assert ends(of) == (-1, 2.5)
    of.observe(PLAIN)
    of.observe(rewards.repeat(2, 1))
    assert ends(of) == (-1, 2.5)


def test_an_end_that_is_not_reached_is_forgotten_unless_it_was_set():
    of = RewardRange(-1, 1)
    for _ in range(3):
        of.observe(8 * PLAIN)
    for left in range(BATCHES, 0, -1):
        assert of.high == 8 or left <= 1
        of.observe(PLAIN)
    assert ends(of) == (-1, 1)


def test_a_reward_slightly_beyond_the_others_is_not_bad():
    of = RewardRange(0, 1)
    rewards = torch.linspace(0, 10, 24, dtype=torch.float64).view(12, 2)
    assert torch.equal(of.observe(rewards), rewards)
    assert ends(of) == (0, 10)


def test_unscored_batches_leave_the_range():
    of = RewardRange(0, 1)
    of.observe(5 * PLAIN)
    for nobody in (torch.full((3, 2), NAN), torch.empty(0, 2)):
        of.observe(nobody.double())
        assert ends(of) == (0, 5)
    assert of.observe(torch.tensor([[NAN, 3.0]], dtype=torch.float64)).isnan().tolist() == [[True, False]]


# -- the range in beliefs


def trained(bad: float | None, groups: int = 1, steps: int = 60) -> tuple[Beliefs, Ridge]:
    """Train beliefs and a head on prompts whose rates follow from their states.

    At step 20 the first `groups` groups get the reward `bad`.
    """
    chance = torch.Generator().manual_seed(0)
    beliefs, ridge = Beliefs(200), Ridge()
    slope = torch.randn(8, generator=chance, dtype=torch.float64)
    states = torch.randn(200, 8, generator=chance, dtype=torch.float64)
    rates = (2 * states @ slope).sigmoid()
    for step in range(steps):
        rows = torch.randperm(200, generator=chance)[:24]
        rewards = (torch.rand(24, 4, generator=chance, dtype=torch.float64) < rates[rows, None]).double()
        if step == 20 and bad is not None:
            rewards[:groups, 0] = bad
        beliefs.observe(rows, rewards, beliefs.of(rows))
        ridge.learn(states[rows], rewards)
    return beliefs, ridge


@pytest.mark.parametrize("groups", [1, 24])
@pytest.mark.parametrize("bad", [-100.0, 1e6])
def test_bad_rewards_cost_no_skill(bad, groups):
    (clean, clean_head), (beliefs, head) = trained(None), trained(bad, groups)
    assert clean.skill > 0.5
    assert clean_head.skill > 0.5
    assert beliefs.skill == pytest.approx(clean.skill, abs=0.1)
    assert head.skill == pytest.approx(clean_head.skill, abs=0.1)
    for name in ("solved", "hopeless"):
        expected = clean.metrics()[f"beliefs/{name}"]
        assert beliefs.metrics()[f"beliefs/{name}"] == pytest.approx(expected, abs=0.05)
    torch.testing.assert_close(beliefs.of(range(200)).mean, clean.of(range(200)).mean, atol=0.1, rtol=0)
    spread = head.predict(torch.randn(50, 8, generator=torch.Generator().manual_seed(1)))[0].std()
    assert spread > 0.2  # the predictions still differ by prompt


def test_the_share_of_rewards_outside_is_logged():
    beliefs = Beliefs(12)
    for rewards, outside in ((PLAIN, 0), (with_bad(-100.0, groups=1), 1 / 24), (PLAIN, 0)):
        beliefs.observe(range(12), rewards, beliefs.of(range(12)))
        assert beliefs.metrics()["beliefs/outside"] == pytest.approx(outside)


def test_memories_of_a_wider_range_are_clipped_to_the_present_one():
    beliefs = Beliefs(13)
    for _ in range(3):
        beliefs.observe([12, 0], torch.tensor([[-8.0, -8.0], [-8.0, 1.0]]), beliefs.of([12, 0]))
    assert beliefs.of([12]).mean < -4
    for _ in range(BATCHES):
        beliefs.observe(range(12), PLAIN, beliefs.of(range(12)))
    assert beliefs.of([12]).mean == 0
    assert beliefs.of([12]).variance == 0


def test_rewards_too_large_to_square_do_not_stop_the_run():
    for rewards in (
        torch.full((4, 2), 1e300, dtype=torch.float64),
        PLAIN[:4],
        torch.full((4, 2), -1.7e308, dtype=torch.float64),
    ):
        beliefs, ridge = Beliefs(4), Ridge()
        for _ in range(3):
            beliefs.observe(range(4), rewards.double(), beliefs.of(range(4)))
            ridge.learn(torch.randn(4, 3), rewards.double())
        assert 0 <= beliefs.skill <= 1
        assert 0 <= ridge.skill <= 1
