"""The reward `reasoning_gym` and its `make_dataset`: scores, refused tasks, bad rows, hostile answers."""

import contextlib
import importlib
import json
import os

import pytest
from case_tables import misjudged
from datasets import Dataset
from slow_cases import one_in

from trl_grpo_plus.registry import RewardError, get_reward
from trl_grpo_plus.scoring import outcome_of
from trl_grpo_plus.scoring.failures import warn_of_first


library = pytest.importorskip("reasoning_gym")
module = importlib.import_module("trl_grpo_plus.rewards.reasoning_gym_answer")
reward, make_dataset, REFUSED = module.reasoning_gym, module.make_dataset, module.REFUSED

# To generate an item of these tasks takes 0.1 s or more.
SLOW = ("futoshiki", "knight_swap", "sokoban", "zebra_puzzles", "intermediate_integration")
WITHOUT_ORACLE = ("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour")
ACCEPTED = sorted(set(library.factory.DATASETS) - set(REFUSED))
SUM = {"question": "2 + 3 =", "answer": "5", "metadata": {}}


def score(completion, task="chain_sum", entry=None):
    """Score in this process, without a time limit."""
    return reward.definition.function([completion], task=[task], entry=[SUM if entry is None else entry])[0]


def item(task, index=0, **config):
    return json.loads(make_dataset({task: config}, size=index + 1, seed=11)["entry"][index])


@pytest.mark.parametrize("entry", [SUM, json.dumps(SUM)], ids=["a dict", "JSON"])
def test_chain_sum(entry):
    assert misjudged("reasoning_gym", lambda completion: score(completion, entry=entry)) == []


@pytest.mark.parametrize("task", one_in(3, (task for task in ACCEPTED if task not in WITHOUT_ORACLE)))
def test_the_right_answer_of_every_accepted_task_gets_full_marks(task):
    rows = make_dataset({task: {}}, size=2 if task in SLOW else 8, seed=5)
    reward.definition.check_columns(task=list(rows["task"]), entry=list(rows["entry"]))
    for entry in rows["entry"]:
        gold = reward.definition.gold(task=task, entry=entry)
        assert score(gold, task, entry) == 1.0


@pytest.mark.parametrize("task", WITHOUT_ORACLE)
def test_a_task_without_a_right_answer_has_no_gold_and_scores(task):
    entry = item(task)
    assert reward.definition.gold(task=task, entry=entry) is None
    assert score("<answer>nothing sensible</answer>", task, entry) < 0.1


@pytest.mark.parametrize(
    ("task", "where"),
    [("graph_color", "possible_answer"), ("propositional_logic", "example_answer"),
     ("rubiks_cube", "example_correct_answer")],
)  # fmt: skip
def test_an_example_answer_scores_where_there_is_no_right_one(task, where):
    entry = item(task)
    answer = entry["metadata"][where]
    assert score(f"<answer>{answer if isinstance(answer, str) else json.dumps(answer)}</answer>", task, entry) == 1.0


def test_white_space_around_the_answer_does_not_count_where_the_scorer_compares_texts():
    entry = item("caesar_cipher")
    assert score(f"<answer>\n {entry['answer']} \t</answer>", "caesar_cipher", entry) == 1.0


@pytest.mark.parametrize("completion", ["", "R", "<answer></answer>", "<answer>\n</answer>"])
def test_no_answer_scores_nothing_where_the_scorer_gives_something(completion):
    assert score(completion, "rubiks_cube", item("rubiks_cube")) == 0.0
    assert score("<answer>R</answer>", "rubiks_cube", item("rubiks_cube")) > 0.0


# task -> answers on which its scorer raises.
RAISING = {
    "prime_factorization": ["x", "2 × x", "nan", "½"],
    "game_of_life": ['{"a": 1}', "{}"],
    "boxnet": ["1", "1.5", "true", "[]", "[1]"],
    "power_function": ["x", "nan", "1e999999"],
    "dice": ["1/0", "x/y"],
}


@pytest.mark.parametrize(
    ("task", "answer"), [(task, answer) for task, answers in RAISING.items() for answer in answers]
)
def test_an_answer_that_a_scorer_cannot_read_scores_nothing(task, answer):
    assert score(f"<answer>{answer}</answer>", task, item(task)) <= 0.05


JUNK = [
    "nan", "inf", "-inf", "None", "[]", "{}", "()", "x", "\x00", "\ud800", "1e999", "(" * 10_000, "[" * 100_000, "½",
    "9" * 5000, "a" * 100_000, "\n".join("ab"), "1,2,3", "-", "{'a': 1}", "null",
]  # fmt: skip


@pytest.mark.parametrize("task", one_in(3, ACCEPTED))
def test_junk_never_gets_full_marks_and_never_raises(task):
    entry = item(task)
    scores = [score(f"<answer>{junk}</answer>", task, entry) for junk in JUNK if junk != entry["answer"]]
    assert [one for one in scores if not (isinstance(one, float) and 0.0 <= one < 1.0)] == []


def test_scores_are_between_0_and_1(monkeypatch):
    for raw, expected in [(1.5, 1.0), (-1, 0.0), (True, 1.0)]:
        monkeypatch.setattr(module, "_scorer", lambda task, config, raw=raw: lambda answer, entry: raw)
        assert score("<answer>5</answer>") == expected
        assert type(score("<answer>5</answer>")) is float


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (float("nan"), "The scorer of chain_sum gave nan for '5'."),
        (float("inf"), "The scorer of chain_sum gave inf for '5'."),
        (None, "The scorer of chain_sum failed on '5': TypeError("),
    ],
)
def test_a_scorer_that_fails_scores_nothing_and_is_told_of(monkeypatch, raw, why):
    monkeypatch.setattr(module, "_scorer", lambda task, config: lambda answer, entry: raw)
    scored = outcome_of(score("<answer>5</answer>"))
    assert (scored.score, scored.status) == (0.0, "error")
    assert scored.message.startswith(why)


def test_scorers_print_nothing_and_warn_of_nothing(capsys, recwarn):
    score("<answer>Move disk 1 from Peg 9 to Peg 8</answer>", "tower_of_hanoi", item("tower_of_hanoi"))
    score("<answer># x</answer>", "pool_matrix", item("pool_matrix"))
    assert capsys.readouterr() == ("", "")
    assert not recwarn.list


def test_scorers_know_the_settings_of_their_items():
    """word_ladder's scorer knows only words of the length in its settings, by default 4 letters."""
    settings = {"min_word_length": 3, "max_word_length": 3}
    entry = item("word_ladder", **settings)
    assert entry["config"] == settings
    gold = f"<answer>{entry['answer']}</answer>"
    assert score(gold, "word_ladder", entry) == 1.0
    assert score(gold, "word_ladder", entry | {"config": {}}) == 0.0


# -- tasks that are refused


PAYLOAD = "__import__('os').environ.__setitem__('ANSWER_RAN', 'yes')"
FORMS = [f"({PAYLOAD}) or '1'", f"({PAYLOAD})or'1'", f"[['1',str({PAYLOAD})]]"]


def ran(scorer, answers, entry):
    os.environ.pop("ANSWER_RAN", None)
    for answer in answers:
        with contextlib.suppress(Exception):
            scorer(answer, entry)
    return os.environ.pop("ANSWER_RAN", None) is not None


@pytest.mark.parametrize("task", [task for task in sorted(library.factory.DATASETS) if task != "composite"])
def test_what_executes_answers_or_rows_is_refused_and_nothing_else_does(task):
    if task in SLOW and task not in REFUSED:
        pytest.skip("slow to generate, and looked at by hand")
    made = library.create_dataset(task, size=1, seed=1)
    entry = made[0]
    in_metadata = {key: PAYLOAD if isinstance(value, str) else value for key, value in entry["metadata"].items()}
    rows = [entry | {"answer": PAYLOAD}, entry | {"metadata": in_metadata}]
    by_row = any(ran(made.score_answer, ["1", "[1]", '["1"]'], row) for row in rows)
    executes = ran(made.score_answer, FORMS, entry) or by_row
    assert executes == ("executes" in REFUSED.get(task, ""))


@pytest.mark.parametrize(
    ("task", "answer"), [("game_of_life_halting", "whatever"), ("coin_flip", "0"), ("complex_arithmetic", "nan")]
)
def test_what_gives_full_marks_to_one_answer_is_refused(task, answer):
    made = library.create_dataset(task, size=50, seed=1)
    # Not all 50: coin_flip's scorer refuses the answer 0 where the probability is 1.
    assert sum(made.score_answer(answer, made[i]) for i in range(50)) > 45
    assert task in REFUSED


@pytest.mark.parametrize("task", ["arc_agi", "rearc"])
def test_what_a_dataset_cannot_hold_is_refused(task):
    made = library.create_dataset(task, size=1, seed=1)
    assert made.score_answer(made[0]["answer"], made[0]) == 1.0
    assert made.score_answer(made[0]["answer"], json.loads(json.dumps(made[0]))) == 0.05
    assert task in REFUSED


@pytest.mark.parametrize("task", REFUSED)
def test_a_refused_task_is_refused_everywhere_with_its_reason(task):
    for call in (
        lambda: reward.definition.check_columns(task=["chain_sum", task], entry=[SUM, SUM]),
        lambda: score("<answer>5</answer>", task),
        lambda: make_dataset({task: {}}, size=1, seed=0),
    ):
        with pytest.raises(ValueError, match=f"the task {task} is not for training: ") as error:
            call()
        assert REFUSED[task] in str(error.value)


def test_without_the_library_it_is_said_what_to_install(monkeypatch):
    def missing(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(module.importlib, "import_module", missing)
    with pytest.raises(ImportError, match=r"pip install 'trl-grpo-plus\[reasoning-gym\]'"):
        make_dataset({"chain_sum": {}}, size=1, seed=0)


# -- make_dataset


def test_make_dataset_deals_rows_to_the_tasks_in_turn():
    rows = make_dataset({"chain_sum": {"max_terms": 2}, "gcd": {}}, size=5, seed=3)
    assert isinstance(rows, Dataset)
    assert rows.column_names == ["prompt", "task", "entry"]
    assert list(rows["task"]) == ["chain_sum", "gcd", "chain_sum", "gcd", "chain_sum"]
    entries = [json.loads(entry) for entry in rows["entry"]]
    assert [messages[1]["content"] for messages in rows["prompt"]] == [entry["question"] for entry in entries]
    assert {messages[0]["content"] for messages in rows["prompt"]} == {module.SYSTEM_PROMPT}
    assert "<answer>" in module.SYSTEM_PROMPT
    assert [entry["config"] for entry in entries[:2]] == [{"max_terms": 2}, {}]
    assert len(set(rows["entry"])) == 5


def test_make_dataset_repeats_itself_by_seed():
    tasks = {"chain_sum": {}, "gcd": {}}
    assert make_dataset(tasks, 6, seed=1)["entry"][:] == make_dataset(tasks, 6, seed=1)["entry"][:]
    assert make_dataset(tasks, 6, seed=1)["entry"][:] != make_dataset(tasks, 6, seed=2)["entry"][:]
    assert make_dataset(tasks, 6, seed=1)["entry"][:4] == make_dataset(tasks, 4, seed=1)["entry"][:]


def test_make_dataset_takes_another_system_prompt_or_none():
    assert [m["role"] for m in make_dataset({"gcd": {}}, 1, seed=0, system_prompt=None)["prompt"][0]] == ["user"]
    assert make_dataset({"gcd": {}}, 1, seed=0, system_prompt="Hi")["prompt"][0][0]["content"] == "Hi"
    assert len(make_dataset({"gcd": {}, "lcm": {}}, size=1, seed=0)) == 1


def test_make_dataset_leaves_out_items_whose_answer_is_nothing():
    blank = [i for i in range(60) if not library.create_dataset("ab", size=60, seed=5)[i]["answer"]]
    assert blank
    assert all(json.loads(entry)["answer"] for entry in make_dataset({"ab": {}}, size=60, seed=5)["entry"])


def test_make_dataset_writes_what_json_does_not_know():
    """Some items of gsm_symbolic hold Fractions, which JSON cannot hold."""
    assert len(make_dataset({"gsm_symbolic": {}}, size=60, seed=5)) == 60


@pytest.mark.parametrize(
    ("tasks", "says"),
    [
        ({}, "tasks is empty"),
        ({"chain_sums": {}}, "Did you mean chain_sum"),
        ({"chain_sum": {"min_terns": 2}}, "min_terns"),
        ({"chain_sum": {"min_terms": 0}}, "min_terms"),
        ({"chain_sum": {"size": 3}}, "give size and seed once"),
        ({"chain_sum": {"seed": 3}}, "give size and seed once"),
    ],
)
def test_make_dataset_refuses_what_it_cannot_make(tasks, says):
    with pytest.raises(ValueError, match="make_dataset: ") as error:
        make_dataset(tasks, size=2, seed=0)
    assert says in str(error.value)


# -- in worker processes, as training runs it


def test_in_worker_processes_it_scores_as_here():
    rows = make_dataset({"chain_sum": {}, "products": {}}, size=4, seed=0)
    answers = [f"<answer>{json.loads(entry)['answer']}</answer>" for entry in rows["entry"]]
    answers[1] = "no answer"
    scores = get_reward("reasoning_gym")(answers, task=[*rows["task"][:3], None], entry=rows["entry"][:])
    assert scores == [1.0, 0.0, 1.0, None]


def test_in_worker_processes_a_scorer_that_fails_is_told_of_and_stops_no_run(caplog):
    made = get_reward("reasoning_gym")
    answers, entry = ["<answer>x</answer>", "no answer"], json.dumps(item("prime_factorization"))
    outcomes = made.score(answers, task=["prime_factorization"] * 2, entry=[entry] * 2)
    assert [(one.score, one.status) for one in outcomes] == [(0.0, "error"), (0.0, "ok")]
    assert outcomes[0].message.startswith("The scorer of prime_factorization failed on 'x': ValueError(")
    assert made.failure(outcomes, answers) is None
    warn_of_first("reasoning_gym", outcomes, made.policies, set())
    assert "1 of 2 samples ended with status 'error': The scorer of prime_factorization" in caplog.text
    assert "To stop the run at the first" not in caplog.text  # `on_error` does not apply here


def test_in_worker_processes_a_bad_row_stops_the_run():
    with pytest.raises(RewardError, match="countdown"):
        get_reward("reasoning_gym")(["<answer>1</answer>"], task=["countdown"], entry=[json.dumps(SUM)])
