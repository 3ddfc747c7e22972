"""Writers of the table: JSON lines, or a folder with a parquet file for each split.

Memory holds at most some thousand attempts of each split at once.
"""

import hashlib
import os
import re
import shlex
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from ... import traces
from ...traces import Row
from ...utils.files import check_outside, replace
from ...utils.text import distinct
from ...utils.validation import ConfigError, Number
from ...view import by_stock_trl, folder_of
from ..option_values import check_split
from .card import card
from .columns import COLUMNS, clean, flat
from .run_columns import MESSAGES, RunColumns, run_columns


CHUNK = 4000  # attempts; a row group of a parquet file, whose footer grows with the number of row groups
_TYPES = {"int": pa.int64(), "float": pa.float64(), "flag": pa.bool_(), "text": pa.string(), "json": pa.string()}
_TYPES |= {"texts": pa.list_(pa.string()), "pairs": pa.list_(pa.list_(pa.float64()))}
_MESSAGES = pa.list_(pa.struct({"role": pa.string(), "content": pa.string(), "other": pa.string()}))
_OURS = re.compile(r"README\.md|\.gitattributes|data|data/[^/]+\.parquet")


@dataclass(frozen=True)
class Exported:
    """The result of [`export`].

    Attributes:
        path (`Path`): the written file or folder.
        bytes (`int`): its size.
        columns (`RunColumns`): the columns and names of the run, and what was left out.
        groups (`dict[str, int]`): split -> number of groups.
        attempts (`int`): number of attempts in all groups.
        upload (`str`, *optional*): the command that uploads the folder, if the format is "hf".
    """

    path: Path
    bytes: int
    columns: RunColumns
    groups: dict[str, int]
    attempts: int
    upload: str | None


def export(
    run: str | Path,
    to: str,
    output: str | Path | None = None,
    share: float = 1.0,
    last: int | None = None,
    split: str | None = None,
    drop: Collection[str] = (),
    overwrite: bool = False,
) -> Exported:
    """Write a run's attempts as one table, with one attempt per row, in the order of the traces.

    Args:
        run (`str` or `Path`): a run's `output_dir`, or its `rollouts` folder. If there are no traces, TRL's own
            `completions/*.parquet` are read, which hold fewer columns.
        to (`str`): "jsonl", "parquet" or "hf".
        output (`str` or `Path`, *optional*): the file or folder. Default: `<name of the run>-rollouts` in the current
            folder.
        share (`float`, *optional*, defaults to `1.0`): share of the groups, chosen by a hash of their places. The
            choice is the same each time. A larger share contains the groups of a smaller share.
        last (`int`, *optional*): export only the last `last` steps of each split.
        split (`str`, *optional*): export only this split: "train", "eval" or "eval_<name>".
        drop (`Collection[str]`, *optional*): columns, and keys of the reference, to leave out.
        overwrite (`bool`, *optional*, defaults to `False`): replace the files of an earlier export.

    Raises:
        ConfigError: an argument cannot be used, or no group was chosen.
        ValueError: there are no traces, or they are damaged.
    """
    Number(above=0, at_most=1).check("--share", share)
    Number(at_least=1, integer=True, optional=True).check("--last", last)
    suffix = ".jsonl" if to == "jsonl" else ""
    name = traces.output_dir(run).name
    target = Path(output or f"{name}-rollouts{suffix}")
    _check_free(target, run, to, overwrite)
    columns = run_columns(_groups(run))
    columns.leave_out(drop)
    chosen = _Chosen(_groups(run), _steps(run, columns, split, last), share)
    rows = (
        (row["split"], flat(row, columns.written, columns.rewards, columns.dropped))
        for group in chosen
        for row in group
    )
    if to == "jsonl":
        size = replace(target, (orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for _, row in rows))
    else:
        names = split_names(columns.steps)
        with _replacing_folder(target) as folder:
            _write_parquet(folder / "data", rows, _schema(columns), names)
            if to == "hf":
                counts = {names[split]: count for split, count in chosen.counts.items()}
                text = card(name, _about(run), columns, counts, chosen.attempts, _part(split, share, last))
                (folder / "README.md").write_text(text, encoding="utf-8")
        size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    upload = _upload(target) if to == "hf" else None
    return Exported(target, size, columns, chosen.counts, chosen.attempts, upload)


class _Chosen:
    """The chosen groups of a run, which are counted while they are read.

    Attributes:
        counts (`dict[str, int]`): split -> number of groups.
        attempts (`int`): number of attempts in all groups.
    """

    def __init__(self, groups: Iterable[list[Row]], steps: dict[str, set[int]], share: float):
        self._groups, self._steps, self._share = groups, steps, share
        self.counts: dict[str, int] = {}
        self.attempts = 0

    def __iter__(self) -> Iterator[list[Row]]:
        for group in self._groups:
            first = group[0]
            split = first["split"]
            if first["step"] in self._steps.get(split, ()) and (self._share == 1 or _at(first) < self._share):
                self.counts[split] = self.counts.get(split, 0) + 1
                self.attempts += len(group)
                yield group
        if not self.counts:
            raise ConfigError(f"--share={self._share} chose none of the run's groups. Raise it.")


def _steps(run: str | Path, columns: RunColumns, split: str | None, last: int | None) -> dict[str, set[int]]:
    """Return the steps to export of each split."""
    if not columns.steps:
        raise ConfigError(f"{run} holds no whole group of attempts: was it ended before its first step?")
    if split is not None:
        check_split(f"{run} has no", split, columns.steps)
    splits = columns.steps if split is None else (split,)
    return {name: set(columns.steps[name][-last if last else 0 :]) for name in splits}


def _part(split: str | None, share: float, last: int | None) -> str:
    """Describe the exported part of the run, for the card."""
    whole = f"the last {last} steps of " if last else ""
    whole += f"the split {split}" if split else "each split"
    if not (split or last):
        whole = "all that was traced"
    return whole if share == 1 else f"{share:g} of the groups, chosen by a hash, from {whole}"


def _upload(folder: Path) -> str:
    """Return the command that uploads the folder."""
    words = ["hf", "upload", f"NAME/{folder.resolve().name}", str(folder), "--repo-type", "dataset", "--private"]
    return shlex.join(words)


def _groups(run: str | Path) -> Iterable[list[Row]]:
    return traces.trl_completions.groups(run) if by_stock_trl(run) else traces.groups(run)


def _about(run: str | Path) -> dict[str, Any]:
    return {} if by_stock_trl(run) else traces.about(run)


def _at(row: Row) -> float:
    """Return a hash of a group's place, in [0, 1)."""
    place = " ".join(str(row[key]) for key in ("split", "step", "batch", "round", "group"))
    return int.from_bytes(hashlib.blake2b(place.encode(), digest_size=6).digest(), "big") / 2**48


def _check_free(target: Path, run: str | Path, to: str, overwrite: bool) -> None:
    check_outside(target, folder_of(run))
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise ConfigError(f"{target} is there already. Give another --output, or --overwrite to replace it.")
    if target.is_dir() == (to == "jsonl"):
        kinds = ("a folder", "a file") if target.is_dir() else ("a file", "a folder")
        raise ConfigError(f"--output: {target} is {kinds[0]}, and --to {to} writes {kinds[1]}. Give another --output.")
    if target.is_dir():
        inside = [path.relative_to(target).as_posix() for path in sorted(target.rglob("*"))]
        if strange := [path for path in inside if not _OURS.fullmatch(path)]:
            raise ConfigError(
                f"--overwrite: {target} holds {strange[0]}, which no export has written. Give another --output."
            )


def _schema(columns: RunColumns) -> pa.Schema:
    fields = {}
    for name, column in COLUMNS.items():
        kind = column.kind
        if kind in ("scores", "statuses"):
            # Parquet has no structs without fields.
            of_one = pa.float64() if kind == "scores" else pa.string()
            fields[name] = pa.struct({clean(reward): of_one for reward in columns.rewards or ("none",)})
        elif kind == "written":
            fields[name] = _MESSAGES if columns.written[name] == MESSAGES else pa.string()
        else:
            fields[name] = _TYPES[kind]
    return pa.schema({name: of_one for name, of_one in fields.items() if name not in columns.dropped})


def split_names(splits: Collection[str]) -> dict[str, str]:
    """Map each split to a unique name that `datasets` accepts, which has only word characters."""
    return dict(zip(splits, distinct([re.sub(r"\W", "_", split) for split in splits], mark="_"), strict=True))


def _write_parquet(folder: Path, rows: Iterable[tuple[str, Row]], schema: pa.Schema, names: dict[str, str]) -> None:
    """Write one parquet file for each split, all with the same schema."""
    folder.mkdir()
    with ExitStack() as stack:
        writers: dict[str, Any] = {}
        waiting: dict[str, list[Row]] = {}

        def write(split: str) -> None:
            """Write the rows collected for a split, and forget them."""
            if split not in writers:
                path = folder / f"{names[split]}-00000-of-00001.parquet"
                writers[split] = stack.enter_context(pq.ParquetWriter(path, schema, compression="zstd"))
            writers[split].write_table(pa.Table.from_pylist(waiting.pop(split), schema))

        for split, row in rows:
            waiting.setdefault(split, []).append(row)
            if len(waiting[split]) == CHUNK:
                write(split)
        for split in list(waiting):
            write(split)


@contextmanager
def _replacing_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `target` to fill, and rename it to `target` at the end of the block.

    Nobody ever sees an incomplete folder.
    """
    target = target.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished, before = (target.with_name(f".{target.name}.{os.getpid()}{end}") for end in ("", ".before"))
    try:
        unfinished.mkdir()
        yield unfinished
        try:
            if target.exists():
                target.rename(before)
            unfinished.rename(target)
        finally:
            if before.exists() and not target.exists():
                before.rename(target)
    except OSError as error:
        if error.filename or not error.errno:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(target)) from None  # pyarrow names no file
    finally:
        for leftover in (unfinished, before):
            shutil.rmtree(leftover, ignore_errors=True)
