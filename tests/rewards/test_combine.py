"""Rewards made of rewards: gate, clip, scale."""

import asyncio
import math
import pickle
import re

import pytest
import torch
import user_rewards
from trl.rewards import get_repetition_penalty_reward, think_format_reward

from trl_grpo_plus.registry import RewardError, RewardSpec, get_reward
from trl_grpo_plus.rewards.combine import Combined, clip, gate, scale
from trl_grpo_plus.scoring import Outcome, Scoring, Step, outcomes_of


def points(completions, first, **kwargs):
    return first


def judge(completions, second, **kwargs):
    return second


async def later(completions, **kwargs):
    return [1.0] * len(completions)


class Scorer:
    __name__ = "scorer"

    async def __call__(self, completions, **kwargs):
        return [1.0]


NAN = float("nan")


def call(reward, first, second=()):
    return reward(completions=["text"] * len(first), first=list(first), second=list(second))


@pytest.mark.parametrize(
    ("score", "verdict", "expected"),
    [
        pytest.param(0.7, 1.0, 0.7, id="earned"),
        pytest.param(0.7, 2.0, 0.7, id="more than earned"),
        pytest.param(0.7, 0.999, 0.0, id="nearly"),
        pytest.param(0.7, 0.0, 0.0, id="not earned"),
        pytest.param(0.7, -1.0, 0.0, id="below 0"),
        pytest.param(-0.7, 1.0, -0.7, id="a penalty"),
        pytest.param(-0.7, 0.0, 0.0, id="a penalty is waived"),
        pytest.param(None, 1.0, None, id="no score"),
        pytest.param(None, 0.0, None, id="no score, not earned"),
        pytest.param(0.7, None, None, id="no verdict"),
        pytest.param(None, None, None, id="neither"),
        pytest.param(NAN, 1.0, None, id="NaN is None"),
        pytest.param(0.7, NAN, None, id="a verdict of NaN"),
        pytest.param(1, 1, 1.0, id="integers"),
        pytest.param(True, True, 1.0, id="booleans"),
    ],
)
def test_gate(score, verdict, expected):
    [gated] = call(gate(points, by=judge), [score], [verdict])
    assert gated == expected
    assert type(gated) in (float, type(None))


@pytest.mark.parametrize(
    ("at_least", "expected"), [(0.5, [0.7, 0.0]), (0, [0.7, 0.7]), (-1, [0.7, 0.7]), (2.0, [0.0, 0.0])]
)
def test_gate_opens_at_a_score(at_least, expected):
    assert call(gate(points, by=judge, at_least=at_least), [0.7, 0.7], [0.5, 0.0]) == expected


@pytest.mark.parametrize(
    ("score", "expected"),
    [(-5, -1.0), (-1, -1.0), (-0.5, -0.5), (0, 0.0), (2, 2.0), (2.5, 2.0), (1e308, 2.0), (None, None), (NAN, None)],
)
def test_clip(score, expected):
    assert call(clip(points, -1, 2), [score]) == [expected]


@pytest.mark.parametrize(
    ("factor", "offset", "score", "expected"),
    [(2, 0, 1.5, 3.0), (2, -1, 0, -1.0), (-1, 1, 1.0, 0.0), (0, 0, 9.0, 0.0), (2, 1, None, None), (2, 1, NAN, None)],
)
def test_scale(factor, offset, score, expected):
    assert call(scale(points, factor, offset), [score]) == [expected]


def test_names_say_what_they_are_made_of_and_can_be_given():
    assert gate(points, by=judge).__name__ == "points_if_judge"
    assert clip("exact_answer", 0, 1).__name__ == "exact_answer_clipped"
    assert scale(clip(points, 0, 1), 2).__name__ == "points_clipped_scaled"
    made = [gate(points, judge, name="a"), clip(points, 0, 1, name="b"), scale(points, 2, name="c")]
    assert [reward.__name__ for reward in made] == ["a", "b", "c"]


def test_parts_are_the_rewards_within():
    inner = get_reward("exact_answer")
    assert gate(points, by=inner).parts == (points, inner)
    nested = scale(gate(points, by=inner), 2)
    assert [type(part) for part in nested.parts] == [Combined]


def test_registered_names_get_their_columns_and_rows_without_one_are_not_scored():
    reward = gate("exact_answer", by=scale("exact_answer", 1))
    scores = reward(completions=["46", "47", "46"], answer=["46", "46", None], prompts=["?"] * 3, trainer_state=None)
    assert scores == [1.0, 0.0, None]


def test_trls_own_rewards_can_be_combined_and_are_called_as_trl_calls():
    message = [{"role": "assistant", "content": "<think>a</think>b"}]
    reward = gate(think_format_reward, by=scale(get_repetition_penalty_reward(2), 1, 1))
    scores = reward(
        prompts=["?", "?"], completions=[message, message], completion_ids=[[1, 2], [5, 5, 5]], trainer_state=None
    )
    assert scores == [1.0, 0.0]
    assert reward.__name__ == "think_format_reward_if_repetition_penalty_reward_scaled"


TEXTS = ["46", "47", "hang", "raise"]
ANSWERS = ["46"] * len(TEXTS)
OUTCOMES = [("ok",), ("ok",), ("timeout",), ("error",)]


def flat(completions, **columns):
    return [1.0] * len(completions)


@pytest.mark.parametrize(
    ("make", "scores"),
    [
        (lambda part: gate(flat, by=part), [1.0, 0.0, 0.0, 0.0]),
        (lambda part: gate(part, by=flat), [1.0, 0.0, 0.0, 0.0]),
        (lambda part: clip(part, 0.5, 2), [1.0, 0.5, 0.5, 0.5]),
        (lambda part: scale(part, 2, offset=-1), [1.0, -1.0, -1.0, -1.0]),
        (lambda part: scale(clip(gate(flat, by=part), 0, 1), 2), [2.0, 0.0, 0.0, 0.0]),
    ],
    ids=["judge of a gate", "behind a gate", "clip", "scale", "nested"],
)
@pytest.mark.parametrize("labelled", [False, pytest.param(True, marks=pytest.mark.full)])
def test_outcomes_of_parts_are_passed_on_and_their_policies_hold(make, scores, labelled):
    combined = make(user_rewards.forgiving)
    scoring = Scoring([RewardSpec(combined, label="mine").build() if labelled else combined], ["mine"])
    assert scoring.functions[0](completions=TEXTS, answer=ANSWERS) == scores
    assert (scoring.failures, scoring.statuses(len(TEXTS))) == ([], OUTCOMES)
    assert scoring.outcomes[0][2].message == "It was stopped after 1 s."
    assert "KeyError: 'no such key'" in scoring.outcomes[0][3].message


def test_parts_that_abstain_from_what_failed_leave_no_score():
    part = RewardSpec(user_rewards.forgiving, on_timeout="abstain", on_error="abstain").build()
    scoring = Scoring([scale(part, 2)], ["scaled"])
    assert scoring.functions[0](completions=TEXTS, answer=ANSWERS) == [2.0, 0.0, None, None]
    assert (scoring.failures, scoring.statuses(len(TEXTS))) == ([], OUTCOMES)


def test_the_worst_outcome_counts_and_what_the_machine_starved_is_no_score():
    says_more = RewardSpec(f"{user_rewards.__file__}:says_more", label="says_more").build()
    combined = gate(says_more, by=user_rewards.forgiving)
    scored = combined(completions=["46", "hang", "46"], answer=ANSWERS[:3], number=[1, 1, 3])
    assert outcomes_of(scored, TEXTS[:3]) == [
        Outcome(0.25, "too_long"),
        Outcome(0.0, "timeout", "It was stopped after 1 s.", decided=True),
        Outcome(None, "starved"),
    ]


def test_a_part_that_must_not_fail_still_stops_the_run():
    with pytest.raises(RewardError, match="no such key"):
        scale(user_rewards.judge, 2)(completions=["raise"], answer=["46"])
    scoring = Scoring([scale(user_rewards.judge, 2)], ["scaled"])
    assert scoring.functions[0](completions=["46", "raise"], answer=ANSWERS[:2]) == [0.0, 0.0]
    (failure,) = scoring.failures
    assert failure.startswith("reward 'scaled' failed: reward 'user_judge'")
    assert "no such key" in failure
    assert "combine.py" not in failure, "the place of the error is the part's"


def test_the_first_failure_of_a_combination_is_warned_of_once_with_its_score(caplog):
    said = set()
    for _ in range(2):
        scoring = Scoring([clip(user_rewards.forgiving, 0.25, 1)], ["mine"], said)
        scoring.functions[0](completions=TEXTS, answer=ANSWERS)
    warned = [record.message for record in caplog.records]
    assert [text.partition(": ")[0] for text in warned] == ["reward 'mine'"] * 2
    assert said == {("mine", "timeout"), ("mine", "error")}
    assert all("Such a sample scores 0.25." in text for text in warned)


def test_a_rule_that_gives_no_number_is_an_error_of_the_combination():
    scoring = Scoring([scale(user_rewards.forgiving, 1, offset=1e300)], ["scaled"])
    scoring.functions[0](completions=["hang"], answer=ANSWERS[:1])
    assert "must be a finite number" in scoring.failures[0]


def test_outcomes_of_plain_parts_alone_are_not_counted():
    scoring = Scoring([gate(points, by=judge)], ["gated"])
    scoring.functions[0](completions=["text"], first=[1.0], second=[1.0])
    assert scoring.outcomes == [None]


COMBINATIONS = [
    lambda part: gate(part, by="exact_answer"),
    lambda part: gate("exact_answer", by=part),
    lambda part: clip(part, 0, 1),
    lambda part: scale(part, 1.0),
]


@pytest.mark.parametrize("make", COMBINATIONS)
@pytest.mark.parametrize(
    ("scores", "says"),
    [
        (None, "reward 'faulty': it must return one reward for each completion, in a list, .*got NoneType"),
        ([1.0], "reward 'faulty': it returned 1 rewards for 2 completions"),
        ([1.0] * 3, "reward 'faulty': it returned 3 rewards for 2 completions"),
        (["good", 1.0], "reward 'faulty' failed on sample 0 of 2. The reward must be a finite number or None"),
        ([0.5, [Step(9, 1.0)]], "reward 'faulty' failed on sample 1 of 2. Step 0 of 1, .*beyond the text"),
    ],
)
def test_a_fault_of_a_plain_part_is_told(make, scores, says):
    def faulty(completions, **columns):
        return scores

    with pytest.raises(RewardError, match=f"(?s){says}"):
        make(faulty)(completions=["46", "46"], answer=["46", "46"])


def test_steps_of_a_plain_part_are_summed():
    def by_steps(completions, **columns):
        return [[Step(1, 0.25), Step(2, 0.5)], [], None, math.nan]

    columns = {"completions": ["46"] * 4, "answer": ["46"] * 4}
    assert scale(by_steps, 2.0)(**columns) == [1.5, 0.0, None, None]
    assert clip(by_steps, 0, 0.5)(**columns) == [0.5, 0.0, None, None]
    assert gate(by_steps, by="exact_answer")(**columns) == [0.75, 0.0, None, None]


def test_scores_of_a_plain_part_may_be_a_tensor():
    def in_a_tensor(completions, **columns):
        return torch.tensor([0.25, 0.5])

    assert scale(in_a_tensor, 2.0)(completions=["a", "b"]) == [0.5, 1.0]


def test_an_empty_batch():
    assert call(gate(points, by=judge), []) == []


def test_parts_of_different_lengths_are_refused():
    with pytest.raises(RewardError, match="reward 'judge': it returned 1 rewards for 2 completions"):
        call(gate(points, by=judge), [1.0, 1.0], [1.0])


@pytest.mark.parametrize(
    "make", [lambda r: gate(r, by="exact_answer"), lambda r: clip(r, 0, 1), lambda r: scale(r, 2, 1)]
)
def test_they_travel_to_judge_processes(make):
    reward = make(points)
    copied = pickle.loads(pickle.dumps(reward))
    assert copied.__name__ == reward.__name__
    columns = {"completions": ["46"], "first": [3.0], "answer": ["46"]}
    assert copied(**columns) == reward(**columns)


def test_a_combined_reward_is_immutable():
    with pytest.raises(AttributeError):
        gate(points, by=judge).parts = ()


def test_trl_takes_it_for_a_plain_function():
    """TRL asks these of a reward function; a model would have `parameters`."""
    reward = gate(points, by=judge)
    assert isinstance(reward.__name__, str)
    assert not asyncio.iscoroutinefunction(reward)
    assert not hasattr(reward, "parameters")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: gate("exact_answr", by=judge), "exact_answer"),
        (lambda: gate(points, by="exact_answr"), "exact_answer"),
        (lambda: gate(points, by=3), "3 must be a reward function"),
        (lambda: clip(None, 0, 1), "None must be a reward function"),
        (lambda: scale(["exact_answer"], 2), "must be a reward function"),
        (lambda: scale(later, 2), "later is an async function"),
        (lambda: gate(points, by=later), "later is an async function"),
        (lambda: clip(Scorer(), 0, 1), "scorer is an async function"),
        (lambda: gate(points, by=judge, at_least="1"), "at_least='1'"),
        (lambda: gate(points, by=judge, at_least=NAN), "at_least=nan"),
        (lambda: gate(points, by=judge, at_least=None), "at_least=None"),
        (lambda: clip(points, 1, 0), "low=1 must not be above high=0"),
        (lambda: clip(points, 0, float("inf")), "high=inf"),
        (lambda: clip(points, True, 1), "low=True"),
        (lambda: scale(points, NAN), "factor=nan"),
        (lambda: scale(points, 1, offset="2"), "offset='2'"),
    ],
)
def test_bad_arguments_are_refused_by_name(make, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        make()
