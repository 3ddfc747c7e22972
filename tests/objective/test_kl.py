"""Tests of the gradients of the KL estimators, by enumerating all outcomes of a small policy in float64."""

import itertools
import math

import pytest
import torch
from advantages_by_keyword import compute_with_kl
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import tried
from torch import Tensor

from trl_grpo_plus.objective.kl import (
    ESTIMATORS,
    MAX_LOG_RATIO,
    BetaController,
    ReferenceLogps,
    adapt_beta,
    kl_to_go,
    mean_of_tokens,
    penalty,
)


SIZE = 5  # tokens in the vocabulary


def logits(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def gradient(value: Tensor, theta: Tensor) -> Tensor:
    return torch.autograd.grad(value, theta, retain_graph=True)[0]


def distance(first: Tensor, second: Tensor) -> float:
    """Return the distance relative to the second tensor."""
    return ((first - second).norm() / second.norm()).item()


# -- one token


class OneToken:
    """A softmax policy, its reference, and the policy that sampled, which is the same one or an older one."""

    def __init__(self, on_policy: bool):
        self.theta = logits(0).requires_grad_()
        self.logp = self.theta.log_softmax(-1)
        self.ref = logits(1).log_softmax(-1)
        self.old = self.logp.detach() if on_policy else logits(2).log_softmax(-1)

    def expected_gradient(self, per_token: Tensor) -> Tensor:
        """Return the gradient of sum_y pi_old(y) penalty(y), the expectation of a batch's mean gradient."""
        return gradient((self.old.exp() * per_token).sum(), self.theta)

    def true_gradient(self, name: str) -> Tensor:
        exact = {
            "reverse": (self.logp.exp() * (self.logp - self.ref)).sum(),
            "forward": (self.ref.exp() * (self.ref - self.logp)).sum(),
            "absolute": (self.logp.exp() * (self.logp - self.ref).abs()).sum(),
        }
        return gradient(exact[name], self.theta)


EXPECTED = {"k1": "reverse", "k2": "reverse", "k3": "reverse", "abs": "absolute"}


@pytest.mark.parametrize(
    ("estimator", "weighted", "on_policy", "expected"),
    [
        *((name, True, on_policy, expected) for name, expected in EXPECTED.items() for on_policy in (True, False)),
        *(("k2", False, True, "reverse"), ("k3", False, True, "forward")),
    ],
)
def test_expected_gradient_is_exact(estimator, weighted, on_policy, expected):
    bandit = OneToken(on_policy)
    found = bandit.expected_gradient(penalty(estimator, bandit.logp, bandit.ref, bandit.old, weighted))
    assert distance(found, bandit.true_gradient(expected)) < 1e-12


@pytest.mark.parametrize(
    ("estimator", "weighted", "on_policy"),
    [("k2", False, False), ("k3", False, False), ("abs", False, True), ("abs", False, False), ("abs", True, True)],
)
@pytest.mark.parametrize("true", ["reverse", "forward"])
def test_expected_gradient_is_not_a_kls_where_the_table_says_so(estimator, weighted, on_policy, true):
    bandit = OneToken(on_policy)
    found = bandit.expected_gradient(penalty(estimator, bandit.logp, bandit.ref, bandit.old, weighted))
    assert distance(found, bandit.true_gradient(true)) > 0.1


def test_the_three_true_gradients_differ():
    forward, reverse, absolute = map(OneToken(on_policy=True).true_gradient, ("forward", "reverse", "absolute"))
    assert min(distance(forward, reverse), distance(absolute, reverse)) > 0.1


def test_unweighted_abs_has_the_gradient_of_the_table():
    bandit = OneToken(on_policy=True)
    found = bandit.expected_gradient(penalty("abs", bandit.logp, bandit.ref, importance_weighted=False))
    sign = (bandit.logp - bandit.ref).sign().detach()
    assert distance(found, gradient((bandit.old.exp() * sign * bandit.logp).sum(), bandit.theta)) < 1e-12


@pytest.mark.parametrize(
    ("estimator", "weighted", "coefficient"),
    [
        ("k1", True, lambda k, w: w * (1 + k)),
        ("k2", False, lambda k, w: k),
        ("k2", True, lambda k, w: w * k),
        ("k3", False, lambda k, w: 1 - torch.exp(-k)),
        ("k3", True, lambda k, w: w * k),
        ("abs", False, lambda k, w: k.sign()),
        ("abs", True, lambda k, w: w * (k.sign() + k.abs())),
    ],
)
def test_gradient_of_each_sample(estimator, weighted, coefficient):
    bandit = OneToken(on_policy=False)
    logp = bandit.logp.detach().requires_grad_()
    found = gradient(penalty(estimator, logp, bandit.ref, bandit.old, weighted).sum(), logp)
    ratio, weight = logp.detach() - bandit.ref, (logp.detach() - bandit.old).exp()
    torch.testing.assert_close(found, coefficient(ratio, weight), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_without_old_logps_the_sampling_policy_is_the_policy(estimator):
    bandit = OneToken(on_policy=True)
    absent, given = (penalty(estimator, bandit.logp, bandit.ref, old) for old in (None, bandit.logp))
    torch.testing.assert_close(absent, given, rtol=0, atol=0)
    torch.testing.assert_close(bandit.expected_gradient(absent), bandit.expected_gradient(given), rtol=0, atol=0)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_weighted_value_is_unbiased_off_policy(estimator):
    bandit = OneToken(on_policy=False)
    mean = (bandit.old.exp() * penalty(estimator, bandit.logp, bandit.ref, bandit.old)).sum()
    exact = (bandit.logp.exp() * (bandit.logp - bandit.ref)).sum()
    torch.testing.assert_close(mean, exact, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("k1", [0.5, -2.0, 0.0]),
        ("k2", [0.125, 2.0, 0.0]),
        ("k3", [math.exp(-0.5) - 0.5, math.exp(2.0) - 3.0, 0.0]),
        ("abs", [0.5, 2.0, 0.0]),
    ],
)
def test_values(estimator, expected):
    logp, ref = torch.tensor([-1.0, -3.0, -2.0]).double(), torch.tensor([-1.5, -1.0, -2.0]).double()
    torch.testing.assert_close(penalty(estimator, logp, ref), torch.tensor(expected).double())


def test_reference_and_sampling_policy_get_no_gradient():
    for estimator in ESTIMATORS:
        logp, ref, old = (torch.randn(4).requires_grad_() for _ in range(3))
        penalty(estimator, logp, ref, old).sum().backward()
        assert logp.grad is not None
        assert ref.grad is None
        assert old.grad is None


def test_k1_alone_is_refused_without_the_weight():
    assert [name for name, estimator in ESTIMATORS.items() if estimator.unweighted_refused] == ["k1"]
    with pytest.raises(ValueError, match=r"k1.*expected gradient is 0"):
        penalty("k1", torch.zeros(3), torch.zeros(3), importance_weighted=False)


@pytest.mark.parametrize("name", ["K3", "", "kl", "k4"])
def test_unknown_estimator_is_refused_with_the_known_ones(name):
    with pytest.raises(ValueError, match=r"k1.*k2.*k3.*abs") as caught:
        penalty(name, torch.zeros(3), torch.zeros(3))
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize("on_policy", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_k3_is_trls_expression(weighted, on_policy):
    bandit = OneToken(on_policy)
    logp, ref = bandit.logp, bandit.ref
    theirs = (torch.exp(ref - logp) - (ref - logp) - 1) * (torch.exp(logp - bandit.old) if weighted else 1)
    ours = penalty("k3", logp, ref, bandit.old, weighted)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(bandit.expected_gradient(ours), bandit.expected_gradient(theirs), rtol=1e-12, atol=0)


# -- far from the reference


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_finite_at_a_hundred_nats(estimator, dtype):
    distances = [-100.0, -25.0, -MAX_LOG_RATIO, 0.0, MAX_LOG_RATIO, 25.0, 100.0]
    for d, old_distance, weighted in itertools.product(distances, [None, -100.0, 0.0, 100.0], [True, False]):
        if not weighted and ESTIMATORS[estimator].unweighted_refused:
            continue
        logp = torch.full((2,), -101.0, dtype=dtype).requires_grad_()
        old = None if old_distance is None else logp.detach() + old_distance
        value = penalty(estimator, logp, logp.detach() + d, old, weighted)
        assert value.dtype == dtype
        assert value.isfinite().all(), (d, old_distance, weighted)
        assert gradient(value.float().sum(), logp).isfinite().all(), (d, old_distance, weighted)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_the_pull_to_the_reference_never_switches_off(estimator, weighted):
    # Other implementations clamp k3 at 10, so that its gradient is 0 from 2.6 nats on.
    for d in (0.5, 2.0, 5.0, 19.0, 21.0, 50.0, 100.0):
        logp = torch.tensor([-1.0 - d]).double().requires_grad_()
        assert gradient(penalty(estimator, logp, torch.tensor([-1.0]).double(), None, weighted).sum(), logp) < 0


def k3_and_slope(d: float) -> tuple[float, float]:
    logp = torch.tensor(-d, dtype=torch.float64).requires_grad_()
    value = penalty("k3", logp, torch.zeros((), dtype=torch.float64), importance_weighted=False)
    return value.item(), -gradient(value, logp).item()


def test_k3_and_its_gradient_are_continuous_where_the_line_begins():
    below, at, above = (k3_and_slope(MAX_LOG_RATIO + step) for step in (-1e-9, 0.0, 1e-9))
    steepest = math.exp(MAX_LOG_RATIO) - 1
    assert at == pytest.approx((steepest - MAX_LOG_RATIO, steepest), rel=1e-12)
    assert below == pytest.approx(at, rel=1e-8)
    assert above == pytest.approx(at, rel=1e-8)


def test_k3_is_exact_below_the_joint_and_a_line_beyond():
    assert k3_and_slope(19.5) == pytest.approx((math.exp(19.5) - 20.5, math.exp(19.5) - 1), rel=1e-12)
    (value, slope), (joint, steepest) = k3_and_slope(27.0), k3_and_slope(MAX_LOG_RATIO)
    assert slope == pytest.approx(steepest, rel=1e-12)
    assert value == pytest.approx(joint + 7.0 * steepest, rel=1e-12)


def test_the_importance_weight_stays_at_its_limit_and_without_gradient():
    logp = torch.zeros(1, dtype=torch.float64).requires_grad_()
    ref, far = torch.full((1,), -3.0).double(), torch.full((1,), -MAX_LOG_RATIO - 5).double()
    value = penalty("k1", logp, ref, far)
    assert value.item() == pytest.approx(3 * math.exp(MAX_LOG_RATIO))
    # Of w (1 + l) only k1's own gradient, w, is left.
    assert gradient(value.sum(), logp).item() == pytest.approx(math.exp(MAX_LOG_RATIO))


@pytest.mark.parametrize("d", [1e-4, -1e-4, 1e-3, -1e-3, 0.01, -0.01])
def test_k3_keeps_its_digits_for_small_differences(d):
    exact = math.expm1(d) - d
    found = penalty("k3", torch.tensor(-d), torch.tensor(0.0), importance_weighted=False).item()
    assert found == pytest.approx(exact, rel=5e-3)


# -- sequences


class TwoTokens:
    """A policy over two tokens, the second of which depends on the first. Each of the 25 completions is a row."""

    def __init__(self):
        self.theta = logits(3, 1 + SIZE).requires_grad_()
        rows = [(a, b) for a in range(SIZE) for b in range(SIZE)]
        self.first, self.second = (torch.tensor(column) for column in zip(*rows, strict=True))
        self.logp, self.ref = self.log_probs(self.theta), self.log_probs(logits(4, 1 + SIZE))
        mask = torch.ones(len(rows), 2, dtype=torch.long)
        self.kl_to_go = kl_to_go(self.logp, self.ref, mask)
        self.sequence_kl = self.kl_to_go[:, 0]
        self.solved = (self.first == self.second).double()  # 5 of 25 completions

    def log_probs(self, theta: Tensor) -> Tensor:
        """Return the log-probs, (25, 2)."""
        table = theta.log_softmax(-1)
        return torch.stack([table[0, self.first], table[1 + self.first, self.second]], dim=1)

    @property
    def chance(self) -> Tensor:
        return self.logp.sum(dim=1).exp()

    def true_gradient(self) -> Tensor:
        return gradient((self.chance * (self.logp - self.ref).sum(dim=1)).sum(), self.theta)

    def policy_gradient(self, cost: Tensor) -> Tensor:
        """Return the gradient of sum_y pi(y) sum_t cost(y, t) log pi(y_t).

        The cost is per completion, (25, 1), or per token, (25, 2).
        """
        assert not cost.requires_grad
        return gradient((self.chance.detach().unsqueeze(1) * cost * self.logp).sum(), self.theta)


def test_as_reward_both_forms_have_the_gradient_of_the_sequences_kl():
    policy = TwoTokens()
    for cost in (policy.sequence_kl.unsqueeze(1), policy.kl_to_go):
        assert distance(policy.policy_gradient(cost), policy.true_gradient()) < 1e-12
    per_token = (policy.logp - policy.ref).detach()  # k1 without to-go is not exact
    assert distance(policy.policy_gradient(per_token), policy.true_gradient()) > 0.1


BETA = 0.3


def expected_gradient(policy: TwoTokens, rewards: Tensor, per_token: bool, **options) -> Tensor:
    """Return the expected gradient of the loss of a group of two attempts under reward - BETA * KL.

    The expectation is over all 625 pairs of completions. `rewards` is (25,).
    """
    pairs = torch.cartesian_prod(torch.arange(25), torch.arange(25))
    weight = compute_with_kl(rewards[pairs], policy.kl_to_go[pairs], BETA, per_token, **options)
    per_token_loss = -(weight if per_token else weight.unsqueeze(-1)) * policy.logp[pairs]
    chance = policy.chance.detach()[pairs].prod(dim=1)
    return gradient((chance * per_token_loss.sum(dim=-1).mean(dim=1)).sum(), policy.theta)


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("reward", [1.0, 0.3, math.nan])
@pytest.mark.parametrize(
    ("scale", "baseline", "factor"),
    [
        # Here all groups have equal rewards, so "batch" does not divide either.
        *((scale, "leave_one_out", 1.0) for scale in ("group", "mad", "mean", "none", "batch")),
        ("running", "leave_one_out", 1 / (0.5 + 1e-4)),
        # An attempt is part of its own baseline, which adds the factor (G - 1) / G.
        *(("group", baseline, 1 / 2) for baseline in ("mean", "median")),
    ],
)
def test_a_group_without_differing_rewards_has_the_gradient_of_the_kl(per_token, reward, scale, baseline, factor):
    policy, rewards = TwoTokens(), torch.full((25,), reward).double()
    actual = expected_gradient(policy, rewards, per_token, scale=scale, baseline=baseline, running_std=0.5)
    assert distance(actual, BETA * factor * policy.true_gradient()) < 1e-12


@pytest.mark.parametrize("per_token", [False, True])
def test_the_gradient_is_that_of_reward_less_kl_if_many_groups_are_tied(per_token):
    """The gradient is not exact with a scale per group, which divides beta (docs/kl.md, scale_rewards="group")."""
    policy = TwoTokens()
    wanted = BETA * policy.true_gradient() - gradient((policy.chance * policy.solved).sum(), policy.theta)
    found = expected_gradient(policy, policy.solved, per_token, baseline="leave_one_out", scale="none")
    assert distance(found, wanted) < 1e-12
    found = expected_gradient(policy, policy.solved, per_token, baseline="leave_one_out", scale="group")
    assert (found * wanted).sum() / found.norm() / wanted.norm() < 0.99


@pytest.mark.parametrize("cost", [0.0, 2.4999, 2.5, 30.0])
def test_maxrl_divides_by_the_mean_reward_alone(cost):
    """A KL of 2.5 nats costs as much here as the group earns on average."""
    rewards, kl = torch.tensor([[1.0, 0.0, 0.0, 0.0]]), torch.full((1, 4, 2), cost)
    found = compute_with_kl(rewards, kl, 0.1, False, scale="mean")
    torch.testing.assert_close(found, torch.tensor([[3.0, -1.0, -1.0, -1.0]]))


def test_kl_to_go_has_less_variance():
    policy = TwoTokens()
    scores = torch.autograd.functional.jacobian(policy.log_probs, policy.theta.detach()).flatten(2)  # (25, 2, 30)

    def spread(cost):
        each = (cost.unsqueeze(-1) * scores).sum(dim=1)
        chance = policy.chance.detach().unsqueeze(1)
        return (chance * (each - (chance * each).sum(dim=0)).square()).sum()

    assert spread(policy.kl_to_go) < spread(policy.sequence_kl.unsqueeze(1))


@pytest.mark.parametrize(("estimator", "weighted"), [("k1", True), ("k2", False), ("k2", True), ("k3", True)])
def test_token_level_losses_miss_a_part_of_the_sequence_gradient(estimator, weighted):
    policy = TwoTokens()
    loss = penalty(estimator, policy.logp, policy.ref, policy.logp, weighted).sum(dim=1)
    found = gradient((policy.chance.detach() * loss).sum(), policy.theta)
    assert distance(found, policy.true_gradient()) > 0.1


def test_sums_over_hand_made_completions():
    logp = torch.tensor([[-1.0, -2.0, -3.0], [-1.0, -1.0, 9e9]]).requires_grad_()
    ref = torch.tensor([[-1.5, -1.0, -3.25], [-4.0, -2.0, -9e9]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    to_go = kl_to_go(logp, ref, mask)
    assert to_go.tolist() == [[-0.25, -0.75, 0.25], [4.0, 1.0, 0.0]]
    assert not to_go.requires_grad


def test_masked_tokens_are_skipped():
    logp, ref, mask = torch.tensor([[1.0, 50.0, 2.0]]), torch.zeros(1, 3), torch.tensor([[1, 0, 1]])
    assert kl_to_go(logp, ref, mask).tolist() == [[3.0, 2.0, 2.0]]
    assert mean_of_tokens(torch.cat([logp, logp]), torch.tensor([[1, 0, 1], [0, 0, 0]])).tolist() == [1.5, 0.0]


# -- the stand-in for the reference in TRL's loss


@pytest.fixture
def logp() -> Tensor:
    return torch.tensor([[-1.0, -2.0], [-0.5, -0.1]]).requires_grad_()


def test_trls_expression_gives_the_term_and_its_gradient(logp):
    ref = ReferenceLogps(lambda value: 3 * value.square())
    found = torch.exp(ref - logp) - (ref - logp) - 1
    torch.testing.assert_close(found, 3 * logp.square(), rtol=0, atol=0)
    torch.testing.assert_close(gradient(found.sum(), logp), 6 * logp.detach(), rtol=0, atol=0)


def test_trls_expression_gives_our_penalty_and_can_be_weighted_by_trl(logp):
    old, real = logp.detach() - 0.1, logp.detach() + 0.3
    ref = ReferenceLogps(lambda value: penalty("k2", value, real, old))
    found = (torch.exp(ref - logp) - (ref - logp) - 1) * 2
    torch.testing.assert_close(found, 2 * penalty("k2", logp, real, old), rtol=0, atol=0)


# Here d = ref - logp. TRL's expression is exp(d) - d - 1.
REFUSED = ["exp(d) - 1 - d", "torch.expm1(d) - d", "exp(logp - ref) - (logp - ref) - 1", "exp(d) - (logp - ref) - 1"]
REFUSED += ["exp(d) - d - 2", "exp(d) - d + 1", "exp(d) + d - 1", "d - exp(d) - 1", "exp(d) - logp"]
REFUSED += ["exp(d) - d - logp", "exp(d) - d - torch.tensor(1)", "exp(torch.clamp(d, max=20)) - d - 1", "exp(exp(d))"]
REFUSED += ["torch.abs(d)", "d * logp", "logp * d", "logp * (exp(d) - d)", "d ** 2 / 2", "-d", "d - 1", "d - logp"]
REFUSED += ["logp - d", "ref[:, 1:] - logp[:, 1:]", "torch.where(logp > -1, d, logp)", "ref + logp", "ref * logp"]
REFUSED += ["torch.stack([ref, logp])"]
# This has the form of TRL's expression, but another gradient.
REFUSED += ["exp(d) - (ref - logp.detach()) - 1"]
METHODS = ["d.exp() - d - 1", "ref.detach() - logp"]


@pytest.mark.parametrize("expression", [*REFUSED, *METHODS])
def test_any_other_expression_is_refused(logp, expression):
    ref = ReferenceLogps(torch.Tensor.square)
    names = {"torch": torch, "exp": torch.exp, "ref": ref, "logp": logp, "d": ref - logp}
    with pytest.raises((TypeError, AttributeError) if expression in METHODS else TypeError):
        eval(expression, names)


# -- the controller


def test_beta_moves_as_in_ziegler():
    assert adapt_beta(0.1, 1.1, 1.0, 1000, 10_000) == pytest.approx(0.1 * (1 + 0.1 * 0.1))
    assert adapt_beta(0.04, 0.45, 0.5, 64, 640) == pytest.approx(0.04 * (1 - 0.1 * 0.1))
    assert math.isclose(adapt_beta(0.1, math.nan, 1.0, 16, 16), 0.1, rel_tol=0)


@tried
@given(st.one_of(st.floats(-10, 10), st.just(math.inf)), st.integers(1, 10**7), st.integers(1, 10**5))
def test_beta_follows_the_kl_by_at_most_a_fifth_per_horizon(kl, completions, horizon):
    """Beta changes by at most 20 % for any horizon, so it stays above 0."""
    after = adapt_beta(0.1, kl, 1.0, completions, horizon)
    assert (after > 0.1, after < 0.1) == (kl > 1, kl < 1) or after == pytest.approx(0.1)
    largest = 0.2 * min(completions / horizon, 1)
    assert abs(after / 0.1 - 1) <= largest + 1e-12
    assert abs(kl - 1) < 0.2 or abs(after / 0.1 - 1) == pytest.approx(largest)


def test_beta_never_reaches_zero_in_a_long_run():
    beta = 0.1
    for _ in range(2000):
        beta = adapt_beta(beta, 0.0, 1.0, 512, 10_000)
    assert 0 < beta < 1e-6


def test_the_controller_adapts_to_the_mean_since_its_last_change():
    controller = BetaController(target=1.0, horizon=1000)
    assert controller.adapt(0.1) is None
    controller.see(1.0, 100)
    controller.see(1.3, 50)
    expected = adapt_beta(0.1, 1.1, 1.0, 75, 1000)
    assert controller.adapt(0.1, passes=2) == pytest.approx(expected)
    assert controller.adapt(0.1) is None
    controller.see(9.0, 0)  # a batch without live completions counts nothing
    assert controller.adapt(0.1) is None
    fixed = BetaController(target=None, horizon=1000)
    fixed.see(9.0, 100)
    assert fixed.adapt(0.1) is None
