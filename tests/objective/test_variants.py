"""Tests of advantage functions: expected gradients by enumeration, and advantages by hand."""

import doctest
import itertools
import math

import advantages_by_keyword as advantages
import pytest
import torch
from hypothesis import given
from hypothesis_strategies import NAN, anything, groups, tried

from trl_grpo_plus.objective import variants as module
from trl_grpo_plus.objective.group_batch import GroupBatch
from trl_grpo_plus.objective.variants import VARIANTS, Variant, pairwise, passk, pkpo, vector, zvp
from trl_grpo_plus.rollouts.groups import judge


LOGITS = torch.tensor([0.3, -0.8, 0.5, 0.1], dtype=torch.float64)
RIGHT = torch.tensor([0.0, 1.0, 0.0, 1.0], dtype=torch.float64)  # the reward of each answer
REAL = torch.tensor([0.2, -1.0, 3.0, 0.5], dtype=torch.float64)


def every_group(size):
    """Return all groups of answers, (M ** G, G), and the probability of each."""
    answers = torch.tensor(list(itertools.product(range(len(LOGITS)), repeat=size)))
    return answers, LOGITS.softmax(0)[answers].prod(dim=1)


def expected(rewards, size, function):
    """Return the expected gradient of the logits: for a group, the sum over attempts of advantage x grad log pi."""
    answers, chance = every_group(size)
    made = function(rewards[answers])
    scores = torch.eye(len(LOGITS), dtype=torch.float64)[answers] - LOGITS.softmax(0)
    return (chance.view(-1, 1, 1) * made.unsqueeze(-1) * scores).sum(dim=(0, 1))


def gradient(objective):
    """Return the gradient of a function of the answers' probabilities."""
    logits = LOGITS.clone().requires_grad_()
    (found,) = torch.autograd.grad(objective(logits.softmax(0)), logits)
    return found


def best_of(rewards, k):
    """Return E[max of k rewards] as a function of the answers' probabilities."""
    answers = torch.tensor(list(itertools.product(range(len(rewards)), repeat=k)))
    return lambda chances: (chances[answers].prod(dim=1) * rewards[answers].amax(dim=1)).sum()


def close(actual, wanted):
    torch.testing.assert_close(actual, wanted, rtol=1e-9, atol=1e-12)


K_OF_G = [(k, size) for size in range(1, 7) for k in range(1, size + 1)]
SMALL = [(k, size) for k, size in K_OF_G if 1 < size <= 4]


# -- expected gradients


@pytest.mark.parametrize(("k", "size"), SMALL)
def test_passk_climbs_pass_at_k(k, size):
    claim = gradient(lambda chances: 1 - (1 - chances @ RIGHT) ** k)
    close(expected(RIGHT, size, lambda rewards: passk(rewards, k)), (size - k) / k * claim)


@pytest.mark.parametrize(("k", "size"), SMALL)
@pytest.mark.parametrize("rewards", [RIGHT, REAL], ids=["right", "real"])
def test_pkpo_climbs_the_best_of_k(rewards, k, size):
    close(expected(rewards, size, lambda group: pkpo(group, k)), gradient(best_of(rewards, k)))


@pytest.mark.parametrize("temperature", [None, 0.7, 1e-6])
def test_pairwise_climbs_the_weighed_gap_to_the_policy_as_it_is(temperature):
    gaps = REAL.unsqueeze(1) - REAL
    bent = gaps if temperature is None else temperature * (gaps / temperature).tanh()
    claim = gradient(lambda chances: chances @ bent @ LOGITS.softmax(0))
    close(expected(REAL, 4, lambda rewards: pairwise(rewards, temperature)), 4 * claim)


PARTS = torch.tensor([[1.0, 0.0], [0.1, 0.9], [0.6, 0.6], [NAN, 0.3]], dtype=torch.float64)
HALVES = torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64)


def told(groups, size, tokens=1, **more):
    return GroupBatch(torch.ones(groups, size, tokens).bool(), ("alive",) * groups, seed="7", **more)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_vector_climbs_the_groups_best_along_each_direction(size):

    def function(rewards):
        with_monitor = torch.cat([rewards, 9 * torch.ones_like(rewards[..., :1])], dim=-1)
        return vector(with_monitor, HALVES, told(len(rewards), size), draws=5)

    drawn = torch.rand(5, 2, generator=told(1, 1).generator(), dtype=torch.float64)
    directions = -(1 - drawn).log() / -(1 - drawn).log().sum(dim=1, keepdim=True)
    worth = (PARTS.nan_to_num() * HALVES[:2]) @ directions.T  # (answers, directions)
    claim = sum(gradient(best_of(along, size)) for along in worth.unbind(dim=1)) / 5
    close(expected(PARTS, size, function), claim)
    assert len({tuple(row.argsort().tolist()) for row in worth.T}) > 1  # the directions rank the answers differently


@pytest.mark.parametrize("scores", [[0.0, 1.0, 3.0], [2.0, 2.0, 1.0], [0.3, 0.3, 0.3]])
def test_vector_of_one_reward_is_pkpo_of_the_whole_group(scores):
    rewards = torch.tensor([scores], dtype=torch.float64)
    close(vector_of_one(rewards), pkpo(rewards, 3))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_zvp_is_grpo_plus_a_bonus_where_all_attempts_are_right(size):
    """Each attempt has one token, and all have the same entropy. An all-wrong group is penalised by the distance to
    the largest entropy, which is 0 here."""
    nats = -(LOGITS.softmax(0) * LOGITS.log_softmax(0)).sum()

    def function(rewards):
        about = GroupBatch(
            torch.ones(*rewards.shape, 1).bool(),
            tuple(judge(rewards)),
            entropies=nats.expand(*rewards.shape, 1),
        )
        return zvp(rewards.unsqueeze(-1), torch.ones(1), about, alpha=0.3).squeeze(-1)

    p = (LOGITS.softmax(0) @ RIGHT).item()
    of_right = 0.3 * nats * size * p ** (size - 1) * gradient(lambda chances: chances @ RIGHT)
    close(expected(RIGHT, size, function), expected(RIGHT, size, advantages.compute) + of_right)


def test_zvp_by_hand():
    nats = torch.tensor([0.5, 2.0, 1.0]).expand(6, 3, 3).double()
    mask = torch.ones(6, 3, 3).bool()
    mask[:, 1, 1:] = mask[:, 2] = False
    verdicts = ("alive", "all_good", "all_bad", "tied", "unscored", "truncated")
    rewards = torch.tensor([[1.0, 0.0, 0.0], [1, 1, 1], [0, 0, NAN], [0.5] * 3, [NAN] * 3, [1, 0, 0]]).double()
    made = zvp(2 * rewards.unsqueeze(-1), torch.tensor([0.5]), GroupBatch(mask, verdicts, entropies=nats), alpha=0.2)
    grpo = advantages.compute(rewards[:1])[0].tolist()
    close(made[0], torch.tensor([[grpo[0]] * 3, [grpo[1], 0, 0], [0] * 3], dtype=torch.float64))
    close(made[1], torch.tensor([[0.1, 0.4, 0.2], [0.1, 0, 0], [0] * 3], dtype=torch.float64))
    close(made[2], torch.tensor([[-0.3, 0.0, -0.2], [0.0, 0, 0], [0] * 3], dtype=torch.float64))
    assert made[3:].count_nonzero() == 0
    with pytest.raises(ValueError, match=r"zvp needs batch.entropies"):
        zvp(rewards.unsqueeze(-1), torch.ones(1), GroupBatch(mask, verdicts))


def test_vector_by_hand():
    rewards = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.6, 0.6]], [[1.0, 0.0], [NAN, NAN], [NAN, NAN]]])
    made = vector(rewards, torch.ones(2), told(2, 3), draws=20_000)
    torch.testing.assert_close(made[0], torch.tensor([0.08, 0.08, 0.01]), rtol=0.03, atol=0)
    assert made[1].count_nonzero() == vector(rewards, torch.zeros(2), told(2, 3)).count_nonzero() == 0
    assert vector(rewards[:, :1], torch.ones(2), told(2, 1)).count_nonzero() == 0


# -- compared with other formulas


def by_subsets(rewards, k):
    """Compute the sum over subsets as equation 33 of PKPO is written."""
    subsets = list(itertools.combinations(range(len(rewards)), k))
    gains = [0.0] * len(rewards)
    for subset in subsets:
        for i in subset:
            rest = [rewards[j] for j in subset if j != i]
            gains[i] += (max([rewards[i], *rest]) - max(rest)) / len(subsets)
    return gains


@pytest.mark.parametrize(("k", "size"), [(k, size) for k, size in K_OF_G if k > 1])
def test_pkpo_is_the_sum_over_subsets(k, size):
    chance = torch.Generator().manual_seed(10 * size + k)
    rewards = torch.rand(5, size, dtype=torch.float64, generator=chance)
    rewards[1] = rewards[1].round()
    rewards[2] = 0.3
    close(pkpo(rewards, k), torch.tensor([by_subsets(row, k) for row in rewards.tolist()], dtype=torch.float64))
    assert pkpo(rewards, k)[2].count_nonzero() == 0


@pytest.mark.parametrize(("k", "size"), [(k, size) for k, size in K_OF_G if k < size])
def test_passk_is_the_mean_over_groups_of_k(k, size):
    """The advantages equal the paper's first form. A subset of k is right if one of its attempts is. An advantage is
    the mean over the attempt's subsets, less the mean over all subsets."""
    for right in range(size + 1):
        rewards = torch.tensor([[1.0] * right + [0.0] * (size - right)], dtype=torch.float64)
        made = {subset: max(rewards[0, list(subset)].tolist()) for subset in itertools.combinations(range(size), k)}
        mean = sum(made.values()) / len(made)
        own = [[value for subset, value in made.items() if i in subset] for i in range(size)]
        centred = torch.tensor([[sum(values) / len(values) - mean for values in own]], dtype=torch.float64)
        close(passk(rewards, k), centred)
        spread = math.sqrt(mean * (1 - mean))
        close(passk(rewards, k, scaled=True), centred / spread if spread else torch.zeros_like(centred))


@given(groups(anything))
@tried
def test_pairwise_with_equal_weights_is_leave_one_out(rewards):
    wanted = advantages.compute(rewards, "leave_one_out", "none", tolerance=0.0)
    size = rewards.nan_to_num().abs().max().item()
    torch.testing.assert_close(pairwise(rewards), wanted, rtol=1e-9, atol=1e-9 * size)


def test_a_cold_pairwise_counts_wins_and_a_warm_one_is_leave_one_out():
    rewards = torch.tensor([[0.0, 1.0, 5.0, 5.0]], dtype=torch.float64)
    close(pairwise(rewards, 1e-3) / 1e-3, torch.tensor([[-3.0, -1.0, 2.0, 2.0]], dtype=torch.float64) / 3)
    torch.testing.assert_close(pairwise(rewards, 1e5), pairwise(rewards))


BY_NAME = {
    "passk": lambda rewards: passk(rewards, 2),
    "scaled": lambda rewards: passk(rewards, 2, scaled=True),
    "pkpo": lambda rewards: pkpo(rewards, 2),
    "pkpo of one": lambda rewards: pkpo(rewards, 1),
    "pairwise": pairwise,
    "bent": lambda rewards: pairwise(rewards, 0.5),
}


@pytest.mark.parametrize("name", BY_NAME)
def test_unscored_attempts_do_not_count(name):
    function = BY_NAME[name]
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0, 0.0]])
    with_holes = torch.tensor([[1.0, NAN, 0.0, 0.0, NAN, 1.0, 0.0], [NAN, 1.0, NAN, NAN, NAN, NAN, NAN], [NAN] * 7])
    made = function(with_holes)
    torch.testing.assert_close(made[:1][:, [0, 2, 3, 5, 6]], function(rewards))
    assert made.dtype == torch.float32
    assert made[0, [1, 4]].count_nonzero() == made[1:].count_nonzero() == 0
    assert function(rewards).count_nonzero()


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_group_of_equal_rewards_has_no_advantages(name, value):
    assert BY_NAME[name](torch.full((2, 7), value)).count_nonzero() == 0


def test_large_groups_do_not_overflow():
    rewards = torch.zeros(1, 3000, dtype=torch.float64)
    rewards[0, :3] = 1.0
    for function in (passk, pkpo):
        made = function(rewards, 1500)
        assert made.isfinite().all()
        assert made[0, 0] > 0
    exact = math.comb(2997, 1500) / math.comb(3000, 1500)
    torch.testing.assert_close(passk(rewards, 1500)[0, 0].item(), exact, rtol=1e-8, atol=0)


def vector_of_one(totals, **args):
    return vector(totals.unsqueeze(-1), torch.ones(1), told(*totals.shape), **args)


@pytest.mark.parametrize(
    ("function", "values", "args", "message"),
    [
        (passk, [0.0, 0.5], {"k": 1}, "passk is for rewards of 0 and 1, got 0.5. Use pkpo"),
        (passk, [0.0, 1.0], {"k": 3}, "k=3 must be an integer and >= 1 and <= 2, the attempts of a group"),
        (pkpo, [0.0, 1.0], {"k": 0}, "k=0 must be"),
        (pkpo, [0.0, 1.0], {"k": 3}, "k=3 must be"),
        (vector_of_one, [0.0, 1.0], {"draws": 0}, "draws=0 must be an integer and >= 1"),
        (pairwise, [0.0, 1.0], {"temperature": 0.0}, "temperature=0.0 must be a finite number and > 0"),
    ],
)
def test_rewards_and_arguments_that_do_not_fit_are_refused(function, values, args, message):
    with pytest.raises(ValueError, match=message):
        function(torch.tensor([values]), **args)


# -- arguments of the functions


def test_the_generator_follows_from_the_batchs_seed():
    mask = torch.tensor([[[True, True, False], [True, False, False]]])
    first, again, other = (GroupBatch(mask, ("alive",), seed=seed) for seed in ("7 0", "7 0", "7 1"))
    draws = [torch.rand(4, generator=about.generator()) for about in (first, first, again, other)]
    assert torch.equal(draws[0], draws[1])
    assert torch.equal(draws[0], draws[2])
    assert not torch.equal(draws[0], draws[3])
    assert first.lengths.tolist() == [[2, 1]]


def test_a_variant_of_totals_has_the_weighted_sum():
    rewards = torch.tensor([[[1.0, 5.0, NAN], [NAN, 1.0, 2.0], [NAN, NAN, 7.0]]])
    seen = []
    Variant(lambda totals: seen.append(totals), of_totals=True)(rewards, torch.tensor([2.0, 0.5, 0.0]), None)
    torch.testing.assert_close(seen[0], torch.tensor([[4.5, 0.5, NAN]]), equal_nan=True)


def test_the_worked_examples():
    done = doctest.testmod(module)
    assert (done.failed, done.attempted) == (0, 9)


def test_the_table_of_the_module_names_every_entry():
    assert [line.split("|")[1].strip() for line in module.__doc__.splitlines() if line.startswith("| ")][1:] == [
        name for name in ("passk", "pkpo", "pairwise", "vector", "zvp") if name in VARIANTS
    ]
