"""Tests of two ways with zero-variance groups: `drop` and `skip`.

A step with `drop` equals that of a batch with the live groups alone, a step with `skip` equals TRL's step.
"""

import itertools
from types import SimpleNamespace

import pandas as pd
import pytest
import tiny_models
import torch
from slow_cases import one_in
from trl import GRPOTrainer

from trl_grpo_plus import GRPOPlusTrainer
from trl_grpo_plus.config import bounds
from trl_grpo_plus.config.validation import TRL_CHOICES
from trl_grpo_plus.objective import padding
from trl_grpo_plus.rollouts.groups import judge, mark_low_variance
from trl_grpo_plus.traces import reader


pytestmark = pytest.mark.long


LOSS_TYPES = TRL_CHOICES["loss_type"]
NOT_BNPO = [name for name in LOSS_TYPES if name != "bnpo"]
EIGHT = {"num_generations": 2, "data": tiny_models.prompts(40)}  # 8 groups per batch, of two attempts each
IN_FOUR = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}  # four micro-batches of four rows
BONUS = {"entropy_coef": 0.5}


def train(tmp_path, reward=tiny_models.half_dead, **options):
    return tiny_models.trained(tmp_path, reward, **{**tiny_models.EXACT, **options})


def live_alone(tmp_path, batch_size, live=lambda n: n % 4 < 2, **options):
    """Train TRL's trainer on the live prompts only."""
    options["data"] = tiny_models.prompts(40).filter(lambda row: live(row["number"]))
    return train(tmp_path, tiny_models.digits, cls=GRPOTrainer, per_device_train_batch_size=batch_size, **options)


def assert_close(ours, theirs):
    expected = tiny_models.weights(theirs)
    for name, value in tiny_models.weights(ours).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=2e-6)
    assert tiny_models.losses(ours) == pytest.approx(tiny_models.losses(theirs), rel=1e-5, abs=2e-6)


def uneven(prompts, completions, number, **columns):
    """Reward digits. The rewards of every second prompt vary a tenth as much."""
    rewards = tiny_models.digits(completions)
    return [reward * (0.1 if n % 2 else 1.0) for reward, n in zip(rewards, number, strict=True)]


def alike_unless_varied(prompts, completions, number, **columns):
    """Reward as `uneven` does, but give 0 to all attempts of groups that `reward_variance_top_p=0.7` leaves out."""
    rewards = torch.tensor(uneven(prompts, completions, number)).view(-1, 2)
    marked = mark_low_variance(judge(rewards), rewards, 0.7)
    left_out = torch.tensor([[verdict == "low_variance"] for verdict in marked])
    return rewards.masked_fill(left_out, 0.0).flatten().tolist()


@pytest.mark.parametrize("mode", ["drop", "skip"])
def test_groups_of_low_variance_leave_as_dead_groups_do(tmp_path, mode):
    options = {**EIGHT, "zero_variance_groups": mode}
    ours = train(tmp_path / "ours", uneven, reward_variance_top_p=0.7, **options)
    theirs = train(tmp_path / "theirs", alike_unless_varied, **options)
    tiny_models.assert_same(ours, theirs)
    low, alive = (tiny_models.logged(ours, f"groups/{name}") for name in ("low_variance", "alive"))
    assert all(share > 0 for share in low)
    assert alive == tiny_models.logged(theirs, "groups/alive")
    generated = tiny_models.logged(ours, "groups/generated")
    assert [share * n for share, n in zip(alive, generated, strict=True)] == tiny_models.logged(ours, "groups/trained")
    assert tiny_models.logged(ours, "frac_reward_zero_std") < tiny_models.logged(theirs, "frac_reward_zero_std")
    rows = [
        row for group in reader.groups(tmp_path / "ours" / "run") for row in group if row["verdict"] == "low_variance"
    ]
    assert {"low_variance"} <= {row["reason"] for row in rows} <= {"low_variance", "filler"}
    assert not any(row["kept"] for row in rows)


class SameNumbers:
    """Mixin for a trainer that begins each generation with the same random numbers, whatever was drawn before."""

    def _generate_single_turn(self, *args, **kwargs):
        torch.manual_seed(1000 + self.state.global_step)
        generated = super()._generate_single_turn(*args, **kwargs)
        self.sampled = [*getattr(self, "sampled", []), [list(map(int, one)) for one in generated[0]]]
        return generated


class TRLs(SameNumbers, GRPOTrainer):
    """TRL's trainer."""


class Ours(SameNumbers, GRPOPlusTrainer):
    """This package's trainer."""


@pytest.mark.parametrize(("mode", "is_trls"), [("skip", True), ("drop", False)])
def test_a_training_with_skip_is_trls_step_by_step(tmp_path, mode, is_trls):
    options = {"max_steps": 5, "per_device_train_batch_size": 16, "gradient_accumulation_steps": 2}
    options["learning_rate"] = 5e-3
    theirs = tiny_models.trained(tmp_path / "theirs", cls=TRLs, **options)
    ours = tiny_models.trained(tmp_path / "ours", cls=Ours, zero_variance_groups=mode, **options)
    trained = tiny_models.logged(ours, "groups/trained")
    assert min(trained) < max(trained) < 8
    assert (ours.sampled == theirs.sampled) == is_trls
    # Not the weights: Adam divides by the size of a gradient, so it turns rounding errors around 0 into whole steps.
    norms = pytest.approx(tiny_models.logged(theirs, "grad_norm"), rel=1e-3)
    assert (tiny_models.logged(ours, "grad_norm") == norms) == is_trls


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_equals_the_live_groups_alone(tmp_path, loss_type, beta):
    options = {"loss_type": loss_type, "beta": beta}
    ours = train(tmp_path, per_device_train_batch_size=16, zero_variance_groups="drop", **options)
    assert_close(ours, live_alone(tmp_path, 8, **options))
    assert tiny_models.logged(ours, "groups/trained") == [2, 2]


def test_keeping_dead_groups_gives_other_losses(tmp_path):
    """Without "drop" the losses differ from those of the live groups alone, so `assert_close` can fail."""
    ours = train(tmp_path, per_device_train_batch_size=16, zero_variance_groups="keep")
    theirs = live_alone(tmp_path, 8)
    assert tiny_models.losses(ours) != pytest.approx(tiny_models.losses(theirs), rel=1e-5, abs=2e-6)


def test_the_gradient_is_trls_but_for_what_it_is_divided_by(tmp_path):
    """TRL also divides by the tokens of dead groups, whose advantages are 0. So our gradient is TRL's times all tokens
    over live tokens."""
    options = {"per_device_train_batch_size": 16, "max_steps": 1, "optim": "sgd", "learning_rate": 1.0}
    options |= {"max_grad_norm": 1e9, "weight_decay": 0.0}
    before = {
        name: value.clone()
        for name, value in tiny_models.weights(tiny_models.trainer(tmp_path, tiny_models.half_dead)).items()
    }
    ours, theirs = (train(tmp_path, zero_variance_groups=mode, **options) for mode in ("drop", "keep"))
    share = tiny_models.logged(ours, "tokens/trained")[0] / tiny_models.logged(ours, "tokens/generated")[0]
    assert 0.2 < share < 0.8
    after = tiny_models.weights(theirs)
    for name, value in tiny_models.weights(ours).items():
        moved = (value - before[name]) * share
        torch.testing.assert_close(moved, after[name] - before[name], rtol=1e-4, atol=1e-6)
    assert max((after[name] - before[name]).abs().max() for name in before) > 1e-3


first_three_of_eight = tiny_models.dead_where(lambda n: n % 8 > 2, "first_three_of_eight")
ONE_LONG_STEP = {"max_steps": 1, "optim": "sgd", "learning_rate": 1.0, "max_grad_norm": 1e9, "weight_decay": 0.0}


@pytest.mark.parametrize(
    ("loss_type", "options"),
    [
        *((name, {}) for name in NOT_BNPO),
        ("dapo", {"steps_per_generation": 2}),  # an optimizer step of two batches
        ("dapo", {"scale_rewards": "batch"}),
        ("dapo", {"scale_rewards": "none"}),
        ("grpo", {"multi_objective_aggregation": "normalize_then_sum"}),
        ("grpo", {"importance_sampling_level": "sequence"}),
    ],
)
def test_skip_has_trls_gradient(tmp_path, loss_type, options):
    """Two filler rows are in the batch. In one step of plain SGD the weights move by the gradient."""
    options = {**EIGHT, **IN_FOUR, **ONE_LONG_STEP, "loss_type": loss_type, **options}
    ours = train(tmp_path, first_three_of_eight, zero_variance_groups="skip", **options)
    theirs = train(tmp_path, first_three_of_eight, cls=GRPOTrainer, **options)
    assert_close(ours, theirs)
    dropped = train(tmp_path, first_three_of_eight, zero_variance_groups="drop", **options)
    assert tiny_models.logged(ours, "grad_norm")[0] < 0.8 * tiny_models.logged(dropped, "grad_norm")[0]
    assert tiny_models.logged(ours, "groups/trained") == tiny_models.logged(dropped, "groups/trained")


class Signs(GRPOPlusTrainer):
    """A trainer with advantages of its own."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        return {**output, "advantages": output["advantages"].sign()}


def test_skip_keeps_the_denominator_of_a_subclass_with_advantages_of_its_own(tmp_path):
    options = {**EIGHT, **IN_FOUR, **ONE_LONG_STEP, "cls": Signs}
    ours, kept = (
        train(tmp_path, first_three_of_eight, zero_variance_groups=mode, **options) for mode in ("skip", "keep")
    )
    assert_close(ours, kept)


def test_skip_moves_the_running_std_as_keep_does(tmp_path):
    options = {**EIGHT, **IN_FOUR, "scale_rewards": "running"}
    ours, kept = (
        train(tmp_path, first_three_of_eight, zero_variance_groups=mode, **options) for mode in ("skip", "keep")
    )
    assert_close(ours, kept)
    assert ours._credit.running_variance == pytest.approx(kept._credit.running_variance)


@pytest.mark.parametrize("term", [{"beta": 0.5}, BONUS])
def test_skip_leaves_the_kl_and_the_entropy_bonus_as_drop_does(tmp_path, term):
    """With tiny rewards the loss is the term alone: its mean over the live groups."""

    def small(completions, number, **kwargs):
        return [1e-6 * value for value in first_three_of_eight(completions, number)]

    def with_other_reference(mode):
        trainer = tiny_models.trainer(tmp_path, small, **tiny_models.EXACT, zero_variance_groups=mode, **options)
        for weights in trainer.ref_model.parameters() if trainer.ref_model else ():
            weights.data *= 1.1  # the KL would be 0
        trainer.train()
        return trainer

    options = {**EIGHT, **IN_FOUR, **term, "scale_rewards": "none", "zero_variance_tolerance": 1e-9}
    skipped, dropped = with_other_reference("skip"), with_other_reference("drop")
    assert_close(skipped, dropped)
    assert abs(tiny_models.losses(skipped)[0]) > 1e-3


@pytest.mark.parametrize(
    ("loss_type", "rows", "steps", "term"),
    [
        *one_in(2, ((name, 4, 4, term) for name in NOT_BNPO for term in ({"beta": 0.0}, {"beta": 0.5}, BONUS))),
        *(("dapo", 2, 8, BONUS), ("grpo", 16, 1, BONUS)),
    ],
)
def test_filler_rows_change_nothing(tmp_path, loss_type, rows, steps, term):
    """In most cases 3 of 8 groups of 2 are live, on 4 micro-batches: two filler rows make the batch divide evenly."""
    batching = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": steps}
    options = {**EIGHT, **term, "loss_type": loss_type}
    ours = train(tmp_path, first_three_of_eight, zero_variance_groups="drop", **batching, **options)
    theirs = live_alone(tmp_path, 6, live=lambda n: n % 8 <= 2, **options)
    assert tiny_models.logged(ours, "groups/trained") == [3, 3]
    assert_close(ours, theirs)
    assert tiny_models.logged(ours, "entropy_coef") == tiny_models.logged(theirs, "entropy_coef")


# One of 4 groups of 3 is live, on two micro-batches: a dead group stays in the batch as filler.
FILLED = {"num_generations": 3, "per_device_train_batch_size": 6, "gradient_accumulation_steps": 2}
FILLED |= {"zero_variance_groups": "drop", "max_steps": 1, "learning_rate": 0.0}


def test_filler_under_bnpo_leaves_each_micro_batch_its_own_mean(tmp_path):
    """bnpo divides by each micro-batch's own tokens. The loss is the mean over the micro-batches with live rows."""
    ours = train(tmp_path, **FILLED, loss_type="bnpo", data=tiny_models.prompts(3).select([0, 2, 2, 2]))
    micro_losses = []
    for batch in ours._buffered_inputs:
        live = batch["live"]
        rows = {name: value[live] for name, value in batch.items() if getattr(value, "ndim", 0)}
        if live.any():
            ours.model.train()
            rows["num_items_in_batch"] = batch["num_items_in_batch"]
            ours.current_gradient_accumulation_steps = 1
            micro_losses.append(GRPOTrainer._compute_loss(ours, ours.model, rows).item())
    assert [batch["live"].tolist().count(False) for batch in ours._buffered_inputs] in ([1, 2], [2, 1])
    assert len(micro_losses) == 2
    assert tiny_models.losses(ours)[0] == pytest.approx(sum(micro_losses) / 2, abs=1e-4)
    assert abs(tiny_models.losses(ours)[0]) > 1e-2


def above_zero(rewards, weights, batch):
    """Give each token an advantage above 0."""
    return batch.mask + 0.1


CISPO = {"loss_type": "cispo", "importance_sampling_level": "sequence", "advantage_estimator": above_zero}
OFF_POLICY = {"num_iterations": 2, "max_steps": 2, "learning_rate": 0.3}


@pytest.mark.parametrize(
    ("options", "metric", "value"),
    [
        ({"importance_sampling_level": "token"}, "clip_ratio/region_mean", 1.0),
        ({"importance_sampling_level": "sequence"}, "clip_ratio/region_mean", 1.0),
        pytest.param(CISPO, "cispo_clip_ratio", 1.0, id="cispo"),
        # In the second step each live row's ratio is far from 1, and phi is almost 0 there.
        ({"loss_type": "vespo", **OFF_POLICY}, "vespo/phi_seq_mean", 0.0),
    ],
)
def test_filler_is_in_no_metric_of_ratios(tmp_path, monkeypatch, options, metric, value):
    """With these bounds, which a user may not set, each live row is clipped."""
    monkeypatch.setattr(bounds, "check_bounds", lambda config: None)
    options = {**FILLED, "epsilon": -1.0, "epsilon_high": -1.0, **options}
    ours = train(tmp_path, **options, data=tiny_models.prompts(3).select([0, 2, 2, 2]))
    assert sum((~batch["live"]).sum().item() for batch in ours._buffered_inputs) > 0
    assert tiny_models.logged(ours, metric)[-1] == pytest.approx(value, abs=1e-3)


def test_dropped_rows_cost_no_forward_pass(tmp_path, monkeypatch):
    """Only the rows of live groups are forwarded, for the old log-probs, the reference and the policy."""
    seen = []
    original = GRPOTrainer._get_per_token_logps_and_entropies

    def counting(self, model, input_ids, *args, **kwargs):
        seen.append(len(input_ids))
        return original(self, model, input_ids, *args, **kwargs)

    monkeypatch.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", counting)
    options = {"beta": 0.1, "num_iterations": 2, "per_device_train_batch_size": 16}
    train(tmp_path, zero_variance_groups="drop", **options)
    assert sum(seen) == 4 * 8  # old, reference and two policy passes, each over 2 live groups of 4
    seen.clear()
    train(tmp_path, zero_variance_groups="keep", **options)
    assert sum(seen) == 4 * 16


def test_the_rewards_logged_are_those_sampled(tmp_path):
    dropped = train(tmp_path, zero_variance_groups="drop", per_device_train_batch_size=16)
    kept = train(tmp_path, zero_variance_groups="keep", per_device_train_batch_size=16)
    for key in ["reward", "reward_std", "rewards/half_dead/mean", "rewards/half_dead/std", "frac_reward_zero_std"]:
        assert tiny_models.logged(dropped, key)[0] == pytest.approx(tiny_models.logged(kept, key)[0], abs=1e-6), key
    assert tiny_models.logged(dropped, "groups/alive") == [0.5, 0.5]
    assert tiny_models.logged(dropped, "groups/tied") == [0.5, 0.5]
    assert tiny_models.logged(dropped, "groups/generated") == [4, 4]
    generated, trained = tiny_models.logged(dropped, "tokens/generated"), tiny_models.logged(dropped, "tokens/trained")
    assert generated == tiny_models.logged(kept, "tokens/generated")
    assert 0 < trained[0] < generated[0]


def test_completion_table_holds_this_step_only(tmp_path):
    trained = train(tmp_path, zero_variance_groups="drop", per_device_train_batch_size=16, max_steps=3)
    columns = [trained._logs["prompt"], trained._logs["completion"], trained._logs["advantages"]]
    columns += list(trained._logs["rewards"].values())
    assert {len(column) for column in columns} == {8}
    grouped = torch.tensor(trained._logs["advantages"]).view(2, 4)
    assert grouped.sum(dim=1).abs().max() < 1e-5
    assert (grouped.abs().sum(dim=1) > 0).all()


def test_filler_rows_are_forwarded_as_they_were_sampled(tmp_path):
    """Filler is forwarded with the attention mask it was sampled with, so that its log-probs stay near the old ones.
    Otherwise a ratio could be infinite, and inf * 0 would reach the loss."""
    trained = train(tmp_path, tiny_models.one_live_in_four, **FILLED, num_iterations=2)
    filler = 0
    for batch in trained._buffered_inputs:
        filler += (~batch["live"]).sum().item()
        shown = batch["completion_mask"].bool()
        torch.testing.assert_close(trained._policy_logps(batch)[shown], batch["old_per_token_logps"][shown])
        assert not batch["tool_mask"][~batch["live"]].any()
    assert filler == 3


@pytest.mark.parametrize("loss_type", ["bnpo", "grpo", "dapo"])  # one loss type for each way to divide
def test_filler_leaves_the_entropy_bonus_alone(tmp_path, loss_type):
    """With tiny rewards the loss is the entropy bonus, which filler does not change. This also holds for bnpo, whose
    policy loss depends on the split into micro-batches."""

    def small(completions, number, **kwargs):
        return [1e-5 * value for value in first_three_of_eight(completions, number)]

    options = {**EIGHT, **BONUS, "loss_type": loss_type, "scale_rewards": "none"}
    ours = train(tmp_path, small, zero_variance_groups="drop", zero_variance_tolerance=1e-9, **IN_FOUR, **options)
    alone = {"data": EIGHT["data"].filter(lambda row: row["number"] % 8 <= 2), "per_device_train_batch_size": 6}
    theirs = train(tmp_path, small, cls=GRPOTrainer, **{**options, **alone})
    assert_close(ours, theirs)
    assert tiny_models.losses(ours)[0] == pytest.approx(-0.5 * tiny_models.logged(theirs, "entropy")[0], rel=1e-3)


ADAPTIVE = {"use_adaptive_entropy": True, "entropy_coef": 0.0, "entropy_coef_delta": 0.01}


@pytest.mark.parametrize("mode", ["keep", "drop"])
def test_batches_without_a_live_group_do_not_move_the_entropy_coefficient(tmp_path, mode):
    """A batch without trained tokens has no entropy. TRL's 0 for it must not raise the coefficient."""
    trained = train(
        tmp_path, tiny_models.always_dead, zero_variance_groups=mode, per_device_train_batch_size=16, **ADAPTIVE
    )
    assert tiny_models.logged(trained, "entropy_coef") == [0.0, 0.0]
    assert trained.entropy_coef == 0.0
    assert trained._last_world_entropy > 1.0


def test_steps_of_filler_do_not_move_the_entropy_coefficient(tmp_path):
    """One of 8 groups is live, on 8 steps. The coefficient rises only at the two steps with a live row."""
    options = {"num_generations": 2, "per_device_train_batch_size": 2, "steps_per_generation": 8, "max_steps": 8}
    options |= {"zero_variance_groups": "drop", "gradient_accumulation_steps": 1, "entropy_target": 10.0}
    trained = train(tmp_path, tiny_models.dead_where(lambda n: n > 0, "the_first"), **options, **ADAPTIVE)
    live = [batch["live_rows"] for batch in trained._buffered_inputs]
    assert sorted(live) == [0] * 6 + [1] * 2
    moved = [0.0, *tiny_models.logged(trained, "entropy_coef")]
    assert len(moved) == 9
    assert [round(after - before, 6) for before, after in itertools.pairwise(moved)] == [0.01 * rows for rows in live]
    assert type(trained.entropy_coef) is float


def test_a_step_that_fails_leaves_the_entropy_coefficient(tmp_path, monkeypatch):
    def out_of_memory(self, model, inputs):
        assert self.entropy_coef * 1.0 != 0.5  # filler gave the coefficient a weight for this micro-batch
        raise RuntimeError("out of memory")

    monkeypatch.setattr(GRPOTrainer, "_compute_loss", out_of_memory)
    trainer = tiny_models.trainer(
        tmp_path, first_three_of_eight, zero_variance_groups="drop", **IN_FOUR, **EIGHT, **BONUS
    )
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.train()
    assert type(trainer.entropy_coef) is float
    assert trainer.entropy_coef == 0.5


def test_an_adapted_entropy_coefficient_has_the_bonus_of_the_live_groups_alone(tmp_path):
    options = {**EIGHT, **ADAPTIVE, "entropy_coef": 0.3, "entropy_coef_delta": 0.1, "entropy_target": 10.0}
    options["max_steps"] = 3
    ours = train(tmp_path, first_three_of_eight, zero_variance_groups="drop", **IN_FOUR, **options)
    theirs = live_alone(tmp_path, 6, live=lambda n: n % 8 <= 2, **options)
    assert_close(ours, theirs)
    assert (
        tiny_models.logged(ours, "entropy_coef")
        == tiny_models.logged(theirs, "entropy_coef")
        == pytest.approx([0.4, 0.5, 0.6])
    )
    assert ours._last_world_entropy == pytest.approx(theirs._last_world_entropy, rel=1e-5)


def test_micro_batches_of_filler_are_in_no_mean(tmp_path):
    """Four of 8 micro-batches hold filler alone. TRL logs an entropy of 0 for each, which the mean must leave out."""
    options = {"num_generations": 2, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 8, "beta": 0.1}
    options["data"] = tiny_models.prompts(16)
    trained = train(tmp_path, tiny_models.one_live_in_four, zero_variance_groups="drop", **options)
    # One of four prompts in a row is alive, so 2 of the 8 groups are. With "drop" 8 rows stay, 4 of them live.
    whole = train(tmp_path, tiny_models.one_live_in_four, zero_variance_groups="keep", **options)
    assert tiny_models.logged(trained, "groups/trained") == [2, 2]
    assert tiny_models.logged(trained, "entropy")[0] > 0.8 * tiny_models.logged(whole, "entropy")[0]
    assert len(trained._metrics["train"]["entropy"]) == 0


@pytest.mark.parametrize("placement", ["loss", "reward"])
def test_batches_without_a_live_group_do_not_move_beta(tmp_path, placement):
    options = {"beta": 0.1, "kl_estimator": "k1", "kl_placement": placement, "kl_target": 0.01, "kl_horizon": 20}
    trained = train(
        tmp_path, tiny_models.always_dead, zero_variance_groups="drop", per_device_train_batch_size=16, **options
    )
    assert trained.beta == 0.1
    assert tiny_models.logged(trained, "beta") == []


def test_a_step_without_a_live_group_logs_no_metric_without_a_value(tmp_path):
    """TRL logs None for a metric without values. tensorboard and mlflow warn of each None."""
    options = {"zero_variance_groups": "drop", "per_device_train_batch_size": 16, "logging_steps": 1}
    trained = train(tmp_path, tiny_models.dead_where(lambda n: n < 8, "later"), max_steps=4, **options)
    assert tiny_models.logged(trained, "groups/trained") == [0, 0, 4, 4]
    assert [name for entry in trained.state.log_history for name in entry if entry[name] is None] == []
    assert len(tiny_models.logged(trained, "entropy")) == len(tiny_models.logged(trained, "clip_ratio/low_mean")) == 2


def test_metrics_of_two_rewards_of_one_name_cover_all_sampled_groups():
    """TRL logs two rewards of one name under one key. Both values are replaced by those over all sampled groups."""
    made = SimpleNamespace(model=SimpleNamespace(training=True), _metrics={"train": {"mean": [9.0, 1.0, 2.0]}})
    GRPOPlusTrainer._log(made, [("mean", 3.0), ("mean", 4.0)], again=True)
    assert made._metrics["train"] == {"mean": [9.0, 3.0, 4.0]}


def test_says_when_nothing_can_be_saved(tmp_path, caplog):
    options = {"zero_variance_groups": "drop", "per_device_train_batch_size": 1, "gradient_accumulation_steps": 16}
    tiny_models.trainer(tmp_path, **options)
    assert "attempts smaller: it must have whole groups of" in caplog.text
    caplog.clear()
    tiny_models.trainer(tmp_path, **{**options, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4})
    assert "attempts smaller" not in caplog.text


@pytest.mark.parametrize(
    ("mode", "logged"), [("drop", "train"), ("drop", "eval"), ("drop", "every second call"), ("resample", "train")]
)
def test_tables_of_completions_with_a_column_that_is_logged_at_times_only(tmp_path, mode, logged):
    """A column that a reward logs only at times is padded. TRL makes one table of training's and evaluation's rows, so
    all columns must have one length."""
    calls = []

    def reward(completions, prompts, number, log_extra, trainer_state, **kwargs):
        calls.append(len(prompts))
        training = trained.model.training
        if {"train": training, "eval": not training}.get(logged, len(calls) % 2):
            log_extra("note", [f"{n}" for n in number])
        return tiny_models.half_dead(completions, number)

    options = {"zero_variance_groups": mode, "log_completions": True, "per_device_train_batch_size": 16}
    options |= {"eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True, "per_device_eval_batch_size": 8}
    extra = {"eval_dataset": tiny_models.prompts(5)}
    trained = tiny_models.trainer(tmp_path, reward, **options, max_steps=5, num_generations_eval=2, extra=extra)
    trained.train()
    tables = [pd.read_parquet(path) for path in sorted((tmp_path / "run" / "completions").glob("*.parquet"))]
    assert len(tables) == 6
    notes = 0
    for table in tables:
        for prompt, note in zip(table["prompt"], table.get("note", [None] * len(table)), strict=True):
            assert pd.isna(note) or int(prompt[:2]) == int(note)
            notes += not pd.isna(note)
    assert notes


class Weighs(GRPOPlusTrainer):
    """A trainer that keeps the entropy and the number of tokens of each micro-batch."""

    def _compute_loss(self, model, inputs, *rest, **more):
        loss = super()._compute_loss(model, inputs, *rest, **more)
        tokens = int(padding.loss_mask(inputs).sum())
        vars(self).setdefault("weighed", []).append((self._metrics["train"]["entropy"][-1] if tokens else 0.0, tokens))
        return loss


def test_the_entropy_of_a_step_weighs_batches_with_and_without_filler_alike(tmp_path):
    """An optimizer step takes two generation batches. Filler is in the second one alone."""

    def reward(completions, number, **kwargs):
        return [0.3 if n in (8, 10, 11, 13, 14) else 0.1 * (place % 3) for place, n in enumerate(number)]

    options = {"zero_variance_groups": "drop", "shuffle_dataset": False, "max_steps": 1, "learning_rate": 0.0}
    options |= {"per_device_train_batch_size": 6, "steps_per_generation": 4, "gradient_accumulation_steps": 8}
    trained = tiny_models.trained(tmp_path, reward, cls=Weighs, num_generations=3, **options)
    assert tiny_models.logged(trained, "groups/trained") == [(8 + 3) / 2]  # 9 attempts, and 3 of filler
    total = sum(tokens for _, tokens in trained.weighed)
    mean = sum(entropy * tokens for entropy, tokens in trained.weighed) / total
    assert trained._entropy == pytest.approx(mean, rel=0.005)
