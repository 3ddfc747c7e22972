"""Dataset rows that carry their index in the training set, which identifies a row on every rank.

The content of a row cannot identify it, because two processes may print the same content in different ways: a set in
another order, an object with another address.
"""

from collections.abc import Callable, Sequence
from typing import Any


# A column from the dataset to the trainer, which removes it before TRL or a reward sees the rows.
INDEX = "__trl_grpo_plus_index__"


class IndexedRows:
    """A view of a map-style dataset for a dataloader: each row that it deals carries its index.

    All other attributes are the dataset's, because a sampler may read them.

    Args:
        dataset ([`~datasets.Dataset`]): the viewed dataset.
    """

    def __init__(self, dataset: Any):
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: Any) -> Any:
        return self.dataset[key]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        rows = self.dataset.__getitems__(indices)
        # A sampler may deal NumPy numbers.
        return [{**row, INDEX: int(index)} for row, index in zip(rows, indices, strict=True)]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # pickle asks for these before there is a dataset
            raise AttributeError(name)
        return getattr(self.dataset, name)


def collated(collate: Callable[[list[dict[str, Any]]], Any], rows: list[dict[str, Any]]) -> Any:
    """Return `collate(rows)`. The function does not see the rows' indices, and its rows get them again."""
    indices = pop_indices(rows)
    made = collate(rows)
    if isinstance(made, list) and len(made) == len(indices):
        for row, index in zip(made, indices, strict=True):
            row.update({} if index is None else {INDEX: index})
    return made


def pop_indices(rows: Sequence[dict[str, Any]]) -> list[int | None]:
    """Remove the index from each row and return the indices; `None` for a row without an index."""
    return [row.pop(INDEX, None) for row in rows]
