"""The reward `choice_answer`: the right choice, named alone."""

import doctest
import importlib
import time

import pytest
from bombs import BOMBS, placed
from choice_cases import NOT_SAID, SAID, SAID_WITH_TEXT

from trl_grpo_plus.registry import get_reward
from trl_grpo_plus.rewards.choice_answer import choice_answer


MODULE = importlib.import_module("trl_grpo_plus.rewards.choice_answer")
CITIES = ["Rome", "Paris", "Berlin", "New York"]


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


@pytest.mark.parametrize("answer", "ABCD")
@pytest.mark.parametrize(
    "stated",
    [
        pytest.param("", id="empty"),
        pytest.param("  \n", id="blank"),
        pytest.param("B or C", id="hedge"),
        pytest.param("A or B or C or D", id="all"),
        pytest.param("A, B", id="list"),
        pytest.param("A,B,C,D", id="list without blanks"),
        pytest.param("A/B", id="slash"),
        pytest.param("A B", id="side by side"),
        pytest.param("AB", id="joined"),
        pytest.param("BB", id="twice"),
        pytest.param("A\nB", id="two lines"),
        pytest.param("A and B", id="and"),
        pytest.param("A & B", id="ampersand"),
        pytest.param("(A)(B)", id="two in parentheses"),
        pytest.param("A) B) C) D)", id="all with parentheses"),
        pytest.param("[A, B]", id="brackets"),
        pytest.param("A-D", id="range"),
        pytest.param("not B", id="negation"),
        pytest.param("Not (B)", id="negation of a letter in parentheses"),
        pytest.param("not A, not C, not D", id="all others negated"),
        pytest.param("B is wrong", id="wrong"),
        pytest.param("anything but B", id="but"),
        pytest.param("B (not C)", id="a letter and a negation"),
        pytest.param("B?", id="question"),
        pytest.param("probably B", id="probably"),
        pytest.param("B, I think", id="I think"),
        pytest.param("B (or maybe C)", id="maybe"),
        pytest.param("A city in France", id="the article"),
        pytest.param("a", id="a small letter"),
        pytest.param("b", id="small b"),
        pytest.param("E", id="beyond the choices"),
        pytest.param("Z", id="far beyond"),
        pytest.param("1", id="a number"),
        pytest.param("B) Rome", id="a letter and another's text"),
        pytest.param("B) Paris or Rome", id="a letter and two texts"),
        pytest.param("B) Paris C) Berlin", id="two letters and texts"),
        pytest.param("B Paris", id="no sign between letter and text"),
        pytest.param("A Paris", id="the article and a text"),
        pytest.param("E) Paris", id="a letter beyond and a text"),
        pytest.param("Paris or Rome", id="two texts"),
        pytest.param("not Paris", id="a text negated"),
        pytest.param("Par", id="a part of a text"),
        pytest.param("Paris is the capital of France", id="a text and words"),
        pytest.param("York", id="the end of a text"),
        pytest.param("ｂ", id="a small full-width letter"),
        pytest.param("В", id="Cyrillic"),
        pytest.param("Β", id="Greek"),
        pytest.param("🅱", id="emoji"),
        pytest.param("B\u200b", id="zero-width blank"),
        pytest.param("B\0", id="NUL"),
        pytest.param("B\ud800", id="lone surrogate"),
        pytest.param("(B", id="parenthesis not closed"),
        pytest.param("((B))", id="two parentheses"),
        pytest.param("B..", id="two stops"),
        pytest.param(r"\text{B", id="brace not closed"),
        pytest.param(r"\boxed{A}\boxed{B}", id="two boxes within"),
        pytest.param(r"\boxed{A} or \boxed{B}", id="two boxes and or, within"),
        pytest.param("<|im_end|>", id="a template's mark"),
        pytest.param("None of the above", id="none"),
        pytest.param("All of the above", id="all of the above"),
    ],
)
def test_no_choice_is_named(stated, answer):
    assert score(f"<think>Hm.</think><answer>{stated}</answer>", answer) == 0.0
    assert score(f"<answer>{stated}</answer>", answer, None) == 0.0
    if "boxed" not in stated:
        assert score(f"<think>Hm.</think>\nAnswer: {stated}", answer) == 0.0
        assert score(f"It is \\boxed{{{stated}}}", answer) == 0.0
        assert score(stated, answer) == 0.0


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        pytest.param("<answer>A</answer><answer>B</answer>", 1.0, id="the last answer"),
        pytest.param("<answer>B</answer><answer>A</answer>", 0.0, id="an earlier answer"),
        pytest.param(r"\boxed{A} no, \boxed{B}", 1.0, id="the last box"),
        pytest.param(r"\boxed{B} no, \boxed{A}", 0.0, id="an earlier box"),
        pytest.param(r"\boxed{A \boxed{B}}", 0.0, id="a box in a box"),
        pytest.param(r"\boxed{B} and \boxed{", 0.0, id="the last box is cut off"),
        pytest.param(r"\boxed{B", 0.0, id="cut off"),
        pytest.param(r"\boxed {B}", 1.0, id="a blank before the brace"),
        pytest.param(r"\fbox{B}", 0.0, id="another box"),
        pytest.param("<answer>B</answer> so \\boxed{A}", 1.0, id="tags before a box"),
        pytest.param("<answer>A</answer> so \\boxed{B}", 0.0, id="a box beside tags"),
        pytest.param("\\boxed{A}\nAnswer: B", 0.0, id="a box before a line"),
        pytest.param("<think>\\boxed{B}</think>", 0.0, id="a box in the thinking alone"),
        pytest.param("<think><answer>B</answer></think>Done.", 0.0, id="tags in the thinking alone"),
        pytest.param("<think>B</think>", 0.0, id="a letter in the thinking alone"),
        pytest.param("<think>Answer: B", 0.0, id="the thinking never ends"),
        pytest.param("<answer>B", 0.0, id="the tag never ends"),
        pytest.param("B</answer>", 0.0, id="the tag never begins"),
        pytest.param("<answer><answer>B</answer></answer>", 0.0, id="nested tags"),
        pytest.param("Answer: A\nAnswer: B", 1.0, id="the last line"),
        pytest.param("Answer: B\nAnswer: A", 0.0, id="an earlier line"),
        pytest.param("Answer: B\n\nWait, no.", 0.0, id="a line, then words"),
        pytest.param("Answer: B\n\n  ", 1.0, id="a line, then blank lines"),
        pytest.param("The answer is B.", 1.0, id="the answer is"),
        pytest.param("So, the correct answer is: (B)", 1.0, id="so, the correct answer is"),
        pytest.param("**Answer:** B", 1.0, id="a bold head"),
        pytest.param("**Answer: B**", 1.0, id="a bold line"),
        pytest.param("Answer: **B**", 1.0, id="a bold letter"),
        pytest.param("FINAL ANSWER: B", 1.0, id="capitals"),
        pytest.param("The correct option is B", 1.0, id="the correct option is"),
        pytest.param("The answer is not B", 0.0, id="the answer is not"),
        pytest.param("The answer is B or C", 0.0, id="the answer is, hedged"),
        pytest.param("The answer is A city", 0.0, id="the answer is, article"),
        pytest.param("The answer is a", 0.0, id="the answer is, cut off after an article"),
        pytest.param("I would say B", 0.0, id="other words"),
        pytest.param("B\nUser: And the next?", 0.0, id="a next turn"),
        pytest.param("A B C D", 0.0, id="all letters"),
        pytest.param("So \\boxed{\\text{B}} it is.", 1.0, id="words after a box"),
        pytest.param(r"\boxed{\{} \boxed{B}", 1.0, id="an escaped brace in an earlier box"),
        pytest.param("", 0.0, id="empty"),
        pytest.param("Answer:", 0.0, id="nothing after the colon"),
        pytest.param("Answer: B" + " " * 20_000 + "or C", 0.0, id="a hedge far to the right"),
        pytest.param("Answer: B" + " " * 20_000, 1.0, id="blanks to the right"),
    ],
)
def test_where_the_answer_stands(text, reward):
    assert score(text) == reward


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


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(name):
    for text in [*placed(BOMBS[name]), f"The answer is:\n\n{BOMBS[name]}", f"## {BOMBS[name]}", f"**{BOMBS[name]}**."]:
        for choices in (CITIES, None):
            start = time.process_time()
            assert MODULE._score(text, 1, choices) == 0.0
            assert time.process_time() - start < 2


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


def test_messages_and_rows():
    say = [{"role": "assistant", "content": "<think>C?</think>B"}]
    assert choice_answer([say, say, say, []], answer=["B", "C", None, "B"]) == [1.0, 0.0, None, 0.0]


def test_examples():
    for example in choice_answer.definition.examples:
        columns = {name: [value] for name, value in example.columns.items()}
        assert get_reward("choice_answer", **example.args)([example.completion], **columns) == [example.reward]


def test_docstring():
    result = doctest.testmod(MODULE)
    assert result.attempted > 0
    assert result.failed == 0
