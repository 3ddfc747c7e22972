"""Reward for a task whose completion is the answer and nothing else."""

from typing import Any


def exact_answer(completions: list[Any], answer: list[str | None], **kwargs: Any) -> list[float | None]:
    """1.0 where the completion is the answer, else 0.0; white space around either does not count.

    Args:
        completions (`list`): N completions, each a text or a list of messages, of which the last one's text counts.
        answer (`list[str | None]`): N answers: the dataset's `answer` column. `None`: the row has none.

    Returns:
        `list[float | None]`: N rewards, 0.0 or 1.0; `None` (not scored) where `answer` is `None`.

    Example:
        >>> exact_answer(["46", " 46\\n", "forty-six", "46"], answer=["46", "46", "46", None])
        [1.0, 1.0, 0.0, None]
        >>> exact_answer([[{"role": "assistant", "content": "46"}]], answer=["46"])
        [1.0]
    """
    return [
        None if wanted is None else float(_text(completion).strip() == wanted.strip())
        for completion, wanted in zip(completions, answer, strict=True)
    ]


def _text(completion: Any) -> str:
    if isinstance(completion, str):
        return completion
    # A message that only calls a tool has no content, or None.
    content = completion[-1].get("content") if completion else None
    return content if isinstance(content, str) else ""
