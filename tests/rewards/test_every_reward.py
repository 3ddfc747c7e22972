"""The promises that every reward of the library keeps, one test for each. Hard cases are in each reward's own file."""

import dataclasses
import doctest
import importlib
import itertools
import pickle
import pkgutil
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from case_tables import table
from slow_texts import BOMBS, has_its_turn, placed
from time_limit import ends

from trl_grpo_plus import rewards
from trl_grpo_plus.registry import Reward, find, get_reward
from trl_grpo_plus.rewards import LIBRARY
from trl_grpo_plus.rewards._text import after_thinking


pytestmark = pytest.mark.long


REPOSITORY = Path(__file__).parents[2]
of_all = pytest.mark.parametrize("name", LIBRARY)


def here(name, args):
    """Return the reward without a time limit, so that it runs in this process."""
    return Reward(dataclasses.replace(find(name), timeout=None), args)


def rows(example, times=1):
    return {name: [value] * times for name, value in example.columns.items()}


def best_of(name):
    return max(find(name).examples, key=lambda example: example.reward)


def right_ones(name):
    return [example for example in find(name).examples if example.reward > 0]


@of_all
def test_its_examples_score_as_they_say_again_copied_and_in_workers(name):
    for example in find(name).examples:
        reward = get_reward(name, **example.args)
        ways = {
            "as it is": reward,
            "again": reward,
            "here": here(name, example.args),
            "copied": pickle.loads(pickle.dumps(reward)),
            "in workers": Reward(find(name), example.args, timeout=60.0),
        }
        scores = {way: reward([example.completion], **rows(example)) for way, reward in ways.items()}
        assert scores == {way: [example.reward] for way in ways}
        assert {type(score) for (score,) in scores.values()} == {float}


@of_all
def test_a_batch_is_scored_one_by_one_and_an_empty_one_is_empty(name):
    best = best_of(name)
    reward = get_reward(name, **best.args)
    assert reward([best.completion] * 3, **rows(best, 3)) == [best.reward] * 3
    assert reward([], **rows(best, 0)) == []


@of_all
def test_columns_of_another_length_are_refused(name):
    best = best_of(name)
    if find(name).needed:
        with pytest.raises(ValueError, match="zip"):
            find(name).function([best.completion] * 2, **rows(best), **best.args)


@of_all
def test_a_row_without_what_the_reward_needs_is_not_scored(name):
    best = best_of(name)
    for column in find(name).needed:
        columns = {**rows(best, 3), column: [best.columns[column], None, best.columns[column]]}
        scores = get_reward(name, **best.args)([best.completion] * 3, **columns)
        assert scores == [best.reward, None, best.reward]


@of_all
def test_a_column_that_is_not_there_is_named(name):
    best = best_of(name)
    for column in find(name).needed:
        others = {other: values for other, values in rows(best).items() if other != column}
        with pytest.raises(TypeError, match=f"'{name}' needs the column '{column}'"):
            get_reward(name, **best.args)([best.completion], **others)


@of_all
def test_bad_arguments_are_refused_by_name(name):
    for argument in ("no_such", *find(name).arguments):
        with pytest.raises(ValueError, match=rf"{name}.*\b{argument}\b"):
            get_reward(name, **{**best_of(name).args, argument: object()})


def test_bad_values_of_arguments_are_refused_by_name():
    for name, args, words in table("bad_arguments"):
        message = refusal_of(get_reward, name, **args)
        assert words in message, (name, args)
        assert name in message or words in str(args["correct_args"])


BAD_ROWS = [
    *table("bad_rows"),
    ("countdown", "too many", {"numbers": [1] * 300, "target": 3}),
    ("json_schema", "is not JSON", {"schema": {"const": {1}}}),
    ("math_answer", "too long", {"answer": "7" * 1001}),
    ("python_tests", "is not plain data", {"tests": [{"args": [], "expected": len}], "entry_point": "add"}),
    ("python_tests", "is not plain data", {"tests": [{"args": [[2]], "expected_args": [len]}], "entry_point": "f"}),
    ("python_tests", "has 1953 KiB, more than output_kb=1024", {"tests": [{"stdout": "x" * 2_000_000}]}),
    ("python_tests", "expected is None in every case", {"tests": [{"args": [1]}, {"args": [2]}], "entry_point": "f"}),
    (
        "python_tests",
        "expected is None in every case",
        {"tests": [{"args": [1], "expected": None}], "entry_point": "f"},
    ),
    (
        "python_tests",
        "expected is None in every case",
        {"tests": '[{"args": {"x": 1}, "expected": null}]', "entry_point": "f"},
    ),
    ("regex_match", "cannot be compiled", {"pattern": "(" * 5000 + ")" * 5000}),
    ("regex_match", "must be a regular expression", {"pattern": b"a"}),
]
HINTS = {
    "exact_answer": r"convert .*str\(row",
    "instruction_checks": "Correct or drop these rows",
    "json_schema": "JSON text",
    "reasoning_gym": "make_dataset makes rows that can",
}
# Only the parser, which runs in workers before training, finds these.
UNSEEN_AT_SCORING = "no LaTeX that can be compared"
# These rewards also refuse a bad row when they score it. The others then fail in some way or pay nothing.
REFUSE_AT_SCORING = [
    "choice_answer",
    "countdown",
    "gsm8k_answer",
    "instruction_checks",
    "json_schema",
    "math_answer",
    "regex_match",
]


@pytest.mark.parametrize("name", sorted({name for name, *_ in BAD_ROWS}))
def test_a_bad_row_is_refused_before_training_and_at_scoring(name):
    good, reward = best_of(name), here(name, {})
    for problem, columns in [(problem, columns) for other, problem, columns, *_ in BAD_ROWS if other == name]:
        both = {column: [good.columns.get(column), columns.get(column)] for column in {**good.columns, **columns}}
        message = refusal_of(reward.definition.check_columns, **both, **reward.all_args())
        hint = HINTS.get(name, "Correct or filter these rows")
        assert re.search(rf"(?s)1 of 2 rows .*; row 1: .*{re.escape(problem)}.*{hint}", message), (problem, columns)
        if name in REFUSE_AT_SCORING:
            if problem.startswith(UNSEEN_AT_SCORING):
                continue
            (outcome,) = reward.score([good.completion], **{column: [value] for column, value in columns.items()})
            assert (outcome.status, problem in outcome.message) == ("error", True), (problem, columns)


def refusal_of(call, *args, **kwargs):
    """Return the message of the `ValueError` that the call raises."""
    with pytest.raises(ValueError, match=r"\w") as refusal:
        call(*args, **kwargs)
    return str(refusal.value)


@of_all
def test_a_gold_deserves_full_marks(name):
    definition = find(name)
    if definition.gold is None:
        return
    for example, opened in itertools.product(definition.examples, (False, True)):
        if opened and "think_opened" not in definition.arguments:
            continue
        reward = here(name, {**example.args, **({"think_opened": True} if opened else {})})
        gold = definition.gold(**example.columns, **reward.all_args())
        assert gold is None or reward([gold], **rows(example)) == [definition.full_marks]
    gold_of = [definition.gold(**example.columns, **reward.all_args()) for example in right_ones(name)]
    assert name == "python_tests" or None not in gold_of  # the gold of python_tests is a column that examples lack


@pytest.mark.parametrize("name", [name for name in LIBRARY if "think_opened" in find(name).arguments])
def test_thinking_that_the_prompt_opened_and_that_was_cut_off_earns_nothing(name):
    for example in right_ones(name):
        cut_off = get_reward(name, **{**example.args, "think_opened": True})
        answer, end = after_thinking(example.completion), f"</{example.args.get('think_tag', 'think')}>"
        assert cut_off([answer], **rows(example)) == [0.0]
        assert cut_off([f"I try\n{answer}\nWait"], **rows(example)) == [0.0]
        assert cut_off([f"a{end}{answer}"], **rows(example)) == [example.reward]
        assert cut_off([f"{answer}{end}"], **rows(example)) == [0.0]


MARKS = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("◁think▷", "◁/think▷"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|channel>thought\n", "<channel|>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    ("analysis", "assistantfinal"),
    ("<thought>", "</thought>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>\n", "\n</reasoning>\n"),
]


@pytest.mark.parametrize(("start", "end"), MARKS, ids=[start.strip() for start, _ in MARKS])
def test_the_marks_of_every_model_s_thinking_are_known(start, end):
    for name in LIBRARY:
        if "think_opened" not in find(name).arguments or name == "think_format":
            continue
        for example in right_ones(name):
            answer = after_thinking(example.completion)
            closed = [f"{start}I try{end}{answer}", f"{start}I try.{answer}{end}\n{answer}"]
            cut_off = [f"{start}I try.\n{answer}", f"{start}I try.\n{answer}{end}"]
            scores = get_reward(name, **example.args)([*closed, *cut_off], **rows(example, 4))
            assert (name, scores) == (name, [example.reward, example.reward, 0.0, 0.0])
            opened = get_reward(name, **example.args, think_opened=True)
            assert (name, opened([f"I try.{end}{answer}"], **rows(example))) == (name, [example.reward])


def test_a_mark_of_thinking_that_other_texts_have_counts_at_the_start_alone():
    texts = ["\\boxed{7}\n<reasoning>6 + 1</reasoning>", "analysis of it: \\boxed{7}", "</thinking>: \\boxed{7}"]
    assert get_reward("math_answer")(texts, answer=["7"] * 3) == [1.0] * 3


CITIES = ["Rome", "Paris", "Berlin", "New York"]
PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
TREE = {"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}}
BACKTRACKS = r"(?s)(?:(\w+)\s?)+:\d|(?:<[^>]*>\s*)*x{3}"
# Reward -> arguments and a row for which no bomb is the right answer. PLACES are more places for a bomb.
ROWS = {
    "choice_answer": [({}, {"answer": 3, "choices": choices}) for choices in (CITIES, None)],
    "countdown": [({}, {"numbers": [2, 5, 7], "target": 25})],
    "exact_answer": [({}, {"answer": "46"})],
    "gsm8k_answer": [({}, {"answer": "#### 18"})],
    "instruction_checks": [({}, {"constraints": [{"kind": "json"}]})],
    "json_schema": [({}, {"schema": schema}) for schema in (PERSON, TREE)],
    "math_answer": [({}, {"answer": r"\sqrt{2}"})],
    "regex_match": [({}, {"pattern": BACKTRACKS})],
    "steps_check": [({}, {"prompts": "Mia has 3 apples."})],
    "think_format": [
        ({"think_opened": opened, "answer_tag": tag}, {}) for opened in (False, True) for tag in (False, True)
    ],
}
PLACES = {
    "choice_answer": ["The answer is:\n\n{}", "## {}", "**{}**."],
    "gsm8k_answer": ["#### {}", "{}#### 18 or 19", "#### Answer is {}!"],
}


@pytest.mark.parametrize(
    ("name", "number"),
    [
        pytest.param(name, number, marks=[pytest.mark.full] * (number > 0))
        for name, rows_of in ROWS.items()
        for number in range(len(rows_of))
    ],
)
@pytest.mark.parametrize("turn", [True, pytest.param(False, marks=pytest.mark.full)], ids=["its turn", "the rest"])
def test_bombs_are_read_in_time_and_earn_nothing(name, number, turn):
    """Other rewards do not read the text. `python_tests` and `reasoning_gym` pass it on and have their own tests."""
    paid = {}
    args, columns = ROWS[name][number]
    reward = here(name, args)
    for at, (bomb, text) in enumerate(BOMBS.items()):
        for place, completion in enumerate([*placed(text), *(place.format(text) for place in PLACES.get(name, ()))]):
            if has_its_turn(at, place) != turn:
                continue
            with ends():
                (score,) = reward([completion], **{column: [value] for column, value in columns.items()})
            if score not in _deserved(name, args, completion):
                paid[bomb, place, str(args)] = score
    assert paid == {}


def _deserved(name, args, completion):
    if name == "gsm8k_answer":
        return {0.0, 0.5}  # 0.5 for any number in a box
    if name == "think_format":  # the form allows a long text in the thinking or in the answer
        in_form = completion.startswith("<think>") or (args["think_opened"] and not args["answer_tag"])
        return {0.0, 1.0} if in_form else {0.0}
    return {0.0}


@pytest.mark.parametrize("module", sorted(module.name for module in pkgutil.iter_modules(rewards.__path__)))
def test_docstrings(module):
    result = doctest.testmod(importlib.import_module(f"{rewards.__name__}.{module}"))
    assert result.failed == 0
    assert result.attempted or module.startswith("_")


def test_a_file_and_a_line_add_a_reward(tmp_path):
    """A reward is added to a copy of the package. A fresh process and its workers then find it by name."""
    package = tmp_path / "trl_grpo_plus"
    shutil.copytree(REPOSITORY / "trl_grpo_plus", package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(REPOSITORY / "rewards", package / "rewards", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "rewards" / "ends_well.py").write_text(
        "from trl_grpo_plus.registry import register_reward\n\n\n"
        '@register_reward("ends_well", timeout=9.0)\n'
        "def ends_well(completions):\n"
        '    return [float(text.endswith("well")) for text in completions]\n'
    )
    library = (package / "rewards" / "__init__.py").read_text()
    (package / "rewards" / "__init__.py").write_text(
        library.replace('    "exact_answer":', '    "ends_well": "ends_well",\n    "exact_answer":')
    )
    code = """
    from trl_grpo_plus.registry import get_reward, list_rewards, register_reward
    assert "ends_well" in list_rewards()
    print(get_reward("ends_well")(completions=["ends well", "ends"]), flush=True)
    register_reward("ends_well")(lambda completions: [])
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[1.0, 0.0]\n", done.stderr
    assert "'ends_well' exists already: trl_grpo_plus.rewards.ends_well:ends_well" in done.stderr


def test_to_list_and_load_them_imports_nothing_heavy():
    """`ls` loads all rewards, to show the first lines of their docstrings."""
    code = """
    import sys
    from trl_grpo_plus.registry import find, list_rewards
    for name in list_rewards():
        find(name)
    print({"torch", "transformers", "trl", "datasets", "sympy", "jsonschema", "reasoning_gym"} & set(sys.modules))
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "set()\n", done.stdout + done.stderr
