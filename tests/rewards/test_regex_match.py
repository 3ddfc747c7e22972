"""The reward `regex_match`: the pattern matches all of the final answer, in bounded time."""

import importlib
import time

import pytest
from tables import table

from trl_grpo_plus.registry import get_reward
from trl_grpo_plus.rewards.regex_match import regex_match


MODULE = importlib.import_module("trl_grpo_plus.rewards.regex_match")


def score(text, pattern, **args):
    return get_reward("regex_match", **args)([text], pattern=[pattern])[0]


def test_the_whole_final_answer():
    cases = [(text, pattern, float(verdict == "+"), why) for verdict, pattern, why, text in table("regex_match")]
    assert [case for case in cases if score(*case[:2]) != case[2]] == []


@pytest.mark.parametrize("text", ["42", "I try 42. Wait", "\n42\n"])
def test_thinking_that_the_prompt_opened_and_that_was_cut_off(text):
    assert score(text, r"(?s).*42.*", think_opened=True) == 0.0
    assert score(f"a</think>{text}", r"(?s).*42.*", think_opened=True) == 1.0
    assert score(text, r"(?s).*42.*") == 1.0


SLOW = [
    (r"(?:x+x+)+y", "x" * 5000),
    (r"(?:x+x+)+y", "x" * 1_000_000),
    (r"(?s)(?:.*a){12}$", "a" * 30_000 + "b"),
    (r"(?:(?:[a-z]+)*)*\d", "a" * 100_000 + "!"),
    (r"(?p)(a|aa|aaa)+b", "a" * 20_000),
    (r"(x+x+)+y|z", "x" * 10_000),
    (r"(\w*\s*)*;", "word " * 100_000),
    (r"(?b)(?:(?:abcdef){e}){e}", "zzz" * 30_000),
    (r"(.*)(.*)(.*)(.*)(.*)(.*)\d", "a" * 3000 + "\n"),
]


@pytest.mark.parametrize(("pattern", "text"), SLOW)
def test_backtracking_ends_in_time(pattern, text):
    start = time.process_time()
    assert score(text, pattern) == 0.0
    assert time.process_time() - start < 1  # ten times the limit


def test_the_limit_is_what_ends_it():
    start = time.perf_counter()
    assert score("x" * 5000, r"(?:x+x+)+y", match_timeout=0.5) == 0.0
    assert time.perf_counter() - start > 0.3


def test_a_slow_row_costs_the_others_nothing():
    texts = ["x" * 5000, "42", "x" * 5000, "43"]
    assert regex_match(texts, pattern=[r"(?:x+x+)+y", r"\d+"] * 2) == [0.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize("value", [0, -1, 11, float("nan"), float("inf")])
def test_a_limit_out_of_range_is_refused(value):
    with pytest.raises(ValueError, match="match_timeout"):
        get_reward("regex_match", match_timeout=value).prepare()


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        pytest.param("", "not blank", id="empty"),
        pytest.param("  ", "not blank", id="blank"),
        pytest.param("(", "cannot be compiled", id="parenthesis not closed"),
        pytest.param("*", "cannot be compiled", id="nothing to repeat"),
        pytest.param("[z-a]", "cannot be compiled", id="a range the wrong way"),
        pytest.param(r"(?P<a>x)\g<b>", "cannot be compiled", id="a group that is not there"),
        pytest.param("(" * 5000 + ")" * 5000, "cannot be compiled", id="5,000 groups"),
        pytest.param(42, "must be a regular expression", id="a number"),
        pytest.param(["a"], "must be a regular expression", id="a list"),
        pytest.param(b"a", "must be a regular expression", id="bytes"),
    ],
)
def test_bad_patterns_are_refused(pattern, problem):
    with pytest.raises(ValueError, match=rf"1 of 2 rows.*row 1: .*{problem}"):
        regex_match.definition.check_columns(pattern=["a+", pattern], match_timeout=0.1)
    with pytest.raises(ValueError, match=problem):
        regex_match.definition.function(["a"], pattern=[pattern])


def test_good_patterns_are_not():
    regex_match.definition.check_columns(pattern=["a+", r"(?i)\p{L}++"], match_timeout=0.1)
