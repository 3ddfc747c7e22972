"""The reward `cosine_length`: its schedule, compared with TRL's, and its calls of the reward that judges."""

import pytest
import user_rewards
from datasets import Dataset
from trl.rewards import accuracy_rewards, get_cosine_scaled_reward

from trl_grpo_plus.registry import RewardError, RewardSpec, check_columns, get_reward
from trl_grpo_plus.scoring import STATUSES, Outcome, Scoring


def by_verdict(completions, verdict, *, factor: float = 1.0):
    return [None if points is None else factor * points for points in verdict]


JUDGE = f"{__name__}:by_verdict"


def score(lengths, verdicts, **args):
    reward = get_reward("cosine_length", **{"max_length": 100, "correct": JUDGE, **args})
    # The keyword is `verdict`, a column of the judge. `None` in it means that the judge gives no score.
    return reward(["text"] * len(lengths), completion_ids=[[1] * length for length in lengths], verdict=verdicts)


@pytest.mark.parametrize(
    ("length", "right", "wrong"),
    [
        pytest.param(0, 1.0, -1.0, id="no token"),
        pytest.param(25, 0.9267766952966369, -0.9267766952966369, id="a quarter"),
        pytest.param(50, 0.75, -0.75, id="half"),
        pytest.param(75, 0.5732233047033631, -0.5732233047033631, id="three quarters"),
        pytest.param(100, 0.5, -0.5, id="all"),
        pytest.param(101, 0.5, -0.5, id="more"),
        pytest.param(200, 0.5, -0.5, id="where the cosine would be back"),
    ],
)
def test_right_ones_lose_by_length_and_wrong_ones_gain(length, right, wrong):
    assert score([length, length], [1.0, 0.0]) == [pytest.approx(right), pytest.approx(wrong)]


def test_the_schedule_is_monotone_and_right_beats_wrong():
    lengths = list(range(0, 300, 3))
    right, wrong = score(lengths, [1.0] * 100), score(lengths, [0.0] * 100)
    assert right == sorted(right, reverse=True)
    assert wrong == sorted(wrong)
    assert min(right) > max(wrong)


BOUNDS = [(-1.0, -0.5, 0.5, 1.0), (-10.0, 0.0, 1.0, 2.0), (-0.5, -0.1, 0.8, 1.0), (0.0, 0.0, 1.0, 1.0)]


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("max_length", [1, 7, 100, 4096])
def test_it_is_what_trl_gives_for_the_same_verdicts(monkeypatch, bounds, max_length):
    lengths = [0, 1, 2, 5, 50, 99, 100, 101, 4095, 4096, 9000]
    names = ("min_value_wrong", "max_value_wrong", "min_value_correct", "max_value_correct")
    for verdict in (1.0, 0.0):
        monkeypatch.setattr(
            accuracy_rewards, "accuracy_reward", lambda completions, solution, v=verdict: [v] * len(completions)
        )
        theirs = get_cosine_scaled_reward(max_length, *bounds)(
            completions=["text"] * len(lengths),
            solution=["46"] * len(lengths),
            completion_ids=[[1] * n for n in lengths],
        )
        ours = score(lengths, [verdict] * len(lengths), max_length=max_length, **dict(zip(names, bounds, strict=True)))
        assert ours == pytest.approx(theirs)


@pytest.mark.parametrize(
    ("verdict", "at_least", "is_right"),
    [(1.0, 1.0, True), (0.99, 1.0, False), (0.5, 0.5, True), (0.4, 0.5, False), (-1.0, 1.0, False), (3.0, 1.0, True)],
)
def test_right_is_what_scores_enough(verdict, at_least, is_right):
    assert score([50], [verdict], at_least=at_least) == [0.75 if is_right else -0.75]


def test_what_is_not_judged_is_not_scored():
    assert score([50, 50], [None, 1.0]) == [None, 0.75]
    assert score([], []) == []


COSINE = {"name": "cosine_length", "args": {"max_length": 100, "correct": f"{user_rewards.__file__}:forgiving"}}


@pytest.mark.parametrize("entry", [COSINE, {**COSINE, "timeout": 30}], ids=["in process", "in a worker"])
def test_what_the_judge_has_no_verdict_on_is_not_scored_as_wrong_and_is_counted(entry):
    """The judge gives 0 to a sample that hangs or raises. `cosine_length` gives it no score, as it is not wrong."""
    scoring = Scoring([RewardSpec.of(entry).build()], ["cosine_length"])
    texts = ["46", "47", "hang", "raise"]
    columns = {"completion_ids": [[1] * 50] * 4, "answer": ["46"] * 4, "prompts": ["?"] * 4}
    [function] = scoring.functions
    assert function(completions=texts, **columns) == [0.75, -0.75, None, None]
    assert scoring.failures == []  # the judge's own policies let the run go on
    assert scoring.statuses(4) == [("ok",), ("ok",), ("timeout",), ("error",)]
    assert dict(zip(STATUSES, *scoring.counts(), strict=True)) == {
        **dict.fromkeys(STATUSES, 0), "ok": 2, "timeout": 1, "error": 1,
    }  # fmt: skip
    assert scoring.outcomes[0][2].message == "It was stopped after 1 s."
    assert "KeyError: 'no such key'" in scoring.outcomes[0][3].message


def test_a_starved_sample_is_starved_and_a_program_that_took_too_long_is_wrong():
    reward = get_reward("cosine_length", max_length=100, correct=f"{user_rewards.__file__}:says_more")
    outcomes = reward.score(["a", "b"], completion_ids=[[1] * 50] * 2, number=[3, 4])
    assert outcomes == [Outcome(None, "starved"), Outcome(-0.75, "too_long")]


def test_a_judge_that_must_not_fail_stops_the_run():
    reward = get_reward("cosine_length", max_length=100, correct=f"{user_rewards.__file__}:judge")
    with pytest.raises(RewardError, match="no such key"):
        reward(["46", "raise"], completion_ids=[[1]] * 2, answer=["46"] * 2)


def test_the_judge_gets_its_columns_by_their_names_and_its_arguments():
    reward = get_reward("cosine_length", max_length=100, correct="exact_answer", correct_args={"column": "solution"})
    ids = [[1] * 50] * 3
    columns = {"completion_ids": ids, "solution": ["46", "46", None], "answer": ["1"] * 3, "prompts": ["?"] * 3}
    assert reward(["46", "47", "46"], **columns) == [0.75, -0.75, None]
    assert score([50], [0.5], correct_args={"factor": 2.0}) == [0.75]


def test_a_column_that_the_judge_needs_is_missed():
    reward = get_reward("cosine_length", max_length=100, correct=JUDGE)
    with pytest.raises(RewardError, match="verdict"):
        reward(["text"], completion_ids=[[1]], verdicts=[1.0])


def test_the_judge_checks_the_columns_before_training():
    def check(rows, **args):
        check_columns(get_reward("cosine_length", max_length=100, **args), Dataset.from_dict(rows), "train")

    good, bad = [{"kind": "no_commas"}], [{"kind": "no_comma"}]
    judge = {"correct": "instruction_checks"}
    check({"constraints": [good, None, good]}, **judge)
    with pytest.raises(ValueError, match="Did you mean no_commas"):
        check({"constraints": [good, None, bad]}, **judge)
    with pytest.raises(ValueError, match="needs the column 'constraints', the data has constraint, other"):
        check({"constraint": [good], "other": [0]}, **judge)
    with pytest.raises(ValueError, match="Did you mean no_commas"):
        check({"rules": [bad]}, **judge, correct_args={"column": "rules"})
    check({"answer": ["46"]}, correct="exact_answer")
