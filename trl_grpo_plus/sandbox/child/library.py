"""The standard library in memory, from which programs import if no file can be opened.

The zygote reads the library once, and its children share the memory. Modules in C cannot be loaded this way: the
kernel maps them from files. This module uses the standard library only.
"""

import importlib.machinery
import importlib.util
import os
import struct
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any


# Not part of the library, or useless without files, windows or processes.
LEFT_OUT = {
    "site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3"
}  # fmt: skip
# Prefixes of the names of modules in C that need a system library which Python does not load, or that are tests.
NOT_IN_C = (
    "_crypt", "_ctypes_test", "_curses", "_dbm", "_gdbm", "_sqlite3", "_ssl", "_test", "_tkinter", "_xx", "nis",
    "readline", "xx",
)  # fmt: skip
HEADER = struct.Struct("<4s3I")  # header of a .pyc: magic number, flags, time and size of the source


class Library:
    """A finder for `sys.meta_path` of all Python modules below some folders.

    Args:
        folders (`Sequence[str]`): folders to search, as on `sys.path`.
    """

    def __init__(self, folders: Sequence[str]):
        places = {name: path for folder in reversed(folders) for name, path in _modules(folder)}
        self._files: dict[str, bytes] = {}
        self._stats: dict[str, dict[str, int]] = {}
        self._places = {name: path for name, path in places.items() if self._read(path)}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module, as `sys.meta_path` requires; `None` if the library has no such module."""
        if name not in self._places:
            return None
        loader = _Loader(name, self._places[name], self._files, self._stats)
        return importlib.util.spec_from_file_location(name, self._places[name], loader=loader)

    def _read(self, path: str) -> bool:
        """Keep a file's bytecode, and its source if the bytecode may be stale. Return whether it was readable."""
        cached = importlib.util.cache_from_source(path)
        try:
            found = os.stat(path)
            stats = self._stats[path] = {"mtime": int(found.st_mtime), "size": found.st_size}
            if os.path.exists(cached):
                self._files[cached] = _content(cached)
            fresh = HEADER.pack(importlib.util.MAGIC_NUMBER, 0, *(value & 0xFFFFFFFF for value in stats.values()))
            if not self._files.get(cached, b"").startswith(fresh):
                self._files[path] = _content(path)
        except OSError:  # a link to a file that is not visible, such as Debian's sitecustomize
            return False
        return True


class _Loader(importlib.machinery.SourceFileLoader):
    """Python's own loader, on files that were read before."""

    def __init__(self, name: str, path: str, files: dict[str, bytes], stats: dict[str, dict[str, int]]):
        super().__init__(name, path)
        self._files, self._stats = files, stats

    def get_data(self, path: Any) -> bytes:
        if path not in self._files:
            raise FileNotFoundError(f"not in memory: {path}")
        return self._files[path]

    def path_stats(self, path: Any) -> dict[str, int]:
        return self._stats[path]


def _modules(folder: str, package: str = "") -> Iterator[tuple[str, str]]:
    """Yield the name and the file of each module below a folder."""
    for entry in os.scandir(folder):
        if entry.is_dir():
            first = os.path.join(entry.path, "__init__.py")
            if entry.name not in LEFT_OUT and os.path.exists(first):
                yield package + entry.name, first
                yield from _modules(entry.path, f"{package}{entry.name}.")
        elif entry.name.endswith(".py") and entry.name != "__init__.py":
            yield package + entry.name.removesuffix(".py"), entry.path


def modules_in_c(folders: Sequence[str]) -> list[str]:
    """Return the names of the modules in C, which must be loaded before no file can be opened any more."""
    names = {
        entry.name.partition(".")[0]
        for folder in folders
        for entry in os.scandir(folder)
        if entry.name.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES))
    }
    return sorted(name for name in names if not name.startswith(NOT_IN_C))


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
