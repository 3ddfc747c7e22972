"""The reward `countdown`: what reaches the target, and the many texts that only seem to."""

import importlib
import random
from fractions import Fraction
from itertools import permutations

import pytest
from tables import table

from trl_grpo_plus.registry import get_reward
from trl_grpo_plus.rewards.countdown import countdown, solve


MODULE = importlib.import_module("trl_grpo_plus.rewards.countdown")


def score(text, numbers=(2, 5, 7), target=25, **args):
    return get_reward("countdown", **args)([text], numbers=[list(numbers)], target=[target])[0]


def test_what_reaches_the_target_and_what_only_seems_to():
    wrong = [
        (why, body)
        for verdict, numbers, target, why, body in table("countdown")
        if score(f"<think>Let me see.</think>\n<answer>{body}</answer>", numbers, target) != float(verdict == "+")
    ]
    assert wrong == []


@pytest.mark.parametrize("body", ["(" * 480 + "7" + ")" * 480, "-" * 900 + "7", " " * 2000 + "7"])
def test_what_is_too_long_or_too_deep(body):
    assert score(f"<think>Let me see.</think>\n<answer>{body}</answer>", [7], 7) == 0.0


RIGHT, WRONG = "(7 - 2) * 5", "7 * 5 - 2"


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        pytest.param(f"<answer>{RIGHT}</answer>", 1.0, id="no thinking"),
        pytest.param(f"a</think><answer>{RIGHT}</answer>", 1.0, id="thinking opened by the prompt"),
        pytest.param(f"So: <answer>{RIGHT}</answer>. Done!", 1.0, id="words around the tags"),
        pytest.param(f"<answer>{WRONG}</answer><answer>{RIGHT}</answer>", 1.0, id="the last answer counts"),
        pytest.param(f"<answer>{RIGHT}</answer><answer>{WRONG}</answer>", 0.0, id="an earlier one does not"),
        pytest.param(f"<think><answer>{RIGHT}</answer></think>", 0.0, id="only in the thinking"),
        pytest.param(f"<think><answer>{RIGHT}</answer>", 0.0, id="the thinking never ends"),
        pytest.param(f"<think>a</think><answer>{RIGHT}</answer></think>", 0.0, id="the thinking ends after it"),
        pytest.param(f"<answer>{RIGHT}</answer><answer>{RIGHT}", 0.0, id="the last one is cut off"),
        pytest.param(f"<answer>{RIGHT}", 0.0, id="cut off"),
        pytest.param(f"{RIGHT}</answer>", 0.0, id="never opened"),
        pytest.param(f"</answer>{RIGHT}<answer>", 0.0, id="wrong order"),
        pytest.param(f"<answer><answer>{RIGHT}</answer></answer>", 0.0, id="nested"),
        pytest.param(f"<ANSWER>{RIGHT}</ANSWER>", 0.0, id="capital tags"),
        pytest.param(f"＜answer＞{RIGHT}＜/answer＞", 0.0, id="full-width tags"),
        pytest.param(f"&lt;answer&gt;{RIGHT}&lt;/answer&gt;", 0.0, id="escaped tags"),
        pytest.param(f"<ans\u200bwer>{RIGHT}</ans\u200bwer>", 0.0, id="zero-width blanks in the tags"),
        pytest.param(f"\\boxed{{{RIGHT}}}", 0.0, id="a box"),
        pytest.param(RIGHT, 0.0, id="no tags"),
        pytest.param("", 0.0, id="empty"),
    ],
)
def test_where_the_answer_stands(text, reward):
    assert score(text) == reward


@pytest.mark.parametrize(
    ("body", "reward"),
    [
        pytest.param(RIGHT, 1.0, id="right"),
        pytest.param(WRONG, 0.1, id="each number once, another value"),
        pytest.param("2 / (7 - 7)", 0.0, id="not each number once"),
        pytest.param("7 * 5 - 2 = 25", 0.1, id="the target claimed"),
        pytest.param("7 * 5 - 2 = 33", 0.0, id="another target"),
        pytest.param("+7 * 5 - 2", 0.0, id="a plus before a number"),
        pytest.param("7 ** 5 - 2", 0.0, id="a power"),
        pytest.param("1", 0.0, id="a constant"),
        pytest.param("I give up", 0.0, id="words"),
        pytest.param("", 0.0, id="empty"),
    ],
)
def test_format_reward(body, reward):
    assert score(f"<answer>{body}</answer>", format_reward=0.1) == reward


def test_format_reward_for_a_division_by_zero():
    assert score("<answer>5 / (2 - 2)</answer>", [2, 2, 5], 5, format_reward=0.1) == 0.1


@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan")])
def test_a_format_reward_out_of_range_is_refused(value):
    with pytest.raises(ValueError, match="format_reward"):
        get_reward("countdown", format_reward=value).prepare()


@pytest.mark.parametrize(
    ("numbers", "target", "problem"),
    [
        pytest.param([], 3, "must be a list", id="no numbers"),
        pytest.param("12", 3, "must be a list", id="text"),
        pytest.param([1, 2.0], 3, "whole numbers", id="a decimal"),
        pytest.param([1, True], 3, "whole numbers", id="a bool"),
        pytest.param([1, -2], 3, "none negative", id="negative"),
        pytest.param([1, "2"], 3, "whole numbers", id="text among them"),
        pytest.param([1, None], 3, "whole numbers", id="None among them"),
        pytest.param([1] * 300, 3, "too many", id="too many"),
        pytest.param([1, 2], 3.0, "target=3.0", id="a decimal target"),
        pytest.param([1, 2], "3", "target='3'", id="text as target"),
        pytest.param([1, 2], True, "target=True", id="a bool as target"),
    ],
)
def test_bad_columns_are_refused(numbers, target, problem):
    with pytest.raises(ValueError, match=rf"1 of 2 rows.*row 1: .*{problem}"):
        countdown.definition.check_columns(numbers=[[1, 2], numbers], target=[3, target], format_reward=0.0)
    with pytest.raises(ValueError, match=problem):
        countdown.definition.function(["1"], numbers=[numbers], target=[target])


def test_good_columns_are_not():
    countdown.definition.check_columns(numbers=[[1, 2], [3]], target=[3, -3], format_reward=0.0)


def test_only_the_first_bad_rows_are_named():
    with pytest.raises(ValueError, match=r"9 of 9 rows") as error:
        countdown.definition.check_columns(numbers=[[]] * 9, target=[1] * 9, format_reward=0.0)
    assert "row 4" in str(error.value)
    assert "row 5" not in str(error.value)


def test_a_gold_is_found_and_deserves_full_marks():
    dice = random.Random(0)
    found = 0
    for _ in range(200):
        numbers, target = [dice.randint(0, 20) for _ in range(dice.randint(1, 5))], dice.randint(-10, 60)
        gold = countdown.definition.gold(numbers=numbers, target=target, format_reward=0.0)
        found += gold is not None
        assert gold is None or score(gold, numbers, target) == 1.0
    assert found > 60


@pytest.mark.parametrize(
    ("numbers", "target"),
    [
        ([7], 7), ([3, 3, 8, 8], 24), ([1, 3, 4, 6], 24), ([1, 5, 5, 5], 24), ([5, 5, 3, 7], 0), ([0, 7], 0),
        ([2, 7], -5), ([25, 50, 75, 100, 3, 6], 952), ([1, 1, 1, 1, 1, 1], 9),
    ],
)  # fmt: skip
def test_hard_tasks_are_solved(numbers, target):
    assert score(f"<answer>{solve(numbers, target)}</answer>", numbers, target) == 1.0


@pytest.mark.parametrize(("numbers", "target"), [([7], 8), ([1, 1], 3), ([1, 1, 1, 1], 24), ([2] * 7, 14)])
def test_no_gold_where_there_is_none(numbers, target):
    assert solve(numbers, target) is None


def test_solving_agrees_with_trying_everything():
    """Every target that any expression reaches is found, and no other."""
    for numbers in [(1, 2, 3), (4, 4, 7), (0, 5, 9), (1, 5, 5, 5), (2, 3, 7, 11)]:
        reached = set(everything([Fraction(n) for n in numbers]))
        for target in range(-90, 90):
            assert (solve(list(numbers), target) is not None) == (target in reached)


def everything(terms):
    """All values that the terms reach, by joining any two of them."""
    if len(terms) == 1:
        yield terms[0]
    for i, j in permutations(range(len(terms)), 2):
        a, b = terms[i], terms[j]
        rest = [term for k, term in enumerate(terms) if k not in (i, j)]
        for value in [a + b, a - b, a * b, *([a / b] if b else [])]:
            yield from everything([*rest, value])
