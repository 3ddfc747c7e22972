"""What is said of a reward that fails: by whom it was written, where, and once."""

import re
from pathlib import Path

import pytest
import tiny_models


FILE = str(Path(__file__).parents[1] / "helpers" / "user_rewards.py")


def adds(completions, **columns):
    return [completion + 1 for completion in completions]


def strips(completions, **columns):
    return [float(len(completion.strip())) for completion in completions]


def searches(completions, **columns):
    return [float(bool(re.search("a", completion))) for completion in completions]


def warned(caplog):
    return [record.message for record in caplog.records if record.message.startswith("reward ")]


@pytest.mark.parametrize(("policy", "scored"), [("zero", "scores 0"), ("abstain", "has no score")])
def test_the_first_failure_that_a_run_goes_on_with_is_warned_of_once(tmp_path, caplog, policy, scored):
    rewards = [tiny_models.digits, {"name": adds, "label": "mine", "on_error": policy}]
    tiny_models.trained(tmp_path, rewards)
    (said,) = warned(caplog)
    assert said.startswith("reward 'mine': 8 of 8 samples ended with status 'error': TypeError: can only concatenate")
    assert f"Such a sample {scored}." in said
    assert "rewards/mine/error logs their share. To stop at the first with the whole message, set on_error" in said


def test_each_kind_of_failure_of_a_reward_in_workers_is_warned_of(tmp_path, caplog):
    entry = {"name": f"{FILE}:hangs_or_dies", "timeout": 1.0, "on_error": "abstain", "on_timeout": "zero"}
    tiny_models.trained(
        tmp_path, [tiny_models.digits, entry], max_steps=1, data=tiny_models.prompts(30).select([0, 1])
    )
    kinds = {said.partition("status ")[2].partition(":")[0] for said in warned(caplog)}
    assert kinds == {"'error'", "'timeout'"}


def test_a_reward_that_works_is_not_warned_of(tmp_path, caplog):
    tiny_models.trained(tmp_path, [tiny_models.digits, {"name": tiny_models.digits, "label": "mine"}])
    assert warned(caplog) == []
