"""The groups of a run's files, which may still grow: numbers about each group, and the place of its texts on disk.

The numbers come from the index beside the files. Groups that the index lacks are read from the lines of the files. The
memory holds about 300 bytes for a group of 8 attempts. Texts are read from disk when they are asked for.
"""

import io
import logging
import os
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from .. import traces
from ..traces import Block, Row, damaged, parse
from ..utils.files import TracesError, open_within
from ..utils.terminal import visible
from .group_data import Tally


logger = logging.getLogger(__name__)

KEEP = 8 << 20  # minimum bytes of attempts missing from the index for which they are added to it
_BLOCK = 1 << 20
_LARGEST = 1 << 31  # maximum bytes of a gzip member, which holds the groups of one batch


Named = Mapping[tuple[int, ...], set[str]]  # (step, batch, round, group) of a training group -> its alarms
Includes = Callable[[str, tuple[int, ...]], bool]  # split and (step, batch, round, group) -> is it included


class Stretch(NamedTuple):
    """The stretch of a file that holds a group's lines."""

    path: Path
    inode: int
    at: int  # offset in the file; in a gzip file, the offset of the member
    skip: int  # offset within the unpacked member; 0 in a plain file
    bytes: int


class Moved(Exception):
    """A file is gone, or another file has its name."""


def scanned(path: Path, inode: int, start: int, before: int | None, cut: bool) -> Iterator[tuple[Block, bool]]:
    """Yield blocks of the whole groups from an offset on, made from the lines, and whether the index may keep them.

    A block ends with a line, or with a gzip member. `before` is the checksum of the file up to the offset; `None` if
    no block is kept, and then the blocks have no checksums. With `cut`, also read the whole groups of a gzip member
    that a kill cut off. The index may keep neither such a member nor one with a bad line: it must be read again.

    Raises:
        ValueError: a line is not an attempt. The groups before it are yielded first.
    """
    step, split = traces.parse_name(path) or (0, "")
    packed, failed = path.suffix == ".gz", None
    builder, end = traces.group_index.Builder(), start
    try:
        for rows, stretch, after in groups(path, inode, start, cut):
            full = after != end and len(builder) >= traces.group_index.BLOCK_GROUPS
            if end > start and (full or (packed and after == stretch.at)):  # or a member begins that a kill cut off
                block = _block(builder, path, start, end, before)
                yield block, True
                builder, start = traces.group_index.Builder(), end
                before = None if before is None else block.check
            builder.add([{**row, "step": step, "split": split} for row in rows], stretch[2:])
            end = after
    except Exception as error:
        failed = error
    if len(builder):
        yield _block(builder, path, start, end, before), end > start and not (packed and failed)
    if failed is not None:
        raise failed


def _block(builder: traces.group_index.Builder, path: Path, start: int, end: int, before: int | None) -> Block:
    if before is None:
        return builder.block(path.name, start, end, 0, 0, 0)
    with open_within(path, path.parent) as file:
        number = file.fileno()
        written = os.fstat(number).st_mtime_ns
        check = traces.group_index.checksum(number, start, end, before)
    return builder.block(path.name, start, end, before, check, written)


def groups(path: Path, inode: int, start: int, cut: bool = False) -> Iterator[tuple[list[Row], Stretch, int]]:
    """Yield each whole group from an offset on: its attempts, its stretch of the file, and the offset to read on from.

    A group at the end that is not whole yet is left for the next call. An earlier group that a kill cut off is left
    out. A gzip file is read by whole members, which hold whole groups.

    Raises:
        ValueError: a line is not an attempt.
    """
    if path.suffix != ".gz":
        for rows, first, after in traces.whole_groups(traces.lines(path, start), path):
            yield rows, Stretch(path, inode, start + first, 0, after - first), start + after
        return
    for at, data, end in _members(path, start, cut):
        lines_of = io.BytesIO(data[: data.rfind(b"\n") + 1])  # a line ends with "\n" alone
        for rows, first, after in traces.whole_groups(lines_of, path):
            yield rows, Stretch(path, inode, at, first, after - first), end


def read(stretch: Stretch, checks: bool = True) -> list[Row]:
    """Return the attempts of a group; `checks` as for [`~trl_grpo_plus.traces.parse`].

    Raises:
        Moved: the attempts are no longer there.
        ValueError: the file is damaged at this place.
    """
    path, inode, at, skip, size = stretch
    try:
        if path.suffix == ".gz":
            data = _member_at(path, inode, at, os.stat(path).st_mtime_ns)[skip : skip + size]
        else:
            with _opened(path, inode, at) as file:
                data = file.read(size)
    except zlib.error as error:
        raise damaged(path, error) from None
    except OSError:
        raise Moved from None
    if len(data) < size:
        raise Moved
    return [parse(line, path, checks) for line in data.rstrip(b"\n").split(b"\n")]


@lru_cache(maxsize=2)  # the next group requested is mostly in the same member
def _member_at(path: Path, inode: int, at: int, changed: int) -> bytes:  # `changed`: a new file may have the inode
    with _opened(path, inode, at) as file:
        return _member(file, b"")[0]


def _opened(path: Path, inode: int, at: int) -> IO[bytes]:
    file = open_within(path, path.parent)
    if os.fstat(file.fileno()).st_ino != inode:
        file.close()
        raise Moved
    file.seek(at)
    return file


def _members(path: Path, start: int, cut: bool) -> Iterator[tuple[int, bytes, int]]:
    """Yield offset, content and end of each whole gzip member from an offset on.

    With `cut`, also yield the content of a last member that is not whole. Its end is given as its own offset, so that
    the next read begins with it again.
    """
    with open_within(path, path.parent) as file:
        file.seek(start)
        rest = b""
        while True:
            try:
                data, rest, whole = _member(file, rest)
            except zlib.error as error:
                raise damaged(path, error) from None
            if not whole and not (cut and data):  # the member is being written, or was cut off by a kill
                return
            end = file.tell() - len(rest) if whole else start
            yield start, data, end
            if not whole:
                return
            start = end


def _member(file: IO[bytes], before: bytes) -> tuple[bytes, bytes, bool]:
    """Unpack the gzip member that begins with the bytes `before`.

    Returns:
        `tuple[bytes, bytes, bool]`: its content, the bytes read beyond it, and whether it is whole.
    """
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    parts = [unpacker.decompress(before)]
    size = len(parts[0])
    while not unpacker.eof:
        if not (block := file.read(_BLOCK)):
            return b"".join(parts), b"", False
        parts.append(unpacker.decompress(block))
        size += len(parts[-1])
        if size > _LARGEST:
            raise zlib.error(f"it unpacks to more than {_LARGEST >> 30} GB")
    return b"".join(parts), unpacker.unused_data, True


# -- all groups of a run


class Groups:
    """The groups of a run, numbered in the order in which they were added, with sums over them.

    Attributes:
        tally ([`Tally`]): the sums of the curves.
        attempts (`int`): number of attempts in all groups.
    """

    def __init__(self) -> None:
        self.tally = Tally()
        self.attempts = self._count = 0
        self._blocks: list[tuple[Block, Path, int]] = []  # block, path and inode of its file
        self._firsts: list[int] = []

    def __len__(self) -> int:
        return self._count

    def add(self, block: Block, path: Path, inode: int, includes: Includes | None = None) -> None:
        """Add the groups of a block of the index, or only those that are included. Steps must ascend.

        The sums of the curves always cover all groups.
        """
        self.tally.add(block)
        if includes is not None:
            block = block.where([includes(*key) for key in block.group_keys()])
        self._firsts.append(self._count)
        self._blocks.append((block, path, inode))
        self._count += len(block)
        self.attempts += len(block.rewards)

    def blocks(self) -> list[Block]:
        """Return the blocks of all groups, in order."""
        return [block for block, *_ in self._blocks]

    def line(self, number: int, named: Named) -> dict[str, Any]:
        """Return a group's line of the list, with the alarms that name it."""
        block, at, *_ = self._at(number)
        line = block.line(at)
        if named and line["split"] == "train":
            key = tuple(line[name] for name in ("step", "batch", "round", "group"))
            line["alarms"] = sorted({*line["alarms"], *named.get(key, ())})
        return line

    def stretch(self, number: int) -> Stretch:
        """Return the stretch of a file that holds a group's attempts."""
        block, at, path, inode = self._at(number)
        record = block.records[at]
        return Stretch(path, inode, *(int(record[name]) for name in ("at", "skip", "bytes")))

    def rows(self, number: int) -> list[Row]:
        """Return a group's attempts.

        Raises:
            TracesError: the file was changed, and the attempts are no longer there.
        """
        stretch, (step, split) = self.stretch(number), self._at(number)[0].place
        try:
            return [{**row, "step": step, "split": split} for row in read(stretch)]
        except Moved:
            raise TracesError(f"{stretch.path} was changed while it was read. Read it again.") from None

    def prompt(self, number: int) -> str:
        """Return the identity of a group's prompt, as in its line."""
        block, at, *_ = self._at(number)
        return block.prompt(at)

    def group_keys(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return the split and (step, batch, round, group) of each group."""
        return [key for block, *_ in self._blocks for key in block.group_keys()]

    def samples(self) -> Iterator[tuple[str, int, tuple[int, ...], float | None]]:
        """Yield split, identity of the prompt, (step, batch, round, group) and mean reward of each group."""
        for block, *_ in self._blocks:
            prompts = block.records["prompt"].tolist()
            for (split, when), prompt, mean in zip(block.group_keys(), prompts, block.means(), strict=True):
                yield split, prompt, when, mean

    def sizes(self) -> Any:
        """Return the number of attempts of each group."""
        return self._column("size")

    def bytes(self) -> Any:
        """Return the number of bytes of each group's lines."""
        return self._column("bytes")

    def ranks(self, named: Named) -> Any:
        """Return each group's rank: 0 if an alarm names it, 1 if it is alive or has no verdict, 2 if it is dead."""
        ranks = []
        steps = {step for step, *_ in named}
        for block, *_ in self._blocks:
            records, (step, split) = block.records, block.place
            verdicts, alive = records["verdict"], block.words.index("alive") if "alive" in block.words else -1
            of_block = np.where((verdicts == -1) | (verdicts == alive), 1, 2)
            of_block[records["alarms"] >= 0] = 0
            if split == "train" and step in steps:
                of_block[[key in named for _, key in block.group_keys()]] = 0
            ranks.append(of_block)
        return np.concatenate(ranks) if ranks else np.zeros(0, int)

    def whens(self) -> Any:
        """Return a number for the split and step of each group, in order of their first groups."""
        whens: dict[tuple[int, str], int] = {}
        of_block = [whens.setdefault(block.place, len(whens)) for block, *_ in self._blocks]
        return np.repeat(of_block, [len(block) for block, *_ in self._blocks]).astype(int)

    def _column(self, name: str) -> Any:
        columns = [block.records[name] for block, *_ in self._blocks]
        return np.concatenate(columns).astype(int) if columns else np.zeros(0, int)

    def _at(self, number: int) -> tuple[Block, int, Path, int]:
        """Return a group's block, its number in the block, and path and inode of its file."""
        n = bisect_right(self._firsts, number) - 1
        block, path, inode = self._blocks[n]
        return block, number - self._firsts[n], path, inode


class Keeper:
    """A writer that adds blocks made from the lines to the index, once they hold [`KEEP`] bytes of attempts.

    If the folder cannot be written, or the index is a link that leads out of the folder, nothing is written.

    Args:
        folder (`Path`): the folder of the traces.
    """

    def __init__(self, folder: Path):
        self._folder, self._blocks, self._bytes, self._wrote = folder, list[Block](), 0, False

    def add(self, block: Block) -> None:
        """Collect a block, and write the collected blocks if they are large enough."""
        self._blocks.append(block)
        self._bytes += block.end - block.start
        if self._bytes >= KEEP:
            self.flush()

    def flush(self) -> None:
        """Write the collected blocks."""
        if not self._wrote:
            text = f"{self._folder} has attempts that its index lacks. Reading them takes a minute for a million"
            logger.warning(visible(f"{text}. If {traces.group_index.NAME} can be written there, they are read once."))
        with suppress(OSError):
            traces.group_index.append(self._folder, self._blocks)
        self._blocks, self._bytes, self._wrote = [], 0, True

    def end(self) -> None:
        """Write the remaining blocks if earlier blocks were written."""
        if self._wrote and self._blocks:
            self.flush()


def read_file(
    path: Path, inode: int, start: int, indexed: list[Block], keeper: Keeper | None, cut: bool = False
) -> Iterator[Block]:
    """Yield the blocks of a file from an offset on: first those of the index, then blocks made from further lines.

    Args:
        path (`Path`), inode (`int`): the file of attempts.
        start (`int`): the offset.
        indexed (`list`): blocks of the file in the index; empty unless the offset is 0.
        keeper ([`Keeper`], *optional*): writer that adds the new blocks to the index.
        cut (`bool`, *optional*, defaults to `False`): also read a gzip member that a kill cut off.

    Raises:
        ValueError: a line is not an attempt.
    """
    before = 0
    for block in traces.group_index.valid(path.parent, indexed):
        yield block
        start, before = block.end, block.check
    if start and start == path.stat().st_size:
        return
    for block, whole in scanned(path, inode, start, None if keeper is None else before, cut):
        if whole and keeper is not None:
            keeper.add(block)
        yield block


def read_run(folder: Path, includes: Includes | None = None) -> Groups:
    """Return the groups of a run.

    Args:
        folder (`Path`): the folder of the traces.
        includes (`Includes`, *optional*): whether to return a group. By default all are returned. The sums of the
            curves always cover all groups.

    Raises:
        ValueError: there are no traces, or a line is not an attempt.
    """
    groups, keeper, index = Groups(), Keeper(folder), traces.group_index.read(folder)
    for _, _, path in traces.files(folder):
        try:
            inode = path.stat().st_ino
            for block in read_file(path, inode, 0, index.pop(path.name, []), keeper, cut=True):
                groups.add(block, path, inode, includes)
        except FileNotFoundError:
            raise TracesError(f"{path} was moved while it was read, as a resumed run does. Read it again.") from None
    keeper.end()
    return groups


def without_files(rows: Iterable[Sequence[Row]]) -> Groups:
    """Return the groups with these attempts. They have no stretch of a file, so their texts cannot be read."""
    groups = Groups()
    for block in traces.group_index.blocks_of(rows):
        groups.add(block, Path(), 0)
    return groups
