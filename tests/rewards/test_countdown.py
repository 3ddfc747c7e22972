"""The reward `countdown`: expressions that reach the target, and texts that only seem to."""

import functools
import random
from fractions import Fraction
from itertools import permutations

import pytest
from case_tables import misjudged, table

from trl_grpo_plus.registry import get_reward
from trl_grpo_plus.rewards.countdown import countdown, solve


def score(text, numbers=(2, 5, 7), target=25, **args):
    return get_reward("countdown", **args)([text], numbers=[list(numbers)], target=[target])[0]


def score_of(body, numbers, target, **args):
    return score(f"<think>Let me see.</think>\n<answer>{body}</answer>", numbers, target, **args)


def test_what_reaches_the_target_and_what_only_seems_to():
    assert misjudged("countdown", score_of) == []
    numbers, targets = zip(*(case[3:] for case in table("countdown")), strict=True)
    countdown.definition.check_columns(numbers=numbers, target=targets, format_reward=0.0)


@pytest.mark.parametrize("body", ["(" * 480 + "7" + ")" * 480, "-" * 900 + "7", " " * 2000 + "7"])
def test_what_is_too_long_or_too_deep(body):
    assert score_of(body, [7], 7) == 0.0


def test_where_the_answer_stands():
    assert misjudged("countdown_places", score) == []


def test_format_reward():
    assert misjudged("countdown_format", functools.partial(score_of, format_reward=0.1)) == []


def test_a_gold_is_found_and_deserves_full_marks():
    dice = random.Random(0)
    golds = 0
    for _ in range(200):
        numbers, target = [dice.randint(0, 20) for _ in range(dice.randint(1, 5))], dice.randint(-10, 60)
        gold = countdown.definition.gold(numbers=numbers, target=target, format_reward=0.0)
        golds += gold is not None
        assert gold is None or score(gold, numbers, target) == 1.0
    assert golds > 60


@pytest.mark.parametrize(
    ("numbers", "target"),
    [
        ([7], 7), ([3, 3, 8, 8], 24), ([1, 3, 4, 6], 24), ([1, 5, 5, 5], 24), ([5, 5, 3, 7], 0), ([0, 7], 0),
        ([2, 7], -5), ([25, 50, 75, 100, 3, 6], 952), ([1, 1, 1, 1, 1, 1], 9),
    ],
)  # fmt: skip
def test_hard_tasks_are_solved(numbers, target):
    assert score_of(solve(numbers, target), numbers, target) == 1.0


@pytest.mark.parametrize(("numbers", "target"), [([7], 8), ([1, 1], 3), ([1, 1, 1, 1], 24), ([2] * 7, 14)])
def test_no_gold_where_there_is_none(numbers, target):
    assert solve(numbers, target) is None


def test_solving_agrees_with_trying_everything():
    """`solve` finds exactly the targets that any expression reaches."""
    for numbers in [(1, 2, 3), (4, 4, 7), (0, 5, 9), (1, 5, 5, 5), (2, 3, 7, 11)]:
        reached = set(everything([Fraction(n) for n in numbers]))
        for target in range(-90, 90):
            assert (solve(list(numbers), target) is not None) == (target in reached)


def everything(terms):
    """Yield all values that the terms reach, by joining two terms at a time."""
    if len(terms) == 1:
        yield terms[0]
    for i, j in permutations(range(len(terms)), 2):
        a, b = terms[i], terms[j]
        rest = [term for k, term in enumerate(terms) if k not in (i, j)]
        for value in [a + b, a - b, a * b, *([a / b] if b else [])]:
            yield from everything([*rest, value])
