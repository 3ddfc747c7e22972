"""The index of a run's groups: the file `groups.index` beside the files of attempts.

A page of a long run reads the index instead of all attempts. For each group it holds the place of the group's lines on
disk, and the group's line of the list. The files of attempts stay the truth: whatever the index lacks is read from
them, and a run without an index can be read.

The index is a sequence of blocks, each appended by one write. A block describes a stretch of one file:

    marker, size and CRC-32 of what follows
    header     JSON: the file's name, start and end of the stretch, CRC-32 of the file up to its start and up to its
               end, when the file was written, words that recur
    groups     one record of fixed size for each group: see `RECORD`
    rewards    of all attempts, the best first, as 64-bit floats
    titles     of all groups, as text

A block that begins at 0 replaces all earlier blocks of its file. A kill may cut off a block, and a resumed run appends
later blocks after it: a reader looks for the next marker. A block is not used if its stretch does not continue the one
before, by place and by checksum, or if the file is shorter than the stretch. If the file was written after the block
(a copy was), the block is used only if its stretch still has the same checksum.
"""

import json
import os
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, groupby, islice, takewhile
from math import isfinite
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..utils.files import Unreadable, open_within, within
from ..utils.validation import finite_values
from .group_line import entry
from .reader import parse_name
from .schema import Row


NAME = "groups.index"
BLOCK_GROUPS = 256  # groups in a block made from lines; damage to a file costs the index only the blocks from there on
_MARKER = b"\x00GRPidx\x02"
_HEAD = struct.Struct("<8sIII")  # marker, bytes of the header, bytes of header and rest, CRC-32 of these
_PIECE = 1 << 20
# The fields verdict, reason, alarms and of hold places in the block's words, -1 for null. A null number is NaN.
RECORD = np.dtype(
    [
        *((name, "<i8") for name in ("at", "skip", "bytes", "batch", "round", "group")),
        ("prompt", "<u8"),  # hash of prompt and reference
        *((name, "<f8") for name in ("mean", "std", "attempts", "earned")),  # the belief; mean is NaN if there is none
        *((name, "<f8") for name in ("tokens", "entropy", "tokens_sum", "kl_sum")),
        *((name, "<u4") for name in ("size", "title", "tokens_count", "kl_count")),  # title: number of bytes
        *((name, "<i4") for name in ("verdict", "reason", "alarms", "of")),
        ("kept", "i1"),  # -1: not known
    ]
)
_NAMES = RECORD.names or ()


@dataclass(frozen=True)
class Block:
    """The groups in a stretch of a file of attempts.

    Args:
        file (`str`): name of the file.
        start (`int`), end (`int`): the stretch, in bytes of the file.
        before (`int`), check (`int`): [`checksum`] of the file up to `start` and up to `end`.
        written (`int`): when the file was last written once it held the stretch, in ns.
        words (`list`): texts and lists of texts that records name by their place.
        records (`np.ndarray`): one record of type `RECORD` for each of the N groups.
        rewards (`np.ndarray`): rewards of all attempts, NaN for an unscored attempt.
        titles (`bytes`): titles of the groups, one after the other.
    """

    file: str
    start: int
    end: int
    before: int
    check: int
    written: int
    words: list[Any]
    records: Any
    rewards: Any
    titles: bytes

    def __len__(self) -> int:
        return len(self.records)

    @cached_property
    def place(self) -> tuple[int, str]:
        """Step and split of the file."""
        return parse_name(Path(self.file)) or (0, "")

    @cached_property
    def rewards_end(self) -> Any:
        """End of each group's rewards in `rewards`, `(N,)`."""
        return np.cumsum(self.records["size"], dtype=np.int64)

    def means(self) -> list[float | None]:
        """Return the mean reward of each group; `None` for a group without a scored attempt."""
        if not len(self):
            return []
        scored, starts = ~np.isnan(self.rewards), self.rewards_end - self.records["size"]
        sums = np.add.reduceat(np.where(scored, self.rewards, 0.0), starts).tolist()
        counts = np.add.reduceat(scored.astype(np.int64), starts).tolist()
        return [total / count if count else None for total, count in zip(sums, counts, strict=True)]

    @cached_property
    def _titles_end(self) -> Any:
        return np.cumsum(self.records["title"], dtype=np.int64)

    def title(self, number: int) -> str:
        """Return the title of a group."""
        title = self._title(number)
        try:
            return title.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:  # the index of a stranger's run may hold any bytes
            return title.decode("utf-8", "replace")

    def _title(self, number: int) -> bytes:
        end = int(self._titles_end[number])
        return self.titles[end - int(self.records["title"][number]) : end]

    def prompt(self, number: int) -> str:
        """Return the identity of a group's prompt."""
        return f"{self.records['prompt'][number]:016x}"

    def line(self, number: int) -> dict[str, Any]:
        """Return a group's line of the list, as [`~trl_grpo_plus.traces.entry`] makes it."""
        record = dict(zip(_NAMES, self.records[number].item(), strict=True))
        (step, split), end = self.place, int(self.rewards_end[number])
        of = self._word(record["of"])
        belief = [_or_none(record[name]) for name in ("mean", "std", "attempts", "earned")]
        return {
            "split": split,
            "step": step,
            **{name: record[name] for name in ("batch", "round", "group")},
            "verdict": self._word(record["verdict"]),
            "kept": None if record["kept"] < 0 else record["kept"],
            "reason": self._word(record["reason"]),
            "alarms": self._word(record["alarms"]) or [],
            "title": self.title(number),
            "prompt": self.prompt(number),
            "belief": None if belief[0] is None else belief if of is None else [*belief, of],
            **{name: _or_none(record[name]) for name in ("tokens", "entropy")},
            "rewards": list(map(_or_none, self.rewards[end - record["size"] : end].tolist())),
        }

    def group_keys(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return the split and (step, batch, round, group) of each group."""
        (step, split), names = self.place, ("batch", "round", "group")
        keys = zip(*(self.records[name].tolist() for name in names), strict=True)
        return [(split, (step, *key)) for key in keys]

    def where(self, included: Sequence[bool]) -> "Block":
        """Return a block with only the groups that are included."""
        if all(included):
            return self
        chosen = np.array(included, bool)
        titles = b"".join(map(self._title, np.flatnonzero(chosen).tolist()))
        rewards = self.rewards[np.repeat(chosen, self.records["size"])]
        return replace(self, records=self.records[chosen], rewards=rewards, titles=titles)

    def _word(self, code: int) -> Any:
        return None if code < 0 else self.words[code]


Location = tuple[int, int, int]  # where a group's lines are: see `at`, `skip` and `bytes` in `RECORD`


class Builder:
    """Collects the groups of a block."""

    def __init__(self) -> None:
        self._words: dict[Any, int] = {}
        self._records: list[tuple[Any, ...]] = []
        self._rewards: list[float] = []
        self._titles: list[bytes] = []

    def __len__(self) -> int:
        return len(self._records)

    def add(self, rows: Sequence[Row], location: Location) -> None:
        """Add a whole group.

        Args:
            rows (`Sequence[dict]`): the group's attempts.
            location (`tuple[int, int, int]`): where its lines are: their offset in the file, or of their gzip member;
                their offset within the unpacked member; their number of bytes.
        """
        line = entry(rows)
        title = line["title"].encode("utf-8", "surrogatepass")
        mean, std, attempts, earned, *of = line["belief"] or [None] * 4
        (tokens, tokens_count), (kl, kl_count) = (_summed(rows, name) for name in ("tokens", "kl"))
        place = (*location, line["batch"], line["round"], line["group"], int(line["prompt"], 16))
        floats = map(_or_nan, (mean, std, attempts, earned, line["tokens"], line["entropy"]))
        words = (line["verdict"], line["reason"], tuple(line["alarms"]) or None, of[0] if of else None)
        counts = (len(rows), len(title), tokens_count, kl_count)
        kept = -1 if line["kept"] is None else line["kept"]
        self._records.append((*place, *floats, tokens, kl, *counts, *map(self._code, words), kept))
        self._rewards += map(_or_nan, line["rewards"])
        self._titles.append(title)

    def block(self, file: str, start: int, end: int, before: int, check: int, written: int) -> Block:
        """Return the block of the groups, which fill a stretch of a file."""
        words = [list(word) if isinstance(word, tuple) else word for word in self._words]
        records, rewards = np.array(self._records, RECORD), np.array(self._rewards, "<f8")
        return Block(file, start, end, before, check, written, words, records, rewards, b"".join(self._titles))

    def _code(self, word: Any) -> int:
        return -1 if word is None else self._words.setdefault(word, len(self._words))


def blocks_of(groups: Iterable[Sequence[Row]]) -> Iterator[Block]:
    """Yield blocks of whole groups that are in no file of attempts: the blocks have no stretch and no checksums.

    A block holds consecutive groups of one split and step, at most [`BLOCK_GROUPS`].
    """
    for (split, step), of_step in groupby(groups, lambda rows: (rows[0]["split"], rows[0]["step"])):
        for first in of_step:
            builder = Builder()
            for rows in chain([first], islice(of_step, BLOCK_GROUPS - 1)):
                builder.add(rows, (0, 0, 0))
            yield builder.block(f"{split}-{step:08d}.jsonl", 0, 0, 0, 0, 0)


def checksum(file: int, start: int, end: int, before: int) -> int:
    """Return the CRC-32 of an open file's bytes up to `end`.

    Args:
        file (`int`): the file's descriptor.
        start (`int`), end (`int`): the stretch that is read.
        before (`int`): the CRC-32 up to `start`; 0 if that is 0.
    """
    for at in range(start, end, _PIECE):
        before = zlib.crc32(os.pread(file, min(_PIECE, end - at), at), before)
    return before


def encoded(block: Block) -> bytes:
    """Return a block as bytes of the index."""
    about = [block.file, block.start, block.end, block.before, block.check, block.written]
    header = json.dumps([*about, len(block.records), len(block.rewards), block.words]).encode()
    body = b"".join([header, block.records.tobytes(), block.rewards.tobytes(), block.titles])
    return _HEAD.pack(_MARKER, len(header), len(body), zlib.crc32(body)) + body


def append(folder: Path, blocks: Iterable[Block]) -> None:
    """Append blocks to the index in the folder of the traces.

    Raises:
        OSError: the index cannot be written, or is a link that leads out of the folder.
    """
    data = b"".join(map(encoded, blocks))
    with open(within(folder / NAME, folder), "ab", buffering=0) as file:
        file.write(data)  # if a full disk cuts it off, readers leave out the incomplete block


def read(folder: Path) -> dict[str, list[Block]]:
    """Return the blocks of each file whose stretches continue one another from 0, in this order.

    The result is empty if there is no index that can be read.
    """
    found: dict[str, list[Block]] = {}
    try:
        with open_within(folder / NAME, folder) as file:
            for block in _blocks(file):
                of_file = found.setdefault(block.file, [])
                if not block.start:
                    of_file.clear()
                if (block.start, block.before) == ((of_file[-1].end, of_file[-1].check) if of_file else (0, 0)):
                    of_file.append(block)
    except (Unreadable, OSError):
        pass
    return found


def valid(folder: Path, blocks: Sequence[Block]) -> list[Block]:
    """Return the first blocks of a file, up to one that does not describe the file's present content."""
    if not blocks:
        return []
    path = folder / blocks[0].file
    try:  # an error is not raised: whoever reads the lines of the file reports what is wrong with it
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            return []
        if found.st_mtime_ns == blocks[-1].written and found.st_size >= blocks[-1].end:
            return list(blocks)
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW)) as file:

            def fits(block: Block) -> bool:
                if block.end > found.st_size:
                    return False
                return checksum(file.fileno(), block.start, block.end, block.before) == block.check

            return list(takewhile(fits, blocks))
    except OSError:
        return []


def count_attempts(path: Path, blocks: Sequence[Block]) -> int | None:
    """Return the number of attempts in a file, by its blocks; `None` if they do not describe the whole file."""
    described = valid(path.parent, blocks)
    if not described or described[-1].end != path.stat().st_size:
        return None
    return sum(len(block.rewards) for block in described)


def _blocks(file: IO[bytes]) -> Iterator[Block]:
    at = 0
    while True:
        file.seek(at)
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return
        marker, header, size, crc = _HEAD.unpack(head)
        body = file.read(size) if marker == _MARKER and header <= size else b""
        if body and len(body) == size and zlib.crc32(body) == crc and (block := _decoded(body, header)) is not None:
            yield block
            at += _HEAD.size + size
        elif (found := _next_marker(file, at + 1)) is not None:
            at = found
        else:
            return


def _next_marker(file: IO[bytes], start: int) -> int | None:
    overlap = len(_MARKER) - 1
    while True:
        file.seek(start)
        piece = file.read(_PIECE)
        if (found := piece.find(_MARKER)) >= 0:
            return start + found
        if len(piece) <= overlap:
            return None
        start += len(piece) - overlap


def _decoded(body: bytes, header: int) -> Block | None:
    """Return the block in a body; `None` if the body is not valid, such as one in another version's form."""
    try:
        name, *numbers, words = json.loads(body[:header])
        if not (isinstance(words, list) and all(type(number) is int and 0 <= number < 2**63 for number in numbers)):
            return None
        start, end, before, check, written, groups, attempts = numbers
        records = np.frombuffer(body, RECORD, groups, header)
        rewards = np.frombuffer(body, "<f8", attempts, header + records.nbytes)
        titles = body[header + records.nbytes + rewards.nbytes :]
        whole = int(records["size"].sum()) == attempts and int(records["title"].sum()) == len(titles)
        named = all(int(records[code].max(initial=-1)) < len(words) for code in ("verdict", "reason", "alarms", "of"))
        of_run = isinstance(name, str) and parse_name(Path(name)) and os.path.basename(name) == name
        if not (whole and named and of_run and start <= end and _sound(records, words, name, start, end)):
            return None
    except (ValueError, TypeError):
        return None
    return Block(name, start, end, before, check, written, words, records, rewards, titles)


def _sound(records: Any, words: Sequence[Any], name: str, start: int, end: int) -> bool:
    """Return whether no record has an empty group or a place outside of the stretch, and all words are texts."""
    texts = (text for word in words for text in (word if isinstance(word, list) else [word]))
    at, skip, size = (records[field] for field in ("at", "skip", "bytes"))
    within = at < end if name.endswith(".gz") else size <= end - at  # an unpacked member may be longer than the file
    places = (start <= at) & within & (skip >= 0) & (size > 0) & (records["size"] > 0)
    single = {code for field in ("verdict", "reason", "of") for code in set(records[field].tolist()) if code >= 0}
    return (
        bool(places.all())
        and all(isinstance(text, str) for text in texts)
        and all(isinstance(words[code], str) for code in single)
    )


def _summed(rows: Sequence[Row], name: str) -> tuple[float, int]:
    values = finite_values(rows, name)
    return sum(values), len(values)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


def _or_none(value: float) -> float | None:
    return value if isfinite(value) else None
