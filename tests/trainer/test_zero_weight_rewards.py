"""Tests of monitors, rewards of weight 0: adding one leaves losses and weights as they were."""

import math
import statistics

import pytest
import tiny_models
import torch
from accelerate.logging import MultiProcessAdapter
from trl import GRPOTrainer

from trl_grpo_plus.traces import reader as traces


pytestmark = pytest.mark.long


SCRIPTED = {"rollout_func": tiny_models.scripted}  # deterministic: the completion follows from the prompt


def sometimes(completions, number, **kwargs):
    """Reward the share of digits. One attempt in three, and every fifth prompt, gets no reward."""
    shares = zip(number, tiny_models.digits(completions), strict=True)
    return [None if i % 3 == 1 or n % 5 == 0 else share for i, (n, share) in enumerate(shares)]


def length(completions, **kwargs):
    return [float(len(text)) for text in completions]


def rarely(completions, **kwargs):
    """Return NaN, None and huge scores in turn."""
    return [(math.nan, 1e30, -1e30, None)[i % 4] for i in range(len(completions))]


def third(completions, **kwargs):
    return [0.1 * (i % 4) for i in range(len(completions))]


def fourth(completions, **kwargs):
    return [1 / 3 if text.endswith("1") else 0.7 for text in completions]


def train(folder, rewards, weights, cls=tiny_models.GRPOPlusTrainer, **options):
    options = {
        "reward_weights": weights,
        "max_steps": 2,
        "data": tiny_models.prompts(12),
        "extra": SCRIPTED,
        **options,
    }
    trained = tiny_models.trained(folder, rewards, cls=cls, **options)
    return trained


IN_REWARD = {"beta": 0.1, "kl_estimator": "k1", "kl_placement": "reward"}
NORMALISED = {"multi_objective_aggregation": "normalize_then_sum"}
DROP = {"zero_variance_groups": "drop", "per_device_train_batch_size": 16}


RESAMPLE = {"zero_variance_groups": "resample"}
OPTIONS = [{}, {"scale_rewards": "batch"}, {"scale_rewards": "none"}, NORMALISED, {"std_ddof": 0}]
OPTIONS += [{"std_ddof": 0, **NORMALISED}, IN_REWARD, DROP, {**DROP, **NORMALISED}, {**DROP, "filter_metric": "any"}]
OPTIONS += [{**DROP, "filter_metric": "sometimes"}, RESAMPLE]
OPTIONS += [{**RESAMPLE, "resample_fallback": "keep", "scale_rewards": "batch"}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_monitors_leave_the_training_as_it_is(tmp_path, options):
    alone = train(tmp_path, [sometimes], [0.5], **options)
    watched = train(tmp_path, [length, sometimes, rarely], [0.0, 0.5, 0.0], **options)
    tiny_models.assert_same(watched, alone)
    for key in ("reward", "reward_std", "frac_reward_zero_std", "groups/unscored", "groups/alive"):
        assert tiny_models.logged(watched, key) == pytest.approx(tiny_models.logged(alone, key), abs=0, nan_ok=True), (
            key
        )


@pytest.mark.parametrize("options", [{}, NORMALISED, {"std_ddof": 0, **NORMALISED}], ids=str)
def test_a_monitor_among_many_rewards_changes_no_bit(tmp_path, options):
    """The order in which a sum is rounded depends on the number of rewards. A monitor does not change it."""
    rewards, weights = [sometimes, third, fourth, tiny_models.digits, length], [0.1, 0.7, 0.3, 0.9, 0.01]
    alone = train(tmp_path, rewards, weights, **options)
    watched = train(tmp_path, [*rewards[:3], rarely, *rewards[3:]], [*weights[:3], 0.0, *weights[3:]], **options)
    assert list(watched._logs["advantages"]) == list(alone._logs["advantages"])
    assert tiny_models.same_weights(tiny_models.weights(watched), tiny_models.weights(alone))


@pytest.mark.parametrize("options", [{}, DROP, RESAMPLE], ids=str)
def test_what_a_monitor_scored_is_logged_and_traced(tmp_path, options):
    seen = []

    def watching(completions, **kwargs):
        seen.extend(length(completions))
        return length(completions)

    trained = train(tmp_path, [sometimes, watching], [1.0, 0.0], max_steps=1, **options)
    assert tiny_models.logged(trained, "rewards/watching/mean") == pytest.approx([statistics.fmean(seen)])
    assert tiny_models.logged(trained, "rewards/watching/std") == pytest.approx([statistics.stdev(seen)])
    rows = [row for group in traces.groups(tmp_path / "run") for row in group]
    assert [row["rewards"]["watching"] for row in rows] == seen
    unscored = [row for row in rows if row["rewards"]["sometimes"] is None]
    assert len(unscored) > 2
    assert all(row["reward"] is None for row in unscored)
    assert all(row["advantage"] == 0.0 for row in unscored if row["kept"])
    table = trained._logs["rewards"]
    assert list(table["watching"]) == length(trained._logs["completion"])
    assert len(table["sometimes"]) == len(trained._logs["advantages"]) == len(table["watching"])


def test_a_monitor_leaves_an_evaluation_alone(tmp_path):
    extra = {**SCRIPTED, "eval_dataset": tiny_models.prompts(8)}
    options = {"extra": extra, "per_device_eval_batch_size": 8}
    alone = tiny_models.untimed(tiny_models.trainer(tmp_path, [sometimes], **options).evaluate())
    folder = str(tmp_path / "watched")
    watched = tiny_models.trainer(
        tmp_path, [sometimes, length], reward_weights=[1.0, 0.0], output_dir=folder, **options
    )
    metrics = watched.evaluate()
    assert {key: metrics[key] for key in alone} == pytest.approx(alone, abs=0, nan_ok=True)
    assert metrics["eval_rewards/length/mean"] > 1
    rows = [row for group in traces.groups(folder) for row in group]
    assert any(row["reward"] is None and row["rewards"]["length"] > 1 for row in rows)
    assert watched.reward_func_names == ["sometimes", "length"]
    assert watched.reward_weights.tolist() == [1.0, 0.0]


def test_attempts_scored_by_monitors_alone_give_one_warning(tmp_path, caplog):
    """TRL's warning about attempts that no function scored counts the monitor as a score, so we warn, once."""
    train(tmp_path, [sometimes], [1.0])
    assert "All reward functions returned None" in caplog.text
    caplog.clear()
    MultiProcessAdapter.warning_once.cache_clear()
    train(tmp_path, [sometimes, length], [1.0, 0.0])
    assert caplog.text.count("Only monitors scored some attempts") == 1


@pytest.mark.parametrize("options", [{}, NORMALISED], ids=str)
def test_a_monitor_equals_trls_weight_of_0_if_all_attempts_are_scored(tmp_path, options):
    rewards = ([tiny_models.digits, length], [1.0, 0.0])
    ours, theirs = (
        train(tmp_path, *rewards, cls=cls, **options) for cls in (tiny_models.GRPOPlusTrainer, GRPOTrainer)
    )
    tiny_models.assert_same(ours, theirs)
    for key in ("rewards/length/mean", "rewards/length/std", "rewards/digits/mean", "reward", "reward_std"):
        assert tiny_models.logged(ours, key) == tiny_models.logged(theirs, key), key
    assert ours._logs["rewards"] == theirs._logs["rewards"]


def test_weights_that_a_reward_changes_stay_changed(tmp_path):
    """A reward that knows the trainer changes the weights in its call, as a curriculum may."""
    made = []

    def curriculum(completions, **kwargs):
        made[0].reward_weights = made[0].reward_weights + torch.tensor([1.0, 0.0])
        return sometimes(completions, **kwargs)

    made.append(tiny_models.trainer(tmp_path, [curriculum, length], reward_weights=[1.0, 0.0], max_steps=3))
    made[0].train()
    assert made[0].reward_weights.tolist() == [4.0, 0.0]
    assert made[0].reward_func_names == ["curriculum", "length"]


def test_a_run_with_monitors_alone_equals_trls(tmp_path):
    tiny_models.assert_same(
        *(train(tmp_path, [length], [0.0], cls=cls) for cls in (tiny_models.GRPOPlusTrainer, GRPOTrainer))
    )


def test_no_monitor_warning_if_all_weights_are_0(tmp_path, caplog):
    """If all weights are 0, TRL trains on the KL alone. Then no reward is called a monitor."""
    train(tmp_path, [sometimes], [0.0])
    assert "Only monitors scored" not in caplog.text


def test_a_subclass_may_call_for_the_rewards_more_than_once(tmp_path):
    class Twice(tiny_models.GRPOPlusTrainer):
        def _calculate_rewards(self, *batch):
            first, second = super()._calculate_rewards(*batch), super()._calculate_rewards(*batch)
            assert torch.equal(first, second)
            return second

    trained = train(tmp_path, [length, tiny_models.digits], [0.0, 1.0], cls=Twice)
    assert trained.reward_func_names == ["length", "digits"]
    assert tiny_models.logged(trained, "rewards/length/mean")[0] > 1


@pytest.mark.parametrize("mode", ["keep", "drop"])
def test_a_batch_that_fails_leaves_nothing_behind(tmp_path, monkeypatch, mode):
    """After an error in a step the monitors are no longer hidden, and the trainer holds no batch."""
    options = {"reward_weights": [1.0, 0.0], "zero_variance_groups": mode}
    trained = tiny_models.trainer(tmp_path, [tiny_models.digits, length], **options)
    hidden = []

    def out_of_memory(*args, **kwargs):
        hidden.append(trained.reward_func_names)
        assert trained._batch.rounds
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patched:
        patched.setattr("trl.trainer.grpo_trainer.nanstd", out_of_memory)
        with pytest.raises(RuntimeError, match="out of memory"):
            trained.train()
    assert hidden == [["digits"]]
    assert trained.reward_func_names == ["digits", "length"]
    assert trained.reward_weights.tolist() == [1.0, 0.0]
    assert trained._batch.rounds == trained._batch.inputs == []
    trained.train()
    assert trained.state.global_step == 3
    assert trained._batch.rounds == trained._batch.inputs == []
