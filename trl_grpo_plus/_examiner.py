"""Asserts, in a process that runs no candidate: what they call is a proxy, and the judge carries the call to another.

So the candidate cannot patch the tests, end their process or answer for them; it can only return plain data or raise.
Tests that `eval` what a candidate returns give that away. Standard library only.
"""

import builtins
import os
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from . import _frames, _plain
else:
    import _frames
    import _plain

TEXT = 300  # characters of an exception that are told


def run_tests(fd: int, tests: str, entry_point: str) -> int:
    """Run the tests and tell the judge, over `fd`, whether they passed."""
    frames = _frames.Frames(fd)
    try:
        candidate = _proxy(frames)
        _run_asserts(tests, entry_point, candidate)
    except BaseException as error:
        frames.write({"failed": f"{type(error).__name__}: {str(error)[:TEXT]}"})
        return 0
    frames.write({"passed": True})
    return 0


def _run_asserts(tests: str, entry_point: str, candidate: Callable) -> None:
    """Run the script, then its `check(candidate)`, or else each of its `test_...()`."""
    first, *rest = entry_point.replace("()", "").split(".")
    given: Any = candidate
    for name in reversed(rest):
        given = _Holder(name, given)
    solution = types.ModuleType("solution")
    setattr(solution, first, given)
    sys.modules["solution"] = solution
    namespace: dict[str, Any] = {"__name__": "tests", first: given, "candidate": candidate}
    exec(compile(tests, "tests.py", "exec", dont_inherit=True), namespace)
    if callable(namespace.get("check")):
        namespace["check"](candidate)
        return
    for name, value in list(namespace.items()):
        if name.startswith("test_") and isinstance(value, types.FunctionType):
            value()


class _Holder:
    """Stands for a class, and for an instance of it, of which the tests may use the one method."""

    def __init__(self, name: str, value: Any):
        setattr(self, name, value)

    def __call__(self) -> "_Holder":
        return self


def _proxy(frames: _frames.Frames) -> Callable:
    def candidate(*args: Any, **kwargs: Any) -> Any:
        try:
            call = {"args": _plain.encode(args), "kwargs": _plain.encode(kwargs)}
        except (TypeError, ValueError) as error:
            frames.write({"misuse": f"{type(error).__name__}: {error}"})
            os._exit(1)
        frames.write({"call": call})
        reply = frames.read()
        if "raised" in reply:
            raise _exception(*reply["raised"])
        return _plain.decode(reply["returned"])

    return candidate


def _exception(name: str, text: str) -> Exception:
    """An exception of the builtin type of that name.

    StopIteration and its like become RuntimeError, as Python does in generators: raised by a candidate it would end
    the tests' own loop, `for got, wanted in zip(map(candidate, inputs), outputs)`, before a single assert. So do
    those, as SystemExit, that are no Exception.
    """
    kind: Any = getattr(builtins, name, None)
    is_exception = isinstance(kind, type) and issubclass(kind, Exception)
    if not is_exception or issubclass(kind, (StopIteration, StopAsyncIteration)):
        return RuntimeError(f"{name}: {text}")
    error = kind.__new__(kind)
    error.args = (text,)
    return error
