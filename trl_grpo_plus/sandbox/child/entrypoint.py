"""Runs a model-written program in a forked process inside the sandbox.

    judge <----socket----> this process (locked down, no secrets)      zygote: forks this process, sees no messages

The process locks itself down, reports this to the judge, and only then reads the program. So no part of the program
runs outside the sandbox. The process never holds anything that reveals the answer: no expected output, and no tests
(these run in a process of their own, which runs no candidate). So it does not matter that the program can read and
patch everything in this process, and can reply in its place.

The options name one of three forms: `stdin` (a script, which sends back only its output and its exit status), `calls`
(a function that the judge calls with plain data) and `tests` (trusted asserts, whose candidate is a proxy for calls to
another process). Standard library only; run by its path under `python -I -S`.
"""

import _sitebuiltins
import atexit
import builtins
import contextlib
import importlib
import os
import socket
import sys
import threading
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from . import assert_runner, framing, library, lockdown, plain_data, seccomp
else:  # a package of these files alone: the parent package is not visible here
    sys.modules["child"] = types.ModuleType("child")
    sys.modules["child"].__path__ = [os.path.dirname(__file__)]
    from child import assert_runner, framing, library, lockdown, plain_data, seccomp


READY = b"R"
FAILED = b"F"
PROGRAM = "program.py"

# Runs once, in the zygote: sets how children are locked down, and which modules they find loaded.
MODE = os.environ.get("SANDBOX_MODE", "none")
for _name in set(os.environ) - {"LC_CTYPE"}:  # bubblewrap adds variables
    del os.environ[_name]
RULES = lockdown.landlock_rules() if MODE == "landlock" else None
DEVICES = os.open("/dev", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)  # opened now, since /dev is not visible later
FILTER = seccomp.Filter(may_open=MODE == "landlock") if MODE != "none" else None
# Modules that most programs import, and no more: each mapped library slows down each fork. Also modules that need a
# system library, which cannot be loaded later: base64, secrets, gzip and zipfile need them. They cost at most 3 %.
PRELOAD = """bisect collections contextlib copy enum functools heapq io itertools math operator re string threading
time traceback types typing binascii zlib _bz2 _lzma _zstd"""


def enter(channel: socket.socket, options: dict[str, Any]) -> None:
    """Run the form that the options name, in a forked child. Ends the process.

    Args:
        channel (`socket.socket`): socket to the judge.
        options (`dict`): `form` ("stdin", "calls" or "tests") and `limits`.
    """
    form, fd = options["form"], channel.fileno()
    try:
        _open_null()
        if form == "stdin":
            _take_stdio(channel)
        _lock(lockdown.Limits(*options["limits"]))
    except BaseException as error:
        os.write(fd, FAILED + f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    os.write(fd, READY)
    task = framing.Frames(fd).read()
    forms: dict[str, Callable[..., int]] = {"stdin": _run, "calls": _serve_calls, "tests": assert_runner.run_tests}
    os._exit(forms[form](fd, **task))


def _lock(limits: "lockdown.Limits") -> None:
    if FILTER is not None:
        lockdown.drop_privileges()
    lockdown.limit(limits)
    if RULES is not None:
        lockdown.restrict_files(RULES)
    if FILTER is not None:
        FILTER.install()


def _open_null() -> None:
    """Open a new /dev/null for this process: flags set on the zygote's would be visible to the next program."""
    null = os.open("null", os.O_RDWR, dir_fd=DEVICES)
    for fd in range(3):
        os.dup2(null, fd)
    os.close(null)
    os.close(DEVICES)


def _take_stdio(channel: socket.socket) -> None:
    _, (stdin, stderr), _, _ = socket.recv_fds(channel, 1, 2)
    for fd, place in ((stdin, 0), (stderr, 2)):
        os.dup2(fd, place)
        os.close(fd)


# -- a script


def _run(fd: int, program: str) -> int:
    os.dup2(fd, 1)  # `fd` stays open, so that the output ends with this process
    _open_stdio()
    status = _status_of(lambda: _execute(program, "__main__"))
    # The steps that Python takes when it exits.
    for step in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
        status = _status_of(step) or status
    return _status_of(_flush) or status


def _flush() -> None:
    for stream in (sys.stdout, sys.__stdout__, sys.stderr, sys.__stderr__):
        if stream is not None and not stream.closed:
            stream.flush()


def _open_stdio() -> None:
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, "utf-8", "backslashreplace", closefd=False)  # type: ignore[misc]  # noqa: SIM115


def _status_of(step: Callable[[], Any]) -> int:
    try:
        step()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        with contextlib.suppress(BaseException):
            print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        with contextlib.suppress(BaseException):
            sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _execute(program: str, name: str) -> dict[str, Any]:
    """Run a program as the module `name`, and return the module's namespace."""
    module = types.ModuleType(name)
    module.__file__ = PROGRAM
    sys.modules[name] = module
    sys.argv = [PROGRAM]
    exec(compile(program, PROGRAM, "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


# -- a function that the judge calls


def _serve_calls(fd: int, program: str, entry_point: str) -> int:
    channel = framing.Frames(fd)
    try:
        function = _find(_execute(program, "solution"), entry_point)
    except BaseException as error:
        channel.write({"raised": _described(error)})
        return 1
    channel.write({"returned": plain_data.encode(None)})
    while True:
        call = channel.read()
        try:
            args, kwargs = plain_data.decode(call["args"]), plain_data.decode(call["kwargs"])
            reply = {"returned": plain_data.encode(function()(*args, **kwargs))}
            if call.get("changed"):
                reply["after"] = plain_data.encode([list(args), kwargs])
            channel.write(reply)
        except BaseException as error:
            channel.write({"raised": _described(error)})


def _find(namespace: dict[str, Any], entry_point: str) -> Callable[[], Callable[..., Any]]:
    """Return a getter of the function. For `Solution.method`, it makes a new `Solution` each time."""
    first, *rest = plain_data.names_of(entry_point)
    if first not in namespace:
        raise NameError(f"the program defines no {first}")

    def function() -> Callable[..., Any]:
        value = namespace[first]
        for name in rest:
            value = getattr(value() if isinstance(value, type) else value, name)
        return value

    function()
    return function


def _described(error: BaseException) -> list[str]:
    """Return the name of an exception's nearest builtin type, and the exception's text.

    The program may define `__str__`, which may do anything.
    """
    name = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")
    try:
        text = str(error)[: assert_runner.TEXT]
    except BaseException:
        text = ""
    return [name, "".join(text)]


# Programs then import these modules at once. Some builds of Python lack some of them.
FOLDERS = lockdown.standard_library()[1:]
for _name in [*PRELOAD.split(), *(library.modules_in_c(FOLDERS) if MODE == "strict" else [])]:
    with contextlib.suppress(ImportError):
        importlib.import_module(_name)
if MODE == "strict":  # because no file can be opened later
    sys.meta_path.insert(0, library.Library(FOLDERS))
# Programs use these builtins, which `site` defines; -S leaves it out.
for _name in ("exit", "quit"):
    setattr(builtins, _name, _sitebuiltins.Quitter(_name, "Ctrl-D (i.e. EOF)"))
lockdown.be_first_to_go()
if MODE != "none":
    lockdown.hide_files()
sys.dont_write_bytecode = True
