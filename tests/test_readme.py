"""What the README shows is run as it stands there."""

import re
from pathlib import Path

import pytest
import yaml

from trl_grpo_plus import registry
from trl_grpo_plus.check.rewards import check_examples
from trl_grpo_plus.registry import Reward, get_reward, list_rewards, resolve


README = (Path(__file__).parents[1] / "README.md").read_text()


def block(first_line):
    """The fenced block with that first line."""
    found = [text for text in re.findall(r"```\w*\n(.*?)```", README, re.DOTALL) if text.startswith(first_line)]
    assert len(found) == 1, first_line
    return found[0]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with the README's reward."""
    (tmp_path / "my_rewards.py").write_text(block("# my_rewards.py"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    return tmp_path


def test_a_reward_in_ten_lines(folder):
    assert len([line for line in block("# my_rewards.py").splitlines() if line.strip()]) <= 10
    assert not check_examples("my_rewards.py:ends_well").problems
    (reward,), weights = resolve(["my_rewards.py:ends_well"])
    assert reward(completions=["The end.", "No"], ending=["end.", "end."]) == [1.0, 0.0]
    assert (reward.__name__, reward.timeout, weights) == ("ends_well", 2.0, None)
    assert get_reward("my_rewards.py:ends_well", points=0.5)(completions=["The end."], ending=["end."]) == [0.5]


def test_its_list_of_reward_funcs(folder):
    entries = yaml.safe_load(block("reward_funcs:\n"))["reward_funcs"]
    built, weights = resolve(entries)
    assert [getattr(reward, "__name__", reward) for reward in built] == [
        "math_answer",
        "ends_well",
        "think_format",
        "accuracy_model/folder_or_hub_id",
    ]
    assert weights == [2.0, 1.0, 0.0, 1.0]
    assert isinstance(built[1], Reward)
    assert (built[1].timeout, built[1].args, built[0].renamed) == (1, {"points": 0.5}, {"answer": "solution"})


def test_its_table_of_rewards_is_the_library(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTERED", {})  # other tests' own rewards
    named = set(re.findall(r"^\| `(\w+)` \|", README[README.index("### Which there are") :].split("\n###")[0], re.M))
    assert named == set(list_rewards())
