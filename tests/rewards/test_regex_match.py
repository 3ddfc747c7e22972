"""The reward `regex_match`: the pattern matches all of the final answer, in bounded time."""

import doctest
import importlib
import time

import pytest
from bombs import BOMBS, placed

from trl_grpo_plus.registry import get_reward
from trl_grpo_plus.rewards.regex_match import regex_match


MODULE = importlib.import_module("trl_grpo_plus.rewards.regex_match")


def score(text, pattern, **args):
    return get_reward("regex_match", **args)([text], pattern=[pattern])[0]


@pytest.mark.parametrize(
    ("text", "pattern", "reward"),
    [
        pytest.param("42", r"\d+", 1.0, id="all of it"),
        pytest.param(" 42\n", r"\d+", 1.0, id="white space around"),
        pytest.param("<think>Six by seven.</think>\n42", r"\d+", 1.0, id="after the thinking"),
        pytest.param("Six by seven.</think>42", r"\d+", 1.0, id="thinking opened by the prompt"),
        pytest.param("42", r"^\d+$", 1.0, id="with anchors"),
        pytest.param("42", r"\A\d+\Z", 1.0, id="with other anchors"),
        pytest.param("The answer is 42.", r"(?s).*\b42\b.*", 1.0, id="words let in by the pattern"),
        pytest.param("a\nb", r"(?s)a.b", 1.0, id="a stop for a line's end"),
        pytest.param("YES", r"(?i)yes|no", 1.0, id="case ignored by the pattern"),
        pytest.param("no", r"yes|no", 1.0, id="the second alternative"),
        pytest.param("nonsense", r"no|nonsense", 1.0, id="the longer alternative"),
        pytest.param("été", r"\w+", 1.0, id="letters with accents"),
        pytest.param("四十二", r"\p{Han}+", 1.0, id="a class of regex"),
        pytest.param("42!", r"\d+", 0.0, id="more after it"),
        pytest.param("is 42", r"\d+", 0.0, id="more before it"),
        pytest.param("42!", r"^\d+", 0.0, id="more after it, the start anchored"),
        pytest.param("42\n43", r"\d+$", 0.0, id="$ is not the end of a line"),
        pytest.param("42\nor 43", r"(?m)^\d+$", 0.0, id="$ of a line with (?m)"),
        pytest.param("42\n", r"\d+\n", 0.0, id="white space around is gone"),
        pytest.param("42", r"\d", 0.0, id="a part matches"),
        pytest.param("yes no", r"yes|no", 0.0, id="a list"),
        pytest.param("yes or no", r"yes|no", 0.0, id="a hedge"),
        pytest.param("not yes", r"yes|no", 0.0, id="a negation"),
        pytest.param("４２", r"[0-9]+", 0.0, id="full-width digits"),
        pytest.param("4\u200b2", r"\d+", 0.0, id="zero-width blank"),
        pytest.param("42\0", r"\d+", 0.0, id="NUL"),
        pytest.param("42\ud800", r"\d+", 0.0, id="lone surrogate"),
        pytest.param("<think>42</think>", r"\d+", 0.0, id="only in the thinking"),
        pytest.param("<think>42", r"(?s).*", 0.0, id="the thinking never ends"),
        pytest.param("42</think>", r"(?s).*", 0.0, id="nothing after the thinking"),
        pytest.param("42\nUser: And then?", r"\d+", 0.0, id="a next turn"),
        pytest.param("<answer>42</answer>", r"\d+", 0.0, id="tags are text"),
        pytest.param("<answer>42</answer>", r"<answer>\d+</answer>", 1.0, id="tags in the pattern"),
        pytest.param("", r"(?!.*never).*", 0.0, id="empty, a pattern that forbids a word"),
        pytest.param(" \n\t ", r"(?s)(?!.*never).*", 0.0, id="blank, a pattern that forbids a word"),
        pytest.param("\u200b", r"(?!.*never).*", 0.0, id="zero-width, a pattern that forbids a word"),
        pytest.param("\u2800 \ufeff\0", r"(?!.*never).*", 0.0, id="other characters that show nothing"),
        pytest.param("\u200b42", r"\W?\d+", 1.0, id="zero-width before something"),
        pytest.param("", r"\s*", 0.0, id="empty, a pattern for white space"),
        pytest.param("<think>a</think>  ", r"(a|b)*", 0.0, id="blank after the thinking"),
        pytest.param("now or never", r"(?!.*never).*", 0.0, id="the forbidden word"),
        pytest.param("now", r"(?!.*never).*", 1.0, id="not the forbidden word"),
    ],
)
def test_the_whole_final_answer(text, pattern, reward):
    assert score(text, pattern) == reward


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


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(name):
    pattern = MODULE._compiled(r"(?s)(?:(\w+)\s?)+:\d|(?:<[^>]*>\s*)*x{3}")
    for text in placed(BOMBS[name]):
        start = time.process_time()
        assert MODULE._score(text, pattern, 0.1) == 0.0
        assert time.process_time() - start < 2


def test_messages_and_rows():
    say = [{"role": "assistant", "content": "<think>6 * 7</think>42"}]
    assert regex_match([say, say, say, []], pattern=[r"\d+", r"\d", None, ".*"]) == [1.0, 0.0, None, 0.0]


def test_examples():
    for example in regex_match.definition.examples:
        columns = {name: [value] for name, value in example.columns.items()}
        assert get_reward("regex_match", **example.args)([example.completion], **columns) == [example.reward]


def test_docstring():
    result = doctest.testmod(MODULE)
    assert result.attempted > 0
    assert result.failed == 0
