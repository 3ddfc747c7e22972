"""Datasets by name: a file, a saved folder, or an id on the Hub; and TRL's mixtures of several."""

import glob
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..utils.files import beside, looks_local, unexpanded
from ..utils.import_path import start_of
from ..utils.patching import temporarily
from ..utils.tables import in_short
from ..utils.validation import ConfigError


BUILDERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}


def load(name: str, config: str | None = None, streaming: bool = False) -> Any:
    """Load all splits of a dataset.

    Args:
        name (`str`): a `.jsonl`, `.json`, `.parquet` or `.csv` file or its URL (one split, `train`); a folder that
            `save_to_disk` wrote; or a name that [`~datasets.load_dataset`] takes: a folder of files or an id on the
            Hub.
        config (`str`, *optional*): configuration of a dataset on the Hub.
        streaming (`bool`, *optional*, defaults to `False`): read the rows only when they are used. Has no effect on a
            `save_to_disk` folder.

    Returns:
        `DatasetDict`, or `IterableDatasetDict` if streaming.

    Raises:
        ConfigError: there is no such file or folder, or it cannot be read. The message names the file, and the line if
            a line is broken.
    """
    check_name(name)
    path = os.path.expanduser(name)
    if not os.path.exists(path):
        return _load(name, config, streaming)
    with _unlogged():
        try:
            splits = _load(name, config, streaming)
        except Exception as error:  # pyarrow, pandas and datasets raise many kinds
            raise ConfigError(_broken_line([path]) or f"{name} cannot be read: {_cause(error)}") from error
    if _builder(name) == "csv":
        _check_commas(splits["train"], name)
    return splits


def load_mixture(mixture: Any) -> Any:
    """Load a mixture of datasets as TRL does.

    Args:
        mixture (`trl.DatasetMixtureConfig`): the datasets, each as [`~datasets.load_dataset`] takes it.

    Returns:
        `DatasetDict`: with the split `train`, and `test` if the mixture has a `test_split_size`.

    Raises:
        ConfigError: a dataset does not exist or cannot be read, or the datasets do not go together. The message names
            the file, and the line if a line is broken.
    """
    from trl import get_dataset

    for part in mixture.datasets:
        check_part(part)
    with _unlogged():
        try:
            return get_dataset(mixture)
        except Exception as error:
            for part in filter(is_here, mixture.datasets):
                _check_alone(mixture, part)
            raise ConfigError(f"they cannot be read, or do not go together: {in_short(error)}") from error


def _check_alone(mixture: Any, part: Any) -> None:
    """Refuse a dataset of a mixture whose files here cannot be read."""
    from trl import get_dataset

    try:
        get_dataset(replace(mixture, datasets=[part], test_split_size=None))
    except Exception as error:
        files = _files_here(part)
        raise ConfigError(_broken_line(files) or f"{', '.join(files)} cannot be read: {_cause(error)}") from error


def check_part(part: Any) -> None:
    """Refuse a dataset of a mixture, a `trl.DatasetConfig`, that names a file or a folder which does not exist."""
    check_name(part.path)
    if _builder(part.path) and "://" not in part.path:
        data_files = f"path: {_builder(part.path)}, data_files: {part.path}"
        raise ConfigError(f"{part.path} is a file, and path names a folder or a kind of file. Write {data_files}.")
    for file in _files_here(part):
        if not os.path.exists(file):
            raise ConfigError(f"there is no file or folder {file}.{beside(file)}{start_of(file)}")


def is_here(part: Any) -> bool:
    """Return whether a dataset of a mixture is made of files of this machine."""
    return bool(_files_here(part))


def _files_here(part: Any) -> list[str]:
    """Return a part's files and folders on this machine, and each pattern that matches none as it is."""
    folder = "" if part.path in BUILDERS.values() else os.path.expanduser(part.path)
    if folder and not os.path.isdir(folder):  # a dataset on the Hub
        return []
    named = part.data_files.values() if isinstance(part.data_files, Mapping) else [part.data_files or ""]
    names = [name for some in named for name in ([some] if isinstance(some, str) else some)]
    paths = [os.path.join(folder, *map(os.path.expanduser, (part.data_dir or "", name))) for name in names]
    here = [path for path in paths if path and "://" not in path]
    return [file for path in here for file in sorted(glob.glob(path, recursive=True)) or [path]]


def _load(name: str, config: str | None, streaming: bool) -> Any:
    from datasets import Dataset, DatasetDict, load_dataset, load_from_disk

    path = os.path.expanduser(name)
    builder = _builder(name)
    if builder and ("://" in name or os.path.isfile(path)):
        return load_dataset(builder, data_files=path, streaming=streaming)
    if any(os.path.isfile(os.path.join(path, mark)) for mark in ("dataset_info.json", "dataset_dict.json")):
        saved = load_from_disk(path)
        return DatasetDict(train=saved) if isinstance(saved, Dataset) else saved
    # A folder of files has no configurations, even if it is a copy of a dataset on the Hub that has some.
    return load_dataset(path, name=None if os.path.isdir(path) else config, streaming=streaming)


def check_name(name: str, config: str | None = None) -> None:
    """Refuse a path that does not exist, a file of a kind that cannot be read, and a configuration of a file."""
    if os.path.isfile(os.path.expanduser(name)) and _builder(name) is None:
        raise ConfigError(f"{name} cannot be read: a data file ends in one of {', '.join(BUILDERS)}.")
    there = os.path.exists(os.path.expanduser(name))
    if not there and (why := unexpanded(name)):
        raise ConfigError(why)
    is_path = looks_local(name) or (_builder(name) and "://" not in name)
    if is_path and not there:
        raise ConfigError(f"there is no file or folder {name}.{beside(name)}{start_of(name)}")
    if config and _builder(name):
        raise ConfigError(
            f"{name} is a file, so dataset_config={config!r} has no effect: only datasets on the Hub have "
            "configurations. Remove dataset_config."
        )


def _builder(name: str) -> str | None:
    return BUILDERS.get(os.path.splitext(name)[1])


def _check_commas(rows: Any, name: str) -> None:
    columns = [column for column in rows.column_names or () if not column.startswith("__index_level_")]
    separators = [mark for mark in ";\t|" if len(columns) == 1 and mark in columns[0]]
    if separators:
        raise ConfigError(
            f"{name} has only one column, {columns[0]!r}. Separate columns with commas, not {separators[0]!r}. To "
            f"rewrite it: pandas.read_csv({name!r}, sep={separators[0]!r}).to_csv({name!r}, index=False)"
        )


def _unlogged() -> AbstractContextManager[None]:
    """Silence the log of broken lines, which says less about them than this module's messages."""
    return temporarily(logging.getLogger("datasets.packaged_modules.json.json"), disabled=True)


def _broken_line(paths: Iterable[str]) -> str | None:
    """Return a message about the first line that is no JSON object; `None` if there is none.

    Each path is a JSON file, or a folder whose JSON files are searched.
    """
    for path in map(Path, paths):
        for file in [path] if path.is_file() else sorted([*path.rglob("*.jsonl"), *path.rglob("*.json")]):
            if file.suffix in (".jsonl", ".json") and (problem := next(_not_objects(file), None)):
                return f"{file}{problem}"
    return None


def _not_objects(file: Path) -> Iterator[str]:
    if not file.stat().st_size:
        yield " is empty."
    with open(file, encoding="utf-8", errors="replace") as lines:
        if file.suffix == ".json" and lines.read(100).lstrip()[:1] == "[":
            try:
                json.loads(file.read_text(encoding="utf-8", errors="replace"))
            except ValueError as error:
                yield f" is not JSON: {error}"
            return
        lines.seek(0)
        fix = "Correct the line or remove it: "
        for number, line in enumerate(lines, 1):
            try:
                if line.strip() and not isinstance(json.loads(line.strip()), dict):
                    yield f', line {number} is not a JSON object such as {{"prompt": ...}}. {fix}{line.strip():.80}'
            except json.JSONDecodeError as error:
                where = f"{error.msg} at column {error.colno}"
                yield f", line {number} is not JSON ({where}). {fix}{line.strip():.80}"


def _cause(error: BaseException) -> str:
    """Return the original cause of an error, in one line."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return in_short(error)
