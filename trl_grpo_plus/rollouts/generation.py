"""What TRL generates, and rows and prompts as it is given them.

An image is a row's (in its column `image` or `images`), a prompt's (in its messages) or a tool's. TRL puts those of
rows into their prompts, generates, and reads all of them from the prompts; where it finds none there, it takes those
of the rows that it began with. Where rows come and go these are others, so TRL is shown rows whose images are in their
prompts already.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from trl.data_utils import is_conversational, prepare_multimodal_messages

from ..utils.distributed import raise_on_all_ranks
from ..utils.validation import ConfigError
from .groups import Attempt, Rows


IMAGE_COLUMNS = ("image", "images")
# Of TRL's batch, what a model with images reads beside the token ids.
IMAGE_FIELDS = (
    *("pixel_values", "image_grid_thw", "pixel_attention_mask", "spatial_shapes", "image_sizes", "image_position_ids"),
    *("token_type_ids", "mm_token_type_ids", "num_images", "num_tiles"),
)


class Generated(NamedTuple):
    """What TRL generates for rows of one rank, in TRL's order."""

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    tool_mask: list[list[int]] | None
    completions: list[Any]
    logprobs: list[list[float | None]] | None
    extra_fields: dict[str, Any]
    images: Sequence[list[Any] | None] | None
    tool_images: list[list[Any]]

    @classmethod
    def of(cls, attempts: Sequence[Attempt], masked: bool, logprobs: bool) -> "Generated":
        """As if TRL had generated these attempts; `masked` and `logprobs`: whether any row of the batch has them.

        A row without a mask is the policy's own; a log-prob that is not known is NaN, which TRL takes as no
        difference. Extra fields are in the rows already.
        """
        images = [[*images_of(attempt.prompt), *attempt.tool_images] for attempt in attempts]
        return cls(
            [attempt.prompt_ids for attempt in attempts],
            [attempt.completion_ids for attempt in attempts],
            [_filled(attempt.tool_mask, 1, attempt) for attempt in attempts] if masked else None,
            [attempt.completion for attempt in attempts],
            [_filled(attempt.logprobs, math.nan, attempt) for attempt in attempts] if logprobs else None,
            {},
            images if any(images) else None,
            [list(attempt.tool_images) for attempt in attempts],
        )

    def rows(self, inputs: Rows) -> Rows:
        """Merge extra fields into `inputs` as TRL does: a list holds one value a row, anything else is for all."""
        rows = [dict(row) for row in inputs]
        for name, values in self.extra_fields.items():
            for row, value in zip(rows, values if isinstance(values, list) else [values] * len(rows), strict=False):
                row[name] = value
        return rows


def one_each(rollout_func: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Return a `rollout_func` that is refused where it does not return one completion for each prompt. Collective: TRL
    gathers their lengths next, of as many on each rank.

    Raises:
        ConfigError: on this rank or another.
        RuntimeError: it failed on another rank.
    """

    def checked(prompts: list[Any], *args: Any) -> dict[str, Any]:
        with raise_on_all_ranks():
            output = rollout_func(prompts, *args)
            returned = len(output.get("completion_ids", prompts))  # TRL says which keys are missing
            if returned != len(prompts):
                raise ConfigError(
                    f"rollout_func returned {returned} completions for {len(prompts)} prompts. To drop or resample "
                    "groups, it must return one for each prompt it is given."
                )
        return output

    return checked


def shown(rows: Rows) -> Rows:
    """Return rows as TRL is to see them where they come and go: their images are in their prompts."""
    return [_shown(row) for row in rows]


class _Shown(dict[str, Any]):
    """A row as TRL looks at it: with this prompt, and no images. An environment is given it as it is."""

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
    # TRL leaves the prompts of rows without such a column as they are, and refuses images beside a text.
    if not any(name in row for name in IMAGE_COLUMNS) or not is_conversational(row):
        return row
    images = row.get("images") or [image for image in [row.get("image")] if image is not None]
    return _Shown(row, prepare_multimodal_messages(row["prompt"], images=images))


def images_of(prompt: Any) -> list[Any]:
    """Return those in a prompt's messages, in order; none in a text."""
    contents = [message.get("content") for message in prompt] if isinstance(prompt, list) else []
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return [part["image"] for part in parts if part.get("type") == "image" and "image" in part]


def _filled(values: list[Any] | None, value: float, attempt: Attempt) -> list[Any]:
    return [value] * len(attempt.completion_ids) if values is None else values
