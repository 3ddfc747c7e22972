"""`check rewards --attack` finds the holes of naive rewards, and none in the library's rewards."""

import json
import re
from pathlib import Path

import attack_table
import naive_rewards
import pytest
from datasets import Dataset

from trl_grpo_plus import registry
from trl_grpo_plus.cli.check import rewards
from trl_grpo_plus.cli.check.attack import attack
from trl_grpo_plus.cli.check.attacks import ATTACKS, Target, as_decimal
from trl_grpo_plus.cli.main import main
from trl_grpo_plus.registry import Reward, find, get_reward
from trl_grpo_plus.rewards import LIBRARY
from trl_grpo_plus.utils.tables import FAILED, OK, UNSEEN, WARNED
from trl_grpo_plus.utils.validation import ConfigError


NAIVE = Path(naive_rewards.__file__)
PAGE = Path(__file__).parents[2] / "docs" / "rewards.md"
ROWS = [
    {"prompt": "Natalia sold 48 clips in April, and half as many in May. How many?", "answer": "72"},
    {"prompt": "What is 5 - 12?", "answer": "-7"},
    {"prompt": "Tom has 1000 marbles and 3 times as many beads. How many beads?", "answer": "3000"},
    {"prompt": "What is half of 9?", "answer": "4.5"},
    {"prompt": "How much is 12 an hour for 50 minutes?", "answer": "10"},
]


def rows_of(reward, rows=ROWS, **options):
    reward = Reward(find(reward if ":" not in reward else f"{NAIVE}{reward}")).prepare()
    return {row.name: row for row in attack(reward, rows and Dataset.from_list(rows), **options)}


def named(rows, status):
    return {name for name, row in rows.items() if row.status == status}


@pytest.mark.parametrize(
    ("name", "holes", "warnings"),
    [
        (
            "contains_answer",
            {"enumeration", "candidates", "wrong part", "contradiction", "hidden"},
            {"negation", "thinking", "no form", "honest: spelling"},
        ),
        ("last_tag", {"candidates", "hidden"}, {"negation", "thinking", "no form", "honest: spelling"}),
        (
            "last_number",
            {"candidates", "wrong part", "hidden"},
            {"negation", "thinking", "no form", "honest: spelling"},
        ),
    ],
)
def test_holes_of_naive_rewards_are_found(name, holes, warnings):
    rows = rows_of(f":{name}", [row for row in ROWS if name != "last_number" or row["answer"].isdigit()])
    assert named(rows, FAILED) == holes
    assert named(rows, WARNED) == warnings
    assert rows["form"].status == OK


def test_a_reward_that_pays_any_answer_in_its_form_fails():
    rows = rows_of(":well_formed")
    assert {"empty", "no answer", "judge's words"} <= named(rows, FAILED)
    assert "<answer>" in rows["form"].text


GOLDS = {
    "commas": ["1,200", "13,500", "-4,000"],
    "fractions": ["3/4", "1/2", "-7/3"],
    "percentages": ["50%", "12%", "7.5%"],
    "dollars": ["$18", "$20", "-$5"],
    "tuples": ["(1, 2)", "[0, 1]", "(5, -6)"],
}


@pytest.mark.parametrize("golds", GOLDS.values(), ids=GOLDS)
def test_each_way_to_write_a_gold_answer_is_attacked(golds):
    rows = [{"prompt": f"Question {gold}?", "answer": gold} for gold in golds]
    found = rows_of(":last_tag", rows)
    assert found["wrong part"].status == OK
    assert found["honest: spelling"].status == WARNED
    assert named(found, UNSEEN) <= {"enumeration", "look-alike"}
    assert rows_of(":contains_answer", rows)["wrong part"].status == FAILED


@pytest.mark.parametrize("golds", GOLDS.values(), ids=GOLDS)
def test_wrong_parts_are_wrong_and_spellings_are_right(golds):
    rows = rows_of("math_answer", [{"prompt": "Question?", "answer": gold} for gold in golds])
    assert {name: rows[name].text for name in rows if rows[name].status == FAILED} == {}
    assert rows["honest: spelling"].status == OK, rows["honest: spelling"].text


@pytest.mark.parametrize(("gold", "decimal"), [("3/4", "0.75"), (r"\frac{7}{8}", "0.875"), ("-1/2", "-0.5")])
def test_a_fraction_is_also_spelled_as_a_decimal(gold, decimal):
    assert decimal in ATTACKS["honest: spelling"].build(Target({}, gold))


def test_a_fraction_without_an_end_is_not_rounded():
    assert as_decimal("1/3") == []


def test_an_attack_of_which_nothing_was_tried_is_not_seen():
    rows = rows_of(":last_tag", [{"answer": answer} for answer in ("Paris", "Rome")])
    assert (rows["prompt"].status, rows["prompt"].text) == (UNSEEN, "nothing to try on these rows")


def test_a_reward_that_pays_for_nan_fails():
    rows = rows_of(":within_a_thousandth")
    assert rows["not a number"].status == FAILED
    assert "'<answer>nan</answer>' scores 1" in rows["not a number"].text


@pytest.mark.parametrize("name", ["of_trls_form", "of_length"])
def test_a_reward_that_takes_no_gold_answer_is_not_attacked(name):
    (row,) = rows_of(f":{name}").values()
    assert row.status == UNSEEN
    assert row.text.startswith(
        "the scores stay the same when the gold answer changes. Either the reward ignores the answer"
    )


def test_a_reward_that_takes_its_gold_answer_from_all_columns_is_attacked():
    assert rows_of(":of_all_columns")["wrong part"].status == FAILED


def test_each_hole_shows_a_completion_its_score_and_the_gold_answer():
    text = rows_of(":last_tag")["candidates"].text
    assert "'<answer>-7</answer> or <answer>72</answer>' scores 2, where the gold answer is '72'" in text
    assert "hedging between answers is rewarded: " in text


# These rewards ignore a denial before the box or tag, as their docstrings say: the last box or tag counts.
DENIED = {"choice_answer", "countdown", "gsm8k_answer", "math_answer", "reasoning_gym"}


# No answer of theirs is the only right one.
HOLES = {
    "instruction_checks": {"no answer", "not a number", "judge's words", "long"},
    "json_schema": set(),
    "regex_match": {"candidates"},
}
OPTIONS = {"cosine_length": {"max_length": 100}, "overlong": {"max_length": 100, "cache": 20}}
NO_GOLD = {"cosine_length", "overlong", "python_tests", "repetition", "steps_check", "think_format"}
ONE_ANSWER = sorted(set(LIBRARY) - set(HOLES) - NO_GOLD)


@pytest.mark.parametrize("name", ONE_ANSWER)
def test_no_reward_of_the_library_with_one_right_answer_has_a_hole(name):
    rows = rows_of(name, None)
    assert named(rows, FAILED) == set()
    assert {rows[attack].text for attack in named(rows, UNSEEN)} <= {"nothing to try on these rows"}
    known = {"negation"} if name in DENIED else set()
    known |= {"no form"} if name == "choice_answer" else set()
    assert {warning for warning in named(rows, WARNED) if not warning.startswith("honest")} == known


@pytest.mark.parametrize("name", HOLES)
def test_rewards_of_the_library_with_many_right_answers_have_the_holes_that_are_told(name):
    assert named(rows_of(name, None), FAILED) == HOLES[name]


@pytest.mark.parametrize("name", sorted(NO_GOLD))
def test_rewards_of_the_library_whose_examples_have_no_gold_answers_are_not_attacked(name):
    reward = get_reward(name, **OPTIONS.get(name, {}))
    assert {row.status for row in attack(reward.prepare())} == {UNSEEN}


def test_the_page_of_rewards_says_what_each_reward_of_the_library_fails_at():
    pattern = r"^The results for the rewards that ship .*?(?=^The last three columns )"
    (told,) = re.findall(pattern, PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert {name for name in LIBRARY if f"`{name}`" in told} == set(LIBRARY)


def test_the_table_of_attacks_is_what_the_attacks_find():
    assert attack_table.TABLE.findall(PAGE.read_text()) == [attack_table.table()]


PROGRAMS = {"+": ("3", "12"), "*": ("2", "35")}


@pytest.mark.full
def test_of_two_programs_on_one_line_the_first_is_run():
    rows = [
        {
            "prompt": f"Read two numbers. Print a {sign} b.",
            "tests": [{"stdin": "1 2", "stdout": printed[0]}, {"stdin": "5 7", "stdout": printed[1]}],
            "solution": f"a, b = map(int, input().split())\nprint(a {sign} b)",
        }
        for sign, printed in PROGRAMS.items()
    ]
    found = rows_of("python_tests", rows)
    assert named(found, FAILED) == {"candidates"}


def test_math_answer_takes_each_honest_completion():
    rows = rows_of("math_answer")
    assert named(rows, FAILED) == set()
    assert named(rows, WARNED) == {"negation"}


def test_a_gold_that_is_a_number_is_attacked(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))

    @registry.register_reward("user_value", gold=lambda answer: answer)
    def by_value(completions, answer):
        return [float(text.strip() == str(wanted)) for text, wanted in zip(completions, answer, strict=True)]

    rows = [{"prompt": row["prompt"], "answer": int(row["answer"])} for row in ROWS if row["answer"].isdigit()]
    found = {row.name: row for row in attack(get_reward("user_value"), Dataset.from_list(rows))}
    assert named(found, FAILED) == set()
    assert found["form"].text == "gold answers were posed as '72', which scores 1"


def test_completions_are_shown_as_they_were_written():
    found = {row.name: row.text for row in attack(get_reward("math_answer"))}
    assert r"posed as '\boxed{\frac{1}{2}}', which scores 1" in found["form"]
    assert (
        r"not \boxed{\sqrt{12}}. I do not know the answer.' scores 1, where the gold answer is '\sqrt{12}'"
        in found["negation"]
    )


def test_a_conversation_is_attacked_with_messages():
    chats = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in ROWS]
    assert "candidates" in named(rows_of(":of_messages", chats), FAILED)


def test_a_reward_that_raises_fails_and_the_error_is_named():
    long = rows_of(":fails_on_long")["long"]
    assert long.status == FAILED
    assert long.text.startswith("the reward stops the run at 25 of 35, such as 'word word")
    assert "MemoryError: too long" in long.text


@pytest.mark.parametrize("unit", ["beads", None], ids=["each row is scored", "a row abstains"])
def test_a_row_whose_gold_answer_raises_does_not_hide_the_others(unit):
    rows = [{**row, "unit": "beads"} for row in ROWS] + [{**ROWS[0], "unit": unit}]
    assert rows_of(":fails_on_fractions", rows)["form"].status == OK


def test_a_reward_without_gold_answers_in_its_examples_is_skipped_and_others_are_attacked(capsys):
    (row,) = rows_of("python_tests", None).values()
    assert row.status == UNSEEN
    assert row.text == (
        "no gold answers: none can be made of the reward's own examples. Give a dataset with gold answers: --dataset"
    )
    assert main(["check", "rewards", "python_tests", "exact_answer", "--attack"]) == 0
    printed = capsys.readouterr().out
    assert "not seen  no gold answers: " in printed
    assert "exact_answer\n\nform " in printed


def test_rows_without_gold_answers():
    empty = [{**row, "tests": [{"stdin": "", "stdout": "1"}], "solution": None} for row in ROWS]
    (row,) = rows_of("python_tests", empty).values()
    assert (row.status, row.text) == (
        UNSEEN,
        "no gold answers: none of the 5 rows tried has one. Give a dataset with gold answers",
    )
    some = [{**ROWS[0], "answer": None}, *ROWS]
    assert rows_of(":contains_answer", some)["form"].status == OK


def test_the_form_may_be_given():
    rows = rows_of(":contains_answer", gold="So: {answer}!")
    assert "'So: 72!'" in rows["form"].text
    with pytest.raises(ConfigError, match=r"--gold 'So' has no \{answer\}"):
        rows_of(":contains_answer", gold="So")
    with pytest.raises(
        ConfigError, match=r"--gold '\[\{answer\}\]' does not earn full marks.* such as a reward for length"
    ):
        rows_of("exact_answer", gold="[{answer}]")


def test_the_form_of_trls_example_is_found(monkeypatch):
    monkeypatch.setattr(rewards, "LIMIT_S", 1)
    assert "scores 1" in rows_of(":of_one_line")["form"].text


def test_a_regular_expression_that_would_hang_a_run_is_found(monkeypatch):
    """Unsloth's example has one. Its form is found too."""
    monkeypatch.setattr(rewards, "LIMIT_S", 1)
    rows = rows_of(":after_working_out")
    assert "scores 1" in rows["form"].text
    assert rows["long"].status == FAILED
    assert rows["long"].text.startswith("it did not return within 1 s: ")
    assert "the longest of 120,004 characters. A run would hang." in rows["long"].text


def test_a_gold_column_is_a_text_or_a_number():
    with pytest.raises(ConfigError, match="none of the columns prompt, answer is known to hold the gold answer"):
        attack(
            get_reward(f"{NAIVE}:contains_answer", columns={"answer": "result"}),
            Dataset.from_list([{"prompt": row["prompt"], "result": [row["answer"]]} for row in ROWS]),
        )


def test_a_renamed_column_is_attacked():
    renamed = Dataset.from_list([{"prompt": row["prompt"], "result": row["answer"]} for row in ROWS])
    rows = attack(get_reward("math_answer", column="result"), renamed)
    assert {row.name for row in rows if row.status == FAILED} == set()
    assert {row.name for row in rows} == {"form", *ATTACKS}


def test_the_command_prints_a_table_and_fails_where_there_is_a_hole(tmp_path, capsys):
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    assert main(["check", "rewards", f"{NAIVE}:contains_answer", "--dataset", str(data), "--attack"]) == 1
    printed = capsys.readouterr().out
    assert "\nFAILED: enumeration, candidates, wrong part, contradiction, hidden." in printed
    assert main(["check", "rewards", "math_answer", "--dataset", str(data), "--attack"]) == 0
    assert main(["check", "rewards", "math_answer", "--gold", "x"]) == 2
    assert "--gold is for --attack" in capsys.readouterr().err


def test_an_async_function_is_attacked(tmp_path, capsys):
    data, rewards = tmp_path / "data.jsonl", tmp_path / "rewards.py"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    rewards.write_text(
        "import asyncio\n\n\nasync def judge(completions, answer):\n    await asyncio.sleep(0)\n"
        "    return [float(a in c) for c, a in zip(completions, answer)]\n"
    )
    assert main(["check", "rewards", f"{rewards}:judge", "--dataset", str(data), "--attack"]) == 1
    assert "\nFAILED: enumeration, candidates, wrong part, contradiction, hidden." in capsys.readouterr().out


@pytest.mark.parametrize("limit", ["0", "1"])
def test_too_few_rows_are_refused(tmp_path, capsys, limit):
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    assert main(["check", "rewards", "math_answer", "--dataset", str(data), "--attack", "--limit", limit]) == 2
    assert f"--limit: {limit} rows are not enough" in capsys.readouterr().err


def test_a_form_may_hold_braces():
    assert "'{} so: 72'" in rows_of(":contains_answer", gold="{} so: {answer}")["form"].text
