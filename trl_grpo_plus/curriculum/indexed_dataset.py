"""Rows that know their index in the training set: what tells one row from another, on every rank.

Not their content: two processes write the same set in different orders, and an object by its address.
"""

from collections.abc import Sequence
from typing import Any


# Rows bear it from the dataset to the trainer, which takes it out before TRL or a reward sees them.
INDEX = "__trl_grpo_plus_index__"


class IndexedRows:
    """A view of a map-style dataset for a dataloader: each row that is dealt says its index.

    In all else it stands for the dataset, which a sampler may look into.

    Args:
        dataset ([`~datasets.Dataset`]): what is viewed.
    """

    def __init__(self, dataset: Any):
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: Any) -> Any:
        return self.dataset[key]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        rows = self.dataset.__getitems__(indices)
        # A sampler may deal numbers of numpy.
        return [{**row, INDEX: int(index)} for row, index in zip(rows, indices, strict=True)]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by pickle, when there is no dataset yet
            raise AttributeError(name)
        return getattr(self.dataset, name)


def pop_indices(rows: Sequence[dict[str, Any]]) -> list[int | None]:
    """Return the index of each row, taken out of it; `None` for one that does not say."""
    return [row.pop(INDEX, None) for row in rows]
