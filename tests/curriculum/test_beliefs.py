"""Tests of beliefs against brute force and true pass rates, with a policy that moves, and after a resume."""

import io
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import NAN, anything, in_unit, tried
from torch.utils._python_dispatch import TorchDispatchMode

from trl_grpo_plus.curriculum.beliefs import Belief, Beliefs
from trl_grpo_plus.curriculum.samplers import LearnabilitySampler


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def attempts(p: torch.Tensor, size: int, generator: torch.Generator) -> torch.Tensor:
    return (torch.rand(len(p), size, generator=generator, dtype=torch.float64) < p.unsqueeze(1)).double()


def observe(beliefs: Beliefs, rows: list[int], rewards: list[list[float]]) -> None:
    beliefs.observe(rows, torch.tensor(rewards, dtype=torch.float64), beliefs.of(rows))


def pass_by(beliefs: Beliefs, steps: int) -> None:
    """Pass steps in which nothing is learned."""
    for _ in range(steps):
        observe(beliefs, [0], [[NAN]])


def same(first: Belief, second: Belief) -> bool:
    return all(
        torch.equal(getattr(first, n), getattr(second, n)) for n in ("mean", "variance", "count", "learnability")
    )


# -- any rewards


ANY = st.lists(
    st.lists(st.tuples(st.integers(0, 4), st.lists(anything, min_size=3, max_size=3)), min_size=1, max_size=5),
    max_size=5,
)


@tried
@given(ANY, st.sampled_from([None, ["a", "b", "a", 1, None]]))
def test_any_rewards_give_finite_beliefs_that_a_checkpoint_restores(batches, keys):
    beliefs, rows = Beliefs(5, keys=keys), list(range(5))
    for number, batch in enumerate(batches):
        observe(beliefs, [row for row, _ in batch], [rewards for _, rewards in batch])
        belief = beliefs.of(rows)
        assert all(part.isfinite().all() for part in (belief.mean, belief.variance, belief.count))
        assert (belief.variance >= 0).all()
        assert (belief.count > 0).all()
        assert 0 <= beliefs.skill <= 1
        assert all(value == value and abs(value) < math.inf for value in beliefs.metrics().values())
        if number == len(batches) // 2:
            again = Beliefs(5, keys=keys)
            again.load_state_dict(beliefs.state_dict())
            assert same(again.of(rows), belief)
            beliefs = again


# -- the formula


BATCHES = st.lists(
    st.lists(
        st.tuples(st.integers(0, 4), st.lists(st.one_of(in_unit, st.just(NAN)), min_size=3, max_size=3)), max_size=5
    ),
    max_size=6,
)


@tried
@given(BATCHES, st.floats(0.1, 9.0), st.sampled_from([1.0, 8.0, 50.0]), st.lists(in_unit, min_size=6, max_size=6))
def test_beliefs_are_the_weighted_moments_of_the_seen_rewards(batches, strength, half_life, shared):
    """The batches include unscored attempts, rows that come twice, empty batches and rewards between 0 and 1."""
    beliefs = Beliefs(6, strength=strength, half_lives=[half_life])
    seen: list[tuple[int, int, float]] = []
    for step, batch in enumerate(batches):
        rows = [row for row, _ in batch]
        rewards = torch.tensor([values for _, values in batch], dtype=torch.float64).view(-1, 3)
        beliefs.observe(rows, rewards, beliefs.of(rows))
        seen += [(step, row, reward) for row, values in batch for reward in values if reward == reward]
    belief = beliefs.of(range(6), torch.tensor(shared))
    assert belief.mean.dtype == torch.float64
    # Row 5 is never seen, so its belief is the prior.
    prior_variance = beliefs.of([5] * 6, torch.tensor(shared)).variance
    for row, m0 in enumerate(torch.tensor(shared).double().tolist()):
        own = [(0.5 ** ((len(batches) - step) / half_life), r) for step, at, r in seen if at == row]
        n = strength + sum(w for w, _ in own)
        mean = (strength * m0 + sum(w * r for w, r in own)) / n
        second = (strength * (m0**2 + float(prior_variance[row])) + sum(w * r * r for w, r in own)) / n
        assert float(belief.count[row]) == pytest.approx(n, rel=1e-5)
        assert float(belief.mean[row]) == pytest.approx(mean, abs=1e-5)
        assert float(belief.variance[row]) == pytest.approx(second - mean**2, abs=1e-5)
    assert (belief.variance >= 0).all()


@tried
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=12), in_unit)
def test_with_rewards_of_0_and_1_a_belief_is_a_beta_posterior(visits, m0):
    beliefs = Beliefs(4, half_lives=[1e9])
    wins, losses = torch.full((4,), 2 * m0), torch.full((4,), 2 * (1 - m0))
    for row, won in visits:
        observe(beliefs, [row], [[1.0] * won + [0.0] * (4 - won)])
        wins[row] += won
        losses[row] += 4 - won
    a, b = wins.double(), losses.double()
    belief = beliefs.of(range(4), torch.full((4,), m0))
    torch.testing.assert_close(belief.mean, a / (a + b), atol=1e-6, rtol=0)
    torch.testing.assert_close(belief.count, a + b, atol=1e-5, rtol=0)
    torch.testing.assert_close(belief.variance, belief.mean * (1 - belief.mean), atol=1e-6, rtol=0)
    torch.testing.assert_close(belief.learnability, a * b / (a + b) / (a + b + 1), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (0.0, 5.0), (1000.0, 1001.0), (-3.0, -1.0)])
def test_two_rewards_need_not_be_0_and_1(low, high):
    plain, other = Beliefs(3), Beliefs(3, low=low, high=high)
    for rewards in ([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]], [[1.0, 1.0, 1.0], [0.0, NAN, 1.0]]):
        observe(plain, [0, 1], rewards)
        observe(other, [0, 1], [[low + (high - low) * r for r in group] for group in rewards])
    expected, belief = plain.of(range(3)), other.of(range(3))
    scale = high - low
    torch.testing.assert_close(belief.mean, low + scale * expected.mean, atol=1e-5 * scale, rtol=0)
    torch.testing.assert_close(belief.variance, scale**2 * expected.variance, atol=1e-5 * scale**2, rtol=0)
    torch.testing.assert_close(
        belief.variance, (belief.mean - low) * (high - belief.mean), atol=1e-5 * scale**2, rtol=0
    )
    assert other.skill == pytest.approx(plain.skill, abs=1e-6)


def test_a_reward_outside_widens_the_range():
    beliefs = Beliefs(3)
    for _ in range(60):
        observe(beliefs, [0, 1], [[-1.0, 1.0], [1.0, -1.0]])
    belief = beliefs.of([2])
    assert belief.mean.item() == pytest.approx(0.0, abs=1e-2)
    assert belief.variance.item() == pytest.approx(1.0, abs=1e-2)


@pytest.mark.parametrize("spread", [0.0, 0.05, 0.3])
def test_the_priors_variance_is_that_within_prompts(spread):
    """The variance of all rewards would include the differences between prompts. The prior's does not."""
    beliefs, generator = Beliefs(2001), draws()
    levels = 0.3 + 0.4 * torch.rand(2000, 1, generator=generator, dtype=torch.float64)
    for rows in torch.arange(2000).split(50):
        noise = spread * (2 * torch.rand(50, 4, generator=generator, dtype=torch.float64) - 1)
        beliefs.observe(rows, levels[rows] + noise, beliefs.of(rows))
    assert beliefs.of([2000], torch.tensor([0.5])).variance.item() == pytest.approx(spread**2 / 3, rel=0.1, abs=1e-9)


# -- forgetting


def test_attempts_count_half_after_a_half_life():
    beliefs = Beliefs(2, half_lives=[4])
    observe(beliefs, [1], [[1.0, 1.0]])
    pass_by(beliefs, 3)
    assert beliefs.of([1]).count.item() == pytest.approx(2 + 2 / 2)
    pass_by(beliefs, 4)
    assert beliefs.of([1]).count.item() == pytest.approx(2 + 2 / 4)
    observe(beliefs, [1], [[0.0, 0.0]])
    pass_by(beliefs, 3)
    belief = beliefs.of([1], torch.tensor([0.5]))
    assert belief.count.item() == pytest.approx(2 + 2 / 2 + 2 / 8)
    assert belief.mean.item() == pytest.approx((1.0 + 2 / 8) / (2 + 2 / 2 + 2 / 8))
    pass_by(beliefs, 400)
    assert beliefs.of([1], torch.tensor([0.7])).mean.item() == pytest.approx(0.7)


@pytest.mark.parametrize(("jumps", "ends_with"), [(0.0, {64, 128}), (0.005, {8, 16, 32}), (0.1, {8})])
def test_the_half_life_in_use_is_as_good_as_the_best_one(jumps, ends_with):
    """`jumps` is the chance per step that a prompt's pass rate is drawn anew."""
    each = {half_life: Beliefs(60, half_lives=[half_life]) for half_life in (8, 32, 128)}
    chosen, generator = Beliefs(60), draws(1)
    assert chosen.half_life == 32
    errors = dict.fromkeys([*each, "chosen"], 0.0)
    p = torch.rand(60, generator=generator).round()
    for step in range(200):
        moved = torch.rand(60, generator=generator) < jumps
        p = torch.where(moved, torch.rand(60, generator=generator).round(), p)
        rows = torch.randperm(60, generator=generator)[:20]
        rewards = attempts(0.1 + 0.8 * p[rows], 2, generator)
        for name, beliefs in {**each, "chosen": chosen}.items():
            believed = beliefs.of(rows)
            errors[name] += float((believed.mean - 0.1 - 0.8 * p[rows]).square().sum()) if step >= 60 else 0.0
            beliefs.observe(rows, rewards, believed)
    best, worst = min(errors[name] for name in each), max(errors[name] for name in each)
    assert errors["chosen"] <= 1.05 * best < 0.9 * worst
    assert chosen.half_life in ends_with


def test_first_visits_do_not_change_the_half_life():
    beliefs, generator = Beliefs(400), draws()
    for rows in torch.arange(400).split(40):
        beliefs.observe(rows, attempts(torch.rand(40, generator=generator), 2, generator), beliefs.of(rows))
    assert beliefs.half_life == 32


# -- what prompts share


def test_the_mean_of_all_is_the_prior_and_begins_in_the_middle():
    beliefs = Beliefs(2000)
    assert beliefs.of([7]).mean.item() == 0.5
    assert beliefs.of([7]).count.item() == 2
    assert Beliefs(5, low=-1, high=2).of([0]).mean.item() == 0.5
    generator = draws()
    for rows in torch.arange(1999).split(20):
        beliefs.observe(rows, attempts(torch.full((len(rows),), 0.2), 8, generator), beliefs.of(rows))
    assert beliefs.of([1999]).mean.item() == pytest.approx(0.2, abs=0.04)


def test_prompts_that_are_chosen_often_do_not_pull_the_prior():
    beliefs, generator = Beliefs(4000), draws()
    p = torch.full((4000,), 0.05)
    p[:40] = 0.6
    for step in range(90):
        rows = torch.cat([torch.arange(40), torch.arange(40 + 4 * step, 44 + 4 * step)])
        beliefs.observe(rows, attempts(p[rows], 4, generator), beliefs.of(rows))
    assert beliefs.of([3999]).mean.item() < 0.2  # though about half of all attempts succeed


def test_a_groups_weight_in_the_prior_is_the_squared_share_of_the_prior():
    """Row 0 is solved twice, the second time beside row 1, which fails. The prior equals one computed by hand."""
    beliefs = Beliefs(6, half_lives=[1e9])
    observe(beliefs, [0], [[1.0] * 4])
    observe(beliefs, [0, 1], [[1.0] * 4, [0.0] * 4])
    groups, total = 0.9 * 4 + 1, 0.9 * 2 + 1  # it starts with 4 groups at the middle; then the first batch
    weight = (2 / (2 + 4)) ** 2  # row 0 has four remembered attempts
    groups, total = 0.9 * groups + 2, 0.9 * total + 2 * weight / (weight + 1)  # a batch counts as its number of groups
    assert beliefs.of([5]).mean.item() == pytest.approx(total / groups, abs=1e-7)


def test_a_key_has_a_prior_of_its_own():
    keys = ["easy", ("hard", 1)] * 300 + ["once", "never"]
    beliefs, generator = Beliefs(602, keys=keys), draws()
    for rows in torch.arange(500).split(20):
        beliefs.observe(rows, attempts(0.9 - 0.4 * (rows % 2), 4, generator), beliefs.of(rows))
    easy, hard, never = beliefs.of([598, 599, 601]).mean.tolist()
    assert easy == pytest.approx(0.9, abs=0.08)
    assert hard == pytest.approx(0.5, abs=0.08)
    assert never == pytest.approx(0.7, abs=0.08)
    observe(beliefs, [600], [[1.0] * 4])
    pass_by(beliefs, 1500)
    once = beliefs.of([600]).mean.item()
    assert never < once < 0.5 * (never + 1)


def test_a_key_has_a_variance_of_its_own():
    """The kinds earn always 2/3, either 2/3 or 1, and always 1. Only the second one has a variance."""
    kinds = [row % 3 for row in range(603)]
    beliefs, generator = Beliefs(603, keys=kinds), draws()
    earns = torch.tensor([[2 / 3, 2 / 3], [2 / 3, 1.0], [1.0, 1.0]], dtype=torch.float64)
    for rows in torch.arange(600).split(20):
        either = torch.randint(2, (len(rows), 2), generator=generator)
        beliefs.observe(rows, earns[rows % 3].gather(1, either), beliefs.of(rows))
    stuck, alive, solved = beliefs.of([600, 601, 602]).variance.tolist()
    assert alive == pytest.approx(1 / 36, rel=0.3)
    assert max(stuck, solved) < 0.2 * alive


def test_a_prediction_replaces_the_shared_prior():
    beliefs = Beliefs(3, keys=[0, 1, 1])
    observe(beliefs, [0, 1], [[1.0, 1.0], [1.0, 0.0]])
    predicted = torch.tensor([0.25, 0.25, 0.9])
    belief = beliefs.of([2, 2, 2], predicted)
    torch.testing.assert_close(belief.mean, predicted.double())
    torch.testing.assert_close(belief.variance, (predicted * (1 - predicted)).double())
    assert beliefs.of([0], torch.tensor([0.25])).mean.item() > 0.25
    foretold = torch.tensor([0.1, 0.1, 0.01])
    assert torch.equal(
        beliefs.of([2, 2, 2], predicted, foretold).variance, belief.variance
    )  # with rewards of 0 and 1 the mean determines it
    assert beliefs.of([2, 2, 2], predicted, strength=5.0).count.tolist() == [5.0] * 3
    observe(beliefs, [0, 1], [[1.0, 0.5], [1.0, 0.0]])
    strong = beliefs.of([2, 2, 2], predicted, foretold, strength=1e9)
    torch.testing.assert_close(strong.variance, foretold.double(), atol=1e-6, rtol=0)


# -- how good beliefs are


def moving(beliefs: Beliefs, steps: int, foreseen: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Return predicted and true pass rates from the second half of a run in which the policy learns.

    With `foreseen` the truth is given as the shared prediction.
    """
    generator = draws(3)
    n = beliefs.state_dict()["num_rows"]
    start, speed = 4 * torch.randn(n, generator=generator) - 2, torch.rand(n, generator=generator)
    pairs = []
    for step in range(steps):
        rows = torch.randperm(n, generator=generator)[:32]
        p = torch.sigmoid(start + 0.02 * step * speed)[rows].double()
        believed = beliefs.of(rows, p if foreseen else None)
        beliefs.observe(rows, attempts(p, 4, generator), believed)
        pairs.append(torch.stack([believed.mean, p]))
    predicted, true = torch.cat(pairs[steps // 2 :], dim=1)
    return predicted, true


def calibration(beliefs):
    """Predicted mean, realised mean and number of groups in each tenth of the reward range."""
    groups, predicted, realised = beliefs._bins
    return torch.stack([predicted / groups + beliefs._origin, realised / groups + beliefs._origin, groups], dim=1)


def test_beliefs_follow_a_policy_that_moves():
    beliefs = Beliefs(256)
    predicted, true = moving(beliefs, 200)
    metrics = beliefs.metrics()
    explained = 1 - (predicted - true).square().mean() / true.var()
    assert explained > 0.85
    assert beliefs.skill > 0.8
    assert metrics["beliefs/calibration_error"] < 0.05
    bins = (predicted * 10).long().clamp(max=9)
    for number, (foretold, realised, groups) in enumerate(calibration(beliefs).tolist()):
        inside = bins == number  # beliefs lag behind a policy that learns, hence the tolerances
        if groups > 20:
            assert abs(foretold - realised) < 0.12
        if inside.sum() > 100:
            assert predicted[inside].mean().item() == pytest.approx(true[inside].mean().item(), abs=0.12)
    assert metrics["beliefs/predicted"] == pytest.approx(metrics["beliefs/realised"], abs=0.15)


def test_skill_is_1_for_the_truth_whatever_the_noise_of_few_attempts():
    beliefs = Beliefs(100_000, strength=1e6)
    moving(beliefs, 60, foreseen=True)
    assert beliefs.skill > 0.9


def test_the_noise_of_a_single_attempt_is_that_which_its_belief_expects():
    """Prompts earn 3/4 and 1/4 on average, as believed on two attempts. One attempt cannot show its noise, so the
    skill uses the noise that the belief expects. The expected skill is computed by hand."""
    beliefs = Beliefs(16)
    believed = beliefs.of(range(16), torch.tensor([0.75, 0.25]).repeat_interleave(8))
    won = torch.tensor([1.0] * 6 + [0.0] * 2 + [1.0] * 2 + [0.0] * 6).unsqueeze(1)
    beliefs.observe(range(16), won, believed)
    noise = 3 / 16 * 2 / (2 + 1)  # E[p(1 - p)] of a Beta(1.5, 0.5)
    spread, error = 1 / 4, 3 / 16
    assert beliefs.skill == pytest.approx((1 - (error - noise) / (spread - noise)) * 16 / (16 + 16))


@pytest.mark.parametrize("size", [1, 2, 8])
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_there_is_no_skill_where_prompts_do_not_differ(size, p):
    beliefs, generator = Beliefs(400), draws()
    assert beliefs.skill == 0
    for _ in range(60):
        rows = torch.randperm(400, generator=generator)[:32]
        beliefs.observe(rows, attempts(torch.full((32,), p), size, generator), beliefs.of(rows))
    assert beliefs.skill < 0.25


def test_there_is_no_skill_where_beliefs_are_wrong():
    beliefs, generator = Beliefs(4000), draws()
    for rows in torch.arange(4000).split(40):
        p = torch.rand(len(rows), generator=generator)
        beliefs.observe(rows, attempts(p, 8, generator), beliefs.of(rows, 1 - p))
    assert beliefs.skill == 0
    assert beliefs.metrics()["beliefs/calibration_error"] > 0.2


def test_a_few_groups_do_not_make_a_skill():
    beliefs = Beliefs(100)
    observe(beliefs, [0, 1], [[1.0] * 8, [0.0] * 8])
    observe(beliefs, [0, 1], [[1.0] * 8, [0.0] * 8])
    assert 0 < beliefs.skill < 0.2


def test_metrics_say_which_rows_are_known():
    beliefs = Beliefs(10)
    assert beliefs.metrics() == {
        "beliefs/skill": 0.0,
        "beliefs/half_life": 32.0,
        "beliefs/never_tried": 1.0,
        "beliefs/solved": 0.0,
        "beliefs/hopeless": 0.0,
    }
    rewards = [[1.0] * 4, [1.0] * 4, [0.0] * 4, [0.0, 0.0, 1.0, 0.0], [1.0, 1.0, NAN, NAN], [NAN] * 4]
    observe(beliefs, [0, 1, 2, 3, 4, 5], rewards)
    metrics = beliefs.metrics()
    assert metrics["beliefs/never_tried"] == 0.5
    assert metrics["beliefs/solved"] == 0.2  # the fifth row has two scored attempts, which are too few
    assert metrics["beliefs/hopeless"] == 0.1
    assert metrics["beliefs/predicted"] == 0.5
    assert metrics["beliefs/realised"] == pytest.approx((1 + 1 + 0 + 0.25 + 1) / 5)
    assert metrics["beliefs/calibration_error"] == pytest.approx(abs(0.5 - 3.25 / 5))


# -- unscored rows, and rows that come twice


def test_a_row_that_nobody_scored_learns_nothing():
    beliefs, other = Beliefs(4), Beliefs(4)
    observe(beliefs, [0, 1, 2], [[1.0, 0.0], [NAN, NAN], [NAN, 1.0]])
    observe(other, [0, 2], [[1.0, 0.0], [NAN, 1.0]])
    assert same(beliefs.of(range(4)), other.of(range(4)))
    assert beliefs.metrics() == other.metrics()
    assert beliefs.metrics()["beliefs/never_tried"] == 0.5
    observe(beliefs, [3], [[NAN, NAN]])
    assert beliefs.step == 2
    assert beliefs.skill == other.skill
    beliefs.observe([], torch.empty(0, 2), beliefs.of([]))
    assert beliefs.step == 3


def test_a_row_that_comes_twice_has_the_attempts_of_both():
    beliefs, other = Beliefs(3), Beliefs(3)
    for _ in range(3):
        observe(beliefs, [1, 0, 1], [[1.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
        observe(other, [1, 0], [[1.0, 0.0, 1.0, 1.0], [1.0, 1.0, NAN, NAN]])
    shared = torch.tensor([0.5, 0.5])
    assert same(beliefs.of([0, 1], shared), other.of([0, 1], shared))


# -- checkpoints and refusals


def through_a_file(state: dict) -> dict:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("keys", [None, [row % 3 for row in range(50)]])
@pytest.mark.parametrize("before", [0, 1, 40])
def test_resumed_beliefs_equal_those_that_went_on(keys, before):
    generator = draws()
    beliefs, other = Beliefs(50, keys=keys), Beliefs(50, keys=keys)
    p = torch.rand(50, generator=generator)

    def go_on(*both: Beliefs) -> None:
        rows = torch.randint(0, 50, (12,), generator=generator)
        rewards = attempts(p[rows], 4, generator) * p[rows].unsqueeze(1)
        for each in both:
            each.observe(rows, rewards, each.of(rows))

    for _ in range(before):
        go_on(beliefs)
    state = beliefs.state_dict()
    other.load_state_dict(through_a_file(state))
    go_on(beliefs)
    beliefs.load_state_dict(state)
    for _ in range(30):
        go_on(beliefs, other)
        assert same(beliefs.of(range(50)), other.of(range(50)))
        assert beliefs.metrics() == other.metrics()
        assert torch.equal(calibration(beliefs).nan_to_num(), calibration(other).nan_to_num())


@pytest.mark.parametrize(
    ("now", "message"),
    [
        ({"num_rows": 5}, "num_rows=4, this run's 5"),
        ({"num_rows": 4, "half_lives": [8]}, "half_lives=.*this run's .8.0."),
        ({"num_rows": 4, "keys": "aabb"}, "keys=0, this run's 2"),
    ],
)
def test_a_checkpoint_of_other_data_is_refused(now, message):
    with pytest.raises(ValueError, match=message):
        Beliefs(**now).load_state_dict(Beliefs(4).state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"low": 1.0}, "high=1.0 must be a finite number and > 1.0"),
        ({"strength": 0.0}, "strength=0.0 must be"),
        ({"half_lives": [8, 0]}, "half_lives=0 must be"),
        ({"half_lives": []}, "half_lives is empty"),
        ({"keys": "abc"}, "3 keys for 4 rows"),
    ],
)
def test_wrong_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Beliefs(4, **options)


def test_rows_and_rewards_must_be_as_many():
    beliefs = Beliefs(4)
    with pytest.raises(ValueError, match=r"got 2 rows, rewards \(1, 3\) and 2 beliefs"):
        beliefs.observe([0, 1], torch.zeros(1, 3), beliefs.of([0, 1]))
    assert beliefs.step == 0


# -- shares of rows, which are counted as rows come


@tried
@given(BATCHES)
def test_shares_are_those_of_all_rows(batches):
    """The shares equal those by hand: each row's attempts at its last visit, discounted by the longest half-life."""
    beliefs = Beliefs(6, half_lives=[4.0])
    own: dict[int, tuple[int, float, float]] = {}  # row -> last step, discounted attempts, their discounted sum
    for step, batch in enumerate(batches):
        rows, rewards = [row for row, _ in batch], [values for _, values in batch]
        beliefs.observe(rows, torch.tensor(rewards, dtype=torch.float64).view(-1, 3), beliefs.of(rows))
        for row in {row for row, values in batch if any(value == value for value in values)}:
            scored = [v for at, values in batch if at == row for v in values if v == v]
            last, count, total = own.get(row, (step, 0.0, 0.0))
            kept = 0.5 ** ((step - last) / 4.0)
            own[row] = step, kept * count + len(scored), kept * total + sum(scored)
    sure = [total / count for _, count, total in own.values() if count >= 3 + 1e-6]
    # In float32 these may be on either side of the bound.
    close = [total / count for _, count, total in own.values() if abs(count - 3) < 1e-6]
    metrics = beliefs.metrics()
    assert metrics["beliefs/never_tried"] == pytest.approx(1 - len(own) / 6)
    for name, known in (("solved", lambda mean: mean >= 0.95), ("hopeless", lambda mean: mean <= 0.05)):
        least = sum(known(mean) for mean in sure if abs(mean - 0.95) > 1e-6 and abs(mean - 0.05) > 1e-6)
        most = least + len(close) + sum(abs(mean - 0.95) <= 1e-6 or abs(mean - 0.05) <= 1e-6 for mean in sure)
        assert least - 1e-9 <= 6 * metrics[f"beliefs/{name}"] <= most + 1e-9


class Sizes(TorchDispatchMode):
    """Records the size of the largest tensor that an operation reads."""

    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.largest = max([self.largest, *(value.numel() for value in args if isinstance(value, torch.Tensor))])
        return func(*args, **(kwargs or {}))


class Made(Sizes):
    """Records the size of the largest tensor that is made, without views and tensors that are changed in place."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            given = {value.untyped_storage().data_ptr() for value in args if isinstance(value, torch.Tensor)}
            self.largest = max(self.largest, made.numel() * (made.untyped_storage().data_ptr() not in given))
        return made


def test_a_step_changes_the_keys_of_its_batch_alone():
    """An update of all of ten million keys took two seconds per step."""
    beliefs = Beliefs(20_000, keys=range(20_000))
    rows = list(range(0, 48 * 400, 400))
    with Made() as made:
        beliefs.observe(rows, torch.ones(48, 4), beliefs.of(rows))
    assert made.largest <= 3 * 5 * 48  # the moments of the rows, by half-life
    unseen, seen = beliefs.of([1, 0]).mean.tolist()
    assert unseen < seen


def test_metrics_do_not_read_the_rows():
    """With ten million rows, metrics that read all of them would take over 20 ms of a step."""
    beliefs, stream = Beliefs(100_000), LearnabilitySampler(100_000, 0)
    rows = stream.take(48, lambda row: True, believe=lambda pool: (beliefs.of(pool), beliefs.skill))
    rewards = torch.ones(48, 4)
    beliefs.observe(rows, rewards, beliefs.of(rows))
    stream.observe(rows, rewards, ["all_good"] * 48)
    with Sizes() as sizes:
        metrics = {**beliefs.metrics(), **stream.metrics()}
    assert sizes.largest <= 100
    assert metrics["beliefs/solved"] == metrics["selection/resting"] == 48 / 100_000
