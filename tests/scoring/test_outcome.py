"""Tests of the outcome that a reward's value stands for, and of values that are no list of rewards."""

import copy
import itertools
import json
import pickle
import re
from fractions import Fraction

import numpy as np
import pytest
import torch

from trl_grpo_plus.scoring import AnnotatedScore, Outcome, Step, outcome_of, outcomes_of, with_worst_status


@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        ([1, True, 1.0, np.bool_(True)], Outcome(1.0, "ok")),
        ([-0.5, Fraction(-1, 2)], Outcome(-0.5, "ok")),
        ([np.float32(0.5), np.array([0.5]), torch.tensor(0.5, dtype=torch.bfloat16)], Outcome(0.5, "ok")),
        ([torch.tensor([0.5], requires_grad=True)], Outcome(0.5, "ok")),
        ([3.4028234663852886e38], Outcome(3.4028234663852886e38, "ok")),  # the largest float32
        ([None, float("nan")], Outcome(None, "abstain")),
        ([AnnotatedScore(0.25, "too_long")], Outcome(0.25, "too_long")),
        ([AnnotatedScore(float("nan"), "starved", "why")], Outcome(None, "starved", "why")),
        ([AnnotatedScore(0.0, "error", "why")], Outcome(0.0, "error", "why", decided=True)),
        ([AnnotatedScore(float("nan"), "timeout")], Outcome(None, "timeout", decided=True)),
    ],
)
def test_the_outcome_of_each_kind_of_value(values, outcome):
    assert [outcome_of(value) for value in values] == [outcome] * len(values)


@pytest.mark.parametrize(
    "outcome", [Outcome(0.0, "error", "why", decided=True), Outcome(None, "timeout", "", (), True)]
)
def test_an_outcome_travels_as_json(outcome):
    assert Outcome.of_json(json.loads(json.dumps(outcome.as_json()))) == outcome


def test_a_score_is_annotated_only_if_there_is_something_to_add():
    assert [Outcome(0.5, "ok").as_score(), Outcome(None, "abstain").as_score()] == [0.5, None]
    assert type(Outcome(0.5, "ok").as_score()) is float
    for outcome in (Outcome(0.0, "timeout", "late", decided=True), Outcome(None, "starved", "why")):
        assert outcome_of(outcome.as_score()) == outcome


def test_an_annotated_score_can_be_copied_and_pickled():
    late = AnnotatedScore(0.5, "timeout", "late")
    for copied in (copy.deepcopy(late), pickle.loads(pickle.dumps(late))):
        assert (copied, copied.status, copied.message) == (0.5, "timeout", "late")


@pytest.mark.parametrize("status", ["timout", "ok", "abstain", "", None])
def test_a_score_with_an_unknown_status_is_refused(status):
    with pytest.raises(ValueError, match=rf"status={status!r} must be one of too_long, timeout, error, starved"):
        AnnotatedScore(0.5, status)


def test_a_score_has_the_worst_status_of_its_parts():
    late, failed = AnnotatedScore(0.0, "timeout", "late"), AnnotatedScore(1.0, "error", "failed")
    for parts in ([late, failed, None], [failed, 1.0, late]):
        assert outcome_of(with_worst_status(0.5, parts)) == Outcome(0.5, "error", "failed", decided=True)
    assert outcome_of(with_worst_status(None, [1.0, late])) == Outcome(None, "timeout", "late", decided=True)
    assert [with_worst_status(value, [1.0, None]) for value in (0.5, None)] == [0.5, None]
    assert outcome_of(with_worst_status(float("inf"), [late])).decided is False  # the combined score itself is wrong


STEPS = [Step(2, 1), Step(np.int64(5), torch.tensor(-0.25))]


def test_steps_score_their_sum():
    outcome = outcome_of(STEPS)
    assert outcome == Outcome(0.75, "ok", steps=(Step(2, 1.0), Step(5, -0.25)))
    assert [type(step.end) for step in outcome.steps] == [int, int]
    assert Outcome.of_json(json.loads(json.dumps(outcome.as_json()))) == outcome
    assert outcome_of([]) == Outcome(0.0, "ok", steps=())


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([Step(2, 1.0), Step(2, 1.0)], "Step 1 of 2, Step(end=2, reward=1.0), must end after step 0, which ends at 2"),
        ([Step(0, 1.0)], "Step 0 of 1, Step(end=0, reward=1.0), must end after the text begins, at 0"),
        ([Step(1.5, 1.0)], "The end of step 0 of 1, Step(end=1.5, reward=1.0), must be an integer"),
        ([Step(1, float("nan"))], "The reward of step 0 of 1, Step(end=1, reward=nan), must be a finite number"),
        ([Step(1, None)], "The reward of step 0 of 1, Step(end=1, reward=None), must be a finite number"),
        ([Step(1, 3e38), Step(2, 3e38)], "must be a finite number or None, between"),
        ([Step(1, 1.0), 0.5], "must be a finite number or None, got [Step(end=1, reward=1.0), 0.5]"),
    ],
)
def test_wrong_steps_are_errors(steps, words):
    outcome = outcome_of(steps)
    assert (outcome.score, outcome.status, outcome.steps) == (None, "error", None)
    assert words in outcome.message


def test_steps_lie_within_the_text_that_was_rewarded():
    message = [{"role": "assistant", "content": "12345"}, {"role": "tool", "content": "6789"}]
    assert [outcome.status for outcome in outcomes_of([STEPS] * 3, ["12345", message, "1234"])] == [
        "ok",
        "ok",
        "error",
    ]
    error = outcomes_of([STEPS], ["1234"])[0].message
    assert error == "Step 1 of 2, Step(end=5, reward=-0.25), ends beyond the text, which has 4 characters."


def test_an_annotated_score_equals_its_number():
    assert AnnotatedScore(0.25, "too_long") == 0.25


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no text for this one")


@pytest.mark.parametrize(
    "value",
    [
        float("inf"), -float("inf"), 10**400, 3.41e38, "1.0", b"1.0", np.str_("1.0"), 1j, [1.0], {}, object(),
        np.array([1.0, 2.0]),
        torch.tensor([[1.0, 2.0]]),
        torch.tensor(torch.inf),
        AnnotatedScore(float("inf"), "too_long"),
        Unprintable(),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_value_that_is_no_reward_is_an_error(value):
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
def test_containers_with_one_reward_per_completion(scores):
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
def test_values_that_are_no_list_of_rewards_are_refused(scores, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        outcomes_of(scores, ["", ""])


@pytest.mark.parametrize("scores", [[[1.0], [0.5]], torch.ones(2, 2)], ids=["lists", "a matrix"])
def test_nested_lists_of_rewards_are_errors(scores):
    assert [outcome.status for outcome in outcomes_of(scores, ["", ""])] == ["error", "error"]
