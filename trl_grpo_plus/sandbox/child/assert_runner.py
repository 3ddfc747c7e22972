"""Runs asserts in a process without the candidate: they call a proxy, and the judge relays the calls.

So the candidate cannot patch the tests, end their process or answer for them. It can only return plain data or raise.
Tests that `eval` a candidate's return value lose this protection. Standard library only.
"""

import ast
import builtins
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from . import framing as _frames
from . import plain_data as _plain


TEXT = 300  # maximum characters of an exception's text in a reply
COROUTINE, GENERATOR = 0x80, 0x20 | 0x200  # co_flags; a generator may be async
PYTEST_HOOKS = ("__init__", "setup_method", "teardown_method", "setup_class", "teardown_class", "setup", "teardown")

FOR_EFFECT = "__for_effect__"


class UnfitTests(Exception):
    """Raised for a test that cannot be run. The judge recognises the exception by its name."""


def run_tests(fd: int, tests: str, entry_point: str) -> int:
    """Run the tests and report to the judge, over `fd`, whether they passed."""
    frames = _frames.Frames(fd)
    try:
        _run_asserts(frames, tests, entry_point)
    except BaseException as error:
        frames.write({"failed": f"{type(error).__name__}: {str(error)[:TEXT]}"})
        return 0
    frames.write({"passed": True})
    return 0


def _run_asserts(frames: _frames.Frames, tests: str, entry_point: str) -> None:
    """Run the script, then its `check(candidate)`, or else every test that pytest or unittest would find."""
    first, *rest = _plain.names_of(entry_point)
    tree = ast.fix_missing_locations(_ForEffect().visit(ast.parse(tests, "tests.py")))
    candidate = _proxy(frames, brings_back=not _asks_for_an_answer(tree, first, rest[-1] if rest else ""))
    entry: Any = candidate
    for name in reversed(rest):
        entry = _Holder(name, entry)
    solution, script = types.ModuleType("solution"), types.ModuleType("__main__")
    setattr(solution, first, entry)
    sys.modules.update(solution=solution, __main__=script)
    namespace = vars(script)
    namespace.update({first: entry, "candidate": candidate})
    if "unittest" in tests:
        import unittest

        unittest.main = lambda *_, **__: None  # type: ignore[assignment]  # it would exit
    namespace[FOR_EFFECT] = _for_effect
    exec(compile(tree, "tests.py", "exec", dont_inherit=True), namespace)
    if callable(namespace.get("check")):
        _call("check", namespace["check"], candidate)
        return
    functions, suite = _functions(namespace, (entry, candidate)), _unittests(script)
    for name, test in functions:
        _call(name, test)
    if suite is not None:
        _run_suite(suite)


def _functions(namespace: dict[str, Any], candidates: tuple[Any, ...]) -> list[tuple[str, Callable[..., Any]]]:
    """Return the tests that pytest would find, except those of unittest."""
    tests: list[tuple[str, Callable[..., Any]]] = []
    for name, value in list(namespace.items()):
        if any(value is one for one in candidates):
            continue
        if isinstance(value, type):
            tests += _methods(name, value)
        elif _is_test(name, value):
            tests.append((name, value))
    return tests


def _is_test(name: str, value: Any) -> bool:
    if not (name.startswith("test") and callable(value)):
        return False
    takes = _takes_arguments(value)
    if name.startswith("test_") and takes:
        raise UnfitTests(f"{name} takes arguments, and nothing is there to give them")
    return name.startswith("test_") or (not takes and getattr(value, "__module__", "") == "__main__")


def _methods(name: str, kind: type) -> list[tuple[str, Callable[..., Any]]]:
    if not name.startswith("Test") or kind.__module__ != "__main__" or hasattr(kind, "assertEqual"):
        return []
    methods = [method for method in dir(kind) if method.startswith("test") and callable(getattr(kind, method))]
    own = {name for base in kind.__mro__ if base is not object for name in vars(base)}
    hook = next((hook for hook in PYTEST_HOOKS if hook in own), "")
    if methods and hook:
        raise UnfitTests(f"{name} has {hook}, which is for pytest to treat; a unittest.TestCase may have setUp")
    tests = [(f"{name}.{method}", method, getattr(kind(), method)) for method in methods]
    return [(label, test) for label, method, test in tests if _is_test(method, test)]


def _takes_arguments(test: Any) -> bool:
    code = getattr(test, "__code__", None)
    if code is None:
        return False
    needed = code.co_argcount - len(test.__defaults__ or ()) - hasattr(test, "__self__")
    return needed > 0 or code.co_kwonlyargcount > len(test.__kwdefaults__ or ())


def _call(name: str, test: Callable[..., Any], *args: Any) -> None:
    result = test(*args)
    if isinstance(result, types.CoroutineType):
        import asyncio

        result = asyncio.run(result)
    if isinstance(result, (types.GeneratorType, types.AsyncGeneratorType)):
        raise UnfitTests(f"{name} is a generator, which does not run when it is called")
    if result is False:
        raise AssertionError(f"{name} returned False")


def _unittests(script: types.ModuleType) -> Any:
    """Return the suite of the script's `unittest.TestCase`s; `None` if unittest is not imported."""
    if "unittest" not in sys.modules:
        return None
    suite = sys.modules["unittest"].defaultTestLoader.loadTestsFromModule(script)
    for case in _cases(suite):
        name = getattr(case, "_testMethodName", "")
        flags = getattr(getattr(getattr(case, name, None), "__code__", None), "co_flags", 0)
        if flags & GENERATOR:
            raise UnfitTests(f"{name} is a generator, which does not run when it is called")
        if flags & COROUTINE and not hasattr(case, "asyncSetUp"):
            raise UnfitTests(f"{name} is async, which needs a unittest.IsolatedAsyncioTestCase")
    return suite


def _cases(suite: Any) -> Iterator[Any]:
    for part in suite:
        if hasattr(part, "_testMethodName"):
            yield part
        else:
            yield from _cases(part)


def _run_suite(suite: Any) -> None:
    result = sys.modules["unittest"].TestResult()
    suite.run(result)
    for case, trace in [*result.errors, *result.failures]:
        raise AssertionError(f"{case}: {trace.strip().splitlines()[-1]}")
    if not result.wasSuccessful():
        raise AssertionError("a test succeeded that was expected to fail")


class _Holder:
    """A stand-in for a class and its instances, with the one method that the tests may use."""

    def __init__(self, name: str, value: Any):
        setattr(self, name, value)

    def __call__(self) -> "_Holder":
        return self


class _ForEffect(ast.NodeTransformer):
    """A transformer that marks calls made for their effect: `f(x)` alone, `assert f(x) is None`, `assertIsNone(f(x))`.

    The candidate's changes to its arguments are passed back from marked calls only, and only if the tests make no
    unmarked call. Otherwise `f(x)` and then `assert f(x) == sorted(x)` would pass for a program that empties x and
    returns it.
    """

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """Mark a call that stands alone."""
        self.generic_visit(node)
        node.value = _marked(node.value)
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        """Mark a value that an assert compares with `None`."""
        self.generic_visit(node)
        test = node.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Is, ast.Eq)):
            (against,) = test.comparators
            if isinstance(against, ast.Constant) and against.value is None:
                test.left = _marked(test.left)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Mark a value that `assertIsNone` gets."""
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "assertIsNone" and node.args:
            node.args[0] = _marked(node.args[0])
        return node


def _marked(node: ast.expr) -> ast.expr:
    # Builtins are left alone: `locals()`, `exec(...)` and `super()` depend on the calling frame.
    if not isinstance(node, ast.Call) or (isinstance(node.func, ast.Name) and hasattr(builtins, node.func.id)):
        return node
    marker = ast.Name(FOR_EFFECT, ast.Load())
    return ast.copy_location(ast.Call(marker, [node.func, *node.args], node.keywords), node)


def _for_effect(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return getattr(function, FOR_EFFECT, function)(*args, **kwargs)


def _asks_for_an_answer(tree: ast.AST, first: str, method: str) -> bool:
    """Return whether the tests use the entry point anywhere except in a marked call.

    The entry point may have another name, by an import, by an assignment, or as an argument of a function that the
    tests define.
    """
    names, modules = {"candidate"} if method else {"candidate", first}, {"solution"}
    functions = {node.name: node.args.args for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    names |= {parameter.arg for parameter in functions.get("check", [])[:1]}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname for alias in node.names if alias.name == "solution" and alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module == "solution" and not method:
            names |= {alias.asname or alias.name for alias in node.names}

    def is_it(node: ast.AST) -> bool:
        """Return whether a node is a use of the function under test."""
        if isinstance(node, ast.Attribute):
            of_module = isinstance(node.value, ast.Name) and node.value.id in modules
            return node.attr == method if method else node.attr == first and of_module
        return isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)

    harmless: set[ast.AST] = set()
    previous = -1
    while len(harmless) > previous:
        previous = len(harmless)
        for node in ast.walk(tree):
            for place, name in _handed_on(node, functions):
                if is_it(place):
                    harmless.add(place)
                    names |= {name} - {""}
    return any(is_it(node) and node not in harmless for node in ast.walk(tree))


def _handed_on(node: ast.AST, functions: dict[str, list[ast.arg]]) -> list[tuple[ast.AST, str]]:
    """Return the nodes where the entry point's answer is not used, each with the new name it gets there, or ""."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return [(node.value, node.targets[0].id)]
    if not isinstance(node, ast.Call):
        return []
    function, *arguments = [node.func, *node.args]
    places: list[tuple[ast.AST, str]] = []
    if isinstance(function, ast.Name) and function.id == FOR_EFFECT:
        function, *arguments = arguments
        places.append((function, ""))
    parameters = functions.get(function.id, []) if isinstance(function, ast.Name) else []
    return places + [(place, parameter.arg) for place, parameter in zip(arguments, parameters, strict=False)]


def _proxy(frames: _frames.Frames, brings_back: bool) -> Callable[..., Any]:
    has_changed = False

    def call(args: tuple[Any, ...], kwargs: dict[str, Any], changed: bool) -> Any:
        """Call the function in the process of the program."""
        nonlocal has_changed
        try:
            message = {"args": _plain.encode(args), "kwargs": _plain.encode(kwargs), "changed": changed}
        except (TypeError, ValueError) as error:
            frames.write({"misuse": f"{type(error).__name__}: {error}"})
            os._exit(1)
        frames.write({"call": message})
        reply = frames.read()
        if "raised" in reply:
            raise _exception(*reply["raised"])
        if changed:
            after = _plain.decode(reply.get("after"))
            has_changed = has_changed or after != _plain.decode(_plain.encode([list(args), kwargs]))
            _bring_back([list(args), kwargs], after)
        return _plain.decode(reply["returned"])

    def for_effect(*args: Any, **kwargs: Any) -> Any:
        return call(args, kwargs, changed=brings_back)

    def candidate(*args: Any, **kwargs: Any) -> Any:
        """Call the program's function, and return what it returned."""
        nonlocal brings_back
        brings_back = False
        if has_changed:  # `_asks_for_an_answer` missed a call, such as `globals()["f"](x)`
            frames.write({"failed": "the tests ask for an answer after a call that changed its arguments"})
            os._exit(1)
        return call(args, kwargs, changed=False)

    setattr(candidate, FOR_EFFECT, for_effect)
    return candidate


def _bring_back(old: Any, new: Any) -> Any:
    """Update `old` in place to equal `new` if both are lists, dicts or sets, or a bytearray and bytes.

    Returns the object to use for `new`: the updated `old`, a tuple of updated parts, or `new` itself.
    """
    if isinstance(old, list) and type(new) is list:
        old[:] = [_bring_back(*pair) for pair in zip(old, new, strict=False)] + new[len(old) :]
        return old
    if isinstance(old, dict) and type(new) is dict:
        items = {key: _bring_back(old[key], value) if key in old else value for key, value in new.items()}
        old.clear()
        old.update(items)
        return old
    if (isinstance(old, set) and type(new) is set) or (isinstance(old, bytearray) and type(new) is bytes):
        old.clear()
        getattr(old, "update" if isinstance(old, set) else "extend")(new)
        return old
    if isinstance(old, tuple) and type(new) is tuple and len(old) == len(new):
        return type(old)(map(_bring_back, old, new)) if type(old) is tuple else new
    return new


def _exception(name: str, text: str) -> Exception:
    """Return an exception of the builtin type with the given name.

    StopIteration and StopAsyncIteration become RuntimeError, as Python does in generators. If a candidate raised
    StopIteration, it would end the tests' own loop, `for got, wanted in zip(map(candidate, inputs), outputs)`, before
    a single assert. Types that are not an Exception, such as SystemExit, become RuntimeError, too.
    """
    kind: Any = getattr(builtins, name, None)
    is_exception = isinstance(kind, type) and issubclass(kind, Exception)
    if not is_exception or issubclass(kind, (StopIteration, StopAsyncIteration)):
        return RuntimeError(f"{name}: {text}")
    error = kind.__new__(kind)
    error.args = (text,)
    return error
