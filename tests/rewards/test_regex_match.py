"""The reward `regex_match`: it pays if the pattern matches the whole final answer, and ends in bounded time."""

import time

import pytest
from case_tables import misjudged, table
from time_limit import ends

from trl_grpo_plus.registry import get_reward
from trl_grpo_plus.rewards.regex_match import regex_match


def score(text, pattern, **args):
    return get_reward("regex_match", **args)([text], pattern=[pattern])[0]


def test_the_whole_final_answer():
    regex_match.definition.check_columns(pattern=[pattern for *_, pattern in table("regex_match")], match_timeout=0.1)
    assert misjudged("regex_match", score) == []


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
    with ends():
        assert score(text, pattern) == 0.0


def test_the_limit_is_what_ends_it():
    start = time.process_time()
    assert score("a" * 2000, r"(a|aa|aaa)+b", match_timeout=0.5) == 0.0
    assert time.process_time() - start >= 0.5


def test_a_slow_row_costs_the_others_nothing():
    texts = ["x" * 5000, "42", "x" * 5000, "43"]
    assert regex_match(texts, pattern=[r"(?:x+x+)+y", r"\d+"] * 2) == [0.0, 1.0, 0.0, 1.0]
