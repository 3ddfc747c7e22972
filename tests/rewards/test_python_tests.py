"""The reward `python_tests`: programs that pass, and programs that try to earn the reward without solving the task."""

import importlib
import json
import math
import os
import signal
import threading
import time
from multiprocessing.pool import ThreadPool

import pytest
from cpu_load import MANY, PROCESSOR, burners
from datasets import Dataset
from programs_benign import DRESSED, HONEST, LIBRARY, NOT_ANSWERED
from programs_hostile import ATTACKS, descendants, files_left
from slow_cases import one_in
from slow_texts import BOMBS, has_its_turn, placed
from time_limit import ends

from trl_grpo_plus.cli.check.rewards import check_gold
from trl_grpo_plus.registry import get_reward
from trl_grpo_plus.sandbox import Killed, Sandbox, Starved, sandbox
from trl_grpo_plus.sandbox.protocol import Program
from trl_grpo_plus.scoring import Reward, RewardError, worker_pool
from trl_grpo_plus.utils.validation import ConfigError


pytestmark = pytest.mark.timed


MODULE = importlib.import_module("trl_grpo_plus.rewards.python_tests")
python_tests = MODULE.python_tests.__wrapped__  # runs in this process, without the pool of workers

HANG_S = 0.4
SCRIPT_TESTS = [{"stdin": "2 3\n", "stdout": "5\n"}, {"stdin": "10 20\n", "stdout": "30\n"}]
FUNCTION_TESTS = [{"args": [2, 3], "expected": 5}, {"args": [10, 20], "expected": 30}]
ASSERTS = """
for got, wanted in zip(map(add, [2, 10], [3, 20]), [5, 30]):
    assert got == wanted
"""
FORMS = {
    "s": {"tests": SCRIPT_TESTS},
    "f": {"tests": FUNCTION_TESTS, "entry_point": "add"},
    "a": {"test_code": ASSERTS, "entry_point": "add"},
}
ADD = "def add(a, b):\n    return a + b"
WRONG = "def add(a, b):\n    return a - b"
RIGHT = {"s": "print(sum(map(int, input().split())))", "f": ADD, "a": ADD}


@pytest.fixture(scope="module", autouse=True)
def _close_sandboxes():
    yield
    for made in list(SANDBOXES):
        made.close()
    MODULE._sandbox.cache_clear()


SANDBOXES: set[Sandbox] = set()


def score(program, form="s", fence=True, time_s=10.0, **changes):
    SANDBOXES.add(MODULE._sandbox(MODULE.os.getpid(), time_s, 512, 1024, False))
    text = f"Here it is.\n```python\n{program}\n```\nThat is all." if fence else program
    row = {key: value for key, value in changes.items() if key in ("tests", "entry_point", "test_code")}
    args = {key: value for key, value in changes.items() if key not in row}
    return python_tests([text], **one_row(**(row or FORMS[form])), time_s=time_s, **args)[0]


def one_row(**row):
    return {column: [value] for column, value in row.items()}


def check(**row):
    MODULE.check_columns(**one_row(**row))


# -- programs that must earn the reward


@pytest.mark.parametrize("form", RIGHT)
def test_a_right_program(form):
    assert score(RIGHT[form], form) == 1.0


def at_once(reward_of, names):
    """Return name -> reward. Eight run at once, because most of them wait. Those that were starved run again alone."""
    with ThreadPool(8) as pool:
        rewards = dict(zip(names, pool.map(reward_of, names), strict=True))
    return {name: reward_of(name) if math.isnan(reward) else reward for name, reward in rewards.items()}


def test_honest_scripts():
    scripts = {**HONEST, **LIBRARY}

    def reward_of(name):
        program, stdin, stdout = scripts[name]
        return score(program, tests=[{"stdin": stdin, "stdout": stdout}])

    score(RIGHT["s"])  # starts the sandbox
    assert {name: reward for name, reward in at_once(reward_of, scripts).items() if reward != 1.0} == {}


def test_its_workers_and_their_sandboxes_stay():
    """A worker is ended if a sample leaves a process running. The sandbox's processes do not count as such."""

    def pids():
        assert get_reward("python_tests")(completions=[RIGHT["s"]], tests=[SCRIPT_TESTS]) == [1.0]
        return {worker.child.pid for worker in worker_pool.shared()._idle}

    assert pids() == pids() != set()


# -- programs that must not earn it


@pytest.mark.parametrize("turn", [True, pytest.param(False, marks=pytest.mark.full)], ids=["its turn", "the rest"])
@pytest.mark.parametrize("form", one_in(2, RIGHT))
def test_no_attack_is_paid(form, turn):
    """`make test` tries each attack in one of its forms, and `make test-full` in the others."""

    def reward_of(name):
        return score(ATTACKS[name].source if form == "s" else ATTACKS[name].as_function(), form, time_s=HANG_S)

    score(RIGHT[form], form, time_s=HANG_S)  # starts the sandbox
    before = descendants()
    turns = {name: attack.forms[number % len(attack.forms)] for number, (name, attack) in enumerate(ATTACKS.items())}
    names = [name for name, attack in ATTACKS.items() if form in attack.forms and (turns[name] == form) == turn]
    assert {name: reward for name, reward in at_once(reward_of, names).items() if reward != 0.0} == {}
    assert descendants() == before
    assert files_left() == []
    with ends(10, time.monotonic):
        assert score(RIGHT[form], form) == 1.0


@pytest.mark.parametrize(
    "text",
    ["", " \n", "I do not know.", "```python\n```", "5", "```\n```\n```", "\0", "\ud800", "```python\n\0\n```",
     "x" * 1_000_000, "(" * 100_000, "```python\n" + "[" * 100_000 + "\n```", "\n" * 300_000, "```" * 100_000,
     "```python\n" + "-" * 100_000 + "1\n```", "<think>" * 10_000, "```python\nprint(5)"],
    ids=lambda text: repr(text)[:20] + f"...{len(text)}" if len(text) > 20 else repr(text),
)  # fmt: skip
@pytest.mark.parametrize("form", FORMS)
def test_texts_that_are_no_program(text, form):
    with ends(10, time.monotonic):
        assert score(text, form, fence=False) == 0.0


# -- which program of a completion is run


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        (RIGHT["s"], 1.0),
        (f"```python\n{RIGHT['s']}\n```", 1.0),
        (f"```\n{RIGHT['s']}\n```", 1.0),
        (f"```py\nprint(0)\n```\nNo, rather:\n```py\n{RIGHT['s']}\n```", 1.0),
        (f"```py\n{RIGHT['s']}\n```\nNo, rather:\n```py\nprint(0)\n```", 0.0),
        (f"<think>\n```python\n{RIGHT['s']}\n```\n</think>\nI give up.", 0.0),
        (f"<think>\n```python\nprint(0)\n```\n</think>\n```python\n{RIGHT['s']}\n```", 1.0),
        (f"<think>```python\n{RIGHT['s']}\n```", 0.0),
        ([{"role": "assistant", "content": f"```python\n{RIGHT['s']}\n```"}], 1.0),
        ([{"role": "user", "content": f"```python\n{RIGHT['s']}\n```"}, {"role": "assistant", "content": "No."}], 0.0),
        ([], 0.0),
    ],
)
def test_which_program_is_run(completion, reward):
    assert score(completion, fence=False) == reward


@pytest.mark.parametrize("name", DRESSED)
def test_a_right_program_in_odd_dress_is_paid_and_its_wrong_twin_is_not(name):
    form, completion = DRESSED[name]
    wrong = completion.replace("a + b", "a - b")
    assert wrong != completion
    assert (score(completion, form, fence=False), score(wrong, form, fence=False)) == (1.0, 0.0)


@pytest.mark.parametrize("name", NOT_ANSWERED)
def test_a_right_program_that_is_not_the_answer_is_not_paid(name):
    form, completion = NOT_ANSWERED[name]
    assert score(completion, form, fence=False) == 0.0


CLASS = "class add:\n    def __new__(cls, a, b):\n        return a + b"


def fenced(program, language="python"):
    return f"```{language}\n{program}\n```\n"


def indented(text, by="   "):
    return "".join(f"{by}{line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        pytest.param(f"{fenced(ADD)}Example usage:\n{fenced('print(add(2, 3))')}", 1.0, id="an example of use"),
        pytest.param(f"{fenced(ADD)}Output:\n{fenced('5', '')}", 1.0, id="its output"),
        pytest.param(f"{fenced(ADD)}Run it:\n{fenced('python add.py', 'bash')}", 1.0, id="how to run it"),
        pytest.param(fenced(WRONG) + fenced(ADD), 1.0, id="the last definition"),
        pytest.param(fenced(ADD) + fenced(WRONG), 0.0, id="an earlier definition"),
        pytest.param(fenced(ADD) + fenced("assert add(2, 3) == 5"), 1.0, id="a test"),
        pytest.param(fenced(ADD) + fenced("x = add(2, 3)\nadd == x"), 1.0, id="a comparison is no definition"),
        pytest.param(fenced(ADD) + fenced("def add_all(): pass"), 1.0, id="another name that begins so"),
        pytest.param(fenced(ADD) + fenced("class T:\n    def add(self): pass"), 1.0, id="a method of that name"),
        pytest.param(fenced("add = lambda a, b: a + b") + fenced("add(2, 3)"), 1.0, id="a lambda"),
        pytest.param(fenced("add: object = lambda a, b: a + b") + fenced("add(2, 3)"), 1.0, id="a lambda, annotated"),
        pytest.param(fenced(CLASS) + fenced("add(2, 3)"), 1.0, id="a class"),
        pytest.param(fenced("import operator") + fenced("from operator import add"), 1.0, id="none defines it"),
        pytest.param(f"1. So:\n\n{indented(fenced(ADD))}\n2. Done.", 1.0, id="in a list"),
        pytest.param(f"- {indented(fenced(ADD), '  ').strip()}\n- Done.", 1.0, id="right behind a list's mark"),
        pytest.param(indented(fenced(ADD), "\t"), 1.0, id="in tabs"),
        pytest.param(f"<answer>{fenced(ADD).strip()}</answer>", 1.0, id="right within answer tags"),
        pytest.param(f"<answer>\n{fenced(ADD)}</answer>", 1.0, id="in answer tags"),
        pytest.param(f"{fenced(ADD).strip()}<|im_end|>", 1.0, id="a mark right after it"),
        pytest.param(f"```python\n{ADD}```", 1.0, id="the end on the last line"),
        pytest.param(f"````python\n{ADD}\n````", 1.0, id="four backticks"),
        pytest.param(f"````python\n{ADD}\nS = '''\n```\n'''\n````\nDone.", 1.0, id="three backticks within four"),
        pytest.param(f"~~~python\n{ADD}\n~~~\nDone.", 1.0, id="tildes"),
        pytest.param(f"```python\n{ADD}\n# as in ```\nX = 1\n```\nDone.", 1.0, id="a comment that ends as a fence"),
        pytest.param(f"```python title='a'\n{ADD}\n```", 1.0, id="more after the language"),
        pytest.param(f"```python\r\n{ADD}\r\n```\r\nDone.", 1.0, id="lines' ends of Windows"),
        pytest.param(f"{fenced(ADD)}Inline:\n```add(2, 3)```\n", 1.0, id="code in a line"),
        pytest.param(f"```python\n{ADD}", 1.0, id="cut off after it"),
        pytest.param(f"Sure! Here it is: {fenced(ADD)}Done.", 1.0, id="behind words"),
        pytest.param(f"Here it is:{fenced(ADD, '')}", 1.0, id="right behind a colon"),
        pytest.param(f"<answer>I wrote {fenced(ADD)}</answer>", 1.0, id="behind words in answer tags"),
        pytest.param(f"I write it in ```python\n{fenced(ADD)}", 1.0, id="words that name the fence"),
        pytest.param(f"{fenced(ADD)}The first line was ```python", 1.0, id="words that name the fence at the end"),
        pytest.param(
            f"{fenced(ADD)}I began with ```python\nand ended with ```.", 1.0, id="words that name both fences"
        ),
        pytest.param(f"A turn ends with <|im_end|>\n{fenced(ADD)}", 1.0, id="words on a mark at a line's end"),
        pytest.param(f"<!-- a note\n{fenced(ADD)}", 1.0, id="a comment that is not closed"),
    ],
)
def test_which_block_defines_the_function(completion, reward):
    assert score(completion, "f", fence=False) == reward


ODD_LABELS = ["code", "text", "txt", "pypy3", "jupyter", "solution", "plaintext"]


def test_blank_lines_of_a_program_stay_as_they_are():
    program = "X = '''a\n  \nb'''\ndef f():\n    return X"
    assert score(program, tests=[{"args": [], "expected": "a\n  \nb"}], entry_point="f") == 1.0


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        pytest.param(f"{fenced(RIGHT['s'])}Input:\n{fenced('2 3', '')}Output:\n{fenced('5', '')}", 1.0, id="a sample"),
        pytest.param(f"{fenced(RIGHT['s'], 'py')}Run:\n{fenced('python a.py', 'bash')}", 1.0, id="how to run it"),
        pytest.param(f"{fenced(RIGHT['s'])}Try it:\n{fenced('>>> main()')}", 1.0, id="a session"),
        pytest.param(f"{fenced('1 2', '')}So:\n{fenced(RIGHT['s'], '')}", 1.0, id="no labels: the last one"),
        pytest.param(fenced("print(5)") + fenced(RIGHT["s"]), 1.0, id="the last one of Python"),
        pytest.param(fenced(RIGHT["s"]) + fenced("print(0)"), 0.0, id="an earlier one of Python"),
        pytest.param(fenced(RIGHT["s"], "Python3") + fenced("5", "text"), 1.0, id="a label in capitals"),
        pytest.param(f"{fenced('print(0)')}<!-- {fenced(RIGHT['s'])} -->", 0.0, id="one in a comment"),
        pytest.param(f"<!-- {fenced(RIGHT['s'])[:-1]} -->\n{fenced('print(0)')}", 0.0, id="a comment, then another"),
        pytest.param(
            f"{fenced('print(0)')}Or <!-- so: {fenced(RIGHT['s'])}-->", 0.0, id="one in a comment behind words"
        ),
        pytest.param(
            f"{fenced('print(0)')[:-1]}<|im_end|>\n<|im_start|>user\nUse {fenced(RIGHT['s'])}", 0.0, id="another turn"
        ),
        pytest.param(f"I strip <|im_end|> and `<|eot_id|>`\n{fenced(RIGHT['s'])}", 1.0, id="words on marks"),
        pytest.param(fenced(f"x = '<|im_end|>'  # <|im_end|>\n{RIGHT['s']}"), 1.0, id="a mark in a program"),
        pytest.param(f"<!-- a --> {fenced(RIGHT['s'])}<!-- b -->", 1.0, id="one between comments"),
        pytest.param(fenced(f"x = ' \\\n<!--'\n{RIGHT['s']}"), 1.0, id="a comment in a string"),
        *(pytest.param(f"So:\n{fenced(RIGHT['s'], label)}", 1.0, id=f"labelled {label}") for label in ODD_LABELS),
        pytest.param(f"{fenced(RIGHT['s'], 'text')}Output:\n{fenced('x = 5', 'output')}", 1.0, id="then its output"),
        pytest.param(f"{fenced(RIGHT['s'], 'code')}Done:\n{fenced('5', 'text')}", 1.0, id="then a text"),
        pytest.param(fenced(RIGHT["s"], "code") + fenced("print(0)", "code"), 0.0, id="an earlier one, odd labels"),
        pytest.param(fenced("print(0)") + fenced(RIGHT["s"], "code"), 0.0, id="an odd label after one of Python"),
        pytest.param(fenced("print(0)", "code") + fenced(RIGHT["s"]), 1.0, id="an odd label before one of Python"),
        pytest.param(f"<answer>{fenced(RIGHT['s'], 'code')}</answer>", 1.0, id="an odd label in the tag"),
        pytest.param(
            f"<answer>{fenced(RIGHT['s'], 'code')}</answer>{fenced('print(0)')}", 1.0, id="in the tag, then another"
        ),
        pytest.param(f"Run {fenced('pip = 1', 'bash')}\n[PYTHON]\n{RIGHT['s']}\n[/PYTHON]", 1.0, id="a tag instead"),
    ],
)
def test_which_block_is_the_script(completion, reward):
    assert score(completion, "s", fence=False) == reward


def test_a_program_cannot_stop_the_run_by_what_it_answers():
    deep = "def f(x):\n    for _ in range(100):\n        x = [x]\n    return x"
    columns = {"test_code": "assert f(f('abc')) == 'abc'", "entry_point": "f"}
    assert score(deep, **columns) == 0.0
    assert score("def f(x):\n    return x[::-1]", **columns) == 1.0


@pytest.mark.parametrize("name", one_in(2, BOMBS))
@pytest.mark.parametrize("turn", [True, pytest.param(False, marks=pytest.mark.full)], ids=["its turn", "the rest"])
def test_bombs_are_read_in_time(name, turn):
    bomb, number = BOMBS[name], list(BOMBS).index(name)
    joined = bomb + "\n"
    texts = [*placed(bomb), f"```python\n{bomb}```", joined + "```a\n" + joined, "``" + bomb]
    for text in (text for place, text in enumerate(texts) if has_its_turn(number, place) == turn):
        for entry_point in ("add", None):
            with ends():
                assert isinstance(MODULE.program_of(text, entry_point), str)


@pytest.mark.parametrize(
    "line", one_in(3, ["x```", "```x", "```x```", "  ```", "~~~", "```<a", "- ```", "<answer>```", "a"])
)
def test_many_fences_are_read_in_time(line):
    with ends():
        MODULE.program_of(f"{line}\n" * 75_000, "add")
        MODULE.program_of("```\n" + f"{line}\n" * 75_000, "add")


def _pieces(size):
    count = size // 40
    blocks = "".join(f"```\nA{i} = {i}\n```\n" for i in range(count))
    uses = "".join(f" + A{i}" for i in range(count)) + "".join(f" + B{i}" for i in range(count))
    return f"{blocks}```\ndef add():\n    return 1{uses}\n```\n"


REPEATED = {  # name -> (head, repeated unit, tail)
    "a span of blanks": ("hello `py", " ", ""),
    "spans that open": ("", "`x``", ""),
    "except": ("except", " ", "x"),
    "except in a fence": ("```\nexcept", " ", "x\n```"),
    "def": ("def", " ", "("),
    "targets": ("", "a[x] , ", "x"),
    "words": ("", "Aa ", "="),
    "marks of the end": ("print(1)\n", "</s> \n", ""),
    "labelled fences in a string": ("```python\n'''\n", "```x\n~~~\n", ""),
    "labelled fences in a string that ends": ("```python\n'''\n", "```x\n~~~\n", "~~~z\n'''\n"),
    "strings around fences": ("```\n", "'''\n```x\n'''\n```y\n", ""),
    "blocks that open a string": ("", "```\n'''\n```\n```\n\"\"\"\n```x\n", ""),
    "fences in a quotation": ("", "> x\n> ```\nx\n", ""),
    "blocks of Markdown": ("", "```markdown\n~~~\n~~~\n```\n", ""),
    "fences": ("", "```\n", ""),
    "ends behind text": ("", "```a\nx```\n", ""),
    "words behind an end": ("```\n", "```    =\n", ""),
    "code and words": ("", "import x\nThis is a word.\n", ""),
    "opening tags": ("", "\\begin{minted}[", "\\end{minted}"),
    "imports": ("import ", "a as b, ", ""),
}


@pytest.mark.parametrize("name", one_in(3, [*REPEATED, "pieces"]))
def test_four_times_the_text_takes_about_four_times_as_long(name):
    def seconds(size):
        size *= 10 if name == "marks of the end" else 1  # a short text is copied too fast to be measured
        head, unit, tail = REPEATED.get(name, ("", "", ""))
        text = _pieces(size) if name == "pieces" else head + unit * (size // len(unit)) + tail
        start = time.process_time()
        for entry_point in ("add", None):
            MODULE.program_of(text, entry_point)
        MODULE.code_blocks(text)
        return time.process_time() - start

    # Quadratic work takes 16 times as long in every try. A busy machine disturbs only some of the tries.
    assert any(seconds(100_000) < 8 * min(seconds(25_000), seconds(25_000)) + 0.1 for _ in range(5))


# -- scripts


@pytest.mark.parametrize(
    ("printed", "wanted", "same"),
    [
        (b"5\n", "5\n", True), (b"5", "5\n", True), (b"5 \n", "5", True), (b"5\r\n6\r\n", "5\n6\n", True),
        (b"5\n\n\n", "5", True), (b"a  b\n", "a  b", True), (b"5\n6", "5\n6\n", True), ("é\n".encode(), "é", True),
        (b"\n5", "5", False), (b" 5", "5", False), (b"5\n\n6", "5\n6", False), (b"5\n6", "5", False),
        (b"5", "5\n6", False),
        (b"a b", "a  b", False), (b"", "5", False), (b"5.0", "5", False), (b"5\n\xff", "5", False),
        (b"5\0", "5", False),
        ("é".encode("latin-1"), "é", False), (b"YES", "yes", False), (b"5\x0c6", "5\n6", False),
        (b"5\xe2\x80\xa86", "5\n6", False),
    ],
)  # fmt: skip
def test_same_output(printed, wanted, same):
    assert MODULE.same_output(printed, wanted) is same


def test_stdin_may_be_left_out():
    assert score("print('hi')", tests=[{"stdout": "hi"}]) == 1.0
    assert score("print('hi')", tests=[{"stdin": None, "stdout": "hi", "args": None, "expected": None}]) == 1.0


def test_each_case_is_a_run_of_its_own():
    """Each case starts the script anew, so that it keeps nothing from the case before."""
    program = "import builtins\nprint(getattr(builtins, 'last', 1))\nbuiltins.last = 2"
    assert score(program, tests=[{"stdout": "1"}, {"stdout": "1"}]) == 1.0


# -- functions


@pytest.mark.parametrize(
    ("body", "expected", "reward"),
    [
        ("5", 5, 1.0), ("True", 1, 0.0), ("1", True, 0.0), ("5.0", 5, 0.0), ("5", 5.0, 0.0), ("'5'", 5, 0.0),
        ("(1, 2)", [1, 2], 1.0), ("[1, (2,)]", [1, [2]], 1.0), ("{1, 2}", [1, 2], 0.0), ("None", None, 1.0),
        ("0", None, 0.0),
        ("float('nan')", 0.0, 0.0), ("-0.0", 0.0, 1.0), ("0.1 + 0.2", 0.3, 0.0), ("1e308 * 10", float("inf"), 1.0),
        ("{'a': [1]}", {"a": [1]}, 1.0), ("{'b': 1, 'a': 2}", {"a": 2, "b": 1}, 1.0), ("{1: 1}", {"1": 1}, 0.0),
        ("__import__('collections').Counter('aab')", {"a": 2, "b": 1}, 1.0), ("2 ** 5000", 2**5000, 1.0),
        ("'\\ud800'", "\ud800", 1.0), ("'a' * 100000", "a" * 100_000, 1.0), ("b'a'", "a", 0.0), ("[[]]", [[]], 1.0),
    ],
    ids=range(24),
)  # fmt: skip
def test_types_must_be_the_same(body, expected, reward):
    tests = [{"args": [], "expected": expected}]
    assert score(f"def f():\n    return {body}", tests=tests, entry_point="f") == reward


@pytest.mark.parametrize(
    "tests",
    [
        [{"args": [2, 3], "expected": 5}],
        [{"args": {"a": 2, "b": 3}, "expected": 5}],
        [{"args": "[2, 3]", "expected": "5"}],
        [{"args": '{"a": 2, "b": 3}', "expected": "5"}],
        [{"args": ["x", "5"], "expected": "x5"}],
        [{"args": '["x", "5"]', "expected": '"x5"'}],
        [{"args": [[1], [2]], "expected": [1, 2], "stdin": None, "stdout": None}],
        json.dumps(FUNCTION_TESTS),
    ],
)
def test_ways_to_write_a_function_s_tests(tests):
    columns = {"tests": tests, "entry_point": "add"}
    check(**columns)
    assert score(RIGHT["f"], **columns) == 1.0
    assert score("def add(a, b):\n    return a", **columns) == 0.0


def test_a_method():
    program = "class Solution:\n    def add(self, a, b):\n        return a + b"
    assert score(program, tests=FUNCTION_TESTS, entry_point="Solution.add") == 1.0
    asserts = "def check(candidate):\n    assert candidate(2, 3) == 5"
    assert score(program, test_code=asserts, entry_point="Solution().add") == 1.0


# -- functions that change their arguments in place

SORT = "def sort(items):\n    items.sort()"
CASES = [{"args": [[3, 1, 2]], "expected_args": [[1, 2, 3]]}, {"args": [[2, 1]], "expected_args": [[1, 2]]}]


@pytest.mark.parametrize(
    ("program", "reward"),
    [
        (SORT, 1.0),
        ("def sort(items):\n    items[:] = sorted(items)\n    return items", 1.0),
        ("def sort(items):\n    return sorted(items)", 0.0),
        ("def sort(items):\n    items = sorted(items)", 0.0),
        ("def sort(items):\n    items.clear()", 0.0),
        ("def sort(items):\n    items.sort()\n    raise ValueError", 0.0),
        ("def sort(items):\n    items.sort()\n    items[0] = float(items[0])", 0.0),
        ("def sort(items):\n    items.sort()\n    return lambda: 0", 0.0),
        ("def sort(items):\n    items.sort()\n    items.append(items)", 0.0),
        ("import os\ndef sort(items):\n    items.sort()\n    os._exit(0)", 0.0),
    ],
)
def test_what_a_function_leaves_of_its_arguments(program, reward):
    plain = {"expected": None, "stdin": None, "stdout": None}
    for tests in (
        CASES,
        [{name: json.dumps(value) for name, value in case.items()} for case in CASES],
        [{**case, **plain} for case in CASES],
        [{name: {"items": value[0]} for name, value in case.items()} for case in CASES],
    ):
        check(tests=tests, entry_point="sort")
        assert score(program, tests=tests, entry_point="sort") == reward


@pytest.mark.parametrize(
    ("program", "reward"),
    [
        ("def cut(items, n):\n    del items[n:]\n    return n", 1.0),
        ("def cut(items, n):\n    del items[n:]\n    return n + 1", 0.0),
        ("def cut(items, n):\n    return n", 0.0),
        ("def cut(items, n):\n    del items[n:]\n    return float(n)", 0.0),
    ],
)
def test_the_returned_value_counts_if_the_test_expects_one(program, reward):
    tests = [{"args": [[5, 6, 7], 2], "expected": 2, "expected_args": [[5, 6], 2]}]
    assert score(program, tests=tests, entry_point="cut") == reward


def test_arguments_that_a_test_does_not_ask_for_do_not_count():
    tests = [{"args": [[3, 1]], "expected": 1}]
    assert score("def least(items):\n    items.sort()\n    return items[0]", tests=tests, entry_point="least") == 1.0


EFFECTS = {
    "a call alone": "x = [3, 1, 2]\nsort(x)\nassert x == [1, 2, 3]",
    "an assert of None": "x = [3, 1, 2]\nassert sort(x) is None\nassert x == [1, 2, 3]",
    "check": "def check(candidate):\n    x = [3, 1, 2]\n    candidate(x)\n    assert x == [1, 2, 3]",
    "by name": "x = [3, 1, 2]\nsort(items=x)\nassert x == [1, 2, 3]",
    "a row of a matrix": "m = [[3, 1], [5]]\nrow = m[0]\nsort(m[0])\nassert m == [[1, 3], [5]] and row is m[0]",
    "unittest": "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        x = [2, 1]\n"
    "        sort(x)\n        self.assertEqual(x, [1, 2])",
    "pytest": "from solution import sort\ndef test_it():\n    x = [2, 1]\n    sort(x)\n    assert x == [1, 2]",
    "assertIsNone": "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        x = [2, 1]\n"
    "        self.assertIsNone(sort(x))\n        self.assertEqual(x, [1, 2])",
    "check, called": "def check(f):\n    x = [3, 1, 2]\n    f(x)\n    assert x == [1, 2, 3]\ncheck(sort)",
    "a helper": "def run(f, x, wanted):\n    f(x)\n    assert x == wanted\nrun(sort, [2, 1], [1, 2])",
    "another name": "f = sort\nx = [2, 1]\nf(x)\nassert x == [1, 2]",
    "a list's own sort": "x, y = [2, 1], [2, 1]\nsort(x)\nassert y.sort() is None and x == y",
    "a loop": "for x in [[2, 1], [3, 1]]:\n    wanted = sorted(x)\n    sort(x)\n    assert x == wanted",
}


@pytest.mark.parametrize("name", EFFECTS)
def test_asserts_on_what_a_call_leaves(name):
    columns = {"test_code": EFFECTS[name], "entry_point": "sort"}
    check(**columns)
    assert score(SORT, **columns) == 1.0
    for wrong in ("return sorted(items)", "pass", "items.clear()", "items.sort(reverse=True)", "items.append(0)"):
        assert score(f"def sort(items):\n    {wrong}", **columns) == 0.0
    method = SORT.replace("sort(", "sort(self, ").replace("\n", "\n    ")
    assert score(f"class Solution:\n    {method}", **columns) == 0.0


def test_asserts_on_what_a_method_leaves_and_at_any_depth():
    program = "class S:\n    def f(self, d):\n        d['a'][0].add(3)\n        d['b'] = (1, [2])\n        d.pop('c')"
    tests = (
        "inner = {1}\nd = {'a': [inner], 'c': 0}\nS().f(d)\nassert d == {'a': [{1, 3}], 'b': (1, [2])} and 3 in inner"
    )
    columns = {"test_code": tests, "entry_point": "S.f"}
    assert score(program, **columns) == 1.0
    assert score(program.replace("add(3)", "add(4)"), **columns) == 0.0


def test_a_call_that_is_asked_for_its_answer_leaves_its_arguments_as_they_were():
    """Otherwise a program could change the question to fit its answer."""
    program = "def least(items):\n    items[:] = [0]\n    return 0"
    for tests in (
        "x = [3, 1]\nassert least(x) == min(x)",
        "x = [3, 1]\ngot = least(x)\nassert got == min(x)",
        "x = [3, 1]\nassert [least(x)] == [min(x)]",
        "def check(f):\n    x = [3, 1]\n    assert f(x) == min(x)",
    ):
        assert score(program, test_code=tests, entry_point="least") == 0.0
        right = "def least(items):\n    return sorted(items)[0]"
        assert score(right, test_code=tests, entry_point="least") == 1.0


ASKED = "assert f(x) == sorted(x)"
ANSWERS_ASKED_FOR = {
    "a call before": f"x = [3, 1]\nf(x)\n{ASKED}",
    "an assert of None before": f"x = [3, 1]\ntry:\n    assert f(x) is None\nexcept AssertionError: pass\n{ASKED}",
    "what is wanted from between": "x = [3, 1]\nf(x)\nwanted = sorted(x)\nassert f([3, 1]) == wanted",
    "a call behind": "x = [3, 1]\ngot = f(x)\nf(x)\nassert got == sorted(x)",
    "calls in a loop": f"x = [3, 1]\nfor _ in range(3):\n    f(x)\n{ASKED}",
    "map": "x = [3, 1]\nf(x)\nassert [*map(f, [x])] == [sorted(x)]",
    "another name": f"g = f\nx = [3, 1]\ng(x)\n{ASKED.replace('f(', 'g(')}",
    "imported": f"from solution import f as g\nx = [3, 1]\ng(x)\n{ASKED.replace('f(', 'g(')}",
    "the module": f"import solution as s\nx = [3, 1]\ns.f(x)\n{ASKED.replace('f(', 's.f(')}",
    "check": f"def check(c):\n    x = [3, 1]\n    c(x)\n    {ASKED.replace('f(', 'c(')}",
    "a helper": f"def run(g, x):\n    g(x)\n    {ASKED.replace('f(', 'g(')}\nrun(f, [3, 1])",
    "a helper that answers": "def run(g, x):\n    return g(x)\nx = [3, 1]\nf(x)\nassert run(f, x) == sorted(x)",
    "two tests": f"X = [3, 1]\ndef test_a():\n    f(X)\ndef test_b():\n    {ASKED.replace('x', 'X')}",
    "unittest": "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        x = [3, 1]\n"
    "        f(x)\n        self.assertEqual(f(x), sorted(x))",
}


@pytest.mark.parametrize("name", ANSWERS_ASKED_FOR)
def test_where_an_answer_is_asked_for_no_call_changes_the_arguments(name):
    columns = {"test_code": ANSWERS_ASKED_FOR[name], "entry_point": "f"}
    check(**columns)
    assert score("def f(x):\n    x.clear()\n    return []", **columns) == 0.0
    assert score("def f(x):\n    return sorted(x)", **columns) == 1.0


def test_an_answer_that_is_asked_for_where_it_cannot_be_seen_does_not_come():
    program = "def f(x):\n    x.clear()\n    return []"
    for tests in (
        "x = [3, 1]\nf(x)\nassert globals()['f'](x) == sorted(x)",
        "x = [3, 1]\nf(x)\nassert globals()['f']([3, 1]) is not x",
        "x = [3, 1]\nf(x)\ntry:\n    globals()['f'](x) + 1\nexcept Exception:\n    pass",
        "x = [3, 1]\ngot = globals()['f'](x)\nf(x)\nassert got == sorted(x)",
    ):
        assert score(program, test_code=tests, entry_point="f") == 0.0


def test_a_method_s_answer_that_is_asked_for():
    tests = "s = S()\nx = [3, 1]\ns.f(x)\nassert s.f(x) == sorted(x)"
    columns = {"test_code": tests, "entry_point": "S.f"}
    assert score("class S:\n    def f(self, x):\n        x.clear()\n        return []", **columns) == 0.0
    assert score("class S:\n    def f(self, x):\n        return sorted(x)", **columns) == 1.0


def test_a_case_in_which_nothing_changes_is_fine_beside_one_in_which_something_does():
    edges = [{"args": [[]], "expected_args": [[]]}, {"args": [[1, 2]], "expected_args": [[1, 2]]}]
    columns = {"tests": CASES + edges, "entry_point": "sort"}
    check(**columns)
    assert score(SORT, **columns) == 1.0
    assert score("def sort(items):\n    pass", **columns) == 0.0
    assert score("def sort(items):\n    items[:] = sorted(items) or [0]", **columns) == 0.0
    check(tests=[{**edges[0], "expected": 0}], entry_point="size")
    for still in (edges, [*edges, {"args": [[3]], "expected": None}]):
        with pytest.raises(ValueError, match="so a program that does nothing passes"):
            check(tests=still, entry_point="sort")


# -- credit


@pytest.mark.parametrize(
    ("program", "share"),
    [
        ("def f(n):\n    return n", 1.0),
        ("def f(n):\n    return n if n < 3 else 0", 0.75),
        ("def f(n):\n    return 1 if n else 1 / 0", 0.25),
        ("def f(n):\n    return n if n < 2 else __import__('os')._exit(0)", 0.5),
        ("def f(n):\n    while n == 1: pass\n    return n", 0.25),
        ("def g(n):\n    return n", 0.0),
        ("print(input())", 1.0),
        ("n = int(input())\nprint(n)\nexit(n % 2)", 0.5),
        ("n = int(input())\nwhile n == 1: pass\nprint(n)", 0.25),
        ("print(0)", 0.25),
    ],
)
def test_a_share_of_cases(program, share):
    columns = {"tests": [{"stdin": f"{n}\n", "stdout": f"{n}\n"} for n in range(4)]}
    if program.startswith("def"):
        columns = {"tests": [{"args": [n], "expected": n} for n in range(4)], "entry_point": "f"}
    scores = [score(program, **columns, credit=credit, time_s=1.0) for credit in ("fraction", "all")]
    assert scores == [share, float(share == 1)]


def test_time_out_ends_a_batch_s_cases():
    with ends(20, time.monotonic):
        tests = [{"stdin": str(n), "stdout": str(n)} for n in range(100)]
        assert score("while True: pass", tests=tests, credit="fraction", time_s=0.5) == 0.0


# -- rows


def test_rows_of_all_kinds():
    columns = {
        "tests": [SCRIPT_TESTS, FUNCTION_TESTS, None, None],
        "entry_point": [None, "add", "add", None],
        "test_code": [None, None, ASSERTS, None],
    }
    right = [RIGHT["s"], RIGHT["f"], RIGHT["a"], RIGHT["s"]]
    assert python_tests(right, **columns) == [1.0, 1.0, 1.0, None]
    assert python_tests(["print(0)"] * 4, **columns) == [0.0, 0.0, 0.0, None]
    assert python_tests(["print(0)"]) == [None]


def test_rows_without_any_tests_are_refused():
    with pytest.raises(ValueError, match="needs a column tests or a column test_code"):
        MODULE.check_columns()


def test_columns_that_are_fine():
    asserts = "import math\nfrom os.path import join\nfrom solution import Solution\nassert Solution().add(1, 1) == 2"
    columns = {
        "tests": [SCRIPT_TESTS, FUNCTION_TESTS, None, None, json.dumps(SCRIPT_TESTS)],
        "entry_point": [None, "add", "Solution().add", None, None],
        "test_code": [None, None, asserts, None, None],
    }
    MODULE.check_columns(**columns, credit="all", output_kb=1024)


@pytest.mark.parametrize(
    "test_code",
    [
        "def helper(x): return x\nassert add(helper(1), 2) == 3",
        "def add2(): return add(1, 2)\nassert add2() == 3",
        "list = [1]\nassert add(list, list) == [1, 1]",
        "for input in [1, 2]:\n    assert add(input, 0) == input",
        "def check(candidate, max=2):\n    assert candidate(max, max) == 4",
        "from solution import *\nassert add(1, 2) == 3",
        "assert sorted(map(add, [1], [2]), key=lambda x: -x) == [3]",
        "assert add(None, True) is None",
    ],
)
def test_test_code_that_is_fine(test_code):
    check(test_code=test_code, entry_point="add")


def test_test_code_that_tests_nothing_is_the_data_s_fault():
    with pytest.raises(ValueError, match="without a single call of add"):
        score(RIGHT["a"], test_code="assert plus(1, 1) == 2", entry_point="add")


# -- as a registered reward


def test_it_works_in_the_pool_and_survives_what_is_run():
    completions = [RIGHT["s"], "while True: pass", "import os\nos.fork()", RIGHT["s"], "print(5)", RIGHT["s"]]
    reward = get_reward("python_tests", time_s=1.0)
    columns = {"tests": [SCRIPT_TESTS] * 5 + [None], "prompts": ["?"] * 6}
    for _ in range(2):
        assert reward(completions=completions, **columns) == [1.0, 0.0, 0.0, 1.0, 0.0, None]


def test_the_reward_s_own_limit_leaves_nothing_behind():
    """The reward's `timeout` is the last resort. It kills the worker with its sandbox and the program."""
    reward = Reward(MODULE.python_tests.definition, {"time_s": 60.0}, timeout=1.5)
    counts = []
    for _ in range(3):
        assert reward(completions=["while True: pass"], tests=[SCRIPT_TESTS]) == [0.0]
        counts.append(len(descendants()))
    assert counts[2] <= counts[0]
    assert reward(completions=[RIGHT["s"]], tests=[SCRIPT_TESTS]) == [1.0]


def test_a_broken_row_stops_the_run():
    with pytest.raises(RewardError, match="neither a list nor a dict"):
        get_reward("python_tests")(completions=["x"], tests=[[{"args": 5, "expected": 5}]], entry_point=["add"])


def test_it_is_refused_where_nothing_is_safe(monkeypatch):
    monkeypatch.setattr(sandbox, "tiers", list)
    monkeypatch.setattr(MODULE, "_runs_here", MODULE._runs_here.__wrapped__)  # an earlier result is cached
    with pytest.raises(ConfigError, match=r"'python_tests' cannot run here: .*allow_unsafe_code_execution=True"):
        get_reward("python_tests")
    get_reward("python_tests", allow_unsafe_code_execution=True)


# From Python 3.14 on the annotations alone would not need it: they are not evaluated.
NEEDS_SETUP = {
    "s": "print(reduce(lambda a, b: a + b, map(int, input().split())))",
    "f": "class Solution:\n    def add(self, a: List[int], b) -> deque:\n        return sum(deque([a, b]))",
    "a": "def add(a: List[int], b):\n    return reduce(int.__add__, [a, b])",
}
SETUP = "from collections import *\nfrom functools import *\nfrom typing import *"


@pytest.mark.parametrize("form", NEEDS_SETUP)
def test_code_that_is_put_before_each_program(form):
    row = {**FORMS[form], "entry_point": "Solution.add"} if form == "f" else FORMS[form]
    assert score(NEEDS_SETUP[form], **row) == 0.0
    assert score(NEEDS_SETUP[form], **row, setup_code=SETUP) == 1.0
    for future in ("annotations\n", "(\n    annotations,\n)\n", "annotations; import re\n"):
        assert score(f"from __future__ import {future}{NEEDS_SETUP[form]}", **row, setup_code=SETUP) == 1.0


FUTURE = "from __future__ import annotations"


@pytest.mark.parametrize(
    ("head", "hoisted"),
    [
        (FUTURE, True),
        (f"# a\n\n'''Doc.\n'''\n{FUTURE}  # why\n{FUTURE}", True),
        (f'r"Doc."; {FUTURE}', True),
        (f'"""Doc.\n{FUTURE}\n"""', False),
        (f"import re\n'''\n{FUTURE}\n'''", False),
        (f'x = """\n{FUTURE}\n"""', False),
        (f"# {FUTURE}", False),
    ],
)
def test_only_what_must_come_first_comes_before_the_setup(head, hoisted):
    whole = MODULE._after_setup("a = 1", f"{head}\nprint(a)")
    before, _, after = whole.partition("a = 1\n")
    assert (FUTURE in before, FUTURE in after) == (hoisted, not hoisted)
    assert hoisted or after == f"{head}\nprint(a)"
    compile(whole, "whole", "exec")


def test_a_long_head_is_read_in_time():
    for head in (
        " " * 300_000,
        "#\n" * 100_000,
        '"' * 100_000,
        '"a"\n' * 100_000,
        "from __future__ import (" * 10_000,
    ):
        with ends(5, time.process_time):
            MODULE._after_setup("a = 1", head)


def test_setup_code_that_fails_is_refused_before_the_run():
    with pytest.raises(
        ConfigError, match=r"setup_code='import numpy' fails in the sandbox, .*No module named 'numpy'"
    ):
        get_reward("python_tests", setup_code="import numpy")
    get_reward("python_tests", setup_code=SETUP)


@pytest.fixture
def failures(monkeypatch):
    """Return a list of errors. Each of the next runs in the sandbox removes the last one and raises it."""
    score(RIGHT["s"])
    made, waiting = MODULE._sandbox(MODULE.os.getpid(), 10.0, 512, 1024, False), []
    run = made.run

    def fail(*args, **kwargs):
        if waiting:
            raise waiting.pop()
        return run(*args, **kwargs)

    monkeypatch.setattr(made, "run", fail)
    return waiting


def test_a_sandbox_that_was_killed_is_tried_again(failures):
    failures += [sandbox.SandboxError("killed")]
    assert score(RIGHT["s"]) == 1.0
    failures += [sandbox.SandboxError("killed")] * 2
    with pytest.raises(sandbox.SandboxError):
        score(RIGHT["s"])


@pytest.mark.parametrize("errors", [[Starved("busy")], [Killed("killed"), Killed("killed")]], ids=["busy", "killed"])
def test_a_starved_or_killed_run_gives_no_verdict(failures, errors):
    failures += errors
    reward = score(RIGHT["s"])
    assert math.isnan(reward)
    assert (reward.status, reward.message) == ("starved", str(errors[0]))
    assert score(RIGHT["s"]) == 1.0


@pytest.mark.parametrize("form", FORMS)
def test_a_program_that_takes_too_long_is_told_apart(form):
    for program in ("while True: pass", "import time\ntime.sleep(1000)"):
        reward = score(program if form == "s" else f"{program}\n{ADD}", form, time_s=HANG_S)
        assert (reward, reward.status) == (0.0, "too_long")
    assert type(score("print(5)" if form == "s" else WRONG, form)) is float


def test_a_share_of_cases_before_one_that_takes_too_long_counts():
    program = "def f(n):\n    while n == 1: pass\n    return n"
    tests = [{"args": [n], "expected": n} for n in range(2)]
    reward = score(program, tests=tests, entry_point="f", credit="fraction", time_s=HANG_S)
    assert (reward, reward.status) == (0.5, "too_long")


@pytest.mark.parametrize(("credit", "times", "wanted"), [("all", 1, 1.0), ("all", 2, 0.0), ("fraction", 2, 0.5)])
def test_a_function_that_was_killed_goes_on_once(monkeypatch, credit, times, wanted):
    """The function's process is killed in its second case, as by the kernel's OOM killer."""
    program = "def f(n):\n    return n"
    made = Sandbox(tier="landlock+seccomp", self_test=False)
    monkeypatch.setattr(MODULE, "_sandbox", lambda *_: made)
    start, call, started = made._start, Program._call, []

    def start_and_tell(*args):
        child, pids = start(*args)
        started.append(child.pid)
        return child, pids

    def call_and_kill(self, args, *more, **changed):
        if args == [1] and len(started) <= times:
            os.kill(started[-1], signal.SIGSTOP)  # so that only the kill below ends the call
            threading.Timer(0.1, os.kill, (started[-1], signal.SIGKILL)).start()
        return call(self, args, *more, **changed)

    monkeypatch.setattr(made, "_start", start_and_tell)
    monkeypatch.setattr(Program, "_call", call_and_kill)
    tests = [{"args": [n], "expected": n} for n in (0, 1)]
    assert score(program, tests=tests, entry_point="f", credit=credit) == wanted
    assert len(started) == 2
    made.close()


@pytest.mark.parametrize("form", FORMS)
def test_a_program_that_kills_itself_earns_nothing(form):
    die = "import os\nos.kill(os.getpid(), 9)\n"
    assert score(die if form == "s" else "def f(*_):\n    " + die.replace("\n", "\n    "), form) == 0.0


@pytest.mark.full  # the sandbox and the pool, of which it consists, have such tests of their own
def test_right_programs_on_a_busy_machine_score():
    """By the wall clock the program takes longer than `time_s`, and longer than the pool's limit."""
    program = "import time\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass\n" + RIGHT["s"]
    reward = Reward(MODULE.python_tests.definition, {"time_s": 1.0}, timeout=3.0)
    worker_pool.shared().close()
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {PROCESSOR})
        reward(completions=[RIGHT["s"]], tests=[SCRIPT_TESTS])
    finally:
        os.sched_setaffinity(0, before)
    with burners(MANY):
        (outcome,) = reward.score(completions=[program], tests=[SCRIPT_TESTS])
    worker_pool.shared().close()
    assert (outcome.score, outcome.status) == (1.0, "ok")


def test_a_known_solution_is_the_gold_answer():
    gold = get_reward("python_tests").definition.gold
    program = "print(int(input()) + 1)"
    assert gold(tests=None, solution=program) == f"```python\n{program}\n```"
    fenced = f"```py\n{program}\n```"
    assert gold(tests=None, solution=fenced) == fenced
    opened = get_reward("python_tests", think_opened=True)
    golds = [gold(solution=text, think_opened=True) for text in (program, fenced)]
    assert opened(golds, tests=[[{"stdin": "1\n", "stdout": "2\n"}]] * 2) == [1.0, 1.0]
    bare = 'def f():\n    """\n    ```\n    f()\n    ```\n    """\n    return 1'
    assert MODULE.program_of(gold(tests=None, solution=bare), "f") == f"{bare}\n"
    assert [gold(tests=None, solution=none) for none in (None, " ", ["print(1)"])] == [None] * 3
    assert gold(tests=None) is None


def test_tests_that_their_solution_does_not_pass_are_found():
    cases = [[{"stdin": f"{i}\n", "stdout": f"{i + wrong}\n"}] for i, wrong in ((1, 1), (2, 1), (3, 2))]
    solutions = ["print(int(input()) + 1)", "print(int(input()) + 1) #", "print(int(input()) + 1) # 3"]
    data = Dataset.from_dict({"tests": cases, "solution": solutions})
    golds, _ = check_gold(get_reward("python_tests"), data)
    assert (golds.right, golds.total) == (2, 3)
    assert "print(int(input()) + 1) # 3" in golds.problems[0]
