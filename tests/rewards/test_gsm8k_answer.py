"""The reward `gsm8k_answer`: which number counts as the answer, and what it earns."""

import numpy as np
import pytest
from case_tables import misjudged, texts

from trl_grpo_plus.registry import get_reward
from trl_grpo_plus.rewards.gsm8k_answer import gsm8k_answer


NUMBERS, BEHIND_HASHES, NO_NUMBERS = (texts("gsm8k", kind) for kind in ("number", "behind hashes", "no number"))
VALUES = dict(zip(*[iter(texts("gsm8k", "value"))] * 2, strict=True))
GOLD = "She sells 9 * 2 = <<9*2=18>>18 dollars.\n#### 18"


def score(text: str, gold: object = GOLD, **args: object) -> float:
    return get_reward("gsm8k_answer", **args)(completions=[text], answer=[gold])[0]


def test_verdicts() -> None:
    assert misjudged("gsm8k_verdicts", lambda text, gold: score(text, GOLD if gold == "GSM8K" else gold)) == []


@pytest.mark.parametrize("gold", ["#### 1,234", 1234, "$1234"])
def test_dress_of_a_number(gold: object) -> None:
    for text in NUMBERS:
        boxed, behind_hashes = f"So \\boxed{{{text}}}.", f"So.\n#### {text}\nDone."
        assert (text, score(boxed, gold), score(behind_hashes, gold)) == (text, 1.5, 1.0)
        assert (text, score(boxed, 123), score(behind_hashes, 123)) == (text, 0.5, 0.0)
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
    places = [place.format(text) for text in NO_NUMBERS for place in ("#### {}", "\\boxed{{{}}}")]
    assert [text for text in places if {score(text, gold) for gold in golds} != {0.0}] == []


@pytest.mark.parametrize(
    ("tolerance", "text", "reward"),
    [
        (0.01, "18.0099999", 1.5), (0.01, "18.01", 0.5), (0.5, "18.4", 1.5), (0.5, "18.5", 0.5), (0, "18", 1.5),
        (0, "18.0000000000000000000001", 0.5), (1e-12, "18.000000000001", 0.5), (1e-12, "18.0000000000009", 1.5),
    ],
)  # fmt: skip
def test_tolerance(tolerance: float, text: str, reward: float) -> None:
    assert score(f"\\boxed{{{text}}}", tolerance=float(tolerance)) == reward


@pytest.mark.parametrize(
    "mark",
    [
        "<|im_end|>", "<|endoftext|>", "<|return|>", "<|call|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>",
        "<|eot|>", "<|end|>", "<|user|>", "<|observation|>", "<|END_OF_TURN_TOKEN|>", "<|role_end|>", "<end_of_turn>",
        "<turn|>", "<eos>", "<｜end▁of▁sentence｜>", "[|endofturn|]", "<seed:eos>",
    ],
)  # fmt: skip
def test_a_turn_ends_with_its_mark(mark: str) -> None:
    assert score(f"#### 18{mark}") == 1.0
    assert score(f"#### 17{mark}\n#### 18") == 0.0


def test_large_numbers_are_compared_exactly() -> None:
    assert score(r"\boxed{12345678901234567891}", "12345678901234567890") == 0.5
    assert score(r"\boxed{12345678901234567890}", "12345678901234567890") == 1.5
    assert score(rf"\boxed{{{'9' * 5000}}}", "9") == 0.0


@pytest.mark.parametrize(
    "gold",
    [
        GOLD,
        "#### 1,234",
        "#### -5",
        "18",
        18,
        18.5,
        0.1,
        "0.25",
        r"\frac13",
        r"0.\overline{3}",
        1e-9,
        1e20,
        np.float64(18.5),
        10**320,
        f"{10**40 + 1}.25",
        f"-{10**40 + 1}.05",
    ],
)
def test_the_gold_completion_has_full_marks(gold: object) -> None:
    gsm8k_answer.definition.check_columns(answer=[gold], tolerance=0.01)
    assert score(gsm8k_answer.definition.gold(answer=gold), gold, tolerance=0.0) == 1.5


@pytest.mark.parametrize("end", [r"\ ", r"\,\ ", r"\text{ }", "{}"])
def test_a_blank_at_the_end_of_an_answer_changes_nothing(end):
    assert gsm8k_answer([rf"\boxed{{72{end}}}", f"#### 72{end}"], answer=["72"] * 2) == [1.5, 1.0]
    assert gsm8k_answer([rf"\boxed{{72\\\\{end}73}}", rf"\boxed{{72~{end}}}"], answer=["72"] * 2) == [0.0, 0.0]


NAMED = [r"\text{Total cost} = \$72", r"\text{Total} = 72", "x_1 = 72", "x_{1} = 72", "Total = 72", "`72`", "**`72`**"]
NOT_NAMED = [
    r"\text{not} = 72", r"\text{Half} = 72", r"\text{Wrong answer} = 72", "Not total = 72", "My guess = 72",
    "twice x = 72", "x_1 = 72, x_2 = 3", "Total = 72 or 73", "Total = 71 = 72", "Total = 6*12", "Total - 5 = 72",
    "Total == 72", "`72` or `73`",
]  # fmt: skip


@pytest.mark.parametrize("text", NAMED)
def test_a_name_before_the_number_or_code_around_it_changes_nothing(text):
    assert gsm8k_answer([rf"\boxed{{{text}}}", f"#### {text}"], answer=["72"] * 2) == [1.5, 1.0]


@pytest.mark.parametrize("text", NOT_NAMED)
def test_a_name_that_denies_or_scales_the_number_is_none(text):
    assert gsm8k_answer([rf"\boxed{{{text}}}", f"#### {text}"], answer=["72"] * 2) == [0.0, 0.0]
