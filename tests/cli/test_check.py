"""`trl-grpo-plus check rewards`: a sound reward passes; a broken one fails, and sets the exit status."""

import json
from importlib.util import find_spec

import pytest
from datasets import Dataset

from trl_grpo_plus import registry
from trl_grpo_plus.cli.check.rewards import check_examples, check_gold, gold_text
from trl_grpo_plus.cli.main import main
from trl_grpo_plus.registry import Example, get_reward, list_rewards, register_reward
from trl_grpo_plus.utils import optional_packages
from trl_grpo_plus.utils.tables import FAILED


@pytest.fixture
def scratch(monkeypatch):
    """Replace the registry by a copy that a test may write to."""
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))


@pytest.mark.parametrize("name", [name for name in list_rewards() if not name.startswith("user_")])
def test_every_reward_that_ships_scores_its_examples(name):
    finding = check_examples(name)
    assert not finding.problems
    assert finding.right == finding.total >= 3
    examples = registry.find(name).examples
    # A gold answer alone proves nothing: some example must not score full marks.
    assert len({example.reward for example in examples}) > 1


def equal(completions, answer):
    """Return 1.0 for the answer."""
    return [float(text == wanted) for text, wanted in zip(completions, answer, strict=True)]


def lenient(completions, answer):
    """Return 1.0 for any text."""
    return [1.0 for _ in completions]


def raising(completions, answer):
    """Raise an error."""
    raise ZeroDivisionError


def test_a_wrong_example_is_found(scratch):
    register_reward("user_wrong", examples=[Example("4", {"answer": "4"}), Example("5", {"answer": "4"})])(equal)
    finding = check_examples("user_wrong")
    assert (finding.right, finding.total) == (1, 2)
    assert "'5' should score 1.0, not 0.0" in finding.problems[0]
    assert finding.row.status == FAILED


def test_a_reward_that_raises_or_ships_nothing_fails(scratch):
    register_reward("user_raises", examples=[Example("4", {"answer": "4", "hint": 3})])(raising)
    assert "ZeroDivisionError" in check_examples("user_raises").problems[0]
    register_reward("user_bare")(equal)
    assert check_examples("user_bare").problems == ("it ships no examples: register it with examples=",)
    assert check_examples("nowhere").problems[0].startswith("there is no reward named 'nowhere'")
    register_reward("user_odd", examples=[Example("4", {"anser": "4"})])(equal)
    finding = check_examples("user_odd")
    assert (finding.right, finding.total) == (0, 0)
    assert "TypeError: reward 'user_odd' needs the column 'answer'" in finding.problems[0]


ANSWERS = Dataset.from_dict({"solution": [str(i) for i in range(40)] + [None]})


def check_gold_of(score, gold=lambda answer: answer):
    register_reward("user_gold", gold=gold)(score)
    return check_gold(get_reward("user_gold", column="solution"), ANSWERS)


def test_gold_scores_full_marks_and_another_rows_does_not(scratch):
    gold, shuffled = check_gold_of(equal)
    assert (gold.what, gold.right, gold.total, gold.problems) == ("gold", 40, 40, ())
    assert (shuffled.what, shuffled.right, shuffled.total, shuffled.problems) == ("shuffled", 40, 40, ())


def test_a_gold_answer_that_fails(scratch):
    gold, shuffled = check_gold_of(equal, lambda answer: answer + "!" if answer == "7" else answer)
    assert (gold.right, gold.total) == (39, 40)
    assert gold.problems == ("the gold answer '7!' scores 0.0, not 1.0",)
    assert not shuffled.problems


def test_a_reward_that_pays_any_text_fails(scratch):
    gold, shuffled = check_gold_of(lenient)
    assert not gold.problems
    assert len(shuffled.problems) == 40
    assert "scores full marks in a row with answer='0'" in shuffled.problems[0]


def bracketed(completions, answer):
    """Return 1.0 for the answer in brackets, and for an even answer also without brackets."""
    golds = [(f"<{wanted}>", wanted if int(wanted) % 2 == 0 else "") for wanted in answer]
    return [float(text in allowed) for text, allowed in zip(completions, golds, strict=True)]


@pytest.mark.parametrize(
    ("score", "gold", "form"),
    [
        (equal, lambda answer: answer, ""),
        (
            lenient,
            lambda answer: answer and f"It is\n\n{answer}",
            "as It is 0. Without this form, as '0', they score full marks too.",
        ),
        (
            bracketed,
            lambda answer: answer and f"<{answer}>",
            "as <0>. Without this form, as '1', 20 of 40 score full marks: the prompt",
        ),
    ],
)
def test_the_form_of_the_gold_answers_and_their_score_without_it_are_shown(scratch, score, gold, form):
    found = check_gold_of(score, gold)[0]
    assert (found.right, found.total) == (40, 40)
    assert (form in found.note) if form else (found.note == "")
    assert found.note in found.row.text


def test_the_form_of_a_gold_answer_that_no_column_holds_is_shown(scratch):
    tasks = Dataset.from_dict({"numbers": [[2, 5, 7], [1, 2, 3]], "target": [25, 6]})
    gold, shuffled = check_gold(get_reward("countdown"), tasks)
    assert gold.note == "The gold answers were posed as <answer>(5 * (7 - 2))</answer>."
    assert shuffled.note == ""


NUMBERS = Dataset.from_dict({"solution": list(range(40))})


def by_value(completions, answer):
    """Return 1.0 for the text of the answer, which is a number."""
    return [float(text == str(wanted)) for text, wanted in zip(completions, answer, strict=True)]


def test_a_gold_gets_the_arguments_that_it_names(scratch):
    def scaled(completions, answer, *, points=2.0, prefix=""):
        return [points * (text == f"{prefix}{gold}") for text, gold in zip(completions, answer, strict=True)]

    register_reward("user_scaled", gold=lambda answer: answer)(scaled)
    assert gold_text(get_reward("user_scaled"), {"answer": "5"}) == "5"
    register_reward("user_prefixed", gold=lambda answer, prefix: prefix + answer)(scaled)
    assert gold_text(get_reward("user_prefixed", prefix="#"), {"answer": "5"}) == "#5"


def test_a_gold_that_is_a_number_is_posed_as_a_text(scratch):
    register_reward("user_gold", gold=lambda answer: answer)(by_value)
    gold, shuffled = check_gold(get_reward("user_gold", column="solution"), NUMBERS)
    assert (gold.right, gold.total, gold.problems, gold.note) == (40, 40, (), "")
    assert shuffled.right == 40
    register_reward("user_equal", gold=lambda answer: answer)(equal)
    gold, _ = check_gold(get_reward("user_equal", column="solution"), NUMBERS)
    assert gold.problems[3] == (
        "the gold answer '3' scores 0.0, not 1.0: answer holds numbers, but a completion is a text, and the two are "
        "never equal"
    )


@pytest.mark.parametrize(
    ("gold", "words"),
    [
        (
            lambda answer: [answer],
            "gold returned [0], of the type list, for a row with answer=0. It must return the text of a right",
        ),
        (lambda answer: answer == 3, "gold returned False, of the type bool, for a row with answer=0"),
        (
            lambda answer: answer.strip(),
            "gold failed on a row with answer=0: AttributeError: 'int' object has no attribute",
        ),
    ],
)
def test_a_gold_that_is_no_text_is_told_from_the_reward(scratch, gold, words):
    register_reward("user_gold", gold=gold)(by_value)
    (finding,) = check_gold(get_reward("user_gold", column="solution"), NUMBERS)
    assert finding.problems[0].startswith(f"reward 'user_gold': {words}")
    assert "\n" not in finding.problems[0]


def test_what_cannot_be_checked_on_data(scratch):
    register_reward("user_gold", gold=lambda answer: answer)(equal)
    assert "needs the column 'answer'" in check_gold(get_reward("user_gold"), ANSWERS)[0].problems[0]
    same = Dataset.from_dict({"answer": ["1", "1"]})
    assert check_gold(get_reward("user_gold"), same)[1].problems == ("all rows have the same gold answer",)


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"solution": str(i * 7)}) + "\n" for i in range(30)))
    return path


def test_the_command(data, capsys):
    assert main(["check", "rewards", "math_answer", "--dataset", str(data), "--args", '{"column": "solution"}']) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for what in ("examples", "gold 30/30, ", "shuffled 30/30, "):
        assert f"math_answer ok {what}" in printed
    posed = r"The gold answers were posed as \boxed{0}. Without this form, as '0', 0 of 30 score full marks: "
    assert f" ms a sample {posed}the prompt must ask for the form. math_answer ok shuffled" in printed
    assert printed.endswith(" All checks passed.")


REGISTERED = """
from trl_grpo_plus.registry import register_reward


@register_reward("user_mine")
def mine(completions, answer):
    return [0.0] * len(completions)
"""


def test_a_failure_is_an_exit_status(scratch, capsys, tmp_path):
    (tmp_path / "mine.py").write_text(REGISTERED)
    assert main(["check", "rewards", f"{tmp_path}/mine.py:mine"]) == 1
    assert "it ships no examples" in capsys.readouterr().out


@pytest.mark.parametrize("with_data", [False, True])
def test_a_reward_whose_package_is_not_installed_is_not_seen(scratch, data, capsys, with_data):
    register_reward("user_needs", examples=[Example("4", {"solution": "4"})], preload=["no_such_thing.part"])(equal)
    options = ["--dataset", str(data)] if with_data else []
    assert main(["check", "rewards", "user_needs", *options]) == 0
    (row,) = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    assert row.endswith("not seen  examples: not installed: no_such_thing. pip install no_such_thing")


def test_the_extra_that_installs_a_missing_package_is_named(monkeypatch, capsys):
    there = find_spec("json")
    monkeypatch.setattr(optional_packages, "find_spec", lambda module: None if module == "math_verify" else there)
    assert main(["check", "rewards", "math_answer", "exact_answer"]) == 0
    printed = capsys.readouterr().out
    assert "not installed: math_verify. pip install 'trl-grpo-plus[rewards]'" in printed
    assert "exact_answer  ok        examples 5/5" in printed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "--dataset needs exactly one reward"),
        (["math_answer", "--args", '{"colum": "x"}'], "has no argument 'colum'"),
        (["math_answer", "--args", "{"], "--args: '{' is not a JSON object"),
        (["math_answer", "--args", "[1]"], "--args: '[1]' is not a JSON object"),
        (["math_answer", "--limit", "0"], "--limit: 0 rows are not enough"),
    ],
)
def test_a_wrong_command_line(data, capsys, options, words):
    assert main(["check", "rewards", *options, "--dataset", str(data)]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--attack"]])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["math_answer", "--args", '{"point": 2}'], "reward 'math_answer' has no argument 'point'"),
        (["overlong", "--args", '{"cache": 2}'], "reward 'overlong' needs args: {max_length: ...}."),
        (["math_answer", "exact_answer", "--args", '{"column": "a"}'], "--args needs exactly one reward"),
        (["--args", '{"column": "a"}'], "--args needs exactly one reward"),
        (["math_answer", "--config", "main"], "--config is for --dataset. Give both, or leave --config out."),
        (["math_answer", "--split", "test"], "--split is for --dataset. Give both, or leave --split out."),
    ],
)
def test_arguments_are_checked_without_data_too(capsys, options, words, message):
    assert main(["check", "rewards", *words, *options]) == 2
    assert message in capsys.readouterr().err


def test_arguments_that_examples_do_not_use_are_named(data, capsys):
    assert main(["check", "rewards", "math_answer", "--args", '{"column": "solution"}']) == 0
    assert "--args was checked but not used, because examples have their own arguments." in capsys.readouterr().out
    assert main(["check", "rewards", "math_answer"]) == 0
    assert "--args" not in capsys.readouterr().out
