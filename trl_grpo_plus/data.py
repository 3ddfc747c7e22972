"""Data sets by name: a file, a saved folder, or the Hub."""

import os
from typing import Any

from .paths import beside, looks_local


BUILDERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}


def load(name: str, config: str | None = None, streaming: bool = False) -> Any:
    """All splits of a data set.

    Args:
        name (`str`): a `.jsonl`, `.json`, `.parquet` or `.csv` file or its URL (one split, `train`), a folder that
            `save_to_disk` wrote, or what [`~datasets.load_dataset`] takes: a folder of files or an id on the Hub.
        config (`str`, *optional*): of a data set on the Hub.
        streaming (`bool`, *optional*, defaults to `False`): whether to read it as it is used. Not for `save_to_disk`.

    Returns:
        `DatasetDict`, or `IterableDatasetDict` where it streams.

    Raises:
        ValueError: there is no such file or folder.
    """
    from datasets import Dataset, DatasetDict, load_dataset, load_from_disk

    check_name(name)
    path = os.path.expanduser(name)
    builder = _builder(name)
    if builder and ("://" in name or os.path.isfile(path)):
        return load_dataset(builder, data_files=path, streaming=streaming)
    if any(os.path.isfile(os.path.join(path, mark)) for mark in ("dataset_info.json", "dataset_dict.json")):
        found = load_from_disk(path)
        return DatasetDict(train=found) if isinstance(found, Dataset) else found
    # A folder of files has no configurations, those of the Hub's data set that it is a copy of least of all.
    return load_dataset(path, name=None if os.path.isdir(path) else config, streaming=streaming)


def check_name(name: str) -> None:
    """The file or folder must be there where a name is a path.

    Raises:
        ValueError: it is not.
    """
    is_path = looks_local(name) or (_builder(name) and "://" not in name)
    if is_path and not os.path.exists(os.path.expanduser(name)):
        raise ValueError(f"there is no file or folder {name}.{beside(name)}")


def _builder(name: str) -> str | None:
    return BUILDERS.get(os.path.splitext(name)[1])
