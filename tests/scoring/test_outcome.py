"""What a reward function's value stands for, and what is no list of rewards."""

import itertools
import re
from fractions import Fraction

import numpy as np
import pytest
import torch

from trl_grpo_plus.scoring import Noted, Outcome, outcome_of, outcomes_of


@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        ([1, True, 1.0, np.bool_(True)], Outcome(1.0, "ok")),
        ([-0.5, Fraction(-1, 2)], Outcome(-0.5, "ok")),
        ([np.float32(0.5), np.array([0.5]), torch.tensor(0.5, dtype=torch.bfloat16)], Outcome(0.5, "ok")),
        ([torch.tensor([0.5], requires_grad=True)], Outcome(0.5, "ok")),
        ([3.4028234663852886e38], Outcome(3.4028234663852886e38, "ok")),  # the largest in float32
        ([None, float("nan")], Outcome(None, "abstain")),
        ([Noted(0.25, "too_long")], Outcome(0.25, "too_long")),
        ([Noted(float("nan"), "starved", "why")], Outcome(None, "starved", "why")),
    ],
)
def test_what_a_value_means(values, outcome):
    assert [outcome_of(value) for value in values] == [outcome] * len(values)


def test_a_number_that_says_more_is_a_number():
    assert Noted(0.25, "too_long") == 0.25


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no text for this one")


@pytest.mark.parametrize(
    "value",
    [
        float("inf"), -float("inf"), 10**400, 3.41e38, "1.0", b"1.0", np.str_("1.0"), 1j, [1.0], {}, object(),
        np.array([1.0, 2.0]), torch.tensor([[1.0, 2.0]]), torch.tensor(torch.inf), Noted(float("inf"), "too_long"),
        Unprintable(),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_is_no_reward(value):
    outcome = outcome_of(value)
    assert (outcome.score, outcome.status) == (None, "error")
    assert "must be a finite number or None" in outcome.message


@pytest.mark.parametrize(
    "scores",
    [
        [1, 0.5], (1.0, 0.5), (x for x in (1.0, 0.5)), {"a": 1.0, "b": 0.5}.values(), np.array([1.0, 0.5]),
        np.array([[1.0], [0.5]]), torch.tensor([1.0, 0.5]), torch.tensor([[1.0], [0.5]], dtype=torch.float16),
    ],
    ids=lambda scores: type(scores).__name__,
)  # fmt: skip
def test_what_holds_one_reward_a_completion(scores):
    assert outcomes_of(scores, ["", ""]) == [Outcome(1.0, "ok"), Outcome(0.5, "ok")]


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        (1.0, "got float: 1.0"),
        (None, "got NoneType: None"),
        (torch.tensor(1.0), "got Tensor"),
        ({"a": 1.0, "b": 0.5}, "got dict"),
        ({1.0, 0.5}, "got set"),
        ("ab", "got str: 'ab'"),
        (b"ab", "got bytes"),
        ([1.0], "it returned 1 rewards for 2 completions"),
        (itertools.count(), "it returned 3 or more rewards for 2 completions"),
        (torch.ones(1, 2), "it returned 1 rewards for 2 completions"),
    ],
)
def test_what_does_not(scores, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        outcomes_of(scores, ["", ""])


@pytest.mark.parametrize("scores", [[[1.0], [0.5]], torch.ones(2, 2)], ids=["lists", "a matrix"])
def test_rewards_in_lists_of_their_own_are_none(scores):
    assert [outcome.status for outcome in outcomes_of(scores, ["", ""])] == ["error", "error"]
