"""Groups in a file that still grows: they are read from an offset on, and read again later from their places."""

import os
import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO, NamedTuple

from ..traces import Row, damaged, group_key, parse
from ..utils.files import open_within


_BLOCK = 1 << 20


class Place(NamedTuple):
    """The place of a group's lines on disk."""

    path: Path
    inode: int
    at: int  # offset in the file; in a gzip file, the offset of the member
    skip: int  # offset within the unpacked member; 0 in a plain file
    bytes: int


class Moved(Exception):
    """Error: the file is gone, or another file has its name."""


def groups(path: Path, inode: int, start: int) -> Iterator[tuple[list[Row], Place, int]]:
    """Yield each whole group from an offset on: its attempts, its place, and the offset at which to read on.

    A group that is not whole yet is left for the next call. A group that a kill cut off is left out. A gzip file is
    read by whole members, which hold whole groups.

    Raises:
        ValueError: a line is no attempt.
    """
    if path.suffix != ".gz":
        for rows, first, after in _whole(lines(path, start), path):
            yield rows, Place(path, inode, start + first, 0, after - first), start + after
        return
    for at, data, end in _members(path, start):
        for rows, first, after in _whole(data.splitlines(keepends=True), path):
            yield rows, Place(path, inode, at, first, after - first), end


def read(place: Place) -> list[Row]:
    """Return the attempts of a group.

    Raises:
        Moved: the attempts are no longer there.
    """
    path, inode, at, skip, size = place
    try:
        if path.suffix == ".gz":
            data = _member_at(path, inode, at)[skip : skip + size]
        else:
            with _opened(path, inode, at) as file:
                data = file.read(size)
    except (OSError, EOFError, zlib.error):
        raise Moved from None
    return [parse(line, path) for line in data.splitlines()]


@lru_cache(maxsize=1)  # the next group requested is mostly in the same member
def _member_at(path: Path, inode: int, at: int) -> bytes:
    with _opened(path, inode, at) as file:
        return _member(file, b"")[0]


def _opened(path: Path, inode: int, at: int) -> IO[bytes]:
    file = open_within(path, path.parent)
    if os.fstat(file.fileno()).st_ino != inode:
        file.close()
        raise Moved
    file.seek(at)
    return file


def lines(path: Path, start: int) -> Iterator[bytes]:
    """Yield the whole lines of a plain file from an offset on."""
    with open_within(path, path.parent) as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield line


def _whole(lines: Iterable[bytes], path: Path) -> Iterator[tuple[list[Row], int, int]]:
    """Yield each whole group, with the offsets from the first line at which the group begins and ends."""
    rows: list[Row] = []
    first = after = 0
    for line in lines:
        row = parse(line, path)
        if rows and group_key(row) != group_key(rows[0]):
            rows, first = [], after
        rows.append(row)
        after += len(line)
        if len(rows) == row["size"]:
            yield rows, first, after
            rows, first = [], after


def _members(path: Path, start: int) -> Iterator[tuple[int, bytes, int]]:
    """Yield offset, content and end of each whole gzip member from an offset on."""
    with open_within(path, path.parent) as file:
        file.seek(start)
        rest = b""
        while True:
            try:
                data, rest = _member(file, rest)
            except EOFError:  # being written, or cut off by a kill
                return
            except zlib.error as error:
                raise damaged(path, error) from None
            end = file.tell() - len(rest)
            yield start, data, end
            start = end


def _member(file: IO[bytes], before: bytes) -> tuple[bytes, bytes]:
    """Unpack the gzip member that begins with the bytes `before`; return its content and the bytes read beyond it."""
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    parts = [unpacker.decompress(before)]
    while not unpacker.eof:
        if not (block := file.read(_BLOCK)):
            raise EOFError
        parts.append(unpacker.decompress(block))
    return b"".join(parts), unpacker.unused_data
