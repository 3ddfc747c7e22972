"""The reward `choice_answer`: it pays only if the answer names the right choice and no other."""

import importlib

import pytest
from case_tables import misjudged, table, texts
from slow_cases import one_in
from time_limit import ends

from trl_grpo_plus.rewards.choice_answer import choice_answer


MODULE = importlib.import_module("trl_grpo_plus.rewards.choice_answer")
CITIES = ["Rome", "Paris", "Berlin", "New York"]
NAMED, NAMED_WITH_TEXT, NOT_NAMED = (texts("choice", kind) for kind in ("named", "named with text", "not named"))
with_and_without = pytest.mark.parametrize("choices", [CITIES, None], ids=["choices", "no choices"])


def score(text, answer="B", choices=CITIES):
    return choice_answer([text], answer=[answer], choices=[choices])[0]


def placed(stated):
    return stated, f"<answer>{stated}</answer>", f"So \\boxed{{{stated}}}.", f"Hm.\n\nAnswer: {stated}"


@with_and_without
def test_the_letter_in_all_its_forms(choices):
    for text in (text for letter in texts("choice", "letter") for text in placed(letter)):
        assert (text, score(text, "B", choices), score(text, "C", choices)) == (text, 1.0, 0.0)
        assert (text, score(f"<think>C? No.</think>\n{text}", "B", choices)) == (text, 1.0)


def test_the_text_counts_where_choices_are_given():
    for text in (text for stated in texts("choice", "text") for text in placed(stated)):
        assert (text, score(text), score(text, "C"), score(text, "B", None)) == (text, 1.0, 0.0, 0.0)


@with_and_without
def test_common_forms(choices):
    for text in texts("choice", "common"):
        assert (text, score(text, "B", choices), score(text, "C", choices)) == (text, 1.0, 0.0)
        others = [text.replace("B", other) for other in ("C", "B or C", "E")]
        assert (others, [score(other, "B", choices) for other in others]) == (others, [0.0] * 3)


def test_common_forms_with_the_choice_s_text():
    for text in texts("choice", "common with text"):
        assert (text, score(text), score(text, "C")) == (text, 1.0, 0.0)
        others = [text.replace("Paris", other) for other in ("Rome", "Paris or Rome", "not Paris")]
        others.append(text.replace("B", "A"))
        assert (others, [score(other) for other in others]) == (others, [0.0] * 4)
        assert (text, score(text, "B", None)) == (text, 0.0)  # without the choices "Paris" has no meaning


@with_and_without
def test_what_names_one_choice(choices):
    for text in NAMED if choices is None else NAMED + NAMED_WITH_TEXT:
        assert (text, [score(text, letter, choices) for letter in "ABCD"]) == (text, [0.0, 1.0, 0.0, 0.0])
        assert score(f"<think>\\boxed{{C}}</think>\n{text}\n", "B", choices) == 1.0


def test_what_the_words_mean_is_unknown_without_the_choices():
    for text in NAMED_WITH_TEXT:
        assert (text, [score(text, letter, None) for letter in "ABCD"]) == (text, [0.0] * 4)


@with_and_without
def test_what_names_none_or_several(choices):
    for text in NOT_NAMED:
        assert (text, [score(text, letter, choices) for letter in "ABCD"]) == (text, [0.0] * 4)


def test_no_choice_is_named():
    assert [case for case in table("choice_none") for letter in "ABCD" if _earns(case[1], letter)] == []


def _earns(stated, answer):
    scores = [score(f"<think>Hm.</think><answer>{stated}</answer>", answer)]
    scores += [score(f"<answer>{stated}</answer>", answer, None)]
    if "boxed" not in stated:
        forms = (f"<think>Hm.</think>\nAnswer: {stated}", f"It is \\boxed{{{stated}}}", stated)
        scores += [score(form, answer) for form in forms]
    return any(scores)


def test_where_the_answer_stands():
    assert misjudged("choice_places", score) == []
    assert score("Answer: B" + " " * 20_000) == 1.0
    assert score("Answer: B" + " " * 20_000 + "or C") == 0.0


def test_unusual_choices():
    for why, stated, right, choices in table("choice_unusual"):
        choice_answer.definition.check_columns(answer=[right], choices=[choices])
        named = [letter for letter in "ABCD"[: len(choices)] if score(f"<answer>{stated}</answer>", letter, choices)]
        assert (why, named) == (why, [right])


def test_a_small_letter_names_nothing_where_a_choice_s_text_may_be_meant():
    assert [score("<answer>b</answer>", letter, ["x", "$y$", "x + y"]) for letter in "ABC"] == [0.0] * 3
    assert score("<answer>b</answer>", "B", ["2x", "$2y$", "x + y"]) == 1.0


@pytest.mark.parametrize("answer", ["B", 1, "Paris"])
def test_ways_to_give_the_gold(answer):
    choice_answer.definition.check_columns(answer=[answer], choices=[CITIES])
    assert [score(f"<answer>{letter}</answer>", answer) for letter in "ABCD"] == [0.0, 1.0, 0.0, 0.0]
    gold = choice_answer.definition.gold(answer=answer, choices=CITIES)
    assert score(gold, answer) == 1.0


def test_gold_without_choices():
    choice_answer.definition.check_columns(answer=["Z", 25])
    assert choice_answer(["Z", "(Z)", "Y"], answer=["Z", 25, 25]) == [1.0, 1.0, 0.0]
    assert choice_answer(["Z", "B"], answer=["Z", "Paris"], choices=[None, CITIES]) == [1.0, 1.0]


def test_other_texts_may_come_twice():
    choice_answer.definition.check_columns(answer=["A"], choices=[["Paris", "Rome", "Rome"]])
    assert score("Rome", "A", ["Paris", "Rome", "Rome"]) == 0.0
    assert score("Paris", "A", ["Paris", "Rome", "Rome"]) == 1.0


LONG = {
    "clauses": "Since it lies there, " * 50_000 + "the answer is",
    "one clause": "Since " + "x" * 1_000_000 + ", the answer is B or C.",
    "answers in sentences": "The answer is B. " * 60_000,
    "it is": "It is B. " * 100_000,
    "words that may be letters": "B because " + "option a " * 40_000,
    "a reason of letters": "B\nExplanation: " + "a " * 100_000 + "c",
    "a letter and blanks": "B\nExplanation: c a" + " " * 1_000_000 + "x",
    "tags joined": "<answer>B</answer> or " * 40_000 + "<answer>C</answer>",
    "tags apart": "<answer>B</answer>" * 40_000 + "<answer>C</answer>",
    "boxes joined": "\\boxed{C} or " * 60_000 + "\\boxed{B}",
    "boxes in boxes that are all there is": "\\boxed{" * 60_000 + "C" + "}" * 60_000,
    "a letter under many answers": "The answer is C. " * 60_000 + "\n\n**B**",
    "Chinese": "综上所述，" * 100_000 + "选：C",
}


@with_and_without
@pytest.mark.parametrize("name", one_in(3, LONG))
def test_long_texts(name, choices):
    with ends():
        assert MODULE._score(LONG[name], 1, choices) == 0.0
