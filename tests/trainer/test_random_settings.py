"""Tests with settings that are drawn at random, so that options meet which no other test brings together."""

import json

import pytest
import random_settings
import tiny_models
from slow_cases import one_in
from trl import GRPOTrainer

from trl_grpo_plus import GRPOPlusTrainer
from trl_grpo_plus.traces.reader import FOLDER, read_lines


# TRL finds a group dead if its rewards' standard deviation is 0. In float32 that of equal rewards of 0.3 is not.
SEEDS = range(20, 44)  # together they draw each option
OURS = "frac_reward_zero_std"


def history(trained):
    """Return the log entries as text, in which NaN equals NaN, without times."""
    return [json.dumps(tiny_models.untimed(entry), sort_keys=True) for entry in trained.state.log_history]


def attempts(folder):
    files = sorted((folder / "run" / FOLDER).glob("*-0*"))
    return {path.name: json.dumps([*read_lines(path)]) for path in files}


def test_the_settings_cover_the_options():
    drawn = {name for seed in SEEDS for name in random_settings.of_both(seed)[1]}
    tables = (random_settings.LOSS, random_settings.SAMPLING, random_settings.TRAINING, random_settings.BASELINES)
    tables += (random_settings.KL, random_settings.FILTERS, random_settings.ROUNDS, random_settings.OUTPUT)
    more = {"beta", "zero_variance_groups", "advantage_estimator", "prompt_selection", "belief_key", "belief_head"}
    more |= {"kl_placement", "kl_reward_form", "importance_ratio", "sync_ref_model", "eval_strategy"}
    assert more.union(*tables) <= drawn


@pytest.mark.parametrize("seed", one_in(12, SEEDS))
def test_options_of_trl_alone_train_as_trl(tmp_path, seed):
    reward, options = random_settings.of_trl(seed)
    ours, theirs = (tiny_models.trained(tmp_path, reward, cls, **options) for cls in (GRPOPlusTrainer, GRPOTrainer))
    tiny_models.assert_same(ours, theirs)
    for mine, stock in zip(ours.state.log_history, theirs.state.log_history, strict=True):
        shared = sorted(tiny_models.untimed(stock).keys() - {OURS, f"eval_{OURS}"})
        assert str([mine[key] for key in shared]) == str([stock[key] for key in shared])  # as text NaN equals NaN


@pytest.mark.parametrize("seed", one_in(12, SEEDS))
def test_a_run_that_was_killed_resumes_exactly(tmp_path, seed):
    """The second run dies at the start of a step. It ends with the weights, metrics and traces of the first."""
    reward, options = random_settings.of_both(seed)
    options |= {"save_strategy": "steps", "save_steps": 1 + seed % 2}
    whole = tiny_models.trained(tmp_path / "whole", reward, **options)
    stopped = tiny_models.trainer(tmp_path / "cut", reward, **options)
    stopped.add_callback(tiny_models.StopAt(3))
    with pytest.raises(InterruptedError):
        stopped.train()
    resumed = tiny_models.trainer(tmp_path / "cut", reward, **options)
    resumed.train(resume_from_checkpoint=True)
    tiny_models.assert_same(resumed, whole)
    assert history(resumed)[:-1] == history(whole)[:-1]  # the last entry is about the time of the training
    assert attempts(tmp_path / "cut") == attempts(tmp_path / "whole") != {}
