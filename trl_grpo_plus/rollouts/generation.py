"""TRL's generated output, and the images in a prompt."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

from ..utils.distributed import raise_on_all_ranks
from ..utils.validation import ConfigError
from .groups import Attempt, Rows


# Fields of TRL's batch that a model with images reads besides the token ids.
IMAGE_FIELDS = (
    "pixel_values",
    "image_grid_thw",
    "pixel_attention_mask",
    "spatial_shapes",
    "image_sizes",
    "image_position_ids",
    "token_type_ids",
    "mm_token_type_ids",
    "num_images",
    "num_tiles",
)


# What a `rollout_func` returns for each prompt: key -> the word for its entries.
ROWS = {"completion_ids": "completions", "prompt_ids": "prompt_ids", "logprobs": "logprobs", "env_mask": "env_mask"}


class Generated(NamedTuple):
    """TRL's generated output for the rows of one rank; the fields are in TRL's order."""

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
        """Return the output in which TRL would have generated these attempts.

        `masked` and `logprobs` say whether any row of the batch has a tool mask or log-probs. In a row without a mask
        the policy wrote all tokens. An unknown log-prob is NaN, which TRL takes as no difference. Extra fields are
        already in the rows.
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
        """Merge extra fields into `inputs` as TRL does: a list holds one value a row, other values go to all rows."""
        rows = [dict(row) for row in inputs]
        for name, values in self.extra_fields.items():
            for row, value in zip(rows, values if isinstance(values, list) else [values] * len(rows), strict=False):
                row[name] = value
        return rows


def unshared(texts: Any) -> Any:
    """Return a copy of texts, messages or rows that shares no list and no dict with them. Images are shared."""
    if isinstance(texts, dict):
        return {key: unshared(value) for key, value in texts.items()}
    return [unshared(value) for value in texts] if isinstance(texts, list) else texts


def one_each(
    rollout_func: Callable[..., dict[str, Any]], *, collective: bool, per_token: Sequence[str]
) -> Callable[..., dict[str, Any]]:
    """Wrap a `rollout_func` with a check that it returns one completion for each prompt.

    Args:
        rollout_func (`Callable`): the user's function.
        collective (`bool`): whether an error on one rank is raised on all, because their next step is collective.
        per_token (`Sequence[str]`): the keys whose rows TRL reads beside the completion's tokens.

    Raises:
        ConfigError: the function returned something else, on this rank or, if `collective`, another.
        RuntimeError: the function failed on another rank.
    """

    def checked(prompts: list[Any], *args: Any) -> dict[str, Any]:
        """Call the function, and refuse a result that does not have one completion for each prompt."""
        count = len(prompts)
        with raise_on_all_ranks() if collective else nullcontext():
            output = rollout_func(prompts, *args)
            _check_rollouts(output, count, per_token)
        return output

    return checked


def _check_rollouts(output: Any, prompts: int, per_token: Sequence[str]) -> None:
    if not isinstance(output, Mapping):
        raise ConfigError(
            f"rollout_func returned a {type(output).__name__}. It must return a dict with prompt_ids, completion_ids "
            "and logprobs."
        )
    rows = {name: output[name] for name in ROWS if output.get(name) is not None}  # TRL says which keys are missing
    for name, values in rows.items():
        if len(values) != prompts:
            raise ConfigError(
                f"rollout_func returned {len(values)} {ROWS[name]} for {prompts} prompts. {name} must have one entry "
                "for each prompt in the list that it gets. The list holds a prompt once for each of its attempts."
            )
    for i, tokens in enumerate(rows.get("completion_ids", ())):
        if not len(tokens):
            raise ConfigError(
                f"rollout_func returned a completion without tokens, completion_ids[{i}]. Return at least one token, "
                "such as the EOS token."
            )
        for name in per_token:
            if name in rows and len(rows[name][i]) != len(tokens):
                raise ConfigError(
                    f"rollout_func returned {len(tokens)} tokens in completion_ids[{i}] and {len(rows[name][i])} "
                    f"values in {name}[{i}]. {name} must have one value for each token."
                )


def images_of(prompt: Any) -> list[Any]:
    """Return the images in a prompt's messages, in order; none for texts."""
    messages = prompt if isinstance(prompt, list) else []
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return [part["image"] for part in parts if part.get("type") == "image" and "image" in part]


def _filled(values: list[Any] | None, value: float, attempt: Attempt) -> list[Any]:
    return [value] * len(attempt.completion_ids) if values is None else values
