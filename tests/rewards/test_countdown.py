"""The reward `countdown`: what reaches the target, and the many texts that only seem to."""

import doctest
import importlib
import random
import time
from fractions import Fraction
from itertools import permutations

import pytest
from bombs import BOMBS, placed

from trl_grpo_plus.registry import get_reward
from trl_grpo_plus.rewards.countdown import countdown, solve


MODULE = importlib.import_module("trl_grpo_plus.rewards.countdown")


def score(text, numbers=(2, 5, 7), target=25, **args):
    return get_reward("countdown", **args)([text], numbers=[list(numbers)], target=[target])[0]


@pytest.mark.parametrize(
    ("body", "numbers", "target"),
    [
        pytest.param("(7 - 2) * 5", [2, 5, 7], 25, id="plain"),
        pytest.param("(7-2)*5", [2, 5, 7], 25, id="no blanks"),
        pytest.param("\n (7 - 2)\t* 5 \n", [2, 5, 7], 25, id="white space around, a tab within"),
        pytest.param("5 * (7 - 2)", [7, 5, 2], 25, id="another order"),
        pytest.param("((((7)) - 2)) * (5)", [2, 5, 7], 25, id="needless parentheses"),
        pytest.param("(7 - 2) × 5", [2, 5, 7], 25, id="multiplication sign"),
        pytest.param("(7 − 2) * 5", [2, 5, 7], 25, id="minus sign"),
        pytest.param("10 ÷ 4 * 2", [10, 4, 2], 5, id="division sign"),
        pytest.param("(7 – 2) * 5", [2, 5, 7], 25, id="en dash"),
        pytest.param("(7 - 2) · 5", [2, 5, 7], 25, id="middle dot"),
        pytest.param("(7 - 2) ⋅ 5", [2, 5, 7], 25, id="dot operator"),
        pytest.param("(7 - 2) ∗ 5", [2, 5, 7], 25, id="asterisk operator"),
        pytest.param("(7 - 2) * 5\n= 25", [2, 5, 7], 25, id="the target on the next line"),
        pytest.param("(7 - 2) * 5 = 25", [2, 5, 7], 25, id="the target after an equals sign"),
        pytest.param("(7-2)*5=25", [2, 5, 7], 25, id="the same without blanks"),
        pytest.param("2 - 7 = −5", [2, 7], -5, id="a negative target after an equals sign"),
        pytest.param("7", [7], 7, id="one number"),
        pytest.param("7 = 7", [7], 7, id="one number and the target"),
        pytest.param("8 / (3 - 8 / 3)", [3, 3, 8, 8], 24, id="through fractions"),
        pytest.param("1 / 3 + 2 / 3 * 1", [1, 3, 2, 3, 1], 1, id="thirds, exactly"),
        pytest.param("3 + 3", [3, 3], 6, id="a number given twice, used twice"),
        pytest.param("-(2 - 7) * 5", [2, 5, 7], 25, id="a minus before a parenthesis"),
        pytest.param("-2 + 7", [2, 7], 5, id="a minus before a number"),
        pytest.param("7 - -2", [2, 7], 9, id="less minus"),
        pytest.param("0 * 9 + 4", [0, 9, 4], 4, id="zero"),
        pytest.param("100000000000000000000 - 1", [1, 10**20], 10**20 - 1, id="beyond a double's precision"),
    ],
)
def test_what_reaches_the_target(body, numbers, target):
    assert score(f"<think>Let me see.</think>\n<answer>{body}</answer>", numbers, target) == 1.0


@pytest.mark.parametrize(
    ("body", "numbers", "target"),
    [
        pytest.param("", [2, 5, 7], 25, id="empty"),
        pytest.param("  \n ", [2, 5, 7], 25, id="blank"),
        pytest.param("7 * 5 - 2", [2, 5, 7], 25, id="another value"),
        pytest.param("25", [2, 5, 7], 25, id="the target itself"),
        pytest.param("5 * 5", [2, 5, 7], 25, id="a number twice, others not"),
        pytest.param("(7 - 2) * 5 + 2 - 2", [2, 5, 7], 25, id="a number too often"),
        pytest.param("(7 - 2) * 5 * 1", [2, 5, 7], 25, id="a number that is not given"),
        pytest.param("7 + 18", [2, 5, 7], 25, id="too few numbers"),
        pytest.param("27 - 5 + 3", [2, 7, 5, 3], 25, id="numbers joined to one"),
        pytest.param("3 + 3", [3], 6, id="a number given once, used twice"),
        pytest.param("(7 - 2) * 5 = 26", [2, 5, 7], 25, id="another target named"),
        pytest.param("7 * 5 - 2 = 25", [2, 5, 7], 25, id="the target claimed"),
        pytest.param("(7 - 2) * 5 = 25 = 25", [2, 5, 7], 25, id="two equals signs"),
        pytest.param("(7 - 2) * 5 == 25", [2, 5, 7], 25, id="a comparison"),
        pytest.param("(7 - 2) * 5 = 5 * 5", [2, 5, 7], 25, id="an equation"),
        pytest.param("(7 - 2) * 5 = 25.0", [2, 5, 7], 25, id="the target as a decimal"),
        pytest.param("(7 - 2) * 5 =", [2, 5, 7], 25, id="nothing after the equals sign"),
        pytest.param("25 = (7 - 2) * 5", [2, 5, 7], 25, id="the target first"),
        pytest.param("x = (7 - 2) * 5", [2, 5, 7], 25, id="assignment"),
        pytest.param("(x := 7 - 2) * 5", [2, 5, 7], 25, id="walrus"),
        pytest.param("5 ** 2 + 7 - 7", [5, 2, 7, 7], 25, id="power"),
        pytest.param("5 ^ 2 + 7 - 7", [5, 2, 7, 7], 25, id="caret"),
        pytest.param("5 * * 2", [5, 2], 10, id="power with a blank"),
        pytest.param("51 // 2", [51, 2], 25, id="floor division"),
        pytest.param("51 / / 2", [51, 2], 25, id="floor division with a blank"),
        pytest.param("5 % 3", [5, 3], 2, id="remainder"),
        pytest.param("5 << 2", [5, 2], 20, id="shift"),
        pytest.param("5 | 2", [5, 2], 7, id="bit or"),
        pytest.param("~5 + 7", [5, 7], 1, id="complement"),
        pytest.param("+7 - 2", [2, 7], 5, id="a plus before a number"),
        pytest.param("--7 - 2", [2, 7], 5, id="two minus before a number"),
        pytest.param("7 - 2.0", [2, 7], 5, id="decimal"),
        pytest.param("7 - 2.", [2, 7], 5, id="decimal point alone"),
        pytest.param("7 - 2e0", [2, 7], 5, id="exponent"),
        pytest.param("7 - 2j", [2, 7], 5, id="imaginary"),
        pytest.param("1_0 - 2", [10, 2], 8, id="underscore"),
        pytest.param("0x7 - 2", [2, 7], 5, id="hexadecimal"),
        pytest.param("0b111 - 2", [2, 7], 5, id="binary"),
        pytest.param("0o7 - 2", [2, 7], 5, id="octal"),
        pytest.param("07 - 2", [2, 7], 5, id="a leading zero"),
        pytest.param("7 - 2 # + 20", [2, 7], 5, id="comment"),
        pytest.param("７ - ２", [2, 7], 5, id="full-width digits"),
        pytest.param("٧ - ٢", [2, 7], 5, id="Arabic digits"),
        pytest.param("5²", [5], 25, id="superscript"),
        pytest.param("（7 - 2） * 5", [2, 5, 7], 25, id="full-width parentheses"),
        pytest.param("7 -\u200b 2", [2, 7], 5, id="zero-width blank"),
        pytest.param("7 -\u00a0 2", [2, 7], 5, id="no-break blank"),
        pytest.param("7 -\0 2", [2, 7], 5, id="NUL"),
        pytest.param("7 - \ud800 2", [2, 7], 5, id="lone surrogate"),
        pytest.param("7\n- 2", [2, 7], 5, id="two lines"),
        pytest.param("7 - 2\n= 6", [2, 7], 5, id="another target on the next line"),
        pytest.param("7 ·· 2", [2, 7], 49, id="a power in dots"),
        pytest.param("(7\n- 2)", [2, 7], 5, id="two lines in parentheses"),
        pytest.param("7 - 2\n7 + 2", [2, 7], 5, id="two expressions"),
        pytest.param("7 - 2; 7 + 2", [2, 7], 5, id="two statements"),
        pytest.param("7 - 2, 7 + 2", [2, 7], 5, id="a tuple"),
        pytest.param("7 - 2 or 7 + 2", [2, 7], 5, id="hedge"),
        pytest.param("7 2", [7, 2], 72, id="digits side by side"),
        pytest.param("(7)(2)", [7, 2], 14, id="a product without a sign"),
        pytest.param("7 x 2", [7, 2], 14, id="the letter x"),
        pytest.param(r"7 \times 2", [7, 2], 14, id="LaTeX"),
        pytest.param(r"\frac{14}{2}", [14, 2], 7, id="a LaTeX fraction"),
        pytest.param("$7 - 2$", [2, 7], 5, id="dollars"),
        pytest.param("`7 - 2`", [2, 7], 5, id="backticks"),
        pytest.param("The answer is 7 - 2", [2, 7], 5, id="words"),
        pytest.param("7 - 2 (not 7 + 2)", [2, 7], 5, id="words after it"),
        pytest.param("True + 2", [1, 2], 3, id="True"),
        pytest.param("abs(7 - 2)", [2, 7], 5, id="a call"),
        pytest.param("__import__('os').system('true') + 7 - 2", [2, 7], 5, id="code"),
        pytest.param("[7 - 2][0]", [7, 2, 0], 5, id="index"),
        pytest.param("(7 - 2", [2, 7], 5, id="parenthesis not closed"),
        pytest.param("7 - 2)", [2, 7], 5, id="parenthesis not opened"),
        pytest.param("7 -", [7], 7, id="cut off"),
        pytest.param("()", [7], 7, id="empty parentheses"),
        pytest.param("7 / (2 - 2)", [7, 2, 2], 7, id="division by zero"),
        pytest.param("0 / 0", [0, 0], 0, id="zero by zero"),
        pytest.param("1 / 3 * 3 + 1 / 1000000000000000000", [1, 3, 3, 1, 10**18], 1, id="nearly the target"),
        pytest.param("(" * 480 + "7" + ")" * 480, [7], 7, id="480 parentheses"),
        pytest.param("-" * 900 + "7", [7], 7, id="900 minus"),
        pytest.param(" " * 2000 + "7", [7], 7, id="too long"),
    ],
)
def test_what_only_seems_to_reach_it(body, numbers, target):
    assert score(f"<think>Let me see.</think>\n<answer>{body}</answer>", numbers, target) == 0.0


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


@pytest.mark.parametrize("text", [f"I try <answer>{RIGHT}</answer>. Wait", f"<answer>{RIGHT}</answer>", RIGHT])
def test_thinking_that_the_prompt_opened_and_that_was_cut_off(text):
    assert score(text, think_opened=True) == 0.0
    assert score(text, think_opened=True, format_reward=0.1) == 0.0
    assert score(f"a</think>{text}", think_opened=True) == score(text)
    gold = countdown.definition.gold(numbers=[2, 5, 7], target=25, think_opened=True, format_reward=0.0)
    assert score(gold, think_opened=True) == 1.0


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
    assert "row 2" in str(error.value)
    assert "row 3" not in str(error.value)


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(name):
    for text in placed(BOMBS[name]):
        start = time.process_time()
        assert MODULE._score(text, [2, 5, 7], 25) == 0.0
        assert time.process_time() - start < 2


def test_messages_and_rows():
    say = [{"role": "assistant", "content": f"<answer>{RIGHT}</answer>"}]
    rewards = countdown([say, say, say, []], numbers=[[2, 5, 7], [2, 5], None, [2]], target=[25, 25, 25, 2])
    assert rewards == [1.0, 0.0, None, 0.0]


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


def test_examples():
    for example in countdown.definition.examples:
        columns = {name: [value] for name, value in example.columns.items()}
        assert get_reward("countdown", **example.args)([example.completion], **columns) == [example.reward]


def test_docstring():
    result = doctest.testmod(MODULE)
    assert result.attempted > 0
    assert result.failed == 0
