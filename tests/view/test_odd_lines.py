"""Files of a run with JSON of an unexpected shape, or folders in their place: every reader reads or names them."""

import copy
import gzip
import http.client
import json
import shutil

import pytest
import synthetic_traces
from browser_pages import ask, serving
from slow_cases import one_in

from trl_grpo_plus import traces
from trl_grpo_plus.cli.main import main
from trl_grpo_plus.view import live_feed
from trl_grpo_plus.view.group_data import by_name
from trl_grpo_plus.view.live_feed import Feed


ODD = [None, [[1]], {"a": [1]}, "text", 0.5]  # the values of the fast test; the others are for the `full` one
ODD += [[], [1], {}, {"a": 1}, {"a": "b"}, "", 0, -1, 2, True, 1e300, 10**40]
ROW = synthetic_traces.row(
    size=2,
    steps={"accuracy": [[3, 0.5]]},
    advantages=[[1, 0.5], [3, -0.5]],
    kl=0.1,
    belief={"mean": 0.5, "std": 0.1, "attempts": 2.0},
    extra={"said": "so"},
    alarms=["repetition"],
)
MESSAGES = [
    {"role": "assistant", "content": "\u00e9 42", "tool_calls": [{"function": {"name": "add", "arguments": {}}}]}
]
METRIC = {"step": 1, "reward": 0.5, "eval_easy_reward": 0.5, "eval_easy_runtime": 1.0, "step_time": 2.0}
ALARM = {"step": 0, "name": "repetition", "message": "it loops", "groups": [[0, 0, 0]]}
ABOUT = {
    **{"rewards": {"accuracy": 1.0, "format": 1.0}, "num_generations": 2, "max_steps": 3, "solved_reward": 2.0},
    **{"zero_variance_tolerance": 1e-6, "failed_reward": 0.0, "model": "a/model", "dataset": {"name": "a", "rows": 3}},
    **{"evaluations": {"eval": 3}, "options": {"learning_rate": 1e-3}, "versions": {"trl": "1"}},
}
FIRST_PROMPT = {"step": 0, "text": "6 times 7?", "tokens": 4, "flags": ["it ends in white space"]}
STATE = {"global_step": 1, "log_history": [METRIC]}
RACE = {"model": "a/model", "rollouts": 4}
FILES = {
    "rollouts/train-00000000.jsonl": ROW,
    "rollouts/metrics.jsonl": METRIC,
    "rollouts/alarms.jsonl": ALARM,
    "rollouts/first_prompt.jsonl": FIRST_PROMPT,
    "rollouts/run.json": ABOUT,
    "trainer_state.json": STATE,
    "race_settings.json": RACE,
}


def a_run(folder):
    rows = [{**copy.deepcopy(ROW), "attempt": attempt, "completion": MESSAGES} for attempt in (0, 1)]
    groups = [[{**row, "step": step, "group": number} for row in rows] for step in (0, 1) for number in (0, 1)]
    journals = {"metrics": [METRIC, {"step": 2, "reward": 1.0}], "alarms": [ALARM], "first_prompt": [FIRST_PROMPT]}
    synthetic_traces.write_traces(folder, groups, about=ABOUT, **journals)
    (folder / "trainer_state.json").write_text(json.dumps(STATE))
    (folder / "race_settings.json").write_text(json.dumps(RACE))
    return folder


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(live_feed, "AT_MOST_EVERY", 0.0)
    return a_run(tmp_path / "run")


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return a_run(tmp_path_factory.mktemp("other") / "other")


def changed(path, line):
    """Replace the second line of a `.jsonl` file, or the whole of another file, by `line`."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else []
    lines[1:2] = [line]
    path.write_text("\n".join([*lines, ""]))


def refusals(run, other, capsys, commands=("view", "compare", "rescore", "export")):
    """Return the error message of each command and of the server, "" where one succeeds.

    A command fails the test if it ends in any way but success or an error message.
    """
    page = str(run.parent / "page.html")
    words = {
        "view": ["view", run, "-o", page],
        "compare": ["view", run, other, "-o", page],
        "rescore": ["rescore", run, "--reward", "exact_answer", "--args", '{"column": "answer"}', "-o", page],
        "export": ["export", run, "--to", "hf", "--overwrite", "-o", run.parent / "hf"],
    }
    found = {}
    for command in commands:
        capsys.readouterr()
        status = main(list(map(str, words[command])))
        error = capsys.readouterr().err
        assert status == (2 if error.startswith("error: ") else 0), error
        found[command] = error.removeprefix("error: ").strip() if status else ""
    followed = Feed(run)
    news = followed.news()
    json.dumps([news, followed.metrics(), followed.lists()], allow_nan=False)
    if news["live"]["groups"]:
        json.dumps(list(followed.texts(0, 0, 99)), allow_nan=False)
    return {**found, "serve": news["live"]["problem"]}


@pytest.mark.parametrize("values", [ODD[:5], pytest.param(ODD[5:], marks=pytest.mark.full)], ids=["some", "all"])
@pytest.mark.parametrize(("name", "key"), one_in(2, ((name, key) for name, value in FILES.items() for key in value)))
def test_a_value_of_an_unexpected_type_is_read_or_the_error_names_its_file(run, other, capsys, name, key, values):
    path = run / name
    before = path.read_bytes()
    for odd in values:
        path.write_bytes(before)
        changed(path, json.dumps({**FILES[name], key: odd}))
        told = refusals(run, other, capsys)
        # All commands read the traces, so all report the same. Only some read the other files.
        wrong = {text for text in told.values() if text}
        assert len(wrong) <= 1, (odd, told)
        assert all(text.startswith(f"{path}") for text in wrong), (odd, told)
        if name.startswith("rollouts/train"):
            assert len(set(told.values())) == 1, (odd, told)


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, value in FILES.items() for key in value])
def test_a_missing_key_is_ignored_or_named(run, other, capsys, name, key):
    path = run / name
    changed(path, json.dumps({one: value for one, value in FILES[name].items() if one != key}))
    told = refusals(run, other, capsys)
    told.pop("rescore")  # rescore needs more keys than the other commands
    assert len({text for text in told.values() if text}) <= 1, told


@pytest.mark.parametrize("line", ["[1]", "5", '"text"', "null", "[" * 100_000, '{"a": 1', "\\udcff", '{"step": 1}'])
def test_every_command_names_the_first_bad_line_and_counts_the_others(run, other, capsys, line):
    path = run / "rollouts" / "train-00000000.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], line, lines[1], line, line, ""]))
    told = refusals(run, other, capsys)
    [said] = set(told.values())
    assert said.startswith(f"{path}, line 2 is no ")
    assert said.endswith("Correct or remove it to read the rest. 2 more lines of it cannot be read.")


def test_errors_in_compressed_traces_are_named_by_every_command(run, other, capsys):
    path = run / "rollouts" / "train-00000000.jsonl"
    lines = path.read_bytes()
    path.unlink()
    packed = path.with_name(f"{path.name}.gz")
    packed.write_bytes(gzip.compress(lines.replace(b'"size": 2', b'"size": [2]', 1)))
    [said] = set(refusals(run, other, capsys).values())
    assert said.startswith(
        f"{packed}, line 1 is no attempt: size of split train, step 0, batch 0, round 0, group 0, att"
    )
    whole = gzip.compress(lines)
    packed.write_bytes(whole[:20] + b"\xff" * 60 + whole[80:])
    [said] = set(refusals(run, other, capsys).values())
    assert said.startswith(f"{packed} is damaged")


@pytest.mark.parametrize("name", [*FILES, "rollouts", "rollouts/thumbnails", "checkpoint-1", "completions"])
def test_a_folder_in_place_of_a_file_and_a_file_in_place_of_a_folder_are_named(run, other, capsys, name):
    path = run / name
    if path.is_file():
        path.unlink()
        path.mkdir()
    else:
        shutil.rmtree(path, ignore_errors=True)
        path.write_text("a file")
    told = refusals(run, other, capsys)
    if name in FILES:
        assert f"{path} is a folder, and should be a file. Move it away." in told.values()
    if name.startswith("rollouts/train"):
        assert len(set(told.values())) == 1, told
    if name == "rollouts":
        assert set(told.values()) == {f"{path} is a file, and should be a folder. Move it away."}


def test_an_error_while_answering_a_request_is_printed_on_the_console(run, capsys, monkeypatch):
    monkeypatch.setattr(Feed, "lists", lambda self: 1 / 0)
    with serving(run) as server, pytest.raises(http.client.RemoteDisconnected):
        ask(server, f"/{server.token}/lists")
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_numbers_that_are_not_finite_are_null(run):
    path = run / "rollouts" / "train-00000000.jsonl"
    path.write_text(path.read_text().replace('"kl": 0.1', '"kl": NaN').replace('"said": "so"', '"said": -Infinity'))
    group = next(traces.groups(run))
    assert [(row["kl"], row["extra"]) for row in group] == [(None, {"said": None})] * 2


def test_an_alarm_without_a_message_has_an_empty_one():
    (alarm,) = by_name([{**ALARM, "message": None}])
    assert alarm["times"][0]["message"] == ""


def test_a_number_too_large_for_a_float_is_null(run, capsys):
    about = json.dumps({**ABOUT, "options": {"beta": 12345}}).replace("12345", "1e400")
    (run / "rollouts" / "run.json").write_text(about)
    assert traces.about(run)["options"] == {"beta": None}
    assert main(["view", str(run)]) == 0


def test_a_carriage_return_within_a_line_is_white_space(run):
    path = run / "rollouts" / "train-00000000.jsonl"
    path.write_bytes(path.read_bytes().replace(b'", "', b'",\r"', 1))
    assert main(["view", str(run)]) == 0


@pytest.mark.parametrize("name", ["train-00000000.jsonl", "train-00000001.jsonl"])
def test_a_file_beside_its_compressed_copy_is_refused(run, capsys, name):
    path = run / "rollouts" / name
    path.with_name(f"{name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    for command in (["view"], ["export", "--to", "jsonl", "-o", str(run / "out.jsonl")]):
        assert main([command[0], str(run), *command[1:]]) == 2
        assert f"{name} and {name}.gz hold the attempts of the same step. Move one of them away." in (
            capsys.readouterr().err
        )


def test_a_file_that_a_resumed_run_moves_meanwhile_is_told(run, capsys, monkeypatch):
    moved = run / "rollouts" / "train-00000001.jsonl"
    listed = traces.files(run)
    moved.rename(run / "moved.jsonl")
    monkeypatch.setattr(traces, "files", lambda folder: listed)
    assert main(["view", str(run)]) == 2
    assert "was moved while it was read, as a resumed run does. Read it again." in capsys.readouterr().err
