"""`gsm8k_answer`: which number counts, what it earns, and that no text holds it up."""

import doctest
import importlib
import time

import pytest
from bombs import BOMBS, placed
from gsm8k_cases import BEHIND_HASHES, NO_NUMBERS, NUMBERS, VALUES

from trl_grpo_plus.registry import get_reward
from trl_grpo_plus.rewards.gsm8k_answer import gsm8k_answer


MODULE = importlib.import_module("trl_grpo_plus.rewards.gsm8k_answer")
GOLD = "She sells 9 * 2 = <<9*2=18>>18 dollars.\n#### 18"


def score(text: str, gold: object = GOLD, **args: object) -> float:
    return get_reward("gsm8k_answer", **args)(completions=[text], answer=[gold])[0]


@pytest.mark.parametrize(
    ("text", "gold", "reward", "why"),
    [
        (r"So \boxed{18}.", GOLD, 1.5, "right, boxed"),
        (r"\boxed{18.0}", GOLD, 1.5, "the same number"),
        (r"\boxed{18.}", GOLD, 1.5, "a full stop"),
        (r"\boxed{18.009}", GOLD, 1.5, "within the tolerance"),
        (r"\boxed{18.01}", GOLD, 0.5, "as far as the tolerance"),
        (r"\boxed{17.99}", GOLD, 0.5, "as far as the tolerance, below"),
        (r"\boxed{19}", GOLD, 0.5, "wrong, boxed"),
        (r"\boxed{-18}", GOLD, 0.5, "another sign"),
        (r"\boxed{180}", GOLD, 0.5, "another number"),
        (r"\boxed{\$18}", GOLD, 1.5, "a currency sign"),
        (r"\boxed{$18}", GOLD, 1.5, "a bare currency sign"),
        (r"\boxed{\$18.00}", GOLD, 1.5, "a currency sign and cents"),
        (r"\boxed{18 dollars}", GOLD, 1.5, "a unit"),
        (r"\boxed{18\text{ dollars per day}}", GOLD, 1.5, "a unit of words"),
        (r"\boxed{\text{18}}", GOLD, 1.5, "in a text command"),
        (r"\boxed{36/2}", GOLD, 0.0, "a division left undone"),
        (r"\boxed{9 * 2}", GOLD, 0.0, "a product left undone"),
        (r"\boxed{9 * 2 = 18}", GOLD, 0.0, "a chain"),
        (r"\boxed{18 or 19}", GOLD, 0.0, "a hedge"),
        (r"\boxed{18, 19}", GOLD, 0.0, "a hedge"),
        (r"\boxed{19} or \boxed{18}", GOLD, 0.0, "a hedge in two boxes"),
        (r"\boxed{18 \pm 1}", GOLD, 0.0, "a hedge"),
        (r"\boxed{about 18}", GOLD, 0.0, "a hedge"),
        (r"\boxed{eighteen}", GOLD, 0.0, "a word"),
        (r"\boxed{NaN}", GOLD, 0.0, "no number"),
        (r"\boxed{inf}", GOLD, 0.0, "no number"),
        (r"\boxed{\infty}", GOLD, 0.0, "no number"),
        (r"\boxed{1e1}", "10", 0.0, "programmers' notation"),
        (r"\boxed{0x12}", GOLD, 0.0, "programmers' notation"),
        (r"\boxed{1_8}", GOLD, 0.0, "programmers' notation"),
        (r"\boxed{１８}", GOLD, 1.5, "full-width digits"),
        (r"\boxed{}", GOLD, 0.0, "an empty box earns nothing"),
        (r"\boxed{18", GOLD, 0.0, "cut off"),
        (r"\boxed{\boxed{18}}", GOLD, 0.0, "nested"),
        (r"\boxed{18} but no: \boxed{19}", GOLD, 0.5, "the last box counts"),
        (r"\boxed{19} but no: \boxed{18}", GOLD, 1.5, "the last box counts"),
        (r"\boxed{19} #### 18", GOLD, 0.5, "the box goes before the line"),
        (r"\boxed{} #### 18", GOLD, 0.0, "the box goes before the line, though empty"),
        ("#### 18", GOLD, 1.0, "the dataset's form"),
        ("So 18.\n#### 18\n", GOLD, 1.0, "the dataset's form"),
        ("#### $18", GOLD, 1.0, "the dataset's form, a currency sign"),
        ("#### 17\n#### 18", GOLD, 1.0, "the last line counts"),
        ("#### 18\n#### 17", GOLD, 0.0, "the last line counts"),
        ("#### 18\nThat is 17 and one more.", GOLD, 1.0, "what stands on another line does not count"),
        ("#### 18 or 19", GOLD, 0.0, "a hedge"),
        ("####", GOLD, 0.0, "nothing there"),
        ("18", GOLD, 0.0, "no form"),
        ("The answer is 18.", GOLD, 0.0, "the last number of a text does not count"),
        ("<answer>18</answer>", GOLD, 0.0, "another form"),
        (r"<think>\boxed{18}</think>", GOLD, 0.0, "only in the thinking"),
        (r"<think>\boxed{18}", GOLD, 0.0, "the thinking never ends"),
        (r"<think>\boxed{19}</think>\boxed{18}", GOLD, 1.5, "after the thinking"),
        ("<think>#### 18</think>", GOLD, 0.0, "only in the thinking"),
        (r"\boxed{1,234}", "so 1,234.\n#### 1,234", 1.5, "thousands on both sides"),
        (r"\boxed{1234}", "#### 1,234", 1.5, "thousands in the gold"),
        (r"\boxed{1\,234\,567}", "#### 1234567", 1.5, "thousands by thin spaces"),
        (r"\boxed{12,34}", "#### 1,234", 0.0, "no grouping by thousands"),
        (r"\boxed{-5}", "#### -5", 1.5, "a negative number"),
        (r"\boxed{−5}", "#### -5", 1.5, "the typographer's minus"),
        (r"\boxed{42\%}", "#### 42", 1.5, "per cent is a unit"),
        (r"\boxed{42%}", "#### 42", 1.5, "per cent is a unit"),
        (r"\boxed{0.42}", "#### 42", 0.5, "another number"),
        (r"\boxed{\frac12}", "0.5", 1.5, "a fraction"),
        (r"\boxed{0.333}", r"\frac13", 1.5, "within the tolerance"),
        (r"\boxed{2.5 million}", "2500000", 1.5, "a factor"),
        (r"\boxed{2.5 million}", "2.5", 0.5, "a factor is no unit"),
        (r"\boxed{\text{18 dollars}}", GOLD, 1.5, "all of it in a text command"),
        (r"\boxed{\$18 \text{ per day}}", GOLD, 1.5, "a currency sign and words"),
        (r"\boxed{\$18 \text{ million}}", GOLD, 0.5, "a factor is no unit"),
        (r"\boxed{18€}", GOLD, 1.5, "a currency sign behind"),
        (r"\boxed{18\text{ correct answers}}", GOLD, 1.5, "what is counted"),
        (r"\boxed{18\text{ dollars more}}", GOLD, 1.5, "what is counted"),
        (r"\boxed{18\text{ probably}}", GOLD, 0.0, "a hedge"),
        (r"\boxed{18\text{ seventy-one}}", GOLD, 0.0, "two numbers"),
        (r"\boxed{18_9}", "18", 0.0, "a number in base nine"),
        (r"\boxed{18} (as asked, in \boxed{})", GOLD, 1.5, "a mention of the box behind"),
        (r"\boxed{19} (as asked, in \boxed{...})", GOLD, 0.5, "a mention of the box behind a wrong answer"),
        (r"\boxed{x = 18}", GOLD, 1.5, "a name"),
        (r"\boxed{x = 19}", GOLD, 0.5, "a name, another number"),
        (r"\boxed{x = 9 \cdot 2}", GOLD, 0.0, "a name, left undone"),
        (r"\boxed{not = 18}", GOLD, 0.0, "a denial for a name"),
        ("#### x = 18", GOLD, 1.0, "a name"),
        ("#### x = 18 or 19", GOLD, 0.0, "a hedge"),
        (r"\boxed{\text{Answer: }18}", GOLD, 1.5, "a lead in words"),
        (r"\boxed{\text{The answer is not }18}", GOLD, 0.0, "a denial"),
        ("#### **18**", GOLD, 1.0, "Markdown's bold"),
        ("**#### 18**", GOLD, 1.0, "Markdown's bold"),
        ("**#### 19**", GOLD, 0.0, "Markdown's bold, wrong"),
        (r"\boxed{18}", 18, 1.5, "an int as gold"),
        (r"\boxed{18}", 18.0, 1.5, "a float as gold"),
        (r"\boxed{18}", "18", 1.5, "a plain gold"),
        (r"\boxed{18}", "$18$", 1.5, "a gold between dollars"),
    ],
)
def test_verdicts(text: str, gold: object, reward: float, why: str) -> None:
    assert score(text, gold) == reward, why


@pytest.mark.parametrize("gold", ["#### 1,234", 1234, "$1234"])
def test_dress_of_a_number(gold: object) -> None:
    wanted = dict.fromkeys(NUMBERS, (1.5, 1.0, 0.5, 0.0))
    found = {
        text: (
            score(f"So \\boxed{{{text}}}.", gold),
            score(f"So.\n#### {text}\nDone.", gold),
            score(f"\\boxed{{{text}}}", 123),
            score(f"#### {text}", 123),
        )
        for text in NUMBERS
    }
    assert found == wanted
    assert {text: score(text, gold) for text in BEHIND_HASHES} == dict.fromkeys(BEHIND_HASHES, 1.0)
    assert {text: score(text, 123) for text in BEHIND_HASHES} == dict.fromkeys(BEHIND_HASHES, 0.0)


def test_dress_of_a_negative_number() -> None:
    texts = ["-＄5", "＄-5", "-¥5", "－５", "-5元", "Answer: -5", "-US$5", "−￥5"]
    assert {text: score(f"#### {text}", -5) for text in texts} == dict.fromkeys(texts, 1.0)
    assert {text: score(f"#### {text}", 5) for text in texts} == dict.fromkeys(texts, 0.0)


@pytest.mark.parametrize("text", VALUES)
def test_numbers_with_their_factors_and_in_other_digits(text: str) -> None:
    value = VALUES[text]
    assert (score(f"\\boxed{{{text}}}", value), score(f"#### {text}", value)) == (1.5, 1.0)
    others = {gold for gold in (1234, 12.34, 123400, 18, 72, 2.5, 1.5, 3, value * 10, value / 10) if gold != value}
    assert {score(f"\\boxed{{{text}}}", gold) for gold in others} == {0.5}
    assert {score(f"#### {text}", gold) for gold in others} == {0.0}


def test_what_is_no_number_in_any_dress() -> None:
    golds = (1234, 1235, 12, 34, 1, 2468, 12340000)
    found = {text: {score(f"{text}", gold) for gold in golds} for text in [*(f"#### {text}" for text in NO_NUMBERS)]}
    found |= {text: {score(f"\\boxed{{{text}}}", gold) for gold in golds} for text in NO_NUMBERS}
    assert {text: rewards for text, rewards in found.items() if rewards != {0.0}} == {}


@pytest.mark.parametrize(
    ("tolerance", "text", "reward"),
    [
        (0.01, "18.0099999", 1.5), (0.01, "18.01", 0.5), (0.5, "18.4", 1.5), (0.5, "18.5", 0.5), (0, "18", 1.5),
        (0, "18.0000000000000000000001", 0.5), (1e-12, "18.000000000001", 0.5), (1e-12, "18.0000000000009", 1.5),
    ],
)  # fmt: skip
def test_tolerance(tolerance: float, text: str, reward: float) -> None:
    assert score(f"\\boxed{{{text}}}", tolerance=float(tolerance)) == reward


@pytest.mark.parametrize(("text", "reward"), [(r"\boxed{18}", 1.5), ("#### 18", 1.0)])
def test_thinking_that_the_prompt_opened(text: str, reward: float) -> None:
    assert score(text, think_opened=False) == reward
    assert score(text, think_opened=True) == 0.0
    assert score(f"so...</think>{text}", think_opened=True) == reward
    assert score(f"{text}</think>so", think_opened=True) == 0.0


def test_large_numbers_are_compared_exactly() -> None:
    assert score(r"\boxed{12345678901234567891}", "12345678901234567890") == 0.5
    assert score(r"\boxed{12345678901234567890}", "12345678901234567890") == 1.5
    assert score(rf"\boxed{{{'9' * 5000}}}", "9") == 0.0


@pytest.mark.parametrize("tolerance", [-0.01, float("nan"), float("inf")])
def test_bad_tolerances_are_refused(tolerance: float) -> None:
    with pytest.raises(ValueError, match="tolerance="):
        get_reward("gsm8k_answer", tolerance=tolerance)


@pytest.mark.parametrize(
    "gold",
    [
        "",
        "eighteen",
        "#### ",
        "#### eighteen",
        "18 or 19",
        "#### 36/2",
        True,
        ["18"],
        float("nan"),
        float("inf"),
        "NaN",
    ],
)
def test_bad_golds_are_named(gold: object) -> None:
    with pytest.raises(ValueError, match=r"1 of 3 answers .* row 1: .* Mend or filter"):
        gsm8k_answer.definition.check_columns(answer=["#### 18", gold, 18], tolerance=0.01)
    with pytest.raises(ValueError, match="Mend or filter"):
        MODULE._score(r"\boxed{18}", gold, MODULE.Fraction(1, 100))


@pytest.mark.parametrize(
    "gold", [GOLD, "#### 1,234", "#### -5", "18", 18, 18.5, 0.1, "0.25", r"\frac13", r"0.\overline{3}", 1e-9, 1e20]
)
def test_the_gold_completion_has_full_marks(gold: object) -> None:
    gsm8k_answer.definition.check_columns(answer=[gold], tolerance=0.01)
    assert score(gsm8k_answer.definition.gold(answer=gold), gold, tolerance=0.0) == 1.5


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(name: str) -> None:
    for text in (
        *placed(BOMBS[name]),
        f"#### {BOMBS[name]}",
        f"{BOMBS[name]}#### 18 or 19",
        f"#### Answer is {BOMBS[name]}!",
    ):
        start = time.process_time()
        assert score(text) in (0.0, 0.5)
        assert time.process_time() - start < 5


def test_takes_messages() -> None:
    messages = [{"role": "assistant", "content": "#### 17"}, {"role": "assistant", "content": r"\boxed{18}"}]
    assert gsm8k_answer(completions=[messages, "#### 18"], answer=[GOLD, 18]) == [1.5, 1.0]


def test_examples_of_the_docstring() -> None:
    test = doctest.DocTestParser().get_doctest(gsm8k_answer.__doc__, dict(vars(MODULE)), "gsm8k_answer", None, 0)
    result = doctest.DocTestRunner().run(test)
    assert (result.attempted, result.failed) == (4, 0)


def test_registered_examples() -> None:
    for example in gsm8k_answer.definition.examples:
        columns = {name: [value] for name, value in example.columns.items()}
        assert gsm8k_answer(completions=[example.completion], **columns) == [example.reward]
