"""Reward for a Python program: it runs on tests in a sandbox, and its behaviour decides the reward."""

import functools
import math
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, Literal

from trl_grpo_plus.registry import Example, register_reward
from trl_grpo_plus.sandbox import KILLED, TOO_LONG, Killed, Program, Sandbox, SandboxError, Starved
from trl_grpo_plus.scoring import AnnotatedScore, excuse, kept, sandbox_options
from trl_grpo_plus.utils.text import shortened
from trl_grpo_plus.utils.validation import Number

from ._programs.cases import Case, Row, check_columns, rows_of
from ._programs.extract import STRINGS_AND_COMMENTS, begins_with_code, program_of
from ._text import after_opened, after_thinking, code_blocks, text_of


# What may stand in a program's head, one token at a time: blanks, comments, a string, and imports from the future.
_IN_HEAD = re.compile(
    r"\s+|;|(?P<future>from[ \t]+__future__[ \t]+import[ \t]*(?:\([^)]*\)|[^\n;#]*);?[ \t]*)"
    rf"|[rRuU]?(?:{STRINGS_AND_COMMENTS.pattern})",
    STRINGS_AND_COMMENTS.flags,
)


def _check_args(
    time_s: float, memory_mb: int, output_kb: int, allow_unsafe_code_execution: bool, setup_code: str, **_: Any
) -> None:
    Number(above=0, note=" (seconds)").check("python_tests: time_s", time_s)
    Number(at_least=64, note=": the interpreter takes about 40").check("python_tests: memory_mb", memory_mb)
    Number(at_least=1).check("python_tests: output_kb", output_kb)
    # Fail before the run, not at the first completion.
    _runs_here(setup_code, time_s, memory_mb, output_kb, allow_unsafe_code_execution)


@functools.cache
def _runs_here(setup_code: str, time_s: float, memory_mb: int, output_kb: int, allow_unsafe: bool) -> None:
    """Open and close a sandbox, and run `setup_code` in it, to raise before training what they raise.

    Each process that runs programs has a sandbox of its own, which is attacked as well.
    """
    sandbox = Sandbox(time_s=time_s, memory_mb=memory_mb, output_kb=output_kb, allow_unsafe=allow_unsafe)
    try:
        failure = sandbox.run(setup_code).reason if setup_code else ""
    finally:
        sandbox.close()
    if failure:
        raise ValueError(
            f"python_tests: setup_code={shortened(setup_code, 200)!r} fails in the sandbox, so every program would "
            f"fail: {failure}. In the sandbox Python has only its standard library."
        )


def _gold(solution: Any = None, think_opened: bool = False, **_: Any) -> str | None:
    if not isinstance(solution, str) or not solution.strip():
        return None
    if code_blocks(solution) and not begins_with_code(solution):
        return after_opened(solution, think_opened)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", solution)), default=0))  # docstrings may contain fences
    return after_opened(f"{fence}python\n{solution.strip()}\n{fence}", think_opened)


SCRIPT = {"tests": [{"stdin": "41\n", "stdout": "42\n"}]}
FUNCTION = {"tests": [{"args": [2, 2], "expected": 4}, {"args": [2, 3], "expected": 5}], "entry_point": "add"}
ASSERTS = {"test_code": "def check(candidate):\n    assert candidate(2, 3) == 5", "entry_point": "add"}


@register_reward(
    "python_tests",
    examples=[
        Example("```python\nprint(int(input()) + 1)\n```", SCRIPT, 1.0),
        Example("```python\nprint(int(input()) - 1)\n```", SCRIPT, 0.0),
        Example("I do not know.", SCRIPT, 0.0),
        Example("```python\ndef add(a, b):\n    return a + b\n```", FUNCTION, 1.0),
        Example("```python\ndef add(a, b):\n    return a * b\n```", FUNCTION, 0.5, {"credit": "fraction"}),
        Example("```python\ndef add(a, b):\n    return a + b\n```", ASSERTS, 1.0),
        Example("```python\nimport os\nos._exit(0)\n```", {**ASSERTS, "test_code": "assert add(2, 3) == 5"}, 0.0),
    ],
    timeout=60,
    on_timeout="zero",
    check_args=_check_args,
    check_columns=check_columns,
    gold=_gold,
    preload=["trl_grpo_plus.sandbox"],
)
def python_tests(
    completions: list[Any],
    tests: list[Any] | None = None,
    entry_point: list[str | None] | None = None,
    test_code: list[str | None] | None = None,
    solution: list[str | None] | None = None,
    *,
    credit: Literal["all", "fraction"] = "all",
    time_s: float = 3.0,
    memory_mb: int = 512,
    output_kb: int = 1024,
    allow_unsafe_code_execution: bool = False,
    think_opened: bool = False,
    setup_code: str = "",
) -> list[float | None]:
    r"""1.0 for a completion whose program passes its row's tests, else 0.0.

    The program is one fenced block after any thinking. With an entry point, it is the last block that defines the
    entry point at the left margin (`def`, `class` or `=`). For a script, it is the last block labelled as Python that
    is more than comments, or else the last block of code without a label, or else with another label (`code`,
    `pypy3`). If there is no such block, it is the last block. So an example of use or its output may follow the
    program. Blocks in the last `<answer>` come before others; if the
    `<answer>` has no block, the code in it does.

    Without fences, the program is the text in `[PYTHON]...[/PYTHON]`, `<code>` or LaTeX's listings, in backticks, or
    between lines of words; or the whole text. Earlier blocks that only define what the program needs (imports,
    helpers) are put before it.

    The program runs in a sandbox (`trl_grpo_plus/sandbox/`) with the standard library alone, without modules that need
    libraries or files of the system (`sqlite3`, `ctypes`, `curses`, time zones). There is no numpy. A row has one of

    - `tests` for a script, `[{"stdin": "41\n", "stdout": "42\n"}, ...]`. Each case is a run of its own, which must end
      with status 0 and print the same lines. Blanks at a line's end and blank lines at the end do not count.
    - `tests` for a function, `[{"args": [2, 3], "expected": 5}, ...]`, and `entry_point`, its name or
      `Class.method` (called on a new instance each time). `args` may be a dict of names. Types must be the same
      throughout: 1 is neither 1.0 nor True, and NaN equals nothing. But a tuple counts as a list, because JSON has
      only lists, and a subclass (Counter, namedtuple) counts as its base. For a function that changes its arguments in
      place, `expected_args` has all arguments after the call, in the form of `args`: `{"args": [[2, 1]],
      "expected_args": [[1, 2]]}`. The returned value then counts only if `expected` is given and not None. A row is
      refused if a program that does nothing passes all of its cases. If a
      column's cases differ in type, it may hold `args`, `expected` and `expected_args` as JSON text, all or none of
      them, or all of `tests` as one JSON text.
    - `test_code`, asserts on `entry_point`, as in MBPP, or `def check(candidate)`, as in HumanEval, or tests as pytest
      and unittest find them, which may `from solution import` the entry point. The tests run as `__main__` in another
      process than the program, and reach the program by calls alone. Plain data goes in and comes out; an exception
      comes out by the name of its builtin type. Changes that the program makes to its arguments come back only if the
      tests use the result of none of its calls, except in `assert sort(items) is None`. Otherwise a program could
      empty the data that it is asked about, even in a call that only warms it up. If a call gets one list twice
      (`f(a, a)`), the program gets two lists, and the tests see the changes of the last one. So no program passes
      asserts on a generator, on a Decimal, or on changed arguments where a result is used too. This cannot be seen
      beforehand: give a known solution of each row, and `trl-grpo-plus check` will score it.

    A program that exits, patches the builtins, prints guesses or reads the grader's stack gains nothing, because the
    expected results never go to the process where the program runs.

    Args:
        completions (`list`): N completions, each a text or a list of messages, of which the policy's last one counts.
        tests (`list`, *optional*): N lists of cases, or their JSON text.
        entry_point (`list[str | None]`, *optional*): N names.
        test_code (`list[str | None]`, *optional*): N scripts.
        solution (`list[str | None]`, *optional*):
            N programs known to pass, fenced or not. Not used for the score: they are the gold answers of `check`.
        credit (`str`, *optional*, defaults to `"all"`):
            `"all"`: 1.0 if all cases pass, else 0.0; stops at the first failure. `"fraction"`: the share of `tests`
            that pass; a program that runs out of time or dies fails the remaining cases. `test_code` is one case.
        time_s (`float`, *optional*, defaults to `3.0`):
            Seconds for each case, or for all of `test_code`. They are wall-clock time without the time that the
            program waited for a processor, so that a busy machine costs no score. A row that takes more than the
            reward's `timeout` (60, counted likewise) in all scores 0.0.
        memory_mb (`int`, *optional*, defaults to `512`):
            Address space in MiB, with the interpreter's (about 40); at most the memory of a reward's worker (4096).
        output_kb (`int`, *optional*, defaults to `1024`): the most that a case may print or return, in KiB.
        allow_unsafe_code_execution (`bool`, *optional*, defaults to `False`):
            Whether to run programs with limits alone on a machine where no tier of the sandbox works. The programs can
            then read, write and send what this user can.
        think_opened (`bool`, *optional*, defaults to `False`):
            Whether the prompt ends with `<think>`. A completion without `</think>` is then all thinking, and scores 0.
        setup_code (`str`, *optional*, defaults to `""`):
            Code that is put before each program, such as `from typing import *`. Set it if the data's own checker does
            so: programs for LeetCode use `List` and `deque` without an import.

    Returns:
        `list[float | None]`: N rewards, 0.0 to 1.0; `None` where a row has neither `tests` nor `test_code`; NaN where
            the machine had no processor or no process for the program. NaN is logged as
            `rewards/<name>/starved`, and programs that ran out of time as `rewards/<name>/too_long`.

    Raises:
        ValueError: a row's tests are malformed, `test_code` passes or fails without a call of the entry point, or
            `setup_code` fails.
        RuntimeError: programs cannot be run safely here; the text says what is missing.

    Example:
        >>> program = "```python\nprint(int(input()) + 1)\n```"
        >>> python_tests([program, "42", program], tests=[[{"stdin": "41\n", "stdout": "42\n"}]] * 2 + [None])
        [1.0, 0.0, None]
    """
    if tests is None and test_code is None:
        return [None] * len(completions)
    sandbox = functools.partial(_sandbox, os.getpid(), time_s, memory_mb, output_kb, allow_unsafe_code_execution)
    rows = rows_of(tests, entry_point, test_code)
    texts = [after_thinking(text_of(completion), think_opened) for completion in completions]
    return [_score(text, row, sandbox, credit, setup_code) for text, row in zip(texts, rows, strict=True)]


@functools.cache
def _sandbox(pid: int, time_s: float, memory_mb: int, output_kb: int, allow_unsafe: bool) -> Sandbox:
    # One sandbox for each process: a fork of this process must not talk to the children of this process.
    options = {"time_s": time_s, "memory_mb": memory_mb, "output_kb": output_kb, "allow_unsafe": allow_unsafe}
    with kept():
        return Sandbox(**options, **sandbox_options(), on_wait=excuse)  # type: ignore[arg-type]


def _score(text: str, row: Row, sandbox: Callable[[], Sandbox], credit: str, setup_code: str) -> float | None:
    if row.tests is None and row.test_code is None:
        return None
    try:
        try:
            return _judge(text, row, sandbox(), credit, setup_code)
        except Starved:
            raise
        except SandboxError:  # the sandbox's process was killed; the next call of sandbox() starts a new one
            return _judge(text, row, sandbox(), credit, setup_code)
    except (Starved, Killed) as error:
        return AnnotatedScore(math.nan, "starved", str(error))


def _judge(text: str, row: Row, sandbox: Sandbox, credit: str, setup_code: str) -> float:
    if row.test_code is not None:
        program = _after_setup(setup_code, program_of(text, row.name()))
        checked = sandbox.check(program, row.name(), row.asserts())
        return _noted(float(checked.passed), checked.reason)
    cases = row.cases()
    is_script = cases[0].args is None
    program = _after_setup(setup_code, program_of(text, None if is_script else row.name()))
    verdicts = _of_script(program, cases, sandbox) if is_script else _of_function(program, row, cases, sandbox)
    passed = 0
    for verdict, reason in verdicts:
        passed += verdict
        if reason == TOO_LONG or (credit == "all" and not verdict):
            return _noted(0.0 if credit == "all" else passed / len(cases), reason)
    return passed / len(cases)


def _after_setup(setup_code: str, program: str) -> str:
    """Return a program with the setup before it, but for what must come first: `from __future__ import`."""
    if not setup_code:
        return program
    futures: list[str] = []
    others: list[str] = []
    place = 0
    while token := _IN_HEAD.match(program, place):
        (futures if token["future"] else others).append(token[0])
        place = token.end()
    return "\n".join([*futures, setup_code, "".join(others) + program[place:]])


def _noted(score: float, reason: str) -> float:
    return AnnotatedScore(score, "too_long") if reason == TOO_LONG else score


def _of_script(program: str, cases: list[Case], sandbox: Sandbox) -> Iterator[tuple[bool, str]]:
    """Yield a verdict for each case, and the reason why the program failed, if it did."""
    for case in cases:
        ran = sandbox.run(program, case.stdin)
        yield not ran.reason and same_output(ran.stdout, case.stdout), ran.reason


def _of_function(program: str, row: Row, cases: list[Case], sandbox: Sandbox) -> Iterator[tuple[bool, str]]:
    judged = 0
    for is_last_life in (False, True):
        with sandbox.load(program, row.name(), calls=len(cases)) as loaded:
            for case in cases[judged:]:
                is_right = _is_right(loaded, case)
                if loaded.fault == KILLED and not is_last_life:  # it may not be the program's fault: try once more
                    break
                yield is_right, loaded.fault
                judged += 1
                if loaded.fault or judged == len(cases):
                    return


def _is_right(program: Program, case: Case) -> bool:
    if case.expected_args is None:
        return program.call(*_as_given(case.args)).equals(case.expected)
    answer, after = program.call_in_place(*_as_given(case.args))
    is_left = after.equals([*_as_given(case.expected_args)])
    return is_left and (case.expected is None or answer.equals(case.expected))


def _as_given(args: list[Any] | dict[str, Any] | None) -> tuple[list[Any], dict[str, Any]]:
    return ([], args) if isinstance(args, dict) else (args or [], {})


def same_output(printed: bytes, expected: str) -> bool:
    """Return whether a program printed the expected lines.

    Blanks at the end of a line and blank lines at the end do not count.
    """
    try:
        return _lines(printed.decode()) == _lines(expected)
    except UnicodeDecodeError:
        return False


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]
