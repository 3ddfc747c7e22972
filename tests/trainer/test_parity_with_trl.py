"""Tests that the trainer with all new options at their defaults equals TRL's in losses and weights, bit for bit."""

import pytest
import tiny_models
from slow_cases import covering
from trl import GRPOTrainer

from trl_grpo_plus.config.validation import TRL_CHOICES


pytestmark = pytest.mark.long


LOSS_TYPES = TRL_CHOICES["loss_type"]
BATCHINGS = {
    "plain": {},
    "iterations": {"num_iterations": 2, "max_steps": 4},
    "steps_per_generation": {"steps_per_generation": 4, "max_steps": 5},
    "accumulation": {"gradient_accumulation_steps": 2, "max_steps": 4},
    "all": {"gradient_accumulation_steps": 2, "steps_per_generation": 4, "num_iterations": 2, "max_steps": 5},
}


def both(tmp_path, **options):
    return tuple(
        tiny_models.trained(tmp_path, tiny_models.digits, cls=cls, **options)
        for cls in (tiny_models.GRPOPlusTrainer, GRPOTrainer)
    )


def assert_same(ours, theirs):
    tiny_models.assert_same(ours, theirs)
    assert len(tiny_models.losses(ours)) == ours.args.max_steps
    assert any(tiny_models.losses(ours))


@pytest.mark.parametrize(
    ("loss_type", "beta", "batching"),
    covering(
        lambda loss_type, beta, batching: loss_type == "dapo" or (beta and batching == "all"),
        *(LOSS_TYPES, [0.0, 0.1], BATCHINGS),
    ),
)
def test_defaults_are_trl(tmp_path, loss_type, beta, batching):
    assert_same(*both(tmp_path, loss_type=loss_type, beta=beta, **BATCHINGS[batching]))


@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_bf16_and_checkpointing_are_trl(tmp_path, loss_type):
    """TRL's defaults on a GPU: bfloat16 autocast on float32 weights, and gradient checkpointing."""
    options = {"bf16": True, "gradient_checkpointing": True, "beta": 0.1, "loss_type": loss_type}
    assert_same(*both(tmp_path, **options, **BATCHINGS["all"]))


@pytest.mark.parametrize("scale_rewards", ["batch", "none", "group"])
@pytest.mark.parametrize("aggregation", ["sum_then_normalize", "normalize_then_sum"])
def test_trl_scales_are_trl(tmp_path, scale_rewards, aggregation):
    assert_same(*both(tmp_path, scale_rewards=scale_rewards, multi_objective_aggregation=aggregation))


@pytest.mark.parametrize("aggregation", ["sum_then_normalize", "normalize_then_sum"])
def test_rewards_without_weight_are_trl(tmp_path, aggregation):
    """The only reward has weight 0, so the run trains on the KL alone."""
    options = {"reward_weights": [0.0], "multi_objective_aggregation": aggregation, "beta": 0.5, "num_iterations": 2}
    tiny_models.assert_same(*both(tmp_path, **options, weight_decay=0.1))


def test_epochs_and_evaluation_are_trl(tmp_path):
    """Two shuffled epochs with evaluations between steps: the sampler and the random state equal TRL's."""
    options = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 8, "max_steps": 8}
    ours, theirs = both(
        tmp_path, **options, data=tiny_models.prompts(8), extra={"eval_dataset": tiny_models.prompts(4)}
    )
    assert_same(ours, theirs)
    assert tiny_models.logged(ours, "eval_reward") == tiny_models.logged(theirs, "eval_reward")
    assert len(tiny_models.logged(ours, "eval_reward")) == 4


def test_a_stream_is_trl(tmp_path):
    """The stream ends during the run and begins again, in another order."""
    assert_same(*both(tmp_path, data=tiny_models.prompts(6).to_iterable_dataset(), max_steps=5, num_iterations=2))


def test_the_metrics_are_trl_and_more(tmp_path):
    ours, theirs = both(tmp_path)
    for mine, stock in zip(ours.state.log_history, theirs.state.log_history, strict=True):
        shared = tiny_models.untimed(stock)
        assert {key: mine[key] for key in shared} == shared
        more = {
            key for key in mine if not key.startswith(("groups/", "tokens/", "alarms/", "completions/mean_length_of/"))
        }
        assert more - {"rollouts"} <= stock.keys()
