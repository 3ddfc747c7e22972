"""Tests of importance ratios other than TRL's: values, gradients, and training compared with TRL's GSPO."""

import pytest
import tiny_models
import torch
from torch.testing import assert_close
from trl import GRPOTrainer

from trl_grpo_plus.objective.ratios import OldLogps, gspo_token
from trl_grpo_plus.registry import Step


MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])


def logps():
    generator = torch.Generator().manual_seed(0)
    logp, old = (torch.randn(2, 4, dtype=torch.float64, generator=generator) for _ in range(2))
    return logp.requires_grad_(), old


def test_gspo_token_is_the_papers_ratio():
    """The ratio is s_t = sg(s) x pi_t / sg(pi_t), s = (pi(y) / pi_old(y)) ^ (1 / length): arXiv 2507.18071, eq. 14."""
    logp, old = logps()
    advantages = torch.tensor([[1.0, -2.0, 0.5, 9.0], [3.0, 0.0, 9.0, 9.0]], dtype=torch.float64)
    ratio = torch.exp(logp - OldLogps(gspo_token, old, MASK))
    s = ((logp - old) * MASK).sum(1, keepdim=True).div(MASK.sum(1, keepdim=True)).exp().detach()
    expected = s * logp.exp() / logp.exp().detach()
    assert_close(ratio, expected)
    for of_tokens in (advantages, torch.ones_like(advantages)):
        (found,) = torch.autograd.grad((ratio * of_tokens * MASK).sum(), logp, retain_graph=True)
        (right,) = torch.autograd.grad((expected * of_tokens * MASK).sum(), logp, retain_graph=True)
        assert_close(found, right)


def test_on_policy_the_ratio_is_one_and_has_the_tokens_gradient():
    logp, _ = logps()
    ratio = torch.exp(logp - OldLogps(gspo_token, None, MASK))
    assert_close(ratio, torch.ones_like(ratio))
    (found,) = torch.autograd.grad((ratio * MASK).sum(), logp)
    assert_close(found, MASK.double())


@pytest.mark.parametrize("use", [lambda old, logp: old - logp, lambda old, logp: logp + old, lambda old, logp: -old])
def test_any_other_use_of_old_logps_is_refused(use):
    logp, old = logps()
    with pytest.raises(TypeError):
        use(OldLogps(gspo_token, old, MASK), logp)


OFF_POLICY = {"num_iterations": 3, "max_steps": 6, "epsilon": 3e-3, "epsilon_high": 4e-3, "learning_rate": 1e-2}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"num_iterations": 1, "max_steps": 3}, id="on policy"),
        pytest.param(OFF_POLICY, id="off policy, clipped"),
        # With the bias correction we weigh a token's KL by its own ratio, and TRL weighs it by the sequence's.
        pytest.param({**OFF_POLICY, "beta": 0.1, "use_bias_correction_kl": False}, id="with a KL"),
    ],
)
def test_with_one_advantage_per_attempt_it_trains_as_trls_gspo(tmp_path, options):
    options = {**tiny_models.EXACT, "loss_type": "grpo", **options}
    ours = tiny_models.trained(tmp_path / "ours", tiny_models.digits, importance_ratio="gspo_token", **options)
    sequence = {**options, "importance_sampling_level": "sequence"}
    theirs = tiny_models.trained(tmp_path / "theirs", tiny_models.digits, cls=GRPOTrainer, **sequence)
    by_token = tiny_models.trained(tmp_path / "token", tiny_models.digits, cls=GRPOTrainer, **options)
    assert any(tiny_models.losses(ours))
    for own, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        assert_close(own, other, rtol=1e-4, atol=1e-6)
    if options["num_iterations"] > 1:
        assert max(tiny_models.logged(ours, "clip_ratio/region_mean")) > 0
        pairs = zip(ours.model.parameters(), by_token.model.parameters(), strict=True)
        assert max((own - other).abs().max().item() for own, other in pairs) > 1e-4


def test_the_kl_keeps_the_ratio_of_each_token(tmp_path):
    """Only the KL is trained on, and it does not use the ratio of the policy's loss."""
    options = {**tiny_models.EXACT, **OFF_POLICY, "loss_type": "grpo", "beta": 5.0, "reward_weights": [0.0]}
    options |= {"weight_decay": 5.0}  # this moves the policy away from its reference
    ours = tiny_models.trained(tmp_path / "ours", tiny_models.digits, importance_ratio="gspo_token", **options)
    theirs = tiny_models.trained(tmp_path / "theirs", tiny_models.digits, cls=GRPOTrainer, **options)
    assert max(abs(loss) for loss in tiny_models.losses(ours)) > 0
    for own, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        assert_close(own, other, rtol=1e-4, atol=1e-6)


def test_advantages_of_tokens_are_weighed_by_the_sequences_ratio(tmp_path):
    """Step rewards train with the ratio of the whole attempt, which TRL's GSPO cannot do."""

    def steps(completions, **kwargs):
        return [
            [Step(1, float(text[0] in "02468")), Step(len(text), 0.5)] if text[1:] else 0.0 for text in completions
        ]

    options = {"step_reward_credit": "to_go", "importance_ratio": "gspo_token", "loss_type": "grpo", **OFF_POLICY}
    trained = tiny_models.trained(tmp_path, steps, **options)
    assert any(tiny_models.losses(trained))
