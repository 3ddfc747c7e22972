"""Baselines and advantage functions of the user's own that read columns of the dataset."""

from pathlib import Path

import pytest
import tiny_models
import user_advantages

from trl_grpo_plus import GRPOPlusConfig
from trl_grpo_plus.objective.baselines import baseline_of


FILE = Path(user_advantages.__file__)
BASELINE = {"advantage_baseline": f"{FILE}:less_expected", "scale_rewards": "none"}
DATA = {"data": tiny_models.prompts(30).map(lambda row: {"expected": row["number"] / 30})}
SHAPES = {
    "as sampled": {},
    "groups left out": {"zero_variance_groups": "drop"},
    "resampled": {"zero_variance_groups": "resample"},
}


def rewards_and_advantages(trained):
    """Of each attempt of the last batch: its prompt's number, reward, advantage."""
    logs = trained._logs
    numbers = [int(prompt[:2]) for prompt in logs["prompt"]]
    return list(zip(numbers, logs["rewards"]["half_dead"], logs["advantages"], strict=True))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("options", [BASELINE, {"advantage_estimator": f"{FILE}:total_less_expected"}])
def test_each_group_has_its_own_value(tmp_path, options, shape):
    options = {**options, **shape, **DATA, "max_steps": 2, "per_device_train_batch_size": 32}
    trained = tiny_models.trained(tmp_path, tiny_models.half_dead, **options)
    rows = [row for row in rewards_and_advantages(trained) if row[2]]
    assert len({number for number, _, _ in rows}) > 1
    for number, reward, advantage in rows:
        assert advantage == pytest.approx(reward - number / 30, abs=1e-6)


def test_with_a_kl_in_the_reward_values_are_of_tokens(tmp_path):
    kl = {"beta": 0.1, "kl_estimator": "k1", "kl_placement": "reward", "kl_reward_form": "reward_to_go"}
    trained = tiny_models.trained(tmp_path, tiny_models.digits, **BASELINE, **kl, **DATA, max_steps=2)
    assert any(tiny_models.losses(trained))


def test_a_column_that_is_not_there_is_refused_before_the_run(tmp_path):
    data = tiny_models.prompts(30).map(lambda row: {"expectd": 0.5})
    with pytest.raises(ValueError, match=r"less_expected' reads the column 'expected', .*Did you mean expectd"):
        tiny_models.trainer(tmp_path, tiny_models.digits, **BASELINE, data=data)


def test_a_result_of_another_shape_is_refused(tmp_path):
    options = {**BASELINE, "advantage_baseline": f"{FILE}:of_another_shape"}
    with pytest.raises(ValueError, match=r"of_another_shape'.*must return \(2, 4\), .*got \(2, 1\)"):
        tiny_models.trained(tmp_path, tiny_models.digits, **options, max_steps=1)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (f"{FILE}:less_expectd", "Did you mean less_expected"),
        (f"{FILE}:of_no_kind", "has no function"),
        ("math.pi", "advantage_baseline='math.pi'"),
        ("medain", "is not one of 'mean', .*Did you mean median"),
        (3, "advantage_baseline=3 is not one of"),
    ],
)
def test_what_is_none_is_refused(name, words):
    with pytest.raises(ValueError, match=words):
        baseline_of(name)


def test_the_configuration_takes_paths_and_refuses_other_words(tmp_path):
    common = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False, "report_to": "none"}
    assert GRPOPlusConfig(**common, **BASELINE).advantage_baseline.endswith(":less_expected")
    with pytest.raises(ValueError, match="Did you mean leave_one_out"):
        GRPOPlusConfig(**common, advantage_baseline="leave_one")
