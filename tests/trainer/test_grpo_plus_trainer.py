"""Tests of the trainer's use of the advantage and KL modules, and of what its construction refuses."""

import copy
import dataclasses
import itertools
import pickle
import warnings

import advantages_by_keyword as advantages
import numpy as np
import pytest
import tiny_models
import torch
from datasets import DatasetDict
from slow_cases import covering
from trl import GRPOConfig, GRPOTrainer

from trl_grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from trl_grpo_plus.config.validation import TRL_CHOICES
from trl_grpo_plus.curriculum.beliefs import Belief
from trl_grpo_plus.objective import kl, scales
from trl_grpo_plus.objective.advantages import BASELINES
from trl_grpo_plus.objective.scales import SCALES
from trl_grpo_plus.utils.validation import ConfigError


pytestmark = pytest.mark.long


EACH_ONCE = [(baseline, "group") for baseline in BASELINES if baseline != "belief"]
EACH_ONCE += [*(("mean", scale) for scale in SCALES if scale != "prior"), ("belief", "prior")]
# Belief (mean, variance, attempts) about a prompt that was never sampled: the middle of the range, on two attempts.
NOTHING_KNOWN = (0.5, 0.25, 2.0)


def first_batch(trained):
    """Return the last generation batch's rewards and advantages from TRL's table, (P, G) each."""
    (rewards,) = trained._logs["rewards"].values()
    groups = (-1, trained.num_generations)
    return torch.tensor(rewards).view(groups), torch.tensor(trained._logs["advantages"]).view(groups)


@pytest.mark.parametrize(("baseline", "scale"), EACH_ONCE[1:])
def test_advantages_use_the_chosen_baseline_and_scale(tmp_path, baseline, scale):
    lengths = []

    def reward(completions, completion_ids, **kwargs):
        lengths.extend(len(ids) for ids in completion_ids)
        return tiny_models.digits(completions)

    options = {"std_ddof": 0, "std_eps": 1e-6, "std_floor": 0.05, "max_steps": 1}
    trained = tiny_models.trained(tmp_path, reward, advantage_baseline=baseline, scale_rewards=scale, **options)
    rewards, used = first_batch(trained)
    (buffered,) = trained._buffered_inputs
    assert sorted(buffered["advantages"].tolist()) == pytest.approx(sorted(used.flatten().tolist()), abs=1e-6)
    needed = {"lengths": torch.tensor(lengths).view(rewards.shape), "running_std": scales.batch_std(rewards, 0)}
    needed["belief"] = Belief(*(torch.full((len(rewards),), value).double() for value in NOTHING_KNOWN))
    expected = advantages.compute(rewards, baseline, scale, ddof=0, eps=1e-6, floor=0.05, **needed)
    torch.testing.assert_close(used, expected, rtol=1e-5, atol=1e-5)
    assert used.abs().max() > 0
    assert len(set(lengths)) > 1


def test_advantage_clip(tmp_path):
    trained = tiny_models.trained(tmp_path, tiny_models.digits, advantage_clip=0.25, max_steps=1)
    assert first_batch(trained)[1].abs().max() == 0.25


def test_trl_advantages_at_trl_defaults(tmp_path):
    """Our own advantages equal TRL's at TRL's settings. A clip that clips nothing makes the trainer use its own."""
    ours = tiny_models.trained(tmp_path, tiny_models.digits, advantage_clip=1e9, max_steps=1)
    stock = tiny_models.trained(tmp_path, tiny_models.digits, cls=GRPOTrainer, max_steps=1)
    torch.testing.assert_close(first_batch(ours)[1], first_batch(stock)[1], rtol=1e-4, atol=1e-5)


def rising(completions, **kwargs):
    return [0.1 * (i % 4) for i in range(len(completions))]


@pytest.mark.parametrize(
    ("reward", "options"),
    # TRL's std of four float32 rewards of 0.3 is not 0. Our trainer never divides by it.
    [(tiny_models.always_dead, {"std_eps": 1e-9}), (rising, {"zero_variance_tolerance": 0.5})],
)
def test_a_dead_group_has_no_advantage_at_all(tmp_path, reward, options):
    trained = tiny_models.trained(tmp_path, reward, max_steps=1, **options)
    assert trained._logs["advantages"].count(0.0) == 8


def test_the_running_std_moves_with_each_batch_and_is_in_the_checkpoint(tmp_path):
    rewards = []

    def reward(completions, **kwargs):
        rewards.append(torch.tensor(tiny_models.digits(completions)).view(2, 4))
        return rewards[-1].flatten().tolist()

    trained = tiny_models.trained(tmp_path, reward, scale_rewards="running", running_std_decay=0.5, max_steps=2)
    first, second = (scales.batch_std(batch) ** 2 for batch in rewards)
    assert trained._resume_state()["running_variance"] == pytest.approx(0.5 * first + 0.5 * second)


def test_evaluation_leaves_the_running_std_alone(tmp_path):
    trained = tiny_models.trained(
        tmp_path, tiny_models.digits, scale_rewards="running", extra={"eval_dataset": tiny_models.prompts(6)}
    )
    before = trained._resume_state()["running_variance"]
    trained.evaluate()
    assert trained._resume_state()["running_variance"] == before > 0


IN_REWARD = {"beta": 0.1, "kl_estimator": "k1", "kl_placement": "reward"}


@pytest.mark.parametrize(
    "options",
    [
        {"per_device_train_batch_size": 16},
        {"scale_rewards": "running", "advantage_baseline": "length_weighted"},
        {"multi_objective_aggregation": "normalize_then_sum"},
        {**IN_REWARD, "kl_reward_form": "reward_to_go", "advantage_baseline": "median"},
    ],
    ids=str,
)
def test_a_batch_without_live_groups_leaves_the_weights(tmp_path, options):
    trained = tiny_models.trainer(
        tmp_path, tiny_models.always_dead, zero_variance_groups="drop", max_steps=2, **options
    )
    before = tiny_models.weights(trained)
    trained.train()
    assert tiny_models.losses(trained) == [0.0, 0.0]
    assert tiny_models.logged(trained, "groups/trained") == tiny_models.logged(trained, "tokens/trained") == [0, 0]
    assert tiny_models.same_weights(tiny_models.weights(trained), before)


@pytest.mark.parametrize(("metric", "alive"), [("total", 0.0), ("rising", 1.0), ("any", 1.0)])
def test_the_verdict_uses_filter_metric(tmp_path, metric, alive):
    def falling(completions, **kwargs):
        return [-value for value in rising(completions)]

    options = {"max_steps": 1, "zero_variance_groups": "drop", "filter_metric": metric}
    trained = tiny_models.trained(tmp_path, [rising, falling, tiny_models.always_dead], **options)
    assert tiny_models.logged(trained, "groups/alive") == [alive]
    assert tiny_models.logged(trained, "groups/trained") == [2 * alive]


def test_evaluation_is_trls(tmp_path):
    """An evaluation has TRL's loss and metrics, whatever our options are."""
    options = {"extra": {"eval_dataset": tiny_models.prompts(6), "rollout_func": tiny_models.scripted}, "beta": 0.1}
    changed = {"std_ddof": 0, "scale_rewards": "mad", "kl_estimator": "k2", "zero_variance_groups": "drop"}
    ours = tiny_models.trainer(tmp_path, tiny_models.digits, **options, **changed).evaluate()
    theirs = tiny_models.trainer(tmp_path, tiny_models.digits, cls=GRPOTrainer, **options).evaluate()
    assert {key: ours[key] for key in tiny_models.untimed(theirs)} == tiny_models.untimed(theirs)
    assert "eval_kl" in theirs


def test_the_last_entry_has_the_steps_since_the_entry_before(tmp_path):
    """TRL leaves them out after an evaluation at the end. The model is in evaluation mode then."""
    options = {"logging_steps": 2, "max_steps": 3, "eval_strategy": "steps", "eval_steps": 3}
    options |= {"extra": {"eval_dataset": tiny_models.prompts(6)}, "zero_variance_groups": "drop"}
    trained = tiny_models.trained(tmp_path, tiny_models.digits, **options)
    first, evaluation, last = trained.state.log_history
    assert "eval_reward" in evaluation
    assert last["step"] == 3
    assert first.keys() - last.keys() == {"loss", "grad_norm", "learning_rate"}, "transformers logs these itself"
    assert not trained.model.training
    assert not trained._metrics["train"]


def test_an_epochs_entry_has_its_steps_after_an_evaluation(tmp_path):
    """With TRL no such entry has them: an evaluation comes before the log at the end of the epoch."""
    options = {"data": tiny_models.prompts(4), "logging_strategy": "epoch", "max_steps": 4}
    options |= {"eval_strategy": "steps", "eval_steps": 2, "extra": {"eval_dataset": tiny_models.prompts(2)}}
    trained = tiny_models.trained(tmp_path, tiny_models.digits, **options)
    entries = [entry for entry in trained.state.log_history if "loss" in entry]
    assert [entry["step"] for entry in entries] == [2, 4]
    assert all("reward" in entry and "eval_reward" not in entry for entry in entries)
    assert entries[0]["reward"] != entries[1]["reward"]
    assert len(tiny_models.logged(trained, "eval_reward")) == 2


def test_frac_reward_zero_std_is_per_group(tmp_path):
    """The metric is a share of groups. With scale_rewards="batch" TRL's is only 0 or 1."""
    options = {"scale_rewards": "batch", "max_steps": 1, "shuffle_dataset": False}
    ours = tiny_models.trained(tmp_path, tiny_models.dead_for_most, **options)
    stock = tiny_models.trained(tmp_path, tiny_models.dead_for_most, cls=GRPOTrainer, **options)
    assert tiny_models.logged(stock, "frac_reward_zero_std") == [0.0]
    assert tiny_models.logged(ours, "frac_reward_zero_std") == [0.5]


def test_a_third_is_rounded_as_trl_rounds_it(tmp_path):
    options = {"per_device_train_batch_size": 12, "max_steps": 1}
    ours, stock = (
        tiny_models.trained(tmp_path, tiny_models.dead_for_most, cls, **options)
        for cls in (GRPOPlusTrainer, GRPOTrainer)
    )
    shares = tiny_models.logged(ours, "frac_reward_zero_std")
    assert shares == tiny_models.logged(stock, "frac_reward_zero_std")
    assert 0 < shares[0] < 1


def test_none_rewards(tmp_path):
    """None means "does not apply". An attempt without any reward has advantage 0 and is not in its group's mean."""

    def reward(completions, **kwargs):
        return [None if i % 4 == 3 or i >= 4 else float(i % 4) for i in range(len(completions))]

    trained = tiny_models.trained(tmp_path, reward, std_ddof=0, std_eps=0.0, max_steps=1)
    assert list(trained._logs["advantages"]) == pytest.approx([-1.2247449, 0.0, 1.2247449, *[0.0] * 5])
    assert tiny_models.logged(trained, "groups/unscored") == [0.5]


# -- KL


def with_moved_reference(folder, **options):
    """Make a trainer whose reference is another random model, so that the KL is far from 0 from the first step on."""
    trained = tiny_models.trainer(
        folder, **{"reward": tiny_models.digits, "beta": 0.2, "learning_rate": 1e-3, **options}
    )
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in trained.ref_model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return trained


def trained_from_afar(folder, **options):
    """Return a trainer that has trained, and a second one with the weights from before that training."""
    trained = with_moved_reference(folder, **options)
    trained.train()
    return trained, with_moved_reference(folder, **options)


def kl_to_go(trained, start):
    """Return the KL to go of the only micro-batch, (P, G, T), and its order.

    The order is that of TRL's table, as places in the micro-batch, which TRL shuffles.
    """
    (batch,) = trained._buffered_inputs
    to_go = kl.kl_to_go(start._policy_logps(batch), batch["ref_per_token_logps"], batch["completion_mask"])
    texts = tiny_models.tokenizer().batch_decode(batch["completion_ids"], skip_special_tokens=True)
    order = [texts.index(text) for text in trained._logs["completion"]]
    return to_go[order].unflatten(0, (-1, trained.num_generations)), order


@pytest.mark.parametrize(
    ("loss_type", "level", "weighted"),
    covering(
        lambda loss_type, *rest: loss_type == "dapo" or rest == ("token", True),
        *(TRL_CHOICES["loss_type"], ["token", "sequence"], [True, False]),
    ),
)
def test_our_k3_is_trl_k3(tmp_path, monkeypatch, loss_type, level, weighted):
    """Our k3 term in TRL's loss gives TRL's losses and weights, also off-policy.

    One case differs. With sequence-level importance sampling TRL weighs the KL by the sequence's ratio, and we weigh
    it by the token's. There only the unweighted term is the same.
    """
    monkeypatch.setitem(kl.ESTIMATORS, "ours", kl.ESTIMATORS["k3"])
    options = {"loss_type": loss_type, "importance_sampling_level": level, "use_bias_correction_kl": weighted}
    options |= {"num_iterations": 2, "max_steps": 4}
    ours = with_moved_reference(tmp_path, **options)
    ours.args.kl_estimator = "ours"
    ours.train()
    stock, _ = trained_from_afar(tmp_path, cls=GRPOTrainer, **options)
    same = tiny_models.losses(ours) == pytest.approx(tiny_models.losses(stock), rel=1e-4, abs=1e-5)
    assert same == (level == "token" or not weighted)
    if same:
        assert tiny_models.logged(ours, "kl") == pytest.approx(tiny_models.logged(stock, "kl"), rel=1e-4)
        for name, value in tiny_models.weights(ours).items():
            torch.testing.assert_close(value, tiny_models.weights(stock)[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("estimator", "weighted"), [("k1", True), ("k2", True), ("k2", False), ("abs", True)])
def test_the_chosen_estimator_is_what_is_logged_and_added(tmp_path, estimator, weighted):
    options = {"kl_estimator": estimator, "use_bias_correction_kl": weighted, "max_steps": 1, "loss_type": "bnpo"}
    trained, start = trained_from_afar(tmp_path, **options)
    (batch,) = trained._buffered_inputs
    logp, ref, mask = start._policy_logps(batch), batch["ref_per_token_logps"], batch["completion_mask"]
    mean = ((kl.penalty(estimator, logp, ref, importance_weighted=weighted) * mask).sum() / mask.sum()).item()
    assert tiny_models.logged(trained, "kl") == pytest.approx([mean], rel=1e-4)
    # On-policy every ratio is 1, so the rest of bnpo's loss is minus the advantages' mean over the tokens.
    policy = -(batch["advantages"].unsqueeze(1) * mask).sum() / mask.sum()
    assert tiny_models.losses(trained)[0] == pytest.approx(policy.item() + 0.2 * mean, abs=1e-4)
    assert trained.args.use_bias_correction_kl is weighted


@pytest.mark.parametrize("form", ["sequence", "reward_to_go"])
@pytest.mark.parametrize("scale", ["none", "group"])
def test_kl_in_the_reward(tmp_path, form, scale):
    options = {"kl_estimator": "k1", "kl_placement": "reward", "kl_reward_form": form, "scale_rewards": scale}
    trained, start = trained_from_afar(tmp_path, max_steps=1, **options)
    (batch,) = trained._buffered_inputs
    to_go, order = kl_to_go(trained, start)
    assert len(set(order)) == 8, "two completions alike: choose another seed"
    assert to_go[..., 0].abs().min() > 0
    to_go, totals = to_go.double().cpu(), first_batch(trained)[0].double()
    penalised = totals - 0.2 * to_go[..., 0]
    centred = penalised - penalised.mean(1, keepdim=True)
    std = penalised.std(dim=1, keepdim=True) + 1e-4 if scale == "group" else torch.ones(2, 1, dtype=torch.float64)
    used = batch["advantages"][order].double().cpu()
    if form == "sequence":
        torch.testing.assert_close(used.view(2, 4), centred / std, rtol=1e-3, atol=1e-4)
    else:
        returns = totals.unsqueeze(-1) - 0.2 * to_go
        expected = (returns - returns.mean(1, keepdim=True)) / std.unsqueeze(-1)
        torch.testing.assert_close(used.view(2, 4, -1), expected, rtol=1e-3, atol=1e-4)
    mean = (to_go[..., 0].sum() / batch["completion_mask"].sum()).item()
    assert tiny_models.logged(trained, "kl")[0] == pytest.approx(mean, rel=1e-3)
    # All ranks gather the KL: one number per completion, unless each token has its own.
    assert start._kl_to_go(batch, 2).shape == (8, 1 if form == "sequence" else batch["completion_ids"].shape[1])


def test_one_more_scale_and_estimator_are_an_entry_each(tmp_path, monkeypatch):
    """A scale and an estimator that are added to the dicts can be named in the options, and train."""
    largest = scales.Scale(lambda rewards: rewards.values.amax(dim=1, keepdim=True), over="group")
    monkeypatch.setitem(SCALES, "largest", largest)
    monkeypatch.setitem(kl.ESTIMATORS, "twice", kl.KLEstimator(lambda log_ratio: 2 * log_ratio.abs(), is_kl=False))
    options = {"scale_rewards": "largest", "max_steps": 1, "use_bias_correction_kl": False}
    ours, _ = trained_from_afar(tmp_path, kl_estimator="twice", **options)
    rewards, used = first_batch(ours)
    torch.testing.assert_close(used, advantages.compute(rewards, scale="largest"), rtol=1e-5, atol=1e-5)
    other, _ = trained_from_afar(tmp_path, kl_estimator="abs", **options)
    assert tiny_models.logged(ours, "kl")[0] == pytest.approx(2 * tiny_models.logged(other, "kl")[0], rel=1e-5)
    with pytest.raises(ValueError, match="kl_target does not go with kl_estimator='twice'"):
        with_moved_reference(tmp_path, kl_estimator="twice", kl_target=0.1, **options)


def nothing(completions, **kwargs):
    return [None] * len(completions)


@pytest.mark.parametrize("form", ["sequence", "reward_to_go"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reward": nothing, "scale_rewards": "running"},
        {"reward": tiny_models.digits, "zero_variance_tolerance": 1.0, "advantage_baseline": "leave_one_out"},
        {"zero_variance_groups": "resample", "resample_fallback": "keep", "max_resample_rounds": 1},
        {"advantage_clip": 0.01},
    ],
    ids=lambda options: "-".join(str(getattr(value, "__name__", value)) for value in options.values()),
)
def test_tied_groups_bear_the_kl_in_the_reward(tmp_path, form, options):
    options = {"kl_estimator": "k1", "kl_placement": "reward", "kl_reward_form": form, **options}
    options = {"reward": tiny_models.always_dead, "max_steps": 1, **options}
    trained, start = trained_from_afar(tmp_path, **options)
    to_go, order = kl_to_go(trained, start)
    used = trained._buffered_inputs[0]["advantages"][order].unflatten(0, (-1, 4))
    expected = 0.2 * (to_go.mean(dim=1, keepdim=True) - to_go)
    if "advantage_baseline" in options:
        expected = expected * 4 / 3
    expected = expected.clamp(-0.01, 0.01) if "advantage_clip" in options else expected
    expected = expected if form == "reward_to_go" else expected[..., 0]
    # The scale is 1 in each case. A running std that has seen no batch is 1 too, plus std_eps, hence the tolerance.
    torch.testing.assert_close(used, expected, rtol=1e-3, atol=1e-5)
    assert tiny_models.logged(trained, "grad_norm")[0] > 1e-3
    assert tiny_models.logged(trained, "groups/alive") == [0.0]


def test_the_kl_pulls_as_hard_in_the_reward_as_in_the_loss_when_all_is_solved(tmp_path):
    """If all rewards are equal, the step follows the KL alone, and both placements give similar steps.

    Both estimate the KL's gradient from the same 256 attempts. They differ because the KL in the loss ignores how a
    token changes the KL of later tokens.
    """
    options = {"reward": tiny_models.always_dead, "max_steps": 1, "kl_estimator": "k1", "loss_type": "dr_grpo"}
    options |= {"optim": "sgd", "max_grad_norm": 0.0, "per_device_train_batch_size": 256, "num_generations": 128}
    options |= {"advantage_baseline": "leave_one_out"}
    steps = []
    for placement in ("loss", "reward"):
        form = {"kl_placement": placement} | ({"kl_reward_form": "reward_to_go"} if placement == "reward" else {})
        trained = with_moved_reference(tmp_path, **options, **form)
        before = tiny_models.weights(trained)
        trained.train()
        after = tiny_models.weights(trained)
        steps.append(torch.cat([(after[name] - before[name]).flatten() for name in after]))
    cosine = (steps[0] @ steps[1] / steps[0].norm() / steps[1].norm()).item()
    assert cosine > 0.5
    assert 0.5 < steps[1].norm() / steps[0].norm() < 2


def test_kl_in_the_reward_is_not_in_the_loss_as_well(tmp_path):
    options = {"kl_estimator": "k1", "kl_placement": "reward", "max_steps": 1}
    trained, _ = trained_from_afar(tmp_path, loss_type="grpo", **options)
    # On-policy, the loss is minus the mean of the advantages, one per sequence. The baseline makes that mean 0.
    assert tiny_models.losses(trained) == pytest.approx([0.0], abs=1e-6)
    assert trained.beta == 0.2


@pytest.mark.parametrize("placement", ["loss", "reward"])
@pytest.mark.parametrize(("target", "rises"), [(1e-3, True), (1e3, False)])
def test_beta_adapts(tmp_path, placement, target, rises):
    options = {"kl_estimator": "k1", "kl_placement": placement, "kl_target": target, "kl_horizon": 40}
    trained, _ = trained_from_afar(tmp_path, gradient_accumulation_steps=2, **options)
    betas = [0.2, *tiny_models.logged(trained, "beta")]
    assert len(betas) == 4
    # Beta changes once per optimizer step of 2 x 8 completions, by at most 20 % per horizon of 40: 8 %.
    assert [b / a for a, b in itertools.pairwise(betas)] == pytest.approx([1.08 if rises else 0.92] * 3)
    assert trained._resume_state()["beta"] == trained.beta


# -- what construction refuses


def refused(tmp_path, match, reward=tiny_models.digits, **options):
    with pytest.raises(ValueError, match=match):
        tiny_models.trainer(tmp_path, reward, **options)


STREAM = tiny_models.prompts(30).to_iterable_dataset()
RESAMPLE = {"zero_variance_groups": "resample"}


@pytest.mark.parametrize(
    ("match", "options"),
    [
        ("filter_metric='digit'.*'digits'", {"filter_metric": "digit"}),
        (
            r"train_dataset is a DatasetDict of splits \(train, test\).*dataset\['train'\]",
            {"data": DatasetDict(train=tiny_models.prompts(30), test=tiny_models.prompts(4))},
        ),
        (r"train_dataset='rows.jsonl' is a name. Load it first", {"data": "rows.jsonl"}),
        (
            r"train_dataset has no column 'prompt'.* It has 'prompts', 'number'. Did you mean prompts\?",
            {"data": tiny_models.prompts(4).rename_column("prompt", "prompts")},
        ),
        (
            "eval_dataset hard has no column 'prompt'.* It has 'number'",
            {"extra": {"eval_dataset": {"hard": tiny_models.prompts(4).remove_columns("prompt")}}},
        ),
        ("map-style dataset.*IterableDataset.*'drop'", {"data": STREAM, **RESAMPLE}),
        (
            r"eval_dataset: the traces of 'a b' and of 'a/b' would have the same files, eval_a_b-\*. Rename one",
            {"extra": {"eval_dataset": {name: tiny_models.prompts(2) for name in ("a b", "a.b", "a/b")}}},
        ),
    ],
)
def test_refuses_what_cannot_work(tmp_path, match, options):
    refused(tmp_path, match, **options)


@pytest.mark.parametrize(
    "options",
    [{"zero_variance_groups": "drop"}, {"zero_variance_groups": "resample"}, {"filter_metric": "any"}],
    ids=lambda options: next(iter(options.values())),
)
def test_refuses_to_filter_by_rewards_without_weight(tmp_path, options):
    weights = [0.0, 0.0]
    match = r"reward_weights=\[0.0, 0.0\].*other than 0.*'keep'.*'total'"
    refused(tmp_path, match, [tiny_models.digits, tiny_models.always_dead], reward_weights=weights, **options)
    tiny_models.trainer(tmp_path, [tiny_models.digits, tiny_models.always_dead], reward_weights=[0.0, -1.0], **options)


def test_drops_from_a_stream(tmp_path):
    assert tiny_models.trained(tmp_path, data=STREAM, zero_variance_groups="drop").state.global_step == 3


def test_refuses_a_stock_config(tmp_path):
    stock = GRPOConfig(output_dir=str(tmp_path), bf16=False, use_cpu=True)
    with pytest.raises(TypeError, match="GRPOPlusConfig, got GRPOConfig"):
        GRPOPlusTrainer(tiny_models.model_path(tmp_path), tiny_models.digits, stock)


@pytest.mark.parametrize(
    ("option", "value", "match"),
    [
        ("zero_variance_groups", "dropp", "zero_variance_groups='dropp' is not one of .* Did you mean drop"),
        ("scale_rewards", "mea", "scale_rewards='mea' is not one of"),
        ("kl_horizon", 5, "kl_horizon=5 has no effect with kl_target=None: set kl_target"),
        ("trace_every", -1, "trace_every=-1 must be"),
        ("num_generations", "4", "num_generations='4' must be"),
    ],
)
def test_refuses_an_option_that_a_script_sets_after_the_config_is_made(tmp_path, option, value, match):
    """TRL's own scripts set options of the config that their parser made."""
    args = GRPOPlusConfig(**tiny_models.BASE, output_dir=str(tmp_path))
    setattr(args, option, value)
    with pytest.raises(ConfigError, match=match):
        GRPOPlusTrainer(tiny_models.model_path(tmp_path), tiny_models.digits, args, tiny_models.prompts(4))


def test_takes_numpys_numbers_that_a_script_sets_after_the_config_is_made(tmp_path):
    args = GRPOPlusConfig(**tiny_models.BASE, output_dir=str(tmp_path))
    args.trace_every, args.alarms = np.int64(2), np.bool_(False)
    GRPOPlusTrainer(tiny_models.model_path(tmp_path), tiny_models.digits, args, tiny_models.prompts(4))
    assert (args.trace_every, args.alarms) == (2, False)
    assert (type(args.trace_every), type(args.alarms)) == (int, bool)


def test_makes_its_own_config(tmp_path, monkeypatch):
    # TRL's default is bf16, which transformers allows only on a GPU that supports it.
    monkeypatch.setattr("transformers.training_args.is_torch_bf16_gpu_available", lambda: True)
    monkeypatch.chdir(tmp_path)
    made = made_with(GRPOPlusTrainer, tmp_path, None)
    assert isinstance(made.args, GRPOPlusConfig)
    assert made.args.output_dir.endswith("model-0-GRPO")


# -- a user swaps only the config: GRPOPlusConfig with TRL's trainer


DROPS = {"zero_variance_groups": "drop", "trace_every": 0, "learning_rate": 1e-3}


def plus_config(folder, **options):
    return GRPOPlusConfig(**{**tiny_models.BASE, "output_dir": str(folder / "run"), **options})


def made_with(cls, folder, config, **extra):
    arguments = {
        "args": config,
        "train_dataset": tiny_models.prompts(30),
        "processing_class": tiny_models.tokenizer(),
        **extra,
    }
    return cls(model=tiny_models.model_path(folder), reward_funcs=tiny_models.digits, **arguments)


def test_trls_trainer_warns_of_options_that_it_ignores(tmp_path):
    with pytest.warns(UserWarning, match="no effect") as caught:
        made_with(GRPOTrainer, tmp_path, plus_config(tmp_path, **DROPS))
    ((warning, file),) = [(str(one.message), one.filename) for one in caught if "no effect" in str(one.message)]
    assert file == __file__  # the line that makes the trainer, not one of a library
    assert warning.startswith("zero_variance_groups='drop', trace_every=0 have no effect")
    assert "Replace GRPOTrainer(...) by GRPOPlusTrainer(...)" in warning
    assert "learning_rate" not in warning


def test_it_warns_also_for_a_used_config_and_with_a_users_schedule(tmp_path):
    config = plus_config(tmp_path, trace_every=0)
    optimizer = torch.optim.SGD(made_with(GRPOPlusTrainer, tmp_path, config).model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    for args, extra in ((config, {}), (plus_config(tmp_path, trace_every=0), {"optimizers": (optimizer, schedule)})):
        with pytest.warns(UserWarning, match="trace_every=0 has no effect"):
            made_with(GRPOTrainer, tmp_path, args, **extra)


class Mine(GRPOPlusTrainer):
    """A user's own subclass."""


def test_no_warning_where_all_options_take_effect(tmp_path):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*no effect")
        made_with(GRPOTrainer, tmp_path, plus_config(tmp_path))
        config = plus_config(tmp_path, **DROPS)
        again = [copy.deepcopy(config), pickle.loads(pickle.dumps(config)), GRPOPlusConfig(**asdict_of(config))]
        print(config, config.to_json_string(), config.to_dict(), repr(config))
        for trainer, args in zip([GRPOPlusTrainer, Mine, Mine, GRPOPlusTrainer], [config, *again], strict=True):
            made_with(trainer, tmp_path, args).train()
            assert trainer is not Mine or args == config


def asdict_of(config):
    derived = ("generation_batch_size",)  # TRL refuses it together with the options that it is derived from
    names = [field.name for field in dataclasses.fields(config) if field.init and field.name not in derived]
    return {name: getattr(config, name) for name in names}


@pytest.mark.parametrize("disable_tqdm", [True, False])
def test_a_log_entry_is_one_readable_line(tmp_path, capsys, disable_tqdm):
    thresholds = {"window": 4, "min_batches": 1}
    options = {"disable_tqdm": disable_tqdm, "alarm_thresholds": thresholds, "max_steps": 3}
    trained = tiny_models.trained(tmp_path, tiny_models.always_dead, **options)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    assert [line.split()[1] for line in lines] == ["1", "2", "3"]
    assert all("reward 0.300" in line and "tied 100 %" in line and "{" not in line for line in lines)
    assert "alarms: perfect_scores, dead_groups" in lines[-1]
    assert len(trained.state.log_history[0]) > 30, "trackers get all of it"
