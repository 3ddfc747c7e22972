"""The tests in a row of a dataset for a Python program: cases of a script, cases of a function, or asserts."""

import ast
import builtins
import json
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from trl_grpo_plus.sandbox import message_size, names_of

from .._rows import refuse_rows


ENTRY_POINT = re.compile(r"[^\W\d]\w*(\(\))?(\.[^\W\d]\w*)*")
FORMS = (
    "tests must be a list of {'stdin': text, 'stdout': text}, or of {'args': list or dict, 'expected': value} with an "
    "entry_point; test_code must be a text of asserts, with an entry_point"
)


class Case(NamedTuple):
    """One test: of a script if `args` is None, else of a function."""

    stdin: str = ""
    stdout: str = ""
    args: list[Any] | dict[str, Any] | None = None
    expected: Any = None
    expected_args: list[Any] | dict[str, Any] | None = None  # the arguments after the call


class Row(NamedTuple):
    """A row as the dataset has it.

    The methods raise `ValueError` if the row cannot be used.
    """

    tests: Any
    entry_point: Any
    test_code: Any

    def cases(self) -> list[Case]:
        """Return the row's cases: at least one, and either all for a script or all for a function."""
        tests = _from_json(self.tests, "tests") if isinstance(self.tests, str) else self.tests
        if not isinstance(tests, list) or not tests:
            raise ValueError(f"tests is {tests!r:.60}, not a list of cases")
        cases = [_case(case) for case in tests]
        if any(case.args is not None for case in cases):
            self.name()
            if any(case.args is None for case in cases):
                raise ValueError("some of its tests are for a script and some for a function")
        return cases

    def asserts(self) -> str:
        """Return the row's `test_code`."""
        if self.tests is not None:
            raise ValueError(f"it has both tests and test_code ({self.tests!r:.60})")
        if not isinstance(self.test_code, str):
            raise ValueError(f"test_code is {self.test_code!r:.60}, no text")
        return self.test_code

    def name(self) -> str:
        """Return the row's `entry_point`."""
        if not isinstance(self.entry_point, str) or not ENTRY_POINT.fullmatch(self.entry_point):
            raise ValueError(f"entry_point is {self.entry_point!r:.60}, not a name such as add or Solution.add")
        return self.entry_point


def rows_of(*columns: list[Any] | None) -> list[Row]:
    """Return the rows of the columns `tests`, `entry_point` and `test_code`, of which some may be missing."""
    count = max((len(column) for column in columns if column is not None), default=0)
    return [Row(*row) for row in zip(*(column or [None] * count for column in columns), strict=True)]


def check_columns(
    tests: list[Any] | None = None,
    entry_point: list[Any] | None = None,
    test_code: list[Any] | None = None,
    *,
    output_kb: int = 1024,
    **_: Any,
) -> None:
    """Refuse columns that cannot be used, and name the first bad rows."""
    if tests is None and test_code is None:
        raise ValueError(f"python_tests needs a column tests or a column test_code: {FORMS}.")
    rows = rows_of(tests, entry_point, test_code)
    hint = f"Correct or filter these rows: {FORMS}."
    refuse_rows("python_tests", lambda row: _check_row(row, output_kb), rows, hint=hint)


def _check_row(row: Row, output_kb: int) -> None:
    if row.test_code is not None:
        _check_asserts(row.asserts(), row.name())
        return
    cases = row.cases() if row.tests is not None else []
    if cases and all(case.args is None and not case.stdout.strip() for case in cases):
        raise ValueError("every stdout is blank, so a program that does nothing passes")
    if cases and cases[0].args is not None and all(map(_asks_for_nothing, cases)):
        what = "expected is None" if all(case.expected_args is None for case in cases) else "expected_args equals args"
        raise ValueError(f"{what} in every case, so a program that does nothing passes: {cases[0].args!r:.100}")
    for case in cases:
        if case.args is None:
            case.stdin.encode()  # a UnicodeEncodeError is a ValueError
            size = len(case.stdout.encode())
        else:
            message_size(case.args)
            size = message_size(case.expected) + message_size(case.expected_args)
        if size > output_kb << 10:
            raise ValueError(f"the expected output has {size >> 10} KiB, more than output_kb={output_kb}")


def _asks_for_nothing(case: Case) -> bool:
    """Return whether a function that does nothing passes the case."""
    return case.expected is None and case.expected_args in (None, case.args)


def _check_asserts(test_code: str, entry_point: str) -> None:
    try:
        tree = ast.parse(test_code)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"test_code is no Python: {error}") from None
    for name in _imported(tree):
        if name not in sys.stdlib_module_names and name != "solution":
            raise ValueError(f"test_code imports {name}, but only the standard library is in the sandbox")
    name, *_ = names_of(entry_point)
    if not re.search(rf"\b({name}|candidate|check)\b", test_code):
        raise ValueError(f"test_code does not mention {name}")
    _check_calls(tree, ".".join(names_of(entry_point)))


def _check_calls(tree: ast.AST, entry_point: str) -> None:
    """Refuse tests that use other names of the program, or that pass functions as arguments.

    A call of the program can carry only plain data.
    """
    first, _, method = entry_point.partition(".")
    called = {first, "candidate", *(method.split(".")[-1:] if method else [])}
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "solution":
            for alias in node.names:
                if alias.name not in (first, "*"):
                    raise ValueError(f"test_code imports {alias.name} from solution, which has {first} alone")
                called.add(alias.asname or first)
        elif isinstance(node, ast.FunctionDef) and node.name == "check" and node.args.args:
            called.add(node.args.args[0].arg)
    variables = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    variables |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func) in called:
            for value in (*node.args, *(keyword.value for keyword in node.keywords)):
                if isinstance(value, ast.Lambda | ast.GeneratorExp) or _is_function(value, own, variables):
                    raise ValueError(f"test_code passes {ast.unparse(value)!r:.60} to {first}: only plain data can be")


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _is_function(node: ast.AST, own: set[str], variables: set[str]) -> bool:
    """Return whether a node is only the name of a function or class, of the tests' own or built in."""
    if not isinstance(node, ast.Name) or node.id in variables:
        return False
    return node.id in own or callable(getattr(builtins, node.id, None))


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


def _case(case: Any) -> Case:
    values = {key: value for key, value in case.items() if value is not None} if isinstance(case, Mapping) else {}
    if "args" in values and not values.keys() - {"args", "expected", "expected_args"}:
        return _function_case(values["args"], values.get("expected"), values.get("expected_args"), case)
    stdin, stdout = values.get("stdin", ""), values.get("stdout")
    if not (isinstance(stdin, str) and isinstance(stdout, str)) or values.keys() - {"stdin", "stdout"}:
        raise ValueError(f"it has the test {case!r:.100}")
    return Case(stdin=stdin, stdout=stdout)


def _function_case(args: Any, expected: Any, expected_args: Any, case: Any) -> Case:
    """Return a test of a function.

    `args` may be JSON text, as a column of mixed types needs it. The expected values must then be JSON text too.
    """
    if isinstance(args, str):
        if not isinstance(expected, str) and (expected is not None or expected_args is None):
            raise ValueError(f"args is JSON text and expected is not, in the test {case!r:.100}")
        if not isinstance(expected_args, str | None):
            raise ValueError(f"args is JSON text and expected_args is not, in the test {case!r:.100}")
        args, expected, expected_args = (
            None if text is None else _from_json(text, name)
            for text, name in ((args, "args"), (expected, "expected"), (expected_args, "expected_args"))
        )
    before = _as_args("args", args, case)
    if expected_args is None:
        return Case(args=before, expected=expected)
    after = _as_args("expected_args", expected_args, case)
    names, names_after = (args.keys() if isinstance(args, dict) else len(args) for args in (before, after))
    if names != names_after:
        raise ValueError(f"expected_args does not have the arguments of args, in the test {case!r:.100}")
    return Case(args=before, expected=expected, expected_args=after)


def _as_args(name: str, args: Any, case: Any) -> list[Any] | dict[str, Any]:
    if not isinstance(args, (list, tuple, dict)):
        raise ValueError(f"{name} is neither a list nor a dict of names, in the test {case!r:.100}")
    return args if isinstance(args, dict) else list(args)


def _from_json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is {text!r:.60}, no JSON: {error}") from None
