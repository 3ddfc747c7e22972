"""`trl-grpo-plus check` calls a reward without examples and gold answers once, on two rows of the data."""

import json
import textwrap
from types import SimpleNamespace

import pytest
from datasets import Dataset

from trl_grpo_plus.cli.check import data as check_data
from trl_grpo_plus.cli.check import rewards
from trl_grpo_plus.cli.check.rewards import as_row
from trl_grpo_plus.cli.check.trial import check_named, definition_of, is_registered, try_out
from trl_grpo_plus.cli.main import main
from trl_grpo_plus.registry import get_reward
from trl_grpo_plus.utils.tables import FAILED, OK, UNSEEN


SOURCE = textwrap.dedent("""
    import asyncio, os, time, urllib.error

    calls = []


    def right(completions, answer):
        calls.append(list(completions))
        return [float(text == gold) for text, gold in zip(completions, answer)]


    def short(completions, **kwargs):
        return [1.0]


    def single(completions, answer):
        return 1.0


    def words(completions, answer):
        return ["good" for _ in completions]


    def raises(completions, answer):
        return [1 / 0 for _ in completions]


    def exits(completions, answer):
        raise SystemExit(3)


    def needs_ids(completions, completion_ids):
        return [float(len(ids)) for ids in completion_ids]


    def digs_for_state(completions, **kwargs):
        return [float(kwargs["trainer_state"].global_step) for _ in completions]


    def digs_for_answer(completions, **kwargs):
        return [float(text == gold) for text, gold in zip(completions, kwargs["answer"])]


    def offline(completions, answer):
        raise ConnectionRefusedError("no judge")


    async def judge(completions, answer):
        return [None for _ in completions]


    def starts_judge(completions, answer):
        return judge(completions, answer)  # TRL awaits async functions alone


    def logs(completions, answer, log_extra, log_metric):
        log_extra("seen", list(completions))
        log_metric("count", 1.0)
        return [0.0 for _ in completions]


    def pointed(completions, answer, *, point: float = 1.0):
        return [point for _ in completions]


    class Judge:
        def __init__(self, bonus):
            self.bonus = bonus

        def __call__(self, completions, answer):
            return [self.bonus + float(text == gold) for text, gold in zip(completions, answer)]


    instance = Judge(0.5)


    def unreachable(completions):
        raise urllib.error.URLError("no route")


    def without_key(completions):
        return os.environ["THE_JUDGES_KEY"]


    def without_words(completions):
        raise KeyError


    def caused(completions):
        try:
            raise ConnectionRefusedError("no judge")
        except OSError as error:
            raise ValueError("the judge failed") from error


    def cancelled(completions):
        raise asyncio.CancelledError


    def hangs(completions):
        time.sleep(600)
""")
ROWS = [{"prompt": f"{i}+{i}=", "answer": str(2 * i)} for i in range(6)]


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "rw.py").write_text(SOURCE)
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shown(reward, dataset=None):
    return as_row("", [try_out(reward, dataset)])


def tried(name, rows=ROWS):
    return shown(definition_of(f"rw.py:{name}").function, rows and Dataset.from_list(rows))


def test_a_call_that_hangs_is_not_seen(place, monkeypatch):
    monkeypatch.setattr(rewards, "LIMIT_S", 1)
    row = tried("hangs")
    assert row.status == UNSEEN
    assert "TimeoutError: it did not return within 1 s" in row.text


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        (
            "steps_check",
            OK,
            "'' scores 0, '2' scores 0. It has no gold answers, so nobody knows whether these scores are right.",
        ),
        ("json_schema", FAILED, "the dataset: reward 'json_schema' needs the column 'schema', the data has prompt"),
        ("repetition", UNSEEN, "it reads completion_ids, which only the trainer has."),
    ],
)
def test_a_registered_reward_without_gold_is_called_on_the_data(name, status, words):
    examples, call = check_named(name, {}, Dataset.from_list(ROWS))
    assert (examples.what, examples.status, call.what, call.status) == ("examples", OK, "call", status)
    (said,) = call.problems or (call.unseen or call.note,)
    assert words in said
    assert "Register it" not in said


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("right", OK, "called once, on 2 rows of the data, in less than a second: '' scores 0, '2' scores 1."),
        ("judge", OK, "'' is not scored (None), '2' is not scored (None)."),
        ("logs", OK, "'' scores 0, '2' scores 0."),
        ("instance", OK, "'' scores 0.5, '2' scores 1.5."),
        ("digs_for_answer", OK, "'2' scores 1"),
        (
            "short",
            FAILED,
            "called once, on 2 rows of the data: it returned 1 rewards for 2 completions. Return a list",
        ),
        (
            "single",
            FAILED,
            "it must return one reward for each completion, in a list, a tensor or an array, got float: 1.0.",
        ),
        (
            "starts_judge",
            FAILED,
            "it must return one reward for each completion, in a list, a tensor or an array, got coroutine",
        ),
        ("words", FAILED, "The reward must be a finite number or None, got 'good'. The completion was ''."),
        ("raises", FAILED, "it failed, ZeroDivisionError: division by zero ("),
        ("exits", FAILED, "it failed, SystemExit: 3 ("),
        ("Judge", FAILED, "it is a class, and calling a class makes an object, not rewards"),
        ("cancelled", FAILED, "it failed, CancelledError"),
        ("unreachable", UNSEEN, "cannot reach or find what the reward needs, URLError: <urlopen error no route>"),
        ("without_key", UNSEEN, "cannot reach or find what the reward needs, KeyError: 'THE_JUDGES_KEY'"),
        ("without_words", FAILED, "it failed, KeyError: "),
        ("caused", UNSEEN, "cannot reach or find what the reward needs, ValueError: the judge failed"),
        ("needs_ids", UNSEEN, "it reads completion_ids, which only the trainer has. Register it"),
        ("digs_for_state", UNSEEN, "it reads trainer_state, which only the trainer has. Register it"),
        (
            "offline",
            UNSEEN,
            "this machine cannot reach or find what the reward needs, ConnectionRefusedError: no judge (",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:coroutine")
def test_a_call_on_two_rows_shows_what_the_run_would_stop_at(place, name, status, words):
    row = tried(name)
    assert row.status == status
    assert words in row.text
    assert "\n" not in row.text
    if status == UNSEEN and "trainer" in row.text:
        assert f"@register_reward('{name}', examples=[...], gold=...)" in row.text


def test_the_reward_is_called_once_and_on_two_rows(place):
    tried("right")
    assert definition_of("rw.py:right").function.__globals__["calls"] == [["", "2"]]


@pytest.mark.parametrize(
    ("name", "status"),
    [("short", FAILED), ("right", UNSEEN), ("digs_for_answer", UNSEEN), ("Judge", FAILED)],
)
def test_without_rows_the_reward_is_called_if_it_needs_no_column(place, name, status):
    row = tried(name, None)
    assert row.status == status
    assert ("--dataset" in row.text) == (status == UNSEEN)


def test_a_conversation_and_a_stream(place):
    chats = [{"prompt": [{"role": "user", "content": row["prompt"]}], "answer": row["answer"]} for row in ROWS]
    row = shown(lambda completions: [float(len(turns[-1]["content"])) for turns in completions], chats)
    assert "'' scores 0, '2' scores 1." in row.text
    assert try_out(definition_of("rw.py:right").function, Dataset.from_list(ROWS).to_iterable_dataset()).status == OK


def test_a_column_that_the_data_lacks(place):
    row = tried("right", [{"prompt": "1+1=", "solution": "2"}])
    assert row.status == FAILED
    assert "reward 'right' needs the column 'answer', the data has prompt, solution." in row.text


def test_a_reward_with_arguments_is_called_with_them(place):
    row = shown(get_reward("rw.py:pointed", point=0.25), Dataset.from_list(ROWS))
    assert "'' scores 0.25, '2' scores 0.25." in row.text


def test_a_plain_function_with_the_name_of_a_registered_one(place):
    (place / "own.py").write_text("def math_answer(completions, answer):\n    return [0.0 for _ in completions]\n")
    assert not is_registered(definition_of("own.py:math_answer"))
    assert is_registered(definition_of("math_answer"))
    assert main(["check", "rewards", "own.py:math_answer", "--dataset", "data.jsonl"]) == 0


@pytest.mark.parametrize("options", [[], ["--dataset", "data.jsonl"], ["--dataset", "data.jsonl", "--attack"]])
def test_the_command_fails_where_the_first_batch_would(place, capsys, options):
    assert main(["check", "rewards", "rw.py:short", *options]) == 1
    printed = capsys.readouterr().out
    assert "FAILED" in printed
    assert "it returned 1 rewards for 2 completions." in " ".join(printed.split())


def test_the_command_says_what_was_not_seen(place, capsys):
    assert main(["check", "rewards", "rw.py:needs_ids", "rw.py:right"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("rw.py:needs_ids not seen call: ")
    assert " rw.py:right not seen call: it needs the column 'answer'. There are no rows here" in printed


def test_an_object_is_checked_as_the_trainer_would_call_it(place, capsys):
    assert main(["check", "rewards", "rw.py:instance", "--dataset", "data.jsonl"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "'2' scores 1.5." in printed
    assert "It is an object: give it to the trainer in Python" in printed


@pytest.mark.parametrize(
    ("name", "status"),
    [("right", OK), ("short", FAILED), ("Judge", FAILED), ("needs_ids", UNSEEN)],
)
def test_a_recipe_reward_that_was_not_called_is_not_ok(place, name, status):
    rows = Dataset.from_list(ROWS)
    recipe = SimpleNamespace(train_set=rows, sets={"train_dataset": rows})
    row, ms = check_data._score(recipe, definition_of(f"rw.py:{name}").function)
    assert (row.name, row.status, ms) == (name, status, 0.0)


def test_a_reward_that_cannot_be_loaded_is_told_with_the_line_at_fault(tmp_path):
    path = tmp_path / "broken_rewards.py"
    path.write_text("import json\n\nimport not_installed_anywhere\n")
    (broken,) = check_named(f"{path}:f", {})
    assert broken.problems == (f"ModuleNotFoundError: No module named 'not_installed_anywhere' ({path}:3)",)
    (missing,) = check_named(f"{tmp_path}/nowhere.py:f", {})
    assert missing.problems == (f"there is no file {tmp_path}/nowhere.py.",)
