"""Tests of samplers: rows with more to learn come first, no row is lost, and a resumed sampler goes on the same."""

import io
from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import tried

from trl_grpo_plus.curriculum.beliefs import Belief, Beliefs
from trl_grpo_plus.curriculum.samplers import ColumnSampler, LearnabilitySampler, MixtureSampler, ShuffleSampler
from trl_grpo_plus.rollouts.groups import judge


def any_prompt(index: int) -> bool:
    return True


def believing(learnability: list[float] | torch.Tensor, skill: float, asked: list[list[int]] | None = None):
    """Make a `believe` with this learnability per row and this skill. It appends the rows of each call to `asked`."""
    of_all = torch.as_tensor(learnability, dtype=torch.float64)

    def believe(rows: list[int]) -> tuple[Belief, float]:
        if asked is not None:
            asked.append(rows)
        certain = torch.full((len(rows),), 1e12, dtype=torch.float64)
        return Belief(torch.full_like(certain, 0.5), of_all[rows], certain), skill

    return believe


def observe(stream, rows: list[int], verdict: str = "alive") -> None:
    stream.observe(rows, torch.zeros(len(rows), 2), [verdict] * len(rows))


def through_a_file(state: dict) -> dict:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# -- rules for all samplers


MADE = {
    "shuffle": ShuffleSampler,
    "belief": LearnabilitySampler,
    "belief, pool 1": lambda size, seed: LearnabilitySampler(size, seed, pool=1, cooldown=0, floor=0),
    "mixture": lambda size, seed: MixtureSampler(["ab"[row % 2] for row in range(size)], {"a": 3, "b": 1}, seed),
    "column": lambda size, seed: ColumnSampler([row % 3 for row in range(size)], "easy_first", seed),
}
CALLS = st.lists(st.tuples(st.integers(0, 14), st.sets(st.integers(0, 11)), st.integers(1, 3)), max_size=12)


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
@tried
@given(st.integers(0, 12), st.integers(0, 9), CALLS, st.integers(0, 12), st.booleans())
def test_batches_have_distinct_accepted_rows(make, size, seed, calls, resume_after, beliefs):
    """Batches have distinct, accepted rows, as many as asked for if there are enough; also after a resume."""
    stream, twin = make(size, seed), None
    believe = believing(torch.linspace(0, 1, max(size, 1)), 0.5) if beliefs else None
    for number, (count, refused, unit) in enumerate(calls):
        if number == resume_after:
            twin = make(size, seed + 1)
            twin.load_state_dict(through_a_file(stream.state_dict()))
        asked: Counter[int] = Counter()
        wanted = lambda row: bool(asked.update([row])) or row not in refused  # noqa: B023, E731
        rows = stream.take(count, wanted, multiple_of=unit, believe=believe)
        assert asked.total() == len(asked)
        assert len(rows) == len(set(rows))
        assert set(rows) <= asked.keys() - refused
        there = min(count, size - len(refused & set(range(size))))
        assert len(rows) == there - there % unit
        verdicts = [("alive", "all_bad", "all_good", "unscored")[(row + number) % 4] for row in rows]
        for each in (stream, twin):
            if each is twin and each is not None:
                assert each.take(count, lambda row: row not in refused, unit, believe=believe) == rows  # noqa: B023
            if each is not None:
                each.observe(rows, torch.zeros(len(rows), 2), verdicts)
    if twin is not None:
        assert twin.metrics() == stream.metrics()


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_patience_ends_the_search(make):
    asked: list[int] = []
    assert make(500, 1).take(4, lambda row: asked.append(row), patience=7) == []
    assert len(asked) == 8


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_the_global_random_state_is_neither_used_nor_touched(make):
    dealt = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before, stream = torch.random.get_rng_state(), make(40, 3)
        dealt.append([stream.take(6, any_prompt) for _ in range(10)])
        assert torch.equal(torch.random.get_rng_state(), before)
    assert dealt[0] == dealt[1]


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_a_checkpoint_of_another_dataset_is_refused(make):
    with pytest.raises(ValueError, match="saved with 12 training prompts, the dataset now has 11"):
        make(11, 1).load_state_dict(make(12, 1).state_dict())


def test_the_shuffled_order_of_a_seed_stays_the_same():
    stream = ShuffleSampler(10, 4)
    assert stream.take(7, lambda row: row != 3) == [8, 2, 7, 4, 5, 6, 1]
    observe(stream, [8, 2, 7, 4, 5, 6, 1], "all_bad")
    assert stream.take(6, any_prompt, believe=believing([0.0] * 10, 1.0)) == [3, 9, 0, 1, 8, 4]
    assert stream.state_dict() == {"num_prompts": 10, "seed": 4, "pass": 1, "position": 3, "deferred": []}
    assert stream.metrics() == {}


# -- choosing by belief


@tried
@given(st.integers(1, 12), st.integers(0, 99), st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]))
def test_the_best_of_the_pool_are_dealt_but_for_the_floor(count, seed, floor):
    learnability = torch.rand(300, generator=torch.Generator().manual_seed(seed))
    stream, last, spared = LearnabilitySampler(300, seed, pool=4, cooldown=2, floor=floor), {}, 0
    for step in range(12):
        asked: list[list[int]] = []
        rows = stream.take(count, any_prompt, believe=believing(learnability, 1.0, asked))
        (pool,) = asked
        assert len(set(pool)) == len(pool) == 4 * count
        assert [row for row in pool if row in rows] == rows  # in the pool's order, not sorted by belief
        number = int(floor * count * (step + 1) + 1e-6) - spared
        best = sorted(pool, key=lambda row: -learnability[row])[: count - number]
        assert set(best) <= set(rows)
        others = [row for row in pool if row not in best]
        assert set(rows) - set(best) == set(sorted(others, key=lambda row: last.get(row, -1))[:number])
        spared += number
        last |= dict.fromkeys(rows, step)
        observe(stream, rows)
    assert spared == pytest.approx(12 * floor * count, abs=1)


@pytest.mark.parametrize(("pool", "with_beliefs"), [(1, True), (8, True), (8, False)])
def test_without_skill_it_is_shuffling(pool, with_beliefs):
    """All rows come as often as in a fair draw, whatever their beliefs."""
    learnability = torch.arange(200) / 200
    counts = torch.zeros(200)
    for seed in range(20):
        stream = LearnabilitySampler(200, seed, pool=pool, cooldown=0)
        for _ in range(25):
            rows = stream.take(10, any_prompt, believe=believing(learnability, 0.0) if with_beliefs else None)
            counts[rows] += 1
            observe(stream, rows)
    assert counts.sum() == 5000
    squares = float(((counts - 25).square() / 25).sum())
    assert squares < 280  # 279 is the 99.99 % quantile of chi-square with 199 degrees
    assert abs(float((counts * (learnability - learnability.mean())).sum() / 5000)) < 0.015


def test_more_skill_chooses_more_sharply():
    learnability = torch.arange(2000) / 2000
    means = []
    for skill in (0.0, 0.3, 0.6, 1.0):
        stream, dealt = LearnabilitySampler(2000, 1), []
        for _ in range(40):
            rows = stream.take(20, any_prompt, believe=believing(learnability, skill))
            dealt += rows
            observe(stream, rows)
        means.append(float(learnability[dealt].mean()))
    assert means[0] == pytest.approx(0.5, abs=0.05)
    assert means[0] + 0.05 < means[1] < means[2] - 0.05
    assert means[3] > 0.8


@pytest.mark.parametrize("factor", [1e-4, 100.0])
def test_the_scale_of_learnability_changes_no_choice(factor):
    """Only relative learnability counts: also late in training, when most prompts are solved, and in any unit."""
    learnability = torch.rand(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    of = (believing(values, skill=0.5) for values in (learnability, factor * learnability))
    first, second = ([LearnabilitySampler(400, seed).take(8, any_prompt, believe=b) for seed in range(9)] for b in of)
    assert first == second


def test_equal_beliefs_leave_the_order_to_chance():
    assert (
        len(
            {
                tuple(LearnabilitySampler(50, s).take(5, any_prompt, believe=believing([0.1] * 50, 1.0)))
                for s in range(9)
            }
        )
        > 5
    )


def test_belief_is_asked_once_about_an_empty_pool_too():
    asked: list[list[int]] = []
    stream = LearnabilitySampler(20, 1)
    assert stream.take(4, lambda row: False, believe=believing([0.0] * 20, 1.0, asked)) == []
    assert stream.take(0, any_prompt, believe=believing([0.0] * 20, 1.0, asked)) == []
    assert asked == [[], []]


# -- cooldown, rests and coverage


def test_a_row_cools_down():
    stream, last = LearnabilitySampler(200, 1, cooldown=8), {}
    for step in range(60):
        rows = stream.take(5, any_prompt, believe=believing(torch.arange(200), 1.0))
        assert all(step - last.get(row, -99) > 8 for row in rows)
        last |= dict.fromkeys(rows, step)
        observe(stream, rows)


def test_cooling_down_holds_back_no_more_than_half():
    """Of 20 rows with 4 per step, the rows of two steps cool down, and 12 are left to choose from."""
    stream, asked = LearnabilitySampler(20, 1, cooldown=8, floor=0.0), []
    for _ in range(9):
        rows = stream.take(4, any_prompt, believe=believing(torch.arange(20), 1.0, asked))
        observe(stream, rows)
    assert {len(pool) for pool in asked[2:]} == {12}
    assert stream.metrics() == {"selection/pool": 12.0, "selection/resting": 0.4, "selection/retired": 0.0}


def test_if_too_few_rows_are_free_those_free_soonest_are_dealt():
    stream = LearnabilitySampler(6, 1)
    for row, until in enumerate([9, 5, 0, 3, 8, 6]):
        stream._rests.wait(torch.tensor([row]), until)
    assert sorted(stream.take(3, any_prompt)) == [1, 2, 3]


def visits_of(row: int, verdicts: list[str], size: int = 400, count: int = 4) -> list[int]:
    """Return the steps between visits of a row that is dealt whenever it is free."""
    stream = LearnabilitySampler(size, 1, pool=size, cooldown=0, floor=0.0)
    believe = believing([float(r == row) for r in range(size)], 1.0)
    steps, step = [], 0
    while len(steps) <= len(verdicts):
        rows = stream.take(count, any_prompt, believe=believe)
        if row in rows:
            steps.append(step)
        verdict = (*verdicts, "alive")[len(steps) - 1]
        stream.observe(rows, torch.zeros(len(rows), 2), [verdict if each == row else "alive" for each in rows])
        step += 1
    return [later - earlier for earlier, later in pairwise(steps)]


@pytest.mark.parametrize(
    ("verdicts", "intervals"),
    [
        (["all_bad"] * 6, [8, 16, 32, 64, 100, 100]),  # at most an epoch: 100 steps
        (["all_good"] * 3, [8, 16, 32]),
        (["alive"] * 3, [1, 1, 1]),
        (["all_bad", "all_bad", "alive", "all_bad"], [8, 16, 1, 8]),
        (["all_bad", "all_bad", "all_good", "all_good"], [8, 16, 8, 16]),
        (["all_bad", "unscored", "truncated", "all_bad"], [8, 16, 32, 64]),
        (["all_bad", "tied", "all_bad"], [8, 16, 32]),
        # Alive more often than 3 times, which is the limit while no other row was learnt.
        (["alive"] * 9, [1, 1, 1, 8, 16, 32, 64, 128, 200]),  # at most two epochs: 200 steps
        (["alive", "all_good", "alive", "alive", "alive", "all_good", "all_bad"], [1, 8, 1, 1, 8, 8, 8]),
    ],
)
def test_rows_rest_at_growing_intervals(verdicts, intervals):
    assert visits_of(7, verdicts) == intervals


def test_rows_that_nobody_scores_are_sampled_no_more_than_their_share():
    """Rows that nobody scores stay unknown. They promise most if all others are known to be solved or to fail."""
    beliefs, stream = Beliefs(400), LearnabilitySampler(400, 1)
    unscored = torch.arange(400) % 10 == 0
    sampled = 0
    for step in range(200):
        rows = torch.tensor(stream.take(20, any_prompt, believe=lambda pool: (beliefs.of(pool), beliefs.skill)))
        rewards = (rows % 2).double().unsqueeze(1).expand(-1, 2).masked_fill(unscored[rows].unsqueeze(1), torch.nan)
        beliefs.observe(rows, rewards, beliefs.of(rows))
        stream.observe(rows.tolist(), rewards, judge(rewards))
        sampled += int(unscored[rows].sum()) if step >= 100 else 0
    assert sampled / 2000 < 0.12


def test_an_alive_visit_counts_for_a_row_that_comes_twice():
    stream = LearnabilitySampler(8, 1, pool=8, cooldown=0)
    stream.observe([0, 0, 1, 1], torch.zeros(4, 2), ["alive", "all_bad", "all_bad", "all_bad"])
    assert stream.metrics()["selection/resting"] == 1 / 8
    asked: list[list[int]] = []
    stream.take(2, any_prompt, believe=believing([0.0] * 8, 0.0, asked))
    assert sorted(asked[0]) == [0, 2, 3, 4, 5, 6, 7]
    stream.observe([0], torch.zeros(1, 2), ["alive"])
    assert stream.metrics()["selection/resting"] == 0  # an epoch, 2 steps, has passed


@tried
@given(
    st.integers(1, 90),
    st.integers(1, 6),
    st.integers(1, 9),
    st.integers(0, 12),
    st.sampled_from([0.0, 0.1, 0.4]),
    st.randoms(use_true_random=False),
)
def test_every_row_that_is_free_is_offered_within_the_bound(size, count, pool, cooldown, floor, chance):
    """A free row is offered within the bound. The test computes the rests anew from the documented rules."""
    count = min(count, size)
    stream = LearnabilitySampler(size, chance.randrange(99), pool, cooldown, floor)
    kinds = [
        chance.choice(["all_bad", "all_good", "alive", "mixed"]) for _ in range(size)
    ]  # no row is first alive and then solved, so the limit stays 3
    bound, epoch = -(-2 * size // (pool * count)) + 1, -(-size // count)
    free, visits, alive, missed = [0] * size, [(None, 0)] * size, [0] * size, [0] * size
    for step in range(min(5 * epoch, 70)):
        asked: list[list[int]] = []
        rows = stream.take(count, any_prompt, believe=believing(torch.linspace(0, 1, size), 1.0, asked))
        assert len(rows) == count
        (offered,) = asked
        resting = [row for row in offered if free[row] > step]
        assert not resting or len(offered) == count  # resting rows are offered only if too few are free
        for row in range(size):
            missed[row] = 0 if row in offered or free[row] > step else missed[row] + 1
            assert missed[row] < bound
        verdicts = [kinds[row] if kinds[row] != "mixed" else chance.choice(["all_bad", "alive"]) for row in rows]
        stream.observe(rows, torch.zeros(count, 2), verdicts)
        for row, verdict in zip(rows, verdicts, strict=True):
            kind, times = visits[row]
            times = 0 if verdict == "alive" else times + 1 if verdict == kind else 1
            visits[row] = (verdict, times)
            alive[row] += verdict == "alive"
            rest = min(8 * 2 ** (times - 1), epoch) if times else 0
            retired = min(8 * 2 ** (alive[row] - 4), 2 * epoch) if alive[row] > 3 else 0
            free[row] = max(free[row], step + 1 + min(cooldown, size // (2 * count)), step + rest, step + retired)


@tried
@given(st.integers(2, 60), st.integers(1, 5), st.sampled_from([0.2, 0.5, 1.0]), st.integers(0, 99))
def test_no_row_starves_where_the_floor_has_a_place(size, count, floor, seed):
    """Even a row that beliefs always rank last is dealt."""
    count = min(count, size)
    spared = int(floor * count)
    if not spared:
        return
    stream, waiting = LearnabilitySampler(size, seed, pool=3, cooldown=2, floor=floor), [0] * size
    for _ in range(2 * size):
        asked: list[list[int]] = []
        rows = stream.take(count, any_prompt, believe=believing(torch.arange(size), 1.0, asked))
        for row in asked[0]:
            waiting[row] = 0 if row in rows else waiting[row] + 1
        assert max(waiting) < -(-size // spared)
        observe(stream, rows)


def test_a_step_reads_few_rows_if_almost_all_rest():
    stream = LearnabilitySampler(10_000, 1, pool=8)
    stream._rests.wait(torch.arange(10_000), 1000)
    before = stream.state_dict()["passes"]["position"]
    assert len(stream.take(10, any_prompt)) == 10
    assert stream.state_dict()["passes"]["position"] - before <= 4 * 80


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pool": 0}, "pool=0 must be an integer and >= 1"),
        ({"cooldown": -1}, "cooldown=-1 must be"),
        ({"floor": 1.5}, "floor=1.5 must be a finite number and >= 0 and <= 1"),
    ],
)
def test_wrong_options_of_the_sampler_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LearnabilitySampler(10, 1, **options)


# -- by a column


LEVELS = [2, 0, 1, 0, 2, 2, 0, 2, 2]
DEALT = {
    "easy_first": [0, 0, 0, 1, 2, 2, 2, 2, 2],
    "hard_first": [2, 2, 2, 2, 2, 1, 0, 0, 0],
    "interleaved": [0, 1, 2, 0, 2, 0, 2, 2, 2],
}


@pytest.mark.parametrize("order", DEALT)
@pytest.mark.parametrize("levels", [LEVELS, [x / 10 for x in LEVELS], ["abc"[x] for x in LEVELS]])
def test_rows_come_by_level_and_shuffled_within_one(order, levels):
    stream = ColumnSampler(levels, order, seed=5)
    passes = [stream.take(4, any_prompt) + stream.take(5, any_prompt) for _ in range(8)]
    for rows in passes:
        assert sorted(rows) == list(range(9))
        assert [LEVELS[row] for row in rows] == DEALT[order]
    assert len({tuple(rows) for rows in passes}) > 5


def test_a_mixture_deals_its_sources_in_proportion_for_as_long_as_they_last():
    sampler = MixtureSampler([*["math"] * 30, *["code"] * 30, *[7] * 30], {"math": 3, "code": 1, 7: 0.5}, seed=3)
    sources = ["math", "code", "7"]
    passes = [[sources[row // 30] for row in sampler.take(90, any_prompt)] for _ in range(3)]
    for dealt in passes:
        assert Counter(dealt) == dict.fromkeys(sources, 30)
        for part in (9, 18, 27, 36, 45):
            counts = Counter(dealt[:part])
            assert abs(counts["math"] - part * 3 / 4.5) <= 1
            assert abs(counts["code"] - part * 1 / 4.5) <= 1
        assert dealt[-15:] == ["7"] * 15
    rows = [sampler.take(90, any_prompt)[:9] for _ in range(4)]
    assert len({tuple(first) for first in rows}) == 4


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"a": 1}, "its value 'b' has no weight. These values have one: 'a'"),
        ({"a": 1, "b": 0}, "must be above 0"),
    ],
)
def test_a_mixture_needs_a_weight_for_each_source(weights, words):
    with pytest.raises(ValueError, match=words):
        MixtureSampler(["a", "b"], weights, seed=0)


def test_a_weight_for_a_missing_source_gives_a_warning():
    words = "weights has 'bb', which none of these 2 rows has. The values are 'a', 'b'. Did you mean b"
    with pytest.warns(UserWarning, match=words):
        MixtureSampler(["a", "b"], {"a": 1, "b": 1, "bb": 1}, seed=0)


def test_a_refused_row_comes_first_next_time():
    stream = ColumnSampler([0, 1, 2, 3], "easy_first", seed=1)
    assert stream.take(2, lambda row: row != 0) == [1, 2]
    assert stream.take(2, any_prompt) == [0, 3]


@pytest.mark.parametrize(
    ("values", "order", "message"),
    [
        ([1, 2], "easy", "order='easy' is not one of 'easy_first', 'hard_first', 'interleaved'"),
        ([1, None, 2], "easy_first", "level of row 1 is None, and must be a number or a text"),
        ([1.0, float("nan")], "easy_first", "level of row 1 is nan"),
        ([[1], [2]], "easy_first", r"level of row 0 is \[1\]"),
        ([1, 2, "3"], "hard_first", "of two kinds: 1 in row 0, '3' in row 2"),
        (["1", 2], "hard_first", "of two kinds: '1' in row 0, 2 in row 1"),
    ],
)
def test_values_without_an_order_are_refused(values, order, message):
    with pytest.raises(ValueError, match=message):
        ColumnSampler(values, order, seed=1)
