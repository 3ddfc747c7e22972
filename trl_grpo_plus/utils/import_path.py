"""Functions by path: `pkg.mod.func`, `pkg.mod:func`, `path/to/file.py:func`."""

import ast
import contextlib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .validation import ConfigError, did_you_mean


_FROM_FILE = "_trl_grpo_plus_file_"
_ADDED: list[str] = []  # folders of loaded files that are on `sys.path` for them
_RUNNING: list[str] = []  # names of the modules that `load` imports now


def load(path: str) -> Any:
    """Return the function, or other callable, at a path. A file is imported only once.

    Raises:
        ConfigError: there is no such module, file or function, or it is the running script, which would run twice. An
            error inside the module is raised unchanged.
    """
    if path.endswith(".py"):
        raise ConfigError(_which_function(path))
    where, _, name = path.rpartition(":" if ":" in path else ".")
    if not name or ("" in where.split(".") and not where.endswith(".py")):
        raise ConfigError(f"{path!r} is none of pkg.mod.func, pkg.mod:func and path/to/file.py:func.")
    module = _load_file(where) if where.endswith(".py") else _load_module(where)
    if module.__name__ in _RUNNING:
        _refuse_second_run(module, name)
    function = getattr(module, name, None)
    if not callable(function):
        functions = [attribute for attribute, value in vars(module).items() if callable(value)]
        raise ConfigError(f"{where} has no function {name!r}.{did_you_mean(name, functions)}")
    return function


def is_path(text: str) -> bool:
    """Return whether a text has the form of a path to a function, unlike a plain name or a model's id."""
    return ".py:" in text or text.endswith(".py") or ("/" not in text and (":" in text or "." in text))


def target_of(function: Callable[..., Any]) -> str:
    """Return a path that another process can load the function from."""
    where, module = function.__module__, sys.modules.get(function.__module__)
    if module and where.startswith(_FROM_FILE):
        where = str(module.__file__)
    return f"{where}:{getattr(function, '__qualname__', type(function).__qualname__)}"


def same_source(first: Callable[..., Any], second: Callable[..., Any]) -> bool:
    """Return whether two functions have the same source: a file may have been imported under two names."""
    return (_file_of(first), first.__qualname__) == (_file_of(second), second.__qualname__)


def check_picklable(option: str, function: Callable[..., Any], or_else: str = "") -> None:
    """Refuse a function that a checkpoint cannot save with the configuration, or that has no path.

    `or_else` is another way than a function of one's own to set the arguments of a `functools.partial`.
    """
    if isinstance(function, functools.partial):
        raise ConfigError(
            f"{option}={function!r} has no path, and a run is recorded with the path of its functions. Define a "
            f"function that calls it with def at the top of a file{or_else}."
        )
    try:
        pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError):
        raise ConfigError(
            f"{option}={function!r} cannot be saved with the configuration, as each checkpoint does. "
            "Define it with def at the top of a file, not as a lambda or inside a function."
        ) from None


def _file_of(function: Callable[..., Any]) -> str:
    return os.path.realpath(inspect.getsourcefile(inspect.unwrap(function)) or "")


def _refuse_second_run(module: Any, name: str) -> None:
    """Refuse a module that is imported now if it is the script that the process runs: it would train twice."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script and os.path.realpath(script) == os.path.realpath(str(module.__file__)):
        raise ConfigError(
            f"{script} names its own {name!r} by a path, so the whole script began to run a second time. Name it "
            f"'__main__:{name}', put it in a file of its own, or name it only under if __name__ == '__main__'."
        )


def _which_function(where: str) -> str:
    """Return the message for a path that names a file and none of its functions."""
    if not os.path.isfile(where):
        return f"there is no file {where}."
    try:
        body = ast.parse(Path(where).read_bytes()).body
    except (SyntaxError, ValueError):
        body = []
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = [node.name for node in body if isinstance(node, kinds) and not node.name.startswith("_")]
    shown = " or ".join(f"{where}:{name}" for name in names) or f"{where}:FUNCTION"
    return f"{where} is a file. Name a function in it: {shown}."


def _load_file(where: str) -> Any:
    if not os.path.isfile(where):
        raise ConfigError(f"there is no file {where}.{start_of(where)}")
    path = os.path.realpath(where)
    # The name holds a hash of the whole path, because two files may be called rewards.py.
    name = f"{_FROM_FILE}{Path(path).stem}_{hashlib.blake2b(path.encode(), digest_size=4).hexdigest()}"
    # The file may be imported under another name; a second copy would register its rewards again.
    ours = os.stat(path)
    for imported in list(sys.modules.values()):
        file = getattr(imported, "__file__", None)
        if isinstance(file, str) and imported.__name__ != "__main__":
            with contextlib.suppress(OSError, ValueError):  # the module's file is gone, or is inside an archive
                if os.path.samestat(os.stat(file), ours):
                    return imported
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{where} cannot be imported.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = os.path.dirname(path)
    if folder not in sys.path:  # the file may import modules beside it. Installed modules come first
        sys.path.append(folder)
        _ADDED.append(folder)
    try:
        with _running(name):
            spec.loader.exec_module(module)
        _check_neighbours(path)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextlib.contextmanager
def _running(name: str) -> Iterator[None]:
    """Note the module in `_RUNNING` while it is imported."""
    _RUNNING.append(name)
    try:
        yield
    finally:
        _RUNNING.remove(name)


def _check_neighbours(path: str) -> None:
    """Refuse a file that got a module beside another such file instead of the one of that name beside it.

    Python imports one module of a name. An installed module of the name is what the file would get anywhere.
    """
    folder, names = os.path.dirname(path), set()
    for node in ast.walk(ast.parse(Path(path).read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    for name in names:
        beside = os.path.join(folder, f"{name}.py")
        got = getattr(sys.modules.get(name), "__file__", None)
        if got and os.path.dirname(got) in {*_ADDED} - {folder} and os.path.isfile(beside):
            raise ConfigError(f"{path} imports {name}, and got {got}, not {beside}. Rename {name}.py beside it.")


def _load_module(where: str) -> Any:
    if where in sys.modules:
        return sys.modules[where]
    if not _gone() and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with _running(where):
            return importlib.import_module(where)
    except ModuleNotFoundError as error:
        # If the module exists and lacks one of its own imports, raise the error unchanged.
        if error.name and (where == error.name or where.startswith(f"{error.name}.")):
            raise ConfigError(f"there is no module {error.name}.{_gone()}") from None
        raise


def start_of(path: str) -> str:
    """Return a sentence about the folder in which a relative path starts; "" for an absolute path or one below ~."""
    return "" if os.path.isabs(os.path.expanduser(path)) else _gone() or f" A relative path starts in {os.getcwd()}."


def _gone() -> str:
    """Return a sentence about the current folder if it was removed, else ""."""
    try:
        os.getcwd()
        return ""
    except FileNotFoundError:
        folder = os.readlink("/proc/self/cwd").removesuffix(" (deleted)")
        return f" The current folder was removed: {folder}. Start again in a folder that exists."
