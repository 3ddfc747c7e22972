"""Rows whose images stand in their prompts, for batches from which rows may leave.

An image belongs to a row (in its column `image` or `images`), to a prompt (in its messages) or to a tool. TRL puts the
images of rows into their prompts, generates, and then reads all images from the prompts. If TRL finds no image in the
prompts, it takes the images of the rows that it began with. These are the wrong rows if rows leave or join. So TRL is
shown rows whose images are already in their prompts.
"""

from typing import Any

from trl.data_utils import is_conversational, prepare_multimodal_messages

from ..rollouts.groups import Rows
from ..scoring import datasets_named
from ..utils import dataset_rows
from ..utils.validation import ConfigError


IMAGE_COLUMNS = ("image", "images")


def with_images_in_prompts(rows: Rows) -> Rows:
    """Move the images of each row into its prompt. TRL needs this form if rows may leave or join the batch."""
    return [_shown(row) for row in rows]


def images_in_columns(row: dict[str, Any]) -> list[Any]:
    """Return the images in a row's columns; none if it has no such column, or no image in it."""
    return row.get("images") or [image for image in [row.get("image")] if image is not None]


def lacks_images(row: dict[str, Any]) -> bool:
    """Return whether a row's image column is `None`, with which TRL's processors fail."""
    return any(name in row and row[name] is None for name in IMAGE_COLUMNS)


def check_images(train_dataset: Any, eval_dataset: Any) -> None:
    """Refuse rows without images beside rows with images, for a model whose weights are sharded among processes.

    Each process must then run the vision part in every forward pass. Images in the messages of a prompt, in a stream,
    made by a transform, of an environment or in the answer of a tool are not looked at.

    Raises:
        ConfigError: in a dataset with a column of images, some rows have none.
    """
    for what, dataset in datasets_named(train_dataset, eval_dataset).items():
        for name in set(IMAGE_COLUMNS).intersection(getattr(dataset, "column_names", None) or ()):
            without = dataset_rows.count_empty(dataset, name)
            if without and without < len(dataset):
                raise ConfigError(
                    f"{what}: {without:,} of {len(dataset):,} rows have no image in the column {name!r}. Under FSDP "
                    "and DeepSpeed's ZeRO 3 a process with such rows alone does not run the model's vision part, and "
                    "the other processes wait for it. Give each row an image, or filter these rows out, or use DDP."
                )


class _Shown(dict[str, Any]):
    """A row in the form that TRL reads: with `prompt`, and no images. An environment gets the original row."""

    def __init__(self, row: dict[str, Any], prompt: Any):
        super().__init__(row)
        self._prompt = prompt

    def __contains__(self, name: object) -> bool:
        return name not in IMAGE_COLUMNS and super().__contains__(name)

    def __getitem__(self, name: str) -> Any:
        return self._prompt if name == "prompt" else super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    # TRL does not change prompts of rows without an image column, and refuses images beside a text prompt.
    if not any(name in row for name in IMAGE_COLUMNS) or not is_conversational(row):
        return row
    return _Shown(row, prepare_multimodal_messages(row["prompt"], images=images_in_columns(row)))
