"""Tests of a user's own baselines and advantage functions that read columns of the dataset."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import tiny_models
import torch
import user_advantages
from advantages_by_keyword import compute, compute_with_kl
from datasets import IterableDataset
from torch.testing import assert_close

from trl_grpo_plus import GRPOPlusConfig
from trl_grpo_plus.launch import preflight
from trl_grpo_plus.objective.baselines import baseline_of
from trl_grpo_plus.trainer.batch import Batch
from trl_grpo_plus.utils.tables import FAILED
from trl_grpo_plus.utils.validation import ConfigError


FILE = Path(user_advantages.__file__)
BASELINE = {"advantage_baseline": f"{FILE}:less_expected", "scale_rewards": "none"}
DATA = {"data": tiny_models.prompts(30).map(lambda row: {"expected": row["number"] / 30})}
SHAPES = {
    "as sampled": {},
    "groups left out": {"zero_variance_groups": "drop"},
    "resampled": {"zero_variance_groups": "resample"},
}


def rewards_and_advantages(trained):
    """Return (prompt's number, reward, advantage) for each attempt of the last batch."""
    logs = trained._logs
    numbers = [int(prompt[:2]) for prompt in logs["prompt"]]
    return list(zip(numbers, logs["rewards"]["half_dead"], logs["advantages"], strict=True))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("options", [BASELINE, {"advantage_estimator": f"{FILE}:total_less_expected"}])
def test_each_group_uses_its_own_value_of_the_column(tmp_path, options, shape):
    options = {**options, **shape, **DATA, "max_steps": 2, "per_device_train_batch_size": 32}
    trained = tiny_models.trained(tmp_path, tiny_models.half_dead, **options)
    rows = [row for row in rewards_and_advantages(trained) if row[2]]
    tied = [reward for _, reward, advantage in rewards_and_advantages(trained) if not advantage]
    assert "advantage_baseline" not in options or all(reward == pytest.approx(0.3) for reward in tied)
    assert len({number for number, _, _ in rows}) > 1
    for number, reward, advantage in rows:
        assert advantage == pytest.approx(reward - number / 30, abs=1e-6)


@pytest.mark.parametrize("per_token", [True, False])
def test_with_a_kl_in_the_reward_a_tied_group_learns_from_the_kl_alone(per_token):
    """A tied group's rewards give no advantage, as with shipped baselines. A column does not estimate the KL, so no
    baseline is subtracted from the KL."""
    rewards = torch.tensor([[1.0, 0.0, torch.nan], [1.0, 1.0, 1.0]], dtype=torch.float64)
    to_go = torch.zeros(2, 3, 4, dtype=torch.float64)

    def by_column(values, scored, about):
        return user_advantages.less_expected(values, scored, replace(about, columns={"expected": [0.9, 0.9]}))

    values = compute_with_kl(rewards, to_go, 0.1, per_token, by_column, "none")
    expected = torch.tensor([[0.1, -0.9, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    assert_close(values, expected.unsqueeze(-1).expand(2, 3, 4) if per_token else expected)
    to_go[1, 0] = 2.0
    alone = compute_with_kl(rewards, to_go, 0.1, per_token, by_column, "none")
    assert_close(alone[1], -0.1 * to_go[1] if per_token else -0.1 * to_go[1, :, 0])


def test_with_a_kl_in_the_reward_it_trains(tmp_path):
    kl = {"beta": 0.1, "kl_estimator": "k1", "kl_placement": "reward", "kl_reward_form": "reward_to_go"}
    trained = tiny_models.trained(tmp_path, tiny_models.digits, **BASELINE, **kl, **DATA, max_steps=2)
    assert any(tiny_models.losses(trained))


def test_rows_without_the_column_are_refused_by_name(tmp_path):
    def some(rows):
        return [{**row, "expected": 0.5} if row["number"] % 2 else row for row in rows]

    rows = some([{"prompt": f"{number:02}=", "number": number} for number in range(30)])
    stream = IterableDataset.from_generator(lambda: iter(rows))
    with pytest.raises(ValueError, match="reads the column 'expected', but a row has only 'prompt', 'number'"):
        tiny_models.trained(tmp_path, tiny_models.digits, **BASELINE, data=stream, max_steps=2)


def test_a_column_that_is_not_there_is_refused_before_the_run(tmp_path):
    data = tiny_models.prompts(30).map(lambda row: {"expectd": 0.5})
    with pytest.raises(ValueError, match=r"less_expected' reads the column 'expected', .*Did you mean expectd"):
        tiny_models.trainer(tmp_path, tiny_models.digits, **BASELINE, data=data)


def test_a_result_of_another_shape_is_refused(tmp_path):
    options = {**BASELINE, "advantage_baseline": f"{FILE}:of_another_shape"}
    with pytest.raises(ValueError, match=r"of_another_shape'.*must return \(2, 4\) .*got \(2, 1\)"):
        tiny_models.trained(tmp_path, tiny_models.digits, **options, max_steps=1)


def test_a_result_of_whole_numbers_is_refused():
    """They round small differences to 0, and nothing would be learned."""
    whole = baseline_of(f"{FILE}:in_whole_numbers")
    with pytest.raises(ConfigError, match=r"a floating-point dtype.*got \(1, 2\) of torch.int64"):
        whole(torch.rand(1, 2), torch.ones(1, 2, dtype=torch.bool), SimpleNamespace(columns={}))


def test_an_error_in_it_is_told_with_its_place():
    """`trl-grpo-plus run` prints the error in one line, without a traceback."""
    about = SimpleNamespace(columns={})
    with pytest.raises(ConfigError, match=rf"less_expected': KeyError: 'expected' \({re.escape(str(FILE))}:\d+\)"):
        baseline_of(f"{FILE}:less_expected")(torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool), about)


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
def test_names_of_no_baseline_are_refused(name, words):
    with pytest.raises(ValueError, match=words):
        baseline_of(name)


def test_the_configuration_takes_paths_and_refuses_other_words(tmp_path):
    common = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False, "report_to": "none"}
    assert GRPOPlusConfig(**common, **BASELINE).advantage_baseline.endswith(":less_expected")
    with pytest.raises(ValueError, match="Did you mean leave_one_out"):
        GRPOPlusConfig(**common, advantage_baseline="leave_one")


def test_a_function_may_change_its_arguments_in_place():
    rewards = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    given = rewards.clone()
    values = compute(given, baseline_of(f"{FILE}:in_place"), "mean", eps=0.0)
    assert_close(values, compute(rewards, "mean", "mean", eps=0.0))
    assert_close(given, rewards)


@pytest.mark.parametrize("form", ["torch", "numpy"])
def test_a_column_has_plain_values_in_any_format_of_the_dataset(tmp_path, form):
    data = DATA["data"].with_format(form, columns=["expected", "number"], output_all_columns=True)
    trained = tiny_models.trainer(tmp_path, tiny_models.digits, **BASELINE, data=data, max_steps=1)
    seen = []
    columns = Batch._columns

    def keep(self, names):
        seen.append(columns(self, names))
        return seen[-1]

    with mock.patch.object(Batch, "_columns", keep):
        trained.train()
    assert {type(value) for values in seen for value in values["expected"]} == {float}


def test_the_preflight_checks_the_column_and_the_function(tmp_path):
    wrong = GRPOPlusConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none", **BASELINE)
    recipe = SimpleNamespace(training=wrong, stands=True, train_set=tiny_models.prompts(4))
    (row,) = preflight.remembered(recipe)
    assert (row.status, row.text[:9]) == (FAILED, f"'{BASELINE['advantage_baseline']}"[:9])
    assert "reads the column 'expected', the training set has 'prompt', 'number'" in row.text
    assert preflight.advantage(recipe) == []
    wrong.advantage_baseline = f"{FILE}:nobody"
    (row,) = preflight.advantage(recipe)
    assert "has no function 'nobody'" in row.text


def test_a_function_object_works_as_its_path_does(tmp_path):
    """A function given as an object works as its path does. The configuration holds the path, since it is saved."""
    by_path, by_function = (
        tiny_models.trained(
            tmp_path / str(number),
            tiny_models.half_dead,
            **{**BASELINE, **DATA, "advantage_baseline": baseline},
            max_steps=1,
        )
        for number, baseline in enumerate((f"{FILE}:less_expected", user_advantages.less_expected))
    )
    assert rewards_and_advantages(by_function) == rewards_and_advantages(by_path)
    path = by_function.args.changed_options["advantage_baseline"]
    assert path.endswith("user_advantages:less_expected")
    assert json.loads(by_function.args.to_json_string())["advantage_baseline"] == path
    with pytest.raises(ValueError, match=r"advantage_baseline=<function.*cannot be saved.*def at the top of a file"):
        GRPOPlusConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, advantage_baseline=lambda *_: None)
