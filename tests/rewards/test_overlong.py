"""The reward `overlong`: equation 13 of DAPO, compared with TRL's reward."""

import pytest
import torch
import yaml
from trl.rewards import get_soft_overlong_punishment

from trl_grpo_plus.launch import accelerate
from trl_grpo_plus.registry import get_reward


def score(lengths, max_length=100, cache=20):
    ids = [list(range(length)) for length in lengths]
    return get_reward("overlong", max_length=max_length, cache=cache)(["text"] * len(ids), completion_ids=ids)


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        pytest.param(0, 0.0, id="no token"),
        pytest.param(1, 0.0, id="short"),
        pytest.param(80, 0.0, id="as long as is free"),
        pytest.param(81, -0.05, id="a token more"),
        pytest.param(90, -0.5, id="halfway"),
        pytest.param(99, -0.95, id="a token before the end"),
        pytest.param(100, -1.0, id="at the end"),
        pytest.param(101, -1.0, id="beyond"),
        pytest.param(100_000, -1.0, id="far beyond"),
    ],
)
def test_the_punishment_grows_over_the_cache(length, expected):
    assert score([length]) == [pytest.approx(expected)]


@pytest.mark.parametrize(
    ("max_length", "cache"), [(100, 20), (100, 0), (100, 100), (1, 0), (1, 1), (7, 3), (20480, 4096)]
)
def test_it_is_what_trl_gives(max_length, cache):
    edges = {0, 1, max_length - cache, max_length, max_length + 1, 2 * max_length}
    lengths = sorted(
        {abs(edge + step) for edge in edges for step in (-2, -1, 0, 1, 2)} | set(range(0, max_length, 97))
    )
    expected = get_soft_overlong_punishment(max_length, cache)(completion_ids=[[1] * length for length in lengths])
    assert score(lengths, max_length, cache) == expected


def test_the_text_does_not_matter():
    reward = get_reward("overlong", max_length=4, cache=2)
    ids = [[1] * 3] * 5
    completions = ["", "a" * 1000, [{"role": "assistant", "content": "a"}], [], "\ud800\x00"]
    assert reward(completions, completion_ids=ids) == [-0.5] * 5


@pytest.mark.parametrize("name", ["math_dapo_qwen2.5-7b_8gpu", "math_dapo_qwen2.5-7b_2nodes"])
def test_the_recipes_weigh_it_as_the_paper_does(name):
    """The paper's answers earn 1 or -1, ours 1 or 0. Divided by the group's std, the two must be the same."""
    recipe = yaml.safe_load(accelerate.recipes()[name].read_text())
    answer, penalty = recipe["reward_funcs"]
    assert (answer, penalty["name"]) == ("math_answer", "overlong")
    right = torch.tensor([1.0, 0.0, 1.0, 0.0])
    lengths = [1000, 1000, 7000, 8192]
    punished = torch.tensor(
        get_reward("overlong", **penalty["args"])([""] * 4, completion_ids=[[1] * n for n in lengths])
    )

    def advantages(rewards):
        return (rewards - rewards.mean()) / rewards.std()

    ours = advantages(right + penalty.get("weight", 1.0) * punished)
    torch.testing.assert_close(ours, advantages(2 * right - 1 + punished))
