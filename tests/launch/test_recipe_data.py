"""The shipped recipes and their data: every YAML, every prepare function on sample rows, and what is refused."""

import dataclasses
import hashlib
import json
import logging
import math
import random
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import yaml
from datasets import Dataset
from transformers import AutoConfig, AutoModelForCausalLM
from trl import DatasetMixtureConfig
from trl.scripts.utils import DatasetConfig

from trl_grpo_plus.cli.check import data as check_data
from trl_grpo_plus.cli.check import hub, samples
from trl_grpo_plus.cli.check.rewards import check_gold
from trl_grpo_plus.launch import accelerate as launch
from trl_grpo_plus.launch import datasets_by_name, preflight, reward_inputs, train
from trl_grpo_plus.launch.command_line import parse
from trl_grpo_plus.launch.recipe import launched
from trl_grpo_plus.recipes import (
    arithmetic,
    code_problems,
    countdown,
    dataset_helpers,
    grpo,
    gsm8k,
    math_problems,
    warm_start,
    word_problems,
)
from trl_grpo_plus.recipes import reasoning_gym_mixture as mixture
from trl_grpo_plus.registry import check_columns, get_reward
from trl_grpo_plus.rewards.countdown import solve
from trl_grpo_plus.scoring import Outcome, Reward
from trl_grpo_plus.utils.tables import FAILED, OK
from trl_grpo_plus.utils.validation import ConfigError, RunError


PAGE = (Path(__file__).parents[2] / "recipes" / "README.md").read_text()
RECIPES = {name: yaml.safe_load(file.read_text()) for name, file in launch.recipes().items()}
WITH_DATA = [name for name in RECIPES if not name.startswith(("arithmetic", "word_problems"))]

# A recipe may state these even with their default values, because they say what the run does.
TELLING = {
    *("per_device_train_batch_size", "num_generations", "max_completion_length", "learning_rate", "report_to"),
    *("zero_variance_groups", "resample_fallback"),
}


def parsed(name, *options):
    return parse(grpo.make_parser(), ["--config", name, "--use_cpu", "true", "--bf16", "false", *options])


def data_of(name, smoke=True):
    """Return a recipe's data and rewards. Sample rows stand in for a dataset of the Hub that has some."""
    script, *others = parsed(name)
    if sample := script.dataset_name and samples.sample_of(script.dataset_name, script.dataset_config):
        script.dataset_name = sample
    return reward_inputs.load_data(script, *others, smoke=smoke), reward_inputs.read_rewards(
        script.reward_funcs, None
    )[0]


def prompts(split):
    return [str(prompt) for prompt in split["prompt"]]


# --- The YAML files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_parses_and_says_what_it_needs(name):
    script, training, *_ = parsed(name)
    assert training.output_dir == f"outputs/{name}"
    assert reward_inputs.read_rewards(script.reward_funcs, training.reward_weights)[0]
    first, blank, *head = launch.recipes()[name].read_text().splitlines()
    assert first.startswith("# ")
    assert blank == "#"
    head = head[: next(place for place, line in enumerate(head) if not line.startswith("#"))]
    assert any(name in line for line in head), "the command"
    if not RECIPES[name].get("use_cpu"):
        facts = [line[2:11].strip() for line in head if re.match(r"# [a-z]+  ", line)]
        assert facts == ["hardware", "install", "memory", "time", "expected"]
        assert "Not run" in "".join(head)
    assert max(map(len, launch.recipes()[name].read_text().splitlines())) <= 119


@pytest.mark.parametrize("name", RECIPES)
def test_no_answer_is_judged_twice_at_length(name):
    """Rewards with a time limit are slow. A second entry of such a reward would run each program again."""
    script, training, *_ = parsed(name)
    rewards, _ = reward_inputs.read_rewards(script.reward_funcs, training.reward_weights)
    times = Counter(reward.definition.target for reward in rewards if getattr(reward, "timeout", None))
    assert set(times.values()) <= {1}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_does_not_repeat_defaults(name):
    kinds = grpo.make_parser().dataclass_types
    fields = {field.name: field for kind in kinds for field in dataclasses.fields(kind)}
    assert {key for key, value in RECIPES[name].items() if _is_default(value, fields[key])} <= TELLING


def _is_default(value, field):
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return value == default and type(value) is type(default)


def gpus():
    """Return the number of training processes of each recipe, as the page states it."""
    cells = [re.split(r" *\| *", line.strip("| ")) for line in PAGE.splitlines() if line.startswith("| [")]
    return {re.match(r"\[(.+?)\]", row[0])[1]: int((re.findall(r"\d+", row[2]) or [1])[-1]) for row in cells}


def test_the_page_and_the_recipes_name_each_other():
    assert set(gpus()) == set(RECIPES)
    for name in RECIPES:
        assert f"[{name}]({name}.yaml)" in PAGE
        command = re.search(rf"trl-grpo-plus run {re.escape(name)}[^`\n]*", PAGE)[0].strip()
        assert command.removesuffix(" --vllm_server_host node1") in launch.recipes()[name].read_text()


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("share", [1, 2], ids=["all GPUs", "half of them"])
def test_the_batch_divides(name, share):
    processes = max(gpus()[name] // share, 1)
    *_, training, model, _ = parsed(name)
    micro = training.per_device_train_batch_size * processes
    assert micro * training.steps_per_generation % training.num_generations == 0
    assert training.steps_per_generation % training.gradient_accumulation_steps == 0
    each = training.num_generations_eval or training.num_generations
    assert training.per_device_eval_batch_size * processes % each == 0
    sharded = "accelerate_config zero" in launch.recipes()[name].read_text()
    assert (model.dtype == "bfloat16") == (sharded or model.use_peft)


def test_each_hub_name_in_a_recipe_has_sample_rows_or_a_config():
    for name, recipe in RECIPES.items():
        if "dataset_name" in recipe:
            assert samples.sample_of(recipe["dataset_name"], recipe.get("dataset_config")), name
        if "model_name_or_path" in recipe:
            assert samples.config_of(recipe["model_name_or_path"]), name
    assert samples.sample_of("openai/gsm8k", "main").endswith("openai__gsm8k__main.jsonl")
    assert samples.sample_of("openai/gsm8k", "other") is None
    assert samples.sample_of("nlile/hendrycks-MATH-benchmark", "any").endswith("nlile__hendrycks-MATH-benchmark.jsonl")
    assert samples.sample_of("nobody/nothing") is None
    assert samples.config_of("nobody/nothing") is None
    samples.config_of("Qwen/Qwen3-4B").clear()
    assert samples.config_of("Qwen/Qwen3-4B")["model_type"] == "qwen3"


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        *[("Qwen/Qwen2.5-0.5B-Instruct", 494_032_768), ("Qwen/Qwen2.5-1.5B-Instruct", 1_543_714_304)],
        *[("Qwen/Qwen2.5-3B-Instruct", 3_085_938_688), ("Qwen/Qwen2.5-7B", 7_615_616_512)],
        *[("Qwen/Qwen2.5-Math-1.5B", 1_543_714_304), ("Qwen/Qwen2.5-Coder-7B-Instruct", 7_615_616_512)],
        *[("Qwen/Qwen3-4B", 4_022_468_096), ("HuggingFaceTB/SmolLM2-135M-Instruct", 134_515_008)],
    ],
)
def test_a_stored_config_makes_a_model_of_the_published_size(model, weights):
    with torch.device("meta"):
        made = AutoModelForCausalLM.from_config(AutoConfig.for_model(**samples.config_of(model)))
    assert sum(weight.numel() for weight in made.parameters()) == weights


# --- Data and rewards go together ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_DATA)
def test_gold_answers_score_full_marks_and_those_of_other_rows_do_not(name, capsys):
    data, rewards = data_of(name)
    assert "left out" not in capsys.readouterr().err
    train, *held_out = (prompts(data[split]) for split in sorted(data, key=lambda split: split != "train"))
    assert held_out
    assert not set(train) & set().union(*held_out)
    for split in data.values():
        assert len(split) > 0
        assert len(set(prompts(split))) == len(split)
        assert all(message["content"] for message in split[0]["prompt"])
        for reward in rewards:
            check_columns(reward, split, "the data")
    judged = [reward for reward in rewards if reward.definition.gold and reward.definition.columns]
    assert judged
    for reward in judged:
        if reward.definition.name != "think_format":
            gold, shuffled = check_gold(reward, data["train"], limit=40)
            assert (gold.right, gold.problems) == (gold.total, ())
            assert shuffled.right >= 0.9 * shuffled.total


# --- rows.py --------------------------------------------------------------------------------------------------------


def script(folder, raw, name="data.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in raw))
    return named(path)


def named(path):
    return SimpleNamespace(dataset_name=path and str(path), dataset_config=None)


def letters(raw):
    if raw["a"] == "bad":
        raise ValueError("that are bad")
    return {"prompt": dataset_helpers.messages(None, raw["a"])}


def test_rows_that_cannot_be_used_are_counted(tmp_path, capsys, monkeypatch):
    source = script(tmp_path, [{"a": text} for text in ["x", "bad", "y", "x", "bad", "z", "w", "v"]])
    data = dataset_helpers.make_splits(source, letters, ["a"], 100)
    kept = [row["prompt"][0]["content"] for split in data.values() for row in split]
    assert sorted(kept) == ["v", "w", "x", "y", "z"]
    counted = (
        f"{source.dataset_name} (train): 3 of 8 rows are left out: 2 that are bad; 1 with a prompt that came before.\n"
    )
    assert capsys.readouterr().err.endswith(counted)
    monkeypatch.setenv("RANK", "1")
    dataset_helpers.make_splits(source, letters, ["a"], 100)
    assert "left out" not in capsys.readouterr().err, "once is enough"


@pytest.mark.parametrize(
    ("raw", "wanted", "message"),
    [
        ([{"a": "x", "b": "y"}], ["a", "c", "d"], r"has no column c, d, only a, b\."),
        ([{"a": "bad"}] * 2, ["a"], r"2 of 2 rows are left out: 2 that are bad\. No row is left\."),
    ],
)
def test_data_that_cannot_be_used_are_refused(tmp_path, raw, wanted, message):
    with pytest.raises(ValueError, match=message):
        dataset_helpers.make_splits(script(tmp_path, raw), letters, wanted, 1)


def test_a_data_set_must_be_named_and_have_training_rows(tmp_path):
    with pytest.raises(ValueError, match="dataset_name is missing"):
        dataset_helpers.make_splits(named(None), letters, ["a"], 1)
    script(tmp_path, [{"a": "x"}], "test.jsonl")
    with pytest.raises(ValueError, match="has no split train, only test"):
        dataset_helpers.make_splits(named(tmp_path), letters, ["a"], 1)


def test_test_rows_are_the_same_each_time_and_leave_the_training_rows(tmp_path):
    script(tmp_path, [{"a": str(i)} for i in range(40)], "train.jsonl")
    script(tmp_path, [{"a": str(i)} for i in range(30, 50)], "test.jsonl")
    first, again, every = (dataset_helpers.make_splits(named(tmp_path), letters, ["a"], most) for most in (5, 5, None))
    assert (len(first["train"]), len(first["test"])) == (30, 5)
    assert prompts(again["test"]) == prompts(first["test"])
    assert len(every["test"]) == 20


@pytest.mark.parametrize(("asked", "held_out"), [(3, 3), (50, 10), (None, 10)])
def test_without_test_rows_at_most_a_quarter_is_held_out(tmp_path, asked, held_out):
    data = dataset_helpers.make_splits(script(tmp_path, [{"a": str(i)} for i in range(40)]), letters, ["a"], asked)
    assert (len(data["test"]), len(data["train"])) == (held_out, 40 - held_out)


def test_tools_environment_and_rollout_function_reach_the_trainer(tmp_path):
    code = tmp_path / "code.py"
    code.write_text("def add(a, b): ...\n\n\nclass World: ...\n\n\ndef roll(prompts, trainer): ...\n")
    paths = {"tools": "add", "environment_factory": "World", "rollout_func": "roll"}
    options = [word for name, what in paths.items() for word in (f"--{name}", f"{code}:{what}")]
    given = train._make_trainer(lambda **given: given, launched(*parsed("arithmetic_cpu", *options)))
    assert [tool.__name__ for tool in given["tools"]] == ["add"]
    assert given["environment_factory"].__name__ == "World"
    assert given["rollout_func"].__name__ == "roll"
    without = train._make_trainer(lambda **given: given, launched(*parsed("arithmetic_cpu")))
    assert without.keys().isdisjoint(paths)


@pytest.mark.parametrize("option", ["environment_factory", "rollout_func", None])
def test_a_column_that_an_environment_or_a_rollout_function_may_add_is_not_asked_of_the_data(tmp_path, option):
    code = tmp_path / "code.py"
    code.write_text("class World: ...\n\n\ndef score(completions, found): ...\n")
    reward = ["--reward_funcs", f"{code}:score", *([f"--{option}", f"{code}:World"] if option else [])]
    recipe = launched(*parsed("arithmetic_cpu", *reward))
    preflight.rewards(recipe)
    recipe.train_set, recipe.eval_sets = Dataset.from_dict({"prompt": ["1+1="]}), {}
    rows = preflight.columns(recipe)
    assert [row.status for row in rows] == ([] if option else [FAILED])


def test_an_environment_may_make_prompts_and_rewards(tmp_path):
    world = "class World:\n    def get_reward(self): ...\n\n\nclass Poor: ...\n\n\ndef nothing(*_): ...\n"
    (tmp_path / "code.py").write_text(world)
    of_world = ["--environment_factory", f"{tmp_path}/code.py:World", "--prepare", f"{tmp_path}/code.py:nothing"]
    no_beliefs = "--prompt_selection shuffle --advantage_baseline mean --scale_rewards group"  # they need rows
    of_world += no_beliefs.split()
    recipe = launched(*parsed("arithmetic_cpu", *of_world))
    recipe.script.reward_funcs, recipe.script.prepare_args = [], None
    recipe.train_set, recipe.eval_sets = Dataset.from_dict({"seed": [1, 2]}), {}
    rows = [*preflight.rewards(recipe), *preflight.prompts(recipe), *check_data.load(recipe)]
    assert [(row.name, row.status) for row in rows] == [("rewards", OK), ("prompts", OK), ("data", OK)]
    assert (recipe.rewards, recipe.prompted, recipe.first_prompt) == ([], False, None)
    for values in ([1, 2], ["", ""], ["a", None]):  # TRL reads a prompt that is there
        recipe.train_set = Dataset.from_dict({"prompt": values})
        assert [row.status for row in preflight.prompts(recipe)] == [FAILED]
    recipe.train_set = Dataset.from_dict({"seed": [1, 2]})
    recipe.training.reward_weights = [1.0]
    assert [row.status for row in preflight.rewards(recipe)] == [FAILED]
    recipe.script.environment_factory, recipe.training.reward_weights = f"{tmp_path}/code.py:Poor", None
    (row,) = preflight.rewards(recipe)
    assert row.status == FAILED
    assert "Poor has no get_reward" in row.text
    recipe.script.environment_factory = None
    assert [row.status for row in (*preflight.rewards(recipe), *preflight.prompts(recipe))] == [FAILED, FAILED]


def test_datasets_logs_nothing_about_a_broken_line(tmp_path, caplog):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a"}\n{"prompt": "b, "answer": "3"}\n')
    log = logging.getLogger("datasets")
    log.addHandler(caplog.handler)
    try:
        with pytest.raises(
            ConfigError, match=r"rows\.jsonl, line 2 is not JSON \(.*\)\. Correct the line or remove it: "
        ):
            datasets_by_name.load(str(rows))
    finally:
        log.removeHandler(caplog.handler)
    assert caplog.messages == []


def mixed(*parts, **options):
    return DatasetMixtureConfig(datasets=[DatasetConfig(**part) for part in parts], **options)


def test_a_mixture_may_name_its_files_in_each_of_the_library_s_ways(tmp_path):
    for number, folder in enumerate(("a", "a", "b")):
        tmp_path.joinpath(folder).mkdir(exist_ok=True)
        tmp_path.joinpath(folder, f"{number}.jsonl").write_text(f'{{"prompt": "{number}"}}\n' * 2)
    parts = [
        {"path": "json", "data_files": f"{tmp_path}/a/*.jsonl"},
        {"path": "json", "data_dir": str(tmp_path), "data_files": {"train": ["a/0.jsonl", "b/2.jsonl"]}},
        {"path": str(tmp_path / "b")},
    ]
    for part, prompts in zip(parts, ("0011", "0022", "22"), strict=True):
        assert "".join(datasets_by_name.load_mixture(mixed(part))["train"]["prompt"]) == prompts
        assert datasets_by_name.is_here(DatasetConfig(**part))
    assert len(datasets_by_name.load_mixture(mixed(*parts, test_split_size=0.5))["test"]) == 5
    parts[2]["data_files"] = "3.jsonl"
    with pytest.raises(ConfigError, match=r"there is no file or folder .*/b/3\.jsonl\. Did you mean .*/b/2\.jsonl\?"):
        datasets_by_name.load_mixture(mixed(*parts))


def test_a_mixture_of_the_hub_says_what_the_network_said(monkeypatch):
    monkeypatch.setattr("trl.get_dataset", mock.Mock(side_effect=ConnectionError("no route")))
    some = mixed({"path": "some/data"})
    with pytest.raises(ConfigError, match=r"^they cannot be read, or do not go together: ConnectionError: no route$"):
        datasets_by_name.load_mixture(some)
    arguments = SimpleNamespace(dataset_name=None, prepare=None)
    assert hub.data(arguments, None, None, some) is None  # counts as no network


def test_a_mistake_of_a_recipe_s_user_is_told_in_one_line(tmp_path):
    source = script(tmp_path, [{"frage": "?", "answer": "#### 1"}])
    with pytest.raises(ConfigError, match=r"has no column question, only frage, answer\."):
        reward_inputs.load_data(*parsed("gsm8k_qwen2.5-1.5b_1gpu", "--dataset_name", source.dataset_name))


def test_the_page_s_own_example_runs(tmp_path, monkeypatch):
    code = re.search(r"```python\n(# my_data\.py\n.*?)```", PAGE, re.DOTALL)[1]
    recipe = re.search(r"```yaml\n(# in my_run\.yaml\n.*?)```", PAGE, re.DOTALL)[1]
    (tmp_path / "my_data.py").write_text(code)
    (tmp_path / "my_run.yaml").write_text(recipe)
    countries = [{"country": f"Land {i}", "capital": f"City {i}" if i else ""} for i in range(13)]
    script(tmp_path, countries, "capitals.jsonl")
    monkeypatch.chdir(tmp_path)
    data, (reward,) = data_of("my_run.yaml", smoke=False)
    assert (len(data["train"]), len(data["test"])) == (9, 3)
    assert data["train"][0]["prompt"][0] == {"role": "system", "content": "Answer in one word."}
    check_columns(reward, data["train"], "the data")
    assert check_gold(reward, data["train"])[0].problems == ()


# --- GSM8K ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("solution", "number"),
    [
        ("So it is 42.\n#### 42", "42"),
        ("#### 1,234,567", "1234567"),
        ("#### -5", "-5"),
        ("#### 0.75", "0.75"),
        ("#### .5", ".5"),
        ("#### -1,000.25\n", "-1000.25"),
        ("#### $18", "18"),
        ("####18.", "18"),
        ("#### 1\nNo, wait.\n#### 2", "2"),
    ],
)
def test_the_number_after_the_last_hashes(solution, number):
    assert gsm8k.final_number(solution) == number


@pytest.mark.parametrize(
    "solution",
    [None, 42, "", "42", "####", "#### ", "#### -", "#### .", "#### 1,23", "#### 1 2", "#### 3 apples", "#### 1\n2"],
)
def test_a_solution_without_a_final_number_is_refused(solution):
    with pytest.raises(ValueError, match="without a number after '####'"):
        gsm8k.final_number(solution)


def test_the_system_prompt_can_be_another_or_none():
    raw, user = {"question": " How many? ", "answer": "#### 3"}, {"role": "user", "content": "How many?"}
    assert gsm8k.make_row(raw, "Count.")["prompt"] == [{"role": "system", "content": "Count."}, user]
    assert gsm8k.make_row(raw, None)["prompt"] == [user]


@pytest.mark.parametrize("question", [None, " "])
def test_a_row_without_a_question_is_refused(question):
    with pytest.raises(ValueError, match="without a question"):
        gsm8k.make_row({"question": question, "answer": "#### 3"}, None)


# --- Mathematics ----------------------------------------------------------------------------------------------------

ASKED = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\nWhat is\n\n$1 + 1$?\n\nRemember to put "
    'your answer on its own line after "Answer:".'
)


@pytest.mark.parametrize(
    ("raw", "problem", "answer"),
    [
        ({"problem": "$1+1$?", "answer": "2", "solution": r"It is \boxed{3}."}, "$1+1$?", "2"),
        ({"problem": "$1+1$?", "solution": r"It is \boxed{2}."}, "$1+1$?", r"It is \boxed{2}."),
        ({"prompt": "$1+1$?", "solution": "2", "source_prompt": []}, "$1+1$?", "2"),
        (
            {"prompt": dataset_helpers.messages(None, ASKED), "reward_model": {"ground_truth": "2"}},
            "What is\n\n$1 + 1$?",
            "2",
        ),
        ({"problem": "$1+1$?", "answer": 2}, "$1+1$?", "2"),
        ({"problem": "$1-1$?", "answer": 0, "solution": "3"}, "$1-1$?", "0"),
        ({"problem": "$1+1$?", "answer": 2.0}, "$1+1$?", "2"),
        ({"problem": "$1/2$?", "answer": 0.5}, "$1/2$?", "0.5"),
        ({"problem": None, "prompt": "$1+1$?", "answer": math.nan, "solution": "2"}, "$1+1$?", "2"),
    ],
    ids=[
        *("MATH", "MATH, solution", "DAPO, processed", "DAPO"),
        *("integer", "zero", "integer among floats", "float", "gaps"),
    ],
)
def test_each_format_of_a_math_problem(raw, problem, answer):
    row = math_problems.make_row(raw, None)
    assert row == {"prompt": [{"role": "user", "content": problem}], "answer": answer}


def test_math_without_a_problem_or_an_answer_is_left_out(tmp_path, capsys):
    raw = [{"problem": f"${i}$?", "answer": str(i), "level": "Level 2"} for i in range(8)]
    raw += [{"problem": "?", "answer": "", "level": None}, {"problem": " ", "answer": "1", "level": None}]
    raw += [{"problem": "??", "answer": None, "level": None}, {"problem": None, "answer": "1", "level": None}]
    data = math_problems.prepare(script(tmp_path, raw), None, None)
    assert (len(data["train"]), len(data["test"])) == (6, 2)
    assert "4 of 12 rows are left out: 2 without an answer; 2 without a problem." in capsys.readouterr().err
    with pytest.raises(ValueError, match="without a column problem or prompt, only with question, answer"):
        math_problems.prepare(script(tmp_path, [{"question": "?", "answer": "1"}]), None, None)


def test_answers_that_the_reward_cannot_read_are_left_out(tmp_path, capsys):
    unreadable = "x+" * 600 + "1"
    raw = [{"problem": f"${i}$?", "answer": str(i)} for i in range(9)] + [{"problem": "?", "answer": unreadable}]
    with pytest.raises(ValueError, match="1 of 1 rows cannot be scored"):
        check_columns(get_reward("math_answer"), Dataset.from_list(raw[-1:]), "the data")
    data = math_problems.prepare(script(tmp_path, raw), None, None, test_rows=1)
    assert unreadable not in list(data["train"]["answer"]) + list(data["test"]["answer"])
    assert "1 with an answer that math_answer cannot read" in capsys.readouterr().err
    check_columns(get_reward("math_answer"), data["train"], "the data")


@pytest.mark.parametrize("status", ["starved", "timeout"])
def test_a_gold_answer_without_a_verdict_stops_the_run(monkeypatch, status):
    """Another process of the run may have time for the same answer, and must not have other rows."""
    outcomes = [Outcome(1.0, "ok"), Outcome(0.0, "error", "no answer"), Outcome(0.0, status, "It had no time.")]
    monkeypatch.setattr(Reward, "score", lambda reward, completions, **columns: outcomes[: len(completions)])
    rows = Dataset.from_dict({"answer": ["1", "?", "3"]})
    assert list(dataset_helpers.keep_gold(rows.select([0, 1]), "math_answer", "train")["answer"]) == ["1"]
    says = (
        r"train: math_answer gave no verdict on 1 of 3 gold answers, such as '.*3.*': It had no time\. Start the run"
    )
    with pytest.raises(RunError, match=says):
        dataset_helpers.keep_gold(rows, "math_answer", "train")


def test_problems_that_leave_no_room_for_an_answer_are_not_trained_on(tmp_path):
    raw = [{"problem": f"{i:02d}" + "?" * (3 if i % 2 else 48), "answer": str(i)} for i in range(40)]
    data = math_problems.prepare(script(tmp_path, raw), None, None, max_chars=5)
    assert {len(prompt[-1]["content"]) for prompt in data["train"]["prompt"]} == {5}
    assert {len(prompt[-1]["content"]) for prompt in data["test"]["prompt"]} == {5, 50}
    whole = math_problems.prepare(script(tmp_path, raw), None, None)
    assert {len(prompt[-1]["content"]) for prompt in whole["train"]["prompt"]} == {5, 50}


def test_levels_and_a_benchmark(tmp_path):
    script(tmp_path, [{"problem": "AIME?", "answer": "204", "id": 60}], "aime.jsonl")
    source = script(tmp_path, [{"problem": f"${i}$?", "answer": str(i), "level": 1 + i % 5} for i in range(40)])
    data = math_problems.prepare(source, None, None, levels=[4, 5], benchmark=str(tmp_path / "aime.jsonl"))
    assert {int(answer) % 5 + 1 for answer in data["train"]["answer"]} == {4, 5}
    assert {int(answer) % 5 + 1 for answer in data["test"]["answer"]} & {1, 2, 3}
    assert list(data["benchmark"]["answer"]) == ["204"]
    without = script(tmp_path, [{"prompt": str(i), "solution": "1"} for i in range(8)])
    with pytest.raises(ValueError, match="has no column level"):
        math_problems.prepare(without, None, None, levels=[1])


# --- Programs -------------------------------------------------------------------------------------------------------

CODE = "open-r1/verifiable-coding-problems-python"
LIMITS = code_problems.Limits(min_tests=2, max_tests=3, max_test_chars=10, max_chars=100)


def problem(*inputs, statement="Echo.", language="python", kind="stdin_stdout"):
    cases = [{"fn_name": None, "input": text, "output": text, "type": kind} for text in inputs]
    return {"problem_statement": statement, "verification_info": {"language": language, "test_cases": cases}}


def test_the_longest_tests_are_kept():
    row = code_problems.make_row(problem("1", "4444", "666666", "22", "333"), None, LIMITS)
    assert [test["stdin"] for test in row["tests"]] == ["4444", "333", "22"]
    assert row["tests"][0] == {"stdin": "4444", "stdout": "4444"}


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (problem("1"), "with fewer than 2 tests"),
        (problem("1", "666666"), "with fewer than 2 tests that are short enough"),
        (problem("1", "2", kind="function_call"), "whose tests are not for a Python script"),
        (problem("1", "2", language="cpp"), "whose tests are not for a Python script"),
        (problem("1", "2", statement=" "), "without a statement"),
        (problem("1", "2", statement="x" * 101), "without a statement of at most 100"),
        (problem(" ", "\n"), "with tests that python_tests refuses"),  # a program that does nothing would pass
        ({"problem_statement": None, "verification_info": None}, "without a statement"),
    ],
)
def test_problems_that_cannot_be_judged_are_left_out(raw, reason):
    with pytest.raises(ValueError, match=reason):
        code_problems.make_row(raw, None, LIMITS)


@pytest.mark.parametrize(
    ("prepare", "options", "message"),
    [
        (code_problems.prepare, {"max_tests": 3}, "min_tests=5 must be at least 1 and at most max_tests=3"),
        (countdown.prepare, {"counts": []}, "must be numbers from 2 to 6"),
        (countdown.prepare, {"counts": [1]}, "must be numbers from 2 to 6"),
        (countdown.prepare, {"counts": [3, 7]}, "must be numbers from 2 to 6"),
        (countdown.prepare, {"counts": [2]}, r"hardly more than 6,\d\d\d problems of counts=\[2\]"),
    ],
    ids=["tests", "no counts", "1", "7", "too few problems"],
)
def test_options_of_prepare_that_make_no_sense(prepare, options, message):
    with pytest.raises(ValueError, match=message):
        prepare(None, None, None, **options)


# --- Countdown ------------------------------------------------------------------------------------------------------


def test_every_countdown_problem_has_the_solution_that_it_was_made_from():
    data = countdown.prepare(None, None, None, train_rows=1500, test_rows=100, counts=[2, 3, 4, 6], seed=5)
    reward = get_reward("countdown")
    for split in data.values():
        columns = {name: list(split[name]) for name in ("numbers", "target")}
        answers = [f"<answer>{solution}</answer>" for solution in split["solution"]]
        assert {outcome.score for outcome in reward.score(completions=answers, **columns)} == {1.0}
        assert all(target in countdown.TARGETS for target in split["target"])
        assert all(1 <= number <= 99 for numbers in split["numbers"] for number in numbers)
    assert Counter(map(len, data["train"]["numbers"])) == {2: 375, 3: 375, 4: 375, 6: 375}
    assert all(solve(row["numbers"], row["target"]) for row in data["test"])
    first = data["train"][0]
    text = first["prompt"][-1]["content"]
    assert all(str(number) in text for number in (*first["numbers"], first["target"]))
    assert first["solution"] not in text


def test_countdown_problems_come_once_and_depend_on_the_seed_alone():
    def keys(split):
        return [(*sorted(row["numbers"]), row["target"]) for row in split]

    data = countdown.prepare(None, None, None, train_rows=3000, test_rows=300)
    seen = keys(data["train"]) + keys(data["test"])
    assert len(seen) == len(set(seen)) == 3300
    random.seed(1)
    again = countdown.prepare(None, None, None, train_rows=3000, test_rows=300)
    assert all(again[name].to_dict() == data[name].to_dict() for name in data)
    assert keys(countdown.prepare(None, None, None, train_rows=9, test_rows=300, seed=1)["test"]) != keys(data["test"])
    small = countdown.prepare(None, None, None, train_rows=3000, test_rows=300, smoke=True)
    assert (len(small["train"]), keys(small["test"])) == (500, keys(data["test"]))


# --- Reasoning gym --------------------------------------------------------------------------------------------------


def test_no_question_of_the_mixture_is_both_trained_on_and_tested():
    tasks = {"chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}, "lcm": None}
    data = mixture.prepare(None, None, None, tasks=tasks, train_rows=400, test_rows=40)
    assert Counter(data["test"]["task"]) == {"chain_sum": 20, "lcm": 20}
    train, *held_out = (prompts(data[split]) for split in sorted(data, key=lambda split: split != "train"))
    assert held_out
    assert not set(train) & set().union(*held_out)
    assert 200 < len(data["train"]) < 400, "a hundred sums of two digits there are: some would be in both"
    again = mixture.prepare(None, None, None, tasks=tasks, train_rows=400, test_rows=40)
    assert prompts(again["train"]) == prompts(data["train"])
    assert len(mixture.prepare(None, None, None, tasks={"lcm": None}, smoke=True)["test"]) == 100


def test_the_mixture_refuses_an_unknown_task():
    arguments = parsed("reasoning_gym_qwen3-4b", "--prepare_args", '{"tasks": {"chain_sums": null}}')
    with pytest.raises(ConfigError, match="Did you mean chain_sum"):
        reward_inputs.load_data(*arguments, smoke=True)


# --- Sums -----------------------------------------------------------------------------------------------------------


def sums(folder, **options):
    return arithmetic.prepare(None, training_args(folder), SimpleNamespace(), **options)


def training_args(folder, **changed):
    args = {"output_dir": str(folder), "seed": 1, "process_index": 0, "disable_tqdm": True}
    args |= {"device": torch.device("cpu"), "bf16": False, "resume_from_checkpoint": None}
    return SimpleNamespace(**args | changed)


def test_the_demo_s_lessons_are_those_of_its_numbers():
    """The figures of docs/demo.md and of arithmetic_cpu.yaml come from these lessons, in this order."""
    held_out, rest = arithmetic.split_problems(1)
    made = arithmetic._lessons(rest["easy"][512:], rest["edge"][384:], 1, arithmetic.WarmUp(20, 64, 1.0))
    assert hashlib.sha256("\n".join(made).encode()).hexdigest().startswith("39bf1702e0f9bd86")
    assert hashlib.sha256(repr(held_out).encode()).hexdigest().startswith("2a758b2a5b20a9c1")


def test_three_digits_and_another_size(tmp_path, monkeypatch):
    taught = []
    monkeypatch.setattr(arithmetic, "_warm_up", lambda model, tokenizer, texts, *how: taught.extend(texts))
    mix = {"easy": 30, "edge": 20, "hard": 10}
    data = sums(tmp_path, digits=3, train_mix=mix, layers=2, hidden_size=64, heads=2, warm_steps=10, warm_batch=50)
    assert Counter(data["train"]["difficulty"]) == mix
    assert len(taught) == 500
    forgot = Counter()
    for text in taught:
        a, b, lesson = map(int, re.fullmatch(r"(\d{3})\+(\d{3})=(\d{3})<eos>", text).groups())
        carries = [a % 10 + b % 10 > 9, a // 10 % 10 + b // 10 % 10 > 9]
        assert a + b - lesson in (0, 10 * carries[0] + 100 * carries[1])
        forgot[any(carries), lesson != a + b] += 1
    assert forgot[False, True] == 0
    assert forgot[True, True] / (forgot[True, True] + forgot[True, False]) == pytest.approx(0.6, abs=0.1)
    seen = {text[:8] for text in taught}
    assert not seen & {*data["train"]["prompt"], *data["easy"]["prompt"], *data["edge"]["prompt"]}
    config = json.loads((tmp_path / "warm_start" / "config.json").read_text())
    assert (config["num_hidden_layers"], config["hidden_size"], config["num_attention_heads"]) == (2, 64, 2)


def test_smoke_makes_the_whole_model_untrained(tmp_path, monkeypatch):
    monkeypatch.setattr(arithmetic, "_warm_up", lambda *args: pytest.fail("it trains"))
    sums(tmp_path, smoke=True, hidden_size=64)
    assert json.loads((tmp_path / "warm_start" / "config.json").read_text())["hidden_size"] == 64


def mix(**changed):
    return {"train_mix": {"easy": 5, "edge": 5, "hard": 5} | changed}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"digits": 4}, "must be 2 or 3, and train_mix"),
        ({"train_mix": {"easy": 1, "eggs": 2}}, "must be 2 or 3, and train_mix"),
        ({"train_mix": {}}, "must be 2 or 3, and train_mix"),
        (mix(easy=1884), r"asks for 1884 easy, but only 1883 are left besides the 96 held out and the warm-up's\."),
        (mix(edge=1164), "asks for 1164 edge, but only 1163 are left"),
        (mix(hard=6305), "asks for 6305 hard, but only 6304 are left"),
        (mix(easy=-1), r"train_mix: easy=-1 must be an integer and >= 0\."),
        ({"warm_steps": -1}, r"warm_steps=-1 must be an integer and >= 0\."),
        ({"warm_batch": 0}, r"warm_batch=0 must be an integer and >= 1\."),
        ({"warm_rate": 0}, r"warm_rate=0 must be a finite number and > 0\."),
    ],
)
@pytest.mark.parametrize("smoke", [False, True])
def test_impossible_sums_are_refused_before_the_warm_up(tmp_path, options, message, smoke):
    with pytest.raises(ConfigError, match=message):
        sums(tmp_path, smoke=smoke, **options)
    assert not list(tmp_path.iterdir())


def test_all_problems_that_are_left_may_be_trained_on(tmp_path):
    data = sums(tmp_path, **mix(easy=1883, edge=1163, hard=6304), warm_steps=1, hidden_size=16)
    assert len(data["train"]) == 1883 + 1163 + 6304


@pytest.mark.parametrize("recipe", [arithmetic, word_problems])
def test_a_warm_up_of_no_steps_is_none(tmp_path, monkeypatch, recipe):
    monkeypatch.setattr(recipe, "teach", lambda *args: pytest.fail("it trains"))
    recipe.prepare(None, training_args(tmp_path), SimpleNamespace(), warm_steps=0, hidden_size=24, heads=2)
    assert (tmp_path / "warm_start" / "config.json").exists()


# --- Word problems --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def worded(tmp_path_factory):
    """Return word problems, the batches of their warm-up, and the lessons in it. No model is trained."""
    taught = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_problems, "teach", lambda model, batches, *how: taught.extend(batches))
        folder = tmp_path_factory.mktemp("words")
        mix = {str(steps): 40 for steps in range(1, 7)}  # texts as keys, as in JSON on the command line
        data = word_problems.prepare(
            None, training_args(folder), SimpleNamespace(), train_mix=mix, hidden_size=24, heads=2, warm_steps=40
        )
    tokenizer = word_problems.make_tokenizer()
    lessons = [lesson for ids, _ in taught for lesson in tokenizer.batch_decode(ids, skip_special_tokens=True)]
    return data, taught, lessons


def replayed(text):
    """Return the answer and the number of steps of a word problem, computed from its sentences alone."""
    start, *events, _ = re.findall(r"[^.?]+[.?]", text)
    number = int(re.search(r"\d+", start)[0])
    for sentence in events:
        verb, n = sentence.split()[1], int(re.search(r"\d+", sentence)[0])
        if verb in (
            "buys",
            "finds",
            "makes",
            "earns",
            "wins",
            "borrows",
            "collects",
            "orders",
            "gets",
            "takes",
            "receives",
        ):
            number += n
        elif verb in ("splits", "sorts", "packs", "shares"):
            assert number % n == 0
            number //= n
        else:
            number = number * n if verb in ("swaps", "trades", "bargains", "fills") else number - n
    return number, len(events)


def test_word_problems_are_solved_and_told_apart(worded):
    data, _, lessons = worded
    assert set(data) == {"train", *(f"steps_{steps}" for steps in range(1, 7))}
    assert Counter(data["train"]["steps"]) == dict.fromkeys(range(1, 7), 40)
    judge = get_reward("gsm8k_answer")
    for split, rows_ in data.items():
        assert judge(completions=list(rows_["solution"]), answer=list(rows_["answer"])) == [1.0] * len(rows_)
        for row in rows_:
            assert replayed(row["prompt"]) == (int(row["answer"]), row["steps"])
            assert split in ("train", f"steps_{row['steps']}")
            assert row["solution"].count("\n") == row["steps"]
    texts = [text for rows_ in data.values() for text in rows_["prompt"]]
    assert len(texts) == len(set(texts))
    assert not {lesson.partition("?\n")[0] for lesson in lessons} & {text.partition("?")[0] for text in texts}


def test_no_word_problem_is_in_two_places(monkeypatch):
    for name, few in {"GIRLS": ("Mia",), "BOYS": ("Tom",), "THINGS": ("eggs",)}.items():
        monkeypatch.setattr(word_problems, name, few)
    held_out, train, rest = word_problems.split_problems(1, {1: 1500})
    texts = [problem.text for problems in (*held_out.values(), train) for problem in problems]
    assert len(texts) == len(set(texts)) == 1500 + 6 * word_problems.HELD_OUT
    assert not {next(rest).text for _ in range(2000)} & set(texts)


def test_the_tokenizer_loses_nothing_and_knows_every_word(worded):
    data, *_ = worded
    tokenizer = word_problems.make_tokenizer()
    for row in data["steps_6"]:
        ids = tokenizer(row["prompt"] + row["solution"]).input_ids
        assert tokenizer.pad_token_id not in ids
        assert tokenizer.decode(ids) == row["prompt"] + row["solution"]
    assert len(tokenizer("3 * 4 = 12\n").input_ids) == 6


def test_lessons_slip_more_often_in_later_lines(worded):
    *_, taught, lessons = worded
    right, lines = Counter(), Counter()
    for lesson in lessons:
        text, _, solution = lesson.partition("?\n")
        *worked, answer = solution.splitlines()
        shown = int(re.search(r"has (\d+)", text)[1])
        for place, line in enumerate(worked):
            _, now, sign, n, _, after = line.split()
            assert int(now) == shown, "each line goes on from the one above"
            shown = int(after)
            lines[place] += 1
            slip = shown - word_problems.apply(int(now), sign, int(n))
            assert slip in (0, 3, 4, 5) or shown == 99, "what no division hides"
            right[place] += slip == 0
        assert answer == f"#### {shown}"
    shares = [right[place] / lines[place] for place in range(6)]
    assert shares == pytest.approx(word_problems.RIGHT, abs=0.08)
    assert shares[0] > 0.9 > 0.4 > shares[5]
    ids, labels = taught[0]
    tokenizer = word_problems.make_tokenizer()
    asked = tokenizer("?\n").input_ids
    for row, label in zip(ids.tolist(), labels.tolist(), strict=True):
        begin = next(i for i in range(len(row)) if row[i : i + 2] == asked) + 2
        assert set(label[:begin]) == {warm_start.NOT_LEARNED}, "the question is not learned"
        end = row.index(tokenizer.eos_token_id) + 1
        assert label[begin:end] == row[begin:end]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_mix": {7: 1}}, "from 1 to 6"),
        ({"train_mix": {}}, "from 1 to 6"),
        ({"train_mix": {1: 0}}, "of which one is above 0"),
        ({"train_mix": {1: 2.5}}, r"train_mix: 1=2.5 must be an integer and >= 0\."),
        ({"train_mix": {"1": -5}}, r"train_mix: 1=-5 must be an integer and >= 0\."),
        ({"warm_steps": -1}, r"warm_steps=-1 must be an integer and >= 0\."),
        ({"warm_batch": 0}, r"warm_batch=0 must be an integer and >= 1\."),
        ({"warm_rate": 0}, r"warm_rate=0 must be a finite number and > 0\."),
    ],
)
def test_impossible_word_problems_are_refused(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        word_problems.prepare(None, training_args(tmp_path), SimpleNamespace(), **options)


def test_a_warm_up_teaches_only_labelled_tokens(tmp_path):
    tokenizer = word_problems.make_tokenizer()
    model = word_problems.make_model(tokenizer, 1, 24, 2)
    ids = tokenizer(["3 * 4 = 12", "3 * 2 = 6"], return_tensors="pt").input_ids
    labels = ids.clone()
    labels[:, :-1] = warm_start.NOT_LEARNED
    warm_start.teach(model, [(ids, labels)] * 60, 1e-2, training_args(tmp_path))
    predicted = model(input_ids=ids).logits.argmax(-1)
    assert predicted[:, -2].tolist() == ids[:, -1].tolist()
    assert predicted[:, 0].tolist() != ids[:, 1].tolist(), "it was not taught"


@pytest.mark.parametrize("steps", [1, 2, 9, 10, 11])
def test_a_short_warm_up_changes_the_model(tmp_path, steps):
    model = word_problems.make_model(word_problems.make_tokenizer(), 1, 24, 2)
    before = model.lm_head.weight.clone()
    ids, labels = torch.tensor([[5, 6, 7]]), torch.tensor([[warm_start.NOT_LEARNED, 6, 7]])
    warm_start.teach(model, [(ids, labels)] * steps, 1e-2, training_args(tmp_path))
    moved = (model.lm_head.weight - before).abs().max().item()
    assert 0 < moved < 1


@pytest.mark.parametrize(
    "words",
    [
        ["[{name: math_answer, weight: 2}, think_format]"],
        ["{name: math_answer, weight: 2}", "think_format"],
        ['[{"name": "math_answer", "weight": 2}, "think_format"]'],
    ],
)
def test_a_list_of_rewards_on_the_command_line(words):
    rewards, weights = reward_inputs.read_rewards(words, None)
    assert [reward.__name__ for reward in rewards] == ["math_answer", "think_format"]
    assert weights == [2.0, 1.0]


def test_a_broken_list_of_rewards_on_the_command_line():
    with pytest.raises(
        ConfigError, match=r"reward_funcs: '\[{name: math_answer' is not {name: ..., weight: ...} in YAML"
    ):
        reward_inputs.read_rewards(["[{name: math_answer"], None)


@pytest.mark.parametrize("returned", ["None", "[]", "Dataset.from_list([{'prompt': 'a'}])"])
def test_prepare_must_return_a_dict_of_splits(tmp_path, returned):
    code = (
        f"from datasets import Dataset\n\n\ndef prepare(script, training, model, **others):\n    return {returned}\n"
    )
    (tmp_path / "mine.py").write_text(code)
    arguments = parsed("gsm8k_qwen2.5-1.5b_1gpu", "--prepare", f"{tmp_path}/mine.py:prepare")
    with pytest.raises(ConfigError, match=r"^prepare='.*mine.py:prepare' returned .*Return a dict of splits"):
        reward_inputs.load_data(*arguments)


def test_reset_takes_what_a_transform_makes():
    class World:
        def reset(self, prompt, number): ...

    rows = Dataset.from_dict({"raw": [1]})
    made = rows.with_transform(lambda batch: {"prompt": ["How many?"], "number": batch["raw"]})
    training = SimpleNamespace(remove_unused_columns=False)
    recipe = SimpleNamespace(environment=World, training=training, rowless=False)
    recipe.sets = {"train_dataset": made}
    assert preflight.reset(recipe) == []
    recipe.sets = {"train_dataset": rows}
    assert [(row.name, row.status) for row in preflight.reset(recipe)] == [("reset", FAILED)]
