"""Data sets by name: a file, a saved folder, or the Hub."""

import os
from typing import Any


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

    name = os.path.expanduser(name)
    builder = BUILDERS.get(os.path.splitext(name)[1])
    is_url = "://" in name
    if (builder or name.startswith((".", "/"))) and not is_url and not os.path.exists(name):
        raise ValueError(f"there is no file or folder {name}.")
    if builder and (is_url or os.path.isfile(name)):
        return load_dataset(builder, data_files=name, streaming=streaming)
    if any(os.path.isfile(os.path.join(name, mark)) for mark in ("dataset_info.json", "dataset_dict.json")):
        found = load_from_disk(name)
        return DatasetDict(train=found) if isinstance(found, Dataset) else found
    # A folder of files has no configurations, those of the Hub's data set that it is a copy of least of all.
    return load_dataset(name, name=None if os.path.isdir(name) else config, streaming=streaming)
