"""Tests of which rows rest: rows that are often alive and never learnt retire, and shares are counted as rows come."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import tried

from trl_grpo_plus.curriculum.beliefs import Beliefs
from trl_grpo_plus.curriculum.resting import RETIRED, RestSchedule
from trl_grpo_plus.curriculum.row_table import saved_rows
from trl_grpo_plus.curriculum.samplers import LearnabilitySampler
from trl_grpo_plus.rollouts.groups import judge
from trl_grpo_plus.rollouts.verdicts import VERDICTS


def learn(rests: RestSchedule, rows: range, alive: int, verdict: str = "all_good") -> None:
    """Observe each row as alive `alive` times, then with `verdict`."""
    for _ in range(alive):
        rests.observe(rows, ["alive"] * len(rows))
    rests.observe(rows, [verdict] * len(rows))


def test_the_limit_is_what_learnt_rows_needed():
    rests = RestSchedule(100)
    learn(rests, range(31), alive=9)
    assert rests.limit == 3  # too few rows were learnt to set it
    learn(rests, range(31, 40), alive=9)
    assert rests.limit == 10  # one more than they needed


@pytest.mark.parametrize(("slow", "limit"), [(15, 3), (25, 6)])
def test_four_in_five_need_no_more(slow, limit):
    rests = RestSchedule(100)
    for rows in (range(slow, 60), range(slow), range(60, 100)):
        learn(rests, rows, alive=5 if rows[0] == 0 else 2)
    assert rests.limit == limit


def test_what_rows_needed_is_forgotten():
    rests = RestSchedule(1000)
    learn(rests, range(400), alive=9)
    learn(rests, range(400, 1000), alive=2)
    assert rests.limit == 3


@pytest.mark.parametrize(("verdict", "limit"), [("all_good", 6), ("tied", 6), ("all_bad", 3), ("unscored", 3)])
def test_a_row_sets_the_limit_only_if_it_is_settled(verdict, limit):
    rests = RestSchedule(100)
    learn(rests, range(50), alive=5, verdict=verdict)
    assert rests.limit == limit


def test_a_row_counts_for_the_limit_once_and_only_after_alive_visits():
    rests = RestSchedule(100)
    learn(rests, range(40), alive=0)
    assert rests.limit == 3
    learn(rests, range(50, 90), alive=5)
    learn(rests, range(50, 90), alive=20)  # these rows are noise, and were solved by chance before
    assert rests.limit == 6


def test_the_retired_share_leaves_out_solved_rows_and_ended_rests():
    rests = RestSchedule(100)
    for _ in range(4):
        rests.observe(range(10), ["alive"] * 10)
    assert rests.retired == rests.resting == 0.1
    rests.observe([0, 1], ["all_good", "all_bad"])
    assert rests.retired == 0.09
    for _ in range(20):
        rests.observe([50], ["alive"])
    assert rests.retired == 0.01  # the rests of 8 and 20 steps are over; row 50 rests for two epochs


VISITS = st.lists(
    st.lists(st.tuples(st.integers(0, 11), st.sampled_from(VERDICTS)), min_size=1, max_size=4), max_size=60
)


@tried
@given(VISITS, st.integers(0, 9))
def test_shares_are_those_of_all_rows(batches, waits):
    """The shares, which are counted as rows come, equal those over all rows, also after a resume."""
    rests = RestSchedule(12)
    for number, batch in enumerate(batches):
        rests.wait(torch.tensor(sorted({row for row, _ in batch})), rests.step + waits)
        rests.observe([row for row, _ in batch], [verdict for _, verdict in batch])
        state = rests.state_dict()
        resting = rests.free_at(range(12)) > rests.step
        retired = torch.zeros(12, dtype=torch.bool)
        retired[saved_rows(state["table"])] = (state["table"]["marks"] & RETIRED) > 0
        assert rests.resting == pytest.approx(float(resting.double().mean()))
        assert rests.retired == pytest.approx(float((resting & retired).double().mean()))
        if number == len(batches) // 2:
            rests = RestSchedule(12)
            rests.load_state_dict(state)


def test_noisy_rewards_are_sampled_no_more_than_their_share():
    """One row in ten gets random rewards. The others are learnt by their third visit."""
    beliefs, stream, chance = Beliefs(400), LearnabilitySampler(400, 1), torch.Generator().manual_seed(0)
    noise, visits, sampled = torch.arange(400) % 10 == 0, torch.zeros(400), 0
    for step in range(400):
        rows = torch.tensor(stream.take(20, lambda row: True, believe=lambda pool: (beliefs.of(pool), beliefs.skill)))
        rate = torch.where(noise[rows], 0.5, visits[rows] / 3).clamp(max=1)
        rewards = (torch.rand(20, 2, generator=chance) < rate.unsqueeze(1)).double()
        beliefs.observe(rows, rewards, beliefs.of(rows))
        stream.observe(rows.tolist(), rewards, judge(rewards))
        visits[rows] += 1
        sampled += int(noise[rows].sum()) if step >= 200 else 0
    assert sampled / 4000 < 0.12
    assert stream.metrics()["selection/retired"] == pytest.approx(0.1, abs=0.04)


def test_a_row_that_only_waits_is_not_retired():
    rests = RestSchedule(100)
    for _ in range(4):
        rests.observe([0], ["alive"])
    assert rests.retired == 0.01
    rests.wait(torch.tensor([0]), rests.step + 50)
    assert (rests.retired, rests.resting) == (0, 0.01)
