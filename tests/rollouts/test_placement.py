"""Tests of the placement of groups: rows stay on their rank if possible, and rows that must move arrive."""

import math
import pickle
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_strategies import tried

from trl_grpo_plus.rollouts import exchange as hand_over
from trl_grpo_plus.rollouts.exchange import exchange, with_fewest_moves
from trl_grpo_plus.rollouts.groups import Attempt, Partition, Plan, Round, plan_batch
from trl_grpo_plus.rollouts.resampling import settle
from trl_grpo_plus.rollouts.verdicts import VERDICTS


def moved(order, held, size, ranks):
    """Count the rows that change rank."""
    share = len(order) * size // ranks
    rows = [(r, group * size + k) for r, group in order for k in range(size)]
    return sum(row // held[r] != place // share for place, (r, row) in enumerate(rows))


@st.composite
def batches(draw, most_size=6):
    """Draw a group's size, the number of ranks, a divisor of the batch's number of groups, and verdicts by round."""
    size, ranks = draw(st.integers(1, most_size)), draw(st.integers(1, 8))
    least = ranks // math.gcd(size, ranks)  # the fewest groups whose rows divide evenly over the ranks
    unit = least * draw(st.integers(1, 2))
    verdicts = st.one_of(st.just("alive"), st.sampled_from(VERDICTS))

    def one_round(groups):
        return tuple(draw(st.lists(verdicts, min_size=groups, max_size=groups)))

    first = unit * draw(st.integers(1, 4))
    later = draw(st.lists(st.integers(1, max(1, first // least)), max_size=2))
    return size, ranks, unit, [one_round(first), *(one_round(least * parts) for parts in later)]


def plans(drawn, keep_dead):
    """Return the plan, the placed plan, and the number of rows per rank in each round."""
    size, ranks, unit, verdicts = drawn
    rounds = [Round((), torch.zeros(0), of_one) for of_one in verdicts]
    held = [len(of_one) * size // ranks for of_one in verdicts]
    plan = plan_batch(rounds, len(verdicts[0]), unit, keep_dead)
    return plan, with_fewest_moves(plan, held, size, ranks), held


@settings(tried, max_examples=200)
@given(batches(), st.booleans())
def test_the_same_groups_are_trained_on_and_no_more_rows_move(drawn, keep_dead):
    size, ranks, *_ = drawn
    plan, placed, held = plans(drawn, keep_dead)
    assert placed.live == plan.live
    live = sum(plan.live)
    for part in (slice(live), slice(live, None)):  # live groups, then filler
        assert Counter(placed.order[part]) == Counter(plan.order[part])
    before, now = (moved(one.order, held, size, ranks) for one in (plan, placed))
    assert now <= before
    assert (placed == plan) == (now == before)
    assert ranks > 1 or placed == plan


@settings(tried, max_examples=200)
@given(batches(), st.booleans())
def test_as_few_rows_as_possible_move_if_groups_are_whole_on_ranks(drawn, keep_dead):
    """If each group is whole on one rank, a rank trains on as many of its own groups as it has room for."""
    size, ranks, *_ = drawn
    plan, placed, held = plans(drawn, keep_dead)
    share = len(plan.order) * size // ranks
    if share % size or any(rows % size for rows in held):
        return
    live, staying = sum(plan.live), 0
    for part in (range(live), range(live, len(plan.order))):
        own = Counter(plan.order[i][1] * size // held[plan.order[i][0]] for i in part)
        room = Counter(i * size // share for i in part)
        staying += size * (own & room).total()
    assert moved(placed.order, held, size, ranks) == len(plan.order) * size - staying


def test_live_groups_keep_their_places_and_found_ones_go_where_they_were_sampled():
    """Each of two ranks has a dead group and finds a live one. Found groups that were planned in the other order swap
    their places, so that they stay on their ranks."""
    first = Round((), torch.zeros(0), ("alive", "tied", "tied", "alive"))
    found = Round((), torch.zeros(0), ("tied", "alive", "alive", "alive"))
    plan = plan_batch([first, found], 4, 2, False)
    assert plan.order == ((0, 0), (1, 1), (1, 2), (0, 3))
    assert with_fewest_moves(plan, [4, 4], 2, 2) == plan
    found_first = Plan(((1, 2), (0, 1), (1, 1), (0, 3)), (True,) * 4)
    assert with_fewest_moves(found_first, [4, 4], 2, 2).order == ((1, 1), (0, 1), (1, 2), (0, 3))


def test_groups_that_lie_on_two_ranks_go_where_most_of_their_rows_are():
    """Four ranks hold one group of four each, and two groups are left. In the right place a group keeps half of its
    rows on their rank."""
    plan = Plan(((0, 2), (0, 0)), (True, True))
    assert with_fewest_moves(plan, [4], 4, 4) == Plan(((0, 0), (0, 2)), (True, True))
    assert moved(plan.order, [4], 4, 4) == 8
    assert moved(((0, 0), (0, 2)), [4], 4, 4) == 4


def test_a_place_goes_to_the_group_that_has_most_rows_there():
    """Of three groups of four on two ranks, the middle one has two rows on each rank and fits each place by half."""
    assert with_fewest_moves(Plan(((0, 1), (0, 2), (0, 0)), (True,) * 3), [6], 4, 2).order == ((0, 0), (0, 1), (0, 2))


@pytest.mark.parametrize(
    ("held", "ranks", "order", "placed"),
    [
        # For each place there is a group of two with one row on the place's rank. In some groups it is the first row,
        # in others the second.
        (3, 4, [4, 3, 1, 0], [0, 1, 3, 4]),
        (3, 4, [4, 5, 1, 2], [1, 2, 4, 5]),
        (2, 4, [3, 1], [1, 3]),
    ],
)
def test_each_row_of_a_group_that_lies_on_two_ranks_counts(held, ranks, order, placed):
    plan = Plan(tuple((0, group) for group in order), (True,) * len(order))
    found = with_fewest_moves(plan, [held], 2, ranks)
    assert found.order == tuple((0, group) for group in placed)
    assert moved(found.order, [held], 2, ranks) == 2 < moved(plan.order, [held], 2, ranks)


def test_filler_stays_behind_live_groups_even_if_a_rank_holds_it_first():
    plan = Plan(((0, 3), (0, 0), (0, 1), (0, 2)), (True, False, False, False))
    placed = with_fewest_moves(plan, [1], 1, 4)
    assert placed == Plan(((0, 3), (0, 1), (0, 2), (0, 0)), plan.live)


# -- the rows themselves


def everyone(monkeypatch, call, ranks):
    """Return the results of `call(rank)` on all ranks, each of which gets what is for it, and what each sent."""
    sent: list[dict[int, bytes]] = []

    class Sent(Exception):
        pass

    def keep(make):
        sent.append(make())
        raise Sent

    for rank in range(ranks):
        monkeypatch.setattr(hand_over, "all_to_all_made", keep)
        try:
            call(rank)
        except Sent:
            continue
        sent.append({})
    results = []
    for rank in range(ranks):
        received = [of_rank[rank] for of_rank in sent if rank in of_rank]
        monkeypatch.setattr(hand_over, "all_to_all_made", lambda make, received=received: received)
        results.append(call(rank))
    return results, sent


def attempts_of(rank, r, groups, size, ranks):
    rows = range(groups * size // ranks * rank, groups * size // ranks * (rank + 1))
    return tuple(Attempt({"row": row}, f"{r} {row // size}", [r], [row], f"{r} {row}") for row in rows)


@pytest.mark.parametrize(("size", "ranks"), [(4, 2), (3, 2), (2, 8), (16, 8), (5, 1)])
def test_each_rank_trains_on_its_rows_of_the_plan(monkeypatch, size, ranks):
    least = ranks // math.gcd(size, ranks)
    first, found = 4 * least, 2 * least
    dead = [group % 3 == 1 for group in range(first)]
    verdicts = [tuple("tied" if is_dead else "alive" for is_dead in dead), ("tied", "alive") * (found // 2)]

    def of(rank):
        return [
            Round(attempts_of(rank, r, len(of_one), size, ranks), torch.zeros(len(of_one) * size, 1), of_one)
            for r, of_one in enumerate(verdicts)
        ]

    plans = {settle(of(rank), "drop", 0, least) for rank in range(ranks)}
    assert len(plans) == 1
    (plan,) = plans
    planned = plan_batch(of(0), first, least, False)
    held = [len(of_one) * size // ranks for of_one in verdicts]
    assert plan == with_fewest_moves(planned, held, size, ranks)
    assert plan != planned or (size, ranks) != (2, 8)
    own = [Partition(size, rank, ranks) for rank in range(ranks)]
    rows, sent = everyone(monkeypatch, lambda rank: exchange(of(rank), plan.order, own[rank]), ranks)
    assert {len(of_rank) for of_rank in rows} == {len(plan.order) * size // ranks}
    expected = [(f"{r} {group}", f"{r} {group * size + k}") for r, group in plan.order for k in range(size)]
    assert [(attempt.prompt, attempt.completion) for of_rank in rows for attempt in of_rank] == expected
    # Rows that stay are not sent, and no rank sends a parcel to itself.
    written = [len(pickle.loads(parcel)) for of_rank in sent for parcel in of_rank.values()]
    assert sum(written) == moved(plan.order, held, size, ranks)
    for rank, of_rank in enumerate(sent):
        assert rank not in of_rank


@dataclass
class OnADevice:
    """Stands for a tensor on a GPU, which pickle would restore on the GPU of its number."""

    device: str

    def to(self, device, **options):
        return OnADevice(str(device))


def test_a_tensor_in_a_row_moves_to_the_device_of_its_new_process(monkeypatch):
    rounds = [[Round(attempts_of(rank, 0, 4, 2, 2), torch.zeros(8, 1), ("alive",) * 4)] for rank in range(2)]
    for (sampled,) in rounds:
        for attempt in sampled.attempts:
            attempt.inputs["number"] = attempt.logged["number"] = OnADevice("cuda:5")
    monkeypatch.setattr(hand_over, "PartialState", lambda: SimpleNamespace(device="cuda:1"))
    order = [(0, 3), (0, 2), (0, 1), (0, 0)]
    results, sent = everyone(monkeypatch, lambda rank: exchange(rounds[rank], order, Partition(2, rank, 2)), 2)
    sent_rows = [attempt for parcels in sent for parcel in parcels.values() for _, attempt in pickle.loads(parcel)]
    assert len(sent_rows) == 8
    assert {attempt.inputs["number"].device for attempt in sent_rows} == {"cpu"}
    assert {attempt.logged["number"].device for attempt in sent_rows} == {"cpu"}
    assert {attempt.inputs["number"].device for of_rank in results for attempt in of_rank} == {"cuda:1"}
    assert {attempt.inputs["number"].device for (sampled,) in rounds for attempt in sampled.attempts} == {"cuda:5"}
