"""The reward `instruction_checks`: each kind of constraint kept and broken, bad constraints, hostile texts."""

import json

import pytest
from case_tables import table
from datasets import Dataset
from slow_cases import one_in
from time_limit import ends

from trl_grpo_plus.registry import get_reward
from trl_grpo_plus.rewards.instruction_checks import KINDS, instruction_checks


POEM = "Roses are red.\nViolets are blue.\n\nSugar is sweet!"

CASES = [
    (text, constraint, verdict == "+") for verdict, constraint, *texts in table("instruction_checks") for text in texts
]


def score(text, *constraints, **args):
    return get_reward("instruction_checks", **args)([text], constraints=[list(constraints)])[0]


def test_a_constraint_holds_or_does_not():
    assert [case for case in CASES if score(*case[:2]) != float(case[2])] == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_case_that_holds_and_one_that_does_not(kind):
    assert {holds for _, constraint, holds in CASES if constraint["kind"] == kind} == {True, False}


EASY = [
    {"kind": "no_commas"},
    {"kind": "forbidden_words", "words": ["tea"]},
    {"kind": "words", "max": 5},
    {"kind": "sentences", "max": 5},
    {"kind": "bullets", "exactly": 0},
    {"kind": "letter", "letter": "a", "max": 3},
    {"kind": "case", "case": "lower"},
    {"kind": "case", "case": "title"},
    {"kind": "keyword", "keyword": "tea", "max": 1},
    {"kind": "json"},
    {"kind": "quoted"},
]
BLANK = [
    "", " \n\t", "\u200b\u2060\ufeff", "...", "!!! ???", "\x00\x00", "\ud800", "🙂🙂", "```\n```", '""', "{}", "[]",
    "\u0301\u0302", "<think>the words are in here</think>", "<think>words and no end", "words</think>", "</think>\n",
]  # fmt: skip


@pytest.mark.parametrize("text", BLANK, ids=ascii)
@pytest.mark.parametrize("credit", ["all", "fraction"])
def test_an_empty_answer_keeps_no_constraint(text, credit):
    assert score(text, *EASY, credit=credit) == 0.0


def test_what_is_judged_comes_after_the_thinking():
    rule = {"kind": "words", "exactly": 1}
    assert score("<think>one two three, four</think>\nfive", rule, {"kind": "no_commas"}) == 1.0
    assert score("<think>five</think>\none two", rule) == 0.0


def test_credit_is_for_all_or_for_each():
    rules = [{"kind": "words", "max": 2}, {"kind": "no_commas"}, {"kind": "case", "case": "upper"}, {"kind": "quoted"}]
    assert score("ONE TWO", *rules) == 0.0
    assert score("ONE TWO", *rules, credit="fraction") == 0.75
    assert score("ONE TWO", *rules[:3]) == score("ONE TWO", *rules[:3], credit="fraction") == 1.0


def test_rows_as_a_dataset_gives_them():
    """Arrow adds the keys of the other dicts to each dict. Mixed types are given as JSON. A row may have `None`."""
    rules = [{"kind": "words", "exactly": 2}, {"kind": "forbidden_words", "words": ["tea"]}]
    filled = Dataset.from_dict({"constraints": [rules]})["constraints"][0]
    assert None in filled[0].values()
    ways = [filled, json.dumps(rules), [json.dumps(rule) for rule in rules], rules, None]
    assert get_reward("instruction_checks")(["no milk"] * 5, constraints=ways) == [1.0, 1.0, 1.0, 1.0, None]
    assert get_reward("instruction_checks")(["no tea"] * 5, constraints=ways) == [0.0, 0.0, 0.0, 0.0, None]


def test_good_constraints_pass_the_check():
    check = instruction_checks.definition.check_columns
    assert check(constraints=[[constraint] for _, constraint, _ in CASES], credit="all") is None


# One constraint of each kind, for texts on which careless regular expressions hang.
ONE_OF_EACH = list({constraint["kind"]: constraint for _, constraint, _ in CASES}.values())
HOSTILE = {
    "1 MB of a letter": "a" * 1_000_000,
    "many words": "tea " * 100_000,
    "300,000 newlines": "x" + "\n" * 300_000 + "y",
    "blanks within": "x" + " " * 400_000 + "y",
    "blank lines": "x" + " \n" * 100_000 + "y",
    "open brackets": "[" * 100_000 + "x",
    "an open bracket and no end": "[" + "a" * 400_000,
    "brackets": "[a" * 100_000,
    "stars": "*" * 400_000 + "x",
    "stars and letters": "*a" * 200_000,
    "stars and blanks": "*a " * 100_000,
    "angles": "<" * 400_000 + "x",
    "dots": "." * 400_000 + "x",
    "dots and blanks": ". " * 200_000 + "x",
    "quotes": '"' * 400_000 + "x",
    "an end and quotes": "a." + '"' * 400_000 + "x",
    "apostrophes": "a'" * 200_000,
    "digits": "1" * 400_000,
    "digits and dots": "1." * 200_000,
    "nested JSON": "[" * 100_000 + "1" + "]" * 100_000,
    "nested objects": '{"a":' * 100_000,
    "fences": "```json\n" * 100_000 + "x",
    "a run of marks": "a" + "\u0301\u0323" * 100_000,
    "marks in ligatures": "a" + "\u0344" * 100_000,
    "what normalising lengthens": "\ufdfa" * 100_000,
    "invisible": "a" + "\u200b" * 400_000 + "b",
    "NUL": "a\x00" * 100_000,
    "lone surrogates": "a\ud800\udfff" * 200_000,
    "Chinese": "我喜欢茶。" * 100_000,
    "think tags": "<think>" * 100_000 + "x",
    "think ends": "</think>" * 100_000 + "x",
    "numbered": "".join(f"{n}. a\n" for n in range(1, 100_000)),
    "phrases": "any " * 100_000 + "questions",
}


@pytest.mark.parametrize("text", one_in(3, HOSTILE.values()), ids=HOSTILE)
def test_a_hostile_text_is_answered_in_time(text):
    with ends(30):  # all kinds together take 2 s on the slowest text
        assert 0.0 <= score(text, *ONE_OF_EACH, credit="fraction") <= 1.0
