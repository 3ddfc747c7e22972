"""The reward `choice_answer`: the right choice, named alone."""

import importlib
import time

import pytest
from tables import table, texts

from trl_grpo_plus.registry import get_reward
from trl_grpo_plus.rewards.choice_answer import choice_answer


MODULE = importlib.import_module("trl_grpo_plus.rewards.choice_answer")
CITIES = ["Rome", "Paris", "Berlin", "New York"]
SAID, SAID_WITH_TEXT, NOT_SAID = (texts("choice", kind) for kind in ("said", "said with text", "not said"))


def score(text, answer="B", choices=CITIES):
    return choice_answer([text], answer=[answer], choices=[choices])[0]


@pytest.mark.parametrize(
    "stated",
    [
        "B", " B\n", "(B)", "B)", "B.", "(B).", "B).", "Option B", "option (B)", "Choice B", "**B**", "*B*",
        "**(B)**", "$B$", r"\text{B}", r"\textbf{B}",
        r"\mathrm{B}", r"\textbf{(B)}", r"$\text{B}$", r"\boxed{B}", r"$\boxed{\text{B}}$",
    ],
)  # fmt: skip
@pytest.mark.parametrize("choices", [CITIES, None])
def test_the_letter_in_all_its_dress(stated, choices):
    for text in (stated, f"<answer>{stated}</answer>", f"So \\boxed{{{stated}}}.", f"Hm.\n\nAnswer: {stated}"):
        assert score(text, choices=choices) == 1.0
        assert score(text, "C", choices) == 0.0
        assert score(f"<think>C? No.</think>\n{text}", choices=choices) == 1.0


@pytest.mark.parametrize(
    "stated",
    [
        "B) Paris", "(B) Paris", "B. Paris", "B: Paris", "B)Paris", "B) paris", "B) Paris.", "B)  Paris",
        r"B) \text{Paris}", r"\text{B) Paris}", "**B) Paris**", "Paris",
        "paris", "PARIS", "Paris.", "**Paris**", r"\text{Paris}",
    ],
)  # fmt: skip
def test_the_text_counts_where_choices_are_given(stated):
    for text in (stated, f"<answer>{stated}</answer>", f"So \\boxed{{{stated}}}.", f"Hm.\n\nAnswer: {stated}"):
        assert score(text) == 1.0
        assert score(text, "C") == 0.0
        assert score(text, "B", None) == 0.0


COMMON = [
    pytest.param("The correct answer is **B**.", id="a stop after a bold letter"),
    pytest.param("Answer: **B**.", id="a stop after a bold letter, Answer:"),
    pytest.param("**Answer: B**.", id="a stop after a bold line"),
    pytest.param("**Answer: B.**", id="a stop in a bold line"),
    pytest.param("**Answer**: B", id="a bold word"),
    pytest.param("**Final Answer:** **B**", id="a bold head and a bold letter"),
    pytest.param("The answer is $B$.", id="a stop after dollars"),
    pytest.param(r"The answer is \(B\).", id="LaTeX in a line"),
    pytest.param("<answer>**B**.</answer>", id="a stop after a bold letter, in tags"),
    pytest.param("**B**.", id="a stop after a bold letter, alone"),
    pytest.param("### Answer: B", id="a heading"),
    pytest.param("## Final Answer: **B**", id="a heading, bold"),
    pytest.param("### **Answer: B**", id="a bold heading"),
    pytest.param("**Final Answer**\n\nB", id="a bold line of its own before it"),
    pytest.param("### Final Answer\nB", id="a heading of its own before it"),
    pytest.param("So the correct answer is:\n\n**B**", id="the answer on the next line"),
    pytest.param("The answer is:\n\n$\\boxed{B}$", id="a box on the next line"),
    pytest.param("Rome? No.\n\n**B**", id="a bold letter as a paragraph"),
    pytest.param("Rome? No.\n\n**B**.", id="a bold letter and a stop as a paragraph"),
    pytest.param("<answer>The answer is B</answer>", id="a line in tags"),
    pytest.param("<answer>Answer: **B**</answer>", id="a bold letter in a line in tags"),
    pytest.param(r"\boxed{B} and again \boxed{B}", id="a box twice"),
    pytest.param(r"\boxed{B}, \boxed{B}", id="a box twice, joined"),
]
COMMON_TEXTS = [
    pytest.param("The correct answer is **B) Paris**.", id="a stop after a bold text"),
    pytest.param("The answer is: **(B) Paris**", id="a bold text"),
    pytest.param("The answer is B (Paris).", id="a text in parentheses"),
    pytest.param("The answer is:\n\n**B) Paris**", id="a text on the next line"),
    pytest.param(r"So \boxed{\textbf{(B)}\ \text{Paris}}.", id="as in the AMC"),
    pytest.param(r"$\boxed{\textbf{(B) }\text{Paris}}$", id="as in the AMC, with a blank"),
    pytest.param(r"\boxed{\text{B) Paris}}", id="a text in a box"),
    pytest.param("<answer>Option B: Paris</answer>", id="an option and its text"),
    pytest.param("**B.** Paris", id="a bold letter and its text"),
    pytest.param("Answer: **B**: Paris", id="a bold letter, a colon and its text"),
]


@pytest.mark.parametrize("choices", [CITIES, None])
@pytest.mark.parametrize("text", COMMON)
def test_common_forms(text, choices):
    assert score(text, "B", choices) == 1.0
    assert score(text, "C", choices) == 0.0
    assert score(text.replace("B", "C"), "B", choices) == 0.0
    assert score(text.replace("B", "B or C"), "B", choices) == score(text.replace("B", "E"), "B", choices) == 0.0


@pytest.mark.parametrize("text", COMMON_TEXTS)
def test_common_forms_with_the_choice_s_text(text):
    assert score(text) == 1.0
    assert score(text, "C") == 0.0
    for another in ("Rome", "Paris or Rome", "not Paris"):
        assert score(text.replace("Paris", another)) == 0.0
    assert score(text.replace("B", "A")) == 0.0
    assert score(text, "B", None) == 0.0  # what the words mean cannot be known


@pytest.mark.parametrize("choices", [CITIES, None])
def test_what_models_say(choices):
    for text in SAID if choices is None else SAID + SAID_WITH_TEXT:
        assert (text, [score(text, letter, choices) for letter in "ABCD"]) == (text, [0.0, 1.0, 0.0, 0.0])
        assert score(f"<think>\\boxed{{C}}</think>\n{text}\n", "B", choices) == 1.0


def test_what_the_words_mean_is_unknown_without_the_choices():
    for text in SAID_WITH_TEXT:
        assert (text, [score(text, letter, None) for letter in "ABCD"]) == (text, [0.0] * 4)


@pytest.mark.parametrize("choices", [CITIES, None])
def test_what_takes_none_or_several(choices):
    for text in NOT_SAID:
        assert (text, [score(text, letter, choices) for letter in "ABCD"]) == (text, [0.0] * 4)


@pytest.mark.parametrize("answer", "ABCD")
@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{C} or \boxed{B}", r"$\boxed{C}$ or $\boxed{B}$.", r"\boxed{C} and \boxed{B}", r"\boxed{C}, \boxed{B}",
        r"\boxed{A}, \boxed{B}, or \boxed{B}", r"\boxed{C} / \boxed{B}", r"\boxed{C}\text{ or }\boxed{B}",
        r"\boxed{C}, or maybe \boxed{B}",
        "**B** or **C**", "The answer is **B** or **C**.", "Answer: **B**, **C**", "The answer is:\n\n**B** or **C**",
        "The answer is:\nB\nC", "The wrong answer is:\nB", "Is B right?\nB", "I see.\nB", "A\n\nB",
        "**Answer: B** or C", "<answer>The answer is not B</answer>", "<answer>Answer: A\nAnswer: B</answer>",
        "The answer is B (not Paris).", "The answer is B (Rome).",
    ],
)  # fmt: skip
def test_hedges_in_common_forms(text, answer):
    assert score(text, answer) == 0.0


@pytest.mark.parametrize("text", ["First I try \\boxed{B}. Wait", "Answer: B", "<answer>B</answer>", "B"])
def test_thinking_that_the_prompt_opened_and_that_was_cut_off(text):
    columns = {"answer": ["B"], "choices": [CITIES]}
    assert get_reward("choice_answer", think_opened=True)([text], **columns) == [0.0]
    assert get_reward("choice_answer", think_opened=True)([f"C?</think>{text}"], **columns) == choice_answer(
        [text], **columns
    )
    gold = choice_answer.definition.gold(answer="B", choices=CITIES, think_opened=True)
    assert get_reward("choice_answer", think_opened=True)([gold], **columns) == [1.0]


def test_no_choice_is_named():
    cases = [*table("choice_none")]
    assert [(why, stated) for why, stated in cases for answer in "ABCD" if _earns(stated, answer)] == []


def _earns(stated, answer):
    scores = [score(f"<think>Hm.</think><answer>{stated}</answer>", answer)]
    scores += [score(f"<answer>{stated}</answer>", answer, None)]
    if "boxed" not in stated:
        forms = (f"<think>Hm.</think>\nAnswer: {stated}", f"It is \\boxed{{{stated}}}", stated)
        scores += [score(form, answer) for form in forms]
    return any(scores)


def test_where_the_answer_stands():
    cases = [(text, float(verdict == "+"), why) for verdict, why, text in table("choice_places")]
    cases.append(("Answer: B" + " " * 20_000 + "or C", 0.0, "a hedge far to the right"))
    cases.append(("Answer: B" + " " * 20_000, 1.0, "blanks to the right"))
    assert [(why, text) for text, reward, why in cases if score(text) != reward] == []


@pytest.mark.parametrize(
    ("choices", "stated", "right"),
    [
        pytest.param(["+", "-", "*", "/"], "*", "C", id="a star"),
        pytest.param(["+", "-", "*", "/"], "C) *", "C", id="a letter and a star"),
        pytest.param([".", ",", ";"], ".", "A", id="a stop"),
        pytest.param(["$5", "$6"], "$6", "B", id="a price"),
        pytest.param(["$x^2$", "$x^3$"], "x^3", "B", id="mathematics"),
        pytest.param([r"$\frac{1}{2}$", r"$\frac{1}{3}$"], r"\boxed{\frac{1}{3}}", "B", id="braces"),
        pytest.param([r"\{1\}", r"\{2\}"], r"\boxed{\{2\}}", "B", id="escaped braces"),
        pytest.param(["I", "you", "he"], "I", "A", id="a letter beyond the choices is a text"),
        pytest.param(["A dog", "A cat"], "A cat", "B", id="an article in the choices"),
        pytest.param(["3", "4"], "4", "B", id="a number in the choices"),
        pytest.param(["a\u0301", "b\u0301"], "b\u0301", "B", id="marks"),
        pytest.param(["A", "B", "C"], "C", "C", id="choices that are their own letters"),
        pytest.param(["yes", "no"], "No.", "B", id="yes and no"),
    ],
)
def test_unusual_choices(choices, stated, right):
    choice_answer.definition.check_columns(answer=[right], choices=[choices])
    for letter in "ABCD"[: len(choices)]:
        assert score(f"<answer>{stated}</answer>", letter, choices) == float(letter == right)


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


@pytest.mark.parametrize(
    ("answer", "choices", "problem"),
    [
        pytest.param("E", CITIES, "from A to D", id="beyond the choices"),
        pytest.param("b", CITIES, "must be a letter", id="a small letter"),
        pytest.param("AB", CITIES, "must be a letter", id="two letters"),
        pytest.param("", CITIES, "must be a letter", id="empty"),
        pytest.param("London", CITIES, "must be a letter", id="no such text"),
        pytest.param("paris", CITIES, "must be a letter", id="a text in another case"),
        pytest.param(4, CITIES, "from 0 to 3", id="a place beyond"),
        pytest.param(-1, CITIES, "from 0 to 3", id="a negative place"),
        pytest.param(True, CITIES, "must be a letter", id="a bool"),
        pytest.param(1.0, CITIES, "must be a letter", id="a decimal"),
        pytest.param("Paris", None, "from A to Z", id="a text without choices"),
        pytest.param("1", None, "must be a letter", id="a label of ARC"),
        pytest.param("A", ["B", "A"], "another choice", id="a text that is another's letter"),
        pytest.param("A", ["x", "(A)"], "another choice", id="a text that is another's letter, in parentheses"),
        pytest.param("Paris", ["Paris", "Rome", "Paris"], "twice", id="the right text twice"),
        pytest.param("A", ["Paris", "Rome", "paris."], "twice", id="the right text twice, but for case"),
        pytest.param(1, ["1", "2"], "give the letter", id="a place or a text"),
        pytest.param("A", ["x"], "2 to 26", id="one choice"),
        pytest.param("A", [], "2 to 26", id="no choice"),
        pytest.param("A", ["x"] * 27, "2 to 26", id="27 choices"),
        pytest.param("A", ["x", " "], "none blank", id="a blank choice"),
        pytest.param("A", ["x", 2], "must be texts", id="a number among the choices"),
        pytest.param("A", "xy", "2 to 26", id="choices as one text"),
        pytest.param("A", {"text": ["x", "y"], "label": ["A", "B"]}, "ARC", id="ARC's dict"),
    ],
)
def test_bad_columns_are_refused(answer, choices, problem):
    with pytest.raises(ValueError, match=rf"1 of 2 rows.*row 1: .*{problem}"):
        choice_answer.definition.check_columns(answer=["A", answer], choices=[["x", "y"], choices])
    with pytest.raises(ValueError, match=rf"{problem}.* this row"):
        choice_answer.definition.function(["A"], answer=[answer], choices=[choices])


def test_other_texts_may_come_twice():
    choice_answer.definition.check_columns(answer=["A"], choices=[["Paris", "Rome", "Rome"]])
    assert score("Rome", "A", ["Paris", "Rome", "Rome"]) == 0.0
    assert score("Paris", "A", ["Paris", "Rome", "Rome"]) == 1.0


LONG = {
    "clauses": "Since it lies there, " * 50_000 + "the answer is",
    "one clause": "Since " + "x" * 1_000_000 + ", the answer is B or C.",
    "answers in sentences": "The answer is B. " * 60_000,
    "it is": "It is B. " * 100_000,
    "words that may be letters": "B because " + "option a " * 100_000,
    "a reason of letters": "B\nExplanation: " + "a " * 400_000 + "c",
    "a letter and blanks": "B\nExplanation: c a" + " " * 1_000_000 + "x",
    "tags joined": "<answer>B</answer> or " * 40_000 + "<answer>C</answer>",
    "tags apart": "<answer>B</answer>" * 40_000 + "<answer>C</answer>",
    "boxes joined": "\\boxed{C} or " * 60_000 + "\\boxed{B}",
    "boxes in boxes that are all there is": "\\boxed{" * 60_000 + "C" + "}" * 60_000,
    "a letter under many answers": "The answer is C. " * 60_000 + "\n\n**B**",
    "Chinese": "综上所述，" * 100_000 + "选：C",
}


@pytest.mark.parametrize("name", LONG)
def test_long_texts(name):
    for choices in (CITIES, None):
        start = time.process_time()
        assert MODULE._score(LONG[name], 1, choices) == 0.0
        assert time.process_time() - start < 2
