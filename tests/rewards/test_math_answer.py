"""The reward `math_answer`: verdicts on a labelled table, compared with TRL's; slow texts; golds; final answers."""

import dataclasses
import importlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from case_tables import REWARDS, table
from math_cases import ANSWERS, PLACES, POISON, Case, boxed
from time_limit import ends
from trl.rewards import accuracy_rewards

from trl_grpo_plus.registry import Reward, get_reward
from trl_grpo_plus.rewards._math import boxes
from trl_grpo_plus.rewards._math import values as _math_values
from trl_grpo_plus.rewards.combine import gate
from trl_grpo_plus.rewards.math_answer import _score, math_answer, score_golds
from trl_grpo_plus.scoring import Outcome, RewardError


MODULE = importlib.import_module("trl_grpo_plus.rewards.math_answer")
CASES = [*(case._replace(answer=boxed(case.answer)) for case in ANSWERS), *PLACES]


@pytest.fixture(scope="module")
def verdicts() -> list[float | Exception]:
    return [_verdict(case) for case in CASES]


def _verdict(case: Case) -> float | Exception:
    try:
        return _score(case.answer, case.gold)
    except Exception as error:
        return error


# -- the labelled table


def test_no_wrong_answer_is_rewarded(verdicts: list[float | Exception]) -> None:
    assert [case for case, got in zip(CASES, verdicts, strict=True) if got and not case.correct] == []


def test_right_answers_are_rewarded(verdicts: list[float | Exception]) -> None:
    assert [case for case, got in zip(CASES, verdicts, strict=True) if case.correct and not got] == []


@pytest.mark.full
def test_agreement_beside_that_of_trl(verdicts: list[float | Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    _read_each_text_once(monkeypatch)
    bare = [_by_trl(case.answer, str(case.gold)) for case in CASES]
    dollars = [_by_trl(case.answer, f"${case.gold}$") for case in CASES]
    print(f"\n{len(CASES)} cases, of which {sum(case.correct for case in CASES)} are right answers")
    readers = {"ours": verdicts, "TRL, bare": bare, "TRL, $": dollars}
    counts = {name: _count(CASES, got) for name, got in readers.items()}
    for name, count in counts.items():
        print(f"{name:10} {count}")
    assert len(CASES) >= 850
    assert counts["ours"]["agrees"] >= 0.97 * len(CASES)
    assert counts["ours"]["agrees"] > max(counts["TRL, bare"]["agrees"], counts["TRL, $"]["agrees"])


def _by_trl(completion: str, gold: str) -> float | None:
    return accuracy_rewards.accuracy_reward([[{"role": "assistant", "content": completion}]], [gold])[0]


def _read_each_text_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache TRL's parser: many of the 2,515 answers share a gold, and parsing is most of TRL's work."""
    parse, parsed = accuracy_rewards.parse, {}

    def parse_once(text: str, **options: Any) -> Any:
        key = (text, repr(options))
        if key not in parsed:
            parsed[key] = parse(text, **options)
        return parsed[key]

    monkeypatch.setattr(accuracy_rewards, "parse", parse_once)


def _count(cases: list[Case], verdicts: Sequence[float | Exception | None]) -> Counter[str]:
    def name(case: Case, got: float | Exception | None) -> str:
        if got is None:
            return "not scored"
        return "agrees" if got == case.correct else "refuses a right one" if case.correct else "rewards a wrong one"

    return Counter(name(case, got) for case, got in zip(cases, verdicts, strict=True))


def test_deciding_raises_nothing(verdicts: list[float | Exception]) -> None:
    """An exception would score 0 and count as an error. No answer of the table raises one."""
    assert [(case, got) for case, got in zip(CASES, verdicts, strict=True) if isinstance(got, Exception)] == []


def test_every_gold_of_the_table_passes_the_check_and_deserves_full_marks() -> None:
    golds = list(dict.fromkeys(case.gold for case in ANSWERS))
    assert [gold for gold in golds if score_golds([""], [gold]) != [1.0]] == []
    completions = [math_answer.definition.gold(answer=gold) for gold in golds]
    assert [gold for gold, text in zip(golds, completions, strict=True) if _score(text, gold) != 1.0] == []


def test_a_gold_that_takes_too_long_to_read_is_not_called_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gold may be fine: only the limit, or a busy machine, kept it from being read."""
    monkeypatch.setattr(MODULE, "GOLD_LIMIT_S", 0.01)
    slow = "+".join(rf"\sin({x})\cos({y})" for x in "abc" for y in "xyz")
    with pytest.raises(ValueError, match=r"row 0: .* could not be read: It [^.]* 0\.01 s"):
        math_answer.definition.check_columns(answer=[slow])


def test_an_error_while_a_gold_is_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pool:
        def map(self, target: str, args: Any, samples: list[Any], *_: Any, **__: Any) -> list[Outcome]:
            return [Outcome(None, "error", "Traceback ...\nRecursionError: too deep") for _ in samples]

    monkeypatch.setattr(MODULE, "shared", Pool)
    with pytest.raises(ValueError, match=r"row 0: .* is no LaTeX that can be compared: RecursionError: too deep"):
        math_answer.definition.check_columns(answer=[r"\sqrt{12}"])


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (r"17\cdot 23", "391"), (r"\frac{84}{2}", "42"), (r"\frac{2}{4}", r"\frac12"), (r"\sqrt{16}", "4"),
        (r"5!", "120"), (r"2^3\pi", r"8\pi"),
    ],
)  # fmt: skip
def test_arithmetic_left_undone_counts_where_it_may(answer: str, gold: str) -> None:
    assert _score(boxed(answer), gold, evaluated=True) == 0.0
    assert _score(boxed(answer), gold, evaluated=False) == 1.0
    assert _score(boxed(answer), gold + "+1", evaluated=False) == 0.0


@pytest.mark.parametrize("text", [r"\frac{d}{dx} x^3", r"y=\frac{d}{dx}(x^3)"])
def test_a_derivative_is_never_an_answer(text: str) -> None:
    assert _score(boxed(text), "3x^2", evaluated=False) == 0.0


def test_takes_other_columns_and_arguments_by_name() -> None:
    reward = get_reward("math_answer", column="solution", evaluated=False)
    assert reward(completions=[r"\boxed{6\cdot 12}"], solution=["72"]) == [1.0]


# -- texts that take long to check


def in_this_thread(work: Callable[[], None]) -> None:
    work()


def in_another_thread(work: Callable[[], None]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


threads = pytest.mark.parametrize("within", [in_this_thread, in_another_thread])


@threads
def test_poison_earns_nothing_and_leaves_the_workers_at_work(within: Callable[[Callable[[], None]], None]) -> None:
    def score() -> None:
        for name, (answer, gold) in POISON.items():
            assert math_answer(completions=[boxed(answer)], answer=[gold]) == [0.0], name
        assert math_answer(completions=[r"\boxed{\sqrt{12}}"], answer=[r"2\sqrt3"]) == [1.0]

    within(score)


@threads
def test_what_is_not_refused_on_sight_has_a_limit(within: Callable[[Callable[[], None]], None]) -> None:
    def score() -> None:
        reward = get_reward("math_answer")
        assert reward.timeout is not None
        assert reward.timeout <= 30
        reward.timeout = 0.05
        sums = ["+".join(rf"\sin({x})\cos({y})" for x in "abc" for y in letters) for letters in ("xyz", "yzw")]
        outcome = reward.score([boxed(sums[0])], answer=[sums[1]])[0]  # takes five times as long as the limit
        assert (outcome.status, outcome.score) == ("timeout", 0.0)

    within(score)


@pytest.mark.parametrize("name", POISON)
def test_poison_as_gold_is_found_before_training_or_harmless(name: str) -> None:
    """The static checks decide at once whether such a gold is refused or parsed."""
    gold = POISON[name][0]
    with ends():
        if not MODULE._problem(gold):
            score_golds([""], [gold])
            assert _score(boxed("72.5"), gold) == 0.0


@pytest.mark.parametrize("between", [" " * 1_000_000, "\n" * 300_000, "$" * 1_000_000, "," * 1_000_000])
def test_boxes_far_apart(between: str) -> None:
    with ends():
        assert boxes.final_answer(rf"\boxed{{1}}{between}x\boxed{{2}}") == "2"


@pytest.mark.parametrize(
    "text",
    [
        "9^{9^{9}}", "9^{9^9}", "9^9^9", r"2^{99999}", "10000!", "(9!)!", "9!!", "((x!)!)!", r"\binom{100000}{3}",
        r"\sum_{k=1}^{9} k", r"\int_0^1 x dx", r"\lim_{x\to 0} x", r"\phantom{7}2", r"\href{a}{b}", "7" * 41,
        "x" * 401, "(" * 13 + "1" + ")" * 13, "(x", "x)", "x+", "*x", "x+-+-x", "x^", "a#b", "a\x00b", "a@b", "２",
        "52_9", "2_{71}x", "1A_{16}", "x'",
    ],
)  # fmt: skip
def test_what_is_never_parsed(text: str) -> None:
    assert _math_values.why_wild(text)


@pytest.mark.parametrize(
    "text",
    [
        "2^{10}", r"e^{-x^2}", "2^{2^n}", "(n+1)!", "100!", r"\binom{n}{2}", r"\sqrt[3]{x+\sqrt{2}}", "x_{12}^2",
        "-3.5x",
    ],
)  # fmt: skip
def test_what_may_be_parsed(text: str) -> None:
    assert not _math_values.why_wild(text)


@pytest.mark.parametrize(
    "text",
    [
        r"{1\over " * 60 + "2" + "}" * 60, r"1\over 2" * 100, "½" * 1000, "²" * 1000, "√" * 1000, "５个" * 500,
        r"\text{ m}\cdot" * 70, r"5\text{ m^{2" * 80, r"\mathbf{" * 100, r"\color{red}{" * 70, "x=" * 400 + "1",
        ",".join(["x=1"] * 200), r"]1,2[\cup" * 90, "|A" * 400, "(B) " * 250, r"\checkmark" * 90, "5 thousand " * 90,
        r"\lor ".join(["x=1"] * 100), r"x=1\quad" * 90, r"\quad" * 190, "1=" + "=".join(map(str, range(250))),
    ],
)  # fmt: skip
def test_repeated_forms_cost_no_time(text: str) -> None:
    assert len(text) <= 1000
    for gold in (r"\sqrt{2}", "(1,2)", "5"):
        with ends():
            assert _score(boxed(text), gold) == 0.0


@pytest.mark.parametrize("between", [" or " * 100_000, "/" * 1_000_000, r"\text{ or }" * 50_000, "( " * 500_000])
def test_much_between_boxes(between: str) -> None:
    with ends():
        assert boxes.final_answer(rf"\boxed{{1}}{between}\boxed{{2}}") == "2"
        assert boxes.final_answer(f"<answer>1</answer>{between}<answer>2</answer>") == "2"


# -- golds


def test_words_and_lists_are_golds_and_no_gold_is_misread() -> None:
    golds = list(table("math_golds"))
    math_answer.definition.check_columns(answer=[gold for verdict, gold, _ in golds if verdict == "+"])
    assert [case for case in golds if _score(boxed(case[2]), case[1]) != REWARDS[case[0]]] == []


def test_the_first_bad_golds_are_shown() -> None:
    with pytest.raises(ValueError, match="9 of 10") as refusal:
        math_answer.definition.check_columns(answer=["72", *["x^("] * 9])
    assert [f"row {row}:" in str(refusal.value) for row in range(10)] == [False, *[True] * 5, *[False] * 4]


def test_a_bad_gold_is_an_error_of_its_row() -> None:
    with pytest.raises(ValueError, match="Correct or filter"):
        _score(r"\boxed{1}", "")


GSM8K = "9*2=<<9*2=18>>18 dollars.\n#### 18"


@pytest.mark.parametrize("gold", [GSM8K, True, "", math.nan, b"18", np.float32(18)])
@pytest.mark.parametrize("reward", ["math_answer", gate("math_answer", by="math_answer")], ids=["alone", "gated"])
def test_a_bad_gold_stops_the_caller_and_scores_no_completion_0(reward: Any, gold: Any) -> None:
    called = get_reward(reward) if isinstance(reward, str) else reward
    with pytest.raises(RewardError, match=r"cannot score sample 1 of 2\. math_answer: the answer .*filter this row"):
        called(completions=[r"\boxed{18}"] * 2, answer=["18", gold])


def test_a_bad_gold_stops_a_reward_that_calls_math_answer_whatever_its_on_error_is() -> None:
    called = get_reward("cosine_length", max_length=10).changed({}, on_error="zero")
    with pytest.raises(RewardError, match=r"math_answer: the answer .*filter this row"):
        called(completions=[r"\boxed{18}"] * 2, completion_ids=[[1], [1]], answer=["18", ""])


def test_a_bad_gold_counts_for_rescore_as_an_error_of_its_row() -> None:
    outcomes = get_reward("math_answer").score([r"\boxed{18}"] * 3, answer=["18", "", None])
    assert [(outcome.score, outcome.status) for outcome in outcomes] == [
        (1.0, "ok"),
        (None, "error"),
        (None, "abstain"),
    ]


BLANK_ENDS = [r"\ ", r"\,\ ", r"\text{ }", r"\mbox{}", "{}", r"\ \text{ }{}"]


@pytest.mark.parametrize("end", BLANK_ENDS)
@pytest.mark.parametrize("before", ["72", r"72\%", "$72$", "72.", r"\$72"])
def test_a_blank_at_the_end_of_an_answer_changes_nothing(before: str, end: str) -> None:
    assert _score(rf"\boxed{{{before}{end}}}", "72") == 1.0
    assert _score(rf"\boxed{{{before}{end}}}", "73") == 0.0
    assert _score(r"\boxed{72}", f"{before}{end}") == 1.0


@pytest.mark.parametrize(
    "end", [r"\\", r"\\\\", "~", ",", "^{}", "_{}", r"\{\}", r"\text{ or}\ ", r"\text{?}\ ", "!{}"]
)
def test_another_end_of_an_answer_is_no_blank(end: str) -> None:
    assert _score(rf"\boxed{{72{end}}}", "72") == 0.0


IN_A_TAG = ["The answer is **72**.", "**72**.", "`72`", "The answer is `72`.", "#### 72", "#### **72**"]
NOT_IN_A_TAG = [
    "The answer is **72** or **73**.",
    "The answer is not **72**.",
    "`72` or `73`",
    "#### 72 #### 73",
    "**72** `72`",
]


@pytest.mark.parametrize("text", IN_A_TAG)
def test_markdown_around_an_answer_in_a_tag_changes_nothing(text: str) -> None:
    assert [_score(f"<answer>{text}</answer>", gold) for gold in ("72", "73")] == [1.0, 0.0]


@pytest.mark.parametrize("text", NOT_IN_A_TAG)
def test_markdown_in_a_tag_hides_no_hedge(text: str) -> None:
    assert _score(f"<answer>{text}</answer>", "72") == 0.0


@pytest.mark.parametrize("unit", ["T", "K", "M", "B", "x"])
def test_a_letter_is_a_unit_where_the_gold_has_it(unit: str) -> None:
    gold = rf"5\text{{ {unit}}}"
    assert [_score(boxed(answer), gold) for answer in (gold, "5", r"5\text{ m}", "6")] == [1.0, 1.0, 0.0, 0.0]
    assert _score(boxed(gold), "5") == 0.0


@pytest.mark.parametrize(
    "gold", [72, 72.0, np.float64(72), "72", "$72$", r"$\boxed{72}$", r"\boxed{72}", " 72 ", "72.", r"\(72\)"]
)
def test_forms_of_a_gold(gold: object) -> None:
    math_answer.definition.check_columns(answer=[gold])
    assert _score(r"\boxed{72}", gold) == 1.0
    assert _score(r"\boxed{71}", gold) == 0.0


@pytest.mark.parametrize(("gold", "text"), [(1e-7, "0.0000001"), (1e22, "10000000000000000000000"), (0.1, "0.1")])
def test_floats_are_what_they_show(gold: float, text: str) -> None:
    assert _score(boxed(text), gold) == 1.0
    assert _score(boxed(text + "1"), gold) == 0.0


def test_many_plain_golds_are_checked_fast() -> None:
    with ends():
        math_answer.definition.check_columns(answer=[str(i) for i in range(20_000)])


# -- parts of the reward


def test_where_the_answer_stands() -> None:
    assert [case for case in table("math_final") if boxes.final_answer(case[0]) != case[1]] == []


def test_points_tell_variables_apart() -> None:
    names = ["a", "b", "c", "d"]
    points = list(_math_values._points(names))
    for one in range(4):
        values = [point[names[one]] for point in points]
        assert any(value.startswith("-") for value in values)
        assert any(not value.startswith("-") for value in values)
        for other in range(one):
            assert sum(point[names[one]] != point[names[other]] for point in points) >= 3


def test_the_table_is_what_it_says() -> None:
    assert len({(case.answer, repr(case.gold)) for case in ANSWERS}) == len(ANSWERS)
    assert len(POISON) >= 58
    assert boxed("72") == r"The answer is $\boxed{72}$."


def test_a_failure_of_its_own_is_no_silent_0(monkeypatch):
    def broken(*_):
        raise TypeError("the algebra has changed")

    monkeypatch.setattr(MODULE, "same", broken)
    here = Reward(dataclasses.replace(math_answer.definition, timeout=None))
    (outcome,) = here.score([r"\boxed{\frac{1}{2}}"], answer=["0.5"])
    assert (outcome.score, outcome.status) == (0.0, "error")
    assert "the algebra has changed" in outcome.message


SMALL = ["b", "b)", "b.", "(b)", r"\text{b}", r"\text{b)}", r"\text{(b).}", "option b", "Option (b)"]
SMALL += [r"\text{choice b}", r"\text{option } b", r"\text{Option }(B)"]


@pytest.mark.parametrize("answer", SMALL)
def test_a_choice_may_be_written_as_a_small_letter(answer):
    assert math_answer([rf"\boxed{{{answer}}}"] * 2, answer=["B", "(B)"]) == [1.0, 1.0]


@pytest.mark.parametrize("gold", ["Option B", "option (b)", r"\text{option b}", r"\text{option } b", r"\text{(b)}"])
def test_a_gold_may_say_that_it_is_a_choice(gold):
    scores = math_answer([r"\boxed{B}", r"\boxed{(b)}", r"\boxed{A}", r"\boxed{A, B}"], answer=[gold] * 4)
    assert scores == [1.0, 1.0, 0.0, 0.0]
    assert math_answer([r"\boxed{B}"] * 2, answer=["b", r"\text{b}"]) == [0, 0]  # these may be variables
    math_answer.definition.check_columns(answer=[gold])


OTHERS = ["a)", "option a", "a or b", "a) or b)", "b) a)", "option a or b", r"\text{not b)}", "(b", "ab", "2b)", "b.5"]
OTHERS += [r"\text{option } a", r"\text{option } a \text{ or } b", r"\text{not option } b", r"\text{option } b+1"]


@pytest.mark.parametrize("answer", OTHERS)
def test_another_choice_or_two_are_refused(answer):
    assert math_answer([rf"\boxed{{{answer}}}"], answer=["B"]) == [0.0]


@pytest.mark.parametrize("answer", ["x", "x)", "option x"])
def test_a_small_letter_is_no_capital_variable(answer):
    assert math_answer([rf"\boxed{{{answer}}}"], answer=["X"]) == [0.0]
