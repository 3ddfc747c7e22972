"""Stand-ins for the Hub: sample rows of datasets, and facts of models' configs.

`samples/<id with "/" as "__">[__<config>].jsonl` holds a few rows of our own, in the raw format of that dataset.
`samples/models.json` holds the facts that `AutoConfig.for_model(**facts)` needs to build a model's architecture.
"""

import json
from importlib.resources import files
from typing import Any


def sample_of(dataset_name: str, config: str | None = None) -> str | None:
    """Return the path of a dataset's sample rows, in a form that `dataset_name` takes.

    Args:
        dataset_name (`str`): an id on the Hub.
        config (`str`, *optional*): configuration of the dataset.

    Returns:
        `str` or `None`: a `.jsonl` file with the split `train`; `None` if no sample of the dataset ships with this
        package.
    """
    stem = dataset_name.replace("/", "__")
    for name in ([f"{stem}__{config}"] if config else []) + [stem]:
        sample = files(__package__).joinpath("samples", f"{name}.jsonl")
        if sample.is_file():
            return str(sample)
    return None


def config_of(model_id: str) -> dict[str, Any] | None:
    """Return facts of a model's `config.json`, with its `model_type`.

    Returns:
        `dict[str, Any]` or `None`: keyword arguments of [`~transformers.AutoConfig.for_model`]; `None` for a model
        that no shipped recipe names.
    """
    return json.loads(files(__package__).joinpath("samples", "models.json").read_text()).get(model_id)
