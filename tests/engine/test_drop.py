"""Dropped groups cost nothing and change nothing: the step is that of a batch that holds the live groups alone."""

import itertools

import pandas as pd
import pytest
import tiny
import torch
from trl import GRPOTrainer

from trl_grpo_plus.config_checks import TRL_CHOICES


LOSS_TYPES = TRL_CHOICES["loss_type"]
# Plain SGD, so that equal weights after a step mean equal gradients; no chance anywhere.
EXACT = {"optim": "sgd", "learning_rate": 0.05, "max_grad_norm": 0.0, "shuffle_dataset": False, "max_steps": 2}
EXACT["extra"] = {"rollout_func": tiny.scripted}


def train(tmp_path, reward=tiny.half_dead, **options):
    trained = tiny.trainer(tmp_path, reward, **{**EXACT, **options})
    trained.train()
    return trained


def live_alone(tmp_path, batch_size, keep=lambda n: n % 4 < 2, **options):
    """TRL's trainer on the live prompts only."""
    data = tiny.prompts(40).filter(lambda row: keep(row["number"]))
    options = {"per_device_train_batch_size": batch_size, **options, "data": data}
    return train(tmp_path, tiny.digits, cls=GRPOTrainer, **options)


def assert_close(ours, theirs):
    expected = tiny.weights(theirs)
    for name, value in tiny.weights(ours).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=2e-6)
    assert tiny.losses(ours) == pytest.approx(tiny.losses(theirs), rel=1e-5, abs=2e-6)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_equals_the_live_groups_alone(tmp_path, loss_type, beta):
    options = {"loss_type": loss_type, "beta": beta}
    ours = train(tmp_path, per_device_train_batch_size=16, zero_variance_groups="drop", **options)
    theirs = live_alone(tmp_path, 8, **options)
    assert_close(ours, theirs)
    assert tiny.logged(ours, "groups/trained") == [2, 2]


def test_keeping_them_is_another_step(tmp_path):
    """The comparison above can fail."""
    ours = train(tmp_path, per_device_train_batch_size=16, zero_variance_groups="keep")
    theirs = live_alone(tmp_path, 8)
    assert tiny.losses(ours) != pytest.approx(tiny.losses(theirs), rel=1e-5, abs=2e-6)


@pytest.mark.parametrize("loss_type", [name for name in LOSS_TYPES if name != "bnpo"])
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_filler_rows_change_nothing(tmp_path, loss_type, beta):
    """3 of 8 groups of 2 live, 4 micro-batches: two filler rows make the rows divide."""
    options = {"loss_type": loss_type, "beta": beta, "num_generations": 2}
    ours = train(
        tmp_path,
        lambda completions, number, **_: [
            0.3 if n % 8 > 2 else share for n, share in zip(number, tiny.digits(completions), strict=True)
        ],
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        data=tiny.prompts(40),
        zero_variance_groups="drop",
        **options,
    )
    theirs = live_alone(tmp_path, 6, keep=lambda n: n % 8 <= 2, **options)
    assert tiny.logged(ours, "groups/trained") == [3, 3]
    assert_close(ours, theirs)


def test_filler_under_bnpo_leaves_each_micro_batch_its_own_mean(tmp_path):
    """bnpo divides by each micro-batch's own tokens: the loss is the mean over the micro-batches with live rows."""
    ours = tiny.trainer(
        tmp_path,
        tiny.half_dead,
        **{**EXACT, "max_steps": 1, "learning_rate": 0.0},
        loss_type="bnpo",
        num_generations=3,
        per_device_train_batch_size=6,
        gradient_accumulation_steps=2,
        data=tiny.prompts(3).select([0, 2, 2, 2]),
        zero_variance_groups="drop",
    )
    ours.train()
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
    assert tiny.losses(ours)[0] == pytest.approx(sum(micro_losses) / 2, abs=1e-4)
    assert abs(tiny.losses(ours)[0]) > 1e-2


def test_a_batch_without_a_live_group_steps(tmp_path):
    trained = train(tmp_path, tiny.always_dead, zero_variance_groups="drop", per_device_train_batch_size=16)
    assert trained.state.global_step == 2
    assert tiny.losses(trained) == [0.0, 0.0]
    assert tiny.logged(trained, "groups/trained") == [0, 0]
    assert tiny.logged(trained, "tokens/trained") == [0, 0]
    untouched = tiny.trainer(tmp_path)
    assert tiny.same_weights(tiny.weights(trained), tiny.weights(untouched))


def test_dropped_rows_cost_no_forward_pass(tmp_path, monkeypatch):
    """Rows through old log-probs, reference and policy: those of the live groups only."""
    seen = []
    original = GRPOTrainer._get_per_token_logps_and_entropies

    def counting(self, model, input_ids, *args, **kwargs):
        seen.append(len(input_ids))
        return original(self, model, input_ids, *args, **kwargs)

    monkeypatch.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", counting)
    options = {"beta": 0.1, "num_iterations": 2, "per_device_train_batch_size": 16}
    train(tmp_path, zero_variance_groups="drop", **options)
    assert sum(seen) == 4 * 8  # old, reference, two passes: 2 live groups of 4 each
    seen.clear()
    train(tmp_path, zero_variance_groups="keep", **options)
    assert sum(seen) == 4 * 16


def test_the_rewards_logged_are_those_sampled(tmp_path):
    dropped = train(tmp_path, zero_variance_groups="drop", per_device_train_batch_size=16)
    kept = train(tmp_path, zero_variance_groups="keep", per_device_train_batch_size=16)
    for key in ["reward", "reward_std", "rewards/half_dead/mean", "rewards/half_dead/std", "frac_reward_zero_std"]:
        assert tiny.logged(dropped, key)[0] == pytest.approx(tiny.logged(kept, key)[0], abs=1e-6), key
    assert tiny.logged(dropped, "groups/alive") == [0.5, 0.5]
    assert tiny.logged(dropped, "groups/tied") == [0.5, 0.5]
    assert tiny.logged(dropped, "groups/generated") == [4, 4]
    generated, trained = tiny.logged(dropped, "tokens/generated"), tiny.logged(dropped, "tokens/trained")
    assert generated == tiny.logged(kept, "tokens/generated")
    assert 0 < trained[0] < generated[0]


def test_completion_table_holds_this_step_only(tmp_path):
    trained = train(tmp_path, zero_variance_groups="drop", per_device_train_batch_size=16, max_steps=3)
    columns = [trained._logs["prompt"], trained._logs["completion"], trained._logs["advantages"]]
    columns += list(trained._logs["rewards"].values())
    assert {len(column) for column in columns} == {8}
    grouped = torch.tensor(trained._logs["advantages"]).view(2, 4)
    assert grouped.sum(dim=1).abs().max() < 1e-5
    assert (grouped.abs().sum(dim=1) > 0).all()


FILLED = {  # one live group of 3 of 4, on two micro-batches of 6: a dead group stays on as filler
    "num_generations": 3,
    "per_device_train_batch_size": 6,
    "gradient_accumulation_steps": 2,
    "zero_variance_groups": "drop",
}


def one_live_in_four(completions, number, **kwargs):
    return [0.3 if n % 4 else share for n, share in zip(number, tiny.digits(completions), strict=True)]


def test_filler_rows_are_forwarded_as_they_were_sampled(tmp_path):
    """Behind another mask their log-probs would be far from the old ones, and inf * 0 would reach the loss."""
    trained = tiny.trainer(
        tmp_path, one_live_in_four, **{**EXACT, "max_steps": 1, "learning_rate": 0.0}, **FILLED, num_iterations=2
    )
    trained.train()
    filler = 0
    for batch in trained._buffered_inputs:
        filler += (~batch["live"]).sum().item()
        shown = batch["completion_mask"].bool()
        torch.testing.assert_close(trained._policy_logps(batch)[shown], batch["old_per_token_logps"][shown])
        assert not batch["tool_mask"][~batch["live"]].any()
    assert filler == 3


def first_three_of_eight(completions, number, **kwargs):
    return [0.3 if n % 8 > 2 else share for n, share in zip(number, tiny.digits(completions), strict=True)]


EIGHT = {"num_generations": 2, "data": tiny.prompts(40), "entropy_coef": 0.5}  # groups a batch, of two attempts


@pytest.mark.parametrize(
    ("loss_type", "rows", "steps"),
    [*((name, 4, 4) for name in LOSS_TYPES if name != "bnpo"), ("dapo", 2, 8), ("grpo", 16, 1)],
)
def test_filler_leaves_the_entropy_bonus_as_it_is(tmp_path, loss_type, rows, steps):
    batching = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": steps}
    options = {**EIGHT, "loss_type": loss_type}
    ours = train(tmp_path, first_three_of_eight, zero_variance_groups="drop", **batching, **options)
    theirs = live_alone(tmp_path, 6, keep=lambda n: n % 8 <= 2, **options)
    assert tiny.logged(ours, "groups/trained") == [3, 3]
    assert_close(ours, theirs)
    assert tiny.logged(ours, "entropy_coef") == [0.5, 0.5]


@pytest.mark.parametrize("loss_type", ["bnpo", "grpo", "dapo"])  # one of each way to divide
def test_filler_leaves_the_entropy_bonus_as_it_is_where_there_is_nothing_else(tmp_path, loss_type):
    """bnpo too, of which the other part depends on the micro-batches."""

    def small(reward):
        def scored(completions, **kwargs):
            return [1e-5 * value for value in reward(completions, **kwargs)]

        return scored

    options = {**EIGHT, "loss_type": loss_type, "scale_rewards": "none"}
    batching = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}
    ours = train(
        tmp_path,
        small(first_three_of_eight),
        zero_variance_groups="drop",
        zero_variance_tolerance=1e-9,
        **batching,
        **options,
    )
    alone = options["data"].filter(lambda row: row["number"] % 8 <= 2)
    batching = {"per_device_train_batch_size": 6, "cls": GRPOTrainer}
    theirs = train(tmp_path, small(tiny.digits), **batching, **{**options, "data": alone})
    assert_close(ours, theirs)
    assert tiny.losses(ours)[0] == pytest.approx(-0.5 * tiny.logged(theirs, "entropy")[0], rel=1e-3)


ADAPTIVE = {"use_adaptive_entropy": True, "entropy_coef": 0.0, "entropy_coef_delta": 0.01}


@pytest.mark.parametrize("mode", ["keep", "drop"])
def test_batches_without_a_live_group_do_not_move_the_entropy_coefficient(tmp_path, mode):
    """The entropy of no tokens is no entropy of 0."""
    trained = train(tmp_path, tiny.always_dead, zero_variance_groups=mode, per_device_train_batch_size=16, **ADAPTIVE)
    assert tiny.logged(trained, "entropy_coef") == [0.0, 0.0]
    assert trained.entropy_coef == 0.0
    assert trained._last_world_entropy > 1.0


def test_steps_of_filler_do_not_move_the_entropy_coefficient(tmp_path):
    """One live group of 8 on 8 steps: two steps have a row to measure, and the coefficient rises at these alone."""
    options = {"num_generations": 2, "per_device_train_batch_size": 2, "steps_per_generation": 8, "max_steps": 8}
    trained = train(
        tmp_path,
        lambda completions, number, **_: [
            0.3 if n else share for n, share in zip(number, tiny.digits(completions), strict=True)
        ],
        zero_variance_groups="drop",
        gradient_accumulation_steps=1,
        entropy_target=10.0,
        **options,
        **ADAPTIVE,
    )
    live = [batch["live_rows"] for batch in trained._buffered_inputs]
    assert sorted(live) == [0] * 6 + [1] * 2
    moved = [0.0, *tiny.logged(trained, "entropy_coef")]
    assert len(moved) == 9
    assert [round(after - before, 6) for before, after in itertools.pairwise(moved)] == [0.01 * rows for rows in live]
    assert type(trained.entropy_coef) is float


def test_a_step_that_fails_leaves_the_entropy_coefficient(tmp_path, monkeypatch):
    def out_of_memory(self, model, inputs):
        assert self.entropy_coef * 1.0 != 0.5  # weighed: there is filler
        raise RuntimeError("out of memory")

    monkeypatch.setattr(GRPOTrainer, "_compute_loss", out_of_memory)
    options = {"zero_variance_groups": "drop", "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}
    trainer = tiny.trainer(tmp_path, first_three_of_eight, **options, **EIGHT)
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.train()
    assert type(trainer.entropy_coef) is float
    assert trainer.entropy_coef == 0.5


def test_an_adapted_entropy_coefficient_has_the_bonus_of_the_live_groups_alone(tmp_path):
    options = {**EIGHT, **ADAPTIVE, "entropy_coef": 0.3, "entropy_coef_delta": 0.1, "entropy_target": 10.0}
    options |= {"max_steps": 3, "num_generations": 2}
    batching = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}
    ours = train(tmp_path, first_three_of_eight, zero_variance_groups="drop", **batching, **options)
    theirs = live_alone(tmp_path, 6, keep=lambda n: n % 8 <= 2, **options)
    assert_close(ours, theirs)
    assert tiny.logged(ours, "entropy_coef") == tiny.logged(theirs, "entropy_coef") == pytest.approx([0.4, 0.5, 0.6])
    assert ours._last_world_entropy == pytest.approx(theirs._last_world_entropy, rel=1e-5)


def test_micro_batches_of_filler_are_in_no_mean(tmp_path):
    """8 micro-batches of one row, two of them live: TRL logs an entropy of 0 for the six others."""
    options = {"num_generations": 2, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 8, "beta": 0.1}
    trained = train(tmp_path, one_live_in_four, zero_variance_groups="drop", data=tiny.prompts(16), **options)
    # Of four prompts in a row one is alive: 2 of the 8 groups, 4 of 8 rows.
    whole = train(tmp_path, one_live_in_four, zero_variance_groups="keep", data=tiny.prompts(16), **options)
    assert tiny.logged(trained, "groups/trained") == [2, 2]
    assert tiny.logged(trained, "entropy")[0] > 0.8 * tiny.logged(whole, "entropy")[0]
    assert len(trained._metrics["train"]["entropy"]) == 0


@pytest.mark.parametrize("placement", ["loss", "reward"])
def test_batches_without_a_live_group_do_not_move_beta(tmp_path, placement):
    options = {"beta": 0.1, "kl_estimator": "k1", "kl_placement": placement, "kl_target": 0.01, "kl_horizon": 20}
    trained = train(tmp_path, tiny.always_dead, zero_variance_groups="drop", per_device_train_batch_size=16, **options)
    assert trained.beta == 0.1
    assert tiny.logged(trained, "beta") == []


def test_a_column_that_is_logged_only_sometimes(tmp_path):
    def reward(completions, number, trainer_state, log_extra, **kwargs):
        if trainer_state.global_step == 0:
            log_extra("note", ["first"] * len(completions))
        return tiny.half_dead(completions, number)

    trained = train(
        tmp_path, reward, zero_variance_groups="drop", per_device_train_batch_size=16, log_completions=True
    )
    assert trained.state.global_step == 2


def test_says_when_nothing_can_be_saved(tmp_path, caplog):
    options = {"zero_variance_groups": "drop", "per_device_train_batch_size": 1, "gradient_accumulation_steps": 16}
    tiny.trainer(tmp_path, **options)
    assert "cannot make a batch smaller with per_device_train_batch_size=1" in caplog.text
    caplog.clear()
    tiny.trainer(tmp_path, **{**options, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4})
    assert "cannot make a batch smaller" not in caplog.text


@pytest.mark.parametrize(
    ("mode", "logged"), [("drop", "train"), ("drop", "eval"), ("drop", "every second call"), ("resample", "train")]
)
def test_tables_of_completions_with_a_column_that_is_logged_at_times_only(tmp_path, mode, logged):
    """TRL prints and saves one table of training's and evaluation's rows: a column must be as long as the others."""
    calls = []

    def reward(completions, prompts, number, log_extra, trainer_state, **kwargs):
        calls.append(len(prompts))
        training = trained.model.training
        if {"train": training, "eval": not training}.get(logged, len(calls) % 2):
            log_extra("note", [f"{n}" for n in number])
        return tiny.half_dead(completions, number)

    options = {"zero_variance_groups": mode, "log_completions": True, "per_device_train_batch_size": 16}
    options |= {"eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True, "per_device_eval_batch_size": 8}
    extra = {"eval_dataset": tiny.prompts(5)}
    trained = tiny.trainer(tmp_path, reward, **options, max_steps=5, num_generations_eval=2, extra=extra)
    trained.train()
    tables = [pd.read_parquet(path) for path in sorted((tmp_path / "run" / "completions").glob("*.parquet"))]
    assert len(tables) == 6
    notes = 0
    for table in tables:
        for prompt, note in zip(table["prompt"], table.get("note", [None] * len(table)), strict=True):
            assert pd.isna(note) or int(prompt[:2]) == int(note)
            notes += not pd.isna(note)
    assert notes
