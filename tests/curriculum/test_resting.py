"""Which rows rest: what retires a row that is tried often and never learnt, and counts that are kept as rows come."""

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
    """Each row is alive so often, and then found so."""
    for _ in range(alive):
        rests.observe(rows, ["alive"] * len(rows))
    rests.observe(rows, [verdict] * len(rows))


def test_the_limit_is_what_rows_needed_that_were_learnt():
    rests = RestSchedule(100)
    learn(rests, range(31), alive=9)
    assert rests.limit == 3  # too few are known
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
def test_what_ends_alive_visits_is_to_be_settled(verdict, limit):
    rests = RestSchedule(100)
    learn(rests, range(50), alive=5, verdict=verdict)
    assert rests.limit == limit


def test_a_row_tells_the_limit_once_and_only_where_it_was_alive():
    rests = RestSchedule(100)
    learn(rests, range(40), alive=0)
    assert rests.limit == 3
    learn(rests, range(50, 90), alive=5)
    learn(rests, range(50, 90), alive=20)  # noise: they were solved by chance before
    assert rests.limit == 6


def test_what_is_retired_and_not_solved_is_told():
    rests = RestSchedule(100)
    for _ in range(4):
        rests.observe(range(10), ["alive"] * 10)
    assert rests.retired == rests.resting == 0.1
    rests.observe([0, 1], ["all_good", "all_bad"])
    assert rests.retired == 0.09
    for _ in range(20):
        rests.observe([50], ["alive"])
    assert rests.retired == 0.01  # the others' rests, 8 steps and 20, are over; that row rests for two epochs


VISITS = st.lists(
    st.lists(st.tuples(st.integers(0, 11), st.sampled_from(VERDICTS)), min_size=1, max_size=4), max_size=60
)


@tried
@given(VISITS, st.integers(0, 9))
def test_shares_are_those_of_all_rows(batches, waits):
    """Counted as rows come and go, they are what a look at all rows tells; after a resume too."""
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


def test_rewards_that_are_noise_draw_no_more_than_their_share():
    """One row in ten earns by chance; the others are learnt by the third visit."""
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
