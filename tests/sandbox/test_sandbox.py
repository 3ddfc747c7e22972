"""The sandbox: honest programs run as in plain Python, hostile ones cannot break out, and the judge is not fooled."""

import contextlib
import logging
import os
import pkgutil
import random
import re
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import programs_hostile
import pytest
from cpu_load import MANY, burners, keep_there
from programs_benign import HONEST, IMPORT_ALL, LIBRARY, OUT_OF_REACH
from programs_hostile import HARM, NETWORK, SECRET, SECRET_FILE, SECRET_VARIABLE, SPYING, descendants, files_left
from time_limit import ends

from trl_grpo_plus.sandbox import (
    KILLED,
    TOO_LONG,
    Killed,
    Sandbox,
    SandboxError,
    Starved,
    resource_pressure,
    sandbox,
    self_test,
)
from trl_grpo_plus.sandbox import isolation as _tiers
from trl_grpo_plus.sandbox.child import seccomp
from trl_grpo_plus.sandbox.child.lockdown import can_become_others
from trl_grpo_plus.sandbox.isolation import Tier
from trl_grpo_plus.utils.fork_client import NoProcess
from trl_grpo_plus.utils.resources import THREADS


pytestmark = pytest.mark.timed


TIERS = ["bubblewrap+landlock+seccomp", "landlock+seccomp", "bubblewrap+seccomp-strict", "seccomp-strict"]
BREAKING_OUT = {**SPYING, **NETWORK, **HARM}
REPOSITORY = Path(sandbox.__file__).parents[2]


def at_once(function, cases):
    """Return case -> result of `function`. Eight cases run at a time, because any thread may use a sandbox."""
    with ThreadPoolExecutor(8) as pool:  # multiprocessing's pool starts a process from Python 3.14 on
        return dict(zip(cases, pool.map(function, cases), strict=True))


def is_there(name):
    try:
        Sandbox(tier=name, self_test=False).close()
    except RuntimeError:
        return False
    return True


@pytest.fixture(scope="module", params=TIERS)
def tier(request):
    if not is_there(request.param):
        pytest.skip(f"{request.param} is not to be had here")
    with Sandbox(tier=request.param, time_s=1.0) as made:  # a tier that is available but not tight fails the tests
        yield made


@pytest.fixture(scope="module")
def box():
    with Sandbox(time_s=1.0) as made:
        yield made


# -- honest programs


def test_honest_programs_run_and_those_at_once_do_not_meet(tier):
    numbers = [str(random.Random(0).randrange(10**6)) for _ in range(150_000)]
    total = "import sys\nprint(sum(map(int, sys.stdin.read().split())))"
    honest = {**HONEST, **LIBRARY, "a megabyte of input": (total, "\n".join(numbers), f"{sum(map(int, numbers))}\n")}
    ran = at_once(lambda name: tier.run(*honest[name][:2], time_s=10), honest)
    assert ran == {name: (0, stdout.encode(), "") for name, (_, _, stdout) in honest.items()}


def modules_of(paths, package=""):
    """Yield the names of the standard library's modules, without its tests and applications."""
    skipped = {"test", "tests", "idlelib", "lib2to3", "ensurepip", "tkinter", "turtledemo", "site-packages"}
    for module in pkgutil.iter_modules(paths, package):
        *_, last = module.name.split(".")
        if last not in {*skipped, "__main__", "this", "antigravity"} and not re.match(
            "_?(test|xx)|_ctypes_test", last
        ):
            yield module.name
            if module.ispkg:
                yield from modules_of([f"{path}/{last}" for path in paths], f"{module.name}.")


@pytest.fixture(scope="module")
def importable():
    """Return the modules that this interpreter can import without a sandbox. Some builds lack some of them."""
    folder = sysconfig.get_path("stdlib")
    names = {*sys.builtin_module_names, *modules_of([folder, f"{folder}/lib-dynload"])}
    plain = [sys.executable, "-I", "-S", "-c", IMPORT_ALL]
    missing = subprocess.run(plain, input=" ".join(names), capture_output=True, text=True, check=True).stdout.split()
    return names - set(missing)


def test_a_program_may_import_the_whole_standard_library(tier, importable):
    ran = tier.run(IMPORT_ALL, " ".join(importable), time_s=30)
    assert ran.reason == ""
    failed = [name for name in ran.stdout.decode().split() if not {name, name.split(".")[0]} & OUT_OF_REACH]
    assert failed == []


# -- hostile programs


@pytest.fixture
def bait(monkeypatch):
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    Path(SECRET_FILE).write_text(SECRET)
    os.chmod(SECRET_FILE, 0o666)
    yield Path(SECRET_FILE)
    Path(SECRET_FILE).unlink()


def test_nothing_breaks_out(tier, bait):
    before = descendants()
    ran = at_once(lambda name: tier.run(BREAKING_OUT[name].source, "2 3\n").stdout, BREAKING_OUT)
    assert {name: stdout[:1000] for name, stdout in ran.items() if b"LEAK" in stdout} == {}
    assert descendants() == before
    assert files_left() == []
    assert bait.read_text() == SECRET
    assert tier.run("print(6 * 7)", time_s=5) == (0, b"42\n", "")


AS_ANOTHER = f"""
import sys
sys.path[:0] = [{str(REPOSITORY)!r}, {str(Path(programs_hostile.__file__).parent)!r}]
from programs_hostile import *
from trl_grpo_plus.sandbox import Sandbox
for tier in ("landlock+seccomp", "seccomp-strict"):
    with Sandbox(tier=tier, time_s=1.0) as box:
        for name, attack in {{**SPYING, **NETWORK, **HARM}}.items():
            ran = box.run(attack.source, "2 3")
            if b"LEAK" in ran.stdout:
                print(tier, name, ran.stdout)
        print(tier, box.run("import os\\nprint(os.getuid(), sum(map(int, input().split())))", "2 3", time_s=10).stdout)
"""


def interpreter_for_all():
    """Return an interpreter that a user without a home can run."""
    for path in (sys.executable, "/usr/bin/python3"):
        probe = [path, "-c", "import sys; sys.exit(sys.version_info < (3, 10))"]
        with contextlib.suppress(OSError):
            if subprocess.run(probe, user=65534, group=65534, extra_groups=[], capture_output=True).returncode == 0:
                return path
    return pytest.skip("no interpreter that a plain user can run")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_nothing_breaks_out_of_a_plain_user_s_sandbox(bait):
    command = [interpreter_for_all(), "-c", AS_ANOTHER]
    ran = subprocess.run(command, user=65534, group=65534, extra_groups=[], capture_output=True, text=True, cwd="/tmp")
    assert ran.stdout == "landlock+seccomp b'65534 5\\n'\nseccomp-strict b'65534 5\\n'\n", ran.stdout + ran.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give up capabilities")
def test_nothing_breaks_out_of_a_lesser_root_s_sandbox(bait):
    def run(kept):
        command = ["setpriv", f"--bounding-set=-all{kept}", "--inh-caps=-all", sys.executable, "-c", AS_ANOTHER]
        return subprocess.run(command, capture_output=True, text=True, cwd="/tmp")

    for kept, ran in at_once(run, ["", ",+setuid,+setgid,+kill,+sys_chroot", ",+setuid,+setgid"]).items():
        users = [line.split("'")[1].split()[0] for line in ran.stdout.splitlines()]
        assert len(users) == 2, ran.stdout + ran.stderr
        assert all((int(user) > 10**9) == ("kill" in kept) for user in users)


def test_each_program_starts_fresh(box):
    assert box.run("import builtins, json\nbuiltins.print = json.dumps = None").reason == ""
    assert box.run("import json\nprint(json.dumps(1))").stdout == b"1\n"


def test_a_program_leaves_no_mark_on_the_next_one_s_descriptors(tier):
    source = "import fcntl, os\ndef f(fd, more):\n    flags = fcntl.fcntl(fd, fcntl.F_GETFL)\n"
    source += "    fcntl.fcntl(fd, fcntl.F_SETFL, flags | more)\n    return flags"
    for fd in range(3):
        with tier.load(source, "f") as first:
            fresh = first.call([fd, os.O_APPEND | os.O_NONBLOCK]).tokens
        with tier.load(source, "f") as second:
            assert second.call([fd, 0]).tokens == fresh


MANY_THREADS = """
import os, threading
threading.stack_size(1 << 18)
held = threading.Lock()
held.acquire()
count = 1
try:
    while count < 400:
        threading.Thread(target=held.acquire, daemon=True).start()
        count += 1
except RuntimeError:
    pass
print(count, flush=True)
os._exit(0)
"""


def test_threads_are_limited(tier, monkeypatch):
    monkeypatch.setattr(sandbox, "tasks_of_user", lambda: 100)  # the user's tasks on a quiet machine
    ran = tier.run(MANY_THREADS, time_s=10)
    assert ran.reason == ""
    assert 20 <= int(ran.stdout) <= THREADS + 100


def test_programs_at_once_have_users_of_their_own(tier):
    """The kernel counts threads by user, so one program could otherwise use up the threads of another."""
    if not can_become_others():
        pytest.skip("only root can become somebody else")
    with Sandbox(tier=tier.tier.name, self_test=False) as other:
        users = {box.run("import os\nprint(os.getuid())", time_s=5).stdout for box in (tier, other, tier, other)}
    assert len(users) == 4


# -- how a script ended


def test_why_it_failed(box):
    ends = {
        "": (0, ""),
        "import sys; sys.exit(3)": (3, "exit status 3"),
        "import sys; sys.exit('no')": (1, "exit status 1: no"),
        "1 / 0": (1, "exit status 1: ZeroDivisionError: division by zero"),
        "1 +": (1, "exit status 1: SyntaxError: invalid syntax"),
        "import os; os._exit(7)": (7, "exit status 7"),
        "import os; os.abort()": (-signal.SIGABRT, "signal 6"),
        "import os; os.kill(os.getpid(), 40)": (-40, "signal 40"),
        "while True: pass": (-signal.SIGKILL, TOO_LONG),
        "x = bytearray(600 << 20)": (1, "exit status 1: MemoryError"),
        "raise ValueError('x' * 100_000)": (1, "exit status 1: " + "x" * 300),
    }
    ran = at_once(lambda source: box.run(source, time_s=0.5), ends)
    assert {source: (one.status, one.reason) for source, one in ran.items()} == ends
    assert box.run("while True: print('x' * 1000)").reason == "it wrote more than 1024 KiB"


def test_limits_are_the_sandbox_s_own():
    with Sandbox(memory_mb=100, output_kb=1, time_s=0.2, self_test=False) as small:
        assert "MemoryError" in small.run("bytearray(120 << 20)", time_s=5).reason
        assert small.run("print('x' * 1023)", time_s=5).reason == ""
        assert small.run("print('x' * 1024)", time_s=5).reason == "it wrote more than 1 KiB"
        start = time.monotonic()
        assert small.run("import time; time.sleep(100)").reason == TOO_LONG
        assert 0.2 <= time.monotonic() - start < 30  # wall-clock time


# -- functions


def test_calls(box):
    with box.load("def add(a, b=1):\n    print('noise')\n    return a + b", "add") as program:
        assert program.call([2, 3]).equals(5)
        assert program.call([2]).equals(3)
        assert program.call(kwargs={"a": 2, "b": 5}).equals(7)
        assert program.call([[1], [2]]).equals([1, 2])
        assert not program.call([2, 3]).equals(6)
        assert program.call(["a", 1]) == (None, 'TypeError: can only concatenate str (not "int") to str')
        assert program.call([1, 1]).equals(2), "an exception does not end it"


METHOD = "class Solution:\n    def add(self, a, b):\n        return a + b"


ENTRY_POINTS = [
    (METHOD, "Solution.add"),
    (METHOD, "Solution().add"),
    ("class Solution:\n    @staticmethod\n    def add(a, b):\n        return a + b", "Solution.add"),
    ("class S:\n    n = 0\n    def add(self, a, b):\n        self.n += a + b\n        return self.n", "S.add"),
    ("import operator as o", "o.add"),
    ("from operator import add", "add"),
    ("add = lambda a, b: a + b", "add"),
    ("import functools\n@functools.cache\ndef add(a, b):\n    return a + b", "add"),
    ("def add(a, b):\n    return a + b\nif __name__ == '__main__':\n    print(add(*input().split()))", "add"),
]


def test_entry_points(box):
    def call(case):
        with box.load(*case) as program:
            return [program.call([i, 3]).equals(i + 3) for i in (2, 4)]

    assert at_once(call, ENTRY_POINTS) == {case: [True, True] for case in ENTRY_POINTS}


def test_a_program_that_cannot_be_loaded(box):
    faults = {
        "def subtract(a, b): return 5": "NameError: the program defines no add",
        "1 / 0": "ZeroDivisionError: division by zero",
        "def add(:": "SyntaxError: invalid syntax (program.py, line 1)",
        "exit(0)": "SystemExit: 0",
        "import os; os._exit(0)": "it ended",
        "while True: pass": TOO_LONG,
        "input()": "EOFError: EOF when reading a line",
    }

    def load(source):
        with box.load(source, "add") as program:
            return program.fault, *program.call([1, 2])

    assert at_once(load, faults) == {source: (fault, None, fault) for source, fault in faults.items()}


def test_an_answer_that_is_too_large(box):
    with box.load("def f(n):\n    return 'x' * n", "f") as program:
        assert program.call([1_000_000]).equals("x" * 1_000_000)
        assert program.call([1_100_000]).reason == "its answer has more than 1024 KiB"


def test_each_call_has_its_own_time(box):
    with box.load("import time\ndef nap(s):\n    time.sleep(s)", "nap") as program:
        assert [program.call([0.4]).equals(None) for _ in range(3)] == [True] * 3
        assert program.call([100]).reason == TOO_LONG
        assert program.call([0]).reason == TOO_LONG, "it is still asleep, so nothing can be asked any more"


# -- asserts

ADD = "def add(a, b):\n    if a < 0: raise ValueError('negative')\n    return a + b"

ASSERTS = {
    "assert add(2, 3) == 5": "",
    "assert add(2, 3) == 6": "AssertionError: ",
    "assert add(2, 3) == 6, 'two and three'": "AssertionError: two and three",
    "def check(candidate):\n    assert candidate(2, 3) == 5": "",
    "def check(candidate):\n    assert candidate(a=2, b=3) == 6": "AssertionError: ",
    "METADATA = {}\ndef check(f):\n    for i in range(100):\n        assert f(i, i) == 2 * i": "",
    "from solution import add as f\ndef test_one():\n    assert f(1, 1) == 2": "",
    "def test_a():\n    add(1, 1)\ndef test_b():\n    assert add(1, 1) == 3": "AssertionError: ",
    "try:\n    add(-1, 1)\n    assert False\nexcept ValueError as e:\n    assert str(e) == 'negative'": "",
    "add(-1, 1)": "ValueError: negative",
    "import unittest\nunittest.TestCase().assertRaises(ValueError, add, -1, 1)": "",
    "import math\nassert math.isclose(add(0.1, 0.2), 0.3)": "",
    "assert type(add(1.5, 1)) is float and add(2**70, 1) == 2**70 + 1 and add(True, 1) == 2": "",
    "assert candidate(2, 3) == 5": "",
    "add(1, 1)\nwhile True: pass": TOO_LONG,
    "add(1, 1)\nraise SystemExit(0)": "SystemExit: 0",
    "add(1, 1)\nimport os\nos._exit(0)": "it ended",
    "add(1)": "TypeError: add() missing 1 required positional argument: 'b'",
    # The next ones have names that only look like tests.
    "def test(got, wanted):\n    assert got == wanted\ntest(add(2, 3), 5)": "",
    "class TestData:\n    def __init__(self, n): self.n = n\nassert add(TestData(2).n, 3) == 5": "",
    "from doctest import testmod, testfile\nassert add(2, 3) == 5": "",
    "from dataclasses import dataclass\n@dataclass\nclass Case:\n    n: 'int'\nassert add(Case(2).n, 3) == 5": "",
    "import unittest\nclass T(unittest.TestCase):\n    @unittest.skip('')\n    def test_a(self): 1 / 0\n"
    "    def test_b(self):\n        assert add(2, 3) == 5": "",
}
METHOD_ASSERTS = "assert Solution().add(2, 3) == 5"
METHOD_CHECK = "def check(candidate):\n    assert candidate(2, 3) == 5"
LOOP = "for got, wanted in zip(map(add, [2], [3]), [5]):\n    assert got == wanted"
ODD = "class L(list):\n    __eq__ = lambda self, other: True\n    pop = None\ndef f():\n    return L([1])"
ENDS = ["StopIteration", "StopAsyncIteration", "GeneratorExit", "SystemExit", "KeyboardInterrupt"]
# name -> (program, entry point, tests, why it fails)
CANDIDATES = {
    **{tests: (ADD, "add", tests, why) for tests, why in ASSERTS.items()},
    "a method": (METHOD, "Solution.add", METHOD_ASSERTS, ""),
    "a method that is checked": (METHOD, "Solution.add", METHOD_CHECK, ""),
    "a wrong method": (METHOD.replace("+", "-"), "Solution().add", METHOD_ASSERTS, "AssertionError: "),
    "a wrong method that is checked": (METHOD.replace("+", "-"), "Solution().add", METHOD_CHECK, "AssertionError: "),
    "a name like a test's": ("def test_f(a):\n    return a", "test_f", "assert test_f(2) == 2", ""),
    "a class like a test's": (
        METHOD.replace("Solution", "Test"), "Test.add", "def test_one():\n    assert Test().add(2, 3) == 5", ""
    ),
    "one that blames the tests": (
        "class UnfitTests(Exception): pass\ndef add(a):\n    raise UnfitTests('x')", "add", "add(2)", "Exception: x"
    ),
    "values, plain ones": (ODD, "f", "assert type(f()) is list and f() != [2] and f().pop() == 1", ""),
    # If these exceptions of a candidate reached the tests, they would end the tests' loop early.
    **{end: (f"def add(a, b):\n    raise {end}", "add", LOOP, f"RuntimeError: {end}: ") for end in ENDS},
}  # fmt: skip


def test_asserts(box):
    checked = at_once(lambda name: box.check(*CANDIDATES[name][:3]), CANDIDATES)
    assert checked == {name: (not why, why) for name, (_, _, _, why) in CANDIDATES.items()}


PYTEST = "class TestSum:\n    def {}\n    def test_sum(self): add(2, 3)"
UNITTEST = (
    "import unittest\nclass Sums(unittest.TestCase):\n    def test_sum(self):\n        self.assertEqual({}, 5)\n"
)
GUARD = "if __name__ == '__main__':\n    "
TESTS = [
    "async def test_sum():\n    assert {} == 5",
    "async def check(candidate):\n    assert {} == 5",
    "def testSum():\n    assert {} == 5",
    "test_sum = __import__('functools').partial(eval, '[1][abs({} - 5)]', globals())",
    "def test_sum():\n    return {} == 5",
    "class TestSum:\n    def test_sum(self):\n        assert {} == 5",
    "class TestSum:\n    async def test_sum(self):\n        assert {} == 5",
    "class Base:\n    def test_sum(self):\n        assert {} == 5\nclass TestSum(Base):\n    pass",
    "class TestSum:\n    @staticmethod\n    def test_sum():\n        assert {} == 5",
    UNITTEST,
    UNITTEST + GUARD + "unittest.main()",
    UNITTEST + "from unittest import main\nmain(verbosity=2)",
    UNITTEST.replace("TestCase", "IsolatedAsyncioTestCase").replace("def", "async def"),
    UNITTEST.replace("def test_sum", "def setUp") + "    def test_none(self):\n        pass",
    GUARD + "assert {} == 5",
    GUARD + UNITTEST.replace("\n", "\n    ") + "unittest.main()",
    "import unittest\ndef load_tests(*_):\n    def f():\n        assert {} == 5\n"
    "    return unittest.TestSuite([unittest.FunctionTestCase(f)])",
]


@pytest.mark.parametrize("first", ["add(1, 1)", "def test_easy():\n    add(1, 1)"])
def test_every_test_is_run(box, first):
    def check(tests):
        tests = f"{first}\n{tests}".replace("{}", "candidate(2, 3)" if "check" in tests else "add(2, 3)")
        wrong = box.check("def add(a, b):\n    return 4", "add", tests)
        return box.check(ADD, "add", tests), wrong.passed, "Error" in wrong.reason

    assert at_once(check, TESTS) == dict.fromkeys(TESTS, ((True, ""), False, True))


UNFIT = {
    "def test_sum():\n    assert add(2, 3) == 5\n    yield": "test_sum .* generator",
    "async def test_sum():\n    assert add(2, 3) == 5\n    yield": "test_sum .* generator",
    "def check(candidate):\n    assert add(2, 3) == 5\n    yield": "check .* generator",
    "def test_sum(fixture):\n    assert add(2, 3) == 5": "test_sum takes arguments",
    "class TestSum:\n    def test_sum(self, fixture):\n        add(2, 3)": "test_sum takes arguments",
    PYTEST.format("__init__(self): pass"): "TestSum .*__init__",
    PYTEST.format("setup_method(self): pass"): "TestSum .*setup_method",
    UNITTEST.format("add(2, 3)").replace("def", "async def"): "test_sum .*IsolatedAsyncioTestCase",
    UNITTEST.format("(yield)"): "test_sum .* generator",
}
AT_FAULT = {
    **UNFIT,
    **{f"add(1, 1)\n{tests}": why for tests, why in UNFIT.items()},
    "assert 1 == 1": "pass without a single call",
    "assert plus(2, 3) == 5": "NameError.* without a single call",
    "import numpy": "ModuleNotFoundError.* without a single call|fail .* without a single call",
    "assert add(": "SyntaxError.* without a single call",
    "add(lambda: 1, 2)": "function is not plain data",
    "def check(candidate):\n    pass": "pass without a single call",
}


def test_tests_that_are_at_fault_themselves_are_refused(box):
    def refusal(tests):
        try:
            return f"not refused: {box.check(ADD, 'add', tests)}"
        except ValueError as error:
            return str(error)

    refusals = at_once(refusal, AT_FAULT)
    assert {tests: text for tests, text in refusals.items() if not re.search(AT_FAULT[tests], text)} == {}


NESTED = "def f(x):\n    for _ in range({depth}):\n        x = [x]\n    return x"


@pytest.mark.parametrize(
    ("source", "tests"),
    [
        (NESTED.format(depth=100), "assert f(f('abc')) == 'abc'"),
        (NESTED.format(depth=1), "r = 1\nfor _ in range(5000):\n    r = f(r)"),
    ],
)
def test_a_candidate_whose_answer_cannot_be_passed_on_fails(box, source, tests):
    passed, reason = box.check(source, "f", tests)
    assert not passed
    assert "too deep" in reason


# -- the choice of a tier


def test_it_refuses_where_no_tier_is_safe(monkeypatch):
    monkeypatch.setattr(sandbox, "tiers", lambda: [Tier("one that fails", "landlock", ("/no/such/command",))])
    with pytest.raises(RuntimeError, match=r"5\.13.*bubblewrap.*allow_unsafe_code_execution=True.*one that fails"):
        Sandbox()


def test_a_bubblewrap_that_does_not_work_is_passed_over(monkeypatch, tmp_path):
    (tmp_path / "bwrap").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with Sandbox(self_test=False) as other:
        assert other.tier.name in ("landlock+seccomp", "seccomp-strict")


def test_unprotected_only_where_that_is_allowed(monkeypatch, caplog):
    monkeypatch.setattr(sandbox, "tiers", list)
    with caplog.at_level(logging.WARNING), Sandbox(allow_unsafe=True, time_s=0.5) as unsafe:
        assert unsafe.tier.name == "none"
        sees = unsafe.run("import os\nprint(len(os.listdir('/')) > 0, os.environ.get('HOME'))")
        assert sees.stdout == b"True None\n"
        assert unsafe.run("while True: pass").reason == TOO_LONG
        with unsafe.load(ADD, "add") as program:
            assert program.call([2, 3]).equals(5)
        assert unsafe.check(ADD, "add", "assert add(2, 3) == 5").passed
    assert "UNPROTECTED" in caplog.text


@pytest.mark.parametrize(
    "failure", [NoProcess("none"), Starved("busy"), Killed("killed")], ids=lambda error: type(error).__name__
)
def test_a_lack_of_processes_leads_to_no_weaker_tier(monkeypatch, failure):
    """If the machine has no process now, it may have one later. A weaker tier would be used for the whole run."""
    probe, first = Sandbox._probe, _tiers.tiers()[0]

    def scarce(self, tier):
        if tier == first:
            raise failure
        return probe(self, tier)

    monkeypatch.setattr(Sandbox, "_probe", scarce)
    with pytest.raises(Starved, match=re.escape(f"the machine could start no process for a sandbox: {first.name}")):
        Sandbox(allow_unsafe=True, self_test=False)


def test_a_bubblewrap_that_finds_no_process_counts_as_scarcity(monkeypatch):
    """Bubblewrap gives the same error if the machine forbids it and if the machine has no free process."""
    monkeypatch.setattr(sandbox, "tiers", lambda: [Tier("wrapped", "landlock", ("false",))])
    monkeypatch.setattr(resource_pressure.resources, "spare_tasks", lambda: 3)
    with pytest.raises(Starved, match="wrapped"):
        Sandbox(allow_unsafe=True, self_test=False)


def test_a_tier_whose_processes_die_of_themselves_does_not_work(monkeypatch, tmp_path):
    """A filter that is too strict kills the tier's processes (signal 31). The machine did not kill them."""
    child = tmp_path / "entrypoint.py"
    child.write_text("import os\n\ndef enter(channel, options):\n    os.kill(os.getpid(), 31)\n")
    monkeypatch.setattr(sandbox, "CHILD", tmp_path)
    with pytest.raises(RuntimeError, match=r"(?s)no safe way.*locked in: signal 31"):
        Sandbox(self_test=False)


def test_a_safe_tier_is_taken_even_if_unsafe_is_allowed(box):
    with Sandbox(allow_unsafe=True, self_test=False) as allowed:
        assert allowed.tier == box.tier


def test_the_self_test_finds_a_wall_that_is_missing(monkeypatch):
    """Without any wall, the attacks of the self-test succeed. So each of them can fail the self-test."""
    monkeypatch.setattr(sandbox, "tiers", lambda: [Tier("a wall of paper", "none")])
    before = descendants()
    with pytest.raises(RuntimeError, match="a wall of paper does not hold") as error:
        Sandbox()
    open_ways = "send_out_of_band read_a_file_of_the_trainer connect_by_tcp fork run_a_command signal_others"
    assert [way for way in [*open_ways.split(), "write_a_file"] if way not in str(error.value)] == []
    assert descendants() == before


@pytest.mark.skipif(os.getuid() != 0 or not can_become_others(), reason="the threads of others are counted")
def test_the_self_test_finds_threads_that_are_not_counted(monkeypatch):
    """Root starts bubblewrap in a user namespace. The kernel takes a program there for root and counts no threads."""
    monkeypatch.setattr(_tiers, "can_become_others", lambda: False)
    if TIERS[0] not in [tier.name for tier in _tiers.tiers()]:
        pytest.skip("no bubblewrap")
    with pytest.raises(RuntimeError, match=r"came through: .*take_more_threads|no safe way"):
        Sandbox(tier=TIERS[0])


def test_the_self_test_is_quick_and_whole(box):
    assert self_test.ATTACKS >= 20
    with ends(10, time.monotonic):
        assert self_test.escapes(box.run, box.memory_mb) == []


def test_an_unknown_machine_is_refused(monkeypatch):
    monkeypatch.setattr(seccomp.platform, "machine", lambda: "riscv64")
    with pytest.raises(OSError, match="riscv64"):
        seccomp.Filter(may_open=True)


@pytest.mark.parametrize("machine", seccomp.ARCHITECTURES)
@pytest.mark.parametrize("may_open", [True, False])
def test_the_filter_decides_as_its_tables_say(monkeypatch, machine, may_open):
    """Each system call's number is run through the filter's code here. Only the listed system calls are allowed."""
    monkeypatch.setattr(seccomp.platform, "machine", lambda: machine)
    code = seccomp._assemble(may_open)
    column, arch = list(seccomp.ARCHITECTURES).index(machine), seccomp.ARCHITECTURES[machine]
    numbers = ((2, 257, 62, 56, 44, 45), (None, 56, 129, 220, 206, 207))[column]
    _, openat, kill, clone, send, receive = numbers
    eperm, allow = seccomp.EPERM, seccomp.ALLOW

    def verdict(number, *arguments):
        return walk(code, arch, number, [*arguments, 0, 0, 0, 0, 0, 0][:6])

    decided = dict.fromkeys(numbers[:2], allow if may_open else eperm)
    decided |= {of_both[column]: allow for of_both in seccomp.FREE.values()}
    decided |= {of_both[column]: seccomp.ENOSYS for of_both in seccomp.ABSENT.values()}
    # These are allowed for some arguments, also for zeros: sending, receiving, fcntl and prlimit64.
    decided |= dict.fromkeys([send, receive, *((72, 302), (25, 261))[column]], allow)
    assert {number: verdict(number) for number in range(600)} == {n: decided.get(n, eperm) for n in range(600)}
    assert walk(code, 0x40000003, 0, [0] * 6) == seccomp.KILL, "32 bits"
    assert verdict(openat, 0, 0, 0o1) == eperm, "writing"
    assert verdict(kill, 1, 9) == eperm, "another process"
    assert verdict(kill, seccomp.OWN_PID, 9) == allow, "itself"
    for number, allowed in ((send, 0x4040), (receive, 0x142)):
        assert verdict(number, 3, 0, 1, allowed) == allow
        for bit in range(32):
            assert verdict(number, 3, 0, 1, 1 << bit) == (allow if allowed & 1 << bit else eperm), "MSG_OOB and others"
    for address in (1, 1 << 32):
        assert verdict(send, 3, 0, 1, 0, address) == eperm, "an address"
    assert verdict(clone, 0x3D0F00) == allow, "a thread"
    assert verdict(clone, 17) == eperm, "a process"
    assert verdict(clone, 0x3D0F00 | 0x10000000) == eperm, "a namespace"


def walk(code, arch, number, arguments):
    """Return the verdict that the kernel's interpreter of the filter would give."""
    data = {0: number, 4: arch}
    for i, argument in enumerate(arguments):
        data[16 + 8 * i], data[20 + 8 * i] = argument & 0xFFFFFFFF, argument >> 32
    value, at = 0, 0
    while True:
        kind, yes, no, operand = code[at]
        if kind == seccomp.RETURN:
            return operand
        if kind == seccomp.LOAD:
            value, step = data[operand], 0
        elif kind == seccomp.AND:
            value, step = value & operand, 0
        elif kind == seccomp.JUMP:
            step = operand
        else:
            holds = {seccomp.EQUAL: value == operand, seccomp.AT_LEAST: value >= operand}
            step = yes if holds.get(kind, value & operand) else no
        at += 1 + step


# -- a busy machine

COMPUTE = "import time\nend = time.process_time() + 0.14\nwhile time.process_time() < end:\n    pass\n"
FUNCTION = "def f():\n    " + COMPUTE.replace("\n", "\n    ")


def reason(judge):
    """Return why the program failed, or the beginning of the error if the machine was too busy to tell."""
    try:
        return judge()
    except Starved as error:
        return re.match("the machine was too busy", str(error))[0]


@pytest.mark.full  # test_run_clock.py tests the clock on a busy machine, and the next test one sandbox there
def test_a_program_without_a_processor_is_starved_and_one_that_sleeps_takes_too_long():
    """On a busy processor the programs of all sandboxes hardly get to run."""

    def call(own):
        with own.load(FUNCTION, "f") as program:
            return program.call().reason

    judges = {}
    with contextlib.ExitStack() as held_back:
        for name in filter(is_there, TIERS):
            own = held_back.enter_context(Sandbox(tier=name, time_s=0.15, self_test=False))
            keep_there(own._zygote)
            judges |= {
                f"computes, {name}": (lambda own=own: own.run(COMPUTE).reason),
                f"sleeps, {name}": (lambda own=own: own.run("import time\ntime.sleep(1000)").reason),
                f"stops itself, {name}": (lambda own=own: own.run("import os\nos.kill(os.getpid(), 19)").reason),
            }
        judges |= {
            "computes in a call": (lambda: call(own)),
            "computes under tests": (lambda: own.check(FUNCTION, "f", "assert f() is None").reason),
            "tests that compute": (lambda: own.check("def f(): pass", "f", "f()\n" + COMPUTE).reason),
        }
        with burners(MANY):
            reasons = at_once(lambda name: reason(judges[name]), judges)
    busy = "the machine was too busy"
    assert reasons == {name: busy if "compute" in name else TOO_LONG for name in judges}


def test_the_wait_for_a_processor_is_no_time_of_the_program_s():
    """On the busy processor the program needs 25 times as long by the wall clock, and `time_s` allows ten times."""
    waits: list[float] = []
    with Sandbox(self_test=False, on_wait=waits.append) as own, burners(MANY):
        keep_there(own._zygote)
        assert own.run(COMPUTE.replace("0.14", "0.1") + "print(1)", time_s=1.0).stdout == b"1\n"
    assert sum(waits) > 0.2


# -- the sandbox's own failures are no verdict


def refuse(error):
    def fork(*_):
        raise error

    return fork


def test_a_killed_zygote_is_an_error_and_starts_anew():
    with Sandbox(tier=TIERS[1], self_test=False) as own:
        start, zygote = own._start, own._zygote._stop.peek()[2][0].pid

        def start_and_kill(*args, **options):
            own._start = start
            started = start(*args, **options)
            threading.Timer(0.1, os.kill, (zygote, signal.SIGKILL)).start()
            return started

        own._start = start_and_kill
        with pytest.raises(Killed, match="was killed"):
            own.run("import time; time.sleep(5)", time_s=10)
        assert own.run("print(1)").stdout == b"1\n"


def test_no_process_to_be_had_is_an_error(box, monkeypatch):
    failure = RuntimeError("no process could be forked: Resource temporarily unavailable")
    monkeypatch.setattr(box._zygote, "fork", refuse(failure))
    with pytest.raises(SandboxError, match="temporarily unavailable"):
        box.run("print(1)")


@pytest.fixture
def waits():
    """Return the list of waiting times that the sandbox `waiting` reports, in seconds."""
    return []


@pytest.fixture
def waiting(waits):
    """Return a sandbox for tests that stop or kill its processes. It reports its waiting times to `waits`."""
    with Sandbox(tier=TIERS[1], self_test=False, on_wait=waits.append) as made:
        waits.clear()
        yield made


def test_the_wait_for_a_process_is_told_while_it_lasts(waiting, waits, monkeypatch):
    ask, until, before = waiting._zygote._ask_for_child, time.monotonic() + 0.6, []

    def refuse_for_a_while(*args):
        before[:] = waits
        if time.monotonic() < until:
            raise NoProcess("none")
        return ask(*args)

    monkeypatch.setattr(waiting._zygote, "_ask_for_child", refuse_for_a_while)
    assert waiting.run("print(1)").stdout == b"1\n"
    assert sum(before) >= 0.4
    assert sum(waits) >= 0.5


def test_the_wait_for_a_lock_is_told_while_it_lasts(waiting, waits, monkeypatch):
    fork, before = waiting._zygote.fork, []

    def resume(pid):
        before[:] = waits
        os.kill(pid, signal.SIGCONT)

    def stop(*args):
        child = fork(*args)
        os.kill(child.pid, signal.SIGSTOP)
        threading.Timer(1.0, resume, [child.pid]).start()
        return child

    monkeypatch.setattr(waiting._zygote, "fork", stop)
    assert waiting.run("print(1)").stdout == b"1\n"
    assert sum(before) >= 0.4


def test_the_self_test_has_no_clock_on_what_the_machine_takes(box, monkeypatch):
    fork = box._zygote.fork

    def slow(*args):
        time.sleep(0.5)
        return fork(*args)

    monkeypatch.setattr(self_test, "HANG_S", 0.004)
    monkeypatch.setattr(box._zygote, "fork", slow)
    assert self_test._hangs(box.run) == []


def test_the_self_test_is_not_passed_where_no_process_was_to_be_had(box, monkeypatch):
    monkeypatch.setattr(box._zygote, "fork", refuse(NoProcess("none")))
    with pytest.raises(Starved, match="none"):
        self_test._hangs(box.run)


DIES = "import os\nos.kill(os.getpid(), 9)"
HANGS_UP = "import os\nos.closerange(0, 64)\nimport time\ntime.sleep(100)"
TESTS_OF_ADD = "assert add(2, 3) == 5"
# name -> (forms of the processes that are killed, call, result of the call, forms of all processes that are started)
KILLS = {
    "a script, once": (["stdin"], lambda own: own.run("print(1)")[1:], (b"1\n", ""), ["stdin"] * 2),
    "a script, twice": (["stdin"] * 2, lambda own: own.run("print(1)")[1:], (b"", KILLED), ["stdin"] * 2),
    "a script, by itself": ([], lambda own: own.run(DIES).reason, KILLED, ["stdin"] * 2),
    "a script that hangs up": ([], lambda own: own.run(HANGS_UP).reason, KILLED, ["stdin"] * 2),
    "a candidate, once": (
        ["calls"], lambda own: own.check(ADD, "add", TESTS_OF_ADD).passed, True, ["calls", "calls", "tests"]
    ),
    "a candidate, twice": (
        ["calls"] * 2, lambda own: own.check(ADD, "add", TESTS_OF_ADD), (False, KILLED), ["calls"] * 2
    ),
    "a candidate, by itself": ([], lambda own: own.check(DIES, "add", TESTS_OF_ADD), (False, KILLED), ["calls"] * 2),
    "a candidate that hangs up": (
        [], lambda own: own.check(HANGS_UP, "add", TESTS_OF_ADD), (False, KILLED), ["calls"] * 2
    ),
    "the tests' process": (
        ["tests"], lambda own: own.check(ADD, "add", TESTS_OF_ADD), "the tests' process was killed",
        ["calls", "tests"],
    ),
}  # fmt: skip


def test_a_killed_program_is_tried_once_more_and_not_again():
    """The kernel may have killed a process, so it is tried again. If the tests' process dies, there is no verdict."""

    def play(name):
        victims, ask, _, _ = KILLS[name]
        victims, started = list(victims), []
        with Sandbox(tier=TIERS[1], self_test=False) as own:
            start = own._start

            def start_and_kill(form, *args, **options):
                child, pids = start(form, *args, **options)
                started.append(form)
                if victims[:1] == [form]:
                    victims.pop()
                    os.kill(child.pid, signal.SIGSTOP)  # so that only the kill below ends it
                    threading.Timer(0.1, os.kill, (child.pid, signal.SIGKILL)).start()
                return child, pids

            own._start = start_and_kill
            try:
                return ask(own), started
            except Killed as error:
                return str(error), started

    assert at_once(play, KILLS) == {name: (result, forms) for name, (_, _, result, forms) in KILLS.items()}


def test_a_closed_sandbox_runs_nothing():
    own = Sandbox(self_test=False)
    before = descendants()
    own.close()
    with pytest.raises(SandboxError, match="closed"):
        own.run("print(1)")
    with pytest.raises(SandboxError, match="closed"), own.load("def f(): pass", "f"):
        pass
    assert descendants() < before
    own.close()


def test_a_lock_that_fails_is_an_error(box, monkeypatch):
    monkeypatch.setattr(box, "memory_mb", "much")
    with pytest.raises(SandboxError, match="could not be locked in: TypeError"):
        box.run("print(1)")


def test_it_leaves_no_process():
    before = descendants()
    with Sandbox(self_test=False) as own, own.load("def f(): pass", "f"):
        assert len(descendants()) > len(before)
    assert descendants() == before


def test_short_programs_are_cheap(box):
    with ends(10, time.monotonic):  # 0.2 s on an idle machine
        for _ in range(50):
            box.run("print(1)", time_s=5)
